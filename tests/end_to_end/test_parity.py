"""The encoder against performer-pytorch (the Performer that scBERT is built on), with the same weights.

Source: P. Wang, github.com/lucidrains/performer-pytorch, version 1.1.4.
"""

import math
from functools import partial

import performer_pytorch.performer_pytorch as theirs
import pytest
import torch
from torch import nn

from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder

SMALL = ModelConfig(dim=24, depth=3, num_heads=3, head_dim=16, dropout=0.0)
SCBERT = ModelConfig(dim=200, depth=6, num_heads=10, head_dim=64, dropout=0.0)
LENGTH = 40
SOFTMAX_KERNEL = theirs.softmax_kernel  # as it comes


def encoder(model: ModelConfig, **options) -> Encoder:
    """Ours, with every norm and bias random too."""
    torch.manual_seed(0)
    assert model.head_dim is not None
    # as theirs; ours has whole tiles of a GPU by default
    num_features = int(model.head_dim * math.log(model.head_dim))
    attention = {"name": "favor", "num_features": num_features, **options}
    ours = Encoder(
        LENGTH - 1, TokensConfig(name="scbert"), model, attention, torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        for parameter in ours.layers.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return ours


def performer(ours: Encoder, model: ModelConfig, **options) -> theirs.Performer:
    """Theirs, with the weights and directions of ours."""
    performer = theirs.Performer(
        dim=model.dim,
        depth=model.depth,
        heads=model.num_heads,
        dim_head=model.head_dim,
        qkv_bias=False,
        **options,
    ).eval()
    for layer, (attention, feedforward) in zip(ours.stack, performer.net.layers, strict=True):
        to_q, to_k, to_v = layer.to_qkv.weight.detach().chunk(3)
        parts = {
            attention.norm: layer.norm_attention,
            attention.fn.to_out: layer.to_out,
            feedforward.norm: layer.norm_feedforward,
            feedforward.fn.fn.w1: layer.feedforward[0],
            feedforward.fn.fn.w2: layer.feedforward[2],
        }
        for part, source in parts.items():
            part.load_state_dict(source.state_dict())
        for name, weight in (("to_q", to_q), ("to_k", to_k), ("to_v", to_v)):
            getattr(attention.fn, name).load_state_dict({"weight": weight})
        attention.fn.fast_attention.projection_matrix.copy_(layer.attention.directions_ME)
    assert sum(p.numel() for p in performer.parameters()) == sum(
        p.numel() for p in ours.layers.parameters()
    )
    return performer


def layers_of(ours: Encoder, h_BLD: torch.Tensor) -> torch.Tensor:
    """The output of the last layer, before the final norm, which is not part of their Performer."""
    keep_BL = torch.ones(h_BLD.shape[:2], dtype=torch.bool)
    positions_BL = torch.arange(h_BLD.shape[1]).expand(h_BLD.shape[:2])
    for layer in ours.stack:
        h_BLD = layer(h_BLD, keep_BL, positions_BL)
    return h_BLD


VARIANTS = {
    "as it comes": ({"epsilon": 1e-4}, {}, 1e-4),
    "its epsilon 0, ours the default": ({}, {}, 0.0),
    "generalized attention": (
        {"kernel": "relu"},
        {"generalized_attention": True, "kernel_fn": nn.ReLU()},
        1e-4,
    ),
}


def outputs_and_gradients(network, h_BLD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of a network for tokens, and the gradients of a random sum of it."""
    weights = torch.randn(
        h_BLD.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    ).to(h_BLD)
    given = h_BLD.clone().requires_grad_()
    out = network(given)
    (out * weights).sum().backward()
    return out.detach(), given.grad


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize(
    "model", [SMALL, pytest.param(SCBERT, marks=pytest.mark.slow)], ids=["small", "scBERT's sizes"]
)
def test_layers_equal_theirs(model, variant, monkeypatch):
    our_options, their_options, epsilon = VARIANTS[variant]
    monkeypatch.setattr(theirs, "softmax_kernel", partial(SOFTMAX_KERNEL, eps=epsilon))
    ours = encoder(model, **our_options)
    performer_ = performer(ours, model, **their_options)
    cells, length = (1, 12) if model is SCBERT else (2, LENGTH)
    h_BLD = torch.randn(cells, length, model.dim, generator=torch.Generator().manual_seed(1))
    # Sums run in another order, through all layers, on numbers of size up to 5.
    for dtype, atol in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        h_BLD = h_BLD.to(dtype)
        our_out, our_gradient = outputs_and_gradients(partial(layers_of, ours.to(dtype)), h_BLD)
        their_out, their_gradient = outputs_and_gradients(performer_.to(dtype), h_BLD)
        assert (our_out - h_BLD).abs().mean() > 0.1  # the layers do something
        torch.testing.assert_close(our_out, their_out, rtol=0, atol=atol)
    # In float32, some of ReLU's inputs are on one side of 0 here and on the other there.
    torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-10)
