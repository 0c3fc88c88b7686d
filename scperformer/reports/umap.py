"""The map of cells: a UMAP of their embeddings, without umap-learn, which compiles for 15 to 60 seconds in each run.

The graph of neighbours and the cost are those of UMAP (McInnes, Healy and Melville 2018, arXiv 1802.03426). All cells
move at once, with Adam, as in `batch = TRUE` of the R package uwot; the start is the plane of most variance.
"""

import numpy as np
import numpy.typing as npt
from scipy import sparse

MIN_CELLS = 15
NUM_NEIGHBOURS, NUM_EPOCHS, NUM_REPELLED = 15, 200, 5  # as UMAP's defaults for large data
A, B = 0.583, 1.334  # of the similarity 1 / (1 + A distance^2B) on the map, for min_dist=0.5, as in scanpy
MOST_FORCE = 4.0  # of one pair of cells, as in UMAP
DECAYS = 0.5, 0.9  # of Adam's means, as in uwot


def neighbour_graph(embedding: npt.NDArray[np.float32], num_neighbours: int) -> sparse.csr_matrix:
    """UMAP's weights of pairs of neighbours, symmetric, N x N: 0 to 1 (sections 3.1 and 3.2 of the paper)."""
    from sklearn.neighbors import NearestNeighbors  # takes a while to import

    search = NearestNeighbors(n_neighbors=num_neighbours, algorithm="brute").fit(embedding)
    distances, neighbours = search.kneighbors()
    beyond = distances - distances[:, :1]
    low = np.zeros(len(beyond))
    high = np.full(len(beyond), np.inf)
    width = np.ones(len(beyond))
    for _ in range(40):  # bisection: each cell has log2(k) neighbours, counted by their weights
        is_wide = np.exp(-beyond / width[:, None]).sum(axis=1) > np.log2(num_neighbours)
        low = np.where(is_wide, low, width)
        high = np.where(is_wide, width, high)
        width = np.where(np.isinf(high), 2 * width, (low + high) / 2)
    width = np.maximum(width, 1e-3 * max(distances.mean(), 1e-12))
    weights = np.exp(-beyond / width[:, None]).astype(np.float32)
    starts = np.arange(0, weights.size + 1, num_neighbours)
    directed = sparse.csr_matrix((weights.ravel(), neighbours.ravel(), starts), shape=(len(beyond),) * 2)
    return (directed + directed.T - directed.multiply(directed.T)).tocsr()


def _powers(step: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The squared distances d^2 of pairs, and d^2B; by logarithms, which are faster than powers."""
    squared = step[..., 0] ** 2 + step[..., 1] ** 2 + np.float32(1e-9)
    return squared, np.exp(np.float32(B) * np.log(squared))


def umap_coordinates(embedding: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32] | None:
    """Coordinates of N cells on the map, N x 2; None for fewer than 15 cells, or if all have the same embedding."""
    num_cells = len(embedding)
    if num_cells < MIN_CELLS or embedding.shape[1] == 0 or not np.ptp(embedding, axis=0).any():
        return None
    graph = neighbour_graph(embedding, min(NUM_NEIGHBOURS, num_cells - 1))
    graph.data /= graph.data.max()
    graph.data[graph.data < 1 / NUM_EPOCHS] = 0  # UMAP would never draw these pairs
    graph.eliminate_zeros()
    pairs = sparse.triu(graph).tocoo()
    num_pairs = pairs.nnz
    sides = np.concatenate([pairs.row, pairs.col])
    signs = np.repeat(np.array([-2, 2], dtype=np.float32), num_pairs)  # 2: UMAP draws (i, j) and (j, i)
    both = sparse.csr_matrix((signs * np.tile(pairs.data, 2), (sides, np.tile(np.arange(num_pairs), 2))))
    both.resize(num_cells, num_pairs)
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float32)

    centred = (embedding - embedding.mean(axis=0)).astype(np.float64)
    plane = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :2]
    rng = np.random.default_rng(seed)
    start = centred @ plane
    if start.shape[1] == 1:
        start = np.column_stack([start, np.zeros(num_cells)])
    # Cells with the same embedding need different places to move apart.
    xy = (10 * start / np.abs(start).max() + 1e-3 * rng.normal(size=start.shape)).astype(np.float32)
    mean = np.zeros_like(xy)
    spread = np.zeros_like(xy)
    for epoch in range(NUM_EPOCHS):
        step = xy[pairs.row] - xy[pairs.col]
        squared, power = _powers(step)
        pull = 2 * A * B * power / squared / (1 + A * power)
        gradient = both @ np.clip(pull[..., None] * step, -MOST_FORCE, MOST_FORCE)
        step = xy[:, None] - xy[rng.integers(0, num_cells, (num_cells, NUM_REPELLED))]
        squared, power = _powers(step)
        push = 2 * B / ((0.001 + squared) * (1 + A * power))
        gradient += degrees * np.clip(push[..., None] * step, -MOST_FORCE, MOST_FORCE).sum(axis=1)
        mean = DECAYS[0] * mean + (1 - DECAYS[0]) * gradient
        spread = DECAYS[1] * spread + (1 - DECAYS[1]) * gradient**2
        size = np.sqrt(spread / (1 - DECAYS[1] ** (epoch + 1))) + 1e-7
        xy += ((1 - epoch / NUM_EPOCHS) * mean / (1 - DECAYS[0] ** (epoch + 1)) / size).astype(np.float32)
    return xy
