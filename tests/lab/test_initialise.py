"""An encoder as the start of another: options, weights by gene, what learns on, and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_counts
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from support.logs import said
from support.refusal import refusal
from support.words import as_options

import scperformer
from scperformer.attention.registry import MECHANISMS
from scperformer.cells.normalisation import align
from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference import make_reference
from scperformer.cli.compose import make_config
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder
from scperformer.lab.initialise import load_encoder, start_encoder, start_head
from scperformer.lab.supervised import Learner, TokenEncoder
from scperformer.model.bundle import OriginalModel
from scperformer.model.folder import read_model
from scperformer.model.minibatches import Cells
from scperformer.training import strategies
from scperformer.training.train import settled

FAST = ["data.min_genes=0", "logger=none", "trainer.max_epochs=1"]
SHAPE = ["model=tiny", "tokens=bins", "model.dim=16", "model.depth=2", "attention=softmax"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """An encoder of 150 of the 200 genes, in another order."""
    adata = make_counts()[:, np.random.default_rng(1).permutation(200)[:150]].copy()
    folder = tmp_path_factory.mktemp("pretrained") / "start"
    return scperformer.pretrain(adata, output=folder, options=as_options([*FAST, *SHAPE])).path


def config(init, *overrides):
    return make_config(
        "train", ["inputs=[a.h5ad]", "label_key=cell_type", f"init='{init}'", *FAST, *overrides]
    )


def adopt_options(cfg):
    return TokenEncoder(cfg).cfg


def trained(cells, output: Path, *words: str) -> Path:
    return scperformer.train(
        cells, "cell_type", output=output, options=as_options([*FAST, *words])
    ).path


def new_network(reference, cfg):
    network = strategies.new_network(reference, cfg)
    start_encoder(network.encoder, reference.genes, cfg.model, TokenEncoder(cfg).init)
    return network


def started(counts_adata, init, *overrides):
    encoder = TokenEncoder(config(init, *overrides))
    reference = encoder.ordered(make_reference([OpenedCells(counts_adata, encoder.cfg, "a.h5ad")]))
    return reference, new_network(reference, encoder.cfg), encoder.cfg


def test_the_default_of_training_is_no_encoder_and_gives_way(pretrained):
    """`train` fits a model without layers by default; what is given beside `init` stays as it was given."""
    cfg = adopt_options(config(pretrained))
    assert (cfg.model.positions, cfg.head) == ("gene", HeadConfig())
    cfg = adopt_options(
        config(pretrained, "model.dropout=0.3", "model.linear=false", "head.hidden=[8]")
    )
    assert (cfg.model.dropout, cfg.model.linear, cfg.head) == (0.3, False, HeadConfig(hidden=[8]))
    cfg = adopt_options(config(pretrained, "model=tiny", "head=cls", "model.gene_dropout=0.1"))
    assert (cfg.model.gene_dropout, cfg.head) == (0.1, HeadConfig(name="cls"))


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("model.dim=64", ["model.dim=64", "model.dim=16"]),
        ("attention=rbf", ["attention.name=rbf", "attention.name=softmax"]),
        ("model.encoder=false", ["model.encoder=false"]),
    ],
)
def test_contradictions_are_refused(pretrained, override, values):
    with refusal("encoder-options", *values):
        adopt_options(config(pretrained, override))


@pytest.mark.slow
def test_folders_that_are_no_start(tmp_path, counts_adata):
    with refusal("no-encoder", "bundle.json", "none"):
        adopt_options(config(tmp_path / "none"))
    with refusal("no-encoder", "linear", "model.encoder=false"):
        adopt_options(config(trained(counts_adata, tmp_path / "linear", "model.encoder=false")))
    with refusal("encoder-kind", "default"):
        adopt_options(config(trained(counts_adata, tmp_path / "default", "trainer.max_steps=2")))


@pytest.mark.parametrize("name", MECHANISMS)
def test_encoders_of_every_mechanism_say_the_same_of_the_genes_they_know(name, pretrained):
    """In another order and beside new genes that no cell expresses."""
    tokens, model, attention = TokensConfig(), ModelConfig(), {"name": name}
    if name in ("linformer", "conv"):
        attention["projected_length"] = 8
    torch.manual_seed(0)
    old = Encoder(30, tokens, model, attention, torch.Generator().manual_seed(0)).eval()
    genes = [f"G{i}" for i in range(30)]
    weights = {f"model.encoder.{key}": tensor.numpy() for key, tensor in old.state_dict().items()}
    saved = replace(read_model(pretrained), genes=genes, weights=weights)
    mechanism = old.mechanisms[0]
    more = [*genes, "NEW1", "NEW2"]
    if not mechanism.order_sensitive:  # `ordered` gives the others the order that they know
        more = [more[i] for i in np.random.default_rng(0).permutation(32)]
    torch.manual_seed(1)
    new = Encoder(32, tokens, model, attention, torch.Generator().manual_seed(1)).eval()
    load_encoder(new, saved, more, "x")
    x = csr_matrix(
        np.random.default_rng(0).gamma(1, 2, (1, 30)) * (np.arange(30) % 3 > 0), dtype=np.float32
    )
    with torch.no_grad():
        before = old(Cells(x, tokens).batch([0]))[0]
        after = new(
            Cells(
                align(x, np.array([more.index(gene) for gene in genes]), len(more)), tokens
            ).batch([0])
        )[0]
    place = {
        gene: row
        for row, gene in enumerate(
            gene for gene in more if gene in genes and x[0, genes.index(gene)]
        )
    }
    rows = [place[gene] for gene in genes if x[0, genes.index(gene)]]
    torch.testing.assert_close(after[[*rows, -1]], before, rtol=1e-4, atol=1e-5)


def test_too_few_known_genes(pretrained, counts_adata):
    counts_adata.var_names = [f"OTHER{i}" for i in range(195)] + [f"GENE{i}" for i in range(5)]
    with refusal("few-genes"):
        started(counts_adata, pretrained)
    counts_adata.var_names = [f"ENSG{i:011d}" for i in range(200)]
    with refusal("few-genes"):
        started(counts_adata, pretrained)


@pytest.mark.parametrize(
    "mode",
    ["last_layer", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("full", "head"))],
)
def test_only_what_is_to_learn_does(pretrained, counts_adata, tmp_path, mode):
    words = [
        f"init='{pretrained}'",
        f"init_mode={mode}",
        "model.gene_dropout=0",
        "model.linear=false",
    ]
    folder = trained(counts_adata, tmp_path / "m", *words)
    before, after = read_model(pretrained), read_model(folder)
    _, network, _ = started(counts_adata, pretrained, f"init_mode={mode}", "model.linear=false")
    start = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    moved = {name for name in start if not np.array_equal(start[name], after.weights[name])}
    encoder = {name for name in moved if name.startswith("model.encoder.")}
    last = {
        name
        for name in start
        if name.startswith(("model.encoder.layers.1.", "model.encoder.norm."))
    }
    assert "model.head.labels.weight" in moved
    if mode == "full":
        assert {name for name in start if name.startswith("model.encoder.")} == encoder
    else:
        assert encoder == (last if mode == "last_layer" else set())
    record = OriginalModel(
        name="start", hash=before.hash, num_known_genes=len(before.genes), mode=mode
    )
    assert after.provenance.init == record
    assert after.provenance.options["init"] == "start"
    assert str(pretrained.parent) not in (folder / "bundle.json").read_text()


def test_logits_are_those_of_logistic_regression(counts_adata, tiny_model):
    words = [
        "inputs=[a.h5ad]",
        "label_key=cell_type",
        "model=tiny",
        f"init='{tiny_model}'",
        "head=cls",
    ]
    cfg = make_config(
        "train", [*words, "model.linear=false", "model.gene_dropout=0", "model.dropout=0"]
    )
    reference = make_reference([OpenedCells(counts_adata, cfg, "a.h5ad")])
    network, cells = new_network(reference, cfg), Cells(reference.x, cfg.tokens, reference.labels)
    batch = cells.batch(np.arange(len(cells)))
    with torch.no_grad():
        seen = network.eval().pool(network.encoder(batch), batch).numpy()
    start_head(Learner(network, cells.known_labels, cfg), cells, cfg)
    assert network.training
    estimator = make_pipeline(
        StandardScaler(), LogisticRegression(C=10, class_weight="balanced", max_iter=1000)
    )
    wanted = estimator.fit(seen, cells.known_labels).decision_function(seen)
    network.eval()
    with torch.no_grad():
        _, encoder, _ = network.branches(batch)
    # both stop at a small gradient
    np.testing.assert_allclose(encoder, wanted, atol=1e-2 * np.abs(wanted).max())
    assert (wanted.argmax(1) == cells.known_labels).mean() > 0.8  # a third would be right by chance


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        ("model=pooled attention=softmax", "attention"),
        ("trainer.max_epochs=5 trainer.devices=2", "trainer.max_epochs, trainer.devices"),
        ("model=tiny tokens=bins", None),
    ],
)
def test_options_without_effect_are_named(words, ignored, caplog):
    settled(make_config("train", ["inputs=[a.h5ad]", "label_key=x", *words.split()]))
    text = said(caplog, "settled")
    assert ignored in text if ignored else not text
