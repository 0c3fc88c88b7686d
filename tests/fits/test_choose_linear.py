"""The choice of the options of the linear branch."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from support.linear_fits import labelled_cells, predict_logits

from scperformer.base.metrics import cell_losses
from scperformer.fits import choose_linear as choice
from scperformer.fits.choose_linear import FIRST
from scperformer.fits.folds import choice_folds, most_of_a_label
from scperformer.fits.linear import fit_linear_branch
from scperformer.fits.scales import branch_scale


def cells(num_cells: int = 60) -> tuple[csr_matrix, np.ndarray]:
    return labelled_cells(num_cells, 40, 0.5, 1.5, 10)


def made_choice(monkeypatch, losses) -> tuple[object, list]:
    """The choice for given losses of options, and the options that were tried."""
    tried = []

    def of(options, others=None, threads=1):
        tried.append(options)
        return losses(options) + np.tile([-0.01, 0.01], 20) * len(tried)

    monkeypatch.setattr(choice, "held_out_losses", lambda x, labels, folds: of)
    return choice.choose_linear_options(*cells(), seed=0), tried


def test_the_best_of_each_step_is_taken(monkeypatch):
    def losses(options):
        gain = (
            0.3 * (options.powers == (2.0,))
            + 0.2 * (options.weighting == "none")
            + 0.2 * (options.c == 1.0)
        )
        return np.full(40, 1.0 - gain)

    chosen, tried = made_choice(monkeypatch, losses)
    assert chosen == replace(FIRST, powers=(2.0,), weighting="none", c=1.0)
    assert len(tried) == 8


def test_a_small_gain_changes_nothing(monkeypatch):
    chosen, _ = made_choice(
        monkeypatch, lambda options: np.full(40, 1.0 - 0.08 * (options.c == 1.0))
    )
    assert chosen == FIRST


def test_held_out_losses_never_look_at_their_own_fold():
    x, labels = cells()
    folds = np.arange(60) // 3 % 3
    logits = np.zeros((60, 3))
    for fold in range(3):
        model = fit_linear_branch(x[folds != fold], labels[folds != fold], FIRST)
        logits[folds == fold] = predict_logits(model, x[folds == fold], FIRST)
    expected = cell_losses(branch_scale(logits, labels) * logits, labels)
    found = choice.held_out_losses(x, labels, folds)(FIRST)
    assert found.mean() == pytest.approx(expected.mean(), rel=5e-2)  # these fits stop earlier


def test_options_that_lose_the_first_fold_are_left_there(monkeypatch):
    x, labels = cells()
    folds = np.arange(60) // 3 % 3
    losses = choice.held_out_losses(x, labels, folds)
    lowest = losses(FIRST)
    designs = []
    made = choice.branch_design
    monkeypatch.setattr(choice, "branch_design", lambda *inputs: designs.append(1) or made(*inputs))
    other = replace(FIRST, powers=(1.0,))
    assert np.isinf(losses(other, lowest / 2)).all()
    assert len(designs) == 1
    np.testing.assert_allclose(losses(other, lowest * 2), losses(other))
    is_lower = losses(other)[folds == 0].mean() < lowest[folds == 0].mean()
    assert np.isfinite(losses(other, lowest)).all() == is_lower


def test_losses_of_folds_side_by_side_are_as_one_after_the_other(monkeypatch):
    x, labels = cells()
    losses = choice.held_out_losses(x, labels, np.arange(60) // 3 % 3)
    one = losses(FIRST)
    for threads in (2, 3):
        np.testing.assert_array_equal(losses(FIRST, threads=threads), one)
    chosen = choice.choose_linear_options(x, labels, seed=0)
    monkeypatch.setattr(choice, "usable_cores", lambda: 3)
    assert choice.choose_linear_options(x, labels, seed=0) == chosen


def test_few_cells_of_many_labels_are_used():
    labels = np.repeat(np.arange(200), 100)
    rows, folds = choice_folds(labels, seed=0)
    assert len(rows) == 200 * 7 == 200 * most_of_a_label(labels, 1500)
    assert set(labels[rows]) == set(range(200))
    assert (np.bincount(folds) >= 400).all()
    few = np.repeat(np.arange(3), [500, 90, 1])
    rows, folds = choice_folds(few, seed=0)
    assert np.bincount(few[rows]).tolist() == [200, 90, 1]
    assert folds[few[rows] == 2].tolist() == [-1]


def test_of_very_many_labels_some_are_drawn(monkeypatch):
    rows, folds = choice_folds(np.tile(np.arange(1000), 9), seed=0)
    assert (len(rows), len(np.unique(rows % 1000))) == (1500, 300)
    assert (np.bincount(folds) >= 300).all()
    monkeypatch.setattr("scperformer.fits.folds.CHOICE_LABELS", 2)
    x, labels = cells()
    assert choice.choose_linear_options(x, labels * 7, seed=0).powers


def test_single_cells_of_labels_leave_the_first_options():
    x, _ = cells(num_cells=3)
    assert choice.choose_linear_options(x, np.arange(3), seed=0) == FIRST
