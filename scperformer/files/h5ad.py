"""Read h5ad files of anndata and of other programs, into memory or with matrices on disk; write them whole or not.

The parts of a zarr store are read in the same way.
"""

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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

from scperformer.base.errors import InputError
from scperformer.base.outputs import new_file
from scperformer.files.hdf5_guard import open_hdf5
from scperformer.files.safety import (
    READ_ERRORS,
    IORegistryError,
    damaged,
    quiet_anndata,
    reading,
    reason_of,
    require_contained,
)
from scperformer.files.writing import write_anndata

PREPARED = "scperformer_prepared"  # uns key by which preprocess marks its output
LOG_MARK = "log1p"  # uns key in which scanpy keeps the base of its logarithm; None: natural
INDEX_NAMES = ("_index", "index", "cell_names", "cell_names_col", "gene_names", "cell_id", "barcodes", "barcode")
EXTRAS = ("obsm", "varm", "obsp", "varp", "uns")
PLACE = re.compile("key '(.*)' of .* to /(.*)")  # what anndata says about an error in writing
NO_SLASHES = "anndata cannot read names with a slash"
NAMED = ("layers", "obsm", "varm", "obsp", "varp", "raw/varm")  # groups of arrays, each with a name


def is_array(node: Any) -> bool:
    """Whether a node of an HDF5 file or a zarr store is an array, not a group."""
    return hasattr(node, "dtype")


def is_nested(node: Any) -> bool:
    """Whether a node is a plain group around elements, which anndata has made of a name with a slash."""
    if is_array(node) or len(node.attrs):
        return False
    parts = [node.get(name) for name in node]  # None: a link that leads nowhere
    return any("encoding-type" in part.attrs or is_nested(part) for part in parts if part is not None)


def nested_names(file: Any) -> list[str]:
    """Return the groups of an AnnData that anndata before 0.13 has made of names with a slash, and cannot read.

    `layers["norm/log"]` is stored as `log` in the group `layers/norm`.
    """
    groups = {place: group for place in NAMED if (group := file.get(place)) is not None}  # else a link leads nowhere
    names = [f"{place}/{name}" for place, group in groups.items() for name in group]
    return [name for name in names if (node := file.get(name)) is not None and is_nested(node)]


def irregular(path: str | Path, error: Exception | str, left_out: list[str], kind: str = "h5ad file") -> str:
    """Return the warning about a file that is read in parts."""
    without = f" without {', '.join(left_out[:5])}" if left_out else ""
    more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    reason = error if isinstance(error, str) else reason_of(error)
    return f"{path} is not a regular {kind} ({reason}); it is read{without}{more}"


def _read_matrix(node: Any, shape: tuple[int, int]) -> Any:
    """Read a dense or sparse matrix, with or without the attributes that name its kind."""
    if is_array(node) or {"encoding-type", "shape"} <= set(node.attrs):
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
        codes = node["codes"][:]
        categories = node["categories"]
    elif isinstance(node, h5py.Dataset) and name in group.get("__categories", ()):
        codes = node[:]
        categories = group["__categories"][name]
    else:
        return read_elem(node)
    return pd.Categorical.from_codes(codes, np.asarray(read_elem(categories)).astype(str))


def _read_table(node: Any) -> pd.DataFrame:
    """Read obs or var with the attributes that it has; the index is the column that they, or `INDEX_NAMES`, name."""
    if not isinstance(node, h5py.Group):  # a dataset of rows, or zarr, which only anndata writes
        return read_elem(node)
    found = (np.atleast_1d(node.attrs.get(key, other)) for key, other in (("_index", []), ("column-order", list(node))))
    named, order = ([name.decode() if isinstance(name, bytes) else str(name) for name in names] for names in found)
    index = next((name for name in (*named, *INDEX_NAMES) if name in node), None)
    if index is None:
        raise KeyError(f"{node.name} has no column with the names (one of {', '.join(INDEX_NAMES[:2])})")
    values = {name: _read_column(node, name) for name in order if name not in (index, "__categories")}
    names = _read_column(node, index)
    if not isinstance(names.dtype, pd.StringDtype):
        names = np.asarray(names).astype(str)
    return pd.DataFrame(values, index=pd.Index(names))


def read_parts(file: Any) -> tuple[AnnData, list[str]]:
    """Read expression, obs and var of an open h5ad file or zarr store; return also the names of what is left out."""
    left_out = nested_names(file)
    obs = _read_table(file["obs"])
    var = _read_table(file["var"])
    shape = len(obs), len(var)
    adata = AnnData(_read_matrix(file["X"], shape) if "X" in file else None, obs=obs, var=var)
    for name in file.get("layers", ()):
        if f"layers/{name}" not in left_out:
            adata.layers[name] = _read_matrix(file["layers"][name], shape)
    if "raw" in file and "X" in file["raw"]:
        genes = _read_table(file["raw"]["var"])
        adata.raw = AnnData(_read_matrix(file["raw"]["X"], (len(obs), len(genes))), obs=obs, var=genes)
    for where in (f"{place}/{name}" for place in EXTRAS for name in file.get(place, ())):
        if where in left_out:
            continue
        place, name = where.split("/", 1)
        try:
            getattr(adata, place)[name] = read_elem(file[where])
        except READ_ERRORS:
            left_out.append(where)
    return adata, left_out


def read_h5ad(path: str | Path) -> AnnData:
    """Read an h5ad file that `require_readable` has accepted into memory.

    If anndata refuses the file but its expression, obs and var can be read, the rest is left out with a warning.
    """
    with reading(path), open_hdf5(path) as file:
        nested = nested_names(file)
        for node in require_contained(file, path):
            is_sparse = isinstance(node, h5py.Group) and "indptr" in node and "shape" in node.attrs
            # anndata makes a matrix of the declared shape before it reads one.
            if is_sparse and len(node["indptr"]) - 1 not in node.attrs["shape"]:
                raise ValueError(f"the shape of {node.name} does not fit its values")
    try:
        if nested:
            raise ValueError(NO_SLASHES)
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
                adata, left_out = read_parts(file)
        except READ_ERRORS:
            raise damaged(path, error) from error
        warnings.warn(irregular(path, error, left_out), stacklevel=2)
    return adata


_lock = threading.Lock()
_writing = set[object]()
_afterwards = ExitStack()


@contextmanager
def nullable_strings_allowed() -> Iterator[None]:
    """Let anndata write strings that can be missing, as those of pandas 3, for a block.

    The setting is of the whole process: the first block of several threads sets it, the last one puts it back.
    """
    me = object()
    with _lock:
        if not _writing:
            _afterwards.enter_context(ad.settings.override(allow_write_nullable_strings=True))
        _writing.add(me)
    try:
        yield
    finally:
        with _lock:
            _writing.remove(me)
            if not _writing:
                _afterwards.close()


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all.

    Raises
    ------
    InputError
        As `new_file`; or anndata cannot write something, such as a column of numbers and texts.
    """
    with new_file(path, overwrite) as temporary, nullable_strings_allowed():
        try:
            write_anndata(adata, temporary)
        except (TypeError, IORegistryError) as error:
            match = next(filter(None, map(PLACE.search, getattr(error, "__notes__", []))), None)
            place = "the cells" if match is None else f"{match[2]}['{match[1]}']"
            found = f"{place} cannot be written ({reason_of(error)})"
            remedy = "convert it, such as by astype(str)"
            raise InputError(found, "numbers, or text alone", f"{remedy}, or remove it") from error


class BackedH5ad:
    """An open h5ad file or zarr group: tables of genes in memory; X, layers and raw on disk; cells read on demand.

    Attributes are named as in AnnData. `uns` holds only the marks that `detect_expression` needs. `left_out` are the
    `nested_names`. A damaged file, or one older than anndata 0.8, raises one of `READ_ERRORS`.
    """

    def __init__(self, file: Any):
        self.file = file
        obs = file["obs"]
        if obs.attrs.get("encoding-version") != "0.2.0":
            raise ValueError("obs of an older format")
        self._index = obs[obs.attrs["_index"]]
        # Strings that can be missing, as pandas 3 has them, are a group of values and a mask.
        self._names = self._index if hasattr(self._index, "dtype") else self._index["values"]
        self.n_obs = int(self._names.shape[0])
        self.var: pd.DataFrame = read_elem(file["var"])
        self.n_vars = len(self.var)
        self.X = self._matrix("X", self.n_vars)
        self.left_out = nested_names(file)
        layers = [name for name in file.get("layers", ()) if f"layers/{name}" not in self.left_out]
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
        names = self._names
        if not isinstance(names, h5py.Dataset) or not h5py.check_string_dtype(names.dtype):
            return [str(name) for name in self.obs_names[start:stop]]
        found = list(names.asstr(errors="replace")[start:stop])  # R may have written them in latin-1
        if names is self._index:
            return found
        missing = self._index["mask"][start:stop]
        return [str(pd.NA) if is_missing else name for name, is_missing in zip(found, missing, strict=True)]

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
