"""Both branches fitted to labelled cells, and the scales of their logits by evidence on cells a fit has not seen."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from threadpoolctl import threadpool_limits

from scperformer.base.metrics import cell_losses, negative_log_likelihood, score
from scperformer.base.progress import progress
from scperformer.cells import stratified_sample
from scperformer.config import HeadConfig, ModelConfig
from scperformer.fitting.coexpression import CoexpressionEncoder, fit_heads, gene_vectors, head_logits, scaled_vectors
from scperformer.fitting.linear import (
    MOST_DUAL,
    ROUGH,
    LinearOptions,
    design,
    fit_design,
    fit_linear_branch,
    label_folds,
)
from scperformer.model import HeldOut
from scperformer.network import CellTypeModel, LinearModel, torch_state_kept
from scperformer.trust import fit_novelty

LARGEST = 10.0  # scale: without a limit it would be infinite if all held-out cells are called correctly
EVIDENCE_FOLDS = 5
MIN_GAIN = 2.0  # standard errors by which an encoder has to lower the loss of held-out cells, else it is left out


def branch_scales(linear: np.ndarray, encoder: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Find a and b, from 0 to `LARGEST`, for which a * linear + b * encoder has the lowest loss on held-out cells.

    `linear` and `encoder` are logits, N x C, all 0 for a branch that is off. Their unscaled sum is often worse than the
    linear branch. The common size of a and b acts as a temperature (Guo et al. 2017, arXiv 1706.04599).
    """
    from scipy.optimize import minimize  # takes a while to import, and a prediction seldom needs it

    linear = np.asarray(linear, dtype=np.float64)
    encoder = np.asarray(encoder, dtype=np.float64)
    # The scales without data: 1 for the linear branch; for the encoder 1 if it is alone, else 0. The prior has the
    # weight of one cell and prevents extreme scales if there are few held-out cells.
    prior = np.array([1.0, 0.0 if linear.any() else 1.0])
    true = np.arange(len(labels)), labels

    def objective(scales: np.ndarray) -> tuple[float, np.ndarray]:
        logits = scales[0] * linear + scales[1] * encoder
        proba = np.exp(logits - logits.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        slopes = [float(((proba * branch).sum(axis=1) - branch[true]).mean()) for branch in (linear, encoder)]
        off = scales - prior
        loss = negative_log_likelihood(logits, labels) + (off**2).sum() / (2 * len(labels))
        return loss, np.array(slopes) + off / len(labels)

    found = minimize(objective, prior + 0.1, jac=True, method="L-BFGS-B", bounds=[(0.0, LARGEST)] * 2)
    return float(found.x[0]), float(found.x[1])


def scales_if_significant(
    linear: np.ndarray, encoder: np.ndarray, labels: np.ndarray, min_gain: float = MIN_GAIN
) -> tuple[float, float, dict[str, float] | None]:
    """Scale the branches as `branch_scales`, but leave out an encoder without a significant gain.

    The loss must decrease by more than `min_gain` standard errors, unless that is 0: otherwise accuracy on cells of
    other studies is lower. The third result is the mean decrease of a cell's loss, and its error; None if a branch is
    off.
    """
    both = branch_scales(linear, encoder, labels)
    if not linear.any() or not encoder.any():
        return *both, None
    alone, _ = branch_scales(linear, np.zeros_like(encoder), labels)
    falls = cell_losses(alone * linear, labels) - cell_losses(both[0] * linear + both[1] * encoder, labels)
    mean = float(falls.mean())
    error = float(falls.std(ddof=1) / len(labels) ** 0.5) if len(labels) > 1 else 0.0
    kept = min_gain == 0 or mean > min_gain * error
    return *(both if kept else (alone, 0.0)), {"mean": mean, "standard_error": error}


@dataclass
class Fitted:
    """Fitted branches (None: it is off), the scales of their logits, and the evidence for them."""

    linear: LinearModel | None
    coexpression: CoexpressionEncoder | None
    scales: dict[str, float]  # linear, encoder
    evidence: dict[str, Any]  # scores on cells of the reference, each called by a fit without it
    held_out: HeldOut | None  # these calls, with scaled logits; None without evidence


@progress("fitting the branches of the model")
def fit_branches(
    x: csr_matrix,
    labels: np.ndarray,
    *,
    linear_options: LinearOptions | None,
    model: ModelConfig,
    head: HeadConfig,
    seed: int,
    draws: Sequence[csr_matrix] = (),
    unlabelled: csr_matrix | None = None,
    vectors: np.ndarray | None = None,
    with_evidence: bool = True,
) -> Fitted:
    """Fit the branches that are on to cells: CSR float32 N x G, ln(1 + cp10k), labels int64 N, each of 0..C-1 occurs.

    Up to 4,000 cells, the same share of each label, are dealt to 5 folds, and each is called by fits to the others: the
    scales have the lowest loss of these calls. The branches themselves are fitted to all cells.

    Parameters
    ----------
    recipe
        Options of the linear branch; None if it is off.
    draws
        The same cells, thinned with other random numbers: the pooled encoder learns from them, too.
    unlabelled
        Other cells with the same genes: the vectors of genes are learned from them, too.
    vectors
        Vectors of the genes, G x D, if they are not to be learned from these cells.
    with_evidence
        Also find the scales and the scores. Without it, or if no label has a second cell, they are empty.
    """
    num_labels = int(labels.max()) + 1
    linear = None
    coexpression = None
    rows, folds = evidence_folds(labels, seed) if with_evidence else (np.arange(0), np.arange(0))
    known = np.arange(folds.max(initial=-1) + 1)
    linear_logits, encoder_logits = np.zeros((2, len(rows), num_labels), dtype=np.float32)
    with threadpool_limits(1), torch_state_kept(threads=1):  # sums in another order would change the last bits
        if linear_options is not None and with_evidence:
            whole = len(rows) == len(labels)
            made = design(x if whole else x[rows], labels[rows], linear_options)
            for fold in known:
                now = folds == fold
                fitted = fit_design(made.features[~now], labels[rows][~now], linear_options, ROUGH)
                linear_logits[now] = made.features[now] @ fitted.weight + fitted.bias
            if whole:
                linear = made.to_branch(fit_design(made.features, labels, linear_options))
        if linear_options is not None and linear is None:
            linear = fit_linear_branch(x, labels, linear_options)
        if model.encoder and model.positions == "coexpression":
            every = [x, *draws] if unlabelled is None else [x, *draws, unlabelled]
            every_x = vstack(every, "csr")
            known_vectors = None if vectors is None else scaled_vectors(vectors, every_x)
            coexpression = CoexpressionEncoder(*(known_vectors or gene_vectors(every_x, model.dim, seed)))
            z = np.concatenate([coexpression.cells(draw) for draw in (x, *draws)])
            fold_of = np.full(len(labels), -1)
            fold_of[rows] = folds
            sides = np.tile([fold_of != fold for fold in (-2, *known)], 1 + len(draws))
            coexpression.head, *heads = fit_heads(z, np.tile(labels, 1 + len(draws)), sides, num_labels, head, seed)
            for fold, each in zip(known, heads, strict=True):
                encoder_logits[folds == fold] = head_logits(each, z[rows[folds == fold]])
        if not (folds >= 0).any():
            return Fitted(linear, coexpression, {}, {}, None)
        profile, novelty = fit_novelty(x[rows], labels[rows], folds, seed)
    truth = labels[rows][folds >= 0]
    logits = {"linear": linear_logits[folds >= 0], "encoder": encoder_logits[folds >= 0]}
    both = dict(zip(logits, branch_scales(logits["linear"], logits["encoder"], truth), strict=True))
    scales = {name: both[name] for name, part in (("linear", linear), ("encoder", coexpression)) if part is not None}
    together = sum((scale * logits[name] for name, scale in scales.items()), np.zeros_like(logits["linear"]))
    evidence: dict[str, Any] = {"num_cells": len(truth), "loss": negative_log_likelihood(together, truth)}
    evidence |= asdict(score(truth, together.argmax(axis=1)))
    evidence["branches"] = {name: asdict(score(truth, logits[name].argmax(axis=1))) for name in scales}
    held_out = HeldOut(together, truth, novelty[folds >= 0], vars(profile))
    return Fitted(linear, coexpression, scales, evidence, held_out)


def evidence_folds(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Deal up to 4,000 cells to 5 folds: row numbers, and the fold of each; -1 for the only cell of a label."""
    rows = stratified_sample(labels, MOST_DUAL, seed)
    order, dealt = label_folds(labels[rows], seed, EVIDENCE_FOLDS, most=len(rows))
    folds = np.empty(len(rows), dtype=np.int64)
    folds[order] = dealt
    return rows, folds


@torch.no_grad()
def fill_network(network: CellTypeModel, fitted: Fitted, scales: dict[str, float]) -> None:
    """Put fitted branches into a network, with their logits scaled."""
    if fitted.linear is not None:
        assert network.linear is not None
        network.linear.weight.weight[:-1] = torch.from_numpy(fitted.linear.weight)
        network.linear.bias.copy_(torch.from_numpy(fitted.linear.bias))
    if fitted.coexpression is not None:
        assert network.encoder is not None
        assert fitted.coexpression.head is not None
        network.encoder.embedding.set_gene_vectors(torch.from_numpy(fitted.coexpression.vectors))
        network.pool.centre_D.copy_(torch.from_numpy(fitted.coexpression.centre))
        network.head.load_state_dict(fitted.coexpression.head.state_dict())
    network.scale_branches(scales.get("linear", 1.0), scales.get("encoder", 1.0))
