"""Exponential features on a GPU without storing phi: each of the two sums is a softmax attention, in tiles (Triton).

With log phi_m(k) = W_m k - |k|^2 / 2 + b_m, the mean of values of a feature, s_m / z_m in linear_attention.py, is the
softmax attention of W_m to the keys, with -|k|^2 / 2 added to the logits. The output of a query is its softmax
attention to the features, with b_m + log z_m added to the logits. So phi(K) and phi(Q), 2 x L x M numbers per head, are
never stored, not even in the backward pass. Logits and sums are float32 for all inputs.

An epsilon added to every phi (PublishedFavor) is a sink: one more key, whose value is the mean of all values, and one
more feature, whose value is the mean of the values of the features. The weights of both depend on the stabilisers.

Logarithms have base 2, the only base with GPU instructions. Matrices are read with strides, without copies. A sum over
many rows is split among several programs, and their parts are added in a fixed order.

Shape letters: G cells times heads, B cells, H heads, N query rows, L key rows, M features, E width, S parts of a sum.

Source: Dao et al. 2022, arXiv 2205.14135 (FlashAttention), algorithms 1 and 4.
"""

import math
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from scperformer.attention.linear_attention import Exponents

MIN_TILE_WIDTH = 16  # smallest tile of the tensor cores
LOG_OF_NOTHING = tl.constexpr(-1e30)  # the logarithm of a sum over nothing
LN2 = tl.constexpr(math.log(2.0))
MIN_PROGRAMS = 2048  # programs among which a sum over tokens is split: a few per multiprocessor of the largest GPUs
MIN_PART_TOKENS = 512  # tokens of such a part
MAX_RESIDENT = 256  # features that stay in shared memory while a program computes many queries
# bytes that this takes at most; a GPU with less reads the features in tiles
RESIDENT_MEMORY = 80_000
# constants of `_forward`
NOT_RESIDENT = {"ROW_TILES": 1, "RESIDENT": False, "FULL": False, "TAIL": 0}


@triton.jit
def _tile(x, rows, step, real, E: tl.constexpr, TILE_E: tl.constexpr):
    """Load rows of a matrix; rows that are not real become 0."""
    dims = tl.arange(0, TILE_E)
    inside = real[:, None] if E == TILE_E else real[:, None] & (dims < E)[None, :]
    return tl.load(x + rows[:, None] * step + dims[None, :], mask=inside, other=0.0)


@triton.jit
def _store(x, rows, step, real, tile_RE, E: tl.constexpr, TILE_E: tl.constexpr):
    dims = tl.arange(0, TILE_E)
    inside = real[:, None] if E == TILE_E else real[:, None] & (dims < E)[None, :]
    tl.store(x + rows[:, None] * step + dims[None, :], tile_RE, mask=inside)


@triton.jit
def _vector(x, E: tl.constexpr, TILE_E: tl.constexpr):
    dims = tl.arange(0, TILE_E)
    return tl.load(x + dims, mask=dims < E, other=0.0)


@triton.jit
def _absorb(
    q_NE, k_LE, v_LE, bias, cols, stop, top_N, total_N, sum_NE, FIRST: tl.constexpr, FULL: tl.constexpr,
    SINK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Add a tile of columns to the running maximum, total and sum of a softmax over columns.

    FIRST: these are empty so far. FULL: no column is missing. With SINK the maximum leaves out the bias, which is never
    above 0: a sum that underflows is nothing beside the sink.
    """
    logits_NL = tl.dot(q_NE, tl.trans(k_LE), input_precision=PRECISION)
    bias_L = tl.load(bias + cols, mask=cols < stop, other=-float("inf"))
    if SINK:
        real_NL = (
            logits_NL
            if FULL
            else tl.where(bias_L[None, :] > -float("inf"), logits_NL, LOG_OF_NOTHING)
        )
        higher_N = tl.maximum(top_N, tl.max(real_NL, 1))
        logits_NL += bias_L[None, :]
    else:
        logits_NL += bias_L[None, :]
        higher_N = tl.maximum(top_N, tl.max(logits_NL, 1))
    weights_NL = tl.exp2(logits_NL - higher_N[:, None])
    mixed_NE = tl.dot(weights_NL.to(v_LE.dtype), v_LE, input_precision=PRECISION)
    if FIRST:
        total_N = tl.sum(weights_NL, 1)
    else:
        shrunk_N = tl.exp2(top_N - higher_N)
        total_N = total_N * shrunk_N + tl.sum(weights_NL, 1)
        mixed_NE += sum_NE * shrunk_N[:, None]
    return higher_N, total_N, mixed_NE


@triton.jit
def _with_sink(top_N, total_N, sum_NE, sink_N, value_E):
    """Add one more column, with these logits and this value, to the result of `_absorb`."""
    higher_N = tl.maximum(top_N, sink_N)
    shrunk_N = tl.exp2(top_N - higher_N)
    weight_N = tl.exp2(sink_N - higher_N)
    total_N = total_N * shrunk_N + weight_N
    return higher_N, total_N, sum_NE * shrunk_N[:, None] + weight_N[:, None] * value_E[None, :]


@triton.jit
def _forward(
    q, k, v, bias, out, lse, total, sink, sink_bias, sink_value, q_B, q_H, q_N, k_B, k_H, k_L, v_B, v_H, v_L, out_B,
    out_H, out_N, H, N, L, span, half_square, E: tl.constexpr, SPLIT: tl.constexpr, SINK: tl.constexpr,
    ROW_TILES: tl.constexpr, RESIDENT: tl.constexpr, FULL: tl.constexpr, TILE_N: tl.constexpr, TILE_L: tl.constexpr,
    TAIL: tl.constexpr, TILE_E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the softmax attention of tiles of rows to columns; with SPLIT, of a part of the columns (see `_join`).

    RESIDENT columns, one tile and the tail, stay in shared memory for all rows of a program. `bias` is -inf for dropped
    tokens. With SINK and without SPLIT, one more column has the value `sink_value` and the logit `sink_bias` + the
    largest logit without the bias + |q|^2 times `half_square`, which is stored in `sink`.
    """
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    cell = group // H
    head = group % H
    q = q + cell * q_B + head * q_H
    k = k + cell * k_B + head * k_H
    v = v + cell * v_B + head * v_H
    bias = bias + group * L
    first = part * span
    stop = tl.minimum(part * span + span, L)
    whole = stop if TAIL == 0 else first + (stop - first) // TILE_L * TILE_L
    if RESIDENT:
        whole = tl.minimum(stop, TILE_L)
        cols = tl.arange(0, TILE_L)
        k_LE = _tile(k, cols, k_L, cols < whole, E, TILE_E)
        v_LE = _tile(v, cols, v_L, cols < whole, E, TILE_E)
    if TAIL > 0:  # a smaller tile for the few last columns wastes less work
        tail_T = whole + tl.arange(0, TAIL)
        k_TE = _tile(k, tail_T, k_L, tail_T < stop, E, TILE_E)
        v_TE = _tile(v, tail_T, v_L, tail_T < stop, E, TILE_E)
    for tile in range(ROW_TILES):
        rows = (tl.program_id(0) * ROW_TILES + tile) * TILE_N + tl.arange(0, TILE_N)
        q_NE = _tile(q, rows, q_N, rows < N, E, TILE_E)
        square_N = (
            tl.sum(q_NE.to(tl.float32) * q_NE.to(tl.float32), 1) if SINK and not SPLIT else 0.0
        )
        top_N = tl.full([TILE_N], LOG_OF_NOTHING, tl.float32)
        total_N = tl.zeros([TILE_N], tl.float32)
        sum_NE = tl.zeros([TILE_N, TILE_E], tl.float32)
        if RESIDENT:
            top_N, total_N, sum_NE = _absorb(
                q_NE,
                k_LE,
                v_LE,
                bias,
                cols,
                whole,
                top_N,
                total_N,
                sum_NE,
                True,
                FULL,
                SINK,
                PRECISION,
            )
        else:
            for start in range(first, whole, TILE_L):
                cols = start + tl.arange(0, TILE_L)
                # Dropped tokens are loaded, too: their bias is -inf, and to wait for a mask would take longer
                k_LE = _tile(k, cols, k_L, cols < stop, E, TILE_E)
                v_LE = _tile(v, cols, v_L, cols < stop, E, TILE_E)
                top_N, total_N, sum_NE = _absorb(
                    q_NE,
                    k_LE,
                    v_LE,
                    bias,
                    cols,
                    stop,
                    top_N,
                    total_N,
                    sum_NE,
                    False,
                    False,
                    SINK,
                    PRECISION,
                )
        if TAIL > 0:
            top_N, total_N, sum_NE = _absorb(
                q_NE,
                k_TE,
                v_TE,
                bias,
                tail_T,
                stop,
                top_N,
                total_N,
                sum_NE,
                False,
                False,
                SINK,
                PRECISION,
            )
        if SPLIT:
            offset = (part * tl.num_programs(1) + group) * N
            _store(out + offset * E, rows, E, rows < N, sum_NE, E, TILE_E)
            tl.store(lse + offset + rows, top_N, mask=rows < N)
            tl.store(total + offset + rows, total_N, mask=rows < N)
        else:
            if SINK:
                sink_N = tl.load(sink_bias + group) + top_N + square_N * half_square
                tl.store(sink + group * N + rows, sink_N, mask=rows < N)
                value_E = _vector(sink_value + group * E, E, TILE_E)
                top_N, total_N, sum_NE = _with_sink(top_N, total_N, sum_NE, sink_N, value_E)
            out_of_head = out + cell * out_B + head * out_H
            _store_mean(
                out_of_head, out_N, lse + group * N, rows, N, top_N, total_N, sum_NE, E, TILE_E
            )


@triton.jit
def _join(
    sums, tops, totals, out, lse, G, N, S, E: tl.constexpr, TILE_N: tl.constexpr, TILE_E: tl.constexpr
):  # fmt: skip
    """Combine the parts of the sums that `_forward` computed with SPLIT: their mean and the log of their total."""
    group = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    top_N = tl.full([TILE_N], LOG_OF_NOTHING, tl.float32)
    total_N = tl.zeros([TILE_N], tl.float32)
    sum_NE = tl.zeros([TILE_N, TILE_E], tl.float32)
    for part in range(S):
        offset = (part * G + group) * N
        part_top_N = tl.load(tops + offset + rows, mask=rows < N, other=LOG_OF_NOTHING)
        higher_N = tl.maximum(top_N, part_top_N)
        shrunk_N = tl.exp2(top_N - higher_N)
        part_shrunk_N = tl.exp2(part_top_N - higher_N)
        part_total_N = tl.load(totals + offset + rows, mask=rows < N, other=0.0)
        total_N = total_N * shrunk_N + part_total_N * part_shrunk_N
        part_NE = _tile(sums + offset * E, rows, E, rows < N, E, TILE_E)
        sum_NE = sum_NE * shrunk_N[:, None] + part_NE * part_shrunk_N[:, None]
        top_N = higher_N
    _store_mean(out + group * N * E, E, lse + group * N, rows, N, top_N, total_N, sum_NE, E, TILE_E)


@triton.jit
def _store_mean(
    out, step, lse, rows, N, top_N, total_N, sum_NE, E: tl.constexpr, TILE_E: tl.constexpr
):
    seen_N = tl.where(total_N > 0, total_N, 1.0)
    _store(out, rows, step, rows < N, sum_NE / seen_N[:, None], E, TILE_E)
    tl.store(
        lse + rows, tl.where(total_N > 0, top_N + tl.log2(seen_N), LOG_OF_NOTHING), mask=rows < N
    )


@triton.jit
def _slopes(q_NE, k_LE, v_LE, bias_L, lse_N, grad_NE, delta_N, PRECISION: tl.constexpr):
    """Compute the weights again, and the gradient of their (natural) logits."""
    logits_NL = tl.dot(q_NE, tl.trans(k_LE), input_precision=PRECISION) + bias_L[None, :]
    weights_NL = tl.exp2(logits_NL - lse_N[:, None])
    grad_NL = tl.dot(grad_NE, tl.trans(v_LE), input_precision=PRECISION)
    return weights_NL, weights_NL * (grad_NL - delta_N[:, None])


@triton.jit
def _backward_q(
    q, k, v, bias, lse, grad, delta, grad_q, sink, sink_value, q_B, q_H, q_N, k_B, k_H, k_L, v_B, v_H, v_L, grad_B,
    grad_H, grad_N, dq_B, dq_H, dq_N, H, N, L, square, E: tl.constexpr, SINK: tl.constexpr, TILE_N: tl.constexpr,
    TILE_L: tl.constexpr, TILE_E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    cell = group // H
    head = group % H
    rows = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    q_NE = _tile(q + cell * q_B + head * q_H, rows, q_N, rows < N, E, TILE_E)
    grad_NE = _tile(grad + cell * grad_B + head * grad_H, rows, grad_N, rows < N, E, TILE_E)
    k = k + cell * k_B + head * k_H
    v = v + cell * v_B + head * v_H
    bias = bias + group * L
    lse_N = tl.load(lse + group * N + rows, mask=rows < N, other=float("inf"))
    delta_N = tl.load(delta + group * N + rows, mask=rows < N, other=0.0)
    sum_NE = tl.zeros([TILE_N, TILE_E], tl.float32)
    for start in range(0, L, TILE_L):
        cols = start + tl.arange(0, TILE_L)
        bias_L = tl.load(bias + cols, mask=cols < L, other=-float("inf"))
        real = bias_L > -float("inf")
        k_LE = _tile(k, cols, k_L, real, E, TILE_E)
        v_LE = _tile(v, cols, v_L, real, E, TILE_E)
        _, slopes_NL = _slopes(q_NE, k_LE, v_LE, bias_L, lse_N, grad_NE, delta_N, PRECISION)
        sum_NE += tl.dot(slopes_NL.to(k_LE.dtype), k_LE, input_precision=PRECISION)
    sum_NE *= LN2
    if SINK:  # its logit has the term square |q|^2 / 2
        sink_N = tl.load(sink + group * N + rows, mask=rows < N, other=0.0)
        value_E = _vector(sink_value + group * E, E, TILE_E)
        slope_N = tl.sum(grad_NE.to(tl.float32) * value_E[None, :], 1) - delta_N
        sum_NE += (tl.exp2(sink_N - lse_N) * slope_N * square)[:, None] * q_NE.to(tl.float32)
    _store(grad_q + cell * dq_B + head * dq_H, rows, dq_N, rows < N, sum_NE, E, TILE_E)


@triton.jit
def _backward_kv(
    q, k, v, bias, lse, grad, delta, grad_k, grad_v, grad_bias, sink, sink_grad, q_B, q_H, q_N, k_B, k_H, k_L, v_B, v_H,
    v_L, grad_B, grad_H, grad_N, dk_B, dk_H, dk_L, dv_B, dv_H, dv_L, H, N, L, span, square, E: tl.constexpr,
    TOKENS: tl.constexpr, SINK: tl.constexpr, TILE_N: tl.constexpr, TILE_L: tl.constexpr, TILE_E: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """Compute the gradients of columns: of tokens, or (in parts of the sums over rows) of features.

    With SINK, `sink_grad` is the gradient of the values of all tokens; or becomes the gradient of the value of the sink
    of the features and, as last entry, the part of the gradient of its logit that depends on the outputs.
    """
    group = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    cell = group // H
    head = group % H
    cols = tl.program_id(0) * TILE_L + tl.arange(0, TILE_L)
    bias_L = tl.load(bias + group * L + cols, mask=cols < L, other=-float("inf"))
    real = bias_L > -float("inf")
    k_LE = _tile(k + cell * k_B + head * k_H, cols, k_L, real, E, TILE_E)
    v_LE = _tile(v + cell * v_B + head * v_H, cols, v_L, real, E, TILE_E)
    q = q + cell * q_B + head * q_H
    grad = grad + cell * grad_B + head * grad_H
    k_sum_LE = tl.zeros([TILE_L, TILE_E], tl.float32)
    v_sum_LE = tl.zeros([TILE_L, TILE_E], tl.float32)
    bias_sum_L = tl.zeros([TILE_L], tl.float32)
    sink_sum_E = tl.zeros([TILE_E], tl.float32)
    sink_delta = 0.0
    first = part * span
    stop = tl.minimum(part * span + span, N)
    for start in range(first, stop, TILE_N):
        rows = start + tl.arange(0, TILE_N)
        q_NE = _tile(q, rows, q_N, rows < stop, E, TILE_E)
        grad_NE = _tile(grad, rows, grad_N, rows < stop, E, TILE_E)
        # weights of 0
        lse_N = tl.load(lse + group * N + rows, mask=rows < stop, other=float("inf"))
        delta_N = tl.load(delta + group * N + rows, mask=rows < stop, other=0.0)
        weights_NL, slopes_NL = _slopes(
            q_NE, k_LE, v_LE, bias_L, lse_N, grad_NE, delta_N, PRECISION
        )
        v_sum_LE += tl.dot(
            tl.trans(weights_NL).to(grad_NE.dtype), grad_NE, input_precision=PRECISION
        )
        bias_sum_L += tl.sum(slopes_NL, 0)
        if TOKENS:
            k_sum_LE += tl.dot(tl.trans(slopes_NL).to(q_NE.dtype), q_NE, input_precision=PRECISION)
        elif SINK and tl.program_id(0) == 0:
            weight_N = tl.exp2(
                tl.load(sink + group * N + rows, mask=rows < stop, other=0.0) - lse_N
            )
            sink_sum_E += tl.sum(weight_N[:, None] * grad_NE.to(tl.float32), 0)
            sink_delta += tl.sum(weight_N * delta_N, 0)
    if TOKENS:
        if SINK:
            v_sum_LE += tl.where(
                real[:, None], _vector(sink_grad + group * E, E, TILE_E)[None, :], 0.0
            )
        # the bias of a key is -square |k|^2 / 2
        k_sum_LE = k_sum_LE * LN2 - square * bias_sum_L[:, None] * k_LE.to(tl.float32)
        _store(grad_k + cell * dk_B + head * dk_H, cols, dk_L, cols < L, k_sum_LE, E, TILE_E)
        _store(grad_v + cell * dv_B + head * dv_H, cols, dv_L, cols < L, v_sum_LE, E, TILE_E)
    else:
        group += part * tl.num_programs(1)
        _store(grad_v + group * L * E, cols, E, cols < L, v_sum_LE, E, TILE_E)
        tl.store(grad_bias + group * L + cols, bias_sum_L, mask=cols < L)
        if SINK and tl.program_id(0) == 0:
            dims = tl.arange(0, TILE_E)
            tl.store(sink_grad + group * (E + 1) + dims, sink_sum_E, mask=dims < E)
            tl.store(sink_grad + group * (E + 1) + E, sink_delta)


@triton.jit
def _row_dots(
    a, b, keep, out, a_B, a_H, a_N, b_B, b_H, b_N, H, N, factor, E: tl.constexpr, MASKED: tl.constexpr,
    TILE_N: tl.constexpr, TILE_E: tl.constexpr
):  # fmt: skip
    """Compute dot products of the rows of two matrices, times a factor; -inf for dropped tokens."""
    group = tl.program_id(1).to(tl.int64)
    cell = group // H
    head = group % H
    rows = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    a_NE = _tile(a + cell * a_B + head * a_H, rows, a_N, rows < N, E, TILE_E).to(tl.float32)
    b_NE = _tile(b + cell * b_B + head * b_H, rows, b_N, rows < N, E, TILE_E).to(tl.float32)
    dots_N = tl.sum(a_NE * b_NE, 1) * factor
    if MASKED:
        dots_N = tl.where(
            tl.load(keep + cell * N + rows, mask=rows < N, other=0) != 0, dots_N, -float("inf")
        )
    tl.store(out + group * N + rows, dots_N, mask=rows < N)


def launch_options(kernel: str, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the constants of a kernel for heads of this width, with the fastest tiles on an H100 for heads of 64.

    float32 products consist of three tf32 products, which lose almost no precision, or of one if torch allows tf32.
    """
    is_float32 = dtype == torch.float32
    tile_n = 64
    tile_l = 32 if is_float32 else 64
    stages = 2 if is_float32 or kernel == "read" else 3
    # tiles must fit into 100 kB of shared memory
    if width > 64 or (is_float32 and kernel not in ("sum", "read")):
        tile_n = 32
        tile_l = 32
        stages = 3
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    sizes = {"TILE_N": tile_n, "TILE_L": tile_l, "TILE_E": padded(width), "PRECISION": precision}
    return {"E": width, **sizes, "num_warps": 4, "num_stages": stages}


def shared_memory(device: torch.device) -> int:
    """Return the shared memory of a program in bytes; where it is not known, that of an H100."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", 227 * 1024)


def read_options(
    width: int, dtype: torch.dtype, num_features: int, memory: int = 227 * 1024
) -> dict[str, Any]:
    """Return the constants of the kernel that computes the output of queries; few features stay in shared memory."""
    options = launch_options("read", width, dtype)
    rest = num_features - MAX_RESIDENT
    if (
        dtype != torch.float32
        and width <= 64
        and rest <= MIN_TILE_WIDTH
        and memory >= RESIDENT_MEMORY
    ):
        tile = padded(min(num_features, MAX_RESIDENT))
        tail = MIN_TILE_WIDTH if rest > 0 else 0
        return options | {
            "ROW_TILES": 16,
            "RESIDENT": True,
            "FULL": num_features >= tile,
            "TILE_L": tile,
            "TAIL": tail,
        }
    rest = num_features % options["TILE_L"]
    tail = padded(rest) if 0 < rest <= options["TILE_L"] // 2 else 0
    return options | NOT_RESIDENT | {"TAIL": tail}


def padded(width: int) -> int:
    """Return the width of tiles: a power of two, as the tensor cores need it."""
    return max(MIN_TILE_WIDTH, triton.next_power_of_2(width))


def steps(*matrices: Tensor) -> list[int]:
    """Return the strides of each matrix along cells, heads and rows, in numbers."""
    assert all(x.stride(-1) == 1 for x in matrices)
    return [step for x in matrices for step in ((0,) * (4 - x.dim()) + x.stride())[:3]]


def row_dots(
    a_BHLE: Tensor, b_BHLE: Tensor, factor: float, keep_BL: Tensor | None = None
) -> Tensor:
    """Return dot products of the rows of two matrices, times a factor: float32, BH x L; -inf for dropped tokens."""
    B, H, L, E = a_BHLE.shape
    out_GL = torch.empty(B * H, L, dtype=torch.float32, device=a_BHLE.device)
    inputs = (a_BHLE, b_BHLE, a_BHLE if keep_BL is None else keep_BL, out_GL)
    options = {"E": E, "MASKED": keep_BL is not None, "TILE_N": 128, "TILE_E": padded(E)}
    _row_dots[triton.cdiv(L, 128), B * H](*inputs, *steps(a_BHLE, b_BHLE), H, L, factor, **options)
    return out_GL


def span_of(num_tokens: int, num_programs: int, tile: int) -> int:
    """Return how many tokens each part of a sum has, so that the parts keep a GPU busy."""
    wanted = min(-(-MIN_PROGRAMS // num_programs), max(1, num_tokens // MIN_PART_TOKENS))
    return triton.cdiv(triton.cdiv(num_tokens, wanted), tile) * tile


def sums_over_tokens(
    k_BHLE: Tensor, v_BHLE: Tensor, directions: Tensor, bias_GL: Tensor, has_sink: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each feature the mean of the values, the base-2 logarithm of its weight, and the largest log2 phi(k).

    Means and weights are of all tokens, B x H x M x E and G x M; the largest are of parts of the tokens, S x G x M.
    """
    B, H, L, E = k_BHLE.shape
    M = directions.shape[-2]
    G = B * H
    options = launch_options("sum", E, k_BHLE.dtype)
    num_tiles = triton.cdiv(M, options["TILE_N"])
    span = span_of(L, num_tiles * G, options["TILE_L"])
    num_parts = triton.cdiv(L, span)
    sums_SGME = bias_GL.new_empty(num_parts, G, M, E)
    tops_SGM, totals_SGM = bias_GL.new_empty(2, num_parts, G, M)
    inputs = (
        directions,
        k_BHLE,
        v_BHLE,
        bias_GL,
        sums_SGME,
        tops_SGM,
        totals_SGM,
        *(tops_SGM,) * 3,
    )
    constants = {"SPLIT": True, "SINK": has_sink, **NOT_RESIDENT, **options}
    strides = steps(directions, k_BHLE, v_BHLE)
    _forward[num_tiles, G, num_parts](*inputs, *strides, 0, 0, 0, H, M, L, span, 0.0, **constants)
    means_BHME = v_BHLE.new_empty(B, H, M, E)
    log_totals_GM = bias_GL.new_empty(G, M)
    tensors = (sums_SGME, tops_SGM, totals_SGM, means_BHME, log_totals_GM)
    _join[triton.cdiv(M, 32), G](
        *tensors, G, M, num_parts, E=E, TILE_N=32, TILE_E=options["TILE_E"]
    )
    return means_BHME, log_totals_GM, tops_SGM


class _Fused(torch.autograd.Function):
    """Forward and backward pass of `attend`, given directions scaled for base-2 logits."""

    @staticmethod
    def forward(ctx, qkv_TBHLE, keep_BL, exponents):
        directions = exponents.directions
        epsilon = exponents.epsilon
        q_BHLE, k_BHLE, v_BHLE = qkv_TBHLE.unbind(0)
        B, H, L, E = q_BHLE.shape
        M = directions.shape[-2]
        G = B * H
        has_sink = epsilon > 0
        half_square = exponents.square / 2 / LN2.value
        bias_GL = row_dots(k_BHLE, k_BHLE, -half_square, keep_BL)
        means_BHME, log_totals_GM, tops_SGM = sums_over_tokens(
            k_BHLE, v_BHLE, directions, bias_GL, has_sink
        )
        read_bias_GM = log_totals_GM
        if exponents.bias_HM is not None:
            read_bias_GM = log_totals_GM + 2 * exponents.bias_HM.repeat(B, 1)
        sinks = (log_totals_GM, log_totals_GM)
        if has_sink:
            # epsilon is relative to the largest logit of all keys and features, without the norms of the keys
            largest_BH = tops_SGM.amax(dim=(0, 2)).view(B, H)
            largest_G1 = (
                largest_BH.amax(1, keepdim=True).expand(B, H) if exponents.all_heads else largest_BH
            ).reshape(G, 1)
            num_tokens_G1 = keep_BL.sum(1).repeat_interleave(H).unsqueeze(1)
            sink_G1 = largest_G1 + torch.log2(epsilon * num_tokens_G1)
            # a power of two, which is exact, keeps the sum of the values within the range of float16
            scale = 2.0 ** -L.bit_length()
            sums_B1D = (keep_BL[:, None] * scale).to(v_BHLE.dtype) @ v_BHLE.transpose(1, 2).flatten(
                2
            )
            value_GE = sums_B1D.float().view(G, E) / (num_tokens_G1.clamp_min(1) * scale)
            joint_GM = torch.logaddexp2(log_totals_GM, sink_G1)
            weights_GM = torch.exp2(sink_G1 - joint_GM)
            means_GME = torch.lerp(
                means_BHME.flatten(0, 1).float(), value_GE.unsqueeze(1), weights_GM.unsqueeze(-1)
            )
            means_BHME = means_GME.to(v_BHLE.dtype).view(B, H, M, E)
            log_totals_GM = joint_GM
            read_bias_GM = joint_GM - joint_GM.amax(1, keepdim=True)
            shares_GM = torch.softmax(joint_GM * LN2.value, -1)
            sinks = (
                torch.logsumexp(read_bias_GM * LN2.value, -1) / LN2.value + math.log2(epsilon),
                (shares_GM.unsqueeze(-1) * means_GME).sum(1),
            )
            ctx.of_keys = (weights_GM / num_tokens_G1.clamp_min(1), shares_GM)
        # queries: their outputs (in memory: cells, tokens, heads) and log-sums
        out_BHLE = q_BHLE.new_empty(B, L, H, E).transpose(1, 2)
        lse_GL = bias_GL.new_empty(G, L)
        sink_GL = torch.empty_like(lse_GL) if has_sink else lse_GL
        options = read_options(E, q_BHLE.dtype, M, shared_memory(q_BHLE.device))
        inputs = (
            q_BHLE,
            directions,
            means_BHME,
            read_bias_GM,
            out_BHLE,
            lse_GL,
            lse_GL,
            sink_GL,
            *sinks,
        )
        strides = steps(q_BHLE, directions, means_BHME, out_BHLE)
        constants = {"SPLIT": False, "SINK": has_sink, **options}
        num_programs = triton.cdiv(L, options["ROW_TILES"] * options["TILE_N"])
        _forward[num_programs, G, 1](*inputs, *strides, H, L, M, M, half_square, **constants)
        ctx.square = exponents.square
        ctx.has_sink = has_sink
        saved = (
            bias_GL,
            directions,
            means_BHME,
            log_totals_GM,
            read_bias_GM,
            out_BHLE,
            lse_GL,
            sink_GL,
            sinks[1],
        )
        ctx.save_for_backward(qkv_TBHLE, *saved)
        return out_BHLE

    @staticmethod
    def backward(ctx, grad_BHLE):
        qkv_TBHLE, bias_GL, directions, means_BHME, log_totals_GM, read_bias_GM, *queries = (
            ctx.saved_tensors
        )
        out_BHLE, lse_GL, sink_GL, sink_value_GE = queries
        q_BHLE, k_BHLE, v_BHLE = qkv_TBHLE.unbind(0)
        B, H, L, E = q_BHLE.shape
        M = directions.shape[-2]
        G = B * H
        grad_BHLE = in_rows(grad_BHLE.to(out_BHLE.dtype))
        # in the layout of a linear layer's output
        grad_TBHLE = qkv_TBHLE.new_empty(B, L, 3, H, E).permute(2, 0, 3, 1, 4)
        dq_BHLE, dk_BHLE, dv_BHLE = grad_TBHLE.unbind(0)
        # queries
        delta_GL = row_dots(out_BHLE, grad_BHLE, 1.0)
        inputs = (q_BHLE, directions, means_BHME, read_bias_GM, lse_GL, grad_BHLE, delta_GL)
        strides = steps(q_BHLE, directions, means_BHME, grad_BHLE)
        options = launch_options("backward_q", E, q_BHLE.dtype) | {"SINK": ctx.has_sink}
        grid = (triton.cdiv(L, options["TILE_N"]), G, 1)
        sink = (sink_GL, sink_value_GE)
        _backward_q[grid](
            *inputs, dq_BHLE, *sink, *strides, *steps(dq_BHLE), H, L, M, ctx.square, **options
        )
        # features
        options = launch_options("backward_features", E, q_BHLE.dtype) | {"SINK": ctx.has_sink}
        num_tiles = triton.cdiv(M, options["TILE_L"])
        span = span_of(L, num_tiles * G, options["TILE_N"])
        num_parts = triton.cdiv(L, span)
        parts_SGME = bias_GL.new_empty(num_parts, G, M, E)
        parts_SGM = bias_GL.new_empty(num_parts, G, M)
        # of the sink: its value, and the last entry for its logit
        parts_SGF = bias_GL.new_empty(num_parts, G, E + 1)
        none = (0,) * 6
        grid = (num_tiles, G, num_parts)
        parts = (parts_SGME, parts_SGME, parts_SGM, sink_GL, parts_SGF)
        _backward_kv[grid](
            *inputs, *parts, *strides, *none, H, L, M, span, 0.0, TOKENS=False, **options
        )
        means_grad_GME = parts_SGME.sum(0)
        totals_grad_GM = parts_SGM.sum(0)
        means_GME = means_BHME.view(G, M, E).float()
        sink_grad_GE = log_totals_GM
        if ctx.has_sink:
            weights_GM, shares_GM = ctx.of_keys
            value_grad_GE, delta_G1 = parts_SGF.sum(0).split([E, 1], -1)
            logit_grad_G1 = (value_grad_GE * sink_value_GE).sum(-1, keepdim=True) - delta_G1
            ahead_GM = ((means_GME - sink_value_GE.unsqueeze(1)) * value_grad_GE.unsqueeze(1)).sum(
                -1
            )
            totals_grad_GM = totals_grad_GM + shares_GM * (ahead_GM + logit_grad_G1)
            means_grad_GME = means_grad_GME + shares_GM.unsqueeze(-1) * value_grad_GE.unsqueeze(1)
            sink_grad_GE = (weights_GM.unsqueeze(-1) * means_grad_GME).sum(1)
        # keys and values
        delta_GM = (means_GME * means_grad_GME).sum(-1) - totals_grad_GM
        means_grad_BHME = means_grad_GME.to(v_BHLE.dtype).view(B, H, M, E)
        inputs = (directions, k_BHLE, v_BHLE, bias_GL, log_totals_GM, means_grad_BHME, delta_GM)
        strides = steps(directions, k_BHLE, v_BHLE, means_grad_BHME, dk_BHLE, dv_BHLE)
        options = launch_options("backward_tokens", E, q_BHLE.dtype) | {"SINK": ctx.has_sink}
        grid = (triton.cdiv(L, options["TILE_L"]), G, 1)
        outputs = (dk_BHLE, dv_BHLE, delta_GM, delta_GM, sink_grad_GE)
        _backward_kv[grid](
            *inputs, *outputs, *strides, H, M, L, M, ctx.square, TOKENS=True, **options
        )
        return grad_TBHLE, None, None


def in_rows(x: Tensor) -> Tensor:
    """Return a tensor in which the numbers of a row are adjacent in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


def attend(qkv_TBHLE: Tensor, keep_BL: Tensor, exponents: Exponents) -> Tensor:
    """Return attention with features that are exponentials: B x H x L x E.

    `qkv_TBHLE` are queries, keys and values (T = 3) in float32, bfloat16 or float16. The directions are rounded to the
    type of the inputs.
    """
    directions = (exponents.directions.detach().float() / LN2.value).to(qkv_TBHLE.dtype)
    bias_HM = None if exponents.bias_HM is None else exponents.bias_HM.detach().float() / LN2.value
    exponents = replace(exponents, directions=directions, bias_HM=bias_HM)
    return _Fused.apply(in_rows(qkv_TBHLE), keep_BL.contiguous(), exponents)
