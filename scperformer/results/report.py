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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.outputs import new_file, require_absent
from scperformer.base.pictures import MIN_BIN_CALLS
from scperformer.base.progress import progress
from scperformer.config.steps import ReportConfig
from scperformer.labels.ontology_columns import NO_CALL
from scperformer.model.saved_model import branch_names, encoder_is_silent
from scperformer.results import cell_map, cluster_labels as clusters, composition, expression, figures, layout, report_tables as tables, what_to_check
from scperformer.results.evaluate import Evaluation, read_evaluation
from scperformer.results.pages import TEMPLATES, render_page
from scperformer.results.read_annotations import Annotated, Failed, read_samples

log = logging.getLogger(__name__)

MANY_CELLS = 50_000  # of more cells, the map first shows hexagons


@dataclass(kw_only=True)
class Content:
    """What a page is about: samples, their cells, and the expression of these cells."""

    cfg: ReportConfig
    samples: Sequence[Annotated]
    failed: Sequence[Failed]
    evaluation: Evaluation | None
    labels: list[tables.Label]  # all labels, those with cells first
    num_used: int  # labels with cells
    cells: pd.DataFrame  # a row per cell of all samples, from `tables.all_cells`
    summaries: list[dict[str, Any]]  # a summary per sample, from `tables.summarise`
    genes: expression.GeneTable | None
    quality: dict[str, pd.DataFrame]  # quality of the cells, for each sample whose expression could be read
    composition: dict[str, Any]  # from `composition.composition_data`
    drawn: cell_map.Drawn
    clusters: clusters.Clusters | None

    @property
    def used_names(self) -> list[str]:
        """Names of the labels with cells."""
        return [label.name for label in self.labels[: self.num_used]]

    @cached_property
    def known(self) -> list[int]:
        """Places of the labels with cells, without unknown."""
        return [place for place in range(self.num_used) if self.labels[place].name != NO_CALL]

    @property
    def final(self) -> npt.NDArray[np.object_]:
        """The calls of the cells on the map."""
        names = np.array([label.name for label in self.labels], dtype=object)
        return names[self.cells["code"].to_numpy()[self.drawn.chosen]]

    @property
    def num_drawn(self) -> int:
        """The number of cells on the map; 0 without a map."""
        return 0 if self.drawn.layout is None else len(self.drawn.chosen)


def read_content(
    samples: Sequence[Annotated], failed: Sequence[Failed], evaluation: Evaluation | None, cfg: ReportConfig
) -> Content:
    """Summarise annotated samples, read their expression, and place their cells on the map."""
    labels = tables.order_labels(samples, evaluation)
    cells = tables.all_cells(samples, labels)
    num_used = cells["code"].nunique()
    of_cell = composition.sample_of_cells(samples, cells, cfg.sample_key)
    groups = composition.group_columns(samples, of_cell, list(dict.fromkeys(of_cell.tolist())), cfg.group_by)
    model = expression.model_of(samples)
    plans: expression.Plans = {}
    profiles: list[expression.LabelProfile] = []
    quality = {}
    log.info("reading the expression of %d sample%s", len(samples), "s" if len(samples) > 1 else "")
    with progress("reading the expression", total=len(samples), unit="samples") as shown:
        for sample in samples:
            codes = cells.loc[cells["sample"] == sample.name, "code"].to_numpy()
            profile = expression.read_profile(sample, codes, len(labels), model, plans)
            if profile is not None:
                quality[sample.name] = profile.quality
                profiles = expression.merged([*profiles, profile])
            shown.update()
    known = [place for place in range(num_used) if labels[place].name != NO_CALL]
    genes = expression.combine(profiles, known, all_genes=cfg.all_genes)
    shown_genes = pd.Index([], dtype=object) if genes is None else genes.genes[genes.shown(known)]
    drawn = cell_map.draw(
        samples,
        [profile.genes for profile in profiles],
        shown_genes,
        all_read=len(quality) == len(samples),
        how=cfg.layout,
        max_cells=cfg.max_cells,
        seed=cfg.seed,
    )
    found = clusters.find_clusters(samples, drawn, cfg.cluster_key)
    if found is not None and drawn.layout is not None:
        in_cells = np.full(len(cells), "", dtype=object)
        in_cells[drawn.chosen] = np.array(found.names, dtype=object)[found.codes]
        cells["cluster"] = in_cells
    return Content(
        cfg=cfg,
        samples=samples,
        failed=failed,
        evaluation=evaluation,
        labels=labels,
        num_used=num_used,
        cells=cells,
        summaries=[tables.summarise(sample, cells, labels) for sample in samples],
        genes=genes,
        quality=quality,
        composition=composition.composition_data(samples, cells, labels, of_cell, groups),
        drawn=drawn,
        clusters=found,
    )


def _map(content: Content) -> dict[str, Any] | None:
    """Return the map as plain data; None without a map."""
    if content.drawn.layout is None:
        return None
    samples = content.samples
    truth_key = None if content.evaluation is None else str(content.evaluation.metrics["truth_key"])
    names = [label.name for label in content.labels]
    columns = cell_map.map_columns(samples, content.cells, names, content.quality, content.drawn, truth_key)
    pieces = [sample.obs.index.astype(str)[rows] for sample, rows in zip(samples, content.drawn.rows, strict=True)]
    as_hexagons = len(content.cells) > MANY_CELLS
    return cell_map.map_data(content.drawn, columns, np.concatenate(pieces).tolist(), as_hexagons=as_hexagons)


def _figures(content: Content) -> list[figures.Figure]:
    """Return the figures of a page except the map and the composition; figures without content are left out."""
    used = content.used_names
    colours = [label.colour for label in content.labels[: content.num_used]]
    charts = [figures.confidence(content.cells, used, colours)]
    novelty = [sample.column("novelty") for sample in content.samples if f"{sample.key}_novelty" in sample.obs]
    values = pd.concat(novelty).to_numpy(float) if novelty else np.array([])
    if np.isfinite(values).any():
        recorded = {float(sample.facts.get("novelty", {}).get("false_alarms", 0)) for sample in content.samples}
        limits = sorted(1 - share for share in recorded if share > 0)
        charts.append(figures.novelty(values[np.isfinite(values)], limits))
    genes = content.genes
    shown = np.array([], dtype=np.int64) if genes is None else genes.shown(content.known)
    if genes is not None and len(shown):
        names = [content.labels[place].name for place in content.known]
        means = genes.means[content.known][:, shown]
        charts.append(figures.dots(names, genes.genes[shown], means, genes.shares[content.known][:, shown]))
    if content.quality:
        kinds = {sample.facts["input"]["kind"] for sample in content.samples if sample.name in content.quality}
        charts.append(figures.quality(content.quality, has_counts=kinds == {"counts"}))
    if curves := _calibration_curves(content.samples):
        charts.append(figures.reliability(curves, MIN_BIN_CALLS))
    if content.evaluation is not None:
        confusion = tables.confusion_table(content.evaluation, content.labels)
        true = [row[0] for row in confusion.rows]
        predicted = [title for title, _ in confusion.columns[2:]]
        counts = np.array([row[2:] for row in confusion.rows])
        charts.append(figures.heat_map("confusion-matrix", true, predicted, counts))
    if content.clusters is not None:
        names, called, counts = clusters.cluster_counts(content.clusters, content.final, used)
        charts.append(figures.heat_map("clusters", names, called, counts))
    if "baseline" in content.cells and (content.cells["label"] != content.cells["baseline"]).any():
        counts = pd.crosstab(content.cells["label"], content.cells["baseline"])
        order = [label.name for label in content.labels]
        counts = counts.reindex(index=[name for name in order if name in counts.index])
        counts = counts.reindex(columns=[name for name in order if name in counts.columns])
        texts = (list(counts.index), list(counts.columns), counts.to_numpy())
        charts.append(figures.heat_map("disagreements", *texts, "by the model,"))
    return charts


def _calibration_curves(samples: Sequence[Annotated]) -> dict[str, Any]:
    """Return the calibration of held-out calls under each condition, with the names of its samples as key."""
    names: dict[str, list[str]] = {}
    bins = {}
    for sample in samples:
        if "calibration" in sample.facts:
            names.setdefault(sample.adapted, []).append(sample.name)
            bins[sample.adapted] = sample.facts["calibration"]["bins"]
    return {listed(names[condition]): bins[condition] for condition in names}


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
        "num_used": sum(label.in_model for label in content.labels[: content.num_used]),
        "not_used": [label.name for label in content.labels[content.num_used :] if label.in_model],
        "first_labels": _first_labels(content),
        "trust_groups": what_to_check.trust_groups(content.summaries),
        "threshold": tables.threshold(samples),
        "flag_reasons": tables.flag_reasons(samples),
        "agreement": tables.agreement(cells),
        "checks": _checks(content),
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
        "min_cells": layout.MIN_CELLS,
        "num_drawn": content.num_drawn,
        "map_source": None if content.drawn.layout is None else content.drawn.layout.source,
        "max_fitted": layout.MAX_FITTED,
        "cluster_source": None if content.clusters is None else content.clusters.source,
        "has_novelty": any(f"{sample.key}_novelty" in sample.obs for sample in samples),
        "num_compared": len(content.composition["samples"]),
        "sample_key": content.cfg.sample_key,
        "group_names": list(content.composition["groups"]),
        "runs": tables.runs(samples),
        "max_detailed": tables.MAX_DETAILED,
    }


def _checks(content: Content) -> list[str]:
    """Return what to check before the labels are used."""
    checks = what_to_check.things_to_check(content.summaries, content.evaluation)
    if content.clusters is not None:
        unknown = content.cells["unknown"].to_numpy(bool)[content.drawn.chosen]
        checks += what_to_check.clusters_to_check(content.clusters, unknown)
    return checks


def _first_labels(content: Content) -> list[dict[str, Any]]:
    """Return the most frequent calls without unknown: their labels, cells, and shares of all cells."""
    codes = content.cells["code"].value_counts()
    first = [place for place in content.known if place in codes.index][: tables.NUM_FIRST_LABELS]
    num_cells = len(content.cells)
    return [
        {"label": content.labels[place], "num": int(codes[place]), "share": int(codes[place]) / num_cells}
        for place in first
    ]


def _tables(content: Content) -> dict[str, Any]:
    """Return the tables of a page by their names in the template; None or empty without content."""
    samples = content.samples
    cells = content.cells
    labels = content.labels
    summaries = content.summaries
    evaluation = content.evaluation
    genes = content.genes
    found = content.clusters
    cluster_table = None
    if found is not None:
        markers = clusters.cluster_markers(found, content.drawn, all_genes=content.cfg.all_genes)
        cluster_table = clusters.cluster_table(found, cells.iloc[content.drawn.chosen], content.final, markers)
    return {
        "sample_table": tables.sample_table(summaries, content.failed, evaluation),
        "composition": tables.composition_tables(content.composition),
        "group_tables": composition.group_tables(content.composition),
        "confidence": tables.confidence_table(cells, labels),
        "unknown": tables.unknown_table(samples, cells),
        "clusters": cluster_table,
        "genes": tables.gene_tables(genes, labels, content.known) if genes is not None else None,
        "quality": tables.quality_table(samples, content.quality) if content.quality else None,
        "doublets": tables.doublet_table(samples, cells, labels),
        "trust": tables.trust_tables(summaries, samples),
        "scores": tables.score_tables(evaluation) if evaluation else [],
        "confusion": tables.confusion_table(evaluation, labels) if evaluation else None,
        "disagreements": tables.disagreement_table(cells),
        "models_tables": [table for sample in samples if (table := tables.models_table(sample)) is not None],
        "branch_scores": tables.branch_table(samples),
        "inputs": tables.input_table(summaries),
    }


def render(
    samples: Sequence[Annotated],
    failed: Sequence[Failed] = (),
    evaluation: Evaluation | None = None,
    cfg: ReportConfig | None = None,
) -> tuple[str, str]:
    """Return the HTML page about samples and their evaluation, and its first screen, for notebooks.

    The same input and options give the same page.
    """
    cfg = cfg or ReportConfig(inputs=[str(sample.path) for sample in samples])
    content = read_content(samples, failed, evaluation, cfg)
    data = {
        "labels": [{"name": label.name, "colour": label.colour, "symbol": label.symbol} for label in content.labels],
        "palette": figures.PALETTE,
        "symbols": figures.SYMBOLS,
        "unknown": NO_CALL,
        "confidence": figures.CONFIDENCE_STOPS,
        "expression": figures.EXPRESSION_STOPS,
        "figures": _figures(content),
        "composition": content.composition,
        "map": _map(content),
    }
    scripts = page_scripts()
    facts = _facts(content)
    page = render_page(
        "report.html.jinja",
        title=cfg.title,
        data=_json_for_script(data),
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        seed=cfg.seed,
        **facts,
        **_tables(content),
    )
    return page, render_page("summary.html.jinja", **facts)


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


def run_report(cfg: ReportConfig) -> Path:
    """Write one HTML page about annotated files, and return its path; errors as `make_report`."""
    return make_report(cfg)[0]


def make_report(
    cfg: ReportConfig, evaluation: Evaluation | None = None, sample: Annotated | None = None
) -> tuple[Path, str]:
    """Write one HTML page about annotated files, and return its path and the HTML of its first screen.

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
    page, summary = render(samples, failed, evaluation, cfg)
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    num_cells = sum(len(sample.obs) for sample in samples)
    megabytes = output.stat().st_size / 1e6
    cells = f"{num_cells:,} cells in {len(samples)} sample{'s' if len(samples) > 1 else ''}"
    log.info("report on %s: %s (%.1f MB, %.0f s)", cells, output, megabytes, time.perf_counter() - started)
    return output, summary
