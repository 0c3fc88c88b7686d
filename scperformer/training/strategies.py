"""Ways to train: cross-validated calibration, and a validation split.

Both fit the branches, scale their logits on cells that the fits did not see, and end with fits to all cells.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from scperformer.base.metrics import score
from scperformer.base.progress import progress
from scperformer.cells.collection import CELLS_AT_ONCE, Stream
from scperformer.cells.reference import Reference, read_unlabelled
from scperformer.config.training import TrainOptions
from scperformer.fits import components
from scperformer.fits.choose_linear import choose_linear_options
from scperformer.fits.evidence import (
    Calibrated,
    FitPlan,
    FittedBranch,
    FittedToAll,
    calibrated_branches,
    fill_network,
    fit_branches,
)
from scperformer.fits.folds import Folds, evidence_folds, no_folds
from scperformer.fits.logistic import fit_logistic
from scperformer.fits.scales import MIN_ERRORS, scales_if_significant
from scperformer.fits.steps import device_of
from scperformer.model.arrays import HeldOut
from scperformer.model.bundle import Metrics
from scperformer.model.inference import branch_logits
from scperformer.model.minibatches import Cells, row_subset
from scperformer.model.network import CellTypeModel, LinearModel
from scperformer.training.run_folder import Diverged, RunFolder
from scperformer.trust.novelty import fit_novelty_model

log = logging.getLogger(__name__)

FEATURES_FILE = ".scperformer-components"  # in the run folder: components of cells on disk, float16


AnyFit = TypeVar("AnyFit", bound=FittedToAll)


@dataclass
class Training(ABC, Generic[AnyFit]):
    """A training under way: cells, options and network."""

    reference: Reference
    cfg: TrainOptions
    network: CellTypeModel
    # the cells to train on that are in memory: all of them, or a sample of cells on disk
    train: Cells
    val: Cells  # to validate on
    plan: FitPlan
    folds: Folds  # of the cells to train on
    folder: Path  # of the run

    def fit(self) -> AnyFit:
        """Fit the branches to the training cells, and put them into the network."""
        stream = self.reference.stream
        text = "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, %s"
        num_parameters = sum(parameter.numel() for parameter in self.network.parameters())
        num_cells = len(self.train if stream is None else stream.cells)
        sizes = (
            num_cells,
            len(self.val),
            self.train.x.shape[1],
            self.network.num_labels,
            num_parameters,
        )
        has_attention = self.network.encoder is not None and bool(self.network.encoder.mechanisms)
        log.info(
            text,
            *sizes,
            f"attention {self.cfg.attention['name']}" if has_attention else "no attention",
        )
        fitted = self.fitted_branches()
        fill_network(self.network, fitted, fitted.scales)
        return fitted

    @abstractmethod
    def fitted_branches(self) -> AnyFit:
        """Fit the branches to the training cells, and calibrate them unless layers follow."""

    @abstractmethod
    def evaluate(self, fitted: AnyFit) -> tuple[Metrics, HeldOut]:
        """Score the model and the baseline on cells that the fits did not see; also return predictions of these."""

    @abstractmethod
    def refit(self, fitted: AnyFit, scales: dict[str, float]) -> LinearModel:
        """Fit the network to all cells, unless it is; the scales stay. Return the baseline, fitted to all cells."""

    def require_finite(self, *logits: np.ndarray) -> None:
        if not all(np.isfinite(branch).all() for branch in logits):
            raise Diverged("logits", self.cfg.optim.lr)


class CrossValidatedCalibration(Training[Calibrated]):
    """The branches are fitted to all cells, and calibrated by out-of-fold predictions of these.

    This is what `CalibratedClassifierCV(ensemble=False)` of scikit-learn does. There are no validation cells.
    """

    def fitted_branches(self) -> Calibrated:
        fitted = calibrated_branches(self.train.x, self.train.known_labels, self.plan, self.folds)
        stream = self.reference.stream
        if stream is not None and fitted.branch is not None:
            device = device_of(self.cfg.trainer).of_sums
            with threadpool_limits(1):  # sums in another order would change the last bits
                fitted.linear = fit_to_cells_on_disk(
                    fitted.branch, self.reference, stream, self.folder, device
                )
        return fitted

    def evaluate(self, fitted: Calibrated) -> tuple[Metrics, HeldOut]:
        evidence = fitted.evidence
        self.require_finite(fitted.held_out.logits)
        names = ("accuracy", "macro_f1", "weighted_f1")
        metrics = Metrics(
            num_val_cells=evidence.num_cells,
            model={name: getattr(evidence, name) for name in names},
            baseline={
                name: score for name, score in (evidence.baseline or {}).items() if name in names
            },
            scales=fitted.scales,
            out_of_fold=evidence,
        )
        return metrics, fitted.held_out

    def refit(self, fitted: Calibrated, scales: dict[str, float]) -> LinearModel:
        return fitted.baseline


class ValidationSplit(Training[AnyFit]):
    """The branches are fitted to training cells, scored on validation cells, and fitted again to all cells."""

    def scored(
        self, metrics: Metrics, logits: np.ndarray, encoder: np.ndarray, fitted: AnyFit
    ) -> Metrics:
        """Add the scores on the validation cells, from their logits and those of the encoder, N x C."""
        val = self.val
        metrics.num_val_cells = len(val)
        metrics.model = score(val.known_labels, logits.argmax(axis=1))
        metrics.baseline = score(val.known_labels, fitted.baseline.predict(val.x))
        # also of an encoder that the model leaves out (scale 0)
        if self.cfg.model.linear and encoder.any():
            metrics.encoder_alone = score(val.known_labels, encoder.argmax(axis=1))
        return metrics

    def branch_logits(self) -> tuple[np.ndarray, np.ndarray]:
        branches = branch_logits(self.network, self.val, self.cfg.trainer.batch_size)
        self.require_finite(*branches)
        return branches

    @torch.no_grad()
    def refit(self, fitted: AnyFit, scales: dict[str, float]) -> LinearModel:
        # Of cells on disk, the sample for linear fits and the validation cells are all cells.
        reference = self.reference
        options = self.plan.linear if fitted.branch is None else fitted.branch.options
        plan = replace(self.plan, folder=None, linear=options)
        final = fit_branches(reference.x, reference.labels, plan, no_folds(reference.labels))
        branch = self.network.linear
        if not is_learned(self.cfg):
            fill_network(self.network, final, scales)
        elif fitted.linear is not None and final.linear is not None and branch is not None:
            for linear, factor in (
                (fitted.linear, -scales["linear"]),
                (final.linear, scales["linear"]),
            ):
                branch.weight.weight[:-1].add_(torch.from_numpy(linear.weight), alpha=factor)
                branch.bias.add_(torch.from_numpy(linear.bias), alpha=factor)
        return final.baseline


class CalibratedByFolds(ValidationSplit[Calibrated]):
    """The branches are calibrated by out-of-fold predictions of the training cells."""

    def fitted_branches(self) -> Calibrated:
        return calibrated_branches(self.train.x, self.train.known_labels, self.plan, self.folds)

    def evaluate(self, fitted: Calibrated) -> tuple[Metrics, HeldOut]:
        linear, encoder = self.branch_logits()
        metrics = Metrics(scales=fitted.scales, out_of_fold=fitted.evidence)
        return self.scored(metrics, linear + encoder, encoder, fitted), fitted.held_out


class CalibratedBySplit(ValidationSplit[FittedToAll]):
    """The branches are calibrated on the validation cells, where layers between tokens without gain are left out."""

    def fitted_branches(self) -> FittedToAll:
        return fit_branches(self.train.x, self.train.known_labels, self.plan, self.folds)

    def evaluate(self, fitted: FittedToAll) -> tuple[Metrics, HeldOut]:
        val = self.val
        options = self.cfg.model
        linear, encoder = self.branch_logits()
        min_errors = 0.0 if options.uses_cross_attention else MIN_ERRORS
        scale_linear, scale_encoder, gain = scales_if_significant(
            linear, encoder, val.known_labels, min_errors
        )
        self.network.scale_branches(scale_linear, scale_encoder)
        logits = scale_linear * linear + scale_encoder * encoder
        scales = {"linear": scale_linear, "encoder": scale_encoder}
        used = {name: scale for name, scale in scales.items() if getattr(options, name)}
        metrics = Metrics(scales=used, encoder_gain=gain)
        if gain is not None:
            text = "encoder %s: it lowers the loss of held-out cells by %.3f ± %.3f"
            log.info(
                text,
                "used" if scale_encoder else "left out (scale 0)",
                gain["mean"],
                gain["standard_error"],
            )
        with threadpool_limits(1):  # sums in another order would change the last bits
            novelty = fit_novelty_model(self.train.x, self.train.known_labels, self.cfg.seed)
        held_out = HeldOut(logits, val.known_labels, novelty.scores(val.x), novelty)
        return self.scored(metrics, logits, encoder, fitted), held_out


def fit_to_cells_on_disk(
    branch: FittedBranch, reference: Reference, stream: Stream, folder: Path, device: str
) -> LinearModel:
    """Fit the linear branch to all cells of a reference, read once from disk; memory does not grow with them.

    The components are those of the loaded cells, to which the branch was fitted before.
    """
    val = reference.split.val
    labels = np.concatenate([stream.labels, reference.labels[val]])
    file = folder / FEATURES_FILE
    try:
        shape = len(labels), branch.axes.shape[1]
        features: np.ndarray = np.memmap(file, dtype=np.float16, mode="w+", shape=shape)
        with progress("reading all cells", total=len(stream.cells), unit="cells") as shown:
            for start in range(0, len(stream.cells), CELLS_AT_ONCE):
                cells = stream.cells[start : start + CELLS_AT_ONCE]
                x = stream.collection.read(cells)
                features[start : start + len(cells)] = branch.views.components(
                    x, branch.axes, device
                )
                shown.update(len(cells))
        features[len(stream.cells) :] = branch.views.components(
            row_subset(reference.x, val), branch.axes, device
        )
        with progress("fitting the linear branch to all cells"):
            options = branch.options
            fitted = fit_logistic(
                features, labels, options.c, options.class_weights, components.solver(device)
            )
    finally:
        file.unlink(missing_ok=True)
    return branch.views.model(branch.axes @ fitted.weight, fitted.bias)


def is_learned(cfg: TrainOptions) -> bool:
    """Return whether there are layers between tokens, which are trained after all else has been fitted."""
    return cfg.model.encoder and not cfg.model.uses_cross_attention


def new_network(reference: Reference, cfg: TrainOptions) -> CellTypeModel:
    """Make the untrained network for a reference, the same for the same seed."""
    torch.manual_seed(cfg.seed)
    parts = {name: getattr(cfg, name) for name in ("tokens", "model", "attention", "head", "seed")}
    return CellTypeModel(len(reference.genes), len(reference.label_names), **parts)


def start_training(reference: Reference, cfg: TrainOptions, run: RunFolder) -> Training:
    """Choose how to train, deal the folds, and make the untrained network.

    Layers between tokens, and a split that the user gives, need validation cells.
    """
    labels = reference.labels

    def batches_of(rows: np.ndarray) -> np.ndarray | None:
        return None if reference.batches is None else reference.batches[rows]

    def folds_of(rows: np.ndarray) -> Folds:
        if is_learned(cfg):
            return no_folds(labels[rows])
        return evidence_folds(labels[rows], cfg.data.seed_of_split(cfg.seed), batches_of(rows))

    rows, val_rows = np.arange(len(labels)), np.arange(0)
    folds = folds_of(rows)
    is_cross_validated = cfg.data.split_key is None and bool(folds.is_dealt.any())
    if not is_cross_validated:
        rows, val_rows = reference.split.train, reference.split.val
        folds = folds_of(rows)
    train, val = (
        Cells(row_subset(reference.x, side), cfg.tokens, labels[side]) for side in (rows, val_rows)
    )
    options = None
    if cfg.model.linear:
        options = choose_linear_options(train.x, train.known_labels, cfg.seed, batches_of(rows))
        cfg = replace(cfg, model=replace(cfg.model, linear_powers=list(options.powers)))
    plan = FitPlan(cfg, options, unlabelled=read_unlabelled(reference, cfg), folder=run.folder)
    strategy: type[Training] = CrossValidatedCalibration
    if not is_cross_validated:
        strategy = CalibratedByFolds if folds.is_dealt.any() else CalibratedBySplit
    return strategy(
        reference, cfg, new_network(reference, cfg), train, val, plan, folds, run.folder
    )
