"""What a model says about the cells of a block."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass
class Predictions:
    """The predictions of N cells: C labels, embedding width D."""

    proba: np.ndarray  # float32 N x C, each row sums to 1
    embedding: np.ndarray  # float32 N x D; float64 if it is the scores of an imported model
    baseline: np.ndarray  # int32 N, index of the label by logistic regression; -1 without it
    empty: np.ndarray  # bool N, True for a cell that expresses none of the model's genes
    # float64 N, novelty scores (trust/novelty.py) or resemblance (trust/resemblance.py); NaN without both
    scores: np.ndarray
    draws: np.ndarray  # float64 N, 0 to 1, the random parts of sets of labels (trust/conformal.py)
    by_encoder: np.ndarray  # bool N, True if the linear branch alone gives another label; False with a single branch
    gains: np.ndarray  # float64 N, by which a second label explains the counts better (trust/doublets.py); or NaN
    counts: np.ndarray  # float64 N, of the cell over the genes of the model; or NaN


# Returns the predictions of all cells of a file, block by block in the order of the cells. It can be called repeatedly:
# those of a file are read from disk each time, so that they are never in memory as a whole.
Blocks = Callable[[], Iterable[Predictions]]


def mean_predictions(drawn: Sequence[Predictions]) -> Predictions:
    """Return the mean of several draws of the counts of cells; what has no mean is of the first draw."""
    first = drawn[0]
    means = {
        name: np.mean([getattr(each, name) for each in drawn], axis=0, dtype=getattr(first, name).dtype)
        for name in ("proba", "embedding", "scores", "gains", "counts")
    }
    return replace(first, **means, empty=np.logical_and.reduce([each.empty for each in drawn]))
