"""Correlations of cells with profiles, beside naive twins."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import rankdata, spearmanr
from support.normalised import logs

from scperformer.base.sparse import centred, counts_of
from scperformer.trust.resemblance import FAMILY_POWER, fit_resemblance, rank_correlations


def fitted_to(
    x: sparse.csr_matrix, calls: np.ndarray, simulated: sparse.csr_matrix, labels: np.ndarray
):
    shares = np.bincount(calls) / len(calls)
    return fit_resemblance(np.asarray(x.mean(axis=0)).ravel(), shares, simulated, labels)


@pytest.fixture(scope="module")
def cells():
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.5, 2, (3, 80))
    labels = np.repeat([0, 1, 2], 40)
    return rng.poisson(rates[labels]), labels, rates


def test_correlations_equal_those_of_numpy(cells):
    counts, labels, _ = cells
    x = logs(counts)
    own = x[::3]
    fitted = fitted_to(own, labels[::3], x, labels)
    means = np.stack([x[labels == label].toarray().mean(axis=0) for label in range(3)])
    mixture = np.bincount(labels[::3]) / len(labels[::3]) @ means
    rest = own.toarray() - own.toarray().mean(axis=0)
    expected = [[np.corrcoef(cell, profile)[0, 1] for profile in means - mixture] for cell in rest]
    assert fitted.correlations(own) == pytest.approx(np.array(expected), abs=1e-6)


def test_a_cell_is_the_same_among_others(cells):
    counts, labels, _ = cells
    x = logs(counts)
    fitted = fitted_to(x, labels, x, labels)
    assert np.array_equal(fitted.correlations(x)[7], fitted.correlations(x[7])[0])


def test_other_cells_resemble_no_type(cells):
    counts, labels, _ = cells
    x = logs(counts)
    rng = np.random.default_rng(1)
    others = logs(rng.poisson(rng.gamma(0.5, 2, 80) * np.ones((30, 1))))
    fitted = fitted_to(x, labels, x, labels)
    known, unknown = (fitted.of_cells(each, fitted.correlations(each)) for each in (x, others))
    assert np.median(known) == pytest.approx(1, abs=0.15)
    assert np.median(unknown) < 0.5
    assert fitted.novelty(known).mean() < fitted.novelty(unknown).mean()


def test_shallow_cells_of_a_type_resemble_it_as_much(cells):
    counts, labels, rates = cells
    x = logs(counts)
    shallow = logs(np.random.default_rng(2).poisson(rates[labels] / 3))
    fitted = fitted_to(x, labels, x, labels)
    found = fitted.of_cells(shallow, fitted.correlations(shallow))
    assert np.median(found) == pytest.approx(1, abs=0.2)


def test_counts_are_found_in_normalised_cells(cells):
    counts = cells[0]
    has_one = (counts == 1).any(axis=1)
    assert counts_of(logs(counts))[has_one] == pytest.approx(counts.sum(axis=1)[has_one], rel=1e-3)


def test_joined_probabilities_keep_shares_within_families(cells):
    counts, labels, _ = cells
    x = logs(counts)
    fitted = fitted_to(x, labels, x, labels)
    num_labels = labels.max() + 1
    proba = np.random.default_rng(0).dirichlet(np.ones(num_labels), len(labels)).astype(np.float32)
    powers = fitted.joined(proba, x, np.arange(num_labels)).astype(np.float64) ** (1 / FAMILY_POWER)
    joint = powers / powers.sum(axis=1, keepdims=True)
    families = np.minimum(np.arange(num_labels), 1)  # all but the first are one
    found = fitted.joined(proba, x, families)
    assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
    odds = (joint[:, 0] / joint[:, 1:].sum(axis=1)) ** FAMILY_POWER
    assert found[:, 0] / found[:, 1:].sum(axis=1) == pytest.approx(odds, rel=1e-3)
    assert found[:, 1] * joint[:, 2] == pytest.approx(found[:, 2] * joint[:, 1], abs=1e-4)


def test_ranks_correlate_as_spearman_has_them():
    rng = np.random.default_rng(0)
    x = rng.poisson(0.5, (20, 60)).astype(float)
    x[3] = 0
    profiles = rng.normal(size=(4, 60))
    found = rank_correlations(sparse.csr_matrix(x), centred(rankdata(profiles, axis=1)).T)
    expected = [
        [spearmanr(cell, profile).statistic if cell.any() else 0 for profile in profiles]
        for cell in x
    ]
    assert found == pytest.approx(np.array(expected), abs=1e-12)
