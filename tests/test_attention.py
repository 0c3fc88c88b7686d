"""Every attention mechanism against its naive twin: full L x L weights in float64, straight from the formula."""

import hashlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from scperformer.attention import MECHANISMS, Attention
from scperformer.attention.favor import Favor, gaussian_directions
from scperformer.config import AttentionConfig
from scperformer.errors import InputError

B, H, E = 2, 3, 16
NAMES = list(MECHANISMS)
each_mechanism = pytest.mark.parametrize("name", NAMES)


def make(name: str, seed: int = 0, **options) -> Attention:
    config = AttentionConfig(name=name, **options)
    return MECHANISMS[name](E, config, torch.Generator().manual_seed(seed)).eval()


def inputs(length: int, seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    """q, k, v in float64 and keep, in which about a third of the tokens is dropped, but never all."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, B, H, length, E, generator=generator, dtype=torch.float64)
    keep = torch.rand(B, length, generator=generator) < 0.7
    keep[:, -1] = True
    return [q * scale, k * scale, v, keep]


# --- naive twins ---------------------------------------------------------------------------------------------


def softmax_twin(mechanism, q, k, v, keep):
    weights = torch.exp(q @ k.transpose(-1, -2) / math.sqrt(E)) * keep[:, None, None, :]
    return weights / weights.sum(-1, keepdim=True) @ v


def favor_twin(mechanism, q, k, v, keep):
    """Weights phi(q_i) . phi(k_j) / sum_j, phi as in Choromanski et al. 2021, with no stabiliser."""
    w = mechanism.directions_ME.double()

    def phi(x):
        x = x / E**0.25
        return torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(w))

    weights = phi(q) @ phi(k).transpose(-1, -2) * keep[:, None, None, :]
    return weights / weights.sum(-1, keepdim=True) @ v


TWINS = {"softmax": softmax_twin, "favor": favor_twin}


def published_favor(mechanism, q, k, v, keep):
    """FAVOR+ as in the authors' code: one stabiliser for all keys, 1e-4 added to every feature."""
    w = mechanism.directions_ME.to(q)

    def phi(x, dims):
        x = x / E**0.25
        projected = x @ w.T
        stabiliser = projected.amax(dims, keepdim=True)
        return torch.exp(projected - x.square().sum(-1, keepdim=True) / 2 - stabiliser) + 1e-4

    weights = phi(q, (-1,)) @ phi(k, (-1, -2)).transpose(-1, -2) * keep[:, None, None, :]
    return weights / weights.sum(-1, keepdim=True) @ v


# --- the contract --------------------------------------------------------------------------------------------


def kept(out, keep):
    """The outputs that mean something: those of real tokens."""
    return out.transpose(1, 2)[keep]


def run_with_gradients(attend, tensors):
    q, k, v = (tensor.clone().requires_grad_() for tensor in tensors[:3])
    keep = tensors[3]
    out = kept(attend(q, k, v, keep), keep)
    generator = torch.Generator().manual_seed(1)
    (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum().backward()
    return out.detach(), q.grad, k.grad, v.grad


def check_values_and_gradients(mechanism, twin, length):
    tensors = inputs(length)
    expected = run_with_gradients(lambda *args: twin(mechanism, *args), tensors)
    # float64: the two differ by rounding only.
    torch.testing.assert_close(run_with_gradients(mechanism.double(), tensors), expected, rtol=1e-9, atol=1e-10)


def check_dropped_tokens_have_no_influence(mechanism):
    q, k, v, keep = (tensor.float() if tensor.is_floating_point() else tensor for tensor in inputs(33))
    before = run_with_gradients(mechanism, [q, k, v, keep])
    dropped = (~keep)[:, None, :, None]
    sign = torch.randint(0, 2, q.shape, generator=torch.Generator().manual_seed(2)) * 2 - 1
    garbage = [torch.where(dropped, 1e4 * sign, tensor) for tensor in (q, k, v)]
    after = run_with_gradients(mechanism, [*garbage, keep])
    # Exactly: an influence of 1e-7 per dropped token would be one too many.
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def check_permutation(mechanism):
    q, k, v, keep = inputs(33)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(3))
    mechanism = mechanism.double()
    expected = mechanism(q, k, v, keep)[:, :, order]
    actual = mechanism(q[:, :, order], k[:, :, order], v[:, :, order], keep[:, order])
    # Sums over tokens run in another order: rounding of float64.
    torch.testing.assert_close(kept(actual, keep[:, order]), kept(expected, keep[:, order]), rtol=1e-10, atol=1e-12)


def test_every_mechanism_has_a_twin():
    assert set(TWINS) == set(MECHANISMS)


@each_mechanism
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65])
def test_values_and_gradients_equal_the_naive_twin(name, length):
    check_values_and_gradients(make(name), TWINS[name], length)


@each_mechanism
def test_float32_is_close_to_the_twin(name):
    q, k, v, keep = inputs(65)
    expected = TWINS[name](make(name), q, k, v, keep)
    actual = make(name)(q.float(), k.float(), v.float(), keep)
    assert actual.dtype == torch.float32
    # float32 has 24 bits; exponents of size ~10 cost another three or four of them.
    torch.testing.assert_close(kept(actual, keep).double(), kept(expected, keep), rtol=0, atol=1e-5)


@each_mechanism
@pytest.mark.parametrize("autocast", [False, True], ids=["bf16 inputs", "autocast"])
def test_bf16_is_close_to_the_twin_of_the_rounded_inputs(name, autocast):
    q, k, v, keep = inputs(65)
    q, k, v = (tensor.bfloat16() for tensor in (q, k, v))
    expected = TWINS[name](make(name), q.double(), k.double(), v.double(), keep)
    given = [tensor.float() if autocast else tensor for tensor in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual = make(name)(*given, keep)
    if not autocast:
        assert actual.dtype == torch.bfloat16
    # bf16 keeps 8 bits: weights and outputs of size up to 3 are each rounded by 2^-9 of themselves.
    torch.testing.assert_close(kept(actual, keep).double(), kept(expected, keep), rtol=0.01, atol=0.01)


@each_mechanism
def test_dropped_tokens_have_no_influence(name):
    check_dropped_tokens_have_no_influence(make(name))


@each_mechanism
def test_permuted_tokens_give_a_permuted_result(name):
    assert not MECHANISMS[name].order_sensitive
    check_permutation(make(name))


@each_mechanism
def test_one_token_gets_its_own_value(name):
    q, k, v, _ = inputs(1)
    torch.testing.assert_close(make(name).double()(q, k, v, torch.ones(B, 1, dtype=torch.bool)), v)


@each_mechanism
@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_large_inputs_stay_finite_averages_of_the_values(name, scale):
    q, k, v, keep = inputs(65, scale=scale)
    out = kept(make(name)(q.float(), k.float(), v.float(), keep), keep)
    assert out.isfinite().all()
    # Weights are positive and sum to 1, so that no output can be beyond the largest value.
    assert out.abs().max() <= v.abs().max() * (1 + 1e-5)


def digest(name: str) -> str:
    """A fingerprint of what a mechanism of a given seed computes, to the last bit."""
    q, k, v, keep = (tensor.float() if tensor.is_floating_point() else tensor for tensor in inputs(65))
    return hashlib.sha256(make(name, seed=5)(q, k, v, keep).numpy().tobytes()).hexdigest()


def test_same_seed_gives_the_same_bits_in_another_process():
    code = "import test_attention as t; print(*map(t.digest, t.NAMES))"
    folder = Path(__file__).parent
    other = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [digest(name) for name in NAMES]


# --- controls: wrong mechanisms that the contract has to notice ----------------------------------------------


class Zeros(Attention):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL):
        return (q_BHLE + k_BHLE + v_BHLE) * 0


class IgnoresKeep(Attention):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL):
        return v_BHLE.mean(2, keepdim=True) + 0 * (q_BHLE + k_BHLE)


class ReadsOrder(Attention):
    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL):
        return (v_BHLE * keep_BL[:, None, :, None]).cumsum(2)


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_zeros_fail_the_contract(twin):
    zeros = Zeros()
    zeros.register_buffer("directions_ME", make("favor").directions_ME)
    with pytest.raises(AssertionError):
        check_values_and_gradients(zeros, twin, 63)


def test_influence_of_dropped_tokens_fails_the_contract():
    with pytest.raises(AssertionError):
        check_dropped_tokens_have_no_influence(IgnoresKeep())


def test_order_sensitivity_fails_the_contract():
    with pytest.raises(AssertionError):
        check_permutation(ReadsOrder())


# --- softmax -------------------------------------------------------------------------------------------------


def test_softmax_refuses_cells_above_its_length():
    q, k, v, _ = inputs(9)
    mechanism = make("softmax", max_length=8).double()
    with pytest.raises(InputError, match=r"9 tokens in a cell; expected at most 8 .*attention=favor.*max_length=9"):
        mechanism(q, k, v, torch.ones(B, 9, dtype=torch.bool))
    mechanism(q[:, :, :8], k[:, :, :8], v[:, :, :8], torch.ones(B, 8, dtype=torch.bool))


def test_softmax_counts_real_tokens_not_padding():
    # Prediction pads more than training does: a cell that could be trained on must not be refused there.
    q, k, v, _ = inputs(9)
    keep = (torch.arange(9) < 8).expand(B, 9)
    make("softmax", max_length=8).double()(q, k, v, keep)


# --- favor ---------------------------------------------------------------------------------------------------


def test_favor_is_accurate_where_the_published_stabilisers_are_not():
    q, k, v, keep = inputs(65, scale=10.0)
    mechanism = make("favor", num_features=64)
    exact = kept(favor_twin(mechanism, q, k, v, keep), keep)
    given = [q.float(), k.float(), v.float(), keep]
    # Exponents of size ~300 in float32 are known to 3e-5, and so are the weights.
    torch.testing.assert_close(kept(mechanism(*given), keep).double(), exact, rtol=0, atol=1e-3)
    published = kept(published_favor(mechanism, *given), keep).double()
    assert (published - exact).abs().mean() > 0.2  # its floor of 1e-4 drowns almost every key


def test_favor_has_performers_number_of_features():
    assert Favor(64, AttentionConfig(), torch.Generator()).num_features == 266  # Choromanski et al. 2021
    assert make("favor", num_features=7).directions_ME.shape == (7, E)


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


@pytest.mark.parametrize("orthogonal", [True, False], ids=["orthogonal", "independent"])
def test_favor_comes_closer_to_softmax_as_one_over_root_m(orthogonal):
    q, k, v, keep = inputs(40, scale=0.3)  # larger ones reach the 1 / sqrt(M) regime later
    exact = kept(softmax_twin(None, q, k, v, keep), keep)

    def error(num_features):
        draws = [make("favor", seed, num_features=num_features, orthogonal=orthogonal).double() for seed in range(40)]
        return float(np.sqrt(np.mean([(kept(m(q, k, v, keep), keep) - exact).square().mean() for m in draws])))

    sizes = [64, 256, 1024]
    errors = [error(num_features) for num_features in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.07)  # draws leave a few per cent of noise in each error
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
        assert stats.kstest((entries[:, row] + 1) / 2, stats.beta((dim - 1) / 2, (dim - 1) / 2).cdf).pvalue > 0.001


def test_independent_directions_are_gaussian():
    w = gaussian_directions(5000, 4, False, torch.Generator().manual_seed(0))
    assert w.dtype == torch.float32
    assert stats.kstest(w.ravel(), stats.norm.cdf).pvalue > 0.01


def test_number_of_directions_need_not_be_a_multiple_of_the_width():
    w = gaussian_directions(10, 4, True, torch.Generator().manual_seed(0))
    assert w.shape == (10, 4)
    assert abs(float(w[8] @ w[9])) < 1e-5


def test_redraw_depends_on_the_generator_alone():
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


def test_directions_are_saved_but_not_trained():
    mechanism = make("favor")
    assert list(mechanism.state_dict()) == ["directions_ME"]
    assert list(mechanism.parameters()) == []
