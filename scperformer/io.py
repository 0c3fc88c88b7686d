"""Read h5ad files with clear errors; write them, and add results to a copy of one."""

import hashlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata._io.specs.registry import IORegistryError  # public nowhere; a subclass of Exception only
from anndata.io import read_elem, write_elem

from scperformer.errors import InputError
from scperformer.lenient import has_lost_categories, quiet_anndata, read_parts
from scperformer.outputs import new_file, new_folder, require_absent
from scperformer.trust import require_contained, require_usable

__all__ = [
    "READ_ERRORS",
    "add_to_h5ad",
    "damaged",
    "new_file",
    "new_folder",
    "read_h5ad",
    "require_absent",
    "require_h5ad",
    "sha256",
    "without_slashes",
    "write_h5ad",
]

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

# What h5py and anndata raise on damaged or foreign content. MemoryError is not among them on purpose.
READ_ERRORS = (
    OSError,
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    RuntimeError,
    IORegistryError,
)


def read_h5ad(path: str | Path) -> AnnData:
    """The content of an h5ad file, in memory.

    Cell names may repeat: they are kept and a warning says so.

    Raises
    ------
    InputError
        The file is missing, a folder, not h5ad, truncated, damaged, or has no cells or no genes.
    """
    path = Path(path)
    require_h5ad(path)
    try:
        with h5py.File(path, "r") as file:
            if has_lost_categories(file):  # anndata would take the codes for numbers
                raise ValueError("columns of codes without their categories")
        with quiet_anndata():
            adata = ad.read_h5ad(path)
    except READ_ERRORS as error:
        adata = _read_leniently(path, error)
    require_usable(adata, path)
    return adata


def _read_leniently(path: Path, error: Exception) -> AnnData:
    """The parts of a file that anndata refused with `error`, if what counts can be read."""
    try:
        with h5py.File(path, "r") as file, quiet_anndata():
            adata, left_out = read_parts(file, READ_ERRORS)
    except READ_ERRORS:
        raise damaged(path, error) from error
    without = f" without {', '.join(left_out[:5])}" if left_out else ""
    warnings.warn(f"{path} is no regular h5ad file ({_reason(error)}); it is read{without}", stacklevel=3)
    return adata


def require_h5ad(path: str | Path) -> None:
    """Fail unless `path` can be opened and has the parts of an h5ad; its content is not read.

    Raises
    ------
    InputError
        The file is missing, a folder, not h5ad, or truncated.
    """
    path = Path(path)
    expected = "an h5ad file"
    if not path.exists():
        raise InputError(f"no file {path}", expected, "check the path")
    if path.is_dir():
        raise InputError(f"{path} is a folder", expected, "name the h5ad file itself")
    try:
        with path.open("rb") as file:
            start = file.read(len(HDF5_SIGNATURE))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", expected, "check its permissions") from error
    if start != HDF5_SIGNATURE:
        what = "is empty (0 bytes)" if not start else "is not an HDF5 file"
        raise InputError(f"{path} {what}", expected, "read it with scanpy and save it with write_h5ad")
    try:
        with h5py.File(path, "r") as file:
            require_contained(file, path)
            parts = sorted(file)
    except InputError:
        raise
    except READ_ERRORS as error:
        raise damaged(path, error) from error
    if not {"obs", "var"} <= set(parts):
        raise InputError(
            f"{path} is an HDF5 file without obs and var (it holds {', '.join(parts[:5]) or 'nothing'})",
            expected,
            "10x .h5 files: read with scanpy.read_10x_h5 and save with write_h5ad",
        )


def damaged(path: str | Path, error: Exception, expected: str = "a complete h5ad file") -> InputError:
    """The error for a file on whose content h5py or anndata failed with one of `READ_ERRORS`."""
    reason = _reason(error)
    # HDF5 names the two lengths, and gzip its marker, in a way that nobody understands; the word is what helps.
    is_cut = any(words in reason for words in ("truncated file", "end-of-stream", "Truncated file"))
    what = "is truncated" if is_cut else f"is damaged ({reason})"
    return InputError(f"{path} {what}", expected, "copy or download it again, or write it anew")


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all.

    Raises
    ------
    InputError
        As `new_file`.
    """
    with new_file(path, overwrite) as temporary:
        adata.write_h5ad(temporary)


def without_slashes(table: Any) -> Any:
    """A DataFrame with "|" for each "/" in its column names, which h5ad files take for folders; all else as it is."""
    if not isinstance(table, pd.DataFrame):
        return table
    return table.rename(columns=lambda name: str(name).replace("/", "|"))


def add_to_h5ad(
    source: str | Path,
    target: str | Path,
    *,
    obs: pd.DataFrame,
    obsm: Mapping[str, Any],
    uns: Mapping[str, Any],
    overwrite: bool = False,
    overwrite_keys: bool = False,
) -> None:
    """Copy an h5ad file and add columns and entries to the copy; everything else stays bit for bit.

    Files of anndata older than 0.8 are rewritten in today's format, with the same values.

    Parameters
    ----------
    source
        The user's file. It may be `target` itself, with `overwrite`.
    obs
        Columns to add, N rows, index = the cells of the file in their order.
    obsm
        Arrays or DataFrames with N rows. A "/" in a column name of a DataFrame is written as "|", because
        h5ad files take it for a folder.
    uns
        Entries to add.
    overwrite, overwrite_keys
        Whether an existing `target`, or existing keys, may be replaced.

    Raises
    ------
    InputError
        As `new_file`; a key exists and `overwrite_keys` is off; `source` has other cells than `obs`.
    """
    tables = {key: without_slashes(value) for key, value in obsm.items()}
    new_keys = {"obs": list(obs.columns), "obsm": list(tables), "uns": list(uns)}
    require_h5ad(source)
    with new_file(target, overwrite) as temporary:
        if _is_old_format(source):
            _add_by_rewriting(source, temporary, (obs, tables, uns), None if overwrite_keys else new_keys)
            return
        shutil.copyfile(source, temporary)
        with h5py.File(temporary, "r+") as file:
            if not overwrite_keys:
                _require_new_keys(source, _existing_keys(file), new_keys)
            group = file["obs"]
            _require_same_cells(source, read_elem(group[group.attrs["_index"]]), obs.index)
            _write_columns(group, obs)
            for place, entries in (("obsm", tables), ("uns", uns)):
                if place not in file:
                    write_elem(file, place, {})
                for key, value in entries.items():
                    write_elem(file[place], key, value)


def _is_old_format(path: str | Path) -> bool:
    with h5py.File(path, "r") as file:
        attributes = file["obs"].attrs
        named = isinstance(attributes.get("_index"), str) and "column-order" in attributes
        return attributes.get("encoding-version") != "0.2.0" or not named or attributes["_index"] not in file["obs"]


def _existing_keys(file: h5py.File) -> dict[str, set[str]]:
    keys = {place: set(file[place]) if place in file else set() for place in ("obsm", "uns")}
    return keys | {"obs": set(file["obs"].attrs["column-order"])}


def _require_new_keys(path: str | Path, existing: Mapping[str, set[str]], new: Mapping[str, Sequence[str]]) -> None:
    there = [f"{place}['{key}']" for place, keys in new.items() for key in keys if key in existing[place]]
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise InputError(
            f"{path} already has {', '.join(there[:3])}{more}",
            "a file without earlier annotations of this name",
            "add overwrite=true to replace them, or key_added=... to keep both",
        )


def _require_same_cells(path: str | Path, in_file: Any, given: pd.Index) -> None:
    if len(in_file) != len(given) or not np.array_equal(np.asarray(in_file, str), np.asarray(given, str)):
        raise InputError(
            f"the cells of {path} are not those that were annotated ({len(in_file)} and {len(given)} cells)",
            "the same file as when it was read",
            "run the step again and leave the file alone meanwhile",
        )


def _write_columns(group: h5py.Group, columns: pd.DataFrame) -> None:
    """Add or replace columns of a stored DataFrame, in place."""
    order = list(group.attrs["column-order"])
    for name, values in columns.items():
        # `array` is what anndata itself hands over for a column: Categorical, masked or NumPy values.
        values = values.array
        write_elem(
            group,
            str(name),
            values.to_numpy() if isinstance(values, pd.arrays.NumpyExtensionArray) else values,
        )
    order += [str(name) for name in columns if name not in order]
    group.attrs.create("column-order", np.array(order, dtype=h5py.string_dtype()), shape=(len(order),))


def _add_by_rewriting(
    source: str | Path,
    target: Path,
    parts: tuple[pd.DataFrame, Mapping[str, Any], Mapping[str, Any]],
    new_keys: Mapping[str, Sequence[str]] | None,
) -> None:
    obs, obsm, uns = parts
    adata = read_h5ad(source)
    if new_keys is not None:
        existing = {"obs": set(adata.obs), "obsm": set(adata.obsm), "uns": set(adata.uns)}
        _require_new_keys(source, existing, new_keys)
    _require_same_cells(source, adata.obs_names, obs.index)
    for name in obs:
        adata.obs[name] = obs[name].array
    for key, value in obsm.items():
        adata.obsm[key] = value.set_axis(adata.obs_names) if isinstance(value, pd.DataFrame) else value
    for key, value in uns.items():
        adata.uns[key] = value
    adata.write_h5ad(target)
