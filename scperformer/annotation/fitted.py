"""A model with a network of our own, and how it is adapted to the genes, the depth and the study of a query."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

import numpy as np

from scperformer.annotation.adapted import Adapted
from scperformer.annotation.compare import (
    BatchShifts,
    Comparison,
    MeasuredReference,
    corrected,
    find_shift,
    shifts_of_batches,
)
from scperformer.annotation.coverage import (
    Coverage,
    adapted_model,
    depth_share,
    find_coverage,
    find_repeats,
    recorded_coverage,
    reduced,
)
from scperformer.annotation.offsets import Offsets, find_offsets
from scperformer.annotation.record import CoverageRecord, Record
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
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.bundle import Metrics, NetworkParts
from scperformer.model.content import INFO
from scperformer.model.folder import damaged_model, load_reference_cells, read_model, write_model
from scperformer.model.imported import ImportedNetwork
from scperformer.model.inference import torch_state_kept
from scperformer.model.load import rebuild
from scperformer.model.network import CellTypeModel, LinearModel
from scperformer.model.saved_model import BRANCHES, SavedModel, encoder_is_silent
from scperformer.training.evidence import FitPlan, FittedToAll, calibrated_branches, fill_network, fit_branches
from scperformer.training.fit_linear import PENALTY_C, LinearOptions
from scperformer.training.folds import evidence_folds
from scperformer.trust.confidence import calibration
from scperformer.trust.doublets import Doublets, fit_doublets
from scperformer.trust.shift import FAR, FEW, OTHER

log = logging.getLogger(__name__)

# From this share of the informative expression, and of the depth, on, adapting a model to a file does not pay.
PAYS_GENES = 0.99
PAYS_DEPTH = 0.75
MAX_CELLS = 4000  # to which a model is refitted
# From this depth on, as a multiple of the reference's, the counts of a query are thinned if it then resembles the
# reference more: values that are rare at the depth of the reference would speak for wrong labels.
DEEPER = 1.5
MOST_GENES = 0.9  # share of the informative expression, below which a query is a panel here
MAX_LEFT = 0.7  # of the batch effect of a panel, after thinning
NUM_DRAWS = 4  # thinned copies of the cells, from which the encoder learns
MAX_STEPS = 300  # of its training


@dataclass(repr=False)
class Model:
    """A model that can annotate: what was saved, and what its kind does with it."""

    saved: SavedModel
    path: Path

    min_confidence: ClassVar[float] = 0.0  # below which calls back off

    @property
    def network(self) -> CellTypeModel | ImportedNetwork:
        """The network, a plain torch module."""
        raise NotImplementedError

    @property
    def tokens(self) -> TokensConfig:
        """The options of its tokens; imported networks have no tokens."""
        return TokensConfig() if self.saved.config.tokens is None else self.saved.config.parts.tokens

    @cached_property
    def baseline(self) -> LinearModel | None:
        """Logistic regression; None for several studies, a tissue, and an imported model without labelled cells."""
        weight = self.saved.weights.get("baseline.weight")
        bias = self.saved.weights.get("baseline.bias")
        return None if weight is None or bias is None else LinearModel(weight, bias)

    def refit(self, stored: ReferenceCells, coverage: Coverage) -> SavedModel:
        """Return the model fitted to stored cells as a query would have measured them."""
        raise NotImplementedError

    def adapt(
        self, query: Query, options: AnnotationOptions, whole: Query | None = None, record: Record | None = None
    ) -> Adapted:
        """Adapt the model to the genes and the depth of a query, or leave it as it is, depending on `options.adapt`.

        Unless `options.shift` is false, the distribution shift of the query is estimated, too; if it is of another
        study, the encoder weighs less, and batch effects are corrected, by gene and within labels.

        Parameters
        ----------
        whole
            All cells of the sample, if the query has some of them, on which depth and shift are then estimated.
        record
            Of an annotation of the query, whose numbers are then used, and not estimated anew.

        Raises
        ------
        InputError
            `adapt=true`, and the model keeps no cells; or `whole` has other genes or values than the query.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        accuracy = self.saved.metrics.known_accuracy
        expected = "" if math.isnan(accuracy) else f"; expected accuracy {accuracy:.3f} on cells like its reference"
        return f"Model {self.saved.name} ({self.saved.hash[:12]}, {self.path}): {self.saved.summary}{expected}"


@dataclass(repr=False)
class FittedModel(Model):
    """A model of one study: our own network, fitted to cells."""

    own_network: CellTypeModel | ImportedNetwork | None = None  # None: it is fitted to each file
    adapted: dict[str, FittedModel] = field(default_factory=dict)  # by the key of the coverage of files

    corrects_batch_effects = True
    normalises_over_own_genes = False  # stored cells have the genes of the model alone
    is_simulated = False  # whether its stored cells are
    kind_of_adapted = Adapted

    @property
    def network(self) -> CellTypeModel | ImportedNetwork:
        assert self.own_network is not None
        return self.own_network

    @torch_state_kept()  # a network draws its first weights at random
    def adapt(
        self, query: Query, options: AnnotationOptions, whole: Query | None = None, record: Record | None = None
    ) -> Adapted:
        if whole is not None:
            require_subset(query, whole)
            log.info("%s: depth and batch effect are taken from %s", query.path, whole.path)
        seen = whole or query
        coverage = None if record is None else recorded_coverage(seen, record.coverage)
        coverage = coverage or find_coverage(seen, with_depth=options.adapts)
        stored = self.stored_cells(options)
        repeats = find_repeats(query, self.saved, stored)
        share = math.nan if stored is None else depth_share(stored, coverage)
        depth = coverage.depth
        if share >= 1:  # all queries that are as deep as the stored cells, or deeper, have one adapted model
            coverage = replace(coverage, depth=None)
        model, expected_accuracy = self.fit(seen, coverage, stored, share, options)
        if model is not self:
            query = query.of_genes(coverage.measured)
            seen = query if whole is None else whole.of_genes(coverage.measured)
        reference = None if stored is None else self.as_measured(stored, coverage)
        if record is None:
            compared = model.compare(seen, reference, options, share)
        else:
            compared = model.compare_as_recorded(seen, reference, record)
        if options.finds_shift and seen.batches is not None and compared.batches is None:
            log.warning("%s: no batch is corrected, as the model has no out-of-fold predictions", query.path)
        if compared.batches is not None and query.batches is not None:
            compared.batches = replace(compared.batches, batches=query.batches)
        weight = 1.0 if compared.shift is None else compared.shift.encoder_weight
        if record is not None and record.shift is not None:
            weight = float(record.shift.encoder_weight)
        query = replace(query, share=compared.share)
        made = CoverageRecord(
            adapted=model is not self,
            num_genes=int(coverage.measured.sum()),
            depth=math.nan if depth is None else depth,
            depth_share=share,
            thinned_to=query.share,
            key=coverage.key,
            expected_accuracy=expected_accuracy,
            accuracy_with_all_genes=self.saved.metrics.known_accuracy,
        )
        if whole is not None:
            made = replace(made, of=Path(whole.path).name, of_sha256=whole.cells.sha256)
        self.log_adapted(query, compared, made)
        finds_doublets = depth is not None and (compared.shift is None or compared.shift.kind != FAR)
        return self.kind_of_adapted(
            model=model.corrected(weight, compared.offsets),
            query=query,
            options=options,
            record=made,
            shift=compared.shift,
            gene_factors=compared.factors,
            repeats=repeats,
            label_means=None if reference is None else reference.means,
            doublets=self.mixtures(query, reference, compared.factors) if finds_doublets else None,
            batches=compared.batches,
            offsets=compared.offsets,
            resemblance=compared.resemblance,
            kinds=compared.kinds,
        )

    def stored_cells(self, options: AnnotationOptions) -> ReferenceCells | None:
        """Return the stored cells of the reference if the model may be adapted to a file; None without any."""
        stored = load_reference_cells(self.saved, self.path) if options.adapts else None
        if options.adapt == "true" and stored is None:
            found = f"adapt=true and a model that keeps no cells ({self.path})"
            remedy = f"{self.saved.how_to_complete}, or leave adapt=true out"
            raise InputError("no-kept-cells", found, "kept cells", remedy)
        return stored

    def fit(
        self, seen: Query, coverage: Coverage, stored: ReferenceCells | None, share: float, options: AnnotationOptions
    ) -> tuple[FittedModel, float]:
        """Fit the model to the coverage of a query, if that pays; `share` is the depth as a share of stored cells'.

        Also return the accuracy to expect of it in its own study; NaN: not known.
        """
        accuracy = self.saved.metrics.known_accuracy
        if stored is None:
            has_depth = self.saved.provenance.depth in (None, coverage.depth)
            is_adapted = self.saved.provenance.adapted_from is not None
            return self, accuracy if is_adapted and has_depth and coverage.measured.all() else math.nan
        if options.adapt == "auto" and seen.overlap.informative_share >= PAYS_GENES and share >= PAYS_DEPTH:
            text = "%s: the model is used as it is, as the file has its genes and %s"
            log.info(text, seen.path, "is deeper" if share >= DEEPER else "depth")
            return self, accuracy
        model = self.adapted_to(stored, coverage, seen.path, options.adapted_folder)
        found = model.saved.provenance.expected_accuracy
        return model, math.nan if found is None else found

    def as_measured(self, stored: ReferenceCells, coverage: Coverage) -> MeasuredReference:
        """Return stored cells as a query would have measured them."""
        cells = replace(stored, values=reduced(stored, coverage, self.saved.config.target_sum, seed=0))
        return MeasuredReference(cells, label_means(undo_log(cells.values), cells.labels, len(self.saved.labels)))

    def compare(
        self, seen: Query, reference: MeasuredReference | None, options: AnnotationOptions, depth: float
    ) -> Comparison:
        """Compare a query of a `depth`, as a multiple of the reference's, with the reference.

        A query that is deeper is thinned to the depth of the reference, if it then resembles the reference more.
        """
        is_deeper = depth >= DEEPER
        has_most_genes = seen.overlap.informative_share >= MOST_GENES
        if not options.finds_shift or self.saved.held_out is None:
            return Comparison(share=1 / depth if is_deeper and has_most_genes else 1.0)
        shift, factors = find_shift(seen, self, reference)
        if is_deeper:
            thinned_query = replace(seen, share=1 / depth)
            thinned, factors_at_depth = find_shift(thinned_query, self, reference)
            gains = thinned.batch_effect < MAX_LEFT * shift.batch_effect
            if has_most_genes:  # a panel in another study loses more by fewer counts (benchmarks/NOTES.md)
                gains |= shift.kind == FEW or thinned.relative_novelty < shift.relative_novelty
            if gains:
                seen, shift, factors = thinned_query, thinned, factors_at_depth
        batches = None
        if seen.batches is not None:
            batches = shifts_of_batches(seen, shift, factors, partial(find_shift, seen, self, reference))
        compared = Comparison(seen.share, shift, factors, batches)
        has_offsets = options.offsets and shift.kind == OTHER and isinstance(self.network, CellTypeModel)
        if has_offsets and reference is not None:
            correct = partial(corrected, factors=factors, batches=batches)
            shifts = [shift] if batches is None else [shift, *batches.shifts]
            compared.offsets = find_offsets(seen, self, reference, correct, shifts)
        return compared

    def compare_as_recorded(self, seen: Query, reference: MeasuredReference | None, record: Record) -> Comparison:
        """Return the comparison of an earlier annotation, as cells may have been left out since."""
        place = f"in uns of {seen.path}"
        share = float(record.coverage.thinned_to)
        if not 0 < share <= 1:
            raise damaged_record(f"coverage/thinned_to of {share:g}, {place}", "a share of the counts above 0")
        num_genes = len(self.saved.genes)
        trust = record.profiles or record.shift
        factors = None if trust is None else trust.gene_factors
        if factors is not None and not _are_factors(factors, (num_genes,)):
            raise damaged_record(f"gene_factors that are not {num_genes} positive numbers, {place}")
        batches = None
        if record.batches is not None:
            names = list(map(str, record.batches.name))
            of_batches = np.asarray(record.batches.gene_factors)
            if not _are_factors(of_batches, (len(names), num_genes)):
                shape = f"{len(names)} x {num_genes}"
                raise damaged_record(f"batches/gene_factors that are not {shape} positive numbers, {place}")
            of_cells = read_query_batches(seen.cells, str(record.batches.key), names)
            batches = BatchShifts(of_cells, [], np.ones(len(names)), of_batches)
        return Comparison(share, None, factors, batches, self._recorded_offsets(record, place))

    def _recorded_offsets(self, record: Record, place: str) -> Offsets | None:
        """Return the offsets of an earlier annotation, which `place` names in errors."""
        found = record.shift
        if found is None or found.logit_offsets is None or found.sum_offsets is None or found.label_overlap is None:
            return None
        offsets = Offsets(found.logit_offsets, found.sum_offsets, found.label_overlap)
        num_batches = 0 if record.batches is None else len(record.batches.name)
        if not isinstance(self.network, CellTypeModel) or not offsets.fit(self.network, num_batches):
            raise damaged_record(f"logit_offsets or sum_offsets that do not fit the model, {place}")
        return offsets

    def log_adapted(self, query: Query, compared: Comparison, record: CoverageRecord) -> None:
        """Log how the model was adapted to a query."""
        if query.share < 1:
            text = "%s: %.1f times as deep as the reference: its counts are thinned to the depth of the reference"
            log.info(text, query.path, record.depth_share)
        is_other = compared.shift is not None and compared.shift.kind in (OTHER, FAR)  # then its accuracy says little
        if record.adapted and not is_other and not self.is_simulated:  # which say little about it, too
            accuracy = accuracy_beside(record.expected_accuracy, record.accuracy_with_all_genes)
            depth = "its depth" if record.depth_share < 1 else "the depth of the reference"
            text = "%s: %s on reference cells with its %s genes and %s"
            log.info(text, query.path, accuracy, f"{record.num_genes:,}", depth)
        if compared.factors is not None:
            within = "" if compared.offsets is None else compared.offsets.text
            log.info("%s: batch effects are corrected before annotation, by gene%s", query.path, within)

    def mixtures(
        self, query: Query, reference: MeasuredReference | None, factors: np.ndarray | None
    ) -> Doublets | None:
        """Compare the labels with their mixtures, over the genes of the model that a query measures."""
        if reference is None:
            return None
        places = np.flatnonzero(query.measured)
        own_factors = None if factors is None else factors[places]
        cells = reference.cells
        found = fit_doublets(reference.means, own_factors, cells.values, cells.labels, simulated=self.is_simulated)
        return found and replace(found, genes=places[found.genes])

    def corrected(self, weight: float, offsets: Offsets | None) -> FittedModel:
        """Return the model for a query, with a weight of the encoder's logits (trust/shift.py) and without offsets."""
        if weight == 1 and offsets is None:
            return self
        network = deepcopy(self.network)
        assert isinstance(network, CellTypeModel)
        if offsets is not None:
            offsets.subtract_in(network)
        network.scale_branches(1.0, weight)
        scales = {name: scale * (weight if name == "encoder" else 1) for name, scale in self.saved.scales.items()}
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
        self.adapted[coverage.key] = replace(self, saved=saved, own_network=network_of(saved, self.path), adapted={})
        log.info("the model was adapted to %s genes in %s", num_genes, in_time(time.perf_counter() - begin))
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
        if saved.genes != [gene for gene, known in zip(self.saved.genes, coverage.measured, strict=True) if known]:
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
        x, *draws = (reduced(cells, coverage, saved.config.target_sum, cfg.seed + draw) for draw in range(num_draws))
        linear_options = self._linear_options(cfg) if cfg.model.linear else None
        vectors = None
        if cfg.model.encoder:  # they were learned from all genes at full depth, perhaps also from further cells
            vectors = saved.weights["model.encoder.embedding.gene.weight"][:-1][coverage.measured]
        plan = FitPlan(cfg, linear_options, draws, vectors=vectors, tests_baseline=False)  # as long as the model takes
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
            metrics = Metrics(scales={name: saved.scales.get(name, 1.0) for name in fitted.logits if name in BRANCHES})
        if linear_options is not None:
            metrics.linear_branch = asdict(linear_options)
        if fitted.encoder is not None:
            from scperformer.training.fit_performer import encoder_facts  # needs Lightning

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
            weights=weights | {"baseline.weight": fitted.baseline.weight, "baseline.bias": fitted.baseline.bias},
            held_out=held_out,
        )

    def _linear_options(self, cfg: NetworkOptions) -> LinearOptions:
        powers = tuple(cfg.model.linear_powers)
        usual = LinearOptions(powers, PENALTY_C, class_weights="balanced", weighting="signal")
        try:
            return replace(usual, **(self.saved.metrics.linear_branch or {}) | {"powers": powers})
        except (TypeError, ValueError) as error:
            raise damaged_model(self.path, "options of its linear branch that it cannot have") from error


def network_of(saved: SavedModel, path: Path) -> CellTypeModel | ImportedNetwork:
    """Build the network of a model with labels; refuse weights that do not fit its configuration."""
    network = rebuild(saved, path)
    assert isinstance(network, CellTypeModel | ImportedNetwork)
    if network.only_sums and encoder_is_silent(saved.scales):
        network.encoder = None  # a third of the time of a prediction
    return network.eval()


def require_subset(query: Query, whole: Query) -> None:
    """Refuse a subset of the cells of a file with other genes or values than this file."""
    remedy = "keep all genes and the values in the file of some of its cells, or leave full_sample out"
    if num_other := int((query.measured != whole.measured).sum()):
        found = f"{num_other:,} genes of the model that are in one of {query.path} and {whole.path}"
        raise InputError("other-genes", found, "the same genes in both", remedy)
    if query.findings.text != whole.findings.text:
        found = f"{query.findings.text} of {query.path}"
        raise InputError("other-values", found, f"{whole.findings.text}, as in {whole.path}", remedy)


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
    return replace(usual, seed=saved.provenance.seed, optim=optim, trainer=trainer, **parts._asdict())


def accuracy_beside(adapted: float, original: float) -> str:
    """Return the accuracy of an adapted model on its reference in words, beside that with all genes."""
    if math.isnan(adapted):  # the stored cells are too few to hold some out
        return "unknown accuracy"
    return f"accuracy {adapted:.2f}" + ("" if math.isnan(original) else f" ({original:.2f} with all genes)")
