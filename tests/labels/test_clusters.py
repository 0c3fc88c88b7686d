"""Votes of clusters beside a naive twin, and over-clustering."""

import numpy as np
import pytest

from scperformer.base.errors import InputError
from scperformer.labels import clusters as clusters_file
from scperformer.labels import majority_labels, over_cluster


def test_votes_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    clusters = np.concatenate([np.arange(12), rng.integers(0, 12, 300)])
    best, confidence = rng.integers(0, 5, 312), rng.random(312).astype(np.float32)
    expected = []
    for cluster in range(12):
        votes = [0.0] * 5
        for label, weight in zip(best[clusters == cluster], confidence[clusters == cluster], strict=True):
            votes[label] += float(weight)
        expected.append(votes.index(max(votes)))
    assert majority_labels(clusters, best, confidence, 5).tolist() == expected


def test_confidence_outweighs_numbers():
    best, confidence = np.array([0, 0, 1]), np.array([0.4, 0.4, 0.9])
    assert majority_labels(np.zeros(3, dtype=int), best, confidence, 2).tolist() == [1]
    assert majority_labels(np.zeros(3, dtype=int), best, np.ones(3), 2).tolist() == [0]


@pytest.mark.slow
def test_small_clusters_do_not_mix_groups_and_are_the_same_each_time():
    pytest.importorskip("igraph")
    rng = np.random.default_rng(0)
    group = np.arange(240) % 3
    embedding = (rng.normal(size=(240, 4)) + 20 * group[:, None]).astype(np.float32)
    found = over_cluster(embedding)
    assert 3 < found.max() + 1 < 240
    assert all(len(set(group[found == cluster])) == 1 for cluster in range(found.max() + 1))
    np.testing.assert_array_equal(over_cluster(embedding), found)
    assert over_cluster(embedding[:2]).tolist() == [0, 0]


def test_a_given_graph_is_used():
    pytest.importorskip("igraph")
    graph = np.kron(np.eye(40), np.ones((5, 5))) - np.eye(200)  # groups of five neighbours
    found = over_cluster(np.zeros((200, 2)), graph)
    assert all(len(set(found[5 * group : 5 * group + 5])) == 1 for group in range(40))
    assert found.max() == 39


def test_igraph_is_asked_for(monkeypatch):
    monkeypatch.setattr(clusters_file, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"without the package igraph.*pip install igraph, or name a column"):
        over_cluster(np.zeros((9, 2)))
