"""The condition of a query: its genes of the model and its depth; reference cells reduced to it, or repeated in it."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from anndata import AnnData
from scipy.sparse import csr_matrix, vstack

from scperformer.base.messages import in_percent, shortened
from scperformer.cells.normalisation import normalise_counts, recover_counts, thin
from scperformer.cells.query import Query
from scperformer.cells.repeats import are_among, cell_hashes, linear
from scperformer.io.h5ad import BackedH5ad
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import HASHES, SavedModel

# Cells of a file that show its depth, and the blocks of the file that they come from.
SEEN_CELLS = 2000
SEEN_BLOCKS = 20
REPEAT_CELLS = 1000  # cells of a file that are compared with those of the reference, at most
# Below this share of the informative expression, or of the depth, adapting pays.
PAYS_GENES = 0.98
PAYS_DEPTH = 0.75


@dataclass(frozen=True)
class Condition:
    """What a file states about all of its cells: the genes of the model that it measures, and its depth."""

    measured: np.ndarray  # bool, G
    depth: float | None  # median counts of a cell over these genes, as `depth_class`; None: the file has no counts

    @property
    def key(self) -> str:
        """A name of this condition: 16 hexadecimal digits."""
        text = np.packbits(self.measured).tobytes() + f"{len(self.measured)} {self.depth}".encode()
        return hashlib.sha256(text).hexdigest()[:16]


def depth_class(counts: csr_matrix) -> float | None:
    """Return the median counts of cells that have any, rounded to a power of the square root of 2."""
    totals = np.asarray(counts.sum(axis=1)).ravel()
    totals = totals[totals > 0]
    return 2 ** (round(2 * math.log2(float(np.median(totals)))) / 2) if len(totals) else None


def seen_rows(query: Query) -> np.ndarray:
    """Return the numbers of up to 2,000 rows, ascending, that show what a file states about all of its cells.

    They are from up to 20 blocks, spread over the file. Barcodes that cannot be cells are not among them.
    """
    if query.plan.findings.droplets is not None:
        return query.spread(SEEN_CELLS)
    starts = np.array(query.starts())
    chosen = starts[np.unique(np.linspace(0, len(starts) - 1, min(len(starts), SEEN_BLOCKS)).astype(int))]
    rows = []
    for start in chosen:
        stop = min(start + query.rows.block_cells, query.rows.shape[0])
        num = min(stop - start, max(1, SEEN_CELLS // len(chosen)))
        rows.append(np.unique(np.linspace(start, stop - 1, num).astype(int)))
    return np.concatenate(rows)


def find_condition(query: Query, with_depth: bool = True) -> Condition:
    """Find the condition of a file; some of its cells show its depth, if it is wanted."""
    counts = recover_counts(query.some(seen_rows(query))) if with_depth else None
    return Condition(query.measured, None if counts is None else depth_class(counts))


def depth_share(reference_cells: ReferenceCells, condition: Condition) -> float:
    """Return the depth of a file as a share of the kept cells' on the same genes, at most 1; 1 if it is not known."""
    own = depth_class(reference_cells.values[:, condition.measured]) if reference_cells.are_counts else None
    return 1.0 if own is None or condition.depth is None else min(1.0, condition.depth / own)


def adapting_pays(informative_share: float, share_of_depth: float) -> bool:
    """Whether a model is more accurate when it is adapted to a file with these shares of its genes and its depth."""
    return informative_share < PAYS_GENES or share_of_depth < PAYS_DEPTH


def reduced(reference_cells: ReferenceCells, condition: Condition, target_sum: float | None, seed: int) -> csr_matrix:
    """Return the expression of kept cells as the file would have measured them: N x measured genes, ln(1 + cp10k)."""
    values = reference_cells.values[:, condition.measured]
    share = depth_share(reference_cells, condition)
    if share < 1:
        values = thin(values, share, np.random.default_rng(seed))
    return normalise_counts(values, target_sum)


def adapted_model(
    saved: SavedModel, condition: Condition, x: csr_matrix, expected_accuracy: float | None, **parts: Any
) -> SavedModel:
    """Return a model that was adapted to a condition with cells `x`, N x measured genes; `parts` are its new fields."""
    provenance = {
        "adapted_from": {"name": saved.name, "hash": saved.hash, "num_genes": len(saved.genes)},
        "condition": condition.key,
        "depth": condition.depth,
        "num_kept_cells": x.shape[0],
        "expected_accuracy": expected_accuracy,
    }
    return replace(
        saved,
        genes=[gene for gene, is_measured in zip(saved.genes, condition.measured, strict=True) if is_measured],
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        provenance=saved.provenance | provenance,
        reference_cells=None,
        has_reference_cells=False,
        **parts,
    )


def simulated(cells: ReferenceCells, num_cells: int, seed: int) -> ReferenceCells:
    """Draw about `num_cells` cells from the profiles of the labels: no cell of a person is among them.

    Counts are negative binomial (as in DESeq; Anders and Huber 2010, Genome Biol. 11:R106). The mean is the share of
    the gene in its label times the total of the cell, and the dispersion is found from moments. Totals are lognormal.
    Genes vary independently within a label, which real ones do not. The profile of a label with few cells resembles
    these. `cells` are counts.
    """
    rng = np.random.default_rng(seed)
    parts = []
    drawn = []
    per_cell = min(1.0, num_cells / len(cells.labels))
    for label in range(int(cells.labels.max()) + 1):
        counts = cells.values[cells.labels == label].astype(np.float64)
        totals = np.asarray(counts.sum(axis=1)).ravel()
        totals = totals[totals > 0]
        num = max(1, round(per_cell * counts.shape[0]))
        if not len(totals):
            totals = np.ones(1)
        share = np.asarray(counts.sum(axis=0)).ravel() / totals.sum()
        squares = np.asarray(counts.multiply(counts).sum(axis=0)).ravel()
        with_totals = np.asarray(counts.multiply(np.asarray(counts.sum(axis=1))).sum(axis=0)).ravel()
        expected = share**2 * (totals**2).sum()
        excess = squares - 2 * share * with_totals + expected - share * totals.sum()
        dispersion = np.divide(excess, expected, out=np.zeros_like(share), where=expected > 0).clip(1e-3, 10)
        logs = np.log(totals)
        means = np.exp(rng.normal(logs.mean(), logs.std(), size=num))[:, None] * share
        values = rng.poisson(rng.gamma(1 / dispersion, means * dispersion))
        parts.append(csr_matrix(values.astype(np.float32)))
        drawn.append(np.full(num, label))
    return ReferenceCells(vstack(parts, "csr"), np.concatenate(drawn), are_counts=True)


@dataclass
class Repeats:
    """The cells of the reference among some cells of a file."""

    num_seen: int = 0
    rows: np.ndarray = field(default_factory=lambda: np.arange(0))  # of those of the reference, ascending, int64

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
    the file is compared with the cells that the model stores, if these are real.
    """
    rows = seen_rows(query)
    rows = rows[:: max(1, -(-len(rows) // REPEAT_CELLS))]
    x = linear(query.some(rows))
    is_repeat = are_among(cell_hashes(x), saved.weights.get(HASHES, np.arange(0)))
    is_real = not saved.provenance.get("kept_cells", {}).get("simulated", False)
    if reference_cells is not None and is_real and (HASHES not in saved.weights or not query.measured.all()):
        kept = cell_hashes(reference_cells.values[:, query.measured])
        is_repeat |= are_among(cell_hashes(x[:, query.measured]), kept)
    return Repeats(len(rows), rows[is_repeat])


def joined_repeats(found: Sequence[Repeats]) -> Repeats:
    """Return the cells of a file that are cells of any of several references."""
    return Repeats(found[0].num_seen, np.unique(np.concatenate([each.rows for each in found]))) if found else Repeats()
