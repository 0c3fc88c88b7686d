"""The network beyond the encoder (tests/attention/test_encoder.py) against its formulas in float64; padding."""

import numpy as np
import pytest
import torch
from scipy import sparse

from scperformer.attention.registry import MECHANISMS
from scperformer.attention.tokens import Batch
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

GENES, LABELS = 12, 3
TINY = {"dim": 6, "depth": 2, "num_heads": 2, "head_dim": 4, "dropout": 0.3}
TOKENS = {
    "scbert": TokensConfig(name="scbert", unexpressed="full"),
    "bins": TokensConfig(name="bins", num_bins=40),
    "continuous": TokensConfig(name="continuous"),
}
HEADS = ["mean", "cls", "conv"]
BRANCHES = {"encoder": (False, True), "linear": (True, False), "both": (True, True)}


def expression(num_cells: int = 6) -> sparse.csr_matrix:
    """x = ln(1 + cp10k) of cells that express from none to most of the genes; the first cell is empty."""
    rng = np.random.default_rng(0)
    share = np.linspace(0, 0.9, num_cells)[:, None]
    x = rng.uniform(0.1, 5.0, (num_cells, GENES)) * (rng.random((num_cells, GENES)) < share)
    return sparse.csr_matrix(x.astype(np.float32))


def make(
    tokens="continuous", head="mean", attention="favor", branches="encoder", hidden=(), seed=0
) -> CellTypeModel:
    """A tiny network in eval mode whose parameters are all random, including those that start at 0 or 1."""
    linear, encoder = BRANCHES[branches]
    torch.manual_seed(0)
    network = CellTypeModel(
        GENES,
        LABELS,
        tokens=TOKENS[tokens],
        model=ModelConfig(**TINY, linear=linear, encoder=encoder),
        attention={"name": attention} | ({"num_features": 9} if attention == "favor" else {}),
        head=HeadConfig(name=head, hidden=list(hidden), dropout=0.5),
        seed=seed,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        if head == "conv" and encoder:
            network.pool.projection.bias.fill_(2.0)  # otherwise its ReLU may be 0 for every gene
    return network.eval()


def batch_of(tokens="continuous", rows=range(6), length=None) -> Batch:
    return Cells(expression(), TOKENS[tokens]).batch(list(rows), length)


def in_float64(batch: Batch) -> Batch:
    values = batch.values_BL if batch.values_BL.dtype == torch.int64 else batch.values_BL.double()
    return Batch(batch.genes_BL, values, batch.x_BL.double(), batch.keep_BL)


def naive(
    network: CellTypeModel,
    head: str,
    genes: list[int],
    h: np.ndarray,
    row: np.ndarray,
    num_hidden: int,
):
    """The logits of both branches and the embedding of a cell, from its encoded tokens and a row of x, in loops."""
    w = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    pooled = h[-1] if head == "cls" else sum(h) / len(h)
    if head == "conv":
        pooled = np.zeros(GENES + 1)
        for gene, token in zip(genes, h, strict=True):
            pooled[gene] = max(
                0.0, (w["pool.projection.weight"] @ token + w["pool.projection.bias"])[0]
            )
    for i in range(num_hidden):
        name = f"head.hidden.{3 * i}"
        pooled = np.maximum(0.0, w[f"{name}.weight"] @ pooled + w[f"{name}.bias"])
    # root and square of the expression, both with norm 20, each with its own weights
    transforms = [
        powered * 20 / max(np.sqrt((powered**2).sum()), 1e-12) for powered in (np.sqrt(row), row**2)
    ]
    blocks = np.split(w["linear.weight.weight"][:-1], 2, axis=1)
    linear = (
        sum(powered @ block for powered, block in zip(transforms, blocks, strict=True))
        + w["linear.bias"]
    )
    return linear, w["head.labels.weight"] @ pooled + w["head.labels.bias"], pooled


@pytest.mark.parametrize(
    ("tokens", "head", "hidden"),
    [
        ("scbert", "conv", (16, 8)),
        ("bins", "cls", ()),
        ("bins", "conv", (16,)),
        ("continuous", "mean", ()),
        ("continuous", "cls", (16,)),
    ],
)
def test_forward_equals_naive_loops(tokens, head, hidden):
    network = make(tokens, head, branches="both", hidden=hidden).double()
    batch = in_float64(batch_of(tokens))
    encoded = network.encoder(batch).detach().numpy()
    linear, encoder, embedding = network.branches(batch)
    logits, same_embedding = network(batch)
    assert embedding.std(0).max() > 0.02  # the cells differ
    torch.testing.assert_close(logits, linear + encoder, rtol=0, atol=0)
    torch.testing.assert_close(same_embedding, embedding, rtol=0, atol=0)
    for cell, (row, keep) in enumerate(
        zip(expression().toarray().astype(np.float64), batch.keep_BL, strict=True)
    ):
        made = naive(
            network,
            head,
            batch.genes_BL[cell, keep].tolist(),
            encoded[cell, keep],
            row,
            len(hidden),
        )
        for actual, expected in zip((linear, encoder, embedding), made, strict=True):
            # float64: rounding only
            np.testing.assert_allclose(
                actual[cell].detach().numpy(), expected, rtol=1e-9, atol=1e-10
            )


# --- independence of other cells ----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", list(MECHANISMS))
@pytest.mark.parametrize("head", HEADS)
def test_the_result_of_a_cell_depends_on_no_other_cell(head, attention):
    tokens = "continuous" if head == "cls" else "bins"
    network = make(tokens, head, attention, "both", hidden=(5,))
    together = network(batch_of(tokens))
    # Sums in other shapes run in another order: a few roundings of 6e-8 in float32, through two layers.
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    for cell in range(6):
        alone = network(batch_of(tokens, rows=[cell]))
        padded = network(batch_of(tokens, rows=[cell], length=64))
        for expected, a, b in zip(together, alone, padded, strict=True):
            torch.testing.assert_close(a[0], expected[cell], **tolerance)
            torch.testing.assert_close(b[0], expected[cell], **tolerance)
