"""Two ways to train: cross-validated calibration, and a validation split.

Both fit the branches, scale their logits on cells that the fits did not see, and end with fits to all cells.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from scperformer.base.metrics import score
from scperformer.base.progress import progress
from scperformer.cells.on_disk import CELLS_AT_ONCE
from scperformer.cells.reference import Reference, read_unlabelled
from scperformer.config.training import TrainOptions
from scperformer.model.arrays import HeldOut
from scperformer.model.bundle import Metrics
from scperformer.model.inference import branch_logits
from scperformer.model.minibatches import Cells, row_subset
from scperformer.model.network import CellTypeModel, LinearModel
from scperformer.training import components
from scperformer.training.choose_linear import choose_linear_options
from scperformer.training.evidence import FitPlan, Fitted, FittedBranch, fill_network, fit_branches
from scperformer.training.folds import Folds, evidence_folds, no_folds
from scperformer.training.logistic import fit_logistic
from scperformer.training.run_folder import Diverged, RunFolder
from scperformer.training.scales import MIN_ERRORS, scales_if_significant
from scperformer.training.trainer import device_of
from scperformer.trust.novelty import fit_novelty_model

log = logging.getLogger(__name__)

FEATURES_FILE = ".scperformer-components"  # in the run folder: components of cells on disk, float16


@dataclass
class Training(ABC):
    """A training under way: cells, options and network."""

    reference: Reference
    cfg: TrainOptions
    network: CellTypeModel
    train: Cells  # the cells to train on that are in memory: all of them, or a sample of cells on disk
    val: Cells  # to validate on
    plan: FitPlan
    folds: Folds  # of the cells to train on
    fitted: Fitted = field(default_factory=Fitted)

    def fit(self) -> None:
        """Fit the branches to the training cells, and put them into the network, calibrated unless layers follow."""
        stream = self.reference.stream
        text = "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, %s"
        num_parameters = sum(parameter.numel() for parameter in self.network.parameters())
        num_cells = len(self.train if stream is None else stream.cells)
        sizes = num_cells, len(self.val), self.train.x.shape[1], self.network.num_labels, num_parameters
        has_attention = self.network.encoder is not None and bool(self.network.encoder.mechanisms)
        log.info(text, *sizes, f"attention {self.cfg.attention['name']}" if has_attention else "no attention")
        self.fitted = self.fitted_branches()
        fill_network(self.network, self.fitted, self.fitted.scales)

    def fitted_branches(self) -> Fitted:
        return fit_branches(self.train.x, self.train.known_labels, self.plan, self.folds)

    @abstractmethod
    def evaluate(self) -> tuple[Metrics, HeldOut]:
        """Score the model and the baseline on cells that the fits did not see; also return predictions of these."""

    @abstractmethod
    def refit(self, scales: dict[str, float]) -> LinearModel:
        """Fit the network to all cells, unless it is; the scales stay. Return the baseline, fitted to all cells."""


class CrossValidatedCalibration(Training):
    """The branches are fitted to all cells, and calibrated by out-of-fold predictions of these.

    This is what `CalibratedClassifierCV(ensemble=False)` of scikit-learn does. There are no validation cells.
    """

    def fitted_branches(self) -> Fitted:
        fitted = super().fitted_branches()
        if self.reference.stream is not None and fitted.branch is not None:
            assert self.plan.folder is not None
            inputs = fitted.branch, self.reference, self.plan.folder, device_of(self.cfg.trainer).of_sums
            with threadpool_limits(1):  # sums in another order would change the last bits
                fitted.linear = fit_to_cells_on_disk(*inputs)
        return fitted

    def evaluate(self) -> tuple[Metrics, HeldOut]:
        evidence, held_out = self.fitted.evidence, self.fitted.held_out
        assert evidence is not None
        assert evidence.baseline is not None
        assert held_out is not None
        if not np.isfinite(held_out.logits).all():
            raise Diverged("logits", self.cfg.optim.lr)
        names = ("accuracy", "macro_f1", "weighted_f1")
        metrics = Metrics(
            num_val_cells=evidence.num_cells,
            model={name: getattr(evidence, name) for name in names},
            baseline={name: evidence.baseline[name] for name in names},
            scales=self.fitted.scales,
            out_of_fold=evidence,
        )
        return metrics, held_out

    def refit(self, scales: dict[str, float]) -> LinearModel:
        assert self.fitted.baseline is not None
        return self.fitted.baseline


class ValidationSplit(Training):
    """The branches are fitted to training cells, scored on validation cells, and fitted again to all cells.

    Layers between tokens are calibrated on the validation cells, where an encoder whose gain is not significant is left
    out; other branches by out-of-fold predictions of the training cells, if there are folds.
    """

    def evaluate(self) -> tuple[Metrics, HeldOut]:
        val, options = self.val, self.cfg.model
        linear, encoder = branch_logits(self.network, val, self.cfg.trainer.batch_size)
        if not (np.isfinite(linear).all() and np.isfinite(encoder).all()):
            raise Diverged("logits", self.cfg.optim.lr)
        if self.fitted.held_out is not None:
            logits, held_out = linear + encoder, self.fitted.held_out
            metrics = Metrics(scales=self.fitted.scales, out_of_fold=self.fitted.evidence)
        else:
            min_errors = 0.0 if options.uses_cross_attention else MIN_ERRORS
            scale_linear, scale_encoder, gain = scales_if_significant(linear, encoder, val.known_labels, min_errors)
            self.network.scale_branches(scale_linear, scale_encoder)
            logits = scale_linear * linear + scale_encoder * encoder
            scales = {"linear": scale_linear, "encoder": scale_encoder}
            used = {name: scale for name, scale in scales.items() if getattr(options, name)}
            metrics = Metrics(scales=used, encoder_gain=gain)
            if gain is not None:
                text = "encoder %s: it lowers the loss of held-out cells by %.3f ± %.3f"
                log.info(text, "used" if scale_encoder else "left out (scale 0)", gain["mean"], gain["standard_error"])
            with threadpool_limits(1):  # sums in another order would change the last bits
                novelty = fit_novelty_model(self.train.x, self.train.known_labels, self.cfg.seed)
            held_out = HeldOut(logits, val.known_labels, novelty.scores(val.x), novelty)
        assert self.fitted.baseline is not None
        metrics.num_val_cells = len(val)
        metrics.model = score(val.known_labels, logits.argmax(axis=1))
        metrics.baseline = score(val.known_labels, self.fitted.baseline.predict(val.x))
        if options.linear and encoder.any():  # also of an encoder that the model leaves out (scale 0)
            metrics.encoder_alone = score(val.known_labels, encoder.argmax(axis=1))
        return metrics, held_out

    @torch.no_grad()
    def refit(self, scales: dict[str, float]) -> LinearModel:
        # Of cells on disk, the sample for linear fits and the validation cells are all cells.
        reference = self.reference
        plan = replace(self.plan, folder=None)
        final = fit_branches(reference.x, reference.labels, plan, no_folds(reference.labels))
        if not is_learned(self.cfg):
            fill_network(self.network, final, scales)
        elif self.fitted.linear is not None and final.linear is not None:
            branch = self.network.linear
            assert branch is not None
            for linear, factor in ((self.fitted.linear, -scales["linear"]), (final.linear, scales["linear"])):
                branch.weight.weight[:-1].add_(torch.from_numpy(linear.weight), alpha=factor)
                branch.bias.add_(torch.from_numpy(linear.bias), alpha=factor)
        assert final.baseline is not None
        return final.baseline


def fit_to_cells_on_disk(branch: FittedBranch, reference: Reference, folder: Path, device: str) -> LinearModel:
    """Fit the linear branch to all cells of a reference, read once from disk; memory does not grow with them.

    The components are those of the loaded cells, to which the branch was fitted before.
    """
    stream = reference.stream
    assert stream is not None
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
                features[start : start + len(cells)] = branch.views.components(x, branch.axes, device)
                shown.update(len(cells))
        features[len(stream.cells) :] = branch.views.components(row_subset(reference.x, val), branch.axes, device)
        with progress("fitting the linear branch to all cells"):
            options = branch.options
            fitted = fit_logistic(features, labels, options.c, options.class_weights, components.solver(device))
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
    train, val = (Cells(row_subset(reference.x, side), cfg.tokens, labels[side]) for side in (rows, val_rows))
    options = None
    if cfg.model.linear:
        options = choose_linear_options(train.x, train.known_labels, cfg.seed, batches_of(rows))
        cfg = replace(cfg, model=replace(cfg.model, linear_powers=list(options.powers)))
    plan = FitPlan(cfg, options, unlabelled=read_unlabelled(reference, cfg), folder=run.folder)
    strategy = CrossValidatedCalibration if is_cross_validated else ValidationSplit
    return strategy(reference, cfg, new_network(reference, cfg), train, val, plan, folds)
