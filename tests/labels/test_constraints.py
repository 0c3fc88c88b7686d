"""Labels that can occur, and shares of labels by EM; compared with naive implementations."""

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.labels.constraints import allowed_labels, reweighted

LABELS = ["a", "b", "c"]


def test_allowed_and_denied_labels():
    assert allowed_labels(LABELS, [], []).tolist() == [True, True, True]
    assert allowed_labels(LABELS, ["a", "b"], ["b"]).tolist() == [True, False, False]
    assert allowed_labels(LABELS, [], ["c"]).tolist() == [True, True, False]
    assert allowed_labels(LABELS, ["a "], []).tolist() == [True, False, False]
    assert allowed_labels(["CD8 T", "B"], [], ["cd8_t"]).tolist() == [False, True]
    assert allowed_labels(["1", "2"], [], ["2.0"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("allow", "deny", "refused"),
    [
        (["x"], [], ("unknown-label", "allow_labels", "'x'", "a, b, c")),
        ([], ["a", "A+B"], ("unknown-label", "deny_labels", "'A+B'")),
        (["a"], ["a"], ("no-allowed-label",)),
    ],
)
def test_wrong_labels_are_refused(allow, deny, refused):
    with refusal(*refused):
        allowed_labels(LABELS, allow, deny)


def test_reweighting_equals_a_loop_over_rows():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(3), 50).astype(np.float32)
    weights = np.array([0.5, 0.0, 2.0])
    expected = []
    for row in proba.astype(float):
        parts = [p * w for p, w in zip(row, weights, strict=True)]
        expected.append([part / sum(parts) for part in parts])
    result = reweighted(proba, weights)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(reweighted(proba[3:5], weights), result[3:5])


def test_a_cell_with_only_denied_labels_gets_equal_probabilities():
    proba = np.array([[0, 1, 0]], dtype=np.float32)
    np.testing.assert_array_equal(reweighted(proba, np.array([1, 0, 1])), [[0.5, 0, 0.5]])
