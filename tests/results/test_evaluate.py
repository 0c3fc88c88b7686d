"""Evaluation: scores compared with scikit-learn, true labels from obs and from tables, refused inputs."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as reference
from support.annotated import TRUTH_KEY, add_trust, annotated_sample, write_sample
from support.logs import said
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.cli.evaluate import EvaluateConfig
from scperformer.cli.evaluate import run as run_evaluate
from scperformer.cli.report import ReportConfig
from scperformer.cli.report import run as run_report
from scperformer.results.evaluate import Evaluation, evaluate_samples, read_evaluation
from scperformer.results.read_annotations import of_cells


@pytest.fixture
def samples():
    """Two samples of 60 and 40 cells, truth in obs."""
    return [annotated_sample(0, 60), annotated_sample(60, 40)]


def evaluate(folder: Path, samples, tables=None, **options) -> Path:
    """Write the samples and their evaluation into a folder; return the path of the evaluation."""
    inputs = [write_sample(folder, f"s{number}", sample) for number, sample in enumerate(samples)]
    output = str(folder / "evaluation")
    options = {"truth_key": TRUTH_KEY, "output": output, "truth_path": tables} | options
    return run_evaluate(EvaluateConfig(inputs=inputs, **options))


def scored(samples, tables=None, truth_key=TRUTH_KEY, **options) -> Evaluation:
    """Return the evaluation of samples in memory, without files."""
    read = [
        replace(of_cells(sample, "scperformer"), name=f"s{number}")
        for number, sample in enumerate(samples)
    ]
    return evaluate_samples(read, truth_key, tables, **options)


def truth_table(folder: Path, sample, name: str = "truth.csv", separator: str = ",") -> str:
    """Move the true labels of a sample from obs to a table, with the cells in reverse order."""
    table = sample.obs[[TRUTH_KEY]][::-1].rename_axis("cell").rename(columns={TRUTH_KEY: "type"})
    table.to_csv(folder / name, sep=separator)
    del sample.obs[TRUTH_KEY]
    return str(folder / name)


def scores_of(truth, predicted) -> dict[str, float]:
    return {
        "accuracy": reference.accuracy_score(truth, predicted),
        "macro_f1": reference.f1_score(
            truth, predicted, labels=np.unique(truth), average="macro", zero_division=0
        ),
        "weighted_f1": reference.f1_score(truth, predicted, average="weighted", zero_division=0),
    }


def test_metrics_equal_scikit_learn(tmp_path, samples):
    folder = evaluate(tmp_path, samples)
    metrics = json.loads((folder / "metrics.json").read_text())
    obs = pd.concat([sample.obs.astype(str) for sample in samples])
    truth, called = (obs[name] for name in (TRUTH_KEY, "scperformer_label"))
    baseline = pd.concat(
        [sample.obsm["scperformer_details"]["baseline_label"].astype(str) for sample in samples]
    )
    assert metrics["model"] == pytest.approx(scores_of(truth, called))
    assert metrics["baseline"] == pytest.approx(scores_of(truth, baseline))
    first = samples[0].obs.astype(str)
    assert metrics["samples"]["s0"]["model"] == pytest.approx(
        scores_of(first[TRUTH_KEY], first["scperformer_label"])
    )
    assert [sample["num_cells"] for sample in metrics["samples"].values()] == [60, 40]
    assert (metrics["num_cells"], metrics["num_without_truth"], metrics["truth_key"]) == (
        100,
        0,
        TRUTH_KEY,
    )
    assert metrics["truth_labels_not_in_model"] == []


def test_tables_equal_scikit_learn(samples):
    evaluation = scored(samples)
    obs = pd.concat([sample.obs.astype(str) for sample in samples])
    labels = list(samples[0].uns["scperformer"]["model"]["labels"])
    assert evaluation.metrics["labels"] == labels
    truth, called = (obs[name] for name in (TRUTH_KEY, "scperformer_label"))
    baseline = pd.concat(
        [sample.obsm["scperformer_details"]["baseline_label"].astype(str) for sample in samples]
    )
    matrix = reference.confusion_matrix(truth, called, labels=labels)
    np.testing.assert_array_equal(evaluation.confusion.to_numpy(), matrix)
    assert list(evaluation.confusion.index) == list(evaluation.confusion.columns) == labels
    theirs = reference.precision_recall_fscore_support(
        truth, called, labels=labels, zero_division=np.nan
    )
    for name, values in zip(("precision", "recall", "f1", "support"), theirs, strict=True):
        # Written with six decimals; scikit-learn gives F1 = 0 where we and it have no precision.
        ours = evaluation.per_class[name].fillna(0)
        np.testing.assert_allclose(ours, np.nan_to_num(values), atol=5e-7)
    f1 = reference.f1_score(truth, baseline, labels=labels, average=None, zero_division=0)
    np.testing.assert_allclose(evaluation.per_class["baseline_f1"].fillna(0), f1, atol=5e-7)


def test_cells_without_a_true_label_are_counted_and_left_out(samples, caplog):
    truth = samples[0].obs[TRUTH_KEY].astype(object)
    truth.iloc[:7] = [np.nan, np.nan, np.nan, "  ", "unknown", "Unknown cell", "unknown"]
    samples[0].obs[TRUTH_KEY] = truth
    metrics = scored(samples).metrics
    assert (metrics["num_cells"], metrics["num_without_truth"]) == (93, 7)
    assert metrics["samples"]["s0"]["num_cells"] == 53
    assert metrics["truth_labels_not_in_model"] == []
    assert said(caplog, "read_truth", "s0", "'unknown' (2)", "'Unknown cell' (1)")


def test_cells_of_the_reference_are_warned_of(samples, caplog):
    remark = {
        "code": "repeats",
        "severity": "check",
        "text": "Some cells are repeated",
        "value": "10 cells (25 %)",
    }
    samples[1].uns["scperformer"]["remarks"] = {
        name: np.array([text], object) for name, text in remark.items()
    }
    scored(samples)
    assert said(caplog, "evaluate_samples", "s1", "25 %")
    assert not said(caplog, "evaluate_samples", "s0")


def test_sample_without_truth_has_no_scores(samples):
    samples[1].obs[TRUTH_KEY] = ""
    metrics = scored(samples).metrics
    nothing = {"accuracy": None, "macro_f1": None, "weighted_f1": None}
    empty = {"num_cells": 0, "calibration_error": None, "model": nothing, "baseline": nothing}
    assert metrics["samples"]["s1"] == empty


def test_coverage_of_sets_and_flags_are_counted(samples):
    for sample in samples:
        add_trust(sample)
    truth = samples[0].obs[TRUTH_KEY].astype(str).to_numpy(object)
    truth[:5] = "mast cell"
    samples[0].obs[TRUTH_KEY] = truth
    metrics = scored(samples).metrics
    obs = pd.concat([sample.obs.astype(str) for sample in samples])
    inside = [
        label in text.split("|")
        for label, text in zip(obs[TRUTH_KEY], obs["scperformer_set"], strict=True)
    ]
    assert 0.5 < np.mean(inside) < 0.95
    assert metrics["coverage"] == pytest.approx(np.mean(inside))
    assert metrics["samples"]["s1"]["coverage"] == pytest.approx(np.mean(inside[60:]))
    assert metrics["mean_set_size"] == pytest.approx(obs["scperformer_set_size"].astype(int).mean())
    # Cells 0, 10, ... of each sample are flagged; the first of them is one of the five mast cells.
    assert metrics["flagged_unknown"] == {
        "known_labels": pytest.approx(9 / 95),
        "other_labels": pytest.approx(1 / 5),
    }


def backed_off_sample():
    """Return seven cells with true labels, labels, and calls in the tree lymphocyte (B, T (CD8, Treg), NK)."""
    b = "CD19+ B"
    nk = "CD56+ NK"
    cd8 = "CD8+ Cytotoxic T"
    treg = "CD4+/CD25 T Reg"
    sample = annotated_sample(num_cells=7, min_confidence=0.9)
    sample.obs[TRUTH_KEY] = [b, b, cd8, cd8, nk, "Dendritic", "mast cell"]
    sample.obs["scperformer_label"] = [b, nk, treg, cd8, nk, "Dendritic", nk]
    sample.obs["scperformer_call"] = [
        b,
        "lymphocyte",
        "T",
        "unknown",
        "T",
        "Dendritic",
        "lymphocyte",
    ]
    nodes = ["lymphocyte", b, "T", cd8, treg, nk]
    parents = ["", "lymphocyte", "lymphocyte", "T", "T", "lymphocyte"]
    others = [label for label in sample.uns["scperformer"]["model"]["labels"] if label not in nodes]
    columns = {"nodes": nodes + others, "parents": parents + [""] * len(others)}
    columns["ontology_term_ids"] = ["unknown"] * len(columns["nodes"])
    tree = {name: np.array(values, dtype=object) for name, values in columns.items()}
    sample.uns["scperformer"]["tree"] = tree | {"num_backed_off": 5}
    return sample


def test_calls_that_back_off_are_scored(tmp_path):
    folder = evaluate(tmp_path, [backed_off_sample()])
    calls = read_evaluation(folder).metrics["calls"]
    # Wrong calls: an NK cell called T, and a mast cell called lymphocyte. One cell is unknown.
    assert calls["accuracy"] == pytest.approx(4 / 6)
    assert (calls["backed_off"], calls["unknown"]) == (pytest.approx(4 / 7), pytest.approx(1 / 7))
    config = ReportConfig(inputs=[str(tmp_path / "s0.annotated.h5ad")], evaluation=str(folder))
    page = run_report(config).read_text(encoding="utf-8")
    assert "5 cells with a low confidence got the parent label in the tree of labels" in page
    assert "Of the other calls, 66.7% are the true label or a parent of it." in page


def test_damaged_tree_is_refused(tmp_path):
    sample = backed_off_sample()
    sample.uns["scperformer"]["tree"]["parents"][0] = "T"
    with refusal("damaged-file"):
        evaluate(tmp_path, [sample])


def test_labels_of_clusters_are_scored(samples):
    for sample in samples:
        sample.obs["scperformer_cluster_label"] = np.roll(
            sample.obs["scperformer_label"].astype(str), 1
        )
    evaluation = scored(samples)
    obs = pd.concat([sample.obs.astype(str) for sample in samples])
    truth = obs[TRUTH_KEY]
    labels = evaluation.metrics["labels"]
    theirs = scores_of(truth, obs["scperformer_cluster_label"])
    assert evaluation.metrics["cluster"] == pytest.approx(theirs)
    by_label = {"labels": labels, "average": None, "zero_division": 0}
    f1 = reference.f1_score(truth, obs["scperformer_cluster_label"], **by_label)
    np.testing.assert_allclose(evaluation.per_class["cluster_f1"].fillna(0), f1, atol=5e-7)


def test_true_labels_that_the_model_lacks_count_as_errors(samples, caplog):
    before = scored(samples).metrics
    truth = samples[0].obs[TRUTH_KEY].astype(str).to_numpy(object)
    right = np.flatnonzero(
        truth == samples[0].obs["scperformer_label"].astype(str).to_numpy(object)
    )
    truth[right[:5]] = "mast cell"
    samples[0].obs[TRUTH_KEY] = truth
    evaluation = scored(samples)
    assert evaluation.metrics["truth_labels_not_in_model"] == ["mast cell"]
    assert evaluation.metrics["model"]["accuracy"] == pytest.approx(
        before["model"]["accuracy"] - 5 / 100
    )
    assert evaluation.confusion.loc["mast cell"].sum() == 5
    assert said(caplog, "_log_scores", "'mast cell'")


@pytest.mark.parametrize(
    ("name", "separator"), [("truth.csv", ","), ("truth.tsv", "\t")], ids=["csv", "tsv"]
)
def test_truth_from_a_table_equals_truth_in_obs(tmp_path, samples, name, separator):
    in_obs = scored(samples[:1]).metrics
    table = truth_table(tmp_path, samples[0], name, separator)
    from_table = scored(samples[:1], [table], truth_key="type").metrics
    assert from_table["samples"] == in_obs["samples"]


def numbered() -> dict[str, str]:
    """Return new names for the labels: numbers, as of clusters."""
    labels = annotated_sample().uns["scperformer"]["model"]["labels"]
    return {label: str(number) for number, label in enumerate(labels)}


TRUTHS = {
    "strings that can be missing": ({}, lambda truth: truth.astype(str).astype("string")),
    "categories of whole floats": (
        numbered(),
        lambda truth: truth.astype(float).astype("category"),
    ),
}


@pytest.mark.parametrize("in_table", [False, True], ids=["in obs", "in a table"])
@pytest.mark.parametrize("form", TRUTHS)
def test_truth_in_another_form_gives_the_same_scores(tmp_path, form, in_table):
    names, in_form = TRUTHS[form]
    sample = annotated_sample(0, 60, rename=names)
    missing = np.arange(60) % 10 == 0
    truth = sample.obs[TRUTH_KEY].astype(object)
    truth[missing] = None
    expected = scores_of(
        truth[~missing].astype(str), sample.obs["scperformer_label"][~missing].astype(str)
    )
    column = in_form(sample.obs[TRUTH_KEY]).where(~missing)
    column.rename(TRUTH_KEY).rename_axis("cell").to_csv(tmp_path / "truth.csv")
    with ad.settings.override(allow_write_nullable_strings=True):
        sample.obs[TRUTH_KEY] = column
        if in_table:
            del sample.obs[TRUTH_KEY]
        folder = evaluate(
            tmp_path, [sample], tables=[str(tmp_path / "truth.csv")] if in_table else None
        )
    metrics = read_evaluation(folder).metrics
    assert metrics["model"] == pytest.approx(expected)
    assert (metrics["truth_labels_not_in_model"], metrics["num_without_truth"]) == (
        [],
        missing.sum(),
    )


def test_samples_without_true_labels_are_left_out_with_a_warning(tmp_path, samples, caplog):
    alone = scored(samples[:1]).metrics
    assert alone["samples_without_truth"] == []
    del samples[1].obs[TRUTH_KEY]
    metrics = scored(samples[:2]).metrics
    assert metrics["samples_without_truth"] == ["s1"]
    assert said(caplog, "evaluate_samples", TRUTH_KEY, "s1")
    assert (metrics["num_cells"], list(metrics["samples"])) == (alone["num_cells"], ["s0"])
    with refusal("no-column", TRUTH_KEY):
        evaluate(tmp_path, samples[1:2], overwrite=True)


def test_unusual_labels_are_read_back_unchanged():
    odd = {"CD19+ B": "NA", "Dendritic": "1", "CD34+": 'a,b\n"c"', "CD56+ NK": "truth"}
    sample = annotated_sample(num_cells=60, rename=odd)
    evaluation = scored([sample])
    labels = list(sample.uns["scperformer"]["model"]["labels"])
    assert set(odd.values()) <= set(labels)
    assert evaluation.per_class["label"].tolist() == list(evaluation.confusion.index) == labels
    assert list(evaluation.confusion.columns) == labels


def test_scores_are_logged_with_those_of_logistic_regression(samples, caplog):
    samples[0].obs.loc[samples[0].obs_names[:2], TRUTH_KEY] = np.nan
    caplog.set_level(logging.INFO)
    metrics = scored(samples).metrics
    model = metrics["model"]
    baseline = metrics["baseline"]
    values = [
        f"{scores[name]:.3f}" for scores in (model, baseline) for name in ("accuracy", "macro_f1")
    ]
    assert said(caplog, "_log_scores", 98, TRUTH_KEY, 2, *values)


def test_true_labels_that_cannot_be_used_are_refused(tmp_path, samples):
    with refusal("no-column"):
        scored(samples, truth_key="nope")
    with refusal("no-shared-labels"):
        scored(samples, truth_key="percent_mito")
    own, other = (truth_table(tmp_path, sample, f"{sample.n_obs}.csv") for sample in samples)
    with refusal("no-column"):
        scored(samples[:1], [own], truth_key="nope")
    with refusal("no-shared-cells"):
        scored(samples[:1], [other], truth_key="type")
    samples[0].obs_names = [samples[0].obs_names[0], *samples[0].obs_names[:-1]]
    with refusal("cell-twice"):
        scored(samples[:1], [own], truth_key="type")
    samples[0].obs[TRUTH_KEY] = np.nan
    with refusal("no-truth"):
        scored(samples[:1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file .*truth.csv; expected a table of true labels"),
        ("", "truth.csv is not a table"),
        ("cell,type\na,B\na,T\n", "cell 'a' has more than one row in"),
    ],
    ids=["missing", "empty", "cell-twice"],
)
def test_bad_table_is_refused(tmp_path, samples, content, message):
    path = tmp_path / "truth.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        evaluate(tmp_path, samples[:1], [str(path)], truth_key="type")


def test_existing_output_is_refused_and_kept(tmp_path, samples):
    folder = evaluate(tmp_path, samples)
    before = (folder / "metrics.json").read_bytes()
    with refusal("output-exists"):
        evaluate(tmp_path, samples[:1])
    assert (folder / "metrics.json").read_bytes() == before


@pytest.mark.parametrize("damage", ["metrics.json", "confusion.csv"])
def test_damaged_evaluation_is_refused(tmp_path, samples, damage):
    folder = evaluate(tmp_path, samples)
    (folder / damage).unlink()
    with refusal("no-evaluation"):
        read_evaluation(folder)
    (folder / damage).write_text("{")
    with refusal("no-evaluation"):
        read_evaluation(folder)


def test_true_labels_of_another_study_are_compared_as_what_both_mean(tmp_path, caplog):
    sample = annotated_sample(num_cells=40)
    sample.uns["scperformer"]["model"]["labels"] = np.array(
        ["Naive CD4 T", "Memory CD4 T", "CD8 T"], dtype=object
    )
    called = ["Naive CD4 T", "Memory CD4 T", "CD8 T", "CD8 T"] * 10
    sample.obs["scperformer_label"] = pd.Categorical(called)
    sample.obsm["scperformer_details"]["baseline_label"] = pd.Categorical(called)
    sample.obs[TRUTH_KEY] = ["CD4 T", "CD4 T", "CD8 T", "CD4 T"] * 10
    with caplog.at_level("INFO", "scperformer"):
        metrics = json.loads((evaluate(tmp_path, [sample]) / "metrics.json").read_text())
    assert metrics["model"]["accuracy"] == pytest.approx(0.75)
    assert metrics["labels"] == ["CD4 T", "CD8 T"]
    assert metrics["merged"] == {"Naive CD4 T": "CD4 T", "Memory CD4 T": "CD4 T"}
    assert said(caplog, "_log_scores", "CD4 T (Naive CD4 T, Memory CD4 T)")
