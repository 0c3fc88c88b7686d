"""Calibration of confidences: the expected calibration error, and the reliability curve behind it.

Confidences are calibrated if calls with the confidence p are right with the probability p. The scales of a model's
logits (fits/evidence.py) are fitted to this end; the functions here measure how well this works.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import softmax

NUM_BINS = 15  # bins of confidence from 0 to 1


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
    return float(
        np.average((curve["accuracy"] - curve["confidence"]).abs(), weights=curve["num_cells"])
    )


@dataclass(kw_only=True)
class Calibration:
    """The calibration of out-of-fold calls in plain numbers; the bins are the columns of `reliability_curve`."""

    num_cells: int
    error: float
    bins: dict[str, list[float]]


def calibration(logits: np.ndarray, labels: np.ndarray) -> Calibration:
    """Describe the calibration of out-of-fold calls.

    `logits` are N x C, and `labels` the index of the true label of each cell, N.
    """
    proba = softmax(logits.astype(np.float64), axis=1)
    confidence = proba.max(axis=1)
    right = proba.argmax(axis=1) == labels
    bins = reliability_curve(confidence, right).to_dict("list")
    return Calibration(num_cells=len(labels), error=calibration_error(confidence, right), bins=bins)
