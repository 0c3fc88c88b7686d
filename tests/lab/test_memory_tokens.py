"""`tokens.unexpressed=memory` equals a naive form with a token for every gene, in values and gradients."""

import numpy as np
import pytest
import torch
from scipy import sparse
from support.refusal import refusal
from support.twins import TWINS

from scperformer.attention.registry import all_mechanisms
from scperformer.attention.tokens import Batch
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder
from scperformer.model.inference import predict_cells
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

GENES, DIM, HEADS, WIDTH, DEPTH = 60, 12, 3, 4, 3
LINEAR = {
    "favor": {"name": "favor", "num_features": 9},
    "favor relu": {"name": "favor", "kernel": "relu", "num_features": 9},
    "rbf": {"name": "rbf", "num_anchors": 7},
}
TOKENS = {name: TokensConfig(name=name, unexpressed="memory") for name in ("scbert", "continuous")}
each_linear = pytest.mark.parametrize("attention", LINEAR.values(), ids=LINEAR)
each_tokens = pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS)


def make(attention, tokens, **options) -> Encoder:
    torch.manual_seed(0)
    sizes = {"dim": DIM, "depth": DEPTH, "num_heads": HEADS, "head_dim": WIDTH, "dropout": 0.0}
    encoder = Encoder(
        GENES,
        tokens,
        ModelConfig(**{**sizes, **options}),
        attention,
        torch.Generator().manual_seed(0),
    ).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return encoder


def cells(tokens, shares=(0.0, 0.1, 0.3, 0.5, 0.9, 1.0)) -> Cells:
    """Cells that express none, some or all of the genes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 5.0, (len(shares), GENES)) * (
        rng.random((len(shares), GENES)) < np.array(shares)[:, None]
    )
    return Cells(sparse.csr_matrix(x.astype(np.float32)), tokens)


def batch_of(tokens, dtype) -> Batch:
    batch = cells(tokens).batch(range(6))
    values = batch.values_BL if batch.values_BL.dtype == torch.int64 else batch.values_BL.to(dtype)
    return Batch(batch.genes_BL, values, batch.x_BL.to(dtype), batch.keep_BL)


def norm(h, module):
    mean, variance = h.mean(-1, keepdim=True), h.var(-1, unbiased=False, keepdim=True)
    return (h - mean) / torch.sqrt(variance + 1e-5) * module.weight + module.bias


def split(layer, h):
    """q, k, v of tokens, tokens x heads x width."""
    return (
        (norm(h, layer.norm_attention) @ layer.to_qkv.weight.T)
        .view(len(h), 3, HEADS, WIDTH)
        .unbind(1)
    )


def attended(layer, h_queries, h_keys):
    """A layer's output for tokens that attend to the given keys, with all weights written out."""
    q, (_, k, v) = split(layer, h_queries)[0], split(layer, h_keys)
    twin = TWINS["rbf" if hasattr(layer.attention, "anchors_HME") else "favor"]
    given = (x.transpose(0, 1)[None].double() for x in (q, k, v))
    mixed = (
        twin(layer.attention, *given, torch.ones(1, len(h_keys), dtype=torch.bool))[0]
        .transpose(0, 1)
        .flatten(1)
    )
    h = h_queries + mixed.to(h_queries.dtype) @ layer.to_out.weight.T + layer.to_out.bias
    return h + layer.feedforward(norm(h, layer.norm_feedforward))


def naive(
    encoder: Encoder, batch: Batch, expressed_BL: torch.Tensor | None = None, measured=range(GENES)
) -> list[torch.Tensor]:
    """Layer by layer, let the tokens of each cell attend to themselves and to all unexpressed genes.

    `expressed_BL` are the expressed genes, if some of them are not real tokens. Genes outside `measured` are left out.
    """
    zeros = encoder.embedding.unexpressed()[0]
    h = [encoder.embedding(batch)[cell][keep] for cell, keep in enumerate(batch.keep_BL)]
    genes = [batch.genes_BL[cell][keep] for cell, keep in enumerate(batch.keep_BL)]
    for layer in encoder.layers:
        present = genes if expressed_BL is None else expressed_BL
        others = [[g for g in measured if g not in own.tolist()] for own in present]
        h = [
            attended(layer, tokens, torch.cat([tokens, zeros[other]]))
            for tokens, other in zip(h, others, strict=True)
        ]
        zeros = attended(layer, zeros, zeros[list(measured)])
    return [norm(tokens, encoder.norm) for tokens in h]


@each_linear
@each_tokens
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["64", "32"]
)
def test_memory_equals_the_naive_form(attention, tokens, dtype, tolerance):
    encoder, batch = make(attention, tokens).to(dtype), batch_of(tokens, dtype)
    with torch.no_grad():
        expected = torch.cat(naive(encoder, batch))
        actual = encoder(batch)[batch.keep_BL]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@each_linear
@each_tokens
def test_unmeasured_genes_are_not_in_the_memory(attention, tokens):
    encoder = make(attention, tokens).double()
    is_measured = np.random.default_rng(1).random(GENES) < 0.6
    given = cells(tokens)
    x = given.x.multiply(is_measured).tocsr()
    x.eliminate_zeros()
    some = Cells(x, tokens, measured=is_measured)
    batch = some.batch(range(6))
    values = batch.values_BL if batch.values_BL.dtype == torch.int64 else batch.values_BL.double()
    batch = Batch(batch.genes_BL, values, batch.x_BL.double(), batch.keep_BL)
    with torch.inference_mode():
        with_zeros = encoder(batch)[batch.keep_BL]
        encoder.unexpressed.measured_G = torch.from_numpy(is_measured)
        actual = encoder(batch)[batch.keep_BL]
        expected = torch.cat(naive(encoder, batch, measured=np.flatnonzero(is_measured).tolist()))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    assert (actual - with_zeros).abs().max() > 1e-3


@each_linear
def test_memory_is_exact_where_long_keys_are_subtracted(attention):
    """Keys several times as long as initial ones, and cells that express from 5 to 99 % of 1,000 genes."""
    rng = np.random.default_rng(0)
    tokens, shares = TOKENS["continuous"], np.array([0.05, 0.2, 0.33, 0.34, 0.6, 0.9, 0.99])
    x = rng.uniform(0.1, 5.0, (7, 1000)) * (rng.random((7, 1000)) < shares[:, None])
    batch = Cells(sparse.csr_matrix(x.astype(np.float32)), tokens).batch(range(7))
    model = ModelConfig(dim=32, depth=2, num_heads=2, head_dim=16, dropout=0.0)
    torch.manual_seed(0)
    encoder = Encoder(1000, tokens, model, attention, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for layer in encoder.stack:
            layer.to_qkv.weight.mul_(4)
        lengths = encoder.stack[0].keys_values(encoder.embedding(batch))[0].norm(dim=-1) * 16**-0.25
        assert lengths[:, :, 0].mean() > 4
        actual = encoder(batch)[batch.keep_BL].double()
        exact = Batch(batch.genes_BL, batch.values_BL.double(), batch.x_BL.double(), batch.keep_BL)
        expected = encoder.double()(exact)[batch.keep_BL]
    # Exponents of size ~20 are known to 1e-6 in float32, and so are the weights of all keys.
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-5)


@each_linear
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_tokens": 7},
        pytest.param({"chunk_tokens": 7, "checkpointing": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_gradients_equal_those_of_the_naive_form(attention, options):
    tokens = TOKENS["continuous"]
    encoder, batch = make(attention, tokens, **options).double(), batch_of(tokens, torch.float64)

    def gradients(forward):
        encoder.zero_grad()
        out = forward()
        weights = torch.randn(
            out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
        (out * weights).sum().backward()
        return {
            name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None
        }

    expected = gradients(lambda: torch.cat(naive(encoder, batch)))
    actual = gradients(lambda: encoder(batch)[batch.keep_BL])
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)


def test_unexpressed_genes_are_computed_once_at_prediction(monkeypatch):
    tokens = TOKENS["continuous"]
    sizes = ModelConfig(dim=DIM, depth=DEPTH, num_heads=HEADS, head_dim=WIDTH, linear=False)
    network = CellTypeModel(
        GENES,
        4,
        tokens=tokens,
        model=sizes,
        attention=LINEAR["favor"],
        head=HeadConfig(name="mean"),
    )
    calls = []
    unexpressed = network.encoder.embedding.unexpressed
    monkeypatch.setattr(
        network.encoder.embedding, "unexpressed", lambda: calls.append(1) or unexpressed()
    )
    some = cells(tokens, np.linspace(0, 1, 20))
    first = predict_cells(network, some, batch_size=3)
    predict_cells(network, some, batch_size=7)
    assert len(calls) == 1
    # With new weights they are computed again.
    with torch.no_grad():
        network.encoder.embedding.gene.weight.mul_(2)
    second = predict_cells(network, some, batch_size=3)
    assert len(calls) == 2
    assert np.abs(first[1] - second[1]).max() > 1e-4


def test_each_precision_has_its_own_memory():
    encoder, batch = (
        make(LINEAR["favor"], TOKENS["continuous"]),
        batch_of(TOKENS["continuous"], torch.float32),
    )
    with torch.no_grad():
        expected = encoder(batch)
        encoder.unexpressed._kept = None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            encoder(batch)
        assert torch.equal(encoder(batch), expected)


WITHOUT_SUMS = [
    {"name": name} for name, mechanism in all_mechanisms().items() if not mechanism.sums_over_keys
]
CAUSAL_OR_PUBLISHED = [{"name": "favor", "causal": True}, {"name": "favor", "epsilon": 1e-4}]
# 0 / 0 if all shared features are subtracted
UNDEFINED = {"name": "favor", "kernel": "relu", "epsilon": 0.0}


@pytest.mark.parametrize("attention", [*WITHOUT_SUMS, *CAUSAL_OR_PUBLISHED, UNDEFINED], ids=str)
def test_mechanisms_whose_sums_cannot_be_subtracted_are_refused(attention):
    with refusal("memory-attention", attention["name"]):
        make(attention, TOKENS["continuous"])
