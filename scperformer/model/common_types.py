"""Common types: what cell types that occur in every tissue have in common in all studies of a species.

A profile is the sum of a part of its type and a part of its study, in ln(1 + counts per 10,000): the chemistry and the
ambient RNA of a study are in all of its profiles. The parts of the types, fitted to all studies, have neither.

Shape letters: P profiles, C types, S studies, G genes.
"""

import numpy as np

FIT_ROUNDS = 6  # of fitting the types and the studies in turn
RIDGE = 2.0  # profiles with a value of 0 that each study counts beside its own: one of few types says little about it


def fit_common_types(
    logs: np.ndarray, measured: np.ndarray, types: np.ndarray, studies: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean expression of types over studies, float32 C x G, and whether any study measures the gene.

    Parameters
    ----------
    logs, measured
        ln(1 + counts per 10,000) of profiles, and the genes that their study measures: P x G.
    types, studies
        Indices, of 0 to C-1 and 0 to S-1, int64 P. Profiles of one type and study have together the weight of one.
    """
    pairs, pair = np.unique(np.stack([types, studies]), axis=1, return_inverse=True)
    _, first = np.unique(pair.ravel(), return_index=True)
    of_pair = np.eye(pairs.shape[1], dtype=np.float32)[pair.ravel()].T
    logs = (of_pair @ logs) / of_pair.sum(axis=1, keepdims=True)
    weights = measured[first].astype(np.float32)
    of_type, of_study = (np.eye(codes.max() + 1, dtype=np.float32)[codes] for codes in pairs)
    per_type, per_study = of_type.T @ weights, of_study.T @ weights
    logs *= weights
    effects = np.zeros_like(per_study)
    for _ in range(FIT_ROUNDS):
        means = (of_type.T @ (logs - weights * effects[pairs[1]])) / np.maximum(per_type, 1)
        effects = (of_study.T @ (logs - weights * means[pairs[0]])) / (per_study + RIDGE)
    # A gene that no study of a type measures is as in the other types.
    is_measured = (per_type > 0).any(axis=0)
    usual = np.nanmedian(np.where(per_type > 0, means, np.nan)[:, is_measured], axis=0)
    means[:, is_measured] = np.where(per_type[:, is_measured] > 0, means[:, is_measured], usual)
    return np.maximum(means, 0), is_measured
