"""Turn expression into tokens, and tokens into vectors: a gene embedding plus an expression embedding.

Expression is given as x = ln(1 + counts per 10,000). The tokens of a cell end with one special position, whose gene
index is `num_genes` and whose value is 0: scBERT appends it to the genes, and `head=cls` reads it.

Shape letters: B cells, L tokens, D model width, G genes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import nn

from scperformer.config.training import ModelConfig, TokensConfig

LN2 = np.log(2.0)
# Added to log2 before rounding down. x is float32, and logarithms of the same counts may differ in their last bit:
# where 1 + cp10k is exactly 32, log2 may be 4.9999997. This is larger than that error (in scBERT's range of values) and
# smaller than the step to the next count in a cell of 50,000 counts.
EDGE_DOUBLINGS = 5e-7
EMBEDDING_STD = 0.1  # standard deviation of the initial embeddings of genes and bins
TYPICAL_X = 4.0  # divides x; ln(1 + cp10k) of an expressed gene is about 1 to 6


def log2_bins(x: np.ndarray, tokens: TokensConfig) -> np.ndarray:
    """Return the bin of each value, floor(bins_per_log2 * log2(1 + cp10k)), at most `num_bins`; int64, shape of `x`.

    `tokens=scbert` (Yang et al. 2022, Methods) has the bins floor(log2(1 + cp10k)) from 0 to 5. `tokens=bins` adds 1
    for expressed genes, so that bin 0 means unexpressed.
    """
    log2_values = np.asarray(x, dtype=np.float64) / LN2
    bins = np.floor(log2_values * tokens.bins_per_log2 + EDGE_DOUBLINGS).astype(np.int64)
    if tokens.name == "bins":
        bins += np.asarray(x) > 0
    return np.minimum(bins, tokens.num_bins)


def mask_token(tokens: TokensConfig) -> int:
    """Return the bin of masked values (scBERT: 6): one above the highest bin, the last row of the embedding."""
    return tokens.num_bins + 1


@dataclass
class Batch:
    """The tokens of B cells, padded to L positions."""

    genes_BL: torch.Tensor  # int64, gene index; `num_genes` for the special position and padding
    values_BL: torch.Tensor  # int64 bins (scbert, bins) or float32 x (continuous)
    x_BL: torch.Tensor  # float32, ln(1 + cp10k), 0 in padding
    keep_BL: torch.Tensor  # bool, True for real tokens

    def to(self, device: torch.device | str) -> "Batch":
        """Copy to another device; from pinned memory the copy is asynchronous."""
        return Batch(
            *(tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in self.tensors)
        )

    def __len__(self) -> int:
        return len(self.x_BL)

    def __getitem__(self, rows: torch.Tensor | list[int]) -> "Batch":
        """Return the tokens of the cells with these row numbers, padded to the longest of them."""
        keep_BL = self.keep_BL[rows]
        length = int(keep_BL.sum(1).max())
        return Batch(*(tensor[rows, :length] for tensor in self.tensors))

    def pin_memory(self) -> "Batch":
        """Copy to page-locked memory, from which a GPU can copy asynchronously."""
        return Batch(*(tensor.pin_memory() for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.genes_BL, self.values_BL, self.x_BL, self.keep_BL


def tokenize(
    cells: csr_matrix,
    tokens: TokensConfig,
    length: int | None = None,
    measured: np.ndarray | None = None,
) -> Batch:
    """Return the tokens of cells (x, CSR, B x G); the last real token of each cell is the special position.

    Cells are padded to the longest of them, and to `length` positions if that is longer. With
    `tokens.unexpressed=full` every gene is a token, or every gene in `measured` (boolean, G), with `all` every gene
    whether measured or not; with `skip` and `memory` only expressed genes are.
    """
    num_cells, num_genes = cells.shape
    if tokens.every_gene:
        genes = np.tile(np.arange(num_genes + 1), (num_cells, 1))
        x = np.zeros((num_cells, num_genes + 1), dtype=np.float32)
        x[:, :num_genes] = cells.toarray()
        keep = np.ones_like(genes, dtype=bool)
        if measured is not None and tokens.unexpressed == "full":
            keep[:, :num_genes] = measured
    else:
        counts = np.diff(cells.indptr)
        length = max(int(counts.max(initial=0)) + 1, length or 0)
        expressed = np.arange(length) < counts[:, None]
        genes = np.full((num_cells, length), num_genes, dtype=np.int64)
        x = np.zeros((num_cells, length), dtype=np.float32)
        genes[expressed] = cells.indices  # CSR arrays and boolean indexing both go row by row
        x[expressed] = cells.data
        keep = np.arange(length) <= counts[:, None]
    values = x if tokens.name == "continuous" else log2_bins(x, tokens)
    return Batch(*(torch.from_numpy(array) for array in (genes, values, x, keep)))


def token_counts(cells: csr_matrix, tokens: TokensConfig) -> np.ndarray:
    """Return the number of tokens of each cell, including the special position: int64, N."""
    if tokens.every_gene:
        return np.full(cells.shape[0], cells.shape[1] + 1, dtype=np.int64)
    return np.diff(cells.indptr).astype(np.int64) + 1


class ContinuousEmbedding(nn.Module):
    """Embed a value with a two-layer network from one number to D."""

    def __init__(self, dim: int):
        super().__init__()
        last = nn.Linear(dim, dim)
        self.layers = nn.Sequential(nn.Linear(1, dim), nn.GELU(), last)
        # With larger weights the value would drown the gene embedding, and not even easy labels are learned.
        nn.init.normal_(last.weight, std=2 * EMBEDDING_STD / dim**0.5)
        nn.init.zeros_(last.bias)

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        return self.layers(x_BL.unsqueeze(-1) / TYPICAL_X)


def sinusoids(num_positions: int, dim: int, order: str) -> torch.Tensor:
    """Return sinusoidal position embeddings in an order of `model.positions`: float32, positions x dim.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5.
    """
    rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return (
        torch.stack([angles.sin(), angles.cos()], dim=2 if order == "sinusoidal" else 1)
        .flatten(1)[:, :dim]
        .float()
    )


class Embedding(nn.Module):
    """The sum of a gene embedding and an expression embedding.

    `model.positions` decides about the gene embedding: `gene` learns it; sinusoids and `gene2vec` (as in scBERT) fix
    it; `none` leaves it out; `coexpression` learns it from given vectors, without an expression embedding. The vectors
    of `gene2vec` and `coexpression` are 0 until `set_gene_vectors`.
    """

    def __init__(self, num_genes: int, model: ModelConfig, tokens: TokensConfig):
        super().__init__()
        self.num_genes = num_genes
        self.gene = None if model.positions == "none" else nn.Embedding(num_genes + 1, model.dim)
        if self.gene is not None and model.positions == "gene":
            nn.init.normal_(self.gene.weight, std=EMBEDDING_STD)
        elif self.gene is not None and model.positions == "coexpression":
            nn.init.zeros_(self.gene.weight)
        elif self.gene is not None and not self.gene.weight.requires_grad_(False).is_meta:
            fixed = sinusoids(num_genes + 1, model.dim, model.positions)
            self.gene.weight.data = (
                torch.zeros_like(fixed) if model.positions == "gene2vec" else fixed
            )
        self.expression: nn.Module | None = None  # left out if no token is a query
        if not model.uses_cross_attention and tokens.name == "continuous":
            self.expression = ContinuousEmbedding(model.dim)
        elif not model.uses_cross_attention:
            self.expression = nn.Embedding(mask_token(tokens) + 1, model.dim)
            nn.init.normal_(self.expression.weight, std=EMBEDDING_STD)

    def forward(self, batch: Batch) -> torch.Tensor:
        if self.expression is None:
            assert self.gene is not None
            return self.gene(batch.genes_BL)
        expression_BLD = self.expression(batch.values_BL)
        return expression_BLD if self.gene is None else self.gene(batch.genes_BL) + expression_BLD

    def unexpressed(self) -> torch.Tensor:
        """Return the embedding of every gene at value 0: 1 x G x D."""
        assert self.expression is not None
        weight = next(self.expression.parameters())
        dtype = torch.int64 if isinstance(self.expression, nn.Embedding) else weight.dtype
        h_1GD = self.expression(torch.zeros(1, self.num_genes, dtype=dtype, device=weight.device))
        return h_1GD if self.gene is None else h_1GD + self.gene.weight[: self.num_genes]

    @torch.no_grad()
    def set_gene_vectors(self, vectors_GD: torch.Tensor) -> None:
        """Set the gene embedding; the row of the special position becomes 0."""
        assert self.gene is not None
        self.gene.weight[:-1].copy_(vectors_GD)
        self.gene.weight[-1].zero_()


def weights_state(module: nn.Module, without: str = "") -> list[Any]:
    """Return the addresses and versions of all weights but one, which change if any of these weights does."""
    weights = (
        weight for name, weight in module.state_dict(keep_vars=True).items() if name != without
    )
    return [
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights
    ]
