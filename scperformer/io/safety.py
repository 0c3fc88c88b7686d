"""Refuse inputs that are damaged, refer to other files, contain pickled objects, or have invalid matrices or tables."""

import json
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata._io.specs.registry import IORegistryError  # not public; a subclass of Exception only
from scipy import sparse

from scperformer.base.errors import InputError, as_disk_full

# Errors that h5py, zarr, gzip, pandas and anndata raise on damaged content. MemoryError is left out deliberately.
READ_ERRORS = (
    *(OSError, KeyError, ValueError, TypeError, IndexError, AttributeError, RuntimeError),
    # SystemError: a damaged length of Blosc
    *(EOFError, OverflowError, SystemError, zlib.error, IORegistryError),
)
ALL_IN_FILE = "a file that holds all of its data"
COPY = "make a copy in which the data themselves are stored"
ZARR_METADATA = (".zarray", ".zgroup", ".zmetadata", "zarr.json")
TEXT_CODECS = ("vlen-utf8", "vlen-bytes")  # the only codecs that object arrays of anndata need
# Numbers of the HDF Group's registry of filters: those of hdf5plugin.
FILTERS = {
    307: "bzip2",
    32001: "Blosc",
    32004: "LZ4",
    32008: "bitshuffle",
    32013: "ZFP",
    32015: "Zstandard",
}
FILTERS |= {32017: "SZ", 32026: "Blosc2", 32028: "Sperr"}
MAX_GROUPS = 100_000  # in a file, for a reader that follows links
MAX_METADATA_BYTES = 256 * 2**20  # in a metadata file of zarr; real files have less than a megabyte


def outside_data(path: str | Path, content: str, expected: str = ALL_IN_FILE) -> InputError:
    """Return the error about a file with `content` that is not in it."""
    return InputError("outside-data", f"{path} has {content}", expected, COPY)


def words_of(path: object, in_python: str, in_r: str) -> str:
    """Return a remedy in the words of those who wrote a file."""
    return in_r if str(path).lower().endswith(".rds") else in_python


def reason_of(error: Exception) -> str:
    """Return the first line of an error, or its class if it has no text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def damaged(
    path: str | Path, error: Exception, expected: str = "a complete h5ad file"
) -> InputError:
    """Return the error about a file that could not be read because of one of `READ_ERRORS`."""
    reason = reason_of(error)
    # HDF5's message has two lengths, gzip's has its end marker; "truncated" is clearer to users.
    is_cut = any(words in reason for words in ("truncated file", "end-of-stream", "Truncated file"))
    what = "is truncated" if is_cut else f"is damaged ({reason})"
    return InputError(
        "damaged-file", f"{path} {what}", expected, "copy or download it again, or write it again"
    )


@contextmanager
def reading(path: str | Path, expected: str = "a complete h5ad file") -> Iterator[None]:
    """Turn any of `READ_ERRORS` inside the block into an `InputError` about a damaged file."""
    try:
        yield
    except InputError:
        raise
    except READ_ERRORS as error:
        if as_disk_full(error):  # the block also writes an output
            raise
        raise damaged(path, error, expected) from error


@contextmanager
def quiet_anndata() -> Iterator[None]:
    """Silence anndata's warnings about older formats and repeated names (`require_usable` warns about them)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        for category in (ad.OldFormatWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def require_tree(links: Mapping[Any, Sequence[tuple[Any, str]]], path: str | Path) -> None:
    """Refuse groups that contain one another, or that are linked so often that reading them would take forever.

    Readers follow links: a group that is linked twice is read as two groups, each with all of its content. `links` has
    the groups (or folders) in each with their names, whether they are stored there or linked.
    """
    expected = "a file without such links"
    remedy = "delete the link, or write the file again"
    try:
        order = list(
            TopologicalSorter(
                {group: [part for part, _ in links[group]] for group in links}
            ).static_order()
        )
    except CycleError as error:
        part, group = error.args[1][:2]  # each group is in the next
        name = next(name for other, name in links[group] if other == part)
        raise InputError(
            "group-links", f"{path} has groups in a circle ('{name}')", expected, remedy
        ) from error
    sizes: dict[Any, int] = {}
    for group in order:  # the groups in a group come before it
        sizes[group] = 1 + sum(sizes[part] for part, _ in links.get(group, ()))
        if sizes[group] > MAX_GROUPS + 2 * len(links):
            found = f"{path} has {len(links):,} groups, which links multiply to more than {MAX_GROUPS:,}"
            raise InputError("group-links", found, expected, remedy)


def _address(group: h5py.Group) -> tuple[int, int]:
    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr


def _require_stored(dataset: h5py.Dataset, where: str, path: str | Path) -> None:
    """Refuse a dataset that is not stored in the file, or with a filter that neither h5py nor hdf5plugin has."""
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL:  # libhdf5 crashes on one that is its own source
        source = next((source.file_name for source in dataset.virtual_sources()), "nothing")
        raise outside_data(path, f"a virtual dataset ('{where}' -> {source})")
    if properties.get_external_count():
        raise outside_data(path, f"data in another file ('{where}' -> {dataset.external[0][0]})")
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        if h5py.h5z.filter_avail(code):
            continue
        with suppress(ImportError):
            import hdf5plugin  # noqa: F401 - adds filters to libhdf5
        if not h5py.h5z.filter_avail(code):
            called = FILTERS.get(code) or name.decode(errors="replace") or "unknown"
            found = f"{path} is compressed with the filter {called} ({code})"
            remedy = "install it (pip install hdf5plugin), or write the file again with compression='gzip'"
            raise InputError(
                "unknown-filter", found, "gzip, or a filter of the package hdf5plugin", remedy
            )


def require_contained(file: h5py.File, path: str | Path) -> list[h5py.Group | h5py.Dataset]:
    """Return all groups and datasets of an HDF5 file; refuse data in other files, and links in a circle."""
    nodes = []
    groups = [file["/"]]
    # address of a group -> the groups in it
    links: dict[tuple[int, int], list[tuple[tuple[int, int], str]]] = {}
    soft: list[tuple[h5py.Group, str, str]] = []
    while groups:
        group = groups.pop()
        if (address := _address(group)) in links:  # reached by another link before
            continue
        links[address] = []
        nodes.append(group)
        parent = group.name.rstrip("/")
        for name in group:
            where = f"{parent}/{name}"
            try:
                link = group.get(name, getlink=True)
            except TypeError as error:  # a user-defined kind of link
                raise outside_data(path, f"a link of an unknown kind ('{where}')") from error
            if isinstance(link, h5py.ExternalLink):
                raise outside_data(path, f"a link to another file ('{where}' -> {link.filename})")
            if isinstance(link, h5py.SoftLink):
                soft.append((group, name, where))
                continue
            node = group[name]
            if isinstance(node, h5py.Group):
                links[address].append((_address(node), where))
                groups.append(node)
            elif isinstance(node, h5py.Dataset):
                _require_stored(node, where, path)
                nodes.append(node)
    # Without external links, soft links stay in this file; they may dangle.
    for group, name, where in soft:
        if isinstance(node := group.get(name), h5py.Group):
            links[_address(group)].append((_address(node), where))
    require_tree(links, path)
    return nodes


def require_contained_folder(folder: Path) -> None:
    """Refuse a zarr folder with links that leave it, entries other than files and folders, or pickled objects."""
    root = Path(os.path.realpath(folder))
    expected = "a zarr folder that holds all of its data"
    links: dict[Path, list[tuple[Path, str]]] = {root: []}  # folder -> the folders in it
    for entry in sorted(folder.rglob("*")):  # rglob does not follow links to folders
        name = entry.relative_to(folder)
        target = Path(os.path.realpath(entry))
        if entry.is_symlink() and not target.is_relative_to(root):
            raise outside_data(folder, f"a link that leaves it ('{name}')", expected)
        if entry.is_dir():
            links.setdefault(root / name.parent, []).append((target, str(name)))
        elif not entry.is_file():
            found = f"{folder} holds '{name}', which is neither a file nor a folder"
            raise InputError("zarr-entry", found, expected, COPY)
        if entry.name not in ZARR_METADATA:
            continue
        if (size := entry.stat().st_size) > MAX_METADATA_BYTES:
            raise InputError(
                "zarr-metadata",
                f"{folder} holds '{name}' of {size} bytes",
                "metadata of zarr",
                COPY,
            )
        try:
            content = json.loads(entry.read_bytes())
        except (ValueError, RecursionError) as error:
            found = f"{folder} is damaged ('{name}' is not JSON)"
            raise InputError(
                "damaged-file", found, "a complete zarr folder", "copy it again"
            ) from error
        if (objects := _objects(content)) is not None:
            remedy = "write it with anndata's write_zarr, which stores numbers and strings"
            raise InputError(
                "zarr-objects",
                f"{folder} declares {objects} in '{name}'",
                "numbers and strings",
                remedy,
            )
    require_tree(links, folder)


def _objects(content: Any) -> str | None:
    """Return the kind of Python objects that zarr metadata declare in an array; None if they declare none."""
    if isinstance(content, list):
        return next(filter(None, map(_objects, content)), None)
    if not isinstance(content, dict):
        return None
    parts = (
        part for key, part in content.items() if key != "attributes" and not key.endswith(".zattrs")
    )
    if objects := next(filter(None, map(_objects, parts)), None):
        return objects
    codec = content.get("id", content.get("name"))
    if isinstance(codec, str) and "pickle" in codec.lower():
        return "pickled objects"
    if "O" in str(content.get("dtype", "")):
        filters = content.get("filters") or [{}]
        return None if filters[0].get("id") in TEXT_CODECS else "Python objects"
    return None


def require_valid_indices(x: Any, where: str, path: str | Path) -> None:
    """Refuse a sparse matrix with indices out of bounds, as compiled code would read foreign memory there."""
    if not sparse.issparse(x) or x.format not in ("csr", "csc"):
        return
    try:
        x.check_format(full_check=True)
    except ValueError as error:
        found = f"{path} is damaged ({where}: {reason_of(error)})"
        expected = "a sparse matrix with indices within its shape"
        raise InputError("damaged-file", found, expected, "write the file again") from error
    if np.issubdtype(x.dtype, np.complexfloating):
        found = f"complex numbers in {where} of {path}"
        raise InputError("complex-numbers", found, "expression values", "write the file again")


def require_cells_and_genes(adata: Any, path: str | Path) -> None:
    """Refuse an AnnData, or another object with `n_obs` and `n_vars`, without cells or without genes."""
    for what, size in (("cell", adata.n_obs), ("gene", adata.n_vars)):
        if size == 0:
            found = f"no {what}s in {path} ({adata.n_obs} cells x {adata.n_vars} genes)"
            remedy = f"check the step that wrote this file, for example a filter that dropped all {what}s"
            raise InputError("no-cells-or-genes", found, f"at least one {what}", remedy)


def require_usable(adata: AnnData, path: str | Path) -> None:
    """Check an AnnData that was read from a file, and drop columns that cannot be written: repeated ones, `_index`."""
    require_cells_and_genes(adata, path)
    for what, table in (("cells", adata.obs), ("genes", adata.var)):
        for column in (table.index, *(column for _, column in table.items())):
            texts = (
                column.dtype.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
            )
            if texts.dtype.kind in "OUT" and any(
                "\0" in text for text in texts if isinstance(text, str)
            ):
                # HDF5 cannot store it
                found = f"{path} is damaged (a null character in the table of the {what})"
                raise InputError(
                    "null-character", found, "text", "copy or download it again, or write it again"
                )
    matrices = {"X": adata.X} | {f"layers/{name}": layer for name, layer in adata.layers.items()}
    if adata.raw is not None:
        matrices["raw"] = adata.raw.X
    for where, x in matrices.items():
        require_valid_indices(x, where, path)
    with quiet_anndata():
        adata.obs = _writable(adata.obs)
        adata.var = _writable(adata.var)
        if adata.raw is not None and "_index" in adata.raw.var:
            adata.raw = AnnData(adata.raw.X, obs=adata.obs, var=_writable(adata.raw.var))
    if not adata.obs_names.is_unique:
        num = int(adata.obs_names.duplicated().sum())
        warnings.warn(
            f"{num} cell names in {path} repeat earlier ones; they are kept as they are",
            stacklevel=3,
        )


def _writable(table: pd.DataFrame) -> pd.DataFrame:
    """Drop columns that cannot be written; those of text without any value become categories, which can be."""
    keep = ~table.columns.duplicated() & (table.columns != "_index")
    table = table if keep.all() else table.loc[:, keep].copy()
    empty = [
        name for name, column in table.items() if column.dtype == object and column.isna().all()
    ]
    return (
        table.astype(dict.fromkeys(empty, pd.CategoricalDtype(pd.Index([], dtype=object))))
        if empty
        else table
    )
