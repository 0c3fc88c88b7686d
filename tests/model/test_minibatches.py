"""Cells, batches, and the seeds of random streams."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.config.training import TokensConfig
from scperformer.model.minibatches import (
    MAX_BATCH_TOKENS,
    Cells,
    drop_genes,
    padded_length,
    prediction_batches,
    seed_of,
    shuffled_batches,
)

LENGTHS = np.random.default_rng(0).integers(1, 900, 1000)


# --- batches of training -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_cells", "batch_size"), [(7, 8), (100, 3), (1000, 32)])
def test_shuffled_batches_hold_every_cell_once(num_cells, batch_size):
    batches = shuffled_batches(LENGTHS[:num_cells], batch_size, seed=0, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(num_cells))
    assert len(batches) == -(-num_cells // batch_size)
    assert sum(len(batch) < batch_size for batch in batches) <= 1
    assert max(map(len, batches)) <= batch_size


# --- batches of prediction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 64])
def test_prediction_batches_hold_every_cell_once_at_its_own_padded_length(batch_size):
    seen = []
    for rows, length in prediction_batches(LENGTHS, batch_size):
        assert 1 <= len(rows) <= batch_size
        assert {padded_length(n) for n in LENGTHS[rows]} == {length}
        seen += rows.tolist()
    assert sorted(seen) == list(range(1000))


def test_prediction_batches_have_fewer_cells_if_these_are_long():
    # 64 cells with scBERT's 16,907 tokens would need tens of gigabytes for their random features.
    lengths = np.repeat([1000, 4000, 16_907, 200_000], 100)
    most = {}
    for rows, length in prediction_batches(lengths, 64):
        most[length] = max(most.get(length, 0), len(rows))
        assert len(rows) == 1 or len(rows) * length <= MAX_BATCH_TOKENS
    assert list(most.values()) == [64, 16, 3, 1]


# --- cells ---------------------------------------------------------------------------------------------------


def test_batches_have_the_tokens_and_labels_of_their_rows():
    x = sparse.random(10, 40, density=0.4, format="csr", dtype=np.float32, random_state=0)
    labels = np.arange(10) % 3
    cells = Cells(x, TokensConfig(name="continuous"), labels)
    batch, labels_B = cells.labelled_batch([7, 2])
    assert len(cells) == 10
    assert cells.lengths.tolist() == [row.nnz + 1 for row in x]
    assert labels_B.tolist() == [1, 2]
    assert labels_B.dtype == torch.int64
    for i, row in enumerate((7, 2)):
        dense = torch.zeros(41)
        dense[batch.genes_BL[i][batch.keep_BL[i]]] = batch.x_BL[i][batch.keep_BL[i]]
        np.testing.assert_array_equal(dense[:40], x[row].toarray()[0])
    assert cells.batch([7, 2], length=48).genes_BL.shape == (2, 48)


def test_drop_genes_keeps_the_rest_in_order_and_the_special_token():
    x = sparse.random(40, 300, density=0.4, format="csr", dtype=np.float32, random_state=0)
    x.data += 0.5
    cells = Cells(x, TokensConfig())
    batch = cells.batch(np.arange(40))
    torch.manual_seed(0)
    thinned = drop_genes(batch, 0.3)
    kept = 0
    for cell in range(40):
        genes = batch.genes_BL[cell][batch.keep_BL[cell]].tolist()
        left = thinned.genes_BL[cell][thinned.keep_BL[cell]].tolist()
        assert left[-1] == 300  # the special token
        assert left == [gene for gene in genes if gene in set(left)]  # a subset, in order
        values = dict(zip(genes, batch.x_BL[cell].tolist(), strict=False))
        assert thinned.x_BL[cell][thinned.keep_BL[cell]].tolist() == [values[gene] for gene in left]
        kept += len(left) - 1
    assert abs(kept / x.nnz - 0.7) < 0.02  # 4,800 draws: standard error 0.007
    assert thinned.keep_BL.shape[1] < batch.keep_BL.shape[1]


STREAMS = (
    "dropout",
    "redraw",
    "masked in training",
    "masked in validation",
    "batches",
    "drawn cells",
    "blocks",
)


def test_every_stream_and_step_has_its_own_seed():
    numbers = [*product(range(5), range(20)), *product(range(5), range(20), range(3))]
    seeds = {seed_of(stream, *parts) for stream in STREAMS for parts in numbers}
    assert len(seeds) == len(STREAMS) * len(numbers)


def test_seeds_are_the_same_in_every_process_and_version():
    assert seed_of("dropout", 3, 4) == seed_of("dropout", 3, 4) != seed_of("dropout", 4, 3)
    # Values recorded at the first version: a resumed run must draw the same numbers as an uninterrupted run.
    assert [seed_of("dropout", 0, 0), seed_of("batches", 0, 1, 2)] == [3724080882, 942370044]
