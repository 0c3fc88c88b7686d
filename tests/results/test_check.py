"""The check of files: its verdict, its text and its JSON."""

import json
import re
import shlex
from pathlib import Path
from uuid import uuid4

import anndata as ad
import h5py
import numpy as np
import pytest
from support.inputs import WRITERS
from support.refusal import refusal
from support.tissues import cells_of_tissue

from scperformer.base.errors import InputError
from scperformer.cli.check import CheckConfig
from scperformer.cli.check import run as run_check
from scperformer.cli.compose import make_config
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.cli.train import run as run_train
from scperformer.model.bundle import NetworkConfig
from scperformer.model.folder import read_model
from scperformer.results.check import check_all


class Model:
    """A model with only the attributes that `check` uses."""

    name = "toy"
    labels = ("a", "b")
    genes = [f"GENE{i}" for i in range(0, 250, 2)]  # noqa: RUF012
    importance = None
    is_tissue = can_be_refitted = False
    config = NetworkConfig(target_sum=1e4)


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    monkeypatch.setenv("SCPERFORMER_MODEL", "pbmc3k")
    monkeypatch.setattr("scperformer.results.check.read_model", lambda path: Model)


def checked(*paths, **options) -> list[dict]:
    """Return the findings about files."""
    return run_check(CheckConfig(inputs=list(map(str, paths)), **options))


# The step


def test_good_file(counts_adata, write, tmp_path, capsys):
    path = write(counts_adata, "my sample.h5ad")
    output = tmp_path / "check.json"
    results = checked(path, output=str(output))
    lines = [(line[2:15].strip(), line[15:]) for line in capsys.readouterr().out.splitlines()[1:-1]]
    num_genes, num_counts = (
        np.median(np.asarray(x)) for x in (counts_adata.X.getnnz(1), counts_adata.X.sum(1))
    )
    assert dict(lines) == {
        "cells": "120",
        "genes": "200, gene symbols, human",
        "expression": "counts in X: the only matrix",
        "quality": f"median {num_genes:,.0f} genes and {num_counts:,.0f} counts per cell",
        "obs columns": "cell_type (3 values)",
        "model": "toy (packaged): 100 of 125 genes found (80.0%), with 80.0% of its informative expression; "
        "missing: GENE200, GENE202, GENE204 ...",
        "ok": f"scperformer predict '{path}'",
    }
    assert results[0]["problem"] is None
    assert json.loads(output.read_text())["files"] == results
    with refusal("output-exists"):
        checked(path, output=str(output))


def test_mouse_genes_are_refused_with_a_remedy(counts_adata, write, capsys):
    counts_adata.var_names = [f"Gene{i}" for i in range(200)]
    path = str(write(counts_adata))
    with refusal("files-refused"):
        checked(path)
    out = capsys.readouterr().out
    assert "genes        200, gene symbols, mouse" in out
    assert (
        "add species=human if these are human genes, or species=mouse to match genes by their orthologs"
        in out
    )
    [result] = checked(path, species="human")
    assert result["species"] == "human"
    assert (result["overlap"]["num_shared"], result["overlap"]["informative_share"]) == (100, 0.8)
    out = capsys.readouterr().out
    assert "note         100 names were matched in upper case" in out
    assert f"ok           scperformer predict {path} species=human" in out


def test_all_files_are_shown_before_the_error(counts_adata, write, capsys, tmp_path):
    good = write(counts_adata, "good.h5ad")
    renamed = counts_adata.copy()
    renamed.var_names = [f"ENSG{i:011d}" for i in range(200)]
    foreign = write(renamed, "foreign.h5ad")
    output = tmp_path / "check.json"
    files = [str(tmp_path / "missing.h5ad"), str(foreign), str(good)]
    with refusal("files-refused"):
        checked(*files, output=str(output))
    out = capsys.readouterr().out
    assert "problem      no file" in out
    assert "problem      0 of 125 model genes (0.0 %) found" in out
    assert "model        toy (packaged): 0 of 125 genes found (0.0%)" in out
    assert "genes        200, Ensembl ids, human" in out
    assert "convert var_names from Ensembl ids to gene symbols" in out
    assert f"ok           scperformer predict {good}" in out
    assert [result["problem"] is None for result in json.loads(output.read_text())["files"]] == [
        False,
        False,
        True,
    ]


def test_reference(counts_adata, write, capsys):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].where(np.arange(120) != 3)
    # a reference need not fit the packaged model
    counts_adata.var_names = [f"OTHER{i}" for i in range(200)]
    path = write(counts_adata)
    checked(path, label_key="cell_type")
    out = capsys.readouterr().out
    assert "labels       3 in cell_type, 119 cells; 1 cells without a label" in out
    assert f"ok           scperformer train {path} label_key=cell_type" in out


def test_profiles_are_noted(counts_adata, write, capsys):
    path = write(counts_adata[:3].copy())  # a row of each label
    checked(path, label_key="cell_type")
    assert "rows are profiles, from which train simulates cells" in capsys.readouterr().out


# The text


def test_each_matrix_has_a_row_and_the_used_matrix_a_reason(counts_adata, write, capsys):
    adata = counts_adata
    adata.layers["counts"] = adata.X.copy()
    adata.X = np.log1p(adata.X.toarray() * (1e4 / adata.X.sum(axis=1)).A)
    adata.layers["scaled"] = adata.X - adata.X.mean(axis=0)
    adata.layers["unspliced"] = adata.layers["counts"]
    [result] = checked(write(adata))
    out = capsys.readouterr().out
    assert "expression   counts in layers/counts: counts are preferred" in out
    assert "not used     X: log1p (natural logarithm, 10000 counts per cell)" in out
    assert "not used     layers/scaled: negative values" in out
    assert "not used     layers/unspliced: a part of the counts by its name" in out
    assert list(result["findings"]["unused"]) == ["X", "layers/scaled", "layers/unspliced"]


def test_the_findings_as_json(command, counts_adata, pbmc, write, tmp_path):
    """Also for files with problems, without counts, and with empty cells."""
    empty = counts_adata.copy()
    empty.X = empty.X * 0
    few = counts_adata[:3].copy()
    files = [
        write(pbmc, "pbmc.h5ad"),
        write(empty, "empty.h5ad"),
        write(few, "few.h5ad"),
        tmp_path / "none.h5ad",
    ]
    assert command("check", *files, "output=check.json").code == 2
    text = (tmp_path / "check.json").read_text()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert [result["problem"] is None for result in found["files"]] == [False, False, True, False]
    assert {result["file"] for result in found["files"]} == set(map(str, files))


def test_existing_output_is_noted(counts_adata, write, capsys):
    path = write(counts_adata)
    path.with_suffix(".annotated.h5ad").touch()
    (result,) = checked(path)
    assert result["problem"] is None
    assert (
        "sample.annotated.h5ad exists: predict needs output=..., or overwrite=true"
        in capsys.readouterr().out
    )
    assert result["command"] == shlex.join(["scperformer", "predict", str(path), "output=NEW_NAME"])


def test_unreadable_obs_is_only_a_note(counts_adata, write, capsys):
    path = write(counts_adata)
    with h5py.File(path, "r+") as file:
        file["obs/cell_type"].attrs["encoding-type"] = "something new"
    assert checked(path)[0]["label_columns"] is None
    assert "the columns of obs cannot be read" in capsys.readouterr().out


# `check` accepts and refuses the same files as predict and train


def with_ids(counts_adata) -> ad.AnnData:
    """Return the cells with everything that the writers of all file kinds need."""
    counts_adata.var["gene_ids"] = [f"ENSG{i:011d}" for i in range(200)]
    counts_adata.obs["label"] = counts_adata.obs["cell_type"].astype(str)
    counts_adata.X = counts_adata.X.astype(np.int64)
    return counts_adata


def mixed(adata) -> None:
    x = adata.X.astype(np.float64).toarray()
    x[::2] = np.log1p(x[::2] * (1e4 / x[::2].sum(axis=1, keepdims=True)))
    adata.X = x


def nan(adata) -> None:
    adata.X = adata.X.astype(np.float64)
    adata.X.data[3] = np.nan


def named(*names):
    def change(adata) -> None:
        adata.var_names = [*names, *(f"OTHER{i}" for i in range(200 - len(names)))]

    return change


def mouse(adata) -> None:
    adata.var_names = [f"Gene{i}" for i in range(200)]


def annotated(adata) -> None:
    adata.obs["scperformer_label"] = "B"


CONTENTS = {
    "good": lambda adata: None,
    "mixed": mixed,
    "nan": nan,
    "zeros": lambda adata: setattr(adata, "X", adata.X * 0),
    "few of the genes": named(*(f"GENE{i}" for i in range(140, 200))),
    "none of the genes": named(),
    "genes twice": lambda adata: setattr(adata, "var_names", ["GENE7", *adata.var_names[1:]]),
    "mouse": mouse,
    "annotated before": annotated,
}


def refused(run, cfg) -> str | None:
    """Return the message with which a step refuses its input; None if it accepts it."""
    try:
        run(cfg)
    except InputError as error:
        return str(error)
    return None


@pytest.fixture
def agree(tiny_model, tmp_path, monkeypatch):
    """Run `check` and the next step on a file, which both accept or both refuse it; return the findings of `check`."""
    monkeypatch.setattr("scperformer.results.check.read_model", read_model)
    output = tmp_path / "check.json"

    def run(path, label_key=None, **more) -> dict:
        options = {"inputs": [str(path)], "model_path": str(tiny_model), **more}
        cfg = CheckConfig(**options, label_key=label_key, output=str(output), overwrite=True)
        verdict = refused(run_check, cfg)
        [result] = json.loads(output.read_text())["files"]
        if label_key is None:
            cfg = PredictConfig(**options, output=str(tmp_path / f"{uuid4().hex}.h5ad"))
            message = refused(run_predict, cfg)
        else:
            words = ["experiment=linear", "logger=none", f"output='{tmp_path / uuid4().hex}'"]
            words += [f"inputs=['{path}']", f"label_key='{label_key}'"]
            message = refused(run_train, make_config("train", words))
        assert (verdict is None) == (message is None), f"{result['problem']} / {message}"
        assert (result["problem"] is None) == (result["command"] is not None) == (verdict is None)
        return result

    return run


@pytest.mark.parametrize("content", CONTENTS)
def test_verdict_of_predict(content, counts_adata, write, agree):
    CONTENTS[content](counts_adata)
    result = agree(write(counts_adata))
    assert (result["problem"] is None) == (content in ("good", "genes twice"))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (i % 2)) for i, kind in enumerate(WRITERS)],
)
def test_verdict_of_predict_on_every_kind(kind, counts_adata, tmp_path, agree):
    assert agree(WRITERS[kind](with_ids(counts_adata), tmp_path))["problem"] is None


SLOW = pytest.mark.slow  # trains a model; a test alike is in the default suite


@pytest.mark.parametrize(
    "content",
    [
        *(pytest.param(content, marks=SLOW) for content in ("good", "none of the genes")),
        *("mixed", "mouse"),
    ],
)
def test_verdict_of_train(content, counts_adata, write, agree):
    CONTENTS[content](counts_adata)
    result = agree(write(counts_adata), label_key="cell_type")
    assert (result["problem"] is None) == (content in ("good", "none of the genes", "mouse"))


REFERENCES = {
    "one label": lambda adata: setattr(adata, "obs", adata.obs.assign(cell_type="same")),
    "rare": lambda adata: setattr(
        adata, "obs", adata.obs.assign(cell_type=["rare", "also", *["a", "b"] * 59])
    ),
    "other column": lambda adata: setattr(
        adata, "obs", adata.obs.rename(columns={"cell_type": "other"})
    ),
}


@pytest.mark.parametrize("content", ["one label", pytest.param("rare", marks=SLOW), "other column"])
def test_verdict_of_train_on_labels(content, counts_adata, write, agree):
    REFERENCES[content](counts_adata)
    assert (agree(write(counts_adata), label_key="cell_type")["problem"] is None) == (
        content == "rare"
    )


# The recommended commands work


def codes(result, command, *options) -> list[int]:
    """Run the recommended commands, and return their exit codes."""
    return [
        command(*shlex.split(line)[1:], f"output=out{i}.h5ad", *options).code
        for i, line in enumerate(result["fixes"])
    ]


@pytest.mark.parametrize(
    "content", [pytest.param("few of the genes", marks=SLOW), "mouse", "annotated before"]
)
def test_recommended_options_fix_the_problem(
    content, counts_adata, write, tiny_model, command, monkeypatch
):
    monkeypatch.setattr("scperformer.results.check.read_model", read_model)
    CONTENTS[content](counts_adata)
    path = write(counts_adata, "my sample.h5ad")
    assert command("check", path, f"model_path={tiny_model}", "output=check.json").code == 2
    [result] = json.loads(Path("check.json").read_text())["files"]
    # The symbols of the toy model have no orthologs, so that only one of the two options helps.
    assert (
        codes(result, command)
        == {"few of the genes": [0], "mouse": [2, 0], "annotated before": [0, 0]}[content]
    )


def test_recommended_layer_and_label_column(counts_adata, write, agree, command):
    counts_adata.obs["my labels"] = counts_adata.obs.pop("cell_type")
    path = write(counts_adata)
    assert codes(agree(path, source="layers/counts"), command) == [0]
    result = agree(path, label_key="cell_type")
    assert [shlex.split(line)[3] for line in result["fixes"]] == ["label_key=my labels"]
    linear = ("experiment=linear", "logger=none", "output=model")
    assert command(*shlex.split(result["fixes"][0])[1:], *linear).code == 0


def test_names_in_the_file_cannot_control_the_terminal(counts_adata, write, tiny_model, command):
    counts_adata.obs["\x1b[31mcolumn\x1b[2J" + "x" * 5000] = ["a", "b", "c"] * 40
    counts_adata.layers["\x1b[2Jlayer" + "y" * 5000] = counts_adata.X
    path = write(counts_adata)
    out = command("check", path, f"model_path={tiny_model}").out
    assert "\x1b" not in out
    assert "column" in out
    assert max(map(len, out.splitlines())) < 500


def test_verdict_of_predict_in_a_folder_that_cannot_be_written(
    counts_adata, write, tiny_model, monkeypatch
):
    monkeypatch.setattr("scperformer.results.check.read_model", read_model)
    path = write(counts_adata)
    monkeypatch.setattr("scperformer.base.outputs.os.access", lambda *_: False)
    [result] = check_all(
        [str(path)], CheckConfig(inputs=[str(path)], model_path=str(tiny_model))
    ).files
    assert "cannot be written" in result["problem"]
    assert "cannot be written" in refused(
        run_predict, PredictConfig(inputs=[str(path)], model_path=str(tiny_model))
    )


def test_an_unfiltered_matrix_is_noted_and_described_by_its_cells(
    raw_pbmc, few_pbmc, write, monkeypatch, capsys
):
    monkeypatch.setattr("scperformer.results.check.read_model", read_model)
    (expected,) = checked(write(few_pbmc, "cells.h5ad"))
    (result,) = checked(write(raw_pbmc, "raw.h5ad"))
    for name in ("quality", "problem"):
        assert result[name] == expected[name]
    assert "droplets" not in expected
    assert result["droplets"]["num_empty"] == 600
    out = capsys.readouterr().out
    assert "91 % of barcodes have fewer than" in out
    assert "this looks like the unfiltered matrix" in out
    assert f"measured on 60 barcodes with {result['droplets']['floor']} counts or more" in out


# Without a model


def test_the_tissue_is_found(write, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("SCPERFORMER_MODEL")
    path = write(cells_of_tissue("pancreas"))
    output = tmp_path / "check.json"
    [result] = checked(path, output=str(output))
    out = capsys.readouterr().out
    assert re.search(
        r"tissue       pancreas \(adult human\), by \S.* cell \(\d+ of 72 cells\), ", out
    )
    assert re.search(r"model        profiles of pancreas: (\S+) of \1 genes found \(100.0%\)", out)
    assert f"ok           scperformer predict {path}\n" in out
    assert json.loads(output.read_text()) == {"model": None, "files": [result]}
    assert (result["tissue"]["name"], len(result["tissue"]["next"])) == ("pancreas", 2)
    assert max(result["tissue"]["next_scores"]) < result["tissue"]["score"]

    [result] = checked(path, tissue="Lung")  # also beside $SCPERFORMER_MODEL
    monkeypatch.setenv("SCPERFORMER_MODEL", "pbmc3k")
    assert checked(path, tissue="Lung") == [result]
    assert result["rows"]["tissue"] == ["lung (adult human), as given"]
    assert result["command"] == f"scperformer predict {path} tissue=Lung"
    with refusal("tissue-and-model"):
        CheckConfig(inputs=["a"], tissue="lung", model_path="b")


def test_cells_of_no_tissue_are_refused_as_by_predict(write, monkeypatch, refused):
    cells = cells_of_tissue("pancreas", 3)
    cells.X = cells.X[:, np.random.default_rng(0).permutation(cells.n_vars)]
    path = write(cells)
    monkeypatch.delenv("SCPERFORMER_MODEL")
    problem = check_all([str(path)], CheckConfig(inputs=[str(path)])).problems[0]
    assert "resemble no tissue of the collection (most like" in problem
    assert refused("predict", path) == f"error: {problem}"
