"""Fits of linear models to more cells than have inner products: by components, principal and of single genes.

Shape letters: N cells, B cells of a block, G numbers of a cell, K components, C labels.
"""

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.base.progress import progress
from scperformer.base.sparse import TINY
from scperformer.model.minibatches import sparse_tensor
from scperformer.model.network import LinearModel

NUM_PRINCIPAL = 256
NUM_LARGEST = 256
COMPONENT_CELLS = 4000  # from which the axes are found
EXTRA_AXES = 10  # found beside those that are asked for, so that these are accurate
POWER_ITERATIONS = 2
TOLERANCE = 5e-4  # of the gradient of the mean loss
MAX_ITERATIONS = 300
BLOCK_CELLS = 8192  # cells whose logits are computed at a time
BLOCK_CELLS_ON_GPU = 65_536


def cells_for_axes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Draw 4,000 cells in proportion to the root of the number of cells of their label: their numbers, ascending.

    So rare labels have principal components of their own.
    """
    chance = (np.bincount(labels) ** -0.5)[labels]
    num = min(COMPONENT_CELLS, len(labels))
    return np.sort(np.random.default_rng(seed).choice(len(labels), num, replace=False, p=chance / chance.sum()))


def fitted_axes(x: csr_matrix, seed: int, device: str = "cpu") -> np.ndarray:
    """Return orthonormal axes for cells: float32 G x K from CSR N x G.

    One half are principal axes, not centred, by randomised subspace iteration (Halko et al. 2011, SIAM Rev. 53:217).
    The other half are the numbers with the largest sums of squares, as principal axes can miss types that differ in
    single genes.
    """
    num_axes = min(NUM_PRINCIPAL, *x.shape)
    a_NG, a_GN = sparse_tensor(x, device), sparse_tensor(x.T.tocsr(), device)
    start = np.random.default_rng(seed).normal(size=(x.shape[0], min(num_axes + EXTRA_AXES, *x.shape)))
    q_NK = torch.from_numpy(start.astype(np.float32)).to(device)
    for _ in range(POWER_ITERATIONS):
        q_NK = torch.linalg.qr(a_NG @ (a_GN @ q_NK))[0]
    b_GK = a_GN @ q_NK
    variance_K, rotation_KK = torch.linalg.eigh((b_GK.T @ b_GK).double())
    rotation_KK = (rotation_KK / variance_K.clamp_min(TINY).sqrt()).flip(1)[:, :num_axes]
    sums_of_squares = np.asarray(x.multiply(x).sum(axis=0)).ravel()
    largest = np.argsort(-sums_of_squares, kind="stable")[: min(NUM_LARGEST, x.shape[1] - num_axes)]
    axes_GK = torch.zeros(x.shape[1], num_axes + len(largest), device=device)
    axes_GK[:, :num_axes] = b_GK @ rotation_KK.float()
    axes_GK[largest, num_axes + np.arange(len(largest))] = 1
    return np.ascontiguousarray(torch.linalg.qr(axes_GK)[0].cpu().numpy())


def fit_components(
    x: np.ndarray, labels: np.ndarray, c: float, label_weights: np.ndarray, device: str = "cpu"
) -> LinearModel:
    """Fit multinomial logistic regression to components: float N x K, also a file; `labels` is int64, N.

    The penalty is that of scikit-learn with the inverse strength `c`. Components differ a thousandfold in variance, so
    the optimiser (L-BFGS, on the CPU) sees each weight divided by the root of the curvature of its loss. The loss and
    its slope are computed on the device, which holds all components if it is a GPU.
    """
    from scipy.optimize import minimize

    (num_cells, num_components), num_labels = x.shape, len(label_weights)
    size = BLOCK_CELLS_ON_GPU if device == "cuda" else BLOCK_CELLS
    blocks = [torch.from_numpy(x[start : start + size]).to(device) for start in range(0, num_cells, size)]
    labels_of = torch.from_numpy(labels).to(device)[:, None].split(size)
    weights_of = torch.from_numpy(label_weights[labels] / num_cells).float().to(device)[:, None].split(size)
    mean_K = torch.stack([x_BK.sum(0, dtype=torch.float64) for x_BK in blocks]).sum(0) / num_cells
    variance_K = torch.stack([((x_BK - mean_K) ** 2).sum(0) for x_BK in blocks]).sum(0) / num_cells
    penalty = 1 / (c * num_cells)
    step_K1 = 1 / (variance_K / num_labels + penalty).sqrt()[:, None]

    def objective(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        numbers_KC = torch.from_numpy(numbers).to(device).view(-1, num_labels)
        weight_KC = numbers_KC[:-1] * step_K1
        centre_C = numbers_KC[-1] - mean_K @ weight_KC
        loss = penalty * weight_KC.square().sum() / 2
        slope_KC, slope_C = penalty * weight_KC, torch.zeros_like(centre_C)
        for x_BK, labels_B1, weights_B1 in zip(blocks, labels_of, weights_of, strict=True):
            x_BK = x_BK.float()
            proba_BC = torch.addmm(centre_C.float(), x_BK, weight_KC.float()).log_softmax(1)
            loss -= (weights_B1 * proba_BC.gather(1, labels_B1)).sum(dtype=torch.float64)
            proba_BC.exp_().scatter_add_(1, labels_B1, proba_BC.new_full(labels_B1.shape, -1.0)).mul_(weights_B1)
            slope_KC += x_BK.T @ proba_BC
            slope_C += proba_BC.sum(0, dtype=torch.float64)
        slope_KC -= mean_K[:, None] * slope_C
        return loss.item(), torch.cat([slope_KC * step_K1, slope_C[None]]).cpu().numpy().ravel()

    start = np.zeros((num_components + 1) * num_labels)
    options = {"gtol": TOLERANCE, "maxiter": MAX_ITERATIONS}
    with progress(f"fitting, at most {MAX_ITERATIONS} iterations", total=MAX_ITERATIONS, unit="iterations") as shown:
        more = {"options": options, "callback": lambda _: shown.update()}
        best = minimize(objective, start, jac=True, method="L-BFGS-B", **more).x.reshape(-1, num_labels)
    weight_KC = best[:-1] * step_K1.cpu().numpy()
    bias_C = best[-1] - mean_K.cpu().numpy() @ weight_KC
    return LinearModel(weight_KC.astype(np.float32), bias_C.astype(np.float32))
