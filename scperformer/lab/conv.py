"""Performer attention plus attention of fixed length between convolved queries, keys and values.

More shape letters than in base.py: P positions, K projected rows, C = H E channels, T taps of a kernel.
"""

from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad, relu, scaled_dot_product_attention

from scperformer.attention.base import Attention, AttentionOptions, Sizes, of_positions, zeroed
from scperformer.attention.favor import Favor
from scperformer.config.options import ONE_OR_MORE, ZERO_OR_MORE, Rule, choice, option

# norm of the random part of the initial kernels, to which a unit impulse is added
KERNEL_NOISE = 0.1
ODD_NUMBERS: Rule = (
    lambda sizes: (
        len(sizes) > 0 and all(type(size) is int and size >= 1 and size % 2 == 1 for size in sizes)
    ),
    "one or more odd numbers",
)


class Conv(Attention):
    """R^T softmax((R q')(C k')^T / sqrt(E)) (C v') + favor(q, k, v), with x' = sum over kernels of kernel * x.

    With `skip=map`, C v replaces C v': both maps are added, and weigh the same values.

    Each kernel is a depthwise convolution along the tokens: every channel of every head has its own. Dropped tokens are
    0 before and after it. R and C are learned, K x P; each column belongs to a position (a gene).

    Source: this project; the linear attention: Choromanski et al. 2021, arXiv 2009.14794.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        kernel_sizes: list[int] = option([3, 7], rule=ODD_NUMBERS)  # tokens per convolution
        # K: length of the attention between convolved tokens
        projected_length: int = option(64, rule=ONE_OR_MORE)
        # weight in the loss of kernel norms above the threshold
        penalty_weight: float = option(1e-4, rule=ZERO_OR_MORE)
        # of the Frobenius norm of the kernels of q, k or v of one size
        penalty_threshold: float = option(1.0, rule=ZERO_OR_MORE)
        # features of the added linear attention, as in favor
        num_features: int | None = option(None, rule=ONE_OR_MORE)
        redraw_interval: int = option(1000, rule=ZERO_OR_MORE)  # as in favor
        # what is added to the linear attention: an output, or the attention map
        skip: str = choice("output", "map")

    fixed_length = True
    order_sensitive = True
    size_option = "projected_length"

    def __init__(self, sizes: Sizes, options: Options, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.penalty_weight = options.penalty_weight
        self.redraw_interval = options.redraw_interval
        linear = Favor.Options(
            num_features=options.num_features, redraw_interval=options.redraw_interval
        )
        self.skip = Favor(sizes, linear, generator)
        # one entry per size, with separate kernels for q, k and, if convolved, v
        self.kernels_3CT = nn.ParameterList()
        for size in options.kernel_sizes:
            shape = (3 if options.skip == "output" else 2, sizes.num_heads * sizes.head_dim, size)
            kernels_3CT = torch.randn(shape, generator=generator) * KERNEL_NOISE / size**0.5
            kernels_3CT[:, :, size // 2] += 1
            self.kernels_3CT.append(kernels_3CT / len(options.kernel_sizes))
        # With this, sums over all positions have the scale of a token, and scores have unit scale.
        std = sizes.length**-0.5
        sides = (sizes.length, options.projected_length)
        self.rows_PK = nn.Parameter(std * torch.randn(sides, generator=generator))
        self.columns_PK = nn.Parameter(std * torch.randn(sides, generator=generator))

    def redraw(self, generator: torch.Generator) -> None:
        self.skip.redraw(generator)

    def penalty(self) -> Tensor:
        """Return the excess of each kernel's Frobenius norm over the threshold, summed over q, k, v and sizes."""
        norms = torch.cat([kernel_3CT.flatten(1).norm(dim=1) for kernel_3CT in self.kernels_3CT])
        return relu(norms - self.options.penalty_threshold).sum()

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        if positions_BL is None:
            self.require_length(q_BHLE.shape[2])
        skip_BHLE = self.skip(q_BHLE, k_BHLE, v_BHLE, keep_BL)
        with torch.autocast(q_BHLE.device.type, enabled=False):  # sums over thousands of tokens
            q, k, v = (zeroed(x, keep_BL) for x in (q_BHLE, k_BHLE, v_BHLE))
            tables = (self.rows_PK.to(q.dtype), self.columns_PK.to(q.dtype))
            rows_BLK, columns_BLK = (
                of_positions(table_PK, q.shape[2], positions_BL) for table_PK in tables
            )
            # A sum of convolutions is a convolution with the sum of the kernels.
            longest = max(self.options.kernel_sizes)
            sides = [(longest - size) // 2 for size in self.options.kernel_sizes]
            padded = [
                pad(kernel_3CT, (side, side))
                for kernel_3CT, side in zip(self.kernels_3CT, sides, strict=True)
            ]
            kernels_3CT = torch.stack(padded).sum(0).to(q.dtype)
            # sums over the tokens, weighted with the columns of their positions: B x H x K x E
            projected = []
            tables_of_qkv = (rows_BLK, columns_BLK, columns_BLK)
            for x, table_BLK, kernel_CT in zip_longest((q, k, v), tables_of_qkv, kernels_3CT):
                x_BCL = x.transpose(2, 3).flatten(1, 2)
                if kernel_CT is not None:
                    # torch's grouped convolution is 2 to 3 times as fast on a CPU, with gradients, as shifted copies
                    x_BCL = conv1d(
                        x_BCL, kernel_CT[:, None], padding=longest // 2, groups=len(kernel_CT)
                    )
                    x_BCL = x_BCL.masked_fill(~keep_BL[:, None], 0.0)
                projected.append((x_BCL @ table_BLK).unflatten(1, (self.sizes.num_heads, -1)).mT)
            mixed_BHKE = scaled_dot_product_attention(*projected)
            # all heads share R, so they become columns of one product
            out_BLC = rows_BLK @ mixed_BHKE.transpose(1, 2).flatten(2)
            out_BHLE = out_BLC.unflatten(2, (self.sizes.num_heads, -1)).transpose(1, 2) + skip_BHLE
        return out_BHLE.to(v_BHLE.dtype)
