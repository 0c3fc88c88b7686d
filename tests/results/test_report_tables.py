"""The tables and warnings of the report, compared with counts made by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.record import record_of
from support.refusal import refusal

from scperformer.adaptation.record import CHECK, CoverageRecord, Remark, RemarksRecord, ShiftRecord
from scperformer.results import report_tables as tables
from scperformer.results.evaluate import compare
from scperformer.results.read_annotations import Annotated, Failed, cell_table
from scperformer.results.what_to_check import labels_of_conditions, things_to_check, trust_groups

KNOWN = ["B", "T", "NK", "never"]


def make_sample(
    name: str, labels: str, baseline: str, confidence: list[float], share: float = 0.9
) -> Annotated:
    """Return a sample with labels from words; cells with a confidence below 0.5 are unknown.

    It has a `share` of the model's genes.
    """
    unknown = np.array(confidence) < 0.5
    obs = pd.DataFrame(
        {
            "k_label": pd.Categorical(labels.split()),
            "k_call": pd.Series(labels.split()).mask(unknown, "unknown"),
            "k_baseline_label": pd.Categorical(baseline.split()),
            "k_confidence": confidence,
            "k_unknown": unknown,
        }
    )
    obs["k_call"] = obs["k_label"].astype(object).mask(obs["k_unknown"], "unknown")
    return Annotated(
        name=name, path=Path(name), key="k", obs=obs, umap=None, record=record_of(KNOWN, share)
    )


@pytest.fixture
def samples() -> list[Annotated]:
    return [
        make_sample("one", "T T T B", "T T B B", [0.9, 0.8, 0.3, 1.0]),
        make_sample("two", "T B NK T B", "T T T T T", [0.2, 0.6, 0.7, 0.95, 0.4], share=0.5),
    ]


@pytest.fixture
def cells(samples) -> pd.DataFrame:
    return cell_table(samples)


@pytest.fixture
def labels(samples) -> list[tables.Label]:
    return tables.order_labels(samples)


def found_in(samples: list[Annotated], evaluation=None) -> list[str]:
    cells = cell_table(samples)
    return things_to_check([tables.summarise(sample, cells) for sample in samples], evaluation)


def test_labels_are_ordered_by_frequency_then_as_in_the_model(labels):
    assert [label.name for label in labels] == ["T", "B", "NK", "unknown", "never"]
    assert len({label.colour for label in labels}) == 5
    assert [label.in_model for label in labels] == [True, True, True, False, True]


def test_samples_of_a_column_are_in_natural_order(samples, cells, labels):
    samples[0].obs["donor"] = ["d10", "d2", "d2", "d1"]
    samples[1].obs["donor"] = "d2"
    table = tables.composition_table(tables.sample_of_cells(samples, cells, "donor"), cells, labels)
    assert [row[:2] for row in table.rows] == [["d1", 1], ["d2", 7], ["d10", 1]]
    with refusal("no-column"):
        tables.sample_of_cells(samples, cells, "doner")


def test_a_sample_and_a_failed_one_have_a_row(samples, cells):
    samples[0].obs["k_doublet"] = [True, False, False, True]
    samples[0].record.coverage = CoverageRecord(adapted=True, expected_accuracy=0.876)
    samples[0].record.encoder = {"num_decided": 3}
    failed = [Failed(name="three", reason="no such file")]
    table = tables.sample_table(
        [tables.summarise(sample, cells) for sample in samples], failed, None
    )
    titles = [title for title, _ in table.columns]
    assert dict(zip(titles, table.rows[0], strict=True)) == {
        "Sample": "one",
        "Status": "annotated by a refitted model",
        "Cells": 4,
        "Unknown": 0.25,
        "Expected accuracy": "88%",
        "Median confidence": pytest.approx(0.85),
        "Agreement with logistic regression": 0.75,
        "Labels changed by the encoder": 3,
        "Likely doublets": 2,
    }
    assert table.rows[2] == ["three", "failed: no such file", *[None] * 7]


def test_things_to_check_are_the_remarks_of_samples_and_foreign_labels(samples):
    truths = [np.array(words.split(), dtype=object) for words in ("T T mast B", "T B NK T B")]
    few = Remark("few", CHECK, "Few genes", "30%")
    for sample, value in zip(samples, ("30%", "12%"), strict=True):
        remarks = [replace(few, value=value), Remark("shift", CHECK, "Another study")]
        sample.record.remarks = RemarksRecord.of(remarks)
    assert found_in(samples, compare(samples, truths, "truth")) == [
        "Few genes: one (30%), two (12%).",
        "The model does not have these true labels, so their cells count as errors: mast.",
    ]


def test_samples_are_grouped_by_their_distance_to_the_reference(samples, cells):
    for sample, kind in zip(samples, ("like the reference", "another tissue"), strict=True):
        sample.record.shift = ShiftRecord(kind=kind, expected_lowest=0.8, expected_highest=0.9)
    groups = trust_groups([tables.summarise(sample, cells) for sample in samples])
    found = [(group.grade, group.num_samples, group.num_cells, group.samples) for group in groups]
    assert found == [("good", 1, 4, "one"), ("bad", 1, 5, "two")]
    assert groups[0].expected == "80% to 90%"
    for sample in samples:
        sample.record.shift = None
    [group] = trust_groups([tables.summarise(sample, cells) for sample in samples])
    assert (group.title, group.expected) == ("no distance to the reference", "")


PARENTS = {"classical": "monocyte", "non-classical": "monocyte", "monocyte": "", "T": ""}


def calls_of(**samples: dict[str, int]) -> tuple[pd.Series, np.ndarray]:
    """Return the calls of samples with these numbers of cells, and the sample of each cell."""
    rows = [
        (name, call)
        for name, nums in samples.items()
        for call, num in nums.items()
        for _ in range(num)
    ]
    of_cell, calls = zip(*rows, strict=True)
    return pd.Series(calls), np.array(of_cell, dtype=object)


def follow(conditions: dict[str, str], **samples: dict[str, int]) -> list[str]:
    calls, of_cell = calls_of(**samples)
    values = pd.DataFrame({"condition": [conditions[name] for name in of_cell]})
    return labels_of_conditions(calls, values, of_cell, PARENTS)


def test_a_label_that_follows_a_condition_is_remarked():
    """As interferon does: stimulated monocytes are called non-classical."""
    rest = {"classical": 60, "non-classical": 40, "T": 300, "unknown": 9}
    excited = {"classical": 7, "non-classical": 93, "T": 200}
    [text] = follow({"a": "CTRL", "b": "STIM"}, a=rest, b=excited)
    assert text.startswith(
        "non-classical follows condition: 93% of the cells called monocyte or a type of it "
    )
    assert "with STIM, 40% with CTRL" in text
    assert follow({"a": "CTRL", "b": "CTRL"}, a=rest, b=excited) == []
    assert follow({"a": "CTRL", "b": "STIM"}, a=rest, b=rest) == []
    # More monocytes are another composition, of the same states.
    assert (
        follow(
            {"a": "CTRL", "b": "STIM"}, a=rest, b={"classical": 120, "non-classical": 80, "T": 300}
        )
        == []
    )
    # A sample that differs from the others of its condition is a donor, not the condition.
    conditions = {"a": "CTRL", "b": "STIM", "c": "STIM"}
    assert follow(conditions, a=rest, b=excited, c=rest) == []
    assert len(follow(conditions, a=rest, b=excited, c=excited)) == 1


def test_columns_of_a_sheet_that_may_be_conditions(samples):
    for sample, donor in zip(samples, ("d1", "d2"), strict=True):
        sample.record.sheet = np.array(["donor", "same", "condition"], dtype=object)
        sample.obs = sample.obs.assign(donor=donor, same="x", condition=f"{donor} too")
    of_cell = cell_table(samples)["sample"].to_numpy(object)
    # the first of those that group alike
    assert list(tables.conditions_of(samples, of_cell, None)) == ["donor"]
    assert list(tables.conditions_of(samples, of_cell, "condition")) == ["condition"]
