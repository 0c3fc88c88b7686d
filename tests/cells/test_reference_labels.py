"""Labels of a reference: likely columns, rare labels, ontology ids and the label tree."""

import re

import numpy as np
import pandas as pd
import pytest
from support.logs import said
from support.refusal import refusal

from scperformer.cells.reference_labels import (
    CellLabels,
    label_columns,
    read_batches,
    require_labels,
)
from scperformer.cli.compose import make_config

LABELS = pd.Series(["a"] * 5 + ["b", "c", "c", None])


def labels_of(obs: pd.DataFrame, key: str, *words: str) -> CellLabels:
    return CellLabels.of(
        obs, make_config("train", ["inputs=[r.h5ad]", f"label_key={key}", *words]), "r.h5ad"
    )


def without_rare(labels: pd.Series, least: int = 1):
    table, rare, _ = labels_of(
        pd.DataFrame({"a": labels}), "a", f"data.min_cells_per_label={least}"
    ).without_rare()
    return table.labels, rare


def test_cells_of_rare_labels_are_left_out(caplog):
    assert without_rare(LABELS)[0].dropna().tolist() == LABELS.dropna().tolist()
    labels, record = without_rare(LABELS, 3)
    assert labels.tolist()[:5] == ["a"] * 5
    assert labels[5:].isna().all()
    assert record == {"min_cells": 3, "labels": {"b": 1, "c": 2}}
    assert said(caplog, "without_rare", "'b' (1)", "'c' (2)")


def test_names_of_cells_are_no_labels():
    names = pd.Series([f"AAACATACAACC{number}-1" for number in range(50)])
    with refusal("many-labels", 50):
        without_rare(names)
    without_rare(names.str.replace(r"\d-1", "", regex=True))


def test_label_columns_are_those_with_few_values(counts_adata):
    obs = counts_adata.obs
    obs["donor"] = np.repeat(["d1", "d2"], 60)
    obs["cluster"] = np.arange(120) % 7
    obs["flag"] = np.arange(120) < 5
    obs["constant"] = "x"
    obs["barcode"] = obs.index
    obs["score"] = np.linspace(0, 1, 120)
    obs["lists"] = [["B"]] * 120
    assert label_columns(obs) == {"cell_type": 3, "donor": 2, "flag": 2}


def test_a_missing_label_key_lists_the_existing_columns(counts_adata):
    counts_adata.obs["score"] = 0.5
    counts_adata.obs["none"] = ""
    refused = [
        ("no-column", "celltype"),
        ("no-column", None),
        ("decimal-labels", "score"),
        ("no-labels", "none"),
    ]
    for code, key in refused:
        with refusal(code, "r.h5ad", *(["celltype", "cell_type"] if key == "celltype" else [])):
            require_labels(counts_adata.obs, key, "r.h5ad")
    with refusal("no-column"):
        require_labels(counts_adata.obs[[]], "celltype", "r.h5ad")


def test_texts_that_mean_no_label_are_missing(counts_adata):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype(str)
    counts_adata.obs.iloc[:3, 0] = ["Unknown cell", "doublets", "N/A"]
    labels = require_labels(counts_adata.obs, "cell_type", "r.h5ad")
    assert labels.isna().to_numpy().nonzero()[0].tolist() == [0, 1, 2]
    counts_adata.obs["cell_type"] = "unassigned"
    with refusal("no-labels"):
        require_labels(counts_adata.obs, "cell_type", "r.h5ad")


CELLS = pd.DataFrame(
    {
        "fine": ["naive B", "memory B", "NK", "Mono", "other", "Mono"],
        "middle": ["B", "B", "NK", None, "x", None],
        "coarse": ["lymphoid", "lymphoid", "lymphoid", "myeloid", "myeloid", "myeloid"],
        "mixed": ["lymphoid", "lymphoid", "lymphoid", "myeloid", "x", "lymphoid"],
        "fine_ontology_term_id": ["X:1", "X:2", "X:2", None, "X:9", "X:3"],
        "ids": ["Y:1", "Y:2", "Y:3", "Y:4", "Y:5", "Y:4"],
    }
)


def terms(*options):
    cfg = make_config("train", ["inputs=[r.h5ad]", *options])
    return CellLabels(CELLS, CELLS["fine"], cfg, "r.h5ad", CELLS.index.to_numpy()).terms()


def test_ontology_ids_come_from_the_column_or_else_from_the_names():
    """In alphabetical order: Mono, NK, memory B, naive B, other. A label with two ids gets neither."""
    assert terms("label_key=fine").ids == ["CL:0000576", "X:2", "X:2", "X:1", "X:9"]
    assert terms("label_key=fine", "ontology=none").ids == ["unknown", "X:2", "X:2", "X:1", "X:9"]
    assert terms("label_key=fine", "ontology_key=ids").ids == ["Y:4", "Y:3", "Y:2", "Y:1", "Y:5"]
    assert terms("label_key=fine").release == "2026-03-26"
    assert terms("label_key=fine", "ontology=none").release is None


def test_a_tree_comes_from_columns_or_the_ontology(caplog):
    with caplog.at_level("INFO", logger="scperformer"):
        tree = terms("label_keys=[coarse,middle,fine]").tree
    lymphoid = {"naive B": "B", "memory B": "B", "B": "lymphoid", "NK": "lymphoid"}
    assert tree.parents == lymphoid | {"Mono": "myeloid", "other": "x", "x": "myeloid"}
    assert tree.terms == {"B": "CL:0000236", "myeloid": "CL:0000763"}  # myeloid cell
    assert said(caplog, "terms", 3, 9)
    assert terms("label_key=fine", "ontology_key=ids", "ontology=none").tree is None


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        (
            ["label_keys=[mixed,fine]"],
            "bad-tree",
            ["mixed, fine", "r.h5ad", "'Mono'", "'lymphoid'"],
        ),
        (["label_keys=[none,fine]"], "no-column", ["'none'", "r.h5ad"]),
        (["label_key=fine", "ontology_key=none"], "no-column", ["'none'", "ontology_key"]),
        (
            ["label_key=coarse", "label_keys=[coarse,fine]"],
            "option-range",
            ["label_key=coarse", "fine"],
        ),
    ],
)
def test_wrong_columns_for_a_tree_are_refused(options, code, values):
    with refusal(code, *values):
        terms(*options)


def batches_of(*values, labels=(0, 0, 1, 1)):
    obs = pd.DataFrame({"donor": list(values)})
    return read_batches(obs, np.array(labels), "donor", "cells.h5ad")


def test_batches_are_numbered_by_name():
    names, batches = batches_of("d2", "d1", "d2", "d1")
    assert names == ["d1", "d2"]
    np.testing.assert_array_equal(batches, [1, 0, 1, 0])
    assert read_batches(pd.DataFrame(), np.arange(2), None, "cells.h5ad") == ([], None)


@pytest.mark.parametrize(
    ("values", "code", "named"),
    [
        ([None, None, None, ""], "one-batch", "'no value'"),
        (["d1", "d1", "d1", "d1"], "one-batch", "'d1'"),
        (["d1", "d1", "d2", "d2"], "unshared-labels", "2"),
    ],
    ids=["missing", "one", "apart"],
)
def test_batches_that_cannot_be_held_out_are_refused(values, code, named):
    with refusal(code, named, "donor"):
        batches_of(*values)


def joined(labels, *options, ids=None):
    obs = pd.DataFrame({"merged": labels})
    if ids is not None:
        obs["merged_ontology_term_id"] = ids
    cfg = make_config("train", ["inputs=[r.h5ad]", "label_key=merged", *options])
    return (
        CellLabels(obs, obs["merged"], cfg, "r.h5ad", obs.index.to_numpy())
        .joined()
        .labels.dropna()
        .tolist()
    )


SPELLINGS = [
    "B",
    "B cells",
    "NK",
    "nk",
    "CD14+  Mono",
    "CD14+ Mono",
    "CD8+ T cell",
    "CD8 T",
    "odd one",
    "Odd-ones",
]
SPELLINGS += [None]
WRITTEN = [
    "CD14+ Mono",
    "CD14..Mono",
    "CD14+_Mono",
    "CD8 T",
    "CD8.T (n=5)",
    "odd one",
    "odd_One",
    "CD16..x",
    "CD16+ x",
]


def test_spellings_of_one_type_are_joined(caplog):
    expected = ["B", "B", "NK", "NK", *["CD14+ Mono"] * 2, "CD8 T", "CD8 T", "odd one", "odd one"]
    assert joined(SPELLINGS) == expected
    assert said(caplog, "joined", "'B cells'", "'B'", "CL:0000236")
    expected = [*["CD14+ Mono"] * 3, *["CD8 T"] * 2, *["odd one"] * 2, "CD16+ x", "CD16+ x"]
    assert joined(WRITTEN) == expected
    # the first may be either
    assert joined([*WRITTEN, "CD16- x"])[-3:] == ["CD16..x", "CD16+ x", "CD16- x"]


def test_labels_of_the_map_are_called_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.csv").write_text("B cells,B cells\nNK,nk\nnk,NK\nodd one,CD8 T\n")
    expected = [
        "B",
        "B cells",
        "nk",
        "NK",
        *["CD14+ Mono"] * 2,
        "CD8 T",
        "CD8 T",
        "CD8 T",
        "Odd-ones",
    ]
    assert joined(SPELLINGS, "label_map=map.csv") == expected


@pytest.mark.parametrize(
    ("labels", "more", "match"),
    [
        (
            ["CD4 T naive 1", "CD4 T naive 2", "B"],
            {"ids": ["CL:0000895", "CL:0000895", None]},
            "2,CD4 T naive 1",
        ),
        (["CD27+IgD+", "CD27-IgD+", "B"], {}, r"CD27-IgD\+,CD27\+IgD\+|CD27\+IgD\+,CD27-IgD\+"),
        (["B", "B cells", "NK"], {"options": ["label_keys=[side,merged]"]}, "B cells,B"),
    ],
    ids=["ids of a column", "signs", "levels"],
)
def test_labels_that_may_be_one_type_are_named_and_stay(labels, more, match, caplog):
    assert joined(labels, *more.get("options", ()), ids=more.get("ids")) == labels
    assert re.search(match, said(caplog, "joined"))


@pytest.mark.parametrize(
    "labels",
    [
        ["-1", "1", "0"],
        ["NKT_4+_Lv", "NKT_4-_Lv"],
        ["CD4 T 1", "CD4 T 2"],
        ["CD14+ Mono", "classical monocyte"],
    ],
)
def test_clusters_and_other_types_are_not_joined(labels, caplog):
    assert joined(labels) == labels
    assert not caplog.text


@pytest.mark.parametrize(
    ("column", "columns", "expected"),
    [
        ("scperformer_call", ["scperformer_call"], True),
        ("mine_label", ["mine_call", "mine_label", "mine_confidence"], True),
        ("copied", ["scperformer_call"], True),
        ("first_call", ["first_call"], False),  # a column of the user
        ("cell_type", ["scperformer_call", "scperformer_label"], False),
    ],
)
def test_calls_of_this_program_are_known(column, columns, expected, caplog):
    obs = pd.DataFrame({key: ["B", "T", "unknown"] for key in columns})
    obs["copied"], obs["cell_type"] = ["B", "T", None], ["B", "NK", "T"]
    assert labels_of(obs, column).are_calls() is expected
    assert bool(caplog.records) is expected
