"""Expression to tokens, and tokens to vectors: an embedding of the gene plus one of its expression.

Expression comes as x = ln(1 + counts per 10,000). A cell's token list ends with one special position whose gene index
is `num_genes` and whose value is 0: the position that scBERT appends to the genes, and that `head=cls` reads.

Shape letters: B cells, L tokens, D model width, G genes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import nn

from scperformer.config import ModelConfig, TokensConfig

LN2 = np.log(2.0)
# x is float32, and float32 logarithms of the same counts differ in their last unit: where 1 + cp10k is exactly 32, log2
# may be 4.9999997. This many doublings are more than that rounding (in scBERT's range), and less than the distance to
# the next count in a cell of 50,000 counts.
EDGE = 5e-7
EMBEDDING_STD = 0.1  # standard deviation of new embeddings of genes and bins
TYPICAL_X = 4.0  # ln(1 + cp10k) of an expressed gene is about 1 to 6


def log2_bins(x: np.ndarray, tokens: TokensConfig) -> np.ndarray:
    """Bin each value: floor(bins_per_log2 * log2(1 + cp10k)), clipped at `num_bins`; int64, shape of `x`.

    Bins `scbert` (Yang et al. 2022, Methods) are floor(log2(1 + cp10k)) in 0..5, where 0 also holds weakly expressed
    genes. With `bins`, 1 is added for expressed genes, so that 0 means not expressed.
    """
    log2_values = np.asarray(x, dtype=np.float64) / LN2
    bins = np.floor(log2_values * tokens.bins_per_log2 + EDGE).astype(np.int64)
    if tokens.name == "bins":
        bins += np.asarray(x) > 0
    return np.minimum(bins, tokens.num_bins)


def mask_token(tokens: TokensConfig) -> int:
    """The bin of a masked value (scBERT: 6): one above the highest bin, and the last in the embedding table."""
    return tokens.num_bins + 1


@dataclass
class Batch:
    """Padded tokens of B cells, L positions each."""

    genes_BL: torch.Tensor  # int64, index of the gene; `num_genes` for the special position and for padding
    values_BL: torch.Tensor  # int64 bins (scbert, bins) or float32 x (continuous)
    x_BL: torch.Tensor  # float32, ln(1 + cp10k), 0 in padding
    keep_BL: torch.Tensor  # bool, True = a real token

    def to(self, device: torch.device | str) -> "Batch":
        """Copy to another device; from pinned memory without waiting for the copy."""
        return Batch(*(tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in self.tensors))

    def pin_memory(self) -> "Batch":
        """Copy to memory from which a GPU fetches by itself."""
        return Batch(*(tensor.pin_memory() for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.genes_BL, self.values_BL, self.x_BL, self.keep_BL


def tokenize(
    cells: csr_matrix, tokens: TokensConfig, length: int | None = None, measured: np.ndarray | None = None
) -> Batch:
    """Make the tokens of cells (CSR x, B x G); the last real token of each cell is the special position.

    They are padded to `length` positions, or to the longest cell if that is more or `length` is None. With
    `tokens.unexpressed=full` every gene is a token, or every one of `measured` (boolean, G); with `skip` and `memory`
    only expressed genes are.
    """
    num_cells, num_genes = cells.shape
    if tokens.unexpressed == "full":
        genes = np.tile(np.arange(num_genes + 1), (num_cells, 1))
        x = np.zeros((num_cells, num_genes + 1), dtype=np.float32)
        x[:, :num_genes] = cells.toarray()
        keep = np.ones_like(genes, dtype=bool)
        if measured is not None:
            keep[:, :num_genes] = measured
    else:
        counts = np.diff(cells.indptr)
        length = max(int(counts.max(initial=0)) + 1, length or 0)
        expressed = np.arange(length) < counts[:, None]
        genes = np.full((num_cells, length), num_genes, dtype=np.int64)
        x = np.zeros((num_cells, length), dtype=np.float32)
        genes[expressed] = cells.indices  # row by row, as the CSR arrays are
        x[expressed] = cells.data
        keep = np.arange(length) <= counts[:, None]
    values = x if tokens.name == "continuous" else log2_bins(x, tokens)
    return Batch(*(torch.from_numpy(array) for array in (genes, values, x, keep)))


def token_counts(cells: csr_matrix, tokens: TokensConfig) -> np.ndarray:
    """Count the tokens of each cell, the special position included: int64, N."""
    if tokens.unexpressed == "full":
        return np.full(cells.shape[0], cells.shape[1] + 1, dtype=np.int64)
    return np.diff(cells.indptr).astype(np.int64) + 1


class ContinuousEmbedding(nn.Module):
    """Embed the value itself: a two-layer network from one number to D."""

    def __init__(self, dim: int, starts_at_zero: bool = False):
        super().__init__()
        last = nn.Linear(dim, dim)
        self.layers = nn.Sequential(nn.Linear(1, dim), nn.GELU(), last)
        # With a larger part of the value, the gene is lost beside it, and not even easy labels are learned.
        nn.init.normal_(last.weight, std=0.0 if starts_at_zero else 2 * EMBEDDING_STD / dim**0.5)
        nn.init.zeros_(last.bias)

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        return self.layers(x_BL.unsqueeze(-1) / TYPICAL_X)


def sinusoids(num_positions: int, dim: int) -> torch.Tensor:
    """Sines and cosines of the position: float32, positions x dim (Vaswani et al. 2017, arXiv 1706.03762, 3.5)."""
    rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :dim].float()


class Embedding(nn.Module):
    """The embedding of the gene plus that of its expression.

    The vectors of genes are learned with `positions=gene`. They are fixed with `sinusoidal` and with `gene2vec` (as in
    scBERT), which is 0 until `set_gene_vectors` fills it. There are none with `positions=none`. With `coexpression`
    they are learned from the start that `set_gene_vectors` gives, and the part of the expression starts at 0; without
    layers that could use it there is none.
    """

    def __init__(self, num_genes: int, model: ModelConfig, tokens: TokensConfig):
        super().__init__()
        self.num_genes = num_genes
        self.gene = None if model.positions == "none" else nn.Embedding(num_genes + 1, model.dim)
        is_coexpression = model.positions == "coexpression"
        if self.gene is not None and model.positions == "gene":
            nn.init.normal_(self.gene.weight, std=EMBEDDING_STD)
        elif self.gene is not None and is_coexpression:
            nn.init.zeros_(self.gene.weight)
        elif self.gene is not None and not self.gene.weight.requires_grad_(False).is_meta:
            fixed = sinusoids(num_genes + 1, model.dim)
            self.gene.weight.data = fixed if model.positions == "sinusoidal" else torch.zeros_like(fixed)
        self.expression: nn.Module | None = None
        if is_coexpression and model.depth == 0:
            pass
        elif tokens.name == "continuous":
            self.expression = ContinuousEmbedding(model.dim, starts_at_zero=is_coexpression)
        else:
            self.expression = nn.Embedding(mask_token(tokens) + 1, model.dim)
            nn.init.normal_(self.expression.weight, std=0.0 if is_coexpression else EMBEDDING_STD)

    def forward(self, batch: Batch) -> torch.Tensor:
        if self.expression is None:
            assert self.gene is not None
            return self.gene(batch.genes_BL)
        expression_BLD = self.expression(batch.values_BL)
        return expression_BLD if self.gene is None else self.gene(batch.genes_BL) + expression_BLD

    def unexpressed(self) -> torch.Tensor:
        """Embed every gene at value 0: 1 x G x D."""
        assert self.expression is not None
        weight = next(self.expression.parameters())
        dtype = torch.int64 if isinstance(self.expression, nn.Embedding) else weight.dtype
        h_1GD = self.expression(torch.zeros(1, self.num_genes, dtype=dtype, device=weight.device))
        return h_1GD if self.gene is None else h_1GD + self.gene.weight[: self.num_genes]

    @torch.no_grad()
    def set_gene_vectors(self, vectors_GD: torch.Tensor) -> None:
        """Fill the gene embedding; the special position's row becomes 0."""
        assert self.gene is not None
        self.gene.weight[:-1].copy_(vectors_GD)
        self.gene.weight[-1].zero_()
