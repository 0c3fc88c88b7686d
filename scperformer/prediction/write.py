"""Write an annotation: a copy of its file as h5ad or zarr, with matrices never in memory as a whole, or a table.

anndata's own zarr writer holds a whole array of a matrix at a time: for 50,000 cells with 25 million values memory
rises by 149 MB. With this one it rises by 56 MB.
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

from scperformer.base.messages import FORMULA_START, escape_formula
from scperformer.base.outputs import FolderKind, new_file, new_folder
from scperformer.files import (
    BackedH5ad,
    hdf5_to_write,
    is_nested,
    nullable_strings_allowed,
    open_hdf5,
    reading,
    require_unchanged,
    write_anndata,
)
from scperformer.prediction.annotation import Annotation, outdated, without_slashes

log = logging.getLogger(__name__)

Seen = dict[Path, tuple[int, int, int]]  # the `fingerprint` of a file when it was opened

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
FORMATS = (".h5ad", ".zarr", *SEPARATORS, ".parquet")  # endings of outputs
TABLE_ROWS = 100_000  # rows of a table that are written at a time
STORE = FolderKind("an annotation in zarr")
CHUNK_VALUES = 1 << 20
MATRICES = ("csr_matrix", "csc_matrix")
NULLABLE = ("nullable-integer", "nullable-boolean", "nullable-string-array")
FOLDERS = ("anndata", "raw", "dict", *MATRICES, *NULLABLE)  # copied part by part


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
    """Write the cells of the open file `path` with their annotation, or a table; the ending of `output` decides.

    In an h5ad copy of an h5ad file everything else stays bit for bit. Earlier entries of the same names are replaced.

    Parameters
    ----------
    scratch
        A folder of the same disk for an unfinished file.
    seen
        The `fingerprint` of the file when it was opened.

    Raises
    ------
    InputError
        As `new_file` and `new_folder`; the file was changed meanwhile.
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
            for table in (cells.obs, cells.var) if is_zarr else ():  # h5ad files can have such names of columns
                table.columns = without_slashes(list(map(str, table.columns)))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Writing zarr v2")  # on purpose: every program reads it
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
                for name in cells.left_out:  # anndata could not read the copy
                    del file[name]
                _add(file, annotation)


def _add(root: Any, annotation: Annotation) -> None:
    """Add an annotation to an AnnData in an HDF5 file or zarr group, as anndata encodes it, a block at a time."""
    key = annotation.key
    obs = root["obs"]
    num_cells = len(annotation.obs)
    dropped = outdated(obs.attrs["column-order"], key, annotation.obs)
    for name in (*dropped, *map(str, annotation.obs)):
        _free(obs, name)
    for name, values in annotation.obs.items():
        # `array` is what anndata itself hands over for a column: Categorical, masked or NumPy values.
        array = values.array
        write_elem(obs, str(name), array.to_numpy() if isinstance(array, pd.arrays.NumpyExtensionArray) else array)
    order = [name.decode() if isinstance(name, bytes) else str(name) for name in obs.attrs["column-order"]]
    order = [name for name in order if name not in dropped]
    obs.attrs["column-order"] = order + [str(name) for name in annotation.obs if name not in order]
    for place in ("obsm", "uns"):
        if root.get(place) is None:
            _free(root, place)
            write_elem(root, place, {})
    _free(root["uns"], key)
    write_elem(root["uns"], key, annotation.record)
    obsm = root["obsm"]
    index = obs.attrs["_index"]
    for name in (f"X_{key}", f"{key}_proba"):
        _free(obsm, name)
    width = next(iter(annotation.read())).embedding.shape[1]
    embedding = _new_array(obsm, f"X_{key}", (num_cells, width), np.float32, _rows_of_chunk(width))
    table = obsm.create_group(f"{key}_proba")
    table.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0"})
    table.attrs.update({"_index": index, "column-order": annotation.labels})
    if isinstance(root, h5py.File):
        root.copy(obs[index], table, index)  # names are not read
    else:
        write_elem(table, index, read_elem(obs[index]))
    rows = _rows_of_chunk(len(annotation.labels))  # for each column the same, so that a block is in few chunks
    columns = [_new_array(table, label, (num_cells,), np.float32, rows) for label in annotation.labels]
    start = 0
    for calls in annotation.read():
        stop = start + len(calls.proba)
        embedding[start:stop] = calls.embedding
        for column, values in zip(columns, calls.proba.T, strict=True):
            column[start:stop] = values
        start = stop


def _free(group: h5py.Group | zarr.Group, name: str) -> None:
    """Remove an element if there is one; also a link that leads nowhere."""
    if name in group or (isinstance(group, h5py.Group) and group.get(name, getlink=True) is not None):
        del group[name]


def _rows_of_chunk(width: int) -> int:
    return max(1, CHUNK_VALUES // max(1, width))


def _new_array(group: h5py.Group | zarr.Group, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int) -> Any:
    """Make an empty array; only zarr stores it in chunks, of at most so many rows."""
    if isinstance(group, h5py.Group):
        array = group.create_dataset(name, shape, dtype=dtype)
    else:
        chunks = (max(1, min(chunk_rows, shape[0])), *(max(1, size) for size in shape[1:]))
        array = group.create_array(name, shape=shape, chunks=chunks, dtype=dtype)
    array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return array


def _copy(source: h5py.Group, parent: zarr.Group, name: str, left_out: Collection[str]) -> None:
    """Copy an element as anndata encodes it, large arrays a chunk at a time; leave out groups of these names.

    A link that leads nowhere is left out, too. Links in a circle are not met: a file with them is not opened.
    """
    where = f"{source.name.rstrip('/')}/{name}"
    if where.lstrip("/") in left_out:
        return
    if source.get(name) is None and source.attrs.get("encoding-type") not in (*MATRICES, *NULLABLE):
        log.warning("%s leads nowhere and is left out", where)
        return
    node = source[name]
    kind, encoding = (str(node.attrs.get(f"encoding-{what}", "")) for what in ("type", "version"))
    is_table = kind == "dataframe" and encoding == "0.2.0"  # older ones hold references
    in_parts = kind in FOLDERS or is_table or is_nested(node)
    if isinstance(node, h5py.Group) and in_parts:
        group = parent.require_group(name)
        attributes = dict(node.attrs.items())
        if "column-order" in attributes:
            columns = [column for column in attributes["column-order"] if node.get(column) is not None]
            attributes["column-order"] = np.array(columns)
        for key, value in attributes.items():
            group.attrs[key] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for part in node:
            _copy(node, group, part, left_out)
    elif isinstance(node, h5py.Dataset) and kind in ("array", "") and node.dtype.kind in "biuf" and node.shape:
        rows = _rows_of_chunk(int(np.prod(node.shape[1:])))
        array = _new_array(parent, name, node.shape, node.dtype, rows)
        for start in range(0, node.shape[0], rows):
            array[start : start + rows] = node[start : start + rows]
    else:
        write_elem(parent, name, read_elem(node))


def _table_rows(cells: AnnData | BackedH5ad, annotation: Annotation) -> Iterator[pd.DataFrame]:
    """Return the rows of a table, some cells at a time: the name of each cell and the columns about it."""
    for start in range(0, len(annotation.obs), TABLE_ROWS):
        block = annotation.obs[start : start + TABLE_ROWS].copy()
        stop = start + len(block)
        names = cells.obs_names[start:stop] if isinstance(cells, AnnData) else cells.names(start, stop)
        block.insert(0, "cell", np.asarray([str(name) for name in names], dtype=object))
        yield block


def _write_text(temporary: Path, name: str, blocks: Iterator[pd.DataFrame], record: dict[str, Any]) -> None:
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
    """Write a Parquet file; its metadata keep the record of the run as JSON."""
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
