"""Recover counts from normalised expression, and thin counts at random."""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.cells.values import MAX_MULTIPLE, MIN_WHOLE_SHARE, WHOLE_TOLERANCE


def recover_counts(x: csr_matrix) -> csr_matrix | None:
    """Return the counts of cells from ln(1 + cp10k), CSR float32 N x G; None if the values do not come from counts.

    The smallest value of a cell is taken as one count. `x` has no stored zeros.
    """
    linear = np.expm1(x.data.astype(np.float64))
    lengths = np.diff(x.indptr)
    one = np.ones(x.shape[0])
    one[lengths > 0] = np.minimum.reduceat(linear, x.indptr[:-1][lengths > 0]) if len(linear) else 1.0
    multiples = linear / np.repeat(one, lengths)
    checked = multiples[(multiples > 1 + WHOLE_TOLERANCE) & (multiples < MAX_MULTIPLE)]
    if len(checked) and np.mean(np.abs(checked - np.rint(checked)) < WHOLE_TOLERANCE) < MIN_WHOLE_SHARE:
        return None
    return csr_matrix((np.rint(multiples).astype(np.float32), x.indices, x.indptr), shape=x.shape)


def thin(counts: csr_matrix, share: float, rng: np.random.Generator) -> csr_matrix:
    """Keep each count with probability `share`, as if the cells had been sequenced to that share of their depth.

    Returns
    -------
    CSR float32 of the shape of `counts`, without stored zeros.
    """
    kept = rng.binomial(counts.data.astype(np.int64), share).astype(np.float32)
    thinned = csr_matrix((kept, counts.indices.copy(), counts.indptr.copy()), shape=counts.shape)
    thinned.eliminate_zeros()
    return thinned
