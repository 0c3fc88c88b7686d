"""Read cells from every kind of input: h5ad, 10x, mtx, loom, zarr, tables and R objects. The content shows the kind."""

import hashlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError, require_path
from scperformer.base.inputs import how_to_find, sha256
from scperformer.io.axes import AXIS_SHARE, axis_shares, is_cell
from scperformer.io.gene_matching import name_columns
from scperformer.io.h5ad import PREPARED_KEY, BackedH5ad, is_array, open_stored, read_stored
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.mtx import MTX_FILE, find_matrix, is_gzip, matrix_size, read_mtx
from scperformer.io.r_cells import read_r
from scperformer.io.rds import OPENERS, XDR
from scperformer.io.safety import (
    READ_ERRORS,
    quiet_anndata,
    reading,
    require_cells_and_genes,
    require_contained_folder,
    require_usable,
)
from scperformer.io.tables import read_table, sniff
from scperformer.io.tenx import matrix_groups, read_loom, read_tenx_h5

log = logging.getLogger(__name__)

SUPPORTED_KINDS = "an h5ad file, 10x .h5, 10x folder, .mtx, loom, zarr, .rds or table of text"
SAVE = "read it with scanpy and save it with write_h5ad"
FROM_H5SEURAT = "in R: object <- SeuratDisk::LoadH5Seurat('FILE'); saveRDS(object, 'object.rds')"
FROM_RDATA = "in R: names <- load('FILE'); saveRDS(get(names[1]), 'object.rds')"
FROM_QS = "in R: object <- qs::qread('FILE'); saveRDS(object, 'object.rds')"
FROM_ASCII = "in R: object <- readRDS('FILE'); saveRDS(object, 'object.rds')"
FROM_HDF5ARRAY = (
    "in R: library(SingleCellExperiment); object <- HDF5Array::loadHDF5SummarizedExperiment('FILE'PREFIX); "
    "assay(object, 'counts') <- as(assay(object, 'counts'), 'dgCMatrix'); saveRDS(object, 'object.rds')"
)
ZARR_ROOTS = (".zgroup", ".zattrs", ".zmetadata", "zarr.json")
NAMES_AT_ONCE = 2**16  # cell names that are read at a time
NUM_NAMES_CHECKED = 5000  # cell names that are checked not to be genes
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
HDF5_SUFFIXES = (".h5ad", ".h5", ".hdf5", ".loom")
INPUT_SUFFIXES = (*HDF5_SUFFIXES, ".zarr", ".csv", ".tsv", ".tab", ".txt", ".mtx", ".rds")
# of a matrix in a sample's folder
CELL_RANGER_NAME = re.compile(r"(sample_)?(filtered|raw)_feature_bc_matrix")
# Unsupported files that are often given by mistake: first bytes (after gunzip), kind, remedy.
UNSUPPORTED = (
    ((b"RDX", b"RDA"), "a file of R's save, which may hold several objects", FROM_RDATA),
    ((b"\x0b\x0e\x0a\xc1",), "a file of qs2", FROM_QS.replace("qs::qread", "qs2::qs_read")),
    ((b"\x0b\x0e\x0a\xcd",), "a file of qs2", FROM_QS.replace("qs::qread", "qs2::qd_read")),
    ((b"\x0b\x0e\x0a",), "a file of qs", FROM_QS),
    ((b"A\n2\n", b"A\n3\n", b"B\n\x02", b"B\n\x03"), "a file of R in another form", FROM_ASCII),
    (
        (b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"),
        "an archive",
        "unpack it; save Excel as CSV",
    ),
    ((HDF5_SIGNATURE,), "HDF5 compressed with gzip", "unpack it with gunzip"),
    (
        (b"\xff\xfe", b"\xfe\xff"),
        "text in UTF-16",
        "convert it: 'iconv -f utf-16 -t utf-8 FILE > NEW_FILE'",
    ),
)


def _refuse_hdf5_experiment(folder: Path, path: Path) -> None:
    """Refuse a folder of saveHDF5SummarizedExperiment, or a file in it, whose matrices name other files."""
    for name in (entry.name.removesuffix("assays.h5") for entry in folder.glob("*assays.h5")):
        files = f"{name}se.rds", f"{name}assays.h5"
        if (folder / files[0]).is_file() and (path == folder or path.name in files):
            prefix = f", prefix = '{name}'" if name else ""
            remedy = FROM_HDF5ARRAY.replace("PREFIX", prefix).replace("FILE", str(folder))
            raise InputError(
                "unknown-kind", f"{path}, of saveHDF5SummarizedExperiment", SUPPORTED_KINDS, remedy
            )


def _folder_kind(path: Path) -> str:
    if any((path / name).is_file() for name in ZARR_ROOTS):
        require_contained_folder(path)
        _refuse_modalities((path / "mod").is_dir(), path)
        if not all((path / name).exists() for name in ("obs", "var")):
            found = f"{path} is a zarr store without obs and var"
            raise InputError(
                "zarr-without-cells",
                found,
                "an AnnData in zarr",
                "name the folder of the AnnData itself",
            )
        return "zarr"
    if any(MTX_FILE.match(entry.name) for entry in path.iterdir()):
        matrix_size(find_matrix(path)[0])
        return "mtx"
    _refuse_hdf5_experiment(path, path)
    found = f"{path} is a folder that holds neither an mtx file nor a zarr store"
    remedy = "name the h5ad file itself, or the folder that contains matrix.mtx"
    # Filtered matrices are named before raw ones, and the counts of Xenium before its other files.
    inside = sorted(path.glob("*.h5*")) + [
        file.parent for file in sorted(path.glob("*/matrix.mtx*"))
    ]
    if inside := sorted(inside, key=lambda file: "feature" not in file.name):
        remedy = f"name {inside[0].name} in it: {inside[0]}"
    raise InputError("unknown-kind", found, SUPPORTED_KINDS, remedy)


def _refuse_modalities(has_several: bool, path: Path) -> None:
    if has_several:
        remedy = "save its RNA alone, mdata.mod['rna'].write_h5ad(...)"
        raise InputError(
            "several-modalities",
            f"{path} holds several modalities (MuData)",
            SUPPORTED_KINDS,
            remedy,
        )


def _file_kind(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(512)
    # the first file of a tar archive also begins at byte 512
    if h5py.is_hdf5(path) and start[257:262] != b"ustar":
        return _hdf5_kind(path)
    if start and path.suffix.lower() in HDF5_SUFFIXES:
        remedy = f"{SAVE}, or name it .csv if it is a table"
        raise InputError("unknown-kind", f"{path} is not an HDF5 file", SUPPORTED_KINDS, remedy)
    for signature, opener in OPENERS.items():
        if start.startswith(signature):
            with reading(path, "a complete compressed file"), opener(path, "rb") as file:
                unpacked = file.read(512)
            if is_gzip(path) or unpacked.startswith((XDR, b"RDX")):  # others stay archives
                start = unpacked
    for signatures, kind, remedy in UNSUPPORTED:
        if start.startswith(signatures):
            fixed = remedy.replace("FILE'", f"{path.name}'")
            raise InputError("unknown-kind", f"{path} is {kind}", SUPPORTED_KINDS, fixed)
    if start.startswith(XDR):
        return "rds"
    if start[257:262] == b"ustar":
        remedy = "unpack it and name the folder of a sample"
        raise InputError("unknown-kind", f"{path} is a tar archive", SUPPORTED_KINDS, remedy)
    if b"\x00" in start or not start.strip():
        found = f"{path} is {'of no known kind' if start.strip() else 'empty'}"
        raise InputError("unknown-kind", found, SUPPORTED_KINDS, SAVE)
    if start.lower().startswith(b"%%matrixmarket"):
        matrix_size(find_matrix(path)[0])
        return "mtx"
    sniff(path)
    return "table"


def _hdf5_kind(path: Path) -> str:
    with reading(path, "a complete HDF5 file"), open_hdf5(path) as file:
        parts = sorted(file)
        _refuse_modalities(isinstance(file.get("mod"), h5py.Group) and "X" not in parts, path)
        if {"obs", "var"} <= set(parts):
            return "h5ad"
        if isinstance(file.get("matrix"), h5py.Dataset) and {"row_attrs", "col_attrs"} <= set(
            parts
        ):
            return "loom"
        if matrix_groups(file):
            return "10x h5"
    found = (
        f"{path} is an HDF5 file of an unknown kind (it holds {', '.join(parts[:5]) or 'nothing'})"
    )
    remedy = FROM_H5SEURAT.replace("FILE", path.name) if "assays" in parts else SAVE
    raise InputError("unknown-kind", found, SUPPORTED_KINDS, remedy)


def require_readable(path: str | Path) -> str:
    """Return the kind of a file or folder, of which only a little is read; refuse others and visibly damaged ones."""
    path = Path(path)
    require_path(path)
    if not path.exists():
        raise InputError("no-file", f"no file {path}", SUPPORTED_KINDS, how_to_find(path))
    try:
        if path.is_dir():
            return _folder_kind(path)
        if not path.is_file():
            found = f"{path} is neither a file nor a folder"
            raise InputError("not-a-file", found, SUPPORTED_KINDS, "copy the content into a file")
        if path.name.endswith(("se.rds", "assays.h5")):
            _refuse_hdf5_experiment(path.parent, path)
        return _file_kind(path)
    except OSError as error:
        found = f"{path} cannot be read ({error.strerror})"
        raise InputError("unreadable", found, SUPPORTED_KINDS, "check its permissions") from error


def _require_genes_in_columns(obs_names: Sequence[str], var: pd.DataFrame, path: Path) -> None:
    """Refuse an AnnData with genes in rows, which `scanpy.read_csv` returns for tables of genes by cells."""
    rows = [str(name) for name in obs_names[:NUM_NAMES_CHECKED]]
    num_like_cells = sum(is_cell(name) or not any(map(str.isalpha, name)) for name in rows)
    # The first condition is cheap; the second reads the table of human genes.
    if num_like_cells >= AXIS_SHARE * len(rows) or axis_shares(rows)[0] < AXIS_SHARE:
        return
    columns = list(map(str, var.index))
    if all(axis_shares(names)[0] < AXIS_SHARE for names in (columns, *name_columns(var).values())):
        found = f"{path} with genes in obs_names (e.g. '{rows[len(rows) // 2]}'), not in var_names"
        remedy = "transpose it (adata = adata.T) and save it"
        raise InputError("transposed", found, "cells in rows, genes in columns", remedy)


def read_cells(path: str | Path, orientation: str = "auto", everything: bool = False) -> AnnData:
    """Read the cells of a file or folder of any kind into memory: expression, obs and var, or `everything`.

    `orientation` is of a table of text: auto, cells_by_genes or genes_by_cells; other kinds ignore it with a warning.
    Names are as stored; repeated names are kept, repeated cell names with a warning. X is as stored in h5ad and zarr,
    and CSR from other kinds; further columns are in `obs` and `var`.
    """
    path = Path(path)
    kind = require_readable(path)
    if orientation != "auto" and kind != "table":
        warnings.warn(
            f"orientation={orientation} is not used: {path} is not a table of text", stacklevel=2
        )
    notes: list[str] = []
    with quiet_anndata():
        if kind in ("h5ad", "zarr"):
            adata = read_stored(path, everything)
        elif kind == "table":
            adata, notes = read_table(path, orientation)
        else:
            adata, notes = {
                "10x h5": read_tenx_h5,
                "mtx": read_mtx,
                "loom": read_loom,
                "rds": read_r,
            }[kind](path)
    require_usable(adata, path)
    if kind in ("h5ad", "zarr"):
        _require_genes_in_columns(adata.obs_names, adata.var, path)
    more = f" ({'; '.join(notes)})" if notes else ""
    log.info(
        "read %s: %s, %s cells x %s genes%s",
        path,
        kind,
        f"{adata.n_obs:,}",
        f"{adata.n_vars:,}",
        more,
    )
    return adata


@contextmanager
def open_adata(path: str | Path, orientation: str = "auto") -> Iterator[AnnData | BackedH5ad]:
    """Open the cells of a file or folder of any kind; an h5ad file of anndata 0.8 or newer stays on disk."""
    path = Path(path)
    stored = None
    if require_readable(path) == "h5ad":
        # damaged, older than anndata 0.8, or written by another program
        with suppress(*READ_ERRORS):
            stored = open_stored(path)
    if stored is None:
        yield read_cells(path, orientation, everything=True)
        return
    with stored.file:
        require_cells_and_genes(stored, path)
        with reading(path):  # find damaged names now, not when the last cell is written
            for start in range(0, stored.n_obs, NAMES_AT_ONCE):
                stored.names(start, start + NAMES_AT_ONCE)
        _require_genes_in_columns(stored.names(0, NUM_NAMES_CHECKED), stored.var, path)
        yield stored


def default_output(path: str | Path, ending: str) -> Path:
    """Return the default output of a step, in the folder of the input: the input's name with another `ending`.

    `run1/`, `run1.csv.gz`, `run1_matrix.mtx.gz`, `run1/matrix.mtx` and `run1/outs/filtered_feature_bc_matrix.h5` all
    have the name `run1`.
    """
    require_path(path)
    path = Path(path)
    if path.name in ("", ".."):
        path = path.resolve()
    name = path.name
    if not path.is_dir() and name.lower().endswith(".gz"):
        name = name[:-3]
    suffix = next((suffix for suffix in INPUT_SUFFIXES if name.lower().endswith(suffix)), "")
    stem = name[: len(name) - len(suffix)]
    folders = path.resolve().parent.parts
    if CELL_RANGER_NAME.fullmatch(stem):
        stem = folders[-1]
        if "per_sample_outs" in folders[:-1]:  # cellranger multi
            stem = folders[folders.index("per_sample_outs") + 1]
        elif "outs" in folders[1:]:  # cellranger count and aggr
            stem = folders[folders.index("outs", 1) - 1]
    elif suffix == ".mtx":
        stem = re.sub(r"[-_.]?matrix$", "", stem) or folders[-1]
    return path.parent / f"{stem or name or 'cells'}{ending}"


def _files(path: Path) -> Sequence[Path]:
    return (
        sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    )


def checksum(*paths: str | Path) -> str:
    """Return the SHA-256 of an input; of a folder, of its names and SHA-256s; of several inputs, of their SHA-256s."""
    if len(paths) > 1:
        return _joined(list(map(checksum, paths)))
    path = Path(paths[0])
    if path.is_file() and not MTX_FILE.match(path.name):
        return sha256(path)
    is_zarr = any((path / name).is_file() for name in ZARR_ROOTS)
    files = _files(path) if is_zarr else find_matrix(path)
    lines = "".join(
        f"{file.name if path.is_file() else file.relative_to(path)} {sha256(file)}\n"
        for file in files
    )
    return hashlib.sha256(lines.encode()).hexdigest()


def _joined(digests: list[str]) -> str:
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
    )


def origins(paths: Sequence[str | Path]) -> tuple[list[str], str]:
    """Return inputs as given, absolute ones as names, and their SHA-256; as recorded in an output of `preprocess`."""
    names, digests = [], []
    for path in map(Path, paths):
        name, digest = path.name if path.is_absolute() else str(path), ""
        if path.suffix == ".h5ad":
            with reading(path), open_hdf5(path) as file:
                mark = file.get(f"uns/{PREPARED_KEY}")
                if isinstance(mark, h5py.Group) and all(
                    is_array(mark.get(key)) for key in ("path", "sha256")
                ):
                    recorded = [str(mark[key].asstr()[()]) for key in ("path", "sha256")]
                    name, digest = (
                        recorded if re.fullmatch("[0-9a-f]{64}", recorded[1]) else (name, digest)
                    )
        names.append(name)
        digests.append(digest or checksum(path))
    return names, _joined(digests)


def fingerprint(path: str | Path) -> dict[Path, tuple[int, int, int]]:
    """Return the size, modification time and inode of a file, or of every file in a folder."""
    states = {file: file.stat() for file in _files(Path(path)) if file.exists()}
    return {
        file: (state.st_size, state.st_mtime_ns, state.st_ino) for file, state in states.items()
    }


def require_unchanged(path: str | Path, before: dict[Path, tuple[int, int, int]]) -> None:
    """Refuse an input that was changed, replaced or removed since its `fingerprint` was taken `before`."""
    if fingerprint(path) != before:
        expected = "an input that stays the same while it is read"
        raise InputError(
            "input-changed", f"{path} was changed while it was read", expected, "run the step again"
        )
