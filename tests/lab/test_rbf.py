"""Gaussian features: a worked example, distant queries, and the choice of anchors."""

import pytest
import torch
from support.mechanisms import E, H, inputs, kept, make
from support.twins import rbf
from support.words import as_options

from scperformer import train
from scperformer.adaptation.load import load_model
from scperformer.attention.registry import make_attention


def in_log_space(mechanism, q, k, v, keep):
    """The linear form with the logarithm of every product of features, in float64."""
    anchors = mechanism.anchors_HME.double()[:, None]
    width = 2 * (mechanism.options.sigma or E**0.25) ** 2
    log_q, log_k = (-(x.double().unsqueeze(3) - anchors).square().sum(-1) / width for x in (q, k))
    log_weights = torch.logsumexp(log_q.unsqueeze(3) + log_k.unsqueeze(2), dim=-1)
    return (
        torch.softmax(log_weights.masked_fill(~keep[:, None, None, :], -torch.inf), dim=-1)
        @ v.double()
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("norm", "atol"), [(1e3, 1e-4), (1e4, 1e-3)])
def test_distant_queries_keep_their_weights(norm, atol, causal):
    q, k, v, keep = inputs(40)
    q = q / q.norm(dim=-1, keepdim=True) * norm
    mechanism = make("rbf", causal=causal)
    # in the naive form, all features of all queries are 0
    assert (rbf(mechanism, q, k, v, keep) == 0).all()
    actual = mechanism(q.float(), k.float(), v.float(), keep)
    expected = in_log_space(mechanism, q.float(), k.float(), v, keep) if not causal else None
    if causal:
        steps = [in_log_space(mechanism, q.float()[:, :, :n], *(x[..., :n, :].float() for x in (k, v)), keep[:, :n])
                 for n in range(1, 41)]  # fmt: skip
        expected = torch.stack([step[:, :, -1] for step in steps], dim=2)
    assert kept(actual, keep).isfinite().all()
    # Exponents are up to norm x |anchor| / 4, so 1e3 to 1e4, with 24 bits.
    torch.testing.assert_close(kept(actual, keep).double(), kept(expected, keep), rtol=0, atol=atol)


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


@pytest.mark.slow
def test_training_starts_from_keys_and_saves_the_anchors(counts_adata, tmp_path):
    options = ["model=tiny", "trainer.max_epochs=1", "logger=none"]
    options += ["attention=rbf", "attention.init=learned", "attention.num_anchors=8"]
    path = train(
        counts_adata, "cell_type", output=tmp_path / "model", options=as_options(options)
    ).path
    mechanism = load_model(path).network.encoder.mechanisms[0]
    untouched = make_attention(
        load_model(path).saved.config.attention, mechanism.sizes, torch.Generator().manual_seed(0)
    )

    def spread(mechanism):
        return float(mechanism.anchors_HME.detach().std())

    # Initial keys are smaller than random anchors: the outputs of a linear layer have variance 1 / 3.
    assert 0.2 < spread(mechanism) < 0.8 < spread(untouched)
