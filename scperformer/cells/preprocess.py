"""Prepare the cells of a file: filter and normalise them as a reference, or align them to the genes of a model."""

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.cells.collection import Filters, make_collection
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import find_query
from scperformer.config.options import ModelOptions
from scperformer.config.training import DataOptions
from scperformer.io.gene_names import repeated_note
from scperformer.io.h5ad import PREPARED_KEY
from scperformer.model.folder import read_model, resolve_model


def prepare_reference(cells: OpenedCells[DataOptions]) -> AnnData:
    """Filter and normalise a reference for training; genes stay in the order of the file.

    Cells with fewer than `data.min_genes` genes are dropped, then genes that are expressed in fewer than
    `data.min_cells` of the remaining cells. Genes of the same name are summed. X is ln(1 + target_sum * share), CSR
    float32, over all genes, also those that are dropped; obs and var come from the file, and uns has a record.
    """
    data = cells.options.data
    collection = make_collection([cells], Filters.by(data))
    var = cells.var.set_axis(cells.gene_names)[cells.is_first][collection.maps[0].target >= 0]
    obs = cells.obs.iloc[collection.kept[0]]
    prepared = AnnData(collection.read(np.arange(len(collection))), obs=obs.copy(), var=var.copy())
    dropped = {
        "cells_dropped": cells.n_obs - len(obs),
        "genes_dropped": cells.findings.num_genes - len(var),
    }
    record = _record(prepared, cells, data.target_sum, repeated_note(cells.gene_names))
    prepared.uns[PREPARED_KEY] = record | dropped
    return prepared


def _record(
    prepared: AnnData, cells: OpenedCells, target_sum: float, notes: list[str]
) -> dict[str, object]:
    """Return the record of the preparation for uns, which docs/formats.md describes."""
    findings = cells.findings
    values = {
        "source": findings.source,
        "kind": findings.kind,
        "notes": np.array([*findings.notes, *notes], dtype=str),
    }
    return {
        "target_sum": float(target_sum),
        **values,
        "cells": prepared.n_obs,
        "genes": prepared.n_vars,
    }


def prepare_for_model(cells: OpenedCells[ModelOptions]) -> AnnData:
    """Return all cells with the genes of the model `model_path`, normalised as the model expects it."""
    assert cells.options.model_path is not None
    model = read_model(resolve_model(cells.options.model_path)[0])
    target_sum = model.config.target_sum
    if target_sum is None:
        remedy = "annotate the files with 'scperformer predict'; they need no preparation"
        found = f"the model {model.name} of raw counts"
        raise InputError("model-of-counts", found, "a model of normalised cells", remedy)
    query = find_query(cells, model)
    overlap = query.plan.overlap
    prepared = AnnData(query.all_cells(), obs=cells.obs.copy(), var=pd.DataFrame(index=model.genes))
    record = _record(prepared, cells, target_sum, overlap.notes)
    record |= {"cells_dropped": 0, "genes_dropped": overlap.num_dropped}
    prepared.uns[PREPARED_KEY] = record | {"model": model.name, "genes_absent": overlap.num_absent}
    return prepared
