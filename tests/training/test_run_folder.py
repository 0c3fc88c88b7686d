"""The picture of the learning curve."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from scperformer.lab.supervised import Learner
from scperformer.training import run_folder
from scperformer.training.run_folder import draw_learning_curve

BASELINE = {"macro_f1": 0.71, "accuracy": 0.83}


def epochs(num):
    rng = np.random.default_rng(0)
    names = ("epoch", *Learner.columns, "seconds")
    return [dict(zip(names, (number, *rng.uniform(0.1, 0.9, 5)), strict=True)) for number in range(1, num + 1)]


def drawn(monkeypatch, num, best) -> Figure:
    figures = []
    monkeypatch.setattr(run_folder, "png", figures.append)
    draw_learning_curve(pd.DataFrame(epochs(num)), best, BASELINE)
    return figures[0]


@pytest.mark.parametrize("num", [1, 12])
def test_lines_are_the_numbers_of_the_epochs(monkeypatch, num):
    rows = epochs(num)
    left, right = drawn(monkeypatch, num, 1).axes
    assert list(left.lines[0].get_ydata()) == [row["train_loss"] for row in rows]
    by_label = {line.get_label(): line for line in right.lines}
    for name, text in (("macro_f1", "macro-F1"), ("accuracy", "accuracy")):
        assert list(by_label[text].get_xdata()) == [row["epoch"] for row in rows]
        assert list(by_label[text].get_ydata()) == [row[f"val_{name}"] for row in rows]
        assert set(by_label[f"{text}, logistic regression"].get_ydata()) == {BASELINE[name]}


@pytest.mark.parametrize("best", [1, 11])
def test_the_best_epoch_is_marked_and_named(monkeypatch, best):
    for axes in drawn(monkeypatch, 12, best).axes:
        assert axes.get_xlabel() == f"epoch (best: {best})"
        assert [best, best] in [list(line.get_xdata()) for line in axes.lines]
    values = [epochs(12)[best - 1][f"val_{name}"] for name in BASELINE]
    dots = [line for line in axes.lines if list(line.get_xdata()) == [best]]
    assert [line.get_ydata()[0] for line in dots] == values


def test_the_picture_is_a_png_and_the_same_for_the_same_numbers():
    first, second = (draw_learning_curve(pd.DataFrame(epochs(5)), 3, BASELINE) for _ in range(2))
    assert first == second
    pixels = imread(io.BytesIO(first))
    assert pixels.shape[:2] == (585, 1350)
    assert pixels[..., :3].std() > 0.05  # it is not empty
