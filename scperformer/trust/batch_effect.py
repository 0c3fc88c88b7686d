"""Batch effect: per-gene factors between a query of another study and the reference, and cells corrected for them.

The mean expression of the query is compared with the same mixture of the reference's labels, as in RCTD (Cable et al.
2022, Nat. Biotechnol. 40:517), which multiplies the reference by these factors; here cells are divided by them.

Shape letters: N cells of a query, M cells of the reference, G genes, C labels. Expression is ln(1 + cp10k).
"""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.sparse import TINY, label_means, mean_counts, undo_log, with_values

PSEUDO_EXPRESSION = 0.02  # counts per 10,000, added to means whose quotient is taken
PSEUDO_CELLS = 20.0  # the same, shared by the cells: means of few cells are uncertain
MAX_EFFECT = 2.5  # of the logarithm of a corrected factor, so 12 times as much or as little


def batch_effect(x: csr_matrix, reference: csr_matrix, labels: np.ndarray) -> float:
    """Return the spread of the per-gene factors between a query and the reference.

    `x` are the cells of the query with the lowest novelty, N x G; `reference`, M x G, has the same genes and depth,
    with the index of the label of each, M; each of 0 to C-1 occurs. Each cell of the query counts as the label
    whose mean it resembles most. The spread is the covariance of two halves of the cells: the variance of all is
    larger the fewer the cells and their counts.
    """
    num_labels = int(labels.max()) + 1
    centres = label_means(reference, labels, num_labels)
    centre = centres.mean(axis=0)
    directions = centres - centre
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), TINY)
    nearest = (x @ directions.T - centre @ directions.T).argmax(axis=1)
    means = label_means(undo_log(reference), labels, num_labels)
    logs = []
    weights = np.zeros(x.shape[1])
    for half in (slice(0, None, 2), slice(1, None, 2)):
        log, expected = log_factors(x[half], nearest[half], means)
        logs.append(log)
        weights += expected / max(float(expected.sum()), TINY) / 2
    first, second = (log - np.sum(weights * log) for log in logs)
    return float(np.sqrt(max(0.0, np.sum(weights * first * second))))


def gene_factors(
    x: csr_matrix, calls: np.ndarray, means: np.ndarray, usual: np.ndarray | float = 1.0
) -> np.ndarray:
    """Return the expression of each gene in a query relative to the same mixture of labels, float64 G.

    `x` are the cells of the query with the lowest novelty, N x G, `calls` the index of the label of each, N, and
    `means` are the mean counts per 10,000 of each label, C x G. The factors of few cells are near the `usual` ones:
    those of the whole file, G, for a batch.
    """
    log, _ = log_factors(x, calls, means * usual)
    return np.exp(np.clip(log + np.log(usual), -MAX_EFFECT, MAX_EFFECT))


def correct_batch_effect(
    x: csr_matrix, factors: np.ndarray | None, batches: np.ndarray | None = None
) -> csr_matrix:
    """Divide the expression of each gene, CSR float32 N x G, by its factor, G; the counts of a cell keep their sum.

    With the number of the batch of each cell, `batches`, int N, the factors are of B batches, B x G. A cell is
    corrected independently of the others. None: nothing is to be corrected.
    """
    if factors is None:
        return x
    counts = undo_log(x)
    place = x.indices if batches is None else (np.repeat(batches, np.diff(x.indptr)), x.indices)
    divided = with_values(x, counts.data / factors[place])
    before, after = (np.asarray(each.sum(axis=1)).ravel() for each in (counts, divided))
    divided.data *= np.repeat(before / np.maximum(after, TINY), np.diff(x.indptr))
    return divided.log1p().astype(np.float32)


def log_factors(
    x: csr_matrix, calls: np.ndarray, means: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the factors of cells, and the means of the same mixture of labels."""
    shares = np.bincount(calls, minlength=len(means)) / x.shape[0]
    expected = shares @ means
    pseudo = PSEUDO_EXPRESSION + PSEUDO_CELLS / x.shape[0]
    return np.log((mean_counts(x) + pseudo) / (expected + pseudo)), expected
