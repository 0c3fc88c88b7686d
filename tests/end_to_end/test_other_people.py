"""Files as other people have them: the right answer, or one line with exit code 2 and nothing written or run."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from conftest import LABELS, Ran, make_counts

import scperformer as scp
from scperformer.base.errors import InputError

TRAIN = ("experiment=linear", "logger=none", "ontology=none", "output=m")
Command = Callable[..., Ran]


def labels_of(model: Path) -> list[str]:
    return list(scp.load_model(model).saved.labels)


def logged(ran: Ran) -> str:
    """The log of a command that succeeded, none of whose lines is longer than 300 characters."""
    assert ran.code == 0, ran.err
    assert max(map(len, ran.err.splitlines())) <= 300
    return ran.err


# Labels

NO_LABEL = ["Unknown", "unknown_celltype_label"]


@pytest.mark.parametrize("text", NO_LABEL)
def test_no_label_texts_are_no_types(text, write, command, tmp_path):
    cells = make_counts()
    labels = cells.obs["cell_type"].astype(str)
    labels.iloc[::6] = text
    cells.obs["cell_type"] = labels
    write(cells, "ref.h5ad")
    log = logged(command("train", "ref.h5ad", "label_key=cell_type", *TRAIN))
    assert labels_of(tmp_path / "m") == sorted(LABELS)
    assert "20 cells" in log
    assert text.strip() in log


def types_and_groups(deepest: list[str | None]) -> ad.AnnData:
    """Cells with the types as level 1, and in level 2 what `deepest` has for each of them."""
    cells = make_counts()
    cells.obs["l1"] = cells.obs["cell_type"].astype(str)
    cells.obs["l2"] = cells.obs["l1"].map(dict(zip(LABELS, deepest, strict=True)))
    return cells


@pytest.mark.parametrize(
    ("deepest", "expected"),
    [
        (["naive B", None, None], ["Monocyte", "T cell", "naive B"]),
        ([None, "CD4 T", "NA"], ["B cell", "CD4 T", "Monocyte"]),
    ],
    ids=["missing", "missing and NA"],
)
def test_ragged_levels_keep_their_types(deepest, expected, write, command, tmp_path):
    write(types_and_groups(deepest), "ref.h5ad")
    logged(command("train", "ref.h5ad", "label_keys=[l1,l2]", *TRAIN))
    assert sorted(labels_of(tmp_path / "m")) == expected


def test_objects_as_labels_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = make_counts()
    values = [[text] for text in cells.obs["cell_type"].astype(str)]
    cells.obs["cell_type"] = pd.Series(values, index=cells.obs_names, dtype=object)
    with pytest.raises(InputError, match="cell_type"):
        scp.train(cells, "cell_type", output="m")
    assert list(tmp_path.iterdir()) == []


# Studies that share cells


def renamed(cells: ad.AnnData) -> ad.AnnData:
    cells.obs_names = [f"study2_{name}" for name in cells.obs_names]
    return cells


def other_order(cells: ad.AnnData) -> ad.AnnData:
    rng = np.random.default_rng(0)
    return renamed(cells[rng.permutation(cells.n_obs), rng.permutation(cells.n_vars)].copy())


def with_more(cells: ad.AnnData) -> ad.AnnData:
    """The cells and as many others."""
    other = make_counts()
    other.X.data = np.random.default_rng(1).permutation(other.X.data)
    other.obs_names = [f"other{i}" for i in range(other.n_obs)]
    joined = ad.concat([renamed(cells), other])
    joined.obs["cell_type"] = joined.obs["cell_type"].astype("category")
    return joined


SHARED = {"another order": other_order, "with more": with_more}


@pytest.mark.parametrize("how", SHARED)
def test_shared_cells_of_two_studies_are_found(how, write, command):
    write(make_counts(), "a.h5ad")
    write(SHARED[how](make_counts()), "b.h5ad")
    ran = command("train", "a.h5ad", "b.h5ad", "label_key=cell_type", *TRAIN)
    assert "120" in ran.err
    assert "a.h5ad" in ran.err
    assert "1.000" not in ran.err
    if ran.code:
        assert (ran.code, ran.err.splitlines()[-1][:7]) == (2, "error: ")


def test_shared_cells_of_reference_and_query_are_named(write, command):
    write(make_counts(), "ref.h5ad")
    logged(command("train", "ref.h5ad", "label_key=cell_type", *TRAIN))
    write(with_more(make_counts()), "query.h5ad")
    assert "120 of 240 cells" in logged(command("predict", "query.h5ad", "model_path=m", "output=q.h5ad"))


# The same type in other words
SPELLINGS = {
    "CD8 T cell": "CD8 T",
    "CD8-positive, alpha-beta T cell": "CD8 T",
    "naive CD4+ T cell": "Naive CD4 T",
    "natural killer cells": "NK",
    "B-cells": "B",
    "Dendritic Cells": "DC",
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
    "devices": ("train", "query.h5ad", "label_key=cell_type", "model=tiny", "trainer.devices=100000", "output=m"),
    "a device as input": ("predict", "/dev/zero"),
    "a FIFO as input": ("predict", "fifo"),
    "a FIFO as sheet": ("workflow", "fifo", "--", "-n"),
    "a device as panel": ("adapt", "/dev/zero"),
    "a path of 3,000 characters": ("predict", "query.h5ad", f"output={'a' * 3000}.h5ad"),
    "a device as truth": ("evaluate", "query.h5ad", "truth_key=a", "truth_path=/dev/zero"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_and_devices_that_exhaust_are_refused(kind, write, refused, tmp_path):
    write(make_counts(), "query.h5ad")
    os.mkfifo(tmp_path / "fifo")
    refused(*NUMBERS[kind])
