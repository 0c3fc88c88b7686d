"""One HTML page about annotated files, with interactive figures and sortable tables; it needs no network."""

import base64
import hashlib
import importlib.util
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.outputs import new_file, require_absent
from scperformer.base.pictures import MIN_BIN_CALLS
from scperformer.config import ReportConfig
from scperformer.labels import NO_CALL, label_texts
from scperformer.model import branch_names, encoder_is_silent
from scperformer.reports import expression, figures, tables
from scperformer.reports.evaluate import Evaluation, read_evaluation
from scperformer.reports.pages import TEMPLATES, render_page
from scperformer.reports.read_annotations import Annotated, Failed, read_samples
from scperformer.reports.umap import MIN_CELLS, umap_coordinates

log = logging.getLogger(__name__)

MAX_CATEGORIES = 60  # a column with more values cannot colour the map
FLAGS = {"unknown": "Unknown", "doublet": "Likely doublet", "low_quality": "Low quality"}  # columns, and their titles


@dataclass(kw_only=True)
class Content:
    """What a page is about: samples, their cells, and the expression of these cells."""

    samples: Sequence[Annotated]
    failed: Sequence[Failed]
    evaluation: Evaluation | None
    labels: list[tables.Label]  # all labels, those with cells first
    num_used: int  # labels with cells
    cells: pd.DataFrame  # a row per cell of all samples, from `tables.all_cells`
    summaries: list[dict[str, Any]]  # a summary per sample, from `tables.summarise`
    genes: expression.GeneTable | None
    quality: dict[str, pd.DataFrame]  # quality of the cells, for each sample whose expression could be read

    @property
    def used_names(self) -> list[str]:
        """Names of the labels with cells."""
        return [label.name for label in self.labels[: self.num_used]]

    @cached_property
    def shown_genes(self) -> npt.NDArray[np.int64]:
        """Columns of `genes` in the dot plot and on the map."""
        return np.array([], dtype=np.int64) if self.genes is None else self.genes.shown(range(self.num_used))


def read_content(samples: Sequence[Annotated], failed: Sequence[Failed], evaluation: Evaluation | None) -> Content:
    """Summarise annotated samples, and read their expression."""
    labels = tables.order_labels(samples, evaluation)
    cells = tables.all_cells(samples, labels)
    num_used = cells["code"].nunique()
    model = expression.model_of(samples)
    plans: expression.Plans = {}
    profiles = {}
    for number, sample in enumerate(samples, start=1):
        log.info("reading the expression of %s (%d of %d)", sample.name, number, len(samples))
        codes = cells.loc[cells["sample"] == sample.name, "code"].to_numpy()
        profile = expression.read_profile(sample, codes, len(labels), model, plans)
        if profile is not None:
            profiles[sample.name] = profile
    return Content(
        samples=samples,
        failed=failed,
        evaluation=evaluation,
        labels=labels,
        num_used=num_used,
        cells=cells,
        summaries=[tables.summarise(sample, cells, labels) for sample in samples],
        genes=expression.combine(list(profiles.values()), range(num_used)),
        quality={name: profile.quality for name, profile in profiles.items()},
    )


def cell_map(content: Content, *, max_cells: int, seed: int) -> dict[str, Any] | None:
    """Return the UMAP and the properties of at most `max_cells` random cells of all samples; None without a UMAP."""
    samples = content.samples
    embeddings = [sample.embedding for sample in samples if sample.embedding is not None]
    assert len(embeddings) == len(samples), "samples are read with their embeddings"
    num_cells = len(content.cells)
    chosen = np.arange(num_cells)
    if num_cells > max_cells:
        chosen = np.sort(np.random.default_rng(seed).choice(num_cells, max_cells, replace=False))
    log.info("placing %s cells on the map", f"{len(chosen):,}")
    xy = umap_coordinates(np.concatenate(embeddings)[chosen], seed)
    if xy is None:
        return None
    low = xy.min(axis=0)
    span = np.maximum(np.ptp(xy, axis=0), 1e-6)
    cells = content.cells.iloc[chosen]
    ends = np.cumsum([0, *(len(sample.obs) for sample in samples)])
    rows = [chosen[(chosen >= start) & (chosen < end)] - start for start, end in pairwise(ends)]  # in each sample
    names = [sample.obs.index.astype(str)[drawn] for sample, drawn in zip(samples, rows, strict=True)]
    sample_codes = pd.Index([sample.name for sample in samples]).get_indexer(cells["sample"])
    return {
        "span": span.tolist(),
        "x": figures.packed((xy[:, 0] - low[0]) / span[0] * 65535, "u2"),
        "y": figures.packed((xy[:, 1] - low[1]) / span[1] * 65535, "u2"),
        "cells": np.concatenate(names).tolist(),
        "sample": figures.codes(sample_codes, len(samples)),
        "label": figures.codes(cells["code"].to_numpy(), len(content.labels)),
        "confidence": figures.shares(cells["confidence"].to_numpy()),
        "categories": _categories(content, chosen),
        "genes": _genes_on_map(content, rows),
    }


def _categories(content: Content, chosen: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return further columns that can colour the map, for the cells in the rows `chosen`.

    Each has a name, values (None: the labels of the page), and the code of each cell.
    """
    samples = content.samples
    categories: list[dict[str, Any]] = []
    for column, title in FLAGS.items():
        flags = [flag for sample in samples if (flag := sample.flag(column)) is not None]
        if len(flags) == len(samples):
            codes = figures.codes(np.concatenate(flags)[chosen].astype(np.uint8), 2)
            categories.append({"name": title, "values": ["no", "yes"], "codes": codes})

    names = pd.Index([label.name for label in content.labels])
    if "cluster_label" in content.cells:
        codes = figures.codes(names.get_indexer(content.cells["cluster_label"].iloc[chosen]), len(names))
        categories.append({"name": "Cluster label", "values": None, "codes": codes})

    cluster_keys = {str(sample.facts.get("clusters", {}).get("key", "")) for sample in samples}
    keys = {
        "Cluster": cluster_keys.pop() if len(cluster_keys) == 1 else "",
        "True label": "" if content.evaluation is None else str(content.evaluation.metrics["truth_key"]),
    }
    for title, key in keys.items():
        if not key or any(key not in sample.obs for sample in samples):
            continue
        texts = np.concatenate([label_texts(sample.obs[key]).fillna("nan") for sample in samples])[chosen]
        numbers, values = pd.factorize(texts, sort=True)
        if title == "True label" and set(values) <= set(names):
            codes = figures.codes(names.get_indexer(texts), len(names))
            categories.append({"name": title, "values": None, "codes": codes})
        elif len(values) <= MAX_CATEGORIES:
            codes = figures.codes(numbers, len(values))
            categories.append({"name": title, "values": values.tolist(), "codes": codes})
    return categories


def _genes_on_map(content: Content, rows: Sequence[npt.NDArray[np.int64]]) -> list[dict[str, Any]]:
    """Return name and expression of the genes that can colour the map; `rows` are the cells of each sample on it."""
    if content.genes is None or not len(content.shown_genes):
        return []
    genes = content.genes.genes[content.shown_genes]
    log.info("reading %d genes of the cells on the map", len(genes))
    ends = np.cumsum([0, *map(len, rows)])
    values = np.full((ends[-1], len(genes)), np.nan, dtype=np.float32)
    for sample, drawn, start in zip(content.samples, rows, ends, strict=False):
        if (sample_values := expression.gene_values(sample, genes, drawn)) is not None:
            values[start : start + len(drawn)] = sample_values
    return [{"name": str(gene), **figures.expression_levels(values[:, column])} for column, gene in enumerate(genes)]


def _figures(content: Content) -> list[figures.Figure]:
    """Return the figures of a page except the map; figures without content are left out."""
    used = content.used_names
    num_used = content.num_used
    colours = [label.colour for label in content.labels[:num_used]]
    counts = np.array([summary["counts"][:num_used] for summary in content.summaries])
    charts = [
        figures.composition([summary["name"] for summary in content.summaries], used, colours, counts),
        figures.confidence(content.cells, used, colours),
    ]
    genes = content.genes
    shown = content.shown_genes
    if genes is not None and len(shown):
        means = genes.means[:num_used, shown]
        charts.append(figures.dots(used, genes.genes[shown], means, genes.shares[:num_used, shown]))
    if content.quality:
        kinds = {sample.facts["input"]["kind"] for sample in content.samples if sample.name in content.quality}
        charts.append(figures.quality(content.quality, has_counts=kinds == {"counts"}))
    if curves := _calibration_curves(content.samples):
        charts.append(figures.reliability(curves, MIN_BIN_CALLS))
    if content.evaluation is not None:
        confusion = tables.confusion_table(content.evaluation, content.labels)
        true = [row[0] for row in confusion.rows]
        predicted = [title for title, _ in confusion.columns[2:]]
        charts.append(figures.confusion(true, predicted, np.array([row[2:] for row in confusion.rows])))
    return charts


def _calibration_curves(samples: Sequence[Annotated]) -> dict[str, Any]:
    """Return the calibration of held-out calls under each condition, with the names of its samples as key."""
    names: dict[str, list[str]] = {}
    bins = {}
    for sample in samples:
        if "calibration" in sample.facts:
            names.setdefault(sample.adapted, []).append(sample.name)
            bins[sample.adapted] = sample.facts["calibration"]["bins"]
    return {", ".join(names[condition]): bins[condition] for condition in names}


def _facts(content: Content) -> dict[str, Any]:
    """Return what the texts of a page say about the model, the samples and the cells, by the names in the template."""
    samples = content.samples
    cells = content.cells
    facts = samples[0].facts
    scales = samples[0].scales
    return {
        "model": facts["model"],
        "versions": dict(sorted(facts["versions"].items())),
        "key": samples[0].key,
        "samples": content.summaries,
        "failed": content.failed,
        "num_cells": len(cells),
        "num_unknown": int(cells["unknown"].sum()),
        "labels": {label.name: label for label in content.labels},
        "num_used": sum(label.name != NO_CALL for label in content.labels[: content.num_used]),
        "not_used": [label.name for label in content.labels[content.num_used :] if label.in_model],
        "threshold": tables.threshold(samples),
        "flag_reasons": tables.flag_reasons(samples),
        "agreement": tables.agreement(cells),
        "checks": tables.things_to_check(content.summaries, content.failed, content.evaluation),
        "median": float(cells["confidence"].median()),
        "levels": tables.levels(samples),
        "num_backed_off": sum(int(sample.facts.get("tree", {}).get("num_backed_off", 0)) for sample in samples),
        "has_contributions": content.genes is not None and content.genes.contributions is not None,
        "adapted": any(sample.adapted for sample in samples),
        "metrics": content.evaluation.metrics if content.evaluation else None,
        "scales": scales,
        "encoder": samples[0].encoder,
        "branches": branch_names(samples[0].encoder),
        "encoder_is_silent": encoder_is_silent(scales),
        "decides": any(summary["num_decided"] is not None for summary in content.summaries),
        "min_cells": MIN_CELLS,
        "several_models": len({sample.adapted for sample in samples}) > 1,
    }


def _tables(content: Content) -> dict[str, Any]:
    """Return the tables of a page by their names in the template; None or empty without content."""
    samples = content.samples
    cells = content.cells
    labels = content.labels
    summaries = content.summaries
    evaluation = content.evaluation
    genes = content.genes
    return {
        "sample_table": tables.sample_table(summaries, content.failed, evaluation),
        "composition": tables.composition_table(summaries, labels[: content.num_used]),
        "confidence": tables.confidence_table(cells, labels),
        "unknown": tables.unknown_table(samples, cells),
        "genes": tables.gene_tables(genes, labels, range(content.num_used)) if genes is not None else None,
        "quality": tables.quality_table(samples, content.quality) if content.quality else None,
        "trust": tables.trust_tables(summaries, samples),
        "scores": tables.score_tables(evaluation) if evaluation else [],
        "confusion": tables.confusion_table(evaluation, labels) if evaluation else None,
        "disagreements": tables.disagreement_table(cells),
        "models_tables": [table for sample in samples if (table := tables.models_table(sample)) is not None],
        "branch_scores": tables.branch_table(samples),
    }


def render(
    samples: Sequence[Annotated],
    failed: Sequence[Failed] = (),
    evaluation: Evaluation | None = None,
    *,
    title: str = "Cell-type annotation",
    max_cells: int = 50_000,
    seed: int = 0,
) -> str:
    """Return the HTML page about samples and their evaluation; the same input and seed give the same page."""
    content = read_content(samples, failed, evaluation)
    drawn = cell_map(content, max_cells=max_cells, seed=seed)
    data = {
        "labels": [{"name": label.name, "colour": label.colour, "symbol": label.symbol} for label in content.labels],
        "palette": figures.PALETTE,
        "symbols": figures.SYMBOLS,
        "samples": [sample.name for sample in samples],
        "confidence": figures.CONFIDENCE_STOPS,
        "expression": figures.EXPRESSION_STOPS,
        "figures": _figures(content),
        "map": drawn,
    }
    scripts = page_scripts()
    return render_page(
        "report.html.jinja",
        title=title,
        data=_json_for_script(data),
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        num_drawn=len(drawn["cells"]) if drawn else 0,
        seed=seed,
        **_facts(content),
        **_tables(content),
    )


def page_scripts() -> list[str]:
    """Return the scripts of the page: plotly.js from the package plotly, and report.js."""
    plotly = importlib.util.find_spec("plotly")
    assert plotly is not None, "plotly is installed with this package"
    library = Path(str(plotly.origin)).parent / "package_data" / "plotly.min.js"
    return [path.read_text(encoding="utf-8").strip() for path in (library, TEMPLATES / "report.js")]


def _json_for_script(content: Any) -> str:
    """Return JSON for an HTML element `script`, which no text of a user can end."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _require_same_samples(evaluation: Evaluation, samples: Sequence[Annotated], place: str) -> None:
    """Refuse an evaluation of other samples, or of annotations by another model."""
    names = [sample.name for sample in samples]
    remedy = "run 'scperformer evaluate' again on the same files"
    if others := [name for name in evaluation.metrics["samples"] if name not in names]:
        expected = f"an evaluation of {', '.join(names)} only"
        raise InputError(f"{place} evaluates '{others[0]}'", expected, remedy)
    if evaluation.metrics["model_hash"] != samples[0].facts["model"]["hash"]:
        expected = f"an evaluation of {samples[0].model_id}"
        raise InputError(f"{place} evaluates another model", expected, remedy)


def run_report(cfg: ReportConfig, evaluation: Evaluation | None = None, sample: Annotated | None = None) -> Path:
    """Write one HTML page about annotated files, and return its path.

    A file that cannot be read, or is not annotated, has a row with the reason, unless all files are like this.

    Parameters
    ----------
    evaluation, sample
        In memory, in place of the folder and the files that the options name.

    Raises
    ------
    InputError
        The output exists, no file is annotated, or the evaluation is of other files.
    """
    started = time.perf_counter()
    output = Path(cfg.output) if cfg.output else Path(cfg.inputs[0]).parent / "report.html"
    require_absent(output, cfg.overwrite)
    samples = [sample] if sample else []
    failed = list[Failed]()
    if sample is None:
        log.info("reading %d annotated file%s", len(cfg.inputs), "" if len(cfg.inputs) == 1 else "s")
        samples, failed = read_samples(cfg.inputs, cfg.key_added)
    if evaluation is None and cfg.evaluation:
        evaluation = read_evaluation(cfg.evaluation)
    if evaluation is not None:
        _require_same_samples(evaluation, samples, cfg.evaluation or "the evaluation")
    page = render(samples, failed, evaluation, title=cfg.title, max_cells=cfg.max_cells, seed=cfg.seed)
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    num_cells = sum(len(sample.obs) for sample in samples)
    megabytes = output.stat().st_size / 1e6
    cells = f"{num_cells:,} cells in {len(samples)} sample{'s' if len(samples) > 1 else ''}"
    log.info("report on %s: %s (%.1f MB, %.0f s)", cells, output, megabytes, time.perf_counter() - started)
    return output
