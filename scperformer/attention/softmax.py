"""Exact softmax attention, the reference for the others: softmax(Q K^T / sqrt(E)) V."""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from scperformer.attention.base import Attention, Sizes
from scperformer.config import require
from scperformer.errors import InputError

CAUSAL_BLOCK = 256  # queries whose mask exists at a time


@dataclass(kw_only=True)
class SoftmaxOptions:
    """Options of `attention=softmax`."""

    max_length: int = 4096  # more tokens than this are refused
    causal: bool = False  # a token sees only itself and those before it

    def __post_init__(self) -> None:
        require(self.max_length >= 1, "attention.max_length", self.max_length, "1 or more")


class Softmax(Attention):
    """softmax(Q K^T / sqrt(E)) V through torch's fused kernel.

    Source
    ------
    Vaswani et al. 2017, arXiv 1706.03762, equation 1.
    """

    Options = SoftmaxOptions
    quadratic = True
    causal = True

    def __init__(self, sizes: Sizes, options: SoftmaxOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.max_length = options.max_length

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        if num_tokens > self.max_length:
            raise InputError(
                f"{num_tokens} tokens in {where}",
                f"at most {self.max_length} with exact attention, whose cost grows with the square",
                f"train with attention=favor, tokens.unexpressed=skip or attention.max_length={num_tokens}",
            )

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        length = q_BHLE.shape[2]
        if length > self.max_length:
            # Prediction pads more than training does; the limit is on real tokens, counted only here, where in doubt.
            self.require_length(int(keep_BL.sum(1).max()))
        k_BHLE, v_BHLE = (x.masked_fill(~keep_BL[:, None, :, None], 0.0) for x in (k_BHLE, v_BHLE))  # 0 * nan is not 0
        mask_B11L = keep_BL[:, None, None, :]
        if not self.options.causal:
            return scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, attn_mask=mask_B11L)
        out = []
        for start in range(0, length, CAUSAL_BLOCK):  # a mask of all pairs would take L x L
            seen = min(start + CAUSAL_BLOCK, length)
            earlier_CL = torch.ones(seen - start, seen, dtype=torch.bool, device=keep_BL.device).tril(start)
            mask = mask_B11L[..., :seen] & earlier_CL
            q, k, v = q_BHLE[:, :, start:seen], k_BHLE[:, :, :seen], v_BHLE[:, :, :seen]
            # Tokens before the first real one see nothing: their output means nothing, but must be finite.
            out.append(scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num(nan=0.0))
        return torch.cat(out, dim=2)
