"""Prepare the cells of a file: filter and normalise them as a reference, or align them to the genes of a model."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.config import DataConfig, PreprocessConfig
from scperformer.dataset.query import find_query
from scperformer.errors import InputError
from scperformer.expression import (
    Findings,
    detect_expression,
    gene_table,
    merge_genes,
    normalise,
    prepared_total,
    stored_expression,
)
from scperformer.files import PREPARED, BackedH5ad, beside, read_cells, require_readable, write_h5ad
from scperformer.genes import first_of_each, repeated_note
from scperformer.outputs import require_absent

log = logging.getLogger(__name__)


def is_prepared(cells: AnnData | BackedH5ad, findings: Findings, target_sum: float) -> bool:
    """Whether the expression was written by `preprocess` with the same target sum."""
    return findings.source == "X" and prepared_total(cells) is not None and findings.total == target_sum


def describe_input(kind: str, source: str, target_sum: float) -> str:
    """Describe the expression of a file and the form in which it was used."""
    return f"{kind} from {source}, as ln(1 + counts per {target_sum:,.0f})"


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
    """Filter and normalise a reference for training; genes stay in the order of the file.

    Cells with fewer than `data.min_genes` genes are dropped, then genes expressed in fewer than `data.min_cells` of the
    remaining cells. Values are normalised over all genes before that. Genes of the same name are summed. Cells that
    were prepared to the same target sum are returned unchanged.

    Parameters
    ----------
    findings
        The result of `detect_expression` for these cells, if it is known.

    Returns
    -------
    N' x G' AnnData: X CSR float32 ln(1 + target_sum * share), obs and var of the cells and genes that were kept, and a
    record of the preparation in uns["scperformer_prepared"].
    """
    if findings is None:
        told = source, input_kind
        findings = detect_expression(adata, *told, input_total=input_total, input_base=input_base, path=path)
        log.info("%s: %s", path, findings.sentence)
    x, names = stored_expression(adata, findings, path=path)
    notes = repeated_note(names)
    if is_prepared(adata, findings, data.target_sum) and not notes:
        return adata
    rows, is_gene = sparse.csr_matrix(x), np.ones(len(names), dtype=bool)
    if notes:
        first = first_of_each(names)
        rows, is_gene = merge_genes(rows, first, findings.log_base), first == np.arange(len(names))
        findings = replace(findings, notes=[*findings.notes, *notes])
    keep_cells = (rows > 0).getnnz(axis=1) >= data.min_genes
    rows = rows[keep_cells]
    keep_genes = ((rows > 0).getnnz(axis=0) >= data.min_cells) & is_gene
    for what, option, keep in (("cells", "min_genes", keep_cells), ("genes", "min_cells", keep_genes)):
        if not keep.any():
            found = f"data.{option}={getattr(data, option)} drops all {len(keep)} {what} of {path}"
            raise InputError(found, f"at least some {what} to be kept", "lower it", [f"data.{option}=1"])
    prepared = AnnData(
        normalise(rows, findings, data.target_sum)[:, keep_genes],
        obs=adata.obs[keep_cells].copy(),
        var=gene_table(adata, findings.source).set_axis(names)[keep_genes].copy(),
    )
    dropped = {"cells_dropped": int((~keep_cells).sum()), "genes_dropped": int((~keep_genes).sum())}
    prepared.uns[PREPARED] = _record(prepared, findings, data.target_sum) | dropped
    return prepared


def _record(prepared: AnnData, findings: Findings, target_sum: float) -> dict[str, Any]:
    """Return the record of the preparation in the file; docs/formats.md describes it."""
    found = {"source": findings.source, "kind": findings.kind, "notes": np.array(findings.notes, dtype=str)}
    return {"target_sum": float(target_sum), **found, "cells": prepared.n_obs, "genes": prepared.n_vars}


def run_preprocess(cfg: PreprocessConfig) -> Path:
    """Write a prepared copy of a file, as a reference or, with `model_path`, over a model's genes; return its path."""
    start = time.perf_counter()
    path = Path(cfg.inputs[0])
    require_readable(path)
    output = Path(cfg.output) if cfg.output is not None else beside(path, ".prepared.h5ad")
    require_absent(output, cfg.overwrite)
    adata = read_cells(path, cfg.orientation)
    if cfg.model_path is None:
        told = cfg.source, cfg.input_kind, cfg.input_total, cfg.input_base
        prepared = prepare_reference(adata, cfg.data, *told, path=path)
    else:
        from scperformer.model import load_bundle, resolve_model

        model = load_bundle(resolve_model(cfg.model_path)[0])
        query = find_query(adata, model, cfg, str(path))
        prepared = AnnData(query.all_cells(), obs=adata.obs.copy(), var=pd.DataFrame(index=model.genes))
        findings = replace(query.findings, notes=[*query.findings.notes, *query.overlap.notes])
        dropped = {"cells_dropped": 0, "genes_dropped": query.overlap.num_dropped}
        fit = {"model": model.name, "genes_absent": query.overlap.num_absent}
        prepared.uns[PREPARED] = _record(prepared, findings, query.plan.target_sum) | dropped | fit
    done = prepared.uns[PREPARED]
    absent = f", {done['genes_absent']} genes of model {done['model']} absent" if "model" in done else ""
    cells, genes = (f"{done[name]} {name} ({done[f'{name}_dropped']} dropped" for name in ("cells", "genes"))
    log.info("kept %s) and %s%s), %g counts per cell", cells, genes, absent, done["target_sum"])
    write_h5ad(prepared, output, cfg.overwrite)
    log.info("wrote %s in %.1f s", output, time.perf_counter() - start)
    return output
