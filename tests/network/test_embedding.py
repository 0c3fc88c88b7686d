"""Tokens to vectors: positions of every kind, and logits of bins for masked expression modelling."""

import math

import pytest
import torch

from scperformer.config.groups import ModelConfig, TokensConfig
from scperformer.network.embedding import Batch, Embedding, TokenLogits, sinusoids

GENES, DIM = 9, 6
TOKENS = {"scbert": TokensConfig(name="scbert", unexpressed="full"), "continuous": TokensConfig()}


def embedding(positions: str, tokens: str = "scbert") -> Embedding:
    torch.manual_seed(0)
    return Embedding(GENES, ModelConfig(dim=DIM, positions=positions), TOKENS[tokens])


def batch(tokens: str = "scbert") -> Batch:
    """Two cells of four tokens, the genes in no order, the last of each the special position."""
    genes = torch.tensor([[4, 0, 7, 9], [1, 8, 2, 9]])
    bins = torch.tensor([[1, 5, 2, 0], [3, 3, 6, 0]])
    x = bins.float() * 0.7
    return Batch(genes, x if tokens == "continuous" else bins, x, torch.ones(2, 4, dtype=torch.bool))


def values_of(made: Embedding, tokens: str) -> torch.Tensor:
    """The part of a token that comes from its value alone."""
    given = batch(tokens)
    if tokens == "scbert":
        return made.expression.weight[given.values_BL]
    first, _, last = made.expression.layers
    x = given.values_BL[..., None] / 4.0
    return torch.nn.functional.gelu(x * first.weight[:, 0] + first.bias) @ last.weight.T + last.bias


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoids_equal_the_formula(dim):
    table = sinusoids(40, dim)
    assert table.dtype == torch.float32
    for position in (0, 1, 7, 39):
        for i in range(dim):
            angle = position / 10000 ** (2 * (i // 2) / dim)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert float(table[position, i]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("tokens", list(TOKENS))
def test_sinusoidal_positions_are_added_by_gene_and_fixed(tokens):
    made = embedding("sinusoidal", tokens)
    assert not made.gene.weight.requires_grad
    expected = sinusoids(GENES + 1, DIM)[batch().genes_BL] + values_of(made, tokens)
    torch.testing.assert_close(made(batch(tokens)), expected)


@pytest.mark.parametrize("tokens", list(TOKENS))
def test_without_positions_a_token_is_its_value(tokens):
    made = embedding("none", tokens)
    assert made.gene is None
    torch.testing.assert_close(made(batch(tokens)), values_of(made, tokens))


def test_learned_positions_are_trained():
    made = embedding("gene")
    assert made.gene.weight.requires_grad
    torch.testing.assert_close(made(batch()), made.gene.weight[batch().genes_BL] + values_of(made, "scbert"))


def test_gene2vec_positions_are_fixed_and_the_special_one_is_zero():
    made = embedding("gene2vec")
    assert not made.gene.weight.requires_grad
    vectors = torch.randn(GENES, DIM, generator=torch.Generator().manual_seed(1))
    made.set_gene_vectors(vectors)
    assert torch.equal(made.gene.weight[:-1], vectors)
    assert torch.equal(made.gene.weight[-1], torch.zeros(DIM))
    made(batch()).sum().backward()
    assert made.gene.weight.grad is None
    assert made.expression.weight.grad is not None
    torch.testing.assert_close(made(batch())[:, -1], made.expression.weight[batch().values_BL[:, -1]])


@pytest.mark.parametrize("positions", ["gene", "sinusoidal", "none"])
@pytest.mark.parametrize("tokens", list(TOKENS))
def test_unexpressed_genes_are_tokens_of_value_zero(positions, tokens):
    made = embedding(positions, tokens)
    genes = torch.arange(GENES)[None]
    zeros = torch.zeros(1, GENES, dtype=torch.float32 if tokens == "continuous" else torch.int64)
    expected = made(Batch(genes, zeros, zeros.float(), torch.ones(1, GENES, dtype=torch.bool)))
    torch.testing.assert_close(made.unexpressed(), expected)


# --- logits of bins ------------------------------------------------------------------------------------------


def test_untied_logits_have_a_layer_of_their_own():
    made = embedding("gene").expression
    logits = TokenLogits(made, tied=False)
    h = torch.randn(2, 4, DIM, generator=torch.Generator().manual_seed(1))
    expected = h @ logits.output.weight.T + logits.output.bias
    torch.testing.assert_close(logits(h), expected)
    assert logits(h).shape == (2, 4, 7)
    assert sum(p.numel() for p in logits.parameters()) == 7 * (DIM + 1)
    assert logits.output.weight is not made.weight


def test_tied_logits_share_the_weight_of_the_embedding():
    made = embedding("gene")
    logits = TokenLogits(made.expression, tied=True)
    assert logits.output.weight is made.expression.weight
    assert [p is made.expression.weight for p in logits.parameters()] == [True]
    h = made(batch())
    torch.testing.assert_close(logits(h), h @ made.expression.weight.T)
    # One step moves both: they are one.
    torch.optim.SGD(logits.parameters(), lr=1.0).zero_grad()
    logits(h.detach()).sum().backward()
    torch.testing.assert_close(made.expression.weight.grad, h.detach().sum((0, 1)).expand(7, DIM))
    both = torch.nn.ModuleList([made, logits])
    assert sum(p.numel() for p in both.parameters()) == sum(p.numel() for p in made.parameters())
