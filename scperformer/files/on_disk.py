"""Open h5ad files and zarr stores whose matrices stay on disk."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import pandas as pd
from anndata.io import read_elem, sparse_dataset

from scperformer.files.h5ad import keys_in

PREPARED = "scperformer_prepared"  # uns key by which preprocess marks its output
LOG_MARK = "log1p"  # uns key in which scanpy keeps the base of its logarithm; None: natural


@dataclass
class BackedRaw:
    """The genes of `.raw`, and its matrix on disk."""

    X: Any
    var: pd.DataFrame


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
        self.n_obs = int(obs[obs.attrs["_index"]].shape[0])
        self.var: pd.DataFrame = read_elem(file["var"])
        self.n_vars = len(self.var)
        self.X = self._matrix("X", self.n_vars)
        layers = file.get("layers", {})
        self.layers: Mapping[str, Any] = {name: self._matrix(f"layers/{name}", self.n_vars) for name in layers}
        self.raw: BackedRaw | None = None
        if "raw/X" in file:
            raw_var = read_elem(file["raw/var"])
            self.raw = BackedRaw(self._matrix("raw/X", len(raw_var)), raw_var)
        self.uns = {name: read_elem(file["uns"][name]) for name in (PREPARED, LOG_MARK) if name in file.get("uns", {})}

    @cached_property
    def obs(self) -> pd.DataFrame:
        """The table of cells."""
        return read_elem(self.file["obs"])

    @cached_property
    def obs_names(self) -> pd.Index:
        """The names of all cells."""
        return pd.Index(read_elem(self.file["obs"][self.file["obs"].attrs["_index"]]))

    def columns(self, names: Iterable[str]) -> pd.DataFrame:
        """Read those of these columns of obs that exist; rows are numbered."""
        obs = self.file["obs"]
        there = list(obs.attrs["column-order"])
        index = pd.RangeIndex(self.n_obs)
        return pd.DataFrame({name: pd.Series(read_elem(obs[name])) for name in names if name in there}, index=index)

    def names(self, start: int, stop: int) -> list[str]:
        """Return the names of cells `start` to `stop`."""
        index = self.file["obs"][self.file["obs"].attrs["_index"]]
        if isinstance(index, h5py.Dataset) and h5py.check_string_dtype(index.dtype):
            return list(index.asstr(errors="replace")[start:stop])  # R may have written them in latin-1
        return [str(name) for name in self.obs_names[start:stop]]

    def keys(self) -> dict[str, set[str]]:
        """Return the names in obs, obsm and uns."""
        return keys_in(self.file)

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
    return BackedH5ad(h5py.File(path, "r"))
