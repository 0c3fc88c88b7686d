"""From a user's expression to ln(1 + counts per 10,000), filtered and aligned."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer import genes
from scperformer.config import PredictConfig, PreprocessConfig
from scperformer.detect import PREPARED, Findings, detect, expression, gene_table, prepared_total
from scperformer.errors import InputError
from scperformer.genenames import GeneMap, map_genes
from scperformer.groups import DataConfig
from scperformer.io import require_absent, write_h5ad
from scperformer.logarithms import ASSUMED_TOTAL
from scperformer.overlap import Overlap, measure_overlap, require_overlap
from scperformer.readers import beside, read_cells, require_readable

log = logging.getLogger(__name__)


def normalise(
    x: sparse.spmatrix | sparse.sparray | np.ndarray, findings: Findings, target_sum: float
) -> sparse.csr_matrix:
    """Expression as ln(1 + target_sum * value / total of the cell).

    Parameters
    ----------
    x
        N cells x G genes as stored; it is not changed. Totals are over all of its genes.
    findings
        What the values are. log1p values are inverted and logged anew, unless they are already as wanted:
        then they stay as they are, bit for bit. Where their total cannot be seen it is taken as 10,000 or, with
        `relative`, as what the cell adds up to.
    target_sum
        Counts per cell after normalisation.

    Returns
    -------
    N x G CSR float32 without stored zeros, indices sorted; cells without counts stay zero.
    """
    rows = sparse.csr_matrix(x, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if findings.kind == "log1p":
        assert findings.log_base is not None, "detect gives log1p values a base"
        total = findings.total or ASSUMED_TOTAL
        if not findings.relative and findings.log_base == math.e and total == target_sum:
            return rows
        linear = np.expm1(rows.data.astype(np.float64) * math.log(findings.log_base))
        if not findings.relative:
            rows.data = np.log1p(linear * (target_sum / total)).astype(np.float32)
            return rows
        rows.data = linear.astype(np.float32)
    # As scanpy's normalize_total and log1p do it; to import scanpy would take a third of the time of a small prediction
    totals = rows @ np.ones(rows.shape[1])
    factors = np.divide(target_sum, totals, out=np.zeros_like(totals), where=totals != 0)
    rows.data *= np.repeat(factors.astype(np.float32), np.diff(rows.indptr))
    np.log1p(rows.data, out=rows.data)
    return rows


def merge_genes(
    x: sparse.spmatrix | sparse.sparray | np.ndarray, first: np.ndarray, log_base: float | None
) -> sparse.csr_matrix:
    """Expression with the columns of each gene added up, as if they were counts.

    Parameters
    ----------
    x
        N cells x G columns.
    first
        For each column the first one of the same gene (`genes.first_of_each`), which gets the sum.
    log_base
        Of the logarithm that the values are of, as ln(1 + value) is of e; None: they are linear.

    Returns
    -------
    N x G CSR float64. Rounded to float32, columns of a gene that has no other are as they were, bit for bit.
    """
    if log_base is None:
        return genes.sum_columns(x, first)
    linear = sparse.csr_matrix(x, dtype=np.float64, copy=True)
    linear.data = np.expm1(linear.data * math.log(log_base))
    summed = genes.sum_columns(linear, first)
    summed.data = np.log1p(summed.data) / math.log(log_base)
    return summed


def prepare_reference(
    adata: AnnData,
    data: DataConfig,
    source: str = "auto",
    input_kind: str = "auto",
    input_total: float | None = None,
    *,
    path: str | Path = "the reference",
    findings: Findings | None = None,
) -> AnnData:
    """A reference ready for training: filtered and normalised, genes in the order of the file.

    Cells with fewer than `data.min_genes` genes are dropped, then genes expressed in fewer than
    `data.min_cells` of the remaining cells. Cells are normalised over all genes before any gene is dropped.
    Genes of the same name are added up. What was prepared to the same target sum before is returned as it is.
    `findings` are those of `detect` with the same options, where it has been asked before.

    Returns
    -------
    N' x G' AnnData: X CSR float32 ln(1 + target_sum * share), obs and var of what was kept, and in
    uns["scperformer_prepared"] what was done.

    Raises
    ------
    InputError
        As `detect` and `expression`, or the filters leave nothing.
    """
    if findings is None:
        findings = detect(adata, source, input_kind, input_total=input_total, path=path)
        log.info("%s: %s", path, findings.sentence)
    x, names = expression(adata, findings, path=path)
    notes = genes.repeated_note(names)
    if is_prepared(adata, findings) and findings.total == data.target_sum and not notes:
        return adata
    import scanpy  # takes seconds, so only here

    rows, is_gene = sparse.csr_matrix(x), np.ones(len(names), dtype=bool)
    if notes:
        first = genes.first_of_each(names)
        rows, is_gene = merge_genes(rows, first, findings.log_base), first == np.arange(len(names))
        findings = replace(findings, notes=[*findings.notes, *notes])
    keep_cells, _ = scanpy.pp.filter_cells(rows, min_genes=data.min_genes)
    _require_some(keep_cells, "cells", f"data.min_genes={data.min_genes}", path)
    rows = rows[keep_cells]
    keep_genes, _ = scanpy.pp.filter_genes(rows, min_cells=data.min_cells)
    keep_genes &= is_gene
    _require_some(keep_genes, "genes", f"data.min_cells={data.min_cells}", path)
    prepared = AnnData(
        normalise(rows, findings, data.target_sum)[:, keep_genes],
        obs=adata.obs[keep_cells].copy(),
        var=gene_table(adata, findings.source).set_axis(names)[keep_genes].copy(),
    )
    prepared.uns[PREPARED] = _mark(
        prepared,
        findings,
        data.target_sum,
        cells_dropped=int((~keep_cells).sum()),
        genes_dropped=int((~keep_genes).sum()),
    )
    return prepared


def is_prepared(adata: AnnData, findings: Findings) -> bool:
    """Whether what `findings` names was written by this module."""
    return findings.source == "X" and prepared_total(adata) is not None


def _require_some(keep: np.ndarray, what: str, option: str, path: str | Path) -> None:
    if not keep.any():
        raise InputError(
            f"{option} drops all {len(keep)} {what} of {path}",
            f"at least some {what} to be kept",
            "lower it",
            [f"{option.partition('=')[0]}=1"],
        )


def _mark(
    adata: AnnData, findings: Findings, target_sum: float, *, cells_dropped: int, genes_dropped: int
) -> dict[str, Any]:
    """What was done, for the file and for the provenance of a model."""
    return {
        "target_sum": float(target_sum),
        "source": findings.source,
        "kind": findings.kind,
        "notes": np.array(findings.notes, dtype=str),
        "cells": adata.n_obs,
        "genes": adata.n_vars,
        "cells_dropped": cells_dropped,
        "genes_dropped": genes_dropped,
    }


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How rows of a file become rows of a model: made once for a file, used for any block of its rows."""

    mapping: GeneMap
    overlap: Overlap
    num_genes: int  # of the model
    target_sum: float
    findings: Findings


def plan_alignment(
    var: pd.DataFrame,
    findings: Findings,
    model_genes: Sequence[str],
    *,
    importance: np.ndarray | None = None,
    target_sum: float,
    min_overlap: float | None,
    species: str = "auto",
    path: str | Path = "the data",
) -> Alignment:
    """Find the genes of a model in a file, by its names alone.

    Parameters
    ----------
    var
        The table of the genes of `findings.source` (`detect.gene_table`), its index their names.
    importance
        Of the model's genes (`Bundle.importance`); None: all count alike.
    min_overlap
        Least share of the importance that the file's genes must carry, 0 to 1; None: any will do.
    species
        Of the file: auto, human or mouse.

    Raises
    ------
    InputError
        Too little of what the model looks at is there, the file is of another species, or genes have no names.
    """
    names = [str(name).strip() for name in var.index]
    genes.require_named(names, f"{findings.source} of {path}")
    mapping = map_genes(names, model_genes, var, species, path=path)
    found = measure_overlap(mapping.target, names, model_genes, importance=importance, notes=mapping.notes)
    if min_overlap is not None:
        require_overlap(found, min_overlap, path, file_genes=names, model_genes=model_genes, var=var)
    return Alignment(
        mapping=mapping, overlap=found, num_genes=len(model_genes), target_sum=target_sum, findings=findings
    )


def align_rows(x: sparse.spmatrix | sparse.sparray | np.ndarray, plan: Alignment) -> sparse.csr_matrix:
    """Cells as a model wants them: normalised over all genes of the file, then the model's genes as columns.

    Several genes of the file that are one gene of the model are added up before, as counts. A row does not depend on
    the rows beside it.

    Parameters
    ----------
    x
        Some rows of the expression that `plan.findings` names, with all its columns.

    Returns
    -------
    N x G CSR float32 with sorted indices; genes that the file lacks are 0.
    """
    first, target = _added_up(plan.mapping)
    if first is not None:
        x = merge_genes(x, first, plan.findings.log_base)
    return genes.align(normalise(x, plan.findings, plan.target_sum), target, plan.num_genes)


def align_normalised(x: sparse.csr_matrix, mapping: GeneMap, num_genes: int) -> sparse.csr_matrix:
    """Cells of ln(1 + value) with other genes as columns; genes that become one are added up as values.

    Returns
    -------
    N x num_genes CSR float32 with sorted indices.
    """
    first, target = _added_up(mapping)
    return genes.align(x if first is None else merge_genes(x, first, math.e), target, num_genes)


def _added_up(mapping: GeneMap) -> tuple[np.ndarray | None, np.ndarray]:
    """Which columns to add up (None: none), and where those that then hold values go."""
    first = mapping.first
    is_first = first == np.arange(len(first))
    return None if is_first.all() else first, np.where(is_first, mapping.target, -1)


def _prepare_for_model(adata: AnnData, cfg: PreprocessConfig, path: Path) -> AnnData:
    """All cells of a file with the genes of the model `cfg.model_path`."""
    from scperformer.bundle import load_bundle, resolve_model

    assert cfg.model_path is not None
    model = load_bundle(resolve_model(cfg.model_path)[0])
    target_sum = float(model.config["target_sum"])
    findings = detect(adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, path=path)
    plan = plan_alignment(
        gene_table(adata, findings.source),
        findings,
        model.genes,
        importance=model.importance,
        target_sum=target_sum,
        min_overlap=PredictConfig.min_overlap,
        species=cfg.species,
        path=path,
    )
    for note in [findings.sentence, *plan.overlap.notes]:
        log.info("%s: %s", path, note)
    x, _ = expression(adata, findings, path=path)
    prepared = AnnData(align_rows(x, plan), obs=adata.obs.copy(), var=pd.DataFrame(index=model.genes))
    findings = replace(findings, notes=[*findings.notes, *plan.overlap.notes])
    mark = _mark(prepared, findings, target_sum, cells_dropped=0, genes_dropped=plan.overlap.num_dropped)
    prepared.uns[PREPARED] = mark | {"model": model.name, "genes_absent": plan.overlap.num_absent}
    return prepared


def run_preprocess(cfg: PreprocessConfig) -> Path:
    """Write a prepared copy of a file: as a reference, or with `model_path` aligned to a model's genes.

    Returns
    -------
    The file that was written: `output`, else <input>.prepared.h5ad beside the input.

    Raises
    ------
    InputError
        The input cannot be used, or the output exists.
    """
    start = time.perf_counter()
    path = Path(cfg.inputs[0])
    require_readable(path)
    output = Path(cfg.output) if cfg.output is not None else beside(path, ".prepared.h5ad")
    require_absent(output, cfg.overwrite)
    adata = read_cells(path, cfg.orientation)
    if cfg.model_path is not None:
        prepared = _prepare_for_model(adata, cfg, path)
    else:
        prepared = prepare_reference(adata, cfg.data, cfg.source, cfg.input_kind, cfg.input_total, path=path)
    _log_mark(prepared.uns[PREPARED])
    write_h5ad(prepared, output, cfg.overwrite)
    log.info("wrote %s in %.1f s", output, time.perf_counter() - start)
    return output


def _log_mark(mark: Mapping[str, Any]) -> None:
    absent = f", {mark['genes_absent']} genes of model {mark['model']} absent" if "model" in mark else ""
    log.info(
        "kept %d cells (%d dropped) and %d genes (%d dropped%s), %g counts per cell",
        mark["cells"],
        mark["cells_dropped"],
        mark["genes"],
        mark["genes_dropped"],
        absent,
        mark["target_sum"],
    )
