"""Normalised expression, ln(1 + counts per 10,000): from any kind of values, from counts, and over some genes alone.

`normalise` follows scanpy's `normalize_total` and `log1p`. It is not made of them: scanpy takes 1.4 s to import, which
is more than the rest of a short prediction, works on an AnnData, and differs in the last bit of one value in nine.
"""

import math
from typing import TypeAlias

import numpy as np
from scipy import sparse

from scperformer.cells.detect import Findings
from scperformer.cells.values import ASSUMED_TOTAL, undo_log1p

AnyMatrix: TypeAlias = sparse.spmatrix | sparse.sparray | np.ndarray


def normalise(x: AnyMatrix, findings: Findings, target_sum: float) -> sparse.csr_matrix:
    """Return ln(1 + target_sum * value / total of the cell), with totals over all genes of `x`.

    Values that already have this form are not changed, bit for bit. Other log1p values are made linear first. Their
    total is the recognised total, or 10,000 if none was recognised; if `findings` are relative, it is the sum of the
    cell's values.

    Returns
    -------
    N x G, CSR float32, without stored zeros, with sorted indices. Cells without counts stay zero.
    """
    rows = sparse.csr_matrix(x, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if findings.kind == "log1p":
        assert findings.log_base is not None, "detect_expression gives log1p values a base"
        total = findings.total or ASSUMED_TOTAL
        if not findings.relative and findings.log_base == math.e and total == target_sum:
            return rows
        linear = undo_log1p(rows.data.astype(np.float64), findings.log_base)
        if not findings.relative:
            rows.data = np.log1p(linear * (target_sum / total)).astype(np.float32)
            return rows
        rows.data = linear.astype(np.float32)
    totals = rows @ np.ones(rows.shape[1])
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals != 0)
    rows.data *= np.repeat(factors.astype(np.float32), np.diff(rows.indptr))
    np.log1p(rows.data, out=rows.data)
    return rows


def normalise_counts(counts: sparse.csr_matrix, target_sum: float) -> sparse.csr_matrix:
    """Return ln(1 + target_sum * count / total of the cell), with totals over the columns of `counts`.

    Unlike `normalise`, it computes in float64 before it rounds to float32, and does not look for other kinds of values.
    """
    totals = counts @ np.ones(counts.shape[1])
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals != 0)
    values = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
    return sparse.csr_matrix((values.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)


def over_own_genes(x: sparse.csr_matrix, target_sum: float) -> sparse.csr_matrix:
    """Normalise ln(1 + cp10k) values again over the columns of `x` alone, where totals were over more genes."""
    linear = sparse.csr_matrix((np.expm1(x.data.astype(np.float64)), x.indices, x.indptr), shape=x.shape)
    return normalise_counts(linear, target_sum)
