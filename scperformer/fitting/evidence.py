"""Both branches fitted to labelled cells, and the scales of their logits by cross-validation."""

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
    MAX_DUAL,
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

LARGEST = 10.0  # a scale would be infinite without a limit if all held-out cells are called correctly
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

    best = minimize(objective, prior + 0.1, jac=True, method="L-BFGS-B", bounds=[(0.0, LARGEST)] * 2).x
    return float(best[0]), float(best[1])


def scales_if_significant(
    linear: np.ndarray, encoder: np.ndarray, labels: np.ndarray, min_gain: float = MIN_GAIN
) -> tuple[float, float, dict[str, float] | None]:
    """Scale the branches as `branch_scales`, but leave out an encoder without a significant gain.

    The loss has to decrease by more than `min_gain` standard errors, unless that is 0: an encoder with a smaller gain
    lowers the accuracy on cells of other studies. The third result is the mean decrease of a cell's loss with its
    standard error; None if a branch is off.
    """
    both = branch_scales(linear, encoder, labels)
    if not linear.any() or not encoder.any():
        return *both, None
    alone, _ = branch_scales(linear, np.zeros_like(encoder), labels)
    decreases = cell_losses(alone * linear, labels) - cell_losses(both[0] * linear + both[1] * encoder, labels)
    mean = float(decreases.mean())
    error = float(decreases.std(ddof=1) / len(labels) ** 0.5) if len(labels) > 1 else 0.0
    is_significant = min_gain == 0 or mean > min_gain * error
    return *(both if is_significant else (alone, 0.0)), {"mean": mean, "standard_error": error}


@dataclass
class Fitted:
    """Fitted branches (None: the branch is off), the scales of their logits, and the evidence for these."""

    linear: LinearModel | None
    coexpression: CoexpressionEncoder | None
    scales: dict[str, float]  # of `linear` and `encoder`; empty without evidence
    evidence: dict[str, Any]  # cross-validated scores; empty without evidence
    held_out: HeldOut | None  # the cross-validated calls, with scaled logits; None without evidence


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
    linear_options
        Options of the linear branch; None if it is off.
    draws
        The same cells, thinned with other random numbers: the encoder learns from them, too.
    unlabelled
        Other cells with the same genes: the vectors of genes are learned from them, too.
    vectors
        Vectors of the genes, G x D, if they are not to be learned from these cells.
    with_evidence
        Also find the scales and the scores. Without it, or if no label has a second cell, there is no evidence.
    """
    folds = Folds(*evidence_folds(labels, seed)) if with_evidence else Folds(np.arange(0), np.arange(0))
    num_labels = int(labels.max()) + 1
    linear_logits = np.zeros((len(folds.rows), num_labels), dtype=np.float32)
    encoder_logits = np.zeros_like(linear_logits)
    linear = None
    coexpression = None
    with threadpool_limits(1), torch_state_kept(threads=1):  # sums in another order would change the last bits
        if linear_options is not None:
            linear = _fit_linear(x, labels, linear_options, folds, linear_logits)
        if model.encoder and model.positions == "coexpression":
            coexpression = _fit_vectors(x, draws, unlabelled, vectors, model.dim, seed)
            cells = np.concatenate([coexpression.cells(draw) for draw in (x, *draws)])
            _fit_heads(coexpression, cells, labels, folds, head, seed, encoder_logits)
        if not folds.is_dealt.any():
            return Fitted(linear, coexpression, {}, {}, None)
        profile, novelty = fit_novelty(x[folds.rows], labels[folds.rows], folds.fold_of_row, seed)
    truth = labels[folds.rows][folds.is_dealt]
    logits = {"linear": linear_logits[folds.is_dealt], "encoder": encoder_logits[folds.is_dealt]}
    both = dict(zip(logits, branch_scales(logits["linear"], logits["encoder"], truth), strict=True))
    parts = {"linear": linear, "encoder": coexpression}
    scales = {name: both[name] for name, part in parts.items() if part is not None}
    scaled = sum((scale * logits[name] for name, scale in scales.items()), np.zeros_like(logits["linear"]))
    evidence: dict[str, Any] = {"num_cells": len(truth), "loss": negative_log_likelihood(scaled, truth)}
    evidence |= asdict(score(truth, scaled.argmax(axis=1)))
    evidence["branches"] = {name: asdict(score(truth, logits[name].argmax(axis=1))) for name in scales}
    held_out = HeldOut(scaled, truth, novelty[folds.is_dealt], vars(profile))
    return Fitted(linear, coexpression, scales, evidence, held_out)


@dataclass
class Folds:
    """Cells that are dealt to folds, each of which is called by fits to the cells of the others."""

    rows: np.ndarray  # numbers of the cells
    fold_of_row: np.ndarray  # the fold of each of these cells; -1: it is in the fits of all folds

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the folds, from 0."""
        return np.arange(self.fold_of_row.max(initial=-1) + 1)

    @property
    def is_dealt(self) -> np.ndarray:
        """Whether each of the cells is in a fold."""
        return self.fold_of_row >= 0


def _fit_linear(
    x: csr_matrix, labels: np.ndarray, options: LinearOptions, folds: Folds, logits: np.ndarray
) -> LinearModel:
    """Fit the linear branch to all cells, and write the logits of each fold's cells by a fit to the others."""
    if not len(folds.rows):
        return fit_linear_branch(x, labels, options)
    has_all = len(folds.rows) == len(labels)
    some_labels = labels[folds.rows]
    made = design(x if has_all else x[folds.rows], some_labels, options)
    for fold in folds.numbers:
        is_called = folds.fold_of_row == fold
        fitted = fit_design(made.features[~is_called], some_labels[~is_called], options, ROUGH)
        logits[is_called] = made.features[is_called] @ fitted.weight + fitted.bias
    if has_all:  # the features are made already
        return made.to_branch(fit_design(made.features, labels, options))
    return fit_linear_branch(x, labels, options)


def _fit_vectors(
    x: csr_matrix,
    draws: Sequence[csr_matrix],
    unlabelled: csr_matrix | None,
    vectors: np.ndarray | None,
    dim: int,
    seed: int,
) -> CoexpressionEncoder:
    """Learn the vectors of genes from all cells, or scale those that are given."""
    every_x = vstack([x, *draws] if unlabelled is None else [x, *draws, unlabelled], "csr")
    scaled = None if vectors is None else scaled_vectors(vectors, every_x)
    return CoexpressionEncoder(*(scaled or gene_vectors(every_x, dim, seed)))


def _fit_heads(
    encoder: CoexpressionEncoder,
    cells: np.ndarray,
    labels: np.ndarray,
    folds: Folds,
    head: HeadConfig,
    seed: int,
    logits: np.ndarray,
) -> None:
    """Fit the head of an encoder, and write the logits of each fold's cells by a head that was fitted to the others.

    `cells` are the vectors of the cells and then of their draws: no draw of a cell is in a fit that calls the cell.
    """
    num_draws = len(cells) // len(labels)
    fold_of_cell = np.full(len(labels), -1)
    fold_of_cell[folds.rows] = folds.fold_of_row
    # The first head is fitted to all cells.
    sides = np.tile([fold_of_cell != fold for fold in (-2, *folds.numbers)], num_draws)
    encoder.head, *heads = fit_heads(cells, np.tile(labels, num_draws), sides, logits.shape[1], head, seed)
    for fold, fitted in zip(folds.numbers, heads, strict=True):
        is_called = folds.fold_of_row == fold
        logits[is_called] = head_logits(fitted, cells[folds.rows[is_called]])


def evidence_folds(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Deal up to 4,000 cells to 5 folds; return their rows and the fold of each, -1 for the only cell of a label."""
    rows = stratified_sample(labels, MAX_DUAL, seed)
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
