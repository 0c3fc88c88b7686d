"""From a user's cells to a prepared reference: filtered by scanpy, normalised; or aligned to a model's genes."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.config import DataConfig, PredictConfig, PreprocessConfig
from scperformer.errors import InputError
from scperformer.expression import (
    Findings,
    align_rows,
    detect_expression,
    gene_table,
    merge_genes,
    normalise,
    plan_alignment,
    prepared_total,
    stored_expression,
)
from scperformer.files import PREPARED, beside, read_cells, require_readable, write_h5ad
from scperformer.genes import first_of_each, repeated_note
from scperformer.outputs import require_absent

log = logging.getLogger(__name__)


def prepare_reference(
    adata: AnnData,
    data: DataConfig,
    source: str = "auto",
    input_kind: str = "auto",
    input_total: float | None = None,
    input_base: str = "auto",
    *,
    path: str | Path = "the reference",
    findings: Findings | None = None,
) -> AnnData:
    """A reference ready for training: filtered and normalised, genes in the order of the file.

    Cells with fewer than `data.min_genes` genes are dropped, then genes expressed in fewer than
    `data.min_cells` of the remaining cells; normalised over all genes before that. Genes of the same name are added
    up. What was prepared to the same target sum is returned as it is. `findings` are those of `detect` if it was asked.

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
        findings = detect_expression(
            adata, source, input_kind, input_total=input_total, input_base=input_base, path=path
        )
        log.info("%s: %s", path, findings.sentence)
    x, names = stored_expression(adata, findings, path=path)
    notes = repeated_note(names)
    if is_prepared(adata, findings) and findings.total == data.target_sum and not notes:
        return adata
    import scanpy  # takes seconds, so only here

    rows, is_gene = sparse.csr_matrix(x), np.ones(len(names), dtype=bool)
    if notes:
        first = first_of_each(names)
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


def _prepare_for_model(adata: AnnData, cfg: PreprocessConfig, path: Path) -> AnnData:
    """All cells of a file with the genes of the model `cfg.model_path`."""
    from scperformer.model import load_bundle, resolve_model

    assert cfg.model_path is not None
    model = load_bundle(resolve_model(cfg.model_path)[0])
    target_sum = float(model.config["target_sum"])
    findings = detect_expression(
        adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, input_base=cfg.input_base, path=path
    )
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
    x, _ = stored_expression(adata, findings, path=path)
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
        told = cfg.source, cfg.input_kind, cfg.input_total, cfg.input_base
        prepared = prepare_reference(adata, cfg.data, *told, path=path)
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
