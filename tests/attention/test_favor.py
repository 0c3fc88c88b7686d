"""FAVOR+: accuracy, random directions, kernels and projections, against published numbers and other code."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.mechanisms import inputs, kept, make
from support.refusal import refusal
from support.twins import favor, favor_matrix, published_favor, softmax

from scperformer.attention.base import Sizes
from scperformer.attention.favor import gaussian_directions
from scperformer.attention.linear_attention import power_of_2
from scperformer.attention.registry import make_attention
from scperformer.lab.fastfood import Fastfood


def test_favor_is_accurate_where_the_published_stabilisers_are_not():
    q, k, v, keep = inputs(65, scale=10.0)
    mechanism = make("favor", num_features=64)
    exact = kept(favor(mechanism, q, k, v, keep), keep)
    given = [q.float(), k.float(), v.float(), keep]
    # Exponents of size ~300 in float32 are known to 3e-5, and so are the weights.
    torch.testing.assert_close(kept(mechanism(*given), keep).double(), exact, rtol=0, atol=1e-3)
    published = kept(published_favor(mechanism, *given, epsilon=1e-4), keep).double()
    assert (published - exact).abs().mean() > 0.2  # its epsilon of 1e-4 dominates almost every key


@pytest.mark.parametrize("cells", [1, 3, 8])
def test_powers_of_2_do_not_depend_on_the_position_in_memory(cells):
    """torch's exp2 computes the last numbers of a tensor one by one, with other rounding."""
    x = -20 * torch.rand(cells, 5, 31, generator=torch.Generator().manual_seed(0))
    powers = power_of_2(x.clone())
    # exponents of 20 in float32
    torch.testing.assert_close(powers, torch.exp2(x.double()).float(), rtol=3e-6, atol=0)
    for shift in range(cells):
        assert torch.equal(power_of_2(x.roll(shift, 0).clone()).roll(-shift, 0), powers)


@pytest.mark.parametrize("orthogonal", [True, False], ids=["orthogonal", "independent"])
def test_favor_features_are_unbiased(orthogonal):
    generator = torch.Generator().manual_seed(0)
    dim, num_blocks = 8, 4000
    q, k = torch.randn(2, dim, generator=generator, dtype=torch.float64) * 0.25
    w = gaussian_directions(dim * num_blocks, dim, orthogonal, generator).double()
    estimates = torch.exp(w @ (q + k) - (q @ q + k @ k) / 2).reshape(num_blocks, dim).mean(1)
    standard_error = estimates.std() / math.sqrt(num_blocks)
    assert standard_error < 0.05 * torch.exp(q @ k)
    assert abs(estimates.mean() - torch.exp(q @ k)) < 3 * standard_error


@pytest.mark.parametrize(
    "orthogonal",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["orthogonal", "independent"],
)
def test_the_error_of_favor_decreases_as_one_over_root_m(orthogonal):
    # with larger inputs the 1 / sqrt(M) regime starts at more features
    q, k, v, keep = inputs(40, scale=0.3)
    exact = kept(softmax(make("softmax"), q, k, v, keep), keep)

    def error(num_features):
        draws = [
            make(
                "favor",
                seed,
                num_features=num_features,
                projection="orthogonal" if orthogonal else "gaussian",
            ).double()
            for seed in range(40)
        ]
        return float(
            np.sqrt(
                np.mean([(kept(m(q, k, v, keep), keep) - exact).square().mean() for m in draws])
            )
        )

    sizes = [64, 256, 1024]
    errors = [error(num_features) for num_features in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.07)  # each error has a few per cent of noise
    assert errors[-1] < 0.05 * float(exact.abs().max())


def test_directions_are_orthogonal_within_blocks_and_uniform():
    dim, num_blocks = 6, 1500
    w = gaussian_directions(dim * num_blocks, dim, True, torch.Generator().manual_seed(0)).double()
    blocks = w.reshape(num_blocks, dim, dim)
    gram = blocks @ blocks.transpose(1, 2)
    # float32 entries, lengths of about 2.5
    assert (gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))).abs().max() < 1e-5
    lengths = w.norm(dim=1)
    assert stats.kstest(lengths, stats.chi(dim).cdf).pvalue > 0.01
    # An entry of a uniform unit vector: (u + 1) / 2 has a Beta((E - 1) / 2, (E - 1) / 2) distribution.
    entries = (blocks[:, :, 0] / blocks.norm(dim=2)).numpy()
    for row in range(dim):
        assert (
            stats.kstest(
                (entries[:, row] + 1) / 2, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf
            ).pvalue
            > 0.001
        )


def test_redraw_depends_only_on_the_generator():
    mechanism = make("favor", seed=0)
    first = mechanism.directions_ME.clone()
    torch.manual_seed(123)
    state = torch.get_rng_state()
    mechanism.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    second = mechanism.directions_ME.clone()
    assert not torch.isclose(first, second).any()
    mechanism.redraw(torch.Generator().manual_seed(0))
    assert torch.equal(mechanism.directions_ME, first)
    assert torch.equal(make("favor", seed=1).directions_ME, second)


def three_wide(**options):
    sizes = Sizes(num_heads=1, head_dim=3, length=9)
    return make_attention(
        {"name": "favor", **options}, sizes, torch.Generator().manual_seed(0)
    ).double()


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("relu", [0.001, 0.001, 2.001]),
        ("elu1", [math.exp(-20) + 0.001, 1.001, 3.001]),
        ("square", [400.001, 0.001, 4.001]),
        ("exp", [math.exp(-20), 1.0, math.exp(2)]),
    ],
)
def test_features_of_other_kernels(kernel, expected):
    mechanism = three_wide(kernel=kernel, projection="identity")
    x = torch.tensor([-20.0, 0.0, 2.0], dtype=torch.float64)
    phi = mechanism.features(x.expand(1, 1, 1, 3), queries=True)[0, 0, 0]
    if kernel == "exp":
        phi = phi.exp2()
    torch.testing.assert_close(phi, torch.tensor(expected, dtype=torch.float64))
    small = torch.full((1, 1, 1, 3), -20.0)
    # elu(-20) + 1 in float32 would be 0
    elu1 = three_wide(kernel="elu1", projection="identity", epsilon=0.0)
    assert elu1.float().features(small, queries=True)[0, 0, 0, 0].item() == pytest.approx(
        math.exp(-20), rel=1e-6
    )


def test_queries_without_common_features_get_zeros():
    mechanism = three_wide(kernel="relu", projection="identity", epsilon=0.0)
    q, k = torch.tensor(
        [[[[1.0, 0, 0], [0, 1.0, 0]]], [[[0, 2.0, -1.0], [0, 3.0, 0]]]], dtype=torch.float64
    )
    q, k = (x[None].clone().requires_grad_() for x in (q, k))
    v = torch.tensor([[[[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]]], dtype=torch.float64)
    out = mechanism(q, k, v, torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(
        out[0, 0], torch.tensor([[0.0, 0, 0], [2.2, 3.2, 4.2]], dtype=torch.float64)
    )
    out.sum().backward()
    assert q.grad.isfinite().all()
    assert k.grad.isfinite().all()


@pytest.mark.parametrize("stabiliser", ["head", "all_heads"])
@pytest.mark.parametrize("projection", ["orthogonal", "fastfood"])
def test_sums_of_the_published_form_can_be_added(projection, stabiliser):
    q, k, v, keep = inputs(30)
    keep[:, 10:20] = False  # a piece without real tokens
    k[:, :, 25] *= 5  # the last piece has the largest exponents
    mechanism = make("favor", epsilon=1e-3, projection=projection, stabiliser=stabiliser).double()
    pieces = zip(k.split(10, dim=2), v.split(10, dim=2), keep.split(10, dim=1), strict=True)
    first, second, third = (mechanism.key_sums(*piece) for piece in pieces)
    expected = mechanism(q, k, v, keep)
    for order in (first + second + third, third + (second + first)):
        # float64: rounding only
        torch.testing.assert_close(mechanism.read(q, order), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"projection": "identity"}, "attention.projection=identity"),
        (
            {"projection": "identity", "kernel": "elu1", "num_features": 4},
            "attention.num_features=4",
        ),
        ({"epsilon": 0.1, "causal": True}, "attention.epsilon=0.1"),
        ({"stabiliser": "all_heads"}, "attention.stabiliser=all_heads"),
    ],
)
def test_unusable_options_are_refused(options, option):
    with refusal("option-range", option):
        make("favor", **options)


def drawn(num_features: int, head_dim: int, seed: int = 0) -> Fastfood:
    fastfood = Fastfood(num_features, head_dim)
    fastfood.redraw(torch.Generator().manual_seed(seed))
    return fastfood.double()


def dense(fastfood: Fastfood, head_dim: int) -> torch.Tensor:
    """W, M x E, from the projections of unit vectors."""
    return fastfood(torch.eye(head_dim, dtype=torch.float64)[None, None])[0, 0].T


@pytest.mark.parametrize(
    ("num_features", "head_dim"), [(44, 16), (7, 16), (266, 64), (20, 10), (3, 1), (5, 2)]
)
def test_fastfood_equals_the_dense_matrix(num_features, head_dim):
    sizes = Sizes(num_heads=2, head_dim=head_dim, length=9)
    mechanism = make_attention(
        {"name": "favor", "projection": "fastfood", "num_features": num_features},
        sizes,
        torch.Generator().manual_seed(3),
    ).double()
    w = favor_matrix(mechanism, head_dim)
    assert w.shape == (num_features, head_dim)
    x = torch.randn(
        2, 2, 1030, head_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    torch.testing.assert_close(mechanism.fastfood(x), x @ w.T, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(dense(mechanism.fastfood, head_dim), w, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("head_dim", [8, 6])
def test_fastfood_rows_have_gaussian_lengths_and_directions(head_dim):
    width, num_blocks = 8, 4000
    w = dense(drawn(width * num_blocks, head_dim), head_dim).reshape(num_blocks, width, head_dim)
    for row in (0, 1, 7):  # rows of a block depend on each other, so take one of each block
        rows = w[:, row].numpy()
        lengths = (rows**2).sum(1) ** 0.5
        assert stats.kstest(lengths, stats.chi(head_dim).cdf).pvalue > 0.01
        for column in range(head_dim):
            # An entry of a uniform unit vector: (u + 1) / 2 has a Beta((E - 1) / 2, (E - 1) / 2) distribution.
            share = (rows[:, column] / lengths + 1) / 2
            # 42 comparisons: the chance that any is below this is 0.4 %
            assert (
                stats.kstest(share, stats.beta((head_dim - 1) / 2, (head_dim - 1) / 2).cdf).pvalue
                > 1e-4
            )
        covariance = rows.T @ rows / num_blocks
        # 4000 draws: an entry of the covariance is known to sqrt(2 / 4000) = 0.022.
        assert abs(covariance - torch.eye(head_dim).numpy()).max() < 0.1
