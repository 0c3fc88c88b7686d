"""Pretraining from files to a folder, by hand and from the shell, and what such a folder is good for."""

import json
import re
from pathlib import Path

import pytest
from conftest import make_counts
from support.logs import said
from support.words import as_options

import scperformer
from scperformer.base.inputs import sha256
from scperformer.cli.compose import make_config
from scperformer.cli.pretrain import run as run_pretrain
from scperformer.model.content import INFO, to_json
from scperformer.model.folder import CARD, read_model

FAST = ["model=tiny", "trainer.max_epochs=1", "logger=none", "data.min_genes=0"]


def config(*paths, overrides=()):
    inputs = ",".join(f"'{path}'" for path in paths)
    return make_config("pretrain", [f"inputs=[{inputs}]", *FAST, *overrides])


@pytest.fixture
def corpus(counts_adata, write):
    """Two files of half of the cells each; no labels."""
    del counts_adata.obs["cell_type"]
    return [write(counts_adata[start::2].copy(), f"part{start}.h5ad") for start in (0, 1)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """An encoder of the cells of `make_counts`; tests that change it copy it first."""
    output = tmp_path_factory.mktemp("encoder") / "enc"
    return scperformer.pretrain(make_counts(), output=output, options=as_options(FAST)).path


@pytest.mark.parametrize(
    "words", [["predict"], ["check"], ["analyze", "spectrum"]], ids=lambda words: words[0]
)
def test_an_encoder_cannot_annotate(refused, corpus, encoder, words):
    line = refused(*words, corpus[0], f"model_path={encoder}")
    assert line.startswith(f"error: an encoder without labels at '{encoder}'; expected a model")
    assert line.endswith(f"scperformer train REFERENCE label_key=COLUMN init={encoder}.")


def test_the_folder_says_everything(corpus, tmp_path):
    output = run_pretrain(
        config(*corpus, overrides=[f"output='{tmp_path / 'enc'}'", "seed=3", "tokens=bins"])
    )
    saved = read_model(output)
    assert saved.labels == []
    made = saved.provenance
    assert [file["name"] for file in made.corpus] == ["part0.h5ad", "part1.h5ad"]
    assert [file["sha256"] for file in made.corpus] == [sha256(path) for path in corpus]
    assert [file["num_cells"] for file in made.corpus] == [60, 60]
    assert made.corpus[0]["input"] == "counts from X, as ln(1 + counts per 10,000)"
    assert (made.num_cells, made.seed, saved.metrics.num_val_cells) == (120, 3, 12)
    assert {"loss", "naive_loss", "best_epoch", "seconds"} <= set(to_json(saved.metrics))
    assert str(tmp_path) not in (output / INFO).read_text()
    card = (output / CARD).read_text()
    assert "it cannot annotate" in card
    names = {
        ".scperformer.json",
        "config.yaml",
        "metrics.csv",
        "metrics.json",
        "provenance.json",
        "run.json",
    }
    assert {path.name for path in (tmp_path / "enc.run").iterdir()} == names
    assert json.loads((tmp_path / "enc.run" / "provenance.json").read_text()) == to_json(made)
    assert all(name.startswith(("model.encoder.", "pretraining.")) for name in saved.weights)


def test_the_page_on_formats_names_what_is_written(encoder):
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    info = json.loads((encoder / INFO).read_text())
    written = [
        *info,
        *info["metrics"],
        *info["provenance"],
        *info["provenance"]["corpus"][0],
        "init",
        "genes",
    ]
    assert [name for name in written if f"`{name}`" not in page] == []


def test_genes_path_gives_the_genes(corpus, tmp_path):
    (tmp_path / "genes.txt").write_text(
        "GENE7\nABSENT\n" + "\n".join(f"GENE{i}" for i in range(40, 60)) + "\n"
    )
    output = run_pretrain(config(*corpus, overrides=[f"genes_path='{tmp_path / 'genes.txt'}'"]))
    assert output == corpus[0].with_suffix(".encoder")  # the default: beside the first file
    saved = read_model(output)
    assert saved.name == "part0"
    assert saved.genes[:3] == ["GENE7", "ABSENT", "GENE40"]
    assert saved.provenance.options["genes_path"] == "genes.txt"


def test_learning_nothing_is_said(corpus, tmp_path, caplog):
    output = run_pretrain(config(*corpus, overrides=["optim.lr=1e-9"]))
    assert said(caplog, "pretrain_on", "WARNING", "optim.lr")
    assert "**it has learned nothing" in (output / CARD).read_text()


REFUSED = {
    "no file": ([], [], r"no input file; expected at least one file: .*scperformer pretrain"),
    "both": (
        ["part0.h5ad"],
        ["init=x", "genes_path=y"],
        "genes_path=y; expected no genes_path beside init",
    ),
    "no vectors": (["part0.h5ad"], ["model=scbert"], r"no model\.gene2vec_path"),
    "memory": (
        ["part0.h5ad"],
        ["tokens.unexpressed=memory", "attention=softmax"],
        "unexpressed=memory with",
    ),
    "diverges": (["part0.h5ad"], ["optim.lr=1e12"], r"diverged.*lower optim\.lr"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(command, corpus, tmp_path, case):
    files, options, message = REFUSED[case]
    ran = command("pretrain", *files, *FAST, *options, "output=enc")
    assert ran.code == 2
    assert re.search(message, ran.err.splitlines()[-1])
    assert not list(tmp_path.glob("enc*"))
