"""The cells of a file as a model wants them, block by block; which files that works for, and which it does not."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from anndata import AnnData
from scipy.sparse import csr_matrix, vstack

from scperformer.config import AnalyzeConfig, PredictConfig
from scperformer.expression import (
    Alignment,
    Findings,
    align_rows,
    detect_expression,
    gene_table,
    plan_alignment,
    stored_expression,
)
from scperformer.files import BackedH5ad, Rows, checksum, reading, require_new_keys
from scperformer.genes import Overlap, require_overlap

if TYPE_CHECKING:
    from scperformer.model import Bundle

OBS_COLUMNS = ("label", "confidence", "margin", "unknown", "ontology_term_id", "baseline_label")


@dataclass
class Query:
    """The cells of one file as a model wants them, a block at a time."""

    path: str
    rows: Rows
    plan: Alignment

    @property
    def findings(self) -> Findings:
        return self.plan.findings

    @property
    def overlap(self) -> Overlap:
        return self.plan.overlap

    @cached_property
    def sha256(self) -> str:
        """Of the file or folder; empty for cells in memory."""
        return checksum(self.path) if Path(self.path).exists() else ""

    def starts(self) -> range:
        """The first row of each block."""
        return range(0, self.rows.shape[0], self.rows.block_cells)

    def block(self, start: int) -> csr_matrix:
        """The aligned cells of a block.

        Raises
        ------
        InputError
            The file is damaged there.
        """
        stop = min(start + self.rows.block_cells, self.rows.shape[0])
        with reading(self.path):
            stored = self.rows.block(start, stop)
        return align_rows(stored, self.plan)

    def all_cells(self) -> csr_matrix:
        """All aligned cells."""
        return vstack([self.block(start) for start in self.starts()], "csr")


def find_query(
    cells: AnnData | BackedH5ad,
    model: "Bundle",
    cfg: PredictConfig | AnalyzeConfig,
    path: str = "the data",
) -> Query:
    """Find the expression of some cells, and how their genes fit a model.

    Raises
    ------
    InputError
        No usable expression, or too few of the model's genes.
    """
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        findings = detect_expression(
            cells, cfg.source, cfg.input_kind, input_total=cfg.input_total, input_base=cfg.input_base, path=path
        )
        matrix, names = stored_expression(cells, findings, path=path)
        rows = Rows(matrix)
    var = gene_table(cells, findings.source)
    plan = plan_alignment(
        var,
        findings,
        model.genes,
        importance=model.importance,
        target_sum=model.config["target_sum"],
        min_overlap=None,
        species=cfg.species,
        path=path,
    )
    require_overlap(plan.overlap, cfg.min_overlap, path, file_genes=names, model_genes=model.genes, var=var)
    return Query(path, rows, plan)


def keys_of(adata: AnnData) -> dict[str, set[str]]:
    """The names of what obs, obsm and uns hold."""
    return {"obs": set(adata.obs), "obsm": set(adata.obsm), "uns": set(adata.uns)}


def added_keys(key: str) -> dict[str, list[str]]:
    """The names that an annotation with this prefix adds to obs, obsm and uns."""
    return {"obs": [f"{key}_{name}" for name in OBS_COLUMNS], "obsm": [f"X_{key}", f"{key}_proba"], "uns": [key]}


def require_not_annotated(existing: Mapping[str, set[str]], key: str, path: str = "the data") -> None:
    """Fail when there is anything of the names that an annotation with this prefix would add.

    Parameters
    ----------
    existing
        Names by place, as `keys_of` gives them.

    Raises
    ------
    InputError
        Names what is there.
    """
    require_new_keys(existing, added_keys(key), path, mends=["overwrite=true", f"key_added={key}_2"])
