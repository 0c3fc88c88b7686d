"""Read loom files: genes x cells in HDF5, a block of genes at a time so that the matrix is never dense as a whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.errors import InputError
from scperformer.files.safety import reading
from scperformer.files.tenx import strings

# Attributes that may hold the names, best first.
GENE_NAMES = (
    *("Gene", "gene", "gene_name", "gene_names", "GeneName", "gene_symbol", "gene_symbols", "Symbol", "symbol"),
    *("var_names", "feature_name", "Name", "Accession", "gene_id", "gene_ids", "GeneID", "ensembl_id"),
    *("index", "_index"),
)
CELL_NAMES = (
    *("CellID", "CellIDs", "cell_id", "cellID", "obs_names", "cell_names", "cell_name", "Cell", "cell"),
    *("barcode", "barcodes", "Barcode", "index", "_index"),
)
BLOCK = 8 * 2**20  # values that are dense at a time


def read_loom(path: Path) -> tuple[AnnData, list[str]]:
    """Read a loom file with its attributes in obs and var; also return notes for the log."""
    with reading(path, "a complete loom file"), h5py.File(path, "r") as file:
        shape = file["matrix"].shape
        var, gene_name = _attributes(file["row_attrs"], GENE_NAMES, shape[0])
        obs, cell_name = _attributes(file["col_attrs"], CELL_NAMES, shape[1])
        if gene_name is None:
            found = f"{path} without names of genes (row attributes: {', '.join(file['row_attrs']) or 'none'})"
            expected = f"one of {', '.join(GENE_NAMES[:3])}, ..."
            raise InputError(found, expected, "add the names of the genes as row attribute 'Gene'")
        adata = AnnData(_matrix(file["matrix"]), obs=obs, var=var)
        for name, layer in file.get("layers", {}).items():
            adata.layers[name] = _matrix(layer)
    named = f"cells named by {cell_name}" if cell_name else "cells without names, numbered"
    return adata, [f"genes named by {gene_name}", named]


def _attributes(group: h5py.Group, candidates: Sequence[str], size: int) -> tuple[pd.DataFrame, str | None]:
    """Read the one-dimensional attributes of an axis; also return which of them became its names."""
    columns: dict[str, Any] = {}
    for name, node in group.items():
        if isinstance(node, h5py.Dataset) and node.shape == (size,):
            columns[name] = node[:] if node.dtype.kind in "biuf" else strings(node)
    chosen = next((name for name in candidates if name in columns), None)
    names = range(size) if chosen is None else columns.pop(chosen)
    return pd.DataFrame(columns, index=pd.Index([str(name) for name in names], dtype=object)), chosen


def _matrix(dataset: h5py.Dataset) -> sparse.csr_matrix:
    """Read a dense dataset, genes x cells, as sparse cells x genes."""
    num_genes, num_cells = dataset.shape
    chunk = dataset.chunks[0] if dataset.chunks else 1
    step = max(chunk, BLOCK // max(num_cells, 1) // chunk * chunk)
    # SciPy has no sparse matrices of half precision.
    dtype = np.dtype(np.float32) if dataset.dtype == np.float16 else dataset.dtype
    blocks = [sparse.csr_matrix((0, num_cells), dtype=dtype)]
    for start in range(0, num_genes, step):
        blocks.append(sparse.csr_matrix(np.asarray(dataset[start : start + step], dtype=dtype)))
    return sparse.csr_matrix(sparse.vstack(blocks, format="csr").T)
