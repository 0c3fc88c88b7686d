"""Gene effects of another study: their spread, the factors of the genes, and cells without them."""

import numpy as np
import pytest
from scipy import sparse
from support.normalised import logs

from scperformer.base.sparse import label_means, undo_log
from scperformer.trust.batch_effect import batch_effect, correct_batch_effect, gene_factors

NUM_GENES = 400
NUM_LABELS = 3


def draw(
    num_cells: int, seed: int, factors: np.ndarray | float = 1.0, depth: float = 3000
) -> tuple:
    """Poisson counts of three labels, each of which has a profile; `factors` are those of a platform."""
    profiles = np.random.default_rng(0).lognormal(0, 1, size=(NUM_LABELS, NUM_GENES)) * factors
    rng = np.random.default_rng(seed)
    labels = rng.integers(NUM_LABELS, size=num_cells)
    shares = profiles[labels] / profiles[labels].sum(axis=1, keepdims=True)
    return logs(rng.poisson(depth * shares) + 1e-9 * (np.arange(NUM_GENES) == 0)), labels


@pytest.mark.parametrize(("num_cells", "depth"), [(25, 3000), (400, 3000), (60, 300), (400, 300)])
def test_the_spread_of_gene_effects_is_found_whatever_number_and_depth_of_cells(num_cells, depth):
    reference, labels = draw(900, 1, depth=depth)
    effects = np.exp(np.random.default_rng(2).normal(0, 0.6, size=NUM_GENES))
    same = batch_effect(draw(num_cells, 3, depth=depth)[0], reference, labels)
    other = batch_effect(draw(num_cells, 3, effects, depth=depth)[0], reference, labels)
    assert same < 0.12
    assert other == pytest.approx(0.6, abs=0.12)


def test_factors_of_genes_are_found_from_cells_of_other_shares():
    reference, labels = draw(900, 1)
    effects = np.exp(np.random.default_rng(2).normal(0, 0.6, size=NUM_GENES))
    x, own = draw(1200, 3, effects)
    mostly_one = (own == 0) | (np.arange(len(own)) % 10 == 0)
    means = label_means(undo_log(reference), labels, NUM_LABELS)
    found = np.log(gene_factors(x[mostly_one], own[mostly_one], means))
    wanted = np.log(effects)
    is_seen = means.mean(axis=0) > 5
    error = (found - wanted)[is_seen]
    assert np.std(error) < 0.12  # up to a common factor, as cells have the same number of counts
    assert np.std(wanted[is_seen]) > 0.5


def test_cells_without_effects_keep_their_counts_and_do_not_depend_on_others():
    profile_effects = np.exp(np.random.default_rng(2).normal(0, 0.6, size=NUM_GENES))
    x, _ = draw(40, 3)
    x = sparse.vstack([x, sparse.csr_matrix((1, NUM_GENES), dtype=np.float32)], "csr")
    counts = np.expm1(x.toarray().astype(np.float64))
    divided = counts / profile_effects
    divided *= counts.sum(axis=1, keepdims=True) / np.maximum(
        divided.sum(axis=1, keepdims=True), 1e-12
    )
    found = correct_batch_effect(x, profile_effects)
    np.testing.assert_allclose(found.toarray(), np.log1p(divided), atol=1e-5)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(
        found[7:9].toarray(), correct_batch_effect(x[7:9], profile_effects).toarray()
    )
    np.testing.assert_allclose(
        correct_batch_effect(x, np.ones(NUM_GENES)).toarray(), x.toarray(), atol=1e-6
    )


def test_each_batch_is_divided_by_its_own_factors():
    rng = np.random.default_rng(0)
    x = sparse.random(30, 8, 0.5, "csr", dtype=np.float32, random_state=0)
    factors = rng.uniform(0.3, 3, (3, 8)).astype(np.float32)
    batches = rng.integers(3, size=30)
    found = correct_batch_effect(x, factors, batches).toarray()
    for row, batch in enumerate(batches):
        np.testing.assert_array_equal(
            found[[row]], correct_batch_effect(x[row], factors[batch]).toarray()
        )


def test_factors_of_few_cells_are_near_the_usual_ones():
    rng = np.random.default_rng(0)
    means = np.full((2, 50), 200.0)
    usual, own = np.exp(rng.normal(0, 0.5, (2, 50)))
    counts = sparse.csr_matrix(np.tile(200 * usual * own, (10_000, 1)))
    x = counts.log1p()
    for num_cells, share in ((1, 200 / 220), (10_000, 1.0)):
        found = gene_factors(x[:num_cells], np.zeros(num_cells, dtype=int), means, usual)
        pseudo = 0.02 + 20 / num_cells
        expected = [
            u * (200 * u * o + pseudo) / (200 * u + pseudo) for u, o in zip(usual, own, strict=True)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        nearer = np.log(found / usual) / np.log(own)
        assert np.median(nearer) == pytest.approx(share, abs=0.05)
