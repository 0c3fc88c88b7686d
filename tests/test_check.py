"""The input doctor: its verdict on each file, and the words in which it gives it."""

import json

import numpy as np
import pandas as pd
import pytest

from scperformer import bundle
from scperformer.check import label_columns, require_labels, run_check
from scperformer.config import CheckConfig
from scperformer.errors import InputError


class Model:
    """A stand-in with what check looks at."""

    name = "toy"
    kind = bundle.ANNOTATOR
    genes = [f"GENE{i}" for i in range(0, 250, 2)]  # noqa: RUF012
    importance = None


load_bundle = bundle.load_bundle


@pytest.fixture(autouse=True)
def _model(monkeypatch):
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    monkeypatch.setattr(bundle, "load_bundle", lambda path: Model)


# labels


def test_label_columns_are_those_with_few_values(counts_adata):
    obs = counts_adata.obs
    obs["donor"] = np.repeat(["d1", "d2"], 60)
    obs["cluster"] = np.arange(120) % 7
    obs["flag"] = np.arange(120) < 5
    obs["constant"] = "x"
    obs["barcode"] = obs.index
    obs["score"] = np.linspace(0, 1, 120)
    assert label_columns(counts_adata) == {"cell_type": 3, "donor": 2, "flag": 2}


def test_labels_are_strings_and_blank_ones_missing(counts_adata):
    values = [" T cell ", "", "  ", None, np.nan, 7] + ["B"] * 114
    counts_adata.obs["mixed"] = pd.Series(values, index=counts_adata.obs_names, dtype=object)
    labels = require_labels(counts_adata, "mixed", "r.h5ad")
    assert labels.iloc[0] == "T cell"
    assert labels.iloc[1:5].isna().all()
    assert labels.iloc[5] == "7"
    assert list(labels.index) == list(counts_adata.obs_names)


def test_labels_from_categories_leave_out_unused_ones(counts_adata):
    column = counts_adata.obs["cell_type"].cat.add_categories(["unused"])
    column.iloc[0] = np.nan
    counts_adata.obs["cell_type"] = column
    labels = require_labels(counts_adata, "cell_type", "r.h5ad")
    assert labels.isna().sum() == 1
    assert set(labels.dropna()) == {"B cell", "T cell", "Monocyte"}
    assert set(labels.value_counts().index) == {"B cell", "T cell", "Monocyte"}


def test_wrong_label_key_lists_the_keys_there_are(counts_adata):
    counts_adata.obs["score"] = 0.5
    with pytest.raises(
        InputError, match=r"no column 'celltype' in obs of r.h5ad; expected cell_type \(3 values\): set"
    ):
        require_labels(counts_adata, "celltype", "r.h5ad")
    with pytest.raises(InputError, match="holds numbers with decimals"):
        require_labels(counts_adata, "score", "r.h5ad")
    counts_adata.obs["none"] = ""
    with pytest.raises(InputError, match=r"no cell of r.h5ad has a label"):
        require_labels(counts_adata, "none", "r.h5ad")
    del counts_adata.obs["cell_type"], counts_adata.obs["none"], counts_adata.obs["score"]
    with pytest.raises(InputError, match="it has none"):
        require_labels(counts_adata, "celltype", "r.h5ad")


# the step


def test_good_file(counts_adata, write, tmp_path, capsys):
    path = write(counts_adata, "my sample.h5ad")
    output = tmp_path / "check.json"
    results = run_check(CheckConfig(inputs=[str(path)], output=str(output)))
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert dict(lines) == {
        "cells": "120",
        "genes": "200, gene symbols, human",
        "expression": "counts in X",
        "obs": "columns  cell_type (3 values)",
        "model": "toy (packaged): 100 of 125 genes (80.0%) found, with 80.0% of its informative expression, "
        "not GENE200, GENE202, GENE204 ...",
        "note": "previous symbols and aliases were not looked up: 'scperformer genes update' fetches the table once",
        "ok": f"scperformer predict '{path}'",
    }
    assert results[0]["problem"] is None
    assert json.loads(output.read_text())["files"] == results
    with pytest.raises(InputError, match="exists"):
        run_check(CheckConfig(inputs=[str(path)], output=str(output)))


def test_mouse_genes_are_a_problem_with_a_remedy(counts_adata, write, capsys):
    counts_adata.var_names = [f"Gene{i}" for i in range(200)]
    path = str(write(counts_adata))
    with pytest.raises(InputError, match="1 of 1 files"):
        run_check(CheckConfig(inputs=[path]))
    out = capsys.readouterr().out
    assert "genes        200, gene symbols, mouse" in out
    assert "add species=human if these are human genes, or species=mouse to match genes by their orthologs" in out
    [result] = run_check(CheckConfig(inputs=[path], species="human"))
    assert (result["species"], result["overlap"]["num_shared"], result["overlap"]["informative_share"]) == (
        "human",
        100,
        0.8,
    )
    out = capsys.readouterr().out
    assert "note         100 names were matched in upper case" in out
    assert f"ok           scperformer predict {path} species=human" in out


def test_log_values_and_notes_are_shown(pbmc, write, capsys, monkeypatch):
    monkeypatch.setattr(Model, "genes", [*pbmc.raw.var_names, *(f"NEW{i}" for i in range(1000))])
    run_check(CheckConfig(inputs=[str(write(pbmc))]))
    out = capsys.readouterr().out
    assert "expression   log1p in raw (natural logarithm, unknown total)" in out
    assert "note         X is not used: negative values" in out
    assert "note         only 43.3% of what the model looks at is in the file: look at the labels" in out


def test_all_files_are_shown_before_the_error(counts_adata, write, capsys, tmp_path):
    good = write(counts_adata, "good.h5ad")
    renamed = counts_adata.copy()
    renamed.var_names = [f"ENSG{i:011d}" for i in range(200)]
    foreign = write(renamed, "foreign.h5ad")
    output = tmp_path / "check.json"
    files = [str(tmp_path / "missing.h5ad"), str(foreign), str(good)]
    with pytest.raises(InputError, match=r"2 of 3 files cannot be used as they are: .*missing.h5ad, .*foreign.h5ad;"):
        run_check(CheckConfig(inputs=files, output=str(output)))
    out = capsys.readouterr().out
    assert "problem      no file" in out
    assert "problem      0 of 125 model genes (0.0 %) found" in out
    assert "genes        200, Ensembl ids, human" in out
    assert "convert var_names from Ensembl ids to gene symbols" in out
    assert f"ok           scperformer predict {good}" in out
    assert [result["problem"] is None for result in json.loads(output.read_text())["files"]] == [False, False, True]


def test_reference(counts_adata, write, capsys):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].where(np.arange(120) != 3)
    counts_adata.var_names = [f"OTHER{i}" for i in range(200)]  # a reference need not fit the packaged model
    path = write(counts_adata)
    results = run_check(CheckConfig(inputs=[str(path)], label_key="cell_type"))
    out = capsys.readouterr().out
    assert "labels       3 in cell_type, 119 cells" in out
    assert "note         cells without a label: 1" in out
    assert f"ok           scperformer train {path} label_key=cell_type" in out
    assert results[0]["labels"]["cells"] == {"B cell": 39, "T cell": 40, "Monocyte": 40}


def test_rare_labels_of_a_reference_are_named_and_no_problem(counts_adata, write, capsys):
    counts_adata.obs["cell_type"] = ["rare", *["a", "b"] * 59, "a"]
    results = run_check(CheckConfig(inputs=[str(write(counts_adata))], label_key="cell_type"))
    assert results[0]["problem"] is None
    assert results[0]["labels"]["rare"] == {"rare": 1}
    out = capsys.readouterr().out
    assert "note         1 label has fewer than 2 cells: 'rare' (1) (trained on but not validated; data.rare" in out
    assert "ok           scperformer train" in out


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda obs: obs.rename(columns={"cell_type": "other"}),
            r"no column 'cell_type' .* expected other \(3 values\)",
        ),
        (lambda obs: obs.assign(cell_type="same"), "one label in obs"),
    ],
    ids=["key", "one"],
)
def test_bad_reference(counts_adata, write, capsys, change, match):
    counts_adata.obs = change(counts_adata.obs)
    with pytest.raises(InputError, match="1 of 1 files cannot be used"):
        run_check(CheckConfig(inputs=[str(write(counts_adata))], label_key="cell_type"))
    assert pd.Series([capsys.readouterr().out]).str.contains(match).all()


@pytest.mark.skipif(not bundle.PACKAGED.is_dir(), reason="the packaged model has not been trained")
def test_packaged_model(pbmc, write, monkeypatch, capsys):
    monkeypatch.setattr(bundle, "load_bundle", load_bundle)
    results = run_check(CheckConfig(inputs=[str(write(pbmc))]))
    assert results[0]["overlap"]["share_of_model"] == 1.0
    assert "pbmc68k_reduced (packaged): 765 of 765 genes (100.0%) found, with 100.0% of" in capsys.readouterr().out
