"""The start of an untrained network: gene vectors, cells for the attention, logistic regression for both branches."""

import logging

import numpy as np
import torch

from scperformer.config import NetworkConfig, TrainConfig
from scperformer.network import (
    Cells,
    CellTypeModel,
    Encoder,
    LinearModel,
    Recipe,
    fit_logistic,
    prediction_batches,
    read_gene_vectors,
    settle_recipe,
)

log = logging.getLogger(__name__)

HEAD_C = 10.0  # inverse penalty of the head's regression: weak, as its inputs are few and standardised


def start_gene_vectors(encoder: Encoder, genes: list[str], cfg: NetworkConfig) -> None:
    """Fill the gene embedding from `model.gene2vec_path` if `model.positions=gene2vec`; errors as in the reader."""
    if cfg.model.positions == "gene2vec" and cfg.model.gene2vec_path is not None:
        vectors = read_gene_vectors(cfg.model.gene2vec_path, genes, cfg.model.dim)
        encoder.embedding.set_gene_vectors(torch.from_numpy(vectors))


def start_attention(encoder: Encoder | None, train: Cells, cfg: NetworkConfig) -> None:
    """Show some training cells to mechanisms whose parameters start from keys; with `init` they are trained already."""
    if encoder is not None and cfg.init is None and encoder.mechanisms[0].starts_from_keys:
        rows = np.random.default_rng(cfg.seed).permutation(len(train))[: cfg.trainer.batch_size]
        encoder.start(train.batch(np.sort(rows)), torch.Generator().manual_seed(cfg.seed))


def pooled(network: CellTypeModel, cells: Cells, batch_size: int) -> np.ndarray:
    """Compute the input of the head for each cell, float32, N x width; the training mode is restored afterwards."""
    assert network.encoder is not None
    was_training = network.training
    network.eval()
    rows, parts = [], []
    with torch.no_grad():
        for part, length in prediction_batches(cells.lengths, batch_size):
            batch = cells.batch(part, length)
            rows.append(part)
            parts.append(network.pool(network.encoder(batch), batch).float().numpy())
    network.train(was_training)
    return np.concatenate(parts)[np.argsort(np.concatenate(rows))]


def start_head(network: CellTypeModel, train: Cells, cfg: TrainConfig) -> None:
    """Fit the last layer to the training cells before training; only with `init`, and without hidden layers.

    The cells' vectors share a mean that is a hundred times as large as their differences, so gradient descent from zero
    would need far more than a few hundred steps. Fine-tuning from this start also changes the encoder less.

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


def linear_recipe(train: Cells, cfg: TrainConfig) -> Recipe | None:
    """Choose how the linear branch is fitted, on the training cells; None if it starts at zero or is off."""
    optim = cfg.optim
    if not cfg.model.wide or optim.wide_start == "zero":
        return None
    powers = tuple(cfg.model.wide_powers)
    recipe = Recipe(powers, optim.wide_c, optim.wide_class_weights, optim.wide_gene_weights)
    settled = settle_recipe(train.x, train.known_labels, recipe, cfg.seed)
    if settled != recipe:
        chosen = settled.weighting, settled.class_weights
        log.info("linear branch: gene weights '%s', class weights '%s', chosen by the loss of held-out cells", *chosen)
    return settled


def add_linear(network: CellTypeModel, linear: LinearModel | None, times: float = 1.0) -> None:
    """Add a linear model, multiplied by `times`, to the linear branch; None: leave it as it is."""
    if network.wide is not None and linear is not None:
        with torch.no_grad():
            network.wide.weight.weight[:-1].add_(torch.from_numpy(linear.weight), alpha=times)
            network.wide.bias.add_(torch.from_numpy(linear.bias), alpha=times)
