"""Linformer: softmax attention with projected keys and values.

More shape letters than in base.py: P positions, N projected rows, G groups of heads that share matrices (H or 1), C
matrices per layer (2: for keys and for values; 1: shared by both).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from scperformer.attention.base import (
    Attention,
    AttentionOptions,
    Sizes,
    of_positions,
    widened,
    zeroed,
)
from scperformer.config.options import ONE_OR_MORE, choice, option


class Linformer(Attention):
    """softmax(Q (E K)^T / sqrt(E)) (F V) with learned matrices E and F, N x P; the E under the root is the head width.

    Each column of the matrices belongs to a position (a gene), so the order of the tokens does not matter. `sharing` is
    `none` (E and F for each head), `headwise` (for all heads of a layer), `key_value` (E = F for all heads of a layer)
    or `layerwise` (E = F for all heads of all layers).

    Source: Wang et al. 2020, arXiv 2006.04768, equation 7 and section 4.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        # rows of projected keys and values; at most one per position
        projected_length: int = option(256, rule=ONE_OR_MORE)
        sharing: str = choice("headwise", "none", "key_value", "layerwise")  # of E and F, see above

    fixed_length = True
    size_option = "projected_length"

    def __init__(self, sizes: Sizes, options: Options, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        num_matrices = 2 if options.sharing in ("none", "headwise") else 1
        num_groups = sizes.num_heads if options.sharing == "none" else 1
        num_rows = min(options.projected_length, sizes.length)  # more than P rows add nothing
        matrices_CPGN = torch.randn(
            num_matrices, sizes.length, num_groups, num_rows, generator=generator
        )
        # With a standard deviation of 1 / sqrt(P), scores are as large as without projection. (With 1 / sqrt(N) they
        # are sqrt(P / N) times as large: for 16,907 genes and 256 rows the initial softmax would select a single row.)
        self.matrices_CPGN = nn.Parameter(matrices_CPGN.mul_(sizes.length**-0.5))

    def share_with(self, first: Attention) -> None:
        if self.options.sharing == "layerwise":
            assert isinstance(first, Linformer)
            self.matrices_CPGN = first.matrices_CPGN

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        if positions_BL is None:
            self.require_length(k_BHLE.shape[2])
        with torch.autocast(q_BHLE.device.type, enabled=False):  # sums over thousands of tokens
            k, v = (zeroed(x_BHLE, keep_BL) for x_BHLE in (k_BHLE, v_BHLE))
            k_BHNE = self._projected(self.matrices_CPGN[0].to(k.dtype), k, positions_BL)
            v_BHNE = self._projected(self.matrices_CPGN[-1].to(v.dtype), v, positions_BL)
            return scaled_dot_product_attention(widened(q_BHLE), k_BHNE, v_BHNE).to(v_BHLE.dtype)

    def _projected(self, matrix_PGN: Tensor, x_BHLE: Tensor, positions_BL) -> Tensor:
        """Return sums over the tokens, weighted with the columns of their positions: B x H x N x E."""
        batch, heads, length, width = x_BHLE.shape
        columns_BLX = of_positions(matrix_PGN.flatten(1), length, positions_BL)
        weights_BGNL = columns_BLX.unflatten(2, matrix_PGN.shape[1:]).permute(0, 2, 3, 1)
        # Heads or cells with the same matrix become columns of one product, so that the matrix is not copied.
        if weights_BGNL.shape[1] == 1:
            rows_BNX = weights_BGNL[:, 0] @ x_BHLE.transpose(1, 2).flatten(2)
            return rows_BNX.unflatten(2, (heads, width)).transpose(1, 2)
        if len(weights_BGNL) == 1:
            rows_HNX = weights_BGNL[0] @ x_BHLE.permute(1, 2, 0, 3).flatten(2)
            return rows_HNX.unflatten(2, (batch, width)).permute(2, 0, 1, 3)
        return weights_BGNL @ x_BHLE
