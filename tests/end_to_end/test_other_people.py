"""Files as other people have them: the right answer, or one line with exit code 2 and nothing written or run."""

import json
import os
from pathlib import Path

import anndata as ad
import pandas as pd
import pytest
from conftest import LABELS, Ran, make_counts
from support.refusal import refusal

import scperformer as scp

TRAIN = ("experiment=linear", "logger=none", "ontology=none", "output=m")


def labels_of(model: Path) -> list[str]:
    return list(scp.load_model(model).saved.labels)


def logged(ran: Ran) -> str:
    """The log of a command that succeeded, none of whose lines is longer than 300 characters."""
    assert ran.code == 0, ran.err
    assert max(map(len, ran.err.splitlines())) <= 300
    return ran.err


# Labels


def test_no_label_texts_are_no_types(write, command, tmp_path):
    cells = make_counts()
    labels = cells.obs["cell_type"].astype(str)
    labels.iloc[::6] = "unknown_celltype_label"
    cells.obs["cell_type"] = labels
    write(cells, "ref.h5ad")
    log = logged(command("train", "ref.h5ad", "label_key=cell_type", *TRAIN))
    assert labels_of(tmp_path / "m") == sorted(LABELS)
    assert "20 cells" in log
    assert "unknown_celltype_label" in log


def types_and_groups(deepest: list[str | None]) -> ad.AnnData:
    """Cells with the types as level 1, and in level 2 what `deepest` has for each of them."""
    cells = make_counts()
    cells.obs["l1"] = cells.obs["cell_type"].astype(str)
    cells.obs["l2"] = cells.obs["l1"].map(dict(zip(LABELS, deepest, strict=True)))
    return cells


def test_ragged_levels_keep_their_types(write, command, tmp_path):
    write(types_and_groups([None, "CD4 T", "NA"]), "ref.h5ad")
    logged(command("train", "ref.h5ad", "label_keys=[l1,l2]", *TRAIN))
    assert sorted(labels_of(tmp_path / "m")) == ["B cell", "CD4 T", "Monocyte"]


def test_objects_as_labels_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = make_counts()
    values = [[text] for text in cells.obs["cell_type"].astype(str)]
    cells.obs["cell_type"] = pd.Series(values, index=cells.obs_names, dtype=object)
    with refusal("container-values"):
        scp.train(cells, "cell_type", output="m")
    assert list(tmp_path.iterdir()) == []


# The same type in other words
SPELLINGS = {
    "CD8-positive, alpha-beta T cell": "CD8 T",
    "natural killer cells": "NK",
    "B-cells": "B",
}


@pytest.fixture(scope="module")
def called(_few_pbmc, tmp_path_factory) -> Path:
    """60 cells of PBMC 3k with their calls by the packaged model."""
    path = tmp_path_factory.mktemp("called") / "a.h5ad"
    scp.annotate(_few_pbmc.copy(), options={"adapt": False}).write_h5ad(path)
    return path


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_one_type_match(spelling, called, command, tmp_path):
    label = SPELLINGS[spelling]
    cells = ad.read_h5ad(called).obs.astype({"cell_type": str, "scperformer_label": str})
    cells = cells[cells["cell_type"].isin([label, "FCGR3A+ Mono"])]
    cells["cell_type"].replace(label, spelling).rename("truth").to_csv(tmp_path / "truth.csv")
    logged(command("evaluate", called, "truth_key=truth", "truth_path=truth.csv", "output=e"))
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    right = cells["scperformer_label"] == cells["cell_type"]
    assert right[cells["cell_type"] == label].any()
    assert metrics["model"]["accuracy"] == pytest.approx(right.mean())


# Numbers and devices


NUMBERS = {
    "threads": ("predict", "query.h5ad", "threads=1000000000"),
    "a device as input": ("predict", "/dev/zero"),
    "a FIFO as input": ("predict", "fifo"),
    "a device as truth": ("evaluate", "query.h5ad", "truth_key=a", "truth_path=/dev/zero"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_and_devices_that_exhaust_are_refused(kind, write, refused, tmp_path):
    write(make_counts(), "query.h5ad")
    os.mkfifo(tmp_path / "fifo")
    refused(*NUMBERS[kind])
