"""Cells as Lightning wants them: batches for training, dealt out to the processes, and for validation."""

import math
from collections.abc import Iterator

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from scperformer.data import Cells, shuffled_batches
from scperformer.embedding import Batch


class _BatchDataset(Dataset):
    """A data set whose index is a whole batch of row numbers: batches are cut from the CSR matrix in one go."""

    def __init__(self, cells: Cells):
        self.cells = cells

    def __getitem__(self, rows: np.ndarray) -> tuple[Batch, torch.Tensor]:
        return self.cells.labelled_batch(rows)


class _Batches(Sampler):
    """The batches of one process, in the order of (seed, epoch); Lightning calls `set_epoch`."""

    def __init__(self, cells: Cells, batch_size: int, *, seed: int, rank: int, world_size: int):
        self.cells, self.batch_size = cells, batch_size
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(math.ceil(len(self.cells) / self.batch_size) / self.world_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        batches = shuffled_batches(self.cells.lengths, self.batch_size, self.seed, self.epoch)
        # Every process takes the same number of steps, or the others would wait for it for ever.
        for step in range(len(self)):
            yield batches[(step * self.world_size + self.rank) % len(batches)]


class CellsDataModule(pl.LightningDataModule):
    """Training and validation cells in memory."""

    def __init__(self, train: Cells, val: Cells, batch_size: int, seed: int):
        super().__init__()
        self.train, self.val = train, val
        self.batch_size, self.seed = batch_size, seed

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = _Batches(self.train, self.batch_size, seed=self.seed, rank=rank, world_size=world_size)
        return DataLoader(_BatchDataset(self.train), sampler=batches, batch_size=None)

    def val_dataloader(self) -> DataLoader:
        # Every process looks at all of them: the numbers are then the same on one device and on many.
        rows = np.argsort(self.val.lengths, kind="stable")
        batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        return DataLoader(_BatchDataset(self.val), sampler=batches, batch_size=None)

    def transfer_batch_to_device(self, batch: tuple[Batch, torch.Tensor], device: torch.device, dataloader_idx: int):
        tokens, labels_B = batch
        return tokens.to(device), labels_B.to(device)
