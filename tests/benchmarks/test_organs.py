"""The scores of files of many organs: calls against coarse types, and the nearest profile by ranks."""

import importlib
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
T_CELL, CD8_T, B_CELL, FIBROBLAST = "CL:0000084", "CL:0000625", "CL:0000236", "CL:0000057"


@pytest.fixture
def organs(monkeypatch):
    """benchmarks/organs.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("organs")


@pytest.fixture
def organ(organs):
    labels = {"T": ["T cell"], "B": ["B cell"], "cancer*": ["malignant"]}
    return organs.Organ("human_x", "development", ["spleen"], ["blood"], labels)


def annotated(calls: list[str], terms: list[str]) -> ad.AnnData:
    """Two T cells, two B cells and two malignant ones, annotated by the tissue blood."""
    cells = ad.AnnData(
        sparse.csr_matrix((6, 1), dtype=np.float32), var=pd.DataFrame(index=["CD3E"])
    )
    cells.obs["cell_type"] = ["T", "T", "B", "B", "cancer 1", "cancer 2"]
    cells.obs["scperformer_call"] = calls
    cells.obs["scperformer_ontology_term_id"] = terms
    tissue = {"name": "blood", "in_capitals": False}
    cells.uns["scperformer"] = {
        "tissue": tissue,
        "profiles": {"expected_lowest": 0.5, "expected_highest": 0.7},
    }
    return cells


def test_tables_fit_together(organs):
    parents, types = organs._tree()
    files = organs.organs()
    assert len(files) == 21
    assert {file.use for file in files} == {"development", "test"}
    accepted = {kind for file in files for kinds in file.labels.values() for kind in kinds}
    assert accepted | set(types.values()) | set(parents.values()) <= {"", *parents}
    tissues = set(organs.collection().tissues()["name"])
    assert {name for file in files for name in (*file.right, *file.near)} <= tissues


def test_types_above_and_below_are_right(organs):
    assert organs.coarse_type(CD8_T) == "CD8 T"
    assert organs.coarse_type("CL:9999999") == "other"
    assert organs.fits("CD8 T", ["T cell"])
    assert organs.fits("leukocyte", ["T cell"])
    assert not organs.fits("B cell", ["T cell", "malignant"])
    assert not organs.fits("unknown", ["T cell"])


def test_line_of_an_annotated_file(organs, organ, monkeypatch):
    monkeypatch.setattr(
        organs, "types_of_species", lambda species: {"T cell", "B cell", "fibroblast"}
    )
    monkeypatch.setattr(organs, "terms_before_unknown", lambda cells: {"labels": [T_CELL] * 6})
    calls = ["CD8", "unknown", "B", "CD8", "unknown", "fibroblast"]
    line = organs.line_of(
        annotated(calls, [CD8_T, CD8_T, B_CELL, CD8_T, B_CELL, FIBROBLAST]), organ
    )
    assert line["verdict"] == "near"
    assert line["acc"] == 0.5
    assert line["called"] == pytest.approx(2 / 3)
    assert line["F1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert (line["known flagged"], line["absent"], line["absent flagged"]) == (0.25, 2, 0.5)
    assert line["called is"] == "inside"
    assert line["labels"] == 0.5


def test_verdicts(organs, organ):
    names = ["spleen", "blood", "lung", "common types", None]
    assert [organ.verdict(name) for name in names] == [
        "right",
        "near",
        "wrong",
        "not determined",
        "refused",
    ]
    without = organs.Organ("mouse_x", "test", [], [], {})
    assert without.verdict("mouse common types") == "not determined rightly"
    assert without.verdict(None) == "refused rightly"


def test_summary_counts_refused_files_as_wrong(organs, organ, monkeypatch):
    monkeypatch.setattr(organs, "types_of_species", lambda species: {"T cell", "B cell"})
    monkeypatch.setattr(organs, "terms_before_unknown", lambda cells: {})
    good = annotated(
        ["T", "T", "B", "B", "unknown", "B"], [T_CELL, T_CELL, B_CELL, B_CELL, B_CELL, B_CELL]
    )
    lines = pd.DataFrame(
        [
            organs.line_of(cells, organ) | {"CPU s": 1.0}
            for cells in (good, ad.AnnData(np.ones((3, 1))))
        ]
    )
    found = organs.summary(lines, "all")
    assert found["verdict"] == "1 near, 1 refused"
    assert found["acc"] == 0.5
    assert (found["absent"], found["absent flagged"]) == (2, 0.5)
    assert found["called is"] == "inside 0 of 1"


def test_nearest_profile_by_markers(organs):
    ranks = importlib.import_module("rank_correlation")
    rng = np.random.default_rng(0)
    profiles = rng.gamma(0.5, 100, (3, 200))
    cells = sparse.csr_matrix(rng.poisson(profiles.repeat(5, axis=0)), dtype=np.float32)
    found = ranks.nearest_profile(cells, profiles, ranks.marker_genes(profiles))
    np.testing.assert_array_equal(found, np.arange(3).repeat(5))
