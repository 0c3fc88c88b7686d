"""A training that is told to stop: it saves where it is after the step that it is at, and ends."""

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

log = logging.getLogger(__name__)

# What clusters send before they kill; SIGUSR1 is what Slurm can be asked to send some time before.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Interruption(Callback):
    """Save and stop at the end of the step in which a signal came, in all processes at the same one.

    Parameters
    ----------
    checkpoint
        The file that a resumed run goes on from.
    """

    def __init__(self, checkpoint: Path):
        self.checkpoint = checkpoint
        self.received = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning has just registered its own, which talk to other processes in the middle of anything; at the end it
        # puts back what was there before it.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._is_over(trainer):
            self._stop(trainer)  # the end of the last epoch has been saved

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Not after the last step: a run that went on from there would leave out the validation.
        if not trainer.is_last_batch and self._is_over(trainer):
            trainer.save_checkpoint(self.checkpoint)
            self._stop(trainer)

    def _is_over(self, trainer: pl.Trainer) -> bool:
        return trainer.strategy.reduce_boolean_decision(self.received > 0, all=False)

    def _stop(self, trainer: pl.Trainer) -> None:
        number = signal.Signals(self.received or signal.SIGTERM)
        log.warning("%s: saved after step %d, in epoch %d", number.name, trainer.global_step, trainer.current_epoch + 1)
        # Of a process that only helps, the first one would take another code for a failure.
        raise SystemExit(128 + number if trainer.is_global_zero else 0)
