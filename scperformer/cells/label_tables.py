"""Tables about cells, such as their labels: a row for each cell, named in the first column, as R and pandas write."""

import logging
import re
from pathlib import Path

import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.inputs import how_to_find
from scperformer.io.r_cells import read_r_texts
from scperformer.io.tables import read_texts

log = logging.getLogger(__name__)

# How names are compared: by what is left of them without what programs add, such as the number or name of a sample.
NAME_FORMS = {
    "by their names": None,
    "by names without the numbers at their end": re.compile(r"(.*?)(?:[._-]\d+)*", re.DOTALL),
    "by the barcodes in their names": re.compile(
        r".*?([ACGT]{12,}(?:[._-][ACGT]{8,})*).*", re.DOTALL
    ),
}


def _keys(names: pd.Index, pattern: re.Pattern | None) -> pd.Index:
    if pattern is None:
        return names
    matches = [pattern.fullmatch(name) for name in names]
    kept = [match[1] if match else name for match, name in zip(matches, names, strict=True)]
    # R writes dots for hyphens
    return pd.Index([name.replace(".", "-") for name in kept], dtype=object)


def read_cell_table(path: str, column: str, what: str) -> tuple[pd.DataFrame, str]:
    """Return a table of text about cells, which has a `column`, and how it was read; `what`: "true labels"."""
    if not Path(path).is_file():
        raise InputError("no-file", f"no file {path}", f"a table of {what}", how_to_find(path))
    expected = f"a table with cell names in the first column and {what} in a column '{column}'"
    if path.lower().endswith(".rds"):
        table, how = read_r_texts(Path(path), column, expected), "a data.frame of R"
    else:
        table, delimiter = read_texts(Path(path), expected)
        how = f"separated by {delimiter}s"
    if repeated := list(table.index[table.index.duplicated()]):
        found = f"cell '{repeated[0]}' has more than one row in {path}"
        raise InputError("cell-twice", found, "one row per cell", "remove the other rows")
    return table, how


def in_order_of_cells(
    table: pd.DataFrame, cells: pd.Index, file: object, path: str
) -> pd.DataFrame:
    """Return the rows of a table for the cells of a `file`, in their order; without a value where it has no row.

    Names are compared as they are. If none is the same, what programs add to barcodes is left out, where names stay
    unique (`NAME_FORMS`). A table of other cells is refused.
    """
    cells = cells.astype(str)
    if cells.has_duplicates:
        found = f"cell '{cells[cells.duplicated()][0]}' occurs more than once in {file}"
        remedy = "make the names unique, or add the labels to the cells of the file"
        raise InputError(
            "cell-twice", found, "unique cell names, to find the cells in a table", remedy
        )
    for form, pattern in NAME_FORMS.items():
        keys, rows = (_keys(names, pattern) for names in (cells, table.index.astype(str)))
        is_found = keys.isin(rows)
        if not is_found.any() or keys.has_duplicates or rows.has_duplicates:
            continue
        if pattern is not None:
            example = table.index[rows.isin(keys)][0]
            log.info(
                "%s: cells are found %s, as '%s' for '%s'", path, form, example, cells[is_found][0]
            )
        break
    else:
        example = f"'{table.index[0]}'" if len(table) else "no cell"
        expected = f"cell names as in the file, e.g. '{cells[0]}' (the table has e.g. {example})"
        found = f"none of the {len(cells)} cells of {file} is in {path}"
        raise InputError(
            "no-shared-cells",
            found,
            expected,
            "make the names equal, or add the labels to the cells of the file",
        )
    if num_missing := int((~is_found).sum()):
        example = cells[~is_found][0]
        text = "%s: %d of %d cells are missing from the table, such as '%s'"
        log.warning(text, path, num_missing, len(cells), example)
    if num_others := int((~rows.isin(keys)).sum()):
        log.info("%s: %d of its %d rows are of no cell of %s", path, num_others, len(rows), file)
    return table.set_axis(rows).reindex(keys).set_axis(cells)
