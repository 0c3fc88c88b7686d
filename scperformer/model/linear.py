"""The linear branch of a saved model, computed without torch."""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.model.saved_model import SavedModel

LENGTH = 20.0  # of every cell in every view: about its length in logarithms, so that penalties mean the same
TINY = 1e-12  # length of a cell without expression, in place of 0


def power_transform(x: csr_matrix, power: float) -> csr_matrix:
    """Raise expression (CSR float32, N x G) to a power, with each cell scaled to length 20; empty cells stay 0."""
    values = x.data**power
    squares = csr_matrix((values.astype(np.float64) ** 2, x.indices, x.indptr), shape=x.shape)
    lengths = np.sqrt(squares @ np.ones(x.shape[1]))
    values *= np.repeat((LENGTH / np.maximum(lengths, TINY)).astype(np.float32), np.diff(x.indptr))
    return csr_matrix((values, x.indices, x.indptr), shape=x.shape)


def linear_logits(saved: SavedModel, x: csr_matrix) -> np.ndarray | None:
    """Return the logits of the linear branch for aligned cells N x G, float32 N x C; None without this branch."""
    if (weight := saved.weights.get("model.linear.weight.weight")) is None:
        return None
    powers = saved.config["model"]["linear_powers"]
    weights_GVC = weight[: len(saved.genes)].reshape(len(saved.genes), len(powers), -1)
    logits = np.tile(saved.weights["model.linear.bias"], (x.shape[0], 1))
    for place, power in enumerate(powers):
        logits += power_transform(x, power) @ weights_GVC[:, place]
    return logits
