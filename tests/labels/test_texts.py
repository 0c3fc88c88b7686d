"""The spelling of labels, from all types of columns."""

import numpy as np
import pandas as pd
import pytest

from scperformer.labels.texts import label_texts, means_no_label, spelled_as

NAN = None  # a missing label in these lists
COLUMNS = {
    "blanks around": (pd.Series(["T cell ", " T cell", "\tB\n", "T cell"]), ["T cell", "T cell", "B", "T cell"]),
    "blank and missing": (pd.Series(["", "  ", None, np.nan, "B"]), [NAN, NAN, NAN, NAN, "B"]),
    "whole floats with a missing one": (pd.Series([1.0, np.nan, 10.0]), ["1", NAN, "10"]),
    "categories of floats": (pd.Series([1.0, np.nan, 2.0]).astype("category"), ["1", NAN, "2"]),
    "whole numbers as text": (pd.Series(["1.0", "2.0", None]), ["1", "2", NAN]),
    "decimals stay": (pd.Series(["0.5", "1.0"]), ["0.5", "1.0"]),
    "text beside numbers stays": (pd.Series(["1.0", "Tumour"]), ["1.0", "Tumour"]),
    "integers that can be missing": (pd.Series([1, None], dtype="Int64"), ["1", NAN]),
    "floats that can be missing": (pd.Series([1, None], dtype="Float64"), ["1", NAN]),
    "booleans that can be missing": (pd.Series([True, None], dtype="boolean"), ["True", NAN]),
    "strings that can be missing": (pd.Series(["B ", None], dtype="string"), ["B", NAN]),
    "categories of strings": (pd.Series(["B ", None], dtype="string").astype("category"), ["B", NAN]),
    "bytes": (pd.Series([b"B ", b"B", "µ".encode()]), ["B", "B", "µ"]),
    "no cells": (pd.Series([], dtype=object), []),
    "nothing but missing values": (pd.Series([np.nan, np.nan]), [NAN, NAN]),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_text_of_labels(case):
    column, expected = COLUMNS[case]
    column.index = [f"cell{place}" for place in range(len(column))]
    texts = label_texts(column.rename("label"))
    assert [NAN if text is np.nan else text for text in texts] == expected
    assert (list(texts.index), texts.name, texts.dtype) == (list(column.index), "label", object)


def test_texts_are_spelled_as_a_model_spells_its_labels():
    assert spelled_as(["B", "T cell"], ["B ", "T cell", "other "]) == ["B", "T cell", "other"]
    assert spelled_as(["1", "2"], ["1.0", "2", "x"]) == ["1", "2", "x"]
    assert spelled_as(["1", "1.0"], ["1.0", "1"]) == ["1.0", "1"]


MEAN_NONE = """unknown|Unknown cell|unknown_celltype_label|cell type unknown|UNASSIGNED|un-assigned|unclassified|
Unannotated|Unlabeled|unlabelled|not assigned|Doublet|doublet cells|Multiplet|low quality|Low-quality_cells|LowQuality|
doublets/low quality|NA|n/a|#N/A|<NA>|nan|None|null|-|?|--|???|–|."""
MEAN_A_TYPE = "B|CD8 T|NK|Nerve|other|unknown T cell|none of these|cell|Naive|doublet T-B|1|null cell lymphoma|Ⅳ|+|🧠"


def test_texts_that_mean_no_label():
    assert [text for text in MEAN_NONE.replace("\n", "").split("|") if not means_no_label(text)] == []
    assert [text for text in MEAN_A_TYPE.split("|") if means_no_label(text)] == []
