"""Causal attention with exponential features on a GPU without storing phi, in blocks of tokens (Triton).

For each block of a tile of tokens, the kernels of fused.py read the means and log-sums of all earlier blocks; `_within`
adds the keys of the query's own block, with features made in the kernel.

Shape letters as in fused.py; S blocks of tokens, C tokens of a block.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scperformer.attention.fused import (
    LN2,
    LOG_OF_NOTHING,
    NOT_RESIDENT,
    _backward_kv,
    _backward_q,
    _forward,
    _join,
    _store,
    _tile,
    empty_gradients,
    in_base_2,
    in_rows,
    launch_options,
    row_dots,
    steps,
    sums_over_tokens,
)
from scperformer.attention.linear_attention import Exponents

MIN_CAUSAL_TOTAL = tl.constexpr(2.0**-60)  # of the weights of a query, relative to the largest of all keys of its block


@triton.jit
def _within(
    q, k, v, w, bias, read_bias, tops, out, lse, delta, grad_q, grad_k, grad_v, q_B, q_H, q_N, k_B, k_H, k_L, v_B, v_H,
    v_L, w_B, w_H, w_M, out_B, out_H, out_N, dq_B, dq_H, dq_N, dk_B, dk_H, dk_L, dv_B, dv_H, dv_L, H, L, M, square,
    E: tl.constexpr, BACKWARD: tl.constexpr, TILE_N: tl.constexpr, TILE_L: tl.constexpr, TILE_E: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """Add the keys of a block, up to the query, to the output for all earlier blocks, in place.

    `lse` becomes NaN for a query that sees only keys that are nearly 0 beside later ones of its block, and inf for
    padding without a key. BACKWARD: `out` is the gradient of the output, and those of the inputs are added to.
    """
    group = tl.program_id(1).to(tl.int64)
    cell = group // H
    head = group % H
    token_C = tl.arange(0, TILE_N)
    rows = tl.program_id(0) * TILE_N + token_C
    bias_C = tl.load(bias + group * L + rows, mask=rows < L, other=-float("inf"))
    real_C = bias_C > -float("inf")
    q_CE = _tile(q + cell * q_B + head * q_H, rows, q_N, rows < L, E, TILE_E)
    k_CE = _tile(k + cell * k_B + head * k_H, rows, k_L, real_C, E, TILE_E)
    v_CE = _tile(v + cell * v_B + head * v_H, rows, v_L, real_C, E, TILE_E)
    out += cell * out_B + head * out_H
    out_CE = _tile(out, rows, out_N, rows < L, E, TILE_E)
    lse += group * L + rows
    lse_C = tl.load(lse, mask=rows < L, other=float("inf") if BACKWARD else LOG_OF_NOTHING)
    tops += (tl.program_id(0) * tl.num_programs(1) + group) * M
    sees_CC = token_C[:, None] >= token_C[None, :]
    top_C = tl.full([TILE_N], LOG_OF_NOTHING, tl.float32)
    weights_CC = tl.zeros([TILE_N, TILE_N], tl.float32)
    if BACKWARD:
        delta_C = tl.load(delta + group * L + rows, mask=rows < L, other=0.0)
        slopes_CC = tl.dot(out_CE, tl.trans(v_CE), input_precision=PRECISION) - delta_C[:, None]
        slopes_CC = tl.where(sees_CC, slopes_CC, 0.0).to(q_CE.dtype)
        q_sum_CE = tl.zeros([TILE_N, TILE_E], tl.float32)
        k_sum_CE = tl.zeros([TILE_N, TILE_E], tl.float32)
        bias_sum_C = tl.zeros([TILE_N], tl.float32)
    for start in range(0, M, TILE_L):
        features = start + tl.arange(0, TILE_L)
        w_ME = _tile(w + head * w_H, features, w_M, features < M, E, TILE_E)
        # both phi are relative to the largest key of the block
        top_M = tl.load(tops + features, mask=features < M, other=LOG_OF_NOTHING)
        bias_M = tl.load(read_bias + head * M + features, mask=features < M, other=0.0)
        log_q_CM = tl.dot(q_CE, tl.trans(w_ME), input_precision=PRECISION) + (bias_M + top_M)[None, :]
        log_k_CM = tl.dot(k_CE, tl.trans(w_ME), input_precision=PRECISION) + bias_C[:, None] - top_M[None, :]
        phi_k_CM = tl.where(real_C[:, None] & (features < M)[None, :], tl.exp2(tl.minimum(log_k_CM, 0.0)), 0.0)
        phi_k_CM = phi_k_CM.to(q_CE.dtype)
        if BACKWARD:
            phi_q_CM = tl.exp2(log_q_CM - lse_C[:, None]).to(q_CE.dtype)
            q_slopes_CM = phi_q_CM * tl.dot(slopes_CC, phi_k_CM, input_precision=PRECISION)
            k_slopes_CM = phi_k_CM * tl.dot(tl.trans(slopes_CC), phi_q_CM, input_precision=PRECISION)
            q_sum_CE += tl.dot(q_slopes_CM.to(w_ME.dtype), w_ME, input_precision=PRECISION)
            k_sum_CE += tl.dot(k_slopes_CM.to(w_ME.dtype), w_ME, input_precision=PRECISION)
            bias_sum_C += tl.sum(k_slopes_CM, 1)
        else:
            higher_C = tl.maximum(top_C, tl.max(log_q_CM, 1))
            phi_q_CM = tl.exp2(log_q_CM - higher_C[:, None]).to(q_CE.dtype)
            weights_CC = weights_CC * tl.exp2(top_C - higher_C)[:, None]
            top_C = higher_C
        weights_CC += tl.dot(phi_q_CM, tl.trans(phi_k_CM), input_precision=PRECISION)
    if BACKWARD:
        weights_CC = tl.where(sees_CC, weights_CC, 0.0).to(out_CE.dtype)
        v_sum_CE = tl.dot(tl.trans(weights_CC), out_CE, input_precision=PRECISION)
        k_sum_CE = k_sum_CE * LN2 - square * bias_sum_C[:, None] * k_CE.to(tl.float32)
        _add_to(grad_q + cell * dq_B + head * dq_H, rows, dq_N, rows < L, q_sum_CE * LN2, E, TILE_E)
        _add_to(grad_k + cell * dk_B + head * dk_H, rows, dk_L, rows < L, k_sum_CE, E, TILE_E)
        _add_to(grad_v + cell * dv_B + head * dv_H, rows, dv_L, rows < L, v_sum_CE, E, TILE_E)
    else:
        higher_C = tl.maximum(top_C, lse_C)
        weights_CC = tl.where(sees_CC, weights_CC * tl.exp2(top_C - higher_C)[:, None], 0.0)
        share_C = tl.where(lse_C > LOG_OF_NOTHING / 2, tl.exp2(lse_C - higher_C), 0.0)
        total_C = share_C + tl.sum(weights_CC, 1)
        sum_CE = out_CE.to(tl.float32) * share_C[:, None]
        sum_CE += tl.dot(weights_CC.to(v_CE.dtype), v_CE, input_precision=PRECISION)
        is_known_C = total_C >= MIN_CAUSAL_TOTAL
        seen_C = tl.where(is_known_C, total_C, 1.0)
        _store(out, rows, out_N, rows < L, tl.where(is_known_C[:, None], sum_CE / seen_C[:, None], 0.0), E, TILE_E)
        unknown_C = tl.where(real_C, float("nan"), float("inf"))
        tl.store(lse, tl.where(is_known_C, higher_C + tl.log2(seen_C), unknown_C), mask=rows < L)


@triton.jit
def _add_to(x, rows, step, real, tile_RE, E: tl.constexpr, TILE_E: tl.constexpr):
    _store(x, rows, step, real, _tile(x, rows, step, real, E, TILE_E).to(tl.float32) + tile_RE, E, TILE_E)


class _Causal(torch.autograd.Function):
    """Forward and backward pass of `attend_causal`; also returns whether a query needs smaller blocks."""

    @staticmethod
    def forward(ctx, qkv_TBHLE, keep_BL, directions, bias_HM, square):
        q_BHLE, k_BHLE, v_BHLE = qkv_TBHLE.unbind(0)
        B, H, L, E = q_BHLE.shape
        bias_GL = row_dots(k_BHLE, k_BHLE, -square / 2 / LN2.value, keep_BL)
        means_SBHME, log_totals_SGM, tops_SGM = sums_over_tokens(k_BHLE, v_BHLE, directions, bias_GL, in_blocks=True)
        options = launch_options("causal", E, k_BHLE.dtype)
        grid = (len(tops_SGM), B * H, 1)
        out_BHLE = q_BHLE.new_empty(B, L, H, E).transpose(1, 2)
        lse_GL = torch.empty_like(bias_GL)
        read_bias_SGM = log_totals_SGM + bias_HM.repeat(B, 1)
        M = directions.shape[-2]
        features = (q_BHLE, directions, means_SBHME, read_bias_SGM, out_BHLE, *(lse_GL,) * 5)
        strides = steps(q_BHLE, directions, means_SBHME[0], out_BHLE)
        constants = {"SPLIT": False, "SINK": False, "BLOCKS": True, **NOT_RESIDENT, **options}
        _forward[grid](*features, *strides, H, L, M, M, 0.0, **constants)
        tokens = (q_BHLE, k_BHLE, v_BHLE, directions, bias_GL, bias_HM, tops_SGM, out_BHLE, lse_GL, *(lse_GL,) * 4)
        strides = [*steps(q_BHLE, k_BHLE, v_BHLE, directions, out_BHLE), *(0,) * 9]
        _within[grid](*tokens, *strides, H, L, M, square, BACKWARD=False, **options)
        ctx.square = square
        ctx.save_for_backward(qkv_TBHLE, bias_GL, directions, bias_HM, out_BHLE, lse_GL)
        is_unknown = lse_GL.isnan().any()
        ctx.mark_non_differentiable(is_unknown)
        return out_BHLE, is_unknown

    @staticmethod
    def backward(ctx, grad_BHLE, _):
        qkv_TBHLE, bias_GL, directions, bias_HM, out_BHLE, lse_GL = ctx.saved_tensors
        q_BHLE, k_BHLE, v_BHLE = qkv_TBHLE.unbind(0)
        B, H, L, E = q_BHLE.shape
        M = directions.shape[-2]
        G = B * H
        grad_BHLE = in_rows(grad_BHLE.to(out_BHLE.dtype))
        grad_TBHLE = empty_gradients(qkv_TBHLE)
        dq_BHLE, dk_BHLE, dv_BHLE = grad_TBHLE.unbind(0)
        delta_GL = row_dots(out_BHLE, grad_BHLE, 1.0)
        # the means are not kept, as they take more memory than the tokens
        means_SBHME, log_totals_SGM, tops_SGM = sums_over_tokens(k_BHLE, v_BHLE, directions, bias_GL, in_blocks=True)
        options = launch_options("causal", E, k_BHLE.dtype)
        S = len(tops_SGM)
        constants = {"SINK": False, "BLOCKS": True, **options}
        # queries
        read_bias_SGM = log_totals_SGM + bias_HM.repeat(B, 1)
        features = (q_BHLE, directions, means_SBHME, read_bias_SGM, lse_GL, grad_BHLE, delta_GL)
        strides = steps(q_BHLE, directions, means_SBHME[0], grad_BHLE)
        _backward_q[S, G, 1](
            *features, dq_BHLE, lse_GL, lse_GL, *strides, *steps(dq_BHLE), H, L, M, ctx.square, **constants
        )
        # features of each block
        parts_SGME = bias_GL.new_empty(S, G, M, E)
        parts_SGM = torch.empty_like(tops_SGM)
        num_tiles = triton.cdiv(M, options["TILE_L"])
        outputs = (parts_SGME, parts_SGME, parts_SGM, lse_GL, lse_GL, *strides, *(0,) * 6)
        _backward_kv[num_tiles, G, S](*features, *outputs, H, L, M, options["TILE_N"], 0.0, TOKENS=False, **constants)
        # those of all later blocks, in units of 2^-`lse`; a block without earlier keys has no gradient
        delta_SGM = (means_SBHME.flatten(1, 2) * parts_SGME).sum(-1) - parts_SGM
        tops = torch.where(log_totals_SGM > LOG_OF_NOTHING.value / 2, -log_totals_SGM, LOG_OF_NOTHING.value)
        later_SBHME = torch.empty_like(means_SBHME)
        later_lse_SGM, later_delta_SGM = bias_GL.new_empty(2, S, G, M)
        sizes = {"E": E, "TILE_N": 32, "TILE_E": options["TILE_E"], "BLOCKS": -1}
        later = (later_SBHME, later_lse_SGM, later_delta_SGM)
        _join[triton.cdiv(M, 32), G](parts_SGME, tops, delta_SGM, *later, G, M, S, **sizes)
        # keys and values
        inputs = (directions, k_BHLE, v_BHLE, bias_GL, later_lse_SGM, later_SBHME, later_delta_SGM, dk_BHLE, dv_BHLE)
        strides = steps(directions, k_BHLE, v_BHLE, later_SBHME[0], dk_BHLE, dv_BHLE)
        _backward_kv[S, G, 1](*inputs, *(lse_GL,) * 3, *strides, H, M, L, M, ctx.square, TOKENS=True, **constants)
        tokens = (q_BHLE, k_BHLE, v_BHLE, directions, bias_GL, bias_HM, tops_SGM, grad_BHLE, lse_GL, delta_GL)
        strides = steps(q_BHLE, k_BHLE, v_BHLE, directions, grad_BHLE, dq_BHLE, dk_BHLE, dv_BHLE)
        options |= {"BACKWARD": True, "TILE_L": options["TILE_L"] // 2, "num_warps": 8}  # registers hold no more
        _within[S, G](*tokens, dq_BHLE, dk_BHLE, dv_BHLE, *strides, H, L, M, ctx.square, **options)
        return grad_TBHLE, None, None, None, None


def attend_causal(qkv_TBHLE: Tensor, keep_BL: Tensor, exponents: Exponents) -> Tensor | None:
    """Return `fused.attend` to the token itself and earlier ones: B x H x L x E.

    None is returned if a query sees only keys that are nearly 0 beside later ones of its block. float16 has too small a
    range.
    """
    qkv_TBHLE, exponents = in_base_2(qkv_TBHLE, exponents)
    directions = exponents.directions
    read_bias_HM = torch.zeros_like(directions, dtype=torch.float32)[..., 0].expand(qkv_TBHLE.shape[2], -1)
    read_bias_HM = (read_bias_HM if exponents.bias_HM is None else 2 * exponents.bias_HM).contiguous()
    out_BHLE, is_unknown = _Causal.apply(qkv_TBHLE, keep_BL.contiguous(), directions, read_bias_HM, exponents.square)
    return None if is_unknown else out_BHLE
