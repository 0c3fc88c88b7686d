"""Performer plus attention at a fixed length between convolved queries, keys and values.

Shape letters beyond those of base.py: P positions, K projected rows, C = H E channels, T taps of a kernel.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import conv1d, pad, relu, scaled_dot_product_attention

from scperformer.attention.additive import widened
from scperformer.attention.base import Attention, Sizes, of_positions
from scperformer.attention.favor import Favor, FavorOptions
from scperformer.config import require

NOISE = 0.1  # norm of the random part of the starting kernels, whose middle tap is 1 more


@dataclass(kw_only=True)
class ConvOptions:
    """Options of `attention=conv`."""

    kernel_sizes: list[int] = field(default_factory=lambda: [3, 7])  # tokens per convolution; odd
    projected_length: int = 64  # K: rows and columns of the attention between convolved tokens
    penalty_weight: float = 1e-4  # weight in the loss of norms above the threshold
    penalty_threshold: float = 1.0  # Frobenius norm of the kernels of q, k or v of one size without penalty
    num_features: int | None = None  # of the added linear attention, as in favor
    redraw_interval: int = 1000  # as in favor

    def __post_init__(self) -> None:
        sizes = self.kernel_sizes
        odd = len(sizes) > 0 and all(type(size) is int and size >= 1 and size % 2 == 1 for size in sizes)
        require(odd, "attention.kernel_sizes", sizes, "one or more odd numbers")
        require(self.projected_length >= 1, "attention.projected_length", self.projected_length, "1 or more")
        require(self.penalty_weight >= 0, "attention.penalty_weight", self.penalty_weight, "0 or more")
        require(self.penalty_threshold >= 0, "attention.penalty_threshold", self.penalty_threshold, "0 or more")
        self.favor()

    def favor(self) -> FavorOptions:
        """The options of the added linear attention."""
        return FavorOptions(num_features=self.num_features, redraw_interval=self.redraw_interval)


class Conv(Attention):
    """R^T softmax((R q')(C k')^T / sqrt(E)) (C v') + favor(q, k, v), with x' = sum over kernels of kernel * x.

    Each kernel is a convolution over the token axis of every head and channel by itself; dropped tokens are 0 before
    and after it. R and C are learned, K x P; a column belongs to a position (a gene).

    Source
    ------
    Of this project; the linear attention: Choromanski et al. 2021, arXiv 2009.14794.
    """

    Options = ConvOptions
    fixed_length = True
    order_sensitive = True
    size_option = "projected_length"

    def __init__(self, sizes: Sizes, options: ConvOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.penalty_weight = options.penalty_weight
        self.redraw_interval = options.redraw_interval
        self.skip = Favor(sizes, options.favor(), generator)
        channels = sizes.num_heads * sizes.head_dim
        # one parameter per size, with separate kernels for q, k and v
        self.kernels_3CT = nn.ParameterList(
            starting_kernels(channels, size, generator) / len(options.kernel_sizes) for size in options.kernel_sizes
        )
        shape = (sizes.length, options.projected_length)
        # Sums over all positions then have the scale of a token, and scores have unit scale.
        std = sizes.length**-0.5
        self.rows_PK = nn.Parameter(std * torch.randn(shape, generator=generator))
        self.columns_PK = nn.Parameter(std * torch.randn(shape, generator=generator))

    def redraw(self, generator: torch.Generator) -> None:
        self.skip.redraw(generator)

    def penalty(self) -> torch.Tensor:
        """Frobenius norm of each feature transform above the threshold, summed over q, k, v and kernel sizes."""
        norms = torch.cat([kernel_3CT.flatten(1).norm(dim=1) for kernel_3CT in self.kernels_3CT])
        return relu(norms - self.options.penalty_threshold).sum()

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        if positions_BL is None:
            self.require_length(q_BHLE.shape[2])
        drop_B1L1 = ~keep_BL[:, None, :, None]
        skip_BHLE = self.skip(q_BHLE, k_BHLE, v_BHLE, keep_BL)
        with torch.autocast(q_BHLE.device.type, enabled=False):  # sums over thousands of tokens
            q, k, v = (widened(x).masked_fill(drop_B1L1, 0.0) for x in (q_BHLE, k_BHLE, v_BHLE))
            tables = (self.rows_PK.to(q.dtype), self.columns_PK.to(q.dtype))
            rows_BLK, columns_BLK = (of_positions(table_PK, q.shape[2], positions_BL) for table_PK in tables)
            kernels_3CT = self._sum_of_kernels().to(q.dtype)
            of_each = (rows_BLK, columns_BLK, columns_BLK)
            q_BHKE, k_BHKE, v_BHKE = (
                self._projected(convolved(x, kernel_CT).masked_fill(~keep_BL[:, None], 0.0), table_BLK)
                for x, kernel_CT, table_BLK in zip((q, k, v), kernels_3CT, of_each, strict=True)
            )
            mixed_BHKE = scaled_dot_product_attention(q_BHKE, k_BHKE, v_BHKE)
            # all heads share R: they become columns of one product
            out_BLC = rows_BLK @ mixed_BHKE.transpose(1, 2).flatten(2)
            out_BHLE = out_BLC.unflatten(2, (self.sizes.num_heads, -1)).transpose(1, 2) + skip_BHLE
        return out_BHLE.to(v_BHLE.dtype)

    def _sum_of_kernels(self) -> torch.Tensor:
        """Add up the kernels: the sum of convolutions is the convolution with the sum."""
        longest = max(kernel_3CT.shape[2] for kernel_3CT in self.kernels_3CT)
        sides = [(longest - kernel_3CT.shape[2]) // 2 for kernel_3CT in self.kernels_3CT]
        padded = [pad(kernel_3CT, (side, side)) for kernel_3CT, side in zip(self.kernels_3CT, sides, strict=True)]
        return torch.stack(padded).sum(0)

    def _projected(self, x_BCL: torch.Tensor, table_BLK: torch.Tensor) -> torch.Tensor:
        """Sum over the tokens, weighted by their columns: B x H x K x E."""
        return (x_BCL @ table_BLK).unflatten(1, (self.sizes.num_heads, -1)).mT


def starting_kernels(channels: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Draw kernels of q, k and v that are close to the identity: 3 x C x T."""
    kernels_3CT = torch.randn(3, channels, size, generator=generator) * NOISE / size**0.5
    kernels_3CT[:, :, size // 2] += 1
    return kernels_3CT


def convolved(x_BHLE: torch.Tensor, kernel_CT: torch.Tensor) -> torch.Tensor:
    """Convolve each channel with its kernel along the tokens, 0 beyond the ends: B x C x L."""
    x_BCL = x_BHLE.transpose(2, 3).flatten(1, 2)
    # torch's grouped convolution is 2 to 3 times as fast on a CPU, with gradients, as adding up shifted copies
    return conv1d(x_BCL, kernel_CT[:, None], padding=kernel_CT.shape[1] // 2, groups=len(kernel_CT))
