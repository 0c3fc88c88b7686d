"""Both branches fitted to labelled cells, and the scales of their logits by cross-validation."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix, vstack
from threadpoolctl import threadpool_limits

from scperformer.base.parallel import map_in_order, usable_cores
from scperformer.base.progress import progress
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import NetworkOptions
from scperformer.fits.choose_linear import is_lower, scaled_losses
from scperformer.fits.folds import Folds, no_folds
from scperformer.fits.linear import (
    MAX_DUAL,
    SOLVER_TOLERANCE,
    Design,
    LinearOptions,
    Views,
    branch_design,
)
from scperformer.fits.performer import gene_vectors, scaled_vectors, start_performer, train_readouts
from scperformer.fits.scales import branch_scale, scaled_score, scales_if_significant, score_alone
from scperformer.fits.steps import device_of
from scperformer.model.arrays import HeldOut
from scperformer.model.bundle import BatchScores, OutOfFold
from scperformer.model.inference import torch_state_kept
from scperformer.model.network import CellTypeModel, LinearModel, Readout
from scperformer.model.performer import Performer
from scperformer.model.saved_model import BRANCHES
from scperformer.trust.batch_effect import batch_effect
from scperformer.trust.novelty import fit_novelty
from scperformer.trust.shift import MIN_CELLS

log = logging.getLogger(__name__)

MAX_STATISTICS_CELLS = 20_000  # from which gene vectors are learned, and attention starts
MAX_BATCH_CELLS = 2000  # of a batch, and of the others, whose means are compared
C_OF_MANY = 1.0  # of the linear branch, the alternative if its features are components
MAX_OWN_WEIGHTS = 1500  # cells of a reference whose genes are weighted anew for each fold
MAX_COMPARED_BATCHES = 50  # whose means are compared


@dataclass
class FittedEncoder:
    """Gene vectors in a Performer, and a trained copy of all that reads them."""

    performer: Performer
    readout: Readout

    def logits(self, sums: np.ndarray) -> np.ndarray:
        """Return the logits of cells, float32 N x C, from their sums over genes, N x X."""
        with torch.inference_mode():
            return self.readout(
                torch.from_numpy(sums), self.performer.keys_GD, self.performer.vectors_GD
            ).numpy()


@dataclass
class FittedBranch:
    """What the linear branch sees of many cells, to fit it to further cells."""

    views: Views
    axes: np.ndarray  # float32, (views * G) x K
    options: LinearOptions


@dataclass
class FitPlan:
    """How the branches are fitted, and what they learn from beside the labelled cells."""

    cfg: NetworkOptions
    linear: LinearOptions | None  # if None, there is no linear branch
    # the same cells, thinned with other random numbers: the encoder learns from them
    draws: Sequence[csr_matrix] = ()
    # cells with the same genes, from which gene vectors are learned, too
    unlabelled: csr_matrix | None = None
    vectors: np.ndarray | None = None  # gene vectors, G x D; if None, they are learned
    tests_baseline: bool = True  # by cross-validation, as the branches
    folder: Path | None = None  # the run folder, for logs and checkpoints

    def device(self, num_cells: int) -> str:
        """Return the device of sums over genes and linear fits; few cells stay on the CPU."""
        if num_cells <= MAX_DUAL:
            return "cpu"
        return device_of(self.cfg.trainer).of_sums

    def threads(self, num_cells: int) -> int:
        """Return how many fits are made at a time: one on each core; a GPU holds the cells of one fit."""
        return usable_cores() if self.device(num_cells) == "cpu" else 1


@dataclass
class Fitted:
    """Fitted branches, None for one that is off."""

    linear: LinearModel | None = None
    encoder: FittedEncoder | None = None


@dataclass(kw_only=True)
class FittedToAll(Fitted):
    """Branches that are fitted to all cells, beside the baseline, and what fits to other folds predict."""

    baseline: LinearModel  # plain logistic regression
    branch: FittedBranch | None  # how the linear branch was fitted, to fit it to further cells
    # float32 N x C of the cells of folds, of `linear`, `encoder` and `baseline`
    logits: dict[str, np.ndarray]
    # of the logits of both branches, if they are calibrated
    scales: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Calibrated(FittedToAll):
    """The same, and what their cross-validation shows."""

    evidence: OutOfFold
    held_out: HeldOut  # out-of-fold predictions, with scaled logits


@progress("fitting the branches of the model")
def fit_branches(x: csr_matrix, labels: np.ndarray, plan: FitPlan, folds: Folds) -> FittedToAll:
    """Fit the branches to all cells, and predict the cells of each fold by fits to the others.

    `x` is CSR float32 N x G, ln(1 + cp10k); of `labels`, int64 N, each of 0..C-1 occurs.
    """
    cfg = plan.cfg
    device = plan.device(len(labels))
    threads = plan.threads(len(labels))
    logits = {}
    linear = encoder = branch = None
    designs: list[Callable[[], Design]] = [partial(Design, x, labels, Views(), cfg.seed, device)]
    if plan.linear is not None:
        designs.append(partial(branch_design, x, labels, plan.linear, cfg.seed, device))
    # sums in another order would change the last bits
    with threadpool_limits(1), torch_state_kept(threads=1):
        if cfg.model.uses_cross_attention:
            # meanwhile; their products are not torch's, whose settings the training changes
            if threads > 1:
                pool = ThreadPoolExecutor(1)
                designs = [pool.submit(make).result for make in designs]
                pool.shutdown(wait=False)
            encoder, of_encoder = _fit_encoder(x, labels, plan, folds)
        baseline_folds = folds if plan.tests_baseline else no_folds(labels)
        baseline, logits["baseline"], _ = _fit_linear(
            x, labels, designs.pop(0)(), baseline_folds, threads
        )
        if plan.linear is not None:
            linear, logits["linear"], branch = _fit_linear(
                x, labels, designs.pop()(), folds, threads, plan.linear
            )
        if encoder is not None:
            logits["encoder"] = of_encoder
    return FittedToAll(linear, encoder, baseline=baseline, branch=branch, logits=logits)


def calibrated_branches(
    x: csr_matrix, labels: np.ndarray, plan: FitPlan, folds: Folds
) -> Calibrated:
    """Fit the branches as `fit_branches`, and calibrate them by the predictions of the folds, which have cells.

    Scaled, the logits of these have the lowest loss.
    """
    fitted = fit_branches(x, labels, plan, folds)
    rows = folds.rows
    threads = plan.threads(len(labels))
    novelty_model, novelty = fit_novelty(
        x[rows], labels[rows], folds.fold_of_row, plan.cfg.seed, threads
    )
    dealt = folds.is_dealt
    truth = labels[rows][dealt]
    logits = {name: fitted.logits[name][dealt] for name in BRANCHES if name in fitted.logits}
    off = np.zeros_like(next(iter(logits.values())))
    both = {name: logits.get(name, off) for name in BRANCHES}
    best = scales_if_significant(**both, labels=truth, min_errors=0)
    scales = {name: scale for name, scale in zip(BRANCHES, best[:2], strict=True) if name in logits}
    scaled = sum((scale * logits[name] for name, scale in scales.items()), off)
    branches = {name: score_alone(both, name, truth) for name in logits}
    scores = scaled_score(scaled, truth)
    evidence = OutOfFold(
        num_cells=len(truth), **scores, branches=branches, baseline=None, batches=None
    )
    if plan.tests_baseline:
        alone = fitted.logits["baseline"][dealt]
        evidence.baseline = scaled_score(branch_scale(alone, truth) * alone, truth)
    if (batches := folds.batches) is not None:
        is_right = pd.Series(scaled.argmax(axis=1) == truth).groupby(batches[rows[dealt]])
        accuracy = is_right.mean()[is_right.size() >= MIN_CELLS]
        evidence.batches = BatchScores(
            # None of few cells
            accuracy=[accuracy.get(batch) for batch in range(int(batches.max()) + 1)],
            batch_effect=effects_of_batches(x, labels, batches, plan.cfg.seed),
        )
    held_out = HeldOut(scaled, truth, novelty[dealt], novelty_model)
    return Calibrated(**vars(fitted) | {"scales": scales}, evidence=evidence, held_out=held_out)


def _fit_linear(
    x: csr_matrix,
    labels: np.ndarray,
    design: Design,
    folds: Folds,
    threads: int,
    options: LinearOptions | None = None,
) -> tuple[LinearModel, np.ndarray, FittedBranch | None]:
    """Fit the linear branch or, without options, the baseline to all cells; also the logits of each fold's cells.

    The logits are by a fit to the other folds, float32 N x C, and 0 for cells of no fold. Of many cells, what the
    linear branch sees of them is returned, too.
    """
    c, class_weights = (
        (design.baseline_c, "none") if options is None else (options.c, options.class_weights)
    )
    if options is not None and design.axes is not None:
        options = _with_penalty_of_many(design, folds, options, threads)
        c = options.c
    logits = np.zeros((len(folds.rows), int(labels.max()) + 1), dtype=np.float32)

    def fit(fold: int | None) -> LinearModel:
        if fold is None:
            return design.model(design.fit(c, class_weights, tolerance=SOLVER_TOLERANCE))
        in_fold = folds.fold_of_row == fold
        held_out = folds.rows[in_fold]
        others = folds.others(fold, labels)
        # Weights of genes know the labels of the cells from which they come. Of many cells, each changes them little.
        if options is not None and len(labels) <= MAX_OWN_WEIGHTS:
            of_others = branch_design(x[others], labels[others], options)
            fitted = of_others.fit(c, class_weights)
            features = of_others.features_of(x[held_out])
        else:
            fitted = design.fit(c, class_weights, others)
            features = design.features[held_out]
        logits[in_fold] = features @ fitted.weight + fitted.bias
        return fitted

    # The first fit stops at a smaller gradient, and takes longest.
    fits = map_in_order(fit, [None, *folds.numbers], threads)
    with progress("fitting linear models", total=1 + len(folds.numbers), unit="fits") as shown:
        final = next(fits)
        shown.update()
        for _ in fits:
            shown.update()
    branch = (
        None
        if options is None or design.axes is None
        else FittedBranch(design.views, design.axes, options)
    )
    return final, logits, branch


def _with_penalty_of_many(
    design: Design, folds: Folds, options: LinearOptions, threads: int
) -> LinearOptions:
    """Return the options with a larger C, if that lowers the loss of the first fold as `choose_linear_options` asks.

    They were chosen by few cells: their penalty may be too much for many.
    """
    first = folds.rows[folds.fold_of_row == 0]
    if not len(first) or options.c >= C_OF_MANY:
        return options
    others = folds.others(0, design.labels)

    def losses(c: float) -> np.ndarray:
        fitted = design.fit(c, options.class_weights, others)
        logits = design.features[first] @ fitted.weight + fitted.bias
        return scaled_losses(logits, design.labels[first])

    before, after = map_in_order(losses, (options.c, C_OF_MANY), min(threads, 2))
    if not is_lower(after, before):
        return options
    text = "linear branch: C %g in place of %g, by the loss of held-out cells: there are more of a label"
    log.info(text, C_OF_MANY, options.c)
    return replace(options, c=C_OF_MANY)


def _fit_encoder(
    x: csr_matrix, labels: np.ndarray, plan: FitPlan, folds: Folds
) -> tuple[FittedEncoder, np.ndarray]:
    """Fit the Performer to all cells; also the logits of each fold's cells by a copy that did not see them, N x C."""
    cfg = plan.cfg
    draws = [x, *plan.draws]
    repeated = np.tile(labels, len(draws))
    pool = vstack(draws, "csr") if plan.draws else x
    sample = pool[stratified_sample(repeated, MAX_STATISTICS_CELLS, cfg.seed)]
    cells = sample if plan.unlabelled is None else vstack([sample, plan.unlabelled], "csr")
    if plan.vectors is None:
        vectors = gene_vectors(cells, cfg.model.dim, cfg.seed)
    else:
        vectors = scaled_vectors(plan.vectors, cells)
    performer = start_performer(vectors, sample, cfg)
    sums = np.concatenate([performer.sums_of(draw, plan.device(len(labels))) for draw in draws])
    # The first copy is trained on all cells, and each other on no draw of the cells of a fold, which it predicts.
    sides = np.tile([folds.fold_of_cell != fold for fold in (-2, *folds.numbers)], len(draws))
    readouts = train_readouts(performer, sums, repeated, sides, cfg, plan.folder)
    encoder, *copies = (FittedEncoder(performer, readout) for readout in readouts)
    logits = np.zeros((len(folds.rows), int(labels.max()) + 1), dtype=np.float32)
    for fold, copy in zip(folds.numbers, copies, strict=True):
        in_fold = folds.fold_of_row == fold
        logits[in_fold] = copy.logits(sums[folds.rows[in_fold]])
    return encoder, logits


def effects_of_batches(x: csr_matrix, labels: np.ndarray, batches: np.ndarray, seed: int) -> float:
    """Return the largest gene effects between cells of a batch and of the others, which have the same labels.

    Batches are the 50 largest, and the others are among 20,000 cells: the time does not grow with the reference.
    """
    effects = []
    pool = stratified_sample(labels, MAX_STATISTICS_CELLS, seed)
    order = np.argsort(batches, kind="stable")
    rows_of = np.split(order, np.cumsum(np.bincount(batches))[:-1])
    for batch in np.argsort([-len(rows) for rows in rows_of], kind="stable")[:MAX_COMPARED_BATCHES]:
        others = pool[batches[pool] != batch]
        rows = rows_of[batch][np.isin(labels[rows_of[batch]], labels[others])]
        if len(rows) >= MIN_CELLS:
            rows = rows[stratified_sample(labels[rows], MAX_BATCH_CELLS, seed)]
            rest = others[stratified_sample(labels[others], MAX_BATCH_CELLS, seed)]
            effects.append(
                batch_effect(x[rows], x[rest], np.unique(labels[rest], return_inverse=True)[1])
            )
    return max(effects, default=0.0)


@torch.no_grad()
def fill_network(network: CellTypeModel, fitted: Fitted, scales: dict[str, float]) -> None:
    """Put fitted branches into a network, with their logits scaled."""
    if fitted.linear is not None and network.linear is not None:
        network.linear.weight.weight[:-1] = torch.from_numpy(fitted.linear.weight)
        network.linear.bias.copy_(torch.from_numpy(fitted.linear.bias))
    if fitted.encoder is not None and network.performer is not None:
        readout = fitted.encoder.readout
        network.performer.embedding.set_gene_vectors(fitted.encoder.performer.vectors_GD)
        network.head.load_state_dict(readout.head.state_dict())
        network.performer.reader.load_state_dict(readout.reader.state_dict())
    network.scale_branches(scales.get("linear", 1.0), scales.get("encoder", 1.0))
