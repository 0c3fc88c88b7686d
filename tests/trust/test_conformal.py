"""Sets of labels, compared with a naive implementation and with their guarantee."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack

from scperformer.trust.conformal import cell_draws, set_scores, set_texts, set_threshold


def made(num_cells: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Somewhat overconfident probabilities of 4 labels, true labels, and draws."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, num_cells, p=[0.5, 0.3, 0.15, 0.05])
    logits = 2.0 * np.eye(4)[labels] + rng.normal(size=(num_cells, 4))
    proba = np.exp(2.5 * logits)
    return proba / proba.sum(axis=1, keepdims=True), labels, rng.random(num_cells)


def naive_score(row: np.ndarray, label: int, draw: float) -> float:
    """Generalised inverse quantile score (Romano et al. 2020, equations 5 to 7), label by label; 0 for the first."""
    total = 0.0
    for other in sorted(range(len(row)), key=lambda k: -row[k]):
        if other == label:
            return total + draw * row[label] if total else 0.0
        total += row[other]
    raise AssertionError


def naive_sets(known, new, alpha: float) -> list[set[int]]:
    proba, labels, draws = known
    scores = sorted(naive_score(*each) for each in zip(proba, labels, draws, strict=True))
    rank = math.ceil((len(scores) + 1) * (1 - alpha))
    limit = math.inf if rank > len(scores) else scores[rank - 1]
    return [
        {k for k in range(len(row)) if naive_score(row, k, draw) <= limit + 1e-12}
        for row, draw in zip(new[0], new[2], strict=True)
    ]


@pytest.mark.parametrize("alpha", [0.002, 0.03, 0.1, 0.4])
def test_sets_equal_those_of_a_naive_implementation(alpha):
    """With too few held-out cells for alpha, the first one, every label is in the set."""
    known = made(211, seed=0)
    new = made(150, seed=1)
    in_set = set_scores(new[0], new[2]) <= set_threshold(*known, alpha)
    assert [set(np.flatnonzero(row)) for row in in_set] == naive_sets(known, new, alpha)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_sets_contain_the_true_label_as_often_as_stated(alpha):
    known = made(4000, seed=0)
    new = made(20_000, seed=1)
    truth = np.arange(20_000), new[1]
    # Standard deviations: at most .0063 from the held-out cells, and .0028 from the new cells.
    in_set = set_scores(new[0], new[2]) <= set_threshold(*known, alpha)
    right = (new[0].argmax(axis=1) == new[1]).mean()
    assert in_set[truth].mean() == pytest.approx(max(1 - alpha, right), abs=0.02)
    assert in_set[np.arange(20_000), new[0].argmax(axis=1)].all()


def test_texts_of_sets_begin_with_the_most_probable_label():
    proba = np.array([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2]])
    in_set = np.array([[True, True, False], [False, False, False], [True, True, True]])
    assert set_texts(proba, in_set, ["a", "b|c", "d"]) == ['"b|c"|a', "", 'a|"b|c"|d']


def test_draws_depend_on_the_cell_alone_and_are_uniform():
    rng = np.random.default_rng(0)
    x = csr_matrix(rng.poisson(0.2, size=(3000, 50)).astype(np.float32))
    draws = cell_draws(x)
    order = rng.permutation(3000)
    np.testing.assert_array_equal(cell_draws(x[order]), draws[order])
    np.testing.assert_array_equal(cell_draws(vstack([x[:7], x[:7]], "csr")), np.tile(draws[:7], 2))
    # four standard deviations
    np.testing.assert_allclose(np.histogram(draws, 10, (0, 1))[0], 300, atol=70)
    assert abs(np.corrcoef(draws, np.asarray(x.sum(axis=1)).ravel())[0, 1]) < 0.08
