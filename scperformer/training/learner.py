"""Training as Lightning sees it: loss, metrics, optimiser, what is saved when, and the loop over epochs.

Every random choice is a function of (seed, epoch) or (seed, step) alone, and checkpoints are written at the end of
epochs, and of the step at which a signal stops the run: one that was cut off and resumed repeats what was lost exactly.
"""

import math
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from torch.nn.functional import cross_entropy

from scperformer.config import OptimConfig, TrainConfig
from scperformer.metrics import negative_log_likelihood, score
from scperformer.network import Batch, Cells, CellTypeModel, drop_genes, seed_of
from scperformer.training.datamodule import CellsDataModule
from scperformer.training.epochs import EpochLog
from scperformer.training.scales import branch_scales
from scperformer.training.streaming import StreamedCells
from scperformer.training.trainer import checkpoints, load_best, make_trainer, run_trainer

F1, SCORE = "val_macro_f1", "val_score"
# Macro-F1 of few cells is a coarse number that many epochs share: a tenth of the loss decides between them.
LOSS_SHARE = 0.1


def loss_weights(labels: np.ndarray, class_weights: str) -> torch.Tensor:
    """Weight of each label in the loss, float32, C; their mean over the cells is 1.

    Parameters
    ----------
    labels
        Label index of each training cell; every label occurs.
    class_weights
        `none`: all 1. `balanced`: inverse to the label's number of cells. `sqrt`: the root of that.
    """
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[class_weights]
    counts = np.bincount(labels).astype(np.float64)
    weights = counts**-power
    return torch.tensor(weights / np.average(weights, weights=counts), dtype=torch.float32)


def lr_factor(step: int, num_steps: int, optim: OptimConfig) -> float:
    """Learning rate at a step as a share of its maximum: linear warm-up, then a cosine to `final_lr_fraction`."""
    warmup = max(1, round(optim.warmup_fraction * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, num_steps - warmup))
    return optim.final_lr_fraction + (1 - optim.final_lr_fraction) * (1 + math.cos(math.pi * progress)) / 2


def wide_lr_factor(network: CellTypeModel, optim: OptimConfig) -> float:
    """The learning rate of the wide branch as a share of `optim.lr`; 0: it is not trained."""
    if network.wide is None:
        return 0.0
    return optim.wide_lr_factor if optim.wide_start == "logistic" else 1.0


def has_to_learn(network: CellTypeModel, optim: OptimConfig) -> bool:
    """Whether there is anything to train: not where a fitted wide branch is all there is."""
    return network.encoder is not None or wide_lr_factor(network, optim) > 0


def share_of_step(weight: torch.Tensor) -> torch.Tensor | float:
    """What the loss of this process counts in a step of several: its weight, as a share of their mean.

    Gradients are averaged over the processes. With this factor they are those of all their cells in one batch.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1.0
    total = weight.detach().clone()
    torch.distributed.all_reduce(total)
    return weight * torch.distributed.get_world_size() / total


class Learner(pl.LightningModule):
    """The network with its loss, metrics and optimiser.

    Parameters
    ----------
    network
        The model to train.
    weights
        Weight of each label in the loss, C.
    num_steps
        Optimiser steps of the whole run, for the learning-rate schedule.
    gene_dropout
        Share of a cell's genes that each step hides from the encoder.
    encoder_lr_factor
        The encoder learns at this share of the learning rate.
    """

    def __init__(
        self,
        network: CellTypeModel,
        *,
        weights: torch.Tensor,
        optim: OptimConfig,
        num_steps: int,
        seed: int,
        gene_dropout: float = 0.0,
        encoder_lr_factor: float = 1.0,
    ):
        super().__init__()
        self.network = network
        self.label_weights: torch.Tensor
        self.register_buffer("label_weights", weights)
        self.optim = optim
        self.num_steps = num_steps
        self.redraw_interval = network.redraw_interval
        self.gene_dropout = gene_dropout
        self.encoder_lr_factor = encoder_lr_factor
        self.wide_lr_factor = wide_lr_factor(network, optim)
        if network.wide is not None:
            network.wide.requires_grad_(self.wide_lr_factor > 0)
        self.seed = seed

    def on_train_batch_start(self, batch: tuple[Batch, torch.Tensor], batch_idx: int) -> None:
        step = self.global_step
        # Dropout: the same masks whether the run came here in one go or was resumed. Not once an epoch: loaders
        # draw from the same generator, and how often depends on whether the run was resumed.
        torch.manual_seed(seed_of("dropout", self.seed, step, self.global_rank))
        if self.redraw_interval and step > 0 and step % self.redraw_interval == 0:
            self.network.redraw(torch.Generator().manual_seed(seed_of("redraw", self.seed, step)))

    def training_step(self, batch: tuple[Batch, torch.Tensor], batch_idx: int) -> torch.Tensor:
        tokens, labels_B = batch
        share, in_place = self.gene_dropout, self.network.has_memory
        seen = drop_genes(tokens, share, in_place) if share else tokens
        wide_BC, deep_BC, _ = self.network.branches(tokens, seen)
        loss = self.loss(wide_BC + deep_BC, labels_B)
        if self.network.has_both and self.optim.deep_loss_weight:
            # A wide branch that fits its training cells leaves the encoder nothing to learn from their sum.
            loss = loss + self.optim.deep_loss_weight * self.loss(deep_BC, labels_B)
        loss = loss * share_of_step(self.label_weights[labels_B].sum()) + self.network.penalty().to(loss.device)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(labels_B), sync_dist=True)
        return loss

    def loss(self, logits_BC: torch.Tensor, labels_B: torch.Tensor) -> torch.Tensor:
        """Cross-entropy with the label weights and smoothing of the configuration."""
        smoothing = self.optim.label_smoothing
        return cross_entropy(logits_BC.float(), labels_B, weight=self.label_weights, label_smoothing=smoothing)

    def on_validation_epoch_start(self) -> None:
        self.val_outputs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def validation_step(self, batch: tuple[Batch, torch.Tensor], batch_idx: int) -> None:
        tokens, labels_B = batch
        wide_BC, deep_BC, _ = self.network.branches(tokens)
        self.val_outputs.append((wide_BC.expand_as(deep_BC).float().cpu(), deep_BC.float().cpu(), labels_B.cpu()))

    def on_validation_epoch_end(self) -> None:
        wide, deep, labels = (torch.cat(parts).numpy() for parts in zip(*self.val_outputs, strict=True))
        # The model that this epoch would give: its branches scaled on these cells, as at the end of training.
        scale_wide, scale_deep = branch_scales(wide, deep, labels)
        logits = scale_wide * wide + scale_deep * deep
        scores, loss = score(labels, logits.argmax(1)), negative_log_likelihood(logits, labels)
        self.log(F1, scores.macro_f1, prog_bar=True)
        self.log("val_accuracy", scores.accuracy)
        self.log("val_loss", loss)
        self.log("val_scale_wide", scale_wide)
        self.log("val_scale_deep", scale_deep)
        self.log(SCORE, scores.macro_f1 - LOSS_SHARE * loss)

    def configure_optimizers(self):
        optim = self.optim
        wide = [] if self.network.wide is None else list(self.network.wide.parameters())
        deep = [(name, p) for name, p in self.network.named_parameters() if not name.startswith("wide.")]
        slow = [p for name, p in deep if self.encoder_lr_factor != 1 and name.startswith("encoder.")]
        rest = [p for name, p in deep if self.encoder_lr_factor == 1 or not name.startswith("encoder.")]
        rates = ((rest, optim.lr), (slow, optim.lr * self.encoder_lr_factor))
        groups = [{"params": part, "lr": lr, "weight_decay": optim.weight_decay} for part, lr in rates if part]
        if self.wide_lr_factor:
            # Its start is a penalised fit already: decay would pull it away from that.
            groups.append({"params": wide, "lr": optim.lr * self.wide_lr_factor, "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(groups, lr=optim.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, self.num_steps, optim))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train_network(
    network: CellTypeModel, train: Cells | StreamedCells, val: Cells, cfg: TrainConfig, run_folder: Path
) -> int | None:
    """Train with Lightning and leave the weights of the best epoch in `network`.

    A checkpoint `last.ckpt` in the run folder is continued from.

    Returns
    -------
    The best epoch, counted from 1; 0 if there is nothing to train (a fitted wide branch alone); None in the processes
    of a distributed run that only help.
    """
    if not has_to_learn(network, cfg.optim):
        return 0
    folder = run_folder / "checkpoints"
    world_size = cfg.trainer.devices * cfg.trainer.num_nodes
    num_batches = math.ceil(len(train) / cfg.trainer.batch_size)
    learner = Learner(
        network,
        weights=loss_weights(train.known_labels, cfg.optim.class_weights),
        optim=cfg.optim,
        num_steps=cfg.trainer.max_epochs * math.ceil(num_batches / world_size),
        seed=cfg.seed,
        gene_dropout=cfg.model.gene_dropout,
        encoder_lr_factor=1.0 if cfg.init is None else cfg.optim.init_lr_factor,
    )
    best, callbacks = checkpoints(folder, cfg.trainer, EpochLog(folder.parent), monitor=SCORE, mode="max")
    trainer = make_trainer(cfg, callbacks, run_folder)
    data = CellsDataModule(train, val, cfg.trainer.batch_size, cfg.seed, cfg.data.balance)
    run_trainer(trainer, learner, data, cfg, folder)
    return load_best(network, best) if trainer.is_global_zero else None
