"""The nearest profile of cells by Spearman's correlation, as in SingleR without its fine-tuning."""

import numpy as np
from scipy import sparse
from scipy.stats import rankdata

VARIABLE_GENES = 2000
MARKERS = 30  # of each type
CELLS = 500  # whose ranks are in memory at a time


def nearest_profile(x: sparse.csr_matrix, profiles: np.ndarray, genes: np.ndarray) -> np.ndarray:
    """Return the number of the profile, of C x G, with the highest correlation over `genes` with each cell, of N x G.

    Ranks are the same for counts and for their logarithms.
    """
    of_profiles = _ranks(profiles[:, genes]).T
    starts = range(0, x.shape[0], CELLS)
    blocks = (x[start : start + CELLS][:, genes].toarray() for start in starts)
    return np.concatenate([(_ranks(block) @ of_profiles).argmax(axis=1) for block in blocks])


def variable_genes(profiles: np.ndarray) -> np.ndarray:
    """Return the genes that vary most between profiles, C x G, counts per million."""
    return np.argsort(-np.log1p(profiles).std(axis=0))[:VARIABLE_GENES]


def marker_genes(profiles: np.ndarray) -> np.ndarray:
    """Return the genes that a type expresses most above the median of the others, for any of C x G."""
    logs = np.log1p(profiles / 100)  # of counts per 10,000, so that rare genes do not win
    others = [np.median(np.delete(logs, number, axis=0), axis=0) for number in range(len(logs))]
    return np.unique(np.argsort(np.stack(others) - logs, axis=1)[:, :MARKERS])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of each row with mean 0 and length 1."""
    ranks = rankdata(values, axis=1)
    rest = ranks - ranks.mean(axis=1, keepdims=True)
    return rest / np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), 1e-9)
