"""Cells are found in tables by their names, or without what programs add to these."""

import logging

import numpy as np
import pandas as pd
import pytest
from support.inputs import write_csv, write_experiment, write_mtx, write_tenx_v3
from support.logs import said
from support.refusal import refusal

from scperformer.cells.label_tables import in_order_of_cells
from scperformer.cells.opened import whole_cells
from scperformer.cells.reference_labels import columns_with_labels
from scperformer.cli.compose import make_config
from scperformer.model.folder import read_model

BARCODES = ["AAACCTGAGAAACCAT", "AAACCTGAGAAACCGC", "AAACCTGAGAAACCTA"]


@pytest.mark.parametrize("ending", ["", "-1", "-1_2", ".1"])
@pytest.mark.parametrize("other", ["", "-1", "-1_1", ".1", "sample1_{}-1", "s1.{}"])
def test_barcodes_with_endings_are_found(ending, other, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    cells = pd.Index([f"{barcode}{ending}" for barcode in BARCODES])
    names = [
        other.format(name) if "{}" in other else f"{name}{other}"
        for name in [*BARCODES[::-1], "TTTTTTTTTTTTTTTT"]
    ]
    table = pd.DataFrame({"type": ["c", "b", "a", "d"]}, index=names)
    found = in_order_of_cells(table, cells, "cells.h5", "labels.csv")
    assert list(found["type"]) == ["a", "b", "c"]
    assert list(found.index) == list(cells)
    assert said(caplog, "in_order_of_cells", 1, 4)
    assert bool(said(caplog, "in_order_of_cells", cells[0])) == (ending != other)


def test_names_that_are_the_same_without_endings_are_kept_apart():
    table = pd.DataFrame({"type": ["a", "b"]}, index=["AAACCTGAGAAACCAT-1", "AAACCTGAGAAACCAT-2"])
    with refusal("no-shared-cells", "AAACCTGAGAAACCAT-3"):
        in_order_of_cells(table, pd.Index(["AAACCTGAGAAACCAT-3"]), "cells.h5", "labels.csv")


@pytest.mark.parametrize("write_cells", [write_mtx, write_tenx_v3, write_experiment, write_csv])
def test_labels_of_a_table_replace_those_of_obs(write_cells, cells, tmp_path, caplog):
    labels = pd.Series(
        np.where(np.arange(30) % 3, "NK cell", "B cell"), cells.obs_names, name="label"
    )
    labels[5:].to_csv(tmp_path / "labels.csv")
    cfg = make_config(
        "train", ["inputs=[a]", "label_key=label", f"labels='{tmp_path / 'labels.csv'}'"]
    )
    opened = whole_cells(write_cells(cells, tmp_path), cfg)
    found = columns_with_labels(opened)
    assert list(found["label"][5:]) == list(labels[5:])
    assert found["label"][:5].isna().all()
    assert said(caplog, "in_order_of_cells", 5, 30)
    assert list(found.index) == list(opened.obs_names)


@pytest.mark.parametrize("on_disk", ["false", "true"])
def test_training_with_a_table_of_labels(on_disk, counts_adata, command, tmp_path):
    types = counts_adata.obs.pop("cell_type")
    counts_adata.write_h5ad(tmp_path / "cells.h5ad")
    types.to_csv(tmp_path / "labels.csv")
    words = ["train", "cells.h5ad", "label_key=cell_type", "labels=labels.csv", "output=model"]
    assert command(*words, "model.encoder=false", f"data.in_memory={on_disk}").code == 0
    assert read_model(tmp_path / "model").provenance.cells_per_label == dict(
        types.value_counts().sort_index()
    )


def test_a_table_without_the_column_of_labels_is_refused(counts_adata, refused, tmp_path):
    counts_adata.write_h5ad(tmp_path / "cells.h5ad")
    counts_adata.obs[["cell_type"]].to_csv(tmp_path / "labels.csv")
    assert "cell_type" in refused(
        "train", "cells.h5ad", "label_key=type", "labels=labels.csv", "output=model"
    )
    assert "no file none.csv" in refused(
        "train", "cells.h5ad", "label_key=cell_type", "labels=none.csv", "output=m"
    )
