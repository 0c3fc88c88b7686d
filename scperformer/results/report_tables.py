"""The content of a report as plain values: labels, summaries of samples, tables, and things to check."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scperformer.base.messages import listed, shortened
from scperformer.base.pictures import colour_of
from scperformer.cells.quality import FEW_GENES, HIGH_SHARE
from scperformer.labels.ontology_columns import NO_CALL
from scperformer.model.saved_model import branch_names
from scperformer.results.evaluate import Evaluation
from scperformer.results.expression import NUM_TOP, GeneTable
from scperformer.results.figures import symbol_of
from scperformer.results.read_annotations import Annotated, Failed, as_text, cell_table, common_tree

LARGE_SET = 3  # sets of 3 labels or more share a column
NUM_DISAGREEMENTS = 20  # rows of the table of disagreements
NUM_LISTED = 5  # genes of a label that a text names
UNKNOWN_COLOUR = "#5F6770"  # of cells flagged as unknown: no label has a grey
UNKNOWN_SYMBOL = "x"
SHEET = "sheet"  # entry of the record of an annotation: columns of obs that come from the sample sheet
MAX_DETAILED = 12  # of more samples, the preparation is shown in a table alone
NUM_FIRST_LABELS = 5  # labels in the summary
NUM_SHOWN_FILES = 3  # of a command


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

    The kind of a column tells how its values are shown: text, label, gene, count, "label count" (a count, with a label
    as the title), share (0 to 1), score (0 to 1), or number.
    """

    id: str
    title: str
    columns: list[tuple[str, str]]  # title and kind
    rows: list[list[Any]]
    total: list[Any] = field(default_factory=list)  # a last row that is not sorted


def _without_empty_columns(
    kinds: dict[str, str], rows: list[list[Any]]
) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    """Return the columns (title and kind) and the rows of a table, without columns in which all values are missing."""
    filled = [place for place in range(len(kinds)) if not all(pd.isna(row[place]) for row in rows)]
    columns = list(kinds.items())
    return [columns[place] for place in filled], [[row[place] for place in filled] for row in rows]


def order_labels(samples: Sequence[Annotated], evaluation: Evaluation | None = None) -> list[Label]:
    """Return all labels of the page, the most frequent first; frequent labels get the most distinct colours.

    Cells are counted by their call: a label or a parent of it, or unknown, which is the last of the calls with cells.
    Labels without cells follow in the order of the model, then true labels that the model does not have.
    """
    counts = cell_table(samples)["call"].value_counts()
    model_labels = samples[0].model_labels
    names = [*model_labels, *(name for name in counts.index if name not in (*model_labels, NO_CALL))]
    names.sort(key=lambda name: -int(counts.get(name, 0)))  # stable: equal counts keep the order of the model
    labels = [
        Label(name=name, in_model=name in model_labels, colour=colour_of(i), symbol=symbol_of(i))
        for i, name in enumerate(names)
    ]
    if NO_CALL in counts and NO_CALL not in names:
        num_used = sum(name in counts for name in names)
        unknown = Label(name=NO_CALL, in_model=False, colour=UNKNOWN_COLOUR, symbol=UNKNOWN_SYMBOL)
        labels.insert(num_used, unknown)
    evaluated = evaluation.metrics["labels"] if evaluation else []
    known = {label.name for label in labels}
    return labels + [Label(name=name, in_model=False) for name in evaluated if name not in known]


def all_cells(samples: Sequence[Annotated], labels: Sequence[Label]) -> pd.DataFrame:
    """Return the table of all cells (`cell_table`) with a column `code`: the position in `labels` of the call."""
    cells = cell_table(samples)
    return cells.assign(code=pd.Index([label.name for label in labels]).get_indexer(cells["call"]))


def summarise(sample: Annotated, cells: pd.DataFrame, labels: Sequence[Label]) -> dict[str, Any]:
    """Summarise a sample from the table of all cells; `counts` and `shares` (0 to 1) have an entry per label."""
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
        "agreement": agreement(cells),
        "num_decided": sample.facts.get("encoder", {}).get("num_decided"),  # labels that the encoder decides
        "facts": sample.facts,
        "condition": {"adapted": False, "expected_accuracy": math.nan} | sample.facts.get("condition", {}),
        "kind": sample.facts.get("shift", {}).get("kind"),
        "expected": _expected_accuracy(sample.facts),
    }


def agreement(cells: pd.DataFrame) -> float | None:
    """Return the share of cells to which logistic regression gives the same label; None without it."""
    return float((cells["label"] == cells["baseline"]).mean()) if "baseline" in cells else None


def _expected_accuracy(facts: dict[str, Any]) -> str | None:
    """Return the accuracy to expect of the labels of a sample, as a text; None if it is not known."""
    known = facts.get("condition", {}).get("expected_accuracy", math.nan)  # files of earlier versions have no shift
    lowest, highest = (facts.get("shift", {}).get(f"expected_{end}", known) for end in ("lowest", "highest"))
    if math.isnan(lowest):
        return None
    return f"{lowest:.0%}" if lowest == highest else f"{lowest:.0%} to {highest:.0%}"


def sample_table(summaries: Sequence[dict[str, Any]], failed: Sequence[Failed], evaluation: Evaluation | None) -> Table:
    """Return the table of samples; samples that failed have a row with the reason."""
    kinds = {"Sample": "text", "Status": "text", "Cells": "count", "Unknown": "count", "Share unknown": "share"}
    kinds |= {"Like the reference": "text", "Expected accuracy": "text", "Median confidence": "number"}
    kinds |= {"Same label by logistic regression": "share", "Labels decided by the encoder": "count"}
    scores = evaluation.metrics["samples"] if evaluation else {}
    rows = []
    for row in summaries:
        adapted = "annotated by an adapted model" if row["condition"]["adapted"] else "annotated"
        values = [row["name"], adapted, row["num_cells"], row["num_unknown"], row["num_unknown"] / row["num_cells"]]
        values += [row["kind"], row["expected"], row["median"], row["agreement"], row["num_decided"]]
        rows.append(values + ([scores.get(row["name"], {}).get("model", {}).get("accuracy")] if scores else []))
    kinds |= {"Accuracy": "share"} if scores else {}
    rows += [[sample.name, f"failed: {sample.reason}", *[None] * (len(kinds) - 2)] for sample in failed]
    columns, rows = _without_empty_columns(kinds, rows)
    return Table(id="samples-table", title="Status and scores", columns=columns, rows=rows)


def input_table(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return how the expression of each sample was read, and which genes of the model it has."""
    kinds = {"Sample": "text", "File": "text", "Cells": "count", "Values": "text", "In": "text"}
    kinds |= {"Genes in the file": "count", "Genes of the model": "count", "Share of the model’s genes": "share"}
    kinds |= {"Adapted model": "text", "Novelty ratio": "number", "Gene effects": "number"}
    rows = []
    for summary in summaries:
        values, genes = summary["facts"]["input"], summary["facts"]["genes"]
        shift = summary["facts"].get("shift", {})
        row = [summary["name"], Path(str(values["file"])).name, summary["num_cells"], values["kind"], values["source"]]
        row += [genes["num_file"], genes["num_shared"], genes["share_of_model"]]
        row.append("yes" if summary["condition"]["adapted"] else "no")
        row += [shift.get("novelty_ratio"), shift.get("gene_effects")]
        rows.append(row)
    columns, rows = _without_empty_columns(kinds, rows)
    return Table(id="inputs-table", title="Expression and genes of each sample", columns=columns, rows=rows)


def doublet_table(samples: Sequence[Annotated], cells: pd.DataFrame, labels: Sequence[Label]) -> Table | None:
    """Return the likely doublets and the cells of low quality among the cells of each call; None if not detected."""
    flags = {}
    for name, title in {"doublet": "Likely doublets", "low_quality": "Low quality"}.items():
        parts = [flag for sample in samples if (flag := sample.flag(name)) is not None]
        if len(parts) == len(samples):
            flags[title] = np.concatenate(parts)
    if not flags:
        return None
    kinds = {"Call": "label", "Cells": "count"}
    for title in flags:
        kinds |= {title: "count", f"Share, {title.lower()}": "share"}
    rows = []
    codes = cells["code"].to_numpy()
    for code in np.unique(codes):
        is_in = codes == code
        numbers = [number for flag in flags.values() for number in (int(flag[is_in].sum()), float(flag[is_in].mean()))]
        rows.append([labels[code].name, int(is_in.sum()), *numbers])
    title = "Doublets and low quality per call"
    return Table(id="doublets-table", title=title, columns=list(kinds.items()), rows=rows)


def composition_tables(data: dict[str, Any]) -> list[Table]:
    """Return the number of cells per sample and call, label or node of a level, from `composition_data`."""
    made = []
    for number, kind in enumerate(data["kinds"]):
        columns = [("Sample", "text"), ("Cells", "count"), *((value, "label count") for value in kind["values"])]
        rows = [[name, sum(row), *row] for name, row in zip(data["samples"], kind["counts"], strict=True)]
        total = ["All samples", *(sum(row[place] for row in rows) for place in range(1, len(columns)))]
        title = f"Cells per sample and {kind['name'].lower()}"
        ends = "" if number == 0 else f"-{number}"
        made.append(Table(id=f"composition{ends}-table", title=title, columns=columns, rows=rows, total=total))
    return made


def runs(samples: Sequence[Annotated]) -> list[dict[str, str]]:
    """Return when, where and how the samples were annotated, each different command once; empty if not recorded.

    `date` and `last` are those of the first and the last sample of a run.
    """
    dates: dict[tuple[str, str], list[str]] = {}
    for sample in samples:
        if run := sample.facts.get("run"):
            dates.setdefault((run.get("host", ""), run.get("command", "")), []).append(run["date"])
    return [
        {"host": host, "command": _readable(command), "date": min(found), "last": max(found)}
        for (host, command), found in dates.items()
    ]


def _readable(command: str) -> str:
    """Return a recorded command for people: long words and lists of files are cut, and quotes can be read."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote without its end
        words = command.split(" ")
    is_cut = command.endswith(" ...")  # as a long one is recorded
    words = words[:-2] if is_cut else words
    words = [f'"{word}"' if "'" in word else shlex.quote(word) for word in map(shortened, words)]
    files = [word for word in words[2:] if "=" not in word]
    more = [f"[{len(files) - NUM_SHOWN_FILES} more]"] if len(files) > NUM_SHOWN_FILES else []
    more = ["..."] if is_cut else more
    return " ".join([*words[:2], *files[:NUM_SHOWN_FILES], *more, *(word for word in words[2:] if "=" in word)])


def confidence_table(cells: pd.DataFrame, labels: Sequence[Label]) -> Table:
    """Return the quartiles of the confidence for each label that has cells."""
    kinds = {"Label": "label", "Cells": "count", "Share": "share"}
    kinds |= {"Lower quartile": "number", "Median": "number", "Upper quartile": "number"}
    rows = []
    for code, chosen in cells.groupby("code"):
        quartiles = np.quantile(chosen["confidence"], [0.25, 0.5, 0.75]).tolist()
        rows.append([labels[code].name, len(chosen), len(chosen) / len(cells), *quartiles])
    return Table(id="confidence-table", title="Confidence per label", columns=list(kinds.items()), rows=rows)


def unknown_table(samples: Sequence[Annotated], cells: pd.DataFrame) -> Table | None:
    """Return the labels that unknown cells resemble, with the most frequent second label; None without such cells."""
    is_unknown = cells["unknown"].to_numpy(bool)
    if not is_unknown.any():
        return None
    second: list[str] = []
    for sample in samples:
        rows = np.flatnonzero(sample.column("unknown").to_numpy(bool))
        proba = sample.probabilities(rows)
        places = np.argsort(-proba, axis=1, kind="stable")[:, min(1, proba.shape[1] - 1)]
        second += [sample.model_labels[place] for place in places.tolist()]
    kinds = {"Most probable label": "label", "Unknown cells": "count", "Share of this label": "share"}
    kinds |= {"Median confidence": "number", "Most frequent second label": "label", "Cells with it": "count"}
    sizes = cells["label"].value_counts()
    lines: list[list[Any]] = []
    for label, unknown in cells[is_unknown].assign(second=second).groupby("label"):
        seconds = unknown["second"].value_counts()
        share = len(unknown) / int(sizes[label])
        values = [label, len(unknown), share, float(unknown["confidence"].median())]
        lines.append([*values, str(seconds.index[0]), int(seconds.iloc[0])])
    lines.sort(key=lambda line: -line[1])
    title = "Labels that unknown cells resemble"
    return Table(id="unknown-table", title=title, columns=list(kinds.items()), rows=lines)


def gene_tables(genes: GeneTable, labels: Sequence[Label], used: Sequence[int]) -> tuple[Table, Table]:
    """Return two tables: the first genes of each label, and the numbers about its best markers and contributions."""
    short = {"Label": "label", "Markers": "gene"}
    kinds = {"Label": "label", "Gene": "gene", "Marker rank": "count", "Mean ln(1 + counts per 10,000)": "number"}
    kinds |= {"Share of cells": "share", "Log2 fold change": "number"}
    contributions = genes.contributions
    if contributions is not None:
        short["Largest contributions to the label"] = "gene"
        kinds |= {"Contribution rank": "count", "Mean contribution": "number"}
    lines = []
    rows = []
    for code in used:
        rankings = [genes.top(genes.markers, code, NUM_TOP).tolist()]
        if contributions is not None:
            rankings.append(genes.top(contributions, code, NUM_TOP).tolist())
        names = [", ".join(str(genes.genes[gene]) for gene in ranking[:NUM_LISTED]) for ranking in rankings]
        lines.append([labels[code].name, *names])
        for gene in dict.fromkeys(gene for ranking in rankings for gene in ranking):
            numbers = [float(values[code, gene]) for values in (genes.means, genes.shares, genes.changes)]
            ranks = [ranking.index(gene) + 1 if gene in ranking else None for ranking in rankings]
            row = [labels[code].name, str(genes.genes[gene]), ranks[0], *numbers]
            if contributions is not None:
                row += [ranks[1], float(contributions[code, gene])]
            rows.append(row)
    first = Table(id="genes-table", title="First genes of each label", columns=list(short.items()), rows=lines)
    title = "Markers" if contributions is None else "Markers and contributions"
    return first, Table(id="markers-table", title=title, columns=list(kinds.items()), rows=rows)


def quality_table(samples: Sequence[Annotated], tables: dict[str, pd.DataFrame]) -> Table:
    """Return the quality of the cells of each sample whose expression could be read.

    `tables` have the quality of each cell, by the name of the sample.
    """
    kinds = {"Sample": "text", "Cells": "count", "Median genes": "number", "Median counts": "number"}
    kinds |= {f"Below {FEW_GENES} genes": "count", "Median mitochondrial share": "share"}
    kinds |= {f"Above {HIGH_SHARE:.0%} mitochondrial": "count", "Likely doublets": "count", "Low quality": "count"}
    rows = []
    for sample in samples:
        if (table := tables.get(sample.name)) is None:
            continue
        if "droplets" in sample.facts and (low := sample.flag("low_quality")) is not None:
            table = table[~low]  # empty droplets are of low quality
        share = table["mitochondrial"]
        has_share = bool(share.notna().any())  # False without mitochondrial genes
        flags = [sample.flag(name) for name in ("doublet", "low_quality")]
        row = [
            sample.name,
            len(table),
            float(table["num_genes"].median()),
            float(table["total"].median()) if sample.facts["input"]["kind"] == "counts" else None,
            int((table["num_genes"] < FEW_GENES).sum()),
            float(share.median()) if has_share else None,
            int((share > HIGH_SHARE).sum()) if has_share else None,
            *(None if flag is None else int(flag.sum()) for flag in flags),
        ]
        rows.append(row)
    columns, rows = _without_empty_columns(kinds, rows)
    return Table(id="quality-table", title="Quality per sample", columns=columns, rows=rows)


def models_table(sample: Annotated) -> Table | None:
    """Return how often each pair of several models gives a cell the same label; None for one model."""
    found = sample.facts.get("models")
    if found is None:
        return None
    names = [str(name) for name in found["names"]]
    kinds = {"Model": "text", "Prefix of its columns": "text"} | {f"Same as {name}": "share" for name in names}
    rows = [
        [name, str(key), *map(float, shares)]
        for name, key, shares in zip(names, found["keys"], found["agreement"], strict=True)
    ]
    title = f"Agreement of the models on {sample.name}"
    return Table(id="models-table", title=title, columns=list(kinds.items()), rows=rows)


def disagreement_table(cells: pd.DataFrame) -> Table | None:
    """Return the most frequent pairs of different labels by the model and by logistic regression; None without it."""
    if "baseline" not in cells:
        return None
    sizes = cells["label"].value_counts()
    disagreeing = cells[cells["label"] != cells["baseline"]]
    pairs = disagreeing.groupby(["label", "baseline"]).size().reset_index(name="num_cells")
    frequent = pairs.sort_values("num_cells", ascending=False, kind="stable").head(NUM_DISAGREEMENTS)
    rows = [
        [label, baseline, num, num / int(sizes[label])]
        for label, baseline, num in zip(*(frequent[name].tolist() for name in frequent), strict=True)
    ]
    kinds = {"Label by the model": "label", "By logistic regression": "label", "Cells": "count"}
    kinds |= {"Share of the model’s label": "share"}
    return Table(id="disagreement-table", title="Most frequent disagreements", columns=list(kinds.items()), rows=rows)


def levels(samples: Sequence[Annotated]) -> list[dict[str, Any]]:
    """Return the nodes of the label tree, parents before children; empty without a tree that all samples share.

    Each has a name, the term of the Cell Ontology, the level (0 is the top), the number of cells called at the node
    itself (`num_here`), and the number of cells called there or below (`num_cells`).
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
    """Return the confidence below which cells were flagged as unknown, with sample names if thresholds differ.

    Empty without a threshold, or if the files do not record it.
    """
    names: dict[float, list[str]] = {}
    for sample in samples:
        value = json.loads(sample.facts.get("config_json", "{}")).get("min_confidence")
        names.setdefault(float(value or 0), []).append(sample.name)
    thresholds = [value for value in sorted(names) if value > 0]
    if len(names) == 1:
        return "".join(map(str, thresholds))
    return " or ".join(f"{value} ({listed(names[value])})" for value in thresholds)


def flag_reasons(samples: Sequence[Annotated]) -> list[str]:
    """Return the reasons why cells can be flagged as unknown, as clauses with "they" or "their"."""
    reasons = []
    if any(float(sample.facts.get("novelty", {}).get("false_alarms", 0)) > 0 for sample in samples):
        reasons.append("they look like none of the labels")
    if lowest := threshold(samples):
        reasons.append(f"their confidence is below {lowest}")
    return [*reasons, "they express none of the model’s genes"]


def trust_tables(summaries: Sequence[dict[str, Any]], samples: Sequence[Annotated]) -> list[Table]:
    """Return the evidence from held-out calls: for confidences and unknown flags, and for sets of labels.

    Samples without held-out calls have no row, and tables without rows are left out.
    """
    kinds = {"Sample": "text", "Held-out cells": "count", "Calibration error": "score"}
    kinds |= {"Mean confidence of held-out cells": "number", "Mean confidence": "number"}
    kinds |= {"Share unknown": "share", "Expected false positives": "share"}
    set_kinds = {"Sample": "text", "Target coverage": "share", "Coverage on held-out cells": "share"}
    set_kinds |= {"Mean size": "number", "Empty": "share", "1 label": "share", "2 labels": "share", "More": "share"}
    rows = []
    set_rows = []
    for summary, sample in zip(summaries, samples, strict=True):
        if "calibration" not in sample.facts:
            continue
        calibration = sample.facts["calibration"]
        row = [
            summary["name"],
            int(calibration["num_cells"]),
            float(calibration["error"]),
            summary["mean_held_out"],
            summary["mean"],
            summary["num_unknown"] / summary["num_cells"],
            float(sample.facts["novelty"]["false_alarms"]),
        ]
        rows.append(row)
        if sets := sample.facts.get("sets"):
            sizes = sample.column("set_size").clip(upper=LARGE_SET).to_numpy(int)
            shares = (np.bincount(sizes, minlength=LARGE_SET + 1) / len(sizes)).tolist()
            coverages = [1 - float(sets["alpha"]), float(sets["held_out_coverage"])]
            set_rows.append([summary["name"], *coverages, float(sets["mean_size"]), *shares])
    tables = [
        Table(id="trust-table", title="Evidence on held-out cells", columns=list(kinds.items()), rows=rows),
        Table(id="sets-table", title="Sets of labels", columns=list(set_kinds.items()), rows=set_rows),
    ]
    return [table for table in tables if table.rows]


def branch_table(samples: Sequence[Annotated]) -> Table | None:
    """Return the out-of-fold scores of each branch alone and of both, under each condition; None if not recorded."""
    names: dict[str, list[str]] = {}
    recorded = {}
    for sample in samples:
        if scores := sample.facts["model"].get("branch_scores"):
            names.setdefault(sample.adapted, []).append(sample.name)
            recorded[sample.adapted] = scores
    if not recorded:
        return None
    kinds = {"Branch": "text", "Accuracy": "score", "Macro-F1": "score", "Loss": "score", "Samples": "text"}
    titles = branch_names(samples[0].encoder)
    rows = []
    for condition, scores in recorded.items():
        of_samples = listed(names[condition]) if len(recorded) > 1 else None
        for branch, title in titles.items():
            numbers = [float(scores[branch][name]) for name in ("accuracy", "macro_f1", "loss")]
            rows.append([title, *numbers, of_samples])
    columns, rows = _without_empty_columns(kinds, rows)
    return Table(id="branches-table", title="What each branch adds", columns=columns, rows=rows)


def score_tables(evaluation: Evaluation) -> list[Table]:
    """Return the scores of the model and of logistic regression: per sample, per true label, and per level of calls."""
    kinds = {"Sample": "text", "Cells": "count"}
    names = {"accuracy": "Accuracy", "macro_f1": "Macro-F1", "weighted_f1": "Weighted-F1"}
    for name in names.values():
        kinds |= {name: "score", f"{name} of logistic regression": "score"}
    kinds |= {"Calibration error": "score"}

    def row(name: str, scores: dict[str, Any]) -> list[Any]:
        pairs = [scores.get(method, {}).get(score) for score in names for method in ("model", "baseline")]
        return [name, scores["num_cells"], *pairs, scores.get("calibration_error")]

    metrics = evaluation.metrics
    rows = [row(name, scores) for name, scores in natsorted(metrics["samples"].items(), key=lambda item: item[0])]
    total = row("All samples", metrics) if len(rows) > 1 else []
    columns, filled = _without_empty_columns(kinds, [*rows, total] if total else rows)
    if total:
        total = filled.pop()
    tables = [Table(id="scores-table", title="Scores per sample", columns=columns, rows=filled, total=total)]
    kinds = {"True label": "label", "Cells": "count", "Precision": "score", "Recall": "score", "F1": "score"}
    names_of_columns = ["label", "support", "precision", "recall", "f1"]
    if "baseline_f1" in evaluation.per_class:
        kinds |= {"F1 of logistic regression": "score"}
        names_of_columns.append("baseline_f1")
    per_class = evaluation.per_class.loc[evaluation.per_class["support"] > 0, names_of_columns]
    rows = per_class.sort_values("support", ascending=False, kind="stable").to_numpy(object).tolist()
    tables.append(Table(id="labels-table", title="Scores per label", columns=list(kinds.items()), rows=rows))
    if (calls := metrics.get("calls")) and calls["backed_off"] + calls["unknown"] > 0:
        kinds = {"Level of the call": "count", "Calls": "count", "Accuracy": "share"}
        rows = [[level["level"], level["num_calls"], level["accuracy"]] for level in calls["levels"]]
        tables.append(Table(id="calls-table", title="Calls on each level", columns=list(kinds.items()), rows=rows))
    return tables


def confusion_table(evaluation: Evaluation, labels: Sequence[Label]) -> Table:
    """Return the confusion matrix as counts: a row for each true label, a column for each label of the model.

    Labels that are neither true nor predicted for any cell are left out.
    """
    counts = evaluation.confusion
    names = [label.name for label in labels if label.name in counts.index]
    true = [name for name in names if counts.loc[name].sum()]
    in_model = {label.name for label in labels if label.in_model}
    predicted = [name for name in names if name in in_model and counts[name].sum() + counts.loc[name].sum()]
    columns = [("True label", "label"), ("Cells", "count"), *((name, "label count") for name in predicted)]
    rows = [[name, int(counts.loc[name].sum()), *counts.loc[name, predicted].astype(int).tolist()] for name in true]
    return Table(id="confusion-table", title="Confusion matrix", columns=columns, rows=rows)
