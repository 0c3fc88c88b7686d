"""The UMAP of cells by scanpy: of at most 12,000 random ones, among which all others are placed."""

import logging
import warnings

import numpy as np
import numpy.typing as npt

from scperformer.adaptation.predictions import Blocks
from scperformer.labels.cluster_votes import NUM_NEIGHBOURS, neighbour_graph

log = logging.getLogger(__name__)

MAX_CELLS = 12_000  # more fill a map, and UMAP takes minutes for them
MIN_CELLS = 30  # fewer have no neighbourhoods
NUM_EPOCHS = 200  # the default of UMAP for large data
NUM_NEAREST = 5  # placed cells between which another cell lies


def place_points(
    points: npt.NDArray[np.float32], seed: int, num_epochs: int = NUM_EPOCHS
) -> npt.NDArray[np.float32]:
    """Return the UMAP of M points, M x D: float32, M x 2."""
    import scanpy  # takes seconds to import

    log.info("placing %s cells on a map", f"{len(points):,}")
    num = len(np.unique(points, axis=0))
    # UMAP's weights take seconds to compile, but Gaussian ones are not defined between equal points.
    cells = neighbour_graph(points, NUM_NEIGHBOURS, seed, "gauss" if num == len(points) else "umap")
    cells.uns["neighbors"]["params"]["method"] = "umap"  # else scanpy warns that they are not
    init = "spectral" if num > NUM_NEIGHBOURS else "random"
    with warnings.catch_warnings():
        # about few cells, and about threads: a seed allows one
        warnings.simplefilter("ignore")
        scanpy.tl.umap(cells, random_state=seed, init_pos=init, maxiter=num_epochs)
    return np.asarray(cells.obsm["X_umap"], dtype=np.float32)


def place_cells(
    blocks: Blocks, is_cell: npt.NDArray[np.bool_], seed: int
) -> tuple[npt.NDArray[np.float32], int] | None:
    """Return the UMAP of the embedding of N cells, N x 2, and the number of cells that it was computed of.

    The others lie between the five of these that are nearest in the embedding: it is in memory for these and one block
    only. None: there are too few cells.
    """
    from sklearn.neighbors import NearestNeighbors

    chosen = np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(is_cell))[:MAX_CELLS])
    if len(chosen) < MIN_CELLS:
        return None
    parts = []
    start = 0
    for block in blocks():
        stop = start + len(block.embedding)
        parts.append(block.embedding[chosen[(chosen >= start) & (chosen < stop)] - start])
        start = stop
    points = np.concatenate(parts)
    placed = place_points(points, seed)
    nearest = NearestNeighbors(n_neighbors=NUM_NEAREST).fit(points)
    xy = []
    for block in blocks():
        distances, near = nearest.kneighbors(block.embedding)
        weights = 1 / np.maximum(distances, 1e-6)[:, :, None]
        xy.append((placed[near] * weights).sum(axis=1) / weights.sum(axis=1))
    found = np.concatenate(xy).astype(np.float32)
    found[chosen] = placed
    return found, len(chosen)
