"""The Performer: the cell reads all measured genes. Compared with loops over cells and genes in float64."""

from dataclasses import replace
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from support.refusal import refusal

import scperformer as scp
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.model.inference import predict_cells
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

G = 30
MODEL = ModelConfig(dim=16, positions="coexpression", linear=False, dropout=0.5)
HEAD = HeadConfig(name="weighted", hidden=[16], dropout=0.1)
KINDS = [{"name": "favor"}, {"name": "softmax"}, {"name": "rbf", "num_anchors": 16}]


def made_cells(num_cells: int = 40) -> csr_matrix:
    rng = np.random.default_rng(0)
    return csr_matrix(np.log1p(rng.poisson(rng.gamma(1.0, 1.0, (num_cells, G)))).astype(np.float32))


def made(attention, model=MODEL) -> CellTypeModel:
    """A network with random weights in eval mode; the layers do not start at 0 here."""
    torch.manual_seed(0)
    network = CellTypeModel(
        G, 3, tokens=TokensConfig(), model=model, attention=attention, head=HEAD
    )
    network.encoder.embedding.set_gene_vectors(torch.randn(G, model.dim))
    network.encoder.start(made_cells(), torch.Generator().manual_seed(0))
    for layer in network.encoder.reader.stack:
        torch.nn.init.normal_(layer.to_out.weight, std=0.3)
    return network.eval()


@pytest.mark.parametrize("attention", KINDS, ids=lambda options: options["name"])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_cell_reads_its_genes_beyond_what_the_mean_cell_reads(attention, depth):
    """The naive twin: the weight of every gene, of the cell and of the mean cell, for each query."""
    network = made(attention, replace(MODEL, depth=depth)).double()
    performer = network.encoder
    x = made_cells(6).toarray().astype(np.float64)
    x = torch.from_numpy(20 * x / np.linalg.norm(x, axis=1, keepdims=True))
    train = made_cells().toarray().astype(np.float64)
    mean = torch.from_numpy(
        (20 * train / np.linalg.norm(train, axis=1, keepdims=True)).mean(axis=0)
    )
    values, keys = performer.vectors_GD, performer.keys_GD
    mechanism = performer.reader.attention

    def kernel(q, head):
        if attention["name"] == "softmax":
            return torch.exp(keys @ q / MODEL.dim**0.5)
        parts = torch.cat([q[None], keys]).expand(1, MODEL.num_heads, -1, -1)
        phi = torch.exp2(mechanism.features(parts, queries=False))[0, head]
        return phi[1:] @ phi[0]

    for number, cell in enumerate(x):
        c = (cell - mean) @ values
        shares = []
        for layer in performer.reader.stack:
            read = []
            for head, q in enumerate(layer.queries(c[None])[0]):
                weights = kernel(q, head)
                mine, usual = weights * cell, weights * mean
                shares.append(mine / mine.sum())
                read.append(mine @ values / mine.sum() - usual @ values / usual.sum())
            c = layer(c[None], torch.stack(read)[None] * performer.reader.scale)[0]
        batch = Cells(made_cells(6), TokensConfig()).batch([number])
        batch.x_BL = batch.x_BL.double()
        # expression is float32
        torch.testing.assert_close(performer(batch)[0], c, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            performer.gene_weights(batch)[0], torch.stack(shares).mean(0), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("attention", KINDS, ids=lambda options: options["name"])
def test_no_bit_of_a_cell_depends_on_the_others(attention):
    network = made(attention)
    x = made_cells(300)
    proba, vectors, _ = predict_cells(network, Cells(x, TokensConfig()), 64)
    for rows in (np.arange(300)[::-1], np.array([7]), np.arange(5, 290, 3)):
        some, others, _ = predict_cells(network, Cells(x[rows], TokensConfig()), 3)
        np.testing.assert_array_equal(some, proba[rows])
        np.testing.assert_array_equal(others, vectors[rows])


@pytest.mark.parametrize("name", ["lsh", "linformer"])
def test_mechanisms_that_cannot_read_genes_are_refused(name):
    with refusal("performer-attention"):
        made({"name": name})


@pytest.mark.parametrize("kind", ["packaged", "tiny"])
def test_the_network_of_a_model_in_torch_gives_what_annotate_gives(kind, request):
    """`tokens` recognises genes and values: here genes in another order, one of them unknown."""
    if kind == "packaged":
        model = scp.load_model()
        cells = ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")[:9, ::-1].copy()
        cells.var_names = ["unknown", *cells.var_names[1:]]
    else:
        model = scp.load_model(request.getfixturevalue("tiny_model"))
        cells = request.getfixturevalue("counts_adata")[:9, ::-1].copy()
    batch = scp.tokens(cells, model)
    with torch.no_grad():
        logits_BC, _ = model.network(batch)
        some_BC, _ = model.network(batch[[5, 2]])
    annotated = scp.annotate(cells.copy(), model, options={"adapt": "false"})
    np.testing.assert_allclose(
        logits_BC.softmax(-1), annotated.obsm["scperformer_proba"], atol=1e-4
    )
    torch.testing.assert_close(some_BC, logits_BC[[5, 2]], rtol=1e-3, atol=1e-3)
    assert not model.network.training


@pytest.mark.parametrize("attention", KINDS, ids=lambda options: options["name"])
def test_sums_of_many_cells_are_those_of_each_cell(attention, monkeypatch):
    performer = made(attention).encoder
    x = made_cells(25)
    found = performer.sums_of(x)
    # three blocks, the last one of 5 cells
    monkeypatch.setattr("scperformer.model.linear.CELLS_PER_SUM", 10)
    assert np.array_equal(performer.sums_of(x), found)
    weights = x.toarray().astype(np.float64)
    weights *= 20 / np.linalg.norm(weights, axis=1, keepdims=True)
    expected = weights @ performer.table().detach().double().numpy()
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, rtol=1e-4, atol=1e-4)
    assert performer.sums_of(x[:0]).shape == (0, found.shape[1])


def test_sums_are_compressed_to_their_principal_components(monkeypatch):
    """Sums of the keys stay exact; of the others, the largest part that so few numbers can hold."""
    monkeypatch.setattr("scperformer.model.performer.NUM_COMPONENTS", 5)
    performer = made({"name": "favor"}).encoder
    reader, x = performer.reader, made_cells()
    weights = x.toarray() * (20 / np.linalg.norm(x.toarray(), axis=1, keepdims=True))
    exact = (
        weights
        @ reader.attention.gene_table(performer.keys_GD, performer.vectors_GD).detach().numpy()
    )
    stored = torch.from_numpy(performer.sums_of(x))
    num_keys = reader.attention.num_features
    assert stored.shape[1] == MODEL.dim + num_keys + 5
    found = reader.all_sums(stored).numpy()
    np.testing.assert_allclose(found[:, :num_keys], exact[:, :num_keys], rtol=1e-4)
    others = exact[:, num_keys:]
    lost = np.linalg.norm(found[:, num_keys:] - others) / np.linalg.norm(others)
    values = np.linalg.svd(others, compute_uv=False)
    assert lost == pytest.approx(np.linalg.norm(values[5:]) / np.linalg.norm(values), rel=1e-3)
    assert lost > 0.01
