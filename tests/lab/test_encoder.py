"""Layers against their formulas, with pre- and post-norm and every kind of positions; sizes of scBERT."""

import math
from functools import partial

import pytest
import torch

from scperformer.attention.tokens import Batch
from scperformer.cli.compose import make_config
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder
from scperformer.lab.layer import BatchNorm
from scperformer.model.network import CellTypeModel

GENES = 9
SIZES = {"dim": 6, "depth": 2, "num_heads": 2, "head_dim": 4, "dropout": 0.0}


def encoder(**model) -> Encoder:
    """An encoder in float64 whose parameters are all random, including those that start at 0 or 1."""
    torch.manual_seed(0)
    made = Encoder(
        GENES, TokensConfig(), ModelConfig(**SIZES, **model), {"name": "softmax"}, torch.Generator()
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return made.double().eval()


def batch() -> Batch:
    """One cell of five tokens, the third of them dropped."""
    genes = torch.tensor([[4, 0, 3, 7, 9]])
    x = torch.tensor([[1.5, 0.3, 9.0, 4.0, 0.0]], dtype=torch.float64)
    return Batch(genes, x, x, torch.tensor([[True, True, False, True, True]]))


def normed(module, x):
    if isinstance(module, BatchNorm):
        mean, variance = module.running_mean, module.running_var
    else:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * module.weight + module.bias


def attended(layer, x):
    """What softmax attention adds to each token."""
    q, k, v = (
        (x @ layer.to_qkv.weight.T).view(len(x), 3, SIZES["num_heads"], SIZES["head_dim"]).unbind(1)
    )
    weights = torch.exp(torch.einsum("ihe,jhe->hij", q, k) / math.sqrt(SIZES["head_dim"]))
    mixed = torch.einsum("hij,jhe->ihe", weights / weights.sum(-1, keepdim=True), v)
    return mixed.flatten(1) @ layer.to_out.weight.T + layer.to_out.bias


def fed_forward(layer, x, activation):
    first, _, last = layer.feedforward
    inner = x @ first.weight.T + first.bias
    inner = (
        inner.clamp_min(0)
        if activation == "relu"
        else inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    )
    return inner @ last.weight.T + last.bias


def naive(made: Encoder, norm: str, activation: str) -> torch.Tensor:
    """The layers for the real tokens of the cell alone, written out."""
    h = made.embedding(batch())[0][batch().keep_BL[0]]
    for layer in made.stack:
        parts = (
            (layer.norm_attention, attended),
            (layer.norm_feedforward, partial(fed_forward, activation=activation)),
        )
        for module, change in parts:
            h = (
                h + change(layer, normed(module, h))
                if norm == "pre"
                else normed(module, h + change(layer, h))
            )
    return normed(made.norm, h) if norm == "pre" else h


@pytest.mark.parametrize("positions", ["gene", "sinusoidal", "none"])
@pytest.mark.parametrize(
    ("norm", "activation", "feedforward"),
    [("pre", "gelu", None), ("post", "gelu", None), ("post", "relu", 11), ("batch", "relu", 5)],
)
def test_layers_equal_naive_loops(norm, activation, feedforward, positions):
    made = encoder(norm=norm, activation=activation, feedforward=feedforward, positions=positions)
    assert made.stack[0].feedforward[0].out_features == feedforward or feedforward is None
    for name, buffer in made.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=torch.Generator().manual_seed(2)))
    with torch.no_grad():
        actual = made(batch())[0][batch().keep_BL[0]]
        # float64: rounding only
        torch.testing.assert_close(actual, naive(made, norm, activation), rtol=1e-9, atol=1e-10)


def test_batch_norm_has_the_moments_of_real_tokens():
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keep = torch.tensor([[True, True, False, False], [True] * 4, [True, False, False, False]])
    norm = BatchNorm(6).double()
    out = norm(torch.where(keep[..., None], x, torch.nan), keep)[keep]
    torch.testing.assert_close(out.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        out, (x[keep] - x[keep].mean(0)) / (x[keep].var(0, correction=0) + 1e-5).sqrt()
    )
    torch.testing.assert_close(norm.running_mean, 0.1 * x[keep].mean(0))


@pytest.fixture(scope="module")
def scbert():
    options = [
        "inputs=[ref.h5ad]",
        "label_key=type",
        "model=scbert",
        "model.gene2vec_path=vectors.txt",
    ]
    return make_config("train", options)


def count(*modules) -> int:
    return sum(p.numel() for p in torch.nn.ModuleList(modules).parameters())


def test_scberts_encoder_has_the_published_number_of_parameters(scbert):
    """8,388,607 with the output layer for masked tokens (16,906 genes, 7 bins)."""
    generator = torch.Generator().manual_seed(0)
    made = Encoder(16_906, scbert.tokens, scbert.model, scbert.attention, generator)
    assert count(made, torch.nn.Linear(200, 7)) == 8_388_607
    assert all(layer.to_qkv.bias is None for layer in made.layers)
    assert all(layer.attention.directions_ME.shape == (256, 64) for layer in made.layers)
    assert not made.embedding.gene.weight.requires_grad
    assert made.embedding.gene.weight.shape == (16_907, 200)


def test_scberts_classifier_has_the_published_number_of_parameters(scbert):
    """17,111,380 with the convolution head for 11 labels."""
    assert (scbert.head.name, scbert.head.hidden) == ("conv", [512, 128])
    network = CellTypeModel(
        16_906,
        11,
        tokens=scbert.tokens,
        model=scbert.model,
        attention=scbert.attention,
        head=scbert.head,
    )
    assert count(network) == 17_111_380
