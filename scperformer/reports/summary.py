"""The content of a report as plain numbers: labels, samples, confidence, disagreements, scores."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scperformer.pictures import colour_of, ink_on
from scperformer.reports.annotated import Annotated, as_text, cell_table, common_tree
from scperformer.reports.evaluate import Evaluation
from scperformer.text import MOST_UNKNOWN, foreign_text

NUM_BINS = 20  # of the histogram of confidence
LARGE_SET = 3  # labels; larger sets are counted with these
NUM_DISAGREEMENTS = 8  # most frequent pairs of labels
# A sample beyond one of these is named among the things to check. They are judgements, not limits of the method.
LOW_OVERLAP, HIGH_UNKNOWN, LOW_AGREEMENT, LOW_EXPECTED = 0.7, 0.2, 0.6, 0.8


@dataclass(kw_only=True)
class Label:
    """A label with its number and colour, which are the same on the whole page."""

    name: str
    number: int | None = None  # from 1; None: the model does not know this label
    colour: str = "#FFFFFF"
    ink: str = "#000000"  # of text on `colour`


def order_labels(samples: Sequence[Annotated], evaluation: Evaluation | None = None) -> list[Label]:
    """All labels of the page, the most frequent first, which gets number 1 and the most distinct colour.

    Labels without cells follow in the model's order, then true labels that the model does not know.
    """
    counts = pd.Series(np.concatenate([sample.labels for sample in samples])).value_counts()
    of_model = samples[0].model_labels
    known = [*of_model, *(name for name in counts.index if name not in of_model)]
    known.sort(key=lambda name: -int(counts.get(name, 0)))  # stable: equal counts keep the model's order
    colours = [colour_of(place) for place in range(len(known))]
    labels = [
        Label(name=name, number=number, colour=colour, ink=ink_on(colour))
        for number, (name, colour) in enumerate(zip(known, colours, strict=True), start=1)
    ]
    of_truth = evaluation.metrics["labels"] if evaluation else []
    return labels + [Label(name=name) for name in of_truth if name not in set(known)]


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
        "agreement": float((cells["label"] == cells["baseline"]).mean()),  # with logistic regression
        "facts": sample.facts,
        "condition": {"adapted": False, "expected_accuracy": math.nan} | sample.facts.get("condition", {}),
    }


def confidence_rows(cells: pd.DataFrame, labels: Sequence[Label]) -> list[dict[str, Any]]:
    """Quartiles of the confidence per label (low, median, high), without labels that have no cells."""
    rows = []
    for code, chosen in cells.groupby("code"):
        counts = {"num_cells": len(chosen), "num_unknown": int(chosen["unknown"].sum())}
        low, median, high = np.quantile(chosen["confidence"], [0.25, 0.5, 0.75]).tolist()
        rows.append({"label": labels[code], **counts, "low": low, "median": median, "high": high})
    return rows


def histogram(cells: pd.DataFrame) -> list[tuple[int, int]]:
    """Cells per bin of confidence from 0 to 1: all of them, and those flagged as unknown."""
    edges = np.arange(NUM_BINS + 1) / NUM_BINS  # 6 / 20 is exactly 0.3, which linspace misses
    confidence = cells["confidence"].clip(0, 1)
    counts = np.histogram(confidence, edges)[0]
    unknown = np.histogram(confidence[cells["unknown"]], edges)[0]
    return list(zip(counts.tolist(), unknown.tolist(), strict=True))


def disagreements(cells: pd.DataFrame, labels: Sequence[Label]) -> list[tuple[Label, Label, int, float]]:
    """The most frequent disagreements: label by the model, by logistic regression, cells, share of the first label."""
    by_name = {label.name: label for label in labels}
    sizes = cells["code"].value_counts()
    other = cells[cells["label"] != cells["baseline"]]
    pairs = other.groupby(["code", "baseline"]).size().reset_index(name="num_cells")
    most = pairs.sort_values("num_cells", ascending=False, kind="stable").head(NUM_DISAGREEMENTS)
    return [
        (labels[code], by_name[other], num_cells, num_cells / int(sizes[code]))
        for code, other, num_cells in zip(*(most[name].tolist() for name in most), strict=True)
    ]


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
        num, level = int(called.get(name, 0)), rows[parent]["level"] + 1
        rows[name] = {"name": name, "term": str(term), "level": level, "num_here": num, "num_cells": num}
    for name, parent in reversed(parents.items()):
        rows[parent]["num_cells"] += rows[name]["num_cells"]
    return list(rows.values())[1:]


def threshold(sample: Annotated) -> float | None:
    """The confidence below which cells were flagged as unknown; None if it was not recorded."""
    value = json.loads(sample.facts.get("config_json", "{}")).get("min_confidence")
    return None if value is None else float(value)


def flag_reasons(sample: Annotated) -> list[str]:
    """Why cells of a sample are flagged as unknown, each with "they" as the subject."""
    reasons = []
    if float(sample.facts.get("novelty", {}).get("false_alarms", 0)) > 0:
        reasons.append("they look like none of the labels")
    if least := threshold(sample):
        reasons.append(f"their confidence is below {least}")
    return [*reasons, "they express none of the model’s genes"]


def trust_rows(summaries: Sequence[dict[str, Any]], samples: Sequence[Annotated]) -> list[dict[str, Any]]:
    """The evidence for confidences, flags and sets of each sample with held-out calls; `number` counts samples from 1.

    `sizes` are the shares of cells whose set has no label, one, two, and more; None without sets.
    """
    rows = []
    for number, (row, sample) in enumerate(zip(summaries, samples, strict=True), start=1):
        if "calibration" not in sample.facts:
            continue
        found = {"number": number, "name": sample.name, "share_unknown": row["num_unknown"] / row["num_cells"]}
        found |= {name: sample.facts[name] for name in ("calibration", "novelty")}
        found |= {"sets": sample.facts.get("sets"), "sizes": None, "adapted": sample.adapted}
        if found["sets"] is not None:
            sizes = sample.column("set_size").clip(upper=LARGE_SET).to_numpy(int)
            found["sizes"] = (np.bincount(sizes, minlength=LARGE_SET + 1) / len(sizes)).tolist()
        rows.append(found)
    return rows


def things_to_check(summaries: Sequence[dict[str, Any]], evaluation: Evaluation | None) -> list[str]:
    """Sentences about samples to look at before using the labels, and about labels that the model does not know."""
    found = []
    for sample in summaries:
        name, genes, agreement = sample["name"], sample["facts"]["genes"], sample["agreement"]
        overlap = genes.get("informative_share", genes["share_of_model"])
        condition = sample["facts"].get("condition", {})
        adapted, expected = condition.get("adapted", False), condition.get("expected_accuracy", math.nan)
        unknown = sample["num_unknown"] / sample["num_cells"]
        if expected < LOW_EXPECTED:
            text = f"The expected accuracy of {name} is only {expected:.0%}: on cells of the reference, reduced to the "
            found.append(text + f"genes and the depth of this file, {1 - expected:.0%} of the labels are wrong.")
        if overlap < LOW_OVERLAP and not adapted:
            text = f"{name} has only {overlap:.0%} of the model's informative expression. Missing genes count as "
            found.append(text + "not expressed, so its labels are less reliable.")
        if unknown > MOST_UNKNOWN:
            found.append(f"{name}: {foreign_text(unknown, len(sample['facts']['model']['labels']))}")
        elif unknown > HIGH_UNKNOWN:
            text = f"{unknown:.0%} of the cells of {name} are flagged as unknown. It may contain cell types that "
            found.append(text + "the model was not trained on.")
        if agreement < LOW_AGREEMENT:
            text = f"Logistic regression gives only {agreement:.0%} of the cells of {name} the same label. "
            found.append(text + "The sample may differ a lot from the cells that the model was trained on.")
    if foreign := evaluation.metrics["truth_labels_not_in_model"] if evaluation else []:
        text = "The model does not know these true labels, so their cells count as errors: "
        found.append(f"{text}{', '.join(foreign)}.")
    return found


def evaluation_content(evaluation: Evaluation, labels: Sequence[Label]) -> dict[str, Any]:
    """The comparison with true labels: metrics, confusion matrix (columns and rows) and scores per label.

    The columns are the labels that are predicted or true; the rows, and `per_class`, are of labels with true cells.
    Each row has an entry per column: share of the row, cells, whether it is correct.
    """
    counts, scores = evaluation.confusion, evaluation.per_class.set_index("label")
    present = [label for label in labels if label.name in counts.index]
    called, true = counts.sum(axis=0), counts.sum(axis=1)
    columns = [label for label in present if label.number and called[label.name] + true[label.name]]
    rows: list[dict[str, Any]] = []
    for label in present:
        if num_cells := int(true[label.name]):
            each = counts.loc[label.name, [column.name for column in columns]].tolist()
            cells = [(num / num_cells, num, column is label) for num, column in zip(each, columns, strict=True)]
            rows.append({"label": label, "num_cells": num_cells, "cells": cells})
    per_class = [(row["label"], scores.loc[row["label"].name].to_dict()) for row in rows]
    return {"metrics": evaluation.metrics, "columns": columns, "rows": rows, "per_class": per_class}
