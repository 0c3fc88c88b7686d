"""The contract of every attention mechanism.

Shape letters, here and in each mechanism: B cells, H heads, L tokens, E head width, M features.
"""

from typing import ClassVar

import torch
from torch import nn


class Attention(nn.Module):
    """Mixes the values of the tokens of a cell; owns no q/k/v/out projections, dropout or residual.

    In `eval()` the result depends on the inputs alone. The class-level flags are statements that tests prove.
    """

    quadratic: ClassVar[bool]  # time grows with the square of L
    order_sensitive: ClassVar[bool]  # permuting the tokens does more than permute the output

    def forward(
        self, q_BHLE: torch.Tensor, k_BHLE: torch.Tensor, v_BHLE: torch.Tensor, keep_BL: torch.Tensor
    ) -> torch.Tensor:
        """Mixed values.

        Parameters
        ----------
        q_BHLE, k_BHLE, v_BHLE
            Queries, keys and values.
        keep_BL
            True = a real token; the others influence nothing, and their own output means nothing.

        Returns
        -------
        Tensor, B x H x L x E, dtype of `v_BHLE`.
        """
        raise NotImplementedError

    def redraw(self, generator: torch.Generator) -> None:
        """Draw what is random anew (called during training only); nothing by default."""
