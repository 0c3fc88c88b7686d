"""Structured random projections of FAVOR+: attention.projection=fastfood.

More shape letters than in base.py: N blocks of P directions, where P is the smallest power of two that is at least E.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

# tokens processed at a time: a Hadamard transform has a dozen temporary tensors
PIECE_TOKENS = 1024


class Fastfood(nn.Module):
    """Project on M directions in O(M log E) per token, with W = S H G Q H B in each block of P rows.

    H is the Walsh-Hadamard matrix, B a diagonal of random signs, Q a random permutation, G a diagonal of Gaussian
    numbers, and S a diagonal that gives each row the length of a Gaussian vector. Each row of W is distributed exactly
    as N(0, I): B, Q and H form an orthogonal basis in which G has a uniform direction, and S is independent of it. The
    rows of a block share G, so they are neither independent nor orthogonal.

    Source: Le et al. 2013, arXiv 1408.3060, equation 7 (with sigma = 1; H here has entries 1 and -1).
    """

    signs_NP: Tensor
    order_NP: Tensor
    gaussian_NP: Tensor
    scale_NP: Tensor

    def __init__(self, num_features: int, head_dim: int):
        super().__init__()
        self.num_features = num_features
        width = 2 ** math.ceil(math.log2(head_dim))
        shape = (math.ceil(num_features / width), width)
        for name in ("signs_NP", "order_NP", "gaussian_NP", "scale_NP"):
            self.register_buffer(
                name, torch.empty(shape, dtype=torch.int64 if name == "order_NP" else None)
            )
        self.register_load_state_dict_post_hook(self._require_permutations)

    @staticmethod
    def _require_permutations(module: nn.Module, _: object) -> None:
        """Refuse loaded weights whose `order_NP` are not permutations, as they are used as indices unchecked."""
        order_NP = module.get_buffer("order_NP").cpu()
        if not torch.equal(
            order_NP.sort(dim=1).values, torch.arange(order_NP.shape[1]).expand_as(order_NP)
        ):
            raise ValueError("weights 'order_NP' that are not permutations")

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        num_blocks, width = self.signs_NP.shape
        self.signs_NP.copy_(torch.randint(2, (num_blocks, width), generator=generator) * 2 - 1)
        self.order_NP.copy_(
            torch.stack([torch.randperm(width, generator=generator) for _ in range(num_blocks)])
        )
        gaussian_NP = torch.randn(num_blocks, width, generator=generator, dtype=torch.float64)
        self.gaussian_NP.copy_(gaussian_NP)
        rows_NPP = torch.randn(num_blocks, width, width, generator=generator, dtype=torch.float64)
        # A row of H G Q H B has length sqrt(P) |G|; it gets the length of a Gaussian vector, a row of rows_NPP.
        self.scale_NP.copy_(
            rows_NPP.norm(dim=2) / (gaussian_NP.norm(dim=1, keepdim=True) * width**0.5)
        )

    def forward(self, x_BHLE: Tensor) -> Tensor:
        """Project vectors on all directions: B x H x L x M, dtype of `x_BHLE`."""
        num_blocks, width = self.signs_NP.shape
        diagonals = (self.signs_NP, self.gaussian_NP, self.scale_NP)
        signs_NP1, gaussian_NP1, scale_NP1 = (
            entries_NP.to(x_BHLE.dtype).unsqueeze(-1) for entries_NP in diagonals
        )
        starts_N1 = torch.arange(num_blocks, device=x_BHLE.device).unsqueeze(1) * width
        order = (self.order_NP + starts_N1).flatten()
        projected = []
        for piece_BHLE in x_BHLE.split(x_BHLE.shape[2] if x_BHLE.is_cuda else PIECE_TOKENS, dim=2):
            # Tokens last: sums and differences of rows of tokens are several times as fast as those within each token.
            x_BH1PL = pad(piece_BHLE, (0, width - x_BHLE.shape[-1])).transpose(2, 3).unsqueeze(2)
            x_BHPL = hadamard(x_BH1PL * signs_NP1).flatten(2, 3).index_select(2, order)
            x_BHNPL = hadamard(x_BHPL.unflatten(2, (num_blocks, width)) * gaussian_NP1) * scale_NP1
            projected.append(x_BHNPL.flatten(2, 3)[:, :, : self.num_features].transpose(2, 3))
        return torch.cat(projected, dim=2)


def hadamard(x_PL: Tensor) -> Tensor:
    """Multiply the second-to-last axis by the Walsh-Hadamard matrix, using only sums and differences."""
    half = 1
    while half < x_PL.shape[-2]:
        a_L, b_L = x_PL.unflatten(-2, (-1, 2, half)).unbind(-3)
        x_PL = torch.stack([a_L + b_L, a_L - b_L], dim=-3).flatten(-4, -2)
        half *= 2
    return x_PL
