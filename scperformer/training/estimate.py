"""Estimate the time and memory of a training from real steps on some of its cells; nothing is written."""

import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from scperformer.config import TrainConfig
from scperformer.dataset import Reference, settle_in_memory
from scperformer.network import (
    Cells,
    CellTypeModel,
    LinearModel,
    fit_baseline,
    fit_linear_branch,
    shuffled_batches,
    torch_state_kept,
)
from scperformer.text import in_bytes, in_time
from scperformer.training import learning_curve
from scperformer.training.batch_size import with_batch_size
from scperformer.training.datamodule import source_of_cells
from scperformer.training.learner import has_to_learn, train_network
from scperformer.training.memory import peak_memory
from scperformer.training.start import add_linear, linear_recipe, start_attention
from scperformer.training.train import load_reference, new_network
from scperformer.training.transfer import adopt_options, in_order_of_init

BUDGET = 20.0  # seconds that measuring epochs may take, about
EPOCHS = 3  # of the longer of two measurements: their difference is free of the costs that occur once
FEWEST = 2  # steps that are measured, however long they take
MAX_FIT_CELLS = 10_000  # linear fits on more cells are measured on so many; their time grows with the cells


@dataclass(kw_only=True)
class Estimate:
    """Seconds and bytes of a training that has not been run.

    `once` is the time to start and end the loop over epochs, `linear` all fits of logistic regression. `memory` is the
    peak of the process, `gpu_memory` of the GPU (0: none is used).
    """

    num_train_cells: int
    num_val_cells: int
    num_genes: int
    num_labels: int
    batch_size: int
    num_steps: int
    prepare: float
    linear: float
    once: float
    epoch: float
    max_epochs: int
    least_epochs: int
    memory: int
    gpu_memory: int

    def total(self, num_epochs: int) -> float:
        """Seconds of the whole training if it ends after so many epochs."""
        return self.prepare + self.linear + self.once + num_epochs * self.epoch

    def text(self) -> str:
        """The estimate for people."""
        sizes = f"{self.num_train_cells:,} to train, {self.num_val_cells:,} to validate"
        rows = [("cells", f"{sizes}; {self.num_labels} labels")]
        epochs = "nothing is trained"
        if self.max_epochs:
            epochs = f"{self.max_epochs} epochs"
            steps = f"{self.num_steps:,} steps of {self.batch_size} cells, validation"
            rows.append(("one epoch", f"{in_time(self.epoch)} ({steps})"))
        rows += [
            ("linear fits", in_time(self.linear)),
            ("the rest", f"{in_time(self.prepare + self.once)} (reading and preparing, starting and ending)"),
            ("at most", f"{in_time(self.total(self.max_epochs))} ({epochs})"),
        ]
        if self.least_epochs < self.max_epochs:
            early = f"{in_time(self.total(self.least_epochs))} ({self.least_epochs} epochs, if early stopping ends it)"
            rows.append(("at least", early))
        gpu = f", {in_bytes(self.gpu_memory)} of the GPU" if self.gpu_memory else ""
        rows.append(("memory", f"{in_bytes(self.memory)} at its peak{gpu}"))
        return "\n".join(f"{name:<12} {text}" for name, text in rows)


def with_every_label(rows: np.ndarray, cells: Cells) -> np.ndarray:
    """Add one cell of each label that these row numbers lack."""
    labels, firsts = np.unique(cells.known_labels, return_index=True)
    return np.concatenate([rows, firsts[~np.isin(labels, cells.known_labels[rows])]])


def linear_seconds(train: Cells, num_cells: int, cfg: TrainConfig) -> tuple[float, LinearModel | None]:
    """Measure the seconds of all linear fits of a training; also return the fit from which the linear branch starts.

    The branch and the baseline are both fitted twice: on the training cells, and at the end on all `num_cells`. The
    recipe of the branch is chosen before, on a number of cells that does not grow with the reference.
    """
    few = train
    if len(train) > MAX_FIT_CELLS:
        rows = np.random.default_rng(cfg.seed).permutation(len(train))[:MAX_FIT_CELLS]
        few = train.subset(with_every_label(rows, train))
    begin = time.perf_counter()
    recipe = linear_recipe(few, cfg)
    settled = time.perf_counter()
    linear = None if recipe is None else fit_linear_branch(few.x, few.known_labels, recipe)
    fit_baseline(few.x, few.known_labels)
    return settled - begin + (time.perf_counter() - settled) * (len(train) + num_cells) / len(few), linear


def loop_seconds(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig, num_epochs: int) -> float:
    """Measure the seconds of a real training loop without log lines, in a folder that is removed afterwards."""
    options = replace(cfg.trainer, max_epochs=num_epochs, patience=num_epochs, progress_bar=False)
    options = replace(options, devices=1, num_nodes=1, strategy="auto")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        learning_curve.log.disabled = True
        try:
            train_network(network, train, val, replace(cfg, trainer=options), Path(folder))
        finally:
            learning_curve.log.disabled = False
        return time.perf_counter() - begin


def epoch_seconds(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig) -> tuple[float, float]:
    """Measure the seconds that the loop over epochs takes once, and the seconds of each epoch on one device.

    The first steps, which are slow for other reasons, use the longest cells, and so need the most memory that any step
    will need. The next steps tell how many can be measured.
    """
    size = cfg.trainer.batch_size
    longest = with_every_label(np.argsort(-train.lengths, kind="stable")[:size], train)
    batches = shuffled_batches(train.lengths, size, cfg.seed, epoch=0)
    loop_seconds(network, train.subset(longest), val.subset(np.argsort(-val.lengths, kind="stable")[:size]), cfg, 1)
    few = with_every_label(np.concatenate(batches[:FEWEST]), train)
    step = loop_seconds(network, train.subset(few), val.subset(np.arange(1)), cfg, 1) / math.ceil(len(few) / size)
    num = int(np.clip(BUDGET / ((EPOCHS + 1) * step), FEWEST, max(FEWEST, len(batches))))
    rows = with_every_label(np.concatenate(batches[:num]), train)
    measured = len(rows) / len(train)
    val_rows = np.random.default_rng(cfg.seed).permutation(len(val))[: max(1, round(measured * len(val)))]
    parts = train.subset(rows), val.subset(val_rows)
    one, several = (loop_seconds(network, *parts, cfg, num_epochs) for num_epochs in (1, EPOCHS))
    epoch = max(0.0, several - one) / (EPOCHS - 1)
    return max(0.0, one - epoch), epoch / measured


def estimate(reference: Reference, cfg: TrainConfig, prepare: float) -> Estimate:
    """Train for a few steps as the real training would, and extrapolate from them.

    Parameters
    ----------
    prepare
        Seconds that it took to read and prepare the reference.
    """
    rows = reference.split.train, reference.split.val
    cells, val = source_of_cells(reference.x, reference.labels, rows, stream=reference.stream, tokens=cfg.tokens)
    train = cells.sample
    network = new_network(reference, cfg)
    network.require_length(int(max(train.lengths.max(), val.lengths.max())))
    cfg = with_batch_size(cfg, train, network, run_folder=None)
    linear, start = linear_seconds(train, len(reference.labels), cfg)
    start_attention(network.encoder, train, cfg)
    add_linear(network, start)
    options = cfg.trainer
    num_processes = options.devices * options.num_nodes
    learns = has_to_learn(network, cfg.optim)
    once, epoch = epoch_seconds(network, train, val, cfg) if learns else (0.0, 0.0)
    max_epochs = options.max_epochs if learns else 0
    return Estimate(
        num_train_cells=len(cells),
        num_val_cells=len(val),
        num_genes=len(reference.genes),
        num_labels=len(reference.label_names),
        batch_size=options.batch_size,
        num_steps=math.ceil(math.ceil(len(cells) / options.batch_size) / num_processes),
        prepare=prepare,
        linear=linear,
        once=once,
        epoch=epoch * len(cells) / len(train) / num_processes,
        max_epochs=max_epochs,
        least_epochs=min(max_epochs, options.patience + 1),
        memory=peak_memory(),
        gpu_memory=torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else 0,
    )


def run_estimate(cfg: TrainConfig) -> Estimate:
    """Print how long training on the files `cfg.inputs` will take and how much memory it needs; write nothing.

    Raises
    ------
    InputError
        As `run_train`: the file, its labels, its expression or an option cannot be used.
    """
    begin = time.perf_counter()
    paths = [Path(name) for name in cfg.inputs]
    cfg = adopt_options(settle_in_memory(cfg, paths))
    with torch_state_kept(cfg.trainer.threads):
        reference = in_order_of_init(load_reference(paths, cfg), cfg)
        result = estimate(reference, cfg, prepare=time.perf_counter() - begin)
    print(f"estimate for {', '.join(path.name for path in paths)}; nothing was written\n{result.text()}", flush=True)
    return result
