"""FAVOR+ on a GPU without phi: each of its two sums is a softmax attention, computed tile by tile (Triton).

With log phi(k) = W k - |k|^2 / 2 the mean of values that a feature holds, s_m / z_m (additive.py), is what W_m gets
from the keys by softmax attention with -|k|^2 / 2 added to the logits; and a query gets from the features what softmax
attention with log z_m added to the logits gives. So phi(K) and phi(Q), 2 x L x M numbers per head, are never written
out, in the backward pass neither, and logits and sums are float32 whatever the inputs are.

Shape letters: G cells times heads, N rows that ask, L rows that are asked, E width.

Source
------
Dao et al. 2022, arXiv 2205.14135 (FlashAttention), algorithms 1 and 4.
"""

import torch
import triton
import triton.language as tl

SMALL_TILE, LARGE_TILE = 32, 64  # rows of a tile; all tiles of a step fit into 100 kB beside each other
NARROWEST = 16  # what the matrix units take
NOTHING = tl.constexpr(-1e30)  # the logarithm of a sum over nothing


@triton.jit
def _tile(x, rows, num_rows, dims, E, real):
    """Rows of a matrix, 0 where they are not real."""
    inside = (rows < num_rows)[:, None] & (dims < E)[None, :] & real[:, None]
    return tl.load(x + rows[:, None] * E + dims[None, :], mask=inside, other=0.0)


@triton.jit
def _forward(
    q, k, v, bias, out, lse, q_step, k_step, N, L, E, TILE_N: tl.constexpr, TILE_L: tl.constexpr,
    TILE_E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    dims, rows = tl.arange(0, TILE_E), tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    q_NE = _tile(q + group * q_step, rows, N, dims, E, rows < N)
    top_N = tl.full([TILE_N], NOTHING, tl.float32)
    total_N = tl.zeros([TILE_N], tl.float32)
    sum_NE = tl.zeros([TILE_N, TILE_E], tl.float32)
    for start in range(0, L, TILE_L):
        cols = start + tl.arange(0, TILE_L)
        bias_L = tl.load(bias + group * L + cols, mask=cols < L, other=-float("inf"))
        real = bias_L > -float("inf")
        k_LE = _tile(k + group * k_step, cols, L, dims, E, real)
        v_LE = _tile(v + group * L * E, cols, L, dims, E, real)
        logits_NL = tl.dot(q_NE, tl.trans(k_LE), input_precision=PRECISION) + bias_L[None, :]
        higher_N = tl.maximum(top_N, tl.max(logits_NL, 1))
        weights_NL = tl.exp(logits_NL - higher_N[:, None])
        shrunk_N = tl.exp(top_N - higher_N)
        total_N = total_N * shrunk_N + tl.sum(weights_NL, 1)
        mixed_NE = tl.dot(weights_NL.to(v_LE.dtype), v_LE, input_precision=PRECISION)
        sum_NE = sum_NE * shrunk_N[:, None] + mixed_NE
        top_N = higher_N
    seen_N = tl.where(total_N > 0, total_N, 1.0)
    inside = (rows < N)[:, None] & (dims < E)[None, :]
    tl.store(out + (group * N + rows)[:, None] * E + dims[None, :], sum_NE / seen_N[:, None], mask=inside)
    tl.store(lse + group * N + rows, tl.where(total_N > 0, top_N + tl.log(seen_N), NOTHING), mask=rows < N)


@triton.jit
def _slopes(q_NE, k_LE, v_LE, bias_L, lse_N, grad_NE, delta_N, PRECISION: tl.constexpr):
    """Weights, computed anew, and the gradient of their logits."""
    logits_NL = tl.dot(q_NE, tl.trans(k_LE), input_precision=PRECISION) + bias_L[None, :]
    weights_NL = tl.exp(logits_NL - lse_N[:, None])
    grad_NL = tl.dot(grad_NE, tl.trans(v_LE), input_precision=PRECISION)
    return weights_NL, weights_NL * (grad_NL - delta_N[:, None])


@triton.jit
def _backward_q(
    q, k, v, bias, lse, grad, delta, grad_q, q_step, k_step, N, L, E, TILE_N: tl.constexpr, TILE_L: tl.constexpr,
    TILE_E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    dims, rows = tl.arange(0, TILE_E), tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    q_NE = _tile(q + group * q_step, rows, N, dims, E, rows < N)
    grad_NE = _tile(grad + group * N * E, rows, N, dims, E, rows < N)
    lse_N = tl.load(lse + group * N + rows, mask=rows < N, other=float("inf"))
    delta_N = tl.load(delta + group * N + rows, mask=rows < N, other=0.0)
    sum_NE = tl.zeros([TILE_N, TILE_E], tl.float32)
    for start in range(0, L, TILE_L):
        cols = start + tl.arange(0, TILE_L)
        bias_L = tl.load(bias + group * L + cols, mask=cols < L, other=-float("inf"))
        real = bias_L > -float("inf")
        k_LE = _tile(k + group * k_step, cols, L, dims, E, real)
        v_LE = _tile(v + group * L * E, cols, L, dims, E, real)
        _, slopes_NL = _slopes(q_NE, k_LE, v_LE, bias_L, lse_N, grad_NE, delta_N, PRECISION)
        sum_NE += tl.dot(slopes_NL.to(k_LE.dtype), k_LE, input_precision=PRECISION)
    inside = (rows < N)[:, None] & (dims < E)[None, :]
    tl.store(grad_q + (group * N + rows)[:, None] * E + dims[None, :], sum_NE, mask=inside)


@triton.jit
def _backward_kv(
    q, k, v, bias, lse, grad, delta, grad_k, grad_v, grad_bias, q_step, k_step, N, L, E, TILE_N: tl.constexpr,
    TILE_L: tl.constexpr, TILE_E: tl.constexpr, WITH_K: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    dims, cols = tl.arange(0, TILE_E), tl.program_id(0) * TILE_L + tl.arange(0, TILE_L)
    bias_L = tl.load(bias + group * L + cols, mask=cols < L, other=-float("inf"))
    real = bias_L > -float("inf")
    k_LE = _tile(k + group * k_step, cols, L, dims, E, real)
    v_LE = _tile(v + group * L * E, cols, L, dims, E, real)
    k_sum_LE, v_sum_LE = tl.zeros([TILE_L, TILE_E], tl.float32), tl.zeros([TILE_L, TILE_E], tl.float32)
    bias_sum_L = tl.zeros([TILE_L], tl.float32)
    for start in range(0, N, TILE_N):
        rows = start + tl.arange(0, TILE_N)
        q_NE = _tile(q + group * q_step, rows, N, dims, E, rows < N)
        grad_NE = _tile(grad + group * N * E, rows, N, dims, E, rows < N)
        lse_N = tl.load(lse + group * N + rows, mask=rows < N, other=float("inf"))  # weights of 0
        delta_N = tl.load(delta + group * N + rows, mask=rows < N, other=0.0)
        weights_NL, slopes_NL = _slopes(q_NE, k_LE, v_LE, bias_L, lse_N, grad_NE, delta_N, PRECISION)
        v_sum_LE += tl.dot(tl.trans(weights_NL).to(grad_NE.dtype), grad_NE, input_precision=PRECISION)
        bias_sum_L += tl.sum(slopes_NL, 0)
        if WITH_K:
            k_sum_LE += tl.dot(tl.trans(slopes_NL).to(q_NE.dtype), q_NE, input_precision=PRECISION)
    inside = (cols < L)[:, None] & (dims < E)[None, :]
    place = (group * L + cols)[:, None] * E + dims[None, :]
    tl.store(grad_v + place, v_sum_LE, mask=inside)
    tl.store(grad_bias + group * L + cols, bias_sum_L, mask=cols < L)
    if WITH_K:
        tl.store(grad_k + place, k_sum_LE, mask=inside)


def launch_options(width: int, dtype: torch.dtype) -> dict[str, int | str]:
    """The constants of the kernels for heads of this width.

    float32 products are made of three of tf32, which lose next to nothing, unless torch's may be of one.
    """
    tile = SMALL_TILE if dtype == torch.float32 or width > 64 else LARGE_TILE
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    wide = max(NARROWEST, triton.next_power_of_2(width))
    return {"TILE_N": tile, "TILE_L": tile, "TILE_E": wide, "PRECISION": precision}


class _Attend(torch.autograd.Function):
    """Softmax attention with a number added to the logits of each key, and the logarithms of its denominators.

    A matrix of queries or keys that has no gradient may be one for all groups. Gradients are float32.
    """

    @staticmethod
    def forward(ctx, q_GNE, k_GLE, v_GLE, bias_GL):
        num_groups, L, E = v_GLE.shape
        N = q_GNE.shape[-2]
        out_GNE = v_GLE.new_empty(num_groups, N, E)
        lse_GN = bias_GL.new_empty(num_groups, N)
        ctx.sizes = (_step(q_GNE), _step(k_GLE), N, L, E)
        ctx.options = launch_options(E, v_GLE.dtype)
        grid = (triton.cdiv(N, ctx.options["TILE_N"]), num_groups)
        _forward[grid](q_GNE, k_GLE, v_GLE, bias_GL, out_GNE, lse_GN, *ctx.sizes, **ctx.options)
        ctx.save_for_backward(q_GNE, k_GLE, v_GLE, bias_GL, out_GNE, lse_GN)
        return out_GNE, lse_GN

    @staticmethod
    def backward(ctx, grad_GNE, grad_lse_GN):
        q_GNE, k_GLE, v_GLE, bias_GL, out_GNE, lse_GN = ctx.saved_tensors
        num_groups, N, L = len(v_GLE), out_GNE.shape[1], v_GLE.shape[1]
        grad_GNE = grad_GNE.to(out_GNE.dtype).contiguous()
        delta_GN = (out_GNE.float() * grad_GNE.float()).sum(-1) - grad_lse_GN
        given = (q_GNE, k_GLE, v_GLE, bias_GL, lse_GN, grad_GNE, delta_GN)
        with_q, with_k = ctx.needs_input_grad[:2]
        grad_q_GNE = torch.empty_like(q_GNE, dtype=torch.float32) if with_q else None
        grad_k_GLE = torch.empty_like(k_GLE, dtype=torch.float32) if with_k else None
        grad_v_GLE, grad_bias_GL = torch.empty_like(v_GLE, dtype=torch.float32), torch.empty_like(bias_GL)
        if with_q:
            _backward_q[triton.cdiv(N, ctx.options["TILE_N"]), num_groups](
                *given, grad_q_GNE, *ctx.sizes, **ctx.options
            )
        grads = (grad_v_GLE if grad_k_GLE is None else grad_k_GLE, grad_v_GLE, grad_bias_GL)
        grid = (triton.cdiv(L, ctx.options["TILE_L"]), num_groups)
        _backward_kv[grid](*given, *grads, *ctx.sizes, WITH_K=with_k, **ctx.options)
        return grad_q_GNE, grad_k_GLE, grad_v_GLE, grad_bias_GL


def _step(x_GLE: torch.Tensor) -> int:
    """Numbers from one group's matrix to the next one's; 0: all have the same."""
    return 0 if x_GLE.dim() == 2 else x_GLE.shape[1] * x_GLE.shape[2]


def favor(
    q_BHLE: torch.Tensor,
    k_BHLE: torch.Tensor,
    v_BHLE: torch.Tensor,
    keep_BL: torch.Tensor,
    directions_ME: torch.Tensor,
    factor: float,
) -> torch.Tensor:
    """What `Favor` gives with the softmax kernel, not causal, and no epsilon.

    Parameters
    ----------
    q_BHLE, k_BHLE, v_BHLE
        All of one dtype: float32, bfloat16 or float16.
    factor
        Of queries and keys: E^(-1/4).

    Returns
    -------
    B x H x L x E. With bfloat16 inputs the directions are rounded to it, the same for queries and keys.
    """
    B, H, L, E = q_BHLE.shape
    directions_ME = (directions_ME.float() * factor).to(k_BHLE.dtype)
    bias_BHL = k_BHLE.float().square().sum(-1) * (-(factor**2) / 2)
    bias_BHL = bias_BHL.masked_fill(~keep_BL[:, None], -torch.inf)
    q_GLE, k_GLE, v_GLE = (x.reshape(B * H, L, E).contiguous() for x in (q_BHLE, k_BHLE, v_BHLE))
    means_GME, log_totals_GM = _Attend.apply(directions_ME, k_GLE, v_GLE, bias_BHL.reshape(B * H, L).contiguous())
    out_GLE, _ = _Attend.apply(q_GLE, directions_ME, means_GME, log_totals_GM)
    return out_GLE.reshape(B, H, L, E)
