"""Fits by principal components, as of more cells than have inner products."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from scperformer.fits.components import cells_for_axes, fitted_axes, solver
from scperformer.fits.logistic import fit_logistic, label_weights


def features(
    num_cells: int = 400, num: int = 20, num_labels: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features whose standard deviations are between 30 and .1, and which are not centred."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(num_labels, num_cells - num_labels, p=(0.6, 0.2, 0.15, 0.05))
    labels = np.concatenate([np.arange(num_labels), drawn])
    x = rng.normal(size=(num_labels, num))[labels] + 2 * rng.normal(size=(num_cells, num))
    x *= np.geomspace(100, 0.1, num)
    return (x + 5).astype(np.float32), labels


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
@pytest.mark.parametrize("c", [0.01, 0.1])
def test_the_fit_is_scikit_learns(c, class_weights, monkeypatch):
    monkeypatch.setattr("scperformer.fits.components.TOLERANCE", 1e-7)
    x, labels = features()
    weights = label_weights(labels, class_weights)
    expected = LogisticRegression(
        C=c, class_weight=dict(enumerate(weights)), max_iter=10_000, tol=1e-6
    )
    expected.fit(x.astype(np.float64), labels)
    found = fit_logistic(x, labels, c, class_weights, solver())
    logits = x @ found.weight + found.bias
    other = expected.decision_function(x)
    np.testing.assert_allclose(
        logits - logits.mean(1, keepdims=True), other - other.mean(1, keepdims=True), atol=0.05
    )


def test_blocks_of_cells_change_nothing(monkeypatch):
    x, labels = features()
    whole = fit_logistic(x, labels, solver=solver())
    monkeypatch.setattr("scperformer.fits.logistic.BLOCK_CELLS", 37)
    np.testing.assert_allclose(
        fit_logistic(x, labels, solver=solver()).weight, whole.weight, atol=1e-3
    )


def test_a_rare_label_has_a_component(monkeypatch):
    """20 of 10,000 cells express genes that no other cell has; of 4,000 cells drawn at random, 8 would be theirs."""
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(10_000) < 20, 1, 0)
    x = rng.poisson(0.3, size=(10_000, 60)).astype(np.float32)
    x[:, 50:] = 0
    x[:20, 50:] = rng.poisson(3, size=(20, 10))
    monkeypatch.setattr("scperformer.fits.components.NUM_PRINCIPAL", 8)
    monkeypatch.setattr("scperformer.fits.components.NUM_LARGEST", 4)
    rows = cells_for_axes(labels, seed=0)
    assert len(rows) == 4000
    assert labels[rows].sum() > 15
    axes = fitted_axes(csr_matrix(x[rows]), seed=0)
    assert axes.shape == (60, 12)
    np.testing.assert_allclose(axes.T @ axes, np.eye(12), atol=1e-5)
    np.testing.assert_array_equal(axes, fitted_axes(csr_matrix(x[rows]), seed=0))
    components = x @ axes
    model = fit_logistic(components, labels, solver=solver())
    assert (model.predict(components) == labels).mean() > 0.999


def test_types_that_differ_in_one_gene_are_told_apart(monkeypatch):
    """The gene is the strongest one, but other genes vary together in more cells."""
    monkeypatch.setattr("scperformer.fits.components.NUM_PRINCIPAL", 2)
    monkeypatch.setattr("scperformer.fits.components.NUM_LARGEST", 1)
    rng = np.random.default_rng(0)
    labels = np.arange(2000) % 2
    x = rng.poisson(np.outer(rng.gamma(1, 3, 2000), np.ones(50))).astype(np.float32)
    x[:, 50:] = 0
    x = np.hstack([x, (40 + 6 * labels + rng.normal(size=2000))[:, None].astype(np.float32)])
    axes = fitted_axes(csr_matrix(x), seed=0)
    model = fit_logistic(x @ axes, labels, solver=solver())
    assert (model.predict(x @ axes) == labels).mean() > 0.98
