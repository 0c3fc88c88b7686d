"""The network: gene + expression embedding -> encoder -> pooling -> labels, beside a linear (wide) branch.

Shape letters: B cells, L tokens, D model width, H heads, E head width, C labels, G genes.
"""

from dataclasses import dataclass

import torch
from torch import nn

from scperformer.attention import MECHANISMS, Attention
from scperformer.config import AttentionConfig, HeadConfig, ModelConfig, TokensConfig
from scperformer.errors import InputError
from scperformer.tokens import CellTokens, num_tokens

EMBEDDING_STD = 0.1  # of a gene's and of a bin's embedding at the start
TYPICAL_X = 4.0  # ln(1 + cp10k) of an expressed gene is about 1 to 6


@dataclass
class Batch:
    """Tokens of some cells as tensors; fields as in `tokens.CellTokens`."""

    genes_BL: torch.Tensor
    values_BL: torch.Tensor
    x_BL: torch.Tensor
    keep_BL: torch.Tensor

    @classmethod
    def from_tokens(cls, tokens: CellTokens) -> "Batch":
        arrays = (tokens.genes, tokens.values, tokens.x, tokens.keep)
        return cls(*(torch.from_numpy(array) for array in arrays))

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(*(tensor.to(device) for tensor in (self.genes_BL, self.values_BL, self.x_BL, self.keep_BL)))


class ContinuousEmbedding(nn.Module):
    """Embeds the value itself: a two-layer network from one number to D."""

    def __init__(self, dim: int):
        super().__init__()
        last = nn.Linear(dim, dim)
        self.layers = nn.Sequential(nn.Linear(1, dim), nn.GELU(), last)
        # The value must not drown which gene it belongs to: larger, and even easy labels are not learned.
        nn.init.normal_(last.weight, std=2 * EMBEDDING_STD / dim**0.5)
        nn.init.zeros_(last.bias)

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        return self.layers(x_BL.unsqueeze(-1) / TYPICAL_X)


class Embedding(nn.Module):
    """Gene embedding (which gene, as a position) + expression embedding (how much)."""

    def __init__(self, num_genes: int, dim: int, tokens: TokensConfig):
        super().__init__()
        self.gene = nn.Embedding(num_genes + 1, dim)  # the last row is the special position
        nn.init.normal_(self.gene.weight, std=EMBEDDING_STD)
        if tokens.name == "continuous":
            self.expression: nn.Module = ContinuousEmbedding(dim)
        else:
            self.expression = nn.Embedding(num_tokens(tokens), dim)
            nn.init.normal_(self.expression.weight, std=EMBEDDING_STD)

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.gene(batch.genes_BL) + self.expression(batch.values_BL)


class Layer(nn.Module):
    """One pre-norm encoder layer: attention between the tokens, then a feed-forward network on each."""

    def __init__(self, model: ModelConfig, attention: AttentionConfig, generator: torch.Generator):
        super().__init__()
        inner = model.num_heads * model.head_dim
        self.heads = (model.num_heads, model.head_dim)
        self.norm_attention = nn.LayerNorm(model.dim)
        self.to_qkv = nn.Linear(model.dim, 3 * inner, bias=False)
        self.attention: Attention = MECHANISMS[attention.name](model.head_dim, attention, generator)
        self.to_out = nn.Linear(inner, model.dim)
        self.norm_feedforward = nn.LayerNorm(model.dim)
        hidden = model.dim * model.feedforward_factor
        self.feedforward = nn.Sequential(nn.Linear(model.dim, hidden), nn.GELU(), nn.Linear(hidden, model.dim))
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, h_BLD: torch.Tensor, keep_BL: torch.Tensor) -> torch.Tensor:
        qkv_BLD3 = self.to_qkv(self.norm_attention(h_BLD))
        q_BHLE, k_BHLE, v_BHLE = qkv_BLD3.unflatten(-1, (3, *self.heads)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed_BHLE = self.attention(q_BHLE, k_BHLE, v_BHLE, keep_BL)
        h_BLD = h_BLD + self.dropout(self.to_out(mixed_BHLE.transpose(1, 2).flatten(2)))
        return h_BLD + self.dropout(self.feedforward(self.norm_feedforward(h_BLD)))


class MeanPool(nn.Module):
    """The mean of the real tokens."""

    def __init__(self, num_genes: int, dim: int):
        super().__init__()
        self.width = dim

    def forward(self, h_BLD: torch.Tensor, batch: Batch) -> torch.Tensor:
        keep_BL1 = batch.keep_BL.unsqueeze(-1)
        return (h_BLD * keep_BL1).sum(1) / keep_BL1.sum(1)


class ClsPool(nn.Module):
    """The special last token."""

    def __init__(self, num_genes: int, dim: int):
        super().__init__()
        self.width = dim

    def forward(self, h_BLD: torch.Tensor, batch: Batch) -> torch.Tensor:
        last_B = batch.keep_BL.sum(1) - 1
        return h_BLD[torch.arange(len(last_B), device=last_B.device), last_B]


class ConvPool(nn.Module):
    """scBERT's: one projection to a number shared by all genes, ReLU, one entry per gene of the model.

    Genes that are not tokens of a cell have entry 0, as a gene has whose projection is negative.

    Source
    ------
    Yang et al. 2022, Nature Machine Intelligence, Methods (a 1 x D convolution over the token axis).
    """

    def __init__(self, num_genes: int, dim: int):
        super().__init__()
        self.width = num_genes + 1
        self.projection = nn.Linear(dim, 1)

    def forward(self, h_BLD: torch.Tensor, batch: Batch) -> torch.Tensor:
        s_BL = torch.relu(self.projection(h_BLD)).squeeze(-1) * batch.keep_BL
        s_BG = torch.zeros(len(s_BL), self.width, dtype=s_BL.dtype, device=s_BL.device)
        # Padding shares the special position's index but adds exactly 0 to it.
        return s_BG.scatter_add(1, batch.genes_BL, s_BL)


POOLS: dict[str, type[MeanPool] | type[ClsPool] | type[ConvPool]] = {"mean": MeanPool, "cls": ClsPool, "conv": ConvPool}


class Head(nn.Module):
    """Hidden layers with ReLU and dropout, then one logit per label; also gives what the last layer sees."""

    def __init__(self, width: int, num_labels: int, head: HeadConfig):
        super().__init__()
        layers: list[nn.Module] = []
        for hidden in head.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(head.dropout)]
            width = hidden
        self.hidden = nn.Sequential(*layers)
        self.labels = nn.Linear(width, num_labels)

    def forward(self, pooled_BD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_BD = self.hidden(pooled_BD)
        return self.labels(hidden_BD), hidden_BD


class Wide(nn.Module):
    """Logits linear in normalised expression: sum over genes of x_g w_g, plus a bias; starts at 0."""

    def __init__(self, num_genes: int, num_labels: int):
        super().__init__()
        self.weight = nn.Embedding(num_genes + 1, num_labels)
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(num_labels))

    def forward(self, batch: Batch) -> torch.Tensor:
        with torch.autocast(batch.x_BL.device.type, enabled=False):  # a start fitted in float32 stays what it is
            return torch.einsum("bl,blc->bc", batch.x_BL, self.weight(batch.genes_BL)) + self.bias


class Encoder(nn.Module):
    """Embedding, layers and final norm: tokens in, one vector per token out."""

    def __init__(
        self,
        num_genes: int,
        tokens: TokensConfig,
        model: ModelConfig,
        attention: AttentionConfig,
        generator: torch.Generator,
    ):
        super().__init__()
        self.embedding = Embedding(num_genes, model.dim, tokens)
        layers = [Layer(model, attention, generator) for _ in range(model.depth)]
        self.layers = nn.ModuleList(layers)
        self.mechanisms = [layer.attention for layer in layers]
        self.norm = nn.LayerNorm(model.dim)
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, batch: Batch) -> torch.Tensor:
        h_BLD = self.dropout(self.embedding(batch))
        for layer in self.layers:
            h_BLD = layer(h_BLD, batch.keep_BL)
        return self.norm(h_BLD)


class CellTypeModel(nn.Module):
    """Logits of every label for a batch of cells, and the vector (embedding) they came from.

    With both branches on, logits are the sum of the deep and the wide ones, and the last layer of the deep
    branch starts at 0: the network starts as the wide branch alone.
    """

    def __init__(
        self,
        num_genes: int,
        num_labels: int,
        *,
        tokens: TokensConfig,
        model: ModelConfig,
        attention: AttentionConfig,
        head: HeadConfig,
        seed: int = 0,
    ):
        super().__init__()
        if attention.name not in MECHANISMS:
            known = ", ".join(MECHANISMS)
            raise InputError(f"attention.name={attention.name}", f"one of {known}", "choose with attention=NAME")
        self.num_labels = num_labels
        self.wide = Wide(num_genes, num_labels) if model.wide else None
        self.has_both = model.wide and model.deep
        self.encoder: Encoder | None = None
        if model.deep:
            generator = torch.Generator().manual_seed(seed)
            self.encoder = Encoder(num_genes, tokens, model, attention, generator)
            pool = POOLS[head.name](num_genes, model.dim)
            self.pool = pool
            self.head = Head(pool.width, num_labels, head)
            if model.wide:
                nn.init.zeros_(self.head.labels.weight)
                nn.init.zeros_(self.head.labels.bias)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, B x C, and embeddings, B x D (what the last layer sees; without an encoder, the logits)."""
        wide_BC, deep_BC, embedding_BD = self.branches(batch)
        return wide_BC + deep_BC, embedding_BD

    def branches(
        self, batch: Batch, seen_by_encoder: Batch | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the wide and of the deep branch (0 where it is off), and the embeddings, as in `forward`.

        In training the encoder may be shown other tokens of the same cells than the wide branch.
        """
        wide_BC = torch.zeros(()) if self.wide is None else self.wide(batch)
        if self.encoder is None:
            return wide_BC, torch.zeros_like(wide_BC), wide_BC
        seen = batch if seen_by_encoder is None else seen_by_encoder
        deep_BC, hidden_BD = self.head(self.pool(self.encoder(seen), seen))
        return wide_BC.to(deep_BC.device), deep_BC, hidden_BD

    @torch.no_grad()
    def scale_branches(self, wide: float, deep: float) -> None:
        """Multiply the logits of each branch by a number, by scaling their last layers."""
        if self.wide is not None:
            self.wide.weight.weight.mul_(wide)
            self.wide.bias.mul_(wide)
        if self.encoder is not None:
            self.head.labels.weight.mul_(deep)
            self.head.labels.bias.mul_(deep)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the random parts of every layer's attention anew (during training only)."""
        if self.encoder is not None:
            for mechanism in self.encoder.mechanisms:
                mechanism.redraw(generator)
