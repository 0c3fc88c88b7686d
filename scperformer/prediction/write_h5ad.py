"""Add results to a copy of an h5ad file; its content stays bit for bit, and its matrices are never in memory."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem, write_elem

from scperformer.errors import InputError
from scperformer.files import keys_in, require_h5ad, require_new_keys, require_unchanged
from scperformer.outputs import new_file


@dataclass
class Blocks:
    """A float32 array of one row per cell, or a table with named columns, that is written block by block.

    read : gives the blocks in the order of the cells
    width : of each row
    columns : names; None for an array
    """

    read: Callable[[], Iterable[np.ndarray]]
    width: int
    columns: list[str] | None = None

    def in_memory(self, index: pd.Index) -> Any:
        """Return all rows: an array, or a DataFrame with this index."""
        values = np.concatenate(list(self.read()))
        return values if self.columns is None else pd.DataFrame(values, index=index, columns=self.columns)


def without_slashes(table: Any) -> Any:
    """Return a DataFrame with "|" for each "/" in its column names, which h5ad files take for folders.

    If another column has that name already, one more "|" follows.
    """
    if not isinstance(table, pd.DataFrame):
        return table
    names = [str(name) for name in table.columns]
    taken = {name for name in names if "/" not in name}
    for i, name in enumerate(names):
        if "/" in name:
            names[i] = name.replace("/", "|")
            while names[i] in taken:
                names[i] += "|"
            taken.add(names[i])
    return table.set_axis(names, axis=1)


def add_to_h5ad(
    source: str | Path,
    target: str | Path,
    *,
    obs: pd.DataFrame,
    obsm: Mapping[str, Any],
    uns: Mapping[str, Any],
    overwrite: bool = False,
    overwrite_keys: bool = False,
    scratch: Path | None = None,
    seen: dict[Path, tuple[int, int, int]] | None = None,
) -> None:
    """Copy an h5ad file and add columns and entries to the copy; everything else stays bit for bit.

    Only for files that `open_cells` leaves on disk: older and odd ones have another layout.

    Parameters
    ----------
    source
        The user's file. It may be `target` itself, with `overwrite`.
    obs
        Columns to add, N rows in the order of the cells. An index other than 0 to N - 1 must hold the cell names.
    obsm
        Arrays, DataFrames or `Blocks` with N rows. A "/" in a column name of a DataFrame is written as "|", because
        h5ad files take it for a folder.
    uns
        Entries to add.
    overwrite, overwrite_keys
        Whether an existing `target`, or existing keys, may be replaced.
    scratch
        A folder of the same disk for the unfinished copy; None: the one that `target` will be in.
    seen
        The `fingerprint` of `source` when it was read.

    Raises
    ------
    InputError
        As `new_file`; a key exists and `overwrite_keys` is off; `source` has other cells than `obs`, or has changed.
    """
    tables = {key: without_slashes(value) for key, value in obsm.items()}
    new_keys = {"obs": list(obs.columns), "obsm": list(tables), "uns": list(uns)}
    require_h5ad(source)
    with new_file(target, overwrite, scratch) as temporary:
        shutil.copyfile(source, temporary)
        if seen is not None:
            require_unchanged(source, seen)
        with h5py.File(temporary, "r+") as file:
            if not overwrite_keys:
                require_new_keys(keys_in(file), new_keys, source)
            _require_same_cells(source, file["obs"], obs.index)
            _write_columns(file["obs"], obs)
            for place, entries in (("obsm", tables), ("uns", uns)):
                if place not in file:
                    write_elem(file, place, {})
                for key, value in entries.items():
                    if isinstance(value, Blocks):
                        _write_blocks(file, f"{place}/{key}", value, len(obs))
                    else:
                        write_elem(file[place], key, value)


def _require_same_cells(path: str | Path, table: h5py.Group, given: pd.Index) -> None:
    names = table[table.attrs["_index"]]
    same = len(names) == len(given)
    if same and not isinstance(given, pd.RangeIndex):
        same = np.array_equal(np.asarray(read_elem(names), str), np.asarray(given, str))
    if not same:
        found = f"the cells of {path} are not those that were annotated ({len(names)} and {len(given)} cells)"
        remedy = "run the step again and leave the file alone meanwhile"
        raise InputError(found, "the same file as when it was read", remedy)


def _write_columns(group: h5py.Group, columns: pd.DataFrame) -> None:
    """Add or replace columns of a stored DataFrame, in place."""
    order = list(group.attrs["column-order"])
    for name, values in columns.items():
        # `array` is what anndata itself hands over for a column: Categorical, masked or NumPy values.
        array = values.array
        write_elem(group, str(name), array.to_numpy() if isinstance(array, pd.arrays.NumpyExtensionArray) else array)
    order += [str(name) for name in columns if name not in order]
    group.attrs.create("column-order", np.array(order, dtype=h5py.string_dtype()), shape=(len(order),))


def _write_blocks(file: h5py.File, name: str, blocks: Blocks, num_rows: int) -> None:
    """Write an array, or a table whose index is copied from obs without reading it, as anndata stores them."""
    if name in file:
        del file[name]
    array = {"encoding-type": "array", "encoding-version": "0.2.0"}
    if blocks.columns is None:
        places = [file.create_dataset(name, (num_rows, blocks.width), dtype=np.float32)]
    else:
        table = file.create_group(name)
        index = file["obs"].attrs["_index"]
        file.copy(file["obs"][index], table, index)
        table.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": index})
        columns = np.array(blocks.columns, dtype=h5py.string_dtype())
        table.attrs.create("column-order", columns, shape=columns.shape)
        places = [table.create_dataset(column, (num_rows,), dtype=np.float32) for column in blocks.columns]
    for place in places:
        place.attrs.update(array)
    start = 0
    for block in blocks.read():
        stop = start + len(block)
        for place, values in zip(places, [block] if blocks.columns is None else block.T, strict=True):
            place[start:stop] = values
        start = stop
