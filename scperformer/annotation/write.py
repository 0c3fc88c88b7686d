"""Write an annotation: a copy of its file as h5ad or zarr, or a table.

A copy of an h5ad file as h5ad takes little memory, whatever its size; for zarr, the file is read as a whole.
"""

import errno
import json
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import zarr
from anndata import AnnData
from anndata.io import write_elem

from scperformer.adaptation.record import to_uns
from scperformer.annotation.annotate import Annotation, without_slashes
from scperformer.annotation.columns import CURATED_COLUMNS, OBSM, UMAP
from scperformer.base.errors import InputError
from scperformer.base.messages import FORMULA_START, escape_formula
from scperformer.base.outputs import FolderKind, new_file, new_folder
from scperformer.cells.opened import OpenedCells
from scperformer.io.excel import require_openpyxl, write_workbook
from scperformer.io.h5ad import nullable_strings_allowed
from scperformer.io.own_files import require_replaceable
from scperformer.io.rds import write_table
from scperformer.io.read import require_unchanged
from scperformer.io.safety import reason_of
from scperformer.io.writing import hdf5_to_write, mark_own, write_anndata
from scperformer.model.imported import own_probabilities

log = logging.getLogger(__name__)

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
RDS = ".rds"
XLSX = ".xlsx"
TABLES = (XLSX, *SEPARATORS)  # endings of tables
CURATED_FORMATS = (".h5ad", RDS, *TABLES)  # endings of outputs with names of clusters
FORMATS = (".zarr", *CURATED_FORMATS)  # endings of outputs
TABLE_ROWS = 100_000  # a table is written in blocks of so many rows
STORE = FolderKind("an annotation in zarr")


def write_annotation(
    annotation: Annotation,
    cells: OpenedCells,
    output: Path,
    *,
    overwrite: bool,
    scratch: Path,
    seen: dict,
) -> None:
    """Write the cells of an open file with their annotation, or a table, depending on the ending of `output`.

    In an h5ad copy of an h5ad file, everything else is bit for bit the same. Earlier entries of the same names are
    replaced. `scratch` is a folder on the disk of the output, for a file that is being written; `seen` is the
    `fingerprint` of the file when it was opened: a file that has changed since is refused.
    """
    require_unchanged(cells.path, seen)
    is_zarr = output.suffix == ".zarr"
    adata = None if cells.is_on_disk and not is_zarr else cells.to_adata()
    new = new_folder(output, STORE, overwrite) if is_zarr else new_file(output, overwrite, scratch)
    with new as temporary, nullable_strings_allowed():
        if output.suffix == RDS:
            proba = np.concatenate([block.proba for block in annotation.blocks()])
            matrices = {"proba": pd.DataFrame(proba, columns=annotation.labels)}
            if annotation.umap is not None:
                matrices["umap"] = pd.DataFrame(annotation.umap, columns=["UMAP_1", "UMAP_2"])
            _write_r(temporary, _table_rows(cells, annotation), matrices)
        elif output.name.endswith(TABLES):
            write_any_table(temporary, output.name, _table_rows(cells, annotation))
        elif adata is None:
            shutil.copyfile(cells.path, temporary)
            require_unchanged(cells.path, seen)
            with hdf5_to_write(temporary, "r+") as file:
                _add(file, annotation)
        else:
            annotation.write_into(adata)
            _write_zarr(adata, temporary) if is_zarr else write_anndata(adata, temporary)
        if output.suffix == ".h5ad":
            mark_own(temporary)


def write_curated(
    path: Path,
    output: Path,
    table: pd.DataFrame,
    record: dict[str, Any],
    *,
    key: str,
    overwrite: bool,
) -> None:
    """Write a copy of an annotated file with the names of clusters and their record, or a table of its cells.

    `table` has the columns of the annotation, and `CURATED_COLUMNS`.
    """
    rows = iter([table.rename_axis("cell").reset_index()])
    with new_file(output, overwrite) as temporary:
        if output.suffix == RDS:
            _write_r(temporary, rows, {})
        elif output.name.endswith(TABLES):
            write_any_table(temporary, output.name, rows)
        else:
            shutil.copyfile(path, temporary)
            with hdf5_to_write(temporary, "r+") as file:
                _add_columns(file["obs"], table[[f"{key}_{name}" for name in CURATED_COLUMNS]])
                _free(file["uns"][key], "curated")
                write_elem(file["uns"][key], "curated", record)
            mark_own(temporary)


def _write_zarr(cells: AnnData, folder: Path) -> None:
    """Write cells as zarr, and open the store once: names that zarr cannot have are refused."""
    _name_for_zarr(cells)
    remedy = "rename it, or write the output as .h5ad"
    # all programs read version 2
    with warnings.catch_warnings(), ad.settings.override(zarr_write_format=2):
        warnings.filterwarnings("ignore", message="Writing zarr v2")
        try:
            cells.write_zarr(folder)
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENAMETOOLONG, errno.EEXIST):
                raise
            reason = next(iter(getattr(error, "__notes__", [])), "") or reason_of(error)
            raise InputError(
                "zarr-name", f"a name that zarr cannot have ({reason})", "another", remedy
            ) from error
    written = {
        name
        for name, _ in zarr.open_group(folder, mode="r", use_consolidated=False).members(
            max_depth=None
        )
    }
    if lost := sorted(_places(cells) - written):
        raise InputError(
            "zarr-name", f"'{lost[0]}', a name that zarr cannot have", "another", remedy
        )
    try:
        is_whole = written == {
            name for name, _ in zarr.open_group(folder, mode="r").members(max_depth=None)
        }
    except KeyError:
        is_whole = False
    # consolidated metadata lacks names that differ in case only; readers then list the folders
    if not is_whole:
        (folder / ".zmetadata").unlink()


def _places(cells: AnnData) -> set[str]:
    """Return the place of each column and each element of an AnnData in a file."""
    uns: list[tuple[str, Any]] = [("uns", cells.uns)]
    for place, values in uns:
        if isinstance(values, Mapping):
            uns += [
                (f"{place}/{name}", value) for name, value in values.items() if value is not None
            ]
    names = {"obs": cells.obs, "var": cells.var}
    names |= {place: getattr(cells, place) for place in ("layers", "obsm", "varm", "obsp", "varp")}
    places = {place for place, _ in uns} | {
        f"{place}/{name}" for place, values in names.items() for name in values
    }
    return {place.replace("\\", "/") for place in places}  # as zarr does


def _name_for_zarr(cells: AnnData) -> None:
    """Replace slashes in names of columns and of the index, which h5ad files can have.

    An index of cells with the name of a label loses it: tables in obsm have the same index, and labels as columns.
    """
    for table in (cells.obs, cells.var):
        *columns, index = without_slashes([*map(str, table.columns), table.index.name or ""])
        table.columns = columns
        table.index.name = index or None
    if any(
        isinstance(table, pd.DataFrame) and cells.obs.index.name in table
        for table in cells.obsm.values()
    ):
        cells.obs.index.name = None


def _add(file: h5py.File, annotation: Annotation) -> None:
    """Add an annotation to an AnnData in a file, as anndata encodes it; embedding and probabilities block by block."""
    key = annotation.key
    num_cells = len(annotation.obs)
    _add_columns(
        file["obs"], annotation.obs, annotation.outdated(file["obs"].attrs["column-order"])
    )
    for place in ("obsm", "uns"):
        if file.get(place) is None:
            _free(file, place)
            write_elem(file, place, {})
    _free(file["uns"], key)
    write_elem(file["uns"], key, to_uns(annotation.record))
    obsm = file["obsm"]
    for name in OBSM:
        _free(obsm, name.format(key))
    if annotation.umap is not None:
        _free(obsm, UMAP)
        write_elem(obsm, UMAP, annotation.umap)
    _write_columns(_new_table(file, f"{key}_details", list(annotation.details)), annotation.details)
    first = next(iter(annotation.blocks())).embedding
    embedding = _new_array(obsm, f"X_{key}", (num_cells, first.shape[1]), first.dtype)
    tables = []
    for name, kind in {
        "proba": np.float32,
        **({"own_proba": np.float64} if annotation.has_own else {}),
    }.items():
        table = _new_table(file, f"{key}_{name}", annotation.labels)
        tables.append([_new_array(table, label, (num_cells,), kind) for label in annotation.labels])
    start = 0
    for block in annotation.blocks():
        stop = start + len(block.proba)
        embedding[start:stop] = block.embedding
        probabilities = (
            [block.proba, own_probabilities(block.embedding)]
            if annotation.has_own
            else [block.proba]
        )
        for columns, proba in zip(tables, probabilities, strict=True):
            for column, values in zip(columns, proba.T, strict=True):
                column[start:stop] = values
        start = stop


def _add_columns(obs: h5py.Group, columns: pd.DataFrame, dropped: Sequence[str] = ()) -> None:
    """Write columns into obs, and remove those that are `dropped`."""
    for name in (*dropped, *map(str, columns)):
        _free(obs, name)
    _write_columns(obs, columns)
    order = [
        name.decode() if isinstance(name, bytes) else str(name)
        for name in obs.attrs["column-order"]
    ]
    order = [name for name in order if name not in dropped]
    obs.attrs["column-order"] = order + [str(name) for name in columns if name not in order]


def _write_columns(table: h5py.Group, columns: pd.DataFrame) -> None:
    """Write the columns of a table as anndata does: the `array` of each, with Categorical, masked or NumPy values."""
    for name, values in columns.items():
        array = values.array
        write_elem(
            table,
            str(name),
            array.to_numpy() if isinstance(array, pd.arrays.NumpyExtensionArray) else array,
        )


def _new_table(file: h5py.File, name: str, columns: list[str]) -> h5py.Group:
    """Create a table of the cells in obsm, to which columns are added."""
    table = file["obsm"].create_group(name)
    # A label may have the name of the index of obs, but not this one.
    encoding = {
        "encoding-type": "dataframe",
        "encoding-version": "0.2.0",
        "_index": "_index",
        "column-order": columns,
    }
    table.attrs.update(encoding)
    # without reading the names
    file.copy(file["obs"][file["obs"].attrs["_index"]], table, "_index")
    return table


def _new_array(group: h5py.Group, name: str, shape: tuple[int, ...], dtype: Any) -> h5py.Dataset:
    array = group.create_dataset(name, shape, dtype=dtype)
    array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return array


def _free(group: h5py.Group, name: str) -> None:
    """Remove an element if it exists; also a dangling link."""
    if group.get(name, getlink=True) is not None:
        del group[name]


def _write_r(
    temporary: Path, blocks: Iterator[pd.DataFrame], matrices: dict[str, pd.DataFrame]
) -> None:
    """Write a data.frame whose row names are the cells, with matrices, such as the UMAP, as attributes."""
    table = pd.concat(blocks, ignore_index=True)
    names = table.pop("cell")
    if names.duplicated().any():
        found = f"cell '{names[names.duplicated()].iloc[0]}' more than once, for a data.frame of R"
        raise InputError(
            "cell-twice", found, "a name of its own for each cell", "write the output as .csv"
        )
    write_table(
        temporary, names.tolist(), {str(name): values for name, values in table.items()}, matrices
    )


def require_writable(
    output: Path, replace: bool, formats: Sequence[str] = FORMATS, option: str = "output"
) -> None:
    """Refuse an output that cannot be written, or whose name does not end in one of the formats."""
    require_replaceable(output, replace, STORE if output.suffix == ".zarr" else None, option=option)
    if not output.name.endswith(tuple(formats)):
        expected = f"a name that ends in {', '.join(formats)}"
        raise InputError("output-format", f"{option}={output}", expected, "rename it")
    require_openpyxl(output)


def lines_for_r(output: Path) -> list[str]:
    """Return the lines of R that add the table `output` to an object, by cell: of Seurat, and of Bioconductor."""
    if not output.name.endswith((RDS, ".csv", ".csv.gz")):
        return []
    name = json.dumps(output.as_posix(), ensure_ascii=False)
    read = f"readRDS({name})" if output.suffix == RDS else f"read.csv({name}, row.names = 1)"
    return [
        f"object <- AddMetaData(object, {read})  # Seurat",
        f"calls <- {read}[colnames(object), ]; colData(object)[names(calls)] <- calls  # SingleCellExperiment",
    ]


def _table_rows(cells: OpenedCells, annotation: Annotation) -> Iterator[pd.DataFrame]:
    """Yield the rows of a table in blocks: the name of each cell, and its columns."""
    details = annotation.details.add_prefix(f"{annotation.key}_")
    for start in range(0, len(annotation.obs), TABLE_ROWS):
        block = annotation.obs[start : start + TABLE_ROWS].join(details)
        stop = start + len(block)
        block.insert(0, "cell", np.asarray(cells.names(start, stop), dtype=object))
        yield block


def write_any_table(temporary: Path, name: str, blocks: Iterator[pd.DataFrame]) -> None:
    """Write a workbook, or a file of text, by the ending of `name`."""
    if name.endswith(XLSX):
        write_workbook(temporary, {"cells": pd.concat(blocks, ignore_index=True)})
    else:
        write_text(temporary, name, blocks)


def write_text(temporary: Path, name: str, blocks: Iterator[pd.DataFrame]) -> None:
    """Write a CSV or TSV file, by the ending of `name`; a text that a spreadsheet would run gets a ' in front."""
    separator = next(separator for suffix, separator in SEPARATORS.items() if name.endswith(suffix))
    compression = "gzip" if name.endswith(".gz") else None
    num_quoted = 0
    for number, block in enumerate(blocks):
        texts = block.select_dtypes(["object", "category"]).astype(object)
        formulas = texts.apply(
            lambda column: column.astype(str).str.contains(FORMULA_START, regex=True)
        )
        num_quoted += int(formulas.to_numpy().sum())
        block[texts.columns] = texts.where(~formulas, "'" + texts.astype(str))
        block.columns = [escape_formula(name) for name in block]
        mode, header = ("w", True) if number == 0 else ("a", False)
        block.to_csv(
            temporary, sep=separator, index=False, mode=mode, header=header, compression=compression
        )
    if num_quoted:
        log.warning(
            "%d texts that spreadsheets would run as formulas have a ' in front", num_quoted
        )
