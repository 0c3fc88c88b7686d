"""The Performer that reads all genes of a cell at the cost of a linear model.

The tokens are all measured genes, and the cell is the query (docs/model.md). Linear attention needs only sums over the
genes of a cell, phi(key) value^T weighted by expression: one product of the cells with a table of the genes. Over cells
these sums vary in few directions: their principal components in the training cells take their place.

Latent queries that read tokens: Jaegle et al. 2021, arXiv 2103.03206; linear attention: Choromanski et al. 2021, arXiv
2009.14794.

Shape letters: B cells, L tokens, D model width, H heads, G genes, W sums that attention needs, X numbers in the sums of
a cell, N compressed sums, P principal components of them.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Generator, Tensor, nn
from torch.nn.functional import embedding_bag, pad

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention
from scperformer.attention.tokens import Batch, Embedding, weights_state
from scperformer.base.errors import InputError
from scperformer.base.sparse import TINY
from scperformer.config.training import Mechanism, ModelConfig, TokensConfig
from scperformer.model.linear import LENGTH, power_transform, sums_over_genes

KEY_LENGTH = 2.0  # of a gene's key, after the scaling by D^(-1/4) of attention: exponents of phi are then 4 at most
SPREAD = 2.0  # standard deviation of the widest number of what cells read, before training
START_GENES = 4096  # genes from whose keys a mechanism starts
NUM_COMPONENTS = 64  # of the sums of phi(key) value^T
COMPONENT_CELLS = 4096  # training cells that show them


def expression_weights(batch: Batch) -> Tensor:
    """Return the expression of each token, with each cell scaled to the same Euclidean norm: B x L."""
    return batch.x_BL * (LENGTH / batch.x_BL.norm(dim=1, keepdim=True).clamp(min=TINY))


class CrossAttentionLayer(nn.Module):
    """The cell's vector reads the genes; what is read is added to it, and starts at 0."""

    def __init__(self, model: ModelConfig):
        super().__init__()
        self.norm = nn.LayerNorm(model.dim)
        self.to_q = nn.Linear(model.dim, model.num_heads * model.dim)
        self.to_out = nn.Linear(model.num_heads * model.dim, model.dim)
        self.dropout = nn.Dropout(model.dropout)
        nn.init.zeros_(self.to_out.weight)
        nn.init.zeros_(self.to_out.bias)

    def queries(self, c_BD: Tensor) -> Tensor:
        """Return the queries of the heads, B x H x D."""
        return self.to_q(self.norm(c_BD)).unflatten(-1, (-1, c_BD.shape[-1]))

    def forward(self, c_BD: Tensor, read_BHD: Tensor) -> Tensor:
        """Return the vectors of the cells after this layer, given what their queries have read."""
        return c_BD + self.to_out(self.dropout(read_BHD).flatten(-2))


class CrossAttention(nn.Module):
    """From the sums over the genes of a cell, B x X, to its vector, B x D. The first D sums are of gene vectors."""

    def __init__(
        self, num_genes: int, model: ModelConfig, attention: Mechanism, generator: Generator
    ):
        super().__init__()
        self.dim = model.dim
        self.stack = [CrossAttentionLayer(model) for _ in range(model.depth)]
        self.layers = nn.ModuleList(self.stack)
        width = 0
        if model.depth:
            sizes = Sizes(
                num_heads=model.num_heads,
                head_dim=model.dim,
                length=num_genes + 1,
                keys_of_genes=True,
            )
            # Its parameters are not trained: the sums over the genes, which are computed once, depend on them.
            self.attention = make_attention(attention, sizes, generator).requires_grad_(False)
            if not self.attention.uses_cross_attention:
                found = f"model=performer with attention={attention['name']}"
                expected = "attention whose queries can read all genes (favor, rbf or softmax)"
                raise InputError(
                    "performer-attention", found, expected, "choose one of them, or model=tiny"
                )
            width = self.attention.table_width(num_genes)
            if (num_exact := self.attention.num_key_sums) is not None:
                num_components = min(NUM_COMPONENTS, width - num_exact)
                self.components_NP: Tensor  # orthonormal
                self.register_buffer(
                    "components_NP", torch.zeros(width - num_exact, num_components)
                )
                width = num_exact + num_components
            self.scale: Tensor  # of what is read
            self.register_buffer("scale", torch.ones(1))
        self.mean_X: Tensor  # the sums of the mean training cell
        self.register_buffer("mean_X", torch.zeros(model.dim + width))

    def start_like(self, other: "CrossAttention") -> None:
        """Take all that is not trained from another one."""
        state = {
            name: tensor
            for name, tensor in other.state_dict().items()
            if not name.startswith("layers.")
        }
        self.load_state_dict(state, strict=False)

    def compressed(self, table_GW: Tensor, is_stored: bool = False) -> Tensor:
        """Return the table of the sums that are stored, given the table of all that attention needs, or the reverse."""
        if self.attention.num_key_sums is None:
            return table_GW
        exact_GF, others_GN = table_GW.tensor_split([self.attention.num_key_sums], dim=1)
        axes = self.components_NP.T if is_stored else self.components_NP
        return torch.cat([exact_GF, others_GN @ axes], dim=1)

    def all_sums(self, sums_BX: Tensor) -> Tensor:
        """Return all sums that attention needs, B x W, from those that are stored."""
        return self.compressed(sums_BX[:, self.dim :], is_stored=True)

    def read(
        self, q_BHLD: Tensor, sums_BW: Tensor, mean_1W: Tensor, k_GD: Tensor, v_GD: Tensor
    ) -> Tensor:
        """Return what queries read in their cells beyond what they read in the mean cell: B x H x L x D."""
        read_BHLD = self.attention.read_genes(q_BHLD, sums_BW, k_GD, v_GD)
        return (read_BHLD - self.attention.read_genes(q_BHLD, mean_1W, k_GD, v_GD)) * self.scale

    def layer_by_layer(
        self, sums_BX: Tensor, k_GD: Tensor, v_GD: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the queries of each layer, B x H x D, and the vectors of the cells after it, B x D."""
        c_BD = sums_BX[:, : self.dim] - self.mean_X[: self.dim]
        sums_BW, mean_1W = self.all_sums(sums_BX), self.all_sums(self.mean_X[None])
        for layer in self.stack:
            q_BHD = layer.queries(c_BD)
            c_BD = layer(
                c_BD, self.read(q_BHD.unsqueeze(2), sums_BW, mean_1W, k_GD, v_GD).squeeze(2)
            )
            yield q_BHD, c_BD

    def forward(self, sums_BX: Tensor, k_GD: Tensor, v_GD: Tensor) -> Tensor:
        if not self.stack:
            return sums_BX[:, : self.dim] - self.mean_X[: self.dim]
        *_, (_, c_BD) = self.layer_by_layer(sums_BX, k_GD, v_GD)
        return c_BD

    def gene_weights(self, sums_BX: Tensor, x_BG: Tensor, k_GD: Tensor, v_GD: Tensor) -> Tensor:
        """Return the weight of each gene in what the queries of a cell read, mean over heads and layers: B x G."""
        layers = self.layer_by_layer(sums_BX, k_GD, v_GD)
        weights = [
            self.attention.gene_weights(q_BHD, k_GD, x_BG).mean(dim=1) for q_BHD, _ in layers
        ]
        return torch.stack(weights).mean(dim=0)


class Performer(nn.Module):
    """The encoder whose tokens are all measured genes, and whose query is the cell; without layers it pools them."""

    def __init__(
        self,
        num_genes: int,
        tokens: TokensConfig,
        model: ModelConfig,
        attention: Mechanism,
        generator: Generator,
    ):
        super().__init__()
        self.embedding = Embedding(num_genes, model, tokens)
        self.reader = CrossAttention(num_genes, model, attention, generator)
        # the weights that it was made of, and the table
        self.kept_table: tuple[list[Any], Tensor] | None = None

    @property
    def mechanisms(self) -> list[Attention]:
        """The mechanism of all layers, if there are any."""
        return [self.reader.attention] if self.reader.stack else []

    @property
    def vectors_GD(self) -> Tensor:
        """The vectors of the genes, which are also the values."""
        assert self.embedding.gene is not None
        return self.embedding.gene.weight[:-1]

    @property
    def keys_GD(self) -> Tensor:
        """The keys of the genes: their vectors, at the same length."""
        length = KEY_LENGTH * self.reader.dim**0.25
        return self.vectors_GD * (
            length / self.vectors_GD.norm(dim=1, keepdim=True).clamp_min(TINY)
        )

    @property
    def has_vector_G(self) -> Tensor:
        """Whether each gene has a vector: it has none if its expression does not vary."""
        return (self.vectors_GD != 0).any(dim=1)

    @cached_property
    def needs_expression(self) -> bool:
        """Whether the attention has no table, but needs the expression of each gene itself."""
        one_1D = self.vectors_GD[:1]
        return bool(self.reader.stack) and self.reader.attention.gene_table(one_1D, one_1D) is None

    def table(self) -> Tensor:
        """Return what the sums of a cell add up, weighted by its expression: G x X, or G x D if they need no more."""
        if not self.reader.stack or self.needs_expression:
            return self.vectors_GD
        state = weights_state(self, without="reader.mean_X")
        if (
            self.kept_table is not None
            and self.kept_table[0] == state
            and not torch.is_grad_enabled()
        ):
            return self.kept_table[1]
        table_GX = torch.cat(
            [self.vectors_GD, self.reader.compressed(self._table_of_attention())], dim=1
        )
        self.kept_table = (state, table_GX) if not torch.is_grad_enabled() else None
        return table_GX

    def _table_of_attention(self) -> Tensor:
        """Return the table of all sums that attention needs, G x W."""
        table_GW = self.reader.attention.gene_table(self.keys_GD, self.vectors_GD)
        assert table_GW is not None
        # A gene without a vector, as its expression does not vary, has no direction: it is no token.
        return table_GW * self.has_vector_G.unsqueeze(1)

    def _set_components(self, x: csr_matrix) -> None:
        """Set the components by which sums are compressed, from training cells, N x G."""
        if self.needs_expression or (num_exact := self.reader.attention.num_key_sums) is None:
            return
        some = x[:: -(-x.shape[0] // COMPONENT_CELLS)]
        others_GN = self._table_of_attention()[:, num_exact:].contiguous()
        sums = sums_over_genes(some, [(1.0, others_GN)]).astype(np.float64)
        values, vectors = np.linalg.eigh(sums.T @ sums)
        num = self.reader.components_NP.shape[1]
        has_part = values[-num:] > TINY * max(values[-1], TINY)
        self.reader.components_NP.copy_(torch.from_numpy(vectors[:, -num:] * has_part))

    def sums(self, batch: Batch) -> Tensor:
        """Return the sums over the genes of cells, B x X, from tokens."""
        weights_BL = expression_weights(batch)
        table_GX = pad(self.table(), (0, 0, 0, 1))  # the special position adds nothing
        sums_BX = embedding_bag(batch.genes_BL, table_GX, per_sample_weights=weights_BL, mode="sum")
        return (
            torch.cat([sums_BX, self.expression(batch)], dim=1)
            if self.needs_expression
            else sums_BX
        )

    def expression(self, batch: Batch) -> Tensor:
        """Return the expression of all genes, with each cell scaled to the same Euclidean norm: B x G."""
        weights_BL = expression_weights(batch)
        x_BG = weights_BL.new_zeros(len(weights_BL), len(self.vectors_GD) + 1)
        return x_BG.scatter_add(1, batch.genes_BL, weights_BL)[:, :-1]

    @torch.no_grad()
    def sums_of(self, x: csr_matrix, device: str = "cpu") -> np.ndarray:
        """Return the sums over the genes of cells, float32 N x X, from ln(1 + cp10k), CSR N x G."""
        sums_NX = sums_over_genes(x, [(1.0, self.table())], device)
        if self.needs_expression:
            return np.concatenate([sums_NX, power_transform(x, 1.0).toarray()], axis=1)
        return sums_NX

    def table_product(self, rows_BX: Tensor) -> Tensor:
        """Return the products of rows with what each gene adds to the sums, B x G."""
        if not self.needs_expression:
            return rows_BX @ self.table().T
        return rows_BX[:, : self.reader.dim] @ self.table().T + rows_BX[:, self.reader.dim :]

    def from_sums(self, sums_BX: Tensor) -> Tensor:
        """Return the vectors of cells, B x D, from their sums over genes."""
        # which a table of the genes replaces
        keys_GD = self.keys_GD if self.needs_expression else self.vectors_GD
        return self.reader(sums_BX, keys_GD, self.vectors_GD)

    def forward(self, batch: Batch) -> Tensor:
        """Return the vectors of cells, B x D."""
        return self.from_sums(self.sums(batch))

    @torch.no_grad()
    def gene_weights(self, batch: Batch) -> Tensor:
        """Return how much of what a cell reads is from each gene, mean over heads and layers: B x G, with the sum 1."""
        x_BG = self.expression(batch)
        if not self.needs_expression:
            x_BG = x_BG * self.has_vector_G
        return self.reader.gene_weights(self.sums(batch), x_BG, self.keys_GD, self.vectors_GD)

    @torch.no_grad()
    def start(self, x: csr_matrix, generator: Generator) -> None:
        """Set all that is not trained, given the gene vectors, from training cells, N x G, ln(1 + cp10k).

        Mechanisms start from genes that are drawn in proportion to the length of their vectors: most genes hardly vary.
        """
        if not self.reader.stack:
            self.reader.mean_X.copy_(torch.from_numpy(self.sums_of(x).mean(axis=0)))
            return
        lengths_G = self.vectors_GD.norm(dim=1)
        num_drawn = min(START_GENES, int((lengths_G > 0).sum()))
        if num_drawn:
            drawn = torch.multinomial(lengths_G, num_drawn, replacement=True, generator=generator)
            k_BHLD = self.keys_GD[drawn].expand(1, self.reader.attention.sizes.num_heads, -1, -1)
            self.reader.attention.start(
                k_BHLD, torch.ones(1, num_drawn, dtype=torch.bool), generator
            )
        self._set_components(x)
        sums_NX = torch.from_numpy(self.sums_of(x))
        self.reader.mean_X.copy_(sums_NX.mean(dim=0))
        self.reader.scale.fill_(1.0)
        no_query_NH1D = sums_NX.new_zeros(
            len(sums_NX), self.reader.attention.sizes.num_heads, 1, self.reader.dim
        )
        all_sums = self.reader.all_sums(sums_NX), self.reader.all_sums(self.reader.mean_X[None])
        read_NH1D = self.reader.read(no_query_NH1D, *all_sums, self.keys_GD, self.vectors_GD)
        self.reader.scale.copy_(SPREAD / read_NH1D[:, 0, 0].std(dim=0).max().clamp_min(1e-6))
