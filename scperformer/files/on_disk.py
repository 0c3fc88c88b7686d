"""An h5ad file or zarr store whose matrices stay on disk: what `detect` and prediction need of it, and no more."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
from anndata.io import read_elem, sparse_dataset

from scperformer.errors import InputError
from scperformer.files.h5ad import READ_ERRORS, damaged, keys_in, require_h5ad
from scperformer.files.safety import require_cells_and_genes

PREPARED = "scperformer_prepared"  # uns key by which preprocess marks its output
LOG_MARK = "log1p"  # uns key in which scanpy keeps the base of its logarithm; None: natural


@dataclass
class BackedRaw:
    """The genes of `.raw`, and its matrix on disk."""

    X: Any
    var: pd.DataFrame


class BackedH5ad:
    """An open h5ad file or zarr group: tables of genes in memory; X, layers and raw on disk; cells read when asked for.

    Attributes are named as those of AnnData. `uns` holds nothing but the marks that `detect` looks at.
    """

    def __init__(self, file: Any):
        self.file = file
        obs = file["obs"]
        if obs.attrs.get("encoding-version") != "0.2.0":
            raise ValueError("obs of an older format")
        self.n_obs = int(obs[obs.attrs["_index"]].shape[0])
        self.var: pd.DataFrame = read_elem(file["var"])
        self.n_vars = len(self.var)
        self.X = self._matrix("X", self.n_vars)
        self.layers: Mapping[str, Any] = {
            name: self._matrix(f"layers/{name}", self.n_vars) for name in file.get("layers", {})
        }
        self.raw: BackedRaw | None = None
        if "raw/X" in file:
            raw_var = read_elem(file["raw/var"])
            self.raw = BackedRaw(self._matrix("raw/X", len(raw_var)), raw_var)
        marks = [name for name in (PREPARED, LOG_MARK) if name in file.get("uns", {})]
        self.uns = {name: read_elem(file["uns"][name]) for name in marks}

    @cached_property
    def obs(self) -> pd.DataFrame:
        """What is known of the cells: read when it is asked for."""
        return read_elem(self.file["obs"])

    @cached_property
    def obs_names(self) -> pd.Index:
        obs = self.file["obs"]
        return pd.Index(read_elem(obs[obs.attrs["_index"]]))

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Those of these columns of obs that there are, and nothing else of the cells; rows are numbered."""
        obs = self.file["obs"]
        there = list(obs.attrs["column-order"])
        index = pd.RangeIndex(self.n_obs)
        return pd.DataFrame({name: pd.Series(read_elem(obs[name])) for name in names if name in there}, index=index)

    def names(self, start: int, stop: int) -> list[str]:
        """The names of some cells."""
        index = self.file["obs"][self.file["obs"].attrs["_index"]]
        if isinstance(index, h5py.Dataset) and h5py.check_string_dtype(index.dtype):
            return list(index.asstr(errors="replace")[start:stop])  # as R wrote them, in latin-1
        return [str(name) for name in self.obs_names[start:stop]]

    def keys(self) -> dict[str, set[str]]:
        """The names of what obs, obsm and uns hold."""
        return keys_in(self.file)

    def _matrix(self, name: str, num_genes: int) -> Any:
        """What `rows.Rows` reads from; None where there is nothing."""
        if name not in self.file:
            return None
        stored = self.file[name]
        if stored.attrs.get("encoding-type") == "null":
            return None
        matrix = stored if hasattr(stored, "dtype") else sparse_dataset(stored)  # an array, of h5py or zarr
        if tuple(matrix.shape) != (self.n_obs, num_genes):
            shape = " x ".join(map(str, matrix.shape))
            raise ValueError(f"{name} is {shape}, the tables say {self.n_obs} x {num_genes}")
        return matrix


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """What fails in this block fails because the file is damaged.

    Raises
    ------
    InputError
        Instead of what h5py and anndata raise.
    """
    try:
        yield
    except InputError:
        raise
    except READ_ERRORS as error:
        raise damaged(path, error) from error


def can_stream(path: str | Path) -> bool:
    """Whether an h5ad file is regular enough for `open_backed`; older and odd ones are read as a whole."""
    try:
        with h5py.File(path, "r") as file:
            BackedH5ad(file)
    except READ_ERRORS:
        return False
    return True


@contextmanager
def open_backed(path: str | Path) -> Iterator[BackedH5ad]:
    """An h5ad file to read from block by block, if `can_stream` says so.

    Raises
    ------
    InputError
        The file is missing, no h5ad, damaged, or without cells or genes.
    """
    require_h5ad(path)
    with reading(path):
        file = h5py.File(path, "r")
    with file:
        with reading(path):
            cells = BackedH5ad(file)
        require_cells_and_genes(cells, path)
        yield cells


def open_stored(path: str | Path) -> BackedH5ad:
    """A regular h5ad file or zarr store to read from for a while; it is closed when nothing refers to it any more."""
    if Path(path).is_dir():
        import zarr  # takes a while to import

        return BackedH5ad(zarr.open_group(str(path), mode="r"))
    return BackedH5ad(h5py.File(path, "r"))
