"""One HTML page about annotated files, with interactive figures and sortable tables; it needs no network."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from plotly.offline import get_plotlyjs

from scperformer.adaptation.record import ModelRecord
from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of
from scperformer.config.steps import ReportConfig
from scperformer.labels.tree import NO_CALL
from scperformer.results import cell_map, figures, what_to_check
from scperformer.results import report_tables as tables
from scperformer.results.evaluate import Evaluation
from scperformer.results.pages import TEMPLATES, render_page
from scperformer.results.read_annotations import Annotated, Failed, cell_table, texts_of
from scperformer.results.what_to_check import Summary

SECTION_TABLES = ("composition", "curated", "confidence", "unknown", "markers")
NUM_FIRST_LABELS = 5  # largest labels of each section
ESCAPED = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@dataclass(kw_only=True)
class Report:
    """What a report shows: as a page, as its first screen for notebooks, and as tables."""

    page: str
    summary: str
    tables: dict[str, pd.DataFrame]
    drawn: cell_map.Drawn  # of the first section


@dataclass(kw_only=True)
class Section(tables.TissueGroup):
    """What the page shows of the samples of one tissue, or of a trained model."""

    suffix: str  # of ids on the page; "" for the first section
    cells: pd.DataFrame
    labels: dict[str, tables.Label]
    trust_groups: list[what_to_check.TrustGroup]
    drawn: cell_map.Drawn
    map: figures.Figure | None
    charts: list[figures.Figure]
    composition: tables.Table
    curated: tables.Table
    confidence: tables.Table
    unknown: tables.Table
    markers: tables.Table

    @property
    def num_cells(self) -> int:
        return len(self.cells)

    @property
    def num_unknown(self) -> int:
        return int(self.cells["unknown"].sum())

    @property
    def num_backed_off(self) -> int:
        """The cells whose call is a parent of their label, or unknown for a low confidence."""
        return sum(
            sample.record.tree.num_backed_off for sample in self.samples if sample.record.tree
        )

    @property
    def first_labels(self) -> list[tuple[tables.Label, int]]:
        """The largest labels with their numbers of cells."""
        sizes = self.cells["call"].value_counts()
        known = [label for name, label in self.labels.items() if name in sizes and name != NO_CALL]
        return [(label, int(sizes[label.name])) for label in known[:NUM_FIRST_LABELS]]

    @property
    def not_used(self) -> list[str]:
        """The labels of the model without cells."""
        called = set(self.cells["call"])
        return [
            name for name, label in self.labels.items() if label.in_model and name not in called
        ]


@dataclass(kw_only=True)
class Page:
    """What the templates of a report show."""

    key: str  # prefix of the annotation
    model: ModelRecord
    versions: dict[str, str]
    dates: list[str]  # of the first and the last annotation
    sections: list[Section]
    samples: list[Summary]
    failed: Sequence[Failed]
    cells: pd.DataFrame
    num_labels: int  # of the model
    num_used: int  # of these, with cells
    agreement: float | None  # with logistic regression
    group_key: str | None
    group_colours: dict[str, str]
    sample_key: str | None
    seed: int
    checks: list[str]
    cluster_notes: list[str]
    metrics: dict[str, Any] | None  # of an evaluation
    sample_table: tables.Table
    trust: tables.Table | None
    inputs: tables.Table
    scores: Sequence[tables.Table]
    figures: set[str]  # names
    data: str  # JSON for the HTML element `script`, which no text of a user can end
    scripts: dict[str, str]  # by their hashes: no others run


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
    # Several tissues share the cells that are drawn.
    cfg = replace(cfg, cells=max(cell_map.MIN_CELLS, cfg.cells // len(groups)))
    columns = tables.describing_columns(samples, cfg.group_key)
    values = sorted({value for name in columns[:1] for value in texts_of(samples, name)})
    colours = {value: colour_of(place) for place, value in enumerate(values)}
    shared = _Shared(cfg=cfg, columns=columns, evaluation=evaluation, colours=colours)
    sections = [_section(group, place, shared) for place, group in enumerate(groups)]
    page = _page(samples, failed, sections, shared)
    html, summary = (
        render_page(f"{name}.html.jinja", **vars(page)) for name in ("report", "summary")
    )
    return Report(page=html, summary=summary, tables=_as_frames(page), drawn=sections[0].drawn)


def _page(
    samples: Sequence[Annotated],
    failed: Sequence[Failed],
    sections: list[Section],
    shared: "_Shared",
) -> Page:
    evaluation = shared.evaluation
    cells = cell_table(samples)
    summaries = [tables.summarise(sample, cells) for sample in samples]
    labels = tables.order_labels(samples, evaluation)
    in_model = [label.name for label in labels if label.in_model]
    charts = [chart for section in sections for chart in section.charts]
    if evaluation is not None:
        evaluated = [label.name for label in labels if label.name in evaluation.confusion.index]
        confusion = evaluation.confusion.loc[evaluated, evaluated]
        charts.append(
            figures.confusion_map(confusion.loc[confusion.sum(axis=1) > 0, confusion.sum() > 0])
        )
    data = {
        "dark": figures.dark_colours(
            mark.colour for section in sections for mark in section.labels.values()
        ),
        "unknown": NO_CALL,
        "figures": charts,
        "maps": [section.map for section in sections if section.map],
    }
    scripts = [
        script.strip()
        for script in (get_plotlyjs(), (TEMPLATES / "report.js").read_text(encoding="utf-8"))
    ]
    described = {
        name: tables.groups_of(samples, name, cells["sample"].to_numpy(object))
        for name in shared.columns
    }
    dates = sorted(sample.record.run.date for sample in samples if sample.record.run.date)
    record = samples[0].record
    return Page(
        key=samples[0].key,
        model=record.model,
        versions=dict(sorted(record.versions.items())),
        dates=list(dict.fromkeys(dates[:1] + dates[-1:])),
        sections=sections,
        samples=summaries,
        failed=failed,
        cells=cells,
        num_labels=len(in_model),
        num_used=len(set(in_model) & set(cells["call"])),
        agreement=tables.agreement(cells),
        group_key=next(iter(shared.columns), None),
        group_colours=shared.colours,
        sample_key=shared.cfg.sample_key,
        seed=shared.cfg.seed,
        checks=[
            *_condition_checks(sections, shared.cfg),
            *what_to_check.things_to_check(summaries, evaluation),
        ],
        cluster_notes=what_to_check.cluster_notes(summaries),
        metrics=evaluation.metrics if evaluation else None,
        sample_table=tables.sample_table(summaries, failed, evaluation, described),
        trust=tables.trust_table(summaries),
        inputs=tables.input_table(summaries),
        scores=tables.score_tables(evaluation) if evaluation else (),
        figures={chart["name"] for chart in charts},
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).translate(ESCAPED),
        scripts={
            base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(): script
            for script in scripts
        },
    )


def _condition_checks(sections: Sequence[Section], cfg: ReportConfig) -> list[str]:
    """Return the calls that follow a column of the sample sheet, or the one that groups the samples."""
    checks = []
    for section in sections:
        samples = section.samples
        of_cell = tables.sample_of_cells(samples, section.cells, cfg.sample_key)
        conditions = tables.conditions_of(samples, of_cell, cfg.group_key)
        parents: dict[str, str] = {}
        for sample in samples:
            parents |= sample.parents
        checks += what_to_check.labels_of_conditions(
            section.cells["call"], conditions, of_cell, parents
        )
    return checks


@dataclass(kw_only=True)
class _Shared:
    """What the sections of a page share."""

    cfg: ReportConfig
    columns: list[str]  # of obs, that describe samples; the first groups them
    evaluation: Evaluation | None
    colours: dict[str, str]  # of the groups of samples


def _section(group: tables.TissueGroup, place: int, shared: _Shared) -> Section:
    """Return what the page shows of the samples of one tissue, the n-th of the page."""
    samples = group.samples
    cfg = shared.cfg
    cells = cell_table(samples)
    labels = tables.order_labels(samples, shared.evaluation)
    called = {label.name: label for label in labels if (cells["call"] == label.name).any()}
    drawn = cell_map.draw_cells(samples, cfg.cells, cfg.seed)
    markers, dots = _markers(drawn, cells, called)
    of_cell = tables.sample_of_cells(samples, cells, cfg.sample_key)
    group_key = shared.columns[0] if shared.columns else ""
    groups = tables.groups_of(samples, group_key, of_cell) if group_key else {}
    suffix = f"-{place + 1}" if place else ""
    composition = tables.composition_table(of_cell, cells, labels, group_key, groups)
    names = [row[0] for row in composition.rows]
    counts = np.array([row[-len(called) :] for row in composition.rows]).astype(np.int64)
    marks = {name: (label.colour, label.symbol) for name, label in called.items()}
    bars = figures.composition_bars(names, counts, marks, groups, shared.colours)
    charts = [
        bars,
        figures.confidence(cells, marks),
        *dots,
        *_dots_of_list(drawn, cells, called, samples),
    ]
    cell_colours = (
        None
        if drawn.xy is None
        else {"suffix": suffix} | _map(samples, cells, labels, drawn, shared)
    )
    section = Section(
        **vars(group),
        composition=composition,
        curated=tables.curated_table(samples),
        confidence=tables.confidence_table(cells, labels),
        unknown=tables.unknown_table(cells),
        markers=tables.marker_table(markers, cells),
        suffix=suffix,
        cells=cells,
        labels={label.name: label for label in labels},
        trust_groups=what_to_check.trust_groups(
            [tables.summarise(sample, cells) for sample in samples]
        ),
        drawn=drawn,
        map=cell_colours,
        charts=[chart | {"name": f"{chart['name']}{suffix}"} for chart in charts],
    )
    for name in SECTION_TABLES:
        getattr(section, name).id += suffix
    return section


def _markers(
    drawn: cell_map.Drawn, cells: pd.DataFrame, called: Iterable[str]
) -> tuple[dict[str, list[str]], list[figures.Figure]]:
    """Return the markers of each call with any, and their dot plot, if there are some."""
    if drawn.expression is None:
        return {}, []
    calls = cells["call"].to_numpy(object)[drawn.rows]
    of_calls = cell_map.find_markers(drawn.expression, calls)
    markers = {name: of_calls[name] for name in called if of_calls.get(name)}
    return markers, [figures.dots(markers, drawn.expression, calls)] if markers else []


def _dots_of_list(
    drawn: cell_map.Drawn, cells: pd.DataFrame, called: Iterable[str], samples: Sequence[Annotated]
) -> list[figures.Figure]:
    """Return the dot plot of the list of marker genes by which the model was made, if it was."""
    record = samples[0].record.markers
    if record is None or drawn.expression is None:
        return []
    genes = record.genes_of_labels
    of_call = {
        name: [gene for gene in genes.get(name, []) if gene in drawn.expression.var_names]
        for name in called
    }
    figure = figures.dots(of_call, drawn.expression, cells["call"].to_numpy(object)[drawn.rows])
    return [figure | {"name": "marker-list"}] if any(of_call.values()) else []


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
    columns = [
        figures.categories("Call", shown["call"], known, xy),
        figures.categories("Sample", shown["sample"]),
    ]
    truth_key = None if shared.evaluation is None else shared.evaluation.metrics["truth_key"]
    of_group = {value: (colour, "circle") for value, colour in shared.colours.items()}
    texts = dict.fromkeys(shared.columns, of_group)
    if truth_key is not None and all(truth_key in sample.obs for sample in samples):
        texts |= {truth_key: known}
    for key, marks in texts.items():
        values = pd.Series(texts_of(samples, key)[drawn.rows])
        columns.append(figures.categories("True label" if key == truth_key else key, values, marks))
    columns.append(figures.numbers("Confidence", shown["confidence"], figures.CONFIDENCE_STOPS))
    if "novelty" in shown:
        columns.append(figures.numbers("Novelty", shown["novelty"], figures.EXPRESSION_STOPS))
    if (shown["looks_like"] != "").any():
        columns.append(
            figures.categories("Looks like", shown["looks_like"].replace("", "its label"), known)
        )
    for level in _levels(samples):
        values = pd.Series(texts_of(samples, f"{samples[0].key}_{level}")[drawn.rows])
        columns.append(
            figures.categories(level.replace("level", "level ").capitalize(), values, known, xy)
        )
    for gene in dict.fromkeys(shared.cfg.genes):
        expressed = cell_map.expression_of(drawn, gene)
        columns.append(
            figures.numbers(
                gene, expressed, figures.EXPRESSION_STOPS, max(float(expressed.max()), 1.0)
            )
        )
    names = np.concatenate([sample.obs.index.astype(str) for sample in samples])[
        drawn.rows
    ].tolist()
    x, y = xy.astype(float).round(3).T.tolist()
    return {"x": x, "y": y, "cells": names, "columns": columns}


def _levels(samples: Sequence[Annotated]) -> list[str]:
    """Return the levels of the label tree that all samples have, level1, level2..., clusters and names by a person."""
    columns = [name.removeprefix(f"{samples[0].key}_") for name in map(str, samples[0].obs)]
    levels = [name for name in columns if re.fullmatch(r"level\d+|cluster|curated", name)]
    return [
        level
        for level in levels
        if all(f"{sample.key}_{level}" in sample.obs for sample in samples)
    ]


def _as_frames(page: Page) -> dict[str, pd.DataFrame]:
    """Return the tables of a page by their titles, joined over tissues."""
    shown = [
        (table, "")
        for table in (page.sample_table, page.trust, page.inputs, *page.scores)
        if table is not None
    ]
    shown += [
        (getattr(section, name), section.title)
        for name in SECTION_TABLES
        for section in page.sections
    ]
    frames: dict[str, list[pd.DataFrame]] = {}
    for table, tissue in shown:
        frame = pd.DataFrame(table.rows, columns=[title for title, _ in table.columns])
        frame = frame.loc[:, ~frame.columns.duplicated()]
        if tissue and len(page.sections) > 1:
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
        raise InputError(
            "other-samples",
            f"{evaluation.path or 'the evaluation'} evaluates {found}",
            expected,
            remedy,
        )
