"""Training of layers for epochs, until predictions of held-out cells get no better, perhaps by several processes.

Cells on disk are read in blocks of consecutive cells, mixed with other blocks, and cut into batches of cells of
similar length. An epoch is a function of (seed, epoch) alone, so a run that was cut off repeats it exactly.
"""

import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
from pytorch_lightning.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
)
from tqdm import tqdm

from scperformer.attention.tokens import Batch
from scperformer.base.errors import InputError
from scperformer.base.outputs import new_file
from scperformer.base.progress import progress
from scperformer.cells.collection import Stream
from scperformer.config.training import NetworkOptions, TokensConfig, TrainerConfig
from scperformer.fits.trainer import CHECKPOINTS, EPOCHS_TABLE, Loader, SeededLearner, run_trainer
from scperformer.model import minibatches
from scperformer.model.minibatches import Cells, drop_genes, prefetch, seed_of, seed_sequence

log = logging.getLogger(__name__)

CELLS_READ_TOGETHER = 64  # consecutive cells that are read together
BEST = "best"  # name of the checkpoint of the best epoch
MIN_BUFFER_CELLS = 4096  # cells of 64 random blocks that are mixed with each other

Labelled = tuple[Batch, torch.Tensor]


class StreamedCells:
    """Labelled cells on disk, with the methods of `Cells` that training needs."""

    def __init__(self, stream: Stream, tokens: TokensConfig):
        self.stream = stream
        self.tokens = tokens
        self.known_labels = stream.labels

    def __len__(self) -> int:
        return len(self.stream.cells)

    def num_steps(self, batch_size: int, world_size: int) -> int:
        """Count the steps of an epoch, which are the same for each process."""
        return -(-len(self) // (batch_size * world_size))

    def epoch_batches(
        self, batch_size: int, *, seed: int, epoch: int, rank: int, world_size: int, first: int = 0
    ) -> Iterator[Labelled]:
        """Yield the batches of one process from step number `first` on; all processes take the same number of steps."""

        def read(rows: np.ndarray) -> Cells:
            return Cells(
                self.stream.collection.read(self.stream.cells[rows]),
                self.tokens,
                self.known_labels[rows],
            )

        rng = np.random.default_rng(seed_sequence("blocks", seed, epoch))
        # so that the blocks differ between epochs
        rows = np.roll(np.arange(len(self)), rng.integers(len(self)))
        num_whole = len(rows) // CELLS_READ_TOGETHER * CELLS_READ_TOGETHER
        blocks = rng.permutation(rows[:num_whole].reshape(-1, CELLS_READ_TOGETHER))
        order = np.concatenate([blocks.ravel(), rows[num_whole:]])
        share = -(-len(order) // world_size)
        own_rows = np.resize(order, share * world_size)[rank * share : (rank + 1) * share]
        size = (
            max(MIN_BUFFER_CELLS, minibatches.POOL_BATCHES * batch_size) // batch_size * batch_size
        )
        # buffers to skip, and steps of the next one
        passed, first = divmod(first, size // batch_size)
        starts = range(passed * size, len(own_rows), size)
        buffers = prefetch((read(own_rows[i : i + size]) for i in starts), 1)
        for number, buffer in enumerate(buffers, start=passed):
            for cells in minibatches.shuffled_batches(
                buffer.lengths, batch_size, seed, epoch, number
            )[first:]:
                yield buffer.labelled_batch(cells)
            first = 0


def validation_batches(val: Cells, batch_size: int) -> list[np.ndarray]:
    """Return the row numbers of each validation batch, whose cells have similar lengths."""
    rows = np.argsort(val.lengths, kind="stable")
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


def loaders(
    trainer: pl.Trainer, train: Cells | StreamedCells, val: Cells, cfg: NetworkOptions
) -> tuple[Loader, Loader]:
    """Make the loaders of a run: training batches, dealt out to the processes, and validation batches."""
    size = cfg.trainer.batch_size

    def batches(first: int) -> Iterator[Labelled]:
        process = {"rank": trainer.global_rank, "world_size": trainer.world_size}
        when = {"seed": cfg.seed, "epoch": trainer.current_epoch}
        return train.epoch_batches(size, first=first, **when, **process)

    # Every process validates on all cells, so that the scores do not depend on the number of devices.
    rows = validation_batches(val, size)
    validation = Loader(trainer, lambda first: map(val.labelled_batch, rows), len(rows))
    return Loader(trainer, batches, train.num_steps(size, trainer.world_size)), validation


def process_factor(weight: torch.Tensor) -> torch.Tensor | float:
    """Return the factor of a loss that makes the mean gradient of all processes the gradient of all cells."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1.0
    total = weight.detach().clone()
    torch.distributed.all_reduce(total)
    return weight * torch.distributed.get_world_size() / total


class EncoderLearner(SeededLearner):
    """Base of training with labels and of pretraining: dropped genes, and the metrics of an epoch."""

    network: Any  # a CellTypeModel or MaskedModel with an `Encoder`
    monitor: str  # the metric that chooses the best epoch (`mode`: max or min)
    mode: str
    columns: tuple[str, ...]  # the metrics in the table of epochs
    line: str  # the text of a log line about them

    def __init__(self, network: torch.nn.Module, cfg: NetworkOptions):
        super().__init__(cfg)
        self.network = network
        self.gene_dropout = cfg.model.gene_dropout

    def on_train_batch_start(self, batch: Labelled, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        step = self.global_step
        encoder = self.network.encoder
        if encoder.redraw_interval and step > 0 and step % encoder.redraw_interval == 0:
            encoder.redraw(torch.Generator().manual_seed(seed_of("redraw", self.seed, step)))

    def with_genes_dropped(self, tokens: Batch) -> Batch:
        return (
            drop_genes(tokens, self.gene_dropout, self.network.encoder.has_memory)
            if self.gene_dropout
            else tokens
        )


def processes_from(
    trainer: TrainerConfig, environment: Mapping[str, str] = os.environ
) -> ClusterEnvironment | None:
    """Choose whether Lightning or Slurm's srun starts the processes; refuse a number that differs from the options."""
    if "SLURM_JOB_ID" not in environment:
        return None
    num_nodes = trainer.num_nodes
    devices = trainer.devices
    asked = f"trainer.num_nodes={num_nodes} trainer.devices={devices}"
    remedy = f"begin the command with 'srun --nodes={num_nodes} --ntasks-per-node={devices}'"
    # the command runs in the batch script itself, without srun
    if "SLURM_STEP_ID" not in environment:
        if num_nodes > 1:
            raise InputError("processes", f"{asked} without srun", "a process on each node", remedy)
        return LightningEnvironment()
    tasks, nodes = (
        int(environment.get(f"SLURM_STEP_NUM_{unit}", 1)) for unit in ("TASKS", "NODES")
    )
    if (tasks, nodes) == (1, num_nodes):
        return LightningEnvironment()
    if (tasks, nodes) != (
        num_nodes * devices,
        num_nodes,
    ) or "SLURM_NTASKS_PER_NODE" not in environment:
        found = f"{asked} in {tasks} processes of srun on {nodes} nodes"
        raise InputError("processes", found, f"{num_nodes * devices} on {num_nodes}", remedy)
    # the batch script requeues the job: docs/workflow.md
    return SLURMEnvironment(auto_requeue=False)


class EpochLog(Callback):
    """Log a line for each epoch, write the table of epochs, and count cells; a resumed run continues the table."""

    def __init__(self, folder: Path, num_cells: int, shown: tqdm):
        self.folder = folder
        self.num_cells = num_cells
        self.shown = shown
        # the rows of the table; epochs are numbered from 1
        self.epochs: list[dict[str, float]] = []

    def state_dict(self) -> dict[str, list[dict[str, float]]]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, list[dict[str, float]]]) -> None:
        self.epochs = state_dict["epochs"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # a run resumed within an epoch does not call it
        self.on_train_epoch_start(trainer, pl_module)
        self.shown.total = ((trainer.max_epochs or 0) - trainer.current_epoch) * self.num_cells

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()
        self.shown.set_description_str(
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}", refresh=False
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.shown.update(len(batch[1]) * trainer.world_size)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        seconds = time.perf_counter() - self.start
        number = trainer.current_epoch + 1
        metrics = {
            name: float(trainer.callback_metrics.get(name, 0.0)) for name in pl_module.columns
        }
        self.epochs.append({"epoch": float(number), **metrics, "seconds": seconds})
        if trainer.is_global_zero:
            log.info(
                "epoch %d/%d: %s (%.1f s)",
                number,
                trainer.max_epochs,
                pl_module.line % metrics,
                seconds,
            )
            with new_file(self.folder / EPOCHS_TABLE, overwrite=True) as temporary:
                pd.DataFrame(self.epochs).to_csv(
                    temporary, index=False, float_format="%.6g", na_rep="nan"
                )


def run_epochs(
    learner: EncoderLearner,
    train: Cells | StreamedCells,
    val: Cells,
    cfg: NetworkOptions,
    folder: Path,
) -> None:
    """Train an encoder in this process and its helpers; `load_best` gives its network the weights of the best epoch.

    The run is interrupted and continued as in `run_trainer`, from the last whole epoch or the step where a signal
    stopped it.
    """
    options = cfg.trainer
    checkpoints = folder / CHECKPOINTS
    steps = math.ceil(
        math.ceil(len(train) / options.batch_size) / (options.devices * options.num_nodes)
    )
    learner.num_steps = options.max_epochs * steps
    watched: dict[str, Any] = {"monitor": learner.monitor, "mode": learner.mode}
    best = ModelCheckpoint(
        checkpoints, filename=BEST, **watched, save_top_k=1, enable_version_counter=False
    )
    stop = EarlyStopping(**watched, patience=options.patience, check_on_train_epoch_end=True)
    # `last` comes after `stop`, so that the remaining patience is saved.
    last = ModelCheckpoint(
        checkpoints, filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    bar = progress("training", total=options.max_epochs * len(train), unit="cells")
    # restored, as the next training starts helpers of its own
    with patch.dict(os.environ), bar as shown:
        callbacks = [best, stop, EpochLog(folder, len(train), shown), last]
        make = partial(loaders, train=train, val=val, cfg=cfg)
        try:
            run_trainer(learner, make, cfg, folder, callbacks, processes_from(options))
        finally:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def load_best(network: torch.nn.Module, folder: Path) -> int:
    """Give a network the weights of the best epoch of a run, and return the number of this epoch, from 1."""
    saved = torch.load(folder / CHECKPOINTS / f"{BEST}.ckpt", map_location="cpu", weights_only=True)
    network.cpu().load_state_dict(
        {name: saved["state_dict"][f"network.{name}"] for name in network.state_dict()}
    )
    return int(saved["epoch"]) + 1
