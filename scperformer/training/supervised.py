"""Training with labels in Lightning: loss, metrics and optimiser.

Every random choice is a function of (seed, epoch) or (seed, step) alone, and checkpoints are written at the end of
epochs and where a signal stops the run: a run that was cut off and resumed repeats the lost part exactly.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import cross_entropy

from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.config import NetworkConfig, OptimConfig, TrainConfig
from scperformer.fitting import branch_scales
from scperformer.network import Batch, Cells, CellTypeModel, drop_genes, gene_means, seed_of, simulate_conditions
from scperformer.training.loaders import Labelled, StreamedCells
from scperformer.training.trainer import run_epochs

# Many epochs have the same macro-F1 if there are few validation cells: a tenth of the loss decides between them.
LOSS_SHARE = 0.1


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


def variability(x: csr_matrix) -> torch.Tensor:
    """Return the logarithm of variance / mean of each gene, float32 G, from ln(1 + cp10k) of cells."""
    linear = x.copy()
    linear.data = np.expm1(linear.data)
    mean = gene_means(linear)
    linear.data **= 2
    dispersion = np.maximum(gene_means(linear) - mean**2, 0) / np.maximum(mean, 1e-9)
    return torch.from_numpy(np.log(np.maximum(dispersion, 1e-3))).float()


def informative_genes(x: csr_matrix, labels: np.ndarray) -> torch.Tensor:
    """Order genes as for a targeted panel: the best marker of each label first, then the second best; int64 G.

    A marker has a higher mean of ln(1 + cp10k) in its label than in the other cells, relative to its deviation.
    """
    num_cells = np.bincount(labels)[:, None]
    is_label = csr_matrix((np.ones(len(labels)), (labels, np.arange(len(labels)))))
    sums = (is_label @ x).toarray()
    total = sums.sum(axis=0)
    squares = gene_means(x.multiply(x).tocsr())
    deviation = np.sqrt(np.maximum(squares - (total / len(labels)) ** 2, 0))
    others = (total - sums) / np.maximum(len(labels) - num_cells, 1)
    gain = (sums / np.maximum(num_cells, 1) - others) / (deviation + np.median(deviation[deviation > 0]))
    places = np.argsort(np.argsort(-gain, axis=1, kind="stable"), axis=1)
    return torch.from_numpy(np.argsort(places.min(axis=0), kind="stable"))


def process_factor(weight: torch.Tensor) -> torch.Tensor | float:
    """Return the factor of a loss with which the mean gradient of all processes is that of one batch of all cells."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1.0
    total = weight.detach().clone()
    torch.distributed.all_reduce(total)
    return weight * torch.distributed.get_world_size() / total


class EncoderLearner(pl.LightningModule):
    """What training with labels and pretraining share: the seed of each step, dropped genes, the schedule."""

    network: Any  # a CellTypeModel or MaskedModel
    monitor: str  # the metric whose best value (`mode`: max or min) is that of the best epoch
    mode: str
    columns: tuple[str, ...]  # the metrics in the table of epochs
    line: str  # the text of a log line about them
    shown = "val_loss", "validation loss"  # the metric whose best value the progress bar shows, and its name there
    num_steps = 1  # of the whole run, for the schedule of the learning rate; `run_epochs` sets it

    def __init__(self, network: torch.nn.Module, cfg: NetworkConfig):
        super().__init__()
        self.network = network
        self.seed = cfg.seed
        self.optim = cfg.optim
        self.gene_dropout = cfg.model.gene_dropout
        self.conditions = cfg.conditions
        self.tokens = cfg.tokens
        self.target_sum = cfg.data.target_sum
        self.variability_G = self.informative_G = torch.empty(0)  # see `random_panel`

    def on_train_batch_start(self, batch: Labelled, batch_idx: int) -> None:
        step = self.global_step
        encoder = self.network.encoder
        # Dropout draws the same masks whether or not the run was resumed. The seed is set in each step and not once an
        # epoch, as loaders draw from the same generator, and a resumed run draws less often.
        torch.manual_seed(seed_of("dropout", self.seed, step, self.global_rank))
        if encoder is not None and encoder.redraw_interval and step > 0 and step % encoder.redraw_interval == 0:
            encoder.redraw(torch.Generator().manual_seed(seed_of("redraw", self.seed, step)))

    def learn_under_conditions(self, train: Cells, labels: np.ndarray | None = None) -> None:
        """Rank the genes that random panels prefer, if `conditions` are on: variable ones and, with labels, markers."""
        if self.conditions.on:
            self.variability_G = variability(train.x)
            by_variability_G = self.variability_G.argsort(descending=True, stable=True)
            self.informative_G = by_variability_G if labels is None else informative_genes(train.x, labels)

    def with_genes_dropped(self, tokens: Batch) -> Batch:
        """Return cells under random conditions, or else with a share `model.gene_dropout` of their genes dropped."""
        if self.network.encoder is not None and self.conditions.on:
            preferred = self.variability_G, self.informative_G
            tokens = simulate_conditions(tokens, self.conditions, self.tokens, *preferred, self.target_sum)
        if self.network.encoder is None or self.conditions.on or not self.gene_dropout:
            return tokens
        return drop_genes(tokens, self.gene_dropout, self.network.encoder.has_memory)

    def scheduled(self, groups: list[dict[str, Any]]) -> Any:
        """Give Lightning the optimiser of these groups of parameters, with the learning-rate schedule."""
        optimizer = torch.optim.AdamW(groups, lr=self.optim.lr)
        factor = partial(lr_factor, num_steps=self.num_steps, optim=self.optim)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Learner(EncoderLearner):
    """A cell-type network with its loss, metrics and optimiser; `labels` of the training cells give their weights."""

    network: CellTypeModel
    monitor = "val_score"
    mode = "max"
    columns = ("train_loss", "val_loss", "val_macro_f1", "val_accuracy")
    shown = "val_macro_f1", "macro-F1"
    line = "training loss %(train_loss).3f, validation macro-F1 %(val_macro_f1).3f, accuracy %(val_accuracy).3f"

    def __init__(self, network: CellTypeModel, labels: np.ndarray, cfg: TrainConfig):
        super().__init__(network, cfg)
        self.label_weights: torch.Tensor
        counts = np.bincount(labels, minlength=network.num_labels)
        self.register_buffer("label_weights", loss_weights(counts, cfg.optim.class_weights))
        # Layers on top of the fitted encoder, which is not trained further, start with outputs of 0.
        is_coexpression = cfg.model.encoder and cfg.model.positions == "coexpression"
        if is_coexpression and network.encoder is not None:
            network.head.requires_grad_(False)
            if network.encoder.embedding.gene is not None:
                network.encoder.embedding.gene.requires_grad_(False)
        self.encoder_lr_factor = 1.0 if cfg.init is None and not is_coexpression else cfg.optim.init_lr_factor
        if network.linear is not None:  # it was fitted and is not trained further
            network.linear.requires_grad_(False)

    def training_step(self, batch: Labelled, batch_idx: int) -> torch.Tensor:
        tokens, labels_B = batch
        linear_BC, encoder_BC, _ = self.network.branches(tokens, self.with_genes_dropped(tokens))
        loss = self.loss(linear_BC + encoder_BC, labels_B)
        if self.network.has_both:
            # A linear branch that fits its training cells leaves the encoder nothing to learn from their sum.
            loss = loss + self.loss(encoder_BC, labels_B)
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
        linear_BC, encoder_BC, _ = self.network.branches(tokens)
        self.val_outputs.append(
            (linear_BC.expand_as(encoder_BC).float().cpu(), encoder_BC.float().cpu(), labels_B.cpu())
        )

    def on_validation_epoch_end(self) -> None:
        linear, encoder, labels = (torch.cat(parts).numpy() for parts in zip(*self.val_outputs, strict=True))
        # Score the model that this epoch would give: its branches are scaled on these cells, as at the end of training.
        scale_linear, scale_encoder = branch_scales(linear, encoder, labels)
        logits = scale_linear * linear + scale_encoder * encoder
        scores = score(labels, logits.argmax(1))
        loss = negative_log_likelihood(logits, labels)
        self.log("val_macro_f1", scores.macro_f1, prog_bar=True)
        scales = {"val_scale_linear": scale_linear, "val_scale_encoder": scale_encoder}
        self.log_dict({"val_accuracy": scores.accuracy, "val_loss": loss} | scales)
        self.log(self.monitor, scores.macro_f1 - LOSS_SHARE * loss)

    def configure_optimizers(self) -> Any:
        lr = self.optim.lr
        factor = self.encoder_lr_factor
        named = [(name, p) for name, p in self.network.named_parameters() if not name.startswith("linear.")]
        named = [(name, p) for name, p in named if p.requires_grad or factor == 1]
        slow = [p for name, p in named if factor != 1 and name.startswith("encoder.")]
        others = [p for name, p in named if factor == 1 or not name.startswith("encoder.")]
        rates = ((others, lr), (slow, lr * factor))
        return self.scheduled(
            [{"params": part, "lr": rate, "weight_decay": self.optim.weight_decay} for part, rate in rates if part]
        )


def has_layers(network: CellTypeModel) -> bool:
    """Whether there is anything to train: branches without layers are fitted instead."""
    return network.encoder is not None and bool(network.encoder.stack)


def train_network(
    network: CellTypeModel, train: Cells | StreamedCells, val: Cells, cfg: TrainConfig, run_folder: Path
) -> int | None:
    """Train, and leave the weights of the best epoch in `network`; return it as `run_epochs`, or 0: none needed."""
    if not has_layers(network):
        return 0
    learner = Learner(network, train.known_labels, cfg)
    learner.learn_under_conditions(train.sample, train.sample.known_labels)
    return run_epochs(learner, train, val, cfg, run_folder)
