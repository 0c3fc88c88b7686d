"""Expression values to tokens: which genes of a cell become tokens, and what is fed in for each of them.

Values enter as x = ln(1 + counts per 10,000) (what preprocess.py makes). A cell's token list ends with one
special position whose gene index is `num_genes` and whose value is 0: the position that scBERT appends to the
genes, read by the `cls` head.
"""

from dataclasses import dataclass

import numpy as np

from scperformer.config import TokensConfig

LN2 = np.log(2.0)
# x is stored in float32, and float32 logarithms of the same counts differ in their last unit: where 1 + cp10k is
# exactly 32, log2 may read 4.9999997. Half a millionth of a doubling is above that rounding (in scBERT's range) and
# below the distance to the next count that a cell of 50,000 counts can have.
EDGE = 5e-7


def log2_bins(x: np.ndarray, tokens: TokensConfig) -> np.ndarray:
    """Bin of each value: floor(bins_per_log2 * log2(1 + cp10k)), clipped at `num_bins`.

    Parameters
    ----------
    x
        ln(1 + cp10k), any shape, 0 or more; cp10k = counts per 10,000.
    tokens
        `scbert`: floor(log2(1 + cp10k)) in 0..5, where 0 also holds weakly expressed genes.
        `bins`: 1 is added for expressed genes, so that 0 means not expressed.

    Returns
    -------
    int64, shape of `x`, 0..num_bins.

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
    """The bin that stands for a hidden value (scBERT: 6), one above the highest bin."""
    return tokens.num_bins + 1


def num_tokens(tokens: TokensConfig) -> int:
    """Size of the embedding table of bins: 0..num_bins and the mask (scBERT: 7)."""
    return tokens.num_bins + 2


@dataclass
class CellTokens:
    """Padded tokens of B cells, L positions each.

    genes : int64 B x L, index of the gene, `num_genes` for the special position and for padding
    values : B x L, int64 bins (scbert, bins) or float32 x (continuous)
    x : float32 B x L, ln(1 + cp10k), 0 in padding
    keep : bool B x L, True = a real token
    """

    genes: np.ndarray
    values: np.ndarray
    x: np.ndarray
    keep: np.ndarray


def tokenize(cells, tokens: TokensConfig, length: int | None = None) -> CellTokens:
    """Tokens of some cells.

    Parameters
    ----------
    cells
        CSR matrix, B cells x G genes of the model, x = ln(1 + cp10k).
    tokens
        Binning, and whether unexpressed genes are tokens (`full`) or not (`skip`, `memory`).
    length
        Pad to this many positions, or to the longest cell if that is more. None: just enough. `full` needs none.

    Returns
    -------
    CellTokens with B x L arrays; the last real token of each cell is the special position.
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
    return CellTokens(genes, values, x, keep)


def token_counts(cells, tokens: TokensConfig) -> np.ndarray:
    """Number of tokens of each cell, the special position included; int64, one per row of the CSR matrix."""
    if tokens.unexpressed == "full":
        return np.full(cells.shape[0], cells.shape[1] + 1, dtype=np.int64)
    return np.diff(cells.indptr).astype(np.int64) + 1
