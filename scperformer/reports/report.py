"""One self-contained HTML page about annotated files, without scripts and external resources."""

import base64
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from scperformer.config import ReportConfig
from scperformer.errors import InputError
from scperformer.model import BRANCHES, encoder_is_silent
from scperformer.outputs import new_file, require_absent
from scperformer.pictures import draw_reliability
from scperformer.reports import summary
from scperformer.reports.annotated import Annotated, read_annotated
from scperformer.reports.evaluate import Evaluation, read_evaluation
from scperformer.reports.figures import CONFIDENCE_STOPS, MIN_CELLS, draw_confidence, draw_labels, umap_coordinates

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"
KINDS = {"linear": "linear values that are not counts (such as TPM)", "log1p": "log-normalised values"}


def draw_umap(samples: Sequence[Annotated], cells: pd.DataFrame, max_cells: int, seed: int) -> dict[str, Any] | None:
    """UMAPs of at most `max_cells` random cells of all samples, as PNG in base64; None for too few cells."""
    embeddings = [sample.embedding for sample in samples if sample.embedding is not None]
    assert len(embeddings) == len(samples), "samples are read with embedding=True"
    chosen = np.arange(len(cells))
    if len(cells) > max_cells:
        chosen = np.sort(np.random.default_rng(seed).choice(len(cells), max_cells, replace=False))
    log.info("computing the UMAP of %s cells", f"{len(chosen):,}")
    xy = umap_coordinates(np.concatenate(embeddings)[chosen], seed)
    if xy is None:
        return None
    drawn = cells.iloc[chosen]
    pictures = {"by_label": draw_labels(xy, drawn["code"].to_numpy())}
    pictures["by_confidence"] = draw_confidence(xy, drawn["confidence"].to_numpy())
    encoded = {name: base64.b64encode(picture).decode("ascii") for name, picture in pictures.items()}
    return {**encoded, "num_cells": len(drawn), "num_all": len(cells)}


def draw_calibration(rows: Sequence[dict[str, Any]]) -> str | None:
    """The reliability diagram of all conditions of the samples, as PNG in base64; None without evidence."""
    curves = {row["adapted"]: row["calibration"]["bins"] for row in rows}
    numbers = {key: [str(row["number"]) for row in rows if row["adapted"] == key] for key in curves}
    named = {f"sample {', '.join(numbers[key])}": bins for key, bins in curves.items()}
    return base64.b64encode(draw_reliability(named)).decode("ascii") if named else None


def _percent(share: float) -> str:
    """A share as text; a share above 0 is never shown as 0.0%."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _score(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _expression(facts: dict[str, Any]) -> str:
    """The place and kind of the values that were used, in words."""
    source, kind, total = str(facts["source"]), str(facts["kind"]), float(facts["total"])
    place = {"X": "X", "raw": ".raw"}.get(source, f"layer {source.removeprefix('layers/')}")
    text = f"{KINDS.get(kind, kind)} in {place}"
    if kind != "log1p":
        return text
    return text + (", total per cell not recorded" if math.isnan(total) else f", {total:,.0f} counts per cell")


def render_page(template: str, **content: Any) -> str:
    """The HTML of a template of this package."""
    # Autoescape: labels, genes and file names are user data.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.loader, environment.lstrip_blocks = jinja2.FileSystemLoader(TEMPLATES), True
    environment.filters |= {
        "count": lambda value: f"{int(value):,}",
        "percent": _percent,
        "score": _score,
        "file_name": lambda path: Path(str(path)).name,
        "expression": _expression,
    }
    return environment.get_template(template).render(**content)


def render(
    samples: Sequence[Annotated],
    evaluation: Evaluation | None = None,
    *,
    title: str = "Cell-type annotation",
    max_cells: int = 20_000,
    seed: int = 0,
) -> str:
    """The HTML about samples that were read with their embedding, and their evaluation; depends on the seed alone."""
    labels = summary.order_labels(samples, evaluation)
    cells = summary.all_cells(samples, labels)
    summaries = [summary.summarise(sample, cells, labels) for sample in samples]
    trust = summary.trust_rows(summaries, samples)
    facts = samples[0].facts
    scales = facts["model"].get("scales", {})  # files of the first versions lack them
    num_used = cells["code"].nunique()  # labels are sorted by frequency: those with cells come first
    return render_page(
        "report.html.jinja",
        title=title,
        model=facts["model"],
        versions=facts["versions"],
        key=samples[0].key,
        samples=summaries,
        num_cells=len(cells),
        num_unknown=int(cells["unknown"].sum()),
        used=labels[:num_used],
        not_used=[label for label in labels[num_used:] if label.number],
        threshold=summary.threshold(samples[0]),
        flag_reasons=summary.flag_reasons(samples[0]),
        trust=trust,
        reliability=draw_calibration(trust),
        agreement=float((cells["label"] == cells["baseline"]).mean()),
        checks=summary.things_to_check(summaries, evaluation),
        totals=np.bincount(cells["code"], minlength=len(labels)).tolist(),
        confidence=summary.confidence_rows(cells, labels),
        median=float(cells["confidence"].median()),
        histogram=summary.histogram(cells),
        levels=summary.levels(samples),
        num_backed_off=sum(int(sample.facts.get("tree", {}).get("num_backed_off", 0)) for sample in samples),
        disagreements=summary.disagreements(cells, labels),
        umap=draw_umap(samples, cells, max_cells, seed),
        scales=scales,
        branches=BRANCHES,
        encoder_is_silent=encoder_is_silent(scales),
        gradient=f"linear-gradient(to right, {', '.join(CONFIDENCE_STOPS)})",
        evaluation=summary.evaluation_content(evaluation, labels) if evaluation else None,
        min_cells=MIN_CELLS,
        seed=seed,
        several_models=len({sample.adapted for sample in samples}) > 1,
    )


def run_report(cfg: ReportConfig) -> Path:
    """Write one HTML page about annotated files, and return its path."""
    started = time.perf_counter()
    output = Path(cfg.output) if cfg.output else Path(cfg.inputs[0]).parent / "report.html"
    require_absent(output, cfg.overwrite)
    samples = read_annotated(cfg.inputs, cfg.key_added, embedding=True)
    evaluation = read_evaluation(cfg.evaluation) if cfg.evaluation else None
    if evaluation is not None:
        names = [sample.name for sample in samples]
        others = [name for name in evaluation.metrics["samples"] if name not in names]
        remedy = "run 'scperformer evaluate' again on the same files"
        if others:
            expected = f"an evaluation of {', '.join(names)} only"
            raise InputError(f"{cfg.evaluation} evaluates '{others[0]}'", expected, remedy)
        if evaluation.metrics["model_hash"] != samples[0].facts["model"]["hash"]:
            expected = f"an evaluation of {samples[0].model_id}"
            raise InputError(f"{cfg.evaluation} evaluates another model", expected, remedy)
    page = render(samples, evaluation, title=cfg.title, max_cells=cfg.max_cells, seed=cfg.seed)
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    num_cells, megabytes = sum(len(sample.obs) for sample in samples), output.stat().st_size / 1e6
    content = f"{num_cells:,} cells in {len(samples)} sample{'s' if len(samples) > 1 else ''}"
    log.info("report on %s: %s (%.1f MB, %.0f s)", content, output, megabytes, time.perf_counter() - started)
    return output
