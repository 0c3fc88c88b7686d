"""Clusters of some cells of a file, which its other cells can join."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.sparse import csr_matrix

from scperformer.base.sparse import gene_deviation

# By Ward's method: as good as Leiden's clusters (benchmarks/NOTES.md), which take longer to import than to be found.
MAX_CLUSTERS = 25
MEAN_CLUSTER = 20  # cells, at least
NUM_VARIABLE = 1000  # genes by which cells are clustered
NUM_DIRECTIONS = 30
NUM_NEAREST = 16  # cells: 15 neighbours, and the cell itself


@dataclass(frozen=True)
class Clusters:
    """K clusters of some cells, by the genes that vary most."""

    directions: np.ndarray  # float32 G x D: principal components, 0 for genes that vary little
    centres: np.ndarray  # float64 K x D

    def points(self, x: csr_matrix) -> np.ndarray:
        """Return cells, ln(1 + cp10k), cells x G, along the principal components: float32, cells x D."""
        return (
            np.asarray(x @ self.directions)
            if len(self.centres)
            else np.zeros((x.shape[0], 0), np.float32)
        )

    def nearest(self, points: np.ndarray) -> np.ndarray:
        """Return the number of the cluster with the nearest centre for each cell, by its `points`; -1: none."""
        if not len(self.centres):
            return np.full(len(points), -1)
        return np.asarray(
            (points @ self.centres.T - (self.centres**2).sum(axis=1) / 2).argmax(axis=1)
        )


NO_CLUSTERS = Clusters(np.zeros((0, 0)), np.zeros((0, 0)))  # of too few cells, or of none


def fit_clusters(x: csr_matrix, left_out: np.ndarray) -> Clusters:
    """Cluster cells, from ln(1 + cp10k), cells x G, without the genes that are `left_out`, boolean G."""
    genes = np.argsort(-np.where(left_out, 0, gene_deviation(x)), kind="stable")[:NUM_VARIABLE]
    values = x[:, genes].toarray().astype(np.float64)
    # Exact, not `principal_axes`: few cells of a type may be along the last of them.
    last = (max(0, len(genes) - NUM_DIRECTIONS), len(genes) - 1)
    components = eigh(np.cov(values, rowvar=False), subset_by_index=last)[1]
    points = values @ components
    num_clusters = min(MAX_CLUSTERS, len(points) // MEAN_CLUSTER)
    numbers = fcluster(linkage(points, "ward"), num_clusters, "maxclust") - 1
    centres = np.stack(
        [points[numbers == number].mean(axis=0) for number in range(numbers.max() + 1)]
    )
    directions = np.zeros((x.shape[1], components.shape[1]), dtype=np.float32)
    directions[genes] = components
    return Clusters(directions, centres)


def smoothed(
    values: np.ndarray, points: np.ndarray, others: np.ndarray, num: int = NUM_NEAREST
) -> np.ndarray:
    """Return the mean of the `values` of S cells over the `num` nearest ones of N other cells, or the same cells.

    `points`, S x D, and `others`, N x D, show which are the nearest.
    """
    from sklearn.neighbors import NearestNeighbors  # takes a while to import

    nearest = (
        NearestNeighbors(n_neighbors=num).fit(points).kneighbors(others, return_distance=False)
    )
    return np.asarray(values[nearest].mean(axis=1))
