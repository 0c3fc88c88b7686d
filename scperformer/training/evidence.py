"""Both branches fitted to labelled cells, and the scales of their logits by cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix, vstack
from threadpoolctl import threadpool_limits

from scperformer.base.metrics import cell_losses, negative_log_likelihood, score
from scperformer.base.progress import progress
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import NetworkOptions
from scperformer.model.arrays import HeldOut
from scperformer.model.batch_effect import batch_effect
from scperformer.model.inference import torch_state_kept
from scperformer.model.network import CellTypeModel, LinearModel, Readout
from scperformer.model.novelty import fit_novelty
from scperformer.model.performer import Performer
from scperformer.model.shift import MIN_CELLS
from scperformer.training.fit_linear import (
    MAX_DUAL,
    ROUGH,
    SOLVER_TOLERANCE,
    LinearOptions,
    batch_folds,
    design,
    fit_linear_branch,
    fit_logistic,
    label_folds,
    labels_of_one_fold,
)

LARGEST = 10.0  # a scale would be infinite without a limit if all held-out cells are called correctly
EVIDENCE_FOLDS = 5
MIN_GAIN = 2.0  # standard errors by which an encoder has to lower the loss of held-out cells, else it is left out


def branch_scales(linear: np.ndarray, encoder: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Find a and b, from 0 to `LARGEST`, for which a * linear + b * encoder has the lowest loss on held-out cells.

    `linear` and `encoder` are logits, N x C, all 0 for a branch that is off. Their unscaled sum is often worse than the
    linear branch. The common size of a and b acts as a temperature (Guo et al. 2017, arXiv 1706.04599).
    """
    from scipy.optimize import minimize  # takes a while to import, and a prediction seldom needs it

    linear, encoder = (np.asarray(branch, dtype=np.float64) for branch in (linear, encoder))
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


def score_alone(logits: dict[str, np.ndarray], name: str, labels: np.ndarray) -> dict[str, float]:
    """Return the scores of one of the branches without the other, and its loss with the best scale of its own.

    `logits` of the branches `linear` and `encoder` are for held-out cells, N x C.
    """
    alone = {other: branch if other == name else np.zeros_like(branch) for other, branch in logits.items()}
    scales = dict(zip(("linear", "encoder"), branch_scales(**alone, labels=labels), strict=True))
    loss = negative_log_likelihood(scales[name] * logits[name], labels)
    return score(labels, logits[name].argmax(axis=1)) | {"loss": loss}


@dataclass
class FittedEncoder:
    """Gene vectors in a Performer, and a trained copy of all that reads them."""

    performer: Performer
    readout: Readout

    def logits(self, sums: np.ndarray) -> np.ndarray:
        """Return the logits of cells, float32 N x C, from their sums over genes, N x X."""
        with torch.inference_mode():
            return self.readout(torch.from_numpy(sums), self.performer.keys_GD, self.performer.vectors_GD).numpy()


@dataclass
class Fitted:
    """Fitted branches (None: the branch is off), the scales of their logits, and the evidence for these."""

    linear: LinearModel | None
    encoder: FittedEncoder | None
    scales: dict[str, float]  # of `linear` and `encoder`; empty without evidence
    evidence: dict[str, Any]  # cross-validated scores; empty without evidence
    held_out: HeldOut | None  # the cross-validated calls, with scaled logits; None without evidence
    linear_options: LinearOptions | None = None  # of the linear branch


@progress("fitting the branches of the model")
def fit_branches(
    x: csr_matrix,
    labels: np.ndarray,
    *,
    linear_options: LinearOptions | None,
    cfg: NetworkOptions,
    draws: Sequence[csr_matrix] = (),
    unlabelled: csr_matrix | None = None,
    vectors: np.ndarray | None = None,
    batches: np.ndarray | None = None,
    with_evidence: bool = True,
    folder: Path | None = None,
) -> Fitted:
    """Fit the branches that are on to cells: CSR float32 N x G, ln(1 + cp10k), labels int64 N, each of 0..C-1 occurs.

    Up to 4,000 cells, the same share of each label, are dealt to 5 folds, and each is called by fits to the others: the
    scales have the lowest loss of these calls. The branches themselves are fitted to all cells. Without evidence, or if
    no label has a second cell, there are no scales and no scores.

    `draws` are the same cells, thinned with other random numbers: the encoder learns from them, too. Gene vectors are
    learned also from `unlabelled` cells with the same genes, unless they are given as `vectors`, G x D. With `batches`,
    the index of the batch of each cell, int64 N, whole batches are dealt to the folds. `folder` is the run folder for
    logs and checkpoints.
    """
    folds = Folds(np.arange(0), np.full(len(labels), -1))
    if with_evidence:
        folds = evidence_folds(labels, cfg.seed, batches)
    num_labels = int(labels.max()) + 1
    linear_logits = np.zeros((len(folds.rows), num_labels), dtype=np.float32)
    encoder_logits = np.zeros_like(linear_logits)
    linear = encoder = None
    with threadpool_limits(1), torch_state_kept(threads=1):  # sums in another order would change the last bits
        if linear_options is not None:
            linear = _fit_linear(x, labels, linear_options, folds, linear_logits)
        if cfg.model.reads_genes:
            # Lightning takes a while to import.
            from scperformer.training.fit_performer import gene_vectors, scaled_vectors, start_performer, train_readouts

            every = vstack([x, *draws], "csr")
            seen = every if unlabelled is None else vstack([every, unlabelled], "csr")
            vectors = gene_vectors(seen, cfg.model.dim, cfg.seed) if vectors is None else scaled_vectors(vectors, seen)
            performer = start_performer(vectors, every, cfg)
            sums = np.concatenate([performer.sums_of(draw) for draw in (x, *draws)])
            # The first copy is trained on all cells, and each other on no draw of the cells of a fold, which it calls.
            sides = np.tile([folds.fold_of_cell != fold for fold in (-2, *folds.numbers)], 1 + len(draws))
            repeated = np.tile(labels, 1 + len(draws))
            readouts = train_readouts(performer, sums, repeated, sides, num_labels, cfg, folder)
            encoder, *copies = (FittedEncoder(performer, readout) for readout in readouts)
            for fold, copy in zip(folds.numbers, copies, strict=True):
                is_called = folds.fold_of_row == fold
                encoder_logits[is_called] = copy.logits(sums[folds.rows[is_called]])
        if not folds.is_dealt.any():
            return Fitted(linear, encoder, {}, {}, None, linear_options)
        profile, novelty = fit_novelty(x[folds.rows], labels[folds.rows], folds.fold_of_row, cfg.seed)
    truth = labels[folds.rows][folds.is_dealt]
    logits = {"linear": linear_logits[folds.is_dealt], "encoder": encoder_logits[folds.is_dealt]}
    both = zip(("linear", "encoder"), (linear, encoder), branch_scales(**logits, labels=truth), strict=True)
    scales = {name: scale for name, branch, scale in both if branch is not None}
    scaled = sum((scale * logits[name] for name, scale in scales.items()), np.zeros_like(logits["linear"]))
    evidence: dict[str, Any] = {"num_cells": len(truth), "loss": negative_log_likelihood(scaled, truth)}
    evidence |= score(truth, scaled.argmax(axis=1))
    evidence["branches"] = {name: score_alone(logits, name, truth) for name in scales}
    if batches is not None:
        is_right = pd.Series(scaled.argmax(axis=1) == truth).groupby(batches[folds.rows[folds.is_dealt]]).mean()
        evidence["batches"] = {
            "accuracy": [is_right.get(batch) for batch in range(int(batches.max()) + 1)],  # None: no cell is held out
            "batch_effect": effects_of_batches(x, labels, batches),
        }
    held_out = HeldOut(scaled, truth, novelty[folds.is_dealt], vars(profile))
    return Fitted(linear, encoder, scales, evidence, held_out, linear_options)


class Folds:
    """Cells that are dealt to folds, each of which is called by fits to the cells of the others."""

    def __init__(self, rows: np.ndarray, fold_of_cell: np.ndarray):
        self.rows = rows  # numbers of the cells
        self.fold_of_cell = fold_of_cell  # also of those that are not called; -1: in the fits of all folds
        self.fold_of_row = fold_of_cell[rows]
        self.numbers = range(int(self.fold_of_row.max(initial=-1)) + 1)
        self.is_dealt = self.fold_of_row >= 0


def _fit_linear(
    x: csr_matrix, labels: np.ndarray, options: LinearOptions, folds: Folds, logits: np.ndarray
) -> LinearModel:
    """Fit the linear branch to all cells, and write the logits of each fold's cells by a fit to the others."""
    has_all = len(folds.rows) == len(labels)
    if len(folds.rows):
        some = labels[folds.rows]
        features, to_branch = design(x if has_all else x[folds.rows], some, options)
    for fold in folds.numbers:
        is_called = folds.fold_of_row == fold
        fitted = fit_logistic(features[~is_called], some[~is_called], options.c, options.class_weights, ROUGH)
        logits[is_called] = features[is_called] @ fitted.weight + fitted.bias
    if has_all:  # the features are made already
        return to_branch(fit_logistic(features, labels, options.c, options.class_weights, SOLVER_TOLERANCE))
    return fit_linear_branch(x, labels, options)


def evidence_folds(labels: np.ndarray, seed: int, batches: np.ndarray | None = None) -> Folds:
    """Choose up to 4,000 cells, and deal them to 5 folds, or whole batches, if they are known, to up to 5.

    The only cell of a label is not held out, nor are the cells of a label that occurs in a single fold of batches.
    """
    rows = stratified_sample(labels, MAX_DUAL, seed)
    if batches is not None:
        fold_of_cell = batch_folds(batches, EVIDENCE_FOLDS)
        fold_of_cell[np.isin(labels, labels_of_one_fold(fold_of_cell[rows], labels[rows]))] = -1
    else:
        fold_of_cell = np.full(len(labels), -1)
        order, dealt = label_folds(labels[rows], seed, EVIDENCE_FOLDS, most=len(rows))
        fold_of_cell[rows[order]] = dealt
    return Folds(rows, fold_of_cell)


def effects_of_batches(x: csr_matrix, labels: np.ndarray, batches: np.ndarray) -> float:
    """Return the largest gene effects between the cells of a batch and the others, which have the same labels."""
    effects = []
    for batch in range(int(batches.max()) + 1):
        is_batch = batches == batch
        is_shared = np.isin(labels, labels[~is_batch])
        if (is_batch & is_shared).sum() >= MIN_CELLS:
            others = np.unique(labels[~is_batch], return_inverse=True)[1]
            effects.append(batch_effect(x[is_batch & is_shared], x[~is_batch], others))
    return max(effects, default=0.0)


@torch.no_grad()
def fill_network(network: CellTypeModel, fitted: Fitted, scales: dict[str, float]) -> None:
    """Put fitted branches into a network, with their logits scaled."""
    if fitted.linear is not None:
        assert network.linear is not None
        network.linear.weight.weight[:-1] = torch.from_numpy(fitted.linear.weight)
        network.linear.bias.copy_(torch.from_numpy(fitted.linear.bias))
    if fitted.encoder is not None:
        readout = fitted.encoder.readout
        assert isinstance(network.encoder, Performer)
        network.encoder.embedding.set_gene_vectors(fitted.encoder.performer.vectors_GD)
        network.head.load_state_dict(readout.head.state_dict())
        network.encoder.reader.load_state_dict(readout.reader.state_dict())
    network.scale_branches(scales.get("linear", 1.0), scales.get("encoder", 1.0))
