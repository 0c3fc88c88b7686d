"""The feed-forward network of a layer on a GPU in one pass, for predictions: its hidden numbers are never written out.

Shape letters: R rows (tokens of all cells), D model width, F hidden width.
"""

import torch
import triton
import triton.language as tl

TILES = (128, 32, 8, 2)  # rows, hidden numbers, warps of a program and steps in flight: the fastest on an H100
ROOT_OF_HALF = tl.constexpr(0.5**0.5)


@triton.jit
def _feedforward(
    x, h, w1, b1, w2, b2, out, R, D, F, TILE_R: tl.constexpr, TILE_D: tl.constexpr, TILE_F: tl.constexpr,
    GELU: tl.constexpr
):  # fmt: skip
    rows, dims = tl.program_id(0).to(tl.int64) * TILE_R + tl.arange(0, TILE_R), tl.arange(0, TILE_D)
    inside = (rows < R)[:, None] & (dims < D)[None, :]
    place = rows[:, None] * D + dims[None, :]
    x_RD = tl.load(x + place, mask=inside, other=0.0)
    sum_RD = tl.zeros([TILE_R, TILE_D], tl.float32)
    for start in range(0, F, TILE_F):
        hidden = start + tl.arange(0, TILE_F)
        w1_FD = tl.load(w1 + hidden[:, None] * D + dims[None, :], mask=(hidden < F)[:, None] & (dims < D)[None, :], other=0.0)
        w2_DF = tl.load(w2 + dims[:, None] * F + hidden[None, :], mask=(dims < D)[:, None] & (hidden < F)[None, :], other=0.0)
        b1_F = tl.load(b1 + hidden, mask=hidden < F, other=0.0)
        a_RF = tl.dot(x_RD, tl.trans(w1_FD)) + b1_F[None, :]
        a_RF = 0.5 * a_RF * (1.0 + tl.erf(a_RF * ROOT_OF_HALF)) if GELU else tl.maximum(a_RF, 0.0)
        sum_RD += tl.dot(a_RF.to(x_RD.dtype), tl.trans(w2_DF))
    b2_D = tl.load(b2 + dims, mask=dims < D, other=0.0)
    h_RD = tl.load(h + place, mask=inside, other=0.0)
    tl.store(out + place, h_RD + sum_RD + b2_D[None, :], mask=inside)


def feedforward(
    x_RD: torch.Tensor, h_RD: torch.Tensor, first: torch.nn.Linear, second: torch.nn.Linear, gelu: bool
) -> torch.Tensor:
    """h + W2 f(W1 x + b1) + b2, f = GELU or ReLU; float32 as h, products in the precision of x; no gradients."""
    R, D = h_RD.shape
    out_RD = torch.empty_like(h_RD)
    tile_r, tile_f, warps, stages = TILES
    given = (x_RD, h_RD, first.weight.to(x_RD.dtype), first.bias, second.weight.to(x_RD.dtype), second.bias, out_RD)
    sizes = {"TILE_R": tile_r, "TILE_D": triton.next_power_of_2(D), "TILE_F": tile_f, "GELU": gelu}
    _feedforward[(triton.cdiv(R, tile_r),)](*given, R, D, first.out_features, **sizes, num_warps=warps, num_stages=stages)
    return out_RD
