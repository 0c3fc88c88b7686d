"""Annotate the same cells in more than 50 formats, as other programs write them, and compare the confidences.

    python benchmarks/forms.py
    python benchmarks/forms.py --only table

Cells of PBMC 3k are annotated with the packaged model. The confidences from the first format, counts as CSR in an h5ad
file, are the reference: all others must equal them bit for bit, except that logarithms are rounded.
"""

import argparse
import gzip
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from machine import machine
from scipy import sparse
from scipy.io import mmwrite

import scperformer
from scperformer.genes import human_genes

ROOT = Path(__file__).parents[1]
NUM_CELLS = 200
Form = Callable[[ad.AnnData, Path], Path]
FORMS: dict[str, Form] = {}


def form(name: str) -> Callable[[Form], Form]:
    def add(function: Form) -> Form:
        FORMS[name] = function
        return function

    return add


def written(cells: ad.AnnData, folder: Path) -> Path:
    cells.write_h5ad(folder / "cells.h5ad")
    return folder / "cells.h5ad"


form("h5ad: counts, CSR int64")(written)
for dtype in (np.float32, np.float64, np.int32, np.int16, np.uint16, np.float16):

    @form(f"h5ad: CSR {np.dtype(dtype)}")
    def _(cells: ad.AnnData, folder: Path, dtype: type = dtype) -> Path:
        if dtype == np.float16:  # SciPy has no sparse float16
            cells.X = cells.X.toarray().astype(dtype)
        else:
            cells.X = cells.X.astype(dtype)
        return written(cells, folder)


for name, make in {"CSC": sparse.csc_matrix, "dense": lambda x: x.toarray(), "dense by columns": None}.items():

    @form(f"h5ad: {name}")
    def _(cells: ad.AnnData, folder: Path, make: Callable | None = make) -> Path:
        cells.X = np.asfortranarray(cells.X.toarray()) if make is None else make(cells.X)
        return written(cells, folder)


for compression in ("gzip", "lzf"):

    @form(f"h5ad: {compression}")
    def _(cells: ad.AnnData, folder: Path, compression: str = compression) -> Path:
        cells.write_h5ad(folder / "cells.h5ad", compression=compression)
        return folder / "cells.h5ad"


def logarithms(x: sparse.csr_matrix, total: float = 1e4, base: float | None = None) -> sparse.csr_matrix:
    sums = np.asarray(x.sum(axis=1)).ravel()
    made = sparse.csr_matrix(sparse.diags(total / sums) @ x, dtype=np.float64)
    made.data = np.log1p(made.data) / (1.0 if base is None else np.log(base))
    return made


for name in ("counts", "raw_counts", "umi", "matrix"):

    @form(f"h5ad: layers['{name}'] beside logarithms")
    def _(cells: ad.AnnData, folder: Path, name: str = name) -> Path:
        cells.layers[name] = cells.X.copy()
        cells.X = logarithms(cells.X)
        return written(cells, folder)


@form("h5ad: raw counts beside scaled X of some genes")
def _(cells: ad.AnnData, folder: Path) -> Path:
    some = cells[:, :2000].copy()
    some.raw = cells
    x = some.X.toarray()
    some.X = (x - x.mean(0)) / (x.std(0) + 1e-3)
    return written(some, folder)


@form("h5ad: velocyto's layers beside counts")
def _(cells: ad.AnnData, folder: Path) -> Path:
    for name in ("spliced", "unspliced", "ambiguous"):
        cells.layers[name] = cells.X.copy()
    return written(cells, folder)


@form("h5ad: unsorted indices and explicit zeros")
def _(cells: ad.AnnData, folder: Path) -> Path:
    x = cells.X.tocoo()
    rows = np.append(x.row, [0, 1])
    columns = np.append(x.col, [5, 6])
    values = np.append(x.data, [0, 0])
    order = np.random.default_rng(0).permutation(len(rows))
    made = sparse.coo_matrix((values[order], (rows[order], columns[order])), shape=x.shape).tocsr()
    cells.X = made
    return written(cells, folder)


def ensembl(cells: ad.AnnData) -> ad.AnnData:
    """Return the genes that have one Ensembl id, with the ids as names."""
    ids = [human_genes().ids.get(name) for name in cells.var_names]
    found = pd.Series(ids)
    keep = (found.notna() & ~found.duplicated(keep=False)).to_numpy()
    made = cells[:, keep].copy()
    made.var["symbol"] = made.var_names
    made.var_names = found[keep].to_numpy()
    return made


NAMES: dict[str, Callable[[str, int], str]] = {
    "lower case": lambda name, _: name.lower(),
    "upper case": lambda name, _: name.upper(),
    "genome in front, Cell Ranger": lambda name, _: f"GRCh38_{name}",
    "genome in front, three underscores": lambda name, _: f"GRCh38___{name}",
    "genome in front, Seurat's dashes": lambda name, _: f"GRCh38---{name}",
    "genome in front, premrna": lambda name, _: f"GRCh38_premrna_{name}",
    "chromosome behind, CEL-Seq2": lambda name, _: f"{name}__chr7",
    "blanks around": lambda name, _: f" {name} ",
    "R's names": lambda name, _: (f"X{name}" if name[0].isdigit() else name).replace("-", "."),
}
for name, renamed in NAMES.items():

    @form(f"genes: {name}")
    def _(cells: ad.AnnData, folder: Path, renamed: Callable[[str, int], str] = renamed) -> Path:
        cells.var_names = [renamed(gene, place) for place, gene in enumerate(cells.var_names)]
        return written(cells, folder)


@form("genes: in another order")
def _(cells: ad.AnnData, folder: Path) -> Path:
    return written(cells[:, np.random.default_rng(1).permutation(cells.n_vars)].copy(), folder)


@form("genes: symbols in var, numbers as names")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.var["gene_symbols"] = cells.var_names.to_numpy()
    cells.var_names = [str(place) for place in range(cells.n_vars)]
    return written(cells, folder)


@form("genes: other features beside them")
def _(cells: ad.AnnData, folder: Path) -> Path:
    tags = ad.AnnData(sparse.csr_matrix(np.full((cells.n_obs, 3), 500)), obs=cells.obs)
    tags.var_names = ["CD4_TotalSeqB", "CD14_TotalSeqB", "Hashtag1"]
    tags.var["feature_types"] = "Antibody Capture"
    cells.var["feature_types"] = "Gene Expression"
    return written(ad.concat([cells, tags], axis=1, merge="same"), folder)


@form("cells: repeated names")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.obs_names = ["cell"] * cells.n_obs
    return written(cells, folder)


@form("cells: nullable columns and names")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.obs["text"] = pd.array(["a", pd.NA] * (cells.n_obs // 2), dtype="string")
    cells.obs["number"] = pd.array([1, pd.NA] * (cells.n_obs // 2), dtype="Int64")
    with ad.settings.override(allow_write_nullable_strings=True):
        return written(cells, folder)


@form("file: HDF5 behind a block of 512 bytes")
def _(cells: ad.AnnData, folder: Path) -> Path:
    with h5py.File(folder / "cells.h5ad", "w", userblock_size=512) as file:
        ad.io.write_elem(file, "/", cells)
    return folder / "cells.h5ad"


@form("zarr")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.write_zarr(folder / "cells.zarr")
    return folder / "cells.zarr"


@form("zarr: dense, in chunks")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.X = cells.X.toarray()
    cells.write_zarr(folder / "cells.zarr", chunks=(37, 1000))
    return folder / "cells.zarr"


def tenx(cells: ad.AnnData, folder: Path, version: int) -> Path:
    x = sparse.csr_matrix(cells.X)
    ids = np.array([human_genes().ids.get(name, f"none{place}") for place, name in enumerate(cells.var_names)])
    with h5py.File(folder / "cells.h5", "w") as file:
        group = file.create_group("matrix" if version == 3 else "GRCh38")
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(x, part)
        group["shape"] = np.array(cells.shape[::-1])
        group["barcodes"] = cells.obs_names.to_numpy().astype("S")
        names = cells.var_names.to_numpy().astype("S")
        if version == 2:
            group["genes"] = ids.astype("S")
            group["gene_names"] = names
        else:
            group["features/id"] = ids.astype("S")
            group["features/name"] = names
            group["features/feature_type"] = np.full(len(names), b"Gene Expression")
            group["features/genome"] = np.full(len(names), b"GRCh38")
    return folder / "cells.h5"


form("10x h5, version 2")(lambda cells, folder: tenx(cells, folder, 2))
form("10x h5, version 3")(lambda cells, folder: tenx(cells, folder, 3))


@form("loom")
def _(cells: ad.AnnData, folder: Path) -> Path:
    with h5py.File(folder / "cells.loom", "w") as file:
        file["matrix"] = cells.X.toarray().T
        file["row_attrs/Gene"] = cells.var_names.to_numpy().astype("S")
        file["col_attrs/CellID"] = cells.obs_names.to_numpy().astype("S")
        file.create_group("layers")
    return folder / "cells.loom"


def mtx(cells: ad.AnnData, folder: Path, names: tuple[str, str, str], *, by_cells: bool = False, header: bool = False,
        separator: str = "\t", zipped: bool = False) -> Path:  # fmt: skip
    matrix, barcodes, genes = (folder / "run" / name for name in names)
    (folder / "run").mkdir()
    mmwrite(matrix, cells.X if by_cells else cells.X.T, field="integer")
    ids = [human_genes().ids.get(name, f"none{place}") for place, name in enumerate(cells.var_names)]
    rows = [f"{one}{separator}{name}" for one, name in zip(ids, cells.var_names, strict=True)]
    genes.write_text("\n".join([*([f"gene_id{separator}gene_name"] if header else []), *rows]) + "\n")
    barcodes.write_text("\n".join([*(["barcode"] if header else []), *cells.obs_names]) + "\n")
    if zipped:
        for path in (matrix, barcodes, genes):
            with gzip.open(f"{path}.gz", "wb") as file:
                file.write(path.read_bytes())
            path.unlink()
    return folder / "run"


form("mtx: 10x folder, version 2")(lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "genes.tsv")))
form("mtx: 10x folder, gzip")(lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "features.tsv"), zipped=True))
form("mtx: cells in rows")(lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "genes.tsv"), by_cells=True))
form("mtx: names with a header")(lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "genes.tsv"), header=True))
PARSE = ("count_matrix.mtx", "cell_metadata.csv", "all_genes.csv")
form("mtx: Parse Biosciences")(lambda c, f: mtx(c, f, PARSE, by_cells=True, header=True, separator=","))
KB = ("cells_x_genes.mtx", "cells_x_genes.barcodes.txt", "cells_x_genes.genes.txt")
form("mtx: kb-python")(lambda c, f: mtx(c, f, KB, by_cells=True))
ALEVIN = ("quants_mat.mtx", "quants_mat_rows.txt", "quants_mat_cols.txt")
form("mtx: alevin-fry")(lambda c, f: mtx(c, f, ALEVIN, by_cells=True))
GEO = ("GSM1_matrix.mtx", "GSM1_barcodes.csv", "GSM1_genes.csv")
form("mtx: GEO")(lambda c, f: mtx(c, f, GEO, header=True, separator=","))

TABLES = {
    "csv, cells in rows": (",", False, "csv", {}),
    "csv, genes in rows": (",", True, "csv", {}),
    "tsv, genes in rows": ("\t", True, "tsv", {}),
    "semicolons": (";", True, "csv", {}),
    "gzip": (",", True, "csv.gz", {}),
    "Windows line ends": (",", True, "csv", {"lineterminator": "\r\n"}),
    "quotes": (",", True, "csv", {"quoting": 2}),
    "decimals": (",", False, "csv", {"float_format": "%.2f"}),
}
for name, (separator, by_genes, ending, more) in TABLES.items():

    @form(f"table: {name}")
    def _(cells: ad.AnnData, folder: Path, how: tuple = (separator, by_genes, ending, more)) -> Path:
        separator, by_genes, ending, more = how
        table = pd.DataFrame(cells.X.toarray(), index=cells.obs_names, columns=cells.var_names)
        table = table.astype(float) if "float_format" in more else table
        (table.T if by_genes else table).to_csv(folder / f"cells.{ending}", sep=separator, **more)
        return folder / f"cells.{ending}"


@form("table: comments in front, Drop-seq")
def _(cells: ad.AnnData, folder: Path) -> Path:
    table = pd.DataFrame(cells.X.T.toarray(), index=pd.Index(cells.var_names, name="GENE"), columns=cells.obs_names)
    text = "#DGE\tVERSION:1.1\tEXPRESSION_FORMAT:raw\n#HEADER_START\n" + table.to_csv(sep="\t")
    (folder / "cells.dge.txt").write_text(text)
    return folder / "cells.dge.txt"


@form("table: numbers as names of cells, MERSCOPE")
def _(cells: ad.AnnData, folder: Path) -> Path:
    numbers = pd.Index([110883424764611924400221639916314253469 + place for place in range(cells.n_obs)], name="cell")
    pd.DataFrame(cells.X.toarray(), index=numbers, columns=cells.var_names).to_csv(folder / "cell_by_gene.csv")
    return folder / "cell_by_gene.csv"


LOGARITHMS = {"to base e": (1e4, None), "to base 2": (1e4, 2.0), "to base 10": (1e4, 10.0), "of CPM": (1e6, None)}
for name, (total, base) in LOGARITHMS.items():

    @form(f"logarithms {name}")
    def _(cells: ad.AnnData, folder: Path, how: tuple = (total, base)) -> Path:
        cells.X = logarithms(cells.X, *how)
        return written(cells, folder)


def confidences(path: Path, model: object) -> pd.DataFrame:
    """Annotate a file; return the labels and confidences in the order of its cells."""
    out = path.parent / "out.csv"
    scperformer.annotate(path, model, output=out, options={"adapt": "false"})
    return pd.read_csv(out)[["scperformer_label", "scperformer_confidence"]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of the forms")
    only = parser.parse_args().only
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    print(machine())
    whole = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    cells = whole[:: whole.n_obs // NUM_CELLS][:NUM_CELLS].copy()
    cells.X = sparse.csr_matrix(cells.X, dtype=np.int64)
    cells = ad.AnnData(cells.X, obs=pd.DataFrame(index=cells.obs_names), var=pd.DataFrame(index=cells.var_names))
    model = scperformer.load_model()
    expected: pd.DataFrame | None = None
    print("\n| Form | Same labels | Same confidences | Largest difference |\n|---|---|---|---|")
    num_same = 0
    tried = 0
    for name, make in FORMS.items():
        if expected is not None and only not in name:
            continue
        folder = Path(tempfile.mkdtemp())
        try:
            found = confidences(make(cells.copy(), folder), model)
        except scperformer.InputError as error:
            print(f"| {name} | refused: {str(error)[:200]} | | |", flush=True)
            tried += 1
            continue
        finally:
            shutil.rmtree(folder)
        if expected is None:
            expected = found
        labels = (found["scperformer_label"] == expected["scperformer_label"]).mean()
        off = np.abs(found["scperformer_confidence"] - expected["scperformer_confidence"]).max()
        tried += 1
        num_same += off == 0
        print(f"| {name} | {labels:.0%} | {'yes' if off == 0 else 'no'} | {off:.1g} |", flush=True)
    print(f"\n{num_same} of {tried} forms give the same bits")


if __name__ == "__main__":
    main()
