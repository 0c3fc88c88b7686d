"""Read h5ad files into memory or with matrices on disk; write h5ad files. A zarr store is opened in the same way."""

import logging
import math
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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

from scperformer.base.child import EXTRA_MEMORY
from scperformer.base.errors import InputError
from scperformer.base.memory import machine_memory
from scperformer.base.outputs import new_file
from scperformer.io.hdf5_guard import MAX_COMPRESSION, open_hdf5
from scperformer.io.rows import native
from scperformer.io.safety import IORegistryError, quiet_anndata, reading, reason_of
from scperformer.io.writing import mark_own, write_anndata

log = logging.getLogger(__name__)

# elements of an AnnData that most steps do not need
BESIDE = ("varm", "obsm", "obsp", "varp", "uns")
SPARSE_ARRAYS = ("data", "indices", "indptr")
TEXT_BYTES = 100  # of a short text in Python
PREPARED_KEY = "scperformer_prepared"  # key of uns with the record of `preprocess`
# anndata's note on an element that it could not write
WRITE_ERROR = re.compile("key '(.*)' of .* to /(.*)")


def is_array(node: Any) -> bool:
    """Whether a node of an HDF5 file or a zarr store is an array, not a group."""
    return hasattr(node, "dtype")


def _arrays(node: Any) -> Iterator[Any]:
    """Yield all arrays in a node of an HDF5 file or a zarr store; those that are linked twice, twice."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if is_array(node):
            yield node
        elif node is not None:  # a dangling link
            nodes += [node.get(name) for name in node]


def _require_memory(nodes: Iterable[Any], path: str | Path) -> None:
    """Refuse elements that would take more than the memory of this machine."""
    size = 0
    for array in (array for node in nodes for array in _arrays(node)):
        shape = array.shape or ()  # None in uns has no shape
        size += math.prod(shape) * (
            TEXT_BYTES if array.dtype.kind in "OT" else array.dtype.itemsize
        )
    if size > (limit := machine_memory()):
        found = f"{path} takes {size / 2**30:,.1f} GiB of memory"
        remedy = "use a machine with more memory, or a part of the file"
        raise InputError(
            "no-memory", found, f"at most {limit / 2**30:,.1f} GiB, as this machine has", remedy
        )


def _read(node: Any) -> Any:
    """Read an element as anndata does, with numbers in the byte order of this machine."""
    is_sparse = not is_array(node) and all(is_array(node.get(name)) for name in SPARSE_ARRAYS)
    if is_sparse and not all(node[name].dtype.isnative for name in SPARSE_ARRAYS):
        kind = (
            sparse.csc_matrix
            if str(node.attrs["encoding-type"]).startswith("csc")
            else sparse.csr_matrix
        )
        return kind(
            tuple(native(node[name][:]) for name in SPARSE_ARRAYS), shape=tuple(node.attrs["shape"])
        )
    values = read_elem(node)
    if node.name == "/raw/var" and isinstance(values, dict) and "_index" in values:
        names = values.pop("_index")  # SeuratDisk leaves out what marks a table
        return pd.DataFrame(
            {name: part for name, part in values.items() if np.shape(part) == names.shape},
            index=names,
        )
    if isinstance(values, pd.DataFrame):
        foreign = [
            name
            for name, kind in values.dtypes.items()
            if isinstance(kind, np.dtype) and not kind.isnative
        ]
        return (
            values.astype({name: values.dtypes[name].newbyteorder("=") for name in foreign})
            if foreign
            else values
        )
    return native(values) if isinstance(values, np.ndarray) else values


def open_zarr(path: str | Path) -> Any:
    """Open a zarr store that `require_readable` has accepted; refuse arrays that declare far more than they store."""
    import zarr  # takes a while to import

    root = zarr.open_group(str(path), mode="r")
    with warnings.catch_warnings():
        # our mark in a folder
        warnings.filterwarnings("ignore", message="Object at .* is not recognized")
        arrays = [node for _, node in root.members(max_depth=None) if isinstance(node, zarr.Array)]
    if (
        sum(max(0, array.nbytes - MAX_COMPRESSION * array.nbytes_stored()) for array in arrays)
        > EXTRA_MEMORY
    ):
        raise ValueError("it takes far more memory than its size explains")
    return root


def read_stored(path: str | Path, everything: bool = False) -> AnnData:
    """Read an h5ad file or a zarr store that `require_readable` has accepted into memory.

    Without `everything`, uns and the tables beside X (`BESIDE`) stay empty. With it, elements that need a package or an
    anndata that is not installed are left out, and layers whose names have a slash, which anndata before 0.13 wrote.
    """
    is_zarr = Path(path).is_dir()
    with reading(path, "a complete AnnData"), quiet_anndata():
        file = open_zarr(path) if is_zarr else open_hdf5(path)
        with nullcontext() if is_zarr else file:
            if is_array(file["obs"]) or "raw.X" in file:  # of anndata before 0.7
                _require_memory([file], path)
                return ad.read_zarr(path) if is_zarr else ad.read_h5ad(path)
            return _read_parts(file, path, everything)


def _read_parts(file: Any, path: str | Path, everything: bool) -> AnnData:
    parts: dict[str, Any] = {name: file[name] for name in ("X", "obs", "var") if name in file}
    of_raw = ("X", "var", "varm") if everything else ("X", "var")
    raw = {name: file[f"raw/{name}"] for name in of_raw if f"raw/{name}" in file}
    of_groups = ("layers", *BESIDE) if everything else ("layers",)
    groups = {name: file[name] for name in of_groups if name in file}
    members = {
        (name, key): group[key]
        for name, group in groups.items()
        if not is_array(group)
        for key in group
    }
    nodes = [*parts.values(), *raw.values(), *members.values()]
    _require_memory(nodes, path)
    for node in nodes:
        is_sparse = not is_array(node) and "indptr" in node and "shape" in node.attrs
        # anndata allocates a matrix of the declared shape, however large, before it reads the values.
        if is_sparse and node["indptr"].shape[0] - 1 not in node.attrs["shape"]:
            raise ValueError(f"the shape of {node.name} does not fit its values")
    read: dict[str, Any] = {name: _read(node) for name, node in parts.items()} | {
        name: {} for name in groups
    }
    for (name, key), node in members.items():
        if name in ("layers", "obsm") and not is_array(node) and not node.attrs:
            log.warning(
                "%s is read without %s: anndata cannot read names with a slash", path, node.name
            )
            continue
        try:
            read[name][key] = _read(node)
        except (ImportError, IORegistryError) as error:
            log.warning(
                "%s is read without %s: it needs another package (%s)",
                path,
                node.name,
                reason_of(error),
            )
    if not everything:  # pandas cannot choose rows of columns of records
        for name in ("obs", "var"):
            read[name] = read[name].loc[:, [kind.kind != "V" for kind in read[name].dtypes]]
    return AnnData(**read, raw={name: _read(node) for name, node in raw.items()} or None)


_lock = threading.RLock()


@contextmanager
def nullable_strings_allowed() -> Iterator[None]:
    """Let anndata write nullable strings, as in pandas 3, inside a block: one thread at a time."""
    with _lock, ad.settings.override(allow_write_nullable_strings=True):
        yield


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all; refuse columns that anndata cannot write."""
    with new_file(path, overwrite) as temporary, nullable_strings_allowed():
        try:
            write_anndata(adata, temporary)
            mark_own(temporary)
        except (TypeError, IORegistryError) as error:
            match = next(
                filter(None, map(WRITE_ERROR.search, getattr(error, "__notes__", []))), None
            )
            element = "the cells" if match is None else f"{match[2]}['{match[1]}']"
            found = f"{element} cannot be written ({reason_of(error)})"
            remedy = "convert it, for example with astype(str), or remove it"
            raise InputError(
                "not-writable", found, "numbers alone or text alone", remedy
            ) from error


class BackedH5ad:
    """An open h5ad file or zarr store: gene tables in memory, matrices on disk, obs read on demand.

    Attributes are named as in AnnData. A damaged file, or a file of anndata before 0.8, raises one of `READ_ERRORS`.
    """

    def __init__(self, file: Any):
        self.file = file
        obs = file["obs"]
        if obs.attrs.get("encoding-version") != "0.2.0":
            raise ValueError("obs of an older format")
        if (
            any(is_array(file.get(place)) for place in ("obsm", "uns"))
            or "column-order" not in obs.attrs
        ):
            raise ValueError("no place for an annotation")
        self.index_name = str(obs.attrs["_index"])
        self._index = obs[self.index_name]
        # Nullable strings are a group of values and a mask.
        self._names = self._index if is_array(self._index) else self._index["values"]
        self.n_obs = int(self._names.shape[0])
        self.var: pd.DataFrame = _read(file["var"])
        self.n_vars = len(self.var)
        self.X = self._matrix("X", self.n_vars)
        layers = file.get("layers", ())
        self.layers: Mapping[str, Any] = {
            name: self._matrix(f"layers/{name}", self.n_vars) for name in layers
        }
        self.raw: Any = None
        if "raw/X" in file:
            raw_var = _read(file["raw/var"])
            self.raw = SimpleNamespace(X=self._matrix("raw/X", len(raw_var)), var=raw_var)

    @cached_property
    def obs(self) -> pd.DataFrame:
        return _read(self.file["obs"])

    @cached_property
    def obs_names(self) -> pd.Index:
        return pd.Index(read_elem(self._index))

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Read the columns of obs with these names, as far as they exist; rows are numbered."""
        obs = self.file["obs"]
        existing = list(obs.attrs["column-order"])
        index = pd.RangeIndex(self.n_obs)
        return pd.DataFrame(
            {name: pd.Series(_read(obs[name])) for name in names if name in existing}, index=index
        )

    def names(self, start: int, stop: int) -> list[str]:
        stored = self._names
        if not isinstance(stored, h5py.Dataset) or not h5py.check_string_dtype(stored.dtype):
            return [str(name) for name in self.obs_names[start:stop]]
        # R may have written them in latin-1
        names = list(stored.asstr(errors="replace")[start:stop])
        if stored is self._index:
            return names
        mask = self._index["mask"][start:stop]
        return [
            str(pd.NA) if is_missing else name for name, is_missing in zip(names, mask, strict=True)
        ]

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
        if not matrix.dtype.isnative and not is_array(stored):
            _require_memory([stored], name)
            matrix = _read(stored)
        if tuple(matrix.shape) != (self.n_obs, num_genes):
            shape = " x ".join(map(str, matrix.shape))
            raise ValueError(f"{name} is {shape}, but obs and var are {self.n_obs} x {num_genes}")
        return matrix


def open_stored(path: str | Path) -> BackedH5ad:
    """Open a regular h5ad file or zarr store; it is closed when the object is no longer referenced."""
    file = open_zarr(path) if Path(path).is_dir() else open_hdf5(path)
    _require_memory([file[name] for name in ("obs", "var", "raw/var") if name in file], path)
    return BackedH5ad(file)
