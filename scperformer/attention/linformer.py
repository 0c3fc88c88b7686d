"""Linformer: softmax attention to keys and values that are projected to a fixed number of rows.

Shape letters beyond those of base.py: P positions, N projected rows, G heads with matrices of their own (H, or 1 for
all), C matrices per layer (2: one for keys and one for values; 1 for both).
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from scperformer.attention.additive import widened
from scperformer.attention.base import Attention, Sizes, of_positions
from scperformer.config import require, require_choice


@dataclass(kw_only=True)
class LinformerOptions:
    """Options of `attention=linformer`."""

    projected_length: int = 256  # rows of projected keys and values; at most the number of positions
    sharing: str = "headwise"  # matrices E, F: none (of each head), headwise (of each layer), key_value, layerwise

    def __post_init__(self) -> None:
        require(self.projected_length >= 1, "attention.projected_length", self.projected_length, "1 or more")
        require_choice("attention.sharing", self.sharing, ("none", "headwise", "key_value", "layerwise"))


class Linformer(Attention):
    """softmax(Q (E K)^T / sqrt(E)) (F V) with learned matrices E and F, N x P; dropped tokens add 0 to E K and F V.

    A column of E and F belongs to a position (a gene), so the order of the tokens does not matter.
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
        num_rows = min(options.projected_length, sizes.length)  # more than P rows add nothing
        matrices_CPGN = torch.randn(num_matrices, sizes.length, num_groups, num_rows, generator=generator)
        # A projected key sums P keys: 1 / sqrt(P) keeps it, and the scores, as large as without projection. (With
        # 1 / sqrt(N), which preserves distances, scores are sqrt(P / N) times as large: at 16,907 genes and 256 rows
        # the softmax would start by choosing a single row.)
        self.matrices_CPGN = nn.Parameter(matrices_CPGN.mul_(sizes.length**-0.5))

    def share_with(self, first: Attention) -> None:
        if self.options.sharing == "layerwise":
            assert isinstance(first, Linformer)
            self.matrices_CPGN = first.matrices_CPGN

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        dropped_B1L1 = ~keep_BL[:, None, :, None]
        with torch.autocast(q_BHLE.device.type, enabled=False):  # sums over thousands of tokens
            k, v = (widened(x_BHLE).masked_fill(dropped_B1L1, 0.0) for x_BHLE in (k_BHLE, v_BHLE))
            k_BHNE, v_BHNE = (
                self._projected(matrix_PGN.to(x.dtype), x, positions_BL)
                for matrix_PGN, x in ((self.matrices_CPGN[0], k), (self.matrices_CPGN[-1], v))
            )
            return scaled_dot_product_attention(widened(q_BHLE), k_BHNE, v_BHNE).to(v_BHLE.dtype)

    def _projected(self, matrix_PGN: torch.Tensor, x_BHLE: torch.Tensor, positions_BL) -> torch.Tensor:
        """Sum over the tokens, weighted by the entries of their columns: B x H x N x E."""
        batch, heads, length, width = x_BHLE.shape
        if positions_BL is None:
            self.require_length(length)
        columns_BLX = of_positions(matrix_PGN.flatten(1), length, positions_BL)
        weights_BGNL = columns_BLX.unflatten(2, matrix_PGN.shape[1:]).permute(0, 2, 3, 1)
        # Heads, or cells, that share a matrix become columns of one product; the matrix is not copied for each.
        if weights_BGNL.shape[1] == 1:
            rows_BNX = weights_BGNL[:, 0] @ x_BHLE.transpose(1, 2).flatten(2)
            return rows_BNX.unflatten(2, (heads, width)).transpose(1, 2)
        if len(weights_BGNL) == 1:
            rows_HNX = weights_BGNL[0] @ x_BHLE.permute(1, 2, 0, 3).flatten(2)
            return rows_HNX.unflatten(2, (batch, width)).permute(2, 0, 1, 3)
        return weights_BGNL @ x_BHLE
