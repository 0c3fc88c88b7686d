"""One HTML page about annotated files, with figures to look into and tables to sort; it needs no network."""

import base64
import hashlib
import importlib.util
import json
import logging
import time
from collections.abc import Sequence
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
from scperformer.labels import label_texts
from scperformer.model import BRANCHES, encoder_is_silent
from scperformer.reports import expression, figures, tables
from scperformer.reports.evaluate import Evaluation, read_evaluation
from scperformer.reports.pages import TEMPLATES, render_page
from scperformer.reports.read_annotations import Annotated, Failed, read_samples
from scperformer.reports.umap import MIN_CELLS, umap_coordinates

log = logging.getLogger(__name__)

MOST_CATEGORIES = 60  # values of a column that colour the map


def _for_script(content: Any) -> str:
    """JSON for an element `script`, in which no text of a user can end that element."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def scripts() -> list[str]:
    """The scripts of the page: plotly.js, as the package plotly brings it, and our own."""
    found = importlib.util.find_spec("plotly")
    assert found is not None, "plotly is installed with this package"
    library = Path(str(found.origin)).parent / "package_data" / "plotly.min.js"
    return [path.read_text(encoding="utf-8").strip() for path in (library, TEMPLATES / "report.js")]


def cell_map(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    labels: Sequence[tables.Label],
    genes: pd.Index,
    evaluation: Evaluation | None,
    *,
    max_cells: int,
    seed: int,
) -> dict[str, Any] | None:
    """Coordinates and properties of at most `max_cells` random cells of all samples; None for too few cells."""
    embeddings = [sample.embedding for sample in samples if sample.embedding is not None]
    assert len(embeddings) == len(samples), "samples are read with their embeddings"
    chosen = np.arange(len(cells))
    if len(cells) > max_cells:
        chosen = np.sort(np.random.default_rng(seed).choice(len(cells), max_cells, replace=False))
    log.info("placing %s cells on the map", f"{len(chosen):,}")
    xy = umap_coordinates(np.concatenate(embeddings)[chosen], seed)
    if xy is None:
        return None
    sizes = np.cumsum([0, *(len(sample.obs) for sample in samples)])
    rows = [chosen[(chosen >= a) & (chosen < b)] - a for a, b in pairwise(sizes)]
    drawn = cells.iloc[chosen]
    low = xy.min(axis=0)
    span = np.maximum(np.ptp(xy, axis=0), 1e-6)
    of_sample = pd.Index([sample.name for sample in samples]).get_indexer(drawn["sample"])
    found = {
        "span": span.tolist(),
        "x": figures.packed((xy[:, 0] - low[0]) / span[0] * 65535, "u2"),
        "y": figures.packed((xy[:, 1] - low[1]) / span[1] * 65535, "u2"),
        "cells": np.concatenate(
            [sample.obs.index.astype(str)[some] for sample, some in zip(samples, rows, strict=True)]
        ),
        "sample": figures.codes(of_sample, len(samples)),
        "label": figures.codes(drawn["code"].to_numpy(), len(labels)),
        "confidence": figures.shares(drawn["confidence"].to_numpy()),
        "categories": _categories(samples, drawn, chosen, labels, evaluation),
        "genes": [],
    }
    found["cells"] = found["cells"].tolist()
    if len(genes):
        log.info("reading %d genes of the cells on the map", len(genes))
        values = np.full((len(chosen), len(genes)), np.nan, dtype=np.float32)
        for sample, some, start in zip(samples, rows, np.cumsum([0, *map(len, rows)]), strict=False):
            if (read := expression.gene_values(sample, genes, some)) is not None:
                values[start : start + len(some)] = read
        found["genes"] = [
            {"name": str(gene), **figures.expression_levels(values[:, place])} for place, gene in enumerate(genes)
        ]
    return found


def _categories(
    samples: Sequence[Annotated],
    drawn: pd.DataFrame,
    chosen: npt.NDArray[np.int64],
    labels: Sequence[tables.Label],
    evaluation: Evaluation | None,
) -> list[dict[str, Any]]:
    """Further columns that colour the map: name, values (null: the labels of the page), and the code of each cell."""
    yes_or_no = {"unknown": "Unknown", "doublet": "Likely doublet", "low_quality": "Low quality"}
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, title in yes_or_no.items():
        flags = [sample.flag(name) for sample in samples]
        if all(flag is not None for flag in flags):
            columns[title] = np.concatenate(flags)[chosen]  # type: ignore[arg-type]
    found: list[dict[str, Any]] = [
        {"name": title, "values": ["no", "yes"], "codes": figures.codes(flag, 2)} for title, flag in columns.items()
    ]
    names = pd.Index([label.name for label in labels])
    if "cluster_label" in drawn:
        codes = names.get_indexer(drawn["cluster_label"])
        found.append({"name": "Label of the cluster", "values": None, "codes": figures.codes(codes, len(names))})
    keys = {str(sample.facts.get("clusters", {}).get("key", "")) for sample in samples}
    wanted = {"Cluster": keys.pop() if len(keys) == 1 else "", "True label": ""}
    if evaluation is not None:
        wanted["True label"] = str(evaluation.metrics["truth_key"])
    for title, key in wanted.items():
        if not key or any(key not in sample.obs for sample in samples):
            continue
        texts = np.concatenate([label_texts(sample.obs[key]).fillna("nan") for sample in samples])[chosen]
        codes, values = pd.factorize(texts, sort=True)
        if title == "True label" and set(values) <= set(names):
            found.append({"name": title, "values": None, "codes": figures.codes(names.get_indexer(texts), len(names))})
        elif len(values) <= MOST_CATEGORIES:
            found.append({"name": title, "values": values.tolist(), "codes": figures.codes(codes, len(values))})
    return found


def render(
    samples: Sequence[Annotated],
    failed: Sequence[Failed] = (),
    evaluation: Evaluation | None = None,
    *,
    title: str = "Cell-type annotation",
    max_cells: int = 50_000,
    seed: int = 0,
) -> str:
    """The HTML about samples, and their evaluation; depends on the seed alone."""
    labels = tables.order_labels(samples, evaluation)
    cells = tables.all_cells(samples, labels)
    summaries = [tables.summarise(sample, cells, labels) for sample in samples]
    num_used = cells["code"].nunique()  # labels are sorted by frequency: those with cells come first
    names = [label.name for label in labels]

    model = expression.model_of(samples)
    profiles = {}
    plans: expression.Plans = {}
    for number, sample in enumerate(samples, start=1):
        log.info("reading the expression of %s (%d of %d)", sample.name, number, len(samples))
        codes = cells.loc[cells["sample"] == sample.name, "code"].to_numpy()
        if (found := expression.profile(sample, codes, len(labels), model, plans)) is not None:
            profiles[sample.name] = found
    genes = expression.combine(list(profiles.values()), range(num_used))
    quality = {name: one.quality for name, one in profiles.items()}
    shown = np.array([], dtype=np.int64)
    if genes is not None:
        shown = np.concatenate([*genes.shown(range(num_used)).values()])
    trust = tables.trust_tables(summaries, samples)
    confusion = tables.confusion_table(evaluation, labels) if evaluation else None
    charts = _charts(samples, cells, names[:num_used], summaries, genes, shown, quality, confusion)
    drawn = cell_map(
        samples,
        cells,
        labels,
        genes.genes[shown] if genes is not None else pd.Index([]),
        evaluation,
        max_cells=max_cells,
        seed=seed,
    )
    data = {
        "labels": [{"name": label.name, "colour": label.colour, "symbol": label.symbol} for label in labels],
        "palette": figures.PALETTE,
        "symbols": figures.SYMBOLS,
        "samples": [sample.name for sample in samples],
        "confidence": figures.CONFIDENCE_STOPS,
        "expression": figures.EXPRESSION_STOPS,
        "figures": charts,
        "map": drawn,
    }
    facts = samples[0].facts
    code = scripts()
    scales = samples[0].scales
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in code]
    return render_page(
        "report.html.jinja",
        title=title,
        data=_for_script(data),
        scripts=code,
        hashes=hashes,
        model=facts["model"],
        versions=dict(sorted(facts["versions"].items())),
        key=samples[0].key,
        samples=summaries,
        failed=failed,
        num_cells=len(cells),
        num_unknown=int(cells["unknown"].sum()),
        labels={label.name: label for label in labels},
        num_used=num_used,
        not_used=[label.name for label in labels[num_used:] if label.in_model],
        threshold=tables.threshold(samples),
        flag_reasons=tables.flag_reasons(samples),
        agreement=float((cells["label"] == cells["baseline"]).mean()),
        checks=tables.things_to_check(summaries, failed, evaluation),
        median=float(cells["confidence"].median()),
        levels=tables.levels(samples),
        num_backed_off=sum(int(sample.facts.get("tree", {}).get("num_backed_off", 0)) for sample in samples),
        sample_table=tables.sample_table(summaries, failed, evaluation),
        composition=tables.composition_table(summaries, labels[:num_used]),
        confidence=tables.confidence_table(cells, labels),
        unknown=tables.unknown_table(samples, cells, labels),
        genes=tables.gene_tables(genes, labels, range(num_used)) if genes is not None else None,
        has_contributions=genes is not None and genes.contributions is not None,
        quality=tables.quality_table(samples, quality) if quality else None,
        trust=trust,
        adapted=any(sample.adapted for sample in samples),
        metrics=evaluation.metrics if evaluation else None,
        scores=tables.score_tables(evaluation) if evaluation else [],
        confusion=confusion,
        disagreements=tables.disagreement_table(cells, labels),
        num_drawn=len(drawn["cells"]) if drawn else 0,
        scales=scales,
        branches=BRANCHES,
        encoder_is_silent=encoder_is_silent(scales),
        min_cells=MIN_CELLS,
        seed=seed,
        several_models=len({sample.adapted for sample in samples}) > 1,
    )


def _charts(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    used: Sequence[str],
    summaries: Sequence[dict[str, Any]],
    genes: expression.GeneTable | None,
    shown: npt.NDArray[np.int64],
    quality: dict[str, pd.DataFrame],
    confusion: tables.Table | None,
) -> list[figures.Figure]:
    """The figures of a page, without the map; those without content are left out."""
    counts = np.array([row["counts"][: len(used)] for row in summaries])
    charts = [figures.composition([row["name"] for row in summaries], used, counts), figures.confidence(cells, used)]
    if genes is not None and len(shown):
        means, shares = (table[: len(used), shown] for table in (genes.means, genes.shares))
        charts.append(figures.dots(used, genes.genes[shown], means, shares))
    if quality:
        has_counts = all(sample.facts["input"]["kind"] == "counts" for sample in samples if sample.name in quality)
        charts.append(figures.quality(quality, has_counts))
    if curves := _curves(samples):
        charts.append(figures.reliability(curves, MIN_BIN_CALLS))
    if confusion is not None:
        true = [row[0] for row in confusion.rows]
        heads = [name for name, _ in confusion.columns[2:]]
        charts.append(figures.confusion(true, heads, np.array([row[2:] for row in confusion.rows])))
    return charts


def _curves(samples: Sequence[Annotated]) -> dict[str, Any]:
    """The calibration of held-out calls under each condition, by the names of its samples."""
    with_calls = [sample for sample in samples if "calibration" in sample.facts]
    conditions = {sample.adapted: sample.facts["calibration"]["bins"] for sample in with_calls}
    of = {key: ", ".join(sample.name for sample in with_calls if sample.adapted == key) for key in conditions}
    return {of[key]: bins for key, bins in conditions.items()}


def run_report(cfg: ReportConfig, evaluation: Evaluation | None = None, sample: Annotated | None = None) -> Path:
    """Write one HTML page about annotated files, and return its path.

    A file that cannot be read, or is not annotated, has a row with the reason; an error if there is no other file.

    Parameters
    ----------
    evaluation, sample
        In memory, in place of the folder and the files that the options name.
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
        about = cfg.evaluation or "the evaluation"
        names = [sample.name for sample in samples]
        others = [name for name in evaluation.metrics["samples"] if name not in names]
        remedy = "run 'scperformer evaluate' again on the same files"
        if others:
            expected = f"an evaluation of {', '.join(names)} only"
            raise InputError(f"{about} evaluates '{others[0]}'", expected, remedy)
        if evaluation.metrics["model_hash"] != samples[0].facts["model"]["hash"]:
            expected = f"an evaluation of {samples[0].model_id}"
            raise InputError(f"{about} evaluates another model", expected, remedy)
    page = render(samples, failed, evaluation, title=cfg.title, max_cells=cfg.max_cells, seed=cfg.seed)
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    num_cells = sum(len(sample.obs) for sample in samples)
    megabytes = output.stat().st_size / 1e6
    content = f"{num_cells:,} cells in {len(samples)} sample{'s' if len(samples) > 1 else ''}"
    log.info("report on %s: %s (%.1f MB, %.0f s)", content, output, megabytes, time.perf_counter() - started)
    return output
