"""Training of layers between tokens with labels, in Lightning: loss, metrics, optimiser, and the interface for `train`.

`TokenEncoder` is what `training.train` gets if the options ask for attention between tokens or for `init`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.cells.normalisation import align
from scperformer.cells.reference import Reference
from scperformer.config.training import TrainOptions
from scperformer.fits.scales import branch_scales
from scperformer.fits.steps import LabelLoss
from scperformer.lab import epochs, initialise
from scperformer.lab.epochs import EncoderLearner, Labelled, StreamedCells
from scperformer.model.bundle import OriginalModel
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel
from scperformer.training.strategies import Training
from scperformer.training.train import settled

# Many epochs have the same macro-F1 if there are few validation cells: a tenth of the loss decides between them.
LOSS_SHARE = 0.1


class Learner(EncoderLearner):
    """A cell-type network with its loss, metrics and optimiser; `labels` of the training cells give their weights."""

    network: CellTypeModel
    monitor = "val_score"
    mode = "max"
    columns = ("train_loss", "val_loss", "val_macro_f1", "val_accuracy")
    line = "training loss %(train_loss).3f, validation macro-F1 %(val_macro_f1).3f, accuracy %(val_accuracy).3f"

    def __init__(self, network: CellTypeModel, labels: np.ndarray, cfg: TrainOptions):
        super().__init__(network, cfg)
        self.loss = LabelLoss(labels, network.num_labels, cfg.optim)
        self.encoder_lr_factor = 1.0 if cfg.init is None else initialise.INIT_LR
        if network.linear is not None:  # it was fitted and is not trained further
            network.linear.requires_grad_(False)

    def training_step(self, batch: Labelled, batch_idx: int) -> torch.Tensor:
        tokens, labels_B = batch
        linear_BC, encoder_BC, _ = self.network.branches(tokens, self.with_genes_dropped(tokens))
        loss = self.loss(linear_BC + encoder_BC, labels_B)
        if self.network.has_both:
            # A linear branch that fits its training cells leaves the encoder nothing to learn from their sum.
            loss = loss + self.loss(encoder_BC, labels_B)
        penalty = self.network.encoder.penalty().to(loss.device)
        loss = loss * epochs.process_factor(self.loss.weights[labels_B].sum()) + penalty
        self.log(
            "train_loss",
            loss,
            on_step=True,
            on_epoch=True,
            batch_size=len(labels_B),
            sync_dist=True,
        )
        return loss

    def on_validation_epoch_start(self) -> None:
        self.val_outputs: list[list[torch.Tensor]] = []

    def validation_step(self, batch: Labelled, batch_idx: int) -> None:
        tokens, labels_B = batch
        linear_BC, encoder_BC, _ = self.network.branches(tokens)
        outputs = linear_BC.expand_as(encoder_BC).float(), encoder_BC.float(), labels_B
        self.val_outputs.append([part.cpu() for part in outputs])

    def on_validation_epoch_end(self) -> None:
        linear, encoder, labels = (
            torch.cat(parts).numpy() for parts in zip(*self.val_outputs, strict=True)
        )
        # Score the model that this epoch would give: its branches are scaled on these cells, as at the end of training.
        scale_linear, scale_encoder = branch_scales(linear, encoder, labels)
        logits = scale_linear * linear + scale_encoder * encoder
        scores = score(labels, logits.argmax(1))
        loss = negative_log_likelihood(logits, labels)
        self.log("val_macro_f1", scores["macro_f1"], prog_bar=True)
        scales = {"val_scale_linear": scale_linear, "val_scale_encoder": scale_encoder}
        self.log_dict({"val_accuracy": scores["accuracy"], "val_loss": loss} | scales)
        self.log(self.monitor, scores["macro_f1"] - LOSS_SHARE * loss)

    def configure_optimizers(self) -> Any:
        factor = self.encoder_lr_factor
        slow: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        for name, parameter in self.network.named_parameters():
            if not name.startswith("linear.") and (parameter.requires_grad or factor == 1):
                (slow if factor != 1 and name.startswith("encoder.") else others).append(parameter)
        rates = ((others, self.optim.lr), (slow, self.optim.lr * factor))
        decay = self.optim.weight_decay
        return self.scheduled(
            [{"params": part, "lr": rate, "weight_decay": decay} for part, rate in rates if part]
        )


class TokenEncoder:
    """Attention between tokens for a training, from new weights or those of `init`."""

    def __init__(self, cfg: TrainOptions):
        self.init = initialise.load_init(cfg.init, cfg.init_mode, cfg.species)
        self.cfg = settled(cfg) if self.init is None else initialise.adopt_options(cfg, self.init)
        self.init_hash = "" if self.init is None else self.init.saved.hash

    def ordered(self, reference: Reference) -> Reference:
        """Put the genes of `init` first, in its order: tokens then have the same neighbours as in its training."""
        if self.init is None:
            return reference
        here, there = initialise.shared_rows(
            reference.genes, self.init.saved.genes, self.init.path, self.init.species
        )
        known = dict(zip(here, there, strict=True))
        order = sorted(
            range(len(reference.genes)), key=lambda gene: (gene not in known, known.get(gene, gene))
        )
        target = np.argsort(order)
        genes = [reference.genes[gene] for gene in order]
        stream = reference.stream
        if stream is not None:
            stream = replace(stream, collection=stream.collection.with_columns(target, genes))
        return replace(
            reference, x=align(reference.x, target, len(genes)), genes=genes, stream=stream
        )

    def prepare(self, training: Training) -> OriginalModel | None:
        """Give the network its initial weights, and return what the provenance states about them."""
        network = training.network
        train = training.train
        genes = training.reference.genes
        num_known_genes = initialise.start_encoder(
            network.encoder, genes, self.cfg.model, self.init
        )
        network.require_length(int(max(train.lengths.max(), training.val.lengths.max())))
        learner = Learner(network, train.known_labels, training.cfg)
        initialise.start_attention(network.encoder, train, training.cfg)
        initialise.start_head(learner, train, training.cfg)
        return None if self.init is None else self.init.facts(num_known_genes, self.init.mode)

    def train(self, training: Training, folder: Path) -> None:
        stream = training.reference.stream
        train: Cells | StreamedCells = training.train
        if stream is not None:
            train = StreamedCells(stream, training.cfg.tokens)
        learner = Learner(training.network, train.known_labels, training.cfg)
        epochs.run_epochs(learner, train, training.val, training.cfg, folder)

    def load_best(self, training: Training, folder: Path) -> int:
        """Give the network the weights of the best epoch, and return its number, from 1."""
        return epochs.load_best(training.network, folder)
