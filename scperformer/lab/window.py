"""Attention to neighbouring tokens, with scores that are convolved with learned kernels once (window) or more (evo).

More shape letters than in base.py: P blocks of C tokens, N convolutions, W = 2r + 1 entries of a row of the band.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from scperformer.attention.base import Attention, AttentionOptions, Sizes, widened
from scperformer.config.options import ZERO_OR_MORE, choice, option

# norm of the random part of the initial kernels, to which a unit impulse is added
KERNEL_NOISE = 0.1
BLOCKS_AT_A_TIME = 128  # blocks of one head
BLOCKS_ON_GPU = 2**13
# smaller products are slower, although larger blocks compute more scores outside the band
MIN_BLOCK_TOKENS = 64


class Window(Attention):
    """normalize(C) V with C[i,j] = sum_t w_h[t] S[i,j+t], S = Q K^T / sqrt(E) within |i-j| <= r and 0 elsewhere.

    t runs from -r to r; w_h is a learned kernel for each head; C has the same band as S. Dropped tokens keep their
    position, with score and weight 0. The band is stored as L x (2r+1): entry t of row i belongs to token i + t - r.

    Source: this project; without the convolution, the sliding window of Beltagy et al. 2020, arXiv 2004.05150, section
    3.1.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        # r: neighbours on each side that a token attends to
        half_width: int = option(32, rule=ZERO_OR_MORE)
        # rows of convolved scores: softmax, l1 (absolute values sum to 1) or none
        normalize: str = choice("softmax", "l1", "none")
        # scores are divided by sqrt(head_dim); attention=linear_transformer leaves it out
        scale: bool = True

    order_sensitive = True
    size_option = "half_width"

    def __init__(self, sizes: Sizes, options: Options, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        num_convolutions = getattr(options, "num_convolutions", 1)  # an option of evo
        width = 2 * options.half_width + 1
        taps_NHW = torch.randn(num_convolutions, sizes.num_heads, width, generator=generator)
        taps_NHW *= KERNEL_NOISE / width**0.5
        taps_NHW[:, :, options.half_width] += 1
        self.taps_NHW = nn.Parameter(taps_NHW)

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        batch, heads, length, _ = q_BHLE.shape
        half_width = min(self.options.half_width, length - 1)  # no neighbour is further away
        block = min(length, max(MIN_BLOCK_TOKENS, 2 * half_width))
        # padding: r on each side, and the missing tokens of the last block
        around = (half_width, half_width + -length % block)
        drop_1BL1 = ~keep_BL[None, :, :, None]
        # scores need more than the 8 bits of bfloat16
        with torch.autocast(q_BHLE.device.type, enabled=False):
            # heads first, so that one product convolves the scores of all cells with a kernel
            q, k, v = (
                widened(x.transpose(0, 1)).masked_fill(drop_1BL1, 0.0)
                for x in (q_BHLE, k_BHLE, v_BHLE)
            )
            factor = self.sizes.head_dim**-0.5 if self.options.scale else 1.0
            q = pad(q * factor, (0, 0, 0, -length % block))
            q_HBPCE = q.unflatten(2, (-1, block))
            # a block attends to its own tokens and to r tokens on each side
            keys_values = [
                part
                for x in (k, v)
                for part in overlapping(pad(x, (0, 0, *around)), block, 2 * half_width)
            ]
            unreal_1BPCW = (
                ~pad(keep_BL, around)
                .unfold(1, 2 * half_width + 1, 1)
                .unflatten(1, (-1, block))[None]
            )
            # A few blocks at a time: their temporary tensors fit into the cache, and the next blocks reuse their
            # memory.
            span = max(1, (BLOCKS_ON_GPU if q_BHLE.is_cuda else BLOCKS_AT_A_TIME) // heads)
            cells = max(1, span // q_HBPCE.shape[2])
            pieces = zip(
                *(split(x, cells, span) for x in (q_HBPCE, *keys_values, unreal_1BPCW)), strict=True
            )
            out = []  # each with all blocks of some cells, or some blocks of one cell
            for q_HPCE, k_own, k_next, v_own, v_next, unreal_1PCW in pieces:
                k_HPKE = torch.cat([k_own, k_next], dim=2)
                v_HPKE = torch.cat([v_own, v_next], dim=2)
                weights_HPCW = self.weights(skewed(q_HPCE @ k_HPKE.mT), unreal_1PCW)
                out.append(unskewed(weights_HPCW) @ v_HPKE)
        out_BHLE = torch.cat(out, dim=1).unflatten(1, (batch, -1)).flatten(2, 3).transpose(0, 1)
        return out_BHLE[:, :, :length].to(v_BHLE.dtype)

    def weights(self, scores_HPCW: Tensor, unreal_1PCW: Tensor) -> Tensor:
        """Turn the band of scores, which is 0 where there is no real key, into the band of weights."""
        # taps on each side that reach beyond the cell
        spare = (self.taps_NHW.shape[-1] - scores_HPCW.shape[-1]) // 2
        for i, taps_HW in enumerate(self.taps_NHW[..., spare : self.taps_NHW.shape[-1] - spare]):
            if i > 0:
                scores_HPCW = scores_HPCW.masked_fill(unreal_1PCW, 0.0)
            # T with (S T)[j] = sum_t w[t] S[j+t], T[s,j] = w[s-j]: j - s runs from -2r to 2r, and t from -r to r
            padded_taps = pad(taps_HW.to(scores_HPCW.dtype), (taps_HW.shape[-1] // 2,) * 2)
            matrix_HWW = padded_taps.unfold(-1, taps_HW.shape[-1], 1).flip(-1)
            # The last bits of a product depend on its number of rows. In prediction a result must not depend on other
            # cells, so each block has its own product. In training a single product saves a fifth of the time.
            if torch.is_grad_enabled():
                scores_HPCW = (scores_HPCW.flatten(1, 2) @ matrix_HWW).view_as(scores_HPCW)
            else:
                scores_HPCW = scores_HPCW @ matrix_HWW[:, None]
        if self.options.normalize == "softmax":
            # Rows without a real key become uniform, which has no effect, as their values are all 0.
            return scores_HPCW.masked_fill(unreal_1PCW, torch.finfo(scores_HPCW.dtype).min).softmax(
                -1
            )
        scores_HPCW = scores_HPCW.masked_fill(unreal_1PCW, 0.0)
        if self.options.normalize == "l1":
            sums_HPC1 = scores_HPCW.abs().sum(-1, keepdim=True)
            return scores_HPCW / sums_HPC1.masked_fill(sums_HPC1 == 0, 1.0)
        return scores_HPCW


class Evo(Window):
    """As `window`, but scores are convolved N times; before each, entries without a real key are set to 0."""

    @dataclass(kw_only=True)
    class Options(Window.Options):
        # N: learned kernels per head; 1 equals `window`
        num_convolutions: int = option(2, rule=(lambda num: 1 <= num <= 100, "1 to 100"))


def overlapping(x_HBKE: Tensor, block: int, more: int) -> tuple[Tensor, Tensor]:
    """Cut into pieces of `block + more` tokens that start `block` apart, each in two parts: H x B x P x tokens x E.

    `unfold` gives the same, but its backward pass is several times as slow.
    """
    num_blocks = (x_HBKE.shape[2] - more) // block
    if num_blocks == 1:
        whole = x_HBKE.unsqueeze(2)
        return whole, whole[:, :, :, :0]
    blocks = pad(x_HBKE, (0, 0, 0, block - more)).unflatten(2, (num_blocks + 1, block))
    return blocks[:, :, :-1], blocks[:, :, 1:, :more]


def split(x: Tensor, cells: int, blocks: int) -> list[Tensor]:
    """Split into pieces with all blocks of `cells` cells, or `blocks` blocks of one cell: ... B x P ... to ... P ..."""
    return [
        piece.flatten(1, 2) for some in x.split(cells, dim=1) for piece in some.split(blocks, dim=2)
    ]


def skewed(scores: Tensor) -> Tensor:
    """Return the band, ... x C x (2r+1), of all products, ... x C x (C+2r): its row a starts at column a."""
    block, num_keys = scores.shape[-2:]
    # if rows are read with one entry more, each starts one column later than the one before
    return pad(scores.flatten(-2), (0, block)).unflatten(-1, (block, num_keys + 1))[
        ..., : num_keys - block + 1
    ]


def unskewed(band: Tensor) -> Tensor:
    """Return the inverse of `skewed`, with 0 outside the band."""
    block, width = band.shape[-2:]
    num_keys = block + width - 1
    # if rows are read with one entry less, each starts one column further to the right
    return (
        pad(band, (0, block)).flatten(-2)[..., : block * num_keys].unflatten(-1, (block, num_keys))
    )
