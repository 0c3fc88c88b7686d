"""Performer attention (FAVOR+, generalized attention): random features of a kernel; cost linear in the tokens.

More shape letters than in base.py: T queries, keys and values.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from scperformer.attention.base import AttentionOptions, Sizes, widened
from scperformer.attention.linear_attention import (
    LOG2_E,
    LOG_OF_NOTHING,
    Exponents,
    KeySums,
    LinearAttention,
    power_of_2,
)
from scperformer.base.lab import from_lab
from scperformer.config.options import ONE_OR_MORE, ZERO_OR_MORE, Rule, choice, option, require

DEFAULT_EPSILON = 0.001  # added to features that can be 0, as in generalized attention
FEATURES_OF_GENES = 16  # by default if keys belong to genes, whose table has as many entries
PROJECTION_NAMES = ("orthogonal", "gaussian", "fastfood", "identity", "kmeans")
PROJECTIONS: Rule = (lambda name: name in PROJECTION_NAMES, f"one of {', '.join(PROJECTION_NAMES)}")
LOGARITHMIC = ("softmax", "exp")  # kernels whose features are exponentials and stored as logarithms
GPU_TILE = 64  # features that a kernel computes at a time; the default is whole tiles


def elu1(x: Tensor) -> Tensor:
    """Return elu(x) + 1 as x + 1 above 0 and exp(x) below: adding 1 to elu(x) would lose small numbers to rounding."""
    return x.clamp_min(0.0) + torch.exp(-torch.relu(-x))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "elu1": elu1,
    "square": torch.square,
}


def gaussian_directions(
    num_features: int, head_dim: int, orthogonal: bool, generator: torch.Generator
) -> Tensor:
    """Draw rows distributed as N(0, I): float32, M x E; with `orthogonal`, the rows of each block of E are orthogonal.

    Source: Choromanski et al. 2021, arXiv 2009.14794, section 2.4.
    """
    gaussian_ME = torch.randn(num_features, head_dim, generator=generator, dtype=torch.float64)
    if not orthogonal:
        return gaussian_ME.float()
    blocks = []
    for _ in range(math.ceil(num_features / head_dim)):
        square_EE = torch.randn(head_dim, head_dim, generator=generator, dtype=torch.float64)
        q_EE, r_EE = torch.linalg.qr(square_EE)
        # The signs of Q depend on the library. With a positive diagonal of R, Q is uniform over orthogonal matrices.
        blocks.append((q_EE * r_EE.diagonal().sign()).T)
    return (torch.cat(blocks)[:num_features] * gaussian_ME.norm(dim=1, keepdim=True)).float()


class Favor(LinearAttention):
    """Linear attention with phi(x) = exp(W x - |x|^2 / 2), or f(W x) + epsilon, x scaled by E^(-1/4).

    With `projection=identity`, phi(x) = f(x) + epsilon, and x is not scaled.

    Source: Choromanski et al. 2021, arXiv 2009.14794, equations 4, 5 and lemma 1; f(W x): section 2.2 (generalized
    attention). f(x) with f = elu + 1: Katharopoulos et al. 2020, arXiv 2006.16236, equation 7.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        # null: head_dim * ln(head_dim), as Performer (256 for 64); 16 with model=performer
        num_features: int | None = option(None, rule=ONE_OR_MORE)
        # W: orthogonal in blocks, independent (gaussian), structured (fastfood), none at all (identity), or the centres
        # of clusters of the keys (kmeans); null: orthogonal, or kmeans with model=performer
        projection: str | None = option(None, rule=PROJECTIONS)
        # features of the softmax kernel, or phi(x) = f(W x) for f = relu, elu1, square or exp
        kernel: str = choice(*LOGARITHMIC, *FUNCTIONS)
        # added to every feature; null: 0 with softmax and exp, else 0.001
        epsilon: float | None = option(None, rule=ZERO_OR_MORE)
        # keys of the published form share a stabiliser within a head, or over all heads of a layer, as in scBERT
        stabiliser: str = choice("head", "all_heads")
        # training steps between new projections; 0: never
        redraw_interval: int = option(1000, rule=ZERO_OR_MORE)
        causal: bool = False  # a token sees only itself and those before it
        # false, for teaching: phi(Q) (phi(K)^T V) is not divided by phi(Q) sum phi(K), and grows with the tokens
        divide: bool = True

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.projection == "identity":
                random = "orthogonal, gaussian, fastfood or kmeans with attention.kernel=softmax"
                require(self.kernel != "softmax", "attention.projection", self.projection, random)
                expected = "null with attention.projection=identity, which has head_dim features"
                require(
                    self.num_features is None, "attention.num_features", self.num_features, expected
                )
            expected = "0 with attention.causal=true, as the published stabiliser of the keys depends on all keys"
            require(
                not (self.causal and self.is_published), "attention.epsilon", self.epsilon, expected
            )
            fits = self.is_published or self.stabiliser == "head"
            expected = "head without attention.epsilon and the softmax kernel"
            require(fits, "attention.stabiliser", self.stabiliser, expected)
            fits = self.divide or not (self.causal or self.is_published)
            expected = (
                "true with attention.causal, and with attention.epsilon and the softmax kernel"
            )
            require(fits, "attention.divide", self.divide, expected)

        @property
        def floor(self) -> float:
            """The constant that is added to every feature."""
            return (
                (0.0 if self.kernel in LOGARITHMIC else DEFAULT_EPSILON)
                if self.epsilon is None
                else self.epsilon
            )

        @property
        def is_published(self) -> bool:
            """Whether these options need `PublishedFavor`."""
            return self.kernel == "softmax" and self.floor > 0

    causal = True
    size_option = "num_features"
    directions_ME: Tensor

    def __init__(self, sizes: Sizes, options: Options, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        require(
            options.divide or not sizes.keys_of_genes,
            "attention.divide",
            False,
            "true with model=performer",
        )
        self.logarithmic = options.kernel in LOGARITHMIC
        # With relu and no floor, a query may share features only with subtracted keys: its output would be 0 / 0 or
        # rounding error. With softmax and epsilon, the maximum over the keys cannot be undone.
        self.can_subtract = (
            not (options.kernel == "relu" and options.floor == 0) and not options.is_published
        )
        num_features = options.num_features or (FEATURES_OF_GENES if sizes.keys_of_genes else None)
        # E ln E, as in the experiments of Choromanski et al. 2021: 256 for E = 64
        if num_features is None:
            num_features = max(1, int(sizes.head_dim * math.log(sizes.head_dim)))
            num_features -= num_features % GPU_TILE if num_features > 2 * GPU_TILE else 0
        self.projection = options.projection or ("kmeans" if sizes.keys_of_genes else "orthogonal")
        self.starts_from_keys = self.projection == "kmeans"
        is_fixed = self.projection in ("identity", "kmeans")
        self.redraw_interval = 0 if is_fixed else options.redraw_interval
        # scales queries and keys
        self.factor = 1.0 if self.projection == "identity" else sizes.head_dim**-0.25
        if self.projection == "fastfood":
            self.fastfood = from_lab("fastfood")(num_features, sizes.head_dim)
        elif self.projection != "identity":
            self.register_buffer("directions_ME", torch.empty(num_features, sizes.head_dim))
        # on the meta device there is nothing to draw
        if not any(buffer.is_meta for buffer in self.buffers()):
            self.redraw(generator)

    @property
    def num_features(self) -> int:
        if self.projection == "identity":
            return self.sizes.head_dim
        return (
            self.fastfood.num_features if self.projection == "fastfood" else len(self.directions_ME)
        )

    @property
    def size(self) -> int:
        return self.num_features

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        if self.projection == "fastfood":
            self.fastfood.redraw(generator)
        elif self.projection != "identity":
            num_features, head_dim = self.directions_ME.shape
            orthogonal = self.projection == "orthogonal"
            self.directions_ME.copy_(
                gaussian_directions(num_features, head_dim, orthogonal, generator)
            )

    @torch.no_grad()
    def start(self, k_BHLE: Tensor, keep_BL: Tensor, generator: torch.Generator) -> None:
        """With `projection=kmeans`, choose as directions the centres of clusters of the scaled keys of real tokens.

        Each centre gets the mean length of the keys. Then phi_m(k) is largest for the keys of its cluster, while most
        random directions are far from all keys. If there are fewer keys than directions, the first ones are repeated.
        """
        if self.projection != "kmeans":
            return
        from sklearn.cluster import KMeans  # takes a while to import

        k_TE = k_BHLE.transpose(1, 2)[keep_BL].flatten(0, 1).double().cpu().numpy() * self.factor
        num_features = len(self.directions_ME)
        num_centres = min(num_features, len(np.unique(k_TE, axis=0)))
        seed = int(torch.randint(2**31, (), generator=generator))
        centres = KMeans(num_centres, n_init=1, random_state=seed).fit(k_TE).cluster_centers_
        lengths = np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-9)
        centres *= np.linalg.norm(k_TE, axis=1).mean() / lengths
        self.directions_ME.copy_(
            torch.from_numpy(np.resize(centres, (num_features, k_TE.shape[1])))
        )

    @property
    def can_fuse(self) -> bool:
        has_kernel = self.options.kernel == "softmax" and self.options.divide
        return has_kernel and self.projection != "identity"

    def exponents(self) -> Exponents:
        # a GPU multiplies by W written out, as its matrix units are made for it
        if self.projection == "fastfood":
            identity_EE = torch.eye(self.sizes.head_dim, device=self.fastfood.signs_NP.device)
            directions_ME = self.fastfood(identity_EE[None, None])[0, 0].T.contiguous()
        else:
            directions_ME = self.directions_ME
        return Exponents(directions_ME * self.factor, self.factor**2)

    def read(self, q_BHLE: Tensor, sums: KeySums) -> Tensor:
        out_BHLE = super().read(q_BHLE, sums)
        if self.options.divide:
            return out_BHLE
        with torch.autocast(q_BHLE.device.type, enabled=False):
            phi_q_BHLM = self.features(widened(q_BHLE), queries=True)
            if self.options.kernel == "softmax":  # phi is divided by sqrt(M), of queries and keys
                phi_q_BHLM += self.log_norm(widened(q_BHLE)) - math.log2(self.num_features)
            if self.logarithmic:
                phi_q_BHLM = torch.exp2(phi_q_BHLM + sums.scale_BHM.unsqueeze(2))
            return out_BHLE * (phi_q_BHLM @ sums.z_BHM.unsqueeze(-1)).to(out_BHLE.dtype)

    def features(self, x_BHLE: Tensor, queries: bool) -> Tensor:
        floor = self.options.floor
        projected_BHLM = self.projected(x_BHLE)
        if not self.logarithmic:
            return FUNCTIONS[self.options.kernel](projected_BHLM) + floor
        if self.options.kernel == "exp":
            if floor:
                projected_BHLM = torch.logaddexp2(
                    projected_BHLM, projected_BHLM.new_tensor(math.log2(floor))
                )
            return projected_BHLM  # log2(phi + epsilon)
        if queries:
            return projected_BHLM  # -|q|^2 / 2 is the same for all features of a query
        return projected_BHLM.add_(self.log_norm(x_BHLE))

    def log_norm(self, x_BHLE: Tensor) -> Tensor:
        """Return log2 exp(-|x|^2 / 2) of scaled x: B x H x L x 1."""
        return x_BHLE.square().sum(-1, keepdim=True) * (-(self.factor**2) / 2 * LOG2_E)

    def projected(self, x_BHLE: Tensor) -> Tensor:
        """Return W x, or log2 exp(W x) if `logarithmic`, of scaled x: B x H x L x M, a new tensor."""
        factor = self.factor * (LOG2_E if self.logarithmic else 1.0)  # for logarithms to base 2
        if self.projection == "identity":
            return x_BHLE * factor
        if self.projection == "fastfood":
            return self.fastfood(x_BHLE * factor)
        # Heads and cells become rows of one product: the last bits of separate products would depend on the position of
        # a cell in memory.
        return x_BHLE @ (self.directions_ME.to(x_BHLE.dtype) * factor).T.contiguous()


class PublishedFavor(Favor):
    """FAVOR+ as published, with epsilon added to the features of the softmax kernel.

        phi(k) = exp(W k - |k|^2 / 2 - K) + epsilon,   K = the largest entry of W k over all keys and features
        phi(q) = exp(W q - |q|^2 / 2 - max_m (W q)_m) + epsilon

    With `stabiliser=all_heads`, K is the largest entry over the keys of all heads. This is the form of scBERT, whose K
    is the largest over all cells of a batch, too: here a cell has the result that it has there in a batch of its own.

    K is known only after the last key. Until then the sums have M + 2 entries: the M features without epsilon; a
    feature that is always 1, for the sum of v and the number of keys; and an empty feature, whose scale is K.
    """

    causal = False
    exact_gradients = False  # K has none

    def exponents(self) -> Exponents:
        all_heads = self.options.stabiliser == "all_heads"
        return replace(super().exponents(), epsilon=self.options.floor, all_heads=all_heads)

    def key_sums(self, k_BHLE: Tensor, v_BHLE: Tensor, keep_BL: Tensor | None) -> KeySums:
        with torch.autocast(k_BHLE.device.type, enabled=False):
            k_BHLE = widened(k_BHLE)
            v_BHLE = widened(v_BHLE)
            if keep_BL is None:
                keep_BL = torch.ones_like(k_BHLE[:, 0, :, 0], dtype=torch.bool)
            dropped_B1L1 = ~keep_BL[:, None, :, None]
            v_BHLE = v_BHLE.masked_fill(dropped_B1L1, 0.0)
            projected_BHLM = self.projected(k_BHLE)
            seen_BHLM = projected_BHLM.detach().masked_fill(dropped_B1L1, LOG_OF_NOTHING)
            largest_BH1 = seen_BHLM.amax(dim=2).amax(dim=-1, keepdim=True)
            if self.options.stabiliser == "all_heads":
                largest_BH1 = largest_BH1.amax(dim=1, keepdim=True).expand_as(largest_BH1)
            sums = self.summed(projected_BHLM.add_(self.log_norm(k_BHLE)), v_BHLE, keep_BL)
            sum_BH1E = v_BHLE.sum(dim=2, keepdim=True)
            nothing_BH1 = torch.zeros_like(largest_BH1)
            count_BH1 = nothing_BH1 + keep_BL.sum(dim=1)[:, None, None]
            return KeySums(
                torch.cat([sums.s_BHME, sum_BH1E, torch.zeros_like(sum_BH1E)], dim=2),
                torch.cat([sums.z_BHM, count_BH1, nothing_BH1], dim=-1),
                torch.cat([sums.scale_BHM, nothing_BH1, largest_BH1], dim=-1),
            )

    def read(self, q_BHLE: Tensor, sums: KeySums) -> Tensor:
        epsilon = self.options.floor
        factor_BHM = power_of_2(sums.scale_BHM[..., :-2] - sums.scale_BHM[..., -1:])
        s_BHME = (
            sums.s_BHME[:, :, :-2] * factor_BHM.unsqueeze(-1) + epsilon * sums.s_BHME[:, :, -2:-1]
        )
        z_BHM = sums.z_BHM[..., :-2] * factor_BHM + epsilon * sums.z_BHM[..., -2:-1]
        with torch.autocast(q_BHLE.device.type, enabled=False):
            phi_q_BHLM = self.projected(widened(q_BHLE))
            largest_BHL1 = phi_q_BHLM.detach().amax(dim=-1, keepdim=True)
            phi_q_BHLM = power_of_2(phi_q_BHLM.add_(self.log_norm(widened(q_BHLE)) - largest_BHL1))
            # the sums over features add the epsilon of the queries
            mixed_BHLE = phi_q_BHLM @ s_BHME + epsilon * s_BHME.sum(dim=2, keepdim=True)
            total_BHL1 = phi_q_BHLM @ z_BHM.unsqueeze(-1) + epsilon * z_BHM.sum(-1)[..., None, None]
            out_BHLE = mixed_BHLE / total_BHL1.masked_fill(total_BHL1 == 0, 1.0)
        return out_BHLE.to(q_BHLE.dtype)
