"""Refuse inputs that are damaged, point to other files, hold objects, or have unsound matrices and tables."""

import json
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata._io.specs.registry import IORegistryError  # not public; a subclass of Exception only
from scipy import sparse

from scperformer.base.errors import InputError, as_disk_full

# Errors that h5py, zarr, gzip, pandas and anndata raise on damaged content. MemoryError is left out on purpose.
READ_ERRORS = (
    *(OSError, KeyError, ValueError, TypeError, IndexError, AttributeError, RuntimeError),
    *(EOFError, OverflowError, zlib.error, IORegistryError),
)
ALONE = "a file that holds all of its data"
COPY = "make a copy in which the data themselves are stored"
ZARR_METADATA = (".zarray", ".zgroup", ".zmetadata", "zarr.json")
TEXT_CODECS = ("vlen-utf8", "vlen-bytes")  # all that object arrays of anndata need
MOST_GROUPS = 100_000  # as a reader finds them who follows links
MOST_NAMED = 3  # links of a circle
Node = TypeVar("Node")  # of a group in a file, or of a folder
MAX_METADATA = 256 * 2**20  # bytes of a metadata file of zarr; a real one has less than a megabyte


def reason_of(error: Exception) -> str:
    """Return the first line of an error, or its class where it has no text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def damaged(path: str | Path, error: Exception, expected: str = "a complete h5ad file") -> InputError:
    """Return the error to raise where reading a file failed with one of `READ_ERRORS`."""
    reason = reason_of(error)
    # HDF5 names two lengths, and gzip its marker; "truncated" is clearer to a reader.
    is_cut = any(words in reason for words in ("truncated file", "end-of-stream", "Truncated file"))
    what = "is truncated" if is_cut else f"is damaged ({reason})"
    return InputError(f"{path} {what}", expected, "copy or download it again, or write it anew")


@contextmanager
def reading(path: str | Path, expected: str = "a complete h5ad file") -> Iterator[None]:
    """Raise an `InputError` about a damaged file instead of any of `READ_ERRORS` inside the block."""
    try:
        yield
    except InputError:
        raise
    except READ_ERRORS as error:
        if as_disk_full(error):  # of an output that is written in the block
            raise
        raise damaged(path, error, expected) from error


@contextmanager
def quiet_anndata() -> Iterator[None]:
    """Silence anndata's warnings about repeated names and about its older formats."""
    with warnings.catch_warnings():
        # require_usable announces repeated cell names; genes.require_unique refuses repeated genes.
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        # A user can do nothing about the way in which anndata reads its older formats.
        for category in (ad.OldFormatWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def require_tree(links: Mapping[Node, Sequence[tuple[Node, str]]], path: str | Path) -> None:
    """Refuse groups that hold one another, or that are linked so often that reading them would not come to an end.

    Readers follow links: to them, a group that is linked twice is two groups, with all that is in them.

    Parameters
    ----------
    links
        For each group, the groups in it and the name of each, whether they lie there or are linked.
    """
    expected = "a file without such links"
    remedy = "delete the link, or write the file anew"
    names = {(group, part): name for group, parts in links.items() for part, name in parts}
    try:
        order = list(TopologicalSorter({group: [part for part, _ in links[group]] for group in links}).static_order())
    except CycleError as error:
        circle = error.args[1]  # each is in the next
        links_of_it = ", ".join(f"'{names[group, part]}'" for part, group in pairwise(circle[: MOST_NAMED + 1]))
        raise InputError(f"{path} has groups in a circle ({links_of_it})", expected, remedy) from error
    sizes: dict[Node, int] = {}
    for group in order:  # what is in a group comes before it
        sizes[group] = 1 + sum(sizes[part] for part, _ in links.get(group, ()))
        if sizes[group] > MOST_GROUPS + 2 * len(links):
            found = f"{path} has {len(links):,} groups that links make more than {MOST_GROUPS:,}"
            raise InputError(found, expected, remedy)


def _address(group: h5py.Group) -> tuple[int, int]:
    info = h5py.h5o.get_info(group.id)
    return info.fileno, info.addr


def require_contained(file: h5py.File, path: str | Path) -> list[h5py.Group | h5py.Dataset]:
    """Return all groups and datasets of an HDF5 file, each once.

    Refuse one with external links, virtual datasets or external storage, or with links in a circle.
    """
    nodes = []
    groups = [file["/"]]
    links: dict[tuple[int, int], list[tuple[tuple[int, int], str]]] = {}  # each group: the groups in it
    soft: list[tuple[h5py.Group, str, str]] = []
    while groups:
        group = groups.pop()
        if (address := _address(group)) in links:  # by another link
            continue
        links[address] = []
        nodes.append(group)
        for name in group:
            where = f"{group.name.rstrip('/')}/{name}"
            try:
                link = group.get(name, getlink=True)
            except TypeError as error:  # a kind of link that HDF5 itself does not have
                raise InputError(f"{path} has a link of an unknown kind ('{where}')", ALONE, COPY) from error
            if isinstance(link, h5py.ExternalLink):
                raise InputError(f"{path} has a link to another file ('{where}' -> {link.filename})", ALONE, COPY)
            if isinstance(link, h5py.SoftLink):
                soft.append((group, name, where))
                continue
            node = group[name]
            if isinstance(node, h5py.Group):
                links[address].append((_address(node), where))
                groups.append(node)
            elif isinstance(node, h5py.Dataset):
                others = [name for name, _, _ in node.external or ()]
                if node.is_virtual:
                    others += [source.file_name for source in node.virtual_sources() if source.file_name != "."]
                if others:
                    raise InputError(f"{path} has data in another file ('{where}' -> {others[0]})", ALONE, COPY)
                nodes.append(node)
    for group, name, where in soft:  # they stay in this file, as it has no external links; they may lead nowhere
        if isinstance(node := group.get(name), h5py.Group):
            links[_address(group)].append((_address(node), where))
    require_tree(links, path)
    return nodes


def require_contained_folder(folder: Path) -> None:
    """Refuse a zarr folder with links that leave it, anything but files and folders, or pickled objects."""
    root = Path(os.path.realpath(folder))
    expected = "a zarr folder that holds all of its data"
    links: dict[Path, list[tuple[Path, str]]] = {root: []}  # each folder: the folders in it
    for entry in sorted(folder.rglob("*")):  # does not follow links to folders
        name = entry.relative_to(folder)
        target = Path(os.path.realpath(entry))
        if entry.is_symlink() and not target.is_relative_to(root):
            raise InputError(f"{folder} has a link that leaves it ('{name}')", expected, COPY)
        if entry.is_dir():
            links.setdefault(root / name.parent, []).append((target, str(name)))
        elif not entry.is_file():
            raise InputError(f"{folder} holds '{name}', which is neither a file nor a folder", expected, COPY)
        if entry.name not in ZARR_METADATA:
            continue
        if (size := entry.stat().st_size) > MAX_METADATA:
            raise InputError(f"{folder} holds '{name}' of {size} bytes", "metadata of zarr", COPY)
        try:
            content = json.loads(entry.read_bytes())
        except (ValueError, RecursionError) as error:
            text = f"{folder} is damaged ('{name}' is not JSON)"
            raise InputError(text, "a complete zarr folder", "copy it again") from error
        if (objects := _objects(content)) is not None:
            remedy = "write it with anndata's write_zarr, which stores numbers and strings"
            raise InputError(f"{folder} declares {objects} in '{name}'", "numbers and strings", remedy)
    require_tree(links, folder)


def _objects(content: Any) -> str | None:
    """Return the kind of objects that metadata of zarr declare in an array; None without any."""
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
    """Refuse a sparse matrix whose indices lie outside of it: compiled code would read foreign memory there."""
    if not sparse.issparse(x) or x.format not in ("csr", "csc"):
        return
    try:
        x.check_format(full_check=True)
    except ValueError as error:
        expected = "a sparse matrix whose indices lie within it"
        raise InputError(f"{path} is damaged ({where}: {reason_of(error)})", expected, "write the file anew") from error
    if np.issubdtype(x.dtype, np.complexfloating):
        raise InputError(f"complex numbers in {where} of {path}", "expression values", "write the file anew")


def require_cells_and_genes(adata: Any, path: str | Path) -> None:
    """Refuse an AnnData, or another object with `n_obs` and `n_vars`, without cells or without genes."""
    for what, size in (("cell", adata.n_obs), ("gene", adata.n_vars)):
        if size == 0:
            found = f"no {what}s in {path} ({adata.n_obs} cells x {adata.n_vars} genes)"
            remedy = "check the step that wrote this file, for example a filter that dropped everything"
            raise InputError(found, f"at least one {what}", remedy)


def require_usable(adata: AnnData, path: str | Path) -> None:
    """Check an AnnData that was read, remove columns of obs and var that cannot be written, warn of repeated cells.

    Of columns with the same name the first is kept. A column called `_index` is removed.
    """
    require_cells_and_genes(adata, path)
    for what, table in (("cells", adata.obs), ("genes", adata.var)):
        for texts in (table.index, *(column for _, column in table.items())):
            texts = texts.dtype.categories if isinstance(texts.dtype, pd.CategoricalDtype) else texts
            if texts.dtype.kind in "OUT" and any("\0" in text for text in texts if isinstance(text, str)):
                found = f"{path} is damaged (a null character in the table of the {what})"  # HDF5 cannot store it
                raise InputError(found, "text", "copy or download it again, or write it anew")
    matrices = {"X": adata.X} | {f"layers/{name}": layer for name, layer in adata.layers.items()}
    if adata.raw is not None:
        matrices["raw"] = adata.raw.X
    for where, x in matrices.items():
        require_sound(x, where, path)
    with quiet_anndata():
        adata.obs = _writable(adata.obs)
        adata.var = _writable(adata.var)
        if adata.raw is not None and "_index" in adata.raw.var:
            adata.raw = AnnData(adata.raw.X, obs=adata.obs, var=_writable(adata.raw.var))
    if not adata.obs_names.is_unique:
        num = int(adata.obs_names.duplicated().sum())
        warnings.warn(f"{num} cell names in {path} repeat earlier ones; they are kept as they are", stacklevel=3)


def _writable(table: pd.DataFrame) -> pd.DataFrame:
    keep = ~table.columns.duplicated() & (table.columns != "_index")
    return table if keep.all() else table.loc[:, keep].copy()
