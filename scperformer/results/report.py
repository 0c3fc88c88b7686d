"""One HTML page about annotated files, with interactive figures and sortable tables; it needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.outputs import new_file, require_absent
from scperformer.labels.tree import NO_CALL
from scperformer.results import cell_map, figures, what_to_check
from scperformer.results import report_tables as tables
from scperformer.results.evaluate import Evaluation, read_evaluation
from scperformer.results.pages import TEMPLATES, render_page
from scperformer.results.read_annotations import Annotated, Failed, as_text, cell_table, read_samples

if TYPE_CHECKING:
    from scperformer.cli.report import ReportConfig

log = logging.getLogger(__name__)

NUM_FIRST_LABELS = 5  # labels in the summary


def render(
    samples: Sequence[Annotated],
    failed: Sequence[Failed] = (),
    evaluation: Evaluation | None = None,
    *,
    sample_key: str | None = None,
    max_cells: int = cell_map.MAX_CELLS,
    seed: int = 0,
) -> tuple[str, str]:
    """Return the HTML page about samples and their evaluation, and its first screen, for notebooks.

    The same input and options give the same page.

    Parameters
    ----------
    sample_key
        Column of obs with the sample of each cell, for the composition; None: each file is a sample.
    max_cells
        Cells on the map; of more, a random sample.
    """
    labels = tables.order_labels(samples, evaluation)
    cells = cell_table(samples)
    called = [label for label in labels if label.name in set(cells["call"])]
    summaries = [tables.summarise(sample, cells) for sample in samples]
    composition = tables.composition_table(tables.sample_of_cells(samples, cells, sample_key), cells, labels)
    drawn = cell_map.draw_cells(samples, max_cells, seed)
    calls = cells["call"].to_numpy(object)[drawn.rows]
    markers = {} if drawn.expression is None else cell_map.find_markers(drawn.expression, calls)
    markers = {label.name: markers[label.name] for label in called if markers.get(label.name)}

    names = [label.name for label in called]
    colours = [label.colour for label in called]
    counts = np.array([row[2:] for row in composition.rows])
    charts = [figures.composition([row[0] for row in composition.rows], counts, names, colours)]
    charts.append(figures.confidence(cells, names, colours))
    novelty = _novelty(samples)
    if novelty is not None:
        charts.append(figures.novelty(novelty[np.isfinite(novelty)], _novelty_limits(samples)))
    if curves := _calibration_curves(samples):
        charts.append(figures.reliability(curves))
    if drawn.expression is not None and markers:
        charts.append(figures.dots(markers, drawn.expression, calls))
    if evaluation is not None:
        charts.append(figures.confusion(_confusion(evaluation, labels)))
    data: dict[str, Any] = {"unknown": NO_CALL, "figures": charts, "map": None}
    if drawn.xy is not None:
        columns = _map_columns(samples, cells, novelty, labels, evaluation, drawn.rows)
        index = np.concatenate([sample.obs.index.astype(str) for sample in samples])[drawn.rows]
        data["map"] = figures.cell_map(drawn.xy, index.tolist(), columns)

    in_model = [label for label in called if label.in_model]
    sizes = cells["call"].value_counts()
    first = [label for label in called if label.name != NO_CALL][:NUM_FIRST_LABELS]
    facts = samples[0].facts
    dates = sorted(sample.facts["run"]["date"] for sample in samples if "run" in sample.facts)
    content = {
        "model": facts["model"],
        "versions": dict(sorted(facts["versions"].items())),
        "key": samples[0].key,
        "dates": list(dict.fromkeys(dates[:1] + dates[-1:])),
        "samples": summaries,
        "failed": failed,
        "num_cells": len(cells),
        "num_unknown": int(cells["unknown"].sum()),
        "num_backed_off": sum(int(sample.facts.get("tree", {}).get("num_backed_off", 0)) for sample in samples),
        "median": float(cells["confidence"].median()),
        "labels": {label.name: label for label in labels},
        "num_used": len(in_model),
        "not_used": [label.name for label in labels if label.in_model and label not in in_model],
        "first_labels": [(label, int(sizes[label.name]), sizes[label.name] / len(cells)) for label in first],
        "trust_groups": what_to_check.trust_groups(summaries),
        "checks": what_to_check.things_to_check(summaries, evaluation),
        "agreement": tables.agreement(cells),
        "metrics": evaluation.metrics if evaluation else None,
        "encoder": facts["model"].get("encoder", {}),
    }
    scripts = page_scripts()
    page = render_page(
        "report.html.jinja",
        **content,
        composition=composition,
        sample_key=sample_key,
        num_drawn=len(drawn.rows),
        map_source=drawn.source,
        seed=seed,
        sample_table=tables.sample_table(summaries, failed, evaluation),
        confidence=tables.confidence_table(cells, labels),
        unknown=tables.unknown_table(cells),
        markers=tables.marker_table(markers, cells),
        trust=tables.trust_table(summaries),
        scores=tables.score_tables(evaluation) if evaluation else (),
        inputs=tables.input_table(summaries),
        figures={chart["name"] for chart in charts},
        has_map=drawn.xy is not None,
        data=_json_for_script(data),
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
    )
    return page, render_page("summary.html.jinja", **content)


def _novelty(samples: Sequence[Annotated]) -> npt.NDArray[np.float64] | None:
    """Return the novelty of all cells, NaN where it is missing; None without any."""
    columns = [
        sample.column("novelty") if f"{sample.key}_novelty" in sample.obs else np.full(len(sample.obs), np.nan)
        for sample in samples
    ]
    novelty = np.concatenate(columns).astype(float)
    return novelty if np.isfinite(novelty).any() else None


def _novelty_limits(samples: Sequence[Annotated]) -> list[float]:
    """Return the novelties above which cells are unknown."""
    alphas = {float(sample.facts.get("novelty", {}).get("false_alarms", 0)) for sample in samples}
    return sorted(1 - alpha for alpha in alphas if alpha > 0)


def _calibration_curves(samples: Sequence[Annotated]) -> dict[str, Any]:
    """Return the calibration of out-of-fold predictions under each condition, with the names of its samples as key."""
    names: dict[str, list[str]] = {}
    bins = {}
    for sample in samples:
        if "calibration" in sample.facts:
            names.setdefault(sample.adapted, []).append(sample.name)
            bins[sample.adapted] = sample.facts["calibration"]["bins"]
    return {listed(names[condition]): bins[condition] for condition in names}


def _confusion(evaluation: Evaluation, labels: Sequence[tables.Label]) -> pd.DataFrame:
    """Return the counts of true and predicted labels; rows and columns without cells are left out."""
    names = [label.name for label in labels if label.name in evaluation.confusion.index]
    counts = evaluation.confusion.loc[names, names]
    return counts.loc[counts.sum(axis=1) > 0, counts.sum() > 0]


def _map_columns(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    novelty: npt.NDArray[np.float64] | None,
    labels: Sequence[tables.Label],
    evaluation: Evaluation | None,
    rows: npt.NDArray[np.int64],
) -> list[dict[str, Any]]:
    """Return what colours the cells on the map: call, sample, confidence, novelty, and the true label."""
    known = {label.name: (label.colour, label.symbol) for label in labels}
    columns = [figures.categories("Call", cells["call"].iloc[rows], known)]
    columns.append(figures.categories("Sample", cells["sample"].iloc[rows]))
    columns.append(figures.numbers("Confidence", cells["confidence"].to_numpy()[rows], figures.CONFIDENCE_STOPS))
    if novelty is not None:
        columns.append(figures.numbers("Novelty", novelty[rows], figures.EXPRESSION_STOPS))
    truth_key = None if evaluation is None else evaluation.metrics["truth_key"]
    if truth_key is not None and all(truth_key in sample.obs for sample in samples):
        truth = pd.Series(np.concatenate([as_text(sample.obs[truth_key]) for sample in samples]))
        columns.append(figures.categories("True label", truth.iloc[rows], known))
    return columns


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
    page, summary = render(
        samples, failed, evaluation, sample_key=cfg.sample_key, max_cells=cfg.max_cells, seed=cfg.seed
    )
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    num_cells = sum(len(sample.obs) for sample in samples)
    megabytes = output.stat().st_size / 1e6
    cells = f"{num_cells:,} cells in {len(samples)} sample{'s' if len(samples) > 1 else ''}"
    log.info("report on %s: %s (%.1f MB, %.0f s)", cells, output, megabytes, time.perf_counter() - started)
    return output, summary
