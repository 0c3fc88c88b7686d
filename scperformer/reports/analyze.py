"""Analyses of the attention of a trained model on real cells: from a file to a folder of tables and a figure."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.config import AnalyzeConfig
from scperformer.errors import InputError
from scperformer.files import beside, read_cells, require_readable
from scperformer.network import Cells, Model, load_model, torch_state_kept
from scperformer.outputs import new_folder, require_absent
from scperformer.prediction import describe_input, describe_model, describe_overlap, make_query, package_versions
from scperformer.reports.attention_maps.approximation import approximation
from scperformer.reports.attention_maps.figures import draw_approximation, draw_spectrum
from scperformer.reports.attention_maps.inputs import HeadInputs, choose_cells, layers_of
from scperformer.reports.attention_maps.spectrum import spectrum

log = logging.getLogger(__name__)

SUMMARY = "analysis.json"

Files = dict[str, pd.DataFrame | bytes]  # what an analysis leaves, by the name of the file
Analysis = Callable[[Iterator[list[HeadInputs]], Model, AnalyzeConfig], tuple[Files, dict[str, Any]]]


def spectrum_files(layers: Iterator[list[HeadInputs]], model: Model, cfg: AnalyzeConfig) -> tuple[Files, dict]:
    """The tables and the figure of `analyze spectrum`, and its numbers for the summary."""
    found = spectrum(layers)
    files: Files = {
        "spectrum.csv": found.curve_table(),
        "index128.csv": found.index_table(),
        "spectrum.png": draw_spectrum(found),
    }
    return files, {"tokens": found.tokens.tolist(), "mean_at_index_128": float(found.at_index.mean())}


def approximation_files(layers: Iterator[list[HeadInputs]], model: Model, cfg: AnalyzeConfig) -> tuple[Files, dict]:
    """The table and the figure of `analyze approximation`, and its numbers for the summary."""
    length = len(model.bundle.genes) + 1
    table = approximation(layers, length, sizes=cfg.sizes, num_draws=cfg.num_draws, seed=cfg.seed)
    log.info("relative error of the mixed values by size %s:", ", ".join(map(str, cfg.sizes)))
    for name, rows in table.groupby("mechanism", sort=False):
        note = " (untrained)" if rows["has_parameters"].any() else ""
        log.info("  %-20s %s%s", name, " ".join(f"{mean:.3f}" for mean in rows["mean"]), note)
    return {"approximation.csv": table, "approximation.png": draw_approximation(table)}, {}


RUN: dict[str, Analysis] = {"spectrum": spectrum_files, "approximation": approximation_files}


def analyze(adata: AnnData, model: Model, cfg: AnalyzeConfig, path: str) -> tuple[Files, dict[str, Any]]:
    """The files of an analysis of some cells, and a summary of how they were made.

    Raises
    ------
    InputError
        The model has no encoder, no cell expresses any of its genes, the expression cannot be used, or a mechanism
        refuses one of the `sizes`.
    """
    encoder = model.network.encoder
    if encoder is None:
        found = f"model {model.bundle.name} without an encoder"
        raise InputError(found, "a model trained with model.deep=true", "choose another model_path=...")
    query = make_query(adata, model, cfg, path)
    cells = Cells(query.all_cells(), model.tokens)
    rows = choose_cells(cells, cfg.num_cells, cfg.seed)
    if len(rows) == 0:
        raise InputError(f"no cell of {path} expresses a gene of the model", "at least one", "choose other cells")
    log.info("%s: %d of %d cells, %d layers", path, len(rows), len(cells), len(encoder.stack))
    layers = layers_of(encoder, cells, rows, max_tokens=cfg.max_tokens, seed=cfg.seed)
    with torch_state_kept(cfg.threads):
        files, numbers = RUN[str(cfg.analysis)](layers, model, cfg)
    names = {"inputs": [Path(name).name for name in cfg.inputs]}
    summary = {
        "analysis": cfg.analysis,
        "cells": adata.obs_names[rows].tolist(),
        **numbers,
        "model": describe_model(model) | {"config": model.bundle.config},
        "input": {name: value for name, value in describe_input(query).items() if name not in ("total", "log_base")},
        "genes": describe_overlap(query.overlap),
        "options": asdict(cfg) | names,
        "versions": package_versions(),
    }
    return files, summary


def run_analyze(cfg: AnalyzeConfig) -> Path:
    """Write the folder of an analysis: tables, a figure and a summary.

    Returns
    -------
    The folder: `cfg.output`, or `<input>.<analysis>` beside the input.

    Raises
    ------
    InputError
        The file or the model cannot be used, or the output exists; nothing is written.
    """
    start = time.perf_counter()
    path = cfg.inputs[0]
    require_readable(path)
    output = Path(cfg.output) if cfg.output else beside(path, f".{cfg.analysis}")
    require_absent(output, cfg.overwrite, marker=SUMMARY)
    model = load_model(cfg.model_path)
    files, summary = analyze(read_cells(path, cfg.orientation), model, cfg, path)
    with new_folder(output, cfg.overwrite, marker=SUMMARY) as folder:
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                content.to_csv(folder / name, index=False, float_format="%.6g")
        text = json.dumps(summary, indent=2, default=np.ndarray.tolist, ensure_ascii=False)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    log.info("written in %.1f s: %s (%s)", time.perf_counter() - start, output, ", ".join([*files, SUMMARY]))
    return output
