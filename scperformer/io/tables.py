"""Read tables of text: recognise the delimiter and the orientation; refuse tables without names or with other values.

The names on both axes decide the orientation. If they are ambiguous, the user has to give it.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.base.child import EXTRA_MEMORY
from scperformer.base.errors import InputError
from scperformer.io.axes import AXIS_SHARE, axis_shares, is_gene, unquoted
from scperformer.io.mtx import MAX_LINE_BYTES, open_bytes
from scperformer.io.safety import READ_ERRORS, damaged

DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", " ": "blank"}
NUM_SNIFFED = 20  # lines that must agree on the delimiter
MAX_COMMENTS = 1000  # lines above the header
MAX_TABLE_LINES = 5_000_000
MAX_TABLE_COLUMNS = 2**18  # pandas takes 40 microseconds for each of them in each block of rows
MIN_BLOCK_ROWS = 64  # in a block
# ratio of the bytes of a table to those of its gzip file; a table of 99.5 % zeros has 300
MAX_UNPACKED = 500
MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "None", "null"})
TABLE_VALUES_AT_ONCE = 4 * 2**20  # values that are dense in memory
AS_H5AD = "write it as h5ad"
BACKGROUND = "{num:,} rows of cell_ID 0 are left out, as they are no cells"
TABLE_OF_NUMBERS = (
    "a table of numbers with the names of genes and cells in the first row and column"
)

CELLS_BY_GENES = "cells_by_genes"
GENES_BY_CELLS = "genes_by_cells"
# Names of columns that identify cells, alone or together, such as fov and cell_ID of CosMx.
IDENTIFIES_CELLS = r"barcodes?|cells?|cell_?(id|name|index)s?|fov|slide(_?(id|name))?"
# the column of a long table
COUNT_COLUMN = re.compile(r"(umi_?)?counts?|umis?|reads|values?|n", re.IGNORECASE)
MAX_LONG_COLUMNS = 30
# Names of columns that describe cells, as Scanpy, Seurat and users call them, and names of columns that describe genes.
ABOUT_CELLS = re.compile(
    r"n_?(counts?|genes?|umis?|features?)(_\w+)?|(log1?p?_?)?(total_counts|n_genes_by_counts|n_counts)(_\w+)?"
    r"|(pct|percent|fraction|frac)_\w+|(mt|mito|ribo)_(pct|percent|fraction|frac|ratio)|size_?factors?"
    r"|(leiden|louvain|(seurat_)?clusters?|rna_snn_res)(_\w+)?|(umap|tsne|pc)_\d+|(predicted_)?doublets?(_scores?)?"
    r"|cell_?types?|labels?|annotations?|batch|orig_ident|phase|(s|g2m)_score"
    r"|(sample|donor|patient)(_?(id|name))?|condition|treatment|disease|tissue|sex|age"
    rf"|{IDENTIFIES_CELLS}"
)
ABOUT_GENES = re.compile(
    r"id|(gene_?|ensembl_?(gene_?)?|entrez_?)ids?|ensembl|entrez|(gene_?)?(names?|symbols?)|(gene_)?(bio)?types?"
    r"|description|chr(omosome)?|start|end|strand|length"
)


class Layout(NamedTuple):
    """The format of a table of text."""

    delimiter: str
    corner: str  # the field above the row names; R's write.table leaves it out
    header: list[str]  # the first row without the corner
    num_comments: int  # number of lines above the first row
    rows: list[list[str]]  # the first rows below it


class _Limiter(io.RawIOBase):
    """The bytes of a file; lines that are too long or too many are refused before they are in memory."""

    def __init__(self, file: IO[bytes], path: Path):
        self.file = file
        self.path = path
        self.length = 0  # length of the incomplete line so far
        self.num_lines = 0
        self.left = EXTRA_MEMORY + MAX_UNPACKED * path.stat().st_size  # bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self.file.read(min(len(buffer), MAX_LINE_BYTES))
        buffer[: len(chunk)] = chunk
        ends = [position for position in (chunk.find(b"\n"), chunk.find(b"\r")) if position >= 0]
        self.num_lines += chunk.count(b"\n")
        self.left -= len(chunk)
        found = ""
        if self.length + min(ends, default=len(chunk)) >= MAX_LINE_BYTES:
            found = f"a line of {MAX_LINE_BYTES:,} characters or more"
        elif self.num_lines > MAX_TABLE_LINES:
            found = f"more than {MAX_TABLE_LINES:,} lines"
        elif self.left < 0:
            found = f"text that is more than {MAX_UNPACKED} times as large when it is unpacked"
        if found:
            found = f"{self.path} with {found}"
            raise InputError(
                "table-text", found, TABLE_OF_NUMBERS, f"check its content, or {AS_H5AD}"
            )
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        self.length = len(chunk) - 1 - last if ends else self.length + len(chunk)
        return len(chunk)


@contextmanager
def _open_table(path: Path, below: Layout | None = None) -> Iterator[IO[str]]:
    """Open a table as text in UTF-8 or UTF-16; with a layout, below the header. Errors are about the table."""
    try:
        with open_bytes(path) as file:
            buffered = io.BufferedReader(_Limiter(file, path), 2**20)
            is_utf_16 = buffered.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            text = io.TextIOWrapper(
                buffered, encoding="utf-16" if is_utf_16 else "utf-8-sig", newline=""
            )
            if below is not None:
                lines = islice(text, below.num_comments, None)
                next(row for row in csv.reader(lines, delimiter=below.delimiter) if row)
            yield text
    except InputError:
        raise
    except UnicodeDecodeError as error:
        remedy = f"convert it, for example 'iconv -f latin1 -t utf-8 {path.name}'"
        raise InputError(
            "not-utf8", f"{path} with bytes that are not UTF-8", "text in UTF-8", remedy
        ) from error
    except (pd.errors.ParserError, csv.Error) as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        expected = f"{TABLE_OF_NUMBERS}, the same number of fields in each row"
        raise InputError(
            "ragged-table", f"{path} is ragged ({reason})", expected, "write it again"
        ) from error
    except READ_ERRORS as error:
        raise damaged(path, error, "a complete table") from error


def sniff(path: Path, expected: str = TABLE_OF_NUMBERS) -> Layout:
    """Recognise the layout of a table, which errors call `expected`.

    Lines that begin with # above the header are comments, but the last one is the header if its fields fit the rows.
    """
    with _open_table(path) as stream:
        comments = list(
            takewhile(lambda line: line.lstrip('"').startswith("#"), islice(stream, MAX_COMMENTS))
        )
    with _open_table(path) as stream:
        lines = list(islice(stream, len(comments), len(comments) + NUM_SNIFFED))
    tried: dict[str, list[list[str]]] = {}
    for delimiter in DELIMITERS:
        try:
            rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            continue
        # A quoted name may contain line breaks, so the last row may be incomplete.
        tried[delimiter] = rows[:-1] if len(lines) == NUM_SNIFFED and len(rows) > 2 else rows
    widths = {delimiter: [len(row) for row in rows] or [0] for delimiter, rows in tried.items()}
    fitting = [
        delimiter
        for delimiter, (first, *others) in widths.items()
        if len(set(others)) == 1 and others[0] >= 2 and first in (others[0], others[0] - 1)
    ]
    if not fitting:
        widest = ", ".join(map(str, max(widths.values(), key=max)[:5]))
        found = f"{path} is not a table (numbers of fields in its first lines: {widest})"
        raise InputError(
            "not-a-table",
            found,
            f"{expected}, the same number of fields in each row",
            "write it again",
        )
    # Labels may contain blanks and commas, by chance as many in each row.
    delimiter = max(
        fitting, key=lambda each: (len(set(widths[each])) == 1, each != " ", widths[each][-1])
    )
    first, *rows = tried[delimiter]
    width = len(rows[0])
    if width > MAX_TABLE_COLUMNS:
        found = f"{path} with {width:,} columns"
        raise InputError(
            "too-many-columns",
            found,
            f"{expected}, and at most {MAX_TABLE_COLUMNS:,} columns",
            AS_H5AD,
        )
    last = next(csv.reader(comments[-1:], delimiter=delimiter), [])
    # a row, not the header
    has_numbers = any(field.strip().replace(".", "", 1).isdecimal() for field in first[1:])
    if has_numbers and len(last) in (width, width - 1) and len(first) == width:
        rows.insert(0, first)
        first = [last[0].lstrip("#"), *last[1:]]
        del comments[-1]
    corner, header = (first[0], first[1:]) if len(first) == width else ("", first)
    return Layout(delimiter, corner, unquoted(header), len(comments), rows)


def _texts(layout: Layout) -> np.ndarray:
    """Whether each field of a row is text in all first rows, not a number or missing; boolean."""

    def is_text(field: str) -> bool:
        return any(map(str.isalpha, field)) and not re.fullmatch(
            r"[-+]?(\d[\d.]*e[-+]?\d+|inf)", field, re.IGNORECASE
        )

    columns = zip(*layout.rows, strict=True)
    return np.array(
        [set(column) - MISSING != set() and all(map(is_text, column)) for column in columns],
        dtype=bool,
    )


def _long_columns(layout: Layout, is_text: np.ndarray) -> tuple[int, list[int], int | None] | None:
    """Return the columns of genes, cells and counts of a long table, in which a row is a gene of a cell, or a molecule.

    None: the table is wide. Without a column of counts, each row is one.
    """
    names = [layout.corner, *layout.header]
    columns = list(zip(*layout.rows, strict=True))
    texts = np.flatnonzero(is_text).tolist()
    shares = {column: axis_shares(columns[column]) for column in texts}
    genes = [column for column in texts if shares[column][0] >= AXIS_SHARE]
    named = [
        column
        for column, name in enumerate(names)
        if re.fullmatch(IDENTIFIES_CELLS, name.strip().lower())
    ]
    cells = named or [
        column for column in texts if column not in genes and shares[column][1] >= AXIS_SHARE
    ]
    if not genes or not cells or len(names) > MAX_LONG_COLUMNS or axis_shares(layout.header)[0] > 0:
        return None
    rest = [column for column in range(len(names)) if column not in (*cells, *texts)]
    counts = next(
        (column for column in rest if COUNT_COLUMN.fullmatch(names[column].strip())), None
    )
    if counts is None and len(names) <= 4:
        counts = rest[-1] if rest else None
    is_repeated = len(set(zip(*(columns[column] for column in cells), strict=True))) < len(
        layout.rows
    )
    return (genes[0], cells, counts) if is_repeated or counts is not None else None


def _read_long(
    path: Path, layout: Layout, columns: tuple[int, list[int], int | None]
) -> tuple[AnnData, list[str]]:
    """Read a long table: the sum of the counts of each gene of each cell; without counts, its number of rows."""
    gene, cells, counts = columns
    names = [layout.corner, *layout.header]
    dtype = dict.fromkeys([gene, *cells], "category") | ({} if counts is None else {counts: str})
    with _open_table(path, layout) as stream:
        table = pd.read_csv(
            stream,
            header=None,
            sep=layout.delimiter,
            dtype=dtype,
            usecols=list(dtype),
            na_filter=False,
        )
    keys = table[cells].set_axis([names[column] for column in cells], axis=1)
    is_cell = ~_is_background(keys)
    table, keys = table[is_cell], keys[is_cell]
    named, used = _named_cells(keys.astype(str))
    values = (
        np.ones(len(table))
        if counts is None
        else pd.to_numeric(table[counts], errors="coerce").to_numpy(float)
    )
    if not np.isfinite(values).all():
        example = repr(str(table[counts][~np.isfinite(values)].iloc[0])[:40])
        found = f"column '{names[counts or 0]}' of {path} with {example}, not a number"
        raise InputError(
            "table-text", found, "a long table with a number in each row", "remove such rows"
        )
    rows, cell_names = pd.factorize(named)
    places, genes = pd.factorize(table[gene].astype(str))
    x = sparse.csr_matrix((values, (rows, places)), shape=(len(cell_names), len(genes)))
    obs = keys.astype(str)[~pd.Series(rows).duplicated().to_numpy()].set_axis(
        unquoted(cell_names), axis=0
    )
    what = "a molecule" if counts is None else f"the {names[counts]} of a gene in a cell"
    notes = [f"{DELIMITERS[layout.delimiter]}-separated", f"a long table, each row {what}", used]
    if num := int((~is_cell).sum()):
        notes.append(BACKGROUND.format(num=num))
    return AnnData(
        x, obs=_with_numbers(obs).set_axis(obs.index), var=pd.DataFrame(index=unquoted(genes))
    ), notes


def _is_background(keys: pd.DataFrame) -> np.ndarray:
    """Return which rows are molecules outside of cells: number 0 of a field of view of CosMx; boolean."""
    lower = {str(name).strip().lower(): name for name in keys}
    if not {"fov", "cell_id"} <= set(lower):
        return np.zeros(len(keys), dtype=bool)
    return (keys[lower["cell_id"]].astype(str).str.strip() == "0").to_numpy()


def _named_cells(keys: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return the name of the cell of each row by columns that identify it together, and which are used, in words.

    A column of text that tells the cells apart alone is used alone, as other tables of these cells have it.
    """
    together = keys.iloc[:, 0].str.cat([keys[name] for name in keys.columns[1:]], sep="_")
    for name in keys:
        if keys[name].nunique() == together.nunique() and any(map(str.isalpha, keys[name].iloc[0])):
            return keys[name], f"cells named by '{name}'"
    return together, f"cells named by {' and '.join(map(repr, keys))}"


def read_texts(path: Path, expected: str) -> tuple[pd.DataFrame, str]:
    """Read a table of text about cells, named in its first column, which errors call `expected`, and its delimiter."""
    layout = sniff(path, expected)
    with _open_table(path, layout) as stream:
        table = pd.read_csv(stream, header=None, sep=layout.delimiter, dtype=str, index_col=0)
    return table.set_axis(layout.header, axis=1), DELIMITERS[layout.delimiter]


def find_orientation(
    rows: Sequence[str], columns: Sequence[str], path: str | Path
) -> tuple[str, str]:
    """Recognise the orientation of a table from the names on both axes; also return the reason."""
    row_genes, row_cells = axis_shares(rows)
    column_genes, column_cells = axis_shares(columns)
    reason = f"rows: {row_genes:.0%} genes, {row_cells:.0%} like cells; "
    reason += f"columns: {column_genes:.0%} genes, {column_cells:.0%} like cells"
    could_be_cells_by_genes = max(row_genes, column_cells) < AXIS_SHARE
    could_be_genes_by_cells = max(column_genes, row_cells) < AXIS_SHARE
    if could_be_cells_by_genes == could_be_genes_by_cells:
        row, column = (
            repr(str(names[len(names) // 2])[:40]) if names else "none" for names in (rows, columns)
        )
        options = [f"orientation={CELLS_BY_GENES}", f"orientation={GENES_BY_CELLS}"]
        examples = f"rows e.g. {row}, columns e.g. {column}"
        found = f"{path}, a table whose names do not tell genes from cells ({examples}; {reason})"
        expected = "gene names on one axis and cell names on the other"
        raise InputError(
            "table-orientation", found, expected, f"add {' or '.join(options)}", options
        )
    return CELLS_BY_GENES if could_be_cells_by_genes else GENES_BY_CELLS, reason


def read_table(path: Path, orientation: str) -> tuple[AnnData, list[str]]:
    """Read the cells of a table of text, and columns about cells or genes into obs or var; also return notes."""
    layout = sniff(path)
    is_text = _texts(layout)
    if orientation == "auto" and (long := _long_columns(layout, is_text)) is not None:
        return _read_long(path, layout, long)
    reason = "as requested"
    if orientation == "auto":
        with _open_table(path, layout) as stream:
            first_fields = [line.partition(layout.delimiter)[0].strip("\"'\r\n") for line in stream]
        orientation, reason = find_orientation(first_fields, layout.header, path)
    cells_in_rows = orientation == CELLS_BY_GENES
    about = ABOUT_CELLS if cells_in_rows else ABOUT_GENES
    plain = [re.sub(r"\W+", "_", name.strip().lower()) for name in layout.header]
    is_annotation = np.array([about.fullmatch(name) is not None for name in plain], dtype=bool)
    if not is_text[1:].all():
        is_annotation |= is_text[1:]
    rows, x, annotations = _parse(path, layout, is_annotation)
    rows = unquoted(rows)
    columns = [
        name for name, annotates in zip(layout.header, is_annotation, strict=True) if not annotates
    ]
    notes = [f"{DELIMITERS[layout.delimiter]}-separated", f"orientation={orientation} ({reason})"]
    if layout.num_comments:
        notes.append(f"{layout.num_comments} lines of comments above the header")
    if is_annotation.any():
        described = "cells, not genes" if cells_in_rows else "genes, not cells"
        notes.append(f"about {described}: {', '.join(map(repr, annotations.columns))}")
    keys = [
        name for name in annotations.columns if re.fullmatch(IDENTIFIES_CELLS, name.strip().lower())
    ]
    if cells_in_rows and keys and annotations.columns.is_unique and len(set(rows)) < len(rows):
        # Several columns together identify a cell, such as fov and cell_ID of CosMx.
        of_rows = annotations[keys].astype(str)
        of_rows.insert(0, layout.corner, rows, allow_duplicates=True)
        if (is_background := _is_background(of_rows)).any():
            notes.append(BACKGROUND.format(num=is_background.sum()))
            annotations, of_rows, x = (
                annotations[~is_background],
                of_rows[~is_background],
                x[~is_background],
            )
            rows = of_rows.iloc[:, 0].tolist()
        names, used = _named_cells(of_rows)
        if names.is_unique:
            annotations.insert(0, layout.corner, rows, allow_duplicates=True)
            rows = names.tolist()
            notes.append(used)
    _require_names(rows, columns, layout.corner, cells_in_rows, path)
    annotations.index = pd.Index(rows, dtype=object)
    others = pd.DataFrame(index=pd.Index(columns, dtype=object))
    if cells_in_rows:
        return AnnData(x, obs=annotations, var=others), notes
    return AnnData(sparse.csr_matrix(x.T), obs=others, var=annotations), notes


def _require_names(
    rows: list[str], columns: list[str], corner: str, cells_in_rows: bool, path: Path
) -> None:
    """Refuse numbers as names, unless they name cells of a table whose other axis is genes.

    In a table without names, the field above the first column is a gene, or the column repeats a number.
    """
    for what, names, others, are_cells in (
        ("row", columns, rows, not cells_in_rows),
        ("column", rows, columns, cells_in_rows),
    ):
        numbers = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce")
        are_numbered = np.array_equal(numbers - numbers[0], np.arange(len(numbers))) and numbers[
            0
        ] in (0, 1)
        if not numbers.notna().all() or (are_numbered and corner.strip() == ""):
            continue
        could_be_cells = (
            are_cells and len(set(names)) == len(names) and all(map(str.isdecimal, names))
        )
        if not could_be_cells or is_gene(corner.strip()) or axis_shares(others)[0] < AXIS_SHARE:
            found = f"{path} with numbers in the first {what} (e.g. {', '.join(names[:3])})"
            raise InputError(
                "table-names", found, TABLE_OF_NUMBERS, f"write the names into the first {what}"
            )


def _parse(
    path: Path, layout: Layout, is_annotation: np.ndarray
) -> tuple[list[str], sparse.csr_matrix, pd.DataFrame]:
    """Read the row names, the columns of expression, and the columns that annotate cells or genes."""
    header = layout.header
    if is_annotation.all():
        found = f"{path} without a column of numbers"
        raise InputError("table-without-numbers", found, TABLE_OF_NUMBERS, "write it again")
    rows: list[str] = []
    blocks: list[sparse.csr_matrix] = []
    annotations: list[pd.DataFrame] = []
    # An annotation may contain text in later blocks, so it is read as text. By `dtype`, pandas would make a Series of
    # each column of a block, which takes longer than to parse it.
    as_text = dict.fromkeys([0, *(np.flatnonzero(is_annotation) + 1).tolist()], str)
    size = max(MIN_BLOCK_ROWS, TABLE_VALUES_AT_ONCE // len(header))
    with _open_table(path, layout) as stream:
        chunks = pd.read_csv(
            stream,
            header=None,
            sep=layout.delimiter,
            converters=as_text,
            na_filter=False,
            low_memory=False,
            chunksize=size,
        )
        for chunk in chunks:
            if chunk.shape[1] != len(header) + 1:
                raise pd.errors.ParserError(
                    f"{len(header)} names in the first row, {chunk.shape[1] - 1} values later"
                )
            rows += chunk[0].tolist()
            fields = chunk.iloc[:, 1:].set_axis(header, axis=1)
            annotations.append(fields.loc[:, is_annotation])
            values = fields.loc[:, ~is_annotation]
            for number, dtype in enumerate(values.dtypes):
                if dtype.kind not in "iuf":
                    name, column = values.columns[number], values.iloc[:, number]
                    is_bad = pd.to_numeric(column, errors="coerce").isna() | (dtype.kind == "b")
                    example = repr(str(column[is_bad].iloc[0])[:40])
                    found = f"column '{str(name)[:40]}' of {path} with {example}, not a number, "
                    found += "or rows that are too short"
                    remedy = "remove such columns, or write an h5ad file with them in obs or var"
                    raise InputError("table-text", found, TABLE_OF_NUMBERS, remedy)
            blocks.append(sparse.csr_matrix(values.to_numpy()))
    return (
        rows,
        sparse.csr_matrix(sparse.vstack(blocks, format="csr")),
        _with_numbers(pd.concat(annotations)),
    )


def _with_numbers(texts_of_columns: pd.DataFrame) -> pd.DataFrame:
    """Return a table of text, with numbers in columns that have no other text; codes such as 01 stay text."""
    table = texts_of_columns.reset_index(drop=True)
    for column in range(table.shape[1]):
        texts = table.iloc[:, column]
        numbers = pd.to_numeric(texts, errors="coerce")
        if numbers.notna().all() and not texts.str.match(r"0\d").any():
            table.isetitem(column, numbers)
    return table
