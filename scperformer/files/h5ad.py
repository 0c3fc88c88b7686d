"""Read h5ad files of anndata and of other programs, into memory or with matrices on disk; write them whole or not."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem, sparse_dataset
from scipy import sparse

from scperformer.files.safety import READ_ERRORS, damaged, quiet_anndata, reading, reason_of, require_contained
from scperformer.files.watch import open_hdf5
from scperformer.outputs import new_file

PREPARED = "scperformer_prepared"  # uns key by which preprocess marks its output
LOG_MARK = "log1p"  # uns key in which scanpy keeps the base of its logarithm; None: natural
INDEX_NAMES = ("_index", "index", "cell_names", "cell_names_col", "gene_names", "cell_id", "barcodes", "barcode")
EXTRAS = ("obsm", "varm", "obsp", "varp", "uns")


def _read_matrix(node: h5py.Dataset | h5py.Group, shape: tuple[int, int]) -> Any:
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


def _read_column(group: h5py.Group, name: str) -> Any:
    """Read a column of a table; anndata 0.7 keeps its categories in a group `__categories` beside it."""
    node = group[name]
    if isinstance(node, h5py.Group) and "encoding-type" not in node.attrs and {"codes", "categories"} <= set(node):
        codes, categories = node["codes"][:], node["categories"]
    elif isinstance(node, h5py.Dataset) and name in group.get("__categories", ()):
        codes, categories = node[:], group["__categories"][name]
    else:
        return read_elem(node)
    return pd.Categorical.from_codes(codes, np.asarray(read_elem(categories)).astype(str))


def _read_table(node: h5py.Dataset | h5py.Group) -> pd.DataFrame:
    """Read obs or var with the attributes that it has; the index is the column that they, or `INDEX_NAMES`, name."""
    if isinstance(node, h5py.Dataset):
        return read_elem(node)
    found = (np.atleast_1d(node.attrs.get(key, other)) for key, other in (("_index", []), ("column-order", list(node))))
    named, order = ([name.decode() if isinstance(name, bytes) else str(name) for name in names] for names in found)
    index = next((name for name in (*named, *INDEX_NAMES) if name in node), None)
    if index is None:
        raise KeyError(f"{node.name} has no column with the names (one of {', '.join(INDEX_NAMES[:2])})")
    values = {name: _read_column(node, name) for name in order if name not in (index, "__categories")}
    return pd.DataFrame(values, index=pd.Index(np.asarray(_read_column(node, index)).astype(str)))


def _read_parts(file: h5py.File) -> tuple[AnnData, list[str]]:
    """Read expression, obs and var of an open h5ad file; also return the names of the parts that are left out."""
    obs, var = _read_table(file["obs"]), _read_table(file["var"])
    shape = len(obs), len(var)
    adata = AnnData(_read_matrix(file["X"], shape) if "X" in file else None, obs=obs, var=var)
    for name in file.get("layers", ()):
        adata.layers[name] = _read_matrix(file["layers"][name], shape)
    if "raw" in file and "X" in file["raw"]:
        genes = _read_table(file["raw"]["var"])
        adata.raw = AnnData(_read_matrix(file["raw"]["X"], (len(obs), len(genes))), obs=obs, var=genes)
    left_out = []
    for place in EXTRAS:
        for name in file.get(place, ()):
            try:
                getattr(adata, place)[name] = read_elem(file[place][name])
            except READ_ERRORS:
                left_out.append(f"{place}/{name}")
    return adata, left_out


def read_h5ad(path: str | Path) -> AnnData:
    """Read an h5ad file that `require_readable` has accepted into memory.

    If anndata refuses the file but its expression, obs and var can be read, the rest is left out with a warning.
    """
    with reading(path), open_hdf5(path) as file:
        for node in require_contained(file, path):
            is_sparse = isinstance(node, h5py.Group) and "indptr" in node and "shape" in node.attrs
            # anndata makes a matrix of the declared shape before it reads one.
            if is_sparse and len(node["indptr"]) - 1 not in node.attrs["shape"]:
                raise ValueError(f"the shape of {node.name} does not fit its values")
    try:
        with open_hdf5(path) as file:
            for table in (file["obs"], file["var"]):
                old = table.get("__categories", ()) if isinstance(table, h5py.Group) else ()
                if any(name in table and "categories" not in table[name].attrs for name in old):
                    raise ValueError("columns of codes without their categories")  # anndata would take them for numbers
        with quiet_anndata():
            adata = ad.read_h5ad(path)
    except READ_ERRORS as error:
        try:
            with open_hdf5(path) as file, quiet_anndata():
                adata, left_out = _read_parts(file)
        except READ_ERRORS:
            raise damaged(path, error) from error
        without = f" without {', '.join(left_out[:5])}" if left_out else ""
        warnings.warn(f"{path} is not a regular h5ad file ({reason_of(error)}); it is read{without}", stacklevel=2)
    return adata


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all; errors as `new_file`."""
    with new_file(path, overwrite) as temporary:
        adata.write_h5ad(temporary)


class BackedH5ad:
    """An open h5ad file or zarr group: tables of genes in memory; X, layers and raw on disk; cells read on demand.

    Attributes are named as in AnnData. `uns` holds only the marks that `detect_expression` needs. A damaged file, or
    one older than anndata 0.8, raises one of `READ_ERRORS`.
    """

    def __init__(self, file: Any):
        self.file = file
        obs = file["obs"]
        if obs.attrs.get("encoding-version") != "0.2.0":
            raise ValueError("obs of an older format")
        self._index = obs[obs.attrs["_index"]]
        self.n_obs = int(self._index.shape[0])
        self.var: pd.DataFrame = read_elem(file["var"])
        self.n_vars = len(self.var)
        self.X = self._matrix("X", self.n_vars)
        layers = file.get("layers", {})
        self.layers: Mapping[str, Any] = {name: self._matrix(f"layers/{name}", self.n_vars) for name in layers}
        self.raw: Any = None
        if "raw/X" in file:
            raw_var = read_elem(file["raw/var"])
            self.raw = SimpleNamespace(X=self._matrix("raw/X", len(raw_var)), var=raw_var)
        self.uns = {name: read_elem(file["uns"][name]) for name in (PREPARED, LOG_MARK) if name in file.get("uns", {})}

    @cached_property
    def obs(self) -> pd.DataFrame:
        """The table of cells."""
        return read_elem(self.file["obs"])

    @cached_property
    def obs_names(self) -> pd.Index:
        """The names of all cells."""
        return pd.Index(read_elem(self._index))

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Read those of these columns of obs that exist; rows are numbered."""
        obs = self.file["obs"]
        there = list(obs.attrs["column-order"])
        index = pd.RangeIndex(self.n_obs)
        return pd.DataFrame({name: pd.Series(read_elem(obs[name])) for name in names if name in there}, index=index)

    def names(self, start: int, stop: int) -> list[str]:
        """Return the names of cells `start` to `stop`."""
        index = self._index
        if isinstance(index, h5py.Dataset) and h5py.check_string_dtype(index.dtype):
            return list(index.asstr(errors="replace")[start:stop])  # R may have written them in latin-1
        return [str(name) for name in self.obs_names[start:stop]]

    def keys(self) -> dict[str, set[str]]:
        """Return the names in obs, obsm and uns."""
        places = {place: set(self.file.get(place, {})) for place in ("obsm", "uns")}
        return places | {"obs": set(self.file["obs"].attrs["column-order"])}

    def _matrix(self, name: str, num_genes: int) -> Any:
        """Return a matrix as `Rows` takes it; None if it does not exist."""
        if name not in self.file or self.file[name].attrs.get("encoding-type") == "null":
            return None
        stored = self.file[name]
        matrix = stored if hasattr(stored, "dtype") else sparse_dataset(stored)  # an array, of h5py or zarr
        if tuple(matrix.shape) != (self.n_obs, num_genes):
            shape = " x ".join(map(str, matrix.shape))
            raise ValueError(f"{name} is {shape}, the tables say {self.n_obs} x {num_genes}")
        return matrix


def open_stored(path: str | Path) -> BackedH5ad:
    """Open a regular h5ad file or zarr store; it is closed when nothing refers to it any more."""
    if Path(path).is_dir():
        import zarr  # takes a while to import

        return BackedH5ad(zarr.open_group(str(path), mode="r"))
    return BackedH5ad(open_hdf5(path))
