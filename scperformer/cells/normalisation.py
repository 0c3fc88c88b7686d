"""Normalised expression, ln(1 + counts per 10,000): from any kind of values, from counts, and over some genes alone.

References in memory are normalised by scanpy. Queries and cells on disk get the same values, bit for bit, without the
seconds that importing scanpy takes.
"""

import math
import warnings
import zlib
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from anndata import AnnData
from scipy import sparse

from scperformer.cells.detect import Findings
from scperformer.cells.values import ASSUMED_TOTAL, MAX_MULTIPLE, MIN_WHOLE_SHARE, WHOLE_TOLERANCE, undo_log1p

AnyMatrix: TypeAlias = sparse.spmatrix | sparse.sparray | np.ndarray


def normalise(
    x: AnyMatrix, findings: Findings, target_sum: float | None, *, by_scanpy: bool = False
) -> sparse.csr_matrix:
    """Return ln(1 + target_sum * share of the cell's total), with totals over the columns of `x`.

    Natural log1p values of the same total are not changed, bit for bit. Other log1p values are made linear first. Their
    total is the recognised total, or 10,000 if none was recognised; if `findings` are relative, it is the sum of the
    cell's values. Without `target_sum` the values are ln(1 + count). The result is N x G, CSR float32, without stored
    zeros, with sorted indices. Cells without counts stay zero.
    """
    rows = without_zeros(sparse.csr_matrix(x, dtype=np.float32, copy=by_scanpy))
    if findings.kind == "log1p":
        assert findings.log_base is not None, "detect_expression gives log1p values a base"
        total = findings.total or ASSUMED_TOTAL
        if not findings.relative and findings.log_base == math.e and total == target_sum:
            return rows
        assert target_sum is not None, "find_query refuses values that are not counts"
        values = undo_log1p(rows.data.astype(np.float64), findings.log_base)
        if not findings.relative:
            rows.data = np.log1p(values * (target_sum / total)).astype(np.float32)
            return rows
        rows.data = values.astype(np.float32)
    return (scanpy_normalised if by_scanpy else normalise_counts)(rows, target_sum)


def scanpy_normalised(counts: sparse.csr_matrix, target_sum: float | None) -> sparse.csr_matrix:
    """Return ln(1 + target_sum * count / total of the cell) by scanpy; CSR float32. `counts` are changed."""
    import scanpy  # takes seconds to import

    cells = AnnData(counts)
    if target_sum is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some cells have zero counts")  # they stay zero
            scanpy.pp.normalize_total(cells, target_sum=target_sum)
    scanpy.pp.log1p(cells)
    return cells.X


def normalise_counts(counts: sparse.csr_matrix, target_sum: float | None) -> sparse.csr_matrix:
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
    return sparse.csr_matrix(content, shape=counts.shape)


def without_zeros(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return a matrix with sorted indices, and without stored zeros and duplicates: itself, if it is one."""
    if x.has_canonical_format and x.data.all():
        return x
    x = x.copy()
    x.sum_duplicates()
    x.eliminate_zeros()
    return x


def undo_log(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return expression from its logarithm, ln(1 + cp10k); CSR float64."""
    return sparse.csr_matrix((np.expm1(x.data.astype(np.float64)), x.indices, x.indptr), shape=x.shape)


def over_own_genes(x: sparse.csr_matrix, target_sum: float) -> sparse.csr_matrix:
    """Normalise ln(1 + cp10k) values again over the columns of `x` alone, where totals were over more genes."""
    return normalise_counts(undo_log(x), target_sum)


def recover_counts(x: sparse.csr_matrix) -> sparse.csr_matrix | None:
    """Return counts from ln(1 + cp10k), CSR float32 N x G, if a cell's smallest value is one count; None if not."""
    values = undo_log(x).data
    lengths = np.diff(x.indptr)
    one_count = np.ones(x.shape[0])
    one_count[lengths > 0] = np.minimum.reduceat(values, x.indptr[:-1][lengths > 0]) if len(values) else 1.0
    multiples = values / np.repeat(one_count, lengths)
    checked = multiples[(multiples > 1 + WHOLE_TOLERANCE) & (multiples < MAX_MULTIPLE)]
    if len(checked) and np.mean(np.abs(checked - np.rint(checked)) < WHOLE_TOLERANCE) < MIN_WHOLE_SHARE:
        return None
    return sparse.csr_matrix((np.rint(multiples).astype(np.float32), x.indices, x.indptr), shape=x.shape)


def thinned_cells(x: sparse.csr_matrix, share: float, seed: int = 0) -> sparse.csr_matrix:
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
        cell = zlib.crc32(nums.tobytes(), zlib.crc32(x.indices[start:stop].astype(np.int64).tobytes()))
        rng = np.random.default_rng((cell, seed))
        values[start:stop] = np.log1p(rng.binomial(nums, share) * (one_count / share))
    return _without_zeros(values, x)


def thin(counts: sparse.csr_matrix, share: float, rng: np.random.Generator) -> sparse.csr_matrix:
    """Keep each count with probability `share`, as if the cells had been sequenced to that share of their depth."""
    values = rng.binomial(counts.data.astype(np.int64), share).astype(np.float32)
    return _without_zeros(values, counts)


def _without_zeros(values: np.ndarray, x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return a matrix with other values in place of those of `x`, without stored zeros."""
    replaced = sparse.csr_matrix((values, x.indices.copy(), x.indptr.copy()), shape=x.shape)
    replaced.eliminate_zeros()
    return replaced
