"""Queries of cells that read all genes: weights of every gene in float64, from the formula of each mechanism."""

import pytest
import torch
from support.twins import TWINS

from scperformer.attention.base import Sizes
from scperformer.attention.registry import make_attention

G, B, H, E = 40, 5, 2, 8
CASES = [
    {"name": "softmax"},
    {"name": "favor"},
    {"name": "favor", "projection": "orthogonal", "num_features": 24},
    {"name": "favor", "projection": "fastfood", "num_features": 12},
    {"name": "favor", "kernel": "relu", "projection": "gaussian"},
    {"name": "favor", "kernel": "exp"},
    {"name": "rbf", "num_anchors": 6},
]


def genes(dtype=torch.float64):
    """Keys of the same length and values of genes, and the expression of cells, of which some genes are silent."""
    generator = torch.Generator().manual_seed(0)
    k_GE = torch.randn(G, E, generator=generator, dtype=torch.float64)
    k_GE *= 2 * E**0.25 / k_GE.norm(dim=1, keepdim=True)
    v_GE = torch.randn(G, E, generator=generator, dtype=torch.float64)
    x_BG = torch.relu(torch.randn(B, G, generator=generator, dtype=torch.float64))
    q_BHE = torch.randn(B, H, E, generator=generator, dtype=torch.float64)
    return [tensor.to(dtype) for tensor in (q_BHE, k_GE, v_GE, x_BG)]


def make(options):
    sizes = Sizes(num_heads=H, head_dim=E, length=G + 1, keys_of_genes=True)
    mechanism = make_attention(options, sizes, torch.Generator().manual_seed(1)).double()
    k_BHLE = genes()[1].expand(1, H, -1, -1)
    mechanism.start(k_BHLE, torch.ones(1, G, dtype=torch.bool), torch.Generator().manual_seed(2))
    return mechanism


def read(mechanism, q_BHE, k_GE, v_GE, x_BG):
    table_GW = mechanism.gene_table(k_GE, v_GE)
    sums_BW = x_BG if table_GW is None else x_BG @ table_GW
    return mechanism.read_genes(q_BHE.unsqueeze(2), sums_BW, k_GE, v_GE).squeeze(2)


def twin(options, mechanism, q_BHE, k_GE, v_GE, x_BG):
    """The naive form for tokens, in which the expression of a gene is the weight of its key."""
    keys, values = (x_GE.expand(B, H, -1, -1) for x_GE in (k_GE, v_GE))
    return TWINS[options["name"]](mechanism, q_BHE.unsqueeze(2), keys, values, x_BG).squeeze(2)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_the_weights_of_genes_are_those_of_the_formula(options):
    """If the value of each gene is a unit vector of its own, a cell reads the weights."""
    mechanism = make(options)
    q_BHE, k_GE, v_GE, x_BG = genes()
    weights_BHG = mechanism.gene_weights(q_BHE, k_GE, x_BG)
    expected = twin(options, mechanism, q_BHE, k_GE, torch.eye(G, dtype=torch.float64), x_BG)
    torch.testing.assert_close(weights_BHG, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(weights_BHG.sum(-1), torch.ones(B, H, dtype=torch.float64))
    assert not weights_BHG.masked_select(x_BG.unsqueeze(1) == 0).any()
    torch.testing.assert_close(
        weights_BHG @ v_GE, read(mechanism, q_BHE, k_GE, v_GE, x_BG), rtol=1e-9, atol=1e-10
    )
    assert torch.isfinite(mechanism.gene_weights(q_BHE, k_GE, torch.zeros_like(x_BG))).all()


@pytest.mark.parametrize("options", CASES, ids=str)
def test_gradients_reach_queries_keys_values_and_expression(options):
    mechanism = make(options)
    q_BHE, k_GE, v_GE, x_BG = (tensor.requires_grad_() for tensor in genes())
    x_BG = (x_BG.detach() + 0.1).requires_grad_()
    # Finite differences; the keys that a mechanism started from are fixed.
    few = q_BHE[:1, :, :].detach().requires_grad_(), k_GE[:6].detach().requires_grad_()
    values = v_GE[:6].detach().requires_grad_(), x_BG[:1, :6].detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *tensors: read(mechanism, *tensors), (*few, *values), atol=1e-5
    )


@pytest.mark.parametrize("options", CASES, ids=str)
def test_silent_genes_and_the_depth_have_no_influence_and_an_empty_cell_reads_something_finite(
    options,
):
    mechanism = make(options)
    q_BHE, k_GE, v_GE, x_BG = genes()
    silent_G = torch.arange(G) % 3 == 0
    x_BG[:, silent_G] = 0
    before = read(mechanism, q_BHE, k_GE, v_GE, x_BG)
    torch.testing.assert_close(
        read(mechanism, q_BHE, k_GE, v_GE, 7 * x_BG), before, rtol=1e-9, atol=1e-10
    )
    assert torch.isfinite(read(mechanism, q_BHE, k_GE, v_GE, torch.zeros_like(x_BG))).all()
    v_GE[silent_G] = 1e4
    k_GE[silent_G] = -k_GE[silent_G]
    torch.testing.assert_close(
        read(mechanism, q_BHE, k_GE, v_GE, x_BG), before, rtol=1e-12, atol=1e-12
    )


def test_centres_of_clusters_are_the_directions():
    mechanism = make({"name": "favor", "num_features": 4})
    sizes = Sizes(num_heads=1, head_dim=E, length=9, keys_of_genes=True)
    mechanism = make_attention(
        {"name": "favor", "num_features": 4}, sizes, torch.Generator().manual_seed(0)
    )
    corners_4E = 3 * torch.eye(E)[:4]
    k_BHLE = corners_4E.repeat(5, 1)[None, None]
    mechanism.start(k_BHLE, torch.ones(1, 20, dtype=torch.bool), torch.Generator().manual_seed(0))
    found = {
        tuple(row)
        for row in (mechanism.directions_ME / mechanism.factor).round(decimals=4).tolist()
    }
    assert found == {tuple(row) for row in corners_4E.tolist()}
    mechanism.start(
        k_BHLE[:, :, :2], torch.ones(1, 2, dtype=torch.bool), torch.Generator().manual_seed(0)
    )
    assert torch.isfinite(mechanism.directions_ME).all()  # fewer keys than directions
