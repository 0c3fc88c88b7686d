"""Where each cell is on the map of the report and of `scperformer.pl`: PCA and UMAP by scanpy, on expression.

UMAP is fitted to at most 12,000 random cells, and every other cell is placed among its nearest fitted cells: with
scanpy, 20,000 cells take 35 s on one core, and the time of exact neighbours grows with the square of their number.
"""

import logging
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from anndata import AnnData
from scipy import sparse

log = logging.getLogger(__name__)

MIN_CELLS = 30  # fewer cells have no neighbourhoods
MAX_FITTED = 12_000
NUM_NEIGHBOURS = 15  # the default of UMAP and scanpy
NUM_EPOCHS = 200  # the default of UMAP for large data
NUM_COMPONENTS = 50  # the default of scanpy
NUM_NEAREST = 5  # fitted cells that place another cell
NUM_GENES = 2000  # of highest variability, as is usual with scanpy


@dataclass(kw_only=True)
class Layout:
    """Coordinates of N cells, and the neighbour graph behind them."""

    xy: npt.NDArray[np.float32]  # N x 2
    source: str  # of what it is, in words
    graph: sparse.csr_matrix | None = None  # of the fitted cells; None: the coordinates are those of the files
    fitted: npt.NDArray[np.int64] | None = None  # numbers of these cells
    nearest: npt.NDArray[np.int64] | None = None  # for each cell, the place of the nearest cell in `fitted`


def variable_genes(x: sparse.csr_matrix) -> npt.NDArray[np.int64]:
    """Return the columns of the most variable genes of cells x genes, ln(1 + counts per 10,000), by scanpy."""
    import scanpy

    cells = AnnData(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few cells
        expressed = np.flatnonzero(scanpy.pp.filter_genes(cells, min_cells=3, inplace=False)[0])
        if len(expressed) <= NUM_GENES:
            return expressed
        chosen = scanpy.pp.highly_variable_genes(cells[:, expressed].copy(), n_top_genes=NUM_GENES, inplace=False)
    return expressed[chosen["highly_variable"].to_numpy()]


def principal_components(x: sparse.csr_matrix, seed: int) -> npt.NDArray[np.float32]:
    """Return up to 50 principal components of cells x genes, by scanpy; the genes stay sparse."""
    import scanpy

    num = min(NUM_COMPONENTS, min(x.shape) - 1)
    return np.asarray(scanpy.pp.pca(x, n_comps=num, random_state=seed), dtype=np.float32)


def umap(points: npt.NDArray[np.float32], seed: int, source: str) -> Layout | None:
    """Return the UMAP of N points, N x D, by scanpy; None for fewer than 30 points, or if all are the same."""
    if len(points) < MIN_CELLS or points.shape[1] == 0 or not np.ptp(points, axis=0).any():
        return None
    import scanpy
    from sklearn.neighbors import NearestNeighbors

    num = len(points)
    fitted = np.arange(num)
    if num > MAX_FITTED:
        fitted = np.sort(np.random.default_rng(seed).choice(num, MAX_FITTED, replace=False))
    cells = AnnData(obsm={"X": points[fitted]}, shape=(len(fitted), 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about future defaults, and about threads, of which a seed allows one
        # Exact neighbours: scanpy 1.11 cannot read those that pynndescent finds for many cells.
        options = {"transformer": "sklearn", "random_state": seed}
        scanpy.pp.neighbors(cells, n_neighbors=NUM_NEIGHBOURS, use_rep="X", **options)
        init = "spectral" if len(np.unique(points[fitted], axis=0)) > NUM_NEIGHBOURS else "random"
        scanpy.tl.umap(cells, random_state=seed, init_pos=init, maxiter=NUM_EPOCHS)
    xy = np.asarray(cells.obsm["X_umap"], dtype=np.float32)
    nearest = np.arange(num)
    if num > MAX_FITTED:
        # https://github.com/lmcinnes/umap places new cells like this, before it moves them.
        search = NearestNeighbors(n_neighbors=NUM_NEAREST, algorithm="brute").fit(points[fitted])
        distances, places = search.kneighbors(points)
        weights = 1 / np.maximum(distances, 1e-6)
        placed = np.einsum("nk,nkd->nd", weights / weights.sum(axis=1, keepdims=True), xy[places])
        placed[fitted] = xy
        xy = placed.astype(np.float32)
        nearest = places[:, 0]
    return Layout(xy=xy, source=source, graph=cells.obsp["connectivities"], fitted=fitted, nearest=nearest)
