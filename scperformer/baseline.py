"""Logistic regression on the same cells: the honest baseline, and where the wide branch starts."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

MAX_ITERATIONS = 1000


@dataclass
class LinearModel:
    """Logits = x @ weight + bias; weight float32 G genes x C labels, bias float32 C."""

    weight: np.ndarray
    bias: np.ndarray

    def predict(self, x: csr_matrix) -> np.ndarray:
        """Index of the label with the largest logit of each cell; int64, N."""
        return np.asarray(x @ self.weight + self.bias).argmax(axis=1)


def fit(x: csr_matrix | np.ndarray, labels: np.ndarray, *, c: float = 1.0, balanced: bool = False) -> LinearModel:
    """L2-regularised multinomial logistic regression (scikit-learn's).

    Parameters
    ----------
    x
        CSR float32, N cells x G genes, ln(1 + cp10k), all genes; or other numbers, dense.
    labels
        int64, N; every one of 0..C-1 occurs.
    c
        Inverse strength of the penalty. 1, scikit-learn's own default, is the baseline that results are shown beside.
    balanced
        Weigh labels inversely to their frequency.
    """
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression(C=c, class_weight="balanced" if balanced else None, max_iter=MAX_ITERATIONS)
    estimator.fit(x, labels)
    weight, bias = estimator.coef_.T, estimator.intercept_
    if weight.shape[1] == 1:  # two labels: scikit-learn keeps only the difference of their logits
        weight, bias = np.hstack([-weight / 2, weight / 2]), np.array([-bias[0] / 2, bias[0] / 2])
    return LinearModel(weight.astype(np.float32), bias.astype(np.float32))
