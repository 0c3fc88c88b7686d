"""Batches of cells in memory or on disk, for training in epochs.

Cells on disk are read in blocks of consecutive cells, mixed with other blocks, and cut into batches of cells of
similar length. An epoch is a function of (seed, epoch) alone, so a run that was cut off repeats it exactly.
"""

from collections.abc import Iterator

import numpy as np
import pytorch_lightning as pl
import torch

from scperformer.attention.tokens import Batch
from scperformer.cells.on_disk import Stream
from scperformer.config.training import NetworkConfig, TokensConfig
from scperformer.model.batches import POOL_BATCHES, Cells, prefetch, seed_sequence, shuffled_batches
from scperformer.training.trainer import Loader

BLOCK_CELLS = 64  # consecutive cells that are read together
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
            return Cells(self.stream.collection.read(self.stream.cells[rows]), self.tokens, self.known_labels[rows])

        rng = np.random.default_rng(seed_sequence("blocks", seed, epoch))
        rows = np.roll(np.arange(len(self)), rng.integers(len(self)))  # so that the blocks differ between epochs
        num_whole = len(rows) // BLOCK_CELLS * BLOCK_CELLS
        blocks = rng.permutation(rows[:num_whole].reshape(-1, BLOCK_CELLS))
        order = np.concatenate([blocks.ravel(), rows[num_whole:]])
        share = -(-len(order) // world_size)
        mine = np.resize(order, share * world_size)[rank * share : (rank + 1) * share]
        size = max(MIN_BUFFER_CELLS, POOL_BATCHES * batch_size) // batch_size * batch_size
        passed, first = divmod(first, size // batch_size)  # buffers to skip, and steps of the next one
        starts = range(passed * size, len(mine), size)
        buffers = prefetch((read(mine[i : i + size]) for i in starts), 1)
        for number, buffer in enumerate(buffers, start=passed):
            for cells in shuffled_batches(buffer.lengths, batch_size, seed, epoch, number)[first:]:
                yield buffer.labelled_batch(cells)
            first = 0


def validation_batches(val: Cells, batch_size: int) -> list[np.ndarray]:
    """Return the row numbers of each validation batch, whose cells have similar lengths."""
    rows = np.argsort(val.lengths, kind="stable")
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


def loaders(trainer: pl.Trainer, train: Cells | StreamedCells, val: Cells, cfg: NetworkConfig) -> tuple[Loader, Loader]:
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
