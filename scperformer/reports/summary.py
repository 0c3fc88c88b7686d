"""What a report says about annotated samples and their evaluation: plain numbers, no HTML."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.pictures import colour_of, ink_on
from scperformer.reports.annotated import Annotated
from scperformer.reports.evaluate import Evaluation

NUM_BINS = 20  # of the confidence histogram
NUM_DISAGREEMENTS = 8  # most frequent pairs shown
# From here on a sample is named among the things to check. Judgements, not limits of the method.
LOW_OVERLAP, HIGH_UNKNOWN, LOW_AGREEMENT = 0.7, 0.2, 0.6


@dataclass(kw_only=True)
class Label:
    """How a label looks, the same in every part of the page."""

    name: str
    number: int | None = None  # from 1; None: the model does not know this label
    colour: str = "#FFFFFF"
    ink: str = "#000000"  # readable on `colour`


@dataclass(kw_only=True)
class SampleSummary:
    """One sample, L labels in the order of the page."""

    name: str
    num_cells: int
    counts: list[int]  # L
    shares: list[float]  # L, 0 to 1
    num_unknown: int
    agreement: float  # share of cells that logistic regression calls the same
    facts: dict[str, Any]  # input and genes, as predict wrote them


@dataclass(kw_only=True)
class ConfidenceRow:
    """Confidence of the cells that were given one label; quartiles from 0 to 1."""

    label: Label
    num_cells: int
    num_unknown: int
    low: float
    median: float
    high: float


@dataclass(kw_only=True)
class ConfusionRow:
    """The cells of one true label: how many were given each label (columns of the page)."""

    label: Label
    num_cells: int
    cells: list[tuple[float, int, bool]]  # share of the row, cells, whether this is the right label


def order_labels(samples: Sequence[Annotated], evaluation: Evaluation | None = None) -> list[Label]:
    """Every label of the page, the most frequent first: it has number 1 and the most distinct colour.

    Labels that no cell received follow in the model's order, then true labels that the model does not know.
    """
    counts = pd.Series(np.concatenate([sample.labels for sample in samples])).value_counts()
    known = [
        *samples[0].model_labels,
        *(name for name in counts.index if name not in samples[0].model_labels),
    ]
    known.sort(key=lambda name: -int(counts.get(name, 0)))  # stable: ties keep the model's order
    labels = [
        Label(name=name, number=place + 1, colour=colour_of(place), ink=ink_on(colour_of(place)))
        for place, name in enumerate(known)
    ]
    of_truth = evaluation.metrics["labels"] if evaluation else []
    return labels + [Label(name=name) for name in of_truth if name not in set(known)]


def codes_of(values: npt.NDArray[np.object_], labels: Sequence[Label]) -> npt.NDArray[np.int64]:
    """The position in `labels` of each of N label names."""
    position = {label.name: place for place, label in enumerate(labels)}
    return np.array([position[value] for value in values], dtype=np.int64)


def summarise(sample: Annotated, labels: Sequence[Label]) -> SampleSummary:
    """Counts, shares and agreement with logistic regression of one sample."""
    counts = np.bincount(codes_of(sample.labels, labels), minlength=len(labels))
    return SampleSummary(
        name=sample.name,
        num_cells=len(sample.obs),
        counts=counts.tolist(),
        shares=(counts / len(sample.obs)).tolist(),
        num_unknown=int(sample.column("unknown").sum()),
        agreement=float((sample.labels == sample.baseline_labels).mean()),
        facts=sample.facts,
    )


def confidence_rows(cells: pd.DataFrame, labels: Sequence[Label]) -> list[ConfidenceRow]:
    """Confidence per label (`cells` as from `all_cells`), labels without a cell left out."""
    rows = []
    for place, label in enumerate(labels):
        ours = cells[cells["code"] == place]
        if len(ours):
            low, median, high = np.quantile(ours["confidence"], [0.25, 0.5, 0.75]).tolist()
            rows.append(
                ConfidenceRow(
                    label=label,
                    num_cells=len(ours),
                    num_unknown=int(ours["unknown"].sum()),
                    low=low,
                    median=median,
                    high=high,
                )
            )
    return rows


def all_cells(samples: Sequence[Annotated], labels: Sequence[Label]) -> pd.DataFrame:
    """One row per cell of all samples: code (position in `labels`), baseline, confidence, unknown."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "code": codes_of(sample.labels, labels),
                    "baseline": sample.baseline_labels,
                    "confidence": sample.column("confidence").to_numpy(float),
                    "unknown": sample.column("unknown").to_numpy(bool),
                }
            )
            for sample in samples
        ],
        ignore_index=True,
    )


def histogram(cells: pd.DataFrame) -> list[tuple[int, int]]:
    """Cells per bin of confidence from 0 to 1: (all, flagged as unknown), `NUM_BINS` bins."""
    edges = np.arange(NUM_BINS + 1) / NUM_BINS  # 6 / 20 is 0.3; linspace gives the number after it
    every = np.histogram(cells["confidence"].clip(0, 1), edges)[0]
    unknown = np.histogram(cells["confidence"][cells["unknown"]].clip(0, 1), edges)[0]
    return list(zip(every.tolist(), unknown.tolist(), strict=True))


def disagreements(cells: pd.DataFrame, labels: Sequence[Label]) -> list[tuple[Label, Label, int, float]]:
    """Where model and baseline differ most: model's label, baseline's, cells, share of the model's label."""
    by_name = {label.name: label for label in labels}
    sizes = cells["code"].value_counts()
    names = cells["code"].map(dict(enumerate(label.name for label in labels)))
    differ = cells[names != cells["baseline"]]
    pairs = differ.groupby(["code", "baseline"]).size().reset_index(name="num_cells")
    most = pairs.sort_values("num_cells", ascending=False, kind="stable").head(NUM_DISAGREEMENTS)
    return [
        (labels[code], by_name[other], num_cells, num_cells / int(sizes[code]))
        for code, other, num_cells in zip(*(most[name].tolist() for name in most), strict=True)
    ]


def threshold(sample: Annotated) -> float | None:
    """The confidence below which cells were flagged as unknown; None when it was not recorded."""
    value = json.loads(sample.facts.get("config_json", "{}")).get("min_confidence")
    return None if value is None else float(value)


def things_to_check(summaries: Sequence[SampleSummary], evaluation: Evaluation | None) -> list[str]:
    """Plain sentences about what a reader should look at before trusting the labels."""
    found = []
    for sample in summaries:
        overlap = float(sample.facts["genes"].get("informative_share", sample.facts["genes"]["share_of_model"]))
        if overlap < LOW_OVERLAP:
            found.append(
                f"{sample.name} has only {overlap:.0%} of what the model looks at. Absent genes count as not "
                "expressed, so its labels are less reliable."
            )
        if sample.num_unknown > HIGH_UNKNOWN * sample.num_cells:
            found.append(
                f"{sample.num_unknown / sample.num_cells:.0%} of the cells of {sample.name} are flagged as "
                "unknown. It may hold cell types that the model was not trained on."
            )
        if sample.agreement < LOW_AGREEMENT:
            found.append(
                f"Logistic regression agrees on only {sample.agreement:.0%} of the cells of {sample.name}. "
                "The sample may differ a lot from the cells that the model was trained on."
            )
    foreign = evaluation.metrics["truth_labels_not_in_model"] if evaluation else []
    if foreign:
        found.append(f"The model does not know these true labels, so it cannot be right: {', '.join(foreign)}.")
    return found


def evaluation_content(evaluation: Evaluation, labels: Sequence[Label]) -> dict[str, Any]:
    """What the page says about the truth: scores, confusion matrix, scores per label.

    Returns
    -------
    metrics; columns: labels that were given or are true; rows: a ConfusionRow per label with true cells;
    per_class: (label, its row of the table) for the same labels.
    """
    place = {name: number for number, name in enumerate(evaluation.metrics["labels"])}
    counts = evaluation.confusion.to_numpy(np.int64)
    in_order = [label for label in labels if label.name in place]
    columns = [
        label
        for label in in_order
        if label.number and counts[place[label.name]].sum() + counts[:, place[label.name]].sum()
    ]
    true_labels = [label for label in in_order if counts[place[label.name]].sum()]
    to_columns = [place[column.name] for column in columns]
    rows = []
    for label in true_labels:
        num_each = counts[place[label.name], to_columns].tolist()
        num_cells = int(counts[place[label.name]].sum())
        cells = [(num / num_cells, num, column is label) for num, column in zip(num_each, columns, strict=True)]
        rows.append(ConfusionRow(label=label, num_cells=num_cells, cells=cells))
    by_name = evaluation.per_class.set_index("label").to_dict("index")
    per_class = [(label, by_name[label.name]) for label in true_labels]
    return {"metrics": evaluation.metrics, "columns": columns, "rows": rows, "per_class": per_class}
