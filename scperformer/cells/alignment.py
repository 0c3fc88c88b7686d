"""Align expression to the genes of a model: match the genes of a file, sum them, and reorder the columns."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from scperformer.cells.detect import Findings
from scperformer.cells.normalisation import AnyMatrix, normalise, over_own_genes
from scperformer.cells.values import undo_log1p
from scperformer.io.gene_matching import GeneMap
from scperformer.io.gene_overlap import Overlap


def merge_genes(x: AnyMatrix, first: np.ndarray, log_base: float | None) -> sparse.csr_matrix:
    """Add up the columns of each gene in the first of them, as counts; its other columns become empty.

    `first` is the first column of the same gene for each column (`first_of_each`); values are log1p to `log_base`. The
    result is CSR float64. Rounded to float32, the only column of a gene is unchanged, bit for bit.
    """
    rows = sparse.csr_matrix(x, dtype=np.float64)
    linear = undo_log1p(rows.data, log_base)
    summed = sparse.csr_matrix((linear, first[rows.indices], rows.indptr), shape=rows.shape, copy=True)
    summed.sum_duplicates()
    if log_base is not None:
        summed.data = np.log1p(summed.data) / math.log(log_base)
    return summed


def align(x: AnyMatrix, target: np.ndarray, num_genes: int) -> sparse.csr_matrix:
    """Move column j to `target[j]`, or drop it if that is -1; columns of the result that get no column are 0.

    Columns with values must have different targets. The result is N x num_genes, CSR float32 with sorted indices.
    """
    assert x.shape[1] == len(target), "one target per column"
    rows = sparse.csr_matrix(x, dtype=np.float32)
    # Changing the column numbers of the stored entries takes one pass; a product with a selection matrix takes several.
    column = target.astype(np.int32)[rows.indices]
    keep = column >= 0
    dropped = np.flatnonzero(~keep)
    indptr = rows.indptr - np.searchsorted(dropped, rows.indptr)
    aligned = sparse.csr_matrix((rows.data[keep], column[keep], indptr), shape=(rows.shape[0], num_genes))
    aligned.sort_indices()
    return aligned


@dataclass(frozen=True)
class Alignment:
    """How cells of a file get the genes of a model: made once for a file, then applied to any block of its rows."""

    mapping: GeneMap
    overlap: Overlap
    num_genes: int  # genes of the model
    target_sum: float | None  # if None, counts stay as they are, and values are ln(1 + count)
    findings: Findings
    own_totals: bool = False  # cells are normalised over the model's genes alone


def align_rows(x: AnyMatrix, plan: Alignment) -> sparse.csr_matrix:
    """Normalise cells over all genes of the file, merge genes, and select the model's as columns, as `align` does."""
    merged, target = _merge_mapped(x, plan.mapping, plan.findings.log_base)
    aligned = align(normalise(merged, plan.findings, plan.target_sum), target, plan.num_genes)
    if plan.own_totals and plan.target_sum is not None:
        return over_own_genes(aligned, plan.target_sum)
    return aligned


def align_normalised(x: sparse.csr_matrix, mapping: GeneMap, num_genes: int) -> sparse.csr_matrix:
    """Select the model's genes as columns of ln(1 + value), as `align` does; values of the same gene are added up."""
    return align(*_merge_mapped(x, mapping, math.e), num_genes)


def _merge_mapped(x: AnyMatrix, mapping: GeneMap, log_base: float | None) -> tuple[AnyMatrix, np.ndarray]:
    """Add up genes that are the same gene of the model, and return the target of each column, -1 if emptied."""
    first = mapping.first
    is_first = first == np.arange(len(first))
    merged = x if is_first.all() else merge_genes(x, first, log_base)
    return merged, np.where(is_first, mapping.target, -1)
