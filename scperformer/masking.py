"""Masked expression modelling: which values are hidden, what stands in their place, the loss, and a naive guess.

Shape letters: B cells, L tokens, K hidden tokens, G genes, N entries of the table of bins.
"""

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch.nn.functional import cross_entropy, huber_loss, mse_loss

from scperformer.embedding import Batch
from scperformer.groups import MaskingConfig, TokensConfig
from scperformer.tokens import log2_bins, mask_token, num_tokens

HIDDEN = -1.0  # what stands for a hidden value among continuous ones, which are 0 or more


def choose_tokens(candidates_BL: torch.Tensor, share: float, draws_BL: torch.Tensor) -> torch.Tensor:
    """A share of the candidates of each cell: rounded, but at least one of a cell that has any.

    Parameters
    ----------
    draws_BL
        A number for each token; those of a cell with the smallest ones are chosen.

    Returns
    -------
    bool, B x L.
    """
    num_candidates_B1 = candidates_BL.sum(1, keepdim=True)
    wanted_B1 = (share * num_candidates_B1).round().clamp_min(1)
    rank_BL = draws_BL.masked_fill(~candidates_BL, float("inf")).argsort(1).argsort(1)
    return candidates_BL & (rank_BL < wanted_B1)


def hide_values(
    batch: Batch, tokens: TokensConfig, masking: MaskingConfig, generator: torch.Generator
) -> tuple[Batch, torch.Tensor]:
    """The batch with some values hidden, and which tokens are to be predicted.

    Expressed genes alone are chosen, never the special position. Of the chosen, `mask_share` are shown as the mask,
    `random_share` with the value of another expressed gene of the batch that was not chosen, and the rest as they are.

    Parameters
    ----------
    generator
        On the CPU: the same choice on every device.

    Returns
    -------
    The batch that the encoder sees, and bool B x L: True where the true value is to be predicted.

    Source
    ------
    Devlin et al. 2019, section 3.1; Yang et al. 2022 (scBERT), Methods, for expressed genes only.
    """
    candidates_BL = batch.keep_BL & (batch.x_BL > 0)
    draws = torch.rand(3, *candidates_BL.shape, generator=generator).to(candidates_BL.device)
    order_BL, kind_BL, donor_BL = draws
    chosen_BL = choose_tokens(candidates_BL, masking.share, order_BL)
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
    hidden = HIDDEN if tokens.name == "continuous" else mask_token(tokens)
    values_BL = values_BL.masked_fill(masked_BL, hidden)
    return Batch(batch.genes_BL, values_BL, x_BL.masked_fill(masked_BL, 0.0), batch.keep_BL), chosen_BL


def hidden_loss(
    predicted: torch.Tensor,
    true_K: torch.Tensor,
    masking: MaskingConfig,
    bin_weights_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean loss of predictions of hidden values; 0 where nothing is hidden.

    Parameters
    ----------
    predicted
        Logits of the bins, K x N, or predicted values, K.
    true_K
        int64 bins or float32 values.
    bin_weights_N
        Weight of each bin; None: all count the same.
    """
    if not len(true_K):
        return predicted.sum()
    if predicted.dim() == 2:
        return cross_entropy(predicted.float(), true_K, weight=bin_weights_N)
    error = huber_loss if masking.loss == "huber" else mse_loss
    return error(predicted.float(), true_K)


def bin_counts(x: csr_matrix, tokens: TokensConfig) -> np.ndarray:
    """How often each expressed gene is in each bin; float64, G x N."""
    size = num_tokens(tokens)
    cells = x.shape[1] * size
    counts = np.bincount(x.indices.astype(np.int64) * size + log2_bins(x.data, tokens), minlength=cells)
    return counts.reshape(x.shape[1], size).astype(np.float64)


def bin_weights(x: csr_matrix, tokens: TokensConfig, class_weights: str) -> torch.Tensor | None:
    """Weight of each bin in the loss, float32, N, with mean 1 over the expressed values; None for equal weights.

    Parameters
    ----------
    class_weights
        `none`; `balanced`: inverse to how often the bin occurs; `sqrt`: the root of that.
    """
    if tokens.name == "continuous" or class_weights == "none":
        return None
    counts = bin_counts(x, tokens).sum(0)
    power = {"sqrt": 0.5, "balanced": 1.0}[class_weights]
    weights = np.where(counts > 0, np.maximum(counts, 1) ** -power, 0.0)
    return torch.tensor(weights / np.average(weights, weights=counts), dtype=torch.float32)


def naive_predictions(x: csr_matrix, tokens: TokensConfig) -> torch.Tensor:
    """What a guess from the gene alone says of an expressed gene's value: the yardstick of pretraining.

    Genes that few cells express lean on what all genes together say, which counts as one more cell.

    Parameters
    ----------
    x
        CSR, N cells x G genes, ln(1 + cp10k).

    Returns
    -------
    float32: the mean value of each gene, G, with continuous tokens; else the logarithm of how often each bin occurs
    in a gene, G x N.
    """
    if tokens.name == "continuous":
        totals = np.asarray(x.sum(axis=0), dtype=np.float64).ravel()
        num_cells = np.bincount(x.indices, minlength=x.shape[1])
        means = (totals + x.data.mean(dtype=np.float64)) / (num_cells + 1)
        return torch.tensor(means, dtype=torch.float32)
    counts = bin_counts(x, tokens)
    overall = (counts.sum(0) + 1) / (counts.sum() + counts.shape[1])
    shares = (counts + overall) / (counts.sum(1, keepdims=True) + 1)
    return torch.tensor(np.log(shares), dtype=torch.float32)
