"""Columns about calls in a label tree, and ontology ids of labels."""

import numpy as np
import pandas as pd

from scperformer.labels.ontology_columns import final_call, term_column, tree_columns, tree_record
from scperformer.labels.tree import LabelTree


def test_levels_repeat_the_call_below_it_and_a_label_may_be_named_unknown():
    tree = LabelTree(["unknown", "NK", "T"], {"unknown": "lymphocyte", "T": "lymphocyte"}, {"lymphocyte": "X:9"})
    proba = np.array([[0.4, 0.1, 0.5], [0.5, 0.5, 0.0], [0.1, 0.9, 0.0]])
    called, confidence = tree.call(proba, proba.argmax(axis=1), 0.8)
    columns = tree_columns(tree, ["X:1", "X:2", "X:3"], called, confidence, 0.8)
    assert list(columns) == ["call", "call_confidence", "level1", "level2", "ontology_term_id"]
    assert list(columns["call"]) == ["lymphocyte", "unknown", "NK"]  # safe on no level: called by its name
    assert list(columns["level1"]) == ["lymphocyte", "lymphocyte", "NK"]
    assert list(columns["level2"]) == ["lymphocyte", "unknown", "NK"]
    assert list(columns["ontology_term_id"]) == ["X:9", "X:1", "X:2"]
    np.testing.assert_array_equal(columns["call_confidence"], confidence)


def test_the_record_of_a_tree_gives_it_back():
    tree = LabelTree(["B", "T", "Mono"], {"B": "lymphocyte", "T": "lymphocyte"})
    record = tree_record(tree, ["X:1", "unknown", "X:3"])
    assert record["nodes"].tolist() == ["lymphocyte", "B", "T", "Mono"]
    assert record["parents"].tolist() == ["", "lymphocyte", "lymphocyte", ""]
    assert record["ontology_term_ids"].tolist() == ["unknown", "X:1", "unknown", "X:3"]
    assert record["num_levels"] == 2


def test_labels_can_share_an_ontology_id():
    column = term_column(np.array([2, 0, 1, 1]), ["X:2", "unknown", "X:2"])
    assert list(column) == ["X:2", "X:2", "unknown", "unknown"]
    assert list(column.categories) == ["X:2", "unknown"]


def test_final_calls_have_only_categories_that_occur():
    calls = pd.Series(pd.Categorical(["B", "T", "T"], categories=["B", "lymphocyte", "NK", "T"]))
    final = final_call(calls, np.array([True, False, False]))
    assert list(final) == ["unknown", "T", "T"]
    assert list(final.categories) == ["T", "unknown"]
