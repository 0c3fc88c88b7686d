"""The table of epochs, the log lines about them, and the picture of the learning curve."""

import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from scperformer.training import learning_curve
from scperformer.training.learner import Learner
from scperformer.training.learning_curve import TABLE, EpochLog, draw_learning_curve

BASELINE = {"macro_f1": 0.71, "accuracy": 0.83}


def epochs(num):
    rng = np.random.default_rng(0)
    names = ("epoch", *Learner.columns, "seconds")
    return [dict(zip(names, (number, *rng.uniform(0.1, 0.9, 5)), strict=True)) for number in range(1, num + 1)]


def drawn(monkeypatch, num, best) -> Figure:
    figures = []
    monkeypatch.setattr(learning_curve, "png", figures.append)
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


def test_epochs_are_logged_and_a_resumed_run_continues_their_table(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", logger="scperformer")
    clock = iter(range(0, 9000, 90))
    monkeypatch.setattr(learning_curve.time, "perf_counter", lambda: next(clock))
    metrics = dict(zip(Learner.columns, torch.tensor([0.5, 0.25, 0.75, 1.0]), strict=True))

    def run(epoch_log, epochs):
        for number in epochs:
            trainer = SimpleNamespace(current_epoch=number, max_epochs=4, callback_metrics=metrics, is_global_zero=True)
            epoch_log.on_train_epoch_start(trainer, Learner)
            epoch_log.on_train_epoch_end(trainer, Learner)

    first, second = EpochLog(tmp_path), EpochLog(tmp_path)
    run(first, [0, 1])
    second.load_state_dict(first.state_dict())
    run(second, [2, 3])
    assert [path.name for path in tmp_path.iterdir()] == [TABLE]
    last = (tmp_path / TABLE).read_text().splitlines()[-1]
    assert last == "4,0.5,0.25,0.75,1,90"
    rows = pd.read_csv(tmp_path / TABLE).to_dict("records")
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert rows[3] == {"epoch": 4, **{name: float(metrics[name]) for name in Learner.columns}, "seconds": 90}
    line = "epoch 2/4: training loss 0.500, validation macro-F1 0.750, accuracy 1.000 (90.0 s)"
    assert caplog.messages[2] == line
    assert [text for text in caplog.messages if "left:" in text] == [  # once in each run
        "at most about 4 min 30 s left: 3 more epochs of 1 min 30 s, fewer if early stopping ends it",
        "at most about 1 min 30 s left: 1 more epoch of 1 min 30 s, fewer if early stopping ends it",
    ]
