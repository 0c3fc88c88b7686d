"""A linear transformer with a learned kernel: each token attends to its neighbours, its scores being convolved first.

Shape letters beyond those of base.py: P blocks of C tokens, N convolutions, W = 2r + 1 entries of a row of the band.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import pad

from scperformer.attention.additive import widened
from scperformer.attention.base import Attention, Sizes
from scperformer.options import require, require_choice

NOISE = 0.1  # of the starting kernels beside their middle tap of 1: root of the sum of squares
BLOCKS = 128  # of tokens of one head, at a time
MIN_BLOCK = 64  # tokens: smaller matrix products are slower than the work that larger ones waste


@dataclass(kw_only=True)
class WindowOptions:
    """Options of `attention=window`."""

    half_width: int = 32  # r: tokens that a token sees on each side of itself
    normalize: str = "softmax"  # rows of convolved scores over the real keys: softmax, l1 (sum of sizes is 1) or none

    def __post_init__(self) -> None:
        require(self.half_width >= 0, "attention.half_width", self.half_width, "0 or more")
        require_choice("attention.normalize", self.normalize, ("softmax", "l1", "none"))


class Window(Attention):
    """normalize(C) V with C[i,j] = sum_t w_h[t] S[i,j+t], S = Q K^T / sqrt(E) within |i-j| <= r and 0 elsewhere.

    t runs from -r to r; w_h is a learned kernel per head; C has the same band as S. Dropped tokens keep their place,
    with score and weight 0. The band is stored as L x (2r+1): entry t of row i belongs to token i + t - r.

    Source
    ------
    Of this project, without the convolution the sliding window of Beltagy et al. 2020, arXiv 2004.05150, section 3.1.
    """

    Options = WindowOptions
    order_sensitive = True
    size_option = "half_width"

    def __init__(self, sizes: Sizes, options: WindowOptions, generator: torch.Generator, *, num_convolutions: int = 1):
        super().__init__(sizes, options, generator)
        self.half_width = options.half_width
        self.normalize = options.normalize
        width = 2 * options.half_width + 1
        taps_NHW = torch.randn(num_convolutions, sizes.num_heads, width, generator=generator)
        taps_NHW *= NOISE / width**0.5
        taps_NHW[:, :, options.half_width] += 1
        self.taps_NHW = nn.Parameter(taps_NHW)

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        batch, heads, length, _ = q_BHLE.shape
        half_width = min(self.half_width, length - 1)  # there is nothing further away
        block = min(length, max(MIN_BLOCK, 2 * half_width))
        around = (half_width, half_width + -length % block)  # r on each side, and what fills the last block
        drop_1BL1 = ~keep_BL[None, :, :, None]
        with torch.autocast(q_BHLE.device.type, enabled=False):  # scores need more than bf16's 8 bits
            # heads first: a kernel then meets the scores of all cells in one product
            q, k, v = (widened(x.transpose(0, 1)).masked_fill(drop_1BL1, 0.0) for x in (q_BHLE, k_BHLE, v_BHLE))
            q = pad(q * self.sizes.head_dim**-0.5, (0, 0, 0, -length % block))
            q_HPCE = q.unflatten(2, (-1, block)).flatten(1, 2)
            # keys and values of a block: its own tokens and r on each side of them
            k_HPKE, v_HPKE = (overlapping(pad(x, (0, 0, *around)), block, block + 2 * half_width) for x in (k, v))
            unreal_PCW = ~pad(keep_BL, around).unfold(1, 2 * half_width + 1, 1).unflatten(1, (-1, block)).flatten(0, 1)
            # Some blocks at a time: what they need fits into a cache, and its memory serves the next ones.
            span = max(1, BLOCKS // heads)
            pieces = (*(x.split(span, dim=1) for x in (q_HPCE, k_HPKE, v_HPKE)), unreal_PCW.split(span))
            out_HPCE = torch.cat([self._of_blocks(*piece) for piece in zip(*pieces, strict=True)], dim=1)
        out_BHLE = out_HPCE.unflatten(1, (batch, -1)).flatten(2, 3).transpose(0, 1)
        return out_BHLE[:, :, :length].to(v_BHLE.dtype)

    def _of_blocks(self, q_HPCE, k_HPKE, v_HPKE, unreal_PCW) -> torch.Tensor:
        """Mixed values of blocks of tokens."""
        return unskewed(self.weights(skewed(q_HPCE @ k_HPKE.mT), unreal_PCW)) @ v_HPKE

    def weights(self, scores_HPCW: torch.Tensor, unreal_PCW: torch.Tensor) -> torch.Tensor:
        """The band of weights from the band of scores, which is 0 where there is no real key."""
        spare = (self.taps_NHW.shape[-1] - scores_HPCW.shape[-1]) // 2  # taps on each side that reach too far
        for i, taps_HW in enumerate(self.taps_NHW[..., spare : self.taps_NHW.shape[-1] - spare]):
            if i > 0:
                scores_HPCW = scores_HPCW.masked_fill(unreal_PCW, 0.0)
            mixed_HRW = scores_HPCW.flatten(1, 2) @ toeplitz(taps_HW.to(scores_HPCW.dtype))
            scores_HPCW = mixed_HRW.view_as(scores_HPCW)
        if self.normalize == "softmax":
            # Rows without any real key become uniform: their values are all 0.
            return scores_HPCW.masked_fill(unreal_PCW, torch.finfo(scores_HPCW.dtype).min).softmax(-1)
        scores_HPCW = scores_HPCW.masked_fill(unreal_PCW, 0.0)
        if self.normalize == "l1":
            sums_HPC1 = scores_HPCW.abs().sum(-1, keepdim=True)
            return scores_HPCW / sums_HPC1.masked_fill(sums_HPC1 == 0, 1.0)
        return scores_HPCW


def overlapping(x_HBKE: torch.Tensor, block: int, num_keys: int) -> torch.Tensor:
    """Pieces of `num_keys` tokens that begin `block` apart, H x P x num_keys x E; of several, at most 2 `block`.

    As `unfold` gives, whose backward pass is several times as slow.
    """
    num_blocks = (x_HBKE.shape[2] - num_keys) // block + 1
    if num_blocks == 1:
        return x_HBKE
    x_HBKE = pad(x_HBKE, (0, 0, 0, (num_blocks + 1) * block - x_HBKE.shape[2]))
    blocks = x_HBKE.unflatten(2, (num_blocks + 1, block))
    return torch.cat([blocks[:, :, :-1], blocks[:, :, 1:, : num_keys - block]], dim=3).flatten(1, 2)


def toeplitz(taps_HW: torch.Tensor) -> torch.Tensor:
    """Matrices T with (S T)[j] = sum_t w[t] S[j+t] for t = -r..r, T[s,j] = w[s-j], H x W x W."""
    width = taps_HW.shape[-1]
    # between row s and column j lie -2r .. 2r, and there is a tap for -r .. r
    return pad(taps_HW, (width // 2, width // 2)).unfold(-1, width, 1).flip(-1)


def skewed(scores: torch.Tensor) -> torch.Tensor:
    """The band of blocks, ... x C x (2r+1), out of all their products, ... x C x (C+2r): row a begins at column a."""
    block, num_keys = scores.shape[-2:]
    # rows one entry longer begin one column later each
    return pad(scores.flatten(-2), (0, block)).unflatten(-1, (block, num_keys + 1))[..., : num_keys - block + 1]


def unskewed(band: torch.Tensor) -> torch.Tensor:
    """The opposite of `skewed`, with 0 outside the band."""
    block, width = band.shape[-2:]
    num_keys = block + width - 1
    # each row one entry too long moves the next one to the right by one
    return pad(band, (0, block)).flatten(-2)[..., : block * num_keys].unflatten(-1, (block, num_keys))
