"""Opened cells with the genes of a model, block by block."""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix, vstack

from scperformer.base.errors import InputError
from scperformer.cells.batches import NO_BATCHES, Batches
from scperformer.cells.detect import Findings
from scperformer.cells.normalisation import Alignment, align_rows, thinned_cells
from scperformer.cells.opened import OpenedCells
from scperformer.io.axes import AXIS_SHARE, axis_shares
from scperformer.io.gene_matching import map_exactly, map_genes
from scperformer.io.gene_names import KIND_NAMES, guess_species, id_kind
from scperformer.io.gene_overlap import MIN_PANEL, Overlap, measure_overlap
from scperformer.io.safety import words_of
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

MIN_SUGGESTED = 0.05  # a lower min_overlap is not suggested


@dataclass
class Query:
    """Opened cells with the G genes of a model, a block at a time."""

    cells: OpenedCells
    plan: Alignment
    path: str  # in messages
    batches: Batches = NO_BATCHES  # whose batch effects are corrected apart
    share: float = 1.0  # of its depth, to which its cells are thinned

    @property
    def findings(self) -> Findings:
        return self.plan.findings

    @property
    def overlap(self) -> Overlap:
        return self.plan.overlap

    @cached_property
    def measured(self) -> np.ndarray:
        """Which genes of the model the file has, boolean, G."""
        return np.isin(np.arange(self.plan.num_genes), self.plan.mapping.target)

    @cached_property
    def cell_rows(self) -> np.ndarray:
        """The numbers of the rows that are cells of the sample, ascending, int64."""
        return np.flatnonzero(self.findings.is_cell)

    def starts(self) -> range:
        return range(0, self.cells.n_obs, self.cells.rows.block_cells)

    def draws(self, start: int, num: int) -> Iterator[csr_matrix]:
        """Yield the aligned cells of the block whose first row is `start`, CSR float32, cells x G.

        Of cells that are thinned, so many draws are yielded.
        """
        x = align_rows(self.cells.block(start), self.plan)
        return (thinned_cells(x, self.share, draw) for draw in range(1 if self.share == 1 else num))

    def block(self, start: int) -> csr_matrix:
        """Return the aligned cells of a block; of cells that are thinned, the first draw."""
        return next(self.draws(start, 1))

    def some(self, rows: np.ndarray) -> csr_matrix:
        """Return the aligned cells with these ascending row numbers, CSR float32, cells x G."""
        return thinned_cells(align_rows(self.cells.some(rows), self.plan), self.share)

    def of_genes(self, chosen: np.ndarray) -> "Query":
        """Return the same cells with only the chosen genes of the model (boolean, G), normalised over these."""
        plan = self.plan
        mapping = plan.mapping.only(chosen)
        return replace(
            self, plan=replace(plan, mapping=mapping, num_genes=int(chosen.sum()), own_totals=True)
        )

    def of_model(self, model: SavedModel, path: str) -> "Query":
        """Return the same cells with the genes of a different model."""
        return replace(self, plan=align_to_model(self.cells, model), path=path)

    def all_cells(self) -> csr_matrix:
        return vstack([self.block(start) for start in self.starts()], "csr")


def align_to_genes(
    cells: OpenedCells,
    genes: Sequence[str],
    target_sum: float | None = 1e4,
    importance: np.ndarray | None = None,
) -> Alignment:
    """Match the genes of opened cells to G genes, of which each has an `importance`, even if they share few."""
    options = cells.options
    names = cells.gene_names
    if options.genes == "exact":
        mapping = map_exactly(names, genes)
    else:
        mapping = map_genes(names, genes, cells.var, options.species, path=cells.path)
    overlap = measure_overlap(mapping.target, names, genes, importance)
    overlap.notes = [*mapping.notes, *overlap.notes]
    return Alignment(mapping, overlap, len(genes), target_sum, cells.findings)


def align_to_model(cells: OpenedCells, model: SavedModel) -> Alignment:
    """Match the genes of opened cells to the genes of a model, even if they share few; see `require_fit`."""
    plan = align_to_genes(cells, model.genes, model.config.target_sum, model.importance)
    return replace(plan, own_totals=bool(model.config.own_totals))


def require_fit(cells: OpenedCells, plan: Alignment, model: SavedModel) -> None:
    """Refuse cells with less than `min_overlap` of the model's informative expression, or with fewer than 50 genes.

    Fewer genes are enough for a model of a panel and with a `min_overlap` of 0. If the model can be refitted to the
    genes of the file, 50 of its genes are enough if they are half of the file's; for a tissue, they always are.
    """
    overlap = plan.overlap
    least = cells.options.min_overlap
    min_genes = 1 if plan.own_totals or least == 0 or overlap.num_model < MIN_PANEL else MIN_PANEL
    if overlap.num_shared >= min_genes and overlap.informative_share >= least:
        return
    enough_to_refit = MIN_PANEL if model.is_tissue else max(MIN_PANEL, overlap.num_file / 2)
    refits = model.is_tissue or (model.can_be_refitted and cells.options.adapts)
    if refits and overlap.num_shared >= enough_to_refit:
        return
    # Examples from the middle: the first names of a sorted list are often unusual (5_8S_rRNA, AL627309.1).
    middle = (names[len(names) // 2 :][:2] for names in (cells.gene_names, list(model.genes)))
    of_file, of_model = (", ".join(map(repr, names)) for names in middle)
    found = f"{overlap.num_shared} of {overlap.num_model} model genes ({100 * overlap.share_of_model:.1f} %) found in "
    found += f"{cells.path}, with {100 * overlap.informative_share:.1f} % of the model's informative expression "
    found += f"(e.g. {of_file}; model has e.g. {of_model})"
    expected = (
        f"at least {100 * least:g} % of that expression" if least > 0 else "at least one gene"
    )
    enough = math.floor(1000 * overlap.informative_share) / 1000
    if overlap.num_shared < min_genes == MIN_PANEL:
        expected = f"{MIN_PANEL} genes or more, and {expected}"
        enough = 0
    fixes = [f"min_overlap={enough:g}"] if enough >= MIN_SUGGESTED else []
    file_kind = id_kind(cells.gene_names)
    model_kind = id_kind(model.genes)
    share_genes, share_cells = axis_shares(cells.gene_names)
    remedy = "use a model trained on the same species and platform"
    names = words_of(cells.path, "var_names", "rownames(object)")
    remedy += (
        ", or lower min_overlap" if overlap.num_shared else f", and take gene names as {names}"
    )
    if share_cells >= AXIS_SHARE > share_genes:
        remedy = "cells seem to be in var_names: if genes are in obs_names, transpose it (adata = adata.T)"
    elif file_kind != model_kind:
        remedy = f"convert {names} from {KIND_NAMES[file_kind]} to {KIND_NAMES[model_kind]}"
    raise InputError("few-genes", found, expected, remedy, fixes)


def find_query(cells: OpenedCells, model: SavedModel) -> Query:
    """Find the expression of opened cells, and match its genes to the model's genes; log both.

    Raises
    ------
    InputError
        The cells have no usable expression, no counts for a model of counts, or share too few genes with the model.
    """
    findings = cells.find_expression(guess_species(model.genes))
    if model.config.target_sum is None and findings.kind != "counts":
        remedy = "name the place of the counts with source=..., or set input_kind=counts if they are counts"
        expected = f"raw counts, on which the model {model.name} was trained"
        raise InputError("model-of-counts", f"{findings.text} of {cells.path}", expected, remedy)
    plan = align_to_model(cells, model)
    require_fit(cells, plan, model)
    for note in [findings.sentence, *plan.overlap.notes]:
        log.info("%s: %s", cells.path, note)
    return Query(cells, plan, cells.path)
