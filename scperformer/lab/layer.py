"""A layer of the encoder: attention between the tokens, and a feed-forward network on each.

Shape letters: B cells, L tokens, D model width, H heads, E head width, T queries, keys and values.

A layer is computed as a whole or, with linear attention, in two passes over chunks of `chunk_tokens`: first the sums
over keys, then the output of each token from these sums. The features phi then exist for one chunk at a time. (A GPU
takes all tokens at once.) With `checkpointing`, only the input of the layer is stored, and the backward pass computes
each chunk again.
"""

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from scperformer.attention.base import Attention
from scperformer.attention.linear_attention import KeySums, LinearAttention, has_triton
from scperformer.config.training import ModelConfig


def has_kernels(h: Tensor) -> bool:
    """Whether the kernels of norm.py compute norms of this tensor."""
    return h.is_cuda and h.dtype == torch.float32 and has_triton()


def cell_by_cell(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call a function with each cell apart: its result then does not depend on other cells, even in the last bit."""
    outputs = [function(*cell) for cell in zip(*(x.split(1) for x in tensors), strict=True)]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class LayerNorm(nn.LayerNorm):
    """Layer norm; on a GPU in one pass, with the precision of the product that follows."""

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x):
            return super().forward(x)
        from scperformer.lab.norm import layer_norm  # needs Triton

        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        return layer_norm(x, self.weight, self.bias, self.eps, dtype)

    def of_sum(self, h: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sum and its norm, which one kernel of a GPU computes; without gradients."""
        from scperformer.lab.norm import add_norm  # needs Triton

        return add_norm(h.contiguous(), added, self.weight, self.bias, self.eps)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of a training step; prediction uses running means, so that cells are apart."""

    def __init__(self, dim: int):
        super().__init__(dim)
        # not a scalar, which model files do not have
        self.num_batches_tracked = torch.zeros(1, dtype=torch.int64)

    def forward(self, x_BLD: Tensor, keep_BL: Tensor) -> Tensor:  # type: ignore[override]
        out_BLD = torch.zeros_like(x_BLD)
        out_BLD[keep_BL] = super().forward(x_BLD[keep_BL])
        return out_BLD


class Layer(nn.Module):
    """Attention between tokens, then a feed-forward network on each token, both with residual and layer norm."""

    def __init__(self, model: ModelConfig, attention: Attention):
        super().__init__()
        assert model.head_dim is not None
        self.heads = (model.num_heads, model.head_dim)
        self.inner = model.num_heads * model.head_dim
        self.pre_norm = model.norm == "pre"
        # The means of batch norm are over all tokens.
        in_chunks = (
            isinstance(attention, LinearAttention)
            and not attention.is_causal
            and model.norm != "batch"
        )
        self.chunk_tokens = model.chunk_tokens if in_chunks else None
        self.checkpointing = model.checkpointing
        # With post-norm the output of a norm is the next residual, which stays float32.
        norm = {"pre": LayerNorm, "post": nn.LayerNorm, "batch": BatchNorm}[model.norm]
        self.norm_attention = norm(model.dim)
        # rows: queries (also the keys where they are shared), keys, values
        self.to_qkv = nn.Linear(
            model.dim, (2 if attention.shared_qk else 3) * self.inner, bias=False
        )
        self.keys_from = 0 if attention.shared_qk else self.inner
        self.attention: Any = attention
        self.to_out = nn.Linear(self.inner, model.dim)
        self.norm_feedforward = norm(model.dim)
        hidden = model.feedforward or 4 * model.dim
        activation = {"gelu": nn.GELU, "relu": nn.ReLU}[model.activation]()
        self.feedforward = nn.Sequential(
            nn.Linear(model.dim, hidden), activation, nn.Linear(hidden, model.dim)
        )
        self.dropout = nn.Dropout(model.dropout)

    def projected(self, h_BLD: Tensor, weight: Tensor) -> Tensor:
        """Project tokens with `weight`, rows of `to_qkv`: T x B x H x L x E; T is up to 3 (queries, keys, values)."""
        return self._in_heads(self.norm_attention(h_BLD) if self.pre_norm else h_BLD, weight)

    def _in_heads(self, x_BLD: Tensor, weight: Tensor) -> Tensor:
        return linear(x_BLD, weight).unflatten(-1, (-1, *self.heads)).permute(2, 0, 3, 1, 4)

    def queries(self, h_BLD: Tensor) -> Tensor:
        """Return the queries of tokens, B x H x L x E."""
        return self.projected(h_BLD, self.to_qkv.weight[: self.inner])[0]

    def keys_values(self, h_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of tokens, B x H x L x E each."""
        return self.projected(h_BLD, self.to_qkv.weight[self.keys_from :]).unbind(0)  # type: ignore[return-value]

    def finished(self, h_BLD: Tensor, mixed_BHLE: Tensor, keep_BL: Tensor | None = None) -> Tensor:
        """Return the layer's output for tokens, given the mixed values of the attention; batch norm needs `keep_BL`."""
        norm = self.norm_feedforward
        h_BLD = h_BLD + self.dropout(self.to_out(mixed_BHLE.transpose(1, 2).flatten(2)))
        if self.pre_norm:
            return h_BLD + self.dropout(self.feedforward(norm(h_BLD)))
        real = (keep_BL,) if isinstance(norm, BatchNorm) else ()
        h_BLD = self.norm_attention(h_BLD, *real)
        return norm(h_BLD + self.dropout(self.feedforward(h_BLD)), *real)

    def forward(self, h_BLD: Tensor, keep_BL: Tensor, positions_BL: Tensor) -> Tensor:
        """Return the layer's output for tokens that attend to each other, B x L x D, as a whole or in chunks."""
        is_long = self.chunk_tokens is not None and h_BLD.shape[1] > self.chunk_tokens
        if is_long and not h_BLD.is_cuda:  # on a GPU chunks would be thousands of small kernels
            return cell_by_cell(
                lambda h_1LD, keep_1L: self.read(h_1LD, self.key_sums(h_1LD, keep_1L)),
                h_BLD,
                keep_BL,
            )
        return self._recomputed(self._whole)(h_BLD, keep_BL, positions_BL)

    def _whole(self, h_BLD: Tensor, keep_BL: Tensor, positions_BL: Tensor) -> Tensor:
        qkv_TBHLE = self.projected(h_BLD, self.to_qkv.weight)
        return self.finished(
            h_BLD, self.attention.packed(qkv_TBHLE, keep_BL, positions_BL), keep_BL
        )

    def key_sums(self, h_BLD: Tensor, keep_BL: Tensor) -> KeySums:
        """Return the sums over the keys of tokens, chunk by chunk, for linear attention."""
        return reduce(
            add, map(self._recomputed(self.chunk_sums), self.chunks(h_BLD), self.chunks(keep_BL))
        )

    def chunk_sums(self, h_BLD: Tensor, keep_BL: Tensor) -> KeySums:
        # Without a mask, if all tokens are real, this takes a tenth less time. (On a GPU the check would synchronise.)
        all_real = not keep_BL.is_cuda and bool(keep_BL.all())
        return self.attention.key_sums(*self.keys_values(h_BLD), None if all_real else keep_BL)

    def read(self, h_BLD: Tensor, sums: KeySums) -> Tensor:
        """Return the layer's output for tokens, chunk by chunk, given the sums over all keys."""
        read_chunk = self._recomputed(self.read_chunk)
        return torch.cat([read_chunk(chunk_BLD, sums) for chunk_BLD in self.chunks(h_BLD)], dim=1)

    def read_chunk(self, h_BLD: Tensor, sums: KeySums) -> Tensor:
        return self.finished(h_BLD, self.attention.read(self.queries(h_BLD), sums))

    def chunks(self, x_BL: Tensor) -> tuple[Tensor, ...]:
        """Split into parts of at most `chunk_tokens` tokens; without that option, one part."""
        return x_BL.split(self.chunk_tokens or x_BL.shape[1], dim=1)

    def _recomputed(self, function: Callable) -> Callable:
        """With `checkpointing`, let the backward pass call the function again instead of storing what it computes."""
        needed = self.checkpointing and torch.is_grad_enabled()
        return partial(checkpoint, function, use_reentrant=False) if needed else function

    def predicted(
        self, h_BLD: Tensor, x_BLD: Tensor, keep_BL: Tensor, positions_BL: Tensor, norm: LayerNorm
    ):
        """Return the layer's output and its norm, given tokens and their norm, without gradients, on a GPU.

        In bfloat16, a product and GELU are one kernel. This has the tanh form of GELU, but does not round the product:
        its error is 1.7e-3; two kernels have 2.7e-3.
        """
        mixed_BHLE = self.attention.packed(
            self._in_heads(x_BLD, self.to_qkv.weight), keep_BL, positions_BL
        )
        added_BLD = self.to_out(mixed_BHLE.transpose(1, 2).flatten(2))
        h_BLD, x_BLD = self.norm_feedforward.of_sum(h_BLD, added_BLD)
        first, activation, last = self.feedforward
        if isinstance(activation, nn.GELU) and x_BLD.dtype == torch.bfloat16:
            weight, bias = (x.to(x_BLD.dtype) for x in first.parameters())
            hidden = torch._addmm_activation(bias, x_BLD.flatten(0, 1), weight.T, use_gelu=True)
            return norm.of_sum(h_BLD, last(hidden).view_as(x_BLD))
        return norm.of_sum(h_BLD, self.feedforward(x_BLD))
