"""Contributions of genes, compared with naive loops and closed forms; they add up to the logit for all encoders."""

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel
from scperformer.results import contributions
from scperformer.results.contributions import SUM_TOLERANCE, find_contributions

GENES = 30
LABELS = 3
DIM = 6
LABEL_OF_CELL = np.array([0, 1, 2, 1, 0])
POWERS = [0.5, 2.0]


def make_cells(tokens: TokensConfig | None = None) -> Cells:
    """Return five cells, from one that expresses nothing to one that expresses nearly all genes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.1, 5.0, (5, GENES)) * (
        rng.random((5, GENES)) < np.linspace(0, 0.9, 5)[:, None]
    )
    return Cells(sparse.csr_matrix(x.astype(np.float32)), tokens or TokensConfig())


def make(
    depth: int = 0,
    *,
    tokens: TokensConfig | None = None,
    attention: str = "favor",
    norm: str = "pre",
    **options,
) -> CellTypeModel:
    """Return a network with random weights; without layers, the encoder has co-expression vectors."""
    torch.manual_seed(0)
    is_coexpression = depth == 0
    model = {
        "dim": DIM,
        "depth": depth,
        "num_heads": 2,
        "head_dim": 4,
        "norm": norm,
        "linear_powers": POWERS,
    }
    head = HeadConfig(
        name="weighted" if is_coexpression else options.pop("pool", "mean"),
        hidden=options.pop("hidden", [8, 8]),
    )
    positions = "coexpression" if is_coexpression else "gene"
    network = CellTypeModel(
        GENES,
        LABELS,
        tokens=tokens or TokensConfig(),
        model=ModelConfig(**model, positions=positions, **options),
        attention={"name": attention},
        head=head,
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape))
        if head.name == "conv":
            network.pool.projection.bias.fill_(2.0)  # else its ReLU is off for every gene
    return network


def test_the_linear_branch_is_a_sum_over_views():
    """Compared with a loop over cells, genes and views in float64."""
    network = make(encoder=False)
    cells = make_cells()
    found = find_contributions(network, cells, LABEL_OF_CELL)
    weight = (
        network.linear.weight.weight.detach()
        .double()
        .numpy()
        .reshape(GENES + 1, len(POWERS), LABELS)
    )
    x = cells.x.toarray().astype(np.float64)
    expected = np.zeros((5, GENES))
    for cell, label in enumerate(LABEL_OF_CELL):
        for view, power in enumerate(POWERS):
            values = x[cell] ** power * (x[cell] > 0)
            for gene in np.flatnonzero(values):
                scaled = 20 * values[gene] / np.sqrt((values**2).sum())
                expected[cell, gene] += scaled * weight[gene, view, label]
    np.testing.assert_allclose(found.genes.toarray(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.bias, network.linear.bias.detach().numpy()[LABEL_OF_CELL])
    assert np.abs(found.errors).max() < 1e-4  # float32
    assert found.logits[0] == found.bias[0]  # of the empty cell


def test_a_head_with_relu_is_integrated_gradients():
    """Equation 1 of Sundararajan et al. (2017) as a sum of 4,000 small steps, with gradients by hand."""
    network = make(linear=False)
    cells = make_cells()
    found = find_contributions(network, cells, LABEL_OF_CELL)
    layers = [
        part
        for part in [*network.head.hidden, network.head.labels]
        if isinstance(part, torch.nn.Linear)
    ]
    weights = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        for layer in layers
    ]
    vectors = network.encoder.embedding.gene.weight.detach().double().numpy()[:GENES]
    centre = network.encoder.reader.mean_X.double().numpy()
    for cell, label in enumerate(LABEL_OF_CELL):
        x = cells.x[cell].toarray().ravel().astype(np.float64)
        values = 20 * x / max(np.sqrt((x**2).sum()), 1e-12)
        places = (np.arange(4000) + 0.5) / 4000
        hidden = places[:, None] * (values @ vectors) - centre
        gates = []
        for weight, bias in weights[:-1]:
            hidden = hidden @ weight.T + bias
            gates.append(hidden > 0)
            hidden = hidden * gates[-1]
        gradient = np.tile(weights[-1][0][label], (4000, 1))
        for (weight, _), gate in zip(weights[-2::-1], gates[::-1], strict=True):
            gradient = (gradient * gate) @ weight
        expected = values * (vectors @ gradient.mean(axis=0))
        # the two quadratures differ at kinks of ReLU
        allowed = 2 * SUM_TOLERANCE * max(1, np.abs(expected).sum())
        np.testing.assert_allclose(
            found.genes[[cell]].toarray().ravel(), expected, rtol=0, atol=allowed
        )


@pytest.mark.parametrize("attention", ["favor", pytest.param("softmax", marks=pytest.mark.slow)])
def test_a_performer_is_integrated_gradients_from_the_mean_cell(attention):
    """Equation 1 of Sundararajan et al. (2017) over the expression of every gene, in 300 steps of float64."""
    network = made_performer(attention)
    # an empty cell reads nothing, which is no point of the path
    cells = Cells(make_cells().x[1:], TokensConfig())
    labels = LABEL_OF_CELL[1:]
    performer = network.encoder.double()

    def sums(w_SG: torch.Tensor) -> torch.Tensor:
        sums_SX = w_SG @ performer.table()
        return torch.cat([sums_SX, w_SG], dim=1) if performer.needs_expression else sums_SX

    mean_G = torch.full((GENES,), 0.7, dtype=torch.float64)
    with torch.no_grad():
        performer.reader.mean_X.copy_(sums(mean_G[None])[0])
    found = find_contributions(network.float(), cells, labels)
    network.double()
    for cell, label in enumerate(labels):
        x = torch.from_numpy(cells.x[cell].toarray().ravel().astype(np.float64))
        w_G = 20 * x / x.norm().clamp_min(1e-12)
        places_S = (torch.arange(300, dtype=torch.float64) + 0.5) / 300
        points_SG = (mean_G + places_S[:, None] * (w_G - mean_G)).requires_grad_()
        logits_S = network.head(performer.from_sums(sums(points_SG)))[0][:, label]
        (gradient_SG,) = torch.autograd.grad(logits_S.sum(), points_SG)
        expected = (w_G * gradient_SG.mean(dim=0)).numpy()
        allowed = 3 * SUM_TOLERANCE * max(1, np.abs(expected).sum())
        np.testing.assert_allclose(
            found.genes[[cell]].toarray().ravel(), expected, rtol=0, atol=allowed
        )
    assert np.abs(found.errors).max() < 0.1


def made_performer(attention: str) -> CellTypeModel:
    """Return a network with random weights whose encoder is a Performer, without a linear branch."""
    torch.manual_seed(0)
    model = ModelConfig(dim=8, positions="coexpression", linear=False)
    head = HeadConfig(name="weighted", hidden=[8])
    options = {
        "tokens": TokensConfig(),
        "model": model,
        "attention": {"name": attention},
        "head": head,
    }
    network = CellTypeModel(GENES, LABELS, **options).eval()
    network.encoder.embedding.set_gene_vectors(0.3 * torch.randn(GENES, 8))
    network.encoder.start(make_cells().x, torch.Generator().manual_seed(0))
    torch.nn.init.normal_(network.encoder.reader.stack[0].to_out.weight, std=0.3)
    return network


ENCODERS = {
    "pooled": {},
    "continuous": {"depth": 2},
    "full": {"depth": 1, "tokens": TokensConfig(name="scbert", unexpressed="full"), "pool": "conv"},
    "memory": {"depth": 1, "tokens": TokensConfig(unexpressed="memory"), "pool": "cls"},
    "post-norm": {"depth": 1, "norm": "post"},
}


def test_layers_of_attention_are_integrated_gradients():
    """Equation 1 of Sundararajan et al. (2017) as a sum of 80 equal steps, with gradients by autograd."""
    network = make(depth=1, norm="post", linear=False).eval()
    cells = make_cells()
    found = find_contributions(network, cells, LABEL_OF_CELL)
    batch = cells.batch(range(5))
    stop_BLD = network.encoder.embedding(batch).detach()
    is_gene_BL1 = (batch.x_BL > 0).unsqueeze(-1)
    total_BLD = torch.zeros_like(stop_BLD)
    for step in range(80):
        point_BLD = torch.where(
            is_gene_BL1, stop_BLD * (step + 0.5) / 80, stop_BLD
        ).requires_grad_()
        logits_BC = network.head(network.pool(network.encoder.encode(point_BLD, batch), batch))[0]
        total_BLD += torch.autograd.grad(logits_BC[np.arange(5), LABEL_OF_CELL].sum(), point_BLD)[0]
    expected = (stop_BLD * total_BLD / 80).sum(-1)[batch.x_BL > 0].numpy()
    np.testing.assert_allclose(
        found.genes.data, expected, rtol=0, atol=0.02 * np.abs(expected).max()
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if place < 3 else pytest.mark.slow)
        for place, kind in enumerate(ENCODERS)
    ],
)
def test_contributions_and_bias_add_up_to_the_logit(kind, monkeypatch):
    options = ENCODERS[kind]
    network = make(**options, linear=False)
    cells = make_cells(options.get("tokens"))
    found = find_contributions(network, cells, LABEL_OF_CELL)
    with torch.no_grad():
        expected = network.eval()(cells.batch(range(5)))[0].numpy()[np.arange(5), LABEL_OF_CELL]
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-4)
    allowed = 1e-4 + SUM_TOLERANCE * np.maximum(np.abs(found.logits - found.bias), 1)
    assert (np.abs(found.errors) <= allowed).all()
    assert (np.diff(found.genes.indptr) == np.diff(cells.x.indptr)).all()
    monkeypatch.setattr(contributions, "MIN_STEPS", 1)
    monkeypatch.setattr(contributions, "MAX_STEPS", 1)
    rough = find_contributions(network, cells, LABEL_OF_CELL)
    assert (np.abs(rough.errors) > allowed).any()  # a single step is not enough


def test_a_cell_depends_neither_on_other_cells_nor_on_the_mode(monkeypatch):
    monkeypatch.setattr(contributions, "MAX_STEPS", contributions.MIN_STEPS)
    network = make(depth=1).train()
    cells = make_cells()
    together = find_contributions(network, cells, LABEL_OF_CELL)
    assert network.training
    alone = find_contributions(
        network.eval(), Cells(cells.x[[3]], cells.tokens), LABEL_OF_CELL[[3]]
    )
    np.testing.assert_allclose(
        together.genes[[3]].toarray(), alone.genes.toarray(), rtol=1e-4, atol=1e-5
    )
