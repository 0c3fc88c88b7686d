"""Log and keep the numbers of each epoch: a log line, a row of `metrics.csv`, and a picture of the learning curve."""

import csv
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pytorch_lightning.callbacks import Callback

from scperformer.outputs import new_file
from scperformer.pictures import PALETTE, png
from scperformer.text import in_time

log = logging.getLogger(__name__)

TABLE = "metrics.csv"
INCHES, DPI = (9.0, 3.9), 150
INK, FAINT = "#333333", "#999999"
SCORES = {"macro_f1": "macro-F1", "accuracy": "accuracy"}

Epoch = dict[str, float]  # a number for each column of the table; epochs count from 1


def write_history(epochs: list[Epoch], folder: Path) -> None:
    """Write `metrics.csv`, a row per epoch, in place of an earlier one."""
    with new_file(folder / TABLE, overwrite=True) as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(epochs[0])
        table.writerows([f"{number:.6g}" for number in epoch.values()] for epoch in epochs)


def read_history(folder: Path) -> list[Epoch]:
    """Read the epochs that `write_history` wrote."""
    with (folder / TABLE).open(newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]


class EpochLog(Callback):
    """Log one line per epoch and write the table of epochs; a resumed run continues the table.

    `columns` are the metrics in the table, and `line` is the text about them, with names as in `%(train_loss).3f`.
    """

    def __init__(self, folder: Path, columns: Sequence[str], line: str):
        self.folder, self.columns, self.line = folder, columns, line
        self.epochs: list[Epoch] = []
        self.time_left_logged = False

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()  # a run resumed within an epoch does not call on_train_epoch_start

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seconds = time.perf_counter() - self.start
        number, max_epochs = trainer.current_epoch + 1, trainer.max_epochs or 0
        metrics = {name: float(trainer.callback_metrics.get(name, 0.0)) for name in self.columns}
        self.epochs.append({"epoch": float(number), **metrics, "seconds": seconds})
        if not trainer.is_global_zero:
            return
        log.info("epoch %d/%d: %s (%.1f s)", number, max_epochs, self.line % metrics, seconds)
        write_history(self.epochs, self.folder)
        if (left := max_epochs - number) > 0 and not self.time_left_logged:
            epochs = f"{left} more epoch{'s' if left > 1 else ''} of {in_time(seconds)}"
            log.info("at most about %s left: %s, fewer if early stopping ends it", in_time(left * seconds), epochs)
        self.time_left_logged = True


def draw_learning_curve(epochs: list[Epoch], best_epoch: int, baseline: Mapping[str, float]) -> bytes:
    """Draw the training loss, and macro-F1 and accuracy on the validation cells, by epoch, as a PNG.

    Parameters
    ----------
    epochs
        At least one, in order.
    best_epoch
        The epoch whose weights the model has; it is marked.
    baseline
        `macro_f1` and `accuracy` of logistic regression on the same validation cells: dashed lines.
    """
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user has set
    left, right = figure.subplots(1, 2)
    numbers = [epoch["epoch"] for epoch in epochs]
    left.plot(numbers, [epoch["train_loss"] for epoch in epochs], color=INK, marker=".")
    left.set_title("training loss", loc="left")
    for colour, (name, text) in zip(PALETTE, SCORES.items(), strict=False):
        values = [epoch[f"val_{name}"] for epoch in epochs]
        right.plot(numbers, values, color=colour, marker=".", label=text)
        at_best = [value for number, value in zip(numbers, values, strict=True) if number == best_epoch]
        right.plot([best_epoch] * len(at_best), at_best, color=colour, marker="o", markersize=7)
        right.axhline(baseline[name], color=colour, linestyle="--", linewidth=1, label=f"{text}, logistic regression")
    right.set_title("scores on the validation cells", loc="left")
    for axes in (left, right):
        axes.axvline(best_epoch, color=FAINT, linewidth=1, zorder=0)
        axes.set_xlabel(f"epoch (best: {best_epoch})")
        axes.set_xlim(0.5, len(epochs) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return png(figure)
