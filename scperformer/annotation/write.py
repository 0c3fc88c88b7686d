"""Write an annotation: a copy of its file as h5ad or zarr, or a table. No matrix is in memory as a whole.

anndata's own zarr writer loads one whole array of a matrix at a time: for 50,000 cells with 25 million values, memory
rises by 149 MB. With this writer it rises by 56 MB.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import zarr
from anndata import AnnData
from anndata.io import read_elem, write_elem

from scperformer.annotation.annotate import Annotation, without_slashes
from scperformer.annotation.columns import OBSM
from scperformer.base.messages import FORMULA_START, escape_formula
from scperformer.base.outputs import FolderKind, new_file, new_folder
from scperformer.io.h5ad import BackedH5ad, is_nested, nullable_strings_allowed
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import require_unchanged
from scperformer.io.safety import reading
from scperformer.io.writing import hdf5_to_write, write_anndata
from scperformer.model.imported import own_probabilities

log = logging.getLogger(__name__)

Seen = dict[Path, tuple[int, int, int]]  # the `fingerprint` of a file when it was opened

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
FORMATS = (".h5ad", ".zarr", *SEPARATORS, ".parquet")  # endings of outputs
TABLE_ROWS = 100_000  # a table is written in blocks of so many rows
STORE = FolderKind("an annotation in zarr")
CHUNK_VALUES = 1 << 20  # values of a chunk of a zarr array
# Encodings of anndata. Elements with those of FOLDERS are copied part by part.
MATRICES = ("csr_matrix", "csc_matrix")
NULLABLE = ("nullable-integer", "nullable-boolean", "nullable-string-array")
FOLDERS = ("anndata", "raw", "dict", *MATRICES, *NULLABLE)


def write_annotation(
    annotation: Annotation,
    cells: AnnData | BackedH5ad,
    path: str,
    output: Path,
    *,
    overwrite: bool,
    scratch: Path,
    seen: Seen,
) -> None:
    """Write the cells of the open file `path` with their annotation, or a table, depending on the ending of `output`.

    In an h5ad copy of an h5ad file, everything else is bit for bit the same. Earlier entries of the same names are
    replaced.

    Parameters
    ----------
    scratch
        A folder on the disk of the output, for a file that is being written.
    seen
        The `fingerprint` of the file when it was opened.

    Raises
    ------
    InputError
        As for `new_file` and `new_folder`; or the file has changed since it was opened.
    """
    require_unchanged(path, seen)
    is_zarr = output.suffix == ".zarr"
    is_table = output.suffix not in (".h5ad", ".zarr")
    new = new_folder(output, STORE, overwrite) if is_zarr else new_file(output, overwrite, scratch)
    with new as temporary, nullable_strings_allowed():
        if is_table:
            write = _write_parquet if output.suffix == ".parquet" else _write_text
            write(temporary, output.name, _table_rows(cells, annotation), annotation.record)
        elif isinstance(cells, AnnData):
            annotation.write_into(cells)
            for table in (cells.obs, cells.var) if is_zarr else ():  # h5ad files can have slashes in names of columns
                table.columns = without_slashes(list(map(str, table.columns)))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Writing zarr v2")  # all programs read version 2
                cells.write_zarr(temporary) if is_zarr else write_anndata(cells, temporary)
        elif is_zarr:
            root = zarr.open_group(temporary, mode="w", zarr_format=2)
            root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
            with reading(path), open_hdf5(path) as file:
                for name in file:
                    _copy(file, root, name, cells.left_out)
            require_unchanged(path, seen)
            _add(root, annotation)
            zarr.consolidate_metadata(root.store)
        else:
            shutil.copyfile(path, temporary)
            require_unchanged(path, seen)
            with hdf5_to_write(temporary, "r+") as file:
                for name in cells.left_out:  # with these, anndata could not read the copy
                    del file[name]
                _add(file, annotation)


def _add(root: Any, annotation: Annotation) -> None:
    """Add an annotation to an AnnData in an HDF5 file or zarr group, as anndata encodes it, block by block."""
    _add_columns(root["obs"], annotation)
    for place in ("obsm", "uns"):
        if root.get(place) is None:
            _free(root, place)
            write_elem(root, place, {})
    _free(root["uns"], annotation.key)
    write_elem(root["uns"], annotation.key, annotation.record)
    _add_calls(root, annotation)


def _add_columns(obs: Any, annotation: Annotation) -> None:
    """Write the columns of an annotation into obs, and remove those of an earlier one that it lacks."""
    dropped = annotation.outdated(obs.attrs["column-order"])
    for name in (*dropped, *map(str, annotation.obs)):
        _free(obs, name)
    _write_columns(obs, annotation.obs)
    order = [name.decode() if isinstance(name, bytes) else str(name) for name in obs.attrs["column-order"]]
    order = [name for name in order if name not in dropped]
    obs.attrs["column-order"] = order + [str(name) for name in annotation.obs if name not in order]


def _write_columns(table: Any, columns: pd.DataFrame) -> None:
    """Write the columns of a table as anndata does: the `array` of each, with Categorical, masked or NumPy values."""
    for name, values in columns.items():
        array = values.array
        write_elem(table, str(name), array.to_numpy() if isinstance(array, pd.arrays.NumpyExtensionArray) else array)


def _new_table(root: Any, name: str, columns: list[str]) -> Any:
    """Create an empty table of the cells in obsm."""
    index = root["obs"][root["obs"].attrs["_index"]]
    table = root["obsm"].create_group(name)
    table.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
    # A label may have the name of the index of obs, but not this one.
    table.attrs.update({"_index": "_index", "column-order": columns})
    if isinstance(root, h5py.File):
        root.copy(index, table, "_index")  # without reading the names
    else:
        write_elem(table, "_index", read_elem(index))
    return table


def _add_calls(root: Any, annotation: Annotation) -> None:
    """Write the details of an annotation into obsm; embedding and probabilities block by block."""
    key = annotation.key
    num_cells = len(annotation.obs)
    obsm = root["obsm"]
    for name in (pattern.format(key) for pattern in OBSM):
        _free(obsm, name)
    first = next(iter(annotation.read())).embedding
    width = first.shape[1]
    embedding = _new_array(obsm, f"X_{key}", (num_cells, width), first.dtype, _rows_of_chunk(width))
    rows = _rows_of_chunk(len(annotation.labels))  # with all columns together, a block of cells is in few chunks
    _write_columns(_new_table(root, f"{key}_details", list(annotation.details)), annotation.details)
    tables = []
    for name, kind in {"proba": np.float32, **({"own_proba": np.float64} if annotation.has_own else {})}.items():
        table = _new_table(root, f"{key}_{name}", annotation.labels)
        tables.append([_new_array(table, label, (num_cells,), kind, rows) for label in annotation.labels])
    start = 0
    for calls in annotation.read():
        stop = start + len(calls.proba)
        embedding[start:stop] = calls.embedding
        probabilities = [calls.proba, own_probabilities(calls.embedding)] if annotation.has_own else [calls.proba]
        for columns, proba in zip(tables, probabilities, strict=True):
            for column, values in zip(columns, proba.T, strict=True):
                column[start:stop] = values
        start = stop


def _free(group: h5py.Group | zarr.Group, name: str) -> None:
    """Remove an element if it exists; also a dangling link."""
    if name in group or (isinstance(group, h5py.Group) and group.get(name, getlink=True) is not None):
        del group[name]


def _rows_of_chunk(width: int) -> int:
    """Return the rows of a chunk of an array with so many values in a row."""
    return max(1, CHUNK_VALUES // max(1, width))


def _new_array(group: h5py.Group | zarr.Group, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int) -> Any:
    """Create an array to be filled; in zarr it is stored in chunks of at most `chunk_rows` rows."""
    if isinstance(group, h5py.Group):
        array = group.create_dataset(name, shape, dtype=dtype)
    else:
        chunks = (max(1, min(chunk_rows, shape[0])), *(max(1, size) for size in shape[1:]))
        array = group.create_array(name, shape=shape, chunks=chunks, dtype=dtype)
    array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return array


def _copy(source: h5py.Group, parent: zarr.Group, name: str, left_out: Collection[str]) -> None:
    """Copy an element as anndata encodes it, large arrays chunk by chunk; groups named in `left_out` are left out.

    Dangling links are left out, too. Circular links cannot occur: a file that has them is not opened.
    """
    where = f"{source.name.rstrip('/')}/{name}"
    if where.lstrip("/") in left_out:
        return
    if source.get(name) is None and source.attrs.get("encoding-type") not in (*MATRICES, *NULLABLE):
        log.warning("%s leads nowhere and is left out", where)
        return
    node = source[name]
    encoding = str(node.attrs.get("encoding-type", ""))
    is_table = encoding == "dataframe" and str(node.attrs.get("encoding-version", "")) == "0.2.0"
    # Tables of older versions hold references, which only anndata resolves.
    by_parts = encoding in FOLDERS or is_table or is_nested(node)
    if isinstance(node, h5py.Group) and by_parts:
        group = parent.require_group(name)
        attributes = dict(node.attrs.items())
        if "column-order" in attributes:
            columns = [column for column in attributes["column-order"] if node.get(column) is not None]
            attributes["column-order"] = np.array(columns)
        for key, value in attributes.items():
            group.attrs[key] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for part in node:
            _copy(node, group, part, left_out)
    elif isinstance(node, h5py.Dataset) and encoding in ("array", "") and node.dtype.kind in "biuf" and node.shape:
        rows = _rows_of_chunk(int(np.prod(node.shape[1:])))
        array = _new_array(parent, name, node.shape, node.dtype, rows)
        for start in range(0, node.shape[0], rows):
            array[start : start + rows] = node[start : start + rows]
    else:
        write_elem(parent, name, read_elem(node))


def _table_rows(cells: AnnData | BackedH5ad, annotation: Annotation) -> Iterator[pd.DataFrame]:
    """Yield the rows of a table in blocks: the name of each cell, and its columns."""
    details = annotation.details.add_prefix(f"{annotation.key}_")
    for start in range(0, len(annotation.obs), TABLE_ROWS):
        block = annotation.obs[start : start + TABLE_ROWS].join(details)
        stop = start + len(block)
        names = cells.obs_names[start:stop] if isinstance(cells, AnnData) else cells.names(start, stop)
        block.insert(0, "cell", np.asarray([str(name) for name in names], dtype=object))
        yield block


def _write_text(temporary: Path, name: str, blocks: Iterator[pd.DataFrame], record: dict[str, Any]) -> None:
    """Write a CSV or TSV file, by the ending of `name`; a text that a spreadsheet would run gets a ' in front."""
    separator = next(separator for suffix, separator in SEPARATORS.items() if name.endswith(suffix))
    compression = "gzip" if name.endswith(".gz") else None
    num_quoted = 0
    for number, block in enumerate(blocks):
        texts = block.select_dtypes(["object", "category"]).astype(object)
        formulas = texts.apply(lambda column: column.astype(str).str.contains(FORMULA_START, regex=True))
        num_quoted += int(formulas.to_numpy().sum())
        block[texts.columns] = texts.where(~formulas, "'" + texts.astype(str))
        block.columns = [escape_formula(name) for name in block]
        mode, header = ("w", True) if number == 0 else ("a", False)
        block.to_csv(temporary, sep=separator, index=False, mode=mode, header=header, compression=compression)
    if num_quoted:
        log.warning("%d texts that spreadsheets would run as formulas have a ' in front", num_quoted)


def _write_parquet(temporary: Path, name: str, blocks: Iterator[pd.DataFrame], record: dict[str, Any]) -> None:
    """Write a Parquet file, with the record of the run as JSON in its metadata."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    writer = None
    for block in blocks:
        table = pyarrow.Table.from_pandas(block, preserve_index=False)
        content = json.dumps(record, default=lambda array: array.tolist()).encode()
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"scperformer": content})
        writer = writer or ParquetWriter(temporary, table.schema)
        writer.write_table(table)
    assert writer is not None, "there is at least one block"
    writer.close()
