"""Masked expression modelling: which values are hidden, the loss of their predictions, and a naive guess at them.

Shape letters: B cells, L tokens, K hidden tokens, G genes, N entries of the table of bins.
"""

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import cross_entropy, huber_loss, mse_loss

from scperformer.config import MaskingConfig, TokensConfig
from scperformer.network import Batch, log2_bins, mask_token, num_tokens

HIDDEN = -1.0  # stands for a hidden value among continuous ones, which are 0 or more


def hide_values(
    batch: Batch, tokens: TokensConfig, masking: MaskingConfig, generator: torch.Generator
) -> tuple[Batch, torch.Tensor]:
    """Hide some values of a batch; also return bool B x L, True where the true value is to be predicted.

    In each cell a share of the expressed genes is chosen, rounded, but at least one; never the special position. Of
    the chosen, `mask_share` are shown as the mask, `random_share` with the value of another expressed gene of the batch
    that was not chosen, and the rest as they are. The generator is on the CPU: the same choice on every device.

    Source
    ------
    Devlin et al. 2019, section 3.1; Yang et al. 2022 (scBERT), Methods, for expressed genes only.
    """
    candidates_BL = batch.keep_BL & (batch.x_BL > 0)
    draws = torch.rand(3, *candidates_BL.shape, generator=generator).to(candidates_BL.device)
    order_BL, kind_BL, donor_BL = draws
    wanted_B1 = (masking.share * candidates_BL.sum(1, keepdim=True)).round().clamp_min(1)
    rank_BL = order_BL.masked_fill(~candidates_BL, float("inf")).argsort(1).argsort(1)
    chosen_BL = candidates_BL & (rank_BL < wanted_B1)
    masked_BL = chosen_BL & (kind_BL < masking.mask_share)
    random_BL = chosen_BL & ~masked_BL & (kind_BL < masking.mask_share + masking.random_share)
    values_BL, x_BL = batch.values_BL, batch.x_BL
    if masking.random_share:
        donors = torch.nonzero((candidates_BL & ~chosen_BL).flatten()).flatten()
        if len(donors):
            donors_BL = donors[(donor_BL * len(donors)).long().clamp_max(len(donors) - 1)]
            values_BL = torch.where(random_BL, batch.values_BL.flatten()[donors_BL], values_BL)
            x_BL = torch.where(random_BL, batch.x_BL.flatten()[donors_BL], x_BL)
        else:
            masked_BL = masked_BL | random_BL
    values_BL = values_BL.masked_fill(masked_BL, HIDDEN if tokens.name == "continuous" else mask_token(tokens))
    return Batch(batch.genes_BL, values_BL, x_BL.masked_fill(masked_BL, 0.0), batch.keep_BL), chosen_BL


def hidden_loss(
    predicted: torch.Tensor, true_K: torch.Tensor, masking: MaskingConfig, bin_weights_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the mean loss of predictions of hidden values: logits of bins, K x N, or values, K; 0 if K is 0.

    `true_K` holds int64 bins or float32 values, `bin_weights_N` the weight of each bin (None: all count the same).
    """
    if not len(true_K):
        return predicted.sum()
    if predicted.dim() == 2:
        return cross_entropy(predicted.float(), true_K, weight=bin_weights_N)
    error = huber_loss if masking.loss == "huber" else mse_loss
    return error(predicted.float(), true_K)


def bin_counts(x: csr_matrix, tokens: TokensConfig) -> np.ndarray:
    """Count how often each expressed gene is in each bin; float64, G x N."""
    size = num_tokens(tokens)
    cells = x.shape[1] * size
    counts = np.bincount(x.indices.astype(np.int64) * size + log2_bins(x.data, tokens), minlength=cells)
    return counts.reshape(x.shape[1], size).astype(np.float64)


def bin_weights(x: csr_matrix, tokens: TokensConfig, class_weights: str) -> torch.Tensor | None:
    """Weigh each bin in the loss, float32, N, with mean 1 over the expressed values; None for equal weights.

    `class_weights` is `none`, `balanced` (inverse to how often the bin occurs) or `sqrt` (the root of that).
    """
    if tokens.name == "continuous" or class_weights == "none":
        return None
    counts = bin_counts(x, tokens).sum(0)
    power = {"sqrt": 0.5, "balanced": 1.0}[class_weights]
    weights = np.where(counts > 0, np.maximum(counts, 1) ** -power, 0.0)
    return torch.tensor(weights / np.average(weights, weights=counts), dtype=torch.float32)


def naive_table(x: csr_matrix, tokens: TokensConfig) -> torch.Tensor:
    """Tabulate the usual values of each gene where it is expressed, and in the last row those of all genes together.

    Genes that few cells express lean on all genes together, which count as one more cell.

    Returns
    -------
    float32: mean values, G + 1, with continuous tokens; else logarithms of how often each bin occurs, (G + 1) x N.
    """
    if tokens.name == "continuous":
        totals = np.asarray(x.sum(axis=0), dtype=np.float64).ravel()
        num_cells = np.bincount(x.indices, minlength=x.shape[1])
        overall = x.data.mean(dtype=np.float64)
        return torch.tensor(np.append((totals + overall) / (num_cells + 1), overall), dtype=torch.float32)
    counts = bin_counts(x, tokens)
    shares = (counts.sum(0) + 1) / (counts.sum() + counts.shape[1])
    of_genes = (counts + shares) / (counts.sum(1, keepdims=True) + 1)
    return torch.tensor(np.log(np.vstack([of_genes, shares])), dtype=torch.float32)


def naive_guess(table: torch.Tensor, batch: Batch, chosen_BL: torch.Tensor) -> torch.Tensor:
    """Guess the chosen values of a batch of true values, in the form of the network's predictions.

    A value is the gene's mean plus the mean excess of the cell's other genes: above all, how deeply the cell was
    sequenced. The chance of a bin is proportional to P(bin | gene) P(bin | cell) / P(bin). `table`: see `naive_table`.
    """
    seen_BL = batch.keep_BL & (batch.x_BL > 0) & ~chosen_BL
    usual = table[batch.genes_BL]
    if table.dim() == 1:
        excess_BL = (batch.values_BL - usual) * seen_BL
        excess_B1 = excess_BL.sum(1, keepdim=True) / seen_BL.sum(1, keepdim=True).clamp_min(1)
        return (usual + excess_B1)[chosen_BL]
    counts_BN = torch.zeros(len(seen_BL), table.shape[1], device=table.device)
    counts_BN.scatter_add_(1, batch.values_BL, seen_BL.to(counts_BN.dtype))
    overall_N = table[-1]
    of_cells_BN = ((counts_BN + overall_N.exp()) / (counts_BN.sum(1, keepdim=True) + 1)).log()
    return (usual + (of_cells_BN - overall_N).unsqueeze(1))[chosen_BL]
