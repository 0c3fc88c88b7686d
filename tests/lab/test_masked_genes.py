"""Masked pretraining of a Performer: hidden genes, predictions against loops in float64, and training from it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import make_counts
from scipy.sparse import csr_matrix
from support.masked import NUM_CELLS, NUM_GENES, batch_of, expression
from support.words import as_options

import scperformer
from scperformer.base.errors import InputError
from scperformer.cli.compose import make_config
from scperformer.config.training import TokensConfig
from scperformer.lab.pretrain import (
    MaskedGenesLearner,
    MaskedPerformer,
    expression_of,
    hide_genes,
    new_masked_performer,
    train_masked,
)
from scperformer.model.batches import Cells
from scperformer.model.folder import CARD, read_model

FAST = ["logger=none", "data.min_genes=0", "trainer.max_epochs=2"]
GENES = [f"GENE{number}" for number in range(NUM_GENES)]
KINDS = ["attention=favor", "attention=rbf"]


def config(*overrides):
    return make_config("pretrain", ["inputs=[a.h5ad]", *FAST, "model.dim=16", *overrides])


def made(*overrides) -> MaskedPerformer:
    """A network in eval mode, whose layers do not start at 0."""
    network = new_masked_performer(GENES, expression(), config(*overrides), None)
    torch.manual_seed(1)
    for layer in (*network.encoder.reader.stack, network.layer):
        torch.nn.init.normal_(layer.to_out.weight, std=0.3)
    return network.eval()


@pytest.mark.parametrize("attention", KINDS)
def test_predictions_are_those_of_loops_over_cells_genes_and_heads(attention):
    network = made(attention).double()
    encoder = network.encoder
    keys, values, mean_X = encoder.keys_GD, encoder.vectors_GD, encoder.reader.mean_X
    batch = batch_of(expression(5), TokensConfig())
    batch.x_BL = batch.x_BL.double()
    seen, genes_K = hide_genes(batch, NUM_GENES, share=0.3, seed=0)
    cells_BD = encoder(seen)
    # The weights of the mean cell's genes are not kept, but their sums are.
    mean_BHMN = mean_X[16:].view(-1, encoder.reader.attention.size, 17)

    def features(vectors_ND, head, queries):
        parts = vectors_ND.expand(1, 2, -1, -1)
        return torch.exp2(encoder.reader.attention.features(parts, queries=queries))[0, head]

    wanted = torch.zeros(5, len(genes_K), dtype=torch.float64)
    for cell in range(5):
        x_G = torch.zeros(NUM_GENES, dtype=torch.float64)
        for gene, value in zip(seen.genes_BL[cell].tolist(), seen.x_BL[cell].tolist(), strict=True):
            if value:
                x_G[gene] = value
        x_G *= 20 / x_G.norm()
        for place, gene in enumerate(genes_K.tolist()):
            assert x_G[gene] == 0
            queries = network.layer.queries((cells_BD[cell] + keys[gene])[None])[0]
            read = []
            for head, query in enumerate(queries):
                phi = features(query[None], head, True)[0]
                weights = x_G * (features(keys, head, False) @ phi)
                usual = phi @ mean_BHMN[head % len(mean_BHMN)]
                read.append(weights @ values / weights.sum() - usual[1:] / usual[0])
            h = network.layer(cells_BD[cell][None], torch.stack(read)[None] * encoder.reader.scale)[0]
            wanted[cell, place] = h @ network.output.weight[gene] + network.output.bias[gene]
    torch.testing.assert_close(network(seen, genes_K).view(5, -1), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attention", KINDS)
def test_predictions_do_not_depend_on_hidden_values(attention):
    network = made(attention)
    x = expression(8)
    genes = hide_genes(batch_of(x, TokensConfig()), NUM_GENES, share=0.3, seed=0)[1].numpy()
    other = x.toarray()
    other[:, genes] = np.random.default_rng(0).permuted(other[:, genes], axis=0) * 2 + 1
    other = csr_matrix(other)
    found = []
    for cells in (x, other):
        seen, genes_K = hide_genes(batch_of(cells, TokensConfig()), NUM_GENES, share=0.3, seed=0)
        found.append(network(seen, genes_K))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    # The control: with their values shown, the predictions differ.
    shown = network(batch_of(other, TokensConfig()), genes_K)
    assert (shown - found[0]).abs().max() > 0.1


@pytest.mark.parametrize(("share", "num"), [(0.001, 1), (0.15, 9), (1.0, NUM_GENES)])
def test_the_same_genes_are_hidden_in_all_cells_whether_expressed_or_not(share, num):
    x = expression()
    batch = batch_of(x, TokensConfig())
    seen, genes_K = hide_genes(batch, NUM_GENES, share, seed=3)
    assert len(set(genes_K.tolist())) == len(genes_K) == num
    true_BK = expression_of(batch, genes_K, NUM_GENES)
    np.testing.assert_array_equal(true_BK, x.toarray()[:, genes_K.numpy()])
    everything = torch.arange(NUM_GENES)
    left = x.toarray()
    left[:, genes_K.numpy()] = 0
    np.testing.assert_array_equal(expression_of(seen, everything, NUM_GENES), left)
    assert torch.equal(hide_genes(batch, NUM_GENES, share, seed=3)[1], genes_K)
    assert share == 1 or set(hide_genes(batch, NUM_GENES, share, seed=4)[1].tolist()) != set(genes_K.tolist())


def test_it_starts_as_the_regression_of_each_gene_on_the_cells_vectors():
    x = expression()
    network = new_masked_performer(GENES, x, config(), None).eval()
    with torch.no_grad():
        vectors = network.encoder(batch_of(x, TokensConfig())).double().numpy()
        found = network.from_sums(torch.from_numpy(network.encoder.sums_of(x)), torch.arange(NUM_GENES))
    design = np.column_stack([vectors, np.ones(NUM_CELLS)])
    wanted = design @ np.linalg.lstsq(design, x.toarray(), rcond=None)[0]
    np.testing.assert_allclose(found, wanted, atol=0.05)  # the small penalty
    assert np.abs(wanted - x.toarray().mean(axis=0)).max() > 0.5


def test_every_part_learns_and_the_loss_falls(tmp_path):
    adata = make_counts()
    x = csr_matrix(np.log1p(adata.X.toarray() if hasattr(adata.X, "toarray") else adata.X).astype(np.float32))
    labels = np.zeros(x.shape[0], dtype=np.int64)
    train, val = (Cells(x[part], TokensConfig(), labels[part]) for part in (np.arange(90), np.arange(90, 120)))
    cfg = replace(config("trainer.max_epochs=4", "trainer.batch_size=16"), init=None)
    network = new_masked_performer([str(gene) for gene in adata.var_names], train.x, cfg, None)
    before = {name: tensor.clone() for name, tensor in network.weights().items()}
    found = train_masked(MaskedGenesLearner(network, train, cfg), train, val, cfg, tmp_path)
    assert found["loss"] < found["naive_loss"]
    fixed = ("reader.attention", "reader.scale", "reader.mean_X")
    same = [name for name, tensor in network.weights().items() if torch.equal(tensor, before[name])]
    assert [name for name in same if not any(word in name for word in fixed)] == []


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A Performer of 150 of the 200 genes, in another order."""
    adata = make_counts()[:, np.random.default_rng(1).permutation(200)[:150]].copy()
    folder = tmp_path_factory.mktemp("encoder") / "enc"
    return scperformer.pretrain(adata, output=folder, options=as_options(FAST)).path


def test_train_takes_the_vectors_of_the_genes_that_it_knows(encoder, tmp_path, caplog):
    adata = make_counts()
    words = ["init=" + str(encoder), "logger=none", "data.min_genes=0", "trainer.max_steps=20"]
    with caplog.at_level("INFO", logger="scperformer"):
        path = scperformer.train(adata, "cell_type", output=tmp_path / "m", options=as_options(words)).path
    assert "encoder starts from enc, which knows 150 of 200 genes" in caplog.text
    theirs, ours = read_model(encoder), read_model(path)
    assert ours.provenance["init"]["num_known_genes"] == 150
    name = "model.encoder.embedding.gene.weight"
    place = {gene: row for row, gene in enumerate(theirs.genes)}
    known = [gene in place for gene in ours.genes]
    found = ours.weights[name][:-1]
    wanted = theirs.weights[name][[place[gene] for gene in ours.genes if gene in place]]
    factor = np.linalg.norm(found[known]) / np.linalg.norm(wanted)
    np.testing.assert_allclose(found[known], wanted * factor, rtol=1e-4, atol=1e-6)
    assert not found[np.invert(known)].any()  # a gene that the encoder does not know is no token
    annotated = scperformer.annotate(adata, scperformer.load_model(path))
    assert (annotated.obs["scperformer_label"].astype(str) == adata.obs["cell_type"].astype(str)).mean() > 0.8


def test_pretraining_goes_on_from_an_encoder(encoder, tmp_path):
    words = [*FAST, f"init={encoder}", "optim.lr=1e-9"]
    second = read_model(scperformer.pretrain(make_counts(), output=tmp_path / "two", options=as_options(words)).path)
    first = read_model(encoder)
    assert second.genes == first.genes
    record = second.provenance["init"]
    assert (record["hash"], record["num_known_genes"]) == (first.hash, len(first.genes))
    assert first.hash[:12] in (tmp_path / "two" / CARD).read_text()
    for name, weights in first.weights.items():
        np.testing.assert_allclose(second.weights[name], weights, atol=1e-6)


REFUSED = {
    "pretrain": {
        "attention=softmax": "attention=softmax; expected one that reads a table of the genes",
        "model=pooled": "model.depth=0; expected 1 or more with pretrain",
    },
    "train": {
        "init_mode=head": "init_mode=head; expected full with init=",
        "unlabelled=[a.h5ad]": r"unlabelled=.*; expected no files beside init",
        "model.positions=gene head=mean": "model.positions=gene; expected model.positions=coexpr",
    },
}


@pytest.mark.parametrize(("step", "words"), [(step, words) for step, cases in REFUSED.items() for words in cases])
def test_refusals(step, words, encoder, tmp_path):
    adata = make_counts()
    run = partial(scperformer.pretrain, adata)
    options = [*FAST, *words.split()]
    if step == "train":
        run = partial(scperformer.train, adata, "cell_type")
        options = [f"init={encoder}", *FAST, *words.split()]
    with pytest.raises(InputError, match=REFUSED[step][words]) as refused:
        run(output=tmp_path / "no", options=as_options(options))
    assert "\n" not in str(refused.value)
