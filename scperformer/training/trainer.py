"""The one loop over epochs, with Lightning: make the trainer, train or resume, load the weights of the best epoch."""

import logging
import math
import re
import signal
import sys
import threading
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from scperformer.config import NetworkConfig, TrainerConfig
from scperformer.errors import InputError
from scperformer.network import Cells, fast_cpu
from scperformer.training.distributed import helpers_watched, lost_process, processes_ended, processes_from
from scperformer.training.source import StreamedCells, loaders

log = logging.getLogger(__name__)

CHECKPOINTS, LAST = "checkpoints", "last.ckpt"
# Messages of gloo and NCCL when they wait for a process that has ended.
PEER_LOST = re.compile(
    r"(closed|reset) by (remote )?peer|connection (was )?(closed|reset)|remote process exited", re.IGNORECASE
)
# Clusters send SIGTERM before they kill; Slurm can be asked to send SIGUSR1 some time before.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Interruption(Callback):
    """Save to `checkpoint` and stop after the step in which a signal came, in all processes after the same step."""

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


def num_steps(num_cells: int, trainer: TrainerConfig) -> int:
    """Count the optimiser steps of the whole run, for the learning-rate schedule."""
    batches = math.ceil(num_cells / trainer.batch_size)
    return trainer.max_epochs * math.ceil(batches / (trainer.devices * trainer.num_nodes))


def make_trainer(cfg: NetworkConfig, callbacks: list[Callback], run_folder: Path) -> pl.Trainer:
    """Make the Lightning trainer of a run; refuse a GPU that is not there, and as `processes_from`."""
    options = cfg.trainer
    if options.accelerator == "gpu" and not torch.cuda.is_available() and not torch.backends.mps.is_available():
        raise InputError("trainer.accelerator=gpu and no GPU", "a GPU that torch can use", "choose trainer=cpu")
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    loggers: list[Logger] = []
    if cfg.logger.csv:
        loggers.append(CSVLogger(run_folder, name="csv"))
    if cfg.logger.tensorboard:
        loggers.append(TensorBoardLogger(run_folder, name="tensorboard"))
    processes = processes_from(options)
    interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The `srun` command is available")  # advice for the login node only
        return pl.Trainer(
            plugins=[processes] if processes else None,
            accelerator=options.accelerator,
            devices=options.devices,
            num_nodes=options.num_nodes,
            strategy=options.strategy,
            precision=options.precision,  # type: ignore[arg-type]
            max_epochs=options.max_epochs,
            gradient_clip_val=cfg.optim.gradient_clip or None,
            callbacks=callbacks,
            logger=loggers or False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            enable_progress_bar=options.progress_bar and interactive,
            use_distributed_sampler=False,  # our data module deals out the batches to the processes
            default_root_dir=run_folder,
        )


def run_epochs(
    learner: pl.LightningModule,
    train: Cells | StreamedCells,
    val: Cells,
    cfg: NetworkConfig,
    run_folder: Path,
    *,
    epoch_log: Callback,
    monitor: str,
    mode: str,
) -> int | None:
    """Train to the end, and leave the weights of the best epoch in `learner.network`.

    `best.ckpt` in the run folder is the epoch with the highest (`mode=max`) or lowest (`mode=min`) value of `monitor`.
    `last.ckpt` is the state after the last whole epoch, or where a signal stopped the run; if it is there at the start,
    the run continues from it.

    Returns
    -------
    The best epoch, counted from 1; None in the helping processes of a distributed run.

    Raises
    ------
    SystemExit
        The run was interrupted; the exit code tells how.
    InputError
        Another process of a distributed run has ended, or as `make_trainer`.
    """
    folder = run_folder / CHECKPOINTS
    best = ModelCheckpoint(
        folder, filename="best", monitor=monitor, mode=mode, save_top_k=1, enable_version_counter=False
    )
    stop = EarlyStopping(monitor, mode=mode, patience=cfg.trainer.patience, check_on_train_epoch_end=True)
    # `last` comes after `stop`: it has to save how much of the patience is left.
    last = ModelCheckpoint(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    trainer = make_trainer(cfg, [best, stop, epoch_log, last, Interruption(folder / LAST)], run_folder)
    train_loader, val_loader = loaders(trainer, train, val, cfg)
    with warnings.catch_warnings(), processes_ended(), helpers_watched(), fast_cpu(cfg.trainer.accelerator):
        # Advice about data-loading workers and the like: ours has none to start, on purpose.
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        try:
            trainer.fit(
                learner,
                train_loader,
                val_loader,
                ckpt_path=folder / LAST if (folder / LAST).is_file() else None,
                weights_only=True,  # checkpoints hold tensors and plain values: nothing in them is executed
            )
        except SystemExit as stopped:
            log.warning("interrupted: the same command with resume=true continues it")
            # Lightning exits with code 1 after SIGINT; after SIGTERM without one, which a shell takes for success.
            raise SystemExit({1: 130, None: 143}.get(stopped.code, stopped.code)) from None  # type: ignore[arg-type]
        except RuntimeError as error:
            if trainer.world_size == 1 or not PEER_LOST.search(str(error)):
                raise
            raise lost_process(trainer.world_size, str(error).splitlines()[0]) from error
    if not trainer.is_global_zero:
        return None
    saved = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
    assert isinstance(learner.network, torch.nn.Module)
    network = learner.network.cpu()
    network.load_state_dict({name: saved["state_dict"][f"network.{name}"] for name in network.state_dict()})
    return int(saved["epoch"]) + 1
