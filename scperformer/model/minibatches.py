"""Turn aligned expression into batches: choose and order cells with seeded random streams, and make their tokens."""

import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.attention.tokens import Batch, token_counts, tokenize
from scperformer.config.training import TokensConfig

# batches whose cells are sorted by length together: little padding, yet well mixed
POOL_BATCHES = 32
# of a prediction batch with its padding: limits its memory (64 cells of 1,024 tokens)
MAX_BATCH_TOKENS = 2**16
END_OF_ITEMS = object()
Item = TypeVar("Item")


def seed_sequence(stream: str, *numbers: int) -> np.random.SeedSequence:
    """Return the seed of one draw from a named random stream, such as `seed_sequence("dropout", seed, step)`.

    NumPy pads entropy with zeros, so [1, 5] and [1, 5, 0] alone would be the same seed. Therefore the name of the
    stream and how many numbers (0 or more each) follow it are in the spawn key, which is hashed separately.
    """
    return np.random.SeedSequence(numbers, spawn_key=(zlib.crc32(stream.encode()), len(numbers)))


def seed_of(stream: str, *numbers: int) -> int:
    """Return `seed_sequence` as one 32-bit number, for a `torch.Generator`."""
    return int(seed_sequence(stream, *numbers).generate_state(1)[0])


def row_subset(x: csr_matrix, rows: np.ndarray) -> csr_matrix:
    """Return rows of a matrix, without a copy if they are consecutive."""
    if len(rows) == 0 or (np.diff(rows) != 1).any():
        return x[rows]
    indptr = x.indptr[rows[0] : rows[-1] + 2]
    span = slice(indptr[0], indptr[-1])
    return csr_matrix(
        (x.data[span], x.indices[span], indptr - indptr[0]),
        shape=(len(rows), x.shape[1]),
        copy=False,
    )


def padded_length(num_tokens: int) -> int:
    """Return the padded length of a cell: the next of 16, 32, 48, 64, 80, 96, ... (steps of about 1/8).

    It depends only on the cell, so that the results of a cell do not depend on the other cells in its batch.
    """
    step = max(16, 2 ** (int(num_tokens - 1).bit_length() - 3)) if num_tokens > 1 else 16
    return -(-num_tokens // step) * step


class Cells:
    """Cells in memory: aligned expression (CSR float32, N x G, ln(1 + cp10k)) and, for training, label indices.

    `measured` (boolean, G) marks the genes that occur in the file of the cells; None: all do. The other genes are
    missing, not unexpressed.
    """

    def __init__(
        self,
        x: csr_matrix,
        tokens: TokensConfig,
        labels: np.ndarray | None = None,
        measured: np.ndarray | None = None,
    ):
        self.x = x
        self.tokens = tokens
        self.lengths = token_counts(x, tokens)
        self.measured = None if measured is None or measured.all() else measured
        self.known_labels = np.empty(0, dtype=np.int64) if labels is None else labels

    def __len__(self) -> int:
        return self.x.shape[0]

    def batch(self, cells: Sequence[int] | np.ndarray, length: int | None = None) -> Batch:
        """Return the tokens of the cells with these row numbers, padded to `length` or the longest cell."""
        return tokenize(self.x[np.asarray(cells)], self.tokens, length, self.measured)

    def labelled_batch(self, cells: Sequence[int] | np.ndarray) -> tuple[Batch, torch.Tensor]:
        """Return the tokens and label indices of the cells with these row numbers."""
        # With few distinct lengths the allocator can reuse the memory of earlier batches.
        length = padded_length(int(self.lengths[np.asarray(cells)].max()))
        return self.batch(cells, length), torch.from_numpy(self.known_labels[np.asarray(cells)])

    def num_steps(self, batch_size: int, world_size: int) -> int:
        """Return the number of steps per epoch, the same in every process."""
        whole, rest = divmod(len(self), batch_size * world_size)
        return whole + (rest >= world_size or whole == 0)

    def epoch_batches(
        self, batch_size: int, *, seed: int, epoch: int, rank: int, world_size: int, first: int = 0
    ) -> Iterator[tuple[Batch, torch.Tensor]]:
        """Yield the batches of one process in an epoch, starting at step `first`."""
        process = {"rank": rank, "world_size": world_size}
        for cells in shared_batches(self.lengths, batch_size, seed=seed, epoch=epoch, **process)[
            first:
        ]:
            yield self.labelled_batch(cells)


def drop_genes(batch: Batch, share: float, in_place: bool = False) -> Batch:
    """Drop a random share (0 to 1) of the gene tokens, drawn from torch's global generator; special positions stay.

    With `in_place`, dropped tokens keep their positions, and `keep_BL` is False there. Otherwise the remaining tokens
    are packed into as few positions as possible.
    """
    last_B1 = batch.keep_BL.sum(1, keepdim=True) - 1
    is_special = torch.zeros_like(batch.keep_BL).scatter(1, last_B1, True)
    draws = torch.rand(batch.keep_BL.shape).to(batch.keep_BL.device)
    kept_BL = batch.keep_BL & ((draws >= share) | is_special)
    kept = Batch(batch.genes_BL, batch.values_BL, batch.x_BL, kept_BL)
    if in_place:
        return kept
    # In their order, so that the special position remains the last of them.
    order = torch.argsort(~kept_BL, dim=1, stable=True)[
        :, : padded_length(int(kept_BL.sum(1).max()))
    ]
    return Batch(*(tensor.gather(1, order) for tensor in kept.tensors))


def shuffled_batches(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, buffer: int = 0
) -> list[np.ndarray]:
    """Return the row numbers of batches of cells of similar length (number of tokens); each cell occurs once.

    `seed`, `epoch` and `buffer` (the number of this part of an epoch's cells) determine the order.
    """
    rng = np.random.default_rng(seed_sequence("batches", seed, epoch, buffer))
    order = rng.permutation(len(lengths))
    batches = []
    pool = POOL_BATCHES * batch_size
    for start in range(0, len(order), pool):
        cells = order[start : start + pool]
        cells = cells[np.argsort(lengths[cells], kind="stable")]
        batches += [cells[i : i + batch_size] for i in range(0, len(cells), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def shared_batches(
    lengths: np.ndarray, batch_size: int, *, seed: int, epoch: int, rank: int, world_size: int
) -> list[np.ndarray]:
    """Return the rows of one process in each batch; together the processes have the batches of a single one."""
    batches = shuffled_batches(lengths, batch_size * world_size, seed, epoch)
    smallest = min(range(len(batches)), key=lambda i: len(batches[i]))
    if len(batches[smallest]) < world_size and len(batches) > 1:
        # The last batch has fewer cells than processes, and a process without cells would block the others.
        rest = batches.pop(smallest)
        batches[0] = np.concatenate([batches[0], rest])
    return [np.resize(batch, max(len(batch), world_size))[rank::world_size] for batch in batches]


def cells_at(length: int, batch_size: int, max_tokens: int) -> int:
    """Return the number of cells of this length in a batch of at most `max_tokens` tokens; at least 1."""
    return min(batch_size, max(1, max_tokens // length))


def prediction_batches(
    lengths: np.ndarray, batch_size: int, max_tokens: int = MAX_BATCH_TOKENS
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield batches of cells with the same padded length, as row numbers and length; each cell occurs once."""
    padded = np.array([padded_length(n) for n in lengths], dtype=np.int64)
    for length in map(int, np.unique(padded)):
        cells = np.flatnonzero(padded == length)
        size = cells_at(length, batch_size, max_tokens)
        for start in range(0, len(cells), size):
            yield cells[start : start + size], length


def prefetch(items: Iterator[Item], num: int = 4) -> Iterator[Item]:
    """Yield the same items; a thread prepares the next `num` of them while an item is used."""
    # Unlike worker processes, a thread opens an HDF5 file only once and copies nothing.
    with ThreadPoolExecutor(1) as pool:
        futures = deque(pool.submit(next, items, END_OF_ITEMS) for _ in range(num))
        while (item := futures.popleft().result()) is not END_OF_ITEMS:
            futures.append(pool.submit(next, items, END_OF_ITEMS))
            yield item  # type: ignore[misc]
