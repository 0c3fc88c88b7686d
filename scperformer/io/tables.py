"""Read tables of text: recognise the delimiter and the orientation; refuse tables without names or with other values.

The names on both axes decide the orientation. If they are ambiguous, the user has to give it.
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.base.errors import InputError
from scperformer.io.axes import AXIS_SHARE, axis_shares, is_gene
from scperformer.io.gene_names import ENSEMBL
from scperformer.io.mtx import MAX_LINE, open_bytes
from scperformer.io.safety import READ_ERRORS, damaged

DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", " ": "blank"}
NUM_SNIFFED = 20  # lines that must agree on the delimiter
MAX_COMMENTS = 1000  # lines above the header
BUFFER_BYTES = 2**20
TABLE_VALUES_AT_ONCE = 4 * 2**20  # values that are dense in memory
TABLE_OF_NUMBERS = "a table of numbers with the names of genes and cells in the first row and column"

CELLS_BY_GENES = "cells_by_genes"
GENES_BY_CELLS = "genes_by_cells"
# Names of columns that describe genes.
ABOUT_GENES = (
    *("gene_id", "gene_ids", "geneid", "ensembl", "ensembl_id", "ensembl_gene_id", "entrez", "entrez_id"),
    *("gene_name", "gene_names", "genename", "gene_symbol", "symbol", "gene_type", "gene_biotype", "biotype"),
    *("description", "chromosome", "chr", "start", "end", "strand", "length"),
)
# Names of columns that identify cells, alone or together, such as fov and cell_ID of CosMx.
IDENTIFIES_CELLS = r"barcodes?|cells?|cell_?(id|name|index)s?|fov|slide(_?(id|name))?"
# Names of columns or rows that describe cells, as Scanpy, Seurat and users call them.
ABOUT_CELLS = re.compile(
    r"n_?(counts?|genes?|umis?|features?)(_\w+)?|(log1?p?_?)?(total_counts|n_genes_by_counts|n_counts)(_\w+)?"
    r"|(pct|percent|fraction|frac)_\w+|(mt|mito|ribo)_(pct|percent|fraction|frac|ratio)|size_?factors?"
    r"|(leiden|louvain|(seurat_)?clusters?|rna_snn_res)(_\w+)?|(umap|tsne|pc)_\d+|(predicted_)?doublets?(_scores?)?"
    r"|cell_?types?|labels?|annotations?|batch|orig_ident|phase|(s|g2m)_score"
    r"|(sample|donor|patient)(_?(id|name))?|condition|treatment|disease|tissue|sex|age"
    rf"|{IDENTIFIES_CELLS}"
)


class Layout(NamedTuple):
    """The format of a table of text."""

    delimiter: str
    corner: str  # the field above the row names; R's write.table leaves it out
    header: list[str]  # the first row without the corner
    num_about_genes: int  # number of leading columns that describe genes, by their names or because of Ensembl ids
    num_comments: int  # number of lines above the first row


class _LineLimiter(io.RawIOBase):
    """The bytes of a file; a line of `MAX_LINE` bytes or more is refused before it is in memory."""

    def __init__(self, file: IO[bytes], path: Path):
        self.file = file
        self.path = path
        self.length = 0  # length of the incomplete line so far

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self.file.read(min(len(buffer), MAX_LINE))
        buffer[: len(chunk)] = chunk
        ends = [place for place in (chunk.find(b"\n"), chunk.find(b"\r")) if place >= 0]
        if self.length + min(ends, default=len(chunk)) >= MAX_LINE:
            found = f"{self.path} with a line of {MAX_LINE:,} characters or more"
            raise InputError(found, TABLE_OF_NUMBERS, "check its content")
        last = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        self.length = len(chunk) - 1 - last if ends else self.length + len(chunk)
        return len(chunk)


@contextmanager
def _open_table(path: Path, below: Layout | None = None) -> Iterator[IO[str]]:
    """Open a table as text in UTF-8 or UTF-16, as Excel writes Unicode text; with a layout, below the header.

    Errors of reading inside the block become an `InputError` about the table.
    """
    try:
        with open_bytes(path) as file:
            buffered = io.BufferedReader(_LineLimiter(file, path), BUFFER_BYTES)
            is_utf_16 = buffered.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            text = io.TextIOWrapper(buffered, encoding="utf-16" if is_utf_16 else "utf-8-sig", newline="")
            if below is not None:
                lines = islice(text, below.num_comments, None)
                next(row for row in csv.reader(lines, delimiter=below.delimiter) if row)
            yield text
    except InputError:
        raise
    except UnicodeDecodeError as error:
        remedy = f"convert it, for example 'iconv -f latin1 -t utf-8 {path.name}'"
        raise InputError(f"{path} with bytes that are not UTF-8", "text in UTF-8", remedy) from error
    except (pd.errors.ParserError, csv.Error) as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        expected = f"{TABLE_OF_NUMBERS}, the same number of fields in each row"
        raise InputError(f"{path} is ragged ({reason})", expected, "write it again") from error
    except READ_ERRORS as error:
        raise damaged(path, error, "a complete table") from error


def sniff(path: Path, expected: str = TABLE_OF_NUMBERS) -> Layout:
    """Recognise the layout of a table from its first lines.

    Lines above the header that begin with # are comments, but the last of them may be the header itself. A table
    without a common delimiter is refused; a table of numbers with decimal commas, too.
    """
    comments: list[str] = []
    with _open_table(path) as stream:
        for line in stream:
            if not line.lstrip('"').startswith("#") or len(comments) == MAX_COMMENTS:
                break
            comments.append(line)
        else:
            line = ""
        lines = [line, *islice(stream, NUM_SNIFFED - 1)]
    if comments and _is_header(comments[-1], lines):
        lines.insert(0, comments.pop())
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
        widest = max(widths.values(), key=max)
        numbers = ", ".join(map(str, widest[:5]))
        why = f"its lines have different numbers of fields ({numbers}, ...)"
        if len(widest) == 1:
            why = "it has a single line"
        found = f"{path} is not a table: {why}"
        raise InputError(found, f"{expected}, the same number of fields in each row", "write it again")
    # Labels may contain blanks and commas, by chance as many in each row.
    delimiter = max(fitting, key=lambda each: (len(set(widths[each])) == 1, each != " ", widths[each][-1]))
    first, *rows = tried[delimiter]
    commas = (field for row in rows for field in row[1:] if re.fullmatch(r"-?\d+,\d+", field))
    if delimiter != "," and expected == TABLE_OF_NUMBERS and (comma := next(commas, "")):
        remedy = f"write it with dots (write.csv in R), or convert it, for example 'tr , . < {path.name} > dots.csv'"
        raise InputError(f"{path} with decimal commas (e.g. '{comma}')", "numbers with decimal points", remedy)
    corner, header = (first[0], first[1:]) if len(first) == len(rows[0]) else ("", first)
    num_about_genes = 0
    for name, *fields in zip(header, *(row[1:] for row in rows), strict=True):
        if name.strip().lower().replace(" ", "_") not in ABOUT_GENES and not all(re.match(ENSEMBL, f) for f in fields):
            break
        num_about_genes += 1
    return Layout(delimiter, corner, header, num_about_genes, len(comments))


def read_texts(path: Path, expected: str) -> tuple[pd.DataFrame, str]:
    """Read a table of text about cells, which are named in its first column; also return the name of its delimiter.

    `expected` describes the table in errors.
    """
    layout = sniff(path, expected)
    with _open_table(path, layout) as stream:
        table = pd.read_csv(stream, header=None, sep=layout.delimiter, dtype=str, index_col=0)
    return table.set_axis(layout.header, axis=1), DELIMITERS[layout.delimiter]


def _is_header(comment: str, lines: list[str]) -> bool:
    """Whether a line that begins with # has a name for each field of the lines below it, which are numbers."""
    for delimiter in DELIMITERS:
        names, values = (line.rstrip("\r\n").split(delimiter) for line in (comment, lines[0]))
        if len(values) > 1 and len(names) in (len(values), len(values) - 1) and all(names):
            return bool(pd.to_numeric(pd.Series(values[1:]), errors="coerce").notna().all())
    return False


def _describes_cells(name: str) -> bool:
    return ABOUT_CELLS.fullmatch(re.sub(r"\W+", "_", name.strip().lower())) is not None


def find_orientation(rows: Sequence[str], columns: Sequence[str], path: str | Path) -> tuple[str, str]:
    """Recognise the orientation of a table from the names on both axes; also return the reason."""
    row_genes, row_cells = axis_shares(rows)
    column_genes, column_cells = axis_shares(columns)
    reason = f"rows: {row_genes:.0%} genes, {row_cells:.0%} like cells; "
    reason += f"columns: {column_genes:.0%} genes, {column_cells:.0%} like cells"
    could_be_cells_by_genes = max(row_genes, column_cells) < AXIS_SHARE
    could_be_genes_by_cells = max(column_genes, row_cells) < AXIS_SHARE
    if could_be_cells_by_genes == could_be_genes_by_cells:
        row, column = (repr(str(names[len(names) // 2])[:40]) if names else "none" for names in (rows, columns))
        options = [f"orientation={CELLS_BY_GENES}", f"orientation={GENES_BY_CELLS}"]
        examples = f"rows e.g. {row}, columns e.g. {column}"
        found = f"{path}, a table whose names do not tell genes from cells ({examples}; {reason})"
        expected = "gene names on one axis and cell names on the other"
        raise InputError(found, expected, f"add {' or '.join(options)}", options)
    return CELLS_BY_GENES if could_be_cells_by_genes else GENES_BY_CELLS, reason


def read_table(path: Path, orientation: str) -> tuple[AnnData, list[str]]:
    """Read the cells of a table of text; also return notes for the log.

    Leading columns that describe genes go into var; columns or rows that describe cells go into obs.
    """
    layout = sniff(path)
    reason = "as requested"
    if orientation == "auto":
        with _open_table(path, layout) as stream:
            first_fields = [line.partition(layout.delimiter)[0].strip('"\r\n') for line in stream]
        orientation, reason = find_orientation(first_fields, layout.header[layout.num_about_genes :], path)
    if orientation == CELLS_BY_GENES:
        if layout.num_about_genes:
            raise _not_numeric(layout.header[: layout.num_about_genes], path)
        is_annotation = np.array([_describes_cells(name) for name in layout.header], dtype=bool)
    else:
        is_annotation = np.arange(len(layout.header)) < layout.num_about_genes
    rows, x, annotations = _parse(path, layout, is_annotation)
    columns = [name for name, annotates in zip(layout.header, is_annotation, strict=True) if not annotates]
    notes = [f"{DELIMITERS[layout.delimiter]}-separated", f"orientation={orientation} ({reason})"]
    if layout.num_comments:
        notes.append(f"{layout.num_comments} lines of comments above the header")
    if orientation == CELLS_BY_GENES and (joined := _join_names(rows, layout.corner, annotations)):
        rows, annotations, note = joined
        notes.append(note)
    _require_names(rows, columns, layout.corner, orientation == CELLS_BY_GENES, path)
    is_gene_row = np.array([not _describes_cells(name) for name in rows], dtype=bool)
    about_cells = list(annotations.columns)
    if orientation == GENES_BY_CELLS:
        about_cells = [name for name, gene in zip(rows, is_gene_row, strict=True) if not gene]
    repeated = [name for name, count in Counter(about_cells).items() if count > 1]
    if repeated:
        found = f"{path} with more than one column or row {repeated[0]!r}"
        raise InputError(found, "a unique name for each column or row about cells", "rename or remove the repetitions")
    row_index = pd.Index(rows, dtype=object)
    column_index = pd.Index(columns, dtype=object)
    if orientation == CELLS_BY_GENES:
        adata = AnnData(x, obs=annotations.set_axis(row_index), var=pd.DataFrame(index=column_index))
    else:
        obs = pd.DataFrame(x[~is_gene_row].T.toarray(), columns=about_cells, index=column_index)
        obs = obs.astype({name: np.int64 for name in about_cells if (obs[name] % 1 == 0).all()})
        adata = AnnData(sparse.csr_matrix(x[is_gene_row].T), obs=obs, var=annotations.set_axis(row_index)[is_gene_row])
    described = {"genes, not cells": list(adata.var.columns), "cells, not genes": about_cells}
    return adata, notes + [f"about {what}: {', '.join(map(repr, names))}" for what, names in described.items() if names]


def _join_names(rows: list[str], corner: str, annotations: pd.DataFrame) -> tuple[list[str], pd.DataFrame, str] | None:
    """Join cell names from several columns, such as fov and cell_ID of CosMx, if the first column repeats names.

    Returns the names, the columns about cells including the first one, called `corner`, and a note; None if the names
    do not repeat, or no columns together identify each cell.
    """
    names = rows
    joined = [corner]
    for name in annotations.columns if annotations.columns.is_unique and corner not in annotations else ():
        if len(set(names)) < len(names) and re.fullmatch(IDENTIFIES_CELLS, name.strip().lower()):
            names = [f"{first}_{second}" for first, second in zip(names, annotations[name], strict=True)]
            joined.append(name)
    if len(joined) == 1 or len(set(names)) < len(names):
        return None
    table = _as_numbers(pd.DataFrame({corner: rows})).join(annotations)
    return names, table, f"cells named by {' and '.join(map(repr, joined))}"


def _require_names(rows: list[str], columns: list[str], corner: str, rows_are_cells: bool, path: Path) -> None:
    """Refuse numbers as names, unless they name cells of a table whose other axis is genes.

    In a table without names, the field above the first column is a gene, or the column repeats a number.
    """
    for what, names, others, are_cells in (
        ("row", columns, rows, not rows_are_cells),
        ("column", rows, columns, rows_are_cells),
    ):
        numbers = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce")
        are_numbered = np.array_equal(numbers - numbers[0], np.arange(len(numbers))) and numbers[0] in (0, 1)
        if not numbers.notna().all() or (are_numbered and corner.strip() == ""):
            continue
        could_be_cells = are_cells and len(set(names)) == len(names) and all(map(str.isdecimal, names))
        if not could_be_cells or is_gene(corner.strip()) or axis_shares(others)[0] < AXIS_SHARE:
            found = f"{path} with numbers in the first {what} (e.g. {', '.join(names[:3])})"
            raise InputError(found, TABLE_OF_NUMBERS, f"write the names into the first {what}")


def _as_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Convert columns of text that contain only numbers; codes such as 01 stay text."""
    for place in range(table.shape[1]):
        texts = table.iloc[:, place].astype(str)
        numbers = pd.to_numeric(texts, errors="coerce")
        if numbers.notna().all() and not texts.str.match(r"0\d").any():
            table.isetitem(place, numbers)
    return table


def _parse(path: Path, layout: Layout, is_annotation: np.ndarray) -> tuple[list[str], sparse.csr_matrix, pd.DataFrame]:
    """Read the row names, the columns of expression, and the columns that annotate cells or genes."""
    header = layout.header
    if is_annotation.all():
        raise InputError(f"{path} without a column of numbers", TABLE_OF_NUMBERS, "write it again")
    rows: list[str] = []
    blocks: list[sparse.csr_matrix] = []
    annotations: list[pd.DataFrame] = []
    # An annotation may contain text in later blocks, so it is read as text.
    dtype = {0: str} | {int(place) + 1: str for place in np.flatnonzero(is_annotation)}
    size = max(1, TABLE_VALUES_AT_ONCE // len(header))
    with _open_table(path, layout) as stream:
        chunks = pd.read_csv(
            stream, header=None, sep=layout.delimiter, dtype=dtype, na_filter=False, low_memory=False, chunksize=size
        )
        for chunk in chunks:
            if chunk.shape[1] != len(header) + 1:
                raise pd.errors.ParserError(f"{len(header)} names in the first row, {chunk.shape[1] - 1} values later")
            rows += chunk[0].tolist()
            fields = chunk.iloc[:, 1:].set_axis(header, axis=1)
            annotations.append(fields.loc[:, is_annotation])
            values = fields.loc[:, ~is_annotation]
            is_number = [dtype.kind in "iuf" for dtype in values.dtypes]
            if not all(is_number):
                wrong = [name for name, number in zip(values.columns, is_number, strict=True) if not number]
                raise _not_numeric(wrong, path, values.iloc[:, is_number.index(False)])
            blocks.append(sparse.csr_matrix(values.to_numpy()))
    table = _as_numbers(pd.concat(annotations, ignore_index=True))
    return rows, sparse.csr_matrix(sparse.vstack(blocks, format="csr")), table


def _not_numeric(names: Sequence[str], path: Path, values: pd.Series | None = None) -> InputError:
    """Return the error about columns with these names; `values` are the fields of the first of them."""
    shown = ", ".join(repr(name[:40]) for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    example = ""
    if values is not None:
        texts = values.astype(str)
        bad = texts[pd.to_numeric(texts, errors="coerce").isna()]
        example = f" (e.g. {str((bad if len(bad) else texts).iloc[0])[:40]!r})"
    found = f"columns of {path} that are not numbers, or rows that are too short: {shown}{example}"
    return InputError(found, TABLE_OF_NUMBERS, "remove these columns, or write an h5ad file with them in obs or var")
