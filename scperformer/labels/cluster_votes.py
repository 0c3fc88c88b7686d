"""One label for each cluster of cells: the deepest on which most of their calls agree, each weighted by its confidence.

Votes in many small clusters are CellTypist's idea (Domínguez Conde et al. 2022).
"""

import warnings
from contextlib import suppress

import numpy as np
import scipy.sparse as sp
from anndata import AnnData

AUTO_CLUSTERS = "auto"  # a value of the option `clusters`; all others are columns of obs
NUM_NEIGHBOURS = 15
MAX_CELLS = 20_000  # that are clustered: 160 s for 100,000
CLUSTER_SEED = 0
# The resolution of Leiden gives some hundred clusters. CellTypist's value for files of less than 5,000 cells, 5, loses
# rare cell types.
MANY_CLUSTERS_RESOLUTION = 20.0
USUAL_RESOLUTION = 1.0  # scanpy's default: about as many clusters as there are types


def cluster_labels(
    clusters: np.ndarray,
    called: np.ndarray,
    confidence: np.ndarray,
    voters: np.ndarray,
    above: np.ndarray,
) -> np.ndarray:
    """Return the index of the node that names each cell's cluster, N: the deepest with most of the confidences in it.

    Of each of N cells, `clusters` is the number of its cluster from 0 (-1: in none), `called` the index of its called
    node, of K, and `confidence` the weight of its vote, which counts for the nodes `above`, too (boolean, K x K: which
    nodes are on the path to each node). The rows `voters` vote. A cluster is -1 if most of its cells have no vote, or
    no node has most of the votes.
    """
    num_nodes = len(above)
    num_clusters = int(clusters.max(initial=-1)) + 1
    cells = np.bincount(clusters[clusters >= 0], minlength=num_clusters)
    voters = voters[clusters[voters] >= 0]
    numbers = clusters[voters]
    votes = np.bincount(
        numbers * num_nodes + called[voters], confidence[voters], num_clusters * num_nodes
    )
    votes = votes.reshape(num_clusters, num_nodes)
    agreed = votes @ above > votes.sum(axis=1, keepdims=True) / 2
    agreed &= (2 * np.bincount(numbers, minlength=num_clusters) >= cells)[:, None]
    deepest = np.where(agreed, above.sum(axis=1), 0).argmax(axis=1)  # one at most at each depth
    nodes = np.append(np.where(agreed.any(axis=1), deepest, -1), -1)
    return nodes[clusters]


def neighbour_graph(points: np.ndarray, num: int, seed: int, method: str = "umap") -> AnnData:
    """Return cells with scanpy's graph of the nearest neighbours of N points, N x D, with weights by a `method`."""
    import scanpy  # takes seconds to import
    from umap import umap_

    for compiled in (umap_.smooth_knn_dist, umap_.compute_membership_strengths):
        # there is no folder to keep it in, or Numba is disabled
        with suppress(RuntimeError, AttributeError):
            # else Numba compiles it in each process, which takes five seconds
            compiled.enable_caching()
    cells = AnnData(obsm={"X": np.asarray(points)}, shape=(len(points), 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few cells
        # Exact neighbours: scanpy 1.11 cannot read those that pynndescent finds for more than 8,000 cells.
        options = {"use_rep": "X", "transformer": "sklearn", "method": method, "random_state": seed}
        scanpy.pp.neighbors(cells, n_neighbors=num, **options)
    return cells


def leiden(
    embedding: np.ndarray,
    graph: sp.spmatrix | None = None,
    resolution: float = MANY_CLUSTERS_RESOLUTION,
) -> np.ndarray:
    """Cut cells into clusters by the Leiden algorithm; return the number of each cell's cluster, from 0.

    `graph` has the connectivities of a neighbour graph, N x N; without it, each cell has 15 neighbours in the
    `embedding`, N x D, and of many cells, some are clustered and the others join the nearest one. The higher the
    `resolution`, the more clusters there are.
    """
    if graph is None and len(embedding) > MAX_CELLS:
        from sklearn.neighbors import NearestNeighbors  # takes a while to import

        some = embedding[
            np.sort(
                np.random.default_rng(CLUSTER_SEED).choice(len(embedding), MAX_CELLS, replace=False)
            )
        ]
        nearest = (
            NearestNeighbors(n_neighbors=1).fit(some).kneighbors(embedding, return_distance=False)
        )
        return leiden(some, None, resolution)[nearest.ravel()]
    import scanpy  # takes seconds to import

    cells = AnnData(shape=(len(embedding), 0))
    if graph is None:
        num_neighbours = min(NUM_NEIGHBOURS, len(embedding) - 1)
        if num_neighbours < 2:
            return np.zeros(len(embedding), dtype=np.int64)
        graph = neighbour_graph(embedding, num_neighbours, CLUSTER_SEED).obsp["connectivities"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scanpy warns about future defaults
        options = {
            "flavor": "igraph",
            "n_iterations": 2,
            "directed": False,
            "random_state": CLUSTER_SEED,
        }
        scanpy.tl.leiden(cells, resolution, adjacency=sp.csr_matrix(graph), **options)
    return cells.obs["leiden"].cat.codes.to_numpy(np.int64)
