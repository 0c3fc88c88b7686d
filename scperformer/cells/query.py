"""The cells of a file with the genes of a model, block by block."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix, vstack

from scperformer.base.errors import InputError
from scperformer.base.messages import NO_COLUMNS, shortened
from scperformer.cells.alignment import Alignment, align_rows, plan_alignment
from scperformer.cells.detect import Findings, detect_expression, gene_table, stored_expression
from scperformer.cells.values import evenly_spaced
from scperformer.config.options import ModelOptions
from scperformer.io.gene_overlap import require_overlap
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.read import checksum
from scperformer.io.rows import Rows
from scperformer.io.safety import reading
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)


@dataclass
class Query:
    """The cells of one file with the genes of a model, a block at a time."""

    path: str
    rows: Rows
    plan: Alignment
    var: pd.DataFrame  # the gene table of the file
    cfg: ModelOptions  # options of matching its genes

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file or folder; empty for cells in memory."""
        return checksum(self.path) if Path(self.path).exists() else ""

    @cached_property
    def measured(self) -> np.ndarray:
        """Which genes of the model the file has, boolean, G."""
        measured = np.zeros(self.plan.num_genes, dtype=bool)
        measured[self.plan.mapping.target[self.plan.mapping.target >= 0]] = True
        return measured

    @cached_property
    def cells(self) -> np.ndarray:
        """The numbers of the rows that can be cells, ascending, int64: all rows, except in an unfiltered matrix."""
        droplets = self.plan.findings.droplets
        return np.arange(self.rows.shape[0]) if droplets is None else np.sort(droplets.cells)

    def spread(self, most: int) -> np.ndarray:
        """Return the row numbers of up to `most` cells, spread over the file, ascending; without empty droplets."""
        if (droplets := self.plan.findings.droplets) is not None:
            return droplets.some(most)
        return evenly_spaced(self.rows.shape[0], most)

    def starts(self) -> range:
        """Return the first row of each block."""
        return range(0, self.rows.shape[0], self.rows.block_cells)

    def block(self, start: int) -> csr_matrix:
        """Return the aligned cells of the block whose first row is `start`, CSR float32, cells x G."""
        stop = min(start + self.rows.block_cells, self.rows.shape[0])
        with reading(self.path):
            stored = self.rows.block(start, stop)
        return align_rows(stored, self.plan)

    def some(self, rows: np.ndarray) -> csr_matrix:
        """Return the aligned cells with these ascending row numbers, CSR float32, cells x G."""
        with reading(self.path):
            stored = self.rows.some(rows)
        return align_rows(stored, self.plan)

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


def find_expression(
    cells: AnnData | BackedH5ad,
    cfg: ModelOptions,
    path: str = "the data",
) -> tuple[Findings, Rows]:
    """Find the expression of the cells of an open file; one without usable expression is refused."""
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        total = cfg.input_total
        base = cfg.input_base
        findings = detect_expression(cells, cfg.source, cfg.input_kind, input_total=total, input_base=base, path=path)
        return findings, stored_expression(cells, findings, path=path)[0]


def map_to_model(
    var: pd.DataFrame, findings: Findings, model: SavedModel, cfg: ModelOptions, path: str = "the data"
) -> Alignment:
    """Map the genes in the `gene_table` of a file to the model's genes, even if they share few; see `require_fit`."""
    return plan_alignment(
        var,
        findings,
        model.genes,
        importance=model.importance,
        target_sum=model.config["target_sum"],
        own_totals=bool(model.config.get("own_totals", False)),
        species=cfg.species,
        exact=cfg.genes == "exact",
        path=path,
    )


def require_fit(
    var: pd.DataFrame,
    plan: Alignment,
    model: SavedModel,
    cfg: ModelOptions,
    path: str = "the data",
) -> None:
    """Refuse a file with too few of the model's genes, if the model cannot be adapted to these."""
    require_overlap(
        plan.overlap,
        cfg.min_overlap,
        path,
        file_genes=[str(name).strip() for name in var.index],
        model_genes=model.genes,
        can_adapt=(model.has_reference_cells or any(study.saved.has_reference_cells for study in model.studies))
        and cfg.adapts,
        own_totals=plan.own_totals,
    )


def find_query(
    cells: AnnData | BackedH5ad,
    model: SavedModel,
    cfg: ModelOptions,
    path: str = "the data",
) -> "Query":
    """Find the expression of the cells of an open file, and map its genes to the model's genes; log both.

    A file without usable expression, or with too few of the model's genes, is refused.
    """
    findings, rows = find_expression(cells, cfg, path)
    if model.config["target_sum"] is None and findings.kind != "counts":
        remedy = "name the place of the counts with source=..., or set input_kind=counts if they are counts"
        expected = f"raw counts, on which the model {model.name} was trained"
        raise InputError(f"{findings.text} of {path}", expected, remedy)
    var = gene_table(cells, findings.source)
    plan = map_to_model(var, findings, model, cfg, path)
    require_fit(var, plan, model, cfg, path)
    for note in [findings.sentence, *plan.overlap.notes]:
        log.info("%s: %s", path, note)
    return Query(path, rows, plan, var, cfg)


def require_regular(cells: AnnData | BackedH5ad, path: str = "the data") -> None:
    """Refuse cells whose annotation could not be written, before any cell is called.

    These are columns in memory that no file can have, and an open file to whose obs, obsm or uns nothing can be added.
    """
    if not isinstance(cells, BackedH5ad):
        for table, names in (("obs", cells.obs.columns), ("var", cells.var.columns)):
            wrong = [name for name in names if not isinstance(name, str) or name in NO_COLUMNS]
            if wrong := [*wrong, *names[names.duplicated()]]:
                found = f"column {shortened(repr(wrong[0]))} in {table} of {path}"
                raise InputError(found, "texts as names of columns, each once, and none that is reserved", "rename it")
        return
    wrong = [place for place in ("obsm", "uns") if place in cells.file and not hasattr(cells.file[place], "keys")]
    if wrong or "column-order" not in cells.file["obs"].attrs:
        what = f"{wrong[0]} that is no group" if wrong else "obs without the order of its columns"
        remedy = "read it with anndata and save it with write_h5ad, or write a table (output=... in .csv)"
        raise InputError(f"{path} with {what}", "an h5ad file as anndata writes it", remedy)
