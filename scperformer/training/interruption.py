"""Stop a training on a signal: save after the step at which the signal came, and exit."""

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

log = logging.getLogger(__name__)

# Clusters send SIGTERM before they kill; Slurm can be asked to send SIGUSR1 some time before.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Interruption(Callback):
    """Save and stop at the end of the step in which a signal came, in all processes at the same step.

    Parameters
    ----------
    checkpoint
        The file from which a resumed run continues.
    """

    def __init__(self, checkpoint: Path):
        self.checkpoint = checkpoint
        self.received = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # These replace Lightning's handlers, which communicate with other processes in the middle of a step. At the end
        # Lightning restores the handlers that were there before its own.
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
        # Not after the last step of an epoch: a run resumed from there would leave out the validation.
        if not trainer.is_last_batch and self._is_over(trainer):
            trainer.save_checkpoint(self.checkpoint)
            self._stop(trainer)

    def _is_over(self, trainer: pl.Trainer) -> bool:
        return trainer.strategy.reduce_boolean_decision(self.received > 0, all=False)

    def _stop(self, trainer: pl.Trainer) -> None:
        number = signal.Signals(self.received or signal.SIGTERM)
        log.warning("%s: saved after step %d, in epoch %d", number.name, trainer.global_step, trainer.current_epoch + 1)
        # The first process would take another exit code of a helper for a failure.
        raise SystemExit(128 + number if trainer.is_global_zero else 0)
