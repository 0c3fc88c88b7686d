"""Estimate the time and memory of a training from real steps on some of its cells; nothing is written."""

import math
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from scperformer.base.messages import in_bytes, in_time
from scperformer.base.progress import say
from scperformer.cells import Reference, settle_in_memory, stratified_sample
from scperformer.config import TrainConfig
from scperformer.fitting import fit_branches, fit_logistic
from scperformer.network import Cells, CellTypeModel, LinearModel, shuffled_batches, torch_state_kept
from scperformer.training import trainer
from scperformer.training.initialise import add_linear, adopt_options, find_linear_options, start_attention
from scperformer.training.supervised import has_to_learn, train_network
from scperformer.training.train import load_reference, new_training

BUDGET = 20.0  # seconds that measuring epochs may take, about
EPOCHS = 3  # of the longer of two measurements: their difference is free of the costs that occur once
FEWEST = 2  # steps that are measured, however long they take
MAX_FIT_CELLS = 10_000  # linear fits on more cells are measured on so many; their time grows with the cells


def fit_seconds(
    train: Cells, num_cells: int, cfg: TrainConfig, with_evidence: bool
) -> tuple[float, LinearModel | None]:
    """Measure the seconds of all fits of a training; also return the fit from which the linear branch starts.

    `with_evidence`: the branches are fitted and not trained, so that their scales come from out-of-fold calls.
    """
    few = train.subset(stratified_sample(train.known_labels, MAX_FIT_CELLS, cfg.seed))
    begin = time.perf_counter()
    linear_options = find_linear_options(few, cfg)
    settled = time.perf_counter()
    options: dict[str, Any] = {"linear_options": linear_options, "model": cfg.model, "head": cfg.head, "seed": cfg.seed}
    fitted = fit_branches(few.x, few.known_labels, **options, with_evidence=False)
    fit_logistic(few.x, few.known_labels)
    # Branches and baseline are fitted twice: on the training cells, and at the end on all cells.
    seconds = settled - begin + (time.perf_counter() - settled) * (len(train) + num_cells) / len(few)
    if with_evidence:  # from a number of cells that does not grow
        begin = time.perf_counter()
        fit_branches(few.x, few.known_labels, **options)
        seconds += time.perf_counter() - begin
    return seconds, fitted.linear


def loop_seconds(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig, num_epochs: int) -> float:
    """Measure the seconds of a real training loop without log lines, in a folder that is removed afterwards."""
    options = replace(cfg.trainer, max_epochs=num_epochs, patience=num_epochs, progress_bar=False)
    options = replace(options, devices=1, num_nodes=1, strategy="auto")
    with tempfile.TemporaryDirectory() as folder, patch.object(trainer.log, "disabled", True):
        begin = time.perf_counter()
        train_network(network, train, val, replace(cfg, trainer=options), Path(folder))
        return time.perf_counter() - begin


def epoch_seconds(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig) -> tuple[float, float]:
    """Measure the seconds that the loop over epochs takes once, and the seconds of each epoch on one device."""
    size = cfg.trainer.batch_size
    batches = shuffled_batches(train.lengths, size, cfg.seed, epoch=0)
    longest, val_longest = (cells.subset(np.argsort(-cells.lengths, kind="stable")[:size]) for cells in (train, val))
    # The first steps are slow for other reasons, and need the most memory. The next ones tell how many to measure.
    loop_seconds(network, longest, val_longest, cfg, 1)
    few = train.subset(np.concatenate(batches[:FEWEST]))
    step = loop_seconds(network, few, val.subset(np.arange(1)), cfg, 1) / math.ceil(len(few) / size)
    num = int(np.clip(BUDGET / ((EPOCHS + 1) * step), FEWEST, max(FEWEST, len(batches))))
    rows = np.concatenate(batches[:num])
    measured = len(rows) / len(train)
    val_rows = np.random.default_rng(cfg.seed).permutation(len(val))[: max(1, round(measured * len(val)))]
    parts = train.subset(rows), val.subset(val_rows)
    one, several = (loop_seconds(network, *parts, cfg, num_epochs) for num_epochs in (1, EPOCHS))
    epoch = max(0.0, several - one) / (EPOCHS - 1)
    return max(0.0, one - epoch), epoch / measured


def estimate(reference: Reference, cfg: TrainConfig, prepare: float) -> tuple[str, float]:
    """Extrapolate from a few steps of the training: a text, and the most seconds; `prepare`: the seconds before."""
    network, cells, val, cfg = new_training(reference, cfg, run_folder=None)
    train = cells.sample
    options = cfg.trainer
    learns = has_to_learn(network, cfg.optim)
    linear, start = fit_seconds(train, len(reference.labels), cfg, with_evidence=not learns)
    start_attention(network.encoder, train, cfg)
    add_linear(network, start)
    num_processes = options.devices * options.num_nodes
    once, epoch = epoch_seconds(network, train, val, cfg) if learns else (0.0, 0.0)
    epoch *= len(cells) / len(train) / num_processes
    fixed = prepare + linear + once
    most = fixed + options.max_epochs * epoch
    rows = {"cells": f"{len(cells):,} to train, {len(val):,} to validate; {len(reference.label_names)} labels"}
    if learns:
        num_steps = math.ceil(math.ceil(len(cells) / options.batch_size) / num_processes)
        rows["one epoch"] = f"{in_time(epoch)} ({num_steps:,} steps of {options.batch_size} cells, validation)"
    rows["linear fits"] = in_time(linear)
    rows["the rest"] = f"{in_time(prepare + once)} (reading and preparing, starting and ending)"
    rows["at most"] = f"{in_time(most)} ({f'{options.max_epochs} epochs' if learns else 'nothing is trained'})"
    if learns and (least := options.patience + 1) < options.max_epochs:
        rows["at least"] = f"{in_time(fixed + least * epoch)} ({least} epochs, if early stopping ends it)"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    rows["memory"] = f"{in_bytes(peak)} at its peak"
    if torch.cuda.is_initialized():
        rows["memory"] += f", {in_bytes(torch.cuda.max_memory_reserved())} of the GPU"
    return "\n".join(f"{name:<12} {text}" for name, text in rows.items()), most


def run_estimate(cfg: TrainConfig) -> float:
    """Print how long training on the files `cfg.inputs` will take and how much memory it needs; write nothing.

    Returns the seconds that it takes at most. Errors are those of `run_train`.
    """
    begin = time.perf_counter()
    paths = [Path(name) for name in cfg.inputs]
    cfg = adopt_options(settle_in_memory(cfg, paths))
    with torch_state_kept(cfg.trainer.threads):
        text, seconds = estimate(load_reference(paths, cfg), cfg, prepare=time.perf_counter() - begin)
    say(f"estimate for {', '.join(path.name for path in paths)}; nothing was written\n{text}")
    return seconds
