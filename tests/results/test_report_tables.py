"""The tables and warnings of the report, compared with counts made by hand."""

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.annotated import annotated_sample

from scperformer.results.read_annotations import Annotated, of_cells
from scperformer.results import composition, report_tables as tables
from scperformer.results.cluster_labels import Clusters
from scperformer.results.evaluate import compare
from scperformer.results.read_annotations import Failed
from scperformer.results.what_to_check import clusters_to_check, things_to_check, trust_groups

KNOWN = ["B", "T", "NK", "never"]


def make_sample(name: str, labels: str, baseline: str, confidence: list[float], share: float = 0.9) -> Annotated:
    """Return a sample with labels from words; cells with a confidence below 0.5 are unknown.

    It has a `share` of the model's genes.
    """
    obs = pd.DataFrame(
        {
            "k_label": pd.Categorical(labels.split()),
            "k_baseline_label": pd.Categorical(baseline.split()),
            "k_confidence": confidence,
            "k_unknown": np.array(confidence) < 0.5,
        }
    )
    obs["k_call"] = obs["k_label"].astype(object).mask(obs["k_unknown"], "unknown")
    facts = {"model": {"hash": "a" * 64, "name": "m", "labels": KNOWN}, "genes": {"share_of_model": share}}
    return Annotated(name=name, path=Path(name), key="k", obs=obs, umap=None, facts=facts)


@pytest.fixture
def samples() -> list[Annotated]:
    return [
        make_sample("one", "T T T B", "T T B B", [0.9, 0.8, 0.3, 1.0]),
        make_sample("two", "T B NK T B", "T T T T T", [0.2, 0.6, 0.7, 0.95, 0.4], share=0.5),
    ]


@pytest.fixture
def cells(samples, labels) -> pd.DataFrame:
    return tables.all_cells(samples, labels)


@pytest.fixture
def labels(samples) -> list[tables.Label]:
    return tables.order_labels(samples)


def test_labels_are_ordered_by_frequency_then_as_in_the_model(labels):
    assert [label.name for label in labels] == ["T", "B", "NK", "unknown", "never"]
    assert len({label.colour for label in labels}) == 5
    assert [label.in_model for label in labels] == [True, True, True, False, True]


def test_true_labels_that_the_model_lacks_come_last(samples):
    truths = [np.array(words.split(), dtype=object) for words in ("T T mast B", "T B NK T B")]
    labels = tables.order_labels(samples, compare(samples, truths, "truth"))
    assert (labels[-1].name, labels[-1].in_model) == ("mast", False)


def test_counts_shares_and_agreement(samples, cells, labels):
    two = tables.summarise(samples[1], cells, labels)
    assert two["counts"] == [1, 1, 1, 2, 0]  # unknown wins over the most probable label
    assert two["shares"] == pytest.approx([0.2, 0.2, 0.2, 0.4, 0])
    assert (two["num_cells"], two["num_unknown"]) == (5, 2)
    assert two["agreement"] == pytest.approx(2 / 5)


def test_confidence_per_label(cells, labels):
    table = tables.confidence_table(cells, labels)
    assert [row[0] for row in table.rows] == ["T", "B", "NK", "unknown"]
    assert table.rows[0] == ["T", 3, 3 / 9, *(pytest.approx(value) for value in (0.85, 0.9, 0.925))]


def test_composition_has_samples_as_rows(samples, cells, labels):
    of_cell = cells["sample"].to_numpy(object)
    data = composition.composition_data(samples, cells, labels, of_cell, {})
    table = tables.composition_tables(data)[0]
    assert [title for title, _ in table.columns] == ["Sample", "Cells", "T", "B", "NK", "unknown"]
    assert table.rows == [["one", 4, 2, 1, 0, 1], ["two", 5, 1, 1, 1, 2]]
    assert table.total == ["All samples", 9, 3, 2, 1, 3]


def test_disagreements_are_counted(cells):
    assert tables.disagreement_table(cells).rows == [
        ["B", "T", 2, pytest.approx(2 / 3)],
        ["NK", "T", 1, 1.0],
        ["T", "B", 1, pytest.approx(1 / 5)],
    ]


def test_no_disagreement(labels):
    same = make_sample("same", "T B", "T B", [0.9, 0.9])
    assert tables.disagreement_table(tables.all_cells([same], labels)).rows == []


def test_unknown_cells_have_a_most_probable_and_a_second_label(samples, cells, labels, monkeypatch):
    # In sample one, the unknown cell is a T; in two they are a T and a B. Their second labels: B; NK and T.
    proba = {"one": [[0.4, 0.5, 0.1, 0]], "two": [[0.1, 0.5, 0.4, 0], [0.6, 0.3, 0.1, 0]]}
    monkeypatch.setattr(Annotated, "probabilities", lambda self, rows: np.array(proba[self.name]))
    table = tables.unknown_table(samples, cells)
    assert table.rows == [["T", 2, 2 / 5, pytest.approx(0.25), "B", 1], ["B", 1, 1 / 3, 0.4, "T", 1]]
    samples[0].obs["k_unknown"] = samples[1].obs["k_unknown"] = False
    assert tables.unknown_table(samples, tables.all_cells(samples, labels)) is None


def test_a_failed_sample_has_a_row_with_its_reason(samples, cells, labels):
    failed = [Failed(name="three", reason="no such file")]
    summaries = [tables.summarise(sample, cells, labels) for sample in samples]
    rows = tables.sample_table(summaries, failed, None).rows
    assert rows[0][:5] == ["one", "annotated", 4, 1, 0.25]
    assert rows[2] == ["three", "failed: no such file", *[None] * 5]


def test_quality_per_sample(samples):
    samples[0].facts["input"] = {"kind": "counts"}
    samples[0].obs["predicted_doublet"] = [True, False, False, True]
    table = pd.DataFrame(
        {"num_genes": [100, 300, 500, 700], "total": [1, 2, 3, 4], "mitochondrial": [0.1, 0.3, 0.1, 0]}
    )
    shown = tables.quality_table(samples, {"one": table})  # the expression of two could not be read
    titles = [title for title, _ in shown.columns]
    assert dict(zip(titles, shown.rows[0], strict=True)) == {
        "Sample": "one",
        "Cells": 4,
        "Median genes": 400,
        "Median counts": 2.5,
        "Below 200 genes": 1,
        "Median mitochondrial share": 0.1,
        "Above 20% mitochondrial": 1,
        "Likely doublets": 2,
    }


def test_things_to_check(samples, cells, labels):
    summaries = [tables.summarise(sample, cells, labels) for sample in samples]
    truths = [np.array(words.split(), dtype=object) for words in ("T T mast B", "T B NK T B")]
    found = "\n".join(things_to_check(summaries, compare(samples, truths, "truth")))
    assert "two has only 50% of the model’s informative expression" in found
    samples[1].facts["genes"]["informative_share"] = 0.3
    assert any("two has only 30% of" in text for text in things_to_check(summaries, None))
    alone = things_to_check(summaries[1:], None)
    assert any("40% of the cells of two are flagged as unknown" in text for text in alone)
    ends = "(25% … 40%): one, two."
    assert f"2 samples have many unknown cells, perhaps of types that the model was not trained on {ends}" in found
    assert "Logistic regression gives only 40% of the cells of two the same label" in found
    assert "The model does not have these true labels, so their cells count as errors: mast" in found
    assert "one has only" not in found


def test_a_cause_has_one_sentence_whatever_number_of_samples():
    few = [make_sample(f"s{number}", "T B", "T B", [0.9, 0.9], share=number / 200) for number in range(100)]
    labels = tables.order_labels(few)
    cells = tables.all_cells(few, labels)
    summaries = [tables.summarise(sample, cells, labels) for sample in few]
    [sentence] = things_to_check(summaries, None)
    assert sentence.startswith("100 samples lack much of the model’s informative expression; they have (0% … 50%): s0,")
    assert sentence.endswith("s27 and 72 more.")


def test_clusters_of_unknown_cells_are_among_the_things_to_check():
    clusters = Clusters(names=["0", "1", "2"], codes=np.array([0, 0, 1, 1, 1, 2]), source="")
    (one,) = clusters_to_check(clusters, np.array([1, 0, 1, 1, 0, 0], dtype=bool))
    assert one.startswith("Cluster 1 is mostly unknown (3 cells):")
    (two,) = clusters_to_check(clusters, np.array([1, 0, 1, 1, 0, 1], dtype=bool))
    assert two.startswith("Clusters 1, 2 are mostly unknown (4 cells):")
    assert clusters_to_check(clusters, np.zeros(6, dtype=bool)) == []


def test_runs_with_the_same_command_are_one(samples):
    """Its quotes can be read, and long words and lists of files are cut."""
    command = shlex.join(
        ["scperformer", "predict", "a 1.h5ad", "b", "c", "d", "e", f"outputs=['x','{'y' * 99}']", "n=1"]
    )
    for sample, date in zip(samples, ["2026-01-01 10:05 UTC", "2026-01-01 10:01 UTC"], strict=False):
        sample.facts["run"] = {"host": "h", "command": command, "date": date}
    (run,) = tables.runs(samples[:2])
    assert (run["date"], run["last"]) == ("2026-01-01 10:01 UTC", "2026-01-01 10:05 UTC")
    assert run["command"] == f"""scperformer predict 'a 1.h5ad' b c [2 more] "outputs=['x','{"y" * 46}..." n=1"""
    samples[0].facts["run"]["command"] = "scperformer predict 'cut ..."  # as the record cuts very long ones
    assert tables.runs(samples[:1])[0]["command"] == "scperformer predict ..."
    assert len(tables.runs(samples[:2])) == 2
    samples[0].facts["run"]["command"] = "scperformer 'predict"
    assert tables.runs(samples[:1])[0]["command"].startswith("scperformer ")


def test_samples_are_grouped_by_how_far_they_are(samples, cells, labels):
    for sample, kind in zip(samples, ("like the reference", "another tissue"), strict=True):
        sample.facts["shift"] = {"kind": kind, "expected_lowest": 0.8, "expected_highest": 0.9}
    groups = trust_groups([tables.summarise(sample, cells, labels) for sample in samples])
    assert [(group["grade"], group["num_samples"], group["num_cells"], group["samples"]) for group in groups] == [
        ("good", 1, 4, "one"),
        ("bad", 1, 5, "two"),
    ]
    assert groups[0]["expected"] == "80% to 90%"


def test_doublets_per_call(samples, cells, labels):
    assert tables.doublet_table(samples, cells, labels) is None
    for sample in samples:
        sample.obs["predicted_doublet"] = sample.obs["k_confidence"] > 0.85
    table = tables.doublet_table(samples, cells, labels)
    # Calls: T, T, unknown, B; unknown, B, NK, T, unknown.
    assert table.rows == [
        ["T", 3, 2, pytest.approx(2 / 3)],
        ["B", 2, 1, 0.5],
        ["NK", 1, 0, 0.0],
        ["unknown", 3, 0, 0.0],
    ]


def test_an_adapted_model_has_a_warning_of_low_accuracy_but_not_of_few_genes(samples, cells, labels):
    one, two = (sample.facts for sample in samples)
    one["condition"] = {"adapted": True, "expected_accuracy": 0.79}
    two["condition"] = {"adapted": True, "expected_accuracy": 0.81}
    summaries = [tables.summarise(sample, cells, labels) for sample in samples]
    found = "\n".join(things_to_check(summaries, None))
    assert "The expected accuracy of one is only 79%: 21% of the labels are wrong on cells of the reference" in found
    assert "accuracy of two" not in found
    assert "informative expression" not in found  # the control is in test_things_to_check
    two["condition"] = {"adapted": False, "expected_accuracy": float("nan")}
    found = "\n".join(things_to_check([tables.summarise(samples[1], cells, labels)], None))
    assert "expected accuracy" not in found
    assert "two has only 50% of the model’s informative expression" in found


def test_nothing_to_check(labels):
    fine = make_sample("fine", "T B", "T B", [0.9, 0.9])
    summaries = [tables.summarise(fine, tables.all_cells([fine], labels), labels)]
    assert things_to_check(summaries, None) == []


def test_confidence_far_below_that_of_held_out_cells_is_a_warning(samples, cells, labels):
    bins = {"num_cells": np.array([20, 80]), "confidence": np.array([0.5, 0.9]), "accuracy": np.array([0.5, 0.9])}
    for sample, is_low in zip(samples, (False, True), strict=True):  # mean confidences: 0.75 and 0.57
        sample.facts["calibration"] = {"bins": bins}  # mean confidence: 0.82
        found = things_to_check([tables.summarise(sample, cells, labels)], None)
        is_named = any(f"{sample.name}: " in text and "0.57" in text and "0.82" in text for text in found)
        assert is_named == is_low


def test_what_each_branch_adds_is_shown_for_each_condition(samples):
    def scores(first):
        numbers = {"accuracy": first, "macro_f1": first - 0.1, "loss": 1 - first}
        return {"linear": numbers, "encoder": numbers, "both": numbers}

    assert tables.branch_table(samples) is None  # annotated by an earlier version
    encoder = {"kind": "Performer", "size": "99 gene tokens", "attention": "favor", "device": "cpu"}
    for sample in samples:
        sample.facts["model"] |= {"encoder": encoder, "branch_scores": scores(0.9)}
    table = tables.branch_table(samples)
    assert [title for title, _ in table.columns] == ["Branch", "Accuracy", "Macro-F1", "Loss"]
    assert [row[0] for row in table.rows] == ["linear branch", "Performer", "both"]
    assert table.rows[2][1:] == pytest.approx([0.9, 0.8, 0.1])
    samples[1].facts["condition"] = {"adapted": True, "key": "b" * 16}
    samples[1].facts["model"]["branch_scores"] = scores(0.8)
    table = tables.branch_table(samples)
    assert [row[-1] for row in table.rows] == ["one"] * 3 + ["two"] * 3
    assert table.rows[5][1:4] == pytest.approx([0.8, 0.7, 0.2])


def test_labels_that_the_encoder_decides_are_in_the_table_of_samples(samples, cells, labels):
    def table():
        return tables.sample_table([tables.summarise(sample, cells, labels) for sample in samples], [], None)

    assert "Labels decided by the encoder" not in dict(table().columns)
    samples[1].facts["encoder"] = {"num_cells": 5, "num_decided": 2}
    place = list(dict(table().columns)).index("Labels decided by the encoder")
    assert [row[place] for row in table().rows] == [None, 2]


def test_confusion_matrix_has_the_counts_of_true_and_predicted_labels(samples):
    truths = [np.array(words.split(), dtype=object) for words in ("T T T T", "mast B B T B")]
    evaluation = compare(samples, truths, "truth")
    labels = tables.order_labels(samples, evaluation)
    table = tables.confusion_table(evaluation, labels)
    assert [title for title, _ in table.columns] == ["True label", "Cells", "T", "B", "NK"]
    assert table.rows == [["T", 5, 4, 1, 0], ["B", 3, 0, 2, 1], ["mast", 1, 1, 0, 0]]
    per_label = tables.score_tables(evaluation)[1]
    assert [(row[0], row[1]) for row in per_label.rows] == [("T", 5), ("B", 3), ("mast", 1)]


def test_levels_count_each_cell_up_to_the_top(samples):
    """B and T are lymphocytes. Of nine cells, one is called lymphocyte, and one is unknown."""
    tree = {"nodes": ["lymphocyte", "B", "T", "NK", "never"], "parents": ["", "lymphocyte", "lymphocyte", "", ""]}
    tree["ontology_term_ids"] = ["CL:0000542", "CL:0000236", "CL:0000084", "unknown", "unknown"]
    assert tables.levels(samples) == []
    for sample, calls in zip(samples, ("T T lymphocyte B", "unknown B NK T B"), strict=True):
        sample.facts["tree"] = tree
        sample.obs["k_call"] = pd.Categorical(calls.split())
    rows = tables.levels(samples)
    assert [(row["name"], row["level"], row["num_here"], row["num_cells"]) for row in rows] == [
        ("lymphocyte", 0, 1, 7),
        ("B", 1, 3, 3),
        ("T", 1, 3, 3),
        ("NK", 0, 1, 1),
        ("never", 0, 0, 0),
    ]
    assert rows[1]["term"] == "CL:0000236"
    samples[1].facts["tree"] = tree | {"nodes": ["other", *tree["nodes"][1:]]}
    assert tables.levels(samples) == []


def test_thresholds_that_differ_are_shown_with_their_samples():
    def samples(*thresholds):
        samples = [of_cells(annotated_sample(0, 20, min_confidence=value), "scperformer") for value in thresholds]
        return [replace(sample, name=f"s{number}") for number, sample in enumerate(samples, start=1)]

    assert tables.threshold(samples(0.5)) == tables.threshold(samples(0.5, 0.5)) == "0.5"
    assert tables.threshold(samples(0.0, 0.0)) == ""
    assert tables.threshold(samples(0.8, 0.5, 0.8)) == "0.5 (s2) or 0.8 (s1, s3)"
    assert tables.threshold(samples(0.0, 0.5)) == "0.5 (s2)"
    assert tables.threshold(samples(0.0, *[0.5] * 7)) == "0.5 (s2, s3, s4, s5, s6, s7, s8)"
    assert tables.flag_reasons(samples(0.0, 0.5)) == [
        "their confidence is below 0.5 (s2)",
        "they express none of the model’s genes",
    ]
