"""Log and keep the numbers of each epoch: a log line, a row of `metrics.csv`, and a picture of the learning curve."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
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
SCORES = {"macro_f1": "macro-F1", "accuracy": "accuracy"}


class EpochLog(Callback):
    """Log one line per epoch and write the table of epochs; a resumed run continues the table."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.epochs: list[dict[str, float]] = []  # a number for each column of the table; epochs count from 1
        self.time_left_logged = False

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()  # a run resumed within an epoch does not call on_train_epoch_start

    on_train_epoch_start = on_train_start

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        seconds = time.perf_counter() - self.start
        number, max_epochs = trainer.current_epoch + 1, trainer.max_epochs or 0
        metrics = {name: float(trainer.callback_metrics.get(name, 0.0)) for name in pl_module.columns}
        self.epochs.append({"epoch": float(number), **metrics, "seconds": seconds})
        if not trainer.is_global_zero:
            return
        log.info("epoch %d/%d: %s (%.1f s)", number, max_epochs, pl_module.line % metrics, seconds)
        with new_file(self.folder / TABLE, overwrite=True) as temporary:
            pd.DataFrame(self.epochs).to_csv(temporary, index=False, float_format="%.6g", na_rep="nan")
        if (left := max_epochs - number) > 0 and not self.time_left_logged:
            epochs = f"{left} more epoch{'s' if left > 1 else ''} of {in_time(seconds)}"
            log.info("at most about %s left: %s, fewer if early stopping ends it", in_time(left * seconds), epochs)
        self.time_left_logged = True


def draw_learning_curve(epochs: pd.DataFrame, best_epoch: int, baseline: Mapping[str, float]) -> bytes:
    """Draw the training loss, and macro-F1 and accuracy on the validation cells, by epoch, as a PNG.

    The best epoch is marked. Dashed lines are the scores of logistic regression (`baseline`) on the same cells.
    """
    figure = Figure(figsize=(9.0, 3.9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user has set
    left, right = figure.subplots(1, 2)
    left.plot(epochs["epoch"], epochs["train_loss"], color="#333333", marker=".")
    left.set_title("training loss", loc="left")
    best = epochs[epochs["epoch"] == best_epoch]
    for colour, (name, text) in zip(PALETTE, SCORES.items(), strict=False):
        right.plot(epochs["epoch"], epochs[f"val_{name}"], color=colour, marker=".", label=text)
        right.plot(best["epoch"], best[f"val_{name}"], color=colour, marker="o", markersize=7)
        right.axhline(baseline[name], color=colour, linestyle="--", linewidth=1, label=f"{text}, logistic regression")
    right.set_title("scores on the validation cells", loc="left")
    for axes in (left, right):
        axes.axvline(best_epoch, color="#999999", linewidth=1, zorder=0)
        axes.set_xlabel(f"epoch (best: {best_epoch})")
        axes.set_xlim(0.5, len(epochs) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return png(figure)
