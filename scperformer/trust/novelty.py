"""Novelty of cells: the distance to the nearest label in the principal directions of the reference.

Each label has a mean and a covariance there. The score of a cell is its squared Mahalanobis distance to the nearest
label (Lee et al. 2018, arXiv 1807.03888, but on expression, with a covariance for each label), plus the excess of its
expression outside of the directions. Logits are not used: they are often large for unknown cell types.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, diags

from scperformer.base.parallel import map_in_order, one_thread_each
from scperformer.base.sparse import (
    TINY,
    gene_deviation,
    inverse_deviation,
    of_length,
    principal_axes,
    with_values,
)

# with more, directions follow single cells, and fewer cells of similar novel types are found
NUM_DIRECTIONS = 8
NUM_WARM_STEPS = 2  # of subspace iteration from the directions of all cells
PRIOR_CELLS = 5  # per direction: a label with so many cells weights its own covariance as much as the common one
USUAL_EXCESS = 1.0  # expression outside adds to the score above so many standard deviations over the label's mean
# added to variances, relative to the common ones: a label of equal cells has no variance
JITTER = 1e-3


@dataclass
class NoveltyModel:
    """The directions, and the distribution of each label in them: G genes, K directions, C labels."""

    weights: np.ndarray  # float32, G: factors of the genes, in cells scaled to length 1
    vectors: np.ndarray  # float32, G x K: the directions, times the weights
    means: np.ndarray  # float64, C x K
    # float64, C x K x K: after it, the cells of a label have the covariance 1
    whitening: np.ndarray
    # float64, C x 2: mean and standard deviation of ln(squared length outside of the directions)
    outside: np.ndarray

    def scores(self, x: csr_matrix) -> np.ndarray:
        """Return the score of cells, float64 N, from their expression, ln(1 + cp10k), CSR N x G; each by itself."""
        places, outside = _project(of_length(x, 1), self.weights, self.vectors)
        offsets = places[:, None] - self.means
        directions = range(self.means.shape[1])
        # Matrix products are avoided: their last bits would depend on the place of a cell in memory.
        white = sum(offsets[:, :, k, None] * self.whitening[:, k] for k in directions)
        excess = np.maximum(
            0, (outside[:, None] - self.outside[:, 0]) / self.outside[:, 1] - USUAL_EXCESS
        )
        return np.min(sum((white[:, :, k] ** 2 for k in directions), excess**2), axis=1)


def _project(
    v: csr_matrix, weights: np.ndarray, vectors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of cells of length 1 in the directions, float64 N x K, and ln(squared length outside)."""
    places = (v @ vectors).astype(np.float64)
    inside = sum(places[:, k] ** 2 for k in range(places.shape[1]))
    squares = with_values(v, v.data**2)
    return places, np.log(np.maximum(squares @ weights.astype(np.float64) ** 2 - inside, TINY))


def fit_novelty_model(
    x: csr_matrix, labels: np.ndarray, seed: int = 0, start: np.ndarray | None = None
) -> NoveltyModel:
    """Find the directions in which cells vary most, and the distribution of each label in them.

    `x` is expression, CSR float32 N x G, ln(1 + cp10k), and `labels` has the index of the label of each cell, N; each
    of 0 to C-1 occurs. The search starts from random directions of a seed, or from `start`, as of a larger set of cells
    that contains these.
    """
    v = of_length(x, 1)
    weights = inverse_deviation(gene_deviation(v)).astype(np.float32)
    weighted = (v @ diags(weights)).astype(np.float32).tocsr()
    if start is None:
        axes, _ = principal_axes(weighted, NUM_DIRECTIONS, seed)
    else:
        axes, _ = principal_axes(weighted, NUM_DIRECTIONS, start, NUM_WARM_STEPS)
    vectors = weights[:, None] * axes
    num = axes.shape[1]

    places, lengths = _project(v, weights, vectors)
    counts = np.bincount(labels).astype(np.float64)
    centres = (
        np.stack([np.bincount(labels, column) for column in places.T], axis=1) / counts[:, None]
    )
    offsets = places - centres[labels]
    common = offsets.T @ offsets / max(1, len(labels) - len(counts))
    prior = PRIOR_CELLS * num
    whitening = np.empty((len(counts), num, num))
    for label, count in enumerate(counts):
        own = offsets[labels == label]
        covariance = (own.T @ own + prior * common) / (count + prior)
        covariance += np.diag(JITTER * common.diagonal() + TINY)
        whitening[label] = np.linalg.inv(np.linalg.cholesky(covariance)).T
    usual = np.bincount(labels, lengths) / counts
    spread = (
        np.sqrt(np.sum((lengths - usual[labels]) ** 2) / max(1, len(labels) - len(counts))) + TINY
    )
    outside = np.stack([usual, np.full(len(counts), spread)], axis=1)
    return NoveltyModel(weights, vectors, centres, whitening, outside)


def fit_novelty(
    x: csr_matrix, labels: np.ndarray, folds: np.ndarray, seed: int = 0, threads: int = 1
) -> tuple[NoveltyModel, np.ndarray]:
    """Fit a model to all cells; also return the out-of-fold score of each cell, float64 N.

    `folds` has the fold of each cell, int N; cells of fold -1 are in every fit, and their score is NaN.
    """
    with one_thread_each():  # sums in another order would change the last bits
        model = fit_novelty_model(x, labels, seed)
    scores = np.full(len(labels), np.nan)

    def score(fold: int) -> None:
        in_fold = folds == fold
        scores[in_fold] = fit_novelty_model(
            x[~in_fold], labels[~in_fold], start=model.vectors
        ).scores(x[in_fold])

    for _ in map_in_order(score, range(folds.max(initial=-1) + 1), threads):
        pass
    return model, scores


def novelty_share(scores: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Return the fraction of out-of-fold cells of the reference with lower scores, float64 N, 0 to below 1.

    For exchangeable cells, it is `1 - rate` or more with probability at most `rate`.
    """
    return np.searchsorted(np.sort(held_out), scores, side="left") / (len(held_out) + 1)
