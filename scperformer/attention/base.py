"""The contract of every attention mechanism.

Shape letters, here and in each mechanism: B cells, H heads, L tokens, E head width, M features.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from scperformer.base.errors import InputError
from scperformer.config import Options


@dataclass(kw_only=True)
class Sizes:
    """Sizes that a mechanism is built for."""

    num_heads: int  # H
    head_dim: int  # E
    length: int  # positions that a cell can have: the genes of the model and the special one


class AttentionOptions(Options):
    """Options of a mechanism, checked when they are made."""

    prefix = "attention."


class Attention(nn.Module):
    """Mix the values of the tokens of a cell; has no q/k/v/out projections, dropout or residual.

    In `eval()` the result depends on the inputs alone. The class-level flags are statements that tests prove. The
    generator is the only source of randomness, for parameters and for random projections.
    """

    Options: ClassVar[type[AttentionOptions]]
    quadratic: ClassVar[bool] = False  # time grows with the square of L
    fixed_length: ClassVar[bool] = False  # parameters depend on the number of positions
    order_sensitive: ClassVar[bool] = False  # permuting the tokens does more than permute the output
    additive: ClassVar[bool] = False  # keys contribute a plain sum of phi(k) v^T: see additive.py
    causal: ClassVar[bool] = False  # has an option `causal`: a token sees only itself and those before it
    starts_from_keys: ClassVar[bool] = False  # `start` has to be called before training
    shared_qk: ClassVar[bool] = False  # queries are the keys too: `k_BHLE` is ignored
    size_option: ClassVar[str | None] = None  # the whole-number option that trades work for accuracy, if any

    redraw_interval: int = 0  # training steps between calls of `redraw`; 0: never
    penalty_weight: float = 0.0  # of `penalty()` in the training loss

    def __init__(self, sizes: Sizes, options: Any, generator: torch.Generator):
        super().__init__()
        self.sizes = sizes
        self.options = options

    def forward(
        self, q_BHLE: Tensor, k_BHLE: Tensor, v_BHLE: Tensor, keep_BL: Tensor, positions_BL: Tensor | None = None
    ) -> Tensor:
        """Return the mixed values: B x H x L x E, dtype of `v_BHLE`.

        In `keep_BL` True is a real token; the others influence nothing, and their own output means nothing.
        `positions_BL`, the position (gene) of each token as int64, is used with `fixed_length` only; None: 0, 1, 2, ...
        """
        raise NotImplementedError

    def packed(self, qkv_TBHLE: Tensor, keep_BL: Tensor, positions_BL: Tensor | None = None) -> Tensor:
        """`forward` with queries, keys and values in one tensor; T = 2 with `shared_qk`, else 3."""
        q_BHLE, *k_BHLE, v_BHLE = qkv_TBHLE.unbind(0)
        return self(q_BHLE, *(k_BHLE or [q_BHLE]), v_BHLE, keep_BL, positions_BL)

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only itself and those before it."""
        return getattr(self.options, "causal", False)

    def is_fused(self, x: Tensor) -> bool:
        """Whether tokens on this tensor's device and of its dtype are computed without tensors of L x M numbers."""
        return False

    @property
    def needs_own_batch(self) -> bool:
        """Whether a cell needs a batch of its own, so that its bits do not depend on other cells.

        Unless a cell's part of a tensor fills whole cache lines, the cells of a batch lie differently in memory, and
        products of small matrices then add up in different orders.
        """
        size = self.size_option and getattr(self.options, self.size_option)
        # causal mechanisms work on pieces of the tokens, and the last piece may have any length
        return self.is_causal or (size is not None and size % 16 != 0)

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        """Refuse cells with more tokens than the mechanism can have: with `fixed_length`, than there are positions."""
        if self.fixed_length and num_tokens > self.sizes.length:
            name = type(self).__name__.lower()
            expected = f"at most the {self.sizes.length} positions that attention={name} was built for"
            remedy = "align the cells to the model's genes, or choose another attention"
            raise InputError(f"{num_tokens} tokens in {where}", expected, remedy)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the random parts anew (called during training only); nothing by default."""

    def start(self, k_BHLE: Tensor, keep_BL: Tensor, generator: torch.Generator) -> None:
        """Look at keys of training cells before training starts; nothing by default."""

    def share_with(self, first: "Attention") -> None:
        """Use parameters of the first layer's mechanism in this one; nothing by default."""

    def penalty(self) -> Tensor:
        """A number that training should keep small, before `penalty_weight`; 0 by default."""
        return torch.zeros(())


def of_positions(table_PN: Tensor, num_tokens: int, positions_BL: Tensor | None) -> Tensor:
    """Rows of a table by the positions of tokens: B x L x N; without a copy, B = 1, if all cells have them in order."""
    if positions_BL is None:
        return table_PN[None, :num_tokens]
    in_order_P = torch.arange(len(table_PN), device=table_PN.device)
    if num_tokens == len(table_PN) and bool((positions_BL == in_order_P).all()):
        return table_PN[None]
    return embedding(positions_BL, table_PN)


def widened(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it has that."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
