"""Read a matrix in the MatrixMarket format with the names of its genes and cells in files beside it.

10x Genomics and STARsolo call these files barcodes.tsv and features.tsv. Other tools use other names: their files are
known by their numbers of lines and their content.
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
from scperformer.files.safety import READ_ERRORS, reading
from scperformer.files.tenx import EXPRESSION, expression_only
from scperformer.genes import AXIS_SHARE, axis_shares, is_gene

MTX_FILE = re.compile(r"(?P<stem>.*)\.mtx(\.gz)?$", re.IGNORECASE)
DATA = re.compile(r"(.*_)?[ACGT]{8,}(-\d+)?$|ENS[A-Z]{0,4}G\d{6,}")  # a barcode or an Ensembl id
GZIP_SIGNATURE = b"\x1f\x8b"
LEAST_ENTRY = 4  # bytes of an entry of an mtx file: two numbers, a blank and the end of the line
MOST_GZIP = 1032  # gzip shrinks a file at most by this factor
LONGEST_LINE = 2**28  # bytes of a line of text; a million numbers with decimals have 2e7
MOST_NAMES = 2**30  # bytes of a file of barcodes or features, unpacked; 10 million barcodes have 2e8
BLOCK = 2**20  # bytes in which lines are counted
NUM_SHOWN = 8  # files that a refusal names
MOST_BLANK = 10  # lines at the end of a file
BARCODES, FEATURES = ("barcodes",), ("features", "genes")  # of 10x Genomics, with the ending .tsv or .tsv.gz
RUN = re.compile(r"(GSM|[SED]RR)\d+")  # of one sample in an archive
# Words in the names of files: what they hold, and the better ones of several that fit.
GENE_WORDS = re.compile(r"gene|feature", re.IGNORECASE)
CELL_WORDS = re.compile(r"barcode|cell", re.IGNORECASE)
NAME_WORDS = re.compile(r"name|symbol", re.IGNORECASE)
BARCODE_WORDS = re.compile(r"barcode", re.IGNORECASE)
# Columns of a table of genes, by their names in its first line.
SYMBOLS = (
    "gene_name",
    "gene_names",
    "feature_name",
    "gene_symbol",
    "gene_symbols",
    "symbol",
    "gene_short_name",
    "name",
)
IDS = ("gene_id", "gene_ids", "feature_id", "ensembl_id", "ensembl_gene_id", "ensembl", "geneid", "id")
TYPES = ("feature_type", "feature_types")
FEATURE_TYPE = re.compile(rf"{EXPRESSION}|.* Capture|Peaks|Custom|VDJ.*")  # as 10x Genomics calls them


def is_gzip(path: Path) -> bool:
    """Return whether the content of a file, not its name, is gzip."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_SIGNATURE


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, uncompressed if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


# Finding the files


def find_matrix(path: Path) -> tuple[Path, Path, Path]:
    """Find the matrix, the barcodes and the features of a folder, or of an mtx file and its neighbours.

    A file that does not have the name it has with 10x Genomics is known by its number of lines: `_find_others`.
    """
    folder = path.parent
    matrix = path
    if path.is_dir():
        every = sorted(entry for entry in path.iterdir() if MTX_FILE.match(entry.name) and entry.is_file())
        found = [entry for entry in every if "matrix.mtx" in entry.name.lower()] or every  # STARsolo writes others, too
        if len(found) != 1:
            names = ", ".join(entry.name for entry in found[:3])
            text = f"{path} is a folder with {len(found)} mtx files" + (f" ({names})" if found else "")
            raise InputError(text, "one matrix.mtx or matrix.mtx.gz", "name the mtx file itself")
        folder = path
        matrix = found[0]
    match = MTX_FILE.match(matrix.name)
    stem = match["stem"] if match else matrix.name
    if stem.lower().endswith("matrix"):
        prefixes = [stem[: -len("matrix")]]
    else:
        sample = re.match(r".*[-_.]", stem)  # GSM1_ of GSM1_counts
        prefixes = [f"{stem}_", f"{stem}.", f"{stem}-", *([sample[0]] if sample else []), ""]
    barcodes, features = (_companion(folder, prefixes, words, matrix) for words in (BARCODES, FEATURES))
    if barcodes is None or features is None:
        missing = " and ".join(
            " or ".join(f"{prefixes[0]}{word}.tsv" for word in words)
            for words, file in ((BARCODES, barcodes), (FEATURES, features))
            if file is None
        )
        barcodes, features = _find_others(matrix, barcodes, features, missing)
    return matrix, barcodes, features


def _companion(folder: Path, prefixes: Sequence[str], words: Sequence[str], matrix: Path) -> Path | None:
    names = [f"{word}.tsv{zipped}" for word in words for zipped in ("", ".gz")]
    for prefix in prefixes:
        found = [folder / f"{prefix}{name}" for name in names if (folder / f"{prefix}{name}").is_file()]
        if len(found) > 1:
            there = " and ".join(file.name for file in found)
            raise InputError(f"{there} beside {matrix}", "one of them", "move the other one away")
        if found:
            return found[0]
    return None


class _Neighbour(NamedTuple):
    """A file beside a matrix that may hold the names on one of its axes."""

    file: Path
    sizes: list[int]  # of the axes that its number of lines fits, without a header
    role: str  # genes, cells or unknown
    rank: tuple[int, int]  # smaller is better: by the beginning of its name, and by the words in it


def _find_others(matrix: Path, barcodes: Path | None, features: Path | None, missing: str) -> tuple[Path, Path]:
    """Find the names of cells and genes by numbers of lines and content; `missing`: what 10x Genomics calls them.

    Of several files that fit, those whose names begin most like that of the matrix are taken, then those with better
    words in their names. Refused if there is none, or still more than one.
    """
    sizes = matrix_size(matrix)
    lines = {file: _count_lines(file, max(sizes) + MOST_BLANK) for file in _neighbours(matrix)}
    near = [_describe(file, sizes, matrix) for file, num in lines.items() if num and num >= min(sizes)]
    shown = list(lines.items())[:NUM_SHOWN]
    seen = ", ".join(file.name if num is None else f"{file.name} with {num} lines" for file, num in shown)
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
        raise InputError(
            found, "the names of its cells and its genes, a line each", f"copy them into the folder, or {remedy}"
        )
    best = min((genes.rank, cells.rank) for genes, cells in pairs)
    chosen = [pair for pair in pairs if (pair[0].rank, pair[1].rank) == best]
    if len(chosen) > 1:
        names = ", ".join(dict.fromkeys(side.file.name for pair in chosen for side in pair))
        expected = "one file with the names of its cells and one with the names of its genes"
        raise InputError(f"several files that fit {place} ({names})", expected, f"move the others away, or {remedy}")
    if sizes[0] == sizes[1]:
        names = " and ".join(side.file.name for side in chosen[0])
        found = f"{place}, whose rows may be those of {names} alike"
        raise InputError(found, "different numbers of cells and genes", f"{remedy} if its rows are genes")
    return chosen[0][1].file, chosen[0][0].file


def _shared(matrix: Path, file: Path) -> int:
    """Return the length of the common beginning of two names, up to a separator."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(matrix.name, file.name, strict=False))
    common = "".join(letter for letter, _ in pairs)
    return len(common.rstrip("".join(set(common) - set("-_."))))


def _neighbours(matrix: Path) -> list[Path]:
    """Return the files beside a matrix that may belong to it, and not to another matrix there."""
    files = sorted(entry for entry in matrix.parent.iterdir() if entry.is_file() and not entry.name.startswith("."))
    others = [file for file in files if MTX_FILE.match(file.name) and file != matrix]
    run = RUN.match(matrix.name)
    return [
        file
        for file in files
        if not MTX_FILE.match(file.name)
        and all(_shared(other, file) <= _shared(matrix, file) for other in others)
        and not (run and (own := RUN.match(file.name)) and own[0] != run[0])
    ]


def _count_lines(path: Path, most: int) -> int | None:
    """Count the lines of a file of text; None for any other file, and for one of more than `most` lines."""
    num = 0
    size = 0
    last = b"\n"
    try:
        with open_bytes(path) as file:
            while block := file.read(BLOCK):
                num += block.count(b"\n")
                size += len(block)
                last = block[-1:]
                if b"\0" in block or num > most or size > MOST_NAMES:
                    return None
    except READ_ERRORS:
        return None
    return num + (last != b"\n")


def _describe(file: Path, sizes: tuple[int, int], matrix: Path) -> _Neighbour:
    """Find out whether a file holds the names of genes or of cells, by its content or else by its name."""
    try:
        rows = _read_fields(file)
    except InputError:  # no table of names
        rows = []
    rest = file.name[_shared(matrix, file) :]
    role = "unknown"
    fitting = [size for size in set(sizes) if len(rows) == size]
    fitting += [size for size in set(sizes) if len(rows) == size + 1 and not _is_data(rows[0])]
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
    return _Neighbour(file, fitting, role, (-_shared(matrix, file), words))


# The matrix


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
        self.start = b"%%MatrixMarket matrix coordinate real general\n"
        self.rest = rest

    def read(self, size: int = -1) -> bytes:
        start = self.start
        self.start = b""
        return start or self.rest.read(size)


def _read_matrix(path: Path) -> sparse.csr_matrix:
    with reading(path, "a complete mtx file"), open_bytes(path) as file:
        field = _banner(file)[3]
        if field == b"pattern":
            file.seek(0)
        x = sparse.csr_matrix(mmread(file if field == b"pattern" else _AsReal(file)))
    return x.astype(np.int64) if field == b"integer" and np.array_equal(x.data, np.trunc(x.data)) else x


# The names


def _read_fields(path: Path) -> list[list[str]]:
    """Read the fields of each line of a file of names; tabs separate them, or what a .csv or a file with quotes has."""
    with reading(path, "text in UTF-8"), open_bytes(path) as file:
        if len(content := file.read(MOST_NAMES + 1)) > MOST_NAMES:
            raise InputError(f"{path} of more than {MOST_NAMES:,} bytes when unpacked", "names", "check its content")
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
    if len(rows) > 1 and len(rows[0]) == len(rows[-1]) - 1:  # as R's write.table writes names of rows
        rows[0].insert(0, "")
    return rows


def _is_data(first: Sequence[str]) -> bool:
    """Whether the first line of a file holds names of cells or genes, not of columns."""
    return any(map(DATA.match, first)) or any(is_gene(field.strip()) for field in first[:2])


def _as_table(rows: list[list[str]], size: int, path: Path) -> tuple[pd.DataFrame, bool]:
    """Make a table of `size` rows; one line more than that must be a header. Also return whether there is one.

    A first column that only counts the rows is left out if there are others.
    """
    has_header = len(rows) == size + 1
    first = rows[0] if rows else []
    same_kind = len(first) > 2 and first[2] in {row[2] for row in rows[1:3] if len(row) > 2}
    if has_header and (same_kind or _is_data(first)):
        found = f"{path} with {size + 1} lines for {size} in the matrix"
        raise InputError(found, "one line each, or names of columns above them", "take the files of one sample")
    num = len(rows[-1]) if rows else 1
    ragged = next((number for number, row in enumerate(rows, start=1) if len(row) != num), None)
    if ragged is not None:
        raise InputError(f"line {ragged} of {path} with another number of columns", f"{num} of them", "write it again")
    names = first if has_header else [f"column_{number}" for number in range(1, num + 1)]
    table = pd.DataFrame(rows[1:] if has_header else rows, columns=names, dtype=object)
    if num > 1 and any(list(table.iloc[:, 0]) == list(map(str, range(start, start + size))) for start in (0, 1)):
        table = table.iloc[:, 1:]
    return table, has_header


def _of_cells(table: pd.DataFrame, has_header: bool) -> pd.DataFrame:
    """Make obs of a table; cells are named by the first column, or under a header by the first one without repeats."""
    unique = (place for place in range(table.shape[1] if has_header else 0) if table.iloc[:, place].is_unique)
    place = next(unique, 0)
    others = [other for other in range(table.shape[1]) if other != place]
    return table.iloc[:, others].set_axis(pd.Index(table.iloc[:, place], dtype=object, name=None))


def _of_genes(table: pd.DataFrame, has_header: bool) -> pd.DataFrame:
    """Make var of a table: columns are known by their names, or else are ids, symbols and kinds of feature.

    A table of one column has the symbols alone; a gene without a symbol is named by its id.
    """
    names = [str(name).strip().lower() for name in table.columns]
    places = {
        known: next((names.index(name) for name in choices if has_header and name in names), None)
        for known, choices in (("symbols", SYMBOLS), ("gene_ids", IDS), ("feature_types", TYPES))
    }
    if places["symbols"] is None:
        several = table.shape[1] > 1
        third = table.shape[1] > 2 and table.iloc[:, 2].astype(str).str.fullmatch(FEATURE_TYPE).any()
        places = {
            "symbols": min(1, table.shape[1] - 1),
            "gene_ids": 0 if several else None,
            "feature_types": 2 if third else None,
        }
    about = {name: table.iloc[:, place].to_numpy() for name, place in places.items() if place is not None}
    symbols = pd.Series(about.pop("symbols"), dtype=object)
    if "gene_ids" in about:
        symbols = symbols.where(symbols.str.strip() != "", about["gene_ids"])
    return pd.DataFrame(about, index=pd.Index(symbols, dtype=object))


def read_mtx(path: Path) -> tuple[AnnData, list[str]]:
    """Read a folder, or an mtx file, with the names of its cells and genes beside it; also return notes for the log.

    The numbers of names show which axis is the cells. If a file has one line more, its first line is taken as names of
    columns. Further columns about the cells go into obs.
    """
    matrix, barcode_file, feature_file = find_matrix(path)
    num_rows, num_columns = matrix_size(matrix)
    barcodes = _read_fields(barcode_file)
    features = _read_fields(feature_file)

    def fit(rows: list[list[str]], columns: list[list[str]]) -> bool:
        return len(rows) - num_rows in (0, 1) and len(columns) - num_columns in (0, 1)

    genes_in_rows = fit(features, barcodes)
    if not genes_in_rows and not fit(barcodes, features):
        found = f"{matrix} of {num_rows} x {num_columns} beside {len(barcodes)} barcodes and {len(features)} features"
        expected = "a matrix with one row for each feature and one column for each barcode, or the other way round"
        raise InputError(found, expected, "take the three files of one sample")
    num_genes, num_cells = (num_rows, num_columns) if genes_in_rows else (num_columns, num_rows)
    x = _read_matrix(matrix)
    obs = _of_cells(*_as_table(barcodes, num_cells, barcode_file))
    var = _of_genes(*_as_table(features, num_genes, feature_file))
    adata = AnnData(x.T.tocsr() if genes_in_rows else x, obs=obs, var=var)
    notes = [
        "genes in rows" if genes_in_rows else "cells in rows",
        f"names in {barcode_file.name}, {feature_file.name}",
    ]
    return expression_only(adata, notes, path)
