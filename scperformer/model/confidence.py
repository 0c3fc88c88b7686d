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


def reliability_curve(confidence: np.ndarray, right: np.ndarray) -> pd.DataFrame:
    """Return `num_cells`, mean `confidence` and `accuracy` of bins of equal width; bins without cells are left out.

    `confidence` is from 0 to 1, N, and `right` says whether each call is right, boolean N.
    """
    bins = np.clip(np.asarray(confidence, dtype=np.float64) * NUM_BINS, 0, NUM_BINS - 1).astype(int)
    counts = np.bincount(bins, minlength=NUM_BINS)
    curve = pd.DataFrame({"num_cells": counts})
    for name, values in {"confidence": confidence, "accuracy": right}.items():
        curve[name] = np.bincount(bins, values, minlength=NUM_BINS) / np.maximum(counts, 1)
    return curve[counts > 0].reset_index(drop=True)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error: mean |accuracy - confidence| of the bins, weighted by their cells.

    Source: Guo et al. 2017, arXiv 1706.04599, equation 3.
    """
    curve = reliability_curve(confidence, right)
    return float(np.average((curve["accuracy"] - curve["confidence"]).abs(), weights=curve["num_cells"]))


def calibration(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Describe the calibration of out-of-fold calls in plain numbers: `num_cells`, `error`, `bins` and `labels`.

    `logits` are N x C, `labels` the index of the true label of each cell, N, and `names` the C labels. The result has
    the columns of `reliability_curve` as `bins`. `labels` are columns, too, with a row for each label that has at least
    `MIN_CALLS` calls: `label`, `num_cells` (its calls), their mean `confidence`, `accuracy` and `error`.
    """
    proba = softmax(logits.astype(np.float64), axis=1)
    confidence = proba.max(axis=1)
    calls = proba.argmax(axis=1)
    right = calls == labels
    by_label: dict[str, list[Any]] = {"label": [], "num_cells": [], "confidence": [], "accuracy": [], "error": []}
    for label in np.flatnonzero(np.bincount(calls, minlength=len(names)) >= MIN_CALLS).tolist():
        own = confidence[calls == label]
        own_right = right[calls == label]
        row = (names[label], len(own), float(own.mean()), float(own_right.mean()), calibration_error(own, own_right))
        for column, value in zip(by_label.values(), row, strict=True):
            column.append(value)
    return {
        "num_cells": len(labels),
        "error": calibration_error(confidence, right),
        "bins": reliability_curve(confidence, right).to_dict("list"),
        "labels": by_label,
    }
