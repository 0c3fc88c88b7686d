"""A query beside the reference of a model: its distribution shift, and the batch effects of its genes and batches."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.annotation.coverage import seen_rows
from scperformer.annotation.record import BatchesRecord, texts
from scperformer.base.messages import listed, shortened
from scperformer.cells.batches import Batches
from scperformer.cells.query import Query
from scperformer.model.arrays import ReferenceCells
from scperformer.model.linear import linear_logits
from scperformer.model.saved_model import both_have_a_part
from scperformer.trust.batch_effect import batch_effect, correct_batch_effect, gene_factors
from scperformer.trust.resemblance import FEW_RESEMBLE_CORRECTED, Resemblance, median_resemblance
from scperformer.trust.shift import FAR, FEW, MIN_CELLS, OTHER, FarBatch, Shift, estimate_shift

if TYPE_CHECKING:
    from scperformer.annotation.fitted import FittedModel  # needs torch
    from scperformer.annotation.offsets import Offsets

log = logging.getLogger(__name__)

NUM_ROUNDS = 2  # of predicting some cells and finding the factors of their genes

# Estimates the shift and the gene factors of a query or, given its number and the factors of the query, of a batch.
Estimate = Callable[..., tuple[Shift | None, np.ndarray | None]]


@dataclass(frozen=True, eq=False)
class MeasuredReference:
    """Stored cells of a reference as a query would have measured them."""

    cells: ReferenceCells  # values: ln(1 + cp10k), M x measured genes
    means: np.ndarray  # float64 C x measured genes: counts per 10,000 of each label


@dataclass(frozen=True, eq=False)
class BatchShifts:
    """The distribution shift of each of B batches of a query."""

    batches: Batches  # of the cells to annotate
    shifts: list[Shift]  # of too few cells: that of the whole query; empty if no shift is known
    novelty: np.ndarray  # float64 B, by which novelty scores are divided
    factors: np.ndarray  # float32 B x G, for `correct_batch_effect`; 1 where nothing is corrected

    @property
    def warning(self) -> str:
        """A warning about batches of another tissue; "" if there is none."""
        far = [name for name, shift in zip(self.batches.names, self.shifts, strict=False) if shift.kind == FAR]
        place = f"batches of obs['{self.batches.key}'] of {FAR}, whose labels are not to be used"
        return f"{place}: {listed(far)}" if far else ""

    def record(self) -> BatchesRecord:
        """Return everything as plain values."""
        names = self.batches.names
        of_shifts: dict[str, Any] = {}
        if self.shifts:
            for name in ("relative_novelty", "batch_effect"):
                of_shifts[name] = np.array([getattr(shift, name) for shift in self.shifts], dtype=np.float64)
            of_shifts["kind"] = texts(shift.kind for shift in self.shifts)
        return BatchesRecord(
            key=self.batches.key,
            name=texts(names),
            num_cells=np.bincount(self.batches.of_cell, minlength=len(names)),
            gene_factors=self.factors,
            factor=self.novelty,
            **of_shifts,
        )


@dataclass
class Comparison:
    """How a query differs from the reference, and the depth at which its cells are predicted."""

    share: float = 1.0  # of the counts of the query
    shift: Shift | None = None  # None: not asked for, or not known
    factors: np.ndarray | None = None  # float32 G, by which genes are divided before predictions; None: none are
    batches: BatchShifts | None = None  # whose batch effects are corrected apart, in place of that of the query
    offsets: "Offsets | None" = None  # of the results of the branches
    resemblance: Resemblance | None = None  # to the profiles of a tissue
    kinds: Sequence[str] = ()  # broad types by which cells of other types are named


def corrected(
    x: csr_matrix, rows: np.ndarray | slice, factors: np.ndarray | None, batches: BatchShifts | None
) -> csr_matrix:
    """Correct the batch effects of the genes of cells, N x G, with these row numbers in the file."""
    if batches is None:
        return correct_batch_effect(x, factors)
    return correct_batch_effect(x, batches.factors, batches.batches.of_cell[rows])


def shifts_of_batches(query: Query, shift: Shift | None, factors: np.ndarray | None, estimate: Estimate) -> BatchShifts:
    """Estimate the shift of each batch of a query; `shift` and `factors` are of the query, and of too small batches."""
    assert query.batches is not None
    unchanged = np.ones(query.plan.num_genes, dtype=np.float32)
    sizes = np.bincount(query.batches.of_cell[query.cell_rows], minlength=len(query.batches.names))
    found = []
    for number, size in enumerate(sizes):
        of_batch, of_genes = shift, factors
        if size >= MIN_CELLS:
            estimated = estimate(number, unchanged if factors is None else factors)
            if estimated[0] is None or estimated[0].kind != FEW:
                of_batch, of_genes = estimated
        found.append((of_batch, unchanged if of_genes is None else of_genes))
    shifts = [own for own, _ in found if own is not None]
    for name, own in zip(query.batches.names, shifts, strict=False):
        log.info("%s: batch %s of obs['%s']: %s", query.path, shortened(name), query.batches.key, own.text)
    # Types of low novelty make the relative novelty of a batch of them too small.
    least = 1.0 if shift is None else shift.factor
    novelty = np.array([max(each.factor, least) if each.kind == OTHER else 1.0 for each in shifts])
    return BatchShifts(query.batches, shifts, novelty, np.stack([factors for _, factors in found]))


def find_shift(
    query: Query,
    model: "FittedModel",
    reference: MeasuredReference | None,
    batch: int | None = None,
    usual: np.ndarray | None = None,
) -> tuple[Shift, np.ndarray | None]:
    """Return the shift of a query, or of one of its batches, and the factors of its genes.

    `model` has out-of-fold predictions and the genes of the query, to which it may have been adapted. Without a
    `reference`, the batch effect is not known. `usual` are the factors of the query, for a batch. A batch as far as
    another tissue is corrected, too, if its cells then resemble the labels.

    Returns
    -------
    The shift; the factors of genes for `correct_batch_effect`, float32 G, 1 for genes that the query does not measure,
    or None if there is nothing to correct.
    """
    held_out = model.saved.held_out
    assert held_out is not None
    rows = seen_rows(query, batch)
    x = query.some(rows)
    x = x[np.diff(x.indptr) > 0]  # cells that express any gene
    scores = held_out.novelty_of(x)
    of_model = both_have_a_part(model.saved.scales), model.saved.batch_scores.batch_effect
    if reference is None or len(scores) < MIN_CELLS:
        return estimate_shift(scores, held_out.scores, math.nan, *of_model), None
    own = x
    if not query.measured.all() or model.normalises_over_own_genes:
        own = query.of_genes(query.measured).some(rows)
        own = own[np.diff(own.indptr) > 0]
    alike = scores <= np.median(scores)  # without the types that the reference lacks
    values = reference.cells.values
    labels = np.unique(reference.cells.labels, return_inverse=True)[1]
    effect = batch_effect(own[alike], values, labels)
    shift = estimate_shift(scores, held_out.scores, effect, *of_model)
    if shift.kind == FAR:
        of_file = own if batch is None else query.of_genes(query.measured).some(seen_rows(query))
        shift = replace(shift, resemblance=median_resemblance(own, values, labels, of_file))
    is_far_batch = shift.kind == FAR and batch is not None
    if not (shift.kind == OTHER or is_far_batch) or not model.corrects_batch_effects:
        return shift, None
    factors = np.ones(x.shape[1], dtype=np.float32) if usual is None else usual.copy()
    before = factors[query.measured].astype(np.float64)
    for _ in range(NUM_ROUNDS):
        calls = first_labels(model, correct_batch_effect(x[alike], factors))
        factors[query.measured] = gene_factors(own[alike], calls, reference.means, before) ** shift.fraction
    if is_far_batch:
        corrected = correct_batch_effect(own, factors[query.measured])
        if median_resemblance(corrected, values, labels, corrected) < FEW_RESEMBLE_CORRECTED:
            return shift, None
        shift = FarBatch(**vars(shift))
    return shift, factors


def first_labels(model: "FittedModel", x: csr_matrix) -> np.ndarray:
    """Return the index of the label of each cell by the linear branch, or by logistic regression without this branch.

    The linear branch carries over to other studies better than the encoder, and is faster.
    """
    logits = linear_logits(model.saved, x)
    if logits is not None and model.saved.scales.get("linear", 0.0) > 0:
        return logits.argmax(axis=1)
    assert model.baseline is not None  # only imported models have none
    return model.baseline.predict(x)
