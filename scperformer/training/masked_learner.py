"""Pretraining as Lightning sees it: hidden values, their loss beside that of a naive guess, and the loop over epochs.

Every random choice is a function of (seed, step), and those of validation of (seed, batch): as in `learner.py`, a run
that was cut off repeats the interrupted epoch exactly, and epochs are compared on the same hidden values.
"""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback

from scperformer.config import PretrainConfig
from scperformer.network import Batch, Cells, drop_genes, seed_of
from scperformer.training.datamodule import CellsDataModule
from scperformer.training.learner import lr_factor, share_of_step
from scperformer.training.masked_model import MaskedModel
from scperformer.training.masking import bin_weights, hidden_loss, hide_values, naive_guess, naive_table
from scperformer.training.streaming import StreamedCells
from scperformer.training.trainer import checkpoints, load_best, make_trainer, run_trainer

log = logging.getLogger(__name__)

LOSS, NAIVE = "val_loss", "val_naive_loss"


@dataclass
class Pretrained:
    """What pretraining came to: mean losses of the hidden values of the validation cells, and the epoch."""

    loss: float
    naive_loss: float
    best_epoch: int


class MaskedLearner(pl.LightningModule):
    """The network with its loss, optimiser and naive rival.

    Parameters
    ----------
    network
        The model to train.
    train
        Training cells in memory: what the naive guess and the weights of the bins are made of.
    num_steps
        Optimiser steps of the whole run, for the learning-rate schedule.
    """

    def __init__(self, network: MaskedModel, train: Cells, cfg: PretrainConfig, num_steps: int):
        super().__init__()
        self.network = network
        self.cfg = cfg
        self.num_steps = num_steps
        self.naive: torch.Tensor
        self.bin_weights: torch.Tensor | None
        # Made of the cells: a checkpoint need not hold them.
        self.register_buffer("naive", naive_table(train.x, cfg.tokens), persistent=False)
        weights = bin_weights(train.x, cfg.tokens, cfg.masking.class_weights)
        self.register_buffer("bin_weights", weights, persistent=False)

    def on_train_batch_start(self, batch: tuple[Batch, torch.Tensor], batch_idx: int) -> None:
        step = self.global_step
        torch.manual_seed(seed_of("dropout", self.cfg.seed, step, self.global_rank))
        interval = self.network.encoder.redraw_interval
        if interval and step > 0 and step % interval == 0:
            self.network.encoder.redraw(torch.Generator().manual_seed(seed_of("redraw", self.cfg.seed, step)))

    def training_step(self, batch: tuple[Batch, torch.Tensor], batch_idx: int) -> torch.Tensor:
        tokens, _ = batch
        share = self.cfg.model.gene_dropout
        seen = drop_genes(tokens, share, self.network.encoder.has_memory) if share else tokens
        seed = seed_of("masked in training", self.cfg.seed, self.global_step, self.global_rank)
        hidden, chosen_BL = self.hide(seen, seed)
        true_K = seen.values_BL[chosen_BL]
        loss = self.loss(self.network(hidden, chosen_BL), true_K) * share_of_step(self.weight(true_K))
        loss = loss + self.network.encoder.penalty().to(loss.device)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(tokens.keep_BL), sync_dist=True)
        return loss

    def hide(self, tokens: Batch, seed: int) -> tuple[Batch, torch.Tensor]:
        """Tokens with some values hidden, and which are to be predicted; see `hide_values`."""
        return hide_values(tokens, self.cfg.tokens, self.cfg.masking, torch.Generator().manual_seed(seed))

    def loss(self, predicted: torch.Tensor, true_K: torch.Tensor) -> torch.Tensor:
        """Mean loss of predictions of hidden values."""
        return hidden_loss(predicted, true_K, self.cfg.masking, self.bin_weights)

    def weight(self, true_K: torch.Tensor) -> torch.Tensor:
        """What the mean loss of hidden values is to be multiplied with before it is added to that of others."""
        weights = self.bin_weights
        return torch.tensor(float(len(true_K)), device=true_K.device) if weights is None else weights[true_K].sum()

    def losses(self, tokens: Batch, batch_idx: int) -> torch.Tensor:
        """Of a batch of validation cells: summed loss, that of the naive guess, and what they are to be divided by."""
        hidden, chosen_BL = self.hide(tokens, seed_of("masked in validation", self.cfg.seed, batch_idx))
        true_K = tokens.values_BL[chosen_BL]
        total = self.weight(true_K)
        naive = self.loss(naive_guess(self.naive, tokens, chosen_BL), true_K)
        found = torch.stack([self.loss(self.network(hidden, chosen_BL), true_K), naive])
        return torch.cat([found * total.to(found.device), total.to(found.device)[None]]).double().cpu()

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64)

    def validation_step(self, batch: tuple[Batch, torch.Tensor], batch_idx: int) -> None:
        self.sums += self.losses(batch[0], batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log(LOSS, float(self.sums[0] / self.sums[2]), prog_bar=True)
        self.log(NAIVE, float(self.sums[1] / self.sums[2]))

    def configure_optimizers(self):
        optim = self.cfg.optim
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, self.num_steps, optim))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class PretrainingLog(Callback):
    """One log line per epoch: is anything learned beyond what is usual for gene and cell?"""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()  # of an epoch that a resumed run goes on with, too: it does not start again

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero:
            metrics = trainer.callback_metrics
            log.info(
                "epoch %d/%d: training loss %.4f, validation loss %.4f, naive guess %.4f (%.1f s)",
                trainer.current_epoch + 1,
                trainer.max_epochs,
                metrics["train_loss"],
                metrics[LOSS],
                metrics[NAIVE],
                time.perf_counter() - self.start,
            )


def train_masked(
    network: MaskedModel, train: Cells | StreamedCells, val: Cells, cfg: PretrainConfig, run_folder: Path
) -> Pretrained | None:
    """Pretrain with Lightning and leave the weights of the best epoch in `network`.

    A checkpoint `last.ckpt` in the run folder is continued from.

    Returns
    -------
    What it came to; None in the processes of a distributed run that only help.
    """
    world_size = cfg.trainer.devices * cfg.trainer.num_nodes
    num_batches = math.ceil(len(train) / cfg.trainer.batch_size)
    num_steps = cfg.trainer.max_epochs * math.ceil(num_batches / world_size)
    learner = MaskedLearner(network, train.sample, cfg, num_steps)
    folder = run_folder / "checkpoints"
    best, callbacks = checkpoints(folder, cfg.trainer, PretrainingLog(), monitor=LOSS, mode="min")
    trainer = make_trainer(cfg, callbacks, run_folder)
    data = CellsDataModule(train, val, cfg.trainer.batch_size, cfg.seed, cfg.data.balance)
    run_trainer(trainer, learner, data, cfg, folder)
    if not trainer.is_global_zero:
        return None
    best_epoch = load_best(network, best)
    # Measured anew: a run that was resumed after its last epoch has validated nothing.
    learner.cpu().eval()
    with torch.no_grad():
        batches = enumerate(data.val_dataloader())
        sums = torch.stack([learner.losses(tokens, index) for index, (tokens, _) in batches]).sum(0)
    loss, naive_loss = (float(part / sums[2]) for part in sums[:2])
    return Pretrained(loss=loss, naive_loss=naive_loss, best_epoch=best_epoch)
