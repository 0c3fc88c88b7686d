"""Performer attention (FAVOR+): positive random features of the softmax kernel; cost grows linearly with tokens."""

import math

import torch

from scperformer.attention.base import Attention
from scperformer.config import AttentionConfig


def gaussian_directions(num_features: int, head_dim: int, orthogonal: bool, generator: torch.Generator) -> torch.Tensor:
    """Random directions W with rows distributed as N(0, I).

    Parameters
    ----------
    num_features, head_dim
        M rows of E entries.
    orthogonal
        Rows within each block of E are orthogonal (their lengths stay those of independent Gaussian rows).
    generator
        The only source of randomness.

    Returns
    -------
    float32, M x E.

    Source
    ------
    Choromanski et al. 2021, arXiv 2009.14794, section 2.4.
    """
    gaussian_ME = torch.randn(num_features, head_dim, generator=generator, dtype=torch.float64)
    if not orthogonal:
        return gaussian_ME.float()
    lengths_M1 = gaussian_ME.norm(dim=1, keepdim=True)
    blocks = []
    for _ in range(math.ceil(num_features / head_dim)):
        square_EE = torch.randn(head_dim, head_dim, generator=generator, dtype=torch.float64)
        q_EE, r_EE = torch.linalg.qr(square_EE)
        # QR leaves the signs to the library; with R's diagonal positive, Q is uniform over the rotations.
        blocks.append((q_EE * r_EE.diagonal().sign()).T)
    return (torch.cat(blocks)[:num_features] * lengths_M1).float()


class Favor(Attention):
    """phi(Q) (phi(K)^T V) / (phi(Q) sum phi(K)) with phi(x) = exp(W x - |x|^2 / 2), x scaled by E^(-1/4).

    The exponents are stabilised per feature: with c_m the largest exponent of feature m over the real keys,
    exp(Wk - c) and exp(Wq + c - max_m) have the same product up to a factor that the division cancels. The
    feature with the largest query exponent then has weight 1 and a key sum of at least 1, so the denominator
    is never below 1 whatever the size of q and k: no floor is added, and none can swallow the attention.

    Source
    ------
    Choromanski et al. 2021, arXiv 2009.14794, equations 4, 5 and lemma 1.
    """

    quadratic = False
    order_sensitive = False

    def __init__(self, head_dim: int, config: AttentionConfig, generator: torch.Generator):
        super().__init__()
        # E ln E features, as in the paper's experiments (266 at E = 64)
        self.num_features = config.num_features or max(1, int(head_dim * math.log(head_dim)))
        self.head_dim = head_dim
        self.orthogonal = config.orthogonal
        self.directions_ME: torch.Tensor
        self.register_buffer("directions_ME", torch.empty(self.num_features, head_dim))
        self.redraw(generator)

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        self.directions_ME.copy_(gaussian_directions(self.num_features, self.head_dim, self.orthogonal, generator))

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL):
        dtype = v_BHLE.dtype
        wide = torch.promote_types(dtype, torch.float32)
        with torch.autocast(q_BHLE.device.type, enabled=False):  # exponents need more than bf16's 8 bits
            scale = self.head_dim**-0.25
            q_BHLE, k_BHLE, v_BHLE = q_BHLE.to(wide) * scale, k_BHLE.to(wide) * scale, v_BHLE.to(wide)
            w_EM = self.directions_ME.to(wide).T
            keep_B1L1 = keep_BL[:, None, :, None]

            k_exp_BHLM = k_BHLE @ w_EM - k_BHLE.square().sum(-1, keepdim=True) / 2
            k_exp_BHLM = k_exp_BHLM.masked_fill(~keep_B1L1, -torch.inf)
            # c cancels between keys and queries, so no gradient needs to pass through it
            c_BH1M = k_exp_BHLM.detach().amax(dim=2, keepdim=True)
            phi_k_BHLM = torch.exp(k_exp_BHLM - c_BH1M)
            # dropped tokens have phi = 0, but 0 * inf is not 0
            v_BHLE = v_BHLE.masked_fill(~keep_B1L1, 0.0)
            s_BHME = phi_k_BHLM.transpose(2, 3) @ v_BHLE
            z_BHM1 = phi_k_BHLM.sum(dim=2).unsqueeze(-1)

            # |q|^2 / 2 is the same for every feature of a query: it cancels in the division
            q_exp_BHLM = q_BHLE @ w_EM + c_BH1M
            phi_q_BHLM = torch.exp(q_exp_BHLM - q_exp_BHLM.detach().amax(dim=3, keepdim=True))
            out_BHLE = (phi_q_BHLM @ s_BHME) / (phi_q_BHLM @ z_BHM1)
        return out_BHLE.to(dtype)
