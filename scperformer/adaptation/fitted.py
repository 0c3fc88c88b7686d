"""A model with a network of our own, and how it is adapted to the genes, the depth and the study of a query."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.compare import (
    DEEPER,
    NO_BATCH_SHIFTS,
    UNCORRECTED,
    BatchShifts,
    Comparer,
    Comparison,
    MeasuredReference,
    ShiftComparer,
)
from scperformer.adaptation.coverage import (
    Coverage,
    Measured,
    adapted_model,
    depth_share,
    find_coverage,
    find_repeats,
    no_cells,
    recorded_coverage,
    reduced,
)
from scperformer.adaptation.offsets import NO_OFFSETS, Offsets
from scperformer.adaptation.record import CoverageRecord, Record
from scperformer.base.errors import InputError
from scperformer.base.messages import in_time
from scperformer.base.progress import progress
from scperformer.base.sparse import label_means, undo_log
from scperformer.cells.batches import read_query_batches
from scperformer.cells.query import Query
from scperformer.cells.splits import stratified_sample
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.compose import make_options
from scperformer.config.options import checked
from scperformer.config.training import NetworkOptions, OptimConfig, TokensConfig, TrainOptions
from scperformer.fits.evidence import (
    FitPlan,
    FittedToAll,
    calibrated_branches,
    fill_network,
    fit_branches,
)
from scperformer.fits.folds import evidence_folds
from scperformer.fits.linear import PENALTY_C, LinearOptions
from scperformer.fits.performer import encoder_facts
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.bundle import Metrics, NetworkParts
from scperformer.model.content import INFO
from scperformer.model.folder import damaged_model, load_reference_cells, read_model, write_model
from scperformer.model.imported import ImportedNetwork
from scperformer.model.inference import torch_state_kept
from scperformer.model.load import rebuild
from scperformer.model.network import CellTypeModel, LinearModel
from scperformer.model.saved_model import BRANCHES, SavedModel, encoder_is_silent
from scperformer.trust.confidence import calibration
from scperformer.trust.doublets import Doublets, NoDoublets, fit_doublets
from scperformer.trust.shift import FAR, OTHER

log = logging.getLogger(__name__)

# From this share of the informative expression, and of the depth, on, adapting a model to a file does not pay.
PAYS_GENES = 0.99
PAYS_DEPTH = 0.75
MAX_CELLS = 4000  # to which a model is refitted
NUM_DRAWS = 4  # thinned copies of the cells, from which the encoder learns
MAX_STEPS = 300  # of its training


class NoBaseline:
    """In place of logistic regression."""

    def predict(self, x: csr_matrix) -> np.ndarray:
        """Return -1, the index of no label, for each cell: int64, N."""
        return np.full(x.shape[0], -1)


@dataclass(repr=False)
class Model:
    """A model that can annotate: what was saved, and what its kind does with it."""

    saved: SavedModel
    path: Path

    min_confidence: ClassVar[float] = 0.0  # below which calls back off

    @property
    def has_independent_labels(self) -> bool:
        """Whether each label has a probability of its own, which need not add up to 1, as in CellTypist."""
        return False

    @property
    def how_to_complete(self) -> str:
        """The remedy if a model lacks out-of-fold predictions and reference cells."""
        return "train it again"

    @property
    def has_encoder(self) -> bool:
        """Whether it, or the model of one of its studies, has an encoder."""
        return self.saved.config.model is not None and self.saved.config.parts.model.encoder

    @property
    def network(self) -> CellTypeModel | ImportedNetwork:
        """The network, a plain torch module."""
        raise NotImplementedError

    @property
    def tokens(self) -> TokensConfig:
        """The options of its tokens; imported networks have no tokens."""
        return (
            TokensConfig() if self.saved.config.tokens is None else self.saved.config.parts.tokens
        )

    @cached_property
    def baseline(self) -> LinearModel | NoBaseline:
        """Logistic regression, which several studies, a tissue, and imported models without cells do not have."""
        weight = self.saved.weights.get("baseline.weight")
        bias = self.saved.weights.get("baseline.bias")
        return NoBaseline() if weight is None or bias is None else LinearModel(weight, bias)

    def refit(self, stored: ReferenceCells, coverage: Coverage) -> SavedModel:
        """Return the model fitted to stored cells as a query would have measured them."""
        raise NotImplementedError

    def adapt(self, query: Query, sample: Query, options: AnnotationOptions) -> Adapted:
        """Adapt the model to the genes and the depth of a query, or leave it as it is, depending on `options.adapt`.

        Unless `options.shift` is false, the distribution shift of the query is estimated, too; if it is of another
        study, the encoder weighs less, and batch effects are corrected, by gene and within labels. Depth and shift are
        estimated on the cells of `sample`: the query itself, or a sample of which the query has some cells.

        Raises
        ------
        InputError
            `adapt=true`, and the model keeps no cells; or `sample` has other genes or values than the query.
        """
        raise NotImplementedError

    def adapt_as_recorded(
        self, query: Query, options: AnnotationOptions, record: Record
    ) -> Adapted:
        """Adapt the model by the numbers of an earlier annotation of the query, as cells may have been left out."""
        raise NotImplementedError

    def __repr__(self) -> str:
        accuracy = self.saved.metrics.known_accuracy
        expected = (
            ""
            if math.isnan(accuracy)
            else f"; expected accuracy {accuracy:.3f} on cells like its reference"
        )
        return f"Model {self.saved.name} ({self.saved.hash[:12]}, {self.path}): {self.saved.summary}{expected}"


@dataclass(frozen=True, eq=False)
class Fit:
    """The model for what a query measures, with the genes of this model, and its reference as the query measures it."""

    model: FittedModel
    measured: Measured
    reference: MeasuredReference
    record: CoverageRecord

    def compared(self, options: AnnotationOptions) -> Comparison:
        """Compare the query with the reference."""
        sample = self.measured.sample
        compared = self.model.comparer(self.reference, options).compare(
            sample, self.measured.depth_share, options
        )
        if sample.batches.names and not len(compared.batches):
            text = "%s: no batch is corrected, as the model has no out-of-fold predictions"
            log.warning(text, self.measured.query.path)
        return compared

    def adapted(self, compared: Comparison, options: AnnotationOptions) -> Adapted:
        """Return the model for the query, given how this differs from the reference."""
        model = self.model
        shift = compared.shift
        query = replace(self.measured.query, share=compared.share)
        record = replace(self.record, thinned_to=compared.share)
        self._log(compared)
        doublets: Doublets | NoDoublets = NoDoublets()
        if not math.isnan(record.depth) and shift.kind != FAR and self.reference.has_cells:
            doublets = self._mixtures(compared.factors)
        return model.kind_of_adapted(
            model=model.corrected(compared),
            query=query,
            options=options,
            record=record,
            compared=compared,
            repeats=self.measured.repeats,
            reference=self.reference,
            doublets=doublets,
        )

    def _log(self, compared: Comparison) -> None:
        """Log how the model is adapted to the query."""
        path = self.measured.query.path
        record = self.record
        if compared.share < 1:
            text = "%s: %.1f times as deep as the reference: its counts are thinned to the depth of the reference"
            log.info(text, path, record.depth_share)
        # The accuracy says little about cells of another study, and that of simulated cells little about any.
        if (
            record.adapted
            and compared.shift.kind not in (OTHER, FAR)
            and not self.model.is_simulated
        ):
            accuracy = accuracy_beside(record.expected_accuracy, record.accuracy_with_all_genes)
            depth = "its depth" if record.depth_share < 1 else "the depth of the reference"
            text = "%s: %s on reference cells with its %s genes and %s"
            log.info(text, path, accuracy, f"{record.num_genes:,}", depth)
        if len(compared.factors):
            text = "%s: batch effects are corrected before annotation, by gene%s"
            log.info(text, path, compared.offsets.text)

    def _mixtures(self, factors: np.ndarray) -> Doublets | NoDoublets:
        """Compare the labels with their mixtures, over the genes of the model that the query measures."""
        places = np.flatnonzero(self.measured.query.measured)
        own_factors = factors[places] if len(factors) else factors
        cells = self.reference.cells
        is_simulated = self.model.is_simulated
        found = fit_doublets(
            self.reference.means, own_factors, cells.values, cells.labels, simulated=is_simulated
        )
        return found if isinstance(found, NoDoublets) else replace(found, genes=places[found.genes])


@dataclass(repr=False)
class FittedModel(Model):
    """A model of one study: our own network, fitted to cells."""

    own_network: CellTypeModel | ImportedNetwork
    # by the key of the coverage of files
    adapted: dict[str, FittedModel] = field(default_factory=dict)

    corrects_batch_effects = True
    normalises_over_own_genes = False  # stored cells have the genes of the model alone
    is_simulated = False  # whether its stored cells are
    kind_of_adapted: ClassVar[type[Adapted]] = Adapted

    @property
    def network(self) -> CellTypeModel | ImportedNetwork:
        return self.own_network

    @property
    def how_to_complete(self) -> str:
        if self.saved.imported:  # with an encoder of ours, as scBERT
            return "train a model on labelled cells, starting from it with init"
        return super().how_to_complete

    @torch_state_kept()  # a network draws its first weights at random
    def adapt(self, query: Query, sample: Query, options: AnnotationOptions) -> Adapted:
        if sample is not query:
            require_subset(query, sample)
            log.info("%s: depth and batch effect are taken from %s", query.path, sample.path)
        measured = self.measure(
            query, sample, find_coverage(sample, with_depth=options.adapts), options
        )
        fit = self.fit(measured, options)
        return fit.adapted(fit.compared(options), options)

    @torch_state_kept()
    def adapt_as_recorded(
        self, query: Query, options: AnnotationOptions, record: Record
    ) -> Adapted:
        of_file = record.coverage
        coverage = (
            recorded_coverage(query, of_file)
            if of_file.adapted
            else find_coverage(query, options.adapts)
        )
        if record.batches is not None:
            names = list(map(str, record.batches.name))
            query = replace(
                query, batches=read_query_batches(query.cells, str(record.batches.key), names)
            )
        fit = self.fit(self.measure(query, query, coverage, options), options)
        return fit.adapted(fit.model.recorded_comparison(fit, record), options)

    def measure(
        self, query: Query, sample: Query, coverage: Coverage, options: AnnotationOptions
    ) -> Measured:
        """Return what a query measures, beside the stored cells of the reference."""
        stored = self.stored_cells(options)
        return Measured(query, sample, coverage, stored, find_repeats(query, self.saved, stored))

    def stored_cells(self, options: AnnotationOptions) -> ReferenceCells:
        """Return the stored cells of the reference if the model may be adapted to a file."""
        stored = load_reference_cells(self.saved, self.path) if options.adapts else None
        if options.adapt == "true" and stored is None:
            found = f"adapt=true and a model that keeps no cells ({self.path})"
            remedy = f"{self.how_to_complete}, or leave adapt=true out"
            raise InputError("no-kept-cells", found, "kept cells", remedy)
        return stored or no_cells(len(self.saved.genes))

    def fit(self, measured: Measured, options: AnnotationOptions) -> Fit:
        """Fit the model to what a query measures, if that pays."""
        coverage = measured.fit
        model, accuracy = self.fitted_to(measured, coverage, options)
        sample = measured.sample
        record = CoverageRecord(
            adapted=model is not self,
            num_genes=int(coverage.measured.sum()),
            depth=math.nan if measured.coverage.depth is None else measured.coverage.depth,
            depth_share=measured.depth_share,
            key=coverage.key,
            expected_accuracy=accuracy,
            accuracy_with_all_genes=self.saved.metrics.known_accuracy,
        )
        if sample is not measured.query:
            record = replace(record, of=Path(sample.path).name, of_sha256=sample.cells.sha256)
        reference = self.as_measured(measured.stored, coverage)
        return Fit(model, measured if model is self else measured.of_genes(), reference, record)

    def fitted_to(
        self, measured: Measured, coverage: Coverage, options: AnnotationOptions
    ) -> tuple[FittedModel, float]:
        """Return the model for a coverage, and the accuracy to expect of it in its own study; NaN: not known."""
        accuracy = self.saved.metrics.known_accuracy
        sample = measured.sample
        depth_share = measured.depth_share
        if not len(measured.stored.labels):
            has_depth = self.saved.provenance.depth in (None, coverage.depth)
            is_adapted = self.saved.provenance.adapted_from is not None
            return (
                self,
                accuracy if is_adapted and has_depth and coverage.measured.all() else math.nan,
            )
        if (
            options.adapt == "auto"
            and sample.overlap.informative_share >= PAYS_GENES
            and depth_share >= PAYS_DEPTH
        ):
            text = "%s: the model is used as it is, as the file has its genes and %s"
            log.info(text, sample.path, "is deeper" if depth_share >= DEEPER else "depth")
            return self, accuracy
        model = self.adapted_to(measured.stored, coverage, sample.path, options.adapted_folder)
        expected = model.saved.provenance.expected_accuracy
        return model, math.nan if expected is None else expected

    def as_measured(self, stored: ReferenceCells, coverage: Coverage) -> MeasuredReference:
        """Return stored cells as a query would have measured them."""
        if not len(stored.labels):
            return MeasuredReference(stored, np.zeros((0, 0)))
        cells = replace(
            stored, values=reduced(stored, coverage, self.saved.config.target_sum, seed=0)
        )
        return MeasuredReference(
            cells, label_means(undo_log(cells.values), cells.labels, len(self.saved.labels))
        )

    def comparer(self, reference: MeasuredReference, options: AnnotationOptions) -> Comparer:
        """Return what compares queries with a reference, as far as the options ask for it."""
        held_out = self.saved.held_out
        if held_out is None or not options.finds_shift:
            return Comparer(self, reference)
        return ShiftComparer(self, reference, held_out)

    def recorded_comparison(self, fit: Fit, record: Record) -> Comparison:
        """Return the comparison of an earlier annotation; a record that was changed is refused."""
        query = fit.measured.query
        place = f"in uns of {query.path}"
        share = float(record.coverage.thinned_to)
        if not 0 < share <= 1:
            raise damaged_record(
                f"coverage/thinned_to of {share:g}, {place}", "a share of the counts above 0"
            )
        num_genes = len(self.saved.genes)
        shift = record.shift
        batches = NO_BATCH_SHIFTS
        trust = record.profiles or shift
        factors = (
            UNCORRECTED
            if trust is None or trust.gene_factors is None
            else np.asarray(trust.gene_factors)
        )
        if len(factors) and not _are_factors(factors, (num_genes,)):
            raise damaged_record(f"gene_factors that are not {num_genes} positive numbers, {place}")
        if record.batches is not None:
            of_batches = np.asarray(record.batches.gene_factors)
            num_batches = len(query.batches.names)
            if not _are_factors(of_batches, (num_batches, num_genes)):
                shape = f"{num_batches} x {num_genes}"
                raise damaged_record(
                    f"batches/gene_factors that are not {shape} positive numbers, {place}"
                )
            batches = BatchShifts([], np.ones(num_batches), of_batches)
        if shift is None:
            return Comparison(share, factors=factors, batches=batches)
        offsets = NO_OFFSETS
        if (
            shift.logit_offsets is not None
            and shift.sum_offsets is not None
            and shift.label_overlap is not None
        ):
            offsets = Offsets(shift.logit_offsets, shift.sum_offsets, shift.label_overlap)
            if isinstance(self.network, ImportedNetwork) or not offsets.fit(
                self.network, len(batches)
            ):
                raise damaged_record(
                    f"logit_offsets or sum_offsets that do not fit the model, {place}"
                )
        weight = float(shift.encoder_weight)
        return Comparison(
            share, encoder_weight=weight, factors=factors, batches=batches, offsets=offsets
        )

    def corrected(self, compared: Comparison) -> FittedModel:
        """Return the model for a query, with a weight of the encoder's logits (trust/shift.py) and without offsets."""
        weight = compared.encoder_weight
        offsets = compared.offsets
        if isinstance(self.network, ImportedNetwork) or (weight == 1 and not len(offsets)):
            return self
        network = deepcopy(self.network)
        if len(offsets):
            offsets.subtract_in(network)
        network.scale_branches(1.0, weight)
        scales = {
            name: scale * (weight if name == "encoder" else 1)
            for name, scale in self.saved.scales.items()
        }
        saved = replace(self.saved, metrics=replace(self.saved.metrics, scales=scales))
        return replace(self, saved=saved, own_network=network)

    def adapted_to(
        self, stored: ReferenceCells, coverage: Coverage, path: str, adapted_folder: str | None
    ) -> FittedModel:
        """Return the model adapted to a coverage: an earlier fit, also from `adapted_folder`, else a new one."""
        if coverage.key in self.adapted:
            return self.adapted[coverage.key]
        begin = time.perf_counter()
        num_genes = f"{int(coverage.measured.sum()):,}"
        log.info("%s: fitting the model to its %s genes and its depth", path, num_genes)
        if adapted_folder is None:
            saved = self.refit(stored, coverage)
        else:
            # Tissues have one hash, and symbols in capitals are another model.
            identity = f"{self.saved.hash} {self.saved.name} {self.saved.genes}".encode()
            digest = hashlib.sha256(identity).hexdigest()[:16]
            folder = Path(adapted_folder) / f"{digest}-{coverage.key}-{version('scperformer')}"
            log.info("%s: the fit is kept in %s", path, folder)
            saved = self._refit_in(folder, stored, coverage)
        self.adapted[coverage.key] = replace(
            self, saved=saved, own_network=network_of(saved, self.path), adapted={}
        )
        log.info(
            "the model was adapted to %s genes in %s",
            num_genes,
            in_time(time.perf_counter() - begin),
        )
        return self.adapted[coverage.key]

    def _refit_in(self, folder: Path, stored: ReferenceCells, coverage: Coverage) -> SavedModel:
        """Refit the model, or read the fit that a folder has already."""
        if not (folder / INFO).is_file():
            fitted = self.refit(stored, coverage)
            try:
                write_model(fitted, folder)
            except InputError:
                if not (folder / INFO).is_file():  # else another job has written it meanwhile
                    raise
        # Records name the model that was adapted, not this one.
        saved = replace(read_model(folder), hash=self.saved.hash)
        if saved.genes != [
            gene for gene, known in zip(self.saved.genes, coverage.measured, strict=True) if known
        ]:
            raise damaged_model(folder, "other genes than its coverage")
        return saved

    @progress("fitting the model to the genes and the depth of a file")
    def refit(self, stored: ReferenceCells, coverage: Coverage) -> SavedModel:
        """Fit the branches and the baseline to stored cells as a query would have measured them.

        The result has the measured genes alone, and normalises cells over these. An encoder with attention between
        tokens is left out, as it was trained for all genes.
        """
        saved = self.saved
        cfg = _training_options(saved)
        cells = stored.some(stratified_sample(stored.labels, MAX_CELLS, cfg.seed))
        num_draws = NUM_DRAWS if depth_share(cells, coverage) < 1 else 1
        x, *draws = (
            reduced(cells, coverage, saved.config.target_sum, cfg.seed + draw)
            for draw in range(num_draws)
        )
        linear_options = self._linear_options(cfg) if cfg.model.linear else None
        vectors = None
        # they were learned from all genes at full depth, perhaps also from further cells
        if cfg.model.encoder:
            vectors = saved.weights["model.encoder.embedding.gene.weight"][:-1][coverage.measured]
        # as long as the model takes
        plan = FitPlan(cfg, linear_options, draws, vectors=vectors, tests_baseline=False)
        folds = evidence_folds(cells.labels, cfg.data.seed_of_split(cfg.seed), cells.batches)
        fitted: FittedToAll
        held_out: HeldOut | None = None
        if folds.is_dealt.any():
            fitted = calibrated = calibrated_branches(x, cells.labels, plan, folds)
            held_out = calibrated.held_out
            metrics = Metrics(scales=calibrated.scales, out_of_fold=calibrated.evidence)
            metrics.calibration = calibration(held_out.logits, held_out.labels)
        else:  # the only cell of a label cannot be held out
            fitted = fit_branches(x, cells.labels, plan, folds)
            metrics = Metrics(
                scales={
                    name: saved.scales.get(name, 1.0) for name in fitted.logits if name in BRANCHES
                }
            )
        if linear_options is not None:
            metrics.linear_branch = asdict(linear_options)
        if fitted.encoder is not None:
            metrics.encoder = encoder_facts(fitted.encoder.performer, cfg)
        parts = NetworkParts(cfg.tokens, cfg.model, cfg.attention, cfg.head)
        network = CellTypeModel(x.shape[1], len(saved.labels), **parts._asdict())
        fill_network(network, fitted, metrics.scales or {})
        weights = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
        return adapted_model(
            saved,
            coverage,
            x,
            None if metrics.out_of_fold is None else metrics.out_of_fold.accuracy,
            config=replace(saved.config, model=asdict(cfg.model), own_totals=True),
            metrics=metrics,
            weights=weights
            | {"baseline.weight": fitted.baseline.weight, "baseline.bias": fitted.baseline.bias},
            held_out=held_out,
        )

    def _linear_options(self, cfg: NetworkOptions) -> LinearOptions:
        powers = tuple(cfg.model.linear_powers)
        usual = LinearOptions(powers, PENALTY_C, class_weights="balanced", weighting="signal")
        try:
            return replace(usual, **(self.saved.metrics.linear_branch or {}) | {"powers": powers})
        except (TypeError, ValueError) as error:
            raise damaged_model(
                self.path, "options of its linear branch that it cannot have"
            ) from error


def network_of(saved: SavedModel, path: Path) -> CellTypeModel | ImportedNetwork:
    """Build the network of a model with labels; refuse weights that do not fit its configuration."""
    network = rebuild(saved, path)
    assert isinstance(network, CellTypeModel | ImportedNetwork)
    if network.only_sums and encoder_is_silent(saved.scales):
        network.encoder = None  # a third of the time of a prediction
    return network.eval()


def require_subset(query: Query, whole: Query) -> None:
    """Refuse a subset of the cells of a file with other genes or values than this file."""
    remedy = (
        "keep all genes and the values in the file of some of its cells, or leave full_sample out"
    )
    if num_other := int((query.measured != whole.measured).sum()):
        found = f"{num_other:,} genes of the model that are in one of {query.path} and {whole.path}"
        raise InputError("other-genes", found, "the same genes in both", remedy)
    if query.findings.text != whole.findings.text:
        found = f"{query.findings.text} of {query.path}"
        raise InputError(
            "other-values", found, f"{whole.findings.text}, as in {whole.path}", remedy
        )


def damaged_record(found: str, expected: str = "an annotation as predict writes it") -> InputError:
    """Return the error about a record that was changed."""
    return InputError("damaged-annotation", found, expected, "annotate the file again")


def _are_factors(values: np.ndarray, shape: tuple[int, ...]) -> bool:
    return values.shape == shape and bool(np.isfinite(values).all() and (values > 0).all())


def _training_options(saved: SavedModel) -> NetworkOptions:
    """Return the options of a training; of the encoders, a Performer stays, unless it is left out."""
    usual = make_options(TrainOptions, {"inputs": [""]})
    parts = saved.config.parts
    if not parts.model.uses_cross_attention or encoder_is_silent(saved.scales):
        parts = parts._replace(model=replace(parts.model, encoder=False, linear=True))
    # The adapted model, and the labels of a query, are then the same with a GPU and without.
    trainer = replace(usual.trainer, accelerator="cpu", max_steps=MAX_STEPS)
    optim = usual.optim
    if training := saved.config.training:  # only a Performer has it
        steps = min(training.max_steps, MAX_STEPS)
        trainer = replace(trainer, max_steps=steps, batch_size=training.batch_size)
        optim = checked(OptimConfig, training.optim, "optim.")
    return replace(
        usual, seed=saved.provenance.seed, optim=optim, trainer=trainer, **parts._asdict()
    )


def accuracy_beside(adapted: float, original: float) -> str:
    """Return the accuracy of an adapted model on its reference in words, beside that with all genes."""
    if math.isnan(adapted):  # the stored cells are too few to hold some out
        return "unknown accuracy"
    return f"accuracy {adapted:.2f}" + (
        "" if math.isnan(original) else f" ({original:.2f} with all genes)"
    )
