"""Common types: what cell types that occur in every tissue have in common in all studies of a species.

A profile is the sum of a part of its type and a part of its study, in ln(1 + counts per 10,000): the chemistry and the
ambient RNA of a study are in all of its profiles. The parts of the types, fitted to all studies, have neither.

Shape letters: P profiles, C types, S studies, G genes.
"""

import numpy as np

NUM_ROUNDS = 15  # of fitting the types and the studies in turn
RIDGE = 2.0  # profiles with a value of 0 that each study counts beside its own: one of few types says little about it


def fit_common_types(
    logs: np.ndarray, measured: np.ndarray, types: np.ndarray, studies: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean expression of types over studies, float64 C x G, and whether any study measures the gene.

    Parameters
    ----------
    logs, measured
        ln(1 + counts per 10,000) of profiles, and the genes that their study measures: P x G.
    types, studies
        Indices, of 0 to C-1 and 0 to S-1, int64 P. Profiles of one type and study have together the weight of one.
    """
    of_type = np.eye(types.max() + 1)[types]
    of_study = np.eye(studies.max() + 1)[studies]
    _, pair, num = np.unique(np.stack([types, studies]), axis=1, return_inverse=True, return_counts=True)
    weights = measured / num[pair.ravel()][:, None]
    per_type, per_study = of_type.T @ weights, of_study.T @ weights
    effects = np.zeros_like(per_study)
    for _ in range(NUM_ROUNDS):
        means = (of_type.T @ (weights * (logs - effects[studies]))) / np.maximum(per_type, 1e-9)
        effects = (of_study.T @ (weights * (logs - means[types]))) / (per_study + RIDGE)
    means = np.where(per_type > 0, means, np.nan)
    # A gene that no study of a type measures is as in the other types.
    is_measured = (per_type > 0).any(axis=0)
    usual = np.nanmedian(means[:, is_measured], axis=0)
    means[:, is_measured] = np.where(np.isnan(means[:, is_measured]), usual, means[:, is_measured])
    return np.maximum(np.nan_to_num(means), 0), is_measured
