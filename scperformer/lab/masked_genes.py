"""Masked pretraining of a Performer: genes that are hidden query the sums over the other genes of their cell.

In each step a random share of the genes is hidden in all cells of the batch, as if they had not been measured. A hidden
gene is a query, from its key and the vector of the cell, and reads the same sums by the same mechanism as the cell. Its
expression, ln(1 + cp10k), is predicted whether or not the cell expresses it.

Shape letters: B cells, L tokens, G genes, K hidden genes, D model width, H heads, X numbers in the sums of a cell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from scperformer.attention.tokens import Batch
from scperformer.base.errors import InputError
from scperformer.config.training import PretrainOptions
from scperformer.lab.initialise import Init, start_encoder
from scperformer.lab.masked import PRETRAINING, MaskedLearner
from scperformer.model.batches import gene_means
from scperformer.model.load import ENCODER_PREFIX
from scperformer.model.performer import Performer, ReadLayer
from scperformer.training.fit_performer import gene_vectors, start_performer

MAX_HIDDEN = 256  # hidden genes that a training step predicts: bounds its time and memory
RIDGE = 1e-3  # penalty of the start of the output, relative to the mean variance of the cells' vectors


def expression_of(batch: Batch, genes_K: Tensor, num_genes: int) -> Tensor:
    """Return the expression of some genes in the cells of a batch, B x K; 0 for genes that are silent."""
    x_BG = batch.x_BL.new_zeros(len(batch), num_genes + 1).scatter_add_(1, batch.genes_BL, batch.x_BL)
    return x_BG[:, genes_K]


def hide_genes(batch: Batch, num_genes: int, share: float, seed: int) -> tuple[Batch, Tensor]:
    """Hide a random share of all genes in all cells of a batch, at least one; also return these genes, int64 K."""
    generator = torch.Generator().manual_seed(seed)
    num_hidden = min(num_genes, max(1, round(share * num_genes)))
    genes_K = torch.randperm(num_genes, generator=generator)[:num_hidden].to(batch.genes_BL.device)
    is_hidden_G = torch.zeros(num_genes + 1, dtype=torch.bool, device=genes_K.device).index_fill_(0, genes_K, True)
    return replace(batch, x_BL=batch.x_BL.masked_fill(is_hidden_G[batch.genes_BL], 0.0)), genes_K


class MaskedPerformer(nn.Module):
    """Predicts the expression of genes in cells of which other genes are known."""

    def __init__(self, encoder: Performer, layer: ReadLayer):
        super().__init__()
        self.encoder = encoder
        num_genes, dim = encoder.vectors_GD.shape
        self.layer = layer
        self.output = nn.Linear(dim, num_genes)

    def forward(self, seen: Batch, genes_K: Tensor) -> Tensor:
        """Predict the expression of genes in cells, all genes of the first cell first: B K values."""
        return self.from_sums(self.encoder.sums(seen), genes_K).flatten()

    def from_sums(self, sums_BX: Tensor, genes_K: Tensor) -> Tensor:
        """Predict the expression of genes in cells, B x K, from the sums over the known genes of the cells."""
        encoder = self.encoder
        k_GD = encoder.keys_GD
        c_B1D = encoder.from_sums(sums_BX).unsqueeze(1)
        q_BHKD = self.layer.queries(c_B1D + k_GD[genes_K]).transpose(1, 2)
        read_BKHD = encoder.reader.read(q_BHKD, sums_BX, k_GD, encoder.vectors_GD).transpose(1, 2)
        h_BKD = self.layer(c_B1D, read_BKHD)
        return (h_BKD * self.output.weight[genes_K]).sum(-1) + self.output.bias[genes_K]

    @torch.no_grad()
    def start(self, x: csr_matrix) -> None:
        """Start as the linear reconstruction of genes from the cells' vectors, by least squares, from N x G cells."""
        c_ND = self.encoder.from_sums(torch.from_numpy(self.encoder.sums_of(x))).numpy().astype(np.float64)
        mean_D = c_ND.mean(axis=0)
        c_ND = c_ND - mean_D
        gram_DD = c_ND.T @ c_ND
        gram_DD[np.diag_indices(len(gram_DD))] += RIDGE * np.trace(gram_DD) / len(gram_DD) + 1e-9
        weight_DG = np.linalg.solve(gram_DD, (x.T @ c_ND).T)
        self.output.weight.copy_(torch.from_numpy(weight_DG.T))
        self.output.bias.copy_(torch.from_numpy(gene_means(x) - mean_D @ weight_DG))

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by their names in a model folder; the encoder's are named as in a trained model."""
        encoder = {ENCODER_PREFIX + name: tensor for name, tensor in self.encoder.state_dict().items()}
        rest = self.state_dict().items()
        return encoder | {PRETRAINING + name: tensor for name, tensor in rest if not name.startswith("encoder.")}


def new_masked_performer(genes: list[str], x: csr_matrix, cfg: PretrainOptions, init: Init | None) -> MaskedPerformer:
    """Make the network for a corpus, with gene vectors from the co-expression of cells `x`, N x G, or of `init`."""
    with threadpool_limits(1):  # sums in another order would change the last bits
        encoder = start_performer(gene_vectors(x, cfg.model.dim, cfg.seed), x, cfg)
        start_encoder(encoder, genes, cfg, init)
        if encoder.needs_expression:
            expected = "one that reads a table of the genes (favor or rbf) with pretrain"
            raise InputError(f"attention={cfg.attention['name']}", expected, "choose one of them")
        network = MaskedPerformer(encoder, ReadLayer(cfg.model))
        network.start(x)
    return network


class MaskedGenesLearner(MaskedLearner):
    """A Performer that is pretrained, with its loss and its optimiser; the naive guess is the mean of the gene."""

    network: MaskedPerformer  # type: ignore[assignment]

    def usual_values(self, x: csr_matrix) -> Tensor:
        return torch.from_numpy(gene_means(x)).float()

    def hide(self, tokens: Batch, seed: int) -> tuple[Batch, Tensor, Tensor]:
        num_genes = len(self.naive)
        seen, genes_K = hide_genes(tokens, num_genes, self.share, seed)
        genes_K = genes_K[:MAX_HIDDEN]
        return seen, genes_K, expression_of(tokens, genes_K, num_genes).flatten()

    def guess(self, tokens: Batch, genes_K: Tensor) -> Tensor:
        return self.naive[genes_K].repeat(len(tokens))

    def with_genes_dropped(self, tokens: Batch) -> Batch:
        return tokens  # the hidden genes are

    def configure_optimizers(self) -> Any:
        layers = [*self.network.layer.parameters(), *self.network.encoder.reader.layers.parameters()]
        # The rest starts as a linear reconstruction, which large steps would only make worse.
        fitted = [*self.network.encoder.embedding.parameters(), *self.network.output.parameters()]
        slow = {"params": fitted, "lr": self.optim.lr * self.optim.init_lr_factor, "weight_decay": 0.0}
        return self.scheduled([slow, {"params": layers, "weight_decay": self.optim.weight_decay}])
