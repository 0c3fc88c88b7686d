"""Read the files of 10x Genomics (HDF5 of both versions, and folders of matrix.mtx, barcodes, features), and loom."""

import gzip
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmread

from scperformer.errors import InputError
from scperformer.files.safety import reading, require_sound
from scperformer.files.watch import open_hdf5

EXPRESSION = "Gene Expression"
MATRIX_PARTS = {"barcodes", "data", "indices", "indptr", "shape"}
DATA = re.compile(r"(.*_)?[ACGT]{8,}(-\d+)?$|ENS[A-Z]{0,4}G\d{6,}")  # a barcode or an Ensembl id
MTX_FILE = re.compile(r"(?P<stem>.*)\.mtx(\.gz)?$", re.IGNORECASE)
GZIP_SIGNATURE = b"\x1f\x8b"
LEAST_ENTRY = 4  # bytes of an entry of an mtx file: two numbers, a blank and the end of the line
MOST_GZIP = 1032  # gzip shrinks a file at most by this factor
# Attributes of a loom file that may hold the names, best first.
GENE_NAMES = (
    *("Gene", "gene", "gene_name", "gene_names", "GeneName", "gene_symbol", "gene_symbols", "Symbol", "symbol"),
    *("var_names", "feature_name", "Name", "Accession", "gene_id", "gene_ids", "GeneID", "ensembl_id"),
    *("index", "_index"),
)
CELL_NAMES = (
    *("CellID", "CellIDs", "cell_id", "cellID", "obs_names", "cell_names", "cell_name", "Cell", "cell"),
    *("barcode", "barcodes", "Barcode", "index", "_index"),
)
BLOCK = 8 * 2**20  # values that are dense at a time
LONGEST_LINE = 2**28  # bytes of a line of text; a million numbers with decimals have 2e7
MOST_NAMES = 2**30  # bytes of a file of barcodes or features, unpacked; 10 million barcodes have 2e8


def matrix_groups(file: h5py.File) -> list[str]:
    """Return the groups of an HDF5 file that hold a matrix as 10x writes it."""
    return [name for name, node in file.items() if isinstance(node, h5py.Group) and set(node) >= MATRIX_PARTS]


def strings(dataset: h5py.Dataset) -> list[str]:
    """Read a dataset of strings, of fixed or variable length."""
    return [value.decode() if isinstance(value, bytes) else str(value) for value in np.ravel(dataset[()]).tolist()]


def _read_group(group: h5py.Group, name: str, path: Path) -> AnnData:
    num_genes, num_cells = (int(size) for size in group["shape"][:])
    # The compressed columns of genes x cells are the compressed rows of cells x genes.
    x = sparse.csr_matrix((group["data"][:], group["indices"][:], group["indptr"][:]), shape=(num_cells, num_genes))
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


def read_tenx_h5(path: Path) -> tuple[AnnData, list[str]]:
    """Read the gene expression of a 10x HDF5 file; also return notes for the log.

    Cell Ranger 2 writes a group for each genome, later versions write one group.
    """
    with reading(path, "a complete 10x file"), open_hdf5(path) as file:
        names = matrix_groups(file)
        parts = [_read_group(file[name], name, path) for name in names]
    adata, notes = parts[0], []
    if len(parts) > 1:
        if any(not part.obs_names.equals(adata.obs_names) for part in parts):
            sizes = ", ".join(f"{name}: {part.n_obs}" for name, part in zip(names, parts, strict=True))
            remedy = "read one genome with scanpy.read_10x_h5(path, genome=...) and save it with write_h5ad"
            raise InputError(f"{path} with different cells for each genome ({sizes})", "the same cells", remedy)
        x = sparse.hstack([part.X for part in parts], format="csr")
        adata = AnnData(x, obs=adata.obs, var=pd.concat([part.var for part in parts]))
        notes = [f"{len(names)} genomes ({', '.join(names)})"]
    return _expression_only(adata, notes, path)


def _expression_only(adata: AnnData, notes: list[str], path: Path) -> tuple[AnnData, list[str]]:
    """Keep the features that are gene expression; add a note about the others."""
    if "feature_types" not in adata.var:
        return adata, notes
    types = adata.var["feature_types"].astype(str)
    keep = (types == EXPRESSION).to_numpy()
    others = ", ".join(f"{num} {name}" for name, num in types[~keep].value_counts().items())
    if not keep.any():
        found = f"no features of the type '{EXPRESSION}' in {path} ({others})"
        raise InputError(found, "gene expression", "choose the file that holds it")
    if others:
        return adata[:, keep].copy(), [*notes, f"features of other types left out ({others})"]
    return adata, notes


def find_matrix(path: Path) -> tuple[Path, Path, Path]:
    """Find the matrix, the barcodes and the features of a folder, or of an mtx file and its neighbours."""
    folder, matrix = path.parent, path
    if path.is_dir():
        every = sorted(entry for entry in path.iterdir() if MTX_FILE.match(entry.name) and entry.is_file())
        found = [entry for entry in every if "matrix.mtx" in entry.name.lower()] or every  # STARsolo writes others, too
        if len(found) != 1:
            names = ", ".join(entry.name for entry in found[:3])
            text = f"{path} is a folder with {len(found)} mtx files" + (f" ({names})" if found else "")
            raise InputError(text, "one matrix.mtx or matrix.mtx.gz", "name the mtx file itself")
        folder, matrix = path, found[0]
    match = MTX_FILE.match(matrix.name)
    stem = match["stem"] if match else matrix.name
    if stem.lower().endswith("matrix"):
        prefixes = [stem[: -len("matrix")]]
    else:
        sample = re.match(r".*[-_.]", stem)  # GSM1_ of GSM1_counts
        prefixes = [f"{stem}_", f"{stem}.", f"{stem}-", *([sample[0]] if sample else []), ""]
    barcodes = _companion(folder, prefixes, ["barcodes"], matrix)
    return matrix, barcodes, _companion(folder, prefixes, ["features", "genes"], matrix)


def _companion(folder: Path, prefixes: Sequence[str], words: Sequence[str], matrix: Path) -> Path:
    names = [f"{word}.tsv{zipped}" for word in words for zipped in ("", ".gz")]
    for prefix in prefixes:
        found = [folder / f"{prefix}{name}" for name in names if (folder / f"{prefix}{name}").is_file()]
        if len(found) > 1:
            there = " and ".join(file.name for file in found)
            raise InputError(f"{there} beside {matrix}", "one of them", "move the other one away")
        if found:
            return found[0]
    wanted = " or ".join(f"{prefixes[0]}{word}.tsv" for word in words)
    raise InputError(f"no {wanted} beside {matrix}", "a file of that name, or with .gz", "copy it into the folder")


def is_gzip(path: Path) -> bool:
    """Return whether the content of a file, not its name, is gzip."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_SIGNATURE


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, uncompressed if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def _banner(file: IO[bytes]) -> list[bytes]:
    return file.readline(1000).removeprefix(b"\xef\xbb\xbf").lower().split()


def matrix_size(path: Path) -> tuple[int, int]:
    """Read the numbers of rows and columns from the header of an mtx file, and check its number of entries."""
    with reading(path, "a complete mtx file"), open_bytes(path) as file:
        banner = _banner(file)
        lines = iter(lambda: file.readline(LONGEST_LINE), b"")
        line = next((line for line in lines if line.strip() and not line.startswith(b"%")), b"")
        sizes = [int(word) for word in line.split()]
    expected = "a MatrixMarket file: %%MatrixMarket matrix coordinate, then rows, columns and entries"
    if len(banner) < 5 or banner[:3] != [b"%%matrixmarket", b"matrix", b"coordinate"] or len(sizes) != 3:
        raise InputError(f"{path} does not begin as a sparse matrix", expected, "copy or write it again")
    if banner[3] == b"complex" or banner[4] != b"general" or min(sizes) < 0:
        found = f"{path} is a matrix of the kind '{b' '.join(banner[3:5]).decode(errors='replace')}'"
        raise InputError(found, "integer or real, general", "write it with scipy.io.mmwrite or Matrix::writeMM")
    if sizes[2] > path.stat().st_size * (MOST_GZIP if is_gzip(path) else 1) // LEAST_ENTRY:
        raise InputError(f"{path} is truncated ({sizes[2]} entries in its header)", "all of them", "copy it again")
    return sizes[0], sizes[1]


class _AsReal(io.RawIOBase):
    """The rest of an mtx file after a banner with `real`: with `integer`, SciPy would cut off decimals."""

    def __init__(self, rest: IO[bytes]):
        self.start, self.rest = b"%%MatrixMarket matrix coordinate real general\n", rest

    def read(self, size: int = -1) -> bytes:
        start, self.start = self.start, b""
        return start or self.rest.read(size)


def _read_matrix(path: Path) -> sparse.csr_matrix:
    with reading(path, "a complete mtx file"), open_bytes(path) as file:
        field = _banner(file)[3]
        if field == b"pattern":
            file.seek(0)
        x = sparse.csr_matrix(mmread(file if field == b"pattern" else _AsReal(file)))
    return x.astype(np.int64) if field == b"integer" and np.array_equal(x.data, np.trunc(x.data)) else x


def _read_lines(path: Path) -> list[list[str]]:
    """Read the fields of each line of a tab-separated file without quotes."""
    with reading(path, "text in UTF-8"), open_bytes(path) as file:
        if len(content := file.read(MOST_NAMES + 1)) > MOST_NAMES:
            raise InputError(f"{path} of more than {MOST_NAMES:,} bytes when unpacked", "names", "check its content")
        text = content.decode("utf-8-sig")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n")
    return [line.split("\t") for line in lines] if text.strip() else []


def _as_table(lines: list[list[str]], size: int, path: Path) -> pd.DataFrame:
    """Make a table of `size` rows; one line more than that must be a header."""
    has_header, first = len(lines) == size + 1, lines[0] if lines else []
    same_kind = len(first) > 2 and first[2] in {line[2] for line in lines[1:3]}
    if has_header and (same_kind or any(DATA.match(field) for field in first)):
        found = f"{path} with {size + 1} lines for {size} in the matrix"
        raise InputError(found, "one line each, or names of columns above them", "take the files of one sample")
    num = len(lines[-1]) if lines else 1
    ragged = next((number for number, line in enumerate(lines, start=1) if len(line) != num), None)
    if ragged is not None:
        raise InputError(f"line {ragged} of {path} with another number of columns", f"{num} of them", "write it again")
    names = first if has_header else [f"column_{number}" for number in range(1, num + 1)]
    return pd.DataFrame(lines[1:] if has_header else lines, columns=names, dtype=object)


def read_tenx_folder(path: Path) -> tuple[AnnData, list[str]]:
    """Read a folder, or an mtx file, with the barcodes and features beside it; also return notes for the log.

    The numbers of barcodes and features show which axis is the cells. If a file has one line more, its first line is
    taken as names of columns. Further columns of the barcodes go into obs.
    """
    matrix, barcode_file, feature_file = find_matrix(path)
    num_rows, num_columns = matrix_size(matrix)
    barcodes, features = _read_lines(barcode_file), _read_lines(feature_file)

    def fit(rows: list[list[str]], columns: list[list[str]]) -> bool:
        return len(rows) - num_rows in (0, 1) and len(columns) - num_columns in (0, 1)

    genes_in_rows = fit(features, barcodes)
    if not genes_in_rows and not fit(barcodes, features):
        found = f"{matrix} of {num_rows} x {num_columns} beside {len(barcodes)} barcodes and {len(features)} features"
        expected = "a matrix with one row for each feature and one column for each barcode, or the other way round"
        raise InputError(found, expected, "take the three files of one sample")
    num_genes, num_cells = (num_rows, num_columns) if genes_in_rows else (num_columns, num_rows)
    x = _read_matrix(matrix)
    cells, genes = _as_table(barcodes, num_cells, barcode_file), _as_table(features, num_genes, feature_file)
    obs = cells.iloc[:, 1:].set_axis(pd.Index(cells.iloc[:, 0], dtype=object, name=None))
    # Ids, symbols, kinds of feature; a file with one column has the symbols alone.
    places = {"gene_ids": 0, "feature_types": 2}
    about = {name: genes.iloc[:, i].to_numpy() for name, i in places.items() if genes.shape[1] > max(1, i)}
    symbols = genes.iloc[:, min(1, genes.shape[1] - 1)].to_numpy()
    var = pd.DataFrame(about, index=pd.Index(symbols, dtype=object))
    adata = AnnData(x.T.tocsr() if genes_in_rows else x, obs=obs, var=var)
    return _expression_only(adata, ["genes in rows" if genes_in_rows else "cells in rows"], path)


def read_loom(path: Path) -> tuple[AnnData, list[str]]:
    """Read a loom file with its attributes in obs and var; also return notes for the log."""
    with reading(path, "a complete loom file"), open_hdf5(path) as file:
        shape = file["matrix"].shape
        var, gene_name = _attributes(file["row_attrs"], GENE_NAMES, shape[0])
        obs, cell_name = _attributes(file["col_attrs"], CELL_NAMES, shape[1])
        if gene_name is None:
            found = f"{path} without names of genes (row attributes: {', '.join(file['row_attrs']) or 'none'})"
            expected = f"one of {', '.join(GENE_NAMES[:3])}, ..."
            raise InputError(found, expected, "add the names of the genes as row attribute 'Gene'")
        adata = AnnData(_loom_matrix(file["matrix"]), obs=obs, var=var)
        groups = []  # of layers with a slash in their names, which anndata cannot write
        for name, layer in file.get("layers", {}).items():
            if isinstance(layer, h5py.Dataset):
                adata.layers[name] = _loom_matrix(layer)
            else:
                groups.append(f"layers/{name} is left out, a group")
    named = f"cells named by {cell_name}" if cell_name else "cells without names, numbered"
    return adata, [f"genes named by {gene_name}", named, *groups]


def _attributes(group: h5py.Group, candidates: Sequence[str], size: int) -> tuple[pd.DataFrame, str | None]:
    """Read the one-dimensional attributes of an axis; also return which of them became its names."""
    columns: dict[str, Any] = {}
    for name, node in group.items():
        if isinstance(node, h5py.Dataset) and node.shape == (size,):
            columns[name] = node[:] if node.dtype.kind in "biuf" else strings(node)
    chosen = next((name for name in candidates if name in columns), None)
    names = range(size) if chosen is None else columns.pop(chosen)
    return pd.DataFrame(columns, index=pd.Index([str(name) for name in names], dtype=object)), chosen


def _loom_matrix(dataset: h5py.Dataset) -> sparse.csr_matrix:
    """Read a dense dataset, genes x cells, as sparse cells x genes."""
    num_genes, num_cells = dataset.shape
    chunk = dataset.chunks[0] if dataset.chunks else 1
    step = max(chunk, BLOCK // max(num_cells, 1) // chunk * chunk)
    # SciPy has no sparse matrices of half precision.
    dtype = np.dtype(np.float32) if dataset.dtype == np.float16 else dataset.dtype
    blocks = [sparse.csr_matrix((0, num_cells), dtype=dtype)]
    for start in range(0, num_genes, step):
        blocks.append(sparse.csr_matrix(np.asarray(dataset[start : start + step], dtype=dtype)))
    return sparse.csr_matrix(sparse.vstack(blocks, format="csr").T)
