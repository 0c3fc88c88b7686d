"""Cells as Lightning wants them: batches for training, dealt out to the processes, and for validation."""

from collections.abc import Callable, Iterator

import numpy as np
import pytorch_lightning as pl
import torch

from scperformer.network import AHEAD, Batch, Cells, ahead
from scperformer.training.streaming import StreamedCells

Labelled = tuple[Batch, torch.Tensor]
Make = Callable[[int], Iterator[Labelled]]


class Loader:
    """The batches of an epoch, anew in each; Lightning takes it for a data loader.

    Parameters
    ----------
    make
        The batches of the epoch that begins, from the one with this number on.
    num_batches
        In every epoch.
    to_gpu
        Batches are made ahead in a thread, in memory that a GPU can fetch them from while it computes.
    """

    def __init__(self, make: Make, num_batches: int, *, to_gpu: bool):
        self.make, self.num_batches, self.to_gpu = make, num_batches, to_gpu
        self.done = 0  # batches of the epoch that a resumed run has behind it

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Labelled]:
        # When the first batch is asked for, not before: Lightning counts epochs up after it has got its iterator.
        first, self.done = self.done, 0
        batches = self.make(first)
        yield from ahead(map(_pinned, batches), AHEAD) if self.to_gpu else batches


class _ResumableLoader(Loader):
    """A loader that goes on in the middle of an epoch, where a checkpoint was saved."""

    def __init__(self, trainer: pl.Trainer, make: Make, num_batches: int, *, to_gpu: bool):
        super().__init__(make, num_batches, to_gpu=to_gpu)
        self.trainer = trainer

    def state_dict(self) -> dict[str, int]:
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return {"done": progress.ready % len(self)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.done = state_dict["done"]


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

        def batches(first: int) -> Iterator[Labelled]:
            process = {"rank": trainer.global_rank, "world_size": trainer.world_size}
            shared = {"seed": self.seed, "epoch": trainer.current_epoch, **process}
            return self.train.epoch_batches(self.batch_size, balance=self.balance, first=first, **shared)

        steps = self.train.num_steps(self.batch_size, trainer.world_size)
        return _ResumableLoader(trainer, batches, steps, to_gpu=self._to_gpu)

    def val_dataloader(self) -> Loader:
        # Every process looks at all of them: the numbers are then the same on one device and on many.
        rows = np.argsort(self.val.lengths, kind="stable")
        batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        return Loader(lambda first: map(self.val.labelled_batch, batches[first:]), len(batches), to_gpu=self._to_gpu)

    @property
    def _to_gpu(self) -> bool:
        """Whether the batches go to a GPU: not where they are looked at without a trainer, after training."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def transfer_batch_to_device(self, batch: Labelled, device: torch.device, dataloader_idx: int) -> Labelled:
        tokens, labels_B = batch
        return tokens.to(device), labels_B.to(device, non_blocking=True)
