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

from scperformer.base.progress import progress
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import NetworkOptions
from scperformer.model.arrays import HeldOut
from scperformer.model.inference import torch_state_kept
from scperformer.model.network import CellTypeModel, LinearModel, Readout
from scperformer.model.performer import Performer
from scperformer.training.fit_linear import MAX_DUAL, SOLVER_TOLERANCE, Design, LinearOptions, Views, branch_design
from scperformer.training.folds import Folds, evidence_folds, no_folds
from scperformer.training.kept_fits import Arrays, KeptFits
from scperformer.training.scales import branch_scale, scaled_score, scales_if_significant, score_alone
from scperformer.trust.batch_effect import batch_effect
from scperformer.trust.novelty import fit_novelty
from scperformer.trust.shift import MIN_CELLS

MAX_STATISTICS_CELLS = 20_000  # from which gene vectors are learned, and attention starts
MAX_BATCH_CELLS = 2000  # of a batch, and of the others, whose means are compared
MAX_BATCHES = 50  # whose means are compared


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
class FittedBranch:
    """What the linear branch sees of many cells, to fit it to further cells."""

    views: Views
    axes: np.ndarray  # float32, (views * G) x K
    options: LinearOptions


@dataclass
class Fitted:
    """Fitted branches (None: the branch is off), the scales of their logits, and the evidence for these."""

    linear: LinearModel | None
    encoder: FittedEncoder | None
    scales: dict[str, float]  # of `linear` and `encoder`; empty without evidence
    evidence: dict[str, Any]  # cross-validated scores; empty without evidence
    held_out: HeldOut | None  # the cross-validated calls, with scaled logits; None without evidence
    baseline: LinearModel | None = None  # plain logistic regression
    branch: FittedBranch | None = None  # how the linear branch was fitted, to fit it to further cells


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
    tests_baseline: bool = True,
    folder: Path | None = None,
    kept: KeptFits | None = None,
) -> Fitted:
    """Fit the branches that are on to cells: CSR float32 N x G, ln(1 + cp10k), labels int64 N, each of 0..C-1 occurs.

    Up to 4,000 cells, the same share of each label, are dealt to 5 folds, and each is called by fits to the others: the
    scales have the lowest loss of these calls. The branches themselves are fitted to all cells. Without evidence, or if
    no label has a second cell, there are no scales and no scores; the baseline has scores only if it `tests_baseline`.

    `draws` are the same cells, thinned with other random numbers: the encoder learns from them, too. Gene vectors are
    learned also from `unlabelled` cells with the same genes, unless they are given as `vectors`, G x D. With `batches`,
    the index of the batch of each cell, int64 N, whole batches are dealt to the folds. `folder` is the run folder for
    logs and checkpoints; `kept` has the finished fits of an interrupted run.
    """
    folds = evidence_folds(labels, cfg.data.seed_of_split(cfg.seed), batches) if with_evidence else no_folds(labels)
    kept = KeptFits(None) if kept is None else kept
    device = "cpu" if len(labels) <= MAX_DUAL else _device(cfg)
    num_labels = int(labels.max()) + 1
    linear = encoder = branch = None
    logits = dict.fromkeys(("linear", "encoder"), np.zeros((len(folds.rows), num_labels), dtype=np.float32))
    with threadpool_limits(1), torch_state_kept(threads=1):  # sums in another order would change the last bits
        called = folds if tests_baseline else no_folds(labels)

        def fit_baseline() -> Arrays:
            design = Design(x, labels, Views(), cfg.seed, device)
            return _fit_linear(design, called, design.baseline_c, "none")

        of_baseline = kept.of("baseline", fit_baseline)
        baseline = LinearModel(of_baseline["weight"], of_baseline["bias"])
        if (options := linear_options) is not None:

            def fit_branch() -> Arrays:
                design = branch_design(x, labels, options, cfg.seed, device)
                return _fit_linear(design, folds, options.c, options.class_weights)

            made = kept.of("linear", fit_branch)
            linear, logits["linear"] = LinearModel(made["weight"], made["bias"]), made["logits"]
            if "axes" in made:
                branch = FittedBranch(Views(options.powers, tuple(made["scales"])), made["axes"], options)
        if cfg.model.uses_cross_attention:
            encoder, logits["encoder"] = _fit_encoder(
                x, labels, folds, device, cfg=cfg, draws=draws, unlabelled=unlabelled, vectors=vectors, folder=folder
            )
        if not folds.is_dealt.any():
            return Fitted(linear, encoder, {}, {}, None, baseline, branch)
        profile, novelty = fit_novelty(x[folds.rows], labels[folds.rows], folds.fold_of_row, cfg.seed)
    truth = labels[folds.rows][folds.is_dealt]
    logits = {name: each[folds.is_dealt] for name, each in logits.items()}
    of_linear, of_encoder, _ = scales_if_significant(**logits, labels=truth, min_errors=0)
    both = zip(("linear", "encoder"), (linear, encoder), (of_linear, of_encoder), strict=True)
    scales = {name: scale for name, branch, scale in both if branch is not None}
    scaled = sum((scale * logits[name] for name, scale in scales.items()), np.zeros_like(logits["linear"]))
    evidence: dict[str, Any] = {"num_cells": len(truth), **scaled_score(scaled, truth)}
    evidence["branches"] = {name: score_alone(logits, name, truth) for name in scales}
    if tests_baseline:
        alone = of_baseline["logits"][folds.is_dealt]
        evidence["baseline"] = scaled_score(branch_scale(alone, truth) * alone, truth)
    if batches is not None:
        is_right = pd.Series(scaled.argmax(axis=1) == truth).groupby(batches[folds.rows[folds.is_dealt]])
        accuracy = is_right.mean()[is_right.size() >= MIN_CELLS]
        evidence["batches"] = {
            "accuracy": [accuracy.get(batch) for batch in range(int(batches.max()) + 1)],  # None: few cells, or none
            "batch_effect": effects_of_batches(x, labels, batches, cfg.seed),
        }
    held_out = HeldOut(scaled, truth, novelty[folds.is_dealt], vars(profile))
    return Fitted(linear, encoder, scales, evidence, held_out, baseline, branch)


def _device(cfg: NetworkOptions) -> str:
    """Return the device of many cells; fewer need no GPU, nor Lightning, which takes a while to import."""
    from scperformer.training.trainer import device_of

    return device_of(cfg.trainer).of_sums


def _fit_linear(design: Design, folds: Folds, c: float, class_weights: str) -> Arrays:
    """Fit a linear model to all cells; also the logits of each fold's cells.

    The logits are by a fit to the other folds, float32 N x C, and 0 for cells of no fold. Of many cells, the components
    to which the linear branch was fitted are returned, too.
    """
    final = design.model(design.fit(c, class_weights, tolerance=SOLVER_TOLERANCE))
    logits = np.zeros((len(folds.rows), int(design.labels.max()) + 1), dtype=np.float32)
    with progress("cross-validation", total=len(folds.numbers), unit="folds") as shown:
        for fold in folds.numbers:
            is_called = folds.fold_of_row == fold
            fitted = design.fit(c, class_weights, folds.others(fold, design.labels))
            logits[is_called] = design.features[folds.rows[is_called]] @ fitted.weight + fitted.bias
            shown.update()
    made = {"weight": final.weight, "bias": final.bias, "logits": logits}
    if design.axes is not None and design.views.powers:
        made |= {"axes": design.axes, "scales": np.array(design.views.scales)}
    return made


def _fit_encoder(
    x: csr_matrix,
    labels: np.ndarray,
    folds: Folds,
    device: str,
    *,
    cfg: NetworkOptions,
    draws: Sequence[csr_matrix],
    unlabelled: csr_matrix | None,
    vectors: np.ndarray | None,
    folder: Path | None,
) -> tuple[FittedEncoder, np.ndarray]:
    """Fit the Performer to all cells; also the logits of each fold's cells by a copy that did not see them, N x C."""
    # Lightning takes a while to import.
    from scperformer.training.fit_performer import gene_vectors, scaled_vectors, start_performer, train_readouts

    every = vstack([x, *draws], "csr") if draws else x
    every = every[stratified_sample(np.tile(labels, 1 + len(draws)), MAX_STATISTICS_CELLS, cfg.seed)]
    seen = every if unlabelled is None else vstack([every, unlabelled], "csr")
    vectors = gene_vectors(seen, cfg.model.dim, cfg.seed) if vectors is None else scaled_vectors(vectors, seen)
    performer = start_performer(vectors, every, cfg)
    sums = np.concatenate([performer.sums_of(draw, device) for draw in (x, *draws)])
    # The first copy is trained on all cells, and each other on no draw of the cells of a fold, which it calls.
    sides = np.tile([folds.fold_of_cell != fold for fold in (-2, *folds.numbers)], 1 + len(draws))
    repeated = np.tile(labels, 1 + len(draws))
    readouts = train_readouts(performer, sums, repeated, sides, int(labels.max()) + 1, cfg, folder)
    encoder, *copies = (FittedEncoder(performer, readout) for readout in readouts)
    logits = np.zeros((len(folds.rows), int(labels.max()) + 1), dtype=np.float32)
    for fold, copy in zip(folds.numbers, copies, strict=True):
        is_called = folds.fold_of_row == fold
        logits[is_called] = copy.logits(sums[folds.rows[is_called]])
    return encoder, logits


def effects_of_batches(x: csr_matrix, labels: np.ndarray, batches: np.ndarray, seed: int) -> float:
    """Return the largest gene effects between cells of a batch and of the others, which have the same labels.

    Batches are the 50 largest, and the others are among 20,000 cells: the time does not grow with the reference.
    """
    effects = []
    pool = stratified_sample(labels, MAX_STATISTICS_CELLS, seed)
    order = np.argsort(batches, kind="stable")
    rows_of = np.split(order, np.cumsum(np.bincount(batches))[:-1])
    for batch in np.argsort([-len(rows) for rows in rows_of], kind="stable")[:MAX_BATCHES]:
        others = pool[batches[pool] != batch]
        rows = rows_of[batch][np.isin(labels[rows_of[batch]], labels[others])]
        if len(rows) >= MIN_CELLS:
            rows = rows[stratified_sample(labels[rows], MAX_BATCH_CELLS, seed)]
            rest = others[stratified_sample(labels[others], MAX_BATCH_CELLS, seed)]
            effects.append(batch_effect(x[rows], x[rest], np.unique(labels[rest], return_inverse=True)[1]))
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
