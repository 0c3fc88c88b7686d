"""Exact softmax attention, the reference for the others: softmax(Q K^T / sqrt(E)) V."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from scperformer.attention.base import Attention
from scperformer.config import AttentionConfig
from scperformer.errors import InputError


class Softmax(Attention):
    """softmax(Q K^T / sqrt(E)) V through torch's fused kernel.

    Source
    ------
    Vaswani et al. 2017, arXiv 1706.03762, equation 1.
    """

    quadratic = True
    order_sensitive = False

    def __init__(self, head_dim: int, config: AttentionConfig, generator: torch.Generator):
        super().__init__()
        self.max_length = config.max_length

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL):
        length = q_BHLE.shape[2]
        if length > self.max_length:
            # Prediction pads more than training does: what counts is real tokens (looked at only when in doubt).
            length = int(keep_BL.sum(1).max())
        if length > self.max_length:
            raise InputError(
                f"{length} tokens in a cell",
                f"at most {self.max_length} with exact attention, whose cost grows with the square",
                f"train with attention=favor, tokens.unexpressed=skip or attention.max_length={length}",
            )
        return scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, attn_mask=keep_BL[:, None, None, :])
