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
    weights = weight[: len(saved.genes)].reshape(len(saved.genes), len(powers), -1)
    logits = np.tile(saved.weights["model.linear.bias"], (x.shape[0], 1))
    for place, power in enumerate(powers):
        logits += power_transform(x, power) @ weights[:, place]
    return logits


def linear_contributions(saved: SavedModel, x: csr_matrix, label: int) -> np.ndarray | None:
    """Return the mean contribution of each gene to the logit of a label by the linear branch; None without this branch.

    A view is the expression raised to a power, each cell scaled to the same length; the branch is linear in the views.

    Parameters
    ----------
    x
        Aligned expression of the cells to average over, N x G.
    label
        Index of the label.

    Returns
    -------
    float64, G; with the mean bias they add up to the mean logit of the branch.
    """
    if (weight := saved.weights.get("model.linear.weight.weight")) is None:
        return None
    powers = saved.config["model"]["linear_powers"]
    weights = weight[: len(saved.genes)].reshape(len(saved.genes), len(powers), -1)[:, :, label].astype(np.float64)
    found = np.zeros(len(saved.genes))
    for place, power in enumerate(powers):
        powered = csr_matrix((x.data.astype(np.float64) ** power, x.indices, x.indptr), shape=x.shape)
        lengths = np.sqrt(np.asarray(powered.multiply(powered).sum(axis=1)).ravel())
        scale = LENGTH / np.maximum(lengths, TINY) / x.shape[0]
        found += np.asarray(scale @ powered).ravel() * weights[:, place]
    return found
