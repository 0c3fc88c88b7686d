"""Labels of clusters, compared with a loop over the votes; over-clustering."""

import numpy as np
import pytest
from umap.umap_ import smooth_knn_dist

from scperformer.labels.cluster_votes import cluster_labels, leiden

# of each node; the last word is its name
PATHS = ["t", "t cd4", "t cd4 naive", "t cd4 memory", "t cd8", "b"]
ABOVE = np.array(
    [[other == path or path.startswith(f"{other} ") for other in PATHS] for path in PATHS]
)


def naive_nodes(clusters, called, confidence, voters):
    """The node of each cell's cluster, by a loop over the nodes from the top down, then over their cells."""
    winner = {-1: -1}
    for cluster in set(clusters) - {-1}:
        voting = [cell for cell in voters if clusters[cell] == cluster]
        winner[cluster] = -1
        for node, path in enumerate(PATHS):
            below = [
                cell
                for cell in voting
                if PATHS[called[cell]].split()[: len(path.split())] == path.split()
            ]
            most = sum(confidence[below].tolist()) > sum(confidence[voting].tolist()) / 2
            if most and 2 * len(voting) >= list(clusters).count(cluster):
                winner[cluster] = node
    return [winner[cluster] for cluster in clusters]


@pytest.mark.parametrize("num_voters", [312, 200, 150, 10])
def test_labels_of_clusters_equal_a_loop_over_the_calls(num_voters):
    rng = np.random.default_rng(0)
    clusters = rng.integers(-1, 20, 312)
    called = np.where(rng.random(312) < 0.5, clusters % 6, rng.integers(0, 6, 312))
    confidence = rng.random(312).astype(np.float32)
    voters = np.sort(rng.permutation(312)[:num_voters])
    found = cluster_labels(clusters, called, confidence, voters, ABOVE)
    assert found.tolist() == naive_nodes(clusters, called, confidence, voters)
    assert num_voters == 10 or len(set(found)) > 3


def test_a_few_cells_do_not_name_a_cluster():
    """113 cells, of which 3 are called a subset and the others T cells; then the others are unknown."""
    clusters, called, confidence = (
        np.zeros(113, dtype=int),
        np.array([2] * 3 + [0] * 110),
        np.full(113, 0.6),
    )
    assert set(cluster_labels(clusters, called, confidence, np.arange(113), ABOVE)) == {0}
    assert set(cluster_labels(clusters, called, confidence, np.arange(3), ABOVE)) == {-1}


@pytest.mark.slow
def test_small_clusters_do_not_mix_groups_and_are_reproducible():
    rng = np.random.default_rng(0)
    group = np.arange(240) % 3
    embedding = (rng.normal(size=(240, 4)) + 20 * group[:, None]).astype(np.float32)
    clusters = leiden(embedding)
    assert 3 < clusters.max() + 1 < 240
    assert all(len(set(group[clusters == cluster])) == 1 for cluster in range(clusters.max() + 1))
    np.testing.assert_array_equal(leiden(embedding), clusters)
    assert leiden(embedding, resolution=0.1).max() + 1 == 3
    assert leiden(embedding[:2]).tolist() == [0, 0]
    assert smooth_knn_dist.stats.cache_path  # other processes need not compile it again


def test_of_many_cells_some_are_clustered_and_the_others_join_them(monkeypatch):
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], 100)
    embedding = rng.normal(size=(300, 4)) + 20 * np.eye(4)[groups]
    whole = leiden(embedding, resolution=0.1)
    monkeypatch.setattr("scperformer.labels.cluster_votes.MAX_CELLS", 60)
    some = leiden(embedding, resolution=0.1)
    assert len({*zip(whole, some, strict=True)}) == whole.max() + 1 == some.max() + 1 == 3
