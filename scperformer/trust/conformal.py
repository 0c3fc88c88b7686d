"""Sets of labels that contain the true one with a stated probability: split conformal with adaptive sets.

The set of a cell grows from its most probable label. Held-out cells of the reference show the score at which the true
label is in the set. Source: Romano, Sesia and Candes 2020 (arXiv 2006.02544). The guarantee holds for cells that are
exchangeable with the held-out cells.
"""

import zlib
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix


def cell_draws(x: csr_matrix) -> np.ndarray:
    """Return a number from 0 to 1 for each cell that looks random and depends on its expression alone, float64 N.

    Adaptive sets need it: without a random part they hold the truth more often than stated.
    """
    ends = x.indptr
    draws = np.empty(x.shape[0])
    indices = x.indices.astype(np.int32)
    values = x.data.astype(np.float32)
    for cell, (start, stop) in enumerate(pairwise(ends.tolist())):
        draws[cell] = zlib.crc32(values[start:stop].tobytes(), zlib.crc32(indices[start:stop].tobytes()))
    return draws / 2**32


def set_scores(proba: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the conformity score of each label: the probability of all more probable labels and a part of its own.

    `proba` is N x C, and `draws`, N, are the parts, each drawn from 0 to 1. The result is float64, N x C.
    """
    proba = np.asarray(proba, dtype=np.float64)
    order = np.argsort(-proba, axis=1, kind="stable")
    ordered = np.take_along_axis(proba, order, axis=1)
    scores = np.empty_like(proba)
    np.put_along_axis(scores, order, np.cumsum(ordered, axis=1) - ordered * (1 - draws[:, None]), axis=1)
    return scores


def set_threshold(proba: np.ndarray, labels: np.ndarray, draws: np.ndarray, alpha: float) -> float:
    """Find the score up to which a label is in the set, for sets that miss the truth of a share `alpha` of cells.

    Parameters
    ----------
    proba
        Probabilities of N held-out cells for C labels.
    labels
        Index of the true label of each cell, N.
    draws
        As for `set_scores`.

    Returns
    -------
    The threshold, infinite if there are too few held-out cells for this `alpha`.
    """
    scores = np.sort(set_scores(proba, draws)[np.arange(len(labels)), labels])
    # A new cell is equally likely to have any rank among the held-out cells: the threshold is the score at this rank.
    rank = int(np.ceil((len(scores) + 1) * (1 - alpha) - 1e-9))
    return float(scores[rank - 1]) if rank <= len(scores) else np.inf


def label_sets(proba: np.ndarray, draws: np.ndarray, threshold: float) -> np.ndarray:
    """Return whether each label is in the set of each cell, boolean N x C; a set may be empty."""
    return set_scores(proba, draws) <= threshold


def held_out_coverage(
    proba: np.ndarray, labels: np.ndarray, draws: np.ndarray, alpha: float, num_folds: int = 5
) -> float:
    """Return the share of held-out cells whose set contains the truth, with a threshold from the other folds."""
    covered = np.zeros(len(labels), dtype=bool)
    folds = np.arange(len(labels)) % num_folds
    for fold in range(min(num_folds, len(labels))):
        now = folds == fold
        threshold = set_threshold(proba[~now], labels[~now], draws[~now], alpha)
        covered[now] = label_sets(proba[now], draws[now], threshold)[np.arange(now.sum()), labels[now]]
    return float(covered.mean())
