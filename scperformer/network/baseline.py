"""The baseline: logistic regression on the same cells, reported beside every result."""

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


def fit_baseline(x: csr_matrix, labels: np.ndarray) -> LinearModel:
    """Fit scikit-learn's logistic regression with its defaults (L2, C=1) on all genes; arguments as `fit_logistic`."""
    return fit_logistic(x, labels, c=1.0)


def fit_logistic(
    x: csr_matrix | np.ndarray, labels: np.ndarray, *, c: float, class_weights: str = "none", tolerance: float = 1e-4
) -> LinearModel:
    """Fit L2-regularised multinomial logistic regression (scikit-learn's).

    Parameters
    ----------
    x
        CSR or dense float32, N cells x features.
    labels
        int64, N; every one of 0..C-1 occurs.
    c
        Inverse strength of the penalty.
    class_weights
        Weight of a label's cells: `none` 1, `balanced` inverse to their number, `sqrt` the root of that weight.
    tolerance
        Largest entry of the gradient at which the optimiser stops.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[class_weights]
    counts = np.bincount(labels)
    weight_of = dict(enumerate((counts.mean() / counts) ** power))
    estimator = LogisticRegression(C=c, class_weight=weight_of, max_iter=MAX_ITERATIONS, tol=tolerance)
    with threadpool_limits(1):  # its dense products are small: with threads that wait for each other, ten times slower
        estimator.fit(x, labels)
    weight, bias = estimator.coef_.T, estimator.intercept_
    if weight.shape[1] == 1:  # for two labels scikit-learn keeps only the difference of their logits
        weight, bias = np.hstack([-weight / 2, weight / 2]), np.array([-bias[0] / 2, bias[0] / 2])
    return LinearModel(weight.astype(np.float32), bias.astype(np.float32))
