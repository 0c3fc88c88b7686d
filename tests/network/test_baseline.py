"""Logistic regression: the stored weights give the same labels as scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_info, threadpool_limits

from scperformer.network import baseline


def noisy_cells(num_labels, num_cells=240, num_genes=30):
    """Sparse cells whose labels overlap, in unequal shares."""
    rng = np.random.default_rng(0)
    shares = np.arange(1, num_labels + 1) / np.arange(1, num_labels + 1).sum()
    labels = rng.choice(num_labels, num_cells, p=shares)
    means = rng.normal(0, 0.4, (num_labels, num_genes))
    x = np.maximum(0, means[labels] + rng.normal(0, 1, (num_cells, num_genes)))
    return sparse.csr_matrix(x.astype(np.float32)), labels


@pytest.mark.parametrize("class_weights", ["none", "sqrt", "balanced"])
@pytest.mark.parametrize("num_labels", [2, 3, 6])
def test_equals_scikit_learn(num_labels, class_weights):
    x, labels = noisy_cells(num_labels)
    train, rest = x[:150], x[150:]
    shares = np.bincount(labels[:150]) / 150
    weight_of = {"none": None, "sqrt": dict(enumerate((shares * num_labels) ** -0.5)), "balanced": "balanced"}
    theirs = LogisticRegression(C=0.1, class_weight=weight_of[class_weights], max_iter=1000)
    theirs.fit(train, labels[:150])
    ours = baseline.fit_logistic(train, labels[:150], c=0.1, class_weights=class_weights)
    assert ours.weight.shape == (30, num_labels)
    assert ours.bias.shape == (num_labels,)
    assert {ours.weight.dtype, ours.bias.dtype} == {np.dtype("float32")}
    expected = theirs.predict(rest)
    assert len(set(expected)) >= max(2, num_labels - 1)  # the rarest of six may never win
    np.testing.assert_array_equal(ours.predict(rest), expected)
    # The network starts from these logits: their softmax has to be scikit-learn's probability.
    logits = rest @ ours.weight + ours.bias
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(proba, theirs.predict_proba(rest), atol=1e-5)  # weights are stored in float32


def test_default_is_scikit_learns_own():
    x, labels = noisy_cells(3)
    theirs = LogisticRegression(max_iter=1000).fit(x, labels)
    np.testing.assert_allclose(baseline.fit_baseline(x, labels).weight, theirs.coef_.T, atol=1e-6)


def test_a_cell_without_expression_gets_the_label_of_the_largest_bias():
    model = baseline.LinearModel(np.ones((4, 3), np.float32), np.array([0, 2, 1], np.float32))
    assert model.predict(sparse.csr_matrix((2, 4), dtype=np.float32)).tolist() == [1, 1]


def test_the_fit_takes_one_thread(monkeypatch):
    seen, fit = [], LogisticRegression.fit

    def fit_and_look(self, x, labels):
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(self, x, labels)

    monkeypatch.setattr(LogisticRegression, "fit", fit_and_look)
    with threadpool_limits(2):
        before = [pool["num_threads"] for pool in threadpool_info()]
        baseline.fit_baseline(*noisy_cells(3))
        assert [pool["num_threads"] for pool in threadpool_info()] == before
    assert set(seen) == {1}
