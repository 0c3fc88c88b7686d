"""Tables of text: delimiter, encoding and orientation found and said; values are numbers, or the table is refused."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.errors import InputError
from scperformer.files.h5ad import damaged
from scperformer.files.orientation import CELLS_BY_GENES, find_orientation
from scperformer.files.tenx import TEXT_ERRORS, open_bytes

DELIMITERS = {"\t": "tab", ",": "comma", ";": "semicolon", " ": "blank"}
NUM_SNIFFED = 20  # lines that must agree on the delimiter
BLOCK = 4 * 2**20  # values that are dense at a time
MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
# Columns that describe genes beside their names: of a leading one with such a name no cell is made.
ABOUT_GENES = frozenset(
    (
        *("gene_id", "gene_ids", "geneid", "ensembl", "ensembl_id", "ensembl_gene_id", "entrez", "entrez_id"),
        *("gene_name", "gene_names", "genename", "gene_symbol", "symbol", "gene_type", "gene_biotype", "biotype"),
        *("description", "chromosome", "chr", "start", "end", "strand", "length"),
    )
)
# Columns that describe cells, as Scanpy, Seurat and people name them: they go to obs, as they would count as genes.
ABOUT_CELLS = re.compile(
    r"n_?(counts?|genes?|umis?|features?)(_\w+)?|(log1?p?_?)?(total_counts|n_genes_by_counts|n_counts)(_\w+)?"
    r"|(pct|percent|fraction|frac)_\w+|(mt|mito|ribo)_(pct|percent|fraction|frac|ratio)|size_?factors?"
    r"|(leiden|louvain|(seurat_)?clusters?|rna_snn_res)(_\w+)?|(umap|tsne|pc)_\d+|(predicted_)?doublets?(_scores?)?"
    r"|cell_?types?|labels?|annotations?|barcodes?|cell_?(id|name)s?|batch|orig_ident|phase|(s|g2m)_score"
    r"|(sample|donor|patient)(_?(id|name))?|condition|treatment|disease|tissue|sex|age"
)
EXPECTED = "a table of numbers with the names of genes and cells in the first row and column"


class Layout(NamedTuple):
    """How a table is written."""

    delimiter: str
    decimal: str  # what stands before the decimals of a number: a dot, or a comma
    has_corner: bool  # something stands above the names of the rows; R's write.table writes nothing there


def sniff(path: Path) -> Layout:
    """How a table is written, from its first lines.

    Raises
    ------
    InputError
        It is not text, or its first lines do not agree on a delimiter.
    """
    try:
        with open_text(path) as stream:
            lines = [line for line, _ in zip(stream, range(NUM_SNIFFED), strict=False)]
    except TEXT_ERRORS as error:
        raise _unreadable(path, error) from error
    rows = {delimiter: _rows(lines, delimiter) for delimiter in DELIMITERS}
    sizes = {delimiter: list(map(len, found)) for delimiter, found in rows.items()}
    fitting = {delimiter: widths[-1] for delimiter, widths in sizes.items() if _agree(widths)}
    if not fitting:
        most = ", ".join(map(str, max(sizes.values(), key=lambda widths: max(widths, default=0))[:5]))
        found = f"{path} is no table: its lines have different numbers of fields ({most or 'none'}, ...)"
        raise InputError(found, f"{EXPECTED}, the same number of fields in each row", "write it again")
    delimiter = max(fitting, key=lambda delimiter: fitting[delimiter])
    fields = [field for row in rows[delimiter][1:] for field in row[1:]]
    has_commas = delimiter == ";" and any(re.fullmatch(r"-?\d+,\d+", field) for field in fields)
    first, width = sizes[delimiter][:2]
    return Layout(delimiter, "," if has_commas else ".", first == width)


def _rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """The fields of each row; a row may have several lines, as names in quotes may hold line breaks."""
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []
    return rows[:-1] if len(lines) == NUM_SNIFFED and len(rows) > 2 else rows  # the last row may be cut


def _agree(widths: Sequence[int]) -> bool:
    """Whether rows have one width, of two fields or more; R writes a first row that is one shorter."""
    return len(widths) >= 2 and widths[1] >= 2 and widths[0] in (widths[1], widths[1] - 1) and len(set(widths[1:])) == 1


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """A text file, uncompressed if it is gzip, decoded as its first bytes say: UTF-8 without a mark."""
    with open_bytes(path) as file:
        start = file.read(3)
        file.seek(0)
        encoding = next((name for mark, name in MARKS if start.startswith(mark)), "utf-8")
        yield io.TextIOWrapper(file, encoding=encoding, newline="")


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        found = f"{path} with bytes that are no UTF-8 (the first at position {error.start} of a part)"
        return InputError(found, "text in UTF-8", f"convert it, for example 'iconv -f latin1 -t utf-8 {path.name}'")
    if isinstance(error, pd.errors.ParserError | csv.Error):
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        return InputError(f"{path} is ragged ({reason})", f"{EXPECTED}, as many fields in each row", "write it again")
    return damaged(path, error, "a complete table")


def read_table(path: Path, orientation: str) -> tuple[AnnData, list[str]]:
    """Cells of a delimited table, and notes about what was found.

    Parameters
    ----------
    orientation
        auto, cells_by_genes or genes_by_cells.

    Raises
    ------
    InputError
        It is no table of numbers, or auto cannot tell its orientation.
    """
    layout = sniff(path)
    try:
        with open_text(path) as stream:
            parsed = _parse(stream, layout, path)
    except InputError:
        raise
    except TEXT_ERRORS as error:
        raise _unreadable(path, error) from error
    why = "as told"
    if orientation == "auto":
        orientation, why = find_orientation(parsed.rows, parsed.header, _known_genes(), str(path))
    adata, described = (_of_cells if orientation == CELLS_BY_GENES else _of_genes)(parsed, path)
    written = f"{DELIMITERS[layout.delimiter]}-separated" + (", decimal commas" if layout.decimal == "," else "")
    notes = [written, f"orientation={orientation} ({why})"]
    return adata, notes + [f"about {what}: {', '.join(map(repr, names))}" for what, names in described.items() if names]


@dataclass(frozen=True)
class Parsed:
    """A table in parts: numbers, the names on both axes, and columns that stand aside for their names."""

    rows: list[str]
    header: list[str]  # names of all columns but those about genes, in their order
    columns: list[str]  # those of them that `x` has
    x: sparse.csr_matrix  # len(rows) x len(columns)
    about_genes: pd.DataFrame  # a row per row
    about_cells: pd.DataFrame  # a row per row, its columns the others of `header`


def _of_cells(parsed: Parsed, path: Path) -> tuple[AnnData, dict[str, list[str]]]:
    """The cells that are the rows of a table, and the names of what describes them."""
    if len(parsed.about_genes.columns):
        raise _not_numeric(list(parsed.about_genes.columns), path)
    _require_some_numbers(parsed.columns, path)
    _require_distinct(parsed.about_cells.columns, path)
    adata = AnnData(parsed.x, obs=parsed.about_cells.set_axis(_names(parsed.rows).index), var=_names(parsed.columns))
    return adata, {"cells, not genes": list(parsed.about_cells.columns)}


def _of_genes(parsed: Parsed, path: Path) -> tuple[AnnData, dict[str, list[str]]]:
    """The cells that are the columns of a table, whatever their names; and what describes genes and cells."""
    _require_some_numbers(parsed.header, path)
    texts = [name for name, values in parsed.about_cells.items() if not pd.api.types.is_numeric_dtype(values.dtype)]
    if texts:
        raise _not_numeric(texts, path, parsed.about_cells[texts[0]])
    x = parsed.x
    if len(parsed.about_cells.columns):  # cells that are called like something about cells
        x = sparse.hstack([x, sparse.csr_matrix(parsed.about_cells.to_numpy())], format="csr")
        place = {name: number for number, name in enumerate([*parsed.columns, *parsed.about_cells.columns])}
        _require_distinct(parsed.header, path)
        x = x[:, [place[name] for name in parsed.header]]
    is_gene = np.array([not _describes_cells(name) for name in parsed.rows], dtype=bool)
    about_cells = [name for name, gene in zip(parsed.rows, is_gene, strict=True) if not gene]
    _require_distinct(about_cells, path)
    obs = pd.DataFrame(x[~is_gene].T.toarray(), columns=about_cells, index=_names(parsed.header).index)
    obs = obs.astype({name: np.int64 for name in about_cells if (obs[name] % 1 == 0).all()})
    var = parsed.about_genes.set_axis(_names(parsed.rows).index)[is_gene]
    adata = AnnData(sparse.csr_matrix(x[is_gene].T), obs=obs, var=var)
    return adata, {"genes, not cells": list(var.columns), "cells, not genes": about_cells}


def _names(names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(index=pd.Index(names, dtype=object))


def _known_genes() -> list[str]:
    from scperformer.model import GENES, PACKAGED

    lines = (PACKAGED / GENES).read_text(encoding="utf-8").splitlines()
    return [line.partition("\t")[0] for line in lines[1:]]


def _parse(stream: IO[str], layout: Layout, path: Path) -> Parsed:
    header = next(csv.reader(stream, delimiter=layout.delimiter))
    corner, header = (header[0], header[1:]) if layout.has_corner else ("", header)
    of_cells = np.array([_describes_cells(name) for name in header], dtype=bool)
    chunks = pd.read_csv(
        stream,
        header=None,
        sep=layout.delimiter,
        decimal=layout.decimal,
        # What describes cells may be text further down: it is read as text, and is numbers if all of it is.
        dtype={0: str} | {int(place) + 1: str for place in np.flatnonzero(of_cells)},
        na_filter=False,
        low_memory=False,
        chunksize=max(1, BLOCK // max(1, len(header))),
    )
    parts: list[tuple[pd.DataFrame, sparse.csr_matrix, pd.DataFrame]] = []
    rows: list[str] = []
    num_about = 0
    for chunk in chunks:
        if chunk.shape[1] != len(header) + 1:
            found = f"{path} is ragged ({len(header)} names in the first row, {chunk.shape[1] - 1} values in the next)"
            raise InputError(found, EXPECTED, "write it again")
        if not parts:
            num_about = _count_about_genes(header, chunk)
            of_cells[:num_about] = False
        rows += chunk[0].tolist()
        fields = chunk.iloc[:, 1:].set_axis(header, axis=1)
        rest = ~of_cells & (np.arange(len(header)) >= num_about)
        parts.append((fields.iloc[:, :num_about], _numbers(fields.loc[:, rest], path), fields.loc[:, of_cells]))
    about_genes, about_cells = (pd.concat([part[i] for part in parts], ignore_index=True) for i in (0, 2))
    x = sparse.csr_matrix(sparse.vstack([part[1] for part in parts], format="csr"))
    columns = [name for name, kept in zip(header, rest, strict=True) if kept]
    header = header[num_about:]
    _require_names(header, rows, corner, path)
    return Parsed(rows, header, columns, x, about_genes, _as_numbers(about_cells, layout.decimal))


def _as_numbers(texts: pd.DataFrame, decimal: str) -> pd.DataFrame:
    """Columns that hold nothing but numbers as numbers; codes such as 01 stay text."""
    found = texts.copy()
    for place in range(texts.shape[1]):
        column = texts.iloc[:, place].astype(str)
        numbers = pd.to_numeric(column.str.replace(decimal, "."), errors="coerce")
        if numbers.notna().all() and not column.str.match(r"0\d").any():
            found.isetitem(place, numbers)
    return found


def _count_about_genes(header: Sequence[str], chunk: pd.DataFrame) -> int:
    """How many columns after the first clearly describe genes: by their name, or because they hold Ensembl ids."""
    num = 0
    for place, name in enumerate(header, start=1):
        values = chunk.iloc[:, place]
        by_name = name.strip().lower().replace(" ", "_") in ABOUT_GENES
        is_text = not pd.api.types.is_numeric_dtype(values.dtype)
        if not by_name and not (is_text and values.astype(str).str.match(r"ENS[A-Z]{0,4}G\d{6,}").mean() > 0.9):
            break
        num += 1
    return num


def _describes_cells(name: str) -> bool:
    return ABOUT_CELLS.fullmatch(re.sub(r"\W+", "_", name.strip().lower())) is not None


def _require_distinct(names: Iterable[str], path: Path) -> None:
    """obs and the files that it is written to have one column of a name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        found = f"{path} with more than one column or row {repeated[0]!r}"
        raise InputError(found, "one of each name that describes cells", "rename or take out the others")


def _require_some_numbers(names: Sequence[str], path: Path) -> None:
    if not names:
        raise InputError(f"{path} with no column of numbers", EXPECTED, "write it again")


def _numbers(values: pd.DataFrame, path: Path) -> sparse.csr_matrix:
    is_number = [dtype.kind in "iuf" for dtype in values.dtypes]
    wrong = [name for name, fine in zip(values.columns, is_number, strict=True) if not fine]
    if wrong:
        raise _not_numeric(wrong, path, values.iloc[:, is_number.index(False)])
    return sparse.csr_matrix(values.to_numpy())


def _not_numeric(names: Sequence[str], path: Path, values: pd.Series | None = None) -> InputError:
    named = ", ".join(repr(name[:40]) for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    example = ""
    if values is not None:
        texts = values.astype(str)
        bad = texts[pd.to_numeric(texts, errors="coerce").isna()]
        example = f" (e.g. {str((bad if len(bad) else texts).iloc[0])[:40]!r})"
    found = f"columns of {path} that are not numbers, or rows that are too short: {named}{example}"
    return InputError(found, EXPECTED, "take these columns out, or write an h5ad file with them in obs or var")


def _require_names(columns: Sequence[str], rows: Sequence[str], corner: str, path: Path) -> None:
    """Refuse a table without names: its first row or column would be taken for them."""
    for what, names in (("row", columns), ("column", rows)):
        numbers = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce")
        if numbers.isna().any():
            continue
        counted = np.array_equal(numbers - numbers[0], np.arange(len(numbers))) and numbers[0] in (0, 1)
        if not (counted and corner.strip() == ""):
            found = f"{path} with numbers in the first {what} (e.g. {', '.join(names[:3])})"
            raise InputError(found, EXPECTED, f"write the names into the first {what}")
