"""Score annotations against true labels, with logistic regression as the baseline, and write the scores to a folder."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import (
    did_you_mean,
    escape_formula,
    join_names,
    listed,
    named,
    split_names,
)
from scperformer.base.metrics import class_scores, confusion_matrix, scores
from scperformer.base.outputs import FolderKind, new_folder
from scperformer.cells.label_tables import in_order_of_cells, read_cell_table
from scperformer.labels.joining import common_labels
from scperformer.labels.ontology import packaged_ontology
from scperformer.labels.texts import label_texts, spelled_as, without_no_labels
from scperformer.labels.tree import NO_CALL
from scperformer.results.read_annotations import Annotated, cell_table, common_tree
from scperformer.trust.confidence import calibration_error

log = logging.getLogger(__name__)

METRICS = "metrics.json"
PER_CLASS = "per_class.csv"
CONFUSION = "confusion.csv"
EVALUATION = FolderKind("an evaluation")


@dataclass(kw_only=True, repr=False)
class Evaluation:
    """The scores of annotations, which are the content of an evaluation folder."""

    # scores of the model and of logistic regression, for all cells and per sample
    metrics: dict[str, Any]
    # a row per label: label, support, precision, recall, f1, maybe baseline_f1, cluster_f1
    per_class: pd.DataFrame
    confusion: pd.DataFrame  # counts, L x L: rows are true labels, columns predicted labels
    path: Path | None = None  # the folder, if it was written

    @property
    def scores(self) -> pd.DataFrame:
        """Accuracy, macro-F1 and weighted-F1 of the model, the baseline and, if there are any, the cluster labels."""
        rows = [name for name in ("model", "baseline", "cluster") if name in self.metrics]
        return pd.DataFrame([self.metrics[name] for name in rows], index=rows)

    def __repr__(self) -> str:
        num_cells = self.metrics["num_cells"]
        key = self.metrics["truth_key"]
        return f"Evaluation of {num_cells:,} cells against '{key}'\n{self.scores.round(3)}"


def read_truth(sample: Annotated, truth_key: str, table: str | None = None) -> np.ndarray:
    """Return the true label of each cell, N strings or None, from obs or a table whose first column names cells."""
    columns = sample.obs
    place = str(sample.path)
    if table is not None:
        columns, how = read_cell_table(table, truth_key, "true labels")
        place = f"{table} ({how})"
    if truth_key not in columns:
        others = listed(
            name for name in columns.columns if not str(name).startswith(f"{sample.key}_")
        )
        found = f"no column '{truth_key}' in {place}"
        remedy = f"{did_you_mean(truth_key, columns.columns)}set truth_key=... to the column of true labels"
        raise InputError(
            "no-column", found, f"one of {others}" if others else "a column of true labels", remedy
        )
    truth = columns[truth_key]
    if table is not None:
        truth = in_order_of_cells(columns, sample.obs.index, sample.path, table)[truth_key]
    given = label_texts(truth)
    texts = without_no_labels(given)
    if no_labels := given[texts.isna()].value_counts().to_dict():
        log.warning(
            "%s: cells whose true label means none are left out: %s", sample.name, named(no_labels)
        )
    names = texts.dropna().unique()
    spelled = dict(zip(names, spelled_as(sample.model_labels, names), strict=True))
    if respelled := {text: label for text, label in spelled.items() if text != label}:
        shown = listed(f"'{text}' is '{label}'" for text, label in respelled.items())
        log.info("%s: true labels in other spellings than the model's: %s", sample.name, shown)
    return texts.map(spelled).where(texts.notna(), None).to_numpy(object)


def _confusion(cells: pd.DataFrame, column: str, labels: list[str]) -> np.ndarray:
    """Return the confusion matrix of the predicted labels in a column, L x L."""
    return confusion_matrix(cells["truth"].to_numpy(object), cells[column].to_numpy(object), labels)


def _scores(cells: pd.DataFrame, labels: list[str]) -> dict[str, Any]:
    """Return the scores of cells with a true label, for `metrics.json`. JSON has no NaN, so it becomes None.

    They are the number of cells, the calibration error of the confidences, and accuracy and F1 of the model and of
    logistic regression. If the cells have them: scores of cluster labels, coverage and mean size of the sets of labels,
    and of calls in the label tree, the shares that are a parent of the label or unknown, and the accuracy of those that
    are not unknown: a call is correct if it is the true label or a parent of it.
    """
    result: dict[str, Any] = {"num_cells": len(cells)}
    is_correct = (cells["model"] == cells["truth"]).to_numpy()
    result["calibration_error"] = (
        calibration_error(cells["confidence"].to_numpy(), is_correct) if len(cells) else None
    )
    if "set" in cells and len(cells):
        sets = {text: set(split_names(text)) for text in cells["set"].unique()}
        pairs = zip(cells["truth"], cells["set"], strict=True)
        result["coverage"] = float(np.mean([label in sets[text] for label, text in pairs]))
        result["mean_set_size"] = float(cells["set_size"].mean())
    if "call_right" in cells and len(cells):
        called = cells[cells["call"] != NO_CALL]
        result["calls"] = {
            "accuracy": float(called["call_right"].mean()) if len(called) else None,
            "backed_off": float((called["call"] != called["model_label"]).sum() / len(cells)),
            "unknown": 1 - len(called) / len(cells),
        }
    for column in (name for name in ("model", "baseline", "cluster") if name in cells):
        values = scores(_confusion(cells, column, labels))
        result[column] = {
            name: None if np.isnan(value) else value for name, value in values.items()
        }
    return result


def _true_labels_of_lookalikes(cells: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return the number of cells of each true label among those that look like another type than their label."""
    counts = cells[cells["looks_like"] != ""].groupby("looks_like")["truth"].value_counts()
    return {str(name): part.droplevel(0).to_dict() for name, part in counts.groupby(level=0)}


def compare(samples: list[Annotated], truths: list[np.ndarray], truth_key: str) -> Evaluation:
    """Score the labels by the model and by logistic regression against the truth, for all cells and per sample.

    Cells without a true label (None in `truths`) are counted and left out. Cells whose true label the model does not
    have count as errors, unless `common_labels` finds labels in the Cell Ontology that both have.
    """
    all_cells = cell_table(samples).rename(columns={"label": "model", "cluster_label": "cluster"})
    all_cells["truth"] = np.concatenate(truths)
    all_cells["model_label"] = all_cells["model"]
    cells = all_cells[all_cells["truth"].notna()]
    original_truth = cells["truth"]
    cells, names, merged = _with_common_labels(samples, cells)
    model_labels = list(dict.fromkeys(names))
    true_labels = sorted(set(cells["truth"]))
    foreign = [label for label in true_labels if label not in set(model_labels)]
    if not true_labels:
        text = f"no cell has a true label in '{truth_key}'"
        raise InputError("no-truth", text, "at least one", "set truth_key=... to another column")
    if len(foreign) == len(true_labels):
        text = f"{samples[0].model_id} has none of the true labels in '{truth_key}' (e.g. {_quoted(true_labels)})"
        remedy = "set truth_key=... to another column, or rename the true labels"
        raise InputError(
            "no-shared-labels", text, f"the model's labels, e.g. {_quoted(model_labels)}", remedy
        )
    # The files can hold further labels, for example after manual edits.
    predicted = set(cells["model"]).union(cells.get("baseline", ()), cells.get("cluster", ()))
    labels = [*model_labels, *foreign, *sorted(predicted.difference(model_labels, true_labels))]
    if (tree := common_tree(samples)) is not None:
        trios = zip(cells["call"], original_truth, cells["truth"], strict=True)
        is_correct = [
            call in tree.path(label) or merged.get(call) == truth for call, label, truth in trios
        ]
        cells = cells.assign(call_right=is_correct)
    is_foreign = cells["truth"].isin(foreign)
    unknown = {
        "known_labels": cells["unknown"][~is_foreign],
        "other_labels": cells["unknown"][is_foreign],
    }
    metrics = {
        "truth_key": truth_key,
        "model_hash": samples[0].record.model.hash,
        "labels": labels,
        "num_cells": len(cells),
        "num_without_truth": len(all_cells) - len(cells),
        "truth_labels_not_in_model": foreign,
        "merged": {label: common for label, common in merged.items() if label != common},
        "looks_like": _true_labels_of_lookalikes(cells.assign(truth=original_truth)),
        "flagged_unknown": {
            name: float(flags.mean()) if len(flags) else None for name, flags in unknown.items()
        },
        **_scores(cells, labels),
        "samples": {
            sample.name: _scores(cells[cells["sample"] == sample.name], labels)
            for sample in samples
        },
    }
    counts = _confusion(cells, "model", labels)
    per_class = {"label": labels, **class_scores(counts)}
    for column in (name for name in ("baseline", "cluster") if name in cells):
        per_class[f"{column}_f1"] = class_scores(_confusion(cells, column, labels))["f1"]
    confusion = pd.DataFrame(counts, index=pd.Index(labels, name="truth"), columns=labels)
    return Evaluation(metrics=metrics, per_class=pd.DataFrame(per_class), confusion=confusion)


def _with_common_labels(
    samples: list[Annotated], cells: pd.DataFrame
) -> tuple[pd.DataFrame, list[str], dict[str, str]]:
    """Return cells with labels that model and truth both have, those of the model, and what each label becomes."""
    merged: dict[str, str] = {}
    parts = []
    names: list[str] = []
    # samples of several tissues have several lists of labels
    by_labels: dict[tuple[str, ...], list[Annotated]] = {}
    for sample in samples:
        by_labels.setdefault(tuple(sample.model_labels), []).append(sample)
    for part_labels, alike in by_labels.items():
        part = cells[cells["sample"].isin([sample.name for sample in alike])]
        truth = sorted(set(part["truth"]))
        joined = common_labels(part_labels, truth, packaged_ontology(), alike[0].terms)
        parts.append(_merged(part, joined))
        names += [joined[label] for label in part_labels]
        merged = joined | merged
    return pd.concat(parts).loc[cells.index], names, merged


def _merged(cells: pd.DataFrame, merged: dict[str, str]) -> pd.DataFrame:
    """Return cells with the common label in place of each label, also in sets of labels."""
    columns = [name for name in ("truth", "model", "baseline", "cluster") if name in cells]
    cells = cells.assign(
        **{name: cells[name].map(lambda label: merged.get(label, label)) for name in columns}
    )
    if "set" in cells:
        names = {
            text: [merged.get(label, label) for label in split_names(text)]
            for text in set(cells["set"])
        }
        sets = {text: join_names(list(dict.fromkeys(labels))) for text, labels in names.items()}
        cells = cells.assign(set=cells["set"].map(sets))
    return cells


def read_evaluation(folder: str | Path) -> Evaluation:
    """Read an evaluation folder."""
    folder = Path(folder)
    try:
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        # Labels come from the JSON: the tables escape formulas, and pandas changes labels such as "1" and "truth".
        labels = metrics["labels"]
        per_class = pd.read_csv(folder / PER_CLASS, index_col="label").apply(pd.to_numeric)
        per_class = per_class.reset_index().assign(label=labels)
        confusion = pd.read_csv(folder / CONFUSION, index_col=0)
        confusion = confusion.set_axis(pd.Index(labels, name="truth"), axis=0).set_axis(
            labels, axis=1
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "a damaged file"
        )
        expected = (
            f"the folder that 'scperformer evaluate' wrote ({METRICS}, {PER_CLASS}, {CONFUSION})"
        )
        remedy = "check the path, or run 'scperformer evaluate' again"
        raise InputError(
            "no-evaluation", f"no evaluation in {folder} ({reason})", expected, remedy
        ) from error
    return Evaluation(metrics=metrics, per_class=per_class, confusion=confusion, path=folder)


def evaluate_samples(
    samples: list[Annotated], truth_key: str, truth_path: list[str] | None = None
) -> Evaluation:
    """Score annotated samples against true labels, and log the scores; samples without true labels are left out."""
    without = [
        sample.name for sample in samples if truth_path is None and truth_key not in sample.obs
    ]
    if 0 < len(without) < len(samples):
        log.warning("skipping samples without a column '%s': %s", truth_key, listed(without))
        samples = [sample for sample in samples if sample.name not in without]
    tables: list[str | None] = [*truth_path] if truth_path else [None] * len(samples)
    truths = [
        read_truth(sample, truth_key, table) for sample, table in zip(samples, tables, strict=True)
    ]
    evaluation = compare(samples, truths, truth_key)
    evaluation.metrics["samples_without_truth"] = without
    for sample in samples:
        for remark in sample.record.remarks:
            if remark.code == "repeats":
                log.warning("%s: the scores are too high. %s", sample.name, remark.sentence)
    _log_scores(evaluation.metrics)
    return evaluation


def _log_scores(metrics: dict[str, Any]) -> None:
    groups: dict[str, list[str]] = {}
    for label, common in metrics["merged"].items():
        groups.setdefault(common, []).append(label)
    if groups:
        text = "; ".join(f"{common} ({', '.join(labels)})" for common, labels in groups.items())
        log.info("labels merged by the Cell Ontology: %s", text)
    if foreign := metrics["truth_labels_not_in_model"]:
        log.warning(
            "true labels that the model does not have, counted as errors: %s", _quoted(foreign)
        )
    num_without = metrics["num_without_truth"]
    left_out = f" ({num_without:,} without a true label left out)" if num_without else ""
    num_samples = len(metrics["samples"])
    cells = (
        f"{metrics['num_cells']:,} cells in {num_samples} sample{'s' if num_samples > 1 else ''}"
    )
    methods = {"": "model", "logistic regression: ": "baseline"}
    texts = [
        f"{name}accuracy {scores['accuracy']:.3f}, macro-F1 {scores['macro_f1']:.3f}"
        for name, method in methods.items()
        if (scores := metrics.get(method))
    ]
    log.info("%s against '%s'%s: %s", cells, metrics["truth_key"], left_out, "; ".join(texts))


def _quoted(labels: list[str]) -> str:
    """Return the first labels as text for a message."""
    return listed(f"'{label}'" for label in labels)


def write_evaluation(evaluation: Evaluation, output: Path, overwrite: bool) -> None:
    """Write an evaluation folder."""
    labels = [escape_formula(label) for label in evaluation.metrics["labels"]]
    with new_folder(output, EVALUATION, overwrite) as folder:
        text = json.dumps(evaluation.metrics, indent=2, ensure_ascii=False, allow_nan=False)
        (folder / METRICS).write_text(text + "\n", encoding="utf-8")
        evaluation.per_class.assign(label=labels).to_csv(
            folder / PER_CLASS, index=False, float_format="%.6f"
        )
        confusion = evaluation.confusion.set_axis(pd.Index(labels, name="truth"), axis=0).set_axis(
            labels, axis=1
        )
        confusion.to_csv(folder / CONFUSION)
    evaluation.path = output
    log.info("written: %s", output)
