"""Compare annotations with true labels, beside logistic regression, and write the scores into a folder."""

import json
import logging
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, escape_formula, split_names
from scperformer.base.metrics import class_scores, confusion_matrix, scores
from scperformer.base.outputs import FAILED_SUFFIX, FolderKind, new_folder, require_absent
from scperformer.config import EvaluateConfig
from scperformer.labels import label_texts, spelled_as
from scperformer.reports.read_annotations import Annotated, cell_table, common_tree, read_annotated
from scperformer.trust import calibration_error

log = logging.getLogger(__name__)

METRICS = "metrics.json"
PER_CLASS = "per_class.csv"
CONFUSION = "confusion.csv"
EVALUATION = FolderKind("an evaluation")
NUM_EXAMPLES = 3  # labels in a message


@dataclass(kw_only=True, repr=False)
class Evaluation:
    """The scores of annotations: the content of an evaluation folder."""

    metrics: dict[str, Any]  # scores of the model and of logistic regression, of all cells and per sample
    per_class: pd.DataFrame  # one row per label: label, support, precision, recall, f1, baseline_f1, maybe cluster_f1
    confusion: pd.DataFrame  # counts, L x L: rows are true labels, columns predicted labels
    path: Path | None = None  # the folder, if it was written

    @property
    def scores(self) -> pd.DataFrame:
        """Accuracy, macro-F1 and the other scores: a row for the model, the baseline, and perhaps clusters."""
        rows = [name for name in ("model", "baseline", "cluster") if name in self.metrics]
        return pd.DataFrame([self.metrics[name] for name in rows], index=rows)

    def __repr__(self) -> str:
        num_cells = self.metrics["num_cells"]
        key = self.metrics["truth_key"]
        return f"Evaluation of {num_cells:,} cells against '{key}'\n{self.scores.round(3)}"

    def _repr_html_(self) -> str:
        title = repr(self).partition("\n")[0]
        per_class = self.per_class.round(3)
        return f"<p>{escape(title)}</p>{self.scores.round(3).to_html()}{per_class.to_html(index=False)}"


def read_truth(sample: Annotated, truth_key: str, table: str | None = None) -> npt.NDArray[np.object_]:
    """The true label of each cell of a sample, N strings or None, from a column of obs or of a CSV or TSV table.

    The table has the names of cells in its first column and one row per cell, in any order.
    """
    columns = sample.obs if table is None else _read_table(Path(table), truth_key)
    if truth_key not in columns:
        others = ", ".join(str(name) for name in columns.columns if not str(name).startswith(f"{sample.key}_"))
        found = f"no column '{truth_key}' in {sample.path if table is None else table}"
        remedy = f"{did_you_mean(truth_key, columns.columns)}set truth_key=... to it"
        raise InputError(found, f"one of {others}" if others else "a column of true labels", remedy)
    truth = columns[truth_key]
    if table is not None:
        cells = sample.obs.index.astype(str)
        known = cells.isin(truth.index)
        if cells.has_duplicates:
            found = f"cell '{cells[cells.duplicated()][0]}' is more than once in {sample.path}"
            remedy = "make the names unique, or put the true labels into obs before predicting"
            raise InputError(found, "unique cell names, to find the cells in a table", remedy)
        if not known.any():
            example = f"'{truth.index[0]}'" if len(truth) else "no cell"
            expected = f"cell names as in the file, e.g. '{cells[0]}' (the table has e.g. {example})"
            remedy = "make the names equal, or put the true labels into obs before predicting"
            raise InputError(f"none of the {len(cells)} cells of {sample.path} is in {table}", expected, remedy)
        num_absent = int((~known).sum())
        num_other = len(truth) - int(known.sum())
        if num_absent or num_other:
            message = "%s: %d of %d cells have no row; %d of its rows are for other cells"
            log.warning(message, table, num_absent, len(cells), num_other)
        truth = truth.reindex(cells)
    texts = label_texts(truth)
    names = texts.dropna().unique()
    spelled = dict(zip(names, spelled_as(sample.model_labels, names), strict=True))
    return texts.map(spelled).where(texts.notna(), None).to_numpy(object)


def _read_table(path: Path, truth_key: str) -> pd.DataFrame:
    try:
        with path.open(encoding="utf-8") as file:
            separator = "\t" if "\t" in file.readline() else ","
        table = pd.read_csv(path, sep=separator, dtype=str, index_col=0)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        remedy = f"give a CSV or TSV file with cell names in the first column and a column '{truth_key}'"
        raise InputError(f"{path} cannot be read ({reason})", "a table of true labels", remedy) from error
    repeated = table.index[table.index.duplicated()]
    if len(repeated):
        raise InputError(f"cell '{repeated[0]}' is twice in {path}", "one row per cell", "remove the other rows")
    return table


def _examples(labels: list[str]) -> str:
    more = ", ..." if len(labels) > NUM_EXAMPLES else ""
    return ", ".join(f"'{label}'" for label in labels[:NUM_EXAMPLES]) + more


def _confusion(cells: pd.DataFrame, column: str, labels: list[str]) -> npt.NDArray[np.int64]:
    return confusion_matrix(cells["truth"].to_numpy(object), cells[column].to_numpy(object), labels)


def _scores(cells: pd.DataFrame, labels: list[str]) -> dict[str, Any]:
    """Number of cells, and the scores of the model and of logistic regression; JSON has no NaN, so it becomes None.

    Also the calibration error of the confidence, and where they are there, the scores of the labels of clusters, those
    of the calls in the label tree, and the coverage and mean size of the sets of labels.
    """
    found: dict[str, Any] = {"num_cells": len(cells)}
    right = (cells["model"] == cells["truth"]).to_numpy()
    found["calibration_error"] = calibration_error(cells["confidence"].to_numpy(), right) if len(cells) else None
    if "set" in cells and len(cells):
        sets = {text: set(split_names(text)) for text in cells["set"].unique()}
        pairs = zip(cells["truth"], cells["set"], strict=True)
        found["coverage"] = float(np.mean([label in sets[text] for label, text in pairs]))
        found["mean_set_size"] = float(cells["set_size"].mean())
    if "call_level" in cells and len(cells):
        found["calls"] = _call_scores(cells)
    for column in ("model", "baseline", *(["cluster"] if "cluster" in cells else [])):
        values = asdict(scores(_confusion(cells, column, labels)))
        found[column] = {name: None if np.isnan(value) else value for name, value in values.items()}
    return found


def _call_scores(cells: pd.DataFrame) -> dict[str, Any]:
    """Score the calls in a label tree; a call is right if it is the true label or a parent of it.

    Of all cells, the shares `backed_off` to a parent of the label and `unknown`; of the other calls, the accuracy; and
    for each level with calls (1 is the top of the tree) the number of calls that end there, and their accuracy.
    """
    called = cells[cells["call_level"] > 0]
    levels = [
        {"level": int(level), "num_calls": len(part), "accuracy": float(part["call_right"].mean())}
        for level, part in called.groupby("call_level")
    ]
    return {
        "accuracy": float(called["call_right"].mean()) if len(called) else None,
        "backed_off": float((called["call"] != called["model"]).sum() / len(cells)),
        "unknown": 1 - len(called) / len(cells),
        "levels": levels,
    }


def compare(samples: list[Annotated], truths: list[npt.NDArray[np.object_]], truth_key: str) -> Evaluation:
    """Score the labels of the model and of logistic regression against the truth, of all cells and per sample.

    Cells without a true label (None in `truths`) are counted and left out. True labels that the model does not know
    count as errors.
    """
    cells = cell_table(samples).rename(columns={"label": "model", "cluster_label": "cluster"})
    cells["truth"] = np.concatenate(truths)
    known = cells[cells["truth"].notna()]
    of_model = samples[0].model_labels
    of_truth = sorted(set(known["truth"]))
    foreign = [label for label in of_truth if label not in set(of_model)]
    if not of_truth:
        found = f"no cell has a true label in '{truth_key}'"
        raise InputError(found, "at least one", "set truth_key=... to another column")
    if len(foreign) == len(of_truth):
        found = f"{samples[0].model_id} knows none of the true labels in '{truth_key}' (e.g. {_examples(of_truth)})"
        remedy = "set truth_key=... to another column, or rename the true labels"
        raise InputError(found, f"the model's labels, e.g. {_examples(of_model)}", remedy)
    # The files can hold further labels, for example after manual edits.
    called = set(known["model"]).union(known["baseline"], known.get("cluster", ()))
    others = sorted(called.difference(of_model, of_truth))
    labels = [*of_model, *foreign, *others]
    is_foreign = known["truth"].isin(foreign)
    flagged = {"known_labels": known["unknown"][~is_foreign], "other_labels": known["unknown"][is_foreign]}
    tree = common_tree(samples)
    if tree is not None and "call" in known:
        level = {node: len(tree.path(node)) for node in tree.nodes}
        right = [call in tree.path(label) for call, label in zip(known["call"], known["truth"], strict=True)]
        known = known.assign(call_level=[level.get(call, 0) for call in known["call"]], call_right=right)
    metrics = {
        "truth_key": truth_key,
        "model_hash": samples[0].facts["model"]["hash"],
        "labels": labels,
        "num_cells": len(known),
        "num_without_truth": len(cells) - len(known),
        "truth_labels_not_in_model": foreign,
        "flagged_unknown": {name: float(part.mean()) if len(part) else None for name, part in flagged.items()},
        **_scores(known, labels),
        "samples": {sample.name: _scores(known[known["sample"] == sample.name], labels) for sample in samples},
    }
    table = _confusion(known, "model", labels)
    baseline = _confusion(known, "baseline", labels)
    by_class = {"label": labels, **class_scores(table), "baseline_f1": class_scores(baseline)["f1"]}
    if "cluster" in known:
        by_class["cluster_f1"] = class_scores(_confusion(known, "cluster", labels))["f1"]
    confusion = pd.DataFrame(table, index=pd.Index(labels, name="truth"), columns=labels)
    return Evaluation(metrics=metrics, per_class=pd.DataFrame(by_class), confusion=confusion)


def read_evaluation(folder: str | Path) -> Evaluation:
    """Read a folder that `run_evaluate` wrote."""
    folder = Path(folder)
    try:
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        # The labels come from the JSON: the tables escape formulas, and pandas changes labels such as "1" and "truth".
        labels = metrics["labels"]
        per_class = pd.read_csv(folder / PER_CLASS, index_col="label").apply(pd.to_numeric)
        per_class = per_class.reset_index().assign(label=labels)
        confusion = pd.read_csv(folder / CONFUSION, index_col=0)
        confusion = confusion.set_axis(pd.Index(labels, name="truth"), axis=0).set_axis(labels, axis=1)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "a damaged file"
        expected = f"the folder that 'scperformer evaluate' wrote ({METRICS}, {PER_CLASS}, {CONFUSION})"
        remedy = "check the path, or run 'scperformer evaluate' again"
        raise InputError(f"no evaluation in {folder} ({reason})", expected, remedy) from error
    return Evaluation(metrics=metrics, per_class=per_class, confusion=confusion)


def evaluate_samples(samples: list[Annotated], cfg: EvaluateConfig) -> Evaluation:
    """Score annotated samples against true labels, and log the scores; samples without them are left out."""
    without = [sample.name for sample in samples if cfg.truth_path is None and cfg.truth_key not in sample.obs]
    if 0 < len(without) < len(samples):
        log.warning("left out, without a column '%s': %s", cfg.truth_key, ", ".join(without))
        samples = [sample for sample in samples if sample.name not in without]
    tables: list[str | None] = [*cfg.truth_path] if cfg.truth_path else [None] * len(samples)
    truths = [read_truth(sample, cfg.truth_key, table) for sample, table in zip(samples, tables, strict=True)]
    evaluation = compare(samples, truths, cfg.truth_key)
    evaluation.metrics["samples_without_truth"] = without
    metrics = evaluation.metrics
    if foreign := metrics["truth_labels_not_in_model"]:
        log.warning("true labels that the model does not know, counted as errors: %s", _examples(foreign))
    num_without = metrics["num_without_truth"]
    left_out = f" ({num_without:,} without a true label left out)" if num_without else ""
    cells = f"{metrics['num_cells']:,} cells in {len(samples)} sample{'s' if len(samples) > 1 else ''}"
    model = metrics["model"]
    other = metrics["baseline"]
    accuracy = f"{model['accuracy']:.3f} (logistic regression {other['accuracy']:.3f})"
    macro_f1 = f"{model['macro_f1']:.3f} (logistic regression {other['macro_f1']:.3f})"
    message = "%s against '%s'%s: accuracy %s, macro-F1 %s"
    log.info(message, cells, cfg.truth_key, left_out, accuracy, macro_f1)
    if "coverage" in metrics:
        text = "%.1f%% of the sets of labels contain the true one; they have %.2f labels in the mean"
        log.info(text, 100 * metrics["coverage"], metrics["mean_set_size"])
    if "cluster" in metrics:
        cluster = metrics["cluster"]
        log.info("labels of clusters: accuracy %.3f, macro-F1 %.3f", cluster["accuracy"], cluster["macro_f1"])
    if "calls" in metrics and (calls := metrics["calls"])["backed_off"] + calls["unknown"] > 0:
        shares = ", ".join(
            f"level {row['level']} {row['accuracy']:.3f} of {row['num_calls']:,}" for row in calls["levels"]
        )
        text = "calls: %.1f%% of the cells back off to a parent of their label, %.1f%% are unknown; right calls: %s"
        log.info(text, 100 * calls["backed_off"], 100 * calls["unknown"], shares)
    return evaluation


def write_evaluation(evaluation: Evaluation, output: Path, overwrite: bool) -> None:
    """Write the folder of an evaluation."""
    metrics = evaluation.metrics
    labels = [escape_formula(label) for label in evaluation.metrics["labels"]]
    with new_folder(output, EVALUATION, overwrite) as folder:
        text = json.dumps(metrics, indent=2, ensure_ascii=False, allow_nan=False)
        (folder / METRICS).write_text(text + "\n", encoding="utf-8")
        evaluation.per_class.assign(label=labels).to_csv(folder / PER_CLASS, index=False, float_format="%.6f")
        confusion = evaluation.confusion.set_axis(pd.Index(labels, name="truth"), axis=0).set_axis(labels, axis=1)
        confusion.to_csv(folder / CONFUSION)
    evaluation.path = output
    log.info("written: %s", output)


def run_evaluate(cfg: EvaluateConfig) -> Path:
    """Score annotated files against true labels; write and return the folder of the evaluation."""
    failed = [path for path in cfg.inputs if path.endswith(FAILED_SUFFIX)]
    if failed:
        log.warning("left out, as they could not be annotated: %s", ", ".join(failed))
        kept = [place for place, path in enumerate(cfg.inputs) if path not in failed]
        kept_tables = None if cfg.truth_path is None else [cfg.truth_path[place] for place in kept]
        cfg = replace(cfg, inputs=[cfg.inputs[place] for place in kept], truth_path=kept_tables)
    output = Path(cfg.output) if cfg.output else Path(cfg.inputs[0]).with_suffix(".evaluation")
    require_absent(output, cfg.overwrite, EVALUATION)
    write_evaluation(evaluate_samples(read_annotated(cfg.inputs, cfg.key_added), cfg), output, cfg.overwrite)
    return output
