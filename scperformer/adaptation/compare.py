"""A query beside the reference of a model: its distribution shift, and the batch effects of its genes and batches."""

import logging
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.adaptation.coverage import seen_rows
from scperformer.adaptation.offsets import (
    MIN_CELLS_OF_BATCH,
    MIN_OVERLAP,
    NO_OFFSETS,
    BranchResults,
    Offsets,
    label_overlap,
    mean_difference,
)
from scperformer.adaptation.record import BatchesRecord, texts
from scperformer.base.messages import listed, shortened
from scperformer.cells.batches import Batches
from scperformer.cells.query import Query
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import AUTO
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.linear import linear_logits
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import both_have_a_part
from scperformer.trust.batch_effect import batch_effect, correct_batch_effect, gene_factors
from scperformer.trust.resemblance import FEW_RESEMBLE_CORRECTED, median_resemblance
from scperformer.trust.shift import (
    FAR,
    FEW,
    MIN_CELLS,
    NO_SHIFT,
    NOT_KNOWN,
    OTHER,
    FarBatch,
    Shift,
    estimate_shift,
)

if TYPE_CHECKING:
    from scperformer.adaptation.fitted import FittedModel  # which makes comparers

log = logging.getLogger(__name__)

NUM_ROUNDS = 2  # of predicting some cells and finding the factors of their genes
# From this depth on, as a multiple of the reference's, the counts of a query are thinned if it then resembles the
# reference more: values that are rare at the depth of the reference would speak for wrong labels.
DEEPER = 1.5
MOST_GENES = 0.9  # share of the informative expression, below which a query is a panel here
MAX_LEFT = 0.7  # of the batch effect of a panel, after thinning
BATCH = "%s: batch %s of obs['%s']: %s"
# in place of the factors of genes, where nothing is to be corrected
UNCORRECTED = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class MeasuredReference:
    """Stored cells of a reference as a query would have measured them; none if the model has none."""

    cells: ReferenceCells  # values: ln(1 + cp10k), M x measured genes
    means: np.ndarray  # float64 C x measured genes: counts per 10,000 of each label

    @property
    def has_cells(self) -> bool:
        return len(self.cells.labels) > 0


@dataclass(frozen=True, eq=False)
class BatchShifts:
    """The distribution shift of each of B batches of a query; without any, batches are not corrected apart."""

    shifts: list[Shift]  # with too few cells, the shift of the query; empty if none is known
    novelty: np.ndarray  # float64 B, by which novelty scores are divided
    factors: np.ndarray  # float32 B x G, for `correct_batch_effect`; 1 where nothing is corrected

    def __len__(self) -> int:
        return len(self.factors)

    def far(self, batches: Batches) -> str:
        """Return the batches of another tissue, as text; "" if there is none."""
        return listed(
            name
            for name, shift in zip(batches.names, self.shifts, strict=False)
            if shift.kind == FAR
        )

    def record(self, batches: Batches) -> BatchesRecord | None:
        """Return everything as plain values; None without batches."""
        if not len(self):
            return None
        of_shifts: dict[str, Any] = {}
        if self.shifts:
            for name in ("relative_novelty", "batch_effect"):
                of_shifts[name] = np.array(
                    [getattr(shift, name) for shift in self.shifts], dtype=np.float64
                )
            of_shifts["kind"] = texts(shift.kind for shift in self.shifts)
        return BatchesRecord(
            key=batches.key,
            name=texts(batches.names),
            num_cells=np.bincount(batches.of_cell, minlength=len(batches.names)),
            gene_factors=self.factors,
            factor=self.novelty,
            **of_shifts,
        )


NO_BATCH_SHIFTS = BatchShifts([], UNCORRECTED, UNCORRECTED)


@dataclass(frozen=True, eq=False)
class Comparison:
    """How a query differs from the reference, and the depth at which its cells are predicted.

    By default, nothing is known of a difference, and nothing is corrected.
    """

    share: float = 1.0  # of the counts of the query
    shift: Shift = NO_SHIFT
    encoder_weight: float = 1.0  # factor of the encoder's logits
    # float32 G, by which genes are divided before predictions
    factors: np.ndarray = field(default_factory=lambda: UNCORRECTED)
    batches: BatchShifts = NO_BATCH_SHIFTS  # in place of the factors of the query
    offsets: Offsets = NO_OFFSETS  # of the results of the branches, which the model subtracts

    def correct(self, x: csr_matrix, query: Query, rows: np.ndarray | slice) -> csr_matrix:
        """Correct the batch effects of the genes of cells, N x G, with these row numbers in the file."""
        if len(self.batches):
            return correct_batch_effect(x, self.batches.factors, query.batches.of_cell[rows])
        return correct_batch_effect(x, self.factors) if len(self.factors) else x

    def novelty_factor(self, query: Query, rows: np.ndarray | slice) -> float | np.ndarray:
        """Return the divisor of the novelty scores of cells."""
        return (
            self.batches.novelty[query.batches.of_cell[rows]]
            if self.batches.shifts
            else self.shift.factor
        )


@dataclass(frozen=True, eq=False)
class Comparer:
    """Compares queries with the reference of a model, which has their genes. By itself, it looks at the depth alone."""

    model: "FittedModel"
    reference: MeasuredReference

    def compare(self, query: Query, depth_share: float, options: AnnotationOptions) -> Comparison:
        """Compare a query of a depth, as a multiple of the reference's, with the reference."""
        return Comparison(
            share=1 / depth_share if depth_share >= DEEPER and has_most_genes(query) else 1.0
        )

    def estimate(
        self, query: Query, batch: int | None = None, usual: np.ndarray = UNCORRECTED
    ) -> tuple[Shift, np.ndarray]:
        """Return the shift of a query, or of one of its batches, and the factors of its genes.

        `usual` are the factors of the query, for a batch.

        Returns
        -------
        The shift; the factors of genes for `correct_batch_effect`, float32 G, 1 for genes that the query does not
        measure, or `UNCORRECTED` if there is nothing to correct.
        """
        return NO_SHIFT, UNCORRECTED

    def of_batches(self, query: Query, shift: Shift, factors: np.ndarray) -> BatchShifts:
        """Estimate the shift of each batch; `shift` and `factors` are of the query, and of too small batches."""
        batches = query.batches
        if not batches.names:
            return NO_BATCH_SHIFTS
        unchanged = np.ones(query.plan.num_genes, dtype=np.float32)
        usual = factors if len(factors) else unchanged
        sizes = np.bincount(batches.of_cell[query.cell_rows], minlength=len(batches.names))
        shifts = []
        rows = []
        for number, size in enumerate(sizes):
            of_batch, of_genes = shift, factors
            if size >= MIN_CELLS:
                estimated = self.estimate(query, number, usual)
                if estimated[0].kind != FEW:
                    of_batch, of_genes = estimated
            rows.append(of_genes if len(of_genes) else unchanged)
            if of_batch.kind != NOT_KNOWN:
                log.info(
                    BATCH, query.path, shortened(batches.names[number]), batches.key, of_batch.text
                )
                shifts.append(of_batch)
        # Types of low novelty make the relative novelty of a batch of them too small.
        novelty = np.array(
            [max(own.factor, shift.factor) if own.kind == OTHER else 1.0 for own in shifts]
        )
        return BatchShifts(shifts, novelty, np.stack(rows))


def has_most_genes(query: Query) -> bool:
    """Return whether a query is no panel."""
    return query.overlap.informative_share >= MOST_GENES


@dataclass(frozen=True, eq=False)
class ShiftComparer(Comparer):
    """Estimates the distribution shift of queries, beside the out-of-fold predictions of a model."""

    held_out: HeldOut

    def compare(self, query: Query, depth_share: float, options: AnnotationOptions) -> Comparison:
        """Compare a query with the reference.

        A query that is deeper is thinned to the depth of the reference, if it then resembles the reference more.
        """
        shift, factors = self.estimate(query)
        if depth_share >= DEEPER:
            thinned_query = replace(query, share=1 / depth_share)
            thinned, factors_at_depth = self.estimate(thinned_query)
            gains = thinned.batch_effect < MAX_LEFT * shift.batch_effect
            # a panel in another study loses more by fewer counts (benchmarks/NOTES.md)
            if has_most_genes(query):
                gains |= shift.kind == FEW or thinned.relative_novelty < shift.relative_novelty
            if gains:
                query, shift, factors = thinned_query, thinned, factors_at_depth
        batches = self.of_batches(query, shift, factors)
        compared = Comparison(query.share, shift, shift.encoder_weight, factors, batches)
        network = self.model.network
        if (
            options.shift == AUTO
            and shift.kind == OTHER
            and isinstance(network, CellTypeModel)
            and self.reference.has_cells
        ):
            return replace(compared, offsets=self.offsets(query, network, compared))
        return compared

    def estimate(
        self, query: Query, batch: int | None = None, usual: np.ndarray = UNCORRECTED
    ) -> tuple[Shift, np.ndarray]:
        """Return the shift of a query or batch, and the factors of its genes, as `Comparer.estimate`.

        Without cells of the reference, the batch effect is not known. A batch as far as another tissue is corrected,
        too, if its cells then resemble the labels.
        """
        model = self.model
        rows = seen_rows(query, batch)
        x = query.some(rows)
        x = x[np.diff(x.indptr) > 0]  # cells that express any gene
        scores = self.held_out.novelty_of(x)
        of_model = both_have_a_part(model.saved.scales), model.saved.batch_scores.batch_effect
        if not self.reference.has_cells or len(scores) < MIN_CELLS:
            return estimate_shift(scores, self.held_out.scores, math.nan, *of_model), UNCORRECTED
        own = x
        if not query.measured.all() or model.normalises_over_own_genes:
            own = query.of_genes(query.measured).some(rows)
            own = own[np.diff(own.indptr) > 0]
        alike = scores <= np.median(scores)  # without the types that the reference lacks
        values = self.reference.cells.values
        labels = np.unique(self.reference.cells.labels, return_inverse=True)[1]
        effect = batch_effect(own[alike], values, labels)
        shift = estimate_shift(scores, self.held_out.scores, effect, *of_model)
        if shift.kind == FAR:
            of_file = (
                own if batch is None else query.of_genes(query.measured).some(seen_rows(query))
            )
            shift = replace(shift, resemblance=median_resemblance(own, values, labels, of_file))
        is_far_batch = shift.kind == FAR and batch is not None
        if not (shift.kind == OTHER or is_far_batch) or not model.corrects_batch_effects:
            return shift, UNCORRECTED
        factors = usual.copy() if len(usual) else np.ones(x.shape[1], dtype=np.float32)
        before = factors[query.measured].astype(np.float64)
        for _ in range(NUM_ROUNDS):
            calls = self.first_labels(correct_batch_effect(x[alike], factors))
            corrections = gene_factors(own[alike], calls, self.reference.means, before)
            factors[query.measured] = corrections**shift.fraction
        if is_far_batch:
            corrected = correct_batch_effect(own, factors[query.measured])
            if median_resemblance(corrected, values, labels, corrected) < FEW_RESEMBLE_CORRECTED:
                return shift, UNCORRECTED
            shift = FarBatch(**vars(shift))
        return shift, factors

    def first_labels(self, x: csr_matrix) -> np.ndarray:
        """Return the index of the label of each cell by the linear branch, or by logistic regression without it.

        The linear branch carries over to other studies better than the encoder, and is faster.
        """
        logits = linear_logits(self.model.saved, x)
        if logits is not None and self.model.saved.scales.get("linear", 0.0) > 0:
            return logits.argmax(axis=1)
        # only imported models have none, and they correct no batch effects
        return self.model.baseline.predict(x)

    def offsets(self, query: Query, network: CellTypeModel, compared: Comparison) -> Offsets:
        """Return the offsets of a query and its batches.

        Batches of few cells have the offsets of the query. Sums are compared over half of the cells, the less novel:
        types that the reference lacks would move all others.
        """
        values = self.reference.cells.values
        places = np.flatnonzero(query.measured)
        shape = values.shape[0], query.plan.num_genes
        own = csr_matrix((values.data, places[values.indices], values.indptr), shape=shape)
        branches = BranchResults(self.model.saved, network)
        logits, sums = branches.logits(own), branches.sums(own)
        labels = self.reference.cells.labels
        parts: list[tuple[np.ndarray, ...]] = []
        # -1: of the query
        for number, shift in enumerate([compared.shift, *compared.batches.shifts], start=-1):
            rows = seen_rows(query, None if number < 0 else number)
            if parts and len(rows) < MIN_CELLS_OF_BATCH:
                parts.append(parts[0])
                continue
            x = query.some(rows)
            is_expressed = x.getnnz(axis=1) > 0
            scores = self.held_out.novelty_of(x)[is_expressed]
            x = compared.correct(x, query, rows)[is_expressed]
            calls = self.first_labels(x)
            overlap = label_overlap(calls, labels)
            fraction = (
                shift.fraction
                if overlap >= MIN_OVERLAP and len(calls) >= MIN_CELLS_OF_BATCH
                else 0.0
            )
            is_usual = scores <= np.median(scores)
            of_logits = mean_difference(branches.logits(x), calls, logits, labels, fraction)
            of_sums = mean_difference(
                branches.sums(x[is_usual]), calls[is_usual], sums, labels, fraction
            )
            parts.append((of_logits, of_sums, np.array(overlap)))
        return Offsets(*(np.stack(part) for part in zip(*parts, strict=True)))
