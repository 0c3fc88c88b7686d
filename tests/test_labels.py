"""Labels of few cells: what each policy does with them, and that it says so."""

import pandas as pd
import pytest

from scperformer.errors import InputError
from scperformer.groups import DataConfig
from scperformer.labels import rare_labels, require_cells_per_label, settle_rare_labels

LABELS = pd.Series(["a"] * 5 + ["b", "c", "c", None])


def settled(policy, min_cells=3, **options):
    return settle_rare_labels(
        LABELS, DataConfig(rare_labels=policy, min_cells_per_label=min_cells, **options), "r.h5ad"
    )


def test_rare_labels_are_counted_by_name():
    assert rare_labels(LABELS, 3) == {"b": 1, "c": 2}
    assert rare_labels(LABELS, 1) == {}


def test_rare_labels_are_named_when_refused():
    text = r"2 of 3 labels of r.h5ad have fewer than 3 cells: 'b' \(1\), 'c' \(2\).*keep, merge or drop"
    with pytest.raises(InputError, match=text):
        require_cells_per_label(LABELS, 3, "r.h5ad")
    with pytest.raises(InputError, match=text):
        settled("error")
    require_cells_per_label(LABELS, 1, "r.h5ad")


def test_of_many_rare_labels_five_are_named():
    with pytest.raises(InputError, match=r"9 of 9 labels .*'0' \(1\).*'4' \(1\) and 4 more;"):
        require_cells_per_label(pd.Series([str(i) for i in range(9)]), 2, "r.h5ad")


def test_kept_labels_are_as_they_were_and_warned_of(caplog):
    result = settled("keep")
    pd.testing.assert_series_equal(result.labels, LABELS)
    assert result.done == {"policy": "keep", "min_cells": 3, "labels": {"b": 1, "c": 2}}
    assert "2 labels have fewer than 3 cells: 'b' (1), 'c' (2); kept" in caplog.text
    assert "data.rare_labels=merge, drop or error does otherwise" in caplog.text


def test_dropped_labels_are_gone(caplog):
    result = settled("drop")
    assert result.labels.tolist()[:5] == ["a"] * 5
    assert result.labels[5:].isna().all()
    assert "their 3 cells are left out" in caplog.text


def test_merged_labels_are_one(caplog):
    result = settled("merge", rare_label_name="few")
    assert result.labels.dropna().tolist() == ["a"] * 5 + ["few"] * 3
    assert result.labels.isna().tolist() == [False] * 8 + [True]
    assert result.done["into"] == "few"
    assert "merged into 'few' (3)" in caplog.text


def test_merged_labels_take_no_other_labels_name():
    with pytest.raises(InputError, match=r"label 'a' of 5 cells in r.h5ad; expected .*: set data.rare_label_name"):
        settled("merge", rare_label_name="a")
    assert settled("merge", rare_label_name="b").labels.dropna().tolist() == ["a"] * 5 + ["b"] * 3


@pytest.mark.parametrize("policy", ["keep", "merge", "drop", "error"])
def test_nothing_is_said_where_no_label_is_rare(policy, caplog):
    result = settled(policy, min_cells=1)
    pd.testing.assert_series_equal(result.labels, LABELS)
    assert (result.done, result.note, caplog.text) == ({}, "", "")
