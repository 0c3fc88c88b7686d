"""Performer attention (FAVOR+, generalized attention): random features of a kernel; cost linear in the tokens.

Shape letters: B cells, H heads, L tokens, E head width, M features, T queries, keys and values.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch

from scperformer.attention.additive import LOG_OF_NOTHING, Additive, KeySums, widened
from scperformer.attention.base import Sizes
from scperformer.attention.random_directions import Fastfood, gaussian_directions
from scperformer.config import require, require_choice

MAX_FUSED_WIDTH = 128  # of a head: the tiles of wider heads do not fit together into the shared memory of a GPU
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPSILON = 0.001  # added to the features of kernels that can be 0, as in generalized attention
LOGARITHMIC = ("softmax", "exp")  # kernels whose features are exponentials, handled as logarithms


@cache
def has_triton() -> bool:
    """Whether Triton can be imported, without doing so."""
    return find_spec("triton") is not None


def elu1(x: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1, as x + 1 above 0 and exp(x) below: adding 1 to elu(x) would round small numbers away."""
    return x.clamp_min(0.0) + torch.exp(-torch.relu(-x))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "elu1": elu1,
    "square": torch.square,
}


@dataclass(kw_only=True)
class FavorOptions:
    """Options of `attention=favor`."""

    num_features: int | None = None  # random features; null: head_dim * ln(head_dim), as Performer
    # W: orthogonal in blocks, independent (gaussian), structured (fastfood), or none at all (identity)
    projection: str = "orthogonal"
    kernel: str = "softmax"  # features of the softmax kernel, or phi(x) = f(W x) for f = relu, elu1, square or exp
    epsilon: float | None = None  # added to every feature; null: 0 with softmax and exp, else 0.001
    redraw_interval: int = 1000  # training steps between new projections; 0: never
    causal: bool = False  # a token sees only itself and those before it

    def __post_init__(self) -> None:
        require_choice("attention.projection", self.projection, ("orthogonal", "gaussian", "fastfood", "identity"))
        require_choice("attention.kernel", self.kernel, (*LOGARITHMIC, *FUNCTIONS))
        if self.num_features is not None:
            expected = "1 or more, or null"
            require(self.num_features >= 1, "attention.num_features", self.num_features, expected)
            expected = "null with attention.projection=identity: there are head_dim features"
            require(self.projection != "identity", "attention.num_features", self.num_features, expected)
        if self.epsilon is not None:
            require(self.epsilon >= 0, "attention.epsilon", self.epsilon, "0 or more, or null")
        if self.kernel == "softmax":
            random = "orthogonal, gaussian or fastfood with attention.kernel=softmax"
            require(self.projection != "identity", "attention.projection", self.projection, random)
            expected = "0 with attention.causal=true: the published stabiliser of the keys sees all of them"
            require(not (self.causal and self.floor), "attention.epsilon", self.epsilon, expected)
        require(self.redraw_interval >= 0, "attention.redraw_interval", self.redraw_interval, "0 or more")

    @property
    def floor(self) -> float:
        """The number that is added to every feature."""
        return (0.0 if self.kernel in LOGARITHMIC else EPSILON) if self.epsilon is None else self.epsilon

    @property
    def is_published(self) -> bool:
        """Whether these options need `PublishedFavor`."""
        return self.kernel == "softmax" and self.floor > 0


class Favor(Additive):
    """Linear attention with phi(x) = exp(W x - |x|^2 / 2), or f(W x) + epsilon, x scaled by E^(-1/4).

    With `projection=identity`, phi(x) = f(x) + epsilon of the unscaled x.

    Source
    ------
    Choromanski et al. 2021, arXiv 2009.14794, equations 4, 5 and lemma 1; f(W x): section 2.2 (generalized
    attention). f(x) with f = elu + 1: Katharopoulos et al. 2020, arXiv 2006.16236, equation 7.
    """

    Options = FavorOptions
    causal = True
    size_option = "num_features"
    directions_ME: torch.Tensor

    def __init__(self, sizes: Sizes, options: FavorOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.logarithmic = options.kernel in LOGARITHMIC
        # With relu and no floor, a query may share features only with keys that were subtracted: 0 / 0, or rounding.
        self.can_subtract = not (options.kernel == "relu" and options.floor == 0)
        # E ln E features, as in the paper's experiments (266 at E = 64)
        num_features = options.num_features or max(1, int(sizes.head_dim * math.log(sizes.head_dim)))
        self.redraw_interval = 0 if options.projection == "identity" else options.redraw_interval
        self.factor = 1.0 if options.projection == "identity" else sizes.head_dim**-0.25  # of queries and keys
        if options.projection == "fastfood":
            self.fastfood = Fastfood(num_features, sizes.head_dim)
        elif options.projection != "identity":
            self.register_buffer("directions_ME", torch.empty(num_features, sizes.head_dim))
        if not any(buffer.is_meta for buffer in self.buffers()):  # on the meta device there is nothing to draw
            self.redraw(generator)

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        if self.options.projection == "fastfood":
            self.fastfood.redraw(generator)
        elif self.options.projection != "identity":
            num_features, head_dim = self.directions_ME.shape
            orthogonal = self.options.projection == "orthogonal"
            self.directions_ME.copy_(gaussian_directions(num_features, head_dim, orthogonal, generator))

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        if self.is_fused(v_BHLE):
            qkv_TBHLE = torch.stack([x.to(v_BHLE.dtype) for x in (q_BHLE, k_BHLE, v_BHLE)])
            return self.packed(qkv_TBHLE, keep_BL, positions_BL)
        return super().forward(q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL)

    def packed(self, qkv_TBHLE, keep_BL, positions_BL=None):
        if self.is_fused(qkv_TBHLE[0]):
            from scperformer.attention.fused import favor  # needs Triton

            return favor(qkv_TBHLE, keep_BL, self.directions_ME, self.factor)
        return super().packed(qkv_TBHLE, keep_BL, positions_BL)

    def is_fused(self, v_BHLE: torch.Tensor) -> bool:
        """Whether the kernels of fused.py compute the result without storing phi: on a GPU with Triton.

        They are for the kernel softmax without epsilon, not causal, with a dense matrix of directions.
        """
        options = self.options
        plain = options.kernel == "softmax" and not options.is_published and not self.is_causal
        dense = options.projection in ("orthogonal", "gaussian") and v_BHLE.shape[-1] <= MAX_FUSED_WIDTH
        return plain and dense and v_BHLE.is_cuda and v_BHLE.dtype in FUSED_DTYPES and has_triton()

    def features(self, x_BHLE: torch.Tensor, queries: bool) -> torch.Tensor:
        floor, projected_BHLM = self.options.floor, self.projected(x_BHLE, queries)
        if not self.logarithmic:
            return FUNCTIONS[self.options.kernel](projected_BHLM) + floor
        if self.options.kernel == "exp":
            if floor:
                projected_BHLM = torch.logaddexp(projected_BHLM, projected_BHLM.new_tensor(math.log(floor)))
            return projected_BHLM  # log(phi + epsilon)
        if queries:
            return projected_BHLM  # |q|^2 / 2 is the same for every feature of a query
        return projected_BHLM.add_(self.log_norm(x_BHLE))

    def log_norm(self, x_BHLE: torch.Tensor) -> torch.Tensor:
        """-|x|^2 / 2 with x scaled, B x H x L x 1."""
        return x_BHLE.square().sum(-1, keepdim=True) * (-(self.factor**2) / 2)

    def projected(self, x_BHLE: torch.Tensor, queries: bool) -> torch.Tensor:
        """W x with x scaled, B x H x L x M; a new tensor."""
        if self.options.projection == "identity":
            return x_BHLE.clone()
        if self.options.projection == "fastfood":
            return self.fastfood(x_BHLE * self.factor)
        directions_ME = self.directions_ME.to(x_BHLE.dtype) * self.factor
        if queries or torch.is_grad_enabled():
            return x_BHLE @ directions_ME.T
        # Sums and maxima of keys run over the tokens: they take a tenth less time if tokens are last in memory.
        # (With gradients there is no gain, because writing to a view copies it.)
        return (directions_ME @ x_BHLE.transpose(2, 3)).transpose(2, 3)


class PublishedFavor(Favor):
    """FAVOR+ as published, with epsilon added to the features of the softmax kernel.

        phi(k) = exp(W k - |k|^2 / 2 - K) + epsilon,   K = the largest entry of W k over all keys and features
        phi(q) = exp(W q - |q|^2 / 2 - max_m (W q)_m) + epsilon

    K is known only after the last key. Until then, the sums have M + 2 entries: the M features without epsilon; a
    feature that is always 1, with the sum of v and the number of keys; and an empty feature, whose scale is K.
    """

    def __init__(self, sizes: Sizes, options: FavorOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.can_subtract = False  # a maximum cannot be taken back

    def key_sums(self, k_BHLE: torch.Tensor, v_BHLE: torch.Tensor, keep_BL: torch.Tensor | None) -> KeySums:
        with torch.autocast(k_BHLE.device.type, enabled=False):
            k_BHLE, v_BHLE = widened(k_BHLE), widened(v_BHLE)
            projected_BHLM = self.projected(k_BHLE, queries=False)
            seen_BHLM = projected_BHLM.detach()
            count_BH1 = v_BHLE.new_full((*v_BHLE.shape[:2], 1), v_BHLE.shape[2])
            if keep_BL is not None:
                dropped_B1L1 = ~keep_BL[:, None, :, None]
                v_BHLE = v_BHLE.masked_fill(dropped_B1L1, 0.0)
                seen_BHLM = seen_BHLM.masked_fill(dropped_B1L1, LOG_OF_NOTHING)
                count_BH1 = keep_BL.sum(dim=1).to(v_BHLE)[:, None, None].expand_as(count_BH1)
            largest_BH1 = seen_BHLM.amax(dim=2).amax(dim=-1, keepdim=True)
            sums = self.summed(projected_BHLM.add_(self.log_norm(k_BHLE)), v_BHLE, keep_BL)
            sum_BH1E = v_BHLE.sum(dim=2, keepdim=True)
            nothing_BH1 = torch.zeros_like(largest_BH1)
            return KeySums(
                torch.cat([sums.s_BHME, sum_BH1E, torch.zeros_like(sum_BH1E)], dim=2),
                torch.cat([sums.z_BHM, count_BH1, nothing_BH1], dim=-1),
                torch.cat([sums.scale_BHM, nothing_BH1, largest_BH1], dim=-1),
            )

    def read(self, q_BHLE: torch.Tensor, sums: KeySums) -> torch.Tensor:
        epsilon = self.options.floor
        factor_BHM = torch.exp(sums.scale_BHM[..., :-2] - sums.scale_BHM[..., -1:])
        s_BHME = sums.s_BHME[:, :, :-2] * factor_BHM.unsqueeze(-1) + epsilon * sums.s_BHME[:, :, -2:-1]
        z_BHM = sums.z_BHM[..., :-2] * factor_BHM + epsilon * sums.z_BHM[..., -2:-1]
        with torch.autocast(q_BHLE.device.type, enabled=False):
            phi_q_BHLM = self.projected(widened(q_BHLE), queries=True)
            largest_BHL1 = phi_q_BHLM.detach().amax(dim=-1, keepdim=True)
            phi_q_BHLM.add_(self.log_norm(widened(q_BHLE)) - largest_BHL1).exp_()  # the sums below add epsilon
            mixed_BHLE = phi_q_BHLM @ s_BHME + epsilon * s_BHME.sum(dim=2, keepdim=True)
            total_BHL1 = phi_q_BHLM @ z_BHM.unsqueeze(-1) + epsilon * z_BHM.sum(-1)[..., None, None]
            out_BHLE = mixed_BHLE / total_BHL1.masked_fill(total_BHL1 == 0, 1.0)
        return out_BHLE.to(q_BHLE.dtype)
