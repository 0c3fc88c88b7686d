"""What the attention of a trained encoder is given on real cells: queries, keys and values, layer after layer.

Shape letters: H heads, L tokens, E head width.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from scperformer.network import Batch, Cells, Encoder

log = logging.getLogger(__name__)


@dataclass
class HeadInputs:
    """Queries, keys and values of one cell in one layer, and which position (gene) each token has."""

    q_HLE: torch.Tensor
    k_HLE: torch.Tensor
    v_HLE: torch.Tensor
    positions_L: torch.Tensor

    def exact_map(self, shared_qk: bool = False) -> torch.Tensor:
        """softmax(Q K^T / sqrt(E)) of each head, H x L x L, float64: every token sees every token.

        With `shared_qk`, softmax(Q Q^T / sqrt(E)) in which no token sees itself (there are two at least): what
        mechanisms whose queries are the keys too come near to (Kitaev et al. 2020, arXiv 2001.04451, section 2).

        Source
        ------
        Vaswani et al. 2017, arXiv 1706.03762, equation 1.
        """
        q_HLE, k_HLE = self.q_HLE.double(), (self.q_HLE if shared_qk else self.k_HLE).double()
        scores_HLL = q_HLE @ k_HLE.transpose(1, 2) / q_HLE.shape[-1] ** 0.5
        if shared_qk:
            scores_HLL.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        return torch.softmax(scores_HLL, dim=-1)


def choose_cells(cells: Cells, num_cells: int, seed: int) -> np.ndarray:
    """Row numbers of cells that express something, drawn without repetition; all of them if there are no more."""
    rows = np.flatnonzero(np.diff(cells.x.indptr))
    return np.sort(np.random.default_rng(seed).permutation(rows)[:num_cells])


@torch.inference_mode()
def layers_of(
    encoder: Encoder, cells: Cells, rows: np.ndarray, *, max_tokens: int, seed: int
) -> Iterator[list[HeadInputs]]:
    """For each layer of an encoder in eval mode, what its attention is given: one entry per cell.

    Hidden states come from all tokens of a cell; of a cell with more than `max_tokens`, as many of its tokens are
    drawn once and the same ones are given for every layer.

    Parameters
    ----------
    rows
        The cells to look at, row numbers of `cells`.
    """
    walks, chosen = [], []
    for row in rows:
        batch = cells.batch([row])  # alone, so that no position is padding
        num_tokens = batch.keep_BL.shape[1]
        rng = np.random.default_rng([seed, int(row)])
        chosen.append(torch.from_numpy(np.sort(rng.permutation(num_tokens)[:max_tokens])))
        walks.append((encoder.attention_inputs(batch), batch))
    lengths = [batch.keep_BL.shape[1] for _, batch in walks]
    if num_long := sum(length > max_tokens for length in lengths):
        log.info(
            "%d of %d cells have more than %d tokens (at most %d): as many tokens of each are drawn at random",
            num_long,
            len(lengths),
            max_tokens,
            max(lengths),
        )
    if encoder.mechanisms[0].is_causal:
        log.info("the model's attention is causal; here every token sees every token")
    for _ in encoder.stack:
        yield [_taken(walk, batch, tokens) for (walk, batch), tokens in zip(walks, chosen, strict=True)]


def _taken(walk: Iterator[tuple[torch.Tensor, ...]], batch: Batch, tokens: torch.Tensor) -> HeadInputs:
    q_HLE, k_HLE, v_HLE = (x_1HLE[0, :, tokens] for x_1HLE in next(walk))
    return HeadInputs(q_HLE, k_HLE, v_HLE, batch.genes_BL[0, tokens])
