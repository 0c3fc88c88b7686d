"""The names of the columns of an annotation, which predict, check and the reports share."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from support.opened import opened
from support.refusal import refusal

from scperformer.adaptation.predictions import Predictions
from scperformer.annotation.columns import (
    gather_predictions,
    named_columns,
    one_type,
    require_not_annotated,
    unknown_cells,
)
from scperformer.labels.tree import LabelTree


@pytest.mark.parametrize("column", ["mine_label", "mine_set_size", "mine_novelty", "mine_doublet"])
def test_any_column_of_an_annotation_is_refused_under_the_same_prefix(column):
    cells = opened(
        ad.AnnData(np.zeros((2, 1)), obs=pd.DataFrame({column: [1, 2]}, index=["a", "b"]))
    )
    with refusal("annotation-exists", column):
        require_not_annotated(cells, "mine")
    require_not_annotated(cells, "other")


def test_levels_repeat_the_call_below_it():
    tree = LabelTree(
        ["unknown", "NK", "T"], {"unknown": "lymphocyte", "T": "lymphocyte"}, {"lymphocyte": "X:9"}
    )
    proba = np.array([[0.4, 0.1, 0.5], [0.35, 0.35, 0.3], [0.1, 0.9, 0.0]])
    nothing = np.zeros(3)
    numbers, none = nothing.astype(int), nothing > 0
    novel = numbers[:0], csr_matrix((0, 1))
    calls = Predictions(
        proba,
        proba,
        numbers,
        none,
        nothing,
        nothing,
        none,
        nothing,
        nothing,
        numbers,
        proba[:, :0],
        *novel,
    )
    table = gather_predictions(lambda: [calls], tree, 0.8)
    np.testing.assert_allclose(table["margin"], [0.1, 0, 0.8])
    np.testing.assert_allclose(table["call_confidence"], [0.9, 0, 0.9])
    unknown = unknown_cells(
        table, np.full(3, 0.5), np.ones(len(tree.labels), dtype=bool), 0.05, 0.8
    )
    obs, details = named_columns(table, unknown, tree.labels, ["X:1", "X:2", "X:3"], tree)
    assert list(obs["label"]) == ["T", "unknown", "NK"]
    assert list(obs["call"]) == ["lymphocyte", "unknown", "NK"]
    assert list(obs["ontology_term_id"]) == ["X:9", "unknown", "X:2"]
    assert list(details) == ["call_confidence", "level1", "level2"]
    assert list(details["level1"]) == list(details["level2"]) == ["lymphocyte", "unknown", "NK"]


def test_without_a_tree_only_calls_that_occur_are_categories():
    calls = pd.DataFrame({"best": [2, 0, 1, 1], "called": [2, 0, 1, 1]})
    unknown = np.array([True, False, False, False])
    obs, details = named_columns(calls, unknown, ["B", "T", "NK"], ["X:2", "unknown", "X:2"], None)
    assert list(obs["call"]) == ["unknown", "B", "T", "T"]
    assert list(obs["call"].categories) == ["B", "T", "unknown"]
    assert list(obs["ontology_term_id"]) == ["X:2", "X:2", "unknown", "unknown"]
    assert details == {}


@pytest.mark.parametrize(
    ("counts", "with_tree", "named"),
    [
        ([95, 5, 0, 0], False, "95% of the known cells are CD4 T"),
        ([50, 48, 2, 0], True, "98% of the known cells are T"),  # half of the labels
        ([50, 48, 2, 0], False, ""),
        ([50, 20, 20, 10], True, ""),
        ([19, 0, 0, 0], False, ""),  # too few cells
    ],
)
def test_a_file_of_one_type_is_warned_of(counts, with_tree, named):
    labels = ["CD4 T", "CD8 T", "B", "NK"]
    tree = LabelTree(
        labels, {"CD4 T": "T", "CD8 T": "T", **dict.fromkeys(("T", "B", "NK"), "lymphocyte")}
    )
    codes = np.repeat(np.arange(4), counts)
    assert one_type(codes, tree if with_tree else LabelTree(labels, {})) == named
