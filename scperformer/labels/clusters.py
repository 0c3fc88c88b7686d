"""One label for each cluster of cells: the majority of their votes, each weighted by its confidence.

The idea of votes in many small clusters is CellTypist's (Domínguez Conde et al. 2022).
"""

import warnings
from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
from anndata import AnnData

from scperformer.base.errors import InputError

AUTO_CLUSTERS = "auto"  # value of the option `clusters` beside names of columns
NUM_NEIGHBOURS = 15
SEED = 0
# Of Leiden: some hundred clusters. With 5, as CellTypist has for files of less than 5,000 cells, rare types are lost.
RESOLUTION = 20.0


def majority_labels(clusters: np.ndarray, best: np.ndarray, confidence: np.ndarray, num_labels: int) -> np.ndarray:
    """Return the index of the label of each cluster: the one with the largest sum of confidences of its cells.

    Parameters
    ----------
    clusters
        Number of the cluster of each cell, N, from 0; every cluster has cells.
    best
        Index of the label of each cell, N; of labels with the same sum, the first one is taken.
    confidence
        Weight of each cell, N.
    """
    votes = np.bincount(clusters * num_labels + best, confidence, (clusters.max(initial=-1) + 1) * num_labels)
    return votes.reshape(-1, num_labels).argmax(axis=1)


def over_cluster(embedding: np.ndarray, graph: sp.spmatrix | None = None) -> np.ndarray:
    """Cut cells into many small clusters by the Leiden algorithm; return the number of the cluster of each cell.

    Parameters
    ----------
    embedding
        N x D; used for neighbours (15 each) without `graph`.
    graph
        Connectivities of a neighbour graph, N x N.

    Raises
    ------
    InputError
        The package igraph is not installed.
    """
    require_igraph()
    import scanpy  # takes seconds to import

    num_cells = len(embedding)
    cells = AnnData(obsm={"X": np.asarray(embedding)}, shape=(num_cells, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about future defaults of scanpy, and about few cells
        if graph is None:
            num = min(NUM_NEIGHBOURS, num_cells - 1)
            if num < 2:
                return np.zeros(num_cells, dtype=np.int64)
            # Exact neighbours: scanpy 1.11 cannot read those that pynndescent finds for more than 8,000 cells.
            options = {"transformer": "sklearn", "random_state": SEED}
            scanpy.pp.neighbors(cells, n_neighbors=num, use_rep="X", **options)
            graph = cells.obsp["connectivities"]
        how = {"flavor": "igraph", "n_iterations": 2, "directed": False, "random_state": SEED}
        scanpy.tl.leiden(cells, RESOLUTION, adjacency=sp.csr_matrix(graph), **how)
    return cells.obs["leiden"].cat.codes.to_numpy(np.int64)


def require_igraph() -> None:
    """Refuse to look for clusters without the package igraph."""
    if find_spec("igraph") is None:
        found = "clusters=auto without the package igraph"
        remedy = "pip install igraph, or name a column of clusters"
        raise InputError(found, "igraph, which has the Leiden algorithm", remedy)
