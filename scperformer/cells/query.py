"""The cells of a file with the genes of a model, block by block."""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix, vstack

from scperformer.base.errors import InputError
from scperformer.cells.alignment import Alignment, align_rows
from scperformer.cells.batches import Batches
from scperformer.cells.detect import Findings, detect_expression, gene_table, stored_expression
from scperformer.cells.normalisation import thinned_cells
from scperformer.config.options import ModelOptions
from scperformer.io.axes import AXIS_SHARE, axis_shares
from scperformer.io.gene_matching import map_exactly, map_genes
from scperformer.io.gene_names import KIND_NAMES, guess_species, id_kind
from scperformer.io.gene_overlap import MIN_PANEL, measure_overlap
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.read import checksum
from scperformer.io.rows import Rows
from scperformer.io.safety import reading
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

MIN_SUGGESTED = 0.05  # a lower min_overlap is not suggested


@dataclass
class Query:
    """The cells of one file with the genes of a model, a block at a time."""

    path: str
    rows: Rows
    plan: Alignment
    var: pd.DataFrame  # the gene table of the file
    cfg: ModelOptions  # options of matching its genes
    batches: Batches | None = None  # whose batch effects are corrected apart
    share: float = 1.0  # of its depth, to which its cells are thinned

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file or folder; empty for cells in memory."""
        return checksum(self.path) if Path(self.path).exists() else ""

    @cached_property
    def measured(self) -> np.ndarray:
        """Which genes of the model the file has, boolean, G."""
        return np.isin(np.arange(self.plan.num_genes), self.plan.mapping.target)

    @cached_property
    def cells(self) -> np.ndarray:
        """The numbers of the rows that are cells of the sample, ascending, int64."""
        return np.flatnonzero(self.plan.findings.is_cell)

    def spread(self, most: int) -> np.ndarray:
        """Return the row numbers of up to `most` cells of the sample, spread over the file, ascending."""
        return self.plan.findings.spread(most)

    def starts(self) -> range:
        """Return the first row of each block."""
        return range(0, self.rows.shape[0], self.rows.block_cells)

    def block(self, start: int, draw: int = 0) -> csr_matrix:
        """Return the aligned cells of the block whose first row is `start`, CSR float32, cells x G.

        Of cells that are thinned, this is the draw of that number.
        """
        stop = min(start + self.rows.block_cells, self.rows.shape[0])
        with reading(self.path):
            stored = self.rows.block(start, stop)
        return thinned_cells(align_rows(stored, self.plan), self.share, draw)

    def some(self, rows: np.ndarray) -> csr_matrix:
        """Return the aligned cells with these ascending row numbers, CSR float32, cells x G."""
        with reading(self.path):
            stored = self.rows.some(rows)
        return thinned_cells(align_rows(stored, self.plan), self.share)

    def of_genes(self, chosen: np.ndarray) -> "Query":
        """Return the same cells with only the chosen genes of the model (boolean, G), normalised over these."""
        plan = self.plan
        place = np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)
        mapping = replace(plan.mapping, target=place[plan.mapping.target])
        return replace(self, plan=replace(plan, mapping=mapping, num_genes=int(chosen.sum()), own_totals=True))

    def of_model(self, model: SavedModel) -> "Query":
        """Return the same cells with the genes of another model."""
        return replace(self, plan=map_to_model(self.var, self.plan.findings, model, self.cfg, self.path))

    def all_cells(self) -> csr_matrix:
        """Return all aligned cells."""
        return vstack([self.block(start) for start in self.starts()], "csr")


Expression = tuple[Findings, Rows]  # of a file: where it is, and its rows


def find_expression(
    cells: AnnData | BackedH5ad, cfg: ModelOptions, path: str = "the data", species: str = "auto"
) -> Expression:
    """Find the expression of the cells of an open file, of a species; one without usable expression is refused."""
    species = species if cfg.species == "auto" else cfg.species
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        total = cfg.input_total
        base = cfg.input_base
        findings = detect_expression(
            cells, cfg.source, cfg.input_kind, input_total=total, input_base=base, species=species, path=path
        )
        return findings, stored_expression(cells, findings, path=path)[0]


def map_to_model(
    var: pd.DataFrame, findings: Findings, model: SavedModel, cfg: ModelOptions, path: str = "the data"
) -> Alignment:
    """Map the genes in the `gene_table` of a file to the model's genes, even if they share few; see `require_fit`."""
    names = [str(name).strip() for name in var.index]
    exact = cfg.genes == "exact"
    mapping = map_exactly(names, model.genes) if exact else map_genes(names, model.genes, var, cfg.species, path=path)
    overlap = measure_overlap(mapping.target, names, model.genes, importance=model.importance, notes=mapping.notes)
    own_totals = bool(model.config.get("own_totals", False))
    return Alignment(mapping, overlap, len(model.genes), model.config["target_sum"], findings, own_totals)


def require_fit(
    var: pd.DataFrame, plan: Alignment, model: SavedModel, cfg: ModelOptions, path: str = "the data"
) -> None:
    """Refuse a file with less than `min_overlap` of the model's informative expression, or with fewer than 50 genes.

    Fewer genes are enough for a model of a panel and with a `min_overlap` of 0. If the model can be refitted to the
    genes of the file, 50 of its genes are enough if they are half of the file's; for a tissue, they always are.
    """
    overlap = plan.overlap
    min_genes = 1 if plan.own_totals or cfg.min_overlap == 0 or overlap.num_model < MIN_PANEL else MIN_PANEL
    if overlap.num_shared >= min_genes and overlap.informative_share >= cfg.min_overlap:
        return
    is_tissue = model.reference_cells is not None  # found with the genes of the file, and fitted to them
    if is_tissue and overlap.num_shared >= MIN_PANEL:
        return
    has_cells = model.has_reference_cells or any(study.saved.has_reference_cells for study in model.studies)
    if has_cells and cfg.adapts and overlap.num_shared >= max(MIN_PANEL, overlap.num_file / 2):
        return
    file_genes = [str(name).strip() for name in var.index]
    # Examples from the middle: the first names of a sorted list are often unusual (5_8S_rRNA, AL627309.1).
    middle = (genes[len(genes) // 2 :][:2] for genes in (file_genes, list(model.genes)))
    of_file, of_model = (", ".join(map(repr, names)) for names in middle)
    found = f"{overlap.num_shared} of {overlap.num_model} model genes ({100 * overlap.share_of_model:.1f} %) found in "
    found += f"{path}, with {100 * overlap.informative_share:.1f} % of the model's informative expression "
    found += f"(e.g. {of_file}; model has e.g. {of_model})"
    expected = (
        f"at least {100 * cfg.min_overlap:g} % of that expression" if cfg.min_overlap > 0 else "at least one gene"
    )
    enough = math.floor(1000 * overlap.informative_share) / 1000
    if overlap.num_shared < min_genes == MIN_PANEL:
        expected = f"{MIN_PANEL} genes or more, and {expected}"
        enough = 0
    file_kind, model_kind = (id_kind(genes) for genes in (file_genes, model.genes))
    share_genes, share_cells = axis_shares(file_genes)
    if share_cells >= AXIS_SHARE > share_genes:
        remedy = "cells seem to be in var_names: if genes are in obs_names, transpose it (adata = adata.T)"
    elif file_kind != model_kind:
        remedy = f"convert var_names from {KIND_NAMES[file_kind]} to {KIND_NAMES[model_kind]}"
    else:
        remedy = "use a model trained on the same species and platform"
        remedy += ", or lower min_overlap" if overlap.num_shared else ", and take gene names as var_names"
    fixes = [f"min_overlap={enough:g}"] if enough >= MIN_SUGGESTED else []
    raise InputError("few-genes", found, expected, remedy, fixes)


def find_query(
    cells: AnnData | BackedH5ad,
    model: SavedModel,
    cfg: ModelOptions,
    path: str = "the data",
    expression: Expression | None = None,
) -> Query:
    """Find the expression of an open file, unless it is known, and map its genes to the model's genes; log both."""
    findings, rows = expression or find_expression(cells, cfg, path, guess_species(model.genes))
    if model.config["target_sum"] is None and findings.kind != "counts":
        remedy = "name the place of the counts with source=..., or set input_kind=counts if they are counts"
        expected = f"raw counts, on which the model {model.name} was trained"
        raise InputError("model-of-counts", f"{findings.text} of {path}", expected, remedy)
    var = gene_table(cells, findings)
    plan = map_to_model(var, findings, model, cfg, path)
    require_fit(var, plan, model, cfg, path)
    for note in [findings.sentence, *plan.overlap.notes]:
        log.info("%s: %s", path, note)
    return Query(path, rows, plan, var, cfg)
