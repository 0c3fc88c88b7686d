"""Gene names: which kind of id they are, how two lists overlap, and how cells are aligned to a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

from scperformer.errors import InputError

NUM_EXAMPLES = 20

# Ensembl gene ids: ENS, a species code of up to four letters (none for human), G, digits: ENSG00000187634,
# ENSMUSG00000051951; a version follows after a dot.
ENSEMBL = r"ENS[A-Z]{0,4}G\d{6,}"
KIND_NAMES = {
    "symbol": "gene symbols",
    "ensembl": "Ensembl ids",
    "ensembl_versioned": "Ensembl ids with versions",
    "unknown": "names of an unknown kind",
}


def id_kind(names: Sequence[str]) -> str:
    """The kind of gene id of most of `names`.

    Returns
    -------
    "ensembl", "ensembl_versioned" (as ENSG00000187634.12), "symbol", or "unknown" (no names, or mostly
    numbers or empty names).
    """
    series = pd.Series(list(names), dtype=str)
    if series.empty:
        return "unknown"
    versioned = series.str.fullmatch(ENSEMBL + r"\.\d+(_PAR_Y)?", case=False).mean()
    plain = series.str.fullmatch(ENSEMBL, case=False).mean()
    if versioned + plain > 0.5:
        return "ensembl_versioned" if versioned > plain else "ensembl"
    letters = series.str.contains("[A-Za-z]", regex=True).mean()
    return "symbol" if letters > 0.5 else "unknown"


def require_unique(names: Sequence[str], where: str) -> None:
    """Fail when gene names repeat: nobody could tell which of them is meant.

    Raises
    ------
    InputError
        Names examples of the repeated genes.
    """
    index = pd.Index(names)
    repeated = index[index.duplicated()].unique()
    if len(repeated):
        examples = ", ".join(repr(str(name)) for name in repeated[:3])
        raise InputError(
            f"{len(repeated)} gene names occur more than once in {where} (e.g. {examples})",
            "unique gene names",
            "add up or drop the repeated genes, or call adata.var_names_make_unique() and save the file",
        )


@dataclass(kw_only=True)
class Overlap:
    """How the genes of a file and of a model overlap."""

    num_model: int
    num_file: int
    num_shared: int
    share_of_model: float  # num_shared / num_model
    num_absent: int  # model genes that the file lacks
    num_dropped: int  # file genes that the model does not know
    absent: list[str]  # the first 20 of them, in the model's order
    dropped: list[str]  # the first 20 of them, in the file's order


def overlap(file_genes: Sequence[str], model_genes: Sequence[str]) -> Overlap:
    """The overlap of two lists of unique gene names; names are compared as they are, case included."""
    in_file, in_model = set(file_genes), set(model_genes)
    absent = [gene for gene in model_genes if gene not in in_file]
    dropped = [gene for gene in file_genes if gene not in in_model]
    num_shared = len(model_genes) - len(absent)
    return Overlap(
        num_model=len(model_genes),
        num_file=len(file_genes),
        num_shared=num_shared,
        share_of_model=num_shared / len(model_genes) if len(model_genes) else 0.0,
        num_absent=len(absent),
        num_dropped=len(dropped),
        absent=absent[:NUM_EXAMPLES],
        dropped=dropped[:NUM_EXAMPLES],
    )


def require_overlap(
    found: Overlap,
    min_overlap: float,
    path: str | Path,
    *,
    file_genes: Sequence[str],
    model_genes: Sequence[str],
    var: pd.DataFrame | None = None,
) -> None:
    """Fail when a file has too few of a model's genes to say anything about its cells.

    Parameters
    ----------
    min_overlap
        Least share of the model's genes, 0 to 1. Even with 0, one shared gene is needed.
    var
        What the file says about its genes, one row each: a column of it may hold the names that the model knows.

    Raises
    ------
    InputError
        With counts, examples of both sides, and a remedy that fits the kinds of id.
    """
    if found.num_shared > 0 and found.share_of_model >= min_overlap:
        return
    share = f"{100 * found.share_of_model:.1f} %"
    column = None if var is None else _column_with_genes(var, model_genes, more_than=found.num_shared)
    raise InputError(
        f"{found.num_shared} of {found.num_model} model genes ({share}) found in {path} "
        f"({_example(file_genes)}; model has {_example(model_genes)})",
        f"at least {100 * min_overlap:g} % of the model's genes" if min_overlap > 0 else "at least one gene",
        _remedy(file_genes, model_genes, column),
    )


def _example(names: Sequence[str]) -> str:
    # Names from the middle: the first ones of a sorted list are often odd (5_8S_rRNA, AL627309.1).
    middle = len(names) // 2
    return "e.g. " + ", ".join(repr(str(name)) for name in list(names)[middle : middle + 2])


def _column_with_genes(var: pd.DataFrame, model_genes: Sequence[str], more_than: int) -> str | None:
    """The column of `var` that holds most of the model's genes, if it holds more of them than `more_than`."""
    wanted = {str(gene) for gene in model_genes}
    num_found = {str(name): len(wanted.intersection(values.astype(str))) for name, values in var.items()}
    best = max(num_found, key=lambda name: num_found[name], default=None)
    return best if best is not None and num_found[best] > more_than else None


def _remedy(file_genes: Sequence[str], model_genes: Sequence[str], column: str | None) -> str:
    kind, wanted = id_kind(file_genes), id_kind(model_genes)
    if column is not None:
        return f'take the names in var["{column}"] as var_names ({KIND_NAMES[wanted]}, as in the model)'
    if kind != wanted:
        return f"convert var_names from {KIND_NAMES[kind]} to {KIND_NAMES[wanted]}"
    in_model = {str(gene).upper() for gene in model_genes}
    same_but_case = sum(str(gene).upper() in in_model for gene in file_genes)
    if same_but_case > len(set(file_genes) & set(model_genes)):
        return f"{same_but_case} genes differ in case only: write var_names as the model does"
    return "use a model trained on the same species and platform, or lower min_overlap=..."


def align(
    x: sparse.spmatrix | sparse.sparray | np.ndarray, file_genes: Sequence[str], model_genes: Sequence[str]
) -> sparse.csr_matrix:
    """Cells with the model's genes as columns; genes that the file lacks become 0, others are dropped.

    Parameters
    ----------
    x
        Expression, N cells x len(file_genes), sparse or dense.
    file_genes, model_genes
        Unique gene names of one kind.

    Returns
    -------
    N x len(model_genes), CSR float32 with sorted indices, columns in the order of `model_genes`.
    """
    assert x.shape[1] == len(file_genes), "one name per column"
    rows = sparse.csr_matrix(x, dtype=np.float32)
    target = pd.Index(model_genes).get_indexer(pd.Index(file_genes))
    # Relabelling the stored entries is one pass; a product with a selection matrix would be several.
    column = target[rows.indices]
    keep = column >= 0
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    parts = (rows.data[keep], column[keep], kept_before[rows.indptr])
    aligned = sparse.csr_matrix(parts, shape=(rows.shape[0], len(model_genes)))
    aligned.sort_indices()
    return aligned
