"""Cells for fits of linear models, and the logits of these models, computed by dense products."""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.cells.normalisation import normalise_counts
from scperformer.fits.linear import LinearOptions
from scperformer.model.linear import power_transform
from scperformer.model.network import LinearModel


def labelled_cells(
    num_cells: int, num_genes: int, usual: float, higher: float, block: int, seed: int = 0
) -> tuple[csr_matrix, np.ndarray]:
    """ln(1 + cp10k) of cells of 3 labels, each of which has higher counts in a block of genes; and the labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_cells) % 3
    rates = np.full((num_cells, num_genes), usual)
    for label in range(3):
        rates[np.ix_(labels == label, range(block * label, block * label + block))] = higher
    return normalise_counts(csr_matrix(rng.poisson(rates).astype(np.float32)), 1e4), labels


def predict_logits(model: LinearModel, x: csr_matrix, options: LinearOptions) -> np.ndarray:
    """Logits of cells, N x C, by a model of `fit_linear_branch`."""
    blocks = np.split(model.weight, len(options.powers), axis=1)
    views = (power_transform(x, power).toarray() for power in options.powers)
    return sum(view @ block for view, block in zip(views, blocks, strict=True)) + model.bias
