"""The cells that a network learns from, in memory or on disk, as the batches that Lightning asks for.

Cells on disk are read in blocks of neighbours, mixed with other blocks, and cut into batches of cells of similar
length: otherwise half of the work would go into padding. An epoch is a function of (seed, epoch) alone, so a run that
was cut off repeats it exactly.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytorch_lightning as pl
import torch
from scipy.sparse import csr_matrix

from scperformer.config import TokensConfig
from scperformer.dataset import Stream
from scperformer.network import (
    AHEAD,
    POOL_BATCHES,
    Batch,
    Cells,
    ahead,
    drawn_rows,
    row_subset,
    seed_sequence,
    shuffled_batches,
)

BLOCK_CELLS = 64  # neighbours that are read together
MIN_BUFFER_CELLS = 4096  # mixed with each other: 64 blocks from anywhere

Labelled = tuple[Batch, torch.Tensor]
Make = Callable[[int], Iterator[Labelled]]


def block_order(rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Put row numbers into blocks of neighbours, and the blocks into an order given by seed and epoch alone."""
    rng = np.random.default_rng(seed_sequence("blocks", seed, epoch))
    rows = np.roll(rows, rng.integers(len(rows)))  # the blocks are other ones in each epoch
    num_whole = len(rows) // BLOCK_CELLS * BLOCK_CELLS
    shuffled = rng.permutation(rows[:num_whole].reshape(-1, BLOCK_CELLS))
    return np.concatenate([shuffled.ravel(), rows[num_whole:]])


class StreamedCells:
    """Labelled cells on disk, with the methods of `Cells` that training needs.

    Parameters
    ----------
    stream
        The cells to train on.
    tokens
        How cells become tokens.
    sample
        Some of them, in memory, for the fits and statistics that come before the network learns.
    """

    def __init__(self, stream: Stream, tokens: TokensConfig, sample: Cells):
        self.stream, self.tokens, self.sample = stream, tokens, sample
        self.known_labels = stream.labels

    def __len__(self) -> int:
        return len(self.stream.cells)

    def num_steps(self, batch_size: int, world_size: int) -> int:
        """Count the steps of an epoch, which are the same for each process."""
        return -(-len(self) // (batch_size * world_size))

    def epoch_batches(
        self, batch_size: int, *, balance: str, seed: int, epoch: int, rank: int, world_size: int, first: int = 0
    ) -> Iterator[Labelled]:
        """Yield the batches of one process from step number `first` on; all processes together see every cell once.

        Each process reads blocks of its own. A few cells are seen twice so that all take the same number of steps. The
        next cells are read while the network learns from these.
        """
        rows = drawn_rows(self.known_labels, balance, seed, epoch)
        order = block_order(rows, seed, epoch)
        share = -(-len(order) // world_size)
        mine = np.resize(order, share * world_size)[rank * share : (rank + 1) * share]
        size = max(MIN_BUFFER_CELLS, POOL_BATCHES * batch_size) // batch_size * batch_size
        passed, first = divmod(first, size // batch_size)  # buffers that need not be read, and steps of the next one
        starts = range(passed * size, len(mine), size)
        buffers = ahead((self._read(mine[i : i + size]) for i in starts), 1)
        for number, buffer in enumerate(buffers, start=passed):
            for cells in shuffled_batches(buffer.lengths, batch_size, seed, epoch, number)[first:]:
                yield buffer.labelled_batch(cells)
            first = 0

    def _read(self, rows: np.ndarray) -> Cells:
        return Cells(self.stream.collection.read(self.stream.cells[rows]), self.tokens, self.known_labels[rows])


def source_of_cells(
    x: csr_matrix,
    labels: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
    *,
    stream: Stream | None,
    tokens: TokensConfig,
) -> tuple[Cells | StreamedCells, Cells]:
    """Part cells into those to train on (`.sample`: of these, the cells in memory) and those to validate on.

    Parameters
    ----------
    x, labels
        Cells in memory, and an index for each: its label, or its file in pretraining.
    rows
        The rows to train on, and the rows to validate on.
    stream
        All training cells, if they stay on disk; `x` then holds a sample of them.
    """
    train, val = (Cells(row_subset(x, part), tokens, labels[part]) for part in rows)
    return (train if stream is None else StreamedCells(stream, tokens, train)), val


def validation_batches(val: Cells, batch_size: int) -> list[np.ndarray]:
    """The row numbers of each validation batch: neighbours by length."""
    rows = np.argsort(val.lengths, kind="stable")
    return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


class Loader:
    """The batches of an epoch, made anew in each; Lightning takes it for a data loader.

    Parameters
    ----------
    make
        Yields the batches of the epoch that begins, from the given number on.
    num_batches
        The number of batches in every epoch.
    to_gpu
        Batches are made ahead in a thread, in memory that a GPU can copy while it computes.
    trainer
        Given for training batches: a checkpoint then says how many of them a resumed epoch leaves out.
    """

    def __init__(self, make: Make, num_batches: int, *, to_gpu: bool, trainer: pl.Trainer | None = None):
        self.make, self.num_batches, self.to_gpu, self.trainer = make, num_batches, to_gpu, trainer
        self.done = 0

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Labelled]:
        # Not before the first batch is asked for: Lightning counts the epoch up after it has got its iterator.
        first, self.done = self.done, 0
        batches = self.make(first)
        if self.to_gpu:
            batches = ahead(((tokens.pin_memory(), labels_B.pin_memory()) for tokens, labels_B in batches), AHEAD)
        yield from batches

    def state_dict(self) -> dict[str, int]:
        if self.trainer is None:
            return {}
        return {"done": self.trainer.fit_loop.epoch_loop.batch_progress.current.ready % len(self)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.done = state_dict.get("done", 0)


class CellsDataModule(pl.LightningDataModule):
    """Training cells, in memory or on disk, and validation cells in memory.

    Parameters
    ----------
    balance
        How often cells of rare labels are seen, as `drawn_rows` takes it.
    """

    def __init__(self, train: Cells | StreamedCells, val: Cells, batch_size: int, seed: int, balance: str = "none"):
        super().__init__()
        self.train, self.val = train, val
        self.batch_size, self.seed, self.balance = batch_size, seed, balance

    def train_dataloader(self) -> Loader:
        trainer = self.trainer
        assert trainer is not None

        def batches(first: int) -> Iterator[Labelled]:
            process = {"rank": trainer.global_rank, "world_size": trainer.world_size}
            shared = {"seed": self.seed, "epoch": trainer.current_epoch, **process}
            return self.train.epoch_batches(self.batch_size, balance=self.balance, first=first, **shared)

        steps = self.train.num_steps(self.batch_size, trainer.world_size)
        return Loader(batches, steps, to_gpu=self._to_gpu, trainer=trainer)

    def val_dataloader(self) -> Loader:
        # Every process validates on all of them: the numbers are then the same on one device and on many.
        batches = validation_batches(self.val, self.batch_size)
        return Loader(lambda first: map(self.val.labelled_batch, batches[first:]), len(batches), to_gpu=self._to_gpu)

    @property
    def _to_gpu(self) -> bool:
        assert self.trainer is not None
        return self.trainer.strategy.root_device.type == "cuda"

    def transfer_batch_to_device(self, batch: Labelled, device: torch.device, dataloader_idx: int) -> Labelled:
        tokens, labels_B = batch
        return tokens.to(device), labels_B.to(device, non_blocking=True)
