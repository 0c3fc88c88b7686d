"""The head on an encoder that was trained before starts as logistic regression on what the encoder says."""

import numpy as np
import torch

from scperformer.config import TrainConfig
from scperformer.network import Cells, CellTypeModel, fit_logistic, prediction_batches

HEAD_C = 10.0  # inverse penalty: few numbers, and standardised


def pooled(network: CellTypeModel, cells: Cells, batch_size: int) -> np.ndarray:
    """What the head sees of each cell, float32, N x width; training mode is restored afterwards."""
    assert network.encoder is not None
    was_training = network.training
    network.eval()
    found: np.ndarray | None = None
    with torch.no_grad():
        for rows, length in prediction_batches(cells.lengths, batch_size):
            batch = cells.batch(rows, length)
            pooled_BD = network.pool(network.encoder(batch), batch).float().numpy()
            found = np.empty((len(cells), pooled_BD.shape[1]), dtype=np.float32) if found is None else found
            found[rows] = pooled_BD
    network.train(was_training)
    assert found is not None
    return found


def start_head(network: CellTypeModel, train: Cells, cfg: TrainConfig) -> None:
    """Fit the last layer to the training cells before training; only with `init`, and without hidden layers.

    What cells have in common is a hundred times what they differ by: a few hundred steps of gradient descent from zero
    would not get to where this starts. Fine-tuning from here also spoils the encoder less.

    Source
    ------
    Kumar et al. 2022, arXiv 2202.10054 (linear probing, then fine-tuning).
    """
    if cfg.init is None or network.encoder is None or cfg.head.hidden:
        return
    seen = pooled(network, train, cfg.trainer.batch_size)
    mean, spread = seen.mean(0), np.maximum(seen.std(0), 1e-6)
    fitted = fit_logistic((seen - mean) / spread, train.known_labels, c=HEAD_C, class_weights="balanced")
    weight = fitted.weight / spread[:, None]
    with torch.no_grad():
        network.head.labels.weight.copy_(torch.from_numpy(weight.T))
        network.head.labels.bias.copy_(torch.from_numpy(fitted.bias - mean @ weight))
