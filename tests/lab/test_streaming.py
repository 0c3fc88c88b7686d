"""Cells in memory and on disk: every cell once an epoch, in batches that the processes of a training share."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.cells.collection import Stream
from scperformer.config.training import TokensConfig
from scperformer.lab import epochs as loaders
from scperformer.lab.epochs import StreamedCells
from scperformer.model.minibatches import Cells, shared_batches


def make_cells(num: int) -> Cells:
    rng = np.random.default_rng(num)
    x = sparse.csr_matrix(
        rng.poisson(rng.uniform(0.1, 2.0, (num, 1)), (num, 30)).astype(np.float32)
    )
    return Cells(x, TokensConfig(), np.zeros(num, dtype=np.int64))


@pytest.mark.parametrize("num", [1, 65])
@pytest.mark.parametrize("world_size", [1, 3])
def test_every_cell_is_seen_once_an_epoch_in_as_many_steps_by_every_process(num, world_size):
    cells = make_cells(num)
    for epoch in (0, 1):
        dealt = []
        for rank in range(world_size):
            dealt.append(
                shared_batches(
                    cells.lengths, 8, seed=3, epoch=epoch, rank=rank, world_size=world_size
                )
            )
            assert len(dealt[-1]) == cells.num_steps(8, world_size)
            assert min(map(len, dealt[-1])) > 0
        seen = np.sort(np.concatenate([rows for steps in dealt for rows in steps]))
        repeated = max(0, world_size - num)  # fewer cells than processes
        assert len(seen) == num + repeated
        assert np.array_equal(np.unique(seen), np.arange(num))


def test_a_resumed_process_leaves_out_what_is_done():
    cells = make_cells(100)
    process = {"seed": 0, "epoch": 0, "rank": 0, "world_size": 1}
    whole, rest = (list(cells.epoch_batches(8, first=first, **process)) for first in (0, 4))
    assert len(rest) == len(whole) - 4
    for (a, _), (b, _) in zip(whole[4:], rest, strict=True):
        assert torch.equal(a.values_BL, b.values_BL)


class Numbered:
    """A collection of cells whose only value is their number, and what was read of it."""

    def __init__(self):
        self.reads = []

    def read(self, cells):
        self.reads.append(cells)
        rng = np.random.default_rng(0)
        x = sparse.random(
            len(cells), 40, density=0.5, format="lil", dtype=np.float32, random_state=rng
        )
        x[:, 0] = cells[:, None] + 1.0
        return sparse.csr_matrix(x)


def epoch(num_cells, batch_size=8, labels=None, seed=0, number=0, rank=0, world_size=1, first=0):
    """The cell numbers of each batch, the lengths of its cells, and what was read."""
    source = Numbered()
    labels = np.zeros(num_cells, dtype=np.int64) if labels is None else labels
    stream = Stream(source, np.arange(num_cells), labels)
    cells = StreamedCells(stream, TokensConfig())
    shared = {"seed": seed, "epoch": number, "rank": rank, "world_size": world_size}
    batches = list(cells.epoch_batches(batch_size, first=first, **shared))
    assert len(batches) == cells.num_steps(batch_size, world_size) - first
    numbers = [(batch.x_BL[:, 0] - 1).long().tolist() for batch, _ in batches]
    assert all(
        (labels[rows] == found.numpy()).all()
        for rows, (_, found) in zip(numbers, batches, strict=True)
    )
    return numbers, [batch.keep_BL.sum(1).numpy() for batch, _ in batches], source.reads


@pytest.mark.parametrize("first", [300])
def test_an_epoch_that_was_cut_off_goes_on_there_without_reading_what_is_done(first, monkeypatch):
    monkeypatch.setattr(loaders, "MIN_BUFFER_CELLS", 1024)
    whole, _, reads = epoch(5000)
    rest, _, read_again = epoch(5000, first=first)
    assert rest == whole[first:]
    assert len(read_again) == len(reads) - first // 128


@pytest.mark.parametrize("num_cells", [5, 9001])
def test_processes_share_every_epoch(num_cells):
    shares = [epoch(num_cells, rank=rank, world_size=3)[0] for rank in range(3)]
    assert len({len(share) for share in shares}) == 1
    assert len(shares[0]) == math.ceil(num_cells / 24)
    seen = np.concatenate([np.concatenate(share) for share in shares])
    assert set(seen) == set(range(num_cells))
    # cells that are seen twice, for all to take the same number of steps
    assert len(seen) - num_cells < 3
