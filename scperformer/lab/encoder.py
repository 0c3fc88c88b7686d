"""The encoder: an embedding of tokens, layers of attention and feed-forward (layer.py), and a final norm.

Shape letters: B cells, L tokens, D model width, H heads, E head width.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.linear_attention import LinearAttention
from scperformer.attention.registry import all_mechanisms, make_attention
from scperformer.attention.tokens import Batch, Embedding
from scperformer.base.errors import InputError
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.layer import Layer, LayerNorm, cell_by_cell, has_kernels
from scperformer.lab.unexpressed import Memory, Unexpressed


class Encoder(nn.Module):
    """Embedding, layers and final norm: from tokens to one vector per token.

    `tokens.unexpressed=memory` is refused with a mechanism whose sums over keys cannot be added and subtracted, or that
    is causal, as unexpressed genes have no place in the order of tokens.
    """

    def __init__(
        self,
        num_genes: int,
        tokens: TokensConfig,
        model: ModelConfig,
        attention: Mapping[str, Any],
        generator: Generator,
    ):
        super().__init__()
        assert model.head_dim is not None
        sizes = Sizes(num_heads=model.num_heads, head_dim=model.head_dim, length=num_genes + 1)
        self.embedding = Embedding(num_genes, model, tokens)
        self.stack = [
            Layer(model, make_attention(attention, sizes, generator)) for _ in range(model.depth)
        ]
        self.layers = nn.ModuleList(self.stack)
        self.mechanisms: list[Attention] = [layer.attention for layer in self.stack]
        first = self.mechanisms[0]
        for mechanism in self.mechanisms[1:]:
            mechanism.share_with(first)
        self.norm = LayerNorm(model.dim) if model.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(model.dropout)
        # training steps between calls of `redraw`; 0: never
        self.redraw_interval = first.redraw_interval
        self.has_memory = tokens.unexpressed == "memory"
        summable = isinstance(first, LinearAttention) and first.can_subtract
        # Every gene is a token: in the first layer, unexpressed genes have the same keys in all cells.
        self.shares_keys = (
            tokens.unexpressed == "full" and summable and self.stack[0].chunk_tokens is not None
        )
        self.unexpressed = Unexpressed(
            self.embedding, self.stack if self.has_memory else self.stack[:1], self.dropout
        )
        if self.has_memory and (first.is_causal or not summable or model.norm == "batch"):
            suitable = ", ".join(
                name for name, kind in all_mechanisms().items() if kind.sums_over_keys
            )
            causal = (
                " causal"
                if first.is_causal
                else " model.norm=batch and"
                if model.norm == "batch"
                else ""
            )
            epsilon = (
                f" and attention.epsilon={first.options.epsilon}"
                if first.sums_over_keys and not summable
                else ""
            )
            found = f"tokens.unexpressed=memory with{causal} attention={attention['name']}{epsilon}"
            expected = f"attention with sums over keys ({suitable}), not causal, epsilon=null, and layer norm"
            raise InputError(
                "memory-attention",
                found,
                expected,
                "choose one of them, or tokens.unexpressed=skip",
            )

    def forward(self, batch: Batch) -> Tensor:
        """Return the encoded tokens, B x L x D; padding has arbitrary values."""
        return self.encode(self.dropout(self.embedding(batch)), batch)

    def encode(self, h_BLD: Tensor, batch: Batch) -> Tensor:
        memory = self._memory()
        if (
            has_kernels(h_BLD)
            and memory is None
            and isinstance(self.norm, LayerNorm)
            and not self._learns
        ):
            norms = [*(layer.norm_attention for layer in self.stack), self.norm]
            x_BLD = norms[0](h_BLD)
            # each sum with the norm that follows it
            for layer, norm in zip(self.stack, norms[1:], strict=True):
                h_BLD, x_BLD = layer.predicted(h_BLD, x_BLD, batch.keep_BL, batch.genes_BL, norm)
            return x_BLD
        for index in range(len(self.stack)):
            h_BLD = self.after_layer(index, h_BLD, batch, memory)
        return self.norm(h_BLD)

    def after_layer(self, index: int, h_BLD: Tensor, batch: Batch, memory: Memory | None) -> Tensor:
        layer = self.stack[index]
        if memory is not None:
            others = self.unexpressed.others(index, batch, memory)
            return layer.read(h_BLD, layer.key_sums(h_BLD, batch.keep_BL) + others)
        if index == 0 and self.shares_keys and not h_BLD.is_cuda and not self._learns:

            def of_cell(h_1LD: Tensor, *tensors: Tensor) -> Tensor:
                return layer.read(h_1LD, self.unexpressed.first_sums(h_1LD, Batch(*tensors)))

            return cell_by_cell(of_cell, h_BLD, *batch.tensors)
        return layer(h_BLD, batch.keep_BL, batch.genes_BL)

    def _memory(self) -> Memory | None:
        return self.unexpressed.memory(self.training) if self.has_memory else None

    @property
    def _learns(self) -> bool:
        return self.training or torch.is_grad_enabled()

    def attention_inputs(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the queries, keys and values of the tokens in each layer, B x H x L x E each."""
        h_BLD = self.dropout(self.embedding(batch))
        for index, layer in enumerate(self.stack):
            yield layer.queries(h_BLD), *layer.keys_values(h_BLD)
            if index + 1 < len(self.stack):
                h_BLD = self.after_layer(index, h_BLD, batch, self._memory())

    @torch.no_grad()
    def start(self, batch: Batch, generator: Generator) -> None:
        """Initialise the mechanisms from keys of training cells, layer by layer (for example the anchors of rbf)."""
        was_training = self.training
        self.eval()  # no dropout
        for layer, (_, k_BHLE, _) in zip(self.stack, self.attention_inputs(batch), strict=False):
            layer.attention.start(k_BHLE, batch.keep_BL, generator)
        self.train(was_training)

    def redraw(self, generator: Generator) -> None:
        for mechanism in self.mechanisms:
            mechanism.redraw(generator)

    def penalty(self) -> Tensor:
        return sum((m.penalty_weight * m.penalty() for m in self.mechanisms), torch.zeros(()))

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        self.mechanisms[0].require_length(num_tokens, where)
