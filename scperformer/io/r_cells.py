"""Cells in a file of saveRDS: a Seurat object of version 3 to 5, a SingleCellExperiment, or a matrix."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.io.pickles import MISFITS, read_in_child
from scperformer.io.rds import DOUBLE, INTEGER, LIST, LOGICAL, NA_INTEGER, OPENERS, TEXTS, RObject, read_object
from scperformer.io.safety import reading, reason_of, require_valid_indices
from scperformer.io.tables import CELLS_BY_GENES, find_orientation

KINDS = "a Seurat object of version 3 to 5, a SingleCellExperiment, or a matrix with names, of saveRDS"
COUNTS, DATA, SCALED, RNA = "counts", "data", "scale.data", "RNA"
SPLIT = re.compile(rf"({COUNTS}|{DATA})(\..+)?")  # layers of Seurat 5: counts, or counts.NAME for each sample
SLOW = 4  # times that bz2 and xz take, and memory of what they compress better, beside gzip
PLAIN = (LOGICAL, INTEGER, DOUBLE, TEXTS)


@dataclass
class Matrix:
    """A matrix of R, cells x genes, with the names that it has itself."""

    x: sparse.csr_matrix
    genes: list[str] | None
    cells: list[str] | None


@dataclass
class Assay:
    """An assay: its matrices, cells x genes."""

    genes: list[str]
    cells: list[str]
    layers: dict[str, sparse.csr_matrix]
    notes: list[str] = field(default_factory=list)


# The active assay, obs and var, notes, and the assay of raw.
Parts: TypeAlias = tuple[Assay, pd.DataFrame, pd.DataFrame, list[str], Assay | None]


def read_r(path: Path) -> tuple[AnnData, list[str]]:
    """Read the cells of an R object: counts in X and other layers in `layers`; also return notes.

    X has the first layer if the assay has no counts. `raw` has the counts of the assay RNA where another one is active.
    """
    with path.open("rb") as file:
        is_slow = file.read(6).startswith(tuple(signature for signature in OPENERS if signature[0] != 0x1F))
    size = path.stat().st_size * (SLOW if is_slow else 1)
    with reading(path, "a complete file of saveRDS"):
        assay, obs, var, notes, raw = read_in_child(lambda: _parts(path), size)
        layers = dict(assay.layers)
        first = COUNTS if COUNTS in layers else next(iter(layers))
        adata = AnnData(layers.pop(first), obs=obs, var=var, layers=layers)
        places = [f"{first} in X", *(f"{name} in layers/{name}" for name in layers)]
        if raw is not None:
            adata.raw = AnnData(raw.layers[COUNTS], obs=obs, var=_named(raw.genes))
            places.append(f"counts of the assay {RNA} in raw")
    return adata, [*notes, ", ".join(places), *assay.notes]


def _parts(path: Path) -> Parts:
    """Read an object and take the cells out of it; runs in a child process."""
    try:
        found = read_object(path)
        kind = next(iter(found.classes), "")
        if kind == "Seurat":
            return _seurat(found, path)
        if {"colData", "assays"} <= found.attributes.keys():
            return _experiment(found, path)
        if "Dim" in found.attributes or found["dim"].value is not None:
            return _of_matrix(_matrix(found, "object", path), path)
    except (EOFError, OSError, *MISFITS) as error:
        if isinstance(error, InputError):
            raise
        is_told = isinstance(error, EOFError | OSError | ValueError)
        raise ValueError(reason_of(error) if is_told else "parts that do not fit each other") from error
    remedy = "in R: saveRDS(object, 'object.rds') with such an object alone"
    if kind == "seurat":
        remedy = "in R: object <- Seurat::UpdateSeuratObject(object); saveRDS(object, 'object.rds')"
        kind = "seurat, of Seurat 2"
    elif found.kind == LIST and not kind and (names := list(found.items())):
        kind = f"list of {listed(names)}"
        remedy = f"in R: saveRDS(object[['{names[0]}']], '{names[0]}.rds')"
    what = f"an object of the class {kind}" if kind else "plain values"
    raise InputError("r-object", f"{path} holds {what}", KINDS, remedy)


def _foreign(what: str, found: RObject, path: Path) -> InputError:
    """Return the error about a matrix that is not in the file, or of a kind that is not read."""
    name = next(iter(found.classes), "")
    package = f" of {found.package}" if found.package else ""
    remedy = f"in R: {what} <- as({what}, 'dgCMatrix'); saveRDS(object, 'in_memory.rds')"
    expected = "matrices in memory: dgCMatrix, dgTMatrix or matrix"
    return InputError("r-matrix", f"{path} with a {name or 'value'}{package} in {what}", expected, remedy)


def _matrix(found: RObject, what: str, path: Path) -> Matrix:
    """Return a matrix of R, genes x cells, as cells x genes; `what` is its place in the object, as R writes it."""
    kind = next(iter(found.classes), "")
    if kind in ("dgCMatrix", "dgTMatrix"):
        num_genes, num_cells = map(int, found["Dim"].value)
        rows = found["i"].value
        place = (rows, found["p"].value) if kind == "dgCMatrix" else ((found["j"].value, rows),)
        x = sparse.csr_matrix((found["x"].value.astype(np.float32), *place), shape=(num_cells, num_genes))
        require_valid_indices(x, what, path)
        return Matrix(x, *_names(found["Dimnames"]))
    if found.kind in (INTEGER, DOUBLE) and found["dim"].value is not None:
        num_genes, num_cells = map(int, found["dim"].value)
        dense = found.value.reshape(num_cells, num_genes)  # R stores columns one after another
        return Matrix(sparse.csr_matrix(dense, dtype=np.float32), *_names(found["dimnames"]))
    inner = found["seed"]
    if not inner.classes and inner["dim"].value is None:
        raise _foreign(what, found, path)
    seed = _matrix(inner, what, path)
    names = seed.genes, seed.cells
    if kind == "DelayedSetDimnames":
        own = _names(found["dimnames"])
        return Matrix(seed.x, own[0] or names[0], own[1] or names[1])
    if kind == "DelayedAperm" and list(found["perm"].value) == [2, 1]:
        return Matrix(seed.x.T.tocsr(), *names[::-1])
    if kind == "DelayedSubset":
        sizes = seed.x.shape[::-1]
        chosen = [
            np.arange(size) if part is None else part.value.astype(np.int64) - 1
            for part, size in zip(found["index"].value, sizes, strict=True)
        ]
        genes, cells = (
            None if all_names is None else [all_names[row] for row in rows]
            for all_names, rows in zip(names, chosen, strict=True)
        )
        return Matrix(seed.x[chosen[1]][:, chosen[0]], genes, cells)
    if kind != "DelayedMatrix":
        raise _foreign(what, found, path)
    return seed


def _matrices(stored: Mapping[str, tuple[RObject, str]], path: Path) -> tuple[dict[str, Matrix], list[str]]:
    """Return the matrices of these parts, by their names, and notes on those that cannot be read: any but counts."""
    matrices = {}
    notes = []
    for name, (part, what) in stored.items():
        try:
            matrices[name] = _matrix(part, what, path)
        except InputError as error:
            if name.startswith(COUNTS) or len(stored) == 1:
                raise
            notes.append(f"{what} is left out: {error.found}")
    return matrices, notes


def _has_values(found: RObject) -> bool:
    """Whether a matrix is none of those without rows that stand for a missing one."""
    sizes = [size for name in ("Dim", "dim") for size in (() if found[name].value is None else found[name].value)]
    return bool(found.attributes) and 0 not in sizes


def _named(names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(index=pd.Index(names, dtype=object))


def _names(found: RObject) -> tuple[list[str] | None, list[str] | None]:
    """Return the names of rows and of columns; None where a matrix has none."""
    parts = found.value or [None, None]
    rows, columns = (part.value if isinstance(part, RObject) and part.kind == TEXTS else None for part in parts)
    return rows or None, columns or None


def _of_matrix(matrix: Matrix, path: Path) -> Parts:
    """Return the cells of a matrix with names; these show whether genes are in rows, as R has them."""
    if matrix.genes is None or matrix.cells is None:
        raise InputError("r-names", f"{path}, a matrix without names of rows and columns", KINDS, "add dimnames in R")
    genes, cells, x = matrix.genes, matrix.cells, matrix.x
    orientation, reason = find_orientation(genes, cells, path)
    if orientation == CELLS_BY_GENES:
        genes, cells, x = cells, genes, x.T.tocsr()
    assay = Assay(genes, cells, {"matrix": x})
    return assay, _named(cells), _named(genes), [f"a matrix of R, {orientation} ({reason})"], None


def _table(found: RObject, names: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the plain columns of a data.frame or DataFrame with these row names, and the names of others."""
    columns: dict[str, Any] = {}
    others = []
    for name, part in (found if found.kind == LIST else found["listData"]).items().items():
        values = part.value
        if part.kind not in PLAIN or part["dim"].value is not None or len(values) != len(names):
            others.append(name)
        elif (levels := part["levels"].value) is not None:
            is_ordered = "ordered" in part.classes
            codes = np.where(values == NA_INTEGER, 0, values) - 1
            columns[name] = pd.Categorical.from_codes(codes, pd.Index(levels, dtype=object), ordered=is_ordered)
        elif part.kind == LOGICAL:
            is_missing = values == NA_INTEGER
            flags = values == 1
            columns[name] = pd.arrays.BooleanArray(flags, is_missing) if is_missing.any() else flags
        elif part.kind == INTEGER and (values == NA_INTEGER).any():
            columns[name] = np.where(values == NA_INTEGER, np.nan, values)
        else:
            columns[name] = np.asarray(values, dtype=object) if part.kind == TEXTS else values
    return pd.DataFrame(columns, index=pd.Index(names, dtype=object)), others


def _without(others: Sequence[str], where: str) -> list[str]:
    return [f"columns of {where} that are no plain values are left out: {listed(others)}"] if others else []


def _seurat(found: RObject, path: Path) -> Parts:
    """Return the active assay of a Seurat object, and the counts of the assay RNA if that is another."""
    assays = found["assays"].items()
    active = next(iter(found["active.assay"].value or assays), "")
    if active not in assays:
        active = next(iter(assays))
    assay = _assay(assays[active], active, path)
    raw = None
    if active != RNA and RNA in assays:
        with suppress(InputError):  # such as counts on disk, beside a sketch
            raw = _assay(assays[RNA], RNA, path)
    if raw is not None and (COUNTS not in raw.layers or raw.cells != assay.cells):
        raw = None
    meta = found["meta.data"]
    obs, others = _table(meta, meta["row.names"].value)
    idents = found["active.ident"]
    has_idents = len(idents["levels"].value or []) > 1 and "ident" not in obs
    if has_idents:
        cells = idents["names"].value or list(obs.index)
        obs["ident"] = _table(RObject(LIST, [idents]), cells)[0]["1"].reindex(obs.index)
    if missing := set(assay.cells) - set(obs.index):
        raise ValueError(f"no row of meta.data for {len(missing)} cells")
    version = ".".join(map(str, found["version"].value[0].value)) if found["version"].value else "?"
    notes = [f"Seurat object of version {version}, assay {active} of {listed(assays)}"]
    notes += _without(others, "meta.data") + ["Idents(object) in obs['ident']"] * has_idents
    return assay, obs.loc[assay.cells], _named(assay.genes), notes, raw


def _assay(found: RObject, name: str, path: Path) -> Assay:
    where = f"object[['{name}']]"
    if found["layers"].kind != LIST:
        slots = {slot: (found[slot], f"{where}@{slot}") for slot in (COUNTS, DATA) if _has_values(found[slot])}
        matrices, notes = _matrices(slots, path)
        first = next(iter(matrices.values()), None)
        if first is None or first.genes is None or first.cells is None:
            raise InputError("r-empty", f"no counts and no data with names in {where} of {path}", KINDS, "add them")
        return Assay(first.genes, first.cells, {slot: matrix.x for slot, matrix in matrices.items()}, notes)
    genes, has_gene = _log_map(found["features"])
    cells, has_cell = _log_map(found["cells"])
    stored = found["layers"].items()
    wanted = {name: (part, f"{where}${name}") for name, part in stored.items() if not name.startswith(SCALED)}
    matrices, notes = _matrices(wanted, path)
    groups: dict[str, list[str]] = {}
    for layer in matrices:
        match = SPLIT.fullmatch(layer)
        groups.setdefault(match[1] if match else layer, []).append(layer)
    layers = {}
    for group in sorted(groups, key=lambda group: (group != COUNTS, group != DATA)):
        names = groups[group]
        places = [(has_cell[layer], has_gene[layer]) for layer in names]
        if (num := len(np.unique(np.concatenate([rows for rows, _ in places])))) < len(cells):
            notes.append(f"layer {group} is left out, as it has {num:,} of {len(cells):,} cells")
            continue
        layers[group] = _joined([matrices[layer].x for layer in names], places, (len(cells), len(genes)))
        if len(names) > 1:
            some = any(len(columns) < len(genes) for _, columns in places)
            zeros = "; genes that one of them lacks are 0 in its cells" if some else ""
            notes.append(f"{group} are joined from the {len(names)} layers {listed(names)}{zeros}")
    if not layers:
        raise InputError("r-empty", f"no layer with all cells in {where} of {path}", KINDS, "add the counts")
    return Assay(genes, cells, layers, notes)


def _log_map(found: RObject) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the names of the genes or cells of an assay, and the numbers of those in each layer."""
    names, layers = _names(found["dimnames"])
    flags = found.value.reshape(-1, len(names or ())) == 1
    return list(names or ()), {layer: np.flatnonzero(rows) for layer, rows in zip(layers or (), flags, strict=True)}


def _joined(
    parts: Sequence[sparse.csr_matrix], places: Sequence[tuple[np.ndarray, np.ndarray]], shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Join layers of an assay, whose rows and columns are at `places` of it."""
    if len(parts) == 1 and parts[0].shape == shape:
        return parts[0]
    spread = []
    for part, (rows, columns) in zip(parts, places, strict=True):
        if part.shape != (len(rows), len(columns)):
            raise ValueError("a layer that does not fit its names")
        spread.append(sparse.csr_matrix((part.data, columns[part.indices], part.indptr), shape=(len(rows), shape[1])))
    order = np.argsort(np.concatenate([rows for rows, _ in places]), kind="stable")
    return sparse.csr_matrix(sparse.vstack(spread, format="csr")[order])


def _experiment(found: RObject, path: Path) -> Parts:
    """Return the assays of a SingleCellExperiment or SummarizedExperiment."""
    data = found["assays"]["data"]
    if "data" not in found["assays"].attributes:  # of before Bioconductor 3.10, in an environment
        data = (found["assays"][".xData"].value or {})["data"]
    stored = data["listData"].items()
    matrices, left_out = _matrices({name: (stored[name], f"assay(object, '{name}')") for name in stored}, path)
    if not matrices:
        raise InputError("r-empty", f"no assay in {path}", KINDS, "add the counts")
    ranges = found["rowRanges"]
    rows = found["NAMES"].value or ranges["partitioning"]["NAMES"].value or ranges["ranges"]["NAMES"].value
    first = next(iter(matrices.values()))
    genes = rows or first.genes
    cells = found["colData"]["rownames"].value or first.cells
    if genes is None or cells is None:
        raise InputError("r-names", f"no names of genes or cells in {path}", KINDS, "set rownames and colnames in R")
    obs, others = _table(found["colData"], cells)
    about = ranges["elementMetadata"] if ranges["elementMetadata"]["listData"].value else found["elementMetadata"]
    var, more = _table(about, genes)
    layers = {name: matrices[name].x for name in sorted(matrices, key=lambda name: name != COUNTS)}
    notes = [f"{found.classes[0]}, assays {listed(stored)}"]
    notes += _without(others, "colData") + _without(more, "rowData")
    return Assay(genes, cells, layers, left_out), obs, var, notes, None
