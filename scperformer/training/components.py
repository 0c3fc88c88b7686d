"""Fits of linear models to more cells than have inner products: by components, principal and of single genes.

Shape letters: N cells, G numbers of a cell, K components.
"""

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.base.sparse import TINY
from scperformer.model.minibatches import sparse_tensor
from scperformer.training.logistic import Solver

NUM_PRINCIPAL = 256
NUM_LARGEST = 256
COMPONENT_CELLS = 4000  # from which the axes are found
EXTRA_AXES = 10  # found beside those that are asked for, so that these are accurate
POWER_ITERATIONS = 2
TOLERANCE = 5e-4  # of the gradient of the mean loss


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


def solver(device: str = "cpu") -> Solver:
    """Return how components are fitted."""
    return Solver(TOLERANCE, of_components=True, device=device)
