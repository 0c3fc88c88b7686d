"""Write objects of R as saveRDS does: parts that make Seurat objects, experiments, and hostile files."""

import gzip
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

NA_INT = -(2**31)


class Writer:
    """Writes items; symbols are written once, and then referred to, as R does."""

    def __init__(self):
        self.parts = [b"X\n", struct.pack(">iiii", 3, 0x40302, 0x30500, 5), b"UTF-8"]
        self.symbols: dict[str, int] = {}

    def ints(self, *values: int) -> "Writer":
        self.parts.append(struct.pack(f">{len(values)}i", *values))
        return self

    def text(self, value: str | None) -> None:
        data = (value or "").encode()
        self.ints(9 | (0 if value is None else 64 << 12 if data.isascii() else 8 << 12))
        self.ints(-1 if value is None else len(data))
        self.parts.append(data)

    def symbol(self, name: str) -> None:
        if name in self.symbols:
            self.ints(self.symbols[name] << 8 | 255)
            return
        self.symbols[name] = len(self.symbols) + 1
        self.ints(1)
        self.text(name)

    def pairs(self, values: Mapping[str, "Item"]) -> None:
        for name, value in values.items():
            self.ints(2 | 0x400)
            self.symbol(name)
            value(self)
        self.ints(254)


Item = Callable[[Writer], Any]


def null(w: Writer) -> None:
    w.ints(254)


def item(
    kind: int, write: Item, attributes: Mapping[str, Item] | None = None, is_s4: bool = False
) -> Item:
    """Make an item of a type, whose content `write` writes."""

    def made(w: Writer) -> None:
        w.ints(kind | 0x10100 * is_s4 | 0x200 * bool(attributes))
        write(w)
        if attributes:
            w.pairs(attributes)

    return made


def numbers(values: Any, kind: int = 14, **attributes: Item) -> Item:
    data = np.asarray(values).ravel(order="F").astype({14: ">f8"}.get(kind, ">i4"))
    return item(kind, lambda w: w.ints(len(data)).parts.append(data.tobytes()), attributes)


def integers(values: Any, **attributes: Item) -> Item:
    return numbers(values, 13, **attributes)


def texts(values: Any, **attributes: Item) -> Item:
    values = list(values)
    return item(16, lambda w: [w.ints(len(values)), *map(w.text, values)], attributes)


def listed(values: Mapping[str, Item] | list[Item], **attributes: Item) -> Item:
    parts = values.values() if isinstance(values, Mapping) else values
    if isinstance(values, Mapping):
        attributes = {"names": texts(values), **attributes}
    return item(19, lambda w: [w.ints(len(values)), *(part(w) for part in parts)], attributes)


def of_class(name: str, package: str) -> Item:
    return texts([name], package=texts([package]))


def s4(name: str, package: str, **slots: Item) -> Item:
    return item(25, lambda w: None, {**slots, "class": of_class(name, package)}, is_s4=True)


def dgc(x: Any, genes: Any = None, cells: Any = None) -> Item:
    """Make a dgCMatrix, genes x cells, of a matrix cells x genes."""
    x = sparse.csr_matrix(x)
    names = [null if part is None else texts(part) for part in (genes, cells)]
    slots = {"i": integers(x.indices), "p": integers(x.indptr), "Dim": integers(x.shape[::-1])}
    return s4(
        "dgCMatrix",
        "Matrix",
        **slots,
        Dimnames=listed(names),
        x=numbers(x.data),
        factors=listed({}),
    )


def dense(x: Any, genes: Any, cells: Any, kind: int = 14) -> Item:
    x = np.asarray(x).T
    return numbers(x, kind, dim=integers(x.shape), dimnames=listed([texts(genes), texts(cells)]))


def column(values: pd.Series) -> Item:
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = np.where(values.cat.codes < 0, NA_INT, values.cat.codes + 1)
        return integers(codes, levels=texts(values.cat.categories), **{"class": texts(["factor"])})
    if values.dtype == bool:
        return numbers(values, 10)
    return (
        texts(values)
        if values.dtype == object
        else numbers(values, 13 if values.dtype.kind == "i" else 14)
    )


def frame(table: pd.DataFrame, **more: Item) -> Item:
    columns = {str(name): column(values) for name, values in table.items()} | more
    return listed(columns, **{"class": texts(["data.frame"]), "row.names": texts(table.index)})


def log_map(names: Any, layers: Mapping[str, Any]) -> Item:
    """Make the map of names to the layers that have them."""
    flags = np.array([np.isin(list(names), list(own)) for own in layers.values()]).T
    slots = {"dim": integers(flags.shape), "dimnames": listed([texts(names), texts(layers)])}
    return numbers(flags, 10, **slots, **{"class": of_class("LogMap", "SeuratObject")})


def assay(counts: Item, data: Item | None = None, **more: Item) -> Item:
    """Make an assay of Seurat 3 or 4."""
    none = numbers([], 10, dim=integers([0, 0]))  # new(Class = "matrix")
    return s4("Assay", "Seurat", counts=counts, data=data or none, key=texts(["rna_"]), **more)


def assay5(genes: Any, cells: Any, layers: Mapping[str, tuple[Item, Any, Any]]) -> Item:
    """Make an assay of Seurat 5; each layer has its matrix, genes and cells."""
    return s4(
        "Assay5",
        "SeuratObject",
        layers=listed({name: matrix for name, (matrix, _, _) in layers.items()}),
        cells=log_map(cells, {name: own for name, (_, _, own) in layers.items()}),
        features=log_map(genes, {name: own for name, (_, own, _) in layers.items()}),
    )


def alternative(form: str, state: Item) -> Item:
    """Make an object in another form (ALTREP), such as a range."""

    def made(w: Writer) -> None:
        w.ints(238, 2)
        w.symbol(form)
        w.ints(254)
        state(w)
        w.ints(254)

    return made


def range_of(start: int, stop: int) -> Item:
    return alternative("compact_intseq", numbers([stop - start + 1, start, 1]))


def pair(first: Item, second: Item) -> Item:
    return lambda w: [w.ints(2), first(w), second(w)]


def nested(depth: int) -> Item:
    return lambda w: [w.ints(19, 1) for _ in range(depth)] + [w.ints(254)]


def function(w: Writer) -> None:
    """Write a compiled function of a package, as FindVariableFeatures leaves it in the commands of an object."""
    w.ints(3 | 0x400)
    w.ints(249, 0, 2)  # its environment, a namespace
    w.text("Seurat")
    w.text("4.3.0")
    w.symbols["a namespace, not a symbol"] = len(w.symbols) + 1
    w.pairs({"mat": null})
    w.ints(21, 2)  # byte code with two calls that repeat
    integers([12, 16, 0])(w)
    w.ints(3)
    w.ints(244, 1, 6)  # the definition of a call
    null(w)
    w.ints(1)
    w.symbol("FastExpMean")
    w.ints(254, 254)
    w.ints(243, 1)  # and its repetition
    w.ints(16)
    texts(["a constant"])(w)


def seurat(
    assays: Mapping[str, Item],
    obs: pd.DataFrame,
    active: str = "RNA",
    idents: Any = (),
    **more: Item,
) -> Item:
    """Make a Seurat object; its commands hold a function, as of FindVariableFeatures, and a range, as of RunPCA."""
    levels = pd.Series(list(idents) or ["all"] * len(obs), dtype="category")
    params = {"mean.function": function, "ndims.print": range_of(1, 5)}
    command = s4("SeuratCommand", "SeuratObject", params=listed(params))
    slots = {
        "assays": listed(assays),
        "meta.data": frame(obs, **more),
        "active.assay": texts([active]),
        "active.ident": column(levels),
        "version": listed(
            [integers([4, 1, 3])], **{"class": texts(["package_version", "numeric_version"])}
        ),
        "commands": listed({"FindVariableFeatures.RNA": command}),
    }
    return s4("Seurat", "SeuratObject", **slots)


def data_frame_of(columns: Mapping[str, Item], num_rows: int, names: Any = None) -> Item:
    rows = null if names is None else texts(names)
    return s4(
        "DFrame", "S4Vectors", rownames=rows, nrows=integers([num_rows]), listData=listed(columns)
    )


def data_frame(table: pd.DataFrame, names: Any = None) -> Item:
    """Make the DataFrame of Bioconductor."""
    return data_frame_of(
        {str(name): column(values) for name, values in table.items()}, len(table), names
    )


def experiment(
    assays: Mapping[str, Item],
    obs: pd.DataFrame,
    var: pd.DataFrame,
    old: bool = False,
    has_names: bool = True,
    **more: Item,
) -> Item:
    """Make a SingleCellExperiment, whose cells may lack names; `more` slots come first.

    `old`: as before Bioconductor 3.10, with the assays in an environment.
    """
    stored = s4("SimpleList", "S4Vectors", listData=listed(assays))

    def environment(w: Writer) -> None:
        w.symbols["an environment, not a symbol"] = len(w.symbols) + 1
        w.ints(4, 0, 253)
        w.pairs({"data": stored})
        w.ints(254, 254)

    kind = "ShallowSimpleListAssays" if old else "SimpleAssays"
    held = s4(
        kind, "SummarizedExperiment", **({".xData": environment} if old else {"data": stored})
    )
    ends = s4("PartitioningByEnd", "IRanges", end=integers([0] * len(var)), NAMES=texts(var.index))
    ranges = s4(
        "CompressedGRangesList", "GenomicRanges", partitioning=ends, elementMetadata=data_frame(var)
    )
    slots = {
        **more,
        "rowRanges": ranges,
        "colData": data_frame(obs, obs.index if has_names else None),
        "assays": held,
    }
    return s4("SingleCellExperiment", "SingleCellExperiment", **slots)


def saved(what: Item) -> bytes:
    """Return an object as saveRDS writes it, uncompressed."""
    writer = Writer()
    what(writer)
    return b"".join(writer.parts)


def save_rds(what: Item, path: Path, compress: Callable[[bytes], bytes] = gzip.compress) -> Path:
    path.write_bytes(compress(saved(what)))
    return path


def write_seurat(adata, path: Path) -> Path:
    """Write cells as a Seurat object of version 4."""
    counts = dgc(adata.X, adata.var_names, adata.obs_names)
    return save_rds(seurat({"RNA": assay(counts)}, adata.obs), path)


if __name__ == "__main__":
    import sys

    import anndata

    write_seurat(anndata.read_h5ad(sys.argv[1]), Path(sys.argv[2]))
