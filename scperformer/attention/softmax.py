"""Exact softmax attention, the reference for all mechanisms."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from scperformer.attention.base import Attention, AttentionOptions, zeroed
from scperformer.base.errors import InputError
from scperformer.config.options import ONE_OR_MORE, option

MIN_EXPRESSION = 1e-30  # smallest expression that counts
CAUSAL_BLOCK = 256  # queries processed at a time, which limits the size of the mask


class Softmax(Attention):
    """softmax(Q K^T / sqrt(E)) V through torch's fused kernel.

    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        max_length: int = option(4096, rule=ONE_OR_MORE)  # more tokens than this are refused
        causal: bool = False  # a token sees only itself and those before it

    quadratic = True
    causal = True
    uses_cross_attention = True

    def read_genes(self, q_BHLE: Tensor, sums_BW: Tensor, k_GE: Tensor, v_GE: Tensor) -> Tensor:
        return self._weights(q_BHLE, k_GE, sums_BW) @ v_GE

    def gene_weights(self, q_BHE: Tensor, k_GE: Tensor, x_BG: Tensor) -> Tensor:
        return self._weights(q_BHE.unsqueeze(2), k_GE, x_BG).squeeze(2)

    def _weights(self, q_BHLE: Tensor, k_GE: Tensor, x_BG: Tensor) -> Tensor:
        """Return the weights of the genes for each query, B x H x L x G."""
        scores_BHLG = q_BHLE @ k_GE.T / k_GE.shape[1] ** 0.5
        # A gene of expression x counts as x tokens with the same key: exp(score) x = exp(score + ln x).
        logs_B11G = x_BG.clamp_min(MIN_EXPRESSION).log()[:, None, None]
        is_silent_B11G = (x_BG <= 0)[:, None, None]
        scores_BHLG = (scores_BHLG + logs_B11G).masked_fill(
            is_silent_B11G, torch.finfo(x_BG.dtype).min
        )
        return torch.softmax(scores_BHLG, dim=-1)

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        if num_tokens > self.options.max_length:
            expected = f"at most {self.options.max_length} with exact attention, whose cost grows with the square"
            remedy = f"train with attention=favor, tokens.unexpressed=skip or attention.max_length={num_tokens}"
            raise InputError("too-many-tokens", f"{num_tokens} tokens in {where}", expected, remedy)

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        length = q_BHLE.shape[2]
        if length > self.options.max_length:
            # Prediction pads cells more than training does: the limit is on real tokens.
            self.require_length(int(keep_BL.sum(1).max()))
        k_BHLE, v_BHLE = (zeroed(x, keep_BL).to(x.dtype) for x in (k_BHLE, v_BHLE))
        mask_B11L = keep_BL[:, None, None, :]
        if not self.options.causal:
            return scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, attn_mask=mask_B11L)
        out = []
        for start in range(0, length, CAUSAL_BLOCK):  # a mask of all pairs would have L x L entries
            stop = min(start + CAUSAL_BLOCK, length)
            earlier_CL = torch.ones(
                stop - start, stop, dtype=torch.bool, device=keep_BL.device
            ).tril(start)
            mask = mask_B11L[..., :stop] & earlier_CL
            qkv = q_BHLE[:, :, start:stop], k_BHLE[:, :, :stop], v_BHLE[:, :, :stop]
            # Tokens before the first real token attend to nothing: their output is arbitrary, but must be finite.
            out.append(scaled_dot_product_attention(*qkv, attn_mask=mask).nan_to_num(nan=0.0))
        return torch.cat(out, dim=2)
