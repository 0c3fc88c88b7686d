"""The scales of the branches, against a grid search and against what must come out."""

import numpy as np
import pytest
from scipy.special import log_softmax

from scperformer.metrics import cell_losses, negative_log_likelihood
from scperformer.training.learner import LARGEST, branch_scales, earned_scales


@pytest.fixture
def held_out():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    truth = np.eye(4)[labels]
    return truth * 2 + rng.normal(size=(400, 4)), truth * 1 + rng.normal(size=(400, 4)), labels


def test_negative_log_likelihood_is_scipys(held_out):
    wide, _, labels = held_out
    expected = -log_softmax(wide, axis=1)[np.arange(400), labels].mean()
    np.testing.assert_allclose(negative_log_likelihood(wide, labels), expected)
    assert np.isfinite(negative_log_likelihood(wide * 1e4, labels))


def test_scales_are_the_best_of_a_grid(held_out):
    wide, deep, labels = held_out
    found = branch_scales(wide, deep, labels)
    grid = np.arange(0, 4, 0.05)
    losses = [[negative_log_likelihood(a * wide + b * deep, labels) for b in grid] for a in grid]
    best = np.unravel_index(np.argmin(losses), (len(grid), len(grid)))
    # The prior is as heavy as one of 400 cells: it moves the optimum by less than a step or two of the grid.
    np.testing.assert_allclose(found, grid[list(best)], atol=0.1)


def test_a_branch_of_noise_is_left_out(held_out):
    wide, _, labels = held_out
    noise = np.random.default_rng(1).normal(size=wide.shape)
    _, scale = branch_scales(wide, -wide + noise, labels)
    assert scale < 0.05
    _, scale = branch_scales(wide, noise * 5, labels)
    assert scale < 0.05


def test_logits_that_are_too_sure_are_made_less_so(held_out):
    wide, _, labels = held_out
    once, _ = branch_scales(wide, np.zeros_like(wide), labels)
    tenfold, _ = branch_scales(wide * 10, np.zeros_like(wide), labels)
    np.testing.assert_allclose(tenfold, once / 10, rtol=0.1)


def test_an_encoder_alone_is_kept(held_out):
    _, deep, labels = held_out
    _, scale = branch_scales(np.zeros_like(deep), deep, labels)
    assert 0.3 < scale < 3


def test_few_cells_that_are_all_right_do_not_make_it_certain():
    wide = np.eye(3)[[0, 1, 2]] * 2.0
    scale, _ = branch_scales(wide, np.zeros_like(wide), np.array([0, 1, 2]))
    assert 1 < scale < LARGEST / 2


def test_an_encoder_that_helps_by_more_than_chance_is_kept(held_out):
    wide, deep, labels = held_out
    *scales, gain = earned_scales(wide, deep, labels, min_gain=2.0)
    assert tuple(scales) == branch_scales(wide, deep, labels)
    alone, _ = branch_scales(wide, np.zeros_like(wide), labels)
    falls = cell_losses(alone * wide, labels) - cell_losses(scales[0] * wide + scales[1] * deep, labels)
    assert gain == {"mean": falls.mean(), "standard_error": falls.std(ddof=1) / 20}
    assert gain["mean"] > 5 * gain["standard_error"]


def test_an_encoder_that_may_help_by_chance_is_left_out(held_out):
    wide, _, labels = held_out
    weak = np.eye(4)[labels] * 0.1 + np.random.default_rng(1).normal(size=wide.shape)
    wide, weak, labels = wide[:60], weak[:60], labels[:60]
    share = branch_scales(wide, weak, labels)[1]
    assert share > 0.02
    *scales, gain = earned_scales(wide, weak, labels, min_gain=2.0)
    assert scales == [branch_scales(wide, np.zeros_like(wide), labels)[0], 0.0]
    assert 0 < gain["mean"] < 2 * gain["standard_error"]
    assert earned_scales(wide, weak, labels, min_gain=0.0)[1] == share


@pytest.mark.parametrize("off", [0, 1])
def test_a_branch_alone_has_nothing_to_earn(held_out, off):
    branches = [*held_out[:2]]
    branches[off] = np.zeros_like(branches[off])
    assert earned_scales(*branches, held_out[2], min_gain=2.0) == (*branch_scales(*branches, held_out[2]), None)


def test_one_held_out_cell_decides_nothing():
    wide, deep = np.array([[1.0, 0.0]]), np.array([[0.0, 3.0]])
    assert earned_scales(wide, deep, np.array([0]), min_gain=2.0)[1] == 0.0
