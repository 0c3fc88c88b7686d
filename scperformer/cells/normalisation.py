"""Normalised expression, ln(1 + counts per 10,000): of any kind of values, over some genes alone, with a model's genes.

References are normalised by scanpy. Queries get the same values, bit for bit, without the seconds that importing scanpy
takes.
"""

import math
import warnings
import zlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.base.sparse import by_row, undo_log, with_values
from scperformer.cells.detect import Findings
from scperformer.cells.values import (
    ASSUMED_TOTAL,
    MAX_MULTIPLE,
    MIN_WHOLE_SHARE,
    WHOLE_TOLERANCE,
    AnyMatrix,
    linear_values,
    undo_log1p,
)
from scperformer.io.gene_matching import GeneMap
from scperformer.io.gene_overlap import Overlap


def normalise(x: AnyMatrix, findings: Findings, target_sum: float | None) -> csr_matrix:
    """Return ln(1 + target_sum * share of the cell's total), with totals over the columns of `x`.

    Natural log1p values of the same total are not changed, bit for bit. Other log1p values are made linear first. Their
    total is the recognised total, or 10,000 if none was recognised; if `findings` are relative, it is the sum of the
    cell's values. Without `target_sum` the values are ln(1 + count). The result is N x G, CSR float32, without stored
    zeros, with sorted indices. Cells without counts stay zero.
    """
    rows, are_normalised = _without_log(x, findings, target_sum)
    return rows if are_normalised else normalise_counts(rows, target_sum)


def normalise_reference(x: AnyMatrix, findings: Findings, target_sum: float) -> csr_matrix:
    """Return the same as `normalise`, by scanpy."""
    import scanpy  # takes seconds to import

    rows, are_normalised = _without_log(x, findings, target_sum)
    if are_normalised:
        return rows
    cells = AnnData(rows.copy())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some cells have zero counts")  # they stay zero
        scanpy.pp.normalize_total(cells, target_sum=target_sum)
    scanpy.pp.log1p(cells)
    return cells.X


def _without_log(
    x: AnyMatrix, findings: Findings, target_sum: float | None
) -> tuple[csr_matrix, bool]:
    """Return linear values, and False; or normalised values, and True, if the total of the cells is known."""
    rows = without_zeros(csr_matrix(x, dtype=np.float32))
    if findings.kind != "log1p":
        return rows, False
    assert findings.log_base is not None, "detect_expression gives log1p values a base"
    total = findings.total or ASSUMED_TOTAL
    if not findings.relative and findings.log_base == math.e and total == target_sum:
        return rows, True
    assert target_sum is not None, "find_query refuses values that are not counts"
    values = undo_log1p(rows.data.astype(np.float64), findings.log_base)
    if findings.relative:
        rows.data = values.astype(np.float32)
    else:
        rows.data = np.log1p(values * (target_sum / total)).astype(np.float32)
    return rows, not findings.relative


def normalise_counts(counts: csr_matrix, target_sum: float | None) -> csr_matrix:
    """Return ln(1 + target_sum * count / total of the cell), with totals over the columns of `counts`.

    Without `target_sum` it is ln(1 + count). The operations equal scanpy's `normalize_total` and `log1p`, in the
    same order and precision. The result is CSR float32 with the indices of `counts`.
    """
    if target_sum is None:
        return counts.log1p().astype(np.float32)
    totals = (counts @ np.ones(counts.shape[1])).astype(counts.dtype)
    divisors = totals / float(target_sum)
    divisors[divisors == 0] = 1
    values = counts.data / np.repeat(divisors, np.diff(counts.indptr))
    np.log1p(values, out=values)
    content = (values.astype(np.float32, copy=False), counts.indices, counts.indptr)
    return csr_matrix(content, shape=counts.shape)


def without_zeros(x: csr_matrix) -> csr_matrix:
    """Return a matrix with sorted indices, and without stored zeros and duplicates: itself, if it is one."""
    if x.has_canonical_format and x.data.all():
        return x
    x = x.copy()
    x.sum_duplicates()
    x.eliminate_zeros()
    return x


def over_own_genes(x: csr_matrix, target_sum: float) -> csr_matrix:
    """Normalise ln(1 + cp10k) values again over the columns of `x` alone, where totals were over more genes."""
    return normalise_counts(undo_log(x), target_sum)


def recover_counts(x: csr_matrix) -> csr_matrix | None:
    """Return counts from ln(1 + cp10k), CSR float32 N x G, if a cell's smallest value is one count; None if not."""
    values = undo_log(x).data
    multiples = values / np.repeat(by_row(np.minimum, x, values), np.diff(x.indptr))
    checked = multiples[(multiples > 1 + WHOLE_TOLERANCE) & (multiples < MAX_MULTIPLE)]
    if (
        len(checked)
        and np.mean(np.abs(checked - np.rint(checked)) < WHOLE_TOLERANCE) < MIN_WHOLE_SHARE
    ):
        return None
    return with_values(x, np.rint(multiples).astype(np.float32))


def thinned_cells(x: csr_matrix, share: float, seed: int = 0) -> csr_matrix:
    """Return ln(1 + cp10k) of cells as if they had been sequenced to a share of their depth; CSR float32, N x G.

    The smallest value of a cell is one count. Each count stays with probability `share`; which ones depends on the
    cell and the seed alone. With a share of 1, the cells stay as they are.
    """
    if share == 1:
        return x
    counts = undo_log(x)
    values = np.zeros(len(counts.data), dtype=np.float32)
    for start, stop in pairwise(x.indptr.tolist()):
        if start == stop:
            continue
        one_count = counts.data[start:stop].min()
        nums = np.rint(counts.data[start:stop] / one_count).astype(np.int64)
        cell = zlib.crc32(
            nums.tobytes(), zlib.crc32(x.indices[start:stop].astype(np.int64).tobytes())
        )
        rng = np.random.default_rng((cell, seed))
        values[start:stop] = np.log1p(rng.binomial(nums, share) * (one_count / share))
    return without_zeros(csr_matrix((values, x.indices, x.indptr), shape=x.shape))


def thin(counts: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """Keep each count with probability `share`, as if the cells had been sequenced to that share of their depth."""
    values = rng.binomial(counts.data.astype(np.int64), share).astype(np.float32)
    return without_zeros(csr_matrix((values, counts.indices, counts.indptr), shape=counts.shape))


def merge_genes(x: AnyMatrix, first: np.ndarray, log_base: float | None) -> csr_matrix:
    """Add up the columns of each gene in the first of them, as counts; its other columns become empty.

    `first` is the first column of the same gene for each column (`first_of_each`); values are log1p to `log_base`. The
    result is CSR float64. Rounded to float32, the only column of a gene is unchanged, bit for bit.
    """
    rows = linear_values(x, log_base)
    summed = csr_matrix((rows.data, first[rows.indices], rows.indptr), shape=rows.shape, copy=True)
    summed.sum_duplicates()
    if log_base is not None:
        summed.data = np.log1p(summed.data) / math.log(log_base)
    return summed


def align(x: AnyMatrix, target: np.ndarray, num_genes: int) -> csr_matrix:
    """Move column j to `target[j]`, or drop it if that is -1; columns of the result that get no column are 0.

    Columns with values must have different targets. The result is N x num_genes, CSR float32 with sorted indices.
    """
    assert x.shape[1] == len(target), "one target per column"
    rows = csr_matrix(x, dtype=np.float32)
    # Changing the column numbers of the stored entries takes one pass; a product with a selection matrix takes several.
    column = target.astype(np.int32)[rows.indices]
    keep = column >= 0
    dropped = np.flatnonzero(~keep)
    indptr = rows.indptr - np.searchsorted(dropped, rows.indptr)
    aligned = csr_matrix((rows.data[keep], column[keep], indptr), shape=(rows.shape[0], num_genes))
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


def align_rows(x: AnyMatrix, plan: Alignment) -> csr_matrix:
    """Normalise cells over all genes of the file, merge genes, and select the model's as columns, as `align` does."""
    merged, target = _merge_mapped(x, plan.mapping, plan.findings.log_base)
    aligned = align(normalise(merged, plan.findings, plan.target_sum), target, plan.num_genes)
    if plan.own_totals and plan.target_sum is not None:
        return over_own_genes(aligned, plan.target_sum)
    return aligned


def align_normalised(x: csr_matrix, mapping: GeneMap, num_genes: int) -> csr_matrix:
    """Select the model's genes as columns of ln(1 + value), as `align` does; values of the same gene are added up."""
    return align(*_merge_mapped(x, mapping, math.e), num_genes)


def _merge_mapped(
    x: AnyMatrix, mapping: GeneMap, log_base: float | None
) -> tuple[AnyMatrix, np.ndarray]:
    """Add up genes that are the same gene of the model, and return the target of each column, -1 if emptied."""
    first = mapping.first
    is_first = first == np.arange(len(first))
    merged = x if is_first.all() else merge_genes(x, first, log_base)
    return merged, np.where(is_first, mapping.target, -1)
