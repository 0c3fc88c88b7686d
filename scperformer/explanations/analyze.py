"""Analyses of the attention of a trained model on real cells: tables, a figure and a summary."""

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder, require_absent
from scperformer.cells import find_query
from scperformer.config import AnalyzeConfig
from scperformer.explanations.attention_maps import analyze_approximation, analyze_spectrum, layers_of
from scperformer.files import default_output, read_cells, require_readable
from scperformer.network import Cells, load_model, torch_state_kept
from scperformer.prediction import describe_run

log = logging.getLogger(__name__)

SUMMARY = "analysis.json"
ANALYSIS = FolderKind("an analysis")
ANALYSES = {"spectrum": analyze_spectrum, "approximation": analyze_approximation}


def run_analyze(cfg: AnalyzeConfig) -> Path:
    """Write the folder of an analysis, `cfg.output` or `<input>.<analysis>` beside the input, and return it."""
    start = time.perf_counter()
    path = cfg.inputs[0]
    require_readable(path)
    output = Path(cfg.output) if cfg.output else default_output(path, f".{cfg.analysis}")
    require_absent(output, cfg.overwrite, ANALYSIS)
    model = load_model(cfg.model_path)
    adata = read_cells(path, cfg.orientation)
    encoder = model.network.encoder
    if encoder is None:
        found = f"model {model.saved.name} without an encoder"
        raise InputError(found, "a model trained with model.encoder=true", "choose another model_path=...")
    query = find_query(adata, model.saved, cfg, path)
    cells = Cells(query.all_cells(), model.tokens)
    rows = query.cells[np.diff(cells.x.indptr)[query.cells] > 0]  # cells with expression
    if len(rows) == 0:
        raise InputError(f"no cell of {path} expresses a gene of the model", "at least one", "choose other cells")
    rows = np.sort(np.random.default_rng(cfg.seed).permutation(rows)[: cfg.num_cells])
    log.info("%s: %d of %d cells, %d layers", path, len(rows), len(cells), len(encoder.stack))
    layers = layers_of(encoder, cells, rows, max_tokens=cfg.max_tokens, seed=cfg.seed)
    with torch_state_kept(cfg.threads):
        files, numbers = ANALYSES[str(cfg.analysis)](layers, model, cfg)
    run = describe_run(query, model)
    about = {name: value for name, value in run["model"].items() if name != "path"}  # folders of a user are private
    summary = {
        "analysis": cfg.analysis,
        "cells": adata.obs_names[rows].tolist(),
        **numbers,
        "model": about | {"config": model.saved.config},
        "input": {name: value for name, value in run["input"].items() if name not in ("total", "log_base")},
        "genes": run["genes"],
        "options": asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]},
        "versions": run["versions"],
    }
    with new_folder(output, ANALYSIS, cfg.overwrite) as folder:
        for name, content in files.items():  # tables, and the bytes of pictures
            if isinstance(content, bytes):
                (folder / name).write_bytes(content)
            else:
                content.to_csv(folder / name, index=False, float_format="%.6g")
        text = json.dumps(summary, indent=2, default=np.ndarray.tolist, ensure_ascii=False)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")
    log.info("written in %.1f s: %s (%s)", time.perf_counter() - start, output, ", ".join([*files, SUMMARY]))
    return output
