"""What all trainings in Lightning share: the seed of each step, the conditions of the cells, and the schedule.

Every random choice is a function of (seed, epoch) or (seed, step) alone, and checkpoints are written at the end of
epochs and where a signal stops the run: a run that was cut off and resumed repeats the lost part exactly.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from scperformer.attention.tokens import Batch
from scperformer.config.training import NetworkConfig, OptimConfig
from scperformer.model.batches import drop_genes, seed_of
from scperformer.training.loaders import Labelled


def loss_weights(counts: np.ndarray, class_weights: str) -> torch.Tensor:
    """Return the weight of each label in the loss, by how often it occurs; float32, with mean 1 over the cells."""
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[class_weights]
    weights = np.where(counts > 0, np.maximum(counts, 1.0) ** -power, 0.0)
    return torch.tensor(weights / np.average(weights, weights=counts), dtype=torch.float32)


def lr_factor(step: int, num_steps: int, optim: OptimConfig) -> float:
    """Return the learning rate at a step as a fraction of its maximum: linear warm-up, then a cosine."""
    warmup = max(1, round(optim.warmup_fraction * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    return optim.final_lr_fraction + (1 - optim.final_lr_fraction) * (1 + math.cos(math.pi * progress)) / 2


def process_factor(weight: torch.Tensor) -> torch.Tensor | float:
    """Return the factor of a loss with which the mean gradient of all processes is that of one batch of all cells."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1.0
    total = weight.detach().clone()
    torch.distributed.all_reduce(total)
    return weight * torch.distributed.get_world_size() / total


class SeededLearner(pl.LightningModule):
    """What all trainings share: the seed of each step and the schedule of the learning rate."""

    num_steps = 1  # of the whole run, for the schedule of the learning rate

    def __init__(self, cfg: NetworkConfig):
        super().__init__()
        self.seed = cfg.seed
        self.optim = cfg.optim

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout draws the same masks whether or not the run was resumed. The seed is set in each step and not once an
        # epoch, as loaders draw from the same generator, and a resumed run draws less often.
        # torch.manual_seed would also note a stack trace for each kind of device that is not in use.
        set_seed = torch.default_generator.manual_seed if self.device.type == "cpu" else torch.manual_seed
        set_seed(seed_of("dropout", self.seed, self.global_step, self.global_rank))

    def scheduled(self, groups: list[dict[str, Any]]) -> Any:
        """Give Lightning the optimiser of these groups of parameters, with the learning-rate schedule."""
        optimizer = torch.optim.AdamW(groups, lr=self.optim.lr)
        factor = partial(lr_factor, num_steps=self.num_steps, optim=self.optim)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class EncoderLearner(SeededLearner):
    """What training of layers with labels and pretraining share: dropped genes, and the metrics of an epoch."""

    network: Any  # a CellTypeModel or MaskedModel
    monitor: str  # the metric whose best value (`mode`: max or min) is that of the best epoch
    mode: str
    columns: tuple[str, ...]  # the metrics in the table of epochs
    line: str  # the text of a log line about them
    shown = "val_loss", "validation loss"  # the metric whose best value the progress bar shows, and its name there

    def __init__(self, network: torch.nn.Module, cfg: NetworkConfig):
        super().__init__(cfg)
        self.network = network
        self.gene_dropout = cfg.model.gene_dropout

    def on_train_batch_start(self, batch: Labelled, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        step = self.global_step
        encoder = self.network.encoder
        if encoder is not None and encoder.redraw_interval and step > 0 and step % encoder.redraw_interval == 0:
            encoder.redraw(torch.Generator().manual_seed(seed_of("redraw", self.seed, step)))

    def with_genes_dropped(self, tokens: Batch) -> Batch:
        """Return cells with a share `model.gene_dropout` of their genes dropped."""
        if self.network.encoder is None or not self.gene_dropout:
            return tokens
        return drop_genes(tokens, self.gene_dropout, self.network.encoder.has_memory)
