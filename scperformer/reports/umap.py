"""A UMAP of cells for the report and for `scperformer.pl`, computed with numpy alone.

umap-learn would compile its functions in each process, which takes longer than the map itself: on two CPU cores, 2,700
cells take 2 s here, and 9 s with scanpy. The neighbour graph and the cost function are those of UMAP (McInnes, Healy
and Melville 2018, arXiv 1802.03426). The optimiser is that of the R package uwot with `batch = TRUE`: Adam, which moves
all cells at once. The layout starts from the first two principal components.
"""

import numpy as np
import numpy.typing as npt
from scipy import sparse

MIN_CELLS = 15
NUM_NEIGHBOURS = 15  # the default of UMAP
NUM_EPOCHS = 200  # the default of UMAP for large data
NUM_NEGATIVE = 5  # random cells that repel a cell in each epoch, per neighbour; the default of UMAP
# Parameters of the similarity 1 / (1 + A distance^2B) of two cells on the map, for min_dist=0.5 as in scanpy.
A = 0.583
B = 1.334
MAX_FORCE = 4.0  # largest gradient of a pair of cells per coordinate, as in UMAP
MEAN_DECAY = 0.5  # decay of Adam's mean gradient (beta 1), as in uwot
SQUARE_DECAY = 0.9  # decay of Adam's mean squared gradient (beta 2), as in uwot


def neighbour_graph(embedding: npt.NDArray[np.float32], num_neighbours: int) -> sparse.csr_matrix:
    """Return UMAP's weighted graph of neighbours, N x N, symmetric, weights from 0 to 1.

    Source: sections 3.1 and 3.2 of the paper.
    """
    from sklearn.neighbors import NearestNeighbors  # takes a while to import

    search = NearestNeighbors(n_neighbors=num_neighbours, algorithm="brute").fit(embedding)
    distances, neighbours = search.kneighbors()
    beyond = distances - distances[:, :1]
    low = np.zeros(len(beyond))
    high = np.full(len(beyond), np.inf)
    width = np.ones(len(beyond))
    for _ in range(40):  # bisection: the weights of the k neighbours of a cell add up to log2(k)
        is_wide = np.exp(-beyond / width[:, None]).sum(axis=1) > np.log2(num_neighbours)
        low = np.where(is_wide, low, width)
        high = np.where(is_wide, width, high)
        width = np.where(np.isinf(high), 2 * width, (low + high) / 2)
    width = np.maximum(width, 1e-3 * max(distances.mean(), 1e-12))
    weights = np.exp(-beyond / width[:, None]).astype(np.float32)
    starts = np.arange(0, weights.size + 1, num_neighbours)
    directed = sparse.csr_matrix((weights.ravel(), neighbours.ravel(), starts), shape=(len(beyond),) * 2)
    return (directed + directed.T - directed.multiply(directed.T)).tocsr()


def _initial_layout(embedding: npt.NDArray[np.float32], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return the first two principal components, scaled to at most 10, with a little noise; N x 2."""
    centred = (embedding - embedding.mean(axis=0)).astype(np.float64)
    plane = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :2]
    components = centred @ plane
    if components.shape[1] == 1:
        components = np.column_stack([components, np.zeros(len(embedding))])
    # Without noise, cells with the same embedding could never move apart.
    noise = rng.normal(size=components.shape)
    return (10 * components / np.abs(components).max() + 1e-3 * noise).astype(np.float32)


def _distances(step: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the squared distances d^2 of pairs of cells, and d^2B; logarithms are faster than powers."""
    squared = step[..., 0] ** 2 + step[..., 1] ** 2 + np.float32(1e-9)
    return squared, np.exp(np.float32(B) * np.log(squared))


def umap_coordinates(embedding: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32] | None:
    """Return coordinates of N cells on the map, N x 2, which depend on the embedding and the seed alone.

    None for fewer than 15 cells, or if all cells have the same embedding.
    """
    num_cells = len(embedding)
    if num_cells < MIN_CELLS or embedding.shape[1] == 0 or not np.ptp(embedding, axis=0).any():
        return None
    graph = neighbour_graph(embedding, min(NUM_NEIGHBOURS, num_cells - 1))
    graph.data /= graph.data.max()
    graph.data[graph.data < 1 / NUM_EPOCHS] = 0  # UMAP would never draw these pairs
    graph.eliminate_zeros()
    pairs = sparse.triu(graph).tocoo()
    # N x pairs, sums the forces of pairs for each cell; 2, because UMAP draws both (i, j) and (j, i).
    ends = np.concatenate([pairs.row, pairs.col])
    signs = np.repeat(np.array([-2, 2], dtype=np.float32), pairs.nnz)
    incidence = sparse.csr_matrix((signs * np.tile(pairs.data, 2), (ends, np.tile(np.arange(pairs.nnz), 2))))
    incidence.resize(num_cells, pairs.nnz)
    degrees = np.asarray(graph.sum(axis=1), dtype=np.float32)

    rng = np.random.default_rng(seed)
    xy = _initial_layout(embedding, rng)
    mean = np.zeros_like(xy)
    square = np.zeros_like(xy)
    for epoch in range(NUM_EPOCHS):
        step = xy[pairs.row] - xy[pairs.col]
        squared, power = _distances(step)
        attraction = 2 * A * B * power / squared / (1 + A * power)
        gradient = incidence @ np.clip(attraction[..., None] * step, -MAX_FORCE, MAX_FORCE)
        step = xy[:, None] - xy[rng.integers(0, num_cells, (num_cells, NUM_NEGATIVE))]
        squared, power = _distances(step)
        repulsion = 2 * B / ((0.001 + squared) * (1 + A * power))
        gradient += degrees * np.clip(repulsion[..., None] * step, -MAX_FORCE, MAX_FORCE).sum(axis=1)
        mean = MEAN_DECAY * mean + (1 - MEAN_DECAY) * gradient
        square = SQUARE_DECAY * square + (1 - SQUARE_DECAY) * gradient**2
        scale = np.sqrt(square / (1 - SQUARE_DECAY ** (epoch + 1))) + 1e-7
        learning_rate = 1 - epoch / NUM_EPOCHS
        xy += (learning_rate * mean / (1 - MEAN_DECAY ** (epoch + 1)) / scale).astype(np.float32)
    return xy
