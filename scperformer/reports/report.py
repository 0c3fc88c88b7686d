"""One self-contained HTML page about annotated files: no script, nothing loaded from anywhere."""

import base64
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from scperformer.config import ReportConfig
from scperformer.errors import InputError
from scperformer.model import BRANCHES, encoder_is_silent
from scperformer.outputs import new_file, require_absent
from scperformer.reports.annotated import Annotated, model_id, read_annotated
from scperformer.reports.evaluate import Evaluation, read_evaluation
from scperformer.reports.figures import MIN_CELLS, confidence_gradient, draw_confidence, draw_labels, umap_coordinates
from scperformer.reports.summary import (
    Label,
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

KINDS = {
    "counts": "counts",
    "linear": "linear values that are not counts (such as TPM)",
    "log1p": "log-normalised values",
}


@dataclass(kw_only=True)
class Map:
    """The two pictures of the embedding, as base64 PNG."""

    by_label: str
    by_confidence: str
    num_cells: int  # drawn
    num_all: int


def draw_map(samples: Sequence[Annotated], labels: Sequence[Label], max_cells: int, seed: int) -> Map | None:
    """UMAP of all samples together, at most `max_cells` cells drawn at random; None for too few cells."""
    embedding = np.concatenate([_embedding(sample) for sample in samples])
    cells = all_cells(samples, labels)
    chosen = np.arange(len(cells))
    if len(cells) > max_cells:
        chosen = np.sort(np.random.default_rng(seed).choice(len(cells), max_cells, replace=False))
    log.info("drawing the map of %s cells", f"{len(chosen):,}")
    xy = umap_coordinates(embedding[chosen], seed)
    if xy is None:
        return None
    drawn = cells.iloc[chosen]
    pictures = (
        draw_labels(xy, drawn["code"].to_numpy()),
        draw_confidence(xy, drawn["confidence"].to_numpy()),
    )
    by_label, by_confidence = (base64.b64encode(picture).decode("ascii") for picture in pictures)
    return Map(by_label=by_label, by_confidence=by_confidence, num_cells=len(drawn), num_all=len(cells))


def _embedding(sample: Annotated) -> np.ndarray:
    if sample.embedding is None:
        raise InputError(f"no embedding of {sample.path}", "one", "read it with embedding=True")
    return sample.embedding


def require_same_run(samples: Sequence[Annotated], evaluation: Evaluation, folder: str) -> None:
    """InputError unless the evaluation is of these samples as they are now."""
    names = {sample.name: len(sample.obs) for sample in samples}
    others = [name for name in evaluation.metrics["samples"] if name not in names]
    remedy = "run 'scperformer evaluate' again on the same files"
    if others:
        raise InputError(f"{folder} is an evaluation of '{others[0]}'", f"one of {', '.join(names)} only", remedy)
    if evaluation.metrics["model_hash"] != samples[0].facts["model"]["hash"]:
        raise InputError(f"{folder} is an evaluation of another model", f"one of {model_id(samples[0])}", remedy)


def render(
    samples: Sequence[Annotated],
    evaluation: Evaluation | None = None,
    *,
    title: str = "Cell-type annotation",
    max_cells: int = 20_000,
    seed: int = 0,
) -> str:
    """The page about annotated samples; the same input and seed give the same text.

    Parameters
    ----------
    samples
        As `read_annotated(..., embedding=True)` returns them.
    evaluation
        Of the same samples.
    max_cells
        Cells drawn in the map; more are subsampled.

    Returns
    -------
    HTML; every label, gene, file and sample name in it is escaped.
    """
    labels = order_labels(samples, evaluation)
    summaries = [summarise(sample, labels) for sample in samples]
    cells = all_cells(samples, labels)
    names = cells["code"].map(dict(enumerate(label.name for label in labels)))
    scales = samples[0].facts["model"].get("scales", {})  # files of the first models lack it
    num_used = cells["code"].nunique()  # labels are sorted by frequency: these come first
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            title=title,
            model=samples[0].facts["model"],
            versions=samples[0].facts["versions"],
            key=samples[0].key,
            samples=summaries,
            num_cells=len(cells),
            num_unknown=int(cells["unknown"].sum()),
            used=labels[:num_used],
            not_used=[label for label in labels[num_used:] if label.number],
            threshold=threshold(samples[0]),
            agreement=float((names == cells["baseline"]).mean()),
            checks=things_to_check(summaries, evaluation),
            totals=np.bincount(cells["code"], minlength=len(labels)).tolist(),
            confidence=confidence_rows(cells, labels),
            median=float(cells["confidence"].median()),
            histogram=histogram(cells),
            disagreements=disagreements(cells, labels),
            map=draw_map(samples, labels, max_cells, seed),
            scales=scales,
            branches=BRANCHES,
            encoder_is_silent=encoder_is_silent(scales),
            gradient=confidence_gradient(),
            evaluation=evaluation_content(evaluation, labels) if evaluation else None,
            min_cells=MIN_CELLS,
            seed=seed,
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # labels, genes and file names are user data
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{int(value):,}",
        "percent": _percent,
        "score": lambda value: "–" if _is_missing(value) else f"{value:.3f}",
        "file_name": lambda path: Path(str(path)).name,
        "expression": _expression,
    }
    return environment


def _is_missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _percent(share: float, digits: int = 1) -> str:
    """A share as text; what is not 0 is not shown as 0."""
    least = 10.0**-digits
    if 0 < 100 * share < least / 2:
        return f"<{least:.{digits}f}%"
    return f"{100 * share:.{digits}f}%"


def _expression(facts: dict[str, Any]) -> str:
    """Which values of a file were used and what they are, in words."""
    source, kind, total = str(facts["source"]), str(facts["kind"]), float(facts["total"])
    place = {"X": "X", "raw": ".raw"}.get(source, f"layer {source.removeprefix('layers/')}")
    text = f"{KINDS.get(kind, kind)} in {place}"
    if kind != "log1p":
        return text
    return text + (", total per cell not recorded" if math.isnan(total) else f", {total:,.0f} counts per cell")


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
        # A file name need not be valid Unicode; what is not becomes a character reference.
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
