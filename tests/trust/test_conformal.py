"""Sets of labels, compared with a naive implementation and with their guarantee."""

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack

from scperformer.trust import cell_draws, held_out_coverage, label_sets, set_texts, set_thresholds


def made(num_cells: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Somewhat overconfident probabilities of 4 labels, true labels, and draws."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, num_cells, p=[0.5, 0.3, 0.15, 0.05])
    logits = 2.0 * np.eye(4)[labels] + rng.normal(size=(num_cells, 4))
    proba = np.exp(2.5 * logits)
    return proba / proba.sum(axis=1, keepdims=True), labels, rng.random(num_cells)


def naive_score(row: np.ndarray, label: int, draw: float) -> float:
    """Generalised inverse quantile score (Romano et al. 2020, equations 5 to 7), label by label."""
    total = 0.0
    for other in sorted(range(len(row)), key=lambda k: -row[k]):
        if other == label:
            return total + draw * row[label]
        total += row[other]
    raise AssertionError


def naive_sets(known, new, alpha: float, per_label: bool) -> list[set[int]]:
    proba, labels, draws = known
    scores = [naive_score(*each) for each in zip(proba, labels, draws, strict=True)]
    limits = []
    for label in range(proba.shape[1]):
        own = sorted(s for s, true in zip(scores, labels, strict=True) if true == label or not per_label)
        rank = math.ceil((len(own) + 1) * (1 - alpha))
        limits.append(math.inf if rank > len(own) else own[rank - 1])
    sets = []
    for row, draw in zip(new[0], new[2], strict=True):
        sets.append({k for k in range(len(row)) if naive_score(row, k, draw) <= limits[k] + 1e-12})
    return sets


@pytest.mark.parametrize("per_label", [False, True], ids=["overall", "per_label"])
@pytest.mark.parametrize("alpha", [0.03, 0.1, 0.4])
def test_sets_equal_those_of_a_naive_implementation(alpha, per_label):
    known = made(211, seed=0)
    new = made(150, seed=1)
    in_set = label_sets(new[0], new[2], set_thresholds(*known, alpha, per_label))
    assert [set(np.flatnonzero(row)) for row in in_set] == naive_sets(known, new, alpha, per_label)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_sets_contain_the_true_label_as_often_as_stated(alpha):
    known = made(4000, seed=0)
    new = made(20_000, seed=1)
    truth = np.arange(20_000), new[1]
    # Standard deviations: at most .0063 from the held-out cells, and .0028 from the new cells.
    assert label_sets(new[0], new[2], set_thresholds(*known, alpha))[truth].mean() == pytest.approx(1 - alpha, abs=0.02)
    inside = label_sets(new[0], new[2], set_thresholds(*known, alpha, per_label=True))[truth]
    for label in range(4):  # the rarest label has 200 held-out cells: .028
        assert inside[new[1] == label].mean() == pytest.approx(1 - alpha, abs=0.08)
    assert held_out_coverage(*known, alpha) == pytest.approx(1 - alpha, abs=0.01)


def test_thresholds_for_each_label_hold_for_a_label_that_is_hard_to_call():
    """The calls of label 3 are worse than the others, so that thresholds for all cells together miss it more often."""
    known = made(4000, seed=0)
    new = made(20_000, seed=1)
    for proba, labels, _ in (known, new):
        rng = np.random.default_rng(2)
        rare = np.flatnonzero(labels == 3)
        proba[rare[: len(rare) // 2]] = rng.dirichlet([5, 1, 1, 0.2], len(rare) // 2)
    rare = new[1] == 3
    inside = [label_sets(new[0], new[2], set_thresholds(*known, 0.1, each))[rare, 3].mean() for each in (False, True)]
    assert inside[0] < 0.75
    assert inside[1] == pytest.approx(0.9, abs=0.08)


def test_a_label_with_too_few_held_out_cells_is_always_in_the_set():
    proba, labels, draws = made(300, seed=0)
    keep = (labels != 3) | (np.cumsum(labels == 3) <= 5)  # 5 cells cannot show a share of .1
    thresholds = set_thresholds(proba[keep], labels[keep], draws[keep], 0.1, per_label=True)
    assert np.isinf(thresholds).tolist() == [False, False, False, True]


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
    np.testing.assert_allclose(np.histogram(draws, 10, (0, 1))[0], 300, atol=70)  # four standard deviations
    assert abs(np.corrcoef(draws, np.asarray(x.sum(axis=1)).ravel())[0, 1]) < 0.08
