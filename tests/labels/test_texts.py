"""The spelling of labels, from all types of columns."""

import numpy as np
import pandas as pd
import pytest

from scperformer.labels.texts import label_texts, means_no_label, spelled_as, spellings

NAN = None  # a missing label in these lists
COLUMNS = {
    "blanks around": (
        pd.Series(["T cell ", " T cell", "\tB\n", "T cell"]),
        ["T cell", "T cell", "B", "T cell"],
    ),
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
    "categories of strings": (
        pd.Series(["B ", None], dtype="string").astype("category"),
        ["B", NAN],
    ),
    "bytes": (pd.Series([b"B ", b"B", "µ".encode()]), ["B", "B", "µ"]),
    "characters without width": (
        pd.Series(["\ufeffB", "B\u200b", "T\u00ad cell", "\u2060"]),
        ["B", "B", "T cell", NAN],
    ),
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


MONOCYTES = ["CD14+ Mono", "CD16+ Mono", "CD16- Mono"]


@pytest.mark.parametrize(
    ("label", "text"),
    [
        *(
            ("CD14+ Mono", f"CD14{middle}Mono")
            for middle in ("+_", "+  ", "..", "_", "+\u00a0", "+.", "+ \u200b")
        ),
        *(
            ("CD14+ Mono", text)
            for text in ("cd14+ mono", '"CD14+ Mono"', "'CD14+ Mono'", "\u201cCD14+ Mono\u201d")
        ),
        *(
            ("CD14+ Mono", f"CD14+ Mono {num}")
            for num in ("(n=5)", "(n = 1,205)", "[n: 3]", "(31 cells)", "n=31")
        ),
        ("4-1BB+ T", "X4.1BB..T"),  # by R's make.names
        ("Mono/DC", "Mono.DC"),
        ("Mono.DC", "Mono/DC"),
        ("Naive CD4 T", "naive_cd4_t_cells"),
        ("Naive.CD4.T", "Naive CD4 T cell"),
        ("CD8-positive, alpha-beta T cell", "CD8.positive..alpha.beta.T.cell"),
        ("CD56dim CD16- NK", "CD56dim.CD16..NK"),
    ],
)
def test_other_spellings_of_a_label(label, text):
    assert spelled_as([label, "B", "NK"], [text]) == [label]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (MONOCYTES, "CD16..Mono"),  # either of two
        (["b", "B"], "B cell"),
        (["CD16- Mono"], "CD16+ Mono"),
        (["Mono/DC"], "Mono DC"),
        (["T1"], "T 1"),
        (["cluster (1)", "cluster (2)"], "cluster"),
        (["1", "-1"], "1."),
    ],
)
def test_names_that_are_no_spelling_of_one_label_stay(labels, text):
    assert spelled_as(labels, [text]) == [text]


def test_a_name_without_signs_is_that_of_no_label_if_several_have_its_letters():
    found = spellings([*MONOCYTES, "CD16..Mono", "CD14_mono"])
    assert found["CD16..Mono"] is None
    assert found["CD14_mono"] == found["CD14+ Mono"]
    assert len(set(found.values())) == 4


MEAN_NONE = """unknown|Unknown cell|unknown_celltype_label|cell type unknown|UNASSIGNED|un-assigned|unclassified|
Unannotated|Unlabeled|unlabelled|not assigned|Doublet|doublet cells|Multiplet|low quality|Low-quality_cells|LowQuality|
doublets/low quality|NA|n/a|#N/A|<NA>|nan|None|null|-|?|--|???|–|."""
MEAN_A_TYPE = "B|CD8 T|NK|Nerve|other|unknown T cell|none of these|cell|Naive|doublet T-B|1|null cell lymphoma|Ⅳ|+|🧠"


def test_texts_that_mean_no_label():
    assert [
        text for text in MEAN_NONE.replace("\n", "").split("|") if not means_no_label(text)
    ] == []
    assert [text for text in MEAN_A_TYPE.split("|") if means_no_label(text)] == []
