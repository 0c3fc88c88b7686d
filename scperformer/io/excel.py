"""Tables as sheets of an Excel workbook (.xlsx), by pandas and openpyxl; small ones are read, too."""

import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pandas as pd

from scperformer.base.errors import InputError
from scperformer.io.own_files import NAME
from scperformer.io.safety import reading

MAX_SHEET_ROWS = 2**20  # of a sheet, with its header
# of a small table, unpacked; openpyxl takes a hundred times as much memory for it
MAX_BYTES = 2**23


def require_openpyxl(output: Path) -> None:
    """Refuse an output that ends in .xlsx if the package that writes it is missing."""
    if output.suffix == ".xlsx" and find_spec("openpyxl") is None:
        remedy = "pip install openpyxl, or choose another ending"
        raise InputError(
            "no-openpyxl", f"{output} without openpyxl", "the package that writes .xlsx", remedy
        )


def read_workbook(path: Path) -> list[list[str]]:
    """Return the fields of each row of the first sheet of a small workbook, as texts without blanks around them."""
    require_openpyxl(path.with_suffix(".xlsx"))
    from openpyxl import load_workbook

    with reading(path, "a workbook of Excel, or a table saved as CSV UTF-8"):
        try:
            with zipfile.ZipFile(path) as archive:
                if sum(part.file_size for part in archive.infolist()) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES:,} bytes, unpacked")
            book = load_workbook(path, read_only=True, data_only=True)
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # a file may state any
            rows = islice(sheet.iter_rows(values_only=True), MAX_BYTES // 100)
            return [["" if value is None else str(value).strip() for value in row] for row in rows]
        except (zipfile.BadZipFile, SyntaxError) as error:  # SyntaxError: of XML
            raise ValueError(str(error)) from error


def write_workbook(path: Path, sheets: Mapping[str, pd.DataFrame]) -> None:
    """Write tables as sheets, with their names; a text stays a text, also if it begins as a formula does."""
    from openpyxl.utils.exceptions import IllegalCharacterError

    if num := max(
        (len(table) for table in sheets.values() if len(table) >= MAX_SHEET_ROWS), default=0
    ):
        expected = f"less than {MAX_SHEET_ROWS:,}, the rows of a sheet"
        raise InputError("too-many-rows", f"{num:,} rows", expected, "write the output as .csv")
    # Of the file, not of its path: pandas would refuse the ending of a temporary file.
    with open(path, "wb") as file, pd.ExcelWriter(file, engine="openpyxl") as writer:
        try:
            for name, table in sheets.items():
                table.to_excel(writer, sheet_name=name, index=False, freeze_panes=(1, 1))
            writer.book.properties.creator = NAME
        except IllegalCharacterError as error:
            raise InputError(
                "control-character", str(error), "texts that .xlsx can hold", "write .csv"
            ) from error
        for cell in (cell for sheet in writer.book for row in sheet.iter_rows() for cell in row):
            # "f", a formula, or "e", an error such as #N/A
            if isinstance(cell.value, str) and cell.data_type != "s":
                cell.data_type = "s"
                cell.quotePrefix = True  # it is not run when it is edited either
