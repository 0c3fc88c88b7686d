"""Read a matrix in the MatrixMarket format, and the names of its genes and cells from other files of the folder.

10x Genomics and STARsolo call these files barcodes.tsv and features.tsv. Files of other tools, with other names, are
recognised by their numbers of lines and their content.
"""

import csv
import gzip
import io
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmread

from scperformer.base.errors import InputError
from scperformer.io.axes import AXIS_SHARE, axis_shares, is_gene
from scperformer.io.safety import reading
from scperformer.io.tenx import GENE_EXPRESSION, expression_only

MTX_FILE = re.compile(r"(?P<stem>.*)\.mtx(\.gz)?$", re.IGNORECASE)
BARCODE_OR_ID = re.compile(r"(.*_)?[ACGT]{8,}(-\d+)?$|ENS[A-Z]{0,4}G\d{6,}")
GZIP_SIGNATURE = b"\x1f\x8b"
MIN_ENTRY_BYTES = 4  # an entry of an mtx file has at least two digits, a blank and the end of the line
MAX_GZIP_RATIO = 1032  # gzip compresses at most by this factor
MAX_LINE = 2**28  # bytes of a line of text; a million numbers with decimals have 2e7
MAX_NAMES_BYTES = 2**28  # bytes of a file of names, unpacked; 10 million barcodes have 2e8
NUM_FILES_NAMED = 8  # in an error
# Names of the files of 10x Genomics, which end with .tsv or .tsv.gz.
BARCODES = ("barcodes",)
FEATURES = ("features", "genes")
ARCHIVE_RUN = re.compile(r"(GSM|[SED]RR)\d+")  # accession of a sample or run in a public archive
# Words in the names of files that show what a file holds, and which of several candidates is better.
GENE_WORDS = re.compile(r"gene|feature", re.IGNORECASE)
CELL_WORDS = re.compile(r"barcode|cell", re.IGNORECASE)
NAME_WORDS = re.compile(r"name|symbol", re.IGNORECASE)
BARCODE_WORDS = re.compile(r"barcode", re.IGNORECASE)
# Columns of a table of genes, by their names in its header.
SYMBOL_COLUMNS = (
    *("gene_name", "gene_names", "feature_name", "gene_symbol", "gene_symbols", "symbol", "gene_short_name", "name"),
)
ID_COLUMNS = ("gene_id", "gene_ids", "feature_id", "ensembl_id", "ensembl_gene_id", "ensembl", "geneid", "id")
FEATURE_TYPE_COLUMNS = ("feature_type", "feature_types")
FEATURE_TYPE = re.compile(rf"{GENE_EXPRESSION}|.* Capture|Peaks|Custom|VDJ.*")  # the types of 10x Genomics


def is_gzip(path: Path) -> bool:
    """Whether the content of a file, not its name, is gzip."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_SIGNATURE


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, uncompressed if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def find_matrix(path: Path) -> tuple[Path, Path, Path]:
    """Find the matrix, the barcodes and the features in a folder, or next to an mtx file.

    Files that are not named as by 10x Genomics are recognised by their numbers of lines; see `_find_others`.
    """
    folder = path.parent
    matrix = path
    if path.is_dir():
        mtx_files = sorted(entry for entry in path.iterdir() if MTX_FILE.match(entry.name) and entry.is_file())
        # STARsolo also writes other mtx files.
        matrices = [entry for entry in mtx_files if "matrix.mtx" in entry.name.lower()] or mtx_files
        if len(matrices) != 1:
            names = ", ".join(entry.name for entry in matrices[:3])
            found = f"{path} is a folder with {len(matrices)} mtx files" + (f" ({names})" if matrices else "")
            raise InputError(found, "one matrix.mtx or matrix.mtx.gz", "name the mtx file itself")
        folder = path
        matrix = matrices[0]
    match = MTX_FILE.match(matrix.name)
    stem = match["stem"] if match else matrix.name
    sample = re.match(r".*[-_.]", stem)  # GSM1_ of GSM1_counts
    prefixes = [f"{stem}_", f"{stem}.", f"{stem}-", *([sample[0]] if sample else []), ""]
    if stem.lower().endswith("matrix"):
        prefixes = [stem[: -len("matrix")]]
    barcodes, features = (_companion(folder, prefixes, words, matrix) for words in (BARCODES, FEATURES))
    if barcodes is None or features is None:
        sides = ((BARCODES, barcodes), (FEATURES, features))
        missing = [" or ".join(f"{prefixes[0]}{word}.tsv" for word in words) for words, file in sides if file is None]
        barcodes, features = _find_others(matrix, barcodes, features, " and ".join(missing))
    return matrix, barcodes, features


def _companion(folder: Path, prefixes: Sequence[str], words: Sequence[str], matrix: Path) -> Path | None:
    """Return the file of barcodes or features that is named as by 10x Genomics."""
    names = [f"{word}.tsv{zipped}" for word in words for zipped in ("", ".gz")]
    for prefix in prefixes:
        files = [folder / f"{prefix}{name}" for name in names if (folder / f"{prefix}{name}").is_file()]
        if len(files) > 1:
            found = " and ".join(file.name for file in files)
            raise InputError(f"{found} beside {matrix}", "only one of them", "move the other file away")
        if files:
            return files[0]
    return None


class _Neighbour(NamedTuple):
    """A file next to a matrix, which may hold the names on an axis."""

    file: Path
    num_lines: int | None  # None: no text of names
    sizes: list[int]  # sizes of the axes that its number of lines fits, with or without a header
    role: str  # genes, cells or unknown
    rank: tuple[int, int]  # smaller is better: by the prefix it shares with the matrix, then by the words in its name


def _find_others(matrix: Path, barcodes: Path | None, features: Path | None, missing: str) -> tuple[Path, Path]:
    """Find the names of cells and genes by numbers of lines and content.

    `barcodes` and `features` are those that 10x's names have found, `missing` such names of the others. Of several
    files that fit, those whose names share the longest prefix with the matrix are preferred, then those with better
    words in their names. A matrix with no candidates, or with several equally good candidates, is refused.
    """
    sizes = matrix_size(matrix)
    near = [_describe(file, sizes, matrix) for file in _neighbours(matrix)]
    shown = near[:NUM_FILES_NAMED]
    seen = ", ".join(
        each.file.name if each.num_lines is None else f"{each.file.name} with {each.num_lines} lines" for each in shown
    )
    place = f"{matrix} of {sizes[0]} x {sizes[1]}"
    remedy = "name them as 10x Genomics does (barcodes.tsv and features.tsv)"
    pairs: list[tuple[_Neighbour, _Neighbour]] = []
    for of_genes, of_cells in (("genes", ("cells", "unknown")), ("unknown", ("cells",))):
        pairs = pairs or [
            (genes, cells)
            for genes in near
            for cells in near
            if (genes.file == features if features else genes.role == of_genes)
            and (cells.file == barcodes if barcodes else cells.role in of_cells)
            and genes.file != cells.file
            and any(a in genes.sizes and b in cells.sizes for a, b in (sizes, sizes[::-1]))
        ]
    if not pairs:
        found = f"no {missing} beside {place}, and no other files with names for it (seen: {seen or 'none'})"
        expected = "files with the name of each cell and of each gene on a line"
        raise InputError(found, expected, f"copy them into the folder, or {remedy}")
    best = min((genes.rank, cells.rank) for genes, cells in pairs)
    chosen = [pair for pair in pairs if (pair[0].rank, pair[1].rank) == best]
    names = list(dict.fromkeys(side.file.name for pair in chosen for side in pair))
    if len(chosen) > 1:
        expected = "one file with the names of its cells and one with the names of its genes"
        found = f"several files that fit {place} ({', '.join(names)})"
        raise InputError(found, expected, f"move the others away, or {remedy}")
    if sizes[0] == sizes[1]:
        found = f"{place}, whose rows may be named by either of {' and '.join(names)}"
        raise InputError(found, "different numbers of cells and genes", f"{remedy} if its rows are genes")
    return chosen[0][1].file, chosen[0][0].file


def _shared_prefix(matrix: Path, file: Path) -> int:
    """Return the length of the prefix that two file names share, up to a separator."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(matrix.name, file.name, strict=False))
    common = "".join(letter for letter, _ in pairs)
    return len(common.rstrip("".join(set(common) - set("-_."))))


def _neighbours(matrix: Path) -> list[Path]:
    """Return the files next to a matrix that may belong to it, rather than to another matrix of the folder."""
    files = sorted(entry for entry in matrix.parent.iterdir() if entry.is_file() and not entry.name.startswith("."))
    others = [file for file in files if MTX_FILE.match(file.name) and file != matrix]
    run = ARCHIVE_RUN.match(matrix.name)
    return [
        file
        for file in files
        if not MTX_FILE.match(file.name)
        and all(_shared_prefix(other, file) <= _shared_prefix(matrix, file) for other in others)
        and not (run and (own := ARCHIVE_RUN.match(file.name)) and own[0] != run[0])
    ]


def _describe(file: Path, sizes: tuple[int, int], matrix: Path) -> _Neighbour:
    """Recognise whether a file holds the names of genes or of cells, by its content or else by its name."""
    rest = file.name[_shared_prefix(matrix, file) :]
    role = "unknown"
    try:
        rows = _read_fields(file)
    except InputError:  # no text of names
        return _Neighbour(file, None, [], role, (0, 0))
    fitting = [size for size in set(sizes) if len(rows) == size]
    fitting += [size for size in set(sizes) if len(rows) == size + 1 and not _holds_names(rows[0])]
    if fitting:
        columns = zip(*(row for row in rows[1:] if len(row) == len(rows[-1])), strict=True)
        shares = [axis_shares(column) for column in columns]
        genes, cells = (max((share[i] for share in shares), default=0.0) for i in range(2))
        if max(genes, cells) >= AXIS_SHARE:
            role = "genes" if genes >= cells else "cells"
        elif GENE_WORDS.search(rest) or CELL_WORDS.search(rest):
            role = "genes" if GENE_WORDS.search(rest) else "cells"
    better = (NAME_WORDS if role == "genes" else BARCODE_WORDS).search(rest)
    words = 0 if better else 1 if CELL_WORDS.search(rest) else 2
    return _Neighbour(file, len(rows), fitting, role, (-_shared_prefix(matrix, file), words))


def _banner(file: IO[bytes]) -> list[bytes]:
    return file.readline(1000).removeprefix(b"\xef\xbb\xbf").lower().split()


def matrix_size(path: Path) -> tuple[int, int]:
    """Read the numbers of rows and columns from the header of an mtx file, and check its number of entries."""
    with reading(path, "a complete mtx file"), open_bytes(path) as file:
        banner = _banner(file)
        lines = iter(lambda: file.readline(MAX_LINE), b"")
        line = next((line for line in lines if line.strip() and not line.startswith(b"%")), b"")
        sizes = [int(word) for word in line.split()]
    expected = "a MatrixMarket file: %%MatrixMarket matrix coordinate, then rows, columns and entries"
    if len(banner) < 5 or banner[:3] != [b"%%matrixmarket", b"matrix", b"coordinate"] or len(sizes) != 3:
        raise InputError(f"{path} does not begin like a sparse matrix", expected, "copy or write it again")
    if banner[3] == b"complex" or banner[4] != b"general" or min(sizes) < 0:
        found = f"{path} is a matrix of the kind '{b' '.join(banner[3:5]).decode(errors='replace')}'"
        raise InputError(found, "integer or real, general", "write it with scipy.io.mmwrite or Matrix::writeMM")
    if sizes[2] > path.stat().st_size * (MAX_GZIP_RATIO if is_gzip(path) else 1) // MIN_ENTRY_BYTES:
        raise InputError(f"{path} is truncated ({sizes[2]} entries in its header)", "all of them", "copy it again")
    return sizes[0], sizes[1]


def _read_matrix(path: Path) -> sparse.csr_matrix:
    """Read the matrix as real numbers: SciPy would truncate decimals if the banner says integer."""
    with reading(path, "a complete mtx file"), open_bytes(path) as file:
        field = _banner(file)[3]
        if field == b"pattern":
            file.seek(0)
            return sparse.csr_matrix(mmread(file))
        x = sparse.csr_matrix(mmread(_AsReal(file)))
    return x.astype(np.int64) if field == b"integer" and np.array_equal(x.data, np.trunc(x.data)) else x


class _AsReal(io.RawIOBase):
    """The rest of an mtx file after a banner with `real`."""

    def __init__(self, rest: IO[bytes]):
        self.start = b"%%MatrixMarket matrix coordinate real general\n"
        self.rest = rest

    def read(self, size: int = -1) -> bytes:
        start = self.start
        self.start = b""
        return start or self.rest.read(size)


def _read_fields(path: Path) -> list[list[str]]:
    """Read the fields of each line of a file of names.

    Tabs separate them; in a .csv and in a file with quotes, the delimiter that splits the last line into most fields.
    """
    with reading(path, "text in UTF-8"), open_bytes(path) as file:
        if len(content := file.read(MAX_NAMES_BYTES + 1)) > MAX_NAMES_BYTES:
            found = f"{path} of more than {MAX_NAMES_BYTES:,} bytes when unpacked"
            raise InputError(found, "names", "check its content")
        text = content.decode("utf-8-sig")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n").split("\n") if text.strip() else []
    delimiters = "\t,; " if text.startswith('"') else "\t,;" if ".csv" in path.name.lower() else "\t"
    if not lines or delimiters == "\t":
        return [line.split("\t") for line in lines]
    try:
        num_fields = {delimiter: len(next(csv.reader(lines[-1:], delimiter=delimiter))) for delimiter in delimiters}
        rows = list(csv.reader(lines, delimiter=max(delimiters, key=lambda delimiter: num_fields[delimiter])))
    except csv.Error as error:
        raise InputError(f"{path} is no table of names ({error})", "a name in each line", "write it again") from error
    if len(rows) > 1 and len(rows[0]) == len(rows[-1]) - 1:  # R's write.table leaves out the corner
        rows[0].insert(0, "")
    return rows


def _holds_names(first: Sequence[str]) -> bool:
    """Whether the first line of a file holds the names of a cell or gene, so that it is not a header."""
    return any(map(BARCODE_OR_ID.match, first)) or any(is_gene(field.strip()) for field in first[:2])


def _as_table(rows: list[list[str]], size: int, path: Path) -> tuple[pd.DataFrame, bool]:
    """Make a table of `size` rows, and return whether an additional first line is its header.

    A first column of row numbers is left out if there are other columns.
    """
    has_header = len(rows) == size + 1
    first = rows[0] if rows else []
    same_type = len(first) > 2 and first[2] in {row[2] for row in rows[1:3] if len(row) > 2}
    if has_header and (same_type or _holds_names(first)):
        found = f"{path} with {size + 1} lines for {size} in the matrix"
        raise InputError(found, f"{size} lines, or a header above them", "take the files of one sample")
    num_columns = len(rows[-1]) if rows else 1
    ragged = next((number for number, row in enumerate(rows, start=1) if len(row) != num_columns), None)
    if ragged is not None:
        found = f"line {ragged} of {path} with another number of columns"
        raise InputError(found, f"{num_columns} columns", "write it again")
    names = first if has_header else [f"column_{number}" for number in range(1, num_columns + 1)]
    table = pd.DataFrame(rows[1:] if has_header else rows, columns=names, dtype=object)
    if num_columns > 1 and any(list(table.iloc[:, 0]) == list(map(str, range(n, n + size))) for n in (0, 1)):
        table = table.iloc[:, 1:]
    return table, has_header


def _make_var(table: pd.DataFrame, has_header: bool) -> pd.DataFrame:
    """Make var; columns are known by their names, or else are ids, symbols and feature types in this order.

    A single column holds the symbols; a gene without a symbol is named by its id.
    """
    names = [str(name).strip().lower() for name in table.columns]
    columns: dict[str, int | None] = {"symbols": None}
    if has_header:
        choices = {"symbols": SYMBOL_COLUMNS, "gene_ids": ID_COLUMNS, "feature_types": FEATURE_TYPE_COLUMNS}
        columns = {
            content: next((names.index(name) for name in known if name in names), None)
            for content, known in choices.items()
        }
    if columns["symbols"] is None:
        has_types = table.shape[1] > 2 and table.iloc[:, 2].astype(str).str.fullmatch(FEATURE_TYPE).any()
        columns = {
            "symbols": min(1, table.shape[1] - 1),
            "gene_ids": 0 if table.shape[1] > 1 else None,
            "feature_types": 2 if has_types else None,
        }
    values = {content: table.iloc[:, column].to_numpy() for content, column in columns.items() if column is not None}
    symbols = pd.Series(values.pop("symbols"), dtype=object)
    if "gene_ids" in values:
        symbols = symbols.where(symbols.str.strip() != "", values["gene_ids"])
    return pd.DataFrame(values, index=pd.Index(symbols, dtype=object))


def read_mtx(path: Path) -> tuple[AnnData, list[str]]:
    """Read a folder, or an mtx file and the files next to it; also return notes for the log.

    The numbers of names show which axis is the cells. A file of names with an additional line has a header. Further
    columns about the cells go into obs.
    """
    matrix, barcode_file, feature_file = find_matrix(path)
    num_rows, num_columns = matrix_size(matrix)
    barcodes = _read_fields(barcode_file)
    features = _read_fields(feature_file)

    def have_shape(rows: list[list[str]], columns: list[list[str]]) -> bool:
        return len(rows) - num_rows in (0, 1) and len(columns) - num_columns in (0, 1)

    genes_in_rows = have_shape(features, barcodes)
    if not genes_in_rows and not have_shape(barcodes, features):
        found = f"{matrix} of {num_rows} x {num_columns} beside {len(barcodes)} barcodes and {len(features)} features"
        expected = "a matrix with one row for each feature and one column for each barcode, or the other way round"
        raise InputError(found, expected, "take the three files of one sample")
    num_genes, num_cells = (num_rows, num_columns) if genes_in_rows else (num_columns, num_rows)
    x = _read_matrix(matrix)
    cells, has_header = _as_table(barcodes, num_cells, barcode_file)
    # The first column names the cells or, if there is a header, the first column without repetitions.
    unique = (column for column in range(cells.shape[1] if has_header else 0) if cells.iloc[:, column].is_unique)
    chosen = next(unique, 0)
    others = [column for column in range(cells.shape[1]) if column != chosen]
    obs = cells.iloc[:, others].set_axis(pd.Index(cells.iloc[:, chosen], dtype=object, name=None))
    var = _make_var(*_as_table(features, num_genes, feature_file))
    adata = AnnData(x.T.tocsr() if genes_in_rows else x, obs=obs, var=var)
    notes = [
        "genes in rows" if genes_in_rows else "cells in rows",
        f"names in {barcode_file.name}, {feature_file.name}",
    ]
    return expression_only(adata, notes, path)
