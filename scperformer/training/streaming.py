"""Cells that stay on disk while a network learns from them: blocks of neighbours, shuffled, mixed and sorted by length.

scDataset reads in the same way, but cuts what it has read into batches by chance; ours hold cells of similar length,
without which half of the work would go into padding, and repeat an epoch exactly from (seed, epoch) after a cut.
"""

from collections.abc import Iterator

import numpy as np
import torch

from scperformer.config import TokensConfig
from scperformer.dataset import Stream
from scperformer.network import POOL_BATCHES, Batch, Cells, ahead, drawn_rows, seed_sequence, shuffled_batches

BLOCK_CELLS = 64  # neighbours that are read together
MIN_BUFFER_CELLS = 4096  # mixed with each other: 64 blocks from anywhere


class StreamedCells:
    """Labelled cells on disk, with what training needs of `Cells`.

    Parameters
    ----------
    stream
        The cells to train on.
    tokens
        How cells become tokens.
    sample
        Some of them, in memory: what is fitted before the network learns is fitted on these.
    """

    def __init__(self, stream: Stream, tokens: TokensConfig, sample: Cells):
        self.stream, self.tokens, self.sample = stream, tokens, sample
        self.known_labels = stream.labels

    def __len__(self) -> int:
        return len(self.stream.cells)

    def num_steps(self, batch_size: int, world_size: int) -> int:
        """The steps of an epoch, the same for each of the processes."""
        return -(-len(self) // (batch_size * world_size))

    def epoch_batches(
        self, batch_size: int, *, balance: str, seed: int, epoch: int, rank: int, world_size: int, first: int = 0
    ) -> Iterator[tuple[Batch, torch.Tensor]]:
        """The batches of one process from the step with the number `first` on; with all processes every cell once.

        Each process reads blocks of its own. Where cells cannot be shared out evenly, some are seen twice; with
        `balance` others, too. What comes is a function of (seed, epoch) alone. The next cells are read while the
        network learns from these.
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


def block_order(rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """Row numbers in blocks of neighbours, the blocks in an order given by seed and epoch alone."""
    rng = np.random.default_rng(seed_sequence("blocks", seed, epoch))
    rows = np.roll(rows, rng.integers(len(rows)))  # each epoch has its own blocks
    num_whole = len(rows) // BLOCK_CELLS * BLOCK_CELLS
    shuffled = rng.permutation(rows[:num_whole].reshape(-1, BLOCK_CELLS))
    return np.concatenate([shuffled.ravel(), rows[num_whole:]])
