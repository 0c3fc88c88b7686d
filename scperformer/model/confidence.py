"""Calibration of confidences: the expected calibration error, and the reliability curve behind it.

Confidences are calibrated if calls with the confidence p are right with the probability p. The scales of a model's
logits (training/evidence.py) are fitted to this end; the functions here measure how well this works.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import softmax

NUM_BINS = 15  # bins of confidence from 0 to 1
MIN_CALLS = 30  # a label with fewer calls is left out of the calibration by label


def reliability_curve(confidence: np.ndarray, right: np.ndarray, num_bins: int = NUM_BINS) -> pd.DataFrame:
    """Return `num_cells`, mean `confidence` and `accuracy` of bins of equal width; bins without cells are left out.

    Parameters
    ----------
    confidence
        Confidence of N calls, 0 to 1.
    right
        Whether each call is right, boolean N.
    """
    bins = np.clip(np.asarray(confidence, dtype=np.float64) * num_bins, 0, num_bins - 1).astype(int)
    counts = np.bincount(bins, minlength=num_bins)
    sums = {"confidence": confidence, "accuracy": right}
    means = {name: np.bincount(bins, values, minlength=num_bins) for name, values in sums.items()}
    curve = pd.DataFrame(
        {"num_cells": counts, **{name: total / np.maximum(counts, 1) for name, total in means.items()}}
    )
    return curve[curve["num_cells"] > 0].reset_index(drop=True)


def calibration_error(confidence: np.ndarray, right: np.ndarray, num_bins: int = NUM_BINS) -> float:
    """Return the expected calibration error: mean |accuracy - confidence| of the bins, weighted by their cells.

    Source: Guo et al. 2017, arXiv 1706.04599, equation 3.
    """
    curve = reliability_curve(confidence, right, num_bins)
    return float(np.average((curve["accuracy"] - curve["confidence"]).abs(), weights=curve["num_cells"]))


def calibration(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Describe the calibration of held-out calls in plain numbers: `num_cells`, `error`, `bins` and `labels`.

    Parameters
    ----------
    logits
        N held-out cells x C labels.
    labels
        Index of the true label of each cell, N.
    names
        The C labels.

    Returns
    -------
    `bins` are the columns of `reliability_curve`; `labels` are those of `label_calibration`, with names for indices.
    """
    proba = softmax(logits.astype(np.float64), axis=1)
    confidence = proba.max(axis=1)
    right = proba.argmax(axis=1) == labels
    by_label = label_calibration(proba, labels)
    by_label["label"] = [names[label] for label in by_label["label"]]
    return {
        "num_cells": len(labels),
        "error": calibration_error(confidence, right),
        "bins": reliability_curve(confidence, right).to_dict("list"),
        "labels": by_label.to_dict("list"),
    }


def label_calibration(proba: np.ndarray, labels: np.ndarray, min_calls: int = MIN_CALLS) -> pd.DataFrame:
    """Return the calibration of the calls of each label that has at least `min_calls` calls.

    Parameters
    ----------
    proba
        Probabilities of N cells for C labels.
    labels
        Index of the true label of each cell, N.

    Returns
    -------
    A row per label: `label` (its index), `num_cells` (cells with this call), their mean `confidence`, `accuracy` and
    `error` (as by `calibration_error`).
    """
    calls = proba.argmax(axis=1)
    confidence = proba.max(axis=1)
    rows = []
    for label in np.flatnonzero(np.bincount(calls, minlength=proba.shape[1]) >= min_calls):
        own = confidence[calls == label]
        right = labels[calls == label] == label
        row = {"label": int(label), "num_cells": len(own), "confidence": float(own.mean())}
        rows.append(row | {"accuracy": float(right.mean()), "error": calibration_error(own, right)})
    return pd.DataFrame(rows, columns=["label", "num_cells", "confidence", "accuracy", "error"])
