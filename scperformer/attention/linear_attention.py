"""Linear attention: keys only enter as sums of phi(k) v^T, so that cost and memory are linear in the tokens.

    out(q) = phi(q) S / phi(q) z,   S = sum_keys phi(k) v^T,   z = sum_keys phi(k)

A subclass computes phi, or log2 phi where phi is an exponential. Exponentials are stabilised per feature: with c_m the
largest exponent of feature m over the real keys, s_m and z_m are sums of 2^(log2 phi(k) - c). So z_m >= 1, and

    out(q) = sum_m w_m s_m / z_m,   w_m = 2^a_m / sum_m 2^a_m,   a = log2 phi(q) + c + log2 z

So no denominator comes near 0, however large q and k are, and no constant has to be added that could mask the
attention. Sums over keys carry their c (`KeySums.scale`) and can be added and subtracted, in pieces of the tokens.

Logarithms have base 2: on AMD processors torch's `exp` takes four times as long as its `exp2`.
"""

import math
from dataclasses import dataclass
from functools import cache, reduce
from importlib.util import find_spec
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from scperformer.attention.base import Attention, widened, zeroed
from scperformer.base.lab import from_lab

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
LOG_OF_NOTHING = -1e30  # instead of log 0 = -inf, as -inf - (-inf) is NaN
MIN_SUM = 1e-20  # smallest sum of phi(k), in place of 0 (no keys) or rounding error (all keys were subtracted again)
# widest head: the tiles of wider heads do not fit into the shared memory of a GPU
MAX_FUSED_WIDTH = 128
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPAN_TOKENS = 1024  # tokens whose features exist at a time
CAUSAL_CHUNK = 128  # tokens whose L x L weights exist at a time
# of the weights of a query, relative to the largest of all keys of its piece
MIN_CAUSAL_TOTAL = 2.0**-60


@cache
def has_triton() -> bool:
    """Return whether Triton is installed, without importing it."""
    return find_spec("triton") is not None


def power_of_2(x: Tensor) -> Tensor:
    """Replace numbers of B cells by 2^x in place; no bit depends on the position of a cell in memory."""
    # torch computes the last numbers of a tensor (fewer than two vectors of 16) one by one, with other rounding.
    if len(x) == 1 or x.numel() % 32 == 0:
        return x.exp2_()
    return x.mul_(LN_2).exp_()


class KeySums(NamedTuple):
    """Sums over keys, divided by 2^scale per feature: s = sum phi(k) v^T, z = sum phi(k)."""

    s_BHME: Tensor
    z_BHM: Tensor
    scale_BHM: Tensor  # has no gradient: it cancels

    def __add__(self, other: "KeySums") -> "KeySums":  # type: ignore[override]
        """Return the sums over both sets of keys."""
        scale_BHM = torch.maximum(self.scale_BHM, other.scale_BHM)
        factor_BHM = power_of_2(self.scale_BHM - scale_BHM)
        other_factor_BHM = power_of_2(other.scale_BHM - scale_BHM)
        s_BHME = self.s_BHME * factor_BHM.unsqueeze(-1) + other.s_BHME * other_factor_BHM.unsqueeze(
            -1
        )
        return KeySums(s_BHME, self.z_BHM * factor_BHM + other.z_BHM * other_factor_BHM, scale_BHM)

    def __neg__(self) -> "KeySums":
        """Return the sums that subtract these keys when they are added."""
        return KeySums(-self.s_BHME, -self.z_BHM, self.scale_BHM)

    def replaced(self, cells: Tensor, sums: "KeySums") -> "KeySums":
        """Return these sums with some cells (row numbers) replaced."""
        pairs = zip(self, sums, strict=True)
        return KeySums(
            *(old.expand(-1, *new.shape[1:]).index_copy(0, cells, new) for old, new in pairs)
        )


@dataclass(frozen=True)
class Exponents:
    """The features phi_m(k) = exp(W_m k - square |k|^2 / 2 + b_m) + epsilon, as the kernels compute them."""

    directions: Tensor  # the rows of W, M x E or H x M x E; without gradient
    square: float
    bias_HM: Tensor | None = None
    epsilon: float = 0.0  # as in `PublishedFavor`
    all_heads: bool = False  # with epsilon: the keys of all heads share a stabiliser


class _Summed(torch.autograd.Function):
    """Sums over tokens of 2^(log2 phi - scale) v^T and of 2^(log2 phi - scale); `log2 phi` is overwritten.

    Here and in `_Averaged`, automatic differentiation would take twice as many passes over all features.
    """

    @staticmethod
    def forward(ctx, log_phi_BHLM, v_BHLE, scale_BHM):
        phi_BHLM = power_of_2(log_phi_BHLM.sub_(scale_BHM.unsqueeze(2)))
        ctx.save_for_backward(phi_BHLM, v_BHLE)
        return phi_BHLM.transpose(2, 3) @ v_BHLE, phi_BHLM.sum(dim=2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_s_BHME, grad_z_BHM):
        phi_BHLM, v_BHLE = ctx.saved_tensors
        grad_BHLM = v_BHLE @ (grad_s_BHME * LN_2).transpose(2, 3).contiguous()
        return (
            grad_BHLM.add_((grad_z_BHM * LN_2).unsqueeze(2)).mul_(phi_BHLM),
            phi_BHLM @ grad_s_BHME,
            None,
        )


class _Averaged(torch.autograd.Function):
    """The average of rows with weights 2^a; `a` is overwritten."""

    @staticmethod
    def forward(ctx, a_BHLM, rows_BHME):
        w_BHLM = power_of_2(a_BHLM.sub_(a_BHLM.amax(dim=-1, keepdim=True)))
        total_BHL1 = w_BHLM.sum(dim=-1, keepdim=True)
        out_BHLE = (w_BHLM @ rows_BHME).div_(total_BHL1)
        ctx.save_for_backward(w_BHLM, total_BHL1, rows_BHME, out_BHLE)
        return out_BHLE

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_BHLE):
        w_BHLM, total_BHL1, rows_BHME, out_BHLE = ctx.saved_tensors
        grad_BHLE = grad_BHLE / total_BHL1
        grad_total_BHL1 = (grad_BHLE * out_BHLE).sum(dim=-1, keepdim=True) * LN_2
        grad_a_BHLM = (
            (grad_BHLE @ (rows_BHME * LN_2).transpose(2, 3).contiguous())
            .sub_(grad_total_BHL1)
            .mul_(w_BHLM)
        )
        return grad_a_BHLM, w_BHLM.transpose(2, 3) @ grad_BHLE


def weighted_sums(weights_BHLM: Tensor, rows_BHME: Tensor) -> Tensor:
    """Return sums of rows, B x H x L x E, without copies of rows that all heads share (H is 1), or also all cells."""
    if rows_BHME.shape[1] > 1:
        return weights_BHLM @ rows_BHME
    rows_BME = rows_BHME.squeeze(1)
    sums_BTE = weights_BHLM.flatten(1, 2) @ (rows_BME[0] if len(rows_BME) == 1 else rows_BME)
    return sums_BTE.unflatten(1, weights_BHLM.shape[1:3])


class LinearAttention(Attention):
    """phi(Q) (phi(K)^T V) / (phi(Q) sum phi(K)), with the phi of a subclass.

    Source: Katharopoulos et al. 2020, arXiv 2006.16236, equations 4 to 6; Choromanski et al. 2021, arXiv 2009.14794.
    """

    sums_over_keys = True
    uses_cross_attention = True
    logarithmic: bool = True  # `features` returns log2 phi
    can_subtract: bool = True  # keys can be subtracted from a sum that includes them

    @property
    def can_fuse(self) -> bool:
        """Whether `exponents` exists: the kernels of the lab compute this form without storing phi."""
        return False

    def exponents(self) -> Exponents:
        """Return phi in the form that the kernels take."""
        raise NotImplementedError

    def is_fused(self, x: Tensor) -> bool:
        """Whether inputs of this device and dtype are computed by kernels that store no L x M features."""
        fits = (
            x.dtype in FUSED_DTYPES
            and self.sizes.head_dim <= MAX_FUSED_WIDTH
            and not self.is_causal
        )
        return self.can_fuse and x.is_cuda and fits and has_triton()

    def packed(self, qkv_TBHLE, keep_BL, positions_BL=None):
        if not self.is_fused(qkv_TBHLE):
            return super().packed(qkv_TBHLE, keep_BL, positions_BL)
        return from_lab("kernels")(qkv_TBHLE, keep_BL, self.exponents())

    def features(self, x_BHLE: Tensor, queries: bool) -> Tensor:
        """Return phi(x) or, if `logarithmic`, log2 phi(x): B x H x L x M, a new tensor that the caller may overwrite.

        For queries, log2 phi may lack terms that are the same for all features, as they cancel in the division.
        """
        raise NotImplementedError

    def key_sums(self, k_BHLE: Tensor, v_BHLE: Tensor, keep_BL: Tensor | None) -> KeySums:
        """Return the sums over the keys of kept tokens (if `keep_BL` is None, of all); at least float32."""
        # exponents need more than bf16's 8 bits
        with torch.autocast(k_BHLE.device.type, enabled=False):
            return self.summed(
                self.features(widened(k_BHLE), queries=False), widened(v_BHLE), keep_BL
            )

    def summed(self, phi_k_BHLM: Tensor, v_BHLE: Tensor, keep_BL: Tensor | None) -> KeySums:
        """Return `key_sums` given the result of `features`, which is overwritten."""
        if keep_BL is not None:
            v_BHLE = zeroed(v_BHLE, keep_BL)
            phi_k_BHLM.masked_fill_(
                ~keep_BL[:, None, :, None], -torch.inf if self.logarithmic else 0.0
            )
        if self.logarithmic:
            scale_BHM = phi_k_BHLM.detach().amax(dim=2).clamp_min(LOG_OF_NOTHING)
            s_BHME, z_BHM = _Summed.apply(phi_k_BHLM, v_BHLE, scale_BHM)
            return KeySums(s_BHME, z_BHM, scale_BHM)
        scale_BHM = torch.zeros_like(phi_k_BHLM[:, :, 0])
        return KeySums(phi_k_BHLM.transpose(2, 3) @ v_BHLE, phi_k_BHLM.sum(dim=2), scale_BHM)

    def read(self, q_BHLE: Tensor, sums: KeySums) -> Tensor:
        """Return the mixed values of queries, given sums over keys: B x H x L x E, dtype of the queries."""
        with torch.autocast(q_BHLE.device.type, enabled=False):
            phi_q_BHLM = self.features(widened(q_BHLE), queries=True)
            if self.logarithmic:
                z_BHM = sums.z_BHM.clamp_min(MIN_SUM)
                phi_q_BHLM.add_((sums.scale_BHM + z_BHM.log2()).unsqueeze(2))
                out_BHLE = _Averaged.apply(phi_q_BHLM, sums.s_BHME / z_BHM.unsqueeze(-1))
            else:
                # if all features of a query are 0, its output is 0
                total_BHL1 = phi_q_BHLM @ sums.z_BHM.unsqueeze(-1)
                out_BHLE = phi_q_BHLM @ sums.s_BHME / total_BHL1.masked_fill(total_BHL1 == 0, 1.0)
        return out_BHLE.to(q_BHLE.dtype)

    @property
    def num_features(self) -> int:
        """The number of features of a key in all heads; in one, if all heads have the same phi."""
        raise NotImplementedError

    @property
    def num_key_sums(self) -> int:
        return self.num_features

    def table_width(self, num_genes: int) -> int:
        return self.num_features * (1 + self.sizes.head_dim)

    def _phi_of_genes(self, k_GE: Tensor) -> Tensor:
        """Return phi of keys of a fixed length, whose exponents are moderate: H x G x M; H is 1 if heads share phi."""
        phi_HGM = self.features(widened(k_GE)[None, None], queries=False)[0]
        return torch.exp2(phi_HGM) if self.logarithmic else phi_HGM

    def gene_table(self, k_GE: Tensor, v_GE: Tensor) -> Tensor:
        """Return phi(k) and phi(k) v^T of each gene: G x (H M + H M E)."""
        phi_GF = self._phi_of_genes(k_GE).transpose(0, 1).flatten(1)
        return torch.cat([phi_GF, (phi_GF.unsqueeze(-1) * v_GE.unsqueeze(1)).flatten(1)], dim=1)

    def read_genes(self, q_BHLE: Tensor, sums_BW: Tensor, k_GE: Tensor, v_GE: Tensor) -> Tensor:
        phi_q_BHLM = self.features(q_BHLE, queries=True)
        z_BF, s_BN = sums_BW.tensor_split([self.num_features], dim=1)
        z_BHM = z_BF.unflatten(1, (-1, phi_q_BHLM.shape[-1])).clamp_min(MIN_SUM)
        s_BHME = s_BN.unflatten(1, (*z_BHM.shape[1:], -1))
        if self.logarithmic:
            weights_BHLM = torch.softmax((phi_q_BHLM + z_BHM.log2().unsqueeze(2)) * LN_2, dim=-1)
            return weighted_sums(weights_BHLM / z_BHM.unsqueeze(2), s_BHME)
        total_BHL1 = (phi_q_BHLM * z_BHM.unsqueeze(2)).sum(-1, keepdim=True)
        return weighted_sums(phi_q_BHLM, s_BHME) / total_BHL1.clamp_min(MIN_SUM)

    def gene_weights(self, q_BHE: Tensor, k_GE: Tensor, x_BG: Tensor) -> Tensor:
        """Return x_g sum_m w_m phi_m(k_g) / z_m, with z_m = sum_g x_g phi_m(k_g): B x H x G."""
        phi_q_BHM = self.features(q_BHE.unsqueeze(2), queries=True).squeeze(2)
        phi_k_HGM = self._phi_of_genes(k_GE)
        z_BHM = (x_BG @ phi_k_HGM).transpose(0, 1).clamp_min(MIN_SUM)
        if self.logarithmic:
            w_BHM = torch.softmax((phi_q_BHM + z_BHM.log2()) * LN_2, dim=-1)
        else:
            w_BHM = phi_q_BHM * z_BHM
            w_BHM = w_BHM / w_BHM.sum(-1, keepdim=True).clamp_min(MIN_SUM)
        attention_HBG = (w_BHM / z_BHM).transpose(0, 1) @ phi_k_HGM.transpose(1, 2)
        return attention_HBG.transpose(0, 1) * x_BG.unsqueeze(1)

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        if self.is_fused(v_BHLE):
            qkv_TBHLE = torch.stack([x.to(v_BHLE.dtype) for x in (q_BHLE, k_BHLE, v_BHLE)])
            return self.packed(qkv_TBHLE, keep_BL, positions_BL)
        if self.is_causal:
            return self._causal(q_BHLE, k_BHLE, v_BHLE, keep_BL)
        # A piece of the tokens at a time: its temporary tensors fit into the cache, and the next piece reuses their
        # memory. (With slices instead of `split` the backward pass would be quadratic, as the gradient of each slice
        # has the size of all tokens.)
        span = keep_BL.shape[1] if keep_BL.is_cuda else SPAN_TOKENS
        q, k, v = (x.split(span, dim=2) for x in (q_BHLE, k_BHLE, v_BHLE))
        sums = reduce(add, map(self.key_sums, k, v, keep_BL.split(span, dim=1)))
        return torch.cat([self.read(piece, sums) for piece in q], dim=2).to(v_BHLE.dtype)

    def _causal(self, q_BHLE, k_BHLE, v_BHLE, keep_BL):
        """Return the output if tokens attend only to themselves and earlier tokens."""
        before = self.key_sums(k_BHLE[:, :, :1], v_BHLE[:, :, :1], torch.zeros_like(keep_BL[:, :1]))
        pieces = (x.split(CAUSAL_CHUNK, dim=2) for x in (q_BHLE, k_BHLE, v_BHLE))
        out = []
        for q, k, v, keep in zip(*pieces, keep_BL.split(CAUSAL_CHUNK, dim=1), strict=True):
            # the features of the pieces are not kept for the backward pass
            mixed, before = checkpoint(self._read_piece, q, k, v, keep, before, use_reentrant=False)
            out.append(mixed)
        return torch.cat(out, dim=2).to(v_BHLE.dtype)

    def _read_piece(self, q_BHCE, k_BHCE, v_BHCE, keep_BC, before):
        """Return the causal output of a piece of the tokens, and the sums over its keys and all keys `before` it.

        A query may see only keys that are nearly 0 beside later ones of the piece: then the piece is halved.
        """
        size = keep_BC.shape[1]
        with torch.autocast(q_BHCE.device.type, enabled=False):
            k, v = (zeroed(x, keep_BC) for x in (k_BHCE, v_BHCE))
            phi_q_BHCM = self.features(widened(q_BHCE), queries=True)
            phi_k_BHCM = self.features(k, queries=False)
            dropped_B1C1 = ~keep_BC[:, None, :, None]
            phi_k_BHCM = phi_k_BHCM.masked_fill(
                dropped_B1C1, -torch.inf if self.logarithmic else 0.0
            )
            scale_BHM = torch.zeros_like(phi_k_BHCM[:, :, 0])
            if self.logarithmic:
                scale_BHM = phi_k_BHCM.detach().amax(dim=2).clamp_min(LOG_OF_NOTHING)
                phi_k_BHCM = torch.exp2(phi_k_BHCM - scale_BHM.unsqueeze(2))
            sums = KeySums(phi_k_BHCM.transpose(2, 3) @ v, phi_k_BHCM.sum(dim=2), scale_BHM)
            joint_BHM = torch.maximum(scale_BHM, before.scale_BHM)
            if self.logarithmic:
                phi_q_BHCM = phi_q_BHCM + joint_BHM.unsqueeze(2)
                phi_q_BHCM = torch.exp2(phi_q_BHCM - phi_q_BHCM.detach().amax(dim=-1, keepdim=True))
            of_piece_BHCM, of_earlier_BHCM = (
                phi_q_BHCM * torch.exp2(scale - joint_BHM).unsqueeze(2)
                for scale in (scale_BHM, before.scale_BHM)
            )
            hidden_CC = keep_BC.new_ones(size, size).triu(1)
            weights_BHCC = (of_piece_BHCM @ phi_k_BHCM.transpose(2, 3)).masked_fill(hidden_CC, 0.0)
            total_BHC1 = weights_BHCC.sum(
                dim=-1, keepdim=True
            ) + of_earlier_BHCM @ before.z_BHM.unsqueeze(-1)
            if (
                self.logarithmic
                and size > 1
                and bool(((total_BHC1 < MIN_CAUSAL_TOTAL) & ~dropped_B1C1).any())
            ):
                halves = (x.tensor_split(2, dim=2) for x in (q_BHCE, k_BHCE, v_BHCE))
                out = []
                for q, k, v, keep in zip(*halves, keep_BC.tensor_split(2, dim=1), strict=True):
                    mixed, before = self._read_piece(q, k, v, keep, before)
                    out.append(mixed)
                return torch.cat(out, dim=2), before
            mixed_BHCE = weights_BHCC @ v + of_earlier_BHCM @ before.s_BHME
            return mixed_BHCE / total_BHC1.masked_fill(total_BHC1 == 0, 1.0), before + sums
