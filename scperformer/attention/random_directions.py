"""Random directions W for the features of the softmax kernel: written out as a matrix, or structured (fastfood).

Shape letters beyond those of base.py: N blocks of P directions, P the smallest power of two that is at least E.
"""

import math

import torch
from torch import nn
from torch.nn.functional import pad

PIECE = 1024  # tokens at a time: the dozen temporary tensors of a Hadamard transform stay small


def gaussian_directions(num_features: int, head_dim: int, orthogonal: bool, generator: torch.Generator) -> torch.Tensor:
    """Draw directions with rows distributed as N(0, I): float32, M x E.

    Parameters
    ----------
    orthogonal
        Make the rows within each block of E orthogonal; their lengths stay those of independent Gaussian rows.

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
        # The signs of Q depend on the library; where R's diagonal is positive, Q is uniform over the rotations.
        blocks.append((q_EE * r_EE.diagonal().sign()).T)
    return (torch.cat(blocks)[:num_features] * lengths_M1).float()


class Fastfood(nn.Module):
    """Project on M directions in O(M log E) per token, W = S H G Q H B in each block of P rows.

    H is the Walsh-Hadamard matrix, B a diagonal of random signs, Q a random permutation, G a diagonal of Gaussian
    numbers, and S a diagonal that gives each row the length of a Gaussian one. Each row of W is distributed as N(0, I)
    exactly: B, Q and H make an orthogonal basis in which G is a uniform direction, and S is independent of it. Rows
    of a block share G, so they are neither independent nor orthogonal.

    Source
    ------
    Le et al. 2013, arXiv 1408.3060, equation 7 (with sigma = 1; H here has entries 1 and -1).
    """

    signs_NP: torch.Tensor
    order_NP: torch.Tensor
    gaussian_NP: torch.Tensor
    scale_NP: torch.Tensor

    def __init__(self, num_features: int, head_dim: int):
        super().__init__()
        self.num_features = num_features
        width = 2 ** math.ceil(math.log2(head_dim))
        shape = (math.ceil(num_features / width), width)
        self.register_buffer("signs_NP", torch.empty(shape))
        self.register_buffer("order_NP", torch.empty(shape, dtype=torch.int64))
        self.register_buffer("gaussian_NP", torch.empty(shape))
        self.register_buffer("scale_NP", torch.empty(shape))

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        """Draw new directions."""
        num_blocks, width = self.signs_NP.shape
        self.signs_NP.copy_(torch.randint(2, (num_blocks, width), generator=generator) * 2 - 1)
        self.order_NP.copy_(torch.stack([torch.randperm(width, generator=generator) for _ in range(num_blocks)]))
        gaussian_NP = torch.randn(num_blocks, width, generator=generator, dtype=torch.float64)
        self.gaussian_NP.copy_(gaussian_NP)
        rows_NPP = torch.randn(num_blocks, width, width, generator=generator, dtype=torch.float64)
        # A row of H G Q H B has length sqrt(P) |G|, a row of a Gaussian matrix the length of one of rows_NPP.
        self.scale_NP.copy_(rows_NPP.norm(dim=2) / (gaussian_NP.norm(dim=1, keepdim=True) * width**0.5))

    def forward(self, x_BHLE: torch.Tensor) -> torch.Tensor:
        """Project vectors on all directions: B x H x L x M, dtype of `x_BHLE`."""
        return torch.cat([self._project(piece_BHLE) for piece_BHLE in x_BHLE.split(PIECE, dim=2)], dim=2)

    def _project(self, x_BHLE: torch.Tensor) -> torch.Tensor:
        # Tokens last: sums and differences of whole rows of tokens are several times as fast as within each token.
        num_blocks, width = self.signs_NP.shape
        diagonals = (self.signs_NP, self.gaussian_NP, self.scale_NP)
        signs_NP1, gaussian_NP1, scale_NP1 = (entries_NP.to(x_BHLE.dtype).unsqueeze(-1) for entries_NP in diagonals)
        x_BH1PL = pad(x_BHLE, (0, width - x_BHLE.shape[-1])).transpose(2, 3).unsqueeze(2)
        starts_N1 = torch.arange(num_blocks, device=x_BHLE.device).unsqueeze(1) * width
        x_BHPL = hadamard(x_BH1PL * signs_NP1).flatten(2, 3).index_select(2, (self.order_NP + starts_N1).flatten())
        x_BHNPL = hadamard(x_BHPL.unflatten(2, (num_blocks, width)) * gaussian_NP1) * scale_NP1
        return x_BHNPL.flatten(2, 3)[:, :, : self.num_features].transpose(2, 3)


def hadamard(x_PL: torch.Tensor) -> torch.Tensor:
    """Multiply the last axis but one by the Walsh-Hadamard matrix, with sums and differences only."""
    half = 1
    while half < x_PL.shape[-2]:
        a_L, b_L = x_PL.unflatten(-2, (-1, 2, half)).unbind(-3)
        x_PL = torch.stack([a_L + b_L, a_L - b_L], dim=-3).flatten(-4, -2)
        half *= 2
    return x_PL
