"""The coverage of a query: its genes of the model and its depth; reference cells reduced to it, or repeated in it."""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.adaptation.record import CoverageRecord
from scperformer.base.errors import InputError
from scperformer.base.messages import in_percent, shortened
from scperformer.base.sparse import undo_log
from scperformer.cells.normalisation import normalise_counts, recover_counts, thin
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import Query
from scperformer.cells.repeats import are_among, cell_hashes
from scperformer.model.arrays import ReferenceCells
from scperformer.model.bundle import OriginalModel
from scperformer.model.saved_model import HASHES, SavedModel

REPEAT_CELLS = 1000  # cells of a query that are compared with the reference, at most


@dataclass(frozen=True)
class Coverage:
    """The coverage of a file: the genes of the model that it measures, and its depth."""

    measured: np.ndarray  # bool, G
    # median counts of a cell over these genes, as `depth_class`; None: the file has no counts
    depth: float | None

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
    """Return the numbers of up to 2,000 rows, ascending, that show what a file or a batch states about its cells."""
    if batch is None:
        return query.cells.sample_rows()
    return query.cells.sample_rows(query.batches.rows(batch))


def recorded_coverage(query: Query, record: CoverageRecord) -> Coverage:
    """Return the coverage to which a model was adapted to cells that were annotated.

    The depth is the recorded one, as cells may have been left out since. It has no part if the cells were as deep as
    the stored cells of the reference. Cells with other genes than then are refused.
    """
    depth = float(record.depth)
    measured = find_coverage(query, with_depth=False)
    candidates = (replace(measured, depth=None if np.isnan(depth) else depth), measured)
    coverage = next((coverage for coverage in candidates if coverage.key == record.key), None)
    if coverage is None:
        found = f"other genes in {query.path} than when it was annotated"
        remedy = "explain the file with all genes that it had, or name their place with source=..."
        raise InputError("other-genes", found, "the same genes", remedy)
    return coverage


def find_coverage(query: Query, with_depth: bool = True) -> Coverage:
    """Find the coverage of a file; some of its cells show its depth, if it is wanted."""
    counts = recover_counts(query.some(seen_rows(query))) if with_depth else None
    return Coverage(query.measured, None if counts is None else depth_class(counts))


def depth_share(reference_cells: ReferenceCells, coverage: Coverage) -> float:
    """Return the depth of a file as a share of the kept cells' on the same genes; 1 if it is not known.

    It is NaN without any kept cells.
    """
    if not len(reference_cells.labels):
        return math.nan
    own = (
        depth_class(reference_cells.values[:, coverage.measured])
        if reference_cells.are_counts
        else None
    )
    return 1.0 if own is None or coverage.depth is None else coverage.depth / own


def reduced(
    reference_cells: ReferenceCells, coverage: Coverage, target_sum: float | None, seed: int
) -> csr_matrix:
    """Return the expression of kept cells as the file would have measured them: N x measured genes, ln(1 + cp10k)."""
    values = reference_cells.values[:, coverage.measured]
    share = depth_share(reference_cells, coverage)
    if share < 1:
        values = thin(values, share, np.random.default_rng(seed))
    return normalise_counts(values, target_sum)


def adapted_model(
    saved: SavedModel,
    coverage: Coverage,
    x: csr_matrix,
    expected_accuracy: float | None,
    **parts: Any,
) -> SavedModel:
    """Return a model that was adapted to a coverage with cells `x`, N x measured genes; `parts` are its new fields."""
    made = replace(
        saved.provenance,
        adapted_from=OriginalModel(name=saved.name, hash=saved.hash, num_genes=len(saved.genes)),
        coverage=coverage.key,
        depth=coverage.depth,
        num_kept_cells=x.shape[0],
        expected_accuracy=expected_accuracy,
    )
    return replace(
        saved,
        genes=[
            gene
            for gene, is_measured in zip(saved.genes, coverage.measured, strict=True)
            if is_measured
        ],
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        provenance=made,
        reference_cells=None,
        has_reference_cells=False,
        **parts,
    )


@dataclass(frozen=True, eq=False)
class Repeats:
    """The cells of the reference among some cells of a file."""

    num_seen: int
    rows: np.ndarray  # of cells that the reference has, too, ascending, int64

    def text(self, cells: OpenedCells) -> str:
        """Return the number of these cells and the name of one, if there are any."""
        row = int(self.rows[0])
        share = in_percent(len(self.rows) / self.num_seen)
        name = shortened(cells.names(row, row + 1)[0])
        return (
            f"{len(self.rows):,} of {self.num_seen:,} cells looked at ({share}), such as '{name}'"
        )


def find_repeats(query: Query, saved: SavedModel, reference_cells: ReferenceCells) -> Repeats:
    """Find cells of the reference among up to 1,000 cells that are spread over a file.

    Models know a hash of each cell over all of their genes. If a file lacks some of these, or the model has no hashes,
    the file is compared with the cells that the model stores.
    """
    rows = seen_rows(query)
    rows = rows[:: max(1, -(-len(rows) // REPEAT_CELLS))]
    x = undo_log(query.some(rows))
    is_repeat = are_among(cell_hashes(x), saved.weights.get(HASHES, np.arange(0)))
    if len(reference_cells.labels) and (HASHES not in saved.weights or not query.measured.all()):
        kept = cell_hashes(reference_cells.values[:, query.measured])
        is_repeat |= are_among(cell_hashes(x[:, query.measured]), kept)
    return Repeats(len(rows), rows[is_repeat])


def no_cells(num_genes: int) -> ReferenceCells:
    """Return stored cells in place of those that a model does not have, or that are not to be used."""
    return ReferenceCells(
        csr_matrix((0, num_genes), dtype=np.float32), np.zeros(0, dtype=np.int64), are_counts=False
    )


@dataclass(frozen=True, eq=False)
class Measured:
    """What a file measures: the genes of a model and its depth, beside the stored cells of the reference."""

    query: Query  # the cells to annotate
    sample: Query  # all cells of their sample, which show its depth and shift; the query itself, or more cells
    coverage: Coverage
    stored: ReferenceCells  # none if the model is not to be adapted
    repeats: Repeats

    @cached_property
    def depth_share(self) -> float:
        """The depth as a share of the stored cells'; NaN without any."""
        return depth_share(self.stored, self.coverage)

    @property
    def fit(self) -> Coverage:
        """The coverage to which a model is fitted: all files as deep as the stored cells, or deeper, have one fit."""
        return replace(self.coverage, depth=None) if self.depth_share >= 1 else self.coverage

    def of_genes(self) -> "Measured":
        """Return the same cells with the measured genes alone."""
        measured = self.coverage.measured
        return replace(
            self, query=self.query.of_genes(measured), sample=self.sample.of_genes(measured)
        )
