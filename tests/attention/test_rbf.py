"""Gaussian features: a worked example, distant queries, and the choice of anchors."""

import math

import pytest
import torch
from support.mechanisms import B, E, H, inputs, kept, make
from support.twins import rbf
from support.words import as_options

from scperformer import train
from scperformer.attention.base import Sizes
from scperformer.attention.registry import make_attention
from scperformer.base.errors import InputError
from scperformer.model.load import load_model


def test_worked_example():
    sizes = Sizes(num_heads=1, head_dim=3, length=9)
    mechanism = make_attention({"name": "rbf", "num_anchors": 3, "sigma": 0.5}, sizes, torch.Generator()).double()
    mechanism.anchors_HME.copy_(torch.tensor([[[0.0, 0.1, 0.2], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]]]))
    x = torch.tensor([[[[0.1, 0.2, 0.3]]]], dtype=torch.float64)
    # exp(-.03 / .5), exp(-.27 / .5), exp(-1.08 / .5)
    expected = torch.tensor([0.94176, 0.58275, 0.11533], dtype=torch.float64)
    torch.testing.assert_close(mechanism.features(x, queries=False).exp2()[0, 0, 0], expected, rtol=0, atol=5e-6)
    # the features of a query are the same up to a factor
    ratio = mechanism.features(x, queries=True).exp2()[0, 0, 0] / expected
    torch.testing.assert_close(ratio, ratio[:1].expand(3), rtol=1e-4, atol=0)  # five digits


def test_features_have_the_width_of_the_softmax_kernel():
    # |q - k|^2 / (2 sqrt(E)), E = 16: a distance of 2 is one standard deviation.
    mechanism = make("rbf", num_anchors=1).double()
    mechanism.anchors_HME.zero_()
    x = torch.zeros(1, H, 1, E, dtype=torch.float64)
    x[..., 0] = 2.0
    assert mechanism.features(x, queries=False).exp2().flatten().tolist() == pytest.approx([math.exp(-0.5)] * H)


def in_log_space(mechanism, q, k, v, keep):
    """The linear form with the logarithm of every product of features, in float64."""
    anchors = mechanism.anchors_HME.double()[:, None]
    width = 2 * (mechanism.options.sigma or E**0.25) ** 2
    log_q, log_k = (-(x.double().unsqueeze(3) - anchors).square().sum(-1) / width for x in (q, k))
    log_weights = torch.logsumexp(log_q.unsqueeze(3) + log_k.unsqueeze(2), dim=-1)
    return torch.softmax(log_weights.masked_fill(~keep[:, None, None, :], -torch.inf), dim=-1) @ v.double()


def test_log_space_equals_the_twin():
    q, k, v, keep = inputs(40)
    mechanism = make("rbf")
    expected = rbf(mechanism, q, k, v, keep)
    torch.testing.assert_close(in_log_space(mechanism, q, k, v, keep), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("norm", "atol"), [(1e3, 1e-4), (1e4, 1e-3)])
def test_distant_queries_keep_their_weights(norm, atol, causal):
    q, k, v, keep = inputs(40)
    q = q / q.norm(dim=-1, keepdim=True) * norm
    mechanism = make("rbf", causal=causal)
    assert (rbf(mechanism, q, k, v, keep) == 0).all()  # in the naive form, all features of all queries are 0
    actual = mechanism(q.float(), k.float(), v.float(), keep)
    expected = in_log_space(mechanism, q.float(), k.float(), v, keep) if not causal else None
    if causal:
        steps = [in_log_space(mechanism, q.float()[:, :, :n], *(x[..., :n, :].float() for x in (k, v)), keep[:, :n])
                 for n in range(1, 41)]  # fmt: skip
        expected = torch.stack([step[:, :, -1] for step in steps], dim=2)
    assert kept(actual, keep).isfinite().all()
    # Exponents are up to norm x |anchor| / 4, so 1e3 to 1e4, with 24 bits.
    torch.testing.assert_close(kept(actual, keep).double(), kept(expected, keep), rtol=0, atol=atol)


def test_outputs_for_distant_keys_are_averages_of_values():
    q, k, v, keep = inputs(40)
    out = kept(make("rbf")(q.float(), 1e4 * k.float(), v.float(), keep), keep)
    assert out.isfinite().all()
    assert out.abs().max() <= v.abs().max() * (1 + 1e-5)


@pytest.mark.parametrize("init", ["sample", "learned"])
def test_anchors_are_initialised_with_keys_of_real_tokens(init):
    mechanism = make("rbf", init=init, num_anchors=6)
    _, k, _, keep = inputs(20)
    assert mechanism.starts_from_keys
    torch.manual_seed(123)
    state = torch.get_rng_state()
    mechanism.start(k.float(), keep, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    for head in range(H):
        real = {tuple(key.tolist()) for key in k[:, head][keep].float()}
        anchors = [tuple(anchor.tolist()) for anchor in mechanism.anchors_HME[head].detach()]
        assert real.issuperset(anchors)
        assert len(set(anchors)) == 6
    again = make("rbf", init=init, num_anchors=6, seed=9)
    again.start(k.float(), keep, torch.Generator().manual_seed(1))
    assert torch.equal(again.anchors_HME, mechanism.anchors_HME)


def test_if_there_are_fewer_keys_than_anchors_all_are_used():
    mechanism = make("rbf", num_anchors=7)
    _, k, _, _ = inputs(3)
    keep = torch.zeros(B, 3, dtype=torch.bool)
    keep[0, 1], keep[1, 0], keep[1, 2] = True, True, True
    mechanism.start(k.float(), keep, torch.Generator().manual_seed(1))
    for head in range(H):
        expected = {tuple(key.tolist()) for key in k[:, head][keep].float()}
        assert {tuple(anchor.tolist()) for anchor in mechanism.anchors_HME[head]} == expected


def test_anchors_are_parameters_only_if_learned():
    for init, learned in (("sample", []), ("learned", ["anchors_HME"])):
        mechanism = make("rbf", init=init)
        assert [name for name, _ in mechanism.named_parameters()] == learned
        assert list(mechanism.state_dict()) == ["anchors_HME"]


@pytest.mark.slow
def test_training_starts_from_keys_and_saves_the_anchors(counts_adata, tmp_path):
    options = ["model=tiny", "trainer.max_epochs=1", "logger=none"]
    options += ["attention=rbf", "attention.init=learned", "attention.num_anchors=8"]
    path = train(counts_adata, "cell_type", output=tmp_path / "model", options=as_options(options)).path
    mechanism = load_model(path).network.encoder.mechanisms[0]
    untouched = make_attention(
        load_model(path).saved.config["attention"], mechanism.sizes, torch.Generator().manual_seed(0)
    )

    def spread(mechanism):
        return float(mechanism.anchors_HME.detach().std())

    # Initial keys are smaller than random anchors: the outputs of a linear layer have variance 1 / 3.
    assert 0.2 < spread(mechanism) < 0.8 < spread(untouched)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_anchors": 0}, r"attention\.num_anchors=0; expected 1 or more"),
        ({"sigma": 0.0}, r"attention\.sigma=0\.0; expected a number above 0"),
        ({"init": "kmeans"}, r"attention\.init=kmeans; expected one of sample, learned"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make("rbf", **options)
