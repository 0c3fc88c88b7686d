"""Duplicate cells, found by their expression: in two studies, or in a reference and a query."""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.sparse import by_row

MIN_HASHED_GENES = 20  # genes; cells with fewer may be equal by chance
LARGEST_MULTIPLE = 2.0**62  # multiples above it have no whole number of 64 bits


def cell_hashes(values: csr_matrix) -> np.ndarray:
    """Return a number for each cell that two cells share only if their expression is equal, uint64 N.

    The values of a cell are divided by the smallest of them and rounded: counts, counts per million and what logarithms
    of these are taken back to all become the counts, if one of them is 1. Each gene has a fixed random number of 64
    bits, and the sum of their products is the hash, so that genes without expression do not matter.
    The hash of a cell that expresses fewer than 20 genes is 0: it is equal to no cell.

    `values` is expression that is no logarithm, 0 or more, without stored zeros, N x G; the genes of all compared cells
    must have the same order.
    """
    # RandomState gives the same numbers in all versions of NumPy: hashes are kept in models.
    factors = np.random.RandomState(0).randint(0, 2**64, size=values.shape[1], dtype=np.uint64)
    lengths = np.diff(values.indptr)
    smallest = by_row(np.minimum, values, values.data).astype(np.float64)
    multiples = np.rint(values.data / np.repeat(smallest, lengths))
    products = np.minimum(multiples, LARGEST_MULTIPLE).astype(np.uint64) * factors[values.indices]
    hashes = by_row(np.add, values, products)  # modulo 2^64
    hashes[lengths < MIN_HASHED_GENES] = 0
    return hashes


def are_among(hashes: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which cells are among known cells, by their hashes; boolean N."""
    return (hashes != 0) & np.isin(hashes, known)
