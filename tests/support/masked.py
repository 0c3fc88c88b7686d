"""Cells for the tests of pretraining: random expression, and every kind of token."""

import numpy as np
from scipy.sparse import csr_matrix, random_array

from scperformer.attention.tokens import Batch
from scperformer.config.training import TokensConfig
from scperformer.model.minibatches import Cells

TOKENS = {
    "continuous": TokensConfig(),
    "bins": TokensConfig(name="bins", num_bins=12),
    "scbert": TokensConfig(name="scbert", unexpressed="full"),
    "memory": TokensConfig(unexpressed="memory"),
}
NUM_CELLS, NUM_GENES = 40, 60


def expression(num_cells: int = NUM_CELLS, seed: int = 0) -> csr_matrix:
    """ln(1 + cp10k) of cells that express 40 % of the genes."""
    rng = np.random.default_rng(seed)
    x = csr_matrix(random_array((num_cells, NUM_GENES), density=0.4, rng=rng, dtype=np.float32))
    x.data = np.log1p(rng.gamma(1.0, 12.0, x.nnz)).astype(np.float32)
    x.sort_indices()
    return x


def batch_of(x: csr_matrix, tokens: TokensConfig) -> Batch:
    """All cells as one batch."""
    return Cells(x, tokens).batch(np.arange(x.shape[0]))
