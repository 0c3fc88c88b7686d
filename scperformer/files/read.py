"""Cells from every kind of input: h5ad, 10x, mtx, loom, zarr and tables; the content says which it is."""

import hashlib
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import anndata as ad
import h5py
from anndata import AnnData

from scperformer.errors import InputError
from scperformer.files.h5ad import HDF5_SIGNATURE, READ_ERRORS, damaged, read_h5ad, sha256
from scperformer.files.loom import is_loom, read_loom
from scperformer.files.old_h5ad import quiet_anndata
from scperformer.files.safety import require_contained, require_contained_folder, require_usable
from scperformer.files.tables import MARKS, read_table, sniff
from scperformer.files.tenx import (
    MTX_FILE,
    TEXT_ERRORS,
    find_matrix,
    is_gzip,
    matrix_groups,
    matrix_size,
    open_bytes,
    read_tenx_folder,
    read_tenx_h5,
)

log = logging.getLogger(__name__)

KINDS = "an h5ad file, 10x .h5, 10x folder, .mtx, loom, zarr or table of text"
SAVE = "read it with scanpy and save it with write_h5ad"
HDF5_SUFFIXES = (".h5ad", ".h5", ".hdf5", ".loom")
SUFFIXES = (*HDF5_SUFFIXES, ".zarr", ".csv", ".tsv", ".tab", ".txt", ".mtx")
ZARR_ROOTS = (".zgroup", ".zattrs", ".zmetadata", "zarr.json")
FROM_R = "write it from R as h5ad (zellkonverter::writeH5AD) or as a 10x folder (DropletUtils::write10xCounts)"
# Beginnings of what is often given by mistake -> what it is, what to do.
FOREIGN = (
    (b"PK\x03\x04", "a zip archive", "unpack it; save a sheet of Excel as CSV"),
    (b"BZh", "compressed with bzip2", "unpack it"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it"),
    (b"RDX", "an RData file", FROM_R),
    (b"X\n\x00\x00", "an RDS file", FROM_R),
    (b"\x93NUMPY", "a NumPy array, without names of cells and genes", SAVE),
    (HDF5_SIGNATURE, "HDF5 compressed with gzip", "unpack it with gunzip"),
)


def read_cells(path: str | Path, orientation: str = "auto") -> AnnData:
    """Cells of a file or folder of any kind, in memory: N cells x G genes, names as they are stored.

    Parameters
    ----------
    orientation
        Of a table of text: auto, cells_by_genes or genes_by_cells. The other kinds say it themselves.

    Returns
    -------
    X as stored (CSR where the kind is none of anndata's); `obs` and `var` with what else is known of them. Cell names
    that repeat are kept and a warning says so; so are gene names.

    Raises
    ------
    InputError
        The input is of no known kind, damaged or unsafe, its parts do not fit, or it has no cells or no genes.
    """
    path = Path(path)
    kind = require_readable(path)
    if orientation != "auto" and kind != "table":
        warnings.warn(f"orientation={orientation} is not used: {path} is no table of text", stacklevel=2)
    notes: list[str] = []
    if kind == "h5ad":
        adata = read_h5ad(path)
    else:
        with quiet_anndata():
            adata, notes = read_table(path, orientation) if kind == "table" else READERS[kind](path)
        require_usable(adata, path)
    more = f" ({'; '.join(notes)})" if notes else ""
    log.info("read %s: %s, %d cells x %d genes%s", path, kind, adata.n_obs, adata.n_vars, more)
    return adata


def require_readable(path: str | Path) -> str:
    """Fail unless a file or folder is of a known kind, whole at first sight, and safe to read; little of it is read.

    Returns
    -------
    The kind: h5ad, 10x h5, loom, mtx, zarr or table.

    Raises
    ------
    InputError
        It is missing, of no known kind, lacks parts, or points to other files.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"no file {path}", KINDS, "check the path")
    try:
        if path.is_dir():
            return _folder_kind(path)
        if not path.is_file():
            raise InputError(f"{path} is neither a file nor a folder", KINDS, "copy the content into a file")
        return _file_kind(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", KINDS, "check its permissions") from error


def _folder_kind(path: Path) -> str:
    if any((path / name).is_file() for name in ZARR_ROOTS):
        require_contained_folder(path)
        if not all((path / name).exists() for name in ("obs", "var")):
            found = f"{path} is a zarr store without obs and var"
            raise InputError(found, "an AnnData in zarr", "name the folder of the AnnData itself")
        return "zarr"
    if any(MTX_FILE.match(entry.name) for entry in path.iterdir()):
        _require_mtx(path)
        return "mtx"
    found = f"{path} is a folder that holds neither an mtx file nor a zarr store"
    raise InputError(found, KINDS, "name the h5ad file itself, or the folder in which matrix.mtx is")


def _file_kind(path: Path) -> str:
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty (0 bytes)", KINDS, SAVE)
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(HDF5_SIGNATURE):
        return _hdf5_kind(path)
    if path.suffix.lower() in HDF5_SUFFIXES:
        raise InputError(f"{path} is not an HDF5 file", KINDS, f"{SAVE}, or give a table the name .csv")
    if is_gzip(path):
        try:
            with open_bytes(path) as unpacked:
                start = unpacked.read(512)
        except TEXT_ERRORS as error:
            raise damaged(path, error, "a complete gzip file") from error
    _require_text(path, start)
    if start.removeprefix(b"\xef\xbb\xbf").lower().startswith(b"%%matrixmarket"):
        _require_mtx(path)
        return "mtx"
    sniff(path)
    return "table"


def _hdf5_kind(path: Path) -> str:
    try:
        with h5py.File(path, "r") as file:
            require_contained(file, path)
            parts = sorted(file)
            kinds = {
                "h5ad": {"obs", "var"} <= set(parts),
                "loom": is_loom(file),
                "10x h5": bool(matrix_groups(file)),
            }
    except InputError:
        raise
    except READ_ERRORS as error:
        raise damaged(path, error, "a complete HDF5 file") from error
    kind = next((kind for kind, fits in kinds.items() if fits), None)
    if kind is None:
        found = f"{path} is an HDF5 file of an unknown kind (it holds {', '.join(parts[:5]) or 'nothing'})"
        remedy = SAVE
        if "mod" in parts:
            remedy = "it looks like MuData: save its RNA alone, mdata.mod['rna'].write_h5ad(...)"
        elif "assays" in parts:
            remedy = "it looks like h5Seurat: SeuratDisk::Convert(..., dest='h5ad') makes an h5ad file of it"
        raise InputError(found, KINDS, remedy)
    return kind


def _require_text(path: Path, start: bytes) -> None:
    for signature, what, remedy in FOREIGN:
        if start.startswith(signature):
            raise InputError(f"{path} is {what}", KINDS, remedy)
    if start[257:262] == b"ustar":
        raise InputError(f"{path} is a tar archive", KINDS, "unpack it and name the folder of a sample")
    if b"\x00" in start and not start.startswith(tuple(mark for mark, _ in MARKS)):
        raise InputError(f"{path} is of no known kind", KINDS, SAVE)
    if not start.strip():
        raise InputError(f"{path} is empty", KINDS, SAVE)


def _require_mtx(path: Path) -> None:
    matrix_size(find_matrix(path)[0])


def _read_zarr(path: Path) -> tuple[AnnData, list[str]]:
    try:
        return ad.read_zarr(path), []
    except READ_ERRORS as error:
        raise damaged(path, error, "a complete AnnData in zarr") from error


READERS: dict[str, Callable[[Path], tuple[AnnData, list[str]]]] = {
    "10x h5": read_tenx_h5,
    "mtx": read_tenx_folder,
    "loom": read_loom,
    "zarr": _read_zarr,
}


# Names and fingerprints of inputs


def stem(path: str | Path) -> str:
    """The name of an input without its folder, endings and what every sample's files are called.

    `run1/`, `run1.csv.gz`, `run1_matrix.mtx.gz` and `run1/matrix.mtx` all give `run1`.
    """
    path = Path(path)
    if path.name in ("", ".."):
        path = path.resolve()
    name = path.name
    if not path.is_dir() and name.lower().endswith(".gz"):
        name = name[:-3]
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    short = name[: len(name) - len(suffix)]
    if suffix == ".mtx":
        short = re.sub(r"[-_.]?matrix$", "", short) or path.resolve().parent.name
    return short or name or "cells"


def beside(path: str | Path, ending: str) -> Path:
    """The default output of a step: `<stem><ending>` in the folder in which the input lies."""
    path = Path(path)
    if path.name in ("", ".."):
        path = path.resolve()
    return path.parent / f"{stem(path)}{ending}"


def checksum(path: str | Path) -> str:
    """The SHA-256 of a file; of several files that are one input, that of their names and SHA-256s."""
    path = Path(path)
    if path.is_file() and not MTX_FILE.match(path.name):
        return sha256(path)
    if path.is_file() or not any((path / name).is_file() for name in ZARR_ROOTS):
        files = list(find_matrix(path))
    else:
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
    lines = "".join(f"{file.name if path.is_file() else file.relative_to(path)} {sha256(file)}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def checksums(paths: Sequence[Path]) -> str:
    """That of the only input, or of several inputs the SHA-256 of theirs."""
    found = [checksum(path) for path in paths]
    return found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()
