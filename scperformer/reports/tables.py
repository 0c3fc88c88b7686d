"""The content of a report as plain numbers: labels, samples, tables, things to check."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scperformer.base.pictures import colour_of
from scperformer.cells import FEW_GENES, HIGH_SHARE
from scperformer.reports.evaluate import Evaluation
from scperformer.reports.expression import NUM_TOP, GeneTable
from scperformer.reports.figures import symbol_of
from scperformer.reports.read_annotations import Annotated, Failed, as_text, cell_table, common_tree
from scperformer.trust import MOST_UNKNOWN, foreign_text, unsure_text

LARGE_SET = 3  # labels; larger sets are counted with these
NUM_DISAGREEMENTS = 20  # most frequent pairs of labels
NUM_LISTED = 5  # genes of a label in a row, or samples of a threshold
# A sample beyond one of these is named among the things to check. They are judgements, not limits of the method.
LOW_OVERLAP = 0.7
HIGH_UNKNOWN = 0.2
LOW_AGREEMENT = 0.6
LOW_EXPECTED = 0.8


@dataclass(kw_only=True)
class Label:
    """A label with its colour and symbol, which are the same on the whole page."""

    name: str
    in_model: bool = True
    colour: str = "#8793A0"
    symbol: str = "circle"


@dataclass(kw_only=True)
class Table:
    """A table of the page: columns as titles with their kinds, and values as they are; None: no value.

    Kinds: text, label, gene, count, share (0 to 1), score (0 to 1), number.
    """

    id: str
    title: str
    columns: list[tuple[str, str]]
    rows: list[list[Any]]
    total: list[Any] = field(default_factory=list)  # the last row, which is not sorted


def _filled(kinds: dict[str, str], rows: list[list[Any]]) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    """The columns of a table that have a value in any row, and the rows without the others."""
    kept = [
        place for place in range(len(kinds)) if any(row[place] is not None and row[place] == row[place] for row in rows)
    ]
    columns = list(kinds.items())
    return [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]


def order_labels(samples: Sequence[Annotated], evaluation: Evaluation | None = None) -> list[Label]:
    """All labels of the page, the most frequent first, which gets the most distinct colour.

    Labels without cells follow in the model's order, then true labels that the model does not know.
    """
    counts = pd.Series(np.concatenate([sample.labels for sample in samples])).value_counts()
    of_model = samples[0].model_labels
    known = [*of_model, *(name for name in counts.index if name not in of_model)]
    known.sort(key=lambda name: -int(counts.get(name, 0)))  # stable: equal counts keep the model's order
    labels = [Label(name=name, colour=colour_of(i), symbol=symbol_of(i)) for i, name in enumerate(known)]
    of_truth = evaluation.metrics["labels"] if evaluation else []
    return labels + [Label(name=name, in_model=False) for name in of_truth if name not in set(known)]


def all_cells(samples: Sequence[Annotated], labels: Sequence[Label]) -> pd.DataFrame:
    """The table of all cells (`cell_table`), with code: the position of the label in `labels`."""
    cells = cell_table(samples)
    return cells.assign(code=pd.Index([label.name for label in labels]).get_indexer(cells["label"]))


def summarise(sample: Annotated, cells: pd.DataFrame, labels: Sequence[Label]) -> dict[str, Any]:
    """Numbers of one sample, of the table of all cells; `counts` and `shares` (0 to 1) have an entry per label."""
    cells = cells[cells["sample"] == sample.name]
    counts = np.bincount(cells["code"], minlength=len(labels))
    return {
        "name": sample.name,
        "num_cells": len(cells),
        "counts": counts.tolist(),
        "shares": (counts / len(cells)).tolist(),
        "num_unknown": int(cells["unknown"].sum()),
        "median": float(cells["confidence"].median()),
        "mean": float(cells["confidence"].mean()),
        "mean_held_out": sample.mean_held_out,
        "agreement": float((cells["label"] == cells["baseline"]).mean()),  # with logistic regression
        "facts": sample.facts,
        "condition": {"adapted": False, "expected_accuracy": math.nan} | sample.facts.get("condition", {}),
    }


def sample_table(summaries: Sequence[dict[str, Any]], failed: Sequence[Failed], evaluation: Evaluation | None) -> Table:
    """A row for each sample, and for each one that failed."""
    kinds = {"Sample": "text", "Status": "text", "Cells": "count", "Unknown": "count", "Share unknown": "share"}
    kinds |= {"Median confidence": "number", "Expected accuracy": "share", "Same label by logistic regression": "share"}
    scores = evaluation.metrics["samples"] if evaluation else {}
    rows = []
    for row in summaries:
        adapted = "annotated by an adapted model" if row["condition"]["adapted"] else "annotated"
        values = [row["name"], adapted, row["num_cells"], row["num_unknown"], row["num_unknown"] / row["num_cells"]]
        values += [row["median"], row["condition"]["expected_accuracy"], row["agreement"]]
        rows.append(values + ([scores.get(row["name"], {}).get("model", {}).get("accuracy")] if scores else []))
    kinds |= {"Accuracy": "share"} if scores else {}
    rows += [[one.name, f"failed: {one.reason}", *[None] * (len(kinds) - 2)] for one in failed]
    columns, rows = _filled(kinds, rows)
    return Table(id="samples-table", title="Status and scores", columns=columns, rows=rows)


def composition_table(summaries: Sequence[dict[str, Any]], labels: Sequence[Label]) -> Table:
    """The cells of each sample by label; `labels` are those with cells."""
    columns = [("Sample", "text"), ("Cells", "count"), *((label.name, "label count") for label in labels)]
    rows = [[row["name"], row["num_cells"], *row["counts"][: len(labels)]] for row in summaries]
    total = ["All samples", *(sum(row[place] for row in rows) for place in range(1, len(columns)))]
    return Table(id="composition-table", title="Cells per sample and label", columns=columns, rows=rows, total=total)


def confidence_table(cells: pd.DataFrame, labels: Sequence[Label]) -> Table:
    """Quartiles of the confidence per label, without labels that have no cells."""
    kinds = {"Label": "label", "Cells": "count", "Share": "share", "Unknown": "count"}
    kinds |= {"Lower quartile": "number", "Median": "number", "Upper quartile": "number"}
    rows = []
    for code, chosen in cells.groupby("code"):
        quartiles = np.quantile(chosen["confidence"], [0.25, 0.5, 0.75]).tolist()
        unknown = int(chosen["unknown"].sum())
        rows.append([labels[code].name, len(chosen), len(chosen) / len(cells), unknown, *quartiles])
    return Table(id="confidence-table", title="Confidence per label", columns=list(kinds.items()), rows=rows)


def unknown_table(samples: Sequence[Annotated], cells: pd.DataFrame, labels: Sequence[Label]) -> Table | None:
    """The labels that unknown cells resemble: their most probable label, and the most frequent second one."""
    unknown = np.flatnonzero(cells["unknown"])
    if not len(unknown):
        return None
    second: list[str] = []
    for sample in samples:
        rows = np.flatnonzero(sample.column("unknown").to_numpy(bool))
        proba = sample.probabilities(rows)
        places = np.argsort(-proba, axis=1, kind="stable")[:, min(1, proba.shape[1] - 1)]
        second += [sample.model_labels[place] for place in places.tolist()]
    kinds = {"Most probable label": "label", "Unknown cells": "count", "Share of this label": "share"}
    kinds |= {"Median confidence": "number", "Most frequent second label": "label", "Cells with it": "count"}
    some = cells.iloc[unknown].assign(second=second)
    sizes = cells["code"].value_counts()
    rows_of_table: list[list[Any]] = []
    for code, chosen in some.groupby("code"):
        other = chosen["second"].value_counts()
        values = [labels[code].name, len(chosen), len(chosen) / int(sizes[code]), float(chosen["confidence"].median())]
        rows_of_table.append([*values, str(other.index[0]), int(other.iloc[0])])
    rows_of_table.sort(key=lambda row: -row[1])
    return Table(
        id="unknown-table", title="Labels that unknown cells resemble", columns=list(kinds.items()), rows=rows_of_table
    )


def gene_tables(genes: GeneTable, labels: Sequence[Label], used: Sequence[int]) -> tuple[Table, Table]:
    """The first genes of each label, and all numbers about these genes: best markers, and largest contributions."""
    short = {"Label": "label", "Markers": "gene"}
    kinds = {"Label": "label", "Gene": "gene", "Marker rank": "count", "Mean ln(1 + counts per 10,000)": "number"}
    kinds |= {"Share of cells": "share", "Log2 fold change": "number"}
    ours = genes.contributions
    if ours is not None:
        short["Largest contributions to the label"] = "gene"
        kinds |= {"Contribution rank": "count", "Mean contribution": "number"}
    lines = []
    rows = []
    for code in used:
        tops = [genes.top(scores, code, NUM_TOP).tolist() for scores in (genes.markers, ours) if scores is not None]
        names = [", ".join(str(genes.genes[gene]) for gene in top[:NUM_LISTED]) for top in tops]
        lines.append([labels[code].name, *names])
        for gene in dict.fromkeys(gene for top in tops for gene in top):
            numbers = [float(table[code, gene]) for table in (genes.means, genes.shares, genes.changes)]
            ranks = [top.index(gene) + 1 if gene in top else None for top in tops]
            row = [labels[code].name, str(genes.genes[gene]), ranks[0], *numbers]
            rows.append(row + ([ranks[1], float(ours[code, gene])] if ours is not None else []))
    first = Table(id="genes-table", title="First genes of each label", columns=list(short.items()), rows=lines)
    return first, Table(id="markers-table", title="Markers and contributions", columns=list(kinds.items()), rows=rows)


def quality_table(samples: Sequence[Annotated], tables: dict[str, pd.DataFrame]) -> Table:
    """Genes, counts, mitochondrial expression and doublets of the samples whose expression could be read."""
    kinds = {"Sample": "text", "Cells": "count", "Median genes": "number", "Median counts": "number"}
    kinds |= {f"Below {FEW_GENES} genes": "count", "Median mitochondrial share": "share"}
    kinds |= {f"Above {HIGH_SHARE:.0%} mitochondrial": "count", "Likely doublets": "count", "Low quality": "count"}
    rows = []
    for sample in samples:
        if (table := tables.get(sample.name)) is None:
            continue
        if "droplets" in sample.facts and (low := sample.flag("low_quality")) is not None:
            table = table[~low]  # barcodes that cannot be cells are among them
        counts = float(table["total"].median()) if sample.facts["input"]["kind"] == "counts" else None
        share = table["mitochondrial"]
        has_genes = bool(table["mitochondrial"].notna().any())
        values = [sample.name, len(table), float(table["num_genes"].median()), counts]
        values += [int((table["num_genes"] < FEW_GENES).sum()), float(share.median()) if has_genes else None]
        values += [int((share > HIGH_SHARE).sum()) if has_genes else None]
        flags = [sample.flag(name) for name in ("doublet", "low_quality")]
        rows.append(values + [None if flag is None else int(flag.sum()) for flag in flags])
    columns, rows = _filled(kinds, rows)
    return Table(id="quality-table", title="Quality per sample", columns=columns, rows=rows)


def disagreement_table(cells: pd.DataFrame, labels: Sequence[Label]) -> Table:
    """The most frequent pairs of a label by the model and another one by logistic regression."""
    sizes = cells["code"].value_counts()
    other = cells[cells["label"] != cells["baseline"]]
    pairs = other.groupby(["code", "baseline"]).size().reset_index(name="num_cells")
    most = pairs.sort_values("num_cells", ascending=False, kind="stable").head(NUM_DISAGREEMENTS)
    kinds = {"Label by the model": "label", "By logistic regression": "label", "Cells": "count"}
    rows = [
        [labels[code].name, name, num, num / int(sizes[code])]
        for code, name, num in zip(*(most[name].tolist() for name in most), strict=True)
    ]
    kinds |= {"Share of the model’s label": "share"}
    return Table(id="disagreement-table", title="Most frequent disagreements", columns=list(kinds.items()), rows=rows)


def levels(samples: Sequence[Annotated]) -> list[dict[str, Any]]:
    """The nodes of the label tree, each before those below it: name, id, level from 0, cells called there, and in all.

    Empty if the model has no tree, or the files have different ones.
    """
    if common_tree(samples) is None:
        return []
    tree = samples[0].facts["tree"]
    called = pd.Series(np.concatenate([as_text(sample.column("call")) for sample in samples])).value_counts()
    rows: dict[str, dict[str, Any]] = {"": {"level": -1, "num_cells": 0}}
    parents = dict(zip(map(str, tree["nodes"]), map(str, tree["parents"]), strict=True))
    for (name, parent), term in zip(parents.items(), tree["ontology_term_ids"], strict=True):
        num = int(called.get(name, 0))
        level = rows[parent]["level"] + 1
        rows[name] = {"name": name, "term": str(term), "level": level, "num_here": num, "num_cells": num}
    for name, parent in reversed(parents.items()):
        rows[parent]["num_cells"] += rows[name]["num_cells"]
    return list(rows.values())[1:]


def threshold(samples: Sequence[Annotated]) -> str:
    """The confidence below which cells were flagged as unknown, and the samples of each where they differ.

    Empty if there was none, or it was not recorded.
    """
    names: dict[float, list[str]] = {}
    for sample in samples:
        value = json.loads(sample.facts.get("config_json", "{}")).get("min_confidence")
        names.setdefault(float(value or 0), []).append(sample.name)
    some = {value: of for value, of in sorted(names.items()) if value > 0}
    if len(names) == 1:
        return "".join(map(str, some))
    shown = {value: ", ".join(of[:NUM_LISTED]) for value, of in some.items()}
    more = {value: f" and {len(of) - NUM_LISTED} more" if len(of) > NUM_LISTED else "" for value, of in some.items()}
    return " or ".join(f"{value} ({shown[value]}{more[value]})" for value in some)


def flag_reasons(samples: Sequence[Annotated]) -> list[str]:
    """Why cells are flagged as unknown, each with "they" as the subject."""
    reasons = []
    if any(float(sample.facts.get("novelty", {}).get("false_alarms", 0)) > 0 for sample in samples):
        reasons.append("they look like none of the labels")
    if least := threshold(samples):
        reasons.append(f"their confidence is below {least}")
    return [*reasons, "they express none of the model’s genes"]


def trust_tables(summaries: Sequence[dict[str, Any]], samples: Sequence[Annotated]) -> list[Table]:
    """The evidence for confidences and flags, and for sets, of each sample with held-out calls; none without them."""
    kinds = {"Sample": "text", "Held-out cells": "count", "Calibration error": "score"}
    kinds |= {"Mean confidence of held-out cells": "number", "Mean confidence": "number"}
    kinds |= {"Unknown": "share", "Expected of known cells": "share"}
    rows = []
    sets = []
    for row, sample in zip(summaries, samples, strict=True):
        if "calibration" not in sample.facts:
            continue
        found = sample.facts["calibration"]
        novelty = sample.facts["novelty"]
        share = row["num_unknown"] / row["num_cells"]
        values = [row["name"], int(found["num_cells"]), float(found["error"]), row["mean_held_out"], row["mean"]]
        rows.append([*values, share, float(novelty["false_alarms"])])
        if made := sample.facts.get("sets"):
            sizes = sample.column("set_size").clip(upper=LARGE_SET).to_numpy(int)
            shares = (np.bincount(sizes, minlength=LARGE_SET + 1) / len(sizes)).tolist()
            values = [row["name"], 1 - float(made["alpha"]), float(made["held_out_coverage"]), float(made["mean_size"])]
            sets.append([*values, *shares])
    tables = [Table(id="trust-table", title="Evidence on held-out cells", columns=list(kinds.items()), rows=rows)]
    kinds = {"Sample": "text", "Stated": "share", "On held-out cells": "share", "Mean size": "number"}
    kinds |= {"Empty": "share", "1 label": "share", "2 labels": "share", "More": "share"}
    tables.append(Table(id="sets-table", title="Sets of labels", columns=list(kinds.items()), rows=sets))
    return [table for table in tables if table.rows]


def things_to_check(
    summaries: Sequence[dict[str, Any]], failed: Sequence[Failed], evaluation: Evaluation | None
) -> list[str]:
    """Sentences about samples to look at before using the labels, and about labels that the model does not know."""
    found = [f"{one.name} has no annotation: {one.reason}" for one in failed]
    for sample in summaries:
        name = sample["name"]
        genes = sample["facts"]["genes"]
        agreement = sample["agreement"]
        overlap = genes.get("informative_share", genes["share_of_model"])
        model = sample["facts"]["model"]
        condition = sample["facts"].get("condition", {})
        adapted = condition.get("adapted", False)
        expected = condition.get("expected_accuracy", math.nan)
        unknown = sample["num_unknown"] / sample["num_cells"]
        is_unfiltered = "droplets" in sample["facts"]
        if is_unfiltered:  # the shares of all barcodes mean nothing
            found += [f"{name}: {warning}." for warning in map(str, sample["facts"]["warnings"])]
        if expected < LOW_EXPECTED:
            text = f"The expected accuracy of {name} is only {expected:.0%}: on cells of the reference, reduced to the "
            found.append(text + f"genes and the depth of this file, {1 - expected:.0%} of the labels are wrong.")
        if overlap < LOW_OVERLAP and not adapted:
            text = f"{name} has only {overlap:.0%} of the model's informative expression. Missing genes count as "
            found.append(text + "not expressed, so its labels are less reliable.")
        if is_unfiltered:
            continue
        if unknown > MOST_UNKNOWN:
            found.append(f"{name}: {foreign_text(unknown, len(model['labels']), model.get('tissue') or None)}")
        elif unknown > HIGH_UNKNOWN:
            text = f"{unknown:.0%} of the cells of {name} are flagged as unknown. It may contain cell types that "
            found.append(text + "the model was not trained on.")
        if unsure := unsure_text(sample["mean"], sample["mean_held_out"]):
            found.append(f"{name}: {unsure}")
        if agreement < LOW_AGREEMENT:
            text = f"Logistic regression gives only {agreement:.0%} of the cells of {name} the same label. "
            found.append(text + "The sample may differ a lot from the cells that the model was trained on.")
    if foreign := evaluation.metrics["truth_labels_not_in_model"] if evaluation else []:
        text = "The model does not know these true labels, so their cells count as errors: "
        found.append(f"{text}{', '.join(foreign)}.")
    return found


def score_tables(evaluation: Evaluation) -> list[Table]:
    """The scores of the model and of logistic regression: per sample, per true label, and per level of calls."""
    kinds = {"Sample": "text", "Cells": "count"}
    names = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "weighted_f1": "Weighted-F1"}
    for name in names.values():
        kinds |= {name: "score", f"{name} of logistic regression": "score"}
    kinds |= {"Calibration error": "score"}

    def row(name: str, scores: dict[str, Any]) -> list[Any]:
        pairs = [scores[method][score] for score in names for method in ("model", "baseline")]
        return [name, scores["num_cells"], *pairs, scores.get("calibration_error")]

    metrics = evaluation.metrics
    rows = [row(name, scores) for name, scores in natsorted(metrics["samples"].items(), key=lambda item: item[0])]
    total = row("All samples", metrics) if len(rows) > 1 else []
    tables = [Table(id="scores-table", title="Scores per sample", columns=list(kinds.items()), rows=rows, total=total)]
    kinds = {"True label": "label", "Cells": "count", "Precision": "score", "Recall": "score", "F1": "score"}
    kinds |= {"F1 of logistic regression": "score"}
    columns = ["label", "support", "precision", "recall", "f1", "baseline_f1"]
    per_class = evaluation.per_class.loc[evaluation.per_class["support"] > 0, columns]
    rows = per_class.sort_values("support", ascending=False, kind="stable").to_numpy(object).tolist()
    tables.append(Table(id="labels-table", title="Scores per label", columns=list(kinds.items()), rows=rows))
    if (calls := metrics.get("calls")) and calls["backed_off"] + calls["unknown"] > 0:
        kinds = {"Level of the call": "count", "Calls": "count", "Right": "share"}
        rows = [[one["level"], one["num_calls"], one["accuracy"]] for one in calls["levels"]]
        tables.append(Table(id="calls-table", title="Calls on each level", columns=list(kinds.items()), rows=rows))
    return tables


def confusion_table(evaluation: Evaluation, labels: Sequence[Label]) -> Table:
    """The confusion matrix as counts: a row for each label with true cells, a column for each predicted or true one."""
    counts = evaluation.confusion
    present = [label.name for label in labels if label.name in counts.index]
    true = [name for name in present if counts.loc[name].sum()]
    in_model = {label.name for label in labels if label.in_model}
    called = [name for name in present if name in in_model and counts[name].sum() + counts.loc[name].sum()]
    columns = [("True label", "label"), ("Cells", "count"), *((name, "label count") for name in called)]
    rows = [[name, int(counts.loc[name].sum()), *counts.loc[name, called].astype(int).tolist()] for name in true]
    return Table(id="confusion-table", title="Confusion matrix", columns=columns, rows=rows)
