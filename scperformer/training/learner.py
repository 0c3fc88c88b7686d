"""Training with labels as Lightning sees it: loss, metrics and optimiser.

Every random choice is a function of (seed, epoch) or (seed, step) alone, and checkpoints are written at the end of
epochs and where a signal stops the run: a run that was cut off and resumed repeats the lost part exactly.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.nn.functional import cross_entropy

from scperformer.config import NetworkConfig, OptimConfig, TrainConfig
from scperformer.metrics import negative_log_likelihood, score
from scperformer.network import Batch, Cells, CellTypeModel, Encoder, drop_genes, seed_of
from scperformer.training.learning_curve import EpochLog
from scperformer.training.scales import branch_scales
from scperformer.training.source import Labelled, StreamedCells
from scperformer.training.trainer import num_steps, run_epochs

SCORE = "val_score"
# Macro-F1 of few cells is a coarse number that many epochs share: a tenth of the loss decides between them.
LOSS_SHARE = 0.1
COLUMNS = ("train_loss", "val_loss", "val_macro_f1", "val_accuracy")
LINE = "training loss %(train_loss).3f, validation macro-F1 %(val_macro_f1).3f, accuracy %(val_accuracy).3f"


def loss_weights(labels: np.ndarray, class_weights: str) -> torch.Tensor:
    """Weigh each label in the loss, float32, C; the mean over the cells is 1.

    `class_weights` is `none` (all 1), `balanced` (inverse to the label's number of cells) or `sqrt` (the root of that).
    """
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[class_weights]
    counts = np.bincount(labels).astype(np.float64)
    weights = counts**-power
    return torch.tensor(weights / np.average(weights, weights=counts), dtype=torch.float32)


def lr_factor(step: int, num_steps: int, optim: OptimConfig) -> float:
    """The learning rate at a step as a fraction of its maximum: linear warm-up, then a cosine."""
    warmup = max(1, round(optim.warmup_fraction * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    return optim.final_lr_fraction + (1 - optim.final_lr_fraction) * (1 + math.cos(math.pi * progress)) / 2


def wide_lr_factor(network: CellTypeModel, optim: OptimConfig) -> float:
    """The learning rate of the linear branch as a fraction of `optim.lr`; 0: it is not trained."""
    if network.wide is None:
        return 0.0
    return optim.wide_lr_factor if optim.wide_start == "logistic" else 1.0


def has_to_learn(network: CellTypeModel, optim: OptimConfig) -> bool:
    """Whether there is anything to train: a linear branch that was fitted needs no training."""
    return network.encoder is not None or wide_lr_factor(network, optim) > 0


def process_factor(weight: torch.Tensor) -> torch.Tensor | float:
    """The factor of this process's loss in a distributed step: its weight divided by the mean over the processes.

    Gradients are averaged over the processes. With this factor they are the gradients of one batch of all cells.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1.0
    total = weight.detach().clone()
    torch.distributed.all_reduce(total)
    return weight * torch.distributed.get_world_size() / total


class EncoderLearner(pl.LightningModule):
    """The parts that training with labels and pretraining share: seeds of each step, hidden genes, the schedule."""

    def __init__(self, network: torch.nn.Module, cfg: NetworkConfig, num_steps: int):
        super().__init__()
        self.network, self.num_steps = network, num_steps
        self.seed, self.optim, self.gene_dropout = cfg.seed, cfg.optim, cfg.model.gene_dropout

    @property
    def encoder(self) -> Encoder | None:
        return self.network.encoder  # type: ignore[return-value]

    def on_train_batch_start(self, batch: Labelled, batch_idx: int) -> None:
        step = self.global_step
        # Dropout: the same masks whether or not the run was resumed. Not once an epoch: loaders draw from the same
        # generator, and how often depends on whether the run was resumed.
        torch.manual_seed(seed_of("dropout", self.seed, step, self.global_rank))
        encoder = self.encoder
        if encoder is not None and encoder.redraw_interval and step > 0 and step % encoder.redraw_interval == 0:
            encoder.redraw(torch.Generator().manual_seed(seed_of("redraw", self.seed, step)))

    def with_genes_dropped(self, tokens: Batch) -> Batch:
        """Hide a random part of each cell's genes from the encoder, `model.gene_dropout` of them."""
        if self.encoder is None or not self.gene_dropout:
            return tokens
        return drop_genes(tokens, self.gene_dropout, self.encoder.has_memory)

    def scheduled(self, optimizer: torch.optim.Optimizer) -> Any:
        """Give Lightning the optimiser with the learning-rate schedule."""
        factor = lambda step: lr_factor(step, self.num_steps, self.optim)  # noqa: E731
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Learner(EncoderLearner):
    """A cell-type network with its loss, metrics and optimiser; `labels` of the training cells give their weights."""

    network: CellTypeModel

    def __init__(self, network: CellTypeModel, labels: np.ndarray, cfg: TrainConfig, num_steps: int):
        super().__init__(network, cfg, num_steps)
        self.label_weights: torch.Tensor
        self.register_buffer("label_weights", loss_weights(labels, cfg.optim.class_weights))
        self.encoder_lr_factor = 1.0 if cfg.init is None else cfg.optim.init_lr_factor
        self.wide_lr_factor = wide_lr_factor(network, cfg.optim)
        if network.wide is not None:
            network.wide.requires_grad_(self.wide_lr_factor > 0)

    def training_step(self, batch: Labelled, batch_idx: int) -> torch.Tensor:
        tokens, labels_B = batch
        wide_BC, deep_BC, _ = self.network.branches(tokens, self.with_genes_dropped(tokens))
        loss = self.loss(wide_BC + deep_BC, labels_B)
        if self.network.has_both and self.optim.deep_loss_weight:
            # A linear branch that fits its training cells leaves the encoder nothing to learn from their sum.
            loss = loss + self.optim.deep_loss_weight * self.loss(deep_BC, labels_B)
        loss = loss * process_factor(self.label_weights[labels_B].sum()) + self.network.penalty().to(loss.device)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(labels_B), sync_dist=True)
        return loss

    def loss(self, logits_BC: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
        """Cross-entropy with the label weights and smoothing of the configuration."""
        smoothing = self.optim.label_smoothing
        return cross_entropy(logits_BC.float(), labels_B, weight=self.label_weights, label_smoothing=smoothing)

    def on_validation_epoch_start(self) -> None:
        self.val_outputs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def validation_step(self, batch: Labelled, batch_idx: int) -> None:
        tokens, labels_B = batch
        wide_BC, deep_BC, _ = self.network.branches(tokens)
        self.val_outputs.append((wide_BC.expand_as(deep_BC).float().cpu(), deep_BC.float().cpu(), labels_B.cpu()))

    def on_validation_epoch_end(self) -> None:
        wide, deep, labels = (torch.cat(parts).numpy() for parts in zip(*self.val_outputs, strict=True))
        # The model that this epoch would give: its branches scaled on these cells, as at the end of training.
        scale_wide, scale_deep = branch_scales(wide, deep, labels)
        logits = scale_wide * wide + scale_deep * deep
        scores, loss = score(labels, logits.argmax(1)), negative_log_likelihood(logits, labels)
        self.log("val_macro_f1", scores.macro_f1, prog_bar=True)
        self.log("val_accuracy", scores.accuracy)
        self.log("val_loss", loss)
        self.log("val_scale_wide", scale_wide)
        self.log("val_scale_deep", scale_deep)
        self.log(SCORE, scores.macro_f1 - LOSS_SHARE * loss)

    def configure_optimizers(self) -> Any:
        optim = self.optim
        deep = [(name, p) for name, p in self.network.named_parameters() if not name.startswith("wide.")]
        slow = [p for name, p in deep if self.encoder_lr_factor != 1 and name.startswith("encoder.")]
        rest = [p for name, p in deep if self.encoder_lr_factor == 1 or not name.startswith("encoder.")]
        rates = ((rest, optim.lr), (slow, optim.lr * self.encoder_lr_factor))
        groups = [{"params": part, "lr": lr, "weight_decay": optim.weight_decay} for part, lr in rates if part]
        if self.wide_lr_factor and self.network.wide is not None:
            # Its start is a penalised fit already: decay would pull it away from that.
            wide = list(self.network.wide.parameters())
            groups.append({"params": wide, "lr": optim.lr * self.wide_lr_factor, "weight_decay": 0.0})
        return self.scheduled(torch.optim.AdamW(groups, lr=optim.lr))


def train_network(
    network: CellTypeModel, train: Cells | StreamedCells, val: Cells, cfg: TrainConfig, run_folder: Path
) -> int | None:
    """Train with Lightning and leave the weights of the best epoch in `network`; see `run_epochs`.

    Returns
    -------
    The best epoch, counted from 1; 0 if there is nothing to train (a fitted linear branch alone); None in the helping
    processes of a distributed run.
    """
    if not has_to_learn(network, cfg.optim):
        return 0
    learner = Learner(network, train.known_labels, cfg, num_steps(len(train), cfg.trainer))
    epoch_log = EpochLog(run_folder, COLUMNS, LINE)
    return run_epochs(learner, train, val, cfg, run_folder, epoch_log=epoch_log, monitor=SCORE, mode="max")
