"""What an input must not do: point to other files, hold code, or have matrices and tables that are unsound."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.errors import InputError
from scperformer.files.old_h5ad import quiet_anndata

ALONE = "a file that holds all of its data"
COPY = "make a copy in which the data themselves are stored"
ZARR_METADATA = (".zarray", ".zgroup", ".zmetadata", "zarr.json")
TEXT_CODECS = ("vlen-utf8", "vlen-bytes")  # all that object arrays of anndata need
MAX_METADATA = 256 * 2**20  # bytes of a metadata file of zarr; those of real stores are below a megabyte


def require_contained(file: h5py.File, path: str | Path) -> None:
    """Refuse an HDF5 file with entries whose data lie in other files: nothing is followed, every link is looked at.

    Raises
    ------
    InputError
        Names the first external link, virtual dataset or external storage.
    """
    groups, seen = [file["/"]], set()
    while groups:
        group = groups.pop()
        info = h5py.h5o.get_info(group.id)
        if (info.fileno, info.addr) in seen:  # hard links may form circles
            continue
        seen.add((info.fileno, info.addr))
        for name in group:
            where = f"{group.name.rstrip('/')}/{name}"
            link = _link(group, name, where, path)
            if isinstance(link, h5py.ExternalLink):
                raise InputError(f"{path} with a link to another file ('{where}' -> {link.filename})", ALONE, COPY)
            if isinstance(link, h5py.SoftLink):  # within this file, as there are no external links to pass through
                continue
            node = group[name]
            if isinstance(node, h5py.Group):
                groups.append(node)
            elif isinstance(node, h5py.Dataset):
                _require_own_data(node, where, path)


def _link(group: h5py.Group, name: str, where: str, path: str | Path) -> Any:
    try:
        return group.get(name, getlink=True)
    except TypeError as error:  # a kind of link that some program has made up
        raise InputError(f"{path} with a link of an unknown kind ('{where}')", ALONE, COPY) from error


def _require_own_data(node: h5py.Dataset, where: str, path: str | Path) -> None:
    others = [name for name, _, _ in node.external or ()]
    if node.is_virtual:
        others += [source.file_name for source in node.virtual_sources() if source.file_name != "."]
    if others:
        raise InputError(f"{path} with data in another file ('{where}' -> {others[0]})", ALONE, COPY)


def require_contained_folder(folder: Path) -> None:
    """Refuse a zarr folder with links that leave it, anything but files and folders, or pickled objects.

    Raises
    ------
    InputError
        Names the first of them.
    """
    root = folder.resolve()
    expected = "a zarr folder that holds all of its data"
    for entry in _entries(folder):
        if entry.is_symlink() and not entry.resolve().is_relative_to(root):
            found = f"{folder} with a link that leaves it ('{entry.relative_to(folder)}')"
            raise InputError(found, expected, COPY)
        if not entry.is_file() and not entry.is_dir():
            found = f"{folder} with '{entry.relative_to(folder)}', neither a file nor a folder"
            raise InputError(found, expected, COPY)
        if entry.name in ZARR_METADATA:
            _require_no_objects(entry, folder)


def _entries(folder: Path) -> Iterator[Path]:
    """Everything below a folder; links to folders are named, not followed."""
    for entry in sorted(folder.iterdir()):
        yield entry
        if entry.is_dir() and not entry.is_symlink():
            yield from _entries(entry)


def _require_no_objects(file: Path, folder: Path) -> None:
    name = file.relative_to(folder)
    if (size := file.stat().st_size) > MAX_METADATA:
        raise InputError(f"{folder} with '{name}' of {size} bytes", "metadata of zarr", COPY)
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        text = f"{folder} is damaged ('{name}' is no JSON)"
        raise InputError(text, "a complete zarr folder", "copy it again") from error
    found = _objects(content)
    if found is not None:
        remedy = "write it with anndata's write_zarr, which stores numbers and strings"
        raise InputError(f"{folder} with {found} in '{name}', which are never loaded", "numbers and strings", remedy)


def _objects(content: Any) -> str | None:
    """What of the metadata says that an array holds pickled or other Python objects; None if nothing does."""
    if isinstance(content, list):
        return next((found for found in map(_objects, content) if found), None)
    if not isinstance(content, dict):
        return None
    parts = (part for key, part in content.items() if key != "attributes" and not key.endswith(".zattrs"))
    if found := next((found for found in map(_objects, parts) if found), None):
        return found
    codec = content.get("id", content.get("name"))
    if isinstance(codec, str) and "pickle" in codec.lower():
        return "pickled objects"
    if "O" in str(content.get("dtype", "")):
        filters = content.get("filters") or [{}]
        return None if filters[0].get("id") in TEXT_CODECS else "Python objects"
    return None


def require_sound(x: Any, where: str, path: str | Path) -> None:
    """Refuse a sparse matrix whose indices point outside of it: compiled code would read foreign memory there.

    Raises
    ------
    InputError
        Names the matrix.
    """
    if not sparse.issparse(x) or x.format not in ("csr", "csc"):
        return
    try:
        x.check_format(full_check=True)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        expected = "a sparse matrix whose indices lie within it"
        raise InputError(f"{path} is damaged ({where}: {reason})", expected, "write the file anew") from error
    if np.issubdtype(x.dtype, np.complexfloating):
        raise InputError(f"complex numbers in {where} of {path}", "expression values", "write the file anew")


def require_cells_and_genes(adata: Any, path: str | Path) -> None:
    """Refuse an AnnData, or what stands for one (`n_obs`, `n_vars`), with nothing in it.

    Raises
    ------
    InputError
        It has no cells or no genes.
    """
    for what, size in (("cell", adata.n_obs), ("gene", adata.n_vars)):
        if size == 0:
            raise InputError(
                f"no {what}s in {path} ({adata.n_obs} cells x {adata.n_vars} genes)",
                f"at least one {what}",
                "check the step that wrote this file, for example a filter that dropped everything",
            )


def require_usable(adata: AnnData, path: str | Path) -> None:
    """Refuse what has no cells, no genes, names with null characters or unsound matrices; mend the tables.

    Warn about cell names that repeat.

    Columns of obs and var that occur twice keep their first one, and a column called `_index`, which would be in the
    way of writing, is dropped.

    Raises
    ------
    InputError
        As said.
    """
    require_cells_and_genes(adata, path)
    for what, table in (("cells", adata.obs), ("genes", adata.var)):
        if _has_null(table.index) or any(_has_null(column) for _, column in table.items()):  # no file could hold it
            found = f"{path} is damaged (a null character in what it says of the {what})"
            raise InputError(found, "text", "copy or download it again, or write it anew")
    matrices = {"X": adata.X} | {f"layers/{name}": layer for name, layer in adata.layers.items()}
    if adata.raw is not None:
        matrices["raw"] = adata.raw.X
    for where, x in matrices.items():
        require_sound(x, where, path)
    with quiet_anndata():
        adata.obs, adata.var = _mended(adata.obs), _mended(adata.var)
        if adata.raw is not None and "_index" in adata.raw.var:
            adata.raw = AnnData(adata.raw.X, obs=adata.obs, var=_mended(adata.raw.var))
    if not adata.obs_names.is_unique:
        num = int(adata.obs_names.duplicated().sum())
        warnings.warn(f"{num} cell names in {path} repeat earlier ones; they are kept as they are", stacklevel=3)


def _has_null(texts: pd.Index | pd.Series) -> bool:
    if isinstance(texts.dtype, pd.CategoricalDtype):
        texts = texts.dtype.categories
    if texts.dtype.kind not in "OUT":
        return False
    return any("\0" in text for text in texts if isinstance(text, str))


def _mended(table: pd.DataFrame) -> pd.DataFrame:
    keep = ~table.columns.duplicated() & (table.columns != "_index")
    return table if keep.all() else table.loc[:, keep].copy()
