"""Sets of labels that contain the true one with a stated probability: split conformal with adaptive sets.

The labels of a cell are added up from the most probable one. Cells of the reference that no fit has seen show how far
one has to go until the truth is among them. Sources: Romano, Sesia and Candes 2020 (arXiv 2006.02544); with a threshold
for each label, Vovk 2012 (arXiv 1209.2673). The guarantee holds for cells that come from where these cells come from.
"""

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.messages import joined


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
    """Return how far one has to go for each label: the probability of all more probable labels and a part of its own.

    `proba` is N x C, and `draws`, N, are the parts, each drawn from 0 to 1. The result is float64, N x C.
    """
    proba = np.asarray(proba, dtype=np.float64)
    order = np.argsort(-proba, axis=1, kind="stable")
    ordered = np.take_along_axis(proba, order, axis=1)
    scores = np.empty_like(proba)
    np.put_along_axis(scores, order, np.cumsum(ordered, axis=1) - ordered * (1 - draws[:, None]), axis=1)
    return scores


def set_thresholds(
    proba: np.ndarray, labels: np.ndarray, draws: np.ndarray, alpha: float, per_label: bool = False
) -> np.ndarray:
    """Find the score up to which a label is in the set, for sets that miss the truth of a share `alpha` of cells.

    Parameters
    ----------
    proba
        Probabilities of N held-out cells for C labels.
    labels
        Index of the true label of each cell, N.
    draws
        As for `set_scores`.
    per_label
        Reach the share for the cells of each label, and not only for all cells together.

    Returns
    -------
    Float64, C; infinite for a label that always has to be in the set, as it has too few held-out cells.
    """
    scores = set_scores(proba, draws)[np.arange(len(labels)), labels]
    parts = [labels == label for label in range(proba.shape[1])] if per_label else [np.ones(len(labels), dtype=bool)]
    found = []
    for part in parts:
        ordered = np.sort(scores[part])
        # A new cell is as likely to be at any place among them: the threshold is the score at this one.
        place = int(np.ceil((len(ordered) + 1) * (1 - alpha) - 1e-9))
        found.append(ordered[place - 1] if place <= len(ordered) else np.inf)
    return np.resize(np.array(found), proba.shape[1])


def label_sets(proba: np.ndarray, draws: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return whether each label is in the set of each cell, boolean N x C; a set may be empty."""
    return set_scores(proba, draws) <= thresholds


def set_texts(proba: np.ndarray, in_set: np.ndarray, labels: Sequence[str]) -> list[str]:
    """Return the labels of each cell's set as a text, the most probable one first, as `joined` joins them."""
    order = np.argsort(-proba, axis=1, kind="stable")
    names = [joined([label]) for label in labels]
    return ["|".join(names[i] for i in row if has[i]) for row, has in zip(order, in_set, strict=True)]


def held_out_coverage(
    proba: np.ndarray, labels: np.ndarray, draws: np.ndarray, alpha: float, per_label: bool = False, num_folds: int = 5
) -> float:
    """Return the share of held-out cells whose set contains the truth, with thresholds from the other folds."""
    covered = np.zeros(len(labels), dtype=bool)
    folds = np.arange(len(labels)) % num_folds
    for fold in range(min(num_folds, len(labels))):
        now = folds == fold
        thresholds = set_thresholds(proba[~now], labels[~now], draws[~now], alpha, per_label)
        covered[now] = label_sets(proba[now], draws[now], thresholds)[np.arange(now.sum()), labels[now]]
    return float(covered.mean())
