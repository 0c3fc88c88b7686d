"""How sure a call is: the calibration error of confidences, and the curve behind it.

A confidence is calibrated if calls with the confidence p are right with the probability p. The scales of a model's
logits (fitting/branches.py) are fitted to this end; the functions here show how far they reach it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import softmax

NUM_BINS = 15  # of confidence from 0 to 1
MIN_CELLS = 30  # of a label whose calibration is shown on its own


def reliability_curve(confidence: np.ndarray, right: np.ndarray, num_bins: int = NUM_BINS) -> pd.DataFrame:
    """Return `num_cells`, mean `confidence` and `accuracy` of bins of equal width, without those that have no cells.

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

    `logits` are N x C, `labels` N indices, `names` the C labels. `bins` are the columns of `reliability_curve`, and
    `labels` those of `label_calibration` with names.
    """
    proba = softmax(logits.astype(np.float64), axis=1)
    confidence = proba.max(axis=1)
    right = proba.argmax(axis=1) == labels
    by_label = label_calibration(proba, labels)
    by_label["label"] = [names[label] for label in by_label["label"]]
    found = {"num_cells": len(labels), "error": calibration_error(confidence, right)}
    return found | {"bins": reliability_curve(confidence, right).to_dict("list"), "labels": by_label.to_dict("list")}


def label_calibration(proba: np.ndarray, labels: np.ndarray, min_cells: int = MIN_CELLS) -> pd.DataFrame:
    """Return the calibration of the calls of each label that `min_cells` cells or more are called.

    Parameters
    ----------
    proba
        Probabilities of N cells for C labels.
    labels
        Index of the true label of each cell, N.

    Returns
    -------
    A row per label: `label` (index), `num_cells` that are called it, their mean `confidence`, `accuracy` and `error`
    (as `calibration_error`).
    """
    calls = proba.argmax(axis=1)
    confidence = proba.max(axis=1)
    rows = []
    for label in np.flatnonzero(np.bincount(calls, minlength=proba.shape[1]) >= min_cells):
        sure = confidence[calls == label]
        right = labels[calls == label] == label
        numbers = {"confidence": sure.mean(), "accuracy": right.mean(), "error": calibration_error(sure, right)}
        rows.append({"label": int(label), "num_cells": len(sure)} | {k: float(v) for k, v in numbers.items()})
    return pd.DataFrame(rows, columns=["label", "num_cells", "confidence", "accuracy", "error"])
