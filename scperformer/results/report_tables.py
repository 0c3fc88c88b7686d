"""The content of a report as plain values: labels, summaries of samples, and tables."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scperformer.adaptation.which_tissue import GIVEN, how_found, is_undetermined, tissue_text
from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed
from scperformer.labels.tree import NO_CALL
from scperformer.results.evaluate import Evaluation
from scperformer.results.label_marks import known_marks, label_marks
from scperformer.results.read_annotations import Annotated, Failed, all_labels, cell_table, texts_of
from scperformer.results.what_to_check import (
    LOW_EXPECTED,
    PROFILES,
    UNDETERMINED,
    UNLIKE,
    Summary,
    expected_text,
)
from scperformer.trust.resemblance import MANY_UNKNOWN

log = logging.getLogger(__name__)

UNKNOWN_COLOUR = "#5F6770"  # no label has a grey
UNKNOWN_SYMBOL = "x"


@dataclass(kw_only=True)
class Label:
    """A label, with the colour and symbol that it has on the whole page."""

    name: str
    in_model: bool = True
    colour: str = "#8793A0"
    symbol: str = "circle"


@dataclass(kw_only=True)
class Table:
    """A table of the page. Missing values are None.

    The kind of a column tells how its values are shown: text, label, count, "label count" (a count, with a label as the
    title), share (0 to 1), score (0 to 1), or number.
    """

    id: str
    title: str
    columns: list[tuple[str, str]]  # title and kind
    rows: list[list[Any]]
    total: list[Any] = field(default_factory=list)  # a last row that is not sorted


def _table(name: str, title: str, kinds: Mapping[str, str], rows: list[list[Any]]) -> Table:
    """Return a table without the columns in which all values are missing."""
    filled = [place for place in range(len(kinds)) if not all(pd.isna(row[place]) for row in rows)]
    columns = [list(kinds.items())[place] for place in filled]
    return Table(
        id=name,
        title=title,
        columns=columns,
        rows=[[row[place] for place in filled] for row in rows],
    )


def order_labels(samples: Sequence[Annotated], evaluation: Evaluation | None = None) -> list[Label]:
    """Return all labels of samples, the most frequent first, with their colours and symbols (label_marks.py).

    Cells are counted by their call: a label or a parent of it, or unknown, which is the last of the calls with cells.
    Labels without cells follow in the order of the model, then true labels that the model does not have.
    """
    counts = cell_table(samples)["call"].value_counts()
    model_labels = all_labels(samples)
    names = [
        *model_labels,
        *(name for name in counts.index if name not in (*model_labels, NO_CALL)),
    ]
    # stable: equal counts keep the order of the model
    names.sort(key=lambda name: -int(counts.get(name, 0)))
    marks = label_marks(samples)
    labels = []
    for name in names:
        colour, symbol = marks.get(name) or known_marks().get(name, (Label.colour, Label.symbol))
        labels.append(Label(name=name, in_model=name in model_labels, colour=colour, symbol=symbol))
    if NO_CALL in counts and NO_CALL not in names:
        num_used = sum(name in counts for name in names)
        unknown = Label(name=NO_CALL, in_model=False, colour=UNKNOWN_COLOUR, symbol=UNKNOWN_SYMBOL)
        labels.insert(num_used, unknown)
    evaluated = [] if evaluation is None else evaluation.metrics["labels"]
    known = {label.name for label in labels}
    return labels + [Label(name=name, in_model=False) for name in evaluated if name not in known]


@dataclass(kw_only=True)
class TissueGroup:
    """Samples that one model annotated: a trained model, or the profiles of one tissue."""

    title: str  # of the tissue; "" for a trained model
    samples: list[Annotated]
    found: str = ""  # how the tissue was found
    is_undetermined: bool = False


def tissue_groups(samples: Sequence[Annotated]) -> list[TissueGroup]:
    """Return samples by the tissue whose profiles annotated them, and how it was found; all of a trained model."""
    groups: dict[str, list[Annotated]] = {}
    for sample in samples:
        tissue = sample.record.tissue
        groups.setdefault("" if tissue is None else str(tissue.title), []).append(sample)
    made = []
    for title, alike in groups.items():
        group = TissueGroup(title=title, samples=alike)
        if tissues := [
            sample.record.tissue for sample in alike if sample.record.tissue is not None
        ]:
            ways = list(dict.fromkeys(map(how_found, tissues)))
            hows = listed(dict.fromkeys(str(tissue.how) for tissue in tissues))
            group.found = ways[0] if len(ways) == 1 else f"by {hows}"
            group.is_undetermined = is_undetermined(tissues[0]) and tissues[0].how != GIVEN
        made.append(group)
    return made


def sample_of_cells(
    samples: Sequence[Annotated], cells: pd.DataFrame, sample_key: str | None
) -> np.ndarray:
    """Return the sample of each cell: its file, or with `sample_key` its value in this column of obs."""
    if sample_key is None:
        return cells["sample"].to_numpy(object)
    _require_column(samples, sample_key, "a column with the sample of each cell")
    return texts_of(samples, sample_key)


def _require_column(samples: Sequence[Annotated], key: str, expected: str) -> None:
    for sample in samples:
        if key not in sample.obs:
            remedy = f"{did_you_mean(key, sample.obs.columns)}name a column of obs"
            raise InputError(
                "no-column", f"no column '{key}' in obs of {sample.path}", expected, remedy
            )


def describing_columns(samples: Sequence[Annotated], group_key: str | None) -> list[str]:
    """Return the columns of obs that describe samples; the first groups them.

    It is `group_key`, or the first column of the sample sheet with several values of which one is of several samples.
    The others are of the sample sheet, too.
    """
    if group_key is not None:
        _require_column(
            samples, group_key, "a column by which samples are grouped, such as a condition"
        )
    known = _sheet_columns(samples)
    if group_key is None:
        for name in known:
            if 1 < len(set(texts_of(samples, name))) < len(samples):
                log.info(
                    "samples are grouped by %s, of the sample sheet; group_key=... names another column",
                    name,
                )
                group_key = name
                break
    return [] if group_key is None else list(dict.fromkeys([group_key, *known]))


def _sheet_columns(samples: Sequence[Annotated]) -> list[str]:
    sheets = [sample.record.sheet for sample in samples]
    columns = dict.fromkeys(str(name) for sheet in sheets if sheet is not None for name in sheet)
    return [name for name in columns if all(name in sample.obs for sample in samples)]


def conditions_of(
    samples: Sequence[Annotated], of_cell: np.ndarray, group_key: str | None
) -> pd.DataFrame:
    """Return columns of the sample sheet, and `group_key`, that may be conditions of N cells: the values of each cell.

    They have two values or more, and of three samples or more some share one. Columns that group cells alike are one.
    """
    conditions: dict[str, np.ndarray] = {}
    seen = set()
    for name in dict.fromkeys(
        [*([] if group_key is None else [group_key]), *_sheet_columns(samples)]
    ):
        values = texts_of(samples, name)
        codes, names = pd.factorize(values)
        num_samples = len(set(of_cell))
        is_one = len(names) >= 2 and (name == group_key or len(names) < max(3, num_samples))
        if is_one and codes.tobytes() not in seen:
            seen.add(codes.tobytes())
            conditions[name] = values
    return pd.DataFrame(conditions, index=range(len(of_cell)))


def groups_of(samples: Sequence[Annotated], group_key: str, of_cell: np.ndarray) -> dict[str, str]:
    """Return the group of each sample of `of_cell`, its value in the column `group_key`; several are joined by "; "."""
    values = pd.Series(texts_of(samples, group_key))
    return {
        str(name): "; ".join(natsorted(part.unique())) for name, part in values.groupby(of_cell)
    }


def summarise(sample: Annotated, cells: pd.DataFrame) -> Summary:
    """Summarise a sample from the table of all cells."""
    cells = cells[cells["sample"] == sample.name]
    record = sample.record
    lowest, highest = record.expected_accuracy
    # of out-of-fold predictions
    bins = None if record.calibration is None else record.calibration.bins
    flags = {name: sample.flag(name) for name in ("doublet", "low_quality")}
    kind = None if record.shift is None else record.shift.kind
    if record.tissue is not None:
        is_unlike = float(cells["unknown"].mean()) >= MANY_UNKNOWN or not highest >= LOW_EXPECTED
        kind = UNDETERMINED if is_undetermined(record.tissue) else UNLIKE if is_unlike else PROFILES
    return Summary(
        name=sample.name,
        num_cells=len(cells),
        num_unknown=int(cells["unknown"].sum()),
        median=float(cells["confidence"].median()),
        mean=float(cells["confidence"].mean()),
        mean_held_out=math.nan
        if bins is None
        else float(np.average(bins.confidence, weights=bins.num_cells)),
        agreement=agreement(cells),
        record=record,
        kind=kind,
        expected=None if math.isnan(lowest) else expected_text(lowest, highest),
        **{name: None if flag is None else int(flag.sum()) for name, flag in flags.items()},
    )


def agreement(cells: pd.DataFrame) -> float | None:
    """Return the share of cells to which logistic regression gives the same label; None without it."""
    return float((cells["label"] == cells["baseline"]).mean()) if "baseline" in cells else None


def sample_table(
    summaries: Sequence[Summary],
    failed: Sequence[Failed],
    evaluation: Evaluation | None,
    described: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> Table:
    """Return the table of samples; samples that failed have a row with the reason.

    `described` has columns that group or describe samples: the value of each sample.
    """
    kinds = {
        "Sample": "text",
        **dict.fromkeys(described, "group"),
        "Status": "text",
        "Tissue": "text",
        "Cells": "count",
        "Unknown": "share",
        "Distribution shift": "text",
        "Expected accuracy": "text",
        "Median confidence": "number",
        "Agreement with logistic regression": "share",
        "Labels changed by the encoder": "count",
        "Likely doublets": "count",
        "Low quality": "count",
        "Accuracy": "share",
    }
    scores = evaluation.metrics["samples"] if evaluation else {}
    rows = []
    for each in summaries:
        tissue = each.record.tissue
        is_refitted = tissue is None and each.record.coverage.adapted
        values: list[Any] = [each.name, *(column.get(each.name) for column in described.values())]
        values.append("annotated by a refitted model" if is_refitted else "annotated")
        values += [
            tissue and tissue_text(tissue),
            each.num_cells,
            each.num_unknown / each.num_cells,
        ]
        num_decided = (each.record.encoder or {}).get("num_decided")
        values += [each.kind, each.expected, each.median, each.agreement, num_decided]
        values += [
            each.doublet,
            each.low_quality,
            scores.get(each.name, {}).get("model", {}).get("accuracy"),
        ]
        rows.append(values)
    for sample in failed:
        row = {"Sample": sample.name, "Status": f"failed: {sample.reason}"}
        rows.append([row.get(title) for title in kinds])
    return _table("samples-table", "Status and scores", kinds, rows)


def input_table(summaries: Sequence[Summary]) -> Table:
    """Return how the expression of each sample was read, which genes of the model it has, and its batch effect."""
    kinds = {
        "Sample": "text",
        "File": "text",
        "Cells": "count",
        "Values": "text",
        "In": "text",
        "Genes in the file": "count",
        "Genes of the model": "count",
        "Share of the model’s genes": "share",
        "Missing genes": "text",
        "Relative novelty": "number",
        "Batch effect": "number",
        "Resemblance": "number",
        "Batch effect of each batch": "text",
        "SHA-256": "text",
    }
    rows = []
    for each in summaries:
        file, genes, shift, batches = (
            each.record.input,
            each.record.genes,
            each.record.shift,
            each.record.batches,
        )
        row: list[Any] = [
            each.name,
            Path(str(file.file)).name,
            each.num_cells,
            file.kind,
            file.source,
        ]
        row += [genes.num_file, genes.num_shared, genes.share_of_model]
        row += [", ".join([*genes.absent[:3], "…"]) if len(genes.absent) else None]
        row += [None, None] if shift is None else [shift.relative_novelty, shift.batch_effect]
        of_each = ""
        if batches is not None and batches.batch_effect is not None:
            pairs = zip(batches.name, batches.batch_effect, strict=True)
            of_each = ", ".join(f"{name} {effect:.2f}" for name, effect in pairs)
        profiles = each.record.profiles
        rows.append(
            [*row, profiles and profiles.resemblance, of_each or None, str(file.sha256)[:12]]
        )
    return _table("inputs-table", "Expression and genes", kinds, rows)


def composition_table(
    of_cell: np.ndarray,
    cells: pd.DataFrame,
    labels: Sequence[Label],
    group_key: str = "",
    groups: Mapping[str, str] | None = None,
) -> Table:
    """Return the number of cells per sample and call; `of_cell` is the sample of each cell.

    With the group of each sample, its value of `group_key`, samples of a group follow each other.
    """
    counts = pd.crosstab(of_cell, cells["call"])
    groups = groups or {}
    counts = counts.reindex(
        index=natsorted(counts.index, key=lambda name: (groups.get(name, ""), name))
    )
    counts = counts[[label.name for label in labels if label.name in counts]]
    rows = [
        [name, sum(row), *row]
        for name, row in zip(counts.index, counts.to_numpy().tolist(), strict=True)
    ]
    columns = [("Sample", "text"), ("Cells", "count"), *((name, "label count") for name in counts)]
    total = ["All samples", len(cells), *counts.sum().tolist()]
    if group_key:
        columns.insert(1, (group_key, "group"))
        rows = [[name, groups[name], *row] for name, *row in rows]
        total.insert(1, None)
    return Table(
        id="composition-table",
        title="Cells per sample and call",
        columns=columns,
        rows=rows,
        total=total,
    )


def confidence_table(cells: pd.DataFrame, labels: Sequence[Label]) -> Table:
    """Return the quartiles of the confidence for each call."""
    kinds = {
        "Call": "label",
        "Cells": "count",
        "Share": "share",
        "Lower quartile": "number",
        "Median": "number",
        "Upper quartile": "number",
    }
    grouped = cells.groupby("call")["confidence"]
    quartiles = grouped.quantile([0.25, 0.5, 0.75]).unstack()
    sizes = grouped.size()
    names = [label.name for label in labels if label.name in sizes]
    rows = [
        [name, int(sizes[name]), sizes[name] / len(cells), *quartiles.loc[name].tolist()]
        for name in names
    ]
    return _table("confidence-table", "Confidence per call", kinds, rows)


def unknown_table(cells: pd.DataFrame) -> Table:
    """Return the labels of unknown cells, and the types that clusters to check look like."""
    kinds = {
        "Most probable label": "label",
        "Its cluster looks like": "text",
        "Unknown cells": "count",
        "Share of this label": "share",
        "Median confidence": "number",
    }
    sizes = cells["label"].value_counts()
    unknown = (
        cells[cells["unknown"]]
        .groupby(["label", "looks_like"])["confidence"]
        .agg(["size", "median"])
    )
    unknown = unknown.sort_values("size", ascending=False, kind="stable")
    rows = [
        [label, like, int(num), num / sizes[label], median]
        for (label, like), num, median in unknown.itertuples()
    ]
    return _table("unknown-table", "What unknown cells resemble", kinds, rows)


def marker_table(markers: Mapping[str, Sequence[str]], cells: pd.DataFrame) -> Table:
    """Return the markers of each call."""
    sizes = cells["call"].value_counts()
    rows = [[label, int(sizes[label]), ", ".join(genes)] for label, genes in markers.items()]
    return _table(
        "markers-table",
        "Markers of each call",
        {"Call": "label", "Cells": "count", "Markers": "text"},
        rows,
    )


def curated_table(samples: Sequence[Annotated]) -> Table:
    """Return the clusters that a person has named, with what their cells were called before."""
    kinds = {
        "Sample": "text",
        "Cluster": "text",
        "From": "text",
        "To": "text",
        "Cells": "count",
        "By": "text",
    }
    rows = []
    for sample in samples:
        if (made := sample.record.curated) is not None:
            changes = zip(
                made.cluster, made.before, made.after, made.num_cells.tolist(), strict=True
            )
            rows += [[sample.name, *change, f"{made.by}, {made.date}"] for change in changes]
    return _table("curated-table", "Clusters named by a person", kinds, rows)


def trust_table(summaries: Sequence[Summary]) -> Table | None:
    """Return the evidence for confidences and unknown flags; samples without out-of-fold predictions have no row."""
    kinds = {
        "Sample": "text",
        "Out-of-fold cells": "count",
        "Calibration error": "score",
        "Mean confidence out of fold": "number",
        "Mean confidence": "number",
        "Share unknown": "share",
        "Expected false positives": "share",
    }
    rows = []
    for each in summaries:
        calibration, novelty = each.record.calibration, each.record.novelty
        if calibration is not None and novelty is not None:
            row = [
                each.name,
                int(calibration.num_cells),
                float(calibration.error),
                each.mean_held_out,
                each.mean,
            ]
            rows.append([*row, each.num_unknown / each.num_cells, float(novelty.unknown_fpr)])
    return _table("trust-table", "Evidence on reference cells", kinds, rows) if rows else None


def score_tables(evaluation: Evaluation) -> tuple[Table, Table]:
    """Return the scores of the model and of logistic regression, per sample and per true label."""
    kinds = {"Sample": "text", "Cells": "count"}
    names = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "weighted_f1": "Weighted-F1"}
    for name in names.values():
        kinds |= {name: "score", f"{name} of logistic regression": "score"}
    kinds |= {"Calibration error": "score"}
    metrics = evaluation.metrics
    parts = dict(natsorted(metrics["samples"].items(), key=lambda item: item[0]))
    parts |= {"All samples": metrics} if len(parts) > 1 else {}
    rows = []
    for name, scores in parts.items():
        pairs = [
            scores.get(method, {}).get(score) for score in names for method in ("model", "baseline")
        ]
        rows.append([name, scores["num_cells"], *pairs, scores["calibration_error"]])
    per_sample = _table("scores-table", "Scores per sample", kinds, rows)
    if len(parts) > 1:
        per_sample.total = per_sample.rows.pop()
    titles = {
        "label": "True label",
        "support": "Cells",
        "precision": "Precision",
        "recall": "Recall",
        "f1": "F1",
    }
    titles |= (
        {"baseline_f1": "F1 of logistic regression"}
        if "baseline_f1" in evaluation.per_class
        else {}
    )
    per_class = evaluation.per_class[evaluation.per_class["support"] > 0]
    rows = (
        per_class.sort_values("support", ascending=False, kind="stable")[list(titles)]
        .to_numpy(object)
        .tolist()
    )
    kinds = dict(
        zip(titles.values(), ("label", "count", "score", "score", "score", "score"), strict=False)
    )
    return per_sample, _table("labels-table", "Scores per label", kinds, rows)
