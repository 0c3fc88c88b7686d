"""Small tables: the sample sheet, with a row for each sample, its path and columns about it, and names of clusters."""

import csv
import logging
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import h5py

from scperformer.base.errors import InputError
from scperformer.base.inputs import how_to_find, table_rows
from scperformer.base.messages import NO_COLUMNS
from scperformer.io.excel import MAX_BYTES, read_workbook

log = logging.getLogger(__name__)

# Columns with a meaning of their own; all others describe the samples, such as a condition or a donor.
OWN_COLUMNS = ("sample", "path", "truth", "truth_key")


def read_sheet(sheet: str | Path, required: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the rows of a sheet without empty fields, of a workbook or a text in tabs, commas or semicolons.

    Columns that are `required` exist, unlike those of a sheet of samples.
    """
    own_columns = required or OWN_COLUMNS
    expected = f"a table with the columns {' and '.join(own_columns[:2])}"
    try:
        names, *fields = _read(sheet, expected) or [[]]
    except csv.Error as error:  # such as a field of more than 131,072 characters
        found = f"{sheet} is not a table ({error})"
        raise InputError(
            "not-a-table", found, "a row for each sample", "save it again as CSV"
        ) from error
    for index, name in enumerate(names):
        better = ""
        if name and name in names[:index]:
            better = "a different name for each column"
        elif name in NO_COLUMNS:
            better = "a name that a column of obs can have"
        elif name not in own_columns and name.lower() in own_columns:
            better = f"'{name.lower()}', in lower case"
        if better:
            raise InputError("sheet-column", f"column '{name}' in {sheet}", better, "rename it")
    if missing := [name for name in required if name not in names]:
        raise InputError("no-column", f"no column '{missing[0]}' in {sheet}", expected, "add it")
    rows = []
    for number, row in enumerate(fields, start=2):
        if extra := next(filter(None, row[len(names) :]), ""):
            found = f"'{extra}' beyond the last column in row {number} of {sheet}"
            remedy = "give the column a name, or put quotes around the field"
            raise InputError("sheet-row", found, f"{len(names)} columns", remedy)
        filled = {name: value for name, value in zip(names, row, strict=False) if value}
        if "" in filled:
            found = f"'{filled['']}' in a column of {sheet} without a name"
            raise InputError("sheet-row", found, "a name above it", "add one")
        if filled:
            rows.append(filled)
    return rows


def _read(sheet: str | Path, expected: str) -> list[list[str]]:
    """Return the fields of each row of a workbook or a text."""
    path = Path(sheet)
    return (
        read_workbook(path) if zipfile.is_zipfile(path) else table_rows(read_text(path, expected))
    )


def read_text(path: Path, expected: str) -> str:
    """Return the text of a small table; refuse a file that is none."""
    if not path.exists():
        raise InputError("no-file", f"no table {path}", expected, how_to_find(path))
    if path.is_dir() or h5py.is_hdf5(path):
        found = f"{path}, a {'folder' if path.is_dir() else 'file of cells (HDF5)'}, in place of a table"
        raise InputError("sheet-kind", found, expected, "name the table")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(
            "sheet-kind", f"{path} of more than {MAX_BYTES:,} bytes", expected, "name a small table"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        text = path.read_text(encoding="cp1252", errors="replace")
        log.warning("%s is not in UTF-8: it is read as Windows-1252", path)
    if "\0" in text:  # as in UTF-16
        raise InputError(
            "sheet-text", f"{path} with null characters", "text in UTF-8", "save it as CSV UTF-8"
        )
    return text


def path_in_sheet(sheet: str | Path, path: str) -> str:
    """Return a path of a sheet, which is relative to the folder of the sheet."""
    return os.path.normpath(os.path.join(os.path.dirname(sheet), os.path.expanduser(path)))


def sample_names(sheet: str | Path) -> dict[str, str]:
    """Return the names of the samples of a sheet by their real paths; a sheet may have none."""
    rows = [row for row in read_sheet(sheet) if "path" in row and "sample" in row]
    for name in (row["sample"] for row in rows):
        if "/" in name:
            raise InputError(
                "sample-name", f"sample '{name}' in {sheet}", "a name without '/'", "rename it"
            )
    return {os.path.realpath(path_in_sheet(sheet, row["path"])): row["sample"] for row in rows}


def described_samples(sheet: str | Path, paths: list[str]) -> dict[str, dict[str, str]]:
    """Return the values of all columns of a sheet but `OWN_COLUMNS` for each path; each must have a row."""
    rows = {
        os.path.realpath(path_in_sheet(sheet, row["path"])): row
        for row in read_sheet(sheet)
        if "path" in row
    }
    columns_of = {}
    for path in paths:
        row = rows.get(os.path.realpath(path))
        if row is None:
            expected = "a row for each file, with its path"
            raise InputError(
                "no-sheet-row", f"no row for {path} in {sheet}", expected, "add it to the sheet"
            )
        columns_of[path] = {
            column: value for column, value in row.items() if column not in OWN_COLUMNS
        }
    return columns_of
