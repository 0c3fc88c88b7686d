"""The contract of every attention mechanism.

Shape letters, here and in each mechanism: B cells, H heads, L tokens, E head width, M features.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from scperformer.base.errors import InputError
from scperformer.config.options import Options


@dataclass(kw_only=True)
class Sizes:
    """The sizes for which a mechanism is built."""

    num_heads: int  # H
    head_dim: int  # E
    length: int  # positions of a cell at most: the genes of the model and the special position
    keys_of_genes: bool = False  # only `read_genes` is used


class AttentionOptions(Options):
    """Options of a mechanism, checked when they are created."""

    prefix = "attention."


class Attention(nn.Module):
    """Mix the values of the tokens of a cell, without projections of queries, keys, values or outputs.

    In `eval()` the result depends only on the inputs; the generator is the only source of randomness.
    """

    Options: ClassVar[type[AttentionOptions]]
    quadratic: ClassVar[bool] = False  # time grows with the square of L
    fixed_length: ClassVar[bool] = False  # parameters depend on the number of positions
    # permuting the tokens does more than permute the output
    order_sensitive: ClassVar[bool] = False
    # keys only enter as sums of phi(k) v^T: linear_attention.py
    sums_over_keys: ClassVar[bool] = False
    # has an option `causal`: tokens attend only to themselves and earlier tokens
    causal: ClassVar[bool] = False
    # they equal differences of outputs; false: a stabiliser has no gradient
    exact_gradients: ClassVar[bool] = True
    shared_qk: ClassVar[bool] = False  # queries are also the keys: `k_BHLE` is ignored
    uses_cross_attention: ClassVar[bool] = False  # `read_genes` and `gene_weights` exist
    # name of the integer option that trades cost for accuracy
    size_option: ClassVar[str | None] = None

    starts_from_keys: bool = False  # `start` must be called before training
    redraw_interval: int = 0  # training steps between calls of `redraw`; 0: never
    penalty_weight: float = 0.0  # weight of `penalty()` in the training loss

    def __init__(self, sizes: Sizes, options: Any, generator: torch.Generator):
        super().__init__()
        self.sizes = sizes
        self.options = options

    def forward(
        self,
        q_BHLE: Tensor,
        k_BHLE: Tensor,
        v_BHLE: Tensor,
        keep_BL: Tensor,
        positions_BL: Tensor | None = None,
    ) -> Tensor:
        """Return the mixed values: B x H x L x E, dtype of `v_BHLE`.

        `keep_BL` is True for real tokens; the other tokens influence nothing, and their output is arbitrary.
        `positions_BL`, int64, is the position (gene) of each token, used only with `fixed_length`. If None, it
        is 0, 1, 2, ...
        """
        raise NotImplementedError

    def packed(
        self, qkv_TBHLE: Tensor, keep_BL: Tensor, positions_BL: Tensor | None = None
    ) -> Tensor:
        """As `forward`, with queries, keys and values in one tensor; T = 2 with `shared_qk`, else 3."""
        q_BHLE, *k_BHLE, v_BHLE = qkv_TBHLE.unbind(0)
        return self(q_BHLE, *(k_BHLE or [q_BHLE]), v_BHLE, keep_BL, positions_BL)

    def table_width(self, num_genes: int) -> int:
        """Return the number W of sums over the genes of a cell that `read_genes` needs; without a table, G."""
        return num_genes

    @property
    def num_key_sums(self) -> int | None:
        """The number of the first sums, which must be exact; the others may be compressed. None: all must be exact."""
        return None

    def gene_table(self, k_GE: Tensor, v_GE: Tensor) -> Tensor | None:
        """Return the table, G x W, whose product with the expression of cells `read_genes` needs; by default None.

        The keys and values of G genes are the same in all cells and heads, and the expression of a gene is its weight.
        """
        return None

    def read_genes(self, q_BHLE: Tensor, sums_BW: Tensor, k_GE: Tensor, v_GE: Tensor) -> Tensor:
        """Return for each query the mean of the values of all genes, weighted by attention x expression: B x H x L x E.

        `sums_BW` is the product of the expression of the cells, B x G, and `gene_table`, or without a table the
        expression. For a cell without expression, the result is finite.
        """
        raise NotImplementedError

    def gene_weights(self, q_BHE: Tensor, k_GE: Tensor, x_BG: Tensor) -> Tensor:
        """Return the weights of the genes in `read_genes`, given their expression: B x H x G, with the sum 1."""
        raise NotImplementedError

    @property
    def is_causal(self) -> bool:
        return getattr(self.options, "causal", False)

    @property
    def size(self) -> int | None:
        """The number that trades cost for accuracy, such as features per head, or None."""
        return None if self.size_option is None else getattr(self.options, self.size_option)

    @property
    def needs_own_batch(self) -> bool:
        """Whether a cell needs a batch of its own; else the last bits of its result would depend on other cells.

        Unless a cell's part of a tensor fills whole cache lines, the cells of a batch are aligned differently in
        memory, and products of small matrices are then summed in different orders.
        """
        # causal mechanisms process pieces of the tokens, and the last piece may have any length
        return self.is_causal or (self.size is not None and self.size % 16 != 0)

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        """Refuse more tokens than the mechanism can process: with `fixed_length`, more than it has positions."""
        if self.fixed_length and num_tokens > self.sizes.length:
            name = type(self).__name__.lower()
            expected = (
                f"at most the {self.sizes.length} positions that attention={name} was built for"
            )
            remedy = "align the cells to the model's genes, or choose a different attention"
            raise InputError("too-many-tokens", f"{num_tokens} tokens in {where}", expected, remedy)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the random parts again (called only during training); by default there are none."""

    def start(self, k_BHLE: Tensor, keep_BL: Tensor, generator: torch.Generator) -> None:
        """Initialise from the keys of training cells, before training; by default do nothing."""

    def share_with(self, first: "Attention") -> None:
        """Share parameters with the first layer's mechanism; by default share none."""

    def penalty(self) -> Tensor:
        """Return a number that training keeps small, before `penalty_weight`; by default 0."""
        return torch.zeros(())


def of_positions(table_PN: Tensor, num_tokens: int, positions_BL: Tensor | None) -> Tensor:
    """Return the rows of a table at the positions of tokens, B x L x N; if all cells have all positions, B is 1."""
    if positions_BL is None:
        return table_PN[None, :num_tokens]
    in_order_P = torch.arange(len(table_PN), device=table_PN.device)
    if num_tokens == len(table_PN) and bool((positions_BL == in_order_P).all()):
        return table_PN[None]
    return embedding(positions_BL, table_PN)


def zeroed(x_BHLE: Tensor, keep_BL: Tensor) -> Tensor:
    """Return `widened` tokens with 0 for dropped ones, whose content may be anything: 0 * nan is not 0."""
    return widened(x_BHLE).masked_fill(~keep_BL[:, None, :, None], 0.0)


def widened(x: Tensor) -> Tensor:
    """Return a tensor as float32, or as float64 if it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
