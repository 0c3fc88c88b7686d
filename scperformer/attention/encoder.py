"""The encoder: layers of attention between the tokens and a feed-forward network on each.

Shape letters: B cells, L tokens, D model width, H heads, E head width, M features, G genes.

A layer is computed as a whole or, with an additive mechanism, in two passes over chunks of `chunk_tokens`: first the
sums over keys, then the output of each token from these sums. The features phi then exist for one chunk at a time.
(A GPU takes all tokens at once.) With `checkpointing`, only the input of the layer is stored, and
the backward pass computes each chunk again.

With `tokens.unexpressed=memory`, unexpressed genes are keys and values but not tokens. All genes at value 0 pass
through the layers once for all cells; for each cell, its expressed genes are subtracted from the sums over keys. With
`tokens.unexpressed=full` and chunks, prediction does the same in the first layer.
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.linear_attention import KeySums, LinearAttention, has_triton
from scperformer.attention.registry import MECHANISMS, make_attention
from scperformer.attention.tokens import Batch, Embedding
from scperformer.base.errors import InputError
from scperformer.config.training import ModelConfig, TokensConfig

# If a cell expresses more than this share of the genes, its unexpressed genes are summed directly: the difference of
# nearly equal sums would be mostly rounding error.
MAX_EXPRESSED_SHARE = 1 / 3
Memory = list[tuple[Tensor, KeySums]]  # for each layer: its input for all genes at value 0, and their sums over keys


def weights_state(module: nn.Module) -> list[Any]:
    """Return the addresses and versions of all weights, which change if any weight does."""
    weights = module.state_dict(keep_vars=True).values()
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def has_kernels(h: Tensor) -> bool:
    """Whether the kernels of norm.py compute norms of this tensor."""
    return h.is_cuda and h.dtype == torch.float32 and has_triton()


class LayerNorm(nn.LayerNorm):
    """Layer norm; on a GPU in one pass, with the precision of the product that follows."""

    def forward(self, x: Tensor) -> Tensor:
        if not has_kernels(x):
            return super().forward(x)
        from scperformer.attention.norm import layer_norm  # needs Triton

        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        return layer_norm(x, self.weight, self.bias, self.eps, dtype)

    def of_sum(self, h: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return a sum and its norm, which one kernel of a GPU computes; without gradients."""
        from scperformer.attention.norm import add_norm  # needs Triton

        return add_norm(h.contiguous(), added, self.weight, self.bias, self.eps)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm over the real tokens of a training step; prediction uses running means, so that cells are apart."""

    def __init__(self, dim: int):
        super().__init__(dim)
        self.num_batches_tracked = torch.zeros(1, dtype=torch.int64)  # not a scalar, which model files do not have

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
        in_chunks = isinstance(attention, LinearAttention) and not attention.is_causal and model.norm != "batch"
        self.chunk_tokens = model.chunk_tokens if in_chunks else None
        self.checkpointing = model.checkpointing
        # With post-norm the output of a norm is the next residual, which stays float32.
        norm = {"pre": LayerNorm, "post": nn.LayerNorm, "batch": BatchNorm}[model.norm]
        self.norm_attention = norm(model.dim)
        # rows: queries (also the keys where they are shared), keys, values
        self.to_qkv = nn.Linear(model.dim, (2 if attention.shared_qk else 3) * self.inner, bias=False)
        self.keys_from = 0 if attention.shared_qk else self.inner
        self.attention = attention
        self.to_out = nn.Linear(self.inner, model.dim)
        self.norm_feedforward = norm(model.dim)
        hidden = model.feedforward or 4 * model.dim
        activation = {"gelu": nn.GELU, "relu": nn.ReLU}[model.activation]()
        self.feedforward = nn.Sequential(nn.Linear(model.dim, hidden), activation, nn.Linear(hidden, model.dim))
        self.dropout = nn.Dropout(model.dropout)

    def projected(self, h_BLD: Tensor, weight: Tensor) -> Tensor:
        """Project tokens with `weight`, rows of `to_qkv`: T x B x H x L x E; T is up to 3 (queries, keys, values)."""
        return self.in_heads(self.norm_attention(h_BLD) if self.pre_norm else h_BLD, weight)

    def in_heads(self, x_BLD: Tensor, weight: Tensor) -> Tensor:
        """Return `projected`, given the normed tokens."""
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

    def predicted(self, h_BLD: Tensor, x_BLD: Tensor, keep_BL: Tensor, positions_BL: Tensor, norm: LayerNorm):
        """Return the layer's output and its norm, given tokens and their norm, without gradients, on a GPU.

        In bfloat16, a product and GELU are one kernel. This has the tanh form of GELU, but does not round the product:
        its error is 1.7e-3; two kernels have 2.7e-3.
        """
        mixed_BHLE = self.attention.packed(self.in_heads(x_BLD, self.to_qkv.weight), keep_BL, positions_BL)
        added_BLD = self.to_out(mixed_BHLE.transpose(1, 2).flatten(2))
        h_BLD, x_BLD = self.norm_feedforward.of_sum(h_BLD, added_BLD)
        first, activation, last = self.feedforward
        if isinstance(activation, nn.GELU) and x_BLD.dtype == torch.bfloat16:
            weight, bias = (x.to(x_BLD.dtype) for x in first.parameters())
            hidden = torch._addmm_activation(bias, x_BLD.flatten(0, 1), weight.T, use_gelu=True)
            return norm.of_sum(h_BLD, last(hidden).view_as(x_BLD))
        return norm.of_sum(h_BLD, self.feedforward(x_BLD))

    def forward(self, h_BLD: Tensor, keep_BL: Tensor, positions_BL: Tensor) -> Tensor:
        """Return the layer's output for tokens that attend to each other, B x L x D, as a whole or in chunks."""
        is_long = self.chunk_tokens is not None and h_BLD.shape[1] > self.chunk_tokens
        if is_long and not h_BLD.is_cuda:  # on a GPU chunks would be thousands of small kernels
            # Cell by cell, so that the result of a cell does not depend on the other cells, not even in its last bit.
            cells = zip(h_BLD.split(1), keep_BL.split(1), strict=True)
            outputs = [self.read(h_1LD, self.key_sums(h_1LD, keep_1L)) for h_1LD, keep_1L in cells]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return self._recomputed(self._whole)(h_BLD, keep_BL, positions_BL)

    def _whole(self, h_BLD, keep_BL, positions_BL):
        qkv_TBHLE = self.projected(h_BLD, self.to_qkv.weight)
        return self.finished(h_BLD, self.attention.packed(qkv_TBHLE, keep_BL, positions_BL), keep_BL)

    def chunks(self, x_BL: Tensor) -> tuple[Tensor, ...]:
        """Split into parts of at most `chunk_tokens` tokens; without that option, one part."""
        return x_BL.split(self.chunk_tokens or x_BL.shape[1], dim=1)

    def chunk_sums(self, h_BLD: Tensor, keep_BL: Tensor) -> KeySums:
        """Return the sums over the keys of one chunk."""
        assert isinstance(self.attention, LinearAttention)
        # Without a mask, if all tokens are real, this takes a tenth less time. (On a GPU the check would synchronise.)
        all_real = not keep_BL.is_cuda and bool(keep_BL.all())
        return self.attention.key_sums(*self.keys_values(h_BLD), None if all_real else keep_BL)

    def key_sums(self, h_BLD: Tensor, keep_BL: Tensor) -> KeySums:
        """Return the sums over the keys of tokens, chunk by chunk, for additive mechanisms."""
        return reduce(add, map(self._recomputed(self.chunk_sums), self.chunks(h_BLD), self.chunks(keep_BL)))

    def read(self, h_BLD: Tensor, sums: KeySums) -> Tensor:
        """Return the layer's output for tokens, chunk by chunk, given the sums over all keys."""
        read_chunk = self._recomputed(self.read_chunk)
        return torch.cat([read_chunk(chunk_BLD, sums) for chunk_BLD in self.chunks(h_BLD)], dim=1)

    def read_chunk(self, h_BLD: Tensor, sums: KeySums) -> Tensor:
        """Return the layer's output for one chunk, given the sums over all keys."""
        assert isinstance(self.attention, LinearAttention)
        return self.finished(h_BLD, self.attention.read(self.queries(h_BLD), sums))

    def _recomputed(self, function: Callable) -> Callable:
        """With `checkpointing`, let the backward pass call the function again instead of storing what it computes."""
        needed = self.checkpointing and torch.is_grad_enabled()
        return partial(checkpoint, function, use_reentrant=False) if needed else function


class Encoder(nn.Module):
    """Embedding, layers and final norm: from tokens to one vector per token.

    `tokens.unexpressed=memory` is refused with a mechanism whose sums over keys cannot be added and subtracted, or that
    is causal, as unexpressed genes have no place in the order of tokens.
    """

    def __init__(
        self, num_genes: int, tokens: TokensConfig, model: ModelConfig, attention: dict[str, Any], generator: Generator
    ):
        super().__init__()
        assert model.head_dim is not None
        sizes = Sizes(num_heads=model.num_heads, head_dim=model.head_dim, length=num_genes + 1)
        self.embedding = Embedding(num_genes, model, tokens)
        self.stack = [Layer(model, make_attention(attention, sizes, generator)) for _ in range(model.depth)]
        self.layers = nn.ModuleList(self.stack)
        self.mechanisms = [layer.attention for layer in self.stack]
        for mechanism in self.mechanisms[1:]:
            mechanism.share_with(self.mechanisms[0])
        self.norm = LayerNorm(model.dim) if model.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(model.dropout)
        self.has_memory = tokens.unexpressed == "memory"
        self.kept_memory: tuple[list[Any], Memory] | None = None  # the state it was computed from, and the memory
        self.measured_G: Tensor | None = None  # bool, genes that occur in the file of the cells; None: all
        first = self.mechanisms[0]
        self.redraw_interval = first.redraw_interval  # training steps between calls of `redraw`; 0: never
        summable = isinstance(first, LinearAttention) and first.can_subtract
        # Every gene is a token: in the first layer, unexpressed genes have the same keys in all cells.
        self.shares_keys = tokens.unexpressed == "full" and summable and self.stack[0].chunk_tokens is not None
        if self.has_memory and (first.is_causal or not summable or model.norm == "batch"):
            suitable = ", ".join(name for name, mechanism in MECHANISMS.items() if mechanism.sums_over_keys)
            causal = " causal" if first.is_causal else " model.norm=batch and" if model.norm == "batch" else ""
            epsilon = f" and attention.epsilon={first.options.epsilon}" if first.sums_over_keys and not summable else ""
            found = f"tokens.unexpressed=memory with{causal} attention={attention['name']}{epsilon}"
            expected = f"attention with sums over keys ({suitable}), not causal, epsilon=null, and layer norm"
            raise InputError("memory-attention", found, expected, "choose one of them, or tokens.unexpressed=skip")

    def redraw(self, generator: Generator) -> None:
        """Draw the random parts of every layer's attention again (only during training)."""
        for mechanism in self.mechanisms:
            mechanism.redraw(generator)

    def penalty(self) -> Tensor:
        """Return the weighted sum of the penalties of all layers' attention."""
        return sum((m.penalty_weight * m.penalty() for m in self.mechanisms), torch.zeros(()))

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        """Refuse this number of tokens if the attention does."""
        for mechanism in self.mechanisms[:1]:
            mechanism.require_length(num_tokens, where)

    def forward(self, batch: Batch) -> Tensor:
        """Return the encoded tokens, B x L x D; padding has arbitrary values."""
        return self.encode(self.dropout(self.embedding(batch)), batch)

    def encode(self, h_BLD: Tensor, batch: Batch) -> Tensor:
        """Return the encoded tokens, given the embedded tokens."""
        memory = self.memory() if self.has_memory else None
        learns = self.training or torch.is_grad_enabled()
        if has_kernels(h_BLD) and memory is None and isinstance(self.norm, LayerNorm) and not learns:
            norms = [*(layer.norm_attention for layer in self.stack), self.norm]
            x_BLD = norms[0](h_BLD)
            for layer, norm in zip(self.stack, norms[1:], strict=True):  # each sum with the norm that follows it
                h_BLD, x_BLD = layer.predicted(h_BLD, x_BLD, batch.keep_BL, batch.genes_BL, norm)
            return x_BLD
        for index in range(len(self.stack)):
            h_BLD = self.after_layer(index, h_BLD, batch, memory)
        return self.norm(h_BLD)

    def after_layer(self, index: int, h_BLD: Tensor, batch: Batch, memory: Memory | None) -> Tensor:
        """Return the output of a layer for the input `h_BLD`."""
        layer = self.stack[index]
        if memory is None:
            learns = self.training or torch.is_grad_enabled()
            if index == 0 and self.shares_keys and not h_BLD.is_cuda and not learns:
                cells = zip(h_BLD.split(1), *(x.split(1) for x in batch.tensors), strict=True)
                outputs = [layer.read(h_1LD, self.first_sums(h_1LD, Batch(*tensors))) for h_1LD, *tensors in cells]
                return torch.cat(outputs)
            return layer(h_BLD, batch.keep_BL, batch.genes_BL)
        # `others`: the sums over genes that are not tokens of a cell. (Genes dropped in training are still tokens.)
        h_1GD, sums = memory[index]
        h_GD = h_1GD[0]
        is_gene_BL = batch.genes_BL < len(h_GD)  # special positions and padding have index G
        others = sums + -layer.key_sums(h_GD[batch.genes_BL.clamp_max(len(h_GD) - 1)], is_gene_BL)
        rows = torch.nonzero(is_gene_BL.sum(1) > MAX_EXPRESSED_SHARE * len(h_GD)).flatten()
        if len(rows):
            others_BG = is_gene_BL.new_ones(len(rows), len(h_GD) + 1)
            others_BG = others_BG.scatter(1, batch.genes_BL[rows], False)[:, :-1]
            if self.measured_G is not None:
                others_BG &= self.measured_G.to(others_BG.device)
            others = others.replaced(rows, layer.key_sums(h_GD.expand(len(rows), -1, -1), others_BG))
        return layer.read(h_BLD, layer.key_sums(h_BLD, batch.keep_BL) + others)

    def first_sums(self, h_1LD: Tensor, cell: Batch) -> KeySums:
        """Return the sums over the keys of a cell in the first layer, from those of all genes at value 0."""
        layer = self.stack[0]
        h_1GD, sums = self.memory()[0]
        num_genes = h_1GD.shape[1]
        keep_L = cell.keep_BL[0]
        differs_L = (cell.values_BL[0] != 0) | ~keep_L
        differs_L[num_genes:] = True  # the special position
        in_order = torch.equal(cell.genes_BL[0], torch.arange(num_genes + 1))
        if not in_order or differs_L.sum() > MAX_EXPRESSED_SHARE * num_genes:
            return layer.key_sums(h_1LD, cell.keep_BL)
        in_sums_G = differs_L[:num_genes]
        if self.measured_G is not None:
            in_sums_G = in_sums_G & self.measured_G
        for x_1LD, chosen_L, sign in ((h_1GD, in_sums_G, -1), (h_1LD, differs_L & keep_L, 1)):
            if chosen_L.any():
                part = layer.key_sums(x_1LD[:, chosen_L], chosen_L[chosen_L][None])
                sums = sums + (part if sign > 0 else -part)
        return sums

    def attention_inputs(self, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the queries, keys and values of the tokens in each layer, B x H x L x E each."""
        h_BLD = self.dropout(self.embedding(batch))
        for index, layer in enumerate(self.stack):
            yield layer.queries(h_BLD), *layer.keys_values(h_BLD)
            if index + 1 < len(self.stack):
                h_BLD = self.after_layer(index, h_BLD, batch, self.memory() if self.has_memory else None)

    def memory(self) -> Memory:
        """Return the memory of all measured genes at value 0; in prediction it is computed once and kept."""
        # It is computed again if a weight, its address, the precision or the measured genes change.
        state: list[Any] | None = None
        if not self.training and not torch.is_grad_enabled():
            device = next(self.parameters()).device.type
            state = weights_state(self)
            state.append(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)
            state.append(None if self.measured_G is None else self.measured_G.numpy().tobytes())
            if self.kept_memory is not None and self.kept_memory[0] == state:
                return self.kept_memory[1]
        memory: Memory = []
        h_1GD = self.dropout(self.embedding.unexpressed())
        keep_1G = torch.ones(h_1GD.shape[:2], dtype=torch.bool, device=h_1GD.device)
        if self.measured_G is not None:
            keep_1G &= self.measured_G.to(h_1GD.device)
        stack = self.stack if self.has_memory else self.stack[:1]
        for layer in stack:
            memory.append((h_1GD, layer.key_sums(h_1GD, keep_1G)))
            if len(memory) < len(stack):
                h_1GD = layer.read(*memory[-1])
        self.kept_memory = None if state is None else (state, memory)
        return memory

    @torch.no_grad()
    def start(self, batch: Batch, generator: Generator) -> None:
        """Initialise the mechanisms from keys of training cells, layer by layer (for example the anchors of rbf)."""
        was_training = self.training
        self.eval()  # no dropout
        for layer, (_, k_BHLE, _) in zip(self.stack, self.attention_inputs(batch), strict=False):
            layer.attention.start(k_BHLE, batch.keep_BL, generator)
        self.train(was_training)
