"""`trainer.batch_size=auto`: the largest batch that fits into memory, from the bytes that real training steps need."""

import logging
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scperformer.config import AUTO, TrainConfig
from scperformer.errors import InputError
from scperformer.network import Cells, CellTypeModel
from scperformer.text import GIB, in_bytes
from scperformer.training.learner import Learner, loss_weights
from scperformer.training.memory import available_memory
from scperformer.training.run_folder import is_helper, record_batch_size, recorded_batch_size

log = logging.getLogger(__name__)

MOST = 256  # cells: larger batches learn no faster
FEWEST_STEPS, USUAL = 16, 32  # steps of an epoch; but the usual batch size is never too large for an epoch
SHARE = 0.6  # of the memory: processes on CPUs grew by up to 1.5 times the bytes counted (scratch space, gaps)
OF_WEIGHTS = 4  # times their bytes: weights, two moments of AdamW, and what its step computes
TRIED = (2, 4)  # cells; the bytes of larger batches lie on the line through these


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made within the block: those in use now, and the most at a time.

    It sees what operations return, in forward and backward passes on the CPU alike, and so gives the same number on
    every machine; it does not see scratch space inside of an operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {id(tensor.untyped_storage()) for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in given and storage not in self.known:  # else a view, or changed in place
                self.known.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, num_bytes: int) -> None:
        self.now -= num_bytes


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def step_bytes(network: CellTypeModel, train: Cells, num_cells: int, cfg: TrainConfig) -> int:
    """The most bytes in use during a training step on the `num_cells` longest cells, beside the weights.

    The network is left without gradients; what dropout draws depends on the seed alone.
    """
    learner = Learner(
        network,
        weights=loss_weights(train.known_labels, cfg.optim.class_weights),
        optim=cfg.optim,
        num_steps=1,
        seed=cfg.seed,
        gene_dropout=cfg.model.gene_dropout,
    )
    rows = np.argsort(-train.lengths, kind="stable")[:num_cells]
    # Where it will be trained: the steps of a large network on a CPU would take minutes, and memory of their own.
    device = "cuda" if cfg.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
    learner.to(device).train()
    mixed = torch.autocast(device, torch.bfloat16, enabled=cfg.trainer.precision == "bf16-mixed")
    with torch.random.fork_rng(()), _no_advice(), mixed:
        torch.manual_seed(cfg.seed)
        with PeakBytes() as count:
            tokens, labels_B = train.labelled_batch(rows)
            learner.training_step((tokens.to(device), labels_B.to(device)), 0).backward()
    learner.cpu()
    network.zero_grad(set_to_none=True)
    return count.peak


@contextmanager
def _no_advice() -> Iterator[None]:
    """Lightning warns that a step without a trainer logs nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        yield


def fitting_batch_size(network: CellTypeModel, train: Cells, cfg: TrainConfig, memory: float) -> int:
    """The largest power of two that fits into so many bytes; the same for the same budget, cells and options.

    Raises
    ------
    InputError
        Not even one cell fits.
    """
    longest = int(train.lengths.max())
    network.require_length(longest)
    few, more = (step_bytes(network, train, num, cfg) for num in TRIED)
    per_cell = (more - few) / (TRIED[1] - TRIED[0])
    weights = OF_WEIGHTS * sum(p.numel() * p.element_size() for p in network.parameters())
    fixed = weights + max(0.0, few - TRIED[0] * per_cell)
    if fixed + per_cell > SHARE * memory:
        raise InputError(
            f"a training step on one cell of {longest:,} tokens needs about {in_bytes((fixed + per_cell) / SHARE)}",
            f"at most {in_bytes(memory)}",
            "choose a smaller model, model.checkpointing=true or tokens.unexpressed=skip, or raise trainer.memory_gib",
        )
    most = min(MOST, max(USUAL, len(train) // FEWEST_STEPS))
    size = 1
    while 2 * size <= most and fixed + 2 * size * per_cell <= SHARE * memory:
        size *= 2
    log.info(
        "batch size %d: steps on cells of up to %s tokens need about %s of %s (trainer.batch_size=%d repeats it)",
        size,
        f"{longest:,}",
        in_bytes(fixed + size * per_cell),
        in_bytes(memory),
        size,
    )
    return size


def memory_budget(cfg: TrainConfig) -> float:
    """Bytes that training steps of each process may take: `trainer.memory_gib`, or what is free where they run."""
    if cfg.trainer.memory_gib is not None:
        return cfg.trainer.memory_gib * GIB
    if cfg.trainer.accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    return available_memory()


def with_batch_size(cfg: TrainConfig, train: Cells, network: CellTypeModel, run_folder: Path | None) -> TrainConfig:
    """The options with a number instead of `auto`: that of the run that is continued, or one that fits.

    Parameters
    ----------
    network
        An untrained network to try steps with; it is not changed.
    run_folder
        Where the number is looked up and recorded; None: nowhere.
    """
    if cfg.trainer.batch_size != AUTO:
        return cfg
    size = None if run_folder is None else recorded_batch_size(run_folder)
    if size is None:
        size = fitting_batch_size(network, train, cfg, memory_budget(cfg))
        if run_folder is not None and not is_helper(cfg):
            record_batch_size(run_folder, size)
    return replace(cfg, trainer=replace(cfg.trainer, batch_size=size, memory_gib=None))
