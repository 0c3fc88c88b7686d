"""Prepare the cells of a file: filter and normalise them as a reference, or align them to the genes of a model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.cells.detect import Findings
from scperformer.cells.on_disk import Sample, make_collection
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import find_query
from scperformer.config.options import ModelOptions
from scperformer.config.training import DataOptions
from scperformer.io.h5ad import PREPARED_KEY
from scperformer.model.folder import read_model, resolve_model


def prepare_reference(adata: AnnData, cfg: DataOptions, path: str | Path = "the reference") -> AnnData:
    """Filter and normalise a reference for training; genes stay in the order of the file.

    Cells with fewer than `data.min_genes` genes are dropped, then genes that are expressed in fewer than
    `data.min_cells` of the remaining cells. Genes of the same name are summed. X is ln(1 + target_sum * share), CSR
    float32, over all genes, also those that are dropped; obs and var come from the file, and uns has a record.
    """
    collection = make_collection([Sample(adata, Path(path))], cfg)
    part = collection.parts[0]
    findings = part.findings
    obs = adata.obs.iloc[part.kept].copy()
    var = part.var[collection.maps[0].target >= 0].copy()
    prepared = AnnData(collection.read(np.arange(len(collection))), obs=obs, var=var)
    dropped = {"cells_dropped": findings.num_cells - len(obs), "genes_dropped": findings.num_genes - len(var)}
    prepared.uns[PREPARED_KEY] = _record(prepared, findings, cfg.data.target_sum) | dropped
    return prepared


def _record(prepared: AnnData, findings: Findings, target_sum: float) -> dict[str, object]:
    """Return the record of the preparation for uns, which docs/formats.md describes."""
    values = {"source": findings.source, "kind": findings.kind, "notes": np.array(findings.notes, dtype=str)}
    return {"target_sum": float(target_sum), **values, "cells": prepared.n_obs, "genes": prepared.n_vars}


def prepare_for_model(adata: AnnData, cfg: ModelOptions, path: Path) -> AnnData:
    """Return all cells with the genes of the model `cfg.model_path`, normalised as the model expects it."""
    assert cfg.model_path is not None
    model = read_model(resolve_model(cfg.model_path)[0])
    target_sum = model.config.target_sum
    if target_sum is None:
        remedy = "annotate the files with 'scperformer predict'; they need no preparation"
        found = f"the model {model.name} of raw counts"
        raise InputError("model-of-counts", found, "a model of normalised cells", remedy)
    query = find_query(OpenedCells(adata, cfg, str(path)), model)
    overlap = query.plan.overlap
    prepared = AnnData(query.all_cells(), obs=adata.obs.copy(), var=pd.DataFrame(index=model.genes))
    findings = replace(query.findings, notes=[*query.findings.notes, *overlap.notes])
    record = _record(prepared, findings, target_sum)
    record |= {"cells_dropped": 0, "genes_dropped": overlap.num_dropped}
    prepared.uns[PREPARED_KEY] = record | {"model": model.name, "genes_absent": overlap.num_absent}
    return prepared
