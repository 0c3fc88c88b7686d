"""How unlike all labels a cell is: its distance to the nearest label, in a few directions of expression.

The directions are those in which the cells of the reference vary most. In them each label has a mean and a covariance,
and the score of a cell is its Mahalanobis distance to the nearest one (as Lee et al. 2018, arXiv 1807.03888, but of the
expression, and with a covariance for each label). Expression outside of these directions counts where it is more than
usual for the label. No logits take part: these are often large for types that the model does not know. Cells of the
reference that had no part in a fit show which scores known cells have.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, diags

NUM_DIRECTIONS = 8  # more follow single cells: types that differ a little are then found less often
NUM_STEPS = 8  # of the search for directions, from random ones
STEPS_LEFT_OUT = 2  # of the search that starts from the directions of all cells
TINY = 1e-12  # in place of 0
PRIOR_CELLS = 5  # for each direction: with so many cells, a label's own covariance has the weight of the common one
USUAL = 1.0  # standard deviations of the expression outside, above the mean of the label, that do not count
JITTER = 1e-3  # added to variances, relative to those within labels: labels of equal cells have none


@dataclass
class Profile:
    """The directions, and the cells of each label in them: G genes, K directions, C labels."""

    weights: np.ndarray  # float32, G: of genes in cells that are scaled to length 1
    vectors: np.ndarray  # float32, G x K: the directions, times the weights
    means: np.ndarray  # float64, C x K
    whitening: np.ndarray  # float64, C x K x K: makes the cells of a label vary by 1 in all directions
    outside: np.ndarray  # float64, C x 2: mean and standard deviation of ln(squared length outside of the directions)

    def scores(self, x: csr_matrix) -> np.ndarray:
        """Return the squared distance of cells to the nearest label, float64 N, from ln(1 + cp10k), CSR N x G.

        The score of a cell does not depend on the other cells, down to the last bit.
        """
        places, outside = places_of(of_length_one(x), self.weights, self.vectors)
        offsets = places[:, None] - self.means
        directions = range(self.means.shape[1])
        # Not matrix products: their last bits would depend on the place of a cell in memory.
        white = sum(offsets[:, :, k, None] * self.whitening[:, k] for k in directions)
        excess = np.maximum(0, (outside[:, None] - self.outside[:, 0]) / self.outside[:, 1] - USUAL)
        return np.min(sum((white[:, :, k] ** 2 for k in directions), excess**2), axis=1)


def places_of(v: csr_matrix, weights: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of cells of length 1 in the directions, float64 N x K, and ln(squared length outside), N."""
    places = (v @ vectors).astype(np.float64)
    inside = sum(places[:, k] ** 2 for k in range(places.shape[1]))
    return places, np.log(np.maximum(v.multiply(v) @ weights.astype(np.float64) ** 2 - inside, TINY))


def of_length_one(x: csr_matrix) -> csr_matrix:
    """Scale cells, CSR N x G, to length 1; empty ones stay 0."""
    cells = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    lengths = np.sqrt(np.bincount(cells, x.data.astype(np.float64) ** 2, minlength=x.shape[0]))
    lengths = np.maximum(lengths, TINY)
    return csr_matrix(((x.data / lengths[cells]).astype(np.float32), x.indices, x.indptr), shape=x.shape)


def fit_profile(x: csr_matrix, labels: np.ndarray, seed: int = 0, start: np.ndarray | None = None) -> Profile:
    """Find the directions in which cells vary most, and the cells of each label in them.

    Parameters
    ----------
    x
        Expression, CSR float32 N x G, ln(1 + cp10k).
    labels
        Index of the label of each cell, N; each of 0..C-1 occurs.
    seed
        Of the random directions from which the search starts.
    start
        Directions of similar cells, such as all of those of which `x` is a part: the search starts from them.
    """
    v = of_length_one(x)
    means = np.asarray(v.mean(axis=0)).ravel()
    deviation = np.sqrt(np.maximum(np.asarray(v.multiply(v).mean(axis=0)).ravel() - means**2, 0))
    varying = deviation[deviation > 0]
    weights = np.where(deviation > 0, 1 / (deviation + (np.median(varying) if len(varying) else 1.0)), 0)
    weights = weights.astype(np.float32)
    weighted = (v @ diags(weights)).astype(np.float32).tocsr()
    num = min(NUM_DIRECTIONS, *x.shape)
    basis = np.random.default_rng(seed).normal(size=(x.shape[1], num)) if start is None else start[:, :num]
    for _ in range(NUM_STEPS if start is None else STEPS_LEFT_OUT):  # subspace iteration
        basis = np.linalg.qr(weighted.T @ (weighted @ basis))[0]
    vectors = (weights[:, None] * basis).astype(np.float32)

    places, lengths = places_of(v, weights, vectors)
    counts = np.bincount(labels).astype(np.float64)
    centres = np.stack([np.bincount(labels, column) for column in places.T], axis=1) / counts[:, None]
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
    spread = np.sqrt(np.sum((lengths - usual[labels]) ** 2) / max(1, len(labels) - len(counts))) + TINY
    outside = np.stack([usual, np.full(len(counts), spread)], axis=1)
    return Profile(weights, vectors, centres, whitening, outside)


def fit_novelty(x: csr_matrix, labels: np.ndarray, folds: np.ndarray, seed: int = 0) -> tuple[Profile, np.ndarray]:
    """Fit a profile to all cells; also return the score of each cell by a profile of the other folds.

    `folds` is the fold of each cell, int N; cells of fold -1 are in every fit, and their score is NaN.
    """
    profile = fit_profile(x, labels, seed)
    scores = np.full(len(labels), np.nan)
    for fold in range(folds.max(initial=-1) + 1):
        now = folds == fold
        scores[now] = fit_profile(x[~now], labels[~now], start=profile.vectors).scores(x[now])
    return profile, scores


def novelty_share(scores: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Return the share of held-out cells with lower scores, float64 N, 0 to below 1.

    A cell like the held-out ones has a novelty of `1 - rate` or more with a probability of at most `rate`.
    """
    return np.searchsorted(np.sort(held_out), scores, side="left") / (len(held_out) + 1)


def left_out_table(x: csr_matrix, labels: np.ndarray, folds: np.ndarray, seed: int = 0) -> np.ndarray:
    """Leave out the cells of each label in turn, and return how well they are told from the others: float64, C.

    It is the area under the ROC curve of the scores, where each of the other cells is scored by a fit without it, as in
    `fit_novelty`; NaN without other cells.
    """
    areas = []
    for label in range(int(labels.max()) + 1):
        rest = labels != label
        if not (folds[rest] >= 0).any():
            areas.append(np.nan)
            continue
        _, codes = np.unique(labels[rest], return_inverse=True)
        profile, known = fit_novelty(x[rest], codes, folds[rest], seed)
        areas.append(area_under_curve(known[np.isfinite(known)], profile.scores(x[~rest])))
    return np.array(areas)


def area_under_curve(known: np.ndarray, novel: np.ndarray) -> float:
    """Return the probability that a novel cell has a higher score than a known one; equal scores count half."""
    from scipy.stats import rankdata  # takes a while to import, and a prediction does not need it

    ranks = rankdata(np.concatenate([known, novel]))[len(known) :]
    return float((ranks.mean() - (len(novel) + 1) / 2) / len(known))
