"""What 10x Genomics' programs write: HDF5 files of both versions, and folders of matrix.mtx, barcodes and features."""

import gzip
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmread

from scperformer.errors import InputError
from scperformer.files.h5ad import READ_ERRORS, damaged
from scperformer.files.safety import require_sound

EXPRESSION = "Gene Expression"
MATRIX_PARTS = {"barcodes", "data", "indices", "indptr", "shape"}
TEXT_ERRORS = (*READ_ERRORS, EOFError, zlib.error, OverflowError)

DATA = re.compile(r"(.*_)?[ACGT]{8,}(-\d+)?$|ENS[A-Z]{0,4}G\d{6,}")
MTX_FILE = re.compile(r"(?P<stem>.*)\.mtx(\.gz)?$", re.IGNORECASE)
GZIP_SIGNATURE = b"\x1f\x8b"
LEAST_ENTRY = 4  # bytes of an entry of an mtx file: two numbers, a blank and the end of the line
MOST_GZIP = 1032  # times that gzip can shrink a file


# HDF5


def matrix_groups(file: h5py.File) -> list[str]:
    """The groups of an HDF5 file that hold a matrix as 10x writes it."""
    return [name for name, node in file.items() if isinstance(node, h5py.Group) and set(node) >= MATRIX_PARTS]


def read_tenx_h5(path: Path) -> tuple[AnnData, list[str]]:
    """Cells of a 10x HDF5 file (Cell Ranger 2: a group for each genome; 3 and later: one group), and notes about it.

    Raises
    ------
    InputError
        It is damaged, has no gene expression, or genomes with cells of their own.
    """
    try:
        with h5py.File(path, "r") as file:
            names = matrix_groups(file)
            parts = [_read_group(file[name], name, path) for name in names]
    except InputError:
        raise
    except READ_ERRORS as error:
        raise damaged(path, error, "a complete 10x file") from error
    adata = parts[0]
    if len(parts) > 1:
        if any(not part.obs_names.equals(adata.obs_names) for part in parts):
            sizes = ", ".join(f"{name}: {part.n_obs}" for name, part in zip(names, parts, strict=True))
            remedy = "read one genome with scanpy.read_10x_h5(path, genome=...) and save it with write_h5ad"
            raise InputError(f"{path} with different cells for each genome ({sizes})", "the same cells", remedy)
        x = sparse.hstack([part.X for part in parts], format="csr")
        adata = AnnData(x, obs=adata.obs, var=pd.concat([part.var for part in parts]))
    notes = [f"{len(names)} genomes ({', '.join(names)})"] if len(names) > 1 else []
    return _expression_only(adata, notes, path)


def _read_group(group: h5py.Group, name: str, path: Path) -> AnnData:
    num_genes, num_cells = (int(size) for size in group["shape"][:])
    # Columns of genes x cells, compressed, are the rows of cells x genes.
    parts = group["data"][:], group["indices"][:], group["indptr"][:]
    x = sparse.csr_matrix(parts, shape=(num_cells, num_genes))
    require_sound(x, name, path)
    if "features" in group:
        features = group["features"]
        found = {"gene_ids": "id", "feature_types": "feature_type", "genome": "genome"}
        columns = {column: strings(features[key]) for column, key in found.items() if key in features}
        symbols = strings(features["name"])
    else:
        columns = {"gene_ids": strings(group["genes"]), "genome": [name] * num_genes}
        symbols = strings(group["gene_names"])
    var = pd.DataFrame(columns, index=pd.Index(symbols, dtype=object))
    return AnnData(x, obs=pd.DataFrame(index=pd.Index(strings(group["barcodes"]), dtype=object)), var=var)


def strings(dataset: h5py.Dataset) -> list[str]:
    """The texts of an HDF5 dataset, of either kind of string."""
    return [value.decode() if isinstance(value, bytes) else str(value) for value in np.ravel(dataset[()]).tolist()]


def _expression_only(adata: AnnData, notes: list[str], path: Path) -> tuple[AnnData, list[str]]:
    """The features that are gene expression, with a note of what else there was."""
    if "feature_types" not in adata.var:
        return adata, notes
    types = adata.var["feature_types"].astype(str)
    keep = (types == EXPRESSION).to_numpy()
    others = ", ".join(f"{num} {name}" for name, num in types[~keep].value_counts().items())
    if not keep.any():
        found = f"no features of the type '{EXPRESSION}' in {path} ({others})"
        raise InputError(found, "gene expression", "choose the file that holds it")
    if others:
        notes = [*notes, f"features of other types left out ({others})"]
    return (adata if keep.all() else adata[:, keep].copy()), notes


# Folders


def find_matrix(path: Path) -> tuple[Path, Path, Path]:
    """The matrix, the barcodes and the features of a folder, or of one mtx file and what lies beside it.

    Raises
    ------
    InputError
        A part is missing, or there are several.
    """
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        every = sorted(entry for entry in path.iterdir() if MTX_FILE.match(entry.name) and entry.is_file())
        # STARsolo puts others beside matrix.mtx.
        found = [entry for entry in every if "matrix.mtx" in entry.name.lower()] or every
        if len(found) != 1:
            names = ", ".join(entry.name for entry in found[:3])
            text = f"{path} is a folder with {len(found)} mtx files" + (f" ({names})" if found else "")
            raise InputError(text, "one matrix.mtx or matrix.mtx.gz", "name the mtx file itself")
        matrix = found[0]
    else:
        matrix = path
    prefixes = _prefixes(matrix.name)
    barcodes = _companion(folder, prefixes, ("barcodes",), matrix)
    return matrix, barcodes, _companion(folder, prefixes, ("features", "genes"), matrix)


def _prefixes(name: str) -> list[str]:
    """What the names of the files beside an mtx file may begin with, the likeliest first."""
    match = MTX_FILE.match(name)
    stem = match["stem"] if match else name
    if stem.lower().endswith("matrix"):
        return [stem[: -len("matrix")]]
    sample = re.match(r".*[-_.]", stem)  # GSM1_ of GSM1_counts
    return [f"{stem}_", f"{stem}.", f"{stem}-", *([sample[0]] if sample else []), ""]


def _companion(folder: Path, prefixes: Sequence[str], words: Sequence[str], matrix: Path) -> Path:
    names = [f"{word}.tsv{zipped}" for word in words for zipped in ("", ".gz")]
    for prefix in prefixes:
        found = [folder / f"{prefix}{name}" for name in names if (folder / f"{prefix}{name}").is_file()]
        if len(found) > 1:
            text = f"{' and '.join(file.name for file in found)} beside {matrix}"
            raise InputError(text, "one of them", "move the other one away")
        if found:
            return found[0]
    wanted = " or ".join(f"{prefixes[0]}{word}.tsv" for word in words)
    raise InputError(f"no {wanted} beside {matrix}", "a file of that name, or with .gz", "copy it into the folder")


def is_gzip(path: Path) -> bool:
    """Whether a file begins as gzip does; its name does not matter."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_SIGNATURE


def open_bytes(path: Path) -> IO[bytes]:
    """A file for reading, uncompressed if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def matrix_size(path: Path) -> tuple[int, int, int]:
    """Rows, columns and entries of an mtx file, as its header says.

    Raises
    ------
    InputError
        There is no such header, or the file is too short for so many entries.
    """
    try:
        with open_bytes(path) as file:
            banner = _banner(file)
            line = next((line for line in file if line.strip() and not line.startswith(b"%")), b"")
            sizes = [int(word) for word in line.split()]
    except TEXT_ERRORS as error:
        raise damaged(path, error, "a complete mtx file") from error
    expected = "a MatrixMarket file: %%MatrixMarket matrix coordinate, then rows, columns and entries"
    if len(banner) < 5 or banner[:3] != [b"%%matrixmarket", b"matrix", b"coordinate"] or len(sizes) != 3:
        raise InputError(f"{path} does not begin as a sparse matrix", expected, "copy or write it again")
    if banner[3] == b"complex" or banner[4] != b"general" or min(sizes) < 0:
        found = f"{path} is a matrix of the kind '{b' '.join(banner[3:5]).decode(errors='replace')}'"
        raise InputError(found, "integer or real, general", "write it with scipy.io.mmwrite or Matrix::writeMM")
    most = path.stat().st_size * (MOST_GZIP if is_gzip(path) else 1) // LEAST_ENTRY
    if sizes[2] > most:
        raise InputError(f"{path} is truncated ({sizes[2]} entries in its header)", "all of them", "copy it again")
    return sizes[0], sizes[1], sizes[2]


def _banner(file: IO[bytes]) -> list[bytes]:
    return file.readline(1000).removeprefix(b"\xef\xbb\xbf").lower().split()


class _AsReal(io.RawIOBase):
    """The rest of an mtx file after a banner that says `real`: SciPy would cut the decimals where it says `integer`."""

    def __init__(self, rest: IO[bytes]):
        self.start = b"%%MatrixMarket matrix coordinate real general\n"
        self.rest = rest

    def read(self, size: int = -1) -> bytes:
        start, self.start = self.start, b""
        return start or self.rest.read(size)


def _read_matrix(path: Path) -> sparse.csr_matrix:
    try:
        with open_bytes(path) as file:
            field = _banner(file)[3]
            if field == b"pattern":
                file.seek(0)
            x = sparse.csr_matrix(mmread(file if field == b"pattern" else _AsReal(file)))
    except TEXT_ERRORS as error:
        raise damaged(path, error, "a complete mtx file") from error
    return x.astype(np.int64) if field == b"integer" and np.array_equal(x.data, np.trunc(x.data)) else x


def read_tenx_folder(path: Path) -> tuple[AnnData, list[str]]:
    """Cells of a folder (or of an mtx file) with barcodes and features beside it, and notes about it.

    The lengths of barcodes and features say which axis is the cells. A first line that is one too many is taken as
    names of columns, and further columns of the barcodes go into obs.

    Raises
    ------
    InputError
        A part is missing or damaged, or the lengths do not fit.
    """
    matrix, barcode_file, feature_file = find_matrix(path)
    num_rows, num_columns, _ = matrix_size(matrix)
    barcodes, features = _read_lines(barcode_file), _read_lines(feature_file)
    if _fits(features, num_rows) and _fits(barcodes, num_columns):
        genes_in_rows = True
    elif _fits(barcodes, num_rows) and _fits(features, num_columns):
        genes_in_rows = False
    else:
        raise InputError(
            f"{matrix} of {num_rows} x {num_columns} beside {len(barcodes)} barcodes and {len(features)} features",
            "a matrix with one row for each feature and one column for each barcode, or the other way round",
            "take the three files of one sample",
        )
    num_genes, num_cells = (num_rows, num_columns) if genes_in_rows else (num_columns, num_rows)
    x = _read_matrix(matrix)
    cells, genes = _table(barcodes, num_cells, barcode_file), _table(features, num_genes, feature_file)
    obs = cells.iloc[:, 1:].set_axis(pd.Index(cells.iloc[:, 0], dtype=object, name=None))
    adata = AnnData(x.T.tocsr() if genes_in_rows else x, obs=obs, var=_var(genes))
    return _expression_only(adata, ["genes in rows" if genes_in_rows else "cells in rows"], path)


def _fits(lines: Sequence[Sequence[str]], size: int) -> bool:
    return len(lines) in (size, size + 1)


def _read_lines(path: Path) -> list[list[str]]:
    """The fields of each line of a tab-separated file without quotes."""
    try:
        with open_bytes(path) as file:
            text = file.read().decode("utf-8-sig")
    except TEXT_ERRORS as error:
        raise damaged(path, error, "text in UTF-8") from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n")
    return [line.split("\t") for line in lines] if text.strip() else []


def _is_data(lines: list[list[str]]) -> bool:
    """Whether the first line is like the others: a gene or a barcode, not the names of columns."""
    first = lines[0]
    return any(DATA.match(field) for field in first) or (
        len(first) > 2 and first[2] in {line[2] for line in lines[1:3]}
    )


def _table(lines: list[list[str]], size: int, path: Path) -> pd.DataFrame:
    has_header = len(lines) == size + 1
    if has_header and _is_data(lines):
        found = f"{path} with {size + 1} lines for {size} in the matrix"
        raise InputError(found, "one line each, or names of columns above them", "take the files of one sample")
    num = len(lines[-1]) if lines else 1
    ragged = next((number for number, line in enumerate(lines, start=1) if len(line) != num), None)
    if ragged is not None:
        raise InputError(f"line {ragged} of {path} with another number of columns", f"{num} of them", "write it again")
    names = lines[0] if has_header else [f"column_{number}" for number in range(1, num + 1)]
    return pd.DataFrame(lines[1:] if has_header else lines, columns=names, dtype=object)


def _var(genes: pd.DataFrame) -> pd.DataFrame:
    """The table of genes: symbols are the second column, ids the first, the kind of feature the third."""
    columns: Mapping[str, Any] = {}
    if genes.shape[1] >= 2:
        columns = {"gene_ids": genes.iloc[:, 0].to_numpy()}
    if genes.shape[1] >= 3:
        columns = {**columns, "feature_types": genes.iloc[:, 2].to_numpy()}
    symbols = genes.iloc[:, min(1, genes.shape[1] - 1)]
    return pd.DataFrame(columns, index=pd.Index(symbols.to_numpy(), dtype=object))
