"""Read h5ad files part by part where attributes are missing or wrong, as other programs write them."""

from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem
from scipy import sparse

from scperformer.files.safety import READ_ERRORS

INDEX_NAMES = ("_index", "index", "cell_names", "cell_names_col", "gene_names", "cell_id", "barcodes", "barcode")
EXTRAS = ("obsm", "varm", "obsp", "varp", "uns")


def has_lost_categories(file: h5py.File) -> bool:
    """Return whether a table of anndata 0.7 has columns of codes that do not name their categories."""
    tables = [file[name] for name in ("obs", "var") if isinstance(file[name], h5py.Group)]
    return any(
        column in table and "categories" not in table[column].attrs
        for table in tables
        for column in table.get("__categories", ())
    )


def read_parts(file: h5py.File) -> tuple[AnnData, list[str]]:
    """Read an open h5ad file of which expression, obs and var can be read; also return the names of the other parts."""
    obs, var = read_table(file["obs"]), read_table(file["var"])
    shape = len(obs), len(var)
    adata = AnnData(read_matrix(file["X"], shape) if "X" in file else None, obs=obs, var=var)
    for name in file.get("layers", ()):
        adata.layers[name] = read_matrix(file["layers"][name], shape)
    if "raw" in file and "X" in file["raw"]:
        genes = read_table(file["raw"]["var"])
        adata.raw = AnnData(read_matrix(file["raw"]["X"], (len(obs), len(genes))), obs=obs, var=genes)
    left_out = []
    for place in EXTRAS:
        for name in file.get(place, ()):
            try:
                getattr(adata, place)[name] = read_elem(file[place][name])
            except READ_ERRORS:
                left_out.append(f"{place}/{name}")
    return adata, left_out


def read_matrix(node: h5py.Dataset | h5py.Group, shape: tuple[int, int]) -> Any:
    """Read a dense or sparse matrix, with or without the attributes that name its kind."""
    if isinstance(node, h5py.Dataset) or {"encoding-type", "shape"} <= set(node.attrs):
        return read_elem(node)
    parts = node["data"][:], node["indices"][:], node["indptr"][:]
    stored = node.attrs.get("shape", node.attrs.get("h5sparse_shape", shape))
    kind = str(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))[:3]
    if kind not in ("csr", "csc"):
        fits = [name for name, size in zip(("csr", "csc"), shape, strict=True) if len(parts[2]) == size + 1]
        if len(fits) != 1:
            raise ValueError(f"{node.name}: nothing shows whether rows or columns are compressed")
        kind = fits[0]
    make: Callable[..., Any] = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}[kind]
    return make(parts, shape=tuple(int(size) for size in stored))


def read_table(node: h5py.Dataset | h5py.Group) -> pd.DataFrame:
    """Read obs or var with the attributes that it has; the index is the column that they, or `INDEX_NAMES`, name."""
    if isinstance(node, h5py.Dataset):
        return read_elem(node)
    named = [_text(name) for name in np.atleast_1d(node.attrs.get("_index", []))]
    index = next((name for name in (*named, *INDEX_NAMES) if name in node), None)
    if index is None:
        raise KeyError(f"{node.name} has no column with the names (one of {', '.join(INDEX_NAMES[:2])})")
    order = [_text(name) for name in node.attrs["column-order"]] if "column-order" in node.attrs else list(node)
    columns = [name for name in dict.fromkeys(order) if name not in (index, "__categories")]
    values = {name: read_column(node, name) for name in columns}
    return pd.DataFrame(values, index=pd.Index(np.asarray(read_column(node, index)).astype(str)))


def read_column(group: h5py.Group, name: str) -> Any:
    """Read a column of a table; anndata 0.7 keeps its categories in a group `__categories` beside it."""
    node = group[name]
    if isinstance(node, h5py.Group) and "encoding-type" not in node.attrs and {"codes", "categories"} <= set(node):
        codes, categories = node["codes"][:], node["categories"]
    elif isinstance(node, h5py.Dataset) and name in group.get("__categories", ()):
        codes, categories = node[:], group["__categories"][name]
    else:
        return read_elem(node)
    return pd.Categorical.from_codes(codes, np.asarray(read_elem(categories)).astype(str))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
