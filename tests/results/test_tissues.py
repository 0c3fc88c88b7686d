"""Evaluation and report of samples that were annotated without a model: two tissues, and one named by hand."""

import numpy as np
import pytest
from support.page import Page
from support.tissues import cells_of_tissue

import scperformer
from scperformer.adaptation.record import Record, TissueRecord, texts
from scperformer.adaptation.which_tissue import (
    BLOOD,
    GIVEN,
    MEAN,
    SPECIFIC,
    UNDETERMINED,
    how_found,
    tissue_text,
)
from scperformer.results.evaluate import read_evaluation

KEY = "scperformer"
TITLE = "pancreas (adult human)"


@pytest.fixture(scope="module")
def samples():
    """Cells of pancreas and of blood with a fourth of the genes; their true labels have names of other studies."""
    cells = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SCPERFORMER_MODEL", raising=False)
        for name in ("pancreas", "blood"):
            cells[name] = scperformer.annotate(cells_of_tissue(name)[:, ::4].copy())
    names = {
        "naive CD8 T cell": "CD8 T",
        "classical monocyte": "CD14+ Mono",
        "alpha cell": "pancreatic A cell",
    }
    for sample in cells.values():
        sample.obs["truth"] = sample.obs["cell_type"].astype(str).replace(names).astype("category")
    return cells


@pytest.fixture
def files(samples, write):
    return [write(sample, f"{name}.annotated.h5ad") for name, sample in samples.items()]


def test_the_record_and_the_paragraph(samples, monkeypatch, capsys):
    facts = samples["pancreas"].uns[KEY]
    assert (facts["tissue"]["name"], facts["tissue"]["title"]) == ("pancreas", TITLE)
    assert 0 < facts["profiles"]["expected_lowest"] < facts["profiles"]["expected_highest"] <= 1
    monkeypatch.delenv("SCPERFORMER_MODEL")
    scperformer.annotate(samples["pancreas"].copy(), overwrite=True)
    text = capsys.readouterr().out
    assert f"72 cells were annotated by published profiles ({TITLE}, 24 labels): " in text
    num = facts["tissue"]["type_cells"][0]
    assert f"{TITLE}, by {facts['tissue']['types'][0]} ({num} of 72 cells), " in text
    lowest, highest = (facts["profiles"][f"expected_{end}"] for end in ("lowest", "highest"))
    assert f"Expected accuracy: {lowest:.2f} to {highest:.2f}; " in text


def test_each_tissue_is_evaluated_by_its_own_labels(files, samples, tmp_path):
    """CD8 T cells are one type in the truth of the blood, and all T cells are another in that of the pancreas."""
    evaluation = scperformer.evaluate(files, "truth", output=tmp_path / "evaluation")
    merged = evaluation.metrics["merged"]
    assert (merged["classical monocyte"], merged["alpha cell"]) == (
        "CD14+ Mono",
        "pancreatic A cell",
    )
    assert {merged[label] for label in merged if label.startswith("CD8 T cell, GZM")} == {"CD8 T"}
    for name, sample in samples.items():
        truth = (
            sample.obs["cell_type"]
            .astype(str)
            .str.replace(r"^(naive )?CD8 T cell.*", "CD8 T", regex=True)
        )
        label = (
            sample.obs[f"{KEY}_label"]
            .astype(str)
            .str.replace(r"^(naive )?CD8 T cell.*", "CD8 T", regex=True)
        )
        scores = evaluation.metrics["samples"][f"{name}"]["model"]
        assert scores["accuracy"] == pytest.approx(
            np.mean(truth.to_numpy() == label.to_numpy()), abs=1e-9
        )
    assert "baseline" not in read_evaluation(tmp_path / "evaluation").metrics


def test_the_report_names_the_tissues(files, samples, tmp_path):
    evaluation = scperformer.evaluate(files, "truth")
    text = scperformer.report(
        files, output=tmp_path / "report.html", evaluation=evaluation
    ).path.read_text()
    page = Page(text)
    words = " ".join(" ".join(page.text).split())
    num_labels = len(
        set().union(*(sample.uns[KEY]["model"]["labels"] for sample in samples.values()))
    )
    assert f"annotated by published mean profiles of cell types, with {num_labels} labels." in words
    assert "This reference has no cells" in words
    # of the sections, in the natural order of their samples
    suffix = {"blood": "", "pancreas": "-2"}
    assert len(page.data["maps"]) == 2
    for name, sample in samples.items():
        record = Record.from_uns(sample.uns[KEY], KEY)
        tissue = record.tissue
        assert f"{tissue.title} , {how_found(tissue)}. " in words
        [row] = [row for row in page.tables["samples-table"] if row[0] == name]
        assert row[2] == tissue_text(tissue)
        assert "{:.0%} to {:.0%}".format(*record.expected_accuracy) in row
        assert f"1 sample with {sample.n_obs} cells, " in words
        assert page.tables[f"composition-table{suffix[name]}"][1][0] == name
    assert "was trained on" not in words


def test_a_tissue_that_does_not_fit(samples, monkeypatch, tmp_path):
    monkeypatch.delenv("SCPERFORMER_MODEL")
    cells = samples["pancreas"].copy()
    scperformer.annotate(cells, overwrite=True, options={"tissue": "blood"})
    text = scperformer.report(cells, output=tmp_path / "report.html").path.read_text()
    words = " ".join(" ".join(Page(text).text).split())
    assert "blood (adult human) , as given" in words
    assert "partly unlike the profiles" in words
    assert (
        "Another tissue fits better than blood (adult human): pancreas (adult human), by " in words
    )
    assert "Accuracy not known" in words


@pytest.mark.slow
def test_a_file_without_a_tissue(monkeypatch, tmp_path):
    """Vessels, fibroblasts and leukocytes of the skin, with cells of an epithelium that are not named."""
    monkeypatch.delenv("SCPERFORMER_MODEL")
    cells = cells_of_tissue("skin")
    cells = cells[~cells.obs["cell_type"].str.contains("keratinocyte|melanocyte")].copy()
    scperformer.annotate(cells, options={"tissue": "common_types"})
    facts = cells.uns[KEY]
    assert facts["tissue"]["name"] == "common types"
    facts["tissue"]["how"] = UNDETERMINED
    text = scperformer.report(cells, output=tmp_path / "report.html").path.read_text()
    words = " ".join(" ".join(Page(text).text).split())
    assert "not determined , as no type is specific to one: common types (human)" in words
    assert "Accuracy not known: check the labels tissue not determined , as no type" in words
    assert "More than a fifth of a label" not in words


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"name": "liver", "how": GIVEN}, "T, as given"),
        (
            {"name": "common types", "how": UNDETERMINED},
            "not determined, as no type is specific to one: T",
        ),
        (
            {"name": "liver", "how": SPECIFIC},
            "T, by a, X high (9 of 50 cells), b (2); testis 70% fits, too",
        ),
        ({"name": "blood", "how": BLOOD}, "T, as nearly all cells are leukocytes"),
        ({"name": "liver", "how": MEAN}, "T, by the mean of the cells, whose correlation is 0.50"),
    ],
)
def test_the_text_of_each_answer(record, text):
    scores = {"score": 0.5, "next": texts(["testis", "lung"]), "next_scores": np.array([0.35, 0.1])}
    types = {"num_cells": 50, "types": texts(["a, X high", "b"]), "type_cells": np.array([9, 2])}
    assert (
        tissue_text(TissueRecord(title="T", in_capitals=False, **scores, **types, **record)) == text
    )
    same = {"next_changed": np.array([0.02, 0.9])}  # testis gives the same types
    assert "testis" not in tissue_text(
        TissueRecord(title="T", in_capitals=False, **scores, **types, **record, **same)
    )
