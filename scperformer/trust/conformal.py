"""Sets of labels that contain the true label with a stated probability: split conformal prediction, adaptive sets.

A set has the most probable labels of a cell, up to a threshold of the conformity score, which is about the sum of their
probabilities. The threshold comes from the scores of the true labels of out-of-fold cells of the reference; the
guarantee holds for exchangeable cells. Source: Romano, Sesia and Candes 2020 (arXiv 2006.02544).
"""

import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.messages import join_names


def cell_draws(x: csr_matrix) -> np.ndarray:
    """Return a pseudo-random number from 0 to 1 for each cell, float64 N, which depends on its expression alone.

    Adaptive sets are randomised with it: otherwise they would contain the true label more often than stated.
    """
    draws = np.empty(x.shape[0])
    indices = x.indices.astype(np.int32)
    values = x.data.astype(np.float32)
    for cell, (start, stop) in enumerate(pairwise(x.indptr.tolist())):
        draws[cell] = zlib.crc32(
            values[start:stop].tobytes(), zlib.crc32(indices[start:stop].tobytes())
        )
    return draws / 2**32


def set_scores(proba: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the conformity score of each label, float64 N x C: the sum of all more probable labels and a random part.

    `proba` is N x C, and `draws` has the random part of each cell, N, from 0 to 1. The score is 0 for the most probable
    label, so that no set is empty.
    """
    proba = np.asarray(proba, dtype=np.float64)
    order = np.argsort(-proba, axis=1, kind="stable")
    ordered = np.take_along_axis(proba, order, axis=1)
    scores = np.empty_like(proba)
    sums = np.cumsum(ordered, axis=1) - ordered * (1 - draws[:, None])
    sums[:, 0] = 0.0
    np.put_along_axis(scores, order, sums, axis=1)
    return scores


def set_threshold(proba: np.ndarray, labels: np.ndarray, draws: np.ndarray, alpha: float) -> float:
    """Return the threshold of the score for sets that miss the true label of at most a fraction `alpha` of cells.

    `proba`, `draws` (as for `set_scores`) and `labels`, indices N, are of out-of-fold cells. The threshold is infinite
    if these are too few for this `alpha`: all labels are in every set.
    """
    scores = np.sort(set_scores(proba, draws)[np.arange(len(labels)), labels])
    # The score of a new, exchangeable cell has any rank among these with the same probability.
    rank = int(np.ceil((len(scores) + 1) * (1 - alpha) - 1e-9))
    return float(scores[rank - 1]) if rank <= len(scores) else np.inf


def set_texts(proba: np.ndarray, in_set: np.ndarray, labels: Sequence[str]) -> list[str]:
    """Return the labels of each cell's set as a text, the most probable label first, as `join_names` joins them."""
    order = np.argsort(-proba, axis=1, kind="stable")
    names = [join_names([label]) for label in labels]
    return [
        "|".join(names[i] for i in row if has[i]) for row, has in zip(order, in_set, strict=True)
    ]
