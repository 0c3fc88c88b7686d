"""Expression as a model needs it: ln(1 + counts per 10,000), with the model's genes as columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy import sparse

from scperformer.cells.counts import over_own_genes
from scperformer.cells.detect import Findings
from scperformer.cells.values import ASSUMED_TOTAL
from scperformer.genes import GeneMap, Overlap, map_genes, measure_overlap, require_named, require_overlap

AnyMatrix: TypeAlias = sparse.spmatrix | sparse.sparray | np.ndarray


def normalise(x: AnyMatrix, findings: Findings, target_sum: float) -> sparse.csr_matrix:
    """Return expression as ln(1 + target_sum * value / total of the cell), totals over all genes of `x`.

    Values that are already as wanted stay as they are, bit for bit. Other log1p values are linear again before they are
    normalised: from a total of 10,000 if it is not recognised, or, with `relative`, from the sum of the cell. Returns
    CSR float32 of the shape of `x`, without stored zeros, indices sorted; cells without counts stay zero.
    """
    rows = sparse.csr_matrix(x, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if findings.kind == "log1p":
        assert findings.log_base is not None, "detect_expression gives log1p values a base"
        total = findings.total or ASSUMED_TOTAL
        if not findings.relative and findings.log_base == math.e and total == target_sum:
            return rows
        linear = np.expm1(rows.data.astype(np.float64) * math.log(findings.log_base))
        if not findings.relative:
            rows.data = np.log1p(linear * (target_sum / total)).astype(np.float32)
            return rows
        rows.data = linear.astype(np.float32)
    # As scanpy's normalize_total and log1p; importing scanpy would add seconds to each run.
    totals = rows @ np.ones(rows.shape[1])
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals != 0)
    rows.data *= np.repeat(factors.astype(np.float32), np.diff(rows.indptr))
    np.log1p(rows.data, out=rows.data)
    return rows


def merge_genes(x: AnyMatrix, first: np.ndarray, log_base: float | None) -> sparse.csr_matrix:
    """Add up the columns of each gene as counts in the `first` of them (`genes.first_of_each`); the others are empty.

    `log_base` is the base of log1p values; None: the values are linear. Returns CSR float64 of the shape of `x`.
    Rounded to float32, the only column of a gene is unchanged, bit for bit.
    """
    rows = sparse.csr_matrix(x, dtype=np.float64)
    linear = rows.data if log_base is None else np.expm1(rows.data * math.log(log_base))
    summed = sparse.csr_matrix((linear, first[rows.indices], rows.indptr), shape=rows.shape, copy=True)
    summed.sum_duplicates()
    if log_base is not None:
        summed.data = np.log1p(summed.data) / math.log(log_base)
    return summed


def align(x: AnyMatrix, target: np.ndarray, num_genes: int) -> sparse.csr_matrix:
    """Move column j to `target[j]`, or drop it where that is -1; other columns are 0.

    Columns with values have different targets. Returns N x num_genes, CSR float32 with sorted indices.
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


@dataclass(frozen=True)
class Alignment:
    """The way from rows of a file to rows of a model: made once for a file, used for any block of its rows."""

    mapping: GeneMap
    overlap: Overlap
    num_genes: int  # of the model
    target_sum: float
    findings: Findings
    own_totals: bool = False  # cells are normalised over the model's genes alone


def plan_alignment(
    var: pd.DataFrame,
    findings: Findings,
    model_genes: Sequence[str],
    *,
    importance: np.ndarray | None = None,
    target_sum: float,
    min_overlap: float | None,
    can_adapt: bool = False,
    own_totals: bool = False,
    species: str = "auto",
    path: str | Path = "the data",
) -> Alignment:
    """Find the genes of a model in a file by their names, the index of `var` (`gene_table` of `findings.source`).

    A file is refused if it has less than `min_overlap` (0 to 1; None: any is enough) of the `importance` of the model's
    genes (None: all have the same), or few of the genes, and the model cannot be adapted to its genes (`can_adapt`). It
    is also refused if it is of another species, or if genes have no names.
    """
    names = [str(name).strip() for name in var.index]
    require_named(names, f"{findings.source} of {path}")
    mapping = map_genes(names, model_genes, var, species, path=path)
    found = measure_overlap(mapping.target, names, model_genes, importance=importance, notes=mapping.notes)
    if min_overlap is not None:
        about: dict[str, Any] = {"file_genes": names, "model_genes": model_genes, "var": var, "can_adapt": can_adapt}
        require_overlap(found, min_overlap, path, **about, own_totals=own_totals)
    return Alignment(mapping, found, len(model_genes), target_sum, findings, own_totals)


def align_rows(x: AnyMatrix, plan: Alignment) -> sparse.csr_matrix:
    """Normalise cells over all genes of the file, and select the model's genes as columns, as `align`.

    Genes of the file that are one gene of the model are added up as counts before. With `own_totals` cells are then
    normalised over the model's genes. A row does not depend on other rows.
    """
    merged, target = _merge_mapped(x, plan.mapping, plan.findings.log_base)
    aligned = align(normalise(merged, plan.findings, plan.target_sum), target, plan.num_genes)
    return over_own_genes(aligned, plan.target_sum) if plan.own_totals else aligned


def align_normalised(x: sparse.csr_matrix, mapping: GeneMap, num_genes: int) -> sparse.csr_matrix:
    """Select genes as columns of ln(1 + value), as `align`; genes that are one gene of the model are added up."""
    return align(*_merge_mapped(x, mapping, math.e), num_genes)


def _merge_mapped(x: AnyMatrix, mapping: GeneMap, log_base: float | None) -> tuple[AnyMatrix, np.ndarray]:
    """Add up genes that are one gene of the model, and return the target of each column that then has values."""
    first = mapping.first
    is_first = first == np.arange(len(first))
    merged = x if is_first.all() else merge_genes(x, first, log_base)
    return merged, np.where(is_first, mapping.target, -1)
