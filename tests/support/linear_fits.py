"""Logits of linear models, computed by dense products."""

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.model.linear import power_transform
from scperformer.model.network import LinearModel
from scperformer.training.fit_linear import LinearOptions


def predict_logits(model: LinearModel, x: csr_matrix, options: LinearOptions) -> np.ndarray:
    """Logits of cells, N x C, by a model of `fit_linear_branch`."""
    blocks = np.split(model.weight, len(options.powers), axis=1)
    views = (power_transform(x, power).toarray() for power in options.powers)
    return sum(view @ block for view, block in zip(views, blocks, strict=True)) + model.bias
