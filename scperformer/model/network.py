"""The network: the encoder branch (embedding -> encoder -> pooling -> labels) plus a linear branch.

Shape letters: B cells, L tokens, D model width, H heads, E head width, C labels, G genes, V powers of the expression.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Generator, Tensor, nn

from scperformer.attention.tokens import Batch
from scperformer.base.lab import from_lab
from scperformer.base.sparse import TINY
from scperformer.config.training import HeadConfig, Mechanism, ModelConfig, TokensConfig
from scperformer.model.linear import LENGTH
from scperformer.model.performer import CrossAttention, Performer

log = logging.getLogger(__name__)


@dataclass
class LinearModel:
    """Logits = x @ weight + bias; weight float32 G genes x C labels, bias float32 C."""

    weight: np.ndarray
    bias: np.ndarray

    def predict(self, x: csr_matrix) -> np.ndarray:
        """Return the index of the label with the largest logit for each cell: int64, N."""
        return np.asarray(x @ self.weight + self.bias).argmax(axis=1)


class Pool(nn.Module):
    """Pool the tokens of a cell into one vector.

    `mean` is the mean of the real tokens, `cls` the special last token. `conv` is scBERT's (Yang et al. 2022, Methods):
    each token is projected to a number, followed by ReLU, with one entry per gene of the model.
    """

    def __init__(self, name: str, num_genes: int, dim: int):
        super().__init__()
        self.name = name
        self.num_genes = num_genes
        self.width = num_genes + 1 if name == "conv" else dim
        if name == "conv":
            self.projection = nn.Linear(dim, 1)

    def forward(self, h_BLD: Tensor, batch: Batch) -> Tensor:
        if self.name == "mean":
            keep_BL1 = batch.keep_BL.unsqueeze(-1)
            return (h_BLD * keep_BL1).sum(1) / keep_BL1.sum(1)
        if self.name == "cls":
            place_B = (batch.keep_BL & (batch.genes_BL == self.num_genes)).int().argmax(1)
            return h_BLD[torch.arange(len(place_B), device=place_B.device), place_B]
        s_BL = torch.relu(self.projection(h_BLD)).squeeze(-1) * batch.keep_BL
        s_BG = torch.zeros(len(s_BL), self.width, dtype=s_BL.dtype, device=s_BL.device)
        # Padding has the index of the special position, but adds exactly 0 to it.
        return s_BG.scatter_add(1, batch.genes_BL, s_BL)


class Head(nn.Module):
    """Hidden layers with ReLU and dropout, then one logit per label; also return the input of the last layer."""

    def __init__(self, width: int, num_labels: int, head: HeadConfig):
        super().__init__()
        layers: list[nn.Module] = []
        for hidden in head.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(head.dropout)]
            width = hidden
        self.hidden = nn.Sequential(*layers)
        self.labels = nn.Linear(width, num_labels)

    def forward(self, pooled_BD: Tensor) -> tuple[Tensor, Tensor]:
        hidden_BD = self.hidden(pooled_BD)
        return self.labels(hidden_BD), hidden_BD


class Readout(nn.Module):
    """The trained part of the encoder branch if the encoder is a Performer: from the sums over genes to logits."""

    def __init__(self, reader: CrossAttention, head: Head):
        super().__init__()
        self.reader = reader
        self.head = head

    def forward(self, sums_BX: Tensor, k_GD: Tensor, v_GD: Tensor) -> Tensor:
        logits_BC, _ = self.head(self.reader(sums_BX, k_GD, v_GD))
        return logits_BC


class LinearBranch(nn.Module):
    """The linear branch: logits linear in powers of the expression plus a bias, from 0 (fits/linear.py)."""

    def __init__(self, num_genes: int, num_labels: int, powers: Sequence[float]):
        super().__init__()
        self.powers = list(powers)
        self.weight = nn.Embedding(num_genes + 1, len(powers) * num_labels)
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(num_labels))

    def forward(self, batch: Batch) -> Tensor:
        # its weights were fitted in float32
        with torch.autocast(batch.x_BL.device.type, enabled=False):
            v_BLV = self.power_transforms(batch)
            w_BLVC = self.weight(batch.genes_BL).unflatten(-1, (len(self.powers), -1))
            # Not a matrix product, whose last bits would depend on the position of a cell in memory.
            return (v_BLV.unsqueeze(-1) * w_BLVC).sum((1, 2)) + self.bias

    def power_transforms(self, batch: Batch) -> Tensor:
        """Return the expression raised to each power, with each cell scaled to the same Euclidean norm: B x L x V."""
        v_BLV = torch.stack([batch.x_BL**power for power in self.powers], dim=-1)
        return v_BLV * (LENGTH / v_BLV.norm(dim=1, keepdim=True).clamp(min=TINY))


def new_encoder(
    num_genes: int, tokens: TokensConfig, model: ModelConfig, attention: Mechanism, seed: int = 0
) -> Any:
    """Return an untrained encoder: a Performer, or one of the lab with attention between tokens."""
    kind = Performer if model.uses_cross_attention else from_lab("encoder")
    return kind(num_genes, tokens, model, attention, Generator().manual_seed(seed))


class CellTypeModel(nn.Module):
    """The logits of every label for a batch of cells, and the embedding from which they are computed.

    The logits of both branches are added. Beside a linear branch, the last layer of the encoder branch starts at 0.
    """

    def __init__(
        self,
        num_genes: int,
        num_labels: int,
        *,
        tokens: TokensConfig,
        model: ModelConfig,
        attention: Mechanism,
        head: HeadConfig,
        seed: int = 0,
    ):
        super().__init__()
        self.num_labels = num_labels
        self.linear = (
            LinearBranch(num_genes, num_labels, model.linear_powers) if model.linear else None
        )
        self.has_both = model.linear and model.encoder
        self.encoder: Any = None  # of `new_encoder`
        if model.encoder:
            self.encoder = new_encoder(num_genes, tokens, model, attention, seed)
            self.pool = (
                None if model.uses_cross_attention else Pool(head.name, num_genes, model.dim)
            )
            self.head = Head(model.dim if self.pool is None else self.pool.width, num_labels, head)
            if model.linear and not model.uses_cross_attention:
                nn.init.zeros_(self.head.labels.weight)
                nn.init.zeros_(self.head.labels.bias)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits, B x C, and embeddings, B x D: the last layer's input or, without an encoder, the logits."""
        linear_BC, encoder_BC, embedding_BD = self.branches(batch)
        return linear_BC + encoder_BC, embedding_BD

    def branches(
        self, batch: Batch, seen_by_encoder: Batch | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of the linear branch and of the encoder (0 for a missing branch), and the embeddings."""
        linear_BC = torch.zeros(()) if self.linear is None else self.linear(batch)
        if self.encoder is None:
            return linear_BC, torch.zeros_like(linear_BC), linear_BC
        # in training, some genes may be hidden from the encoder
        encoder_BC, hidden_BD = self.head(
            self.cell_vectors(batch if seen_by_encoder is None else seen_by_encoder)
        )
        return linear_BC.to(encoder_BC.device), encoder_BC, hidden_BD

    def decided_by_encoder(self, linear_BC: Tensor, logits_BC: Tensor) -> Tensor:
        """Return whether the linear branch alone gives another label than the sum of both branches, bool B."""
        if not self.has_both:
            return torch.zeros(len(logits_BC), dtype=torch.bool, device=logits_BC.device)
        return linear_BC.argmax(-1) != logits_BC.argmax(-1)

    def cell_vectors(self, batch: Batch) -> Tensor:
        """Return the vectors of cells that the head gets from the encoder, B x D."""
        encoded = self.encoder(batch)
        return encoded if self.pool is None else self.pool(encoded, batch)

    @torch.no_grad()
    def scale_branches(self, linear: float, encoder: float) -> None:
        """Multiply the logits of each branch by a factor, by scaling its last layer."""
        if self.linear is not None:
            self.linear.weight.weight.mul_(linear)
            self.linear.bias.mul_(linear)
        if self.encoder is not None:
            self.head.labels.weight.mul_(encoder)
            self.head.labels.bias.mul_(encoder)

    @property
    def performer(self) -> Performer | None:
        """The encoder, if it needs only sums over the genes of a cell."""
        return self.encoder if isinstance(self.encoder, Performer) else None

    @property
    def only_sums(self) -> bool:
        """Whether both branches need only sums over the genes of a cell, which are sparse products."""
        return self.encoder is None or self.performer is not None

    @property
    def needs_own_batch(self) -> bool:
        """Whether a cell needs a batch of its own; else the last bits of its result would depend on other cells."""
        # A row of a matrix product has the same bits at any position if all widths are multiples of 16 and sums have at
        # most a few thousand terms. `Attention.needs_own_batch` decides for the mechanisms.
        if self.encoder is None:
            return False
        widths = [part.in_features for part in self.modules() if isinstance(part, nn.Linear)]
        widths += [mechanism.sizes.head_dim for mechanism in self.encoder.mechanisms]
        is_odd = any(width % 16 != 0 or width > 4096 for width in widths)
        is_conv = self.pool is not None and self.pool.name == "conv"
        return (
            is_odd
            or is_conv
            or any(mechanism.needs_own_batch for mechanism in self.encoder.mechanisms)
        )

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        """Refuse this number of tokens if the attention between them does."""
        if not self.only_sums:
            self.encoder.require_length(num_tokens, where)


def require_encoder(tokens: TokensConfig, model: ModelConfig, attention: Mechanism) -> None:
    """Refuse options of which no encoder can be built, by building a small one; warn of options without effect."""
    if model.gene2vec_path is not None and model.positions != "gene2vec":
        log.warning("model.gene2vec_path is ignored: model.positions=%s", model.positions)
    if not model.uses_cross_attention:
        model = replace(model, depth=1)
    encoder = new_encoder(1, tokens, model, attention)
    if (
        not model.uses_cross_attention
        and model.chunk_tokens is not None
        and encoder.stack[0].chunk_tokens is None
    ):
        whole = "causal attention" if attention.get("causal") else f"attention={attention['name']}"
        log.warning("model.chunk_tokens is ignored: %s is computed as a whole", whole)
