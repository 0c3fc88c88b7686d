"""Read a matrix in the MatrixMarket format, and the names of its genes and cells from two files beside it."""

import csv
import gzip
import io
import re
from itertools import product
from pathlib import Path
from typing import IO

import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mminfo, mmread
from threadpoolctl import threadpool_limits

from scperformer.base.errors import InputError
from scperformer.base.inputs import names_beside
from scperformer.base.parallel import usable_cores
from scperformer.io.axes import is_cell, is_gene, unquoted
from scperformer.io.safety import reading

MTX_FILE = re.compile(r"(?P<stem>.*)\.mtx(\.gz)?$", re.IGNORECASE)
# The files of cells and genes of each tool, after a common prefix; each may end with .gz.
NAME_FILES = (
    ("barcodes.tsv", "features.tsv"),  # 10x Genomics, STARsolo
    ("barcodes.tsv", "genes.tsv"),  # Cell Ranger 2
    ("barcodes.txt", "genes.txt"),  # kb-python
    ("rows.txt", "cols.txt"),  # alevin-fry
    ("mtx_cols", "mtx_rows"),  # Expression Atlas
    ("cell_metadata.csv", "all_genes.csv"),  # Parse
    ("barcodes.csv", "genes.csv"),  # of R, as often in GEO, with a first column of row numbers
)
HEADER_BYTES = 2**20  # the sizes of a matrix are within these
# spellings that the standard does not have
FIELD_SPELLINGS = {b"float": b"real", b"double": b"real", b"int": b"integer"}
NUM_NAME_LINES = 20  # lines of a file of names that show the number of its fields
# an entry of an mtx file has at least two digits, a blank and the end of the line
MIN_ENTRY_BYTES = 4
THREADS_OF_MMREAD = (
    "scipy"  # as threadpoolctl names them; by default as many as the machine has cores
)
MAX_GZIP_RATIO = 1032  # gzip compresses at most by this factor
MAX_LINE_BYTES = 2**28  # bytes of a line of text; a million numbers with decimals have 2e7
MAX_NAMES_BYTES = 2**28  # bytes of a file of names, unpacked; 10 million barcodes have 2e8


def is_gzip(path: Path) -> bool:
    """Whether the content of a file, not its name, is gzip."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, uncompressed if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


def find_matrix(path: Path) -> tuple[Path, Path, Path]:
    """Find the matrix, the cells and the genes in a folder or beside an mtx file, maybe with a prefix."""
    matrix = path
    if path.is_dir():
        mtx_files = sorted(
            entry for entry in path.iterdir() if MTX_FILE.match(entry.name) and entry.is_file()
        )
        # STARsolo also writes other mtx files.
        matrices = [entry for entry in mtx_files if "matrix.mtx" in entry.name.lower()] or mtx_files
        if len(matrices) != 1:
            names = ", ".join(entry.name for entry in matrices[:3])
            found = f"{path} is a folder with {len(matrices)} mtx files" + (
                f" ({names})" if matrices else ""
            )
            raise InputError(
                "mtx-folder", found, "one matrix.mtx or matrix.mtx.gz", "name the mtx file itself"
            )
        matrix = matrices[0]
    match = MTX_FILE.match(matrix.name)
    stem = match["stem"] if match else matrix.name
    prefixes = [f"{stem}_", f"{stem}.", f"{stem}-", *re.findall(r"^.*[-_.]", stem), ""]
    if stem.lower().endswith("matrix"):
        # the latter is Parse's
        prefixes = [stem[: -len("matrix")]] if stem.lower() != "count_matrix" else [""]
    for prefix in prefixes:
        for pair in NAME_FILES:
            choices = (
                [matrix.with_name(f"{prefix}{name}{zipped}") for zipped in ("", ".gz")]
                for name in pair
            )
            cells, genes = (next(filter(Path.is_file, files), None) for files in choices)
            if cells is not None and genes is not None:
                return matrix, cells, genes
    nearby = ", ".join(sorted(names_beside(matrix))[:8])
    found = f"no {prefixes[0]}barcodes.tsv and {prefixes[0]}features.tsv (or genes.tsv) beside {matrix} "
    found += f"(seen: {nearby})"
    expected = "files with the name of each cell and of each gene in a line"
    raise InputError("mtx-names", found, expected, "copy them into the folder, and name them so")


class _Spelled:
    """An mtx file to be read, with the first line as the standard spells it; other programs write `float`, `double`."""

    def __init__(self, file: IO[bytes]):
        self.file = file
        words = file.readline(HEADER_BYTES).lower().split()
        self.first = (
            b" ".join([b"%%MatrixMarket", *(FIELD_SPELLINGS.get(word, word) for word in words[1:])])
            + b"\n"
        )

    def read(self, size: int = -1) -> bytes:
        part, self.first = self.first, b""
        return part or self.file.read(size)


def matrix_size(path: Path) -> tuple[int, int]:
    """Read the numbers of rows and columns from the header of an mtx file, and check its number of entries."""
    with reading(path, "a complete mtx file"), open_bytes(path) as file:
        start = _Spelled(file)
        header = io.BytesIO(start.read() + start.read(HEADER_BYTES))
        num_rows, num_columns, num_entries, layout, field, symmetry = mminfo(header)
    if (layout, symmetry) != ("coordinate", "general") or field == "complex":
        found = f"{path} is a matrix of the kind '{layout} {field} {symmetry}'"
        raise InputError(
            "mtx-kind",
            found,
            "coordinate, real or integer, general",
            "write it with scipy.io.mmwrite",
        )
    if (
        num_entries
        > path.stat().st_size * (MAX_GZIP_RATIO if is_gzip(path) else 1) // MIN_ENTRY_BYTES
    ):
        found = f"{path} is truncated ({num_entries} entries in its header)"
        raise InputError("damaged-file", found, "all of them", "copy it again")
    return num_rows, num_columns


def _read_names(path: Path) -> pd.DataFrame:
    """Read the fields of all lines of a file of names, a header among them, without the quotes around them."""
    with reading(path, "text in UTF-8"), open_bytes(path) as file:
        content = file.read(MAX_NAMES_BYTES + 1)
        if len(content) > MAX_NAMES_BYTES:
            found = f"{path} of more than {MAX_NAMES_BYTES:,} bytes when unpacked"
            raise InputError("names-too-long", found, "names", "check its content")
        if b"\0" in content:  # pandas would cut a name there
            raise ValueError("a null character")
        separator, quoting = (
            (",", csv.QUOTE_MINIMAL) if ".csv" in path.name.lower() else ("\t", csv.QUOTE_NONE)
        )
        first_lines = content.split(b"\n", NUM_NAME_LINES)[:NUM_NAME_LINES]
        # a header may have fewer
        columns = range(1 + max(line.count(separator.encode()) for line in first_lines))
        options = {
            "header": None,
            "names": columns,
            "index_col": False,
            "dtype": object,
            "na_filter": False,
        }
        table = pd.read_csv(io.BytesIO(content), sep=separator, quoting=quoting, **options)
    return table.apply(unquoted) if any(quote in content for quote in (b'"', b"'")) else table


def _headers(
    shape: tuple[int, int], genes: pd.DataFrame, cells: pd.DataFrame
) -> tuple[int, int, bool] | None:
    """Return the numbers of header lines, 0 or 1, above genes and cells with which they fit the matrix, and its layout.

    The layout is whether genes are in rows. A line that names a gene or a cell is not a header.
    """
    may_have = [
        [0]
        if table.iloc[:1].map(lambda field: is_gene(field) or is_cell(field)).to_numpy().any()
        else [0, 1]
        for table in (genes, cells)
    ]
    for of_genes, of_cells in sorted(product(*may_have), key=sum):
        size = len(genes) - of_genes, len(cells) - of_cells
        if shape in (size, size[::-1]):
            return of_genes, of_cells, shape == size
    return None


def read_mtx(path: Path) -> tuple[AnnData, list[str]]:
    """Read a folder, or an mtx file and the files beside it, by the numbers of names; also return notes."""
    matrix, cell_file, gene_file = find_matrix(path)
    shape = matrix_size(matrix)
    cells = _read_names(cell_file)
    genes = _read_names(gene_file)
    if (fitting := _headers(shape, genes, cells)) is None:
        found = f"{matrix} of {shape[0]} x {shape[1]} beside {len(cells)} barcodes and {len(genes)} features"
        expected = "a matrix with one row for each feature and one column for each barcode, or the other way round"
        raise InputError("mtx-shape", found, expected, "take the three files of one sample")
    of_genes, of_cells, genes_in_rows = fitting
    notes = [
        "genes in rows" if genes_in_rows else "cells in rows",
        f"names in {cell_file.name}, {gene_file.name}",
    ]
    tables = []
    for table, num, names in ((genes, of_genes, gene_file), (cells, of_cells, cell_file)):
        fields = table.iloc[num:]
        fields = fields.loc[:, (fields != "").any()]
        notes += [f"without the first line of {names.name}, a header"] * num
        numbers = [list(map(str, range(start, start + len(fields)))) for start in (0, 1)]
        if fields.shape[1] > 1 and fields.iloc[:, 0].tolist() in numbers:
            fields = fields.iloc[:, 1:]
        if fields.columns[0] != 0:
            notes.append(f"without the row numbers of {names.name}")
        tables.append(fields)
    genes, cells = tables
    with (
        reading(matrix, "a complete mtx file"),
        threadpool_limits(usable_cores(), user_api=THREADS_OF_MMREAD),
        open_bytes(matrix) as file,
    ):
        x = sparse.csr_matrix(mmread(_Spelled(file)))
    columns = ["gene_ids", "symbols", "feature_types"] if genes.shape[1] > 1 else ["symbols"]
    # the third one of Parse is the genome
    num_columns = 2 if ".csv" in gene_file.name.lower() else 3
    genes = genes.iloc[:, :num_columns]
    var = (
        genes.set_axis(columns[: genes.shape[1]], axis=1)
        .set_index("symbols")
        .rename_axis(index=None)
    )
    obs = pd.DataFrame(index=pd.Index(cells.iloc[:, 0].to_numpy(), dtype=object))
    return AnnData(x.T.tocsr() if genes_in_rows else x, obs=obs, var=var), notes
