"""Cells as Lightning wants them: batches for training, dealt out to the processes, and for validation."""

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
    """The share of one process in each batch, in the order of (seed, epoch); Lightning calls `set_epoch`.

    All processes together take the batches that a single one with their sizes added up would take.
    """

    def __init__(self, cells: Cells, batch_size: int, *, seed: int, rank: int, world_size: int):
        self.cells, self.batch_size = cells, batch_size
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = 0
        self.done = 0  # steps of the epoch that a resumed run has behind it

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.cells), self.batch_size * self.world_size)
        return whole + (rest >= self.world_size or whole == 0)

    def __iter__(self) -> Iterator[np.ndarray]:
        batches = shuffled_batches(self.cells.lengths, self.batch_size * self.world_size, self.seed, self.epoch)
        smallest = min(range(len(batches)), key=lambda i: len(batches[i]))
        if len(batches[smallest]) < self.world_size and len(batches) > 1:
            # The rest of the cells is too small for all processes, and one without any would be waited for.
            rest = batches.pop(smallest)
            batches[0] = np.concatenate([batches[0], rest])
        first, self.done = self.done, 0
        for batch in batches[first:]:
            yield np.resize(batch, max(len(batch), self.world_size))[self.rank :: self.world_size]


class _ResumableLoader(DataLoader):
    """A loader of `_Batches` that goes on in the middle of an epoch, where a checkpoint was saved."""

    def __init__(self, cells: Cells, batches: _Batches, trainer: pl.Trainer):
        super().__init__(_BatchDataset(cells), sampler=batches, batch_size=None)
        self.batches, self.trainer = batches, trainer

    def state_dict(self) -> dict[str, int]:
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return {"done": progress.ready % len(self.batches)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.batches.done = state_dict["done"]


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
        return _ResumableLoader(self.train, batches, self.trainer)

    def val_dataloader(self) -> DataLoader:
        # Every process looks at all of them: the numbers are then the same on one device and on many.
        rows = np.argsort(self.val.lengths, kind="stable")
        batches = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        return DataLoader(_BatchDataset(self.val), sampler=batches, batch_size=None)

    def transfer_batch_to_device(self, batch: tuple[Batch, torch.Tensor], device: torch.device, dataloader_idx: int):
        tokens, labels_B = batch
        return tokens.to(device), labels_B.to(device)
