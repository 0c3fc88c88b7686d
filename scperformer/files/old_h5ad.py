"""h5ad files whose attributes are missing or wrong, as other programs write them, read part by part."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem
from scipy import sparse

INDEX_NAMES = ("_index", "index", "cell_names", "cell_names_col", "gene_names", "cell_id", "barcodes", "barcode")
EXTRAS = ("obsm", "varm", "obsp", "varp", "uns")


@contextmanager
def quiet_anndata() -> Iterator[None]:
    """A block without anndata's warnings about names that repeat and about its older formats."""
    with warnings.catch_warnings():
        # Repeated cell names are announced by require_usable, repeated genes are an error of genes.require_unique.
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        # How anndata maps its older formats to today's is nothing that the user can act on.
        for category in (ad.OldFormatWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def has_lost_categories(file: h5py.File) -> bool:
    """Whether a table of anndata 0.7 has columns of codes that do not say which categories they stand for."""
    for name in ("obs", "var"):
        table = file[name]
        if isinstance(table, h5py.Group):
            for column in table.get("__categories", ()):
                if column in table and "categories" not in table[column].attrs:
                    return True
    return False


def read_parts(file: h5py.File, errors: tuple[type[Exception], ...]) -> tuple[AnnData, list[str]]:
    """The content of an open h5ad file: expression, obs and var must be readable, all else is left out if it is not.

    Parameters
    ----------
    errors
        What a part that cannot be read raises.

    Returns
    -------
    The AnnData, and the names of the parts that were left out.

    Raises
    ------
    Exception
        One of `errors`: expression, obs or var cannot be read.
    """
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
            except errors:
                left_out.append(f"{place}/{name}")
    return adata, left_out


def read_matrix(node: h5py.Dataset | h5py.Group, shape: tuple[int, int]) -> Any:
    """A matrix, dense or sparse, with or without the attributes that say which."""
    if isinstance(node, h5py.Dataset) or {"encoding-type", "shape"} <= set(node.attrs):
        return read_elem(node)
    parts = node["data"][:], node["indices"][:], node["indptr"][:]
    stored = node.attrs.get("shape", node.attrs.get("h5sparse_shape", shape))
    kind = str(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))[:3]
    if kind not in ("csr", "csc"):
        fits = [name for name, size in zip(("csr", "csc"), shape, strict=True) if len(parts[2]) == size + 1]
        if len(fits) != 1:
            raise ValueError(f"{node.name}: it is not said whether rows or columns are compressed")
        kind = fits[0]
    make: Callable[..., Any] = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}[kind]
    return make(parts, shape=tuple(int(size) for size in stored))


def read_table(node: h5py.Dataset | h5py.Group) -> pd.DataFrame:
    """obs or var, whichever attributes are there; the index is the column that is named so."""
    if isinstance(node, h5py.Dataset):
        return read_elem(node)
    index = _index_name(node)
    order = [_text(name) for name in node.attrs["column-order"]] if "column-order" in node.attrs else list(node)
    columns = [name for name in dict.fromkeys(order) if name not in (index, "__categories")]
    values = {name: read_column(node, name) for name in columns}
    return pd.DataFrame(values, index=pd.Index(np.asarray(read_column(node, index)).astype(str)))


def _index_name(group: h5py.Group) -> str:
    said = np.atleast_1d(group.attrs.get("_index", []))
    names = [_text(name) for name in said] + list(INDEX_NAMES)
    for name in names:
        if name in group:
            return name
    raise KeyError(f"{group.name} has no column with the names (one of {', '.join(INDEX_NAMES[:2])})")


def read_column(group: h5py.Group, name: str) -> Any:
    """A column of a table; categories may be beside it, in a group `__categories`, as anndata 0.7 had them."""
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
