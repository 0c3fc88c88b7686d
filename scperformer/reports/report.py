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
from scperformer.reports.annotated import Annotated, read_annotated
from scperformer.reports.evaluate import Evaluation, read_evaluation
from scperformer.reports.figures import MIN_CELLS, confidence_gradient, draw_confidence, draw_labels, umap_coordinates
from scperformer.reports.summary import (
    all_cells,
    confidence_rows,
    disagreements,
    evaluation_content,
    histogram,
    order_labels,
    summarise,
    things_to_check,
    threshold,
)

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"
KINDS = {
    "counts": "counts",
    "linear": "linear values that are not counts (such as TPM)",
    "log1p": "log-normalised values",
}


def require_same_run(samples: Sequence[Annotated], evaluation: Evaluation, folder: str) -> None:
    """Raise an InputError unless the evaluation is of these samples, annotated by the same model."""
    names = [sample.name for sample in samples]
    others = [name for name in evaluation.metrics["samples"] if name not in names]
    remedy = "run 'scperformer evaluate' again on the same files"
    if others:
        raise InputError(f"{folder} evaluates '{others[0]}'", f"an evaluation of {', '.join(names)} only", remedy)
    if evaluation.metrics["model_hash"] != samples[0].facts["model"]["hash"]:
        raise InputError(f"{folder} evaluates another model", f"an evaluation of {samples[0].model_id}", remedy)


def draw_umap(samples: Sequence[Annotated], cells: pd.DataFrame, max_cells: int, seed: int) -> dict[str, Any] | None:
    """Draw a UMAP of the cells of all samples, at most `max_cells` random ones; None if there are too few cells.

    Returns
    -------
    by_label, by_confidence: pictures as base64 PNG; num_cells: cells drawn; num_all: all cells.
    """
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
    by_label = draw_labels(xy, drawn["code"].to_numpy())
    by_confidence = draw_confidence(xy, drawn["confidence"].to_numpy())
    pictures = {"by_label": by_label, "by_confidence": by_confidence}
    encoded = {name: base64.b64encode(picture).decode("ascii") for name, picture in pictures.items()}
    return {**encoded, "num_cells": len(drawn), "num_all": len(cells)}


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


def render(
    samples: Sequence[Annotated],
    evaluation: Evaluation | None = None,
    *,
    title: str = "Cell-type annotation",
    max_cells: int = 20_000,
    seed: int = 0,
) -> str:
    """Return the page about annotated samples; the same input and seed give the same text.

    Parameters
    ----------
    samples
        As `read_annotated(..., embedding=True)` returns them.
    evaluation
        Scores of the same samples against the truth.
    max_cells
        Cells in the UMAP; if there are more, a random subset is drawn.

    Returns
    -------
    HTML; all labels, genes, file and sample names in it are escaped.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,  # labels, genes and file names are user data
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{int(value):,}",
        "percent": _percent,
        "score": _score,
        "file_name": lambda path: Path(str(path)).name,
        "expression": _expression,
    }
    labels = order_labels(samples, evaluation)
    cells = all_cells(samples, labels)
    summaries = [summarise(sample, cells, labels) for sample in samples]
    facts = samples[0].facts
    scales = facts["model"].get("scales", {})  # files of the first versions lack them
    num_used = cells["code"].nunique()  # labels are sorted by frequency: those with cells come first
    return environment.get_template("report.html.jinja").render(
        title=title,
        model=facts["model"],
        versions=facts["versions"],
        key=samples[0].key,
        samples=summaries,
        num_cells=len(cells),
        num_unknown=int(cells["unknown"].sum()),
        used=labels[:num_used],
        not_used=[label for label in labels[num_used:] if label.number],
        threshold=threshold(samples[0]),
        agreement=float((cells["label"] == cells["baseline"]).mean()),
        checks=things_to_check(summaries, evaluation),
        totals=np.bincount(cells["code"], minlength=len(labels)).tolist(),
        confidence=confidence_rows(cells, labels),
        median=float(cells["confidence"].median()),
        histogram=histogram(cells),
        disagreements=disagreements(cells, labels),
        umap=draw_umap(samples, cells, max_cells, seed),
        scales=scales,
        branches=BRANCHES,
        encoder_is_silent=encoder_is_silent(scales),
        gradient=confidence_gradient(),
        evaluation=evaluation_content(evaluation, labels) if evaluation else None,
        min_cells=MIN_CELLS,
        seed=seed,
    )


def run_report(cfg: ReportConfig) -> Path:
    """Write one HTML page about annotated files.

    Returns
    -------
    The page.

    Raises
    ------
    InputError
        A file is not annotated, the files are of different models, the evaluation is of other files, or the
        output exists.
    """
    started = time.perf_counter()
    output = Path(cfg.output) if cfg.output else Path(cfg.inputs[0]).parent / "report.html"
    require_absent(output, cfg.overwrite)
    samples = read_annotated(cfg.inputs, cfg.key_added, embedding=True)
    evaluation = read_evaluation(cfg.evaluation) if cfg.evaluation else None
    if evaluation is not None:
        require_same_run(samples, evaluation, str(cfg.evaluation))
    page = render(samples, evaluation, title=cfg.title, max_cells=cfg.max_cells, seed=cfg.seed)
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    log.info(
        "report on %s cells in %d sample%s: %s (%.1f MB, %.0f s)",
        f"{sum(len(sample.obs) for sample in samples):,}",
        len(samples),
        "s" if len(samples) > 1 else "",
        output,
        output.stat().st_size / 1e6,
        time.perf_counter() - started,
    )
    return output
