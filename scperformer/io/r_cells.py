"""Cells in a file of saveRDS: a Seurat object of version 3 to 5, a SingleCellExperiment, or a matrix."""

import math
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
from scperformer.io.axes import is_gene
from scperformer.io.pickles import MISFITS, read_in_child
from scperformer.io.rds import (
    DOUBLE,
    INTEGER,
    LIST,
    LOGICAL,
    NA_INTEGER,
    OPENERS,
    TEXTS,
    RObject,
    as_text,
    read_object,
)
from scperformer.io.safety import reading, require_valid_indices
from scperformer.io.tables import CELLS_BY_GENES, find_orientation

R_OBJECTS = (
    "a Seurat object of version 3 to 5, a SingleCellExperiment, or a matrix with names, of saveRDS"
)
# What R makes of objects of other classes.
CONVERTED = {
    "seurat": "Seurat::UpdateSeuratObject(object)",  # of Seurat 2
    "ExpressionSet": "Biobase::exprs(object)",
    "CellDataSet": "Biobase::exprs(object)",
    "DGEList": "object$counts",
    **dict.fromkeys(("DFrame", "DataFrame"), "as.matrix(object)"),
}
COUNTS, DATA, SCALED, RNA = "counts", "data", "scale.data", "RNA"
IS_RNA = re.compile("rna|gene|gex", re.IGNORECASE)  # names of parts that have it
# layers of Seurat 5: counts, or counts.NAME for each sample
SPLIT = re.compile(rf"({COUNTS}|{DATA})(\..+)?")
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


# The active assay, obs and var, notes, and the assay of raw, whose notes say which it is.
Parts: TypeAlias = tuple[Assay, pd.DataFrame, pd.DataFrame, list[str], Assay | None]


def _size(path: Path) -> int:
    """Return the bytes of a file, as far as they tell how long it takes."""
    with path.open("rb") as file:
        is_slow = file.read(6).startswith(
            tuple(signature for signature in OPENERS if signature[0] != 0x1F)
        )
    return path.stat().st_size * (SLOW if is_slow else 1)


def read_r(path: Path) -> tuple[AnnData, list[str]]:
    """Read the cells of an R object: counts in X and other layers in `layers`; also return notes.

    X has the first layer if the assay has no counts. `raw` has the counts of the assay RNA where another one is active.
    """
    with reading(path, "a complete file of saveRDS"):
        assay, obs, var, notes, raw = read_in_child(lambda: _parts(path), _size(path))
        layers = dict(assay.layers)
        first = COUNTS if COUNTS in layers else next(iter(layers))
        adata = AnnData(layers.pop(first), obs=obs, var=var, layers=layers)
        places = [f"{first} in X", *(f"{name} in layers/{name}" for name in layers)]
        if raw is not None:
            adata.raw = AnnData(next(iter(raw.layers.values())), obs=obs, var=_named(raw.genes))
            places += raw.notes
    return adata, [*notes, ", ".join(places), *assay.notes]


def read_r_texts(path: Path, column: str, expected: str) -> pd.DataFrame:
    """Read a data.frame of cells as text, or values with the names of cells, such as Idents(object), as a `column`."""
    with reading(path, "a complete file of saveRDS"):
        return read_in_child(lambda: _texts(read_object(path), column, path, expected), _size(path))


def _texts(robject: RObject, column: str, path: Path, expected: str) -> pd.DataFrame:
    """Return a table of R as text, with the names of its rows, or else its first column, as index."""
    rows = robject["names"].value
    if robject.kind in PLAIN and rows:
        robject = RObject(LIST, [robject], {"names": RObject(TEXTS, [column])})
    elif "data.frame" in robject.classes or "listData" in robject.attributes:
        rows = robject["row.names" if robject.kind == LIST else "rownames"].value
    else:
        remedy = (
            f"in R: saveRDS(object[['{column}']], '{path.name}'), or of colData(object)['{column}']"
        )
        raise InputError(
            "r-object", f"{path} holds neither a data.frame nor named values", expected, remedy
        )
    if not isinstance(rows, list):  # numbers, in place of names
        first = next(
            iter((robject if robject.kind == LIST else robject["listData"]).items().values())
        ).value
        table, _ = _table(robject, [""] * len(first))
        table = table.set_index(str(table.columns[0]))
    else:
        table, _ = _table(robject, rows)
    return table.apply(
        lambda values: pd.Series([_text(value) for value in values], values.index, dtype=object)
    )


def _text(value: Any) -> str | None:
    """Return a value as R's as.character does; None for one that is missing."""
    if pd.isna(value) or isinstance(value, str):
        return value if isinstance(value, str) else None
    return str(value).upper() if isinstance(value, bool | np.bool_) else as_text(value)


def _parts(path: Path) -> Parts:
    """Read an object and take the cells out of it; runs in a child process."""
    robject = read_object(path)
    if "Seurat" in robject.classes:
        return _seurat(robject, path)
    if {"colData", "assays"} <= robject.attributes.keys():
        return _experiment(robject, path)
    if "Dim" in robject.attributes or robject["dim"].value is not None:
        return _of_matrix(_matrix(robject, "object", path), path)
    if robject["key"].kind == TEXTS:  # of an assay alone
        assay = _assay(robject, "object", path)
        notes = [f"an {robject.classes[0]} of Seurat, without meta.data"]
        return assay, _named(assay.cells), _named(assay.genes), notes, None
    raise _other(robject, path)


def _other(robject: RObject, path: Path) -> InputError:
    """Return the error about an object of another class, with the line of R that makes one of it that is read."""
    kind = next(iter(robject.classes), "")
    matrix = CONVERTED.get(kind, "")
    before = ""
    if "data.frame" in robject.classes:
        matrix = "as.matrix(object)"
        first = next(iter(robject.items().values()), RObject(0))
        if TEXTS in (first.kind, first["levels"].kind):  # the genes, beside numbers
            before = "object <- as.data.frame(object); rownames(object) <- make.unique(as.character(object[[1]])); "
            matrix = "as.matrix(object[-1])"
    parts = (
        robject["ExperimentList"]["listData"] if "ExperimentList" in robject.attributes else robject
    )
    if not matrix and parts.kind == LIST and parts.value:
        names = parts["names"].value or [""] * len(parts.value)
        has_cells = [
            not {"assays", "Dim", "dim"}.isdisjoint(getattr(part, "attributes", ()))
            for part in parts.value
        ]
        best = max(
            range(len(names)),
            key=lambda place: (has_cells[place], bool(IS_RNA.search(names[place])), -place),
        )
        matrix = (
            f"object[['{names[best]}']]"
            if names[best] and "'" not in names[best]
            else f"object[[{best + 1}]]"
        )
        kind = (
            kind
            or f"list ({listed(name or f'[[{place}]]' for place, name in enumerate(names, 1))})"
        )
    what = f"an object of the class {kind}" if kind else "plain values"
    matrix = matrix or "counts"
    remedy = f"in R: {before}saveRDS({matrix}, 'object.rds')"
    if matrix == "counts":
        remedy += " with the matrix of its counts, which has the names of genes and cells"
    return InputError("r-object", f"{path} holds {what}", R_OBJECTS, remedy)


def _foreign(what: str, robject: RObject, path: Path) -> InputError:
    """Return the error about a matrix that is not in the file, or of a kind that is not read."""
    name = next(iter(robject.classes), "")
    package = f" of {robject.package}" if robject.package else ""
    line = f"{what} <- as({what}, 'dgCMatrix')"
    if robject.package == "Matrix":  # which has no such method for some of its classes
        line = f"{what} <- as(as(as({what}, 'dMatrix'), 'generalMatrix'), 'CsparseMatrix')"
    elif robject.kind in (LOGICAL, TEXTS):
        line = f"mode({what}) <- 'numeric'"
    remedy = f"in R: {line}; saveRDS(object, 'in_memory.rds')"
    expected = "matrices in memory: dgCMatrix, dgRMatrix, dgTMatrix, dgeMatrix or matrix of numbers"
    return InputError(
        "r-matrix", f"{path} with a {name or 'value'}{package} in {what}", expected, remedy
    )


def _matrix(robject: RObject, what: str, path: Path) -> Matrix:
    """Return a matrix of R, genes x cells, as cells x genes; `what` is its place in the object, as R writes it."""
    kind = next(iter(robject.classes), "")
    if kind in ("dgCMatrix", "dgRMatrix", "dgTMatrix"):
        shape = tuple(map(int, robject["Dim"].value[::-1]))
        values = robject["x"].value.astype(np.float32)
        if kind == "dgCMatrix":
            x = sparse.csr_matrix((values, robject["i"].value, robject["p"].value), shape=shape)
        elif kind == "dgRMatrix":
            x = sparse.csc_matrix((values, robject["j"].value, robject["p"].value), shape=shape)
        else:
            x = sparse.csr_matrix((values, (robject["j"].value, robject["i"].value)), shape=shape)
        require_valid_indices(x, what, path)
        return Matrix(x.tocsr(), *_names(robject["Dimnames"]))
    if kind == "dgeMatrix":
        return Matrix(_sparse(robject["x"].value, robject["Dim"]), *_names(robject["Dimnames"]))
    if robject.kind in (INTEGER, DOUBLE) and robject["dim"].value is not None:
        return Matrix(_sparse(robject.value, robject["dim"]), *_names(robject["dimnames"]))
    inner = robject["seed"]
    if not inner.classes and inner["dim"].value is None:
        raise _foreign(what, robject, path)
    seed = _matrix(inner, what, path)
    names = seed.genes, seed.cells
    if kind == "DelayedSetDimnames":
        outer = _names(robject["dimnames"])
        return Matrix(seed.x, outer[0] or names[0], outer[1] or names[1])
    if kind == "DelayedAperm" and list(robject["perm"].value) == [2, 1]:
        return Matrix(seed.x.T.tocsr(), *names[::-1])
    if kind == "DelayedSubset":
        sizes = seed.x.shape[::-1]
        chosen = [
            np.arange(size) if part is None else part.value.astype(np.int64) - 1
            for part, size in zip(robject["index"].value, sizes, strict=True)
        ]
        genes, cells = (
            None if all_names is None else [all_names[row] for row in rows]
            for all_names, rows in zip(names, chosen, strict=True)
        )
        return Matrix(seed.x[chosen[1]][:, chosen[0]], genes, cells)
    if kind != "DelayedMatrix":
        raise _foreign(what, robject, path)
    return seed


def _sparse(values: np.ndarray, shape: RObject) -> sparse.csr_matrix:
    """Return dense values, of which R stores columns one after another, as cells x genes."""
    num_genes, num_cells = map(int, shape.value)
    return sparse.csr_matrix(values.reshape(num_cells, num_genes), dtype=np.float32)


def _matrices(
    stored: Mapping[str, tuple[RObject, str]], path: Path
) -> tuple[dict[str, Matrix], list[str]]:
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


def _has_values(robject: RObject) -> bool:
    """Whether a matrix is none of those that stand for a missing one: without rows, or `matrix()` with one value."""
    sizes = [
        size
        for name in ("Dim", "dim")
        for size in (() if robject[name].value is None else robject[name].value)
    ]
    return bool(robject.attributes) and (not sizes or math.prod(sizes) > 1)


def _named(names: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(index=pd.Index(names, dtype=object))


def _names(robject: RObject) -> tuple[list[str] | None, list[str] | None]:
    """Return the names of rows and of columns; None where a matrix has none."""
    parts = robject.value or [None, None]
    rows, columns = (
        part.value if isinstance(part, RObject) and part.kind == TEXTS else None for part in parts
    )
    return rows or None, columns or None


def _of_matrix(matrix: Matrix, path: Path) -> Parts:
    """Return the cells of a matrix with names; these show whether genes are in rows, as R has them."""
    if matrix.genes is None or matrix.cells is None:
        raise InputError(
            "r-names",
            f"{path}, a matrix without names of rows and columns",
            R_OBJECTS,
            "add dimnames in R",
        )
    genes, cells, x = matrix.genes, matrix.cells, matrix.x
    orientation, reason = find_orientation(genes, cells, path)
    if orientation == CELLS_BY_GENES:
        genes, cells, x = cells, genes, x.T.tocsr()
    assay = Assay(genes, cells, {"matrix": x})
    return assay, _named(cells), _named(genes), [f"a matrix of R, {orientation} ({reason})"], None


def _table(robject: RObject, names: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the plain columns of a data.frame or DataFrame with these row names, and the names of others."""
    columns: dict[str, Any] = {}
    others = []
    for name, part in (robject if robject.kind == LIST else robject["listData"]).items().items():
        values = part.value
        if part.kind not in PLAIN or part["dim"].value is not None or len(values) != len(names):
            others.append(name)
        elif (levels := part["levels"].value) is not None:
            is_ordered = "ordered" in part.classes
            # addNA makes NA a level
            is_level = np.array([level is not None for level in levels], dtype=bool)
            place = np.where(is_level, np.cumsum(is_level) - 1, -1)
            codes = np.append(place, -1)[np.where(values == NA_INTEGER, len(levels), values - 1)]
            names_of = pd.Index([level for level in levels if level is not None], dtype=object)
            columns[name] = pd.Categorical.from_codes(codes, names_of, ordered=is_ordered)
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
    return (
        [f"columns of {where} that are no plain values are left out: {listed(others)}"]
        if others
        else []
    )


def _seurat(robject: RObject, path: Path) -> Parts:
    """Return the active assay of a Seurat object, and the counts of the assay RNA if that is another."""
    assays = robject["assays"].items()
    active = next(iter(robject["active.assay"].value or assays), "")
    if active not in assays:
        active = next(iter(assays))
    assay = _assay(assays[active], f"object[['{active}']]", path)
    raw = None
    if active != RNA:
        beside = {}
        for name in [RNA] if RNA in assays else assays.keys() - {active}:
            with suppress(*MISFITS):  # such as counts on disk, beside a sketch
                beside[name] = _assay(assays[name], f"object[['{name}']]", path)
        raw = _raw(assay, beside, "the assay")
    meta = robject["meta.data"]
    obs, others = _table(meta, meta["row.names"].value)
    idents = robject["active.ident"]
    has_idents = len(idents["levels"].value or []) > 1 and "ident" not in obs
    if has_idents:
        cells = idents["names"].value or list(obs.index)
        obs["ident"] = _table(RObject(LIST, [idents]), cells)[0]["1"].reindex(obs.index)
    if missing := set(assay.cells) - set(obs.index):
        raise ValueError(f"no row of meta.data for {len(missing)} cells")
    version = (
        ".".join(map(str, robject["version"].value[0].value)) if robject["version"].value else "?"
    )
    notes = [f"Seurat object of version {version}, assay {active} of {listed(assays)}"]
    notes += _without(others, "meta.data") + ["Idents(object) in obs['ident']"] * has_idents
    if num_left_out := len(obs) - len(assay.cells):
        whole = next((name for name in assays if name != active), active)
        remedy = f"in R: DefaultAssay(object) <- '{RNA if RNA in assays else whole}'"
        notes.append(
            f"{num_left_out:,} of {len(obs):,} cells are not in {active} and are left out; {remedy}"
        )
    return assay, obs.loc[assay.cells], _named(assay.genes), notes, raw


def _raw(active: Assay, others: Mapping[str, Assay], kind: str) -> Assay | None:
    """Return RNA beside an active assay, its counts if it has them: of this name, or with more known genes."""
    usable = {name: assay for name, assay in others.items() if assay.cells == active.cells}
    num_known = {name: sum(map(is_gene, assay.genes)) for name, assay in usable.items()}
    best = max(usable, key=lambda name: (name == RNA, num_known[name]), default=None)
    if best is None or (best != RNA and num_known[best] <= sum(map(is_gene, active.genes))):
        return None
    raw = usable[best]
    layer = COUNTS if COUNTS in raw.layers else next(iter(raw.layers))
    return Assay(
        raw.genes, raw.cells, {layer: raw.layers[layer]}, [f"{layer} of {kind} {best} in raw"]
    )


def _assay(robject: RObject, where: str, path: Path) -> Assay:
    """Return an assay of Seurat; `where` is its place, as R writes it."""
    if robject["layers"].kind != LIST:
        slots = {
            slot: (robject[slot], f"{where}@{slot}")
            for slot in (COUNTS, DATA)
            if _has_values(robject[slot])
        }
        matrices, notes = _matrices(slots, path)
        first = next(iter(matrices.values()), None)
        if first is None or first.genes is None or first.cells is None:
            raise InputError(
                "r-empty",
                f"no counts and no data with names in {where} of {path}",
                R_OBJECTS,
                "add them",
            )
        return Assay(
            first.genes, first.cells, {slot: matrix.x for slot, matrix in matrices.items()}, notes
        )
    genes, has_gene = _log_map(robject["features"])
    cells, has_cell = _log_map(robject["cells"])
    stored = robject["layers"].items()
    wanted = {
        name: (part, f"{where}${name}")
        for name, part in stored.items()
        if not name.startswith(SCALED)
    }
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
        layers[group] = _joined(
            [matrices[layer].x for layer in names], places, (len(cells), len(genes))
        )
        if len(names) > 1:
            some = any(len(columns) < len(genes) for _, columns in places)
            zeros = "; genes that one of them lacks are 0 in its cells" if some else ""
            notes.append(f"{group} are joined from the {len(names)} layers {listed(names)}{zeros}")
    if not layers:
        raise InputError(
            "r-empty", f"no layer with all cells in {where} of {path}", R_OBJECTS, "add the counts"
        )
    return Assay(genes, cells, layers, notes)


def _log_map(robject: RObject) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the names of the genes or cells of an assay, and the numbers of those in each layer."""
    names, layers = _names(robject["dimnames"])
    flags = robject.value.reshape(-1, len(names or ())) == 1
    return list(names or ()), {
        layer: np.flatnonzero(rows) for layer, rows in zip(layers or (), flags, strict=True)
    }


def _joined(
    parts: Sequence[sparse.csr_matrix],
    places: Sequence[tuple[np.ndarray, np.ndarray]],
    shape: tuple[int, int],
) -> sparse.csr_matrix:
    """Join layers of an assay, whose rows and columns are at `places` of it."""
    if len(parts) == 1 and parts[0].shape == shape:
        return parts[0]
    spread = []
    for part, (rows, columns) in zip(parts, places, strict=True):
        if part.shape != (len(rows), len(columns)):
            raise ValueError("a layer that does not fit its names")
        spread.append(
            sparse.csr_matrix(
                (part.data, columns[part.indices], part.indptr), shape=(len(rows), shape[1])
            )
        )
    order = np.argsort(np.concatenate([rows for rows, _ in places]), kind="stable")
    return sparse.csr_matrix(sparse.vstack(spread, format="csr")[order])


def _stored(robject: RObject) -> dict[str, RObject]:
    """Return the matrices of an experiment by the names of its assays."""
    data = robject["assays"]["data"]
    if "data" not in robject["assays"].attributes:  # of before Bioconductor 3.10, in an environment
        data = (robject["assays"][".xData"].value or {})["data"]
    return data["listData"].items()


def _row_names(robject: RObject) -> list[str] | None:
    ranges = robject["rowRanges"]
    return (
        robject["NAMES"].value
        or ranges["partitioning"]["NAMES"].value
        or ranges["ranges"]["NAMES"].value
    )


def _experiment(robject: RObject, path: Path) -> Parts:
    """Return the assays of a SingleCellExperiment or SummarizedExperiment, and RNA that is beside its main one."""
    stored = _stored(robject)
    matrices, left_out = _matrices(
        {name: (stored[name], f"assay(object, '{name}')") for name in stored}, path
    )
    if not matrices:
        raise InputError("r-empty", f"no assay in {path}", R_OBJECTS, "add the counts")
    first = next(iter(matrices.values()))
    genes = _row_names(robject) or first.genes
    cells = robject["colData"]["rownames"].value or first.cells
    notes = [f"{robject.classes[0]}, assays {listed(stored)}"]
    # of DropletUtils::read10xCounts
    barcodes = robject["colData"]["listData"].items().get("Barcode", RObject(0)).value
    if (
        cells is None
        and isinstance(barcodes, list)
        and len(set(barcodes) - {None}) == first.x.shape[0]
    ):
        cells = barcodes
        notes.append("cells are named by colData; in R: colnames(object) <- object$Barcode")
    if genes is None or cells is None:
        remedy = "in R: rownames(object) <- the symbols or ids of the genes"
        if genes is not None:
            names = (
                "make.unique(object$Barcode)"
                if isinstance(barcodes, list)
                else "paste0('cell', seq_len(ncol(object)))"
            )
            remedy = f"in R: colnames(object) <- {names}"
        raise InputError(
            "r-names",
            f"no names of {'genes' if genes is None else 'cells'} in {path}",
            R_OBJECTS,
            remedy,
        )
    obs, others = _table(robject["colData"], cells)
    ranges = robject["rowRanges"]
    about = (
        ranges["elementMetadata"]
        if ranges["elementMetadata"]["listData"].value
        else robject["elementMetadata"]
    )
    var, more = _table(about, genes)
    layers = {name: matrices[name].x for name in sorted(matrices, key=lambda name: name != COUNTS)}
    notes += _without(others, "colData") + _without(more, "rowData")
    assay = Assay(genes, cells, layers, left_out)
    return assay, obs, var, notes, _raw(assay, _alternatives(robject, cells, path), "the altExp")


def _alternatives(robject: RObject, cells: list[str], path: Path) -> dict[str, Assay]:
    """Return the alternative experiments of a SingleCellExperiment, with their counts or else their first assay."""
    stored = (
        robject["int_colData"]["listData"].items().get("altExps", RObject(0))["listData"].items()
    )
    assays = {}
    for name, part in stored.items():
        with suppress(*MISFITS):  # such as a matrix on disk
            layers = _stored(part["se"])
            layer = COUNTS if COUNTS in layers else next(iter(layers), COUNTS)
            matrix = _matrix(layers[layer], name, path)
            if (genes := _row_names(part["se"]) or matrix.genes) and matrix.x.shape == (
                len(cells),
                len(genes),
            ):
                assays[name] = Assay(genes, cells, {layer: matrix.x})
    return assays
