"""Labels of clusters, compared with a loop over the votes; over-clustering."""

import numpy as np
import pytest

from scperformer.labels.cluster_votes import cluster_labels, leiden


def naive_winners(clusters, best, confidence, voters, num_labels):
    """The label of each cell's cluster, by a loop over the votes; a cluster without votes leaves cells their label."""
    votes = {cluster: [0.0] * num_labels for cluster in clusters[voters]}
    for cell in voters:
        votes[clusters[cell]][best[cell]] += float(confidence[cell])
    winner = {cluster: sums.index(max(sums)) for cluster, sums in votes.items()}
    return [winner.get(cluster, own) for cluster, own in zip(clusters, best, strict=True)]


@pytest.mark.parametrize("num_voters", [312, 150, 10])
def test_labels_of_clusters_equal_a_loop_over_the_votes(num_voters):
    rng = np.random.default_rng(0)
    clusters = rng.integers(-1, 12, 312)
    best = rng.integers(0, 5, 312)
    confidence = rng.random(312).astype(np.float32)
    voters = np.sort(rng.permutation(312)[:num_voters])
    expected = naive_winners(clusters, best, confidence, voters, 5)
    assert cluster_labels(clusters, best, confidence, voters, 5).tolist() == expected


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
