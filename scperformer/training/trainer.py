"""Lightning's trainer: made as configured, run to the end or on from where it was cut off, its best epoch loaded."""

import logging
import re
import sys
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger

from scperformer.config import NetworkConfig, TrainerConfig
from scperformer.errors import InputError
from scperformer.network import fast_cpu
from scperformer.training.cluster import processes_from
from scperformer.training.datamodule import CellsDataModule
from scperformer.training.interruption import Interruption
from scperformer.training.processes import helpers_watched, lost_process, processes_ended

log = logging.getLogger(__name__)

LAST = "last.ckpt"
# What gloo and NCCL say when they wait for a process that is no more.
PEER_LOST = re.compile(
    r"(closed|reset) by (remote )?peer|connection (was )?(closed|reset)|remote process exited", re.IGNORECASE
)


def checkpoints(
    folder: Path, trainer: TrainerConfig, epoch_log: Callback, *, monitor: str, mode: str
) -> tuple[ModelCheckpoint, list[Callback]]:
    """The checkpoint of the best epoch, and all callbacks that save, stop or log.

    `best.ckpt` has the best `monitor`, the highest or the lowest as `mode` says: `max` or `min`. `last.ckpt` is the
    state after the last whole epoch, or where a signal stopped the run.
    """
    best = ModelCheckpoint(
        folder, filename="best", monitor=monitor, mode=mode, save_top_k=1, enable_version_counter=False
    )
    last = ModelCheckpoint(folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)
    # `last` comes after `stop`: what it saves must know how long the patience still is.
    stop = EarlyStopping(monitor, mode=mode, patience=trainer.patience, check_on_train_epoch_end=True)
    return best, [best, stop, epoch_log, last, Interruption(folder / LAST)]


def run_trainer(
    trainer: pl.Trainer, learner: pl.LightningModule, data: CellsDataModule, cfg: NetworkConfig, folder: Path
) -> None:
    """Train to the end, from `last.ckpt` in the folder of checkpoints if it is there.

    Raises
    ------
    SystemExit
        The run was interrupted: with the exit code that tells how.
    InputError
        Another process of a distributed run has ended.
    """
    last = folder / LAST
    with warnings.catch_warnings(), processes_ended(), helpers_watched(), fast_cpu(cfg.trainer.accelerator):
        # Advice about data-loading workers and the like: ours has none to start, on purpose.
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        try:
            trainer.fit(
                learner,
                data,
                ckpt_path=last if last.is_file() else None,
                weights_only=True,  # checkpoints hold tensors and plain values: nothing in them is executed
            )
        except SystemExit as stopped:
            log.warning("interrupted: the same command with resume=true continues it")
            # Lightning's answer to SIGINT has code 1, to SIGTERM none: the shell would take that for success.
            raise SystemExit({1: 130, None: 143}.get(stopped.code, stopped.code)) from None  # type: ignore[arg-type]
        except RuntimeError as error:
            if trainer.world_size == 1 or not PEER_LOST.search(str(error)):
                raise
            raise lost_process(trainer.world_size, str(error).splitlines()[0]) from error


def load_best(network: torch.nn.Module, best: ModelCheckpoint) -> int:
    """Put the weights of the best epoch into `network`; that epoch, counted from 1."""
    saved = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
    state = {name.removeprefix("network."): tensor for name, tensor in saved["state_dict"].items()}
    network.cpu().load_state_dict({name: state[name] for name in network.state_dict()})
    return int(saved["epoch"]) + 1


def make_trainer(cfg: NetworkConfig, callbacks: list[Callback], run_folder: Path) -> pl.Trainer:
    """The Lightning trainer of a run.

    Raises
    ------
    InputError
        A GPU is asked for and there is none, or Slurm has started other processes than are asked for.
    """
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
        warnings.filterwarnings("ignore", "The `srun` command is available")  # outside of jobs nobody needs it
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
            use_distributed_sampler=False,  # our batches are dealt out to the processes already
            default_root_dir=run_folder,
        )
