"""Causal linear attention: no influence of later tokens, no underflow, linear memory."""

import pytest
import torch
from support.measured import TensorBytes
from support.mechanisms import E, H, inputs, log_weights, make

from scperformer.attention.base import Sizes
from scperformer.attention.linear_attention import CAUSAL_CHUNK, LOG2_E
from scperformer.attention.registry import make_attention
from scperformer.attention.tokens import Batch
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder

LINEAR = {
    "favor": {"name": "favor"},
    "favor fastfood": {"name": "favor", "projection": "fastfood"},
    "favor relu": {"name": "favor", "kernel": "relu"},
    "favor elu1 identity": {"name": "favor", "kernel": "elu1", "projection": "identity"},
    "favor exp": {"name": "favor", "kernel": "exp"},
    "rbf": {"name": "rbf"},
}
each_kind = pytest.mark.parametrize("case", list(LINEAR))


def causal(case: str):
    return make(**LINEAR[case], causal=True)


@each_kind
def test_tokens_without_a_key_get_zeros(case):
    q, k, v, keep = inputs(40)
    keep[:, :35] = False
    out = causal(case)(q, k, v, keep)
    assert not out[:, :, :35].any()
    assert out[:, :, 39].any()


@pytest.mark.parametrize("case", ["favor", "favor fastfood", "favor exp", "rbf"])
def test_a_strong_key_does_not_erase_earlier_keys(case):
    """With one scale for all keys of a piece, the sums of all queries before the strong key are 0: it is halved."""
    q, k, v, keep = inputs(CAUSAL_CHUNK)
    keep[:] = True
    # Long keys have large features with exp(W k), and small features with the other kernels.
    weak, strong = (1.0, 60.0) if case == "favor exp" else (20.0, 0.1)
    k[:, :, :-1] *= weak
    k[:, :, -1] *= strong
    mechanism = causal(case)
    given = [x.float() for x in (q, k, v)]
    log_phi_k = mechanism.features(given[1], queries=False) / LOG2_E
    # its exponential is 0 in float32
    erased = log_phi_k[:, :, :-1].amax(2) - log_phi_k.amax(2) < -104
    assert erased.float().mean() > 0.1
    given = [x.requires_grad_() for x in given]
    actual = mechanism(*given, keep)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(actual.sum(), given))
    actual = actual.detach().double()
    q, k, v = (x.detach().double() for x in given)
    future = torch.full((CAUSAL_CHUNK, CAUSAL_CHUNK), -torch.inf).triu(1)
    expected = torch.softmax(log_weights(mechanism.double(), q, k) + future, dim=-1) @ v
    # Exponents are up to 1e3, in float32.
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("case", ["favor", "favor relu"])
def test_memory_grows_linearly(case):
    sizes = Sizes(num_heads=2, head_dim=8, length=9)
    mechanism = make_attention(
        {**LINEAR[case], "num_features": 16, "causal": True},
        sizes,
        torch.Generator().manual_seed(0),
    )

    def largest_tensor(num_tokens):
        q, k, v = torch.randn(
            3, 1, 2, num_tokens, 8, generator=torch.Generator().manual_seed(1)
        ).requires_grad_()
        with TensorBytes() as tensors:
            mechanism(q, k, v, torch.ones(1, num_tokens, dtype=torch.bool)).sum().backward()
        return tensors.largest // 4  # numbers

    # q, k and v are one tensor of 3 x H x L x E; the largest tensor of a piece is H x C x C
    for num_tokens in (320, 640):
        assert largest_tensor(num_tokens) <= max(3 * 2 * num_tokens * 8, 2 * CAUSAL_CHUNK**2)
    assert 2 * CAUSAL_CHUNK**2 < 2 * 320 * 320  # less than L x L per head


@pytest.mark.parametrize("name", ["favor", "rbf"])
def test_the_encoder_does_not_split_causal_attention_into_chunks(name):
    """Its chunks use the sums over all keys, including later ones."""
    genes = torch.arange(13)[None]
    x = torch.rand(1, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = Batch(genes, x, x, torch.ones(1, 13, dtype=torch.bool))

    def encoded(chunk_tokens):
        torch.manual_seed(0)
        model = ModelConfig(num_heads=H, head_dim=E, depth=2, chunk_tokens=chunk_tokens)
        options = {"name": name, "causal": True}
        return (
            Encoder(12, TokensConfig(), model, options, torch.Generator().manual_seed(0))
            .eval()
            .double()(batch)
        )

    torch.testing.assert_close(encoded(4), encoded(None), rtol=0, atol=0)
