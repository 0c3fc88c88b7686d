"""Novelty scores, compared with Mahalanobis distances by SciPy; how often known and novel cells are flagged."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack
from scipy.spatial.distance import mahalanobis

from scperformer.trust.novelty import NoveltyModel, fit_novelty, fit_novelty_model, novelty_share


def made_cells(
    num_cells: int, seed: int, labels: tuple[int, ...] = (0, 1, 2)
) -> tuple[csr_matrix, np.ndarray]:
    """Cells x 300 genes, ln(1 + count); a label has more of 40 genes of its own."""
    rng = np.random.default_rng(seed)
    codes = np.array(labels)[np.arange(num_cells) % len(labels)]
    rates = np.full((num_cells, 300), 0.5)
    for label in labels:
        rates[np.ix_(codes == label, range(40 * label, 40 * label + 40))] = 2.0
    return csr_matrix(np.log1p(rng.poisson(rates)).astype(np.float32)), codes


@pytest.fixture(scope="module")
def reference():
    x, labels = made_cells(600, seed=0)
    return x, labels, np.random.default_rng(0).integers(0, 5, 600)


def test_scores_are_mahalanobis_distances_to_the_nearest_label(reference):
    x, labels, _ = reference
    profile = fit_novelty_model(x, labels)
    dense = x.toarray().astype(np.float64)
    places = (dense / np.linalg.norm(dense, axis=1, keepdims=True)) @ profile.vectors
    means = np.stack([places[labels == label].mean(axis=0) for label in range(3)])
    common = (
        sum(
            np.cov(places[labels == label].T, bias=True) * (labels == label).sum()
            for label in range(3)
        )
        / 597
    )
    weighted = dense / np.linalg.norm(dense, axis=1, keepdims=True) * profile.weights
    outside = np.log((weighted**2).sum(axis=1) - (places**2).sum(axis=1))
    spread = np.sqrt(sum(outside[labels == label].var() * 200 for label in range(3)) / 597)
    expected = np.full(len(labels), np.inf)
    for label in range(3):
        own = np.cov(places[labels == label].T, bias=True) * 200
        # 5 cells x 8 directions
        inverse = np.linalg.inv((own + 40 * common) / 240 + 1e-3 * np.diag(np.diag(common)))
        far = np.array([mahalanobis(place, means[label], inverse) ** 2 for place in places])
        excess = (outside - outside[labels == label].mean()) / spread - 1
        expected = np.minimum(expected, far + np.maximum(0, excess) ** 2)
    np.testing.assert_allclose(profile.scores(x), expected, rtol=1e-3)


def test_the_directions_have_the_largest_variation(reference):
    """Three labels span two directions, and mean expression is a third one; the rest is noise."""
    x, labels, _ = reference
    dense = x.toarray().astype(np.float64)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    deviation = dense.std(axis=0)
    weights = 1 / (deviation + np.median(deviation))
    vectors = fit_novelty_model(x, labels).vectors.astype(np.float64) / weights[:, None]
    first = np.linalg.svd(dense * weights, full_matrices=False)[2][:3]
    inside = vectors.T @ first.T  # they lie within the span of an orthonormal basis
    np.testing.assert_allclose(np.linalg.norm(inside, axis=0), 1, atol=1e-3)


def test_a_score_does_not_depend_on_the_other_cells(reference):
    x, labels, _ = reference
    profile = fit_novelty_model(x, labels)
    scores = profile.scores(x)
    for rows in (np.arange(600)[::-1], np.array([7]), np.arange(5, 300, 3)):
        np.testing.assert_array_equal(profile.scores(x[rows]), scores[rows])


def test_known_cells_are_flagged_as_often_as_stated_and_novel_cells_mostly(reference):
    profile, held_out = fit_novelty(*reference)
    known, other = (profile.scores(made_cells(3000, 1, labels)[0]) for labels in ((0, 1, 2), (4,)))
    # With 600 held-out cells, the standard deviation of the share is .009.
    assert (1 - novelty_share(known, held_out) <= 0.05).mean() == pytest.approx(0.05, abs=0.025)
    assert (1 - novelty_share(other, held_out) <= 0.05).mean() > 0.95
    # Cells that the directions were fitted to vary more along them, so that their scores cannot replace held-out ones.
    assert np.median(profile.scores(reference[0])) > 1.3 * np.median(known)
    assert np.median(held_out) == pytest.approx(np.median(known), rel=0.15)


def test_novelty_is_a_share_of_held_out_cells():
    held_out = np.array([3.0, 1.0, 2.0, 4.0])
    np.testing.assert_array_equal(
        novelty_share(np.array([0.5, 1.0, 1.5, 9.0]), held_out), [0, 0, 0.2, 0.8]
    )
    few = novelty_share(np.array([100.0]), np.arange(15.0))
    # with 15 held-out cells, a share of .05 is not resolved: no cell is flagged
    assert (1 - few > 0.05).all()


def test_cells_without_folds_empty_cells_and_single_cells_of_a_label_have_scores():
    x, labels = made_cells(61, seed=0)
    x = vstack([x[:60], csr_matrix((1, 300), dtype=np.float32)], "csr")
    labels = np.append(labels[:60], 3)
    folds = np.append(np.arange(60) % 5, -1)
    profile, held_out = fit_novelty(x, labels, folds)
    assert isinstance(profile, NoveltyModel)
    assert np.isfinite(profile.scores(x)).all()
    assert np.isnan(held_out).tolist() == [False] * 60 + [True]
