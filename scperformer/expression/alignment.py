"""Expression as a model wants it: ln(1 + counts per 10,000), the model's genes as columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

from scperformer.expression.detect import Findings
from scperformer.expression.logarithms import ASSUMED_TOTAL
from scperformer.genes import GeneMap, Overlap, map_genes, measure_overlap, require_named, require_overlap


def normalise(
    x: sparse.spmatrix | sparse.sparray | np.ndarray, findings: Findings, target_sum: float
) -> sparse.csr_matrix:
    """Expression as ln(1 + target_sum * value / total of the cell).

    Parameters
    ----------
    x
        N cells x G genes as stored; it is not changed. Totals are over all of its genes.
    findings
        What the values are. log1p values are inverted and logged anew, unless they are already as wanted:
        then they stay as they are, bit for bit. Where their total cannot be seen it is taken as 10,000 or, with
        `relative`, as what the cell adds up to.
    target_sum
        Counts per cell after normalisation.

    Returns
    -------
    N x G CSR float32 without stored zeros, indices sorted; cells without counts stay zero.
    """
    rows = sparse.csr_matrix(x, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if findings.kind == "log1p":
        assert findings.log_base is not None, "detect gives log1p values a base"
        total = findings.total or ASSUMED_TOTAL
        if not findings.relative and findings.log_base == math.e and total == target_sum:
            return rows
        linear = np.expm1(rows.data.astype(np.float64) * math.log(findings.log_base))
        if not findings.relative:
            rows.data = np.log1p(linear * (target_sum / total)).astype(np.float32)
            return rows
        rows.data = linear.astype(np.float32)
    # As scanpy's normalize_total and log1p do it; to import scanpy would take a third of the time of a small prediction
    totals = rows @ np.ones(rows.shape[1])
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals != 0)
    rows.data *= np.repeat(factors.astype(np.float32), np.diff(rows.indptr))
    np.log1p(rows.data, out=rows.data)
    return rows


def merge_genes(
    x: sparse.spmatrix | sparse.sparray | np.ndarray, first: np.ndarray, log_base: float | None
) -> sparse.csr_matrix:
    """Expression with the columns of each gene added up, as if they were counts.

    Parameters
    ----------
    x
        N cells x G columns.
    first
        For each column the first one of the same gene (`genes.first_of_each`), which gets the sum.
    log_base
        Of the logarithm that the values are of, as ln(1 + value) is of e; None: they are linear.

    Returns
    -------
    N x G CSR float64. Rounded to float32, columns of a gene that has no other are as they were, bit for bit.
    """
    if log_base is None:
        return sum_columns(x, first)
    linear = sparse.csr_matrix(x, dtype=np.float64, copy=True)
    linear.data = np.expm1(linear.data * math.log(log_base))
    summed = sum_columns(linear, first)
    summed.data = np.log1p(summed.data) / math.log(log_base)
    return summed


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How rows of a file become rows of a model: made once for a file, used for any block of its rows."""

    mapping: GeneMap
    overlap: Overlap
    num_genes: int  # of the model
    target_sum: float
    findings: Findings


def plan_alignment(
    var: pd.DataFrame,
    findings: Findings,
    model_genes: Sequence[str],
    *,
    importance: np.ndarray | None = None,
    target_sum: float,
    min_overlap: float | None,
    species: str = "auto",
    path: str | Path = "the data",
) -> Alignment:
    """Find the genes of a model in a file, by its names alone.

    Parameters
    ----------
    var
        The table of the genes of `findings.source` (`detect.gene_table`), its index their names.
    importance
        Of the model's genes (`Bundle.importance`); None: all count alike.
    min_overlap
        Least share of the importance that the file's genes must carry, 0 to 1; None: any will do.
    species
        Of the file: auto, human or mouse.

    Raises
    ------
    InputError
        Too little of what the model looks at is there, the file is of another species, or genes have no names.
    """
    names = [str(name).strip() for name in var.index]
    require_named(names, f"{findings.source} of {path}")
    mapping = map_genes(names, model_genes, var, species, path=path)
    found = measure_overlap(mapping.target, names, model_genes, importance=importance, notes=mapping.notes)
    if min_overlap is not None:
        require_overlap(found, min_overlap, path, file_genes=names, model_genes=model_genes, var=var)
    return Alignment(
        mapping=mapping, overlap=found, num_genes=len(model_genes), target_sum=target_sum, findings=findings
    )


def align_rows(x: sparse.spmatrix | sparse.sparray | np.ndarray, plan: Alignment) -> sparse.csr_matrix:
    """Cells as a model wants them: normalised over all genes of the file, then the model's genes as columns.

    Several genes of the file that are one gene of the model are added up before, as counts. A row does not depend on
    the rows beside it.

    Parameters
    ----------
    x
        Some rows of the expression that `plan.findings` names, with all its columns.

    Returns
    -------
    N x G CSR float32 with sorted indices; genes that the file lacks are 0.
    """
    first, target = _added_up(plan.mapping)
    if first is not None:
        x = merge_genes(x, first, plan.findings.log_base)
    return align(normalise(x, plan.findings, plan.target_sum), target, plan.num_genes)


def align_normalised(x: sparse.csr_matrix, mapping: GeneMap, num_genes: int) -> sparse.csr_matrix:
    """Cells of ln(1 + value) with other genes as columns; genes that become one are added up as values.

    Returns
    -------
    N x num_genes CSR float32 with sorted indices.
    """
    first, target = _added_up(mapping)
    return align(x if first is None else merge_genes(x, first, math.e), target, num_genes)


def _added_up(mapping: GeneMap) -> tuple[np.ndarray | None, np.ndarray]:
    """Which columns to add up (None: none), and where those that then hold values go."""
    first = mapping.first
    is_first = first == np.arange(len(first))
    return None if is_first.all() else first, np.where(is_first, mapping.target, -1)


def sum_columns(x: sparse.spmatrix | sparse.sparray | np.ndarray, first: np.ndarray) -> sparse.csr_matrix:
    """Each column added to column `first[column]`, in float64; columns that moved are empty. CSR of the same shape."""
    rows = sparse.csr_matrix(x, dtype=np.float64)
    summed = sparse.csr_matrix((rows.data, first[rows.indices], rows.indptr), shape=rows.shape, copy=True)
    summed.sum_duplicates()
    return summed


def align(x: sparse.spmatrix | sparse.sparray | np.ndarray, target: np.ndarray, num_genes: int) -> sparse.csr_matrix:
    """Cells with other columns: column j goes to `target[j]`, or away where that is -1; the others become 0.

    Parameters
    ----------
    x
        Expression, N cells x len(target), sparse or dense.
    target
        int64, each column at most once among those that hold values.

    Returns
    -------
    N x num_genes, CSR float32 with sorted indices.
    """
    assert x.shape[1] == len(target), "one target per column"
    rows = sparse.csr_matrix(x, dtype=np.float32)
    # Relabelling the stored entries is one pass; a product with a selection matrix would be several.
    column = target[rows.indices]
    keep = column >= 0
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    content = (rows.data[keep], column[keep], kept_before[rows.indptr])
    aligned = sparse.csr_matrix(content, shape=(rows.shape[0], num_genes))
    aligned.sort_indices()
    return aligned
