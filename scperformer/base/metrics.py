"""Scores of predicted against true labels: accuracy, F1, the confusion matrix, and losses.

The whole package uses these conventions:

- F1 of a label is `2 TP / (2 TP + FP + FN)`, the harmonic mean of precision and recall (van Rijsbergen 1979).
- macro-F1 is the mean of F1 over the true labels. A label that occurs only among predictions lowers the recall of its
  cells' true labels, but is not averaged (scikit-learn's default includes it with F1 = 0).
- weighted-F1 is the mean of F1 weighted by the number of cells of each true label.
- 0 / 0 is NaN: the precision of a label that is never predicted, and the recall of a label without true cells.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def confusion_matrix(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, labels: Sequence[Any]
) -> np.ndarray:
    """Count N cells by true label (rows) and predicted label (columns), each one of `labels`: L x L."""
    rows, columns = (
        pd.Index(labels).get_indexer(pd.Index(values)) for values in (truth, predicted)
    )
    if (rows < 0).any() or (columns < 0).any():
        raise ValueError(f"a label that is not one of the {len(labels)} labels")
    flat = np.bincount(rows * len(labels) + columns, minlength=len(labels) ** 2)
    return flat.astype(np.int64).reshape(len(labels), len(labels))


def class_scores(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Return support (true cells), precision, recall and f1 of each label, given a matrix of `confusion_matrix`."""
    hits = np.diag(confusion).astype(float)
    support = confusion.sum(axis=1)
    predicted = confusion.sum(axis=0)
    pairs = (hits, predicted), (hits, support), (2 * hits, support + predicted)
    precision, recall, f1 = (
        np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
        for part, whole in pairs
    )
    return {"support": support, "precision": precision, "recall": recall, "f1": f1}


def scores(confusion: np.ndarray) -> dict[str, float]:
    """Return accuracy, macro_f1 and weighted_f1, 0 to 1, given a matrix of `confusion_matrix`; NaN without cells."""
    by_class = class_scores(confusion)
    present = by_class["support"] > 0
    if not present.any():
        return dict.fromkeys(("accuracy", "macro_f1", "weighted_f1"), np.nan)
    f1 = by_class["f1"][present]
    weighted = np.average(f1, weights=by_class["support"][present])
    accuracy = np.trace(confusion) / confusion.sum()
    return {
        "accuracy": float(accuracy),
        "macro_f1": float(f1.mean()),
        "weighted_f1": float(weighted),
    }


def score(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> dict[str, float]:
    """Return `scores` of N predicted labels, strings or integers."""
    labels = np.unique(np.concatenate([np.asarray(truth), np.asarray(predicted)])).tolist()
    return scores(confusion_matrix(truth, predicted, labels))


def cell_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return -ln(probability of the true label) for each of N cells; logits N x C, labels N indices."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of `cell_losses`."""
    return float(cell_losses(logits, labels).mean())
