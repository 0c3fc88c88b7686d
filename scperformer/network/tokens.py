"""Expression to tokens: which genes of a cell become tokens, and with which values.

Expression comes as x = ln(1 + counts per 10,000). A cell's token list ends with one special position whose gene index
is `num_genes` and whose value is 0: the position that scBERT appends to the genes, and that `head=cls` reads.

Shape letters: B cells, L tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.config import TokensConfig

LN2 = np.log(2.0)
# x is float32, and float32 logarithms of the same counts differ in their last unit: where 1 + cp10k is exactly 32, log2
# may be 4.9999997. This many doublings are more than that rounding (in scBERT's range), and less than the distance to
# the next count in a cell of 50,000 counts.
EDGE = 5e-7


def log2_bins(x: np.ndarray, tokens: TokensConfig) -> np.ndarray:
    """Bin each value: floor(bins_per_log2 * log2(1 + cp10k)), clipped at `num_bins`; int64, shape of `x`.

    Parameters
    ----------
    x
        ln(1 + cp10k), any shape, 0 or more; cp10k = counts per 10,000.
    tokens
        `scbert`: floor(log2(1 + cp10k)) in 0..5, where 0 also holds weakly expressed genes.
        `bins`: 1 is added for expressed genes, so that 0 means not expressed.

    Source
    ------
    scBERT (Yang et al. 2022, Methods): log2-normalised expression cut into 5 bins; mask token 6.
    """
    log2_values = np.asarray(x, dtype=np.float64) / LN2
    bins = np.floor(log2_values * tokens.bins_per_log2 + EDGE).astype(np.int64)
    if tokens.name == "bins":
        bins += np.asarray(x) > 0
    return np.minimum(bins, tokens.num_bins)


def mask_token(tokens: TokensConfig) -> int:
    """The bin of a masked value (scBERT: 6), one above the highest bin."""
    return tokens.num_bins + 1


def num_tokens(tokens: TokensConfig) -> int:
    """Size of the embedding table of bins: 0..num_bins and the mask (scBERT: 7)."""
    return tokens.num_bins + 2


@dataclass
class Batch:
    """Padded tokens of B cells, L positions each.

    genes_BL : int64, index of the gene; `num_genes` for the special position and for padding
    values_BL : int64 bins (scbert, bins) or float32 x (continuous)
    x_BL : float32, ln(1 + cp10k), 0 in padding
    keep_BL : bool, True = a real token
    """

    genes_BL: torch.Tensor
    values_BL: torch.Tensor
    x_BL: torch.Tensor
    keep_BL: torch.Tensor

    def to(self, device: torch.device | str) -> "Batch":
        """Copy to another device; from pinned memory without waiting for the copy."""
        return Batch(*(tensor.to(device, non_blocking=tensor.is_pinned()) for tensor in self.tensors))

    def pin_memory(self) -> "Batch":
        """Copy to memory from which a GPU fetches by itself."""
        return Batch(*(tensor.pin_memory() for tensor in self.tensors))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.genes_BL, self.values_BL, self.x_BL, self.keep_BL


def tokenize(cells: csr_matrix, tokens: TokensConfig, length: int | None = None) -> Batch:
    """Make the tokens of some cells; the last real token of each cell is the special position.

    Parameters
    ----------
    cells
        B cells x G genes of the model, x = ln(1 + cp10k).
    tokens
        Binning, and whether unexpressed genes are tokens (`full`) or not (`skip`, `memory`).
    length
        Pad to this many positions, or to the longest cell if that is more. None: just enough. `full` needs none.
    """
    num_cells, num_genes = cells.shape
    if tokens.unexpressed == "full":
        genes = np.tile(np.arange(num_genes + 1), (num_cells, 1))
        x = np.zeros((num_cells, num_genes + 1), dtype=np.float32)
        x[:, :num_genes] = cells.toarray()
        keep = np.ones_like(genes, dtype=bool)
    else:
        counts = np.diff(cells.indptr)
        length = max(int(counts.max(initial=0)) + 1, length or 0)
        expressed = np.arange(length) < counts[:, None]
        genes = np.full((num_cells, length), num_genes, dtype=np.int64)
        x = np.zeros((num_cells, length), dtype=np.float32)
        genes[expressed] = cells.indices  # row by row, as the CSR arrays are
        x[expressed] = cells.data
        keep = np.arange(length) <= counts[:, None]
    values = x if tokens.name == "continuous" else log2_bins(x, tokens)
    return Batch(*(torch.from_numpy(array) for array in (genes, values, x, keep)))


def token_counts(cells: csr_matrix, tokens: TokensConfig) -> np.ndarray:
    """Count the tokens of each cell, the special position included: int64, N."""
    if tokens.unexpressed == "full":
        return np.full(cells.shape[0], cells.shape[1] + 1, dtype=np.int64)
    return np.diff(cells.indptr).astype(np.int64) + 1
