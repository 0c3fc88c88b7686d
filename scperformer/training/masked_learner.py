"""Pretraining as Lightning sees it: the network that predicts hidden values, its loss beside a naive guess, its epochs.

Every random choice is a function of (seed, step), and in validation of (seed, batch): as in `learner.py`, a run that
was cut off repeats the lost part exactly, and all epochs are compared on the same hidden values.

Shape letters: B cells, L tokens, K hidden tokens, D model width, N entries of the table of bins.
"""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scperformer.config import PretrainConfig
from scperformer.network import (
    EMBEDDING_STD,
    ENCODER,
    PRETRAINING,
    Batch,
    Cells,
    ContinuousEmbedding,
    Encoder,
    seed_of,
)
from scperformer.training.learner import EncoderLearner, process_factor
from scperformer.training.learning_curve import EpochLog
from scperformer.training.masking import bin_weights, hidden_loss, hide_values, naive_guess, naive_table
from scperformer.training.source import Labelled, StreamedCells, validation_batches
from scperformer.training.trainer import num_steps, run_epochs

LOSS, NAIVE = "val_loss", "val_naive_loss"
COLUMNS = ("train_loss", LOSS, NAIVE)
LINE = "training loss %(train_loss).4f, validation loss %(val_loss).4f, naive guess %(val_naive_loss).4f"
MASK = "embedding.expression.mask_D"


class MaskableValues(nn.Module):
    """Embeds continuous values; hidden ones, which are below 0, become one learned vector."""

    def __init__(self, values: ContinuousEmbedding, dim: int):
        super().__init__()
        self.values = values
        self.mask_D = nn.Parameter(EMBEDDING_STD * torch.randn(dim))

    def forward(self, x_BL: torch.Tensor) -> torch.Tensor:
        h_BLD = self.values(x_BL.clamp_min(0))
        return torch.where((x_BL < 0).unsqueeze(-1), self.mask_D.to(h_BLD.dtype), h_BLD)


class MaskedModel(nn.Module):
    """Predicts the hidden values of tokens from their vectors in the encoder's output.

    With bins, `tied` makes the table of bins the output layer. Continuous values are given a mask, which bins have
    already, and their predictions start from `mean_x`.
    """

    def __init__(self, encoder: Encoder, *, tied: bool = False, mean_x: float = 0.0):
        super().__init__()
        self.encoder = encoder
        self.tied = tied
        expression = encoder.embedding.expression
        if isinstance(expression, nn.Embedding):
            output = nn.Linear(expression.embedding_dim, expression.num_embeddings, bias=not tied)
            if tied:
                output.weight = expression.weight
            self.decoder: nn.Module = nn.Sequential(OrderedDict(output=output))
        else:
            assert isinstance(expression, ContinuousEmbedding)
            last = expression.layers[-1]
            assert isinstance(last, nn.Linear)
            encoder.embedding.expression = MaskableValues(expression, last.out_features)
            output = nn.Linear(last.out_features, 1)
            nn.init.constant_(output.bias, mean_x)
            self.decoder = nn.Sequential(output, nn.Flatten(0))

    def forward(self, batch: Batch, chosen_BL: torch.Tensor) -> torch.Tensor:
        """Predict the chosen tokens, in the order of the batch: logits, K x N, or values, K."""
        return self.decoder(self.encoder(batch)[chosen_BL])

    def weights(self) -> dict[str, torch.Tensor]:
        """All learned tensors by their names in a model folder; the encoder's are named as in a trained model."""
        state = self.encoder.state_dict()
        mask = {"mask_D": state.pop(MASK)} if MASK in state else {}
        encoder = {name.replace(".expression.values.", ".expression."): tensor for name, tensor in state.items()}
        decoder = {} if self.tied else {f"decoder.{name}": t for name, t in self.decoder.state_dict().items()}
        named = {ENCODER: encoder, PRETRAINING: mask | decoder}
        return {prefix + name: tensor for prefix, group in named.items() for name, tensor in group.items()}

    @torch.no_grad()
    def load_pretraining(self, weights: dict[str, torch.Tensor]) -> None:
        """Copy the mask and the output layer of an earlier pretraining, where their shapes fit."""
        for name, tensor in self.weights().items():
            earlier = weights.get(name)
            if name.startswith(PRETRAINING) and earlier is not None and earlier.shape == tensor.shape:
                tensor.copy_(earlier)


class MaskedLearner(EncoderLearner):
    """The network of pretraining with its loss, its optimiser and the naive guess, which is made of `train`."""

    network: MaskedModel

    def __init__(self, network: MaskedModel, train: Cells, cfg: PretrainConfig, num_steps: int):
        super().__init__(network, cfg, num_steps)
        self.tokens, self.masking = cfg.tokens, cfg.masking
        self.naive: torch.Tensor
        self.bin_weights: torch.Tensor | None
        # They are computed from the cells: a checkpoint need not hold them.
        self.register_buffer("naive", naive_table(train.x, cfg.tokens), persistent=False)
        weights = bin_weights(train.x, cfg.tokens, cfg.masking.class_weights)
        self.register_buffer("bin_weights", weights, persistent=False)

    def training_step(self, batch: Labelled, batch_idx: int) -> torch.Tensor:
        tokens = self.with_genes_dropped(batch[0])
        seed = seed_of("masked in training", self.seed, self.global_step, self.global_rank)
        hidden, chosen_BL = self.hide(tokens, seed)
        true_K = tokens.values_BL[chosen_BL]
        loss = self.loss(self.network(hidden, chosen_BL), true_K) * process_factor(self.weight(true_K))
        loss = loss + self.network.encoder.penalty().to(loss.device)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(tokens.keep_BL), sync_dist=True)
        return loss

    def hide(self, tokens: Batch, seed: int) -> tuple[Batch, torch.Tensor]:
        """Hide some values, and mark those to be predicted; see `hide_values`."""
        return hide_values(tokens, self.tokens, self.masking, torch.Generator().manual_seed(seed))

    def loss(self, predicted: torch.Tensor, true_K: torch.Tensor) -> torch.Tensor:
        """The mean loss of predictions of hidden values."""
        return hidden_loss(predicted, true_K, self.masking, self.bin_weights)

    def weight(self, true_K: torch.Tensor) -> torch.Tensor:
        """The weight of a mean loss of hidden values when it is added to the mean losses of others."""
        weights = self.bin_weights
        return torch.tensor(float(len(true_K)), device=true_K.device) if weights is None else weights[true_K].sum()

    def losses(self, tokens: Batch, batch_idx: int) -> torch.Tensor:
        """Sum the losses of a batch of validation cells: the network's, the naive guess's, and the divisor of both."""
        hidden, chosen_BL = self.hide(tokens, seed_of("masked in validation", self.seed, batch_idx))
        true_K = tokens.values_BL[chosen_BL]
        total = self.weight(true_K)
        naive = self.loss(naive_guess(self.naive, tokens, chosen_BL), true_K)
        found = torch.stack([self.loss(self.network(hidden, chosen_BL), true_K), naive])
        return torch.cat([found * total.to(found.device), total.to(found.device)[None]]).double().cpu()

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64)

    def validation_step(self, batch: Labelled, batch_idx: int) -> None:
        self.sums += self.losses(batch[0], batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log(LOSS, float(self.sums[0] / self.sums[2]), prog_bar=True)
        self.log(NAIVE, float(self.sums[1] / self.sums[2]))

    def configure_optimizers(self) -> Any:
        optim = self.optim
        return self.scheduled(
            torch.optim.AdamW(self.network.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
        )


@dataclass
class Pretrained:
    """The result of pretraining: mean losses of the hidden values of the validation cells, and the epoch."""

    loss: float
    naive_loss: float
    best_epoch: int


def train_masked(
    network: MaskedModel, train: Cells | StreamedCells, val: Cells, cfg: PretrainConfig, run_folder: Path
) -> Pretrained | None:
    """Pretrain with Lightning and leave the weights of the best epoch in `network`; see `run_epochs`.

    Returns
    -------
    The losses of the best epoch; None in the helping processes of a distributed run.
    """
    learner = MaskedLearner(network, train.sample, cfg, num_steps(len(train), cfg.trainer))
    epoch_log = EpochLog(run_folder, COLUMNS, LINE)
    best_epoch = run_epochs(learner, train, val, cfg, run_folder, epoch_log=epoch_log, monitor=LOSS, mode="min")
    if best_epoch is None:
        return None
    # Measured anew: a run that was resumed after its last epoch has validated nothing.
    learner.cpu().eval()
    with torch.no_grad():
        batches = enumerate(validation_batches(val, cfg.trainer.batch_size))
        sums = torch.stack([learner.losses(val.labelled_batch(rows)[0], index) for index, rows in batches]).sum(0)
    loss, naive_loss = (float(part / sums[2]) for part in sums[:2])
    return Pretrained(loss=loss, naive_loss=naive_loss, best_epoch=best_epoch)
