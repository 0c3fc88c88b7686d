"""The trainer of a run, with Lightning: signals, checkpoints, logs."""

import importlib.util
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    Callback,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
)
from pytorch_lightning.loggers import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)
from pytorch_lightning.plugins.environments import ClusterEnvironment, LightningEnvironment

from scperformer.base.errors import InputError
from scperformer.config.training import LoggerConfig, NetworkOptions
from scperformer.fits.steps import StepBatch, TrainedBySteps, device_of, lr_factor, seed_step
from scperformer.model.inference import fast_cpu
from scperformer.model.minibatches import prefetch

log = logging.getLogger(__name__)

EPOCHS_TABLE = "metrics.csv"
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
# Clusters send SIGTERM before they kill; Slurm can be asked to send SIGUSR1 some time before.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class SeededLearner(pl.LightningModule):
    """Base of all learners: the seed of each step and the schedule of the learning rate."""

    num_steps = 1  # of the whole run, for the schedule of the learning rate

    def __init__(self, cfg: NetworkOptions):
        super().__init__()
        self.seed = cfg.seed
        self.optim = cfg.optim

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout draws the same masks whether or not the run was resumed. The seed is set in each step and not once an
        # epoch, as loaders draw from the same generator, and a resumed run draws less often.
        seed_step(self.device.type, self.seed, self.global_step, self.global_rank)

    def scheduled(self, groups: list[dict[str, Any]]) -> Any:
        """Give Lightning the optimiser of these groups of parameters, with the learning-rate schedule."""
        optimizer = torch.optim.AdamW(groups, lr=self.optim.lr)
        factor = partial(lr_factor, num_steps=self.num_steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Loader:
    """A data loader for Lightning: the batches of an epoch, which `make` yields from a given number on.

    For a GPU they are made ahead in a thread, in pinned memory, so that copying overlaps with computing.
    """

    def __init__(self, trainer: pl.Trainer, make: Callable[[int], Iterator[Any]], num_batches: int):
        self.trainer = trainer
        self.make = make
        self.num_batches = num_batches
        self.done = 0

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[tuple[Any, torch.Tensor]]:
        # Not before the first batch is requested: Lightning increments the epoch after it has made the iterator.
        first = self.done
        self.done = 0
        batches = self.make(first)
        if self.trainer.strategy.root_device.type == "cuda":
            pinned = ((tokens.pin_memory(), labels_B.pin_memory()) for tokens, labels_B in batches)
            batches = prefetch(pinned)
        yield from batches

    def state_dict(self) -> dict[str, int]:  # only the training loader is resumed within an epoch
        return {"done": self.trainer.fit_loop.epoch_loop.batch_progress.current.ready % len(self)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.done = state_dict["done"]


def is_damaged(checkpoint: Path) -> bool:
    """Return whether a run cannot be continued from a checkpoint."""
    try:
        return not isinstance(
            torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True), dict
        )
    except (EOFError, OSError, RuntimeError, TypeError, ValueError, UnpicklingError):
        return True


class Interruption(Callback):
    """After a signal, save to `checkpoint` and stop, in all processes after the same step."""

    def __init__(self, checkpoint: Path):
        self.checkpoint = checkpoint
        self.received = 0

    def on_train_start(self, *_: Any) -> None:
        # These replace Lightning's handlers, which communicate with other processes in the middle of a step. At the end
        # Lightning restores the handlers that were there before its own.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, lambda number, _: setattr(self, "received", number))

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._stop_if_signalled(trainer)  # the end of the last epoch has been saved

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        # Not after the last step of an epoch: a run that is resumed from there would skip the validation.
        if not trainer.is_last_batch:
            self._stop_if_signalled(trainer, save=True)

    def _stop_if_signalled(self, trainer: pl.Trainer, save: bool = False) -> None:
        if not trainer.strategy.reduce_boolean_decision(self.received > 0, all=False):
            return
        if save:
            trainer.save_checkpoint(self.checkpoint)
        number = signal.Signals(self.received or signal.SIGTERM)
        log.warning(
            "%s: saved after step %d, in epoch %d",
            number.name,
            trainer.global_step,
            trainer.current_epoch + 1,
        )
        # The first process takes any other exit code of a helper for a failure.
        raise SystemExit(128 + number if trainer.is_global_zero else 0)


def require_loggers(options: LoggerConfig) -> None:
    """Refuse logs for which a library is not installed."""
    for name in ("wandb", "mlflow"):
        if getattr(options, name) and importlib.util.find_spec(name) is None:
            remedy = f"install it with 'pip install {name}', or leave logger.{name} out"
            raise InputError(
                "no-logger", f"logger.{name}=true without {name}", f"the library {name}", remedy
            )


def loggers_of(cfg: NetworkOptions, run_folder: Path) -> list[Logger]:
    """Return the loggers of a run.

    Weights & Biases writes files that `wandb sync` can send, unless the user has set WANDB_MODE; MLflow writes a
    database, unless the user has set MLFLOW_TRACKING_URI. All also get the options, without paths.
    """
    options = cfg.logger
    name = run_folder.name.removesuffix(".run")
    loggers: list[Logger] = []
    if options.csv:
        loggers.append(CSVLogger(run_folder, name="csv"))
    if options.tensorboard:
        loggers.append(TensorBoardLogger(run_folder, name="tensorboard"))
    if options.wandb:
        project = os.environ.get("WANDB_PROJECT", "scperformer")
        is_offline = "WANDB_MODE" not in os.environ
        loggers.append(
            WandbLogger(name=name, save_dir=run_folder, offline=is_offline, project=project)
        )
    if options.mlflow:
        uri = os.environ.get(
            "MLFLOW_TRACKING_URI", f"sqlite:///{run_folder.absolute() / 'mlflow.db'}"
        )
        loggers.append(MLFlowLogger("scperformer", run_name=name, tracking_uri=uri))
    groups = {
        name: asdict(getattr(cfg, name)) for name in ("tokens", "model", "head", "optim", "trainer")
    }
    del groups["model"]["gene2vec_path"]
    for logger in loggers:
        logger.log_hyperparams(groups | {"attention": cfg.attention, "seed": cfg.seed})
    return loggers


def run_trainer(
    learner: SeededLearner,
    loaders: Callable[[pl.Trainer], tuple[Loader, Loader | None]],
    cfg: NetworkOptions,
    folder: Path | None,
    callbacks: list[Callback],
    processes: ClusterEnvironment | None,
) -> None:
    """Train a learner with Lightning; errors as in `device_of`.

    With a run folder, losses are logged there. A signal saves the state as `last.ckpt` and stops the run with the exit
    code of the signal; if that file is there at the start, the run continues from it. `processes` says how processes
    are started.
    """
    options = cfg.trainer
    device = device_of(options)
    for library in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(library).setLevel(logging.WARNING)
    start = None
    loggers: list[Logger] = []
    # else it is a part of a run, or of a prediction, which has no such options
    if folder is not None:
        log.info("training on %s: %s, %s", device.kind, device.why, device.precision)
        last = folder / CHECKPOINTS / LAST
        callbacks = [*callbacks, Interruption(last)]
        start = last if last.is_file() else None
        loggers = loggers_of(cfg, folder)
        callbacks += [LearningRateMonitor("step")] if loggers else []
    with warnings.catch_warnings(), fast_cpu(device.kind, options.precision):
        # Advice about data-loading workers, of which there are none on purpose, and about srun, for login nodes.
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        warnings.filterwarnings("ignore", "The `srun` command is available")
        trainer = pl.Trainer(
            devices=options.devices,
            num_nodes=options.num_nodes,
            max_epochs=options.max_epochs,
            accelerator=device.kind,
            precision=device.precision,  # type: ignore[arg-type]  # it is a plain str
            strategy="ddp" if options.devices * options.num_nodes > 1 else "auto",
            plugins=[processes] if processes else None,
            gradient_clip_val=cfg.optim.gradient_clip or None,
            callbacks=callbacks,
            logger=loggers or False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            enable_progress_bar=False,  # ours numbers epochs from 1 and spans all of them
            use_distributed_sampler=False,  # our loaders deal the batches out to the processes
            enable_checkpointing=folder is not None,
            default_root_dir=folder,
        )
        try:
            # weights_only: checkpoints hold tensors and plain values; nothing in them is executed.
            train, val = loaders(trainer)
            trainer.fit(learner, train, val, ckpt_path=start, weights_only=True)
        except SystemExit as stopped:
            if folder is None:
                raise
            # Lightning exits with code 1 after SIGINT, and with none after SIGTERM, which a shell takes for success.
            raise SystemExit({1: 130, None: 143}.get(stopped.code, stopped.code)) from None  # type: ignore[arg-type]
        finally:
            for logger in loggers:
                if isinstance(logger, WandbLogger):
                    # Lightning leaves its run open for the next training
                    logger.experiment.finish()


class StepsLearner(SeededLearner):
    """Training for a number of steps, in Lightning."""

    def __init__(self, trained: TrainedBySteps, cfg: NetworkOptions):
        super().__init__(cfg)
        self.trained = trained
        self.num_steps = cfg.trainer.max_steps

    def on_fit_start(self) -> None:
        self.trained.start(self.device)

    def training_step(self, batch: StepBatch, batch_idx: int) -> torch.Tensor:
        loss = self.trained.loss_of(batch)
        if self.trainer.loggers:
            self.log("train_loss", loss / self.trained.num_copies, on_step=True, on_epoch=False)
        return loss

    def configure_optimizers(self):
        parameters = list(self.trained.parameters())
        return self.scheduled([{"params": parameters, "weight_decay": self.trained.weight_decay}])


def train_steps(
    trained: TrainedBySteps,
    make: Callable[[int], Iterator[StepBatch]],
    cfg: NetworkOptions,
    folder: Path | None,
    done: Callable[[int], object],
) -> None:
    """Train for `trainer.max_steps` steps in this process.

    `make` yields the batches from the step with a number on, and `done` is called with 1 after each; the rest as in
    `run_trainer`.
    """
    num_steps = cfg.trainer.max_steps
    cfg = replace(cfg, trainer=replace(cfg.trainer, devices=1, num_nodes=1, max_epochs=1))
    callbacks: list[Callback] = [LambdaCallback(on_train_batch_end=lambda *_: done(1))]
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder / CHECKPOINTS, save_top_k=0))
    loaders = lambda trainer: (Loader(trainer, make, num_steps), None)  # noqa: E731
    learner = StepsLearner(trained, cfg)
    run_trainer(learner, loaders, cfg, folder, callbacks, LightningEnvironment())
