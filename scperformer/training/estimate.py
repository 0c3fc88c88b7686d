"""How long a training will take and how much memory, from real steps on some of its cells; nothing is written."""

import logging
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    require_encoder,
    shuffled_batches,
    torch_state_kept,
)
from scperformer.text import in_bytes, in_time
from scperformer.training.batch_size import with_batch_size
from scperformer.training.encoder_start import start_attention
from scperformer.training.learner import has_to_learn, train_network
from scperformer.training.memory import peak_memory
from scperformer.training.train import fit_wide, load_reference, move_wide, new_network, wide_recipe
from scperformer.training.transfer import adopt_options, in_order_of_init

BUDGET = 20.0  # seconds that measuring epochs may take, about
EPOCHS = 3  # of the longer of two measurements: their difference is free of what happens once
FEWEST = 2  # steps that are measured, however long they take
MAX_FIT_CELLS = 10_000  # linear fits on more cells are measured on so many; their time grows with the cells


@dataclass(kw_only=True)
class Estimate:
    """Seconds and bytes of a training that has not been run.

    `once` is what starting and ending the loop over epochs takes, `linear` all fits of logistic regression. `memory` is
    of the process, `gpu_memory` of the GPU (0: none is used).
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
        """Seconds of the whole training, if it ends after so many epochs."""
        return self.prepare + self.linear + self.once + num_epochs * self.epoch

    def text(self) -> str:
        """The estimate for people."""
        sizes = f"{self.num_train_cells:,} to train, {self.num_val_cells:,} to validate"
        steps = f"{self.num_steps:,} steps of {self.batch_size} cells, validation"
        epochs = f"{self.max_epochs} epochs" if self.max_epochs else "nothing is trained"
        rows = [
            ("cells", f"{sizes}; {self.num_labels} labels"),
            *([("one epoch", f"{in_time(self.epoch)} ({steps})")] if self.max_epochs else []),
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


def estimate(reference: Reference, cfg: TrainConfig, prepare: float) -> Estimate:
    """Train for a few steps as the real training would, and reckon from them.

    Parameters
    ----------
    prepare
        Seconds that it took to read and prepare the reference.
    """
    cells = Cells(reference.x, cfg.tokens, reference.labels)
    train, val = cells.subset(reference.split.train), cells.subset(reference.split.val)
    cfg = with_batch_size(cfg, train, new_network(reference, cfg), run_folder=None)
    linear, start = linear_seconds(train, len(reference.labels), cfg)
    network = new_network(reference, cfg)
    network.require_length(int(max(train.lengths.max(), val.lengths.max())))
    start_attention(network.encoder, train, cfg)
    move_wide(network, start)
    num_train = len(train) if reference.stream is None else len(reference.stream.cells)
    num_steps = math.ceil(num_train / cfg.trainer.batch_size)
    options = cfg.trainer
    learns = has_to_learn(network, cfg.optim)
    once, epoch = epoch_seconds(network, train, val, cfg) if learns else (0.0, 0.0)
    max_epochs = options.max_epochs if learns else 0
    return Estimate(
        num_train_cells=num_train,
        num_val_cells=len(val),
        num_genes=len(reference.genes),
        num_labels=len(reference.label_names),
        batch_size=options.batch_size,
        num_steps=math.ceil(num_steps / (options.devices * options.num_nodes)),
        prepare=prepare,
        linear=linear,
        once=once,
        epoch=epoch * num_train / len(train) / (options.devices * options.num_nodes),
        max_epochs=max_epochs,
        least_epochs=min(max_epochs, options.patience + 1),
        memory=peak_memory(),
        gpu_memory=torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else 0,
    )


def linear_seconds(train: Cells, num_cells: int, cfg: TrainConfig) -> tuple[float, LinearModel | None]:
    """Seconds of all linear fits of a training, and the fit that the wide branch starts from.

    Both the branch and the baseline are fitted twice: on the training cells, and at the end on all `num_cells`. How the
    branch is fitted is settled before, on a number of cells that does not grow with the reference.
    """
    few = train
    if len(train) > MAX_FIT_CELLS:
        rows = with_every_label(np.random.default_rng(cfg.seed).permutation(len(train))[:MAX_FIT_CELLS], train)
        few = train.subset(rows)
    begin = time.perf_counter()
    recipe = wide_recipe(few, cfg)
    settled = time.perf_counter()
    start = fit_wide(few, recipe)
    fit_baseline(few.x, few.known_labels)
    return settled - begin + (time.perf_counter() - settled) * (len(train) + num_cells) / len(few), start


def epoch_seconds(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig) -> tuple[float, float]:
    """Seconds of what happens once in the loop over epochs, and of each epoch on one device.

    The first steps, which are slow for other reasons, are taken on the longest cells, and so need the most memory that
    any step will need; the next ones tell how many can be measured.
    """
    size = cfg.trainer.batch_size
    longest = with_every_label(np.argsort(-train.lengths, kind="stable")[:size], train)
    batches = shuffled_batches(train.lengths, size, cfg.seed, epoch=0)
    _loop(network, train.subset(longest), val.subset(np.argsort(-val.lengths, kind="stable")[:size]), cfg, 1)
    few = with_every_label(np.concatenate(batches[:FEWEST]), train)
    step = _loop(network, train.subset(few), val.subset(np.arange(1)), cfg, 1) / math.ceil(len(few) / size)
    num = int(np.clip(BUDGET / ((EPOCHS + 1) * step), FEWEST, max(FEWEST, len(batches))))
    rows = with_every_label(np.concatenate(batches[:num]), train)
    share = len(rows) / len(train)
    val_rows = np.random.default_rng(cfg.seed).permutation(len(val))[: max(1, round(share * len(val)))]
    parts = train.subset(rows), val.subset(val_rows)
    one, several = (_loop(network, *parts, cfg, num_epochs) for num_epochs in (1, EPOCHS))
    epoch = max(0.0, several - one) / (EPOCHS - 1)
    return max(0.0, one - epoch), epoch / share


def with_every_label(rows: np.ndarray, cells: Cells) -> np.ndarray:
    """These row numbers, and one cell of each label that has none among them."""
    labels, firsts = np.unique(cells.known_labels, return_index=True)
    return np.concatenate([rows, firsts[~np.isin(labels, cells.known_labels[rows])]])


def _loop(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig, num_epochs: int) -> float:
    """Seconds of a real training loop, in a folder that is gone afterwards."""
    options = replace(cfg.trainer, max_epochs=num_epochs, patience=num_epochs, progress_bar=False)
    options = replace(options, devices=1, num_nodes=1, strategy="auto")
    short = replace(cfg, trainer=options)
    with tempfile.TemporaryDirectory() as folder, _silence():
        begin = time.perf_counter()
        train_network(network, train, val, short, Path(folder))
        return time.perf_counter() - begin


@contextmanager
def _silence() -> Iterator[None]:
    """No lines about epochs that are only tried."""
    logger = logging.getLogger("scperformer.training.epochs")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def run_estimate(cfg: TrainConfig) -> Estimate:
    """Print how long training on the files `cfg.inputs` will take and how much memory it needs; write nothing.

    Raises
    ------
    InputError
        As `run_train`: the file, its labels, its expression or an option cannot be used.
    """
    paths = [Path(name) for name in cfg.inputs]
    begin = time.perf_counter()
    cfg = settle_in_memory(cfg, paths)
    cfg = adopt_options(cfg)
    if cfg.model.deep:
        require_encoder(cfg.tokens, cfg.model, cfg.attention)
    with torch_state_kept(cfg.trainer.threads):
        reference = in_order_of_init(load_reference(paths, cfg), cfg)
        result = estimate(reference, cfg, prepare=time.perf_counter() - begin)
    print(f"estimate for {', '.join(path.name for path in paths)}; nothing was written\n{result.text()}", flush=True)
    return result
