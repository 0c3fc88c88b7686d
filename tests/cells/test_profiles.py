"""References of profiles and bulk samples: recognised, simulated from, trained on."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.refusal import refusal

import scperformer
from scperformer.cells import profiles
from scperformer.cells.profiles import has_profiles, simulate_cells
from scperformer.cli.compose import make_config
from scperformer.model.folder import read_model

OPTIONS = {"experiment": "linear", "data.min_genes": 1, "logger": "none"}
PATH = Path("a.h5ad")


def options(**given):
    given = {"inputs": "[a.h5ad]", "label_key": "cell_type"} | given
    return make_config("train", [f"{name}={value}" for name, value in given.items()])


@pytest.fixture
def means(counts_adata) -> ad.AnnData:
    """The mean counts per million of the cells of each label."""
    table = counts_adata.to_df().groupby(counts_adata.obs["cell_type"].to_numpy()).mean()
    table = table.div(table.sum(axis=1), axis=0) * 1e6
    obs = pd.DataFrame({"cell_type": table.index}, index=[f"row{i}" for i in range(len(table))])
    return ad.AnnData(table.to_numpy(np.float32), obs=obs, var=counts_adata.var[[]])


@pytest.fixture
def bulk() -> ad.AnnData:
    """Sorted bulk as in celldex: log2(TPM + 1), 8 samples of each of 3 labels, some of the genes left out."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["B cells", "NK cells", "Monocytes"], 8)
    tpm = np.tile(rng.lognormal(0, 2, 1500), (24, 1))
    for number, label in enumerate(dict.fromkeys(labels)):
        tpm[np.ix_(labels == label, range(100 * number, 100 * number + 100))] *= 20
    tpm *= rng.lognormal(0, 0.2, tpm.shape)
    tpm *= 1e6 / tpm.sum(axis=1, keepdims=True)
    obs = pd.DataFrame({"label.main": labels}, index=[f"GSM{i}" for i in range(24)])
    var = pd.DataFrame(index=[f"GENE{i}" for i in range(1500)])
    return ad.AnnData(np.log2(1 + tpm), obs=obs, var=var)[:, :1300].copy()


def accuracy(cells: ad.AnnData, model: Path) -> float:
    """The accuracy of a model on labelled cells."""
    found = cells.copy()
    scperformer.annotate(found, scperformer.load_model(model))
    return (found.obs["scperformer_label"] == found.obs["cell_type"]).mean()


def test_simulated_cells_have_the_means_of_their_profile(means, monkeypatch):
    monkeypatch.setattr(profiles, "CELLS_PER_LABEL", 2000)
    cells = simulate_cells(means, options(), PATH)
    assert cells.obs["cell_type"].value_counts().tolist() == [2000] * 3
    counts = cells.X.toarray()
    assert (counts == counts.astype(int)).all()
    assert np.median(counts.sum(1)) == pytest.approx(profiles.DEPTH, rel=0.05)
    shares = counts / counts.sum(1, keepdims=True)
    for row, label in enumerate(means.obs["cell_type"]):
        own = shares[(cells.obs["cell_type"] == label).to_numpy()]
        error = own.std(0) / 2000**0.5
        off = np.abs(own.mean(0) - means.X[row] / 1e6)
        # dividing by the total of a cell lowers large shares by a few per cent
        assert (off < 5 * error + 0.04 * means.X[row] / 1e6).all()


def test_bulk_samples_are_recognised_with_their_logarithm_to_base_2(bulk):
    cfg = options(label_key="label.main")
    assert has_profiles(bulk, cfg, PATH)
    cells = simulate_cells(bulk, cfg, PATH)
    assert cells.obs["label.main"].value_counts().tolist() == [152] * 3  # 19 of each sample
    for label in ("B cells", "Monocytes"):
        samples = np.exp2(bulk.X[(bulk.obs["label.main"] == label).to_numpy()]) - 1
        expected = (samples / samples.sum(1, keepdims=True)).mean(0)
        own = cells.X[(cells.obs["label.main"] == label).to_numpy()]
        found = np.asarray((own / own.sum(1)).mean(0)).ravel()
        assert np.corrcoef(np.log1p(1e4 * expected), np.log1p(1e4 * found))[0, 1] > 0.99


def test_cells_and_panels_are_no_profiles(counts_adata, means, bulk):
    cfg = options()
    assert has_profiles(means, cfg, PATH)
    assert not has_profiles(counts_adata, cfg, PATH)
    assert not has_profiles(means, options(profiles="false"), PATH)
    assert has_profiles(counts_adata, options(profiles="true"), PATH)
    bulk.obs["cell_type"] = bulk.obs["label.main"]
    assert has_profiles(bulk, cfg, PATH)
    assert not has_profiles(bulk[:, :500], cfg, PATH)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["B", "T", "NK"], True), (["AAACATACAACCAC-1", "AAACATTGAGCTAC-1", "AAACCGTGCTTCCG-1"], False), ("123", False)],
)
def test_rows_of_a_file_without_labels_are_profiles_if_types_name_them(means, names, expected):
    cells = ad.AnnData(means.X, obs=pd.DataFrame(index=list(names)), var=means.var)
    assert has_profiles(cells, options(), PATH) == expected


@pytest.mark.parametrize("endings", [["", ".1"], ["_rep1", "_rep2"], ["", ""]], ids=str)
def test_numbered_samples_of_a_type_are_one_type(endings, means, command, tmp_path):
    """As R and pandas write names that occur twice; names that stay the same get no advice to be made unique."""
    names = [f"{name}{ending}" for ending in endings for name in means.obs["cell_type"]]
    means.to_df().iloc[np.arange(6) % 3].set_axis(names).T.to_csv(tmp_path / "bulk.csv")
    words = [f"{name}={value}" for name, value in OPTIONS.items()]
    done = command("train", "bulk.csv", "output=m", "orientation=genes_by_cells", *words)
    assert done.code == 0, done.err
    assert read_model(tmp_path / "m").labels == ["B cell", "Monocyte", "T cell"]
    assert ("one type: 'B cell" in done.err) == (endings != ["", ""])
    assert "nique" not in done.err


def test_a_model_of_profiles_annotates_cells(means, counts_adata, write, tmp_path):
    tables = {"profiles.csv": means.obs["cell_type"].tolist(), "twice.tsv": [*means.obs["cell_type"]] * 2}
    paths = [write(means, "profiles.h5ad"), *(tmp_path / name for name in tables)]
    for path, names in zip(paths[1:], tables.values(), strict=True):
        table = means.to_df().iloc[np.arange(len(names)) % 3].set_axis(names)
        table.T.to_csv(path, sep="," if path.suffix == ".csv" else "\t")
    for path in paths:
        more = {} if path.suffix == ".h5ad" else {"orientation": "genes_by_cells"}
        model = scperformer.train(path, "cell_type", output=tmp_path / f"{path.name}.model", options=OPTIONS | more)
        assert accuracy(counts_adata, model.path) > 0.9
    card = (tmp_path / "profiles.h5ad.model" / "MODEL_CARD.md").read_text()
    assert "3 of 3 labels are simulated from profiles" in card
    assert profiles.SIMULATED_NOTE in card


def test_profiles_named_by_types_need_no_label_key(means, counts_adata, write, command, refused, tmp_path):
    named = ad.AnnData(means.X, obs=pd.DataFrame(index=means.obs["cell_type"].to_list()), var=means.var)
    words = [f"{name}={value}" for name, value in OPTIONS.items()]
    path = write(named, "profiles.h5ad")
    made = command("train", path, "output=a.model", *words)
    assert (made.code, read_model(tmp_path / "a.model").labels) == (0, ["B cell", "Monocyte", "T cell"]), made.err
    models = [scperformer.train(named, output=tmp_path / "b.model", options=OPTIONS).path, tmp_path / "a.model"]
    assert all(accuracy(counts_adata, model) > 0.9 for model in models)
    for name, adata in (("cells", counts_adata), ("with_obs", means)):
        more = ("profiles=true",) if adata is means else ()
        for others in ((), (path,)):
            text = refused("train", write(adata, f"{name}.h5ad"), *others, *words, *more)
            assert f"no label_key for {name}.h5ad; expected cell_type" in text.replace(f"{tmp_path}/", "")


def test_options_about_the_values_are_those_of_the_profiles(means, counts_adata, tmp_path):
    means.layers["tpm"] = np.log2(1 + means.X)
    means.X = np.zeros_like(means.X)
    more = {"source": "layers/tpm", "input_kind": "log1p", "input_base": "2", "input_total": 1e6}
    model = scperformer.train(means, "cell_type", output=tmp_path / "model", options=OPTIONS | more)
    assert accuracy(counts_adata, model.path) > 0.9


def test_a_profile_without_expression_is_refused(means):
    means.X[1] = 0
    with refusal("empty-profile"):
        simulate_cells(means, options(), PATH)


def test_profiles_beside_cells_are_a_study(counts_adata, means, write, tmp_path):
    cells = counts_adata[counts_adata.obs["cell_type"] != "Monocyte"].copy()
    files = [write(cells, "cells.h5ad"), write(means, "profiles.h5ad")]
    model = scperformer.train(files, "cell_type", output=tmp_path / "model", options=OPTIONS | {"data.min_cells": 0})
    made = read_model(model.path)
    assert [study.name for study in made.studies] == ["cells.h5ad", "profiles.h5ad"]
    assert "Monocyte" in made.labels
    assert accuracy(counts_adata, model.path) > 0.9
