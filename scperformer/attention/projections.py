"""Random directions W for the features of the softmax kernel."""

import math

import torch


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
