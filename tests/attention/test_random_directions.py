"""Structured random directions: the matrix they stand for, and that its rows are Gaussian."""

import math

import pytest
import torch
from scipy import linalg, stats
from support.mechanisms import make
from support.twins import favor_matrix

from scperformer.attention import make_attention
from scperformer.attention.base import Sizes
from scperformer.attention.random_directions import Fastfood, hadamard


def drawn(num_features: int, head_dim: int, seed: int = 0) -> Fastfood:
    fastfood = Fastfood(num_features, head_dim)
    fastfood.redraw(torch.Generator().manual_seed(seed))
    return fastfood.double()


def dense(fastfood: Fastfood, head_dim: int) -> torch.Tensor:
    """W, M x E, from the projections of unit vectors."""
    return fastfood(torch.eye(head_dim, dtype=torch.float64)[None, None])[0, 0].T


@pytest.mark.parametrize("width", [1, 2, 8, 64])
def test_fast_transform_equals_the_hadamard_matrix(width):
    x = torch.randn(3, width, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.from_numpy(linalg.hadamard(width)).double() @ x
    torch.testing.assert_close(hadamard(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("num_features", "head_dim"), [(44, 16), (7, 16), (266, 64), (20, 10), (3, 1), (5, 2)])
def test_projection_equals_the_dense_matrix(num_features, head_dim):
    sizes = Sizes(num_heads=2, head_dim=head_dim, length=9)
    mechanism = make_attention(
        {"name": "favor", "projection": "fastfood", "num_features": num_features},
        sizes,
        torch.Generator().manual_seed(3),
    ).double()
    w = favor_matrix(mechanism, head_dim)
    assert w.shape == (num_features, head_dim)
    x = torch.randn(2, 2, 1030, head_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(mechanism.fastfood(x), x @ w.T, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(dense(mechanism.fastfood, head_dim), w, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("head_dim", [8, 6])
def test_rows_are_gaussian_in_length_and_direction(head_dim):
    width, num_blocks = 8, 4000
    w = dense(drawn(width * num_blocks, head_dim), head_dim).reshape(num_blocks, width, head_dim)
    for row in (0, 1, 7):  # those of a block belong together: one of each
        rows = w[:, row].numpy()
        lengths = (rows**2).sum(1) ** 0.5
        assert stats.kstest(lengths, stats.chi(head_dim).cdf).pvalue > 0.01
        for column in range(head_dim):
            # An entry of a uniform unit vector: (u + 1) / 2 has a Beta((E - 1) / 2, (E - 1) / 2) distribution.
            share = (rows[:, column] / lengths + 1) / 2
            # 42 comparisons: a chance of 0.4 % that one of so many is below this
            assert stats.kstest(share, stats.beta((head_dim - 1) / 2, (head_dim - 1) / 2).cdf).pvalue > 1e-4
        covariance = rows.T @ rows / num_blocks
        # 4000 draws: an entry of the covariance is known to sqrt(2 / 4000) = 0.022.
        assert abs(covariance - torch.eye(head_dim).numpy()).max() < 0.1


@pytest.mark.parametrize("head_dim", [8, 6])
def test_softmax_features_are_unbiased(head_dim):
    width, num_blocks = 8, 4000
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, head_dim, generator=generator, dtype=torch.float64) * 0.25
    projected = drawn(width * num_blocks, head_dim)((q + k)[None, None, None])[0, 0, 0]
    estimates = torch.exp(projected - (q @ q + k @ k) / 2).reshape(num_blocks, width).mean(1)
    standard_error = estimates.std() / math.sqrt(num_blocks)
    assert standard_error < 0.05 * torch.exp(q @ k)
    assert abs(estimates.mean() - torch.exp(q @ k)) < 3 * standard_error


def test_redraw_depends_on_the_generator_alone():
    first, second = make("favor", projection="fastfood"), make("favor", projection="fastfood", seed=1)
    names = [f"fastfood.{name}" for name in ("signs_NP", "order_NP", "gaussian_NP", "scale_NP")]
    assert list(first.state_dict()) == names
    assert list(first.parameters()) == []
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    torch.manual_seed(123)
    state = torch.get_rng_state()
    first.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    for name in names:
        assert not torch.equal(first.state_dict()[name], before[name])
        assert torch.equal(first.state_dict()[name], second.state_dict()[name])
