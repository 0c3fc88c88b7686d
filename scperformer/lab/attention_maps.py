"""The inputs of attention in a trained encoder on real cells, and the exact softmax maps of these inputs.

Shape letters: H heads, L tokens, E head width.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from scperformer.attention.encoder import Encoder
from scperformer.model.batches import Cells

log = logging.getLogger(__name__)


@dataclass
class HeadInputs:
    """Queries, keys and values of one cell in one layer, and the position (gene) of each token."""

    q_HLE: torch.Tensor
    k_HLE: torch.Tensor
    v_HLE: torch.Tensor
    positions_L: torch.Tensor

    def exact_map(self, shared_qk: bool = False) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(E)) of each head, H x L x L float64.

        With `shared_qk`, keys are the queries and no token attends to itself; this needs two tokens or more.

        Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1; with `shared_qk`, Kitaev et al. 2020, arXiv
        2001.04451, section 2.
        """
        q_HLE = self.q_HLE.double()
        k_HLE = (self.q_HLE if shared_qk else self.k_HLE).double()
        scores_HLL = q_HLE @ k_HLE.transpose(1, 2) / q_HLE.shape[-1] ** 0.5
        if shared_qk:
            scores_HLL.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        return torch.softmax(scores_HLL, dim=-1)


Layers = Iterable[list[HeadInputs]]  # for each layer, the inputs of each cell


@torch.inference_mode()
def layers_of(encoder: Encoder, cells: Cells, rows: np.ndarray, *, max_tokens: int, seed: int) -> Layers:
    """Yield the inputs of attention of each layer of an encoder in eval mode, for the cells in `rows`.

    Hidden states are computed from all tokens of a cell. At most `max_tokens` of them are returned, a random sample
    that is the same for every layer.
    """
    batches = [cells.batch([row]) for row in rows]  # one cell each, so that there is no padding
    inputs = [encoder.attention_inputs(batch) for batch in batches]
    lengths = [batch.keep_BL.shape[1] for batch in batches]
    chosen = []
    for row, length in zip(rows, lengths, strict=True):
        drawn = np.random.default_rng([seed, int(row)]).permutation(length)[:max_tokens]
        chosen.append(torch.from_numpy(np.sort(drawn)))
    if num_long := sum(length > max_tokens for length in lengths):
        message = "%d of %d cells have more than %d tokens (up to %d): a random sample of %d is used of each"
        log.info(message, num_long, len(lengths), max_tokens, max(lengths), max_tokens)
    if encoder.mechanisms[0].is_causal:
        log.info("the model's attention is causal; here every token attends to all tokens")
    for _ in encoder.stack:
        layer = []
        for cell_inputs, batch, tokens in zip(inputs, batches, chosen, strict=True):
            q_HLE, k_HLE, v_HLE = (x_1HLE[0, :, tokens] for x_1HLE in next(cell_inputs))
            layer.append(HeadInputs(q_HLE, k_HLE, v_HLE, batch.genes_BL[0, tokens]))
        yield layer
