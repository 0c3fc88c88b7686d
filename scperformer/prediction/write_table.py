"""The calls of cells as a table: CSV, TSV (gzipped or not) or Parquet, written block by block."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scperformer.outputs import new_file
from scperformer.text import FORMULA, defused

log = logging.getLogger(__name__)

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
PARQUET = ".parquet"


def write_calls(
    path: Path,
    names: Callable[[int, int], Iterable[str]],
    blocks: Iterable[pd.DataFrame],
    record: dict[str, Any],
    *,
    overwrite: bool,
    scratch: Path | None = None,
) -> None:
    """Write a table with a row per cell; the ending of the file name decides its kind.

    Parameters
    ----------
    names
        Gives the names of the cells from a first one up to, but not including, a last one.
    blocks
        The columns, some cells at a time.
    record
        How the calls were made; the metadata of Parquet files keep it as JSON.
    overwrite, scratch
        As for `outputs.new_file`.
    """
    with new_file(path, overwrite, scratch) as temporary:
        write = _write_parquet if path.name.endswith(PARQUET) else _write_text
        write(temporary, path.name, _named(names, blocks), record)


def _named(names: Callable[[int, int], Iterable[str]], blocks: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    start = 0
    for block in blocks:
        cells = np.asarray(list(names(start, start + len(block))), dtype=object)
        yield pd.concat([pd.Series(cells, name="cell", index=block.index), block], axis=1)
        start += len(block)


def _write_text(temporary: Path, name: str, blocks: Iterator[pd.DataFrame], record: dict[str, Any]) -> None:
    separator = next(separator for suffix, separator in SEPARATORS.items() if name.endswith(suffix))
    compression = "gzip" if name.endswith(".gz") else None
    num_quoted = 0
    for number, block in enumerate(blocks):
        texts = block.select_dtypes(["object", "category"]).astype(object)
        formulas = texts.apply(lambda column: column.astype(str).str.contains(FORMULA, regex=True))
        num_quoted += int(formulas.to_numpy().sum())
        block[texts.columns] = texts.where(~formulas, "'" + texts.astype(str))
        block.columns = [defused(name) for name in block]
        mode, header = ("w", True) if number == 0 else ("a", False)
        block.to_csv(temporary, sep=separator, index=False, mode=mode, header=header, compression=compression)
    if num_quoted:
        log.warning("%d texts that spreadsheets would run as formulas have a ' in front", num_quoted)


def _write_parquet(temporary: Path, name: str, blocks: Iterator[pd.DataFrame], record: dict[str, Any]) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    writer = None
    for block in blocks:
        table = pyarrow.Table.from_pandas(block, preserve_index=False)
        made = json.dumps(record, default=lambda array: array.tolist()).encode()
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"scperformer": made})
        writer = writer or ParquetWriter(temporary, table.schema)
        writer.write_table(table)
    assert writer is not None, "there is at least one block"
    writer.close()
