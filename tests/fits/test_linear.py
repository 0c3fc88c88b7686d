"""Logistic regression and the start of the linear branch, each part beside a plain loop or scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from support.linear_fits import predict_logits

from scperformer.fits import linear as linear
from scperformer.fits.logistic import Solver, fit_logistic


def noisy_cells(num_labels, num_cells=240, num_genes=30):
    """Sparse cells whose labels overlap, in unequal shares."""
    rng = np.random.default_rng(0)
    shares = np.arange(1, num_labels + 1) / np.arange(1, num_labels + 1).sum()
    labels = rng.choice(num_labels, num_cells, p=shares)
    means = rng.normal(0, 0.4, (num_labels, num_genes))
    x = np.maximum(0, means[labels] + rng.normal(0, 1, (num_cells, num_genes)))
    return sparse.csr_matrix(x.astype(np.float32)), labels


@pytest.mark.parametrize(
    ("num_labels", "class_weights"), [(2, "none"), (3, "sqrt"), (6, "balanced")]
)
def test_equals_scikit_learn(num_labels, class_weights):
    x, labels = noisy_cells(num_labels)
    x = x.toarray().astype(np.float64)
    train, rest = x[:150], x[150:]
    shares = np.bincount(labels[:150]) / 150
    weight_of = {
        "none": None,
        "sqrt": dict(enumerate((shares * num_labels) ** -0.5)),
        "balanced": "balanced",
    }
    theirs = LogisticRegression(
        C=0.1, class_weight=weight_of[class_weights], max_iter=1000, tol=1e-6
    )
    theirs.fit(train, labels[:150])
    ours = fit_logistic(train, labels[:150], 0.1, class_weights, Solver(1e-6))
    assert ours.weight.shape == (30, num_labels)
    assert ours.bias.shape == (num_labels,)
    assert {ours.weight.dtype, ours.bias.dtype} == {np.dtype("float32")}
    expected = theirs.predict(rest)
    assert len(set(expected)) >= max(2, num_labels - 1)  # the rarest of six may never win
    np.testing.assert_array_equal(ours.predict(rest), expected)
    # The network starts from these logits: their softmax has to be scikit-learn's probability.
    logits = rest @ ours.weight + ours.bias
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    # weights are stored in float32
    np.testing.assert_allclose(proba, theirs.predict_proba(rest), atol=1e-5)


RECIPE = linear.LinearOptions((0.5, 2.0), c=0.1, class_weights="none", weighting="signal")


def cells(num_cells=90, num_genes=40, num_labels=3, telling=4, seed=0):
    """Counts like expression: the first `telling` genes differ between the labels, the others are noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_cells) % num_labels
    means = np.full((num_labels, num_genes), 0.6)
    means[:, :telling] = rng.permuted(
        np.tile([0.1, 0.8, 2.5], (telling, 1))[:, :num_labels], axis=1
    ).T
    return sparse.csr_matrix(np.log1p(rng.poisson(means[labels])).astype(np.float32)), labels


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_view_equals_a_loop(power):
    x, _ = cells()
    x = sparse.vstack([x, sparse.csr_matrix((1, x.shape[1]), dtype=np.float32)], format="csr")
    found = linear.power_transform(x, power)
    for row, expected in zip(found.toarray(), x.toarray().astype(np.float64), strict=True):
        powered = np.where(expected > 0, expected**power, 0)
        length = np.sqrt((powered**2).sum())
        np.testing.assert_allclose(row, powered * 20 / length if length else 0, rtol=1e-5)
    assert found.dtype == np.float32
    assert x.max() < 10  # the input is as it was


def naive_weights(x, labels, signal):
    """Gene by gene: 1 / (deviation within labels + median), times the fourth root of the squared signal and a floor."""
    dense, kinds = x.toarray().astype(np.float64), np.unique(labels)
    within, between = [], []
    for gene in dense.T:
        parts = [gene[labels == kind] for kind in kinds]
        within.append(
            sum(((part - part.mean()) ** 2).sum() for part in parts) / (len(gene) - len(kinds))
        )
        chance = within[-1] * np.mean([1 / len(part) for part in parts])
        between.append(max(0.0, np.var([part.mean() for part in parts]) - chance))
    within, between = np.array(within), np.array(between)
    deviation = np.sqrt(within) + np.sqrt(np.median(within[within > 0]))
    weights = 1 / deviation
    if signal:
        weights = weights * (between / deviation**2 + 0.01) ** 0.25
    return weights * np.sqrt((within + between).sum() / (weights**2 * (within + between)).sum())


@pytest.mark.parametrize("how", ["standard", "signal"])
def test_gene_weights_equal_a_loop(how):
    x, labels = cells(num_cells=61)
    expected = naive_weights(x, labels, how == "signal")
    np.testing.assert_allclose(linear.gene_weights(x, labels, how), expected, rtol=1e-5)


@pytest.mark.parametrize("how", ["standard", "signal"])
def test_genes_that_never_vary_do_no_harm(how):
    x = sparse.csr_matrix(np.tile([0.0, 1.0, 2.0], (6, 1)).astype(np.float32))
    np.testing.assert_array_equal(
        linear.gene_weights(sparse.csr_matrix((6, 3)), np.arange(6) % 2, how), 1.0
    )
    assert np.isfinite(linear.gene_weights(x, np.arange(6) % 2, how)).all()
    assert np.isfinite(linear.gene_weights(x[:2], np.arange(2), how)).all()  # one cell a label


def test_one_plain_view_is_scikit_learns_logistic_regression():
    x, labels = cells()
    linear_options = linear.LinearOptions((1.0,), c=0.1, class_weights="none", weighting="none")
    expected = LogisticRegression(C=0.1, max_iter=1000, tol=1e-3).fit(
        linear.power_transform(x, 1.0), labels
    )
    found = linear.fit_linear_branch(x, labels, linear_options)
    # both stop at a gradient of 1e-3
    np.testing.assert_allclose(found.weight, expected.coef_.T, atol=5e-3)
    predicted = predict_logits(found, x, linear_options).argmax(1)
    np.testing.assert_array_equal(predicted, expected.predict(linear.power_transform(x, 1.0)))


@pytest.mark.parametrize("num_genes", [30, 500], ids=["fewer genes than cells", "more"])
def test_compact_features_have_the_products_and_the_fits_of_the_genes(num_genes):
    x, labels = cells(num_cells=90, num_genes=num_genes)
    features, to_genes, features_of = linear.compact(x)
    np.testing.assert_allclose(features_of(x[:7]), features[:7], rtol=1e-2, atol=1e-2)
    assert features.shape == (90, min(90, num_genes))
    np.testing.assert_allclose(features @ features.T, (x @ x.T).toarray(), rtol=1e-3, atol=1e-3)
    weight = np.random.default_rng(0).normal(size=(features.shape[1], 3))
    np.testing.assert_allclose(x @ to_genes(weight), features @ weight, rtol=1e-2, atol=1e-2)
    small = fit_logistic(features.astype(np.float64), labels, solver=Solver(1e-7))
    whole = fit_logistic(x.toarray().astype(np.float64), labels, solver=Solver(1e-7))
    np.testing.assert_allclose(to_genes(small.weight), whole.weight, atol=2e-3)


def test_more_cells_are_fitted_by_their_principal_components(monkeypatch):
    """With no fewer components than cells both ways have the same optimum."""
    x, labels = cells(num_cells=90, num_genes=300)
    monkeypatch.setattr("scperformer.fits.components.TOLERANCE", 1e-6)
    logits, widths = [], []
    for most in (90, 89):
        monkeypatch.setattr(linear, "MAX_DUAL", most)
        design = linear.branch_design(x, labels, RECIPE)
        widths.append(design.features.shape[1])
        fitted = design.model(design.fit(RECIPE.c, RECIPE.class_weights, tolerance=1e-6))
        logits.append(predict_logits(fitted, x, RECIPE))
    assert widths == [90, 90 + 256]
    np.testing.assert_allclose(*logits, atol=1e-2)  # the products are summed in float32


def test_cells_that_differ_in_few_genes_are_fitted():
    """Their products differ by less than the rounding of float32, and have no Cholesky factor by themselves."""
    x = np.full((90, 300), 3.0)
    x[:, :3] = np.random.default_rng(0).integers(0, 5, (90, 3))
    x = sparse.csr_matrix(np.log1p(x / x.sum(1, keepdims=True) * 1e4).astype(np.float32))
    assert np.isfinite(linear.branch_design(x, np.arange(90) % 3, RECIPE).features).all()


def test_inner_products_are_those_of_dense_cells():
    """Of genes that many cells express, and of genes that few do."""
    rng = np.random.default_rng(0)
    rates = np.where(np.arange(400) < 100, 0.8, 0.005)
    x, other = (
        sparse.csr_matrix(rng.poisson(rates, size=(num, 400)).astype(np.float32))
        for num in (150, 40)
    )
    for right in (x, other):
        expected = x.toarray().astype(np.float64) @ right.toarray().T
        np.testing.assert_allclose(linear.inner_products(x, right), expected, rtol=1e-5, atol=1e-5)


def test_some_rows_of_triangular_features_are_fitted_as_by_scikit_learn(monkeypatch):
    """The blocks have rows of different widths."""
    monkeypatch.setattr("scperformer.fits.logistic.PRODUCT_CELLS", 16)
    x, labels = cells(num_cells=90, num_genes=500)
    features = linear.compact(x)[0].astype(np.float64)
    rows = np.flatnonzero(np.arange(90) % 5 != 0)
    found = fit_logistic(features[rows], labels[rows], solver=Solver(1e-7))
    expected = LogisticRegression(tol=1e-7, max_iter=10_000).fit(features[rows], labels[rows])
    # The loss is flat there, more so for biases, which have no penalty.
    np.testing.assert_allclose(found.weight, expected.coef_.T, atol=5e-4)
    np.testing.assert_allclose(found.bias, expected.intercept_, atol=2e-3)


def test_a_fit_stops_after_a_signal(monkeypatch):
    x, labels = np.random.default_rng(0).normal(size=(60, 9)), np.arange(60) % 3
    whole = fit_logistic(x, labels, solver=Solver(1e-7))
    monkeypatch.setattr("scperformer.base.signals._received", 2)
    assert np.abs(fit_logistic(x, labels, solver=Solver(1e-7)).weight - whole.weight).max() > 0.01
