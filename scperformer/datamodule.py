"""Cells as Lightning wants them: batches for training, dealt out to the processes, and for validation."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytorch_lightning as pl
import torch

from scperformer.data import AHEAD, Cells, ahead
from scperformer.embedding import Batch
from scperformer.streaming import StreamedCells

Labelled = tuple[Batch, torch.Tensor]


class Loader:
    """The batches of an epoch, anew in each; Lightning takes it for a data loader.

    Parameters
    ----------
    make
        The batches of the epoch that begins.
    num_batches
        In every epoch.
    to_gpu
        Batches are made ahead in a thread, in memory that a GPU can fetch them from while it computes.
    """

    def __init__(self, make: Callable[[], Iterator[Labelled]], num_batches: int, *, to_gpu: bool):
        self.make, self.num_batches, self.to_gpu = make, num_batches, to_gpu

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Labelled]:
        # When the first batch is asked for, not before: Lightning counts epochs up after it has got its iterator.
        yield from ahead(map(_pinned, self.make()), AHEAD) if self.to_gpu else self.make()


def _pinned(labelled: Labelled) -> Labelled:
    tokens, labels_B = labelled
    return tokens.pin_memory(), labels_B.pin_memory()


class CellsDataModule(pl.LightningDataModule):
    """Training cells, in memory or on disk, and validation cells in memory.

    Parameters
    ----------
    balance
        How often cells of rare labels are seen, as `data.drawn_rows` takes it.
    """

    def __init__(self, train: Cells | StreamedCells, val: Cells, batch_size: int, seed: int, balance: str = "none"):
        super().__init__()
        self.train, self.val = train, val
        self.batch_size, self.seed, self.balance = batch_size, seed, balance

    def train_dataloader(self) -> Loader:
        trainer = self.trainer
        assert trainer is not None
        world_size = trainer.world_size

        def batches() -> Iterator[Labelled]:
            process = {"rank": trainer.global_rank, "world_size": world_size}
            shared = {"seed": self.seed, "epoch": trainer.current_epoch, **process}
            return self.train.epoch_batches(self.batch_size, balance=self.balance, **shared)

        steps = math.ceil(math.ceil(len(self.train) / self.batch_size) / world_size)
        return Loader(batches, steps, to_gpu=self._to_gpu)

    def val_dataloader(self) -> Loader:
        # Every process looks at all of them: the numbers are then the same on one device and on many.
        rows = np.argsort(self.val.lengths, kind="stable")
        batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        return Loader(lambda: map(self.val.labelled_batch, batches), len(batches), to_gpu=self._to_gpu)

    @property
    def _to_gpu(self) -> bool:
        """Whether the batches go to a GPU: not where they are looked at without a trainer, after training."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def transfer_batch_to_device(self, batch: Labelled, device: torch.device, dataloader_idx: int) -> Labelled:
        tokens, labels_B = batch
        return tokens.to(device), labels_B.to(device, non_blocking=True)
