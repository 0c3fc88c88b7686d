"""What a model says about the cells of a block."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix


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
    # bool N, True if the linear branch alone gives another label; False with a single branch
    by_encoder: np.ndarray
    # float64 N, by which a second label explains the counts better (trust/doublets.py); or NaN
    gains: np.ndarray
    counts: np.ndarray  # float64 N, of the cell over the genes of the model; or NaN
    cluster: np.ndarray  # int16 N, of the file (trust/clusters.py); -1 without clusters
    # float32 N x 30, along principal components of the file; N x 0 without clusters
    points: np.ndarray
    # int64, row numbers of novel cells in the file; the novel cells of a label are judged together
    novel_rows: np.ndarray
    novel: csr_matrix  # ln(1 + cp10k) of these cells, float32 cells x G

    def save(self, file: Path) -> Path:
        """Write everything into a file, and return it."""
        arrays = {name: value for name, value in vars(self).items() if name != "novel"}
        parts = {f"novel_{name}": getattr(self.novel, name) for name in CSR_PARTS}
        np.savez(file, **arrays, **parts)
        return file

    @classmethod
    def load(cls, file: Path) -> "Predictions":
        """Read what `save` wrote."""
        with np.load(file) as stored:
            arrays = dict(stored)
        data, indices, indptr, shape = (arrays.pop(f"novel_{name}") for name in CSR_PARTS)
        return cls(**arrays, novel=csr_matrix((data, indices, indptr), shape=shape))


CSR_PARTS = ("data", "indices", "indptr", "shape")


# Returns the predictions of all cells of a file, block by block in the order of the cells. It can be called repeatedly:
# those of a file are read from disk each time, so that they are never in memory as a whole.
Blocks = Callable[[], Iterable[Predictions]]


def mean_predictions(drawn: Sequence[Predictions]) -> Predictions:
    """Return the mean of several draws of the counts of cells; what has no mean is of the first draw."""
    first = drawn[0]
    means = {
        name: np.mean(
            [getattr(each, name) for each in drawn], axis=0, dtype=getattr(first, name).dtype
        )
        for name in ("proba", "embedding", "scores", "gains", "counts")
    }
    return replace(first, **means, empty=np.logical_and.reduce([each.empty for each in drawn]))
