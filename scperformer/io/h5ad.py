"""Read h5ad files, also irregular ones, into memory or with matrices on disk; write h5ad files.

The parts of a zarr store are read in the same way.
"""

import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.safety import (
    READ_ERRORS,
    IORegistryError,
    damaged,
    quiet_anndata,
    reading,
    reason_of,
    require_contained,
)
from scperformer.io.writing import write_anndata

PREPARED_KEY = "scperformer_prepared"  # key of uns with which preprocess marks its output
LOG1P_KEY = "log1p"  # key of uns under which scanpy keeps the base of its logarithm; None: natural
INDEX_NAMES = ("_index", "index", "cell_names", "cell_names_col", "gene_names", "cell_id", "barcodes", "barcode")
OPTIONAL_GROUPS = ("obsm", "varm", "obsp", "varp", "uns")
GROUPS_OF_ARRAYS = ("layers", "obsm", "varm", "obsp", "varp", "raw/varm")  # each array has a name
WRITE_ERROR = re.compile("key '(.*)' of .* to /(.*)")  # anndata's note on an element that it could not write
NO_SLASHES = "anndata cannot read names with a slash"


def is_array(node: Any) -> bool:
    """Whether a node of an HDF5 file or a zarr store is an array, not a group."""
    return hasattr(node, "dtype")


def is_nested(node: Any) -> bool:
    """Whether a node is a plain group around elements, which anndata creates for a name with a slash."""
    if is_array(node) or len(node.attrs):
        return False
    elements = [node.get(name) for name in node]  # None: a dangling link
    return any("encoding-type" in element.attrs or is_nested(element) for element in elements if element is not None)


def nested_names(file: Any) -> list[str]:
    """Return the names of groups that anndata before 0.13 has created for names with a slash, and cannot read.

    `layers["norm/log"]` is stored as `log` in the group `layers/norm`.
    """
    groups = {place: group for place in GROUPS_OF_ARRAYS if (group := file.get(place)) is not None}
    names = [f"{place}/{name}" for place, group in groups.items() for name in group]
    return [name for name in names if (node := file.get(name)) is not None and is_nested(node)]  # None: a dangling link


def irregular(path: str | Path, error: Exception | str, left_out: list[str], kind: str = "h5ad file") -> str:
    """Return the warning about a file that is read without some of its parts."""
    without = f" without {', '.join(left_out[:5])}" if left_out else ""
    more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    reason = error if isinstance(error, str) else reason_of(error)
    return f"{path} is not a regular {kind} ({reason}); it is read{without}{more}"


def _read_matrix(node: Any, shape: tuple[int, int]) -> Any:
    """Read a dense or sparse matrix, with or without the attributes that anndata writes."""
    if is_array(node) or {"encoding-type", "shape"} <= set(node.attrs):
        return read_elem(node)
    arrays = node["data"][:], node["indices"][:], node["indptr"][:]
    stored_shape = node.attrs.get("shape", node.attrs.get("h5sparse_shape", shape))
    kind = str(node.attrs.get("encoding-type", node.attrs.get("h5sparse_format", "")))[:3]
    if kind not in ("csr", "csc"):
        fitting = [name for name, size in zip(("csr", "csc"), shape, strict=True) if len(arrays[2]) == size + 1]
        if len(fitting) != 1:
            raise ValueError(f"{node.name}: nothing shows whether rows or columns are compressed")
        kind = fitting[0]
    make: Callable[..., Any] = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix}[kind]
    return make(arrays, shape=tuple(int(size) for size in stored_shape))


def _read_column(group: h5py.Group, name: str) -> Any:
    """Read a column of a table; anndata 0.7 keeps categories in the group `__categories` of the table."""
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
    """Read obs or var; the index is the column that an attribute of the table names, or else one of `INDEX_NAMES`."""
    if not isinstance(node, h5py.Group):  # a structured dataset, or zarr, which only anndata writes
        return read_elem(node)

    def names_in(key: str, default: list[str]) -> list[str]:
        names = np.atleast_1d(node.attrs.get(key, default))
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]

    index = next((name for name in (*names_in("_index", []), *INDEX_NAMES) if name in node), None)
    if index is None:
        raise KeyError(f"{node.name} has no column with the names ({' or '.join(INDEX_NAMES[:2])})")
    columns = [name for name in names_in("column-order", list(node)) if name not in (index, "__categories")]
    values = {name: _read_column(node, name) for name in columns}
    names = _read_column(node, index)
    if not isinstance(names.dtype, pd.StringDtype):
        names = np.asarray(names).astype(str)
    return pd.DataFrame(values, index=pd.Index(names))


def read_parts(file: Any) -> tuple[AnnData, list[str]]:
    """Read an open h5ad file or zarr store part by part; also return the names of parts that cannot be read.

    The expression, obs and var must be readable.
    """
    left_out = nested_names(file)
    obs = _read_table(file["obs"])
    var = _read_table(file["var"])
    shape = len(obs), len(var)
    adata = AnnData(_read_matrix(file["X"], shape) if "X" in file else None, obs=obs, var=var)
    for name in file.get("layers", ()):
        if f"layers/{name}" not in left_out:
            adata.layers[name] = _read_matrix(file["layers"][name], shape)
    if "raw" in file and "X" in file["raw"]:
        raw_var = _read_table(file["raw"]["var"])
        adata.raw = AnnData(_read_matrix(file["raw"]["X"], (len(obs), len(raw_var))), obs=obs, var=raw_var)
    for element in (f"{group}/{name}" for group in OPTIONAL_GROUPS for name in file.get(group, ())):
        if element in left_out:
            continue
        group, name = element.split("/", 1)
        try:
            getattr(adata, group)[name] = read_elem(file[element])
        except READ_ERRORS:
            left_out.append(element)
    return adata, left_out


def read_h5ad(path: str | Path) -> AnnData:
    """Read an h5ad file that `require_readable` has accepted into memory.

    If anndata refuses a file whose expression, obs and var can be read, a warning names the parts that are left out.
    """
    with reading(path), open_hdf5(path) as file:
        nested = nested_names(file)
        for node in require_contained(file, path):
            is_sparse = isinstance(node, h5py.Group) and "indptr" in node and "shape" in node.attrs
            # anndata allocates a matrix of the declared shape, however large, before it reads the values.
            if is_sparse and len(node["indptr"]) - 1 not in node.attrs["shape"]:
                raise ValueError(f"the shape of {node.name} does not fit its values")
    try:
        if nested:
            raise ValueError(NO_SLASHES)
        with open_hdf5(path) as file:
            for table in (file["obs"], file["var"]):
                categorical = table.get("__categories", ()) if isinstance(table, h5py.Group) else ()
                if any(name in table and "categories" not in table[name].attrs for name in categorical):
                    # anndata would read the codes as numbers.
                    raise ValueError("columns of codes without their categories")
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


_lock = threading.RLock()


@contextmanager
def nullable_strings_allowed() -> Iterator[None]:
    """Let anndata write nullable strings, as in pandas 3, inside a block.

    The setting belongs to the whole process, so that one thread writes at a time.
    """
    with _lock, ad.settings.override(allow_write_nullable_strings=True):
        yield


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all.

    Raises
    ------
    InputError
        As `new_file`, or anndata cannot write an element, such as a column of numbers and strings.
    """
    with new_file(path, overwrite) as temporary, nullable_strings_allowed():
        try:
            write_anndata(adata, temporary)
        except (TypeError, IORegistryError) as error:
            match = next(filter(None, map(WRITE_ERROR.search, getattr(error, "__notes__", []))), None)
            element = "the cells" if match is None else f"{match[2]}['{match[1]}']"
            found = f"{element} cannot be written ({reason_of(error)})"
            remedy = "convert it, for example with astype(str), or remove it"
            raise InputError(found, "numbers alone or text alone", remedy) from error


class BackedH5ad:
    """An open h5ad file or zarr store: gene tables in memory, matrices on disk, obs read on demand.

    Attributes are named as in AnnData. `uns` holds only the keys that `detect_expression` needs, `left_out` the
    `nested_names`. A damaged file, or a file of anndata before 0.8, raises one of `READ_ERRORS`.
    """

    def __init__(self, file: Any):
        self.file = file
        obs = file["obs"]
        if obs.attrs.get("encoding-version") != "0.2.0":
            raise ValueError("obs of an older format")
        self.index_name = str(obs.attrs["_index"])
        self._index = obs[self.index_name]
        # Nullable strings are a group of values and a mask.
        self._names = self._index if is_array(self._index) else self._index["values"]
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
        self.uns = {
            name: read_elem(file["uns"][name]) for name in (PREPARED_KEY, LOG1P_KEY) if name in file.get("uns", {})
        }

    @cached_property
    def obs(self) -> pd.DataFrame:
        """The table of cells."""
        return read_elem(self.file["obs"])

    @cached_property
    def obs_names(self) -> pd.Index:
        """The names of all cells."""
        return pd.Index(read_elem(self._index))

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Read the columns of obs with these names, as far as they exist; rows are numbered."""
        obs = self.file["obs"]
        existing = list(obs.attrs["column-order"])
        index = pd.RangeIndex(self.n_obs)
        return pd.DataFrame({name: pd.Series(read_elem(obs[name])) for name in names if name in existing}, index=index)

    def names(self, start: int, stop: int) -> list[str]:
        """Return the names of cells `start` to `stop`."""
        stored = self._names
        if not isinstance(stored, h5py.Dataset) or not h5py.check_string_dtype(stored.dtype):
            return [str(name) for name in self.obs_names[start:stop]]
        names = list(stored.asstr(errors="replace")[start:stop])  # R may have written them in latin-1
        if stored is self._index:
            return names
        mask = self._index["mask"][start:stop]
        return [str(pd.NA) if is_missing else name for name, is_missing in zip(names, mask, strict=True)]

    def keys(self) -> dict[str, set[str]]:
        """Return the names in obs, obsm and uns."""
        names = {group: set(self.file.get(group, {})) for group in ("obsm", "uns")}
        return names | {"obs": set(self.file["obs"].attrs["column-order"])}

    def _matrix(self, name: str, num_genes: int) -> Any:
        """Return a matrix in a form that `Rows` accepts; None if it does not exist."""
        if name not in self.file or self.file[name].attrs.get("encoding-type") == "null":
            return None
        stored = self.file[name]
        matrix = stored if is_array(stored) else sparse_dataset(stored)
        if tuple(matrix.shape) != (self.n_obs, num_genes):
            shape = " x ".join(map(str, matrix.shape))
            raise ValueError(f"{name} is {shape}, but obs and var are {self.n_obs} x {num_genes}")
        return matrix


def open_stored(path: str | Path) -> BackedH5ad:
    """Open a regular h5ad file or zarr store; it is closed when the object is no longer referenced."""
    if Path(path).is_dir():
        import zarr  # takes a while to import

        return BackedH5ad(zarr.open_group(str(path), mode="r"))
    return BackedH5ad(open_hdf5(path))
