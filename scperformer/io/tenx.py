"""Read HDF5 files of 10x Genomics, as Cell Ranger 2 and later versions write them, and loom files."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.base.errors import InputError
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.rows import Rows, native
from scperformer.io.safety import reading, require_valid_indices

MATRIX_PARTS = {"barcodes", "data", "indices", "indptr", "shape"}
# Attributes of a loom file that may hold the names, the best first, in lower case.
GENE_NAMES = (
    *(
        "gene",
        "gene_name",
        "gene_names",
        "genename",
        "gene_symbol",
        "gene_symbols",
        "symbol",
        "var_names",
    ),
    *(
        "feature_name",
        "name",
        "accession",
        "gene_id",
        "gene_ids",
        "geneid",
        "ensembl_id",
        "index",
        "_index",
    ),
)
CELL_NAMES = (
    *(
        "cellid",
        "cellids",
        "cell_id",
        "obs_names",
        "cell_names",
        "cell_name",
        "cell",
        "barcode",
        "barcodes",
    ),
    *("index", "_index"),
)


def matrix_groups(file: h5py.File) -> list[str]:
    """Return the names of the groups that hold a matrix in the layout of 10x Genomics."""
    return [
        name
        for name, node in file.items()
        if isinstance(node, h5py.Group) and set(node) >= MATRIX_PARTS
    ]


def strings(dataset: h5py.Dataset) -> list[str]:
    """Read a dataset of strings, of fixed or variable length."""
    return [
        value.decode() if isinstance(value, bytes) else str(value)
        for value in np.ravel(dataset[()]).tolist()
    ]


def read_tenx_h5(path: Path) -> tuple[AnnData, list[str]]:
    """Read a 10x HDF5 file of one genome, with features of all types; also return notes for the log."""
    with reading(path, "a complete 10x file"), open_hdf5(path) as file:
        name, *others = matrix_groups(file)
        if others:
            remedy = "read one genome with scanpy.read_10x_h5(path, genome=...) and save it with write_h5ad"
            found = f"{path} with several genomes ({name}, {', '.join(others)})"
            raise InputError("several-genomes", found, "one genome", remedy)
        group = file[name]
        num_genes, num_cells = (int(size) for size in group["shape"][:])
        # The compressed columns of genes x cells are the compressed rows of cells x genes.
        arrays = tuple(native(group[name][:]) for name in ("data", "indices", "indptr"))
        x = sparse.csr_matrix(arrays, shape=(num_cells, num_genes))
        require_valid_indices(x, name, path)
        if "features" in group:
            features = group["features"]
            keys = {"gene_ids": "id", "feature_types": "feature_type", "genome": "genome"}
            columns = {
                column: strings(features[key]) for column, key in keys.items() if key in features
            }
            symbols = strings(features["name"])
        else:
            columns = {"gene_ids": strings(group["genes"]), "genome": [name] * num_genes}
            symbols = strings(group["gene_names"])
        obs = pd.DataFrame(index=pd.Index(strings(group["barcodes"]), dtype=object))
        var = pd.DataFrame(columns, index=pd.Index(symbols, dtype=object))
    return AnnData(x, obs=obs, var=var), []


def read_loom(path: Path) -> tuple[AnnData, list[str]]:
    """Read a loom file, with its attributes as obs and var; also return notes for the log."""
    with reading(path, "a complete loom file"), open_hdf5(path) as file:
        shape = file["matrix"].shape
        var, gene_name = _attributes(file["row_attrs"], GENE_NAMES, shape[0])
        obs, cell_name = _attributes(file["col_attrs"], CELL_NAMES, shape[1])
        if gene_name is None:
            found = f"{path} without gene names (row attributes: {', '.join(file['row_attrs']) or 'none'})"
            expected = "a row attribute 'Gene'"
            raise InputError(
                "no-gene-names", found, expected, "add the gene names as row attribute 'Gene'"
            )
        adata = AnnData(_loom_matrix(file["matrix"]), obs=obs, var=var)
        for name, layer in file.get("layers", {}).items():
            if isinstance(layer, h5py.Dataset):
                adata.layers[name] = _loom_matrix(layer)
    named = (
        f"cells named by {cell_name}" if cell_name else "cells are numbered, as they have no names"
    )
    return adata, [f"genes named by {gene_name}", named]


def _attributes(
    group: h5py.Group, candidates: Sequence[str], size: int
) -> tuple[pd.DataFrame, str | None]:
    """Read the one-dimensional attributes of an axis; also return the attribute that holds the names, or None."""
    columns: dict[str, np.ndarray | list[str]] = {}
    for name, node in group.items():
        if isinstance(node, h5py.Dataset) and node.shape == (size,):
            columns[name] = native(node[:]) if node.dtype.kind in "biuf" else strings(node)
    by_lower = {name.lower(): name for name in reversed(columns)}
    chosen = next((by_lower[name] for name in candidates if name in by_lower), None)
    names = range(size) if chosen is None else columns.pop(chosen)
    return pd.DataFrame(
        columns, index=pd.Index([str(name) for name in names], dtype=object)
    ), chosen


def _loom_matrix(dataset: h5py.Dataset) -> sparse.csr_matrix:
    """Read a dense dataset, genes x cells, as sparse cells x genes."""
    blocks = [sparse.csr_matrix(block) for _, block in Rows(dataset).blocks()]
    return sparse.csr_matrix(sparse.vstack(blocks, format="csr").T)
