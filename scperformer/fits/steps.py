"""Training for a number of steps: the loss, the schedule, the seeds and the device.

A run is trained in Lightning (fits/trainer.py). A refit to the genes of a file, on the CPU, is a loop here: Lightning
takes seconds to import.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.adamw import adamw

from scperformer.base.errors import InputError
from scperformer.config.options import AUTO
from scperformer.config.training import NetworkOptions, OptimConfig, TrainerConfig
from scperformer.fits.logistic import CLASS_WEIGHT_POWERS
from scperformer.model.inference import fast_cpu
from scperformer.model.minibatches import seed_of

WARMUP_SHARE = 0.1  # of all steps, in which the learning rate rises
FINAL_LR = 0.05  # at the end of the cosine, as a share of `optim.lr`

StepBatch: TypeAlias = tuple[torch.Tensor, torch.Tensor]


def loss_weights(counts: np.ndarray, class_weights: str) -> torch.Tensor:
    """Return the weight of each label in the loss, by how often it occurs; float32, with mean 1 over the cells."""
    weights = np.where(
        counts > 0, np.maximum(counts, 1.0) ** -CLASS_WEIGHT_POWERS[class_weights], 0.0
    )
    return torch.tensor(weights / np.average(weights, weights=counts), dtype=torch.float32)


class LabelLoss(nn.Module):
    """Cross-entropy of logits, in which each label has a weight by how often it occurs in the training cells."""

    def __init__(self, labels: np.ndarray, num_labels: int, optim: OptimConfig):
        super().__init__()
        counts = np.bincount(labels, minlength=num_labels)
        self.weights = nn.Buffer(loss_weights(counts, optim.class_weights), persistent=False)
        self.label_smoothing = optim.label_smoothing

    def forward(self, logits_BC: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
        return cross_entropy(
            logits_BC.float(), labels_B, self.weights, label_smoothing=self.label_smoothing
        )


def lr_factor(step: int, num_steps: int) -> float:
    """Return the learning rate at a step as a fraction of its maximum: linear warm-up, then a cosine."""
    warmup = max(1, round(WARMUP_SHARE * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    return FINAL_LR + (1 - FINAL_LR) * (1 + math.cos(math.pi * done)) / 2


def seed_step(device: str, seed: int, step: int, rank: int = 0) -> None:
    """Set the seed of dropout in a step."""
    # torch.manual_seed would also note a stack trace for each kind of device that is not in use.
    set_seed = torch.default_generator.manual_seed if device == "cpu" else torch.manual_seed
    set_seed(seed_of("dropout", seed, step, rank))


@dataclass(frozen=True)
class Device:
    """The device that trains."""

    kind: str  # cuda, mps or cpu: names of torch and of Lightning
    precision: str  # 32-true or bf16-mixed
    why: str  # the name of the GPU, or the reason for the CPU

    @property
    def of_sums(self) -> str:
        """The device of sums over genes and linear fits: mps has no float64."""
        return "cuda" if self.kind == "cuda" else "cpu"


def device_of(options: TrainerConfig) -> Device:
    """Choose the device and the precision of a training; options that are not `auto` decide themselves.

    A missing GPU, and more processes than the machine has GPUs or CPU cores, are refused.
    """
    num_gpus = (
        torch.cuda.device_count()
        if torch.cuda.is_available()
        else int(torch.backends.mps.is_available())
    )
    on_cpu = options.accelerator == "cpu" or (options.accelerator == "auto" and not num_gpus)
    if not on_cpu and not num_gpus:
        found = "trainer.accelerator=gpu and no GPU"
        raise InputError("no-gpu", found, "a GPU that torch can use", "choose trainer=cpu")
    num, unit = (os.cpu_count() or 1, "CPU core") if on_cpu else (num_gpus, "GPU")
    if options.devices > num:
        found = f"trainer.devices={options.devices} and {num} {unit}{'s' if num > 1 else ''}"
        remedy = "lower trainer.devices" + ("" if on_cpu else ", or choose trainer.accelerator=cpu")
        raise InputError("devices", found, f"a {unit} for each process", remedy)
    # Emulated bfloat16, as on a V100, is slower than float32.
    is_cuda = not on_cpu and torch.cuda.is_available()
    is_fast = is_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    chosen = "bf16-mixed" if is_fast else "32-true"
    precision = chosen if options.precision == AUTO else options.precision
    if on_cpu:
        why = (
            "trainer.accelerator=cpu"
            if options.accelerator == "cpu"
            else "no GPU that torch can use"
        )
        return Device("cpu", precision, why)
    return Device(
        "cuda" if is_cuda else "mps",
        precision,
        torch.cuda.get_device_name() if is_cuda else "Apple GPU",
    )


class TrainedBySteps(Protocol):
    """What is trained for a number of steps: copies of a network; the loss of a batch is the sum of theirs."""

    num_copies: int
    weight_decay: float

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def start(self, device: torch.device) -> None: ...

    def loss_of(self, batch: StepBatch) -> torch.Tensor: ...


def take_steps(
    trained: TrainedBySteps,
    batches: Iterator[StepBatch],
    cfg: NetworkOptions,
    done: Callable[[int], object],
) -> None:
    """Train on the CPU as Lightning does, with the same bits; `done` is called with 1 after each step."""
    parameters: list[torch.Tensor] = list(trained.parameters())
    # AdamW as a function: its class imports the compiler of torch, which takes a second.
    means, squares = ([torch.zeros_like(each) for each in parameters] for _ in range(2))
    num_steps = [torch.tensor(0.0) for _ in parameters]
    trained.start(torch.device("cpu"))
    with fast_cpu("cpu"):
        for step, batch in enumerate(batches):
            seed_step("cpu", cfg.seed, step)
            for parameter in parameters:
                parameter.grad = None
            trained.loss_of(batch).backward()
            if cfg.optim.gradient_clip:
                clip_grad_norm_(parameters, cfg.optim.gradient_clip)
            gradients: list[Any] = [parameter.grad for parameter in parameters]
            with torch.no_grad():
                adamw(
                    parameters,
                    gradients,
                    means,
                    squares,
                    [],
                    num_steps,
                    amsgrad=False,
                    beta1=0.9,
                    beta2=0.999,
                    lr=cfg.optim.lr * lr_factor(step, cfg.trainer.max_steps),
                    weight_decay=trained.weight_decay,
                    eps=1e-8,
                    maximize=False,
                )
            done(1)
