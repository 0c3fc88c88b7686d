"""The coverage of a query: its genes of the model and its depth; reference cells reduced to it, or repeated in it.

The distribution shift of a query is estimated from some of its cells (trust/shift.py).
"""

import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.base.messages import in_percent, listed, shortened
from scperformer.cells.batches import Batches
from scperformer.cells.normalisation import linear, normalise_counts, recover_counts, thin
from scperformer.cells.query import Query
from scperformer.cells.repeats import are_among, cell_hashes
from scperformer.cells.values import evenly_spaced
from scperformer.io.h5ad import BackedH5ad
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.linear import linear_logits
from scperformer.model.saved_model import HASHES, SavedModel, both_have_a_part
from scperformer.trust.batch_effect import batch_effect, correct_batch_effect, gene_factors
from scperformer.trust.novelty import NoveltyModel
from scperformer.trust.resemblance import median_resemblance
from scperformer.trust.shift import FAR, FEW, MIN_CELLS, OTHER, Shift, estimate_shift

if TYPE_CHECKING:
    from scperformer.model.load import Model  # needs torch, which `check` does without

log = logging.getLogger(__name__)

# Cells of a file that show its depth, and the blocks of the file that they come from.
SEEN_CELLS = 2000
SEEN_BLOCKS = 20
REPEAT_CELLS = 1000  # cells of a query that are compared with the reference, at most
NUM_ROUNDS = 2  # of calling some cells and finding the factors of their genes; a third changes nothing


@dataclass(frozen=True)
class Coverage:
    """The coverage of a file: the genes of the model that it measures, and its depth."""

    measured: np.ndarray  # bool, G
    depth: float | None  # median counts of a cell over these genes, as `depth_class`; None: the file has no counts

    @property
    def key(self) -> str:
        """A name of this coverage: 16 hexadecimal digits."""
        text = np.packbits(self.measured).tobytes() + f"{len(self.measured)} {self.depth}".encode()
        return hashlib.sha256(text).hexdigest()[:16]


def depth_class(counts: csr_matrix) -> float | None:
    """Return the median counts of cells that have any, rounded to a power of the square root of 2."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    totals = totals[totals > 0]
    return 2 ** (round(2 * math.log2(float(np.median(totals)))) / 2) if len(totals) else None


def seen_rows(query: Query, batch: int | None = None) -> np.ndarray:
    """Return the numbers of up to 2,000 rows, ascending, that show what a file states about all of its cells.

    They are from up to 20 blocks, spread over the file, or over a batch of it. Rows that are no cells of the sample
    are not among them.
    """
    rows = np.arange(query.rows.shape[0])
    if batch is not None:
        assert query.batches is not None
        rows = query.batches.rows(batch)
    if query.plan.findings.droplets is not None:
        return query.plan.findings.spread(SEEN_CELLS, rows)
    rows = rows[query.plan.findings.is_cell[rows]]
    blocks = rows // query.rows.block_cells
    present = np.unique(blocks)
    rows = rows[np.isin(blocks, present[evenly_spaced(len(present), SEEN_BLOCKS)])]
    return rows[evenly_spaced(len(rows), SEEN_CELLS)]


def find_coverage(query: Query, with_depth: bool = True) -> Coverage:
    """Find the coverage of a file; some of its cells show its depth, if it is wanted."""
    counts = recover_counts(query.some(seen_rows(query))) if with_depth else None
    return Coverage(query.measured, None if counts is None else depth_class(counts))


def depth_share(reference_cells: ReferenceCells, coverage: Coverage) -> float:
    """Return the depth of a file as a share of the kept cells' on the same genes; 1 if it is not known."""
    own = depth_class(reference_cells.values[:, coverage.measured]) if reference_cells.are_counts else None
    return 1.0 if own is None or coverage.depth is None else coverage.depth / own


def reduced(reference_cells: ReferenceCells, coverage: Coverage, target_sum: float | None, seed: int) -> csr_matrix:
    """Return the expression of kept cells as the file would have measured them: N x measured genes, ln(1 + cp10k)."""
    values = reference_cells.values[:, coverage.measured]
    share = depth_share(reference_cells, coverage)
    if share < 1:
        values = thin(values, share, np.random.default_rng(seed))
    return normalise_counts(values, target_sum)


def adapted_model(
    saved: SavedModel, coverage: Coverage, x: csr_matrix, expected_accuracy: float | None, **parts: Any
) -> SavedModel:
    """Return a model that was adapted to a coverage with cells `x`, N x measured genes; `parts` are its new fields."""
    provenance = {
        "adapted_from": {"name": saved.name, "hash": saved.hash, "num_genes": len(saved.genes)},
        "coverage": coverage.key,
        "depth": coverage.depth,
        "num_kept_cells": x.shape[0],
        "expected_accuracy": expected_accuracy,
    }
    return replace(
        saved,
        genes=[gene for gene, is_measured in zip(saved.genes, coverage.measured, strict=True) if is_measured],
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        provenance=saved.provenance | provenance,
        reference_cells=None,
        has_reference_cells=False,
        **parts,
    )


@dataclass
class Repeats:
    """The cells of the reference among some cells of a file."""

    num_seen: int = 0
    rows: np.ndarray = field(default_factory=lambda: np.arange(0))  # among the cells of the reference, ascending, int64

    def warning(self, cells: AnnData | BackedH5ad) -> str:
        """Return a warning for users, which names one of them; "" if there are none. `cells` is the open file."""
        if not len(self.rows):
            return ""
        row = int(self.rows[0])
        name = cells.obs_names[row] if isinstance(cells, AnnData) else cells.names(row, row + 1)[0]
        share = in_percent(len(self.rows) / self.num_seen)
        found = f"{len(self.rows):,} of {self.num_seen:,} cells looked at ({share}) are cells of the reference, such as"
        return f"{found} '{shortened(name)}': confidence and accuracy are too high for them"


def find_repeats(query: Query, saved: SavedModel, reference_cells: ReferenceCells | None) -> Repeats:
    """Find cells of the reference among up to 1,000 cells that are spread over a file.

    Models know a hash of each cell over all of their genes. If a file lacks some of these, or the model has no hashes,
    the file is compared with the cells that the model stores.
    """
    rows = seen_rows(query)
    rows = rows[:: max(1, -(-len(rows) // REPEAT_CELLS))]
    x = linear(query.some(rows))
    is_repeat = are_among(cell_hashes(x), saved.weights.get(HASHES, np.arange(0)))
    if reference_cells is not None and (HASHES not in saved.weights or not query.measured.all()):
        kept = cell_hashes(reference_cells.values[:, query.measured])
        is_repeat |= are_among(cell_hashes(x[:, query.measured]), kept)
    return Repeats(len(rows), rows[is_repeat])


@dataclass(frozen=True, eq=False)
class BatchShifts:
    """The distribution shift of each of B batches of a query."""

    batches: Batches  # of the cells to call
    shifts: list[Shift]  # of too few cells: that of the whole query; empty if no shift is known
    novelty: np.ndarray  # float64 B, by which novelty scores are divided
    factors: np.ndarray  # float32 B x G, for `correct_batch_effect`; 1 where nothing is corrected

    @property
    def warning(self) -> str:
        """A warning about batches of another tissue; "" if there is none."""
        far = [name for name, shift in zip(self.batches.names, self.shifts, strict=False) if shift.kind == FAR]
        place = f"batches of obs['{self.batches.key}'] of {FAR}, whose labels are not to be used"
        return f"{place}: {listed(far)}" if far else ""

    def record(self) -> dict[str, Any]:
        """Return everything as plain values."""
        of_cell, names = self.batches.of_cell, self.batches.names
        found: dict[str, Any] = {"key": self.batches.key, "name": np.array(names, dtype=object)}
        found |= {"num_cells": np.bincount(of_cell, minlength=len(names)), "gene_factors": self.factors}
        found["factor"] = self.novelty
        for name in ("kind", "relative_novelty", "batch_effect"):
            values = [getattr(shift, name) for shift in self.shifts]
            found |= {name: np.array(values, dtype=object if name == "kind" else np.float64)} if values else {}
        return found


def shifts_of_batches(
    query: Query,
    shift: Shift | None,
    factors: np.ndarray | None,
    estimate: Callable[[int, np.ndarray], tuple[Shift | None, np.ndarray | None]],
) -> BatchShifts:
    """Estimate the shift of each batch of a query; `shift` and `factors` are of the query, and of too small batches."""
    assert query.batches is not None
    unchanged = np.ones(query.plan.num_genes, dtype=np.float32)
    sizes = np.bincount(query.batches.of_cell[query.cells], minlength=len(query.batches.names))
    found = []
    for number, size in enumerate(sizes):
        own: tuple[Shift | None, np.ndarray | None] = shift, factors
        if size >= MIN_CELLS:
            estimated = estimate(number, unchanged if factors is None else factors)
            own = own if estimated[0] is not None and estimated[0].kind == FEW else estimated
        found.append((own[0], unchanged if own[1] is None else own[1]))
    shifts = [shift for shift, _ in found if shift is not None]
    for name, shift in zip(query.batches.names, shifts, strict=False):
        log.info("%s: batch %s of obs['%s']: %s", query.path, shortened(name), query.batches.key, shift.text)
    # Types of low novelty make the relative novelty of a batch of them too small.
    least = 1.0 if shift is None else shift.factor
    novelty = np.array([max(each.factor, least) if each.kind == OTHER else 1.0 for each in shifts])
    return BatchShifts(query.batches, shifts, novelty, np.stack([factors for _, factors in found]))


def find_shift(
    query: Query,
    held_out: HeldOut,
    saved: SavedModel,
    kept: ReferenceCells | None,
    means: np.ndarray | None,
    model: "Model",
    batch: int | None = None,
    usual: np.ndarray | None = None,
) -> tuple[Shift, np.ndarray | None]:
    """Return the shift of a query, or of one of its batches, and the factors of its genes.

    `saved` is the model before adapting. `kept` are its stored cells as the query would have measured them, and `means`
    those of its labels; without them the batch effect is not known. `model` may have been adapted to the query, which
    has its genes; `held_out` are the held-out calls of `model`. `usual` are the factors of the query, for a batch.

    Returns
    -------
    The shift; the factors of genes for `correct_batch_effect`, float32 G, 1 for genes that the query does not measure,
    or None if there is nothing to correct.
    """
    rows = seen_rows(query, batch)
    x = query.some(rows)
    x = x[np.diff(x.indptr) > 0]  # cells that express any gene
    scores = NoveltyModel(**held_out.profile).scores(x)
    of_model = both_have_a_part(model.saved.scales), model.saved.reference_batch_effect
    if kept is None or means is None or len(scores) < MIN_CELLS:
        return estimate_shift(scores, held_out.scores, math.nan, *of_model), None
    own = x
    # The kept cells of an imported model have its genes alone, and are normalised over these.
    if not query.measured.all() or saved.imported:
        own = query.of_genes(query.measured).some(rows)
        own = own[np.diff(own.indptr) > 0]
    alike = scores <= np.median(scores)  # without the types that the reference lacks
    labels = np.unique(kept.labels, return_inverse=True)[1]
    effects = batch_effect(own[alike], kept.values, labels)
    shift = estimate_shift(scores, held_out.scores, effects, *of_model)
    if shift.kind == FAR:
        of_file = own if batch is None else query.of_genes(query.measured).some(seen_rows(query))
        shift = replace(shift, resemblance=median_resemblance(own, kept.values, labels, of_file))
    x, own = x[alike], own[alike]
    if shift.kind != OTHER or saved.imported:  # imported models call cells as their own tools do
        return shift, None
    # The labels of the cells are called, and once more after a correction by the first factors: by the linear branch,
    # which carries over better than the encoder and is faster, or by logistic regression if the encoder is alone.
    factors = np.ones(x.shape[1], dtype=np.float32) if usual is None else usual.copy()
    before = factors[query.measured].astype(np.float64)
    for _ in range(NUM_ROUNDS):
        corrected = correct_batch_effect(x, factors)
        logits = linear_logits(model.saved, corrected)
        if logits is not None and model.saved.scales.get("linear", 0.0) > 0:
            calls = logits.argmax(axis=1)
        else:
            assert model.baseline is not None  # only imported models have none
            calls = model.baseline.predict(corrected)
        factors[query.measured] = gene_factors(own, calls, means, before) ** shift.fraction
    return shift, factors
