"""Compare annotations with the truth, beside logistic regression; the folder of numbers that this gives."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.config import EvaluateConfig
from scperformer.errors import InputError
from scperformer.metrics import class_scores, confusion_matrix, scores
from scperformer.outputs import new_folder, require_absent
from scperformer.reports.annotated import Annotated, as_text, model_id, read_annotated
from scperformer.text import defused

log = logging.getLogger(__name__)

METRICS, PER_CLASS, CONFUSION = "metrics.json", "per_class.csv", "confusion.csv"
SHOWN = 3  # examples in a message


@dataclass(kw_only=True)
class Evaluation:
    """What the files of an evaluation folder hold."""

    metrics: dict[str, Any]  # scores of model and baseline, overall and per sample
    per_class: pd.DataFrame  # a row per label: label, support, precision, recall, f1, baseline_f1
    confusion: pd.DataFrame  # counts, L x L: index true labels, columns predicted labels


def read_truth(sample: Annotated, truth_key: str, table: str | None = None) -> npt.NDArray[np.object_]:
    """The true label of each cell of a sample.

    Parameters
    ----------
    truth_key
        A column of obs, or of `table`.
    table
        A CSV or TSV file: first column cell names, a row per cell in any order. None: the truth is in obs.

    Returns
    -------
    N strings, None where the truth is missing or empty.

    Raises
    ------
    InputError
        The column is missing, the table cannot be read, or it holds none of the cells.
    """
    columns = sample.obs if table is None else _read_table(Path(table), truth_key)
    where = sample.path if table is None else table
    if truth_key not in columns:
        there = ", ".join(str(name) for name in columns.columns if not str(name).startswith(f"{sample.key}_"))
        raise InputError(
            f"no column '{truth_key}' in {where}",
            f"one of {there or 'none there'}",
            "set truth_key=... to it",
        )
    truth = columns[truth_key]
    if table is not None:
        truth = _match_cells(truth, sample, table)
    text = as_text(truth)
    empty = truth.isna().to_numpy() | np.array([not label.strip() for label in text], dtype=bool)
    text[empty] = None
    return text


def _read_table(path: Path, truth_key: str) -> pd.DataFrame:
    remedy = f"give a CSV or TSV file with cell names in the first column and a column '{truth_key}'"
    try:
        with path.open(encoding="utf-8") as file:
            separator = "\t" if "\t" in file.readline() else ","
        table = pd.read_csv(path, sep=separator, dtype=str, index_col=0)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path} cannot be read ({reason})", "a table of true labels", remedy) from error
    twice = table.index[table.index.duplicated()]
    if len(twice):
        raise InputError(f"cell '{twice[0]}' is twice in {path}", "one row per cell", "remove the other rows")
    return table


def _match_cells(truth: pd.Series, sample: Annotated, table: str) -> pd.Series:
    """The rows of a table in the order of the sample's cells; cells without a row get NaN."""
    cells = sample.obs.index.astype(str)
    known = cells.isin(truth.index)
    if not known.any() or cells.has_duplicates:
        found = f"none of the {len(cells)} cells of {sample.path} is in {table}"
        examples = f"cell names as in the file, e.g. '{cells[0]}' (the table has e.g. '{_first(truth.index)}')"
        if cells.has_duplicates:
            found = f"cell '{cells[cells.duplicated()][0]}' is more than once in {sample.path}"
            examples = "different cell names, to look them up in a table"
        raise InputError(found, examples, "make the names equal, or put the truth into obs before predicting")
    unused = len(truth) - int(known.sum())
    if unused or not known.all():
        log.warning(
            "%s: %d of %d cells have no row; %d of its rows are for other cells",
            table,
            int((~known).sum()),
            len(cells),
            unused,
        )
    return truth.reindex(cells)


def _first(names: pd.Index) -> str:
    return str(names[0]) if len(names) else "no cell"


def compare(samples: list[Annotated], truths: list[npt.NDArray[np.object_]], truth_key: str) -> Evaluation:
    """Score the model's and the baseline's labels against the truth, overall and per sample.

    Cells without truth are counted and left out. True labels that the model does not know count as errors.

    Parameters
    ----------
    samples
        Annotated files, made with one model.
    truths
        For each sample N strings, None where the truth is missing.

    Raises
    ------
    InputError
        No cell has a truth, or the model knows none of the true labels.
    """
    rows = pd.concat(
        [
            pd.DataFrame({"sample": s.name, "truth": truth, "model": s.labels, "baseline": s.baseline_labels})
            for s, truth in zip(samples, truths, strict=True)
        ],
        ignore_index=True,
    )
    known = rows[rows["truth"].notna()]
    labels, foreign = _labels(known, samples, truth_key)
    metrics = {
        "truth_key": truth_key,
        "model_hash": samples[0].facts["model"]["hash"],
        "labels": labels,
        "num_cells": len(known),
        "num_without_truth": len(rows) - len(known),
        "truth_labels_not_in_model": foreign,
        **_scores(known, labels),
        "samples": {sample.name: _scores(known[known["sample"] == sample.name], labels) for sample in samples},
    }
    table, baseline = _confusion(known, "model", labels), _confusion(known, "baseline", labels)
    by_class = {**asdict(class_scores(table)), "baseline_f1": class_scores(baseline).f1}
    return Evaluation(
        metrics=_without_nan(metrics),
        per_class=pd.DataFrame({"label": labels, **by_class}),
        confusion=pd.DataFrame(table, index=pd.Index(labels, name="truth"), columns=labels),
    )


def _confusion(cells: pd.DataFrame, column: str, labels: list[str]) -> npt.NDArray[np.int64]:
    return confusion_matrix(cells["truth"].to_numpy(object), cells[column].to_numpy(object), labels)


def _scores(cells: pd.DataFrame, labels: list[str]) -> dict[str, Any]:
    """Number of cells, and the scores of the model and of the baseline on them."""
    both = {column: asdict(scores(_confusion(cells, column, labels))) for column in ("model", "baseline")}
    return {"num_cells": len(cells), **both}


def _labels(known: pd.DataFrame, samples: list[Annotated], truth_key: str) -> tuple[list[str], list[str]]:
    """All labels of the comparison, the model's first; and the true ones that the model does not know."""
    of_model = samples[0].model_labels
    of_truth = sorted(set(known["truth"]))
    foreign = [label for label in of_truth if label not in set(of_model)]
    if not of_truth:
        raise InputError(
            f"no cell has a true label in '{truth_key}'",
            "at least one",
            "name another column as truth_key=...",
        )
    if len(foreign) == len(of_truth):
        raise InputError(
            f"none of the true labels in '{truth_key}' is known to {model_id(samples[0])} (e.g. {_examples(of_truth)})",
            f"the model's labels, e.g. {_examples(of_model)}",
            "name another column as truth_key=..., or rename the true labels",
        )
    # What neither the model nor the truth lists can still be in the files: labels edited by hand, for one.
    others = sorted(set(known["model"]).union(known["baseline"]).difference(of_model, of_truth))
    return [*of_model, *foreign, *others], foreign


def _examples(labels: list[str]) -> str:
    more = ", ..." if len(labels) > SHOWN else ""
    return ", ".join(f"'{label}'" for label in labels[:SHOWN]) + more


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN: the scores of no cells become null."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write metrics.json, per_class.csv and confusion.csv into an existing folder."""
    text = json.dumps(evaluation.metrics, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / METRICS).write_text(text + "\n", encoding="utf-8")
    labels = [defused(label) for label in evaluation.metrics["labels"]]
    per_class = evaluation.per_class.assign(label=labels)
    per_class.to_csv(folder / PER_CLASS, index=False, float_format="%.6f")
    confusion = evaluation.confusion.set_axis(pd.Index(labels, name="truth"), axis=0).set_axis(labels, axis=1)
    confusion.to_csv(folder / CONFUSION)


def read_evaluation(folder: str | Path) -> Evaluation:
    """The content of a folder that `write_evaluation` filled.

    Raises
    ------
    InputError
        A file of it is missing or damaged.
    """
    folder = Path(folder)
    try:
        metrics = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        labels = metrics["labels"]
        # Without keep_default_na=False a label "NA" would be a missing value.
        per_class = pd.read_csv(folder / PER_CLASS, dtype={"label": str}, keep_default_na=False)
        numbers = per_class.columns.drop("label")
        per_class[numbers] = per_class[numbers].apply(pd.to_numeric)
        per_class["label"] = labels
        confusion = pd.read_csv(folder / CONFUSION, index_col=0, keep_default_na=False)
        # The labels of the JSON are exact: formulas are defused in the tables, and pandas would read "1" as a number
        # and rename a second "truth".
        confusion = confusion.set_axis(pd.Index(labels, name="truth"), axis=0).set_axis(labels, axis=1)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "a damaged file"
        raise InputError(
            f"no evaluation in {folder} ({reason})",
            f"the folder that 'scperformer evaluate' wrote ({METRICS}, {PER_CLASS}, {CONFUSION})",
            "check the path, or run 'scperformer evaluate' again",
        ) from error
    return Evaluation(metrics=metrics, per_class=per_class, confusion=confusion)


def run_evaluate(cfg: EvaluateConfig) -> Path:
    """Score annotated files against true labels and write the evaluation folder.

    Returns
    -------
    The folder: metrics.json, per_class.csv, confusion.csv.

    Raises
    ------
    InputError
        A file is not annotated, the truth is missing or does not match, or the output exists.
    """
    samples = read_annotated(cfg.inputs, cfg.key_added)
    output = Path(cfg.output) if cfg.output else Path(cfg.inputs[0]).with_suffix(".evaluation")
    require_absent(output, cfg.overwrite, marker=METRICS)
    tables: list[str | None] = [*cfg.truth_path] if cfg.truth_path else [None] * len(samples)
    truths = [read_truth(sample, cfg.truth_key, table) for sample, table in zip(samples, tables, strict=True)]
    evaluation = compare(samples, truths, cfg.truth_key)
    with new_folder(output, cfg.overwrite, marker=METRICS) as folder:
        write_evaluation(evaluation, folder)
    _log_scores(evaluation.metrics, output)
    return output


def _log_scores(metrics: dict[str, Any], output: Path) -> None:
    foreign = metrics["truth_labels_not_in_model"]
    if foreign:
        log.warning("true labels that the model does not know, counted as errors: %s", _examples(foreign))
    model, baseline = metrics["model"], metrics["baseline"]
    num_samples = len(metrics["samples"])
    left_out = metrics["num_without_truth"]
    log.info(
        "%s cells in %s against '%s'%s: accuracy %.3f (logistic regression %.3f), "
        "macro-F1 %.3f (logistic regression %.3f); written to %s",
        f"{metrics['num_cells']:,}",
        f"{num_samples} sample{'s' if num_samples > 1 else ''}",
        metrics["truth_key"],
        f" ({left_out:,} without truth left out)" if left_out else "",
        model["accuracy"],
        baseline["accuracy"],
        model["macro_f1"],
        baseline["macro_f1"],
        output,
    )
