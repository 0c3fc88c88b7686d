"""Analyses of the attention of a trained model on real cells: tables, a figure and a summary."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scperformer.annotation.annotate import describe_run
from scperformer.attention.encoder import Encoder
from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder, require_absent
from scperformer.cells.query import find_query
from scperformer.io.read import default_output, read_cells, require_readable
from scperformer.lab.approximation import analyze_approximation
from scperformer.lab.attention_maps import layers_of
from scperformer.lab.spectrum import analyze_spectrum
from scperformer.model.batches import Cells
from scperformer.model.inference import torch_state_kept
from scperformer.model.load import load_model

if TYPE_CHECKING:
    from scperformer.cli.analyze import AnalyzeConfig

log = logging.getLogger(__name__)

SUMMARY = "analysis.json"
ANALYSIS = FolderKind("an analysis")
ANALYSES = {"spectrum": analyze_spectrum, "approximation": analyze_approximation}


def run_analyze(cfg: AnalyzeConfig) -> Path:
    """Write the folder of an analysis and return its path, by default `<input>.<analysis>` in the folder of the input.

    Raises
    ------
    InputError
        The output exists, the model has no layers of attention, or no cell expresses a gene of the model.
    """
    start = time.perf_counter()
    path = cfg.inputs[0]
    require_readable(path)
    output = Path(cfg.output) if cfg.output else default_output(path, f".{cfg.analysis}")
    require_absent(output, cfg.overwrite, ANALYSIS)
    model = load_model(cfg.model_path)
    adata = read_cells(path, cfg.orientation)
    encoder = model.network.encoder
    if not isinstance(encoder, Encoder) or not encoder.stack:
        found = f"model {model.saved.name} without layers of attention between tokens"
        raise InputError(found, "a model trained with model=tiny, base or scbert", "choose another model_path=...")
    query = find_query(adata, model.saved, cfg, path)
    cells = Cells(query.all_cells(), model.tokens)
    rows = query.cells[np.diff(cells.x.indptr)[query.cells] > 0]
    if len(rows) == 0:
        raise InputError(f"no cell of {path} expresses a gene of the model", "at least one", "choose other cells")
    rows = np.sort(np.random.default_rng(cfg.seed).permutation(rows)[: cfg.cells])
    log.info("%s: %d of %d cells, %d layers", path, len(rows), len(cells), len(encoder.stack))
    layers = layers_of(encoder, cells, rows, max_tokens=cfg.max_tokens, seed=cfg.seed)
    with torch_state_kept(cfg.threads):
        files, numbers = ANALYSES[str(cfg.analysis)](layers, model, cfg.seed)
    ran = describe_run(query, model)
    about = {name: value for name, value in ran["model"].items() if name != "path"}  # folders of a user are private
    summary = {
        "analysis": cfg.analysis,
        "cells": adata.obs_names[rows].tolist(),
        **numbers,
        "model": about | {"config": model.saved.config},
        "input": {name: value for name, value in ran["input"].items() if name not in ("total", "log_base")},
        "genes": ran["genes"],
        "options": asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]},
        "versions": ran["versions"],
    }
    with new_folder(output, ANALYSIS, cfg.overwrite) as folder:
        for name, content in files.items():
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                content.to_csv(folder / name, index=False, float_format="%.6g")
        text = json.dumps(summary, indent=2, default=np.ndarray.tolist, ensure_ascii=False)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    log.info("written in %.1f s: %s (%s)", time.perf_counter() - start, output, ", ".join([*files, SUMMARY]))
    return output
