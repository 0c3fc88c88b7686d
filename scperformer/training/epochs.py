"""What is said and kept of each epoch: a log line, the time that is left, a row of the table in the run folder."""

import logging
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from scperformer.text import in_time
from scperformer.training.history import COLUMNS, Epoch, write_history

log = logging.getLogger(__name__)


class EpochLog(Callback):
    """One log line per epoch, and a table of all of them that a resumed run goes on with.

    Parameters
    ----------
    folder
        Where the table is written, anew after each epoch.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.epochs: list[Epoch] = []
        self.said_time_left = False

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()  # of an epoch that a resumed run goes on with, too: it does not start again

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seconds = time.perf_counter() - self.start
        own = {"epoch": trainer.current_epoch + 1, "seconds": seconds}
        metrics = trainer.callback_metrics
        self.epochs.append({name: float(own.get(name, metrics.get(name, 0.0))) for name in COLUMNS})
        if trainer.is_global_zero:
            log_epoch(self.epochs[-1], trainer.max_epochs or 0)
            write_history(self.epochs, self.folder)
            if not self.said_time_left:
                log_time_left((trainer.max_epochs or 0) - trainer.current_epoch - 1, seconds)
            self.said_time_left = True


def log_epoch(epoch: Epoch, max_epochs: int) -> None:
    """One line about an epoch, for log files and terminals without a progress bar."""
    log.info(
        "epoch %d/%d: training loss %.3f, validation macro-F1 %.3f, accuracy %.3f (%.1f s)",
        epoch["epoch"],
        max_epochs,
        *(epoch[name] for name in ("train_loss", "val_macro_f1", "val_accuracy", "seconds")),
    )


def log_time_left(num_epochs: int, seconds: float) -> None:
    """Say how long the epochs that are left will take, if each takes so many seconds."""
    if num_epochs > 0:
        epochs = f"{num_epochs} more epoch{'s' if num_epochs > 1 else ''} of {in_time(seconds)}"
        log.info("at most about %s left: %s, fewer if early stopping ends it", in_time(num_epochs * seconds), epochs)
