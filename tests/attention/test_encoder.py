"""Layers against their formulas, with pre- and post-norm and every kind of positions; sizes of scBERT."""

import math

import numpy as np
import pytest
import torch

from scperformer.attention.encoder import Encoder
from scperformer.attention.layer import BatchNorm
from scperformer.attention.tokens import Batch
from scperformer.cli.compose import make_config
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.network import CellTypeModel

GENES = 9
SIZES = {"dim": 6, "depth": 2, "num_heads": 2, "head_dim": 4, "dropout": 0.0}


def encoder(**model) -> Encoder:
    """An encoder in float64 whose parameters are all random, including those that start at 0 or 1."""
    torch.manual_seed(0)
    made = Encoder(GENES, TokensConfig(), ModelConfig(**SIZES, **model), {"name": "softmax"}, torch.Generator())
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


def normed(w, name, x):
    if f"{name}.running_mean" in w:
        x = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
    else:
        x = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x):
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])


def attended(w, name, tokens):
    """What softmax attention adds to each token."""
    heads, width = SIZES["num_heads"], SIZES["head_dim"]
    qkv = [(w[f"{name}.to_qkv.weight"] @ token).reshape(3, heads, width) for token in tokens]
    q, k, v = zip(*qkv, strict=True)
    out = []
    for query in q:
        mixed = np.zeros((heads, width))
        for head in range(heads):
            weights = np.exp([query[head] @ key[head] / math.sqrt(width) for key in k])
            mixed[head] = sum(weight * value[head] for weight, value in zip(weights / weights.sum(), v, strict=True))
        out.append(w[f"{name}.to_out.weight"] @ mixed.ravel() + w[f"{name}.to_out.bias"])
    return out


def fed_forward(w, name, token, activation):
    inner = {"gelu": gelu, "relu": lambda x: np.maximum(x, 0)}[activation](
        w[f"{name}.feedforward.0.weight"] @ token + w[f"{name}.feedforward.0.bias"]
    )
    return w[f"{name}.feedforward.2.weight"] @ inner + w[f"{name}.feedforward.2.bias"]


def naive(made: Encoder, norm: str, activation: str) -> np.ndarray:
    """The layers in loops over the real tokens of the cell, from the weights by name."""
    w = {name: tensor.numpy() for name, tensor in made.state_dict().items()}
    h = list(made.embedding(batch())[0][batch().keep_BL[0]].detach().numpy())
    for layer in range(SIZES["depth"]):
        name = f"layers.{layer}"
        for part, change in (
            ("attention", lambda tokens, name=name: attended(w, name, tokens)),
            ("feedforward", lambda tokens, name=name: [fed_forward(w, name, t, activation) for t in tokens]),
        ):
            norm_name = f"{name}.norm_{part}"
            if norm == "pre":
                h = [t + c for t, c in zip(h, change([normed(w, norm_name, t) for t in h]), strict=True)]
            else:
                h = [normed(w, norm_name, t + c) for t, c in zip(h, change(h), strict=True)]
    return np.stack([normed(w, "norm", t) for t in h] if norm == "pre" else h)


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
    np.testing.assert_allclose(actual.numpy(), naive(made, norm, activation), rtol=1e-9, atol=1e-10)


def test_batch_norm_has_the_moments_of_real_tokens():
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keep = torch.tensor([[True, True, False, False], [True] * 4, [True, False, False, False]])
    norm = BatchNorm(6).double()
    out = norm(torch.where(keep[..., None], x, torch.nan), keep)[keep]
    torch.testing.assert_close(out.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(out, (x[keep] - x[keep].mean(0)) / (x[keep].var(0, correction=0) + 1e-5).sqrt())
    torch.testing.assert_close(norm.running_mean, 0.1 * x[keep].mean(0))


@pytest.fixture(scope="module")
def scbert():
    options = ["inputs=[ref.h5ad]", "label_key=type", "model=scbert", "model.gene2vec_path=vectors.txt"]
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
    head = HeadConfig(name="conv", hidden=[512, 128])
    assert (scbert.head.name, scbert.head.hidden) == (head.name, head.hidden)
    network = CellTypeModel(
        16_906, 11, tokens=scbert.tokens, model=scbert.model, attention=scbert.attention, head=scbert.head
    )
    assert count(network) == 17_111_380
