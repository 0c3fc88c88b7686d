"""The content of the report, compared with counts made by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scperformer.reports import summary
from scperformer.reports.annotated import Annotated
from scperformer.reports.evaluate import compare

KNOWN = ["B", "T", "NK", "never"]


def sample(name: str, labels: str, baseline: str, confidence: list[float], share_of_model: float = 0.9) -> Annotated:
    """A sample from labels written as words; cells below .5 are flagged unknown."""
    obs = pd.DataFrame(
        {
            "k_label": pd.Categorical(labels.split()),
            "k_baseline_label": pd.Categorical(baseline.split()),
            "k_confidence": confidence,
            "k_unknown": np.array(confidence) < 0.5,
        }
    )
    facts = {"model": {"hash": "a" * 64, "name": "m", "labels": KNOWN}, "genes": {"share_of_model": share_of_model}}
    return Annotated(name=name, path=Path(name), key="k", obs=obs, embedding=None, facts=facts)


@pytest.fixture
def samples() -> list[Annotated]:
    return [
        sample("one", "T T T B", "T T B B", [0.9, 0.8, 0.3, 1.0]),
        sample("two", "T B NK T B", "T T T T T", [0.2, 0.6, 0.7, 0.95, 0.4], share_of_model=0.5),
    ]


@pytest.fixture
def cells(samples, labels) -> pd.DataFrame:
    return summary.all_cells(samples, labels)


@pytest.fixture
def labels(samples) -> list[summary.Label]:
    return summary.order_labels(samples)


def test_labels_are_numbered_by_frequency_then_in_the_models_order(labels):
    assert [(label.name, label.number) for label in labels] == [("T", 1), ("B", 2), ("NK", 3), ("never", 4)]
    assert len({label.colour for label in labels}) == 4


def test_true_labels_unknown_to_the_model_come_last_without_a_number(samples):
    truths = [np.array(words.split(), dtype=object) for words in ("T T mast B", "T B NK T B")]
    labels = summary.order_labels(samples, compare(samples, truths, "truth"))
    assert (labels[-1].name, labels[-1].number) == ("mast", None)


def test_counts_shares_and_agreement(samples, cells, labels):
    two = summary.summarise(samples[1], cells, labels)
    assert two["counts"] == [2, 2, 1, 0]
    assert two["shares"] == pytest.approx([0.4, 0.4, 0.2, 0])
    assert (two["num_cells"], two["num_unknown"]) == (5, 2)
    assert two["agreement"] == pytest.approx(2 / 5)


def test_confidence_per_label(cells, labels):
    rows = summary.confidence_rows(cells, labels)
    assert [row["label"].name for row in rows] == ["T", "B", "NK"]
    assert (rows[0]["num_cells"], rows[0]["num_unknown"]) == (5, 2)
    assert (rows[0]["low"], rows[0]["median"], rows[0]["high"]) == pytest.approx((0.3, 0.8, 0.9))


def test_histogram_holds_every_cell_and_both_ends(cells):
    bars = summary.histogram(cells)
    assert len(bars) == 20
    assert sum(every for every, _ in bars) == 9
    assert sum(unknown for _, unknown in bars) == 3
    assert bars[-1] == (2, 0)  # .95 and 1.0
    assert bars[6] == (1, 1)  # .3


def test_disagreements_are_counted(cells, labels):
    found = summary.disagreements(cells, labels)
    assert [(label.name, other.name, num, share) for label, other, num, share in found] == [
        ("B", "T", 2, pytest.approx(2 / 3)),
        ("T", "B", 1, pytest.approx(1 / 5)),
        ("NK", "T", 1, 1.0),
    ]


def test_no_disagreement(labels):
    same = sample("same", "T B", "T B", [0.9, 0.9])
    assert summary.disagreements(summary.all_cells([same], labels), labels) == []


def test_things_to_check(samples, cells, labels):
    summaries = [summary.summarise(one, cells, labels) for one in samples]
    truths = [np.array(words.split(), dtype=object) for words in ("T T mast B", "T B NK T B")]
    found = "\n".join(summary.things_to_check(summaries, compare(samples, truths, "truth")))
    assert "two has only 50% of the model's informative expression" in found
    samples[1].facts["genes"]["informative_share"] = 0.3
    assert any("two has only 30% of" in text for text in summary.things_to_check(summaries, None))
    assert "40% of the cells of two are flagged as unknown" in found
    assert "25% of the cells of one are flagged" in found
    assert "Logistic regression gives only 40% of the cells of two the same label" in found
    assert "The model does not know these true labels, so their cells count as errors: mast" in found
    assert "one has only" not in found


def test_a_low_expected_accuracy_is_named_and_few_genes_are_not_if_the_model_was_adapted(samples, cells, labels):
    one, two = (each.facts for each in samples)
    one["condition"] = {"adapted": True, "expected_accuracy": 0.79}
    two["condition"] = {"adapted": True, "expected_accuracy": 0.81}
    summaries = [summary.summarise(each, cells, labels) for each in samples]
    found = "\n".join(summary.things_to_check(summaries, None))
    assert "The expected accuracy of one is only 79%: on cells of the reference" in found
    assert "21% of the labels are wrong" in found
    assert "accuracy of two" not in found
    assert "informative expression" not in found  # the control is in test_things_to_check
    two["condition"] = {"adapted": False, "expected_accuracy": float("nan")}
    found = "\n".join(summary.things_to_check([summary.summarise(samples[1], cells, labels)], None))
    assert "expected accuracy" not in found
    assert "two has only 50% of the model's informative expression" in found


def test_nothing_to_check(labels):
    fine = sample("fine", "T B", "T B", [0.9, 0.9])
    summaries = [summary.summarise(fine, summary.all_cells([fine], labels), labels)]
    assert summary.things_to_check(summaries, None) == []


def test_evaluation_rows_are_shares_of_the_true_label(samples):
    truths = [np.array(words.split(), dtype=object) for words in ("T T T T", "mast B B T B")]
    evaluation = compare(samples, truths, "truth")
    labels = summary.order_labels(samples, evaluation)
    content = summary.evaluation_content(evaluation, labels)
    assert [column.name for column in content["columns"]] == ["T", "B", "NK"]
    rows = {row["label"].name: row for row in content["rows"]}
    assert rows["T"]["num_cells"] == 5
    assert rows["T"]["cells"] == [(0.8, 4, True), (0.2, 1, False), (0.0, 0, False)]
    assert rows["B"]["cells"][1:] == [(pytest.approx(2 / 3), 2, True), (pytest.approx(1 / 3), 1, False)]
    assert rows["mast"]["cells"] == [(1.0, 1, False), (0.0, 0, False), (0.0, 0, False)]
    assert [label.name for label, _ in content["per_class"]] == ["T", "B", "mast"]


def test_levels_count_each_cell_up_to_the_top(samples):
    """B and T are lymphocytes; of nine cells, one backed off to them and one to nothing."""
    tree = {"nodes": ["lymphocyte", "B", "T", "NK", "never"], "parents": ["", "lymphocyte", "lymphocyte", "", ""]}
    tree["ontology_term_ids"] = ["CL:0000542", "CL:0000236", "CL:0000084", "unknown", "unknown"]
    assert summary.levels(samples) == []
    for each, calls in zip(samples, ("T T lymphocyte B", "unknown B NK T B"), strict=True):
        each.facts["tree"] = tree
        each.obs["k_call"] = pd.Categorical(calls.split())
    rows = summary.levels(samples)
    assert [(row["name"], row["level"], row["num_here"], row["num_cells"]) for row in rows] == [
        ("lymphocyte", 0, 1, 7),
        ("B", 1, 3, 3),
        ("T", 1, 3, 3),
        ("NK", 0, 1, 1),
        ("never", 0, 0, 0),
    ]
    assert rows[1]["term"] == "CL:0000236"
    samples[1].facts["tree"] = tree | {"nodes": ["other", *tree["nodes"][1:]]}
    assert summary.levels(samples) == []
