"""How cells are dealt out to the processes of a training: every cell once an epoch, in the batches of a single one."""

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.config.groups import TokensConfig
from scperformer.network.batches import Cells, shared_batches, shuffled_batches


def make_cells(num: int) -> Cells:
    rng = np.random.default_rng(num)
    x = sparse.csr_matrix(rng.poisson(rng.uniform(0.1, 2.0, (num, 1)), (num, 30)).astype(np.float32))
    return Cells(x, TokensConfig(), np.zeros(num, dtype=np.int64))


@pytest.mark.parametrize("num", [1, 2, 5, 64, 65, 66, 100, 1030])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_cell_is_seen_once_an_epoch_in_as_many_steps_by_every_process(num, world_size):
    cells = make_cells(num)
    for epoch in (0, 1):
        dealt = []
        for rank in range(world_size):
            dealt.append(shared_batches(cells.lengths, 8, seed=3, epoch=epoch, rank=rank, world_size=world_size))
            assert len(dealt[-1]) == cells.num_steps(8, world_size)
            assert min(map(len, dealt[-1])) > 0
        seen = np.sort(np.concatenate([rows for steps in dealt for rows in steps]))
        repeated = max(0, world_size - num)  # fewer cells than processes
        assert len(seen) == num + repeated
        assert np.array_equal(np.unique(seen), np.arange(num))


def test_processes_share_the_batches_of_a_single_one():
    cells = make_cells(200)
    alone = shuffled_batches(cells.lengths, 16, seed=0, epoch=0)
    one, two = (shared_batches(cells.lengths, 8, seed=0, epoch=0, rank=rank, world_size=2) for rank in (0, 1))
    assert [sorted([*a, *b]) for a, b in zip(one, two, strict=True)] == [sorted(batch) for batch in alone]
    # The cells of a batch are sorted by length: no process gets the long ones.
    lengths = [[cells.lengths[rows].sum() for rows in steps] for steps in (one, two)]
    assert abs(sum(lengths[0]) - sum(lengths[1])) < 0.05 * sum(lengths[0])


def test_a_resumed_process_leaves_out_what_is_done():
    cells = make_cells(100)
    process = {"balance": "none", "seed": 0, "epoch": 0, "rank": 0, "world_size": 1}
    whole, rest = (list(cells.epoch_batches(8, first=first, **process)) for first in (0, 4))
    assert len(rest) == len(whole) - 4
    for (a, _), (b, _) in zip(whole[4:], rest, strict=True):
        assert torch.equal(a.values_BL, b.values_BL)
