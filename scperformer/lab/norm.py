"""Layer norm on a GPU: with the sum before it and the rounding after it in one pass over the tokens (Triton).

Widths are constants of the kernels, so that their compiler knows which rows start at addresses for reads of 16 bytes.

Shape letters: R rows, D width, P programs of the backward pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ROWS = 16  # rows of a tile of the forward pass
# The backward pass also sums over rows. With few rows, each in one warp, no warp waits for others: on an H200 it takes
# less than half of the time of 16 rows in 4 warps.
BACKWARD_ROWS = 4
COLUMNS_OF_WARP = 256
# most programs of the backward pass; each sums a part of the gradients of the weights
MAX_PROGRAMS = 2048


@triton.jit
def _forward(
    x, added, total, weight, bias, out, means, scales, R, D: tl.constexpr, epsilon, ADD: tl.constexpr,
    TILE_R: tl.constexpr, TILE_D: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * TILE_R + tl.arange(0, TILE_R)
    dims = tl.arange(0, TILE_D)
    inside = (rows < R)[:, None] & (dims < D)[None, :]
    offsets = rows[:, None] * D + dims[None, :]
    x_RD = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x_RD += tl.load(added + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + offsets, x_RD, mask=inside)
    mean_R = tl.sum(x_RD, 1) / D
    centred_RD = tl.where(inside, x_RD - mean_R[:, None], 0.0)
    scale_R = 1.0 / tl.sqrt(tl.sum(centred_RD * centred_RD, 1) / D + epsilon)
    weight_D = tl.load(weight + dims, mask=dims < D)
    bias_D = tl.load(bias + dims, mask=dims < D)
    out_RD = centred_RD * scale_R[:, None] * weight_D[None, :] + bias_D[None, :]
    tl.store(out + offsets, out_RD, mask=inside)
    tl.store(means + rows, mean_R, mask=rows < R)
    tl.store(scales + rows, scale_R, mask=rows < R)


@triton.jit
def _backward(
    x, weight, means, scales, grad, grad_x, grad_weight, grad_bias, R, D: tl.constexpr, num_tiles, TILE_R: tl.constexpr,
    TILE_D: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    dims = tl.arange(0, TILE_D)
    weight_D = tl.load(weight + dims, mask=dims < D, other=0.0)
    weight_sum_D = tl.zeros([TILE_D], tl.float32)
    bias_sum_D = tl.zeros([TILE_D], tl.float32)
    for tile in range(program, num_tiles, tl.num_programs(0)):
        rows = (tile * TILE_R + tl.arange(0, TILE_R)).to(tl.int64)
        inside = (rows < R)[:, None] & (dims < D)[None, :]
        offsets = rows[:, None] * D + dims[None, :]
        mean_R = tl.load(means + rows, mask=rows < R, other=0.0)
        scale_R = tl.load(scales + rows, mask=rows < R, other=0.0)
        x_RD = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
        normed_RD = (x_RD - mean_R[:, None]) * scale_R[:, None]
        grad_RD = tl.load(grad + offsets, mask=inside, other=0.0).to(tl.float32)
        weight_sum_D += tl.sum(grad_RD * normed_RD, 0)
        bias_sum_D += tl.sum(grad_RD, 0)
        grad_RD = grad_RD * weight_D[None, :]
        parallel_R = tl.sum(grad_RD * normed_RD, 1) / D
        grad_RD = (
            grad_RD - tl.sum(grad_RD, 1)[:, None] / D - normed_RD * parallel_R[:, None]
        ) * scale_R[:, None]
        tl.store(grad_x + offsets, grad_RD, mask=inside)
    tl.store(grad_weight + program * D + dims, weight_sum_D, mask=dims < D)
    tl.store(grad_bias + program * D + dims, bias_sum_D, mask=dims < D)


def normed(
    x: Tensor,
    added: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor,
    epsilon: float,
    dtype: torch.dtype,
):
    """Return the sum, its norm with this dtype, and mean and scale of each row: float32."""
    D = x.shape[-1]
    R = x.numel() // D
    out = torch.empty_like(x, dtype=dtype)
    total = x if added is None else torch.empty_like(x)
    mean_R, scale_R = torch.empty(2, R, dtype=torch.float32, device=x.device)
    arguments = (
        x,
        total if added is None else added,
        total,
        weight_D,
        bias_D,
        out,
        mean_R,
        scale_R,
        R,
        D,
        epsilon,
    )
    sizes = {"ADD": added is not None, "TILE_R": TILE_ROWS, "TILE_D": triton.next_power_of_2(D)}
    _forward[(triton.cdiv(R, TILE_ROWS),)](*arguments, **sizes)
    return total, out, mean_R, scale_R


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_RD, weight_D, bias_D, epsilon, dtype):
        _, out_RD, mean_R, scale_R = normed(x_RD, None, weight_D, bias_D, epsilon, dtype)
        ctx.save_for_backward(x_RD, weight_D, mean_R, scale_R)
        return out_RD

    @staticmethod
    def backward(ctx, grad_RD):
        x_RD, weight_D, mean_R, scale_R = ctx.saved_tensors
        R, D = x_RD.shape
        num_tiles = triton.cdiv(R, BACKWARD_ROWS)
        tile_width = triton.next_power_of_2(D)
        num_warps = max(1, tile_width // COLUMNS_OF_WARP)
        num_programs = min(MAX_PROGRAMS, num_tiles)
        grad_x_RD = torch.empty_like(x_RD)
        sums_2PD = mean_R.new_empty(2, num_programs, D)
        arguments = (
            x_RD,
            weight_D,
            mean_R,
            scale_R,
            grad_RD.contiguous(),
            grad_x_RD,
            *sums_2PD,
            R,
            D,
            num_tiles,
        )
        _backward[(num_programs,)](
            *arguments, TILE_R=BACKWARD_ROWS, TILE_D=tile_width, num_warps=num_warps
        )
        return grad_x_RD, *sums_2PD.sum(1).to(weight_D.dtype), None, None


def layer_norm(
    x: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Return the layer norm over the last axis of float32 numbers, computed in float32 and rounded to `dtype`."""
    return _LayerNorm.apply(
        x.reshape(-1, x.shape[-1]).contiguous(), weight_D, bias_D, epsilon, dtype
    ).view(x.shape)


def add_norm(
    h: Tensor, added: Tensor, weight_D: Tensor, bias_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the sum, with the dtype of `h`, and its layer norm, with the dtype of `added`; no gradients."""
    return normed(h, added, weight_D, bias_D, epsilon, added.dtype)[:2]
