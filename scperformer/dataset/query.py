"""The cells of a file with the genes of a model, block by block."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from anndata import AnnData
from scipy.sparse import csr_matrix, vstack

from scperformer.config import AdaptConfig, AnalyzeConfig, PredictConfig, PreprocessConfig
from scperformer.errors import InputError
from scperformer.expression import (
    Alignment,
    align_rows,
    detect_expression,
    gene_table,
    plan_alignment,
    stored_expression,
)
from scperformer.files import BackedH5ad, Rows, checksum, reading

if TYPE_CHECKING:
    from scperformer.model import Bundle

log = logging.getLogger(__name__)

OBS_COLUMNS = (
    *("label", "confidence", "margin", "unknown", "novelty", "set", "set_size", "ontology_term_id", "baseline_label"),
    *("call", "call_confidence", "level1"),  # of models with a label tree
    *("cluster_label", "cluster_disagrees"),  # with `clusters`
    *("low_quality", "doublet_score", "doublet"),  # with `quality`
)


@dataclass
class Query:
    """The cells of one file with the genes of a model, a block at a time."""

    path: str
    rows: Rows
    plan: Alignment

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file or folder; empty for cells in memory."""
        return checksum(self.path) if Path(self.path).exists() else ""

    @cached_property
    def measured(self) -> np.ndarray:
        """Which genes of the model the file has: bool, G."""
        measured = np.zeros(self.plan.num_genes, dtype=bool)
        measured[self.plan.mapping.target[self.plan.mapping.target >= 0]] = True
        return measured

    def starts(self) -> range:
        """Return the first row of each block."""
        return range(0, self.rows.shape[0], self.rows.block_cells)

    def block(self, start: int) -> csr_matrix:
        """Return the aligned cells of the block that starts there."""
        stop = min(start + self.rows.block_cells, self.rows.shape[0])
        with reading(self.path):
            stored = self.rows.block(start, stop)
        return align_rows(stored, self.plan)

    def some(self, rows: np.ndarray) -> csr_matrix:
        """Return the aligned cells with these ascending row numbers."""
        with reading(self.path):
            stored = self.rows.some(rows)
        return align_rows(stored, self.plan)

    def of_genes(self, chosen: np.ndarray) -> "Query":
        """Return the same cells with some of the model's genes alone (boolean, G), and normalised over these."""
        plan, place = self.plan, np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)
        mapping = replace(plan.mapping, target=place[plan.mapping.target])
        return replace(self, plan=replace(plan, mapping=mapping, num_genes=int(chosen.sum()), own_totals=True))

    def all_cells(self) -> csr_matrix:
        """Return all aligned cells."""
        return vstack([self.block(start) for start in self.starts()], "csr")


def find_query(
    cells: AnnData | BackedH5ad,
    model: "Bundle",
    cfg: PredictConfig | AdaptConfig | AnalyzeConfig | PreprocessConfig,
    path: str = "the data",
) -> Query:
    """Find the expression of the cells of an open file, and map its genes to those of a model; log both.

    A file without usable expression, or with too few of the model's genes, is refused.
    """
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        total, base = cfg.input_total, cfg.input_base
        findings = detect_expression(cells, cfg.source, cfg.input_kind, input_total=total, input_base=base, path=path)
        rows = Rows(stored_expression(cells, findings, path=path)[0])
    plan = plan_alignment(
        gene_table(cells, findings.source),
        findings,
        model.genes,
        importance=model.importance,
        target_sum=float(model.config["target_sum"]),
        min_overlap=PredictConfig.min_overlap if isinstance(cfg, PreprocessConfig) else cfg.min_overlap,
        can_adapt=model.has_kept and (isinstance(cfg, AdaptConfig) or getattr(cfg, "adapt", "false") != "false"),
        own_totals=bool(model.config.get("own_totals", False)),
        species=cfg.species,
        path=path,
    )
    for note in [findings.sentence, *plan.overlap.notes]:
        log.info("%s: %s", path, note)
    return Query(path, rows, plan)


def require_not_annotated(cells: AnnData | BackedH5ad, key: str, path: str = "the data") -> None:
    """Refuse cells that have entries which an annotation with this prefix would add."""
    names = {"obs": [f"{key}_{name}" for name in OBS_COLUMNS], "obsm": [f"X_{key}", f"{key}_proba"], "uns": [key]}
    existing = cells.keys() if isinstance(cells, BackedH5ad) else {place: set(getattr(cells, place)) for place in names}
    there = [f"{place}['{name}']" for place in names for name in names[place] if name in existing[place]]
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        found, expected = f"{path} already has {', '.join(there[:3])}{more}", "no earlier annotation of this name"
        fixes = ["overwrite=true", f"key_added={key}_2"]
        raise InputError(found, expected, "add overwrite=true to replace it, or key_added=... to keep both", fixes)
