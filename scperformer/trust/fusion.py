"""The probabilities of several models of one tissue joined, each of which knows some of the labels.

Shape letters: M models, N cells, C joint labels, K labels of a model.
"""

from collections.abc import Sequence

import numpy as np

from scperformer.base.sparse import TINY

NUM_STEPS = 30  # after these, probabilities change by less than .001


def fuse(
    parts: Sequence[np.ndarray], meanings: Sequence[np.ndarray], weights: np.ndarray
) -> np.ndarray:
    """Join the probabilities of M models, N x K each: their weighted mean, where all of them know the same labels.

    `meanings` say which joint labels each label of a model stands for, boolean K x C; no joint label twice. The
    `weights` of the models sum to 1. A label of a model may stand for several joint labels, as CD4 T cells for naive
    and memory ones; its probability is divided among them as the other models do. A joint label that a model does not
    know is unmeasured for it: the model leaves the probability of this label to the others, and its own labels share
    the rest. Both depend on the result, so they are found by iteration, as in the EM algorithm for grouped data
    (Dempster et al. 1977, J. R. Stat. Soc. B 39:1). The result, float32 N x C, depends on each cell alone.
    """
    knows = np.stack([meaning.any(axis=0) for meaning in meanings])  # M x C
    # K x N: sums are over rows, one by one
    parts_of = [part.T.astype(np.float64) for part in parts]
    # The start: each joint label by the models that know it, in equal parts where a label stands for several.
    joint = np.zeros((knows.shape[1], len(parts[0])))
    for weight, part, meaning in zip(weights, parts_of, meanings, strict=True):
        joint += weight * _spread(part / meaning.sum(axis=1)[:, None], meaning)
    joint = _as_shares(
        joint / np.maximum((weights[:, None] * knows).sum(axis=0), TINY)[:, None] + TINY
    )
    if knows.all() and all(meaning.sum() == len(meaning) for meaning in meanings):
        return joint.T.astype(np.float32)
    for _ in range(NUM_STEPS):
        updated = np.zeros_like(joint)
        for weight, part, meaning, known in zip(weights, parts_of, meanings, knows, strict=True):
            left_to_others = joint * ~known[:, None]
            rest = 1 - _total(left_to_others)
            of_label = np.maximum(_spread(joint, meaning.T), TINY)
            updated += weight * (left_to_others + joint * _spread(rest * part / of_label, meaning))
        joint = _as_shares(updated)
    return joint.T.astype(np.float32)


def _spread(values: np.ndarray, meaning: np.ndarray) -> np.ndarray:
    """Return `meaning.T @ values`, with sums that do not depend on the other columns, as a matrix product's would."""
    result = np.zeros((meaning.shape[1], values.shape[1]))
    for source, target in zip(*np.nonzero(meaning), strict=True):
        result[target] += values[source]
    return result


def _total(values: np.ndarray) -> np.ndarray:
    """Return the sum of each column, row by row."""
    return values.cumsum(axis=0)[-1]


def _as_shares(values: np.ndarray) -> np.ndarray:
    return values / _total(values)
