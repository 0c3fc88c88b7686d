"""Batches of a query: by the column that is named, or that seems to be meant."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.logs import said
from support.opened import opened
from support.refusal import refusal

from scperformer.cells.batches import likely_batches, read_query_batches
from scperformer.cells.opened import open_cells
from scperformer.config.options import ModelOptions

VALUES = ["b", "a", "b", "c"] * 20


def cells_with(columns: dict[str, object]) -> ad.AnnData:
    obs = pd.DataFrame(columns, index=[f"cell{i}" for i in range(80)])
    return ad.AnnData(np.ones((80, 2), dtype=np.float32), obs=obs)


@pytest.mark.parametrize("on_disk", [False, True])
def test_batches_are_the_values_of_a_column(on_disk, tmp_path):
    cells = cells_with({"run": pd.Categorical(VALUES)})
    if on_disk:
        cells.write_h5ad(tmp_path / "cells.h5ad")
        with open_cells(tmp_path / "cells.h5ad", ModelOptions(inputs=["x"])) as on_disk_cells:
            found = read_query_batches(on_disk_cells, "run")
            assert likely_batches(on_disk_cells) is None
    else:
        found = read_query_batches(opened(cells), "run")
    assert found.names == ["a", "b", "c"]
    assert [found.names[number] for number in found.of_cell] == VALUES
    assert found.rows(1).tolist() == [row for row, value in enumerate(VALUES) if value == "b"]
    of_whole = read_query_batches(opened(cells), "run", names=["0", "c", "b", "a"])
    assert [of_whole.names[number] for number in of_whole.of_cell] == VALUES


def test_cells_without_a_value_are_a_batch(caplog):
    found = read_query_batches(opened(cells_with({"gap": [None, "", *VALUES[2:]]})), "gap")
    assert [found.names[number] for number in found.of_cell] == [
        "no value",
        "no value",
        *VALUES[2:],
    ]
    assert said(caplog, "batches_of", 2, "obs['gap']", "'no value'")


def test_columns_that_are_no_batches_are_refused():
    cells = opened(cells_with({"run": VALUES, "gap": [None, *VALUES[1:]], "many": np.arange(80)}))
    with refusal("no-column"):
        read_query_batches(cells, "ran")
    with refusal("batch-not-in-sample"):
        read_query_batches(cells, "run", names=["a", "b"])


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"Assay": VALUES, "donor": VALUES}, "Assay"),
        ({"donor_id": VALUES, "n": VALUES}, "donor_id"),
        ({"orig.ident": VALUES}, "orig.ident"),
        ({"batch": ["a"] * 80, "sample": VALUES}, "sample"),  # one value
        ({"batch": ["a"] * 61 + ["b"] * 19}, None),  # too few cells
        ({"batch": np.arange(80), "cell_type": VALUES}, None),
    ],
)
def test_a_column_of_batches_is_found_by_its_name_and_sizes(columns, expected):
    assert likely_batches(opened(cells_with(columns))) == expected
