"""Multinomial logistic regression, with the optimum of scikit-learn: the fit of the linear branch and of the baseline.

Shape letters: N cells, B cells of a block, K features, W features of a block, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from scperformer.base.parallel import one_thread_each
from scperformer.base.signals import signal_received
from scperformer.model.network import LinearModel

# of 1 / number of cells of a label
CLASS_WEIGHT_POWERS = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}
MAX_ITERATIONS = 1000
MAX_LINE_SEARCH = 50  # evaluations of one step of the optimiser; as in scikit-learn
# relative change of the loss below which the optimiser stops; likewise
PRECISION = 64 * np.finfo(float).eps
PRODUCT_CELLS = 256  # whose features are multiplied at a time: zeros of triangular features are left out between blocks
BLOCK_CELLS = 8192  # the same of components, which have no zeros
BLOCK_CELLS_ON_GPU = 65_536


@dataclass(frozen=True)
class Solver:
    """How the optimum is found, by L-BFGS on the CPU."""

    tolerance: float  # no entry of the gradient of the mean loss is larger at the end
    # Components differ a thousandfold in variance. The optimiser sees each weight divided by the root of the curvature
    # of its loss.
    of_components: bool = False
    device: str = "cpu"  # for the loss and its slope; a GPU holds all features

    @property
    def block_cells(self) -> int:
        if not self.of_components:
            return PRODUCT_CELLS
        return BLOCK_CELLS_ON_GPU if self.device == "cuda" else BLOCK_CELLS


def label_weights(labels: np.ndarray, class_weights: str) -> np.ndarray:
    """Return the weight of each label in the loss, float64 C, by the number of its cells."""
    counts = np.bincount(labels)
    return np.asarray((counts.mean() / counts) ** CLASS_WEIGHT_POWERS[class_weights])


def _mean_and_variance(
    blocks: Sequence[torch.Tensor], num_cells: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both of each of the K features of the cells in blocks, float64 K."""
    mean_K = torch.stack([x_BK.sum(0, dtype=torch.float64) for x_BK in blocks]).sum(0) / num_cells
    squares = [((x_BK - mean_K) ** 2).sum(0) for x_BK in blocks]
    return mean_K, torch.stack(squares).sum(0) / num_cells


def fit_logistic(
    x: np.ndarray,
    labels: np.ndarray,
    c: float = 1.0,
    class_weights: str = "none",
    solver: Solver = Solver(1e-4),
) -> LinearModel:
    """Fit multinomial logistic regression to features of N cells, N x K, also a file; with its defaults, the baseline.

    `labels` are int64, N, with every one of 0..C-1. `c` is the inverse strength of the L2 penalty; `class_weights` is a
    key of `CLASS_WEIGHT_POWERS`. Sums over features are in float32, or in float64 if `x` is. The zeros of a triangular
    `x`, such as the features of `compact`, are left out.
    """
    from scipy.optimize import minimize  # takes a while to import

    device = solver.device
    weight_of = label_weights(labels, class_weights)
    num_labels = len(weight_of)
    total = weight_of[labels].sum()
    # Of two labels, scikit-learn penalises the difference of their weights: twice the sum of their squares.
    penalty = (2 if num_labels == 2 else 1) / (c * total)
    dtype = torch.float64 if x.dtype == np.float64 else torch.float32
    blocks = []
    for first in range(0, len(labels), solver.block_cells):
        part = slice(first, first + solver.block_cells)
        width = x.shape[1]
        if not solver.of_components:
            width = int(np.flatnonzero(x[part].any(axis=0)).max(initial=0)) + 1
        weights_B = torch.from_numpy(weight_of[labels[part]] / total).to(device, dtype)
        labels_1B = torch.from_numpy(labels[None, part]).to(device)
        blocks.append((torch.from_numpy(x[part, :width]).to(device), labels_1B, weights_B))
    mean_K = torch.zeros(x.shape[1], dtype=torch.float64, device=device)
    step_K = torch.ones_like(mean_K)
    if solver.of_components:
        mean_K, variance_K = _mean_and_variance([x_BK for x_BK, *_ in blocks], len(labels))
        step_K = 1 / (variance_K / num_labels + penalty).sqrt()

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        numbers_CK = torch.from_numpy(numbers).to(device).view(num_labels, -1)
        weight_CK = numbers_CK[:, :-1] * step_K
        centre_C1 = (numbers_CK[:, -1] - weight_CK @ mean_K)[:, None]
        loss = penalty * weight_CK.square().sum() / 2
        slope_CK, slope_C1 = penalty * weight_CK, torch.zeros_like(centre_C1)
        weight_CK, centre_C1 = weight_CK.to(dtype), centre_C1.to(dtype)
        for x_BW, labels_1B, weights_B in blocks:
            x_BW = x_BW.to(dtype)
            width = x_BW.shape[1]
            proba_CB = torch.addmm(centre_C1, weight_CK[:, :width], x_BW.T).log_softmax(0)
            loss -= (weights_B * proba_CB.gather(0, labels_1B)).sum(dtype=torch.float64)
            own_1B = proba_CB.new_full(labels_1B.shape, -1.0)
            proba_CB.exp_().scatter_add_(0, labels_1B, own_1B).mul_(weights_B)
            slope_CK[:, :width] += proba_CB @ x_BW
            slope_C1 += proba_CB.sum(1, keepdim=True, dtype=torch.float64)
        slope_CK = (slope_CK - slope_C1 * mean_K) * step_K
        return loss.item(), torch.cat([slope_CK, slope_C1], dim=1).cpu().numpy().ravel()

    start = np.zeros(num_labels * (x.shape[1] + 1))
    options = {
        "gtol": solver.tolerance,
        "ftol": PRECISION,
        "maxiter": MAX_ITERATIONS,
        "maxls": MAX_LINE_SEARCH,
    }

    def stop_after_signal(_: np.ndarray) -> None:
        if signal_received():  # the command ends, and waits for its threads
            raise StopIteration

    # With threads that wait for each other, small products are slower; sums in another order change the last bits.
    with one_thread_each():
        more = {"options": options, "callback": stop_after_signal}
        best = minimize(objective, start, jac=True, method="L-BFGS-B", **more).x
    best = best.reshape(num_labels, -1)
    weight_CK = best[:, :-1] * step_K.cpu().numpy()
    bias_C = best[:, -1] - weight_CK @ mean_K.cpu().numpy()
    weight_KC = np.ascontiguousarray(weight_CK.T, dtype=np.float32)
    return LinearModel(weight_KC, bias_C.astype(np.float32))
