"""Counts again from normalised expression, fewer counts at random, and normalised expression over some genes alone."""

import numpy as np
from scipy.sparse import csr_matrix

HIGHEST = 20.5  # multiples of one count above this are blurred by values that were rounded to three decimals
TOLERANCE = 0.05  # by which a multiple of one count may differ from a whole number
MIN_SHARE = 0.9  # share of the multiples that are whole numbers; of values that are no counts about 0.1 are


def recover_counts(x: csr_matrix) -> csr_matrix | None:
    """Return the counts of cells from ln(1 + cp10k), CSR float32 N x G; None if the values do not come from counts.

    The smallest value of a cell is taken for one count. The counts are whole numbers in float32.
    """
    linear = np.expm1(x.data.astype(np.float64))
    lengths = np.diff(x.indptr)
    one = np.ones(x.shape[0])
    one[lengths > 0] = np.minimum.reduceat(linear, x.indptr[:-1][lengths > 0]) if len(linear) else 1.0
    multiples = linear / np.repeat(one, lengths)
    telling = multiples[(multiples > 1 + TOLERANCE) & (multiples < HIGHEST)]
    if len(telling) and np.mean(np.abs(telling - np.rint(telling)) < TOLERANCE) < MIN_SHARE:
        return None
    return csr_matrix((np.rint(multiples).astype(np.float32), x.indices, x.indptr), shape=x.shape)


def thin(counts: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """Keep each count with the probability `share`, as in a sequencing run of that depth."""
    kept = rng.binomial(counts.data.astype(np.int64), share).astype(np.float32)
    thinned = csr_matrix((kept, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
    thinned.eliminate_zeros()
    return thinned


def normalise_counts(counts: csr_matrix, target_sum: float) -> csr_matrix:
    """Return ln(1 + target_sum * count / total of the cell), totals over the columns of `counts`; CSR float32."""
    totals = counts @ np.ones(counts.shape[1])
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals != 0)
    values = np.log1p(counts.data * np.repeat(factors, np.diff(counts.indptr)))
    return csr_matrix((values.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape)


def over_own_genes(x: csr_matrix, target_sum: float) -> csr_matrix:
    """Normalise cells anew over the columns of `x`: ln(1 + cp10k), whose totals were over more genes than these."""
    linear = csr_matrix((np.expm1(x.data.astype(np.float64)), x.indices, x.indptr), shape=x.shape)
    return normalise_counts(linear, target_sum)
