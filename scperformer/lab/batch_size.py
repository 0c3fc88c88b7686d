"""`trainer.batch_size=auto`: the largest batch that fits into the memory of a GPU, by steps on the longest cells."""

from __future__ import annotations

import gc
import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scperformer.base.errors import InputError
from scperformer.config.options import AUTO
from scperformer.config.training import TrainOptions
from scperformer.lab.epochs import EncoderLearner
from scperformer.model.batches import Cells
from scperformer.training.run_folder import Run
from scperformer.training.trainer import Device, device_of

log = logging.getLogger(__name__)

LARGEST_BATCH = 256  # cells; larger batches learn no faster
MIN_STEPS = 16  # per epoch
DEFAULT_SIZE = 32  # cells; of a CPU, and allowed even if an epoch then has fewer steps
MEMORY_SHARE = 0.8  # of the GPU's memory that trial steps may use: training also has moments of the weights


def try_step(learner: EncoderLearner, train: Cells, num_cells: int, cfg: TrainOptions, device: Device) -> None:
    """Take a training step on the longest cells, without changing weights."""
    rows = np.argsort(-train.lengths, kind="stable")[:num_cells]
    torch.manual_seed(cfg.seed)
    with torch.autocast(device.kind, torch.bfloat16, enabled=device.precision == "bf16-mixed"):
        tokens, labels_B = train.labelled_batch(np.resize(rows, num_cells))
        loss: Any = learner.training_step((tokens.to(device.kind), labels_B.to(device.kind)), 0)
    loss.backward()
    learner.zero_grad(set_to_none=True)


def largest_batch(learner: EncoderLearner, train: Cells, cfg: TrainOptions, device: Device) -> int:
    """Return the largest power of two of cells that fits into the memory of a GPU; refuse if not even one cell fits."""
    most = min(LARGEST_BATCH, max(DEFAULT_SIZE, len(train) // MIN_STEPS))
    size = 0
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE)
    try:
        learner.to(device.kind).train()
        with torch.random.fork_rng(), warnings.catch_warnings():
            # Lightning warns that a step without a trainer logs nothing.
            warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
            while max(1, 2 * size) <= most:
                try_step(learner, train, max(1, 2 * size), cfg, device)
                size = max(1, 2 * size)
    except torch.OutOfMemoryError as error:
        if size == 0:
            found = f"a training step on one cell of {int(train.lengths.max()):,} tokens, which needs more memory"
            remedy = "choose a smaller model, model.checkpointing=true or tokens.unexpressed=skip"
            raise InputError(found, "one that fits into the memory of the GPU", remedy) from error
    finally:
        learner.zero_grad(set_to_none=True)
        learner.cpu()
        gc.collect()  # a failed step leaves its tensors in the traceback
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)
    return size


def with_batch_size(cfg: TrainOptions, train: Cells, learner: EncoderLearner, run: Run | None) -> TrainOptions:
    """Replace `auto` by the batch size in the record of the run, or by the largest that fits, and record it."""
    trainer = cfg.trainer
    if trainer.batch_size != AUTO:
        return cfg
    size = None if run is None else run.read().get("batch_size")
    if size is None:
        device = device_of(trainer)
        size = largest_batch(learner, train, cfg, device) if device.kind == "cuda" else DEFAULT_SIZE
        log.info("batch size %d (trainer.batch_size=%d repeats it)", size, size)
        if run is not None:
            run.remember(batch_size=size)
    return replace(cfg, trainer=replace(trainer, batch_size=size))
