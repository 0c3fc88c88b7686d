"""One HTML page about annotated files, with interactive figures and sortable tables; it needs no network."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from plotly.offline import get_plotlyjs

from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of
from scperformer.config.steps import ReportConfig
from scperformer.labels.tree import NO_CALL
from scperformer.results import cell_map, figures, what_to_check
from scperformer.results import report_tables as tables
from scperformer.results.evaluate import Evaluation
from scperformer.results.pages import TEMPLATES, render_page
from scperformer.results.read_annotations import Annotated, Failed, as_text, cell_table

SECTION_TABLES = ("composition", "confidence", "unknown", "markers")
NUM_FIRST_LABELS = 5  # largest labels of each section
ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(kw_only=True)
class Report:
    """What a report shows: as a page, as its first screen for notebooks, and as tables."""

    page: str
    summary: str
    tables: dict[str, pd.DataFrame]


def render(
    samples: Sequence[Annotated],
    failed: Sequence[Failed] = (),
    evaluation: Evaluation | None = None,
    cfg: ReportConfig | None = None,
) -> Report:
    """Return the report about samples and their evaluation, with a section for each tissue.

    The same input and options give the same page. The maps show at most `cfg.cells` random cells.
    """
    cfg = cfg or ReportConfig(inputs=[str(sample.path) for sample in samples])
    groups = tables.tissue_groups(samples)
    columns = tables.describing_columns(samples, cfg.group_key)
    # Several tissues share the cells that are drawn.
    cfg = replace(cfg, cells=max(cell_map.MIN_CELLS, cfg.cells // len(groups)))
    shared = _Shared(cfg=cfg, columns=columns, evaluation=evaluation)
    if columns:
        values = sorted({value for sample in samples for value in as_text(sample.obs[columns[0]])})
        shared.colours = {value: colour_of(place) for place, value in enumerate(values)}
    sections = [_section(group, place, shared) for place, group in enumerate(groups)]
    cells = cell_table(samples)
    summaries = [tables.summarise(sample, cells) for sample in samples]
    labels = tables.order_labels(samples, evaluation)
    charts = [chart for section in sections for chart in section["charts"]]
    if evaluation is not None:
        evaluated = [label.name for label in labels if label.name in evaluation.confusion.index]
        confusion = evaluation.confusion.loc[evaluated, evaluated]
        charts.append(figures.confusion_map(confusion.loc[confusion.sum(axis=1) > 0, confusion.sum() > 0]))
    used = [mark.colour for section in sections for mark in section["labels"].values()]
    data = {
        "dark": figures.dark_colours(used),
        "unknown": NO_CALL,
        "figures": charts,
        "maps": [section["map"] for section in sections if section["map"]],
    }
    scripts = [script.strip() for script in (get_plotlyjs(), (TEMPLATES / "report.js").read_text(encoding="utf-8"))]
    described = {name: tables.groups_of(samples, name, cells["sample"].to_numpy(object)) for name in columns}
    content = {
        **_facts(samples, cells, labels),
        "sections": sections,
        "samples": summaries,
        "failed": failed,
        "labels": sections[0]["labels"] if len(sections) == 1 else {},
        "group_key": columns[0] if columns else None,
        "group_colours": shared.colours,
        "checks": [*_condition_checks(groups, cfg), *what_to_check.things_to_check(summaries, evaluation)],
        "cluster_notes": what_to_check.cluster_notes(summaries),
        "metrics": evaluation.metrics if evaluation else None,
        "sample_key": cfg.sample_key,
        "seed": cfg.seed,
        "sample_table": tables.sample_table(summaries, failed, evaluation, described),
        "trust": tables.trust_table(summaries),
        "scores": tables.score_tables(evaluation) if evaluation else (),
        "inputs": tables.input_table(summaries),
        "figures": {chart["name"] for chart in charts},
        # JSON for the HTML element `script`, which no text of a user can end.
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).translate(ESCAPED),
        "scripts": scripts,
        "hashes": [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
    }
    page, summary = (render_page(f"{name}.html.jinja", **content) for name in ("report", "summary"))
    return Report(page=page, summary=summary, tables=_as_frames(content))


def _condition_checks(groups: Sequence[tables.TissueGroup], cfg: ReportConfig) -> list[str]:
    """Return the calls that follow a column of the sample sheet, or the one that groups the samples."""
    found = []
    for samples in (group.samples for group in groups):
        cells = cell_table(samples)
        of_cell = tables.sample_of_cells(samples, cells, cfg.sample_key)
        conditions = tables.conditions_of(samples, of_cell, cfg.group_key)
        parents: dict[str, str] = {}
        for tree in (sample.record.tree for sample in samples if sample.record.tree is not None):
            parents |= dict(zip(map(str, tree.nodes), map(str, tree.parents), strict=True))
        found += what_to_check.labels_of_conditions(cells["call"], conditions, of_cell, parents)
    return found


def _facts(samples: Sequence[Annotated], cells: pd.DataFrame, labels: Sequence[tables.Label]) -> dict[str, Any]:
    """Return numbers of all cells, and what is known of the model."""
    record = samples[0].record
    dates = sorted(sample.record.run.date for sample in samples if sample.record.run.date)
    in_model = [label.name for label in labels if label.in_model]
    return {
        "model": record.model,
        "versions": dict(sorted(record.versions.items())),
        "key": samples[0].key,
        "dates": list(dict.fromkeys(dates[:1] + dates[-1:])),
        "num_cells": len(cells),
        "num_unknown": int(cells["unknown"].sum()),
        "median": float(cells["confidence"].median()),
        "num_labels": len(in_model),
        "num_used": len(set(in_model) & set(cells["call"])),
        "agreement": tables.agreement(cells),
    }


@dataclass(kw_only=True)
class _Shared:
    """What the sections of a page share."""

    cfg: ReportConfig
    columns: list[str]  # of obs, that describe samples; the first groups them
    evaluation: Evaluation | None
    colours: dict[str, str] = field(default_factory=dict)  # of the groups of samples

    @property
    def genes(self) -> list[str]:
        """The genes by which the map can be coloured."""
        return list(dict.fromkeys(self.cfg.genes))


def _section(group: tables.TissueGroup, place: int, shared: _Shared) -> dict[str, Any]:
    """Return what the page shows of the samples of one tissue, the n-th of the page."""
    samples = group.samples
    cfg = shared.cfg
    cells = cell_table(samples)
    labels = tables.order_labels(samples, shared.evaluation)
    sizes = cells["call"].value_counts()
    called = [label for label in labels if label.name in sizes]
    known = [label for label in called if label.name != NO_CALL]
    summaries = [tables.summarise(sample, cells) for sample in samples]
    drawn = cell_map.draw_cells(samples, cfg.cells, cfg.seed)
    markers, dots = _markers(drawn, cells, called)
    of_cell = tables.sample_of_cells(samples, cells, cfg.sample_key)
    group_key = shared.columns[0] if shared.columns else ""
    groups = tables.groups_of(samples, group_key, of_cell) if group_key else {}
    composition = tables.composition_table(of_cell, cells, labels, group_key, groups)
    names = [row[0] for row in composition.rows]
    counts = np.array([row[-len(called) :] for row in composition.rows])
    of_label = {label.name: (label.colour, label.symbol) for label in called}
    bars = figures.composition_bars(names, counts.astype(np.int64), of_label, groups, shared.colours)
    boxes = figures.confidence(cells, of_label)
    suffix = f"-{place + 1}" if place else ""
    charts = [chart | {"name": f"{chart['name']}{suffix}"} for chart in (bars, boxes, *dots)]
    shown = {
        "composition": composition,
        "confidence": tables.confidence_table(cells, labels),
        "unknown": tables.unknown_table(cells),
        "markers": tables.marker_table(markers, cells),
    }
    for table in shown.values():
        table.id += suffix
    tree = [sample.record.tree for sample in samples if sample.record.tree]
    return shown | {
        "title": group.title,
        "found": group.found,
        "is_undetermined": group.is_undetermined,
        "suffix": suffix,
        "num_samples": len(samples),
        "num_cells": len(cells),
        "num_unknown": int(cells["unknown"].sum()),
        "num_backed_off": sum(int(each.num_backed_off) for each in tree),
        "labels": {label.name: label for label in labels},
        "not_used": [label.name for label in labels if label.in_model and label not in called],
        "first_labels": [(label, int(sizes[label.name])) for label in known[:NUM_FIRST_LABELS]],
        "trust_groups": what_to_check.trust_groups(summaries),
        "model_labels": samples[0].model_labels,
        "studies": samples[0].record.model.trained_on,
        "charts": charts,
        "num_drawn": len(drawn.rows),
        "map_source": drawn.source,
        "map": None if drawn.xy is None else {"suffix": suffix} | _map(samples, cells, labels, drawn, shared),
    }


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


def _map(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    labels: Sequence[tables.Label],
    drawn: cell_map.Drawn,
    shared: _Shared,
) -> dict[str, Any]:
    """Return the map with its colours: call, sample, what describes samples, confidence, novelty, and others."""
    shown = cells.iloc[drawn.rows]
    known = {label.name: (label.colour, label.symbol) for label in labels}
    xy = drawn.xy
    assert xy is not None
    columns = [figures.categories("Call", shown["call"], known, xy), figures.categories("Sample", shown["sample"])]
    truth_key = None if shared.evaluation is None else shared.evaluation.metrics["truth_key"]
    of_group = {value: (colour, "circle") for value, colour in shared.colours.items()}
    texts = dict.fromkeys(shared.columns, of_group)
    if truth_key is not None and all(truth_key in sample.obs for sample in samples):
        texts |= {truth_key: known}
    for key, marks in texts.items():
        values = pd.Series(np.concatenate([as_text(sample.obs[key]) for sample in samples])).iloc[drawn.rows]
        columns.append(figures.categories("True label" if key == truth_key else key, values, marks))
    columns.append(figures.numbers("Confidence", shown["confidence"], figures.CONFIDENCE_STOPS))
    if "novelty" in shown:
        columns.append(figures.numbers("Novelty", shown["novelty"], figures.EXPRESSION_STOPS))
    if (shown["looks_like"] != "").any():
        columns.append(figures.categories("Looks like", shown["looks_like"].replace("", "its label"), known))
    for level in _levels(samples):
        values = pd.Series(np.concatenate([as_text(sample.column(level)) for sample in samples])).iloc[drawn.rows]
        columns.append(figures.categories(level.replace("level", "Level "), values, known, xy))
    for gene in shared.genes:
        expressed = cell_map.expression_of(drawn, gene)
        columns.append(figures.numbers(gene, expressed, figures.EXPRESSION_STOPS, max(float(expressed.max()), 1.0)))
    names = np.concatenate([sample.obs.index.astype(str) for sample in samples])[drawn.rows].tolist()
    x, y = xy.astype(float).round(3).T.tolist()
    return {"x": x, "y": y, "cells": names, "columns": columns}


def _levels(samples: Sequence[Annotated]) -> list[str]:
    """Return the levels of the label tree that all samples have: level1, level2..."""
    found = [name.removeprefix(f"{samples[0].key}_") for name in map(str, samples[0].obs)]
    levels = [name for name in found if re.fullmatch(r"level\d+", name)]
    return [level for level in levels if all(f"{sample.key}_{level}" in sample.obs for sample in samples)]


def _as_frames(content: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the tables of a page by their titles, joined over tissues."""
    found = [(content[name], "") for name in ("sample_table", "trust", "inputs") if content[name] is not None]
    found += [(table, "") for table in content["scores"]]
    sections = content["sections"]
    found += [(each[name], each["title"]) for name in SECTION_TABLES for each in sections]
    frames: dict[str, list[pd.DataFrame]] = {}
    for table, tissue in found:
        frame = pd.DataFrame(table.rows, columns=[title for title, _ in table.columns])
        frame = frame.loc[:, ~frame.columns.duplicated()]
        if tissue and len(sections) > 1:
            frame.insert(0, "Tissue", tissue, allow_duplicates=True)
        if len(frame):
            frames.setdefault(table.title, []).append(frame)
    return {title: pd.concat(parts, ignore_index=True) for title, parts in frames.items()}


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
