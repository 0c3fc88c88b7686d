"""`trainer.batch_size=auto`: the largest batch that fits into memory, from the memory of real training steps."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from scperformer.attention.tokens import Batch
from scperformer.base.errors import InputError
from scperformer.base.messages import in_bytes
from scperformer.config.options import AUTO
from scperformer.config.training import TrainOptions
from scperformer.lab.epochs import EncoderLearner
from scperformer.model.batches import Cells
from scperformer.training.run_folder import Run
from scperformer.training.trainer import device_of

log = logging.getLogger(__name__)

LARGEST_BATCH = 256  # cells; larger batches learn no faster
MIN_STEPS = 16  # per epoch
DEFAULT_SIZE = 32  # cells; a batch of this size is allowed even if an epoch then has fewer steps
MEMORY_SHARE = 0.6  # share of the memory that is used: processes on CPUs grew by up to 1.5 times the bytes measured
WEIGHT_COPIES = 4  # the weights, the two moments of AdamW, and the results of its step
TRIAL_TOKENS = 2**12  # of a step that is measured, at most: scBERT's layers take some seconds for them on one core
TRIED = (2, 4)  # batch sizes that are measured; the bytes of larger batches lie on the line through these


def peak_bytes(step: Callable[[], None], device: str) -> int:
    """Run a step and return the peak number of bytes of its tensors, which is the same on every CPU."""
    if device == "cuda":
        step()  # the first step also allocates the workspaces of cuBLAS, which stay
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    # The profiler writes lines of its own to the terminal by default.
    quiet = patch.dict(os.environ, {"KINETO_LOG_LEVEL": "99"})
    with quiet, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.NamedTemporaryFile(suffix=".json") as trace:
        profiler.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    changes = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    return max(itertools.accumulate(event["args"]["Bytes"] for event in changes))


def step_bytes(
    learner: EncoderLearner, train: Cells, num_cells: int, cfg: TrainOptions, num_tokens: int | None = None
) -> int:
    """Measure the bytes that a step on (so many tokens of) the longest cells takes in addition to the weights."""
    rows = np.argsort(-train.lengths, kind="stable")[:num_cells]
    # Measure on the device of the training: on a CPU, steps of a large network take minutes and other memory.
    chosen = device_of(cfg.trainer)
    device = "cuda" if chosen.kind == "cuda" else "cpu"
    learner.to(device).train()

    def step() -> None:
        torch.manual_seed(cfg.seed)
        with torch.autocast(device, torch.bfloat16, enabled=chosen.precision == "bf16-mixed"):
            tokens, labels_B = train.labelled_batch(rows)
            tokens = Batch(*(tensor[:, :num_tokens] for tensor in tokens.tensors))
            loss: Any = learner.training_step((tokens.to(device), labels_B.to(device)), 0)
        loss.backward()
        learner.zero_grad(set_to_none=True)

    with torch.random.fork_rng(()), warnings.catch_warnings():
        # Lightning warns that a step without a trainer logs nothing.
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        found = peak_bytes(step, device)
    learner.cpu()
    return found


# Of a Linux control group, versions 2 and 1: its folder, its limit, its use, and the entry of memory.stat for cached
# files. Inactive pages of these count as used, but the kernel frees them when memory is needed.
GROUPS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate; without Linux's files, half of the machine's memory."""
    table = root / "proc/meminfo"
    if not table.is_file():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    free = [int(re.findall(r"MemAvailable: +(\d+)", table.read_text())[0]) * 1024]
    own = root / "proc/self/cgroup"
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, limit, used, cached = GROUPS[bool(controllers)]
        top = root / "sys/fs/cgroup" / folder
        group = top / name.strip("/")
        # In a container that shares the host's namespace, only the groups from `top` on may exist.
        for part in (group, *group.parents):
            if part.is_relative_to(top) and (part / limit).is_file() and (part / used).is_file():
                most = (part / limit).read_text().strip()
                stat = (part / "memory.stat").read_text() if (part / "memory.stat").is_file() else ""
                pages = re.search(rf"^{cached} (\d+)", stat, re.MULTILINE)
                if most != "max":
                    free.append(int(most) - int((part / used).read_text()) + (int(pages[1]) if pages else 0))
    return max(0, min(free))


def fitting_batch_size(learner: EncoderLearner, train: Cells, cfg: TrainOptions, memory: float) -> int:
    """Find the largest power of two that fits into `memory` bytes; refuse if not even one cell fits."""
    network = learner.network
    longest = int(train.lengths.max())
    # With sums over keys, the bytes of a cell are a constant plus a multiple of its tokens: in proportion to a part of
    # its tokens they come out too large rather than too small (scBERT, 3,072 tokens: by 12%).
    is_linear = all(mechanism.additive for mechanism in network.encoder.mechanisms)
    num_tokens = min(longest, TRIAL_TOKENS // TRIED[1]) if is_linear else longest
    few, more = (step_bytes(learner, train, num, cfg, num_tokens) for num in TRIED)
    measured = (more - few) / (TRIED[1] - TRIED[0])
    per_cell = measured * longest / num_tokens
    if num_tokens < longest:
        text = "batch size: measured on %s tokens of each cell, and extrapolated to the %s of the longest"
        log.info(text, f"{num_tokens:,}", f"{longest:,}")
    weights = WEIGHT_COPIES * sum(p.numel() * p.element_size() for p in network.parameters())
    fixed = weights + max(0.0, few - TRIED[0] * measured)
    if fixed + per_cell > MEMORY_SHARE * memory:
        needed = in_bytes((fixed + per_cell) / MEMORY_SHARE)
        found = f"a training step on one cell of {longest:,} tokens needs about {needed}"
        others = "model.checkpointing=true or tokens.unexpressed=skip"
        raise InputError(found, f"at most {in_bytes(memory)}", f"choose a smaller model, {others}")
    most = min(LARGEST_BATCH, max(DEFAULT_SIZE, len(train) // MIN_STEPS))
    size = 1
    while 2 * size <= most and fixed + 2 * size * per_cell <= MEMORY_SHARE * memory:
        size *= 2
    text = "batch size %d: steps on cells of up to %s tokens need about %s of %s (trainer.batch_size=%d repeats it)"
    log.info(text, size, f"{longest:,}", in_bytes(fixed + size * per_cell), in_bytes(memory), size)
    return size


def with_batch_size(cfg: TrainOptions, train: Cells, learner: EncoderLearner, run: Run | None) -> TrainOptions:
    """Replace `auto` by the batch size in the record of the run, or by the largest that fits, and record it."""
    trainer = cfg.trainer
    if trainer.batch_size != AUTO:
        return cfg
    size = None if run is None else run.read().get("batch_size")
    if size is None:
        on_gpu = device_of(trainer).kind == "cuda"
        memory = torch.cuda.mem_get_info()[0] if on_gpu else available_memory()
        size = fitting_batch_size(learner, train, cfg, memory)
        if run is not None:
            run.remember(batch_size=size)
    return replace(cfg, trainer=replace(trainer, batch_size=size))
