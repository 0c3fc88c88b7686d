"""Arithmetic of cells with sparse expression, and of profiles.

Cells are CSR, N x G, without stored zeros. Expression is ln(1 + cp10k).

Shape letters: N cells, G genes, C labels, P profiles.
"""

import numpy as np
from scipy.sparse import csr_matrix

LARGEST_EXPRESSION = 10.0  # about ln(1 + cp10k) of a cell that expresses a single gene
TINY = 1e-12  # in place of 0, where a quotient is taken
NUM_STEPS = 8  # of subspace iteration
EXTRA_AXES = 10  # found beside those that are asked for, so that these are accurate
BLOCK_CELLS = 4096  # cells converted to float64 at a time


def with_values(x: csr_matrix, values: np.ndarray) -> csr_matrix:
    """Return a matrix with other values in the places of those of `x`."""
    return csr_matrix((values, x.indices, x.indptr), shape=x.shape)


def undo_log(x: csr_matrix) -> csr_matrix:
    """Return expression from its logarithm, ln(1 + cp10k); CSR float64."""
    return with_values(x, np.expm1(x.data.astype(np.float64)))


def by_row(reduce: np.ufunc, x: csr_matrix, values: np.ndarray) -> np.ndarray:
    """Reduce values, one for each stored value, within each row; 0 for rows without stored values."""
    is_filled = np.diff(x.indptr) > 0
    reduced = np.zeros(x.shape[0], dtype=values.dtype)
    if is_filled.any():
        reduced[is_filled] = reduce.reduceat(values, x.indptr[:-1][is_filled])
    return reduced


def counts_of(x: csr_matrix) -> np.ndarray:
    """Return the counts of each cell, float64 N, from ln(1 + cp10k): its smallest expression is one count."""
    smallest = np.where(np.diff(x.indptr) > 0, by_row(np.minimum, x, x.data), LARGEST_EXPRESSION)
    return 1e4 / np.maximum(
        np.expm1(np.minimum(smallest, LARGEST_EXPRESSION, dtype=np.float64)), TINY
    )


def of_length(x: csr_matrix, length: float) -> csr_matrix:
    """Scale each cell to the same Euclidean length, CSR float32; empty cells stay 0."""
    squares = with_values(x, x.data.astype(np.float64) ** 2)
    lengths = np.sqrt(squares @ np.ones(x.shape[1]))
    factors = (length / np.maximum(lengths, TINY)).astype(np.float32)
    return with_values(x, x.data * np.repeat(factors, np.diff(x.indptr)))


def gene_means(x: csr_matrix) -> np.ndarray:
    """Return the mean of each gene: float64, G; cells are converted to float64 block by block."""
    blocks = (x[start : start + BLOCK_CELLS] for start in range(0, x.shape[0], BLOCK_CELLS))
    return (
        sum(np.asarray(block.astype(np.float64).sum(axis=0)).ravel() for block in blocks)
        / x.shape[0]
    )


def mean_counts(x: csr_matrix) -> np.ndarray:
    """Return the mean counts per 10,000 of each gene, float64 G, from ln(1 + cp10k)."""
    return gene_means(undo_log(x))


def gene_deviation(x: csr_matrix) -> np.ndarray:
    """Return the standard deviation of each gene: float64, G."""
    variance = gene_means(with_values(x, x.data**2)) - gene_means(x) ** 2
    return np.sqrt(np.maximum(variance, 0))


def inverse_deviation(deviation: np.ndarray) -> np.ndarray:
    """Return 1 / standard deviation of genes, shrunken towards the median gene's; 0 for genes that do not vary.

    This is as in nearest shrunken centroids (Tibshirani et al. 2002, PNAS 99:6567).
    """
    varying = deviation[deviation > 0]
    usual = np.median(varying) if len(varying) else 1.0
    return np.where(deviation > 0, 1 / (deviation + usual), 0)


def label_means(x: csr_matrix, labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Return the means of each label, float64 C x G; 0 for a label without cells."""
    counts = np.bincount(labels, minlength=num_labels)
    places = labels, np.arange(len(labels))
    members = csr_matrix((1 / counts[labels], places), shape=(num_labels, len(labels)))
    return (members @ x).toarray()


def principal_axes(
    x: csr_matrix | np.ndarray, num: int, start: int | np.ndarray = 0, num_steps: int = NUM_STEPS
) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal axes along which cells vary most about 0, float32 G x K, and their sums of squares, float64 K.

    This is randomised subspace iteration (Halko et al. 2011, SIAM Rev. 53:217) from random axes of a seed, or from
    axes, G x K, as of a larger set of cells that contains these. K is `num`, or the smaller side of `x`.
    """
    num = min(num, *x.shape)
    if isinstance(start, int):
        drawn = np.random.default_rng(start).normal(
            size=(x.shape[1], min(num + EXTRA_AXES, *x.shape))
        )
        start = drawn.astype(np.float32)
    axes = start
    for _ in range(num_steps):
        axes = np.linalg.qr(x.T @ (x @ axes))[0]
    places = (x @ axes).astype(np.float64)
    sums, rotation = np.linalg.eigh(places.T @ places)
    largest = np.argsort(-sums, kind="stable")[:num]
    return (axes @ rotation[:, largest]).astype(np.float32), sums[largest]


def centred(rows: np.ndarray) -> np.ndarray:
    """Return rows with mean 0 and length 1."""
    rest = rows - rows.mean(axis=1, keepdims=True)
    return rest / np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), TINY)
