"""Fits of linear models to more cells than have inner products: by components, principal and of single genes.

Shape letters: N cells, G numbers of a cell, K components.
"""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.sparse import principal_axes
from scperformer.fits.logistic import Solver

NUM_PRINCIPAL = 256
NUM_LARGEST = 256
COMPONENT_CELLS = 4000  # from which the axes are found
NUM_STEPS = 3  # of subspace iteration
TOLERANCE = 5e-4  # of the gradient of the mean loss


def cells_for_axes(labels: np.ndarray, seed: int) -> np.ndarray:
    """Draw 4,000 cells in proportion to the root of the number of cells of their label: their numbers, ascending.

    So rare labels have principal components of their own.
    """
    chance = (np.bincount(labels) ** -0.5)[labels]
    num = min(COMPONENT_CELLS, len(labels))
    return np.sort(
        np.random.default_rng(seed).choice(len(labels), num, replace=False, p=chance / chance.sum())
    )


def fitted_axes(x: csr_matrix, seed: int) -> np.ndarray:
    """Return orthonormal axes for cells: float32 G x K from CSR N x G.

    One half are principal axes, not centred. The other half are the numbers with the largest sums of squares, as
    principal axes can miss types that differ in single genes.
    """
    axes, _ = principal_axes(x, NUM_PRINCIPAL, seed, NUM_STEPS)
    num_axes = axes.shape[1]
    sums_of_squares = np.asarray(x.multiply(x).sum(axis=0)).ravel()
    largest = np.argsort(-sums_of_squares, kind="stable")[: min(NUM_LARGEST, x.shape[1] - num_axes)]
    single = np.zeros((x.shape[1], len(largest)), dtype=np.float32)
    single[largest, np.arange(len(largest))] = 1
    return np.linalg.qr(np.hstack([axes, single]))[0]


def solver(device: str = "cpu") -> Solver:
    """Return how components are fitted."""
    return Solver(TOLERANCE, of_components=True, device=device)
