"""Tokens to vectors: an embedding of the gene plus one of its expression.

Shape letters: B cells, L tokens, D model width, G genes.
"""

import torch
from torch import nn

from scperformer.config import ModelConfig, TokensConfig
from scperformer.network.tokens import Batch, num_tokens

EMBEDDING_STD = 0.1  # standard deviation of new embeddings of genes and bins
TYPICAL_X = 4.0  # ln(1 + cp10k) of an expressed gene is about 1 to 6
SINUSOID_BASE = 10000.0  # longest wavelength / 2 pi of the sinusoidal positions, as Vaswani et al. 2017


class ContinuousEmbedding(nn.Module):
    """Embed the value itself: a two-layer network from one number to D."""

    def __init__(self, dim: int):
        super().__init__()
        last = nn.Linear(dim, dim)
        self.layers = nn.Sequential(nn.Linear(1, dim), nn.GELU(), last)
        # With a larger part of the value, the gene is lost beside it, and not even easy labels are learned.
        nn.init.normal_(last.weight, std=2 * EMBEDDING_STD / dim**0.5)
        nn.init.zeros_(last.bias)

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        return self.layers(x_BL.unsqueeze(-1) / TYPICAL_X)


def sinusoids(num_positions: int, dim: int) -> torch.Tensor:
    """Sines and cosines of the position at geometrically growing wavelengths: float32, positions x dim.

    Source
    ------
    Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """
    rates = SINUSOID_BASE ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim].float()


def position_table(num_genes: int, model: ModelConfig) -> nn.Embedding | None:
    """Make a table with a vector for each gene and, in the last row, the special position; None with positions=none.

    `gene` is learned. The others are fixed: `sinusoidal`, and `gene2vec` (as in scBERT), which is 0 until
    `set_gene_vectors` fills it.
    """
    if model.positions == "none":
        return None
    table = nn.Embedding(num_genes + 1, model.dim)
    if model.positions == "gene":
        nn.init.normal_(table.weight, std=EMBEDDING_STD)
        return table
    table.weight.requires_grad_(False)
    if not table.weight.is_meta:
        sinusoidal = model.positions == "sinusoidal"
        table.weight.data = sinusoids(num_genes + 1, model.dim) if sinusoidal else torch.zeros_like(table.weight)
    return table


class Embedding(nn.Module):
    """Gene embedding plus expression embedding."""

    def __init__(self, num_genes: int, model: ModelConfig, tokens: TokensConfig):
        super().__init__()
        self.num_genes = num_genes
        self.gene = position_table(num_genes, model)
        if tokens.name == "continuous":
            self.expression: nn.Module = ContinuousEmbedding(model.dim)
        else:
            self.expression = nn.Embedding(num_tokens(tokens), model.dim)
            nn.init.normal_(self.expression.weight, std=EMBEDDING_STD)

    def forward(self, batch: Batch) -> torch.Tensor:
        expression_BLD = self.expression(batch.values_BL)
        return expression_BLD if self.gene is None else self.gene(batch.genes_BL) + expression_BLD

    def unexpressed(self) -> torch.Tensor:
        """Embed every gene at value 0: 1 x G x D."""
        weight = next(self.expression.parameters())
        dtype = torch.int64 if isinstance(self.expression, nn.Embedding) else weight.dtype
        zeros_1G = torch.zeros(1, self.num_genes, dtype=dtype, device=weight.device)
        h_1GD = self.expression(zeros_1G)
        return h_1GD if self.gene is None else h_1GD + self.gene.weight[: self.num_genes]

    @torch.no_grad()
    def set_gene_vectors(self, vectors_GD: torch.Tensor) -> None:
        """Fill the gene embedding; the special position's row becomes 0."""
        assert self.gene is not None
        self.gene.weight[:-1].copy_(vectors_GD)
        self.gene.weight[-1].zero_()


class TokenLogits(nn.Module):
    """Logits of every bin for every token, for masked expression modelling.

    Parameters
    ----------
    embedding
        The table of bins; `tied` uses its weight as the output layer's.
    """

    def __init__(self, embedding: nn.Embedding, tied: bool):
        super().__init__()
        num_bins, dim = embedding.weight.shape
        self.output = nn.Linear(dim, num_bins, bias=not tied)
        if tied:
            self.output.weight = embedding.weight

    def forward(self, h_BLD: torch.Tensor) -> torch.Tensor:
        return self.output(h_BLD)
