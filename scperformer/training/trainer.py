"""The trainer of a run, with Lightning: devices, distributed processes, signals, checkpoints, logs.

`run_epochs` trains layers for epochs, until held-out cells are called no better; `run_steps` trains for a number of
steps, with or without a run folder.
"""

import importlib.util
import logging
import math
import os
import re
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, LambdaCallback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from pytorch_lightning.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from pytorch_lightning.strategies.launchers import subprocess_script
from tqdm import tqdm

from scperformer.base.errors import InputError
from scperformer.base.messages import in_time
from scperformer.base.outputs import new_file
from scperformer.base.progress import progress
from scperformer.base.signals import RESUME_NOTE
from scperformer.config.options import AUTO
from scperformer.config.training import LoggerConfig, NetworkConfig, TrainerConfig
from scperformer.model.batches import Cells
from scperformer.model.inference import fast_cpu
from scperformer.training.learner import SeededLearner
from scperformer.training.loaders import Loader, StreamedCells, loaders

log = logging.getLogger(__name__)

EPOCHS_TABLE = "metrics.csv"
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
VERSIONS = {"torch": "torch_version", "pytorch-lightning": "pytorch-lightning_version"}  # their keys in a checkpoint
TRAINER_OPTIONS = ("devices", "num_nodes", "max_epochs")  # as in Lightning
# Messages of gloo and NCCL when another process has ended.
PEER_LOST = re.compile("(?i)(closed|reset) by (remote )?peer|connection (was )?(closed|reset)|remote process exited")
# Clusters send SIGTERM before they kill; Slurm can be asked to send SIGUSR1 some time before.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
SECONDS_BETWEEN_LOOKS = 1.0
GRACE_SECONDS = 20.0  # gloo and NCCL usually notice within this time that a process has ended


def processes_from(trainer: TrainerConfig, environment: Mapping[str, str] = os.environ) -> ClusterEnvironment | None:
    """Choose whether Lightning or Slurm's srun starts the processes; refuse a number that differs from the options."""
    if "SLURM_JOB_ID" not in environment:
        return None
    num_nodes = trainer.num_nodes
    devices = trainer.devices
    asked = f"trainer.num_nodes={num_nodes} trainer.devices={devices}"
    remedy = f"begin the command with 'srun --nodes={num_nodes} --ntasks-per-node={devices}'"
    if "SLURM_STEP_ID" not in environment:  # the command runs in the batch script itself, without srun
        if num_nodes > 1:
            raise InputError(f"{asked} without srun", "a process on each node", remedy)
        return LightningEnvironment()
    tasks, nodes = (int(environment.get(f"SLURM_STEP_NUM_{unit}", 1)) for unit in ("TASKS", "NODES"))
    if (tasks, nodes) == (1, num_nodes):
        return LightningEnvironment()
    if (tasks, nodes) != (num_nodes * devices, num_nodes) or "SLURM_NTASKS_PER_NODE" not in environment:
        found = f"{asked} in {tasks} processes of srun on {nodes} nodes"
        raise InputError(found, f"{num_nodes * devices} on {num_nodes}", remedy)
    return SLURMEnvironment(auto_requeue=False)  # the batch script requeues the job: docs/workflow.md


@dataclass(frozen=True)
class Device:
    """The device that trains."""

    kind: str  # cuda, mps or cpu: names of torch and of Lightning
    precision: str  # 32-true or bf16-mixed
    why: str  # the name of the GPU, or the reason for the CPU


def device_of(options: TrainerConfig) -> Device:
    """Choose the device and the precision of a training; options that are not `auto` decide themselves.

    Raises
    ------
    InputError
        A GPU is asked for and there is none, or more GPUs or CPU cores than the machine has.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else int(torch.backends.mps.is_available())
    if options.accelerator == "cpu" or (options.accelerator == "auto" and not num_gpus):
        why = "trainer.accelerator=cpu" if options.accelerator == "cpu" else "no GPU that torch can use"
        num_cores = os.cpu_count() or 1
        if options.devices > num_cores:
            found = f"trainer.devices={options.devices} and {num_cores} CPU core{'s' if num_cores > 1 else ''}"
            raise InputError(found, "a core for each process", "lower trainer.devices")
        return Device("cpu", "32-true" if options.precision == AUTO else options.precision, why)
    if not num_gpus:
        raise InputError("trainer.accelerator=gpu and no GPU", "a GPU that torch can use", "choose trainer=cpu")
    if options.devices > num_gpus:
        found = f"trainer.devices={options.devices} and {num_gpus} GPU{'s' if num_gpus > 1 else ''}"
        raise InputError(found, "a GPU for each process", "lower trainer.devices, or choose trainer.accelerator=cpu")
    is_cuda = torch.cuda.is_available()
    # Emulated bfloat16, as on a V100, is slower than float32.
    fast = is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    chosen = "bf16-mixed" if fast else "32-true"
    precision = chosen if options.precision == AUTO else options.precision
    return Device("cuda" if is_cuda else "mps", precision, torch.cuda.get_device_name() if is_cuda else "Apple GPU")


def lost_process(num: int, reason: str = "") -> InputError:
    """Return the error for a training of `num` processes of which one has ended."""
    found = f"one of the {num} processes of this training ended{f' ({reason})' if reason else ''}"
    remedy = "read its messages above, then run the same command with resume=true"
    return InputError(found, "all of them to continue", remedy)


@contextmanager
def processes_watched() -> Iterator[None]:
    """Exit with code 2 and an error if a process that Lightning started dies; its own watch kills without a message."""
    ended = threading.Event()

    def watch(helpers: Sequence[subprocess.Popen]) -> None:
        while not any(helper.poll() for helper in helpers):
            if ended.wait(SECONDS_BETWEEN_LOOKS):
                return
        if ended.wait(GRACE_SECONDS):
            return
        for helper in helpers:
            helper.kill()
        log.error(str(lost_process(len(helpers) + 1)))
        os._exit(2)  # the main thread is stuck in a call that waits for the dead process

    start = lambda helpers: threading.Thread(target=watch, args=(helpers,), daemon=True).start()  # noqa: E731
    # The environment is restored, as the next run of a sweep starts helpers of its own.
    # create=True: without this function, as perhaps in later versions of Lightning, nothing is replaced.
    with patch.dict(os.environ), patch.object(subprocess_script, "_launch_process_observer", start, create=True):
        try:
            yield
        finally:
            ended.set()
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def checkpoint_problem(checkpoint: Path) -> str:
    """Return why a run cannot be continued from a checkpoint; "" if it can.

    Other versions of torch and Lightning may read it, but do not repeat the lost part of the run exactly.
    """
    try:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        written = {name: str(saved[key]) for name, key in VERSIONS.items()}
    except (EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError, UnpicklingError):
        return f"a damaged checkpoint ({checkpoint.name})"
    here = {"torch": str(torch.__version__), "pytorch-lightning": pl.__version__}
    for name, theirs in written.items():
        if theirs.split(".")[:2] != here[name].split(".")[:2]:
            return f"a checkpoint of {name} {theirs} (installed: {here[name]})"
    return ""


class EpochLog(Callback):
    """Log a line for each epoch, write the table of epochs, and count cells; a resumed run continues the table."""

    def __init__(self, folder: Path, num_cells: int, shown: tqdm):
        self.folder = folder
        self.num_cells = num_cells
        self.shown = shown
        self.epochs: list[dict[str, float]] = []  # the rows of the table; epochs are numbered from 1
        self.time_left_logged = False

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_train_epoch_start(trainer, pl_module)  # a run resumed within an epoch does not call it
        self.shown.total = ((trainer.max_epochs or 0) - trainer.current_epoch) * self.num_cells

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.start = time.perf_counter()
        (name, text) = pl_module.shown
        best = max if pl_module.mode == "max" else min
        found = f", best {text} {best(each[name] for each in self.epochs):.3f}" if self.epochs else ""
        self.shown.set_description_str(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}{found}", refresh=False)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.shown.update(len(batch[1]) * trainer.world_size)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        seconds = time.perf_counter() - self.start
        number = trainer.current_epoch + 1
        max_epochs = trainer.max_epochs or 0
        metrics = {name: float(trainer.callback_metrics.get(name, 0.0)) for name in pl_module.columns}
        self.epochs.append({"epoch": float(number), **metrics, "seconds": seconds})
        if not trainer.is_global_zero:
            return
        log.info("epoch %d/%d: %s (%.1f s)", number, max_epochs, pl_module.line % metrics, seconds)
        with new_file(self.folder / EPOCHS_TABLE, overwrite=True) as temporary:
            pd.DataFrame(self.epochs).to_csv(temporary, index=False, float_format="%.6g", na_rep="nan")
        if (left := max_epochs - number) > 0 and not self.time_left_logged:
            epochs = f"{left} more epoch{'s' if left > 1 else ''} of {in_time(seconds)}"
            log.info("at most about %s left: %s, fewer if early stopping ends it", in_time(left * seconds), epochs)
        self.time_left_logged = True


class Patience(EarlyStopping):
    """Early stopping that takes the patience of a resumed run from its options, not from its checkpoint."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict | {"patience": self.patience})


class Interruption(Callback):
    """After a signal, save to `checkpoint` and stop, in all processes after the same step; checkpoints name torch."""

    def __init__(self, checkpoint: Path):
        self.checkpoint = checkpoint
        self.received = 0

    def on_train_start(self, *_: Any) -> None:
        # These replace Lightning's handlers, which communicate with other processes in the middle of a step. At the end
        # Lightning restores the handlers that were there before its own.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, lambda number, _: setattr(self, "received", number))

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Any) -> None:
        checkpoint[VERSIONS["torch"]] = str(torch.__version__)

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
        log.warning("%s: saved after step %d, in epoch %d", number.name, trainer.global_step, trainer.current_epoch + 1)
        # The first process takes any other exit code of a helper for a failure.
        raise SystemExit(128 + number if trainer.is_global_zero else 0)


def require_loggers(options: LoggerConfig) -> None:
    """Refuse logs for which a library is not installed."""
    for name in ("wandb", "mlflow"):
        if getattr(options, name) and importlib.util.find_spec(name) is None:
            remedy = f"install it with 'pip install {name}', or leave logger.{name} out"
            raise InputError(f"logger.{name}=true without {name}", f"the library {name}", remedy)


@contextmanager
def loggers_of(cfg: NetworkConfig, run_folder: Path) -> Iterator[list[Logger]]:
    """Yield the loggers of a run, and end their runs after it, also if a training fails.

    Weights & Biases writes files that `wandb sync` can send, unless the user has set WANDB_MODE; MLflow writes a
    database, unless the user has set MLFLOW_TRACKING_URI. Both also get the options, without paths.
    """
    options = cfg.logger
    name = run_folder.name.removesuffix(".run")
    kinds = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    loggers: list[Logger] = [kind(run_folder, name=name) for name, kind in kinds.items() if getattr(options, name)]
    services: list[Logger] = []
    begins = False
    if options.wandb:
        begins = importlib.import_module("wandb").run is None  # else Lightning takes the run that the user has begun
        project = os.environ.get("WANDB_PROJECT", "scperformer")
        offline = "WANDB_MODE" not in os.environ
        services.append(WandbLogger(name=name, save_dir=run_folder, offline=offline, project=project))
    if options.mlflow:
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{run_folder.absolute() / 'mlflow.db'}")
        services.append(MLFlowLogger("scperformer", run_name=name, tracking_uri=uri))
    groups = {name: asdict(getattr(cfg, name)) for name in ("tokens", "model", "head", "optim", "trainer")}
    del groups["model"]["gene2vec_path"]
    for logger in services:
        logger.log_hyperparams(groups | {"attention": cfg.attention, "seed": cfg.seed})
    try:
        yield loggers + services
    finally:
        if begins:
            services[0].experiment.finish()  # type: ignore[attr-defined]  # Lightning leaves it open for later runs


def make_trainer(
    cfg: NetworkConfig,
    callbacks: list[Callback],
    run_folder: Path | None,
    loggers: Sequence[Logger] = (),
    processes: ClusterEnvironment | None = None,
) -> pl.Trainer:
    """Make the Lightning trainer of a run, and log its device; errors as in `device_of`.

    Without a run folder no checkpoints are written and the device is not logged. `processes` says how processes are
    started.
    """
    options = cfg.trainer
    device = device_of(options)
    for library in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if run_folder is not None:  # else it is a part of a run, or of a prediction, which has no such options
        log.info("training on %s: %s, %s", device.kind, device.why, device.precision)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The `srun` command is available")  # this advice is for login nodes
        return pl.Trainer(
            **{name: getattr(options, name) for name in TRAINER_OPTIONS},
            accelerator=device.kind,
            precision=device.precision,  # type: ignore[arg-type]  # it is a plain str
            strategy="ddp" if options.devices * options.num_nodes > 1 else "auto",
            plugins=[processes] if processes else None,
            gradient_clip_val=cfg.optim.gradient_clip or None,
            callbacks=callbacks,
            logger=list(loggers) or False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_model_summary=False,
            enable_progress_bar=False,  # ours numbers epochs from 1 and spans all of them
            use_distributed_sampler=False,  # our loaders deal the batches out to the processes
            enable_checkpointing=run_folder is not None,
            default_root_dir=run_folder,
        )


@contextmanager
def exit_code_of_signal(checkpoint: Path) -> Iterator[None]:
    """Say what to do after a signal has stopped a run, and exit with the code that the signal has in a shell."""
    try:
        yield
    except SystemExit as stopped:
        log.warning("interrupted%s", f"; {RESUME_NOTE}" if checkpoint.is_file() else "")
        # Lightning exits with code 1 after SIGINT, and with none after SIGTERM, which a shell takes for success.
        raise SystemExit({1: 130, None: 143}.get(stopped.code, stopped.code)) from None  # type: ignore[arg-type]


def run_epochs(learner: Any, train: Cells | StreamedCells, val: Cells, cfg: NetworkConfig, folder: Path) -> int | None:
    """Train an `EncoderLearner`, leave the weights of the best epoch in its network, and return this epoch, from 1.

    None in the helping processes of a distributed run. `last.ckpt` in the run folder is the state after the last whole
    epoch, or where a signal stopped the run with SystemExit; if it is there at the start, the run continues from it.
    """
    options = cfg.trainer
    where = folder / CHECKPOINTS
    steps = math.ceil(math.ceil(len(train) / options.batch_size) / (options.devices * options.num_nodes))
    learner.num_steps = options.max_epochs * steps
    watched = {"monitor": learner.monitor, "mode": learner.mode}
    best = ModelCheckpoint(where, filename="best", **watched, save_top_k=1, enable_version_counter=False)
    stop = Patience(**watched, patience=options.patience, check_on_train_epoch_end=True)
    # `last` comes after `stop`, so that the remaining patience is saved.
    last = ModelCheckpoint(where, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    counted = progress("training", total=options.max_epochs * len(train), unit="cells")
    bar = counted if options.progress_bar else nullcontext(tqdm(disable=True))
    checkpoint = where / LAST if (where / LAST).is_file() else None
    with warnings.catch_warnings(), processes_watched(), ExitStack() as fast, bar as shown:
        epochs = EpochLog(folder, len(train), shown)
        callbacks = [best, stop, epochs, last, Interruption(where / LAST)]
        logs = fast.enter_context(loggers_of(cfg, folder))
        trainer = make_trainer(cfg, callbacks, folder, logs, processes_from(cfg.trainer))
        # accelerator=auto may be the CPU, too
        fast.enter_context(fast_cpu(trainer.strategy.root_device.type, cfg.trainer.precision))
        # Advice about data-loading workers: ours starts none, on purpose.
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        try:
            # weights_only: checkpoints hold tensors and plain values; nothing in them is executed.
            with exit_code_of_signal(where / LAST):
                trainer.fit(learner, *loaders(trainer, train, val, cfg), ckpt_path=checkpoint, weights_only=True)
        except RuntimeError as error:
            if trainer.world_size == 1 or not PEER_LOST.search(str(error)):
                raise
            raise lost_process(trainer.world_size, str(error).splitlines()[0]) from error
    if not trainer.is_global_zero:
        return None
    saved = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
    network = learner.network.cpu()
    network.load_state_dict({name: saved["state_dict"][f"network.{name}"] for name in network.state_dict()})
    return int(saved["epoch"]) + 1


def run_steps(
    learner: SeededLearner,
    make: Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]],
    cfg: NetworkConfig,
    folder: Path | None,
) -> str:
    """Train a learner for `trainer.max_steps` steps in this process, and return the device that trained, as in `cpu`.

    `make` yields the batches from the step with a number on. With a run folder, the loss is logged, and a signal saves
    the state there and stops the run with SystemExit; it continues from there if it is run again.
    """
    num_steps = cfg.trainer.max_steps
    learner.num_steps = num_steps
    cfg = replace(cfg, trainer=replace(cfg.trainer, devices=1, num_nodes=1, max_epochs=1))
    last = None if folder is None else folder / CHECKPOINTS / LAST
    counted = progress("training the Performer", total=num_steps, unit="steps")
    bar = counted if cfg.trainer.progress_bar else nullcontext(tqdm(disable=True))
    with warnings.catch_warnings(), ExitStack() as fast, bar as shown:
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        callbacks: list[Callback] = [LambdaCallback(on_train_batch_end=lambda *_: shown.update(1))]
        if last is not None:
            callbacks += [Interruption(last), ModelCheckpoint(last.parent, save_top_k=0)]
            fast.enter_context(exit_code_of_signal(last))
        logs = [] if folder is None else fast.enter_context(loggers_of(cfg, folder))
        trainer = make_trainer(cfg, callbacks, folder, logs, LightningEnvironment())
        fast.enter_context(fast_cpu(trainer.strategy.root_device.type, cfg.trainer.precision))
        checkpoint = last if last is not None and last.is_file() else None
        trainer.fit(learner, Loader(trainer, make, num_steps), ckpt_path=checkpoint, weights_only=True)
        return trainer.strategy.root_device.type
