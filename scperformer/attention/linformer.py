"""Linformer: keys and values projected to a fixed number of rows, then softmax attention to those.

Shape letters beyond those of base.py: P positions, N projected rows, G heads with matrices of their own (H, or 1 for
all), C matrices per layer (2: one for keys and one for values; 1 for both).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from scperformer.attention.additive import widened
from scperformer.attention.base import Attention, Sizes
from scperformer.errors import InputError
from scperformer.options import require, require_choice


@dataclass(kw_only=True)
class LinformerOptions:
    """Options of `attention=linformer`."""

    projected_length: int = 256  # rows that keys and values are projected to; at most as many as there are positions
    sharing: str = "headwise"  # matrices E, F: none (of each head), headwise (of each layer), key_value, layerwise

    def __post_init__(self) -> None:
        require(self.projected_length >= 1, "attention.projected_length", self.projected_length, "1 or more")
        require_choice("attention.sharing", self.sharing, ("none", "headwise", "key_value", "layerwise"))


class Linformer(Attention):
    """softmax(Q (E K)^T / sqrt(E)) (F V) with learned matrices E and F, N x P; dropped tokens add 0 to E K and F V.

    A column of E and F belongs to a position (a gene): tokens bring theirs along, in whatever order they come.
    `sharing`: `none`, E and F for each head; `headwise`, E and F for all heads of a layer; `key_value`, E = F for all
    heads of a layer; `layerwise`, E = F for all heads of all layers.

    Source
    ------
    Wang et al. 2020, arXiv 2006.04768, equation 7 and section 4.
    """

    Options = LinformerOptions
    fixed_length = True
    size_option = "projected_length"

    def __init__(self, sizes: Sizes, options: LinformerOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        num_matrices = 2 if options.sharing in ("none", "headwise") else 1
        num_groups = sizes.num_heads if options.sharing == "none" else 1
        num_rows = min(options.projected_length, sizes.length)  # more than P rows have nothing more to tell
        matrices_CPGN = torch.randn(num_matrices, sizes.length, num_groups, num_rows, generator=generator)
        # A projected key sums P keys, so that 1 / sqrt(P) leaves it as large as they are, and scores as large as
        # those of softmax. (1 / sqrt(N), which preserves distances, makes scores sqrt(P / N) times as large: at
        # 16,907 genes and 256 rows the softmax would start as the choice of a single row.)
        self.matrices_CPGN = nn.Parameter(matrices_CPGN * sizes.length**-0.5)

    def share_with(self, first: Attention) -> None:
        if self.options.sharing == "layerwise":
            assert isinstance(first, Linformer)
            self.matrices_CPGN = first.matrices_CPGN

    def require_length(self, num_tokens: int) -> None:
        if num_tokens > self.sizes.length:
            raise InputError(
                f"{num_tokens} tokens in a cell",
                f"at most the {self.sizes.length} positions that attention=linformer was built for",
                "align the cells to the model's genes, or choose another attention",
            )

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        dropped_B1L1 = ~keep_BL[:, None, :, None]
        with torch.autocast(q_BHLE.device.type, enabled=False):  # sums over thousands of tokens
            columns_CBLGN = self._columns(k_BHLE.shape[2], positions_BL).to(widened(k_BHLE).dtype)
            k_BHNE = _projected(columns_CBLGN[0], widened(k_BHLE).masked_fill(dropped_B1L1, 0.0))
            v_BHNE = _projected(columns_CBLGN[-1], widened(v_BHLE).masked_fill(dropped_B1L1, 0.0))
            return scaled_dot_product_attention(widened(q_BHLE), k_BHNE, v_BHNE).to(v_BHLE.dtype)

    def _columns(self, num_tokens: int, positions_BL: torch.Tensor | None) -> torch.Tensor:
        """The columns of E and F of each token: C x B x L x G x N, B = 1 if cells have the same in the same order."""
        if positions_BL is None or _in_order(positions_BL, self.sizes.length):
            self.require_length(num_tokens)
            return self.matrices_CPGN[:, None, :num_tokens]
        shape = self.matrices_CPGN.shape[2:]
        return torch.stack(
            [embedding(positions_BL, m_PGN.flatten(1)).unflatten(2, shape) for m_PGN in self.matrices_CPGN]
        )


def _in_order(positions_BL: torch.Tensor, length: int) -> bool:
    """Whether every cell has all positions in their order: nothing to look up then, and no copy for each cell."""
    in_order_L = torch.arange(length, device=positions_BL.device)
    return positions_BL.shape[1] == length and bool((positions_BL == in_order_L).all())


def _projected(columns_BLGN: torch.Tensor, x_BHLE: torch.Tensor) -> torch.Tensor:
    """Sums over the tokens weighted by the entries of their columns: B x H x N x E."""
    weights_BGNL = columns_BLGN.permute(0, 2, 3, 1)
    if weights_BGNL.shape[1] == x_BHLE.shape[1]:
        return weights_BGNL @ x_BHLE
    # heads that share a matrix are further columns of one product: no copy of the matrix for each
    rows_BN = weights_BGNL[:, 0] @ x_BHLE.transpose(1, 2).flatten(2)
    return rows_BN.unflatten(2, (x_BHLE.shape[1], -1)).transpose(1, 2)
