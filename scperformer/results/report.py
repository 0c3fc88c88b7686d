"""One HTML page about annotated files, with interactive figures and sortable tables; it needs no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly.offline import get_plotlyjs

from scperformer.base.errors import InputError
from scperformer.labels.tree import NO_CALL
from scperformer.results import cell_map, figures, what_to_check
from scperformer.results import report_tables as tables
from scperformer.results.evaluate import Evaluation
from scperformer.results.pages import TEMPLATES, render_page
from scperformer.results.read_annotations import Annotated, Failed, as_text, cell_table

NUM_FIRST_LABELS = 5  # labels in the summary


def render(
    samples: Sequence[Annotated],
    failed: Sequence[Failed] = (),
    evaluation: Evaluation | None = None,
    sample_key: str | None = None,
    max_cells: int = cell_map.MAX_CELLS,
    seed: int = 0,
) -> tuple[str, str]:
    """Return the HTML page about samples and their evaluation, and its first screen, for notebooks.

    The same input and options give the same page. `sample_key` is the column of obs with the sample of each cell, for
    the composition; None: each file is a sample. The map shows at most `max_cells` random cells.
    """
    labels = tables.order_labels(samples, evaluation)
    cells = cell_table(samples)
    called = [label for label in labels if label.name in set(cells["call"])]
    summaries = [tables.summarise(sample, cells) for sample in samples]
    composition = tables.composition_table(tables.sample_of_cells(samples, cells, sample_key), cells, labels)
    drawn = cell_map.draw_cells(samples, max_cells, seed)

    markers, dots = _markers(drawn, cells, called)
    charts = [*_charts(cells, labels, composition, evaluation), *dots]
    data = {"unknown": NO_CALL, "figures": charts, "map": _map(samples, cells, labels, evaluation, drawn)}
    scripts = [script.strip() for script in (get_plotlyjs(), (TEMPLATES / "report.js").read_text(encoding="utf-8"))]

    in_model = [label for label in labels if label.in_model]
    record = samples[0].record
    dates = sorted(sample.record.run.date for sample in samples if sample.record.run is not None)
    content = {
        "model": record.model,
        "versions": dict(sorted(record.versions.items())),
        "key": samples[0].key,
        "dates": list(dict.fromkeys(dates[:1] + dates[-1:])),
        "samples": summaries,
        "failed": failed,
        "num_cells": len(cells),
        "num_unknown": int(cells["unknown"].sum()),
        "num_backed_off": sum(int(sample.record.tree.num_backed_off) for sample in samples if sample.record.tree),
        "median": float(cells["confidence"].median()),
        "labels": {label.name: label for label in labels},
        "num_labels": len(in_model),
        "num_used": sum(label in called for label in in_model),
        "not_used": [label.name for label in in_model if label not in called],
        "first_labels": _first_labels(called, cells),
        "trust_groups": what_to_check.trust_groups(summaries),
        "checks": what_to_check.things_to_check(summaries, evaluation),
        "cluster_notes": what_to_check.cluster_notes(summaries),
        "agreement": tables.agreement(cells),
        "metrics": evaluation.metrics if evaluation else None,
        "tissues": tables.tissue_groups(samples),
        "composition": composition,
        "sample_key": sample_key,
        "num_drawn": len(drawn.rows),
        "map_source": drawn.source,
        "has_map": drawn.xy is not None,
        "seed": seed,
        "sample_table": tables.sample_table(summaries, failed, evaluation),
        "confidence": tables.confidence_table(cells, labels),
        "unknown": tables.unknown_table(cells),
        "markers": tables.marker_table(markers, cells),
        "trust": tables.trust_table(summaries),
        "scores": tables.score_tables(evaluation) if evaluation else (),
        "inputs": tables.input_table(summaries),
        "figures": {chart["name"] for chart in charts},
        "data": _as_script(data),
        "scripts": scripts,
        "hashes": [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
    }
    return render_page("report.html.jinja", **content), render_page("summary.html.jinja", **content)


def _markers(
    drawn: cell_map.Drawn, cells: pd.DataFrame, called: Sequence[tables.Label]
) -> tuple[dict[str, list[str]], list[figures.Figure]]:
    """Return the markers of each call with any, and their dot plot, if there are some."""
    if drawn.expression is None:
        return {}, []
    calls = cells["call"].to_numpy(object)[drawn.rows]
    found = cell_map.find_markers(drawn.expression, calls)
    markers = {label.name: found[label.name] for label in called if found.get(label.name)}
    return markers, [figures.dots(markers, drawn.expression, calls)] if markers else []


def _as_script(data: dict[str, Any]) -> str:
    """Return JSON for the HTML element `script`, which no text of a user can end."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _first_labels(called: Sequence[tables.Label], cells: pd.DataFrame) -> list[tuple[tables.Label, int, float]]:
    """Return the labels with the most cells, each with the number and the share of its cells."""
    sizes = cells["call"].value_counts()
    first = [label for label in called if label.name != NO_CALL][:NUM_FIRST_LABELS]
    return [(label, int(sizes[label.name]), sizes[label.name] / len(cells)) for label in first]


def _charts(
    cells: pd.DataFrame, labels: Sequence[tables.Label], composition: tables.Table, evaluation: Evaluation | None
) -> list[figures.Figure]:
    """Return the figures of composition and confidence, and with an evaluation the confusion matrix."""
    called = [label for label in labels if label.name in set(cells["call"])]
    names, colours = [label.name for label in called], [label.colour for label in called]
    counts = np.array([row[2:] for row in composition.rows])
    charts = [figures.composition_bars([row[0] for row in composition.rows], counts, names, colours)]
    charts.append(figures.confidence(cells, names, colours))
    if evaluation is not None:
        evaluated = [label.name for label in labels if label.name in evaluation.confusion.index]
        confusion = evaluation.confusion.loc[evaluated, evaluated]
        charts.append(figures.confusion_map(confusion.loc[confusion.sum(axis=1) > 0, confusion.sum() > 0]))
    return charts


def _map(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    labels: Sequence[tables.Label],
    evaluation: Evaluation | None,
    drawn: cell_map.Drawn,
) -> dict[str, Any] | None:
    """Return the map with its colours: call, sample, confidence, novelty, `looks_like`, true label; or None."""
    if drawn.xy is None:
        return None
    shown = cells.iloc[drawn.rows]
    known = {label.name: (label.colour, label.symbol) for label in labels}
    columns = [figures.categories("Call", shown["call"], known), figures.categories("Sample", shown["sample"])]
    columns.append(figures.numbers("Confidence", shown["confidence"], figures.CONFIDENCE_STOPS))
    if "novelty" in shown:
        columns.append(figures.numbers("Novelty", shown["novelty"], figures.EXPRESSION_STOPS))
    if (shown["looks_like"] != "").any():
        columns.append(figures.categories("Looks like", shown["looks_like"].replace("", "its label"), known))
    truth_key = None if evaluation is None else evaluation.metrics["truth_key"]
    if truth_key is not None and all(truth_key in sample.obs for sample in samples):
        truth = pd.Series(np.concatenate([as_text(sample.obs[truth_key]) for sample in samples]))
        columns.append(figures.categories("True label", truth.iloc[drawn.rows], known))
    names = np.concatenate([sample.obs.index.astype(str) for sample in samples])[drawn.rows].tolist()
    x, y = drawn.xy.astype(float).round(3).T.tolist()
    return {"x": x, "y": y, "cells": names, "columns": columns}


def require_same_samples(evaluation: Evaluation, samples: Sequence[Annotated]) -> None:
    """Refuse an evaluation of other samples, or of annotations by another model."""
    names = [sample.name for sample in samples]
    found = next((f"'{name}'" for name in evaluation.metrics["samples"] if name not in names), "")
    if evaluation.metrics["model_hash"] != samples[0].record.model.hash:
        found = "another model"
    if found:
        expected = f"an evaluation of {', '.join(names)} only, by {samples[0].model_id}"
        remedy = "run 'scperformer evaluate' again on the same files"
        raise InputError("other-samples", f"{evaluation.path or 'the evaluation'} evaluates {found}", expected, remedy)
