"""Fits of linear models to more cells than have inner products: by principal components.

Shape letters: N cells, G numbers of a cell, K components, C labels.
"""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.model.network import LinearModel

NUM_COMPONENTS = 512
COMPONENT_CELLS = 4000  # from which the axes are found
TOLERANCE = 5e-4  # of the gradient of the mean loss
MAX_ITERATIONS = 300
BLOCK_CELLS = 8192  # cells whose logits are computed at a time


def cells_for_axes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Draw 4,000 cells in proportion to the root of the number of cells of their label: their numbers, ascending.

    So rare labels have principal components of their own.
    """
    chance = (np.bincount(labels) ** -0.5)[labels]
    num = min(COMPONENT_CELLS, len(labels))
    return np.sort(np.random.default_rng(seed).choice(len(labels), num, replace=False, p=chance / chance.sum()))


def principal_axes(x: csr_matrix, seed: int) -> np.ndarray:
    """Return the principal axes of cells, which are not centred: float32 G x K from CSR N x G."""
    from sklearn.utils.extmath import randomized_svd

    _, _, axes_KG = randomized_svd(x.astype(np.float32), min(NUM_COMPONENTS, *x.shape), n_iter=2, random_state=seed)
    return np.ascontiguousarray(axes_KG.T, dtype=np.float32)


def fit_components(x: np.ndarray, labels: np.ndarray, c: float, label_weights: np.ndarray) -> LinearModel:
    """Fit multinomial logistic regression to components: float N x K, also a file; `labels` is int64, N.

    The penalty is that of scikit-learn with the inverse strength `c`. Components differ a thousandfold in variance, so
    the optimiser (L-BFGS) sees each weight divided by the root of the curvature of its loss: a tenth of the steps.
    """
    from scipy.optimize import minimize

    num_cells, num_components = x.shape
    num_labels = len(label_weights)
    blocks = [slice(start, start + BLOCK_CELLS) for start in range(0, num_cells, BLOCK_CELLS)]
    mean_K = sum(x[block].sum(axis=0, dtype=np.float64) for block in blocks) / num_cells
    variance_K = sum(((x[block] - mean_K) ** 2).sum(axis=0) for block in blocks) / num_cells
    penalty = 1 / (c * num_cells)
    step_K1 = 1 / np.sqrt(variance_K / num_labels + penalty)[:, None]
    weight_N = label_weights[labels]

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        scaled_KC, bias_C = np.split(numbers.reshape(-1, num_labels), [num_components])
        weight_KC = scaled_KC * step_K1
        weight_32, centre_C = weight_KC.astype(np.float32), bias_C - mean_K @ weight_KC
        loss = penalty * (weight_KC**2).sum() / 2
        slope_KC, slope_C = penalty * weight_KC, np.zeros(num_labels)
        for block in blocks:
            true = np.arange(len(labels[block])), labels[block]
            x_BK = x[block].astype(np.float32, copy=False)
            logits = x_BK @ weight_32 + centre_C.astype(np.float32)
            logits -= logits.max(axis=1, keepdims=True)
            proba = np.exp(logits)
            sums = proba.sum(axis=1, keepdims=True)
            loss += (weight_N[block] * (np.log(sums[:, 0]) - logits[true])).sum(dtype=np.float64) / num_cells
            proba /= sums
            proba[true] -= 1
            proba *= (weight_N[block] / num_cells)[:, None].astype(np.float32)
            slope_KC += x_BK.T @ proba
            slope_C += proba.sum(axis=0, dtype=np.float64)
        slope_KC -= mean_K[:, None] * slope_C
        return float(loss), np.concatenate([slope_KC * step_K1, slope_C[None]]).ravel()

    start = np.zeros((num_components + 1) * num_labels)
    options = {"gtol": TOLERANCE, "maxiter": MAX_ITERATIONS}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x.reshape(-1, num_labels)
    weight_KC = found[:-1] * step_K1
    return LinearModel(weight_KC.astype(np.float32), (found[-1] - mean_K @ weight_KC).astype(np.float32))
