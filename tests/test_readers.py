"""Readers: the same cells from every kind of input, and what is refused."""

import gzip
import json
import logging
import os
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy
import scipy.io
from scipy import sparse

from scperformer import readers, tables
from scperformer.errors import InputError
from scperformer.readers import read_cells, require_readable, stem

NUM_CELLS, NUM_GENES = 30, 60


@pytest.fixture
def cells() -> ad.AnnData:
    """30 cells x 60 genes of counts, barcodes and symbols as names, Ensembl ids in var, two labels in obs."""
    rng = np.random.default_rng(5)
    x = rng.poisson(rng.gamma(1.0, 1.0, NUM_GENES), (NUM_CELLS, NUM_GENES))
    x[:, 0] += 1  # no cell is empty
    barcodes = ["".join(rng.choice(list("ACGT"), 16)) + "-1" for _ in range(NUM_CELLS)]
    return ad.AnnData(
        sparse.csr_matrix(x.astype(np.int64)),
        obs=pd.DataFrame({"label": np.where(np.arange(NUM_CELLS) % 2, "T cell", "B cell")}, index=barcodes),
        var=pd.DataFrame(
            {"gene_ids": [f"ENSG{i:011d}" for i in range(NUM_GENES)]},
            index=["MT-CO1", *(f"CD{i}" for i in range(1, NUM_GENES))],
        ),
    )


def same(found: ad.AnnData, expected: ad.AnnData) -> bool:
    """Whether matrix and names are the very same; it says where they are not."""
    np.testing.assert_array_equal(dense(found.X), dense(expected.X))
    assert list(found.obs_names) == list(expected.obs_names)
    assert list(found.var_names) == list(expected.var_names)
    return True


def dense(x) -> np.ndarray:
    return x.toarray() if sparse.issparse(x) else np.asarray(x)


# Writers, one for each kind; each gives the path of the input


def write_h5ad(adata, folder: Path) -> Path:
    adata.write_h5ad(folder / "run.h5ad")
    return folder / "run.h5ad"


def write_h5ad_csc(adata, folder: Path) -> Path:
    adata.X = sparse.csc_matrix(adata.X, dtype=np.float64)
    return write_h5ad(adata, folder)


def write_h5ad_dense(adata, folder: Path) -> Path:
    adata.X = adata.X.toarray().astype(np.int32)
    return write_h5ad(adata, folder)


def tenx_group(file: h5py.File, name: str, adata) -> h5py.Group:
    """What both versions have in common."""
    group = file.create_group(name)
    x = sparse.csr_matrix(adata.X)
    for part in ("data", "indices", "indptr"):
        group[part] = getattr(x, part)
    group["shape"] = np.array(adata.shape[::-1], dtype=np.int32)
    group["barcodes"] = adata.obs_names.to_numpy().astype("S")
    return group


def write_tenx_v2(adata, folder: Path) -> Path:
    with h5py.File(folder / "run.h5", "w") as file:
        group = tenx_group(file, "GRCh38", adata)
        group["genes"] = adata.var["gene_ids"].to_numpy().astype("S")
        group["gene_names"] = adata.var_names.to_numpy().astype("S")
    return folder / "run.h5"


def write_tenx_v3(adata, folder: Path) -> Path:
    with h5py.File(folder / "run.h5", "w") as file:
        features = tenx_group(file, "matrix", adata).create_group("features")
        features["id"] = adata.var["gene_ids"].to_numpy().astype("S")
        features["name"] = adata.var_names.to_numpy().astype("S")
        types = adata.var.get("feature_types", pd.Series("Gene Expression", adata.var_names))
        features["feature_type"] = types.to_numpy().astype("S")
        features["genome"] = np.array(["GRCh38"] * adata.n_vars, dtype="S")
    return folder / "run.h5"


def write_mtx(adata, folder: Path, *, prefix: str = "", features: str = "features.tsv", zipped: bool = True) -> Path:
    target = folder / "run"
    target.mkdir()
    end = ".gz" if zipped else ""
    opened = gzip.open if zipped else open
    with opened(target / f"{prefix}matrix.mtx{end}", "wb") as file:
        scipy.io.mmwrite(file, sparse.coo_matrix(adata.X.T))
    text = "".join(f"{name}\n" for name in adata.obs_names)
    with opened(target / f"{prefix}barcodes.tsv{end}", "wb") as file:
        file.write(text.encode())
    kind = "\tGene Expression" if features == "features.tsv" else ""
    with opened(target / f"{prefix}{features}{end}", "wb") as file:
        rows = zip(adata.var["gene_ids"], adata.var_names, strict=True)
        file.write("".join(f"{gene_id}\t{name}{kind}\n" for gene_id, name in rows).encode())
    return target


def write_mtx_old(adata, folder: Path) -> Path:
    return write_mtx(adata, folder, features="genes.tsv", zipped=False)


def write_mtx_geo(adata, folder: Path) -> Path:
    return write_mtx(adata, folder, prefix="GSM1_")


def write_mtx_file(adata, folder: Path) -> Path:
    return write_mtx(adata, folder, prefix="GSM1_") / "GSM1_matrix.mtx.gz"


def write_mtx_transposed(adata, folder: Path) -> Path:
    target = write_mtx(adata, folder, zipped=False)
    scipy.io.mmwrite(target / "matrix.mtx", sparse.coo_matrix(adata.X))
    return target


def write_loom(adata, folder: Path) -> Path:
    with h5py.File(folder / "run.loom", "w") as file:
        file.create_dataset("matrix", data=adata.X.T.toarray(), chunks=(7, 11), compression="gzip")
        file["row_attrs/Gene"] = adata.var_names.to_numpy().astype("S")
        file["row_attrs/Accession"] = adata.var["gene_ids"].to_numpy(object)
        file["col_attrs/CellID"] = adata.obs_names.to_numpy(object)
        file["col_attrs/label"] = adata.obs["label"].to_numpy(object)
        file["layers/spliced"] = adata.X.T.toarray() * 2
    return folder / "run.loom"


def write_zarr(adata, folder: Path, zarr_format: int) -> Path:
    before = ad.settings.zarr_write_format
    ad.settings.zarr_write_format = zarr_format
    try:
        adata.write_zarr(folder / "run.zarr")
    finally:
        ad.settings.zarr_write_format = before
    return folder / "run.zarr"


def write_zarr_2(adata, folder: Path) -> Path:
    return write_zarr(adata, folder, 2)


def write_zarr_3(adata, folder: Path) -> Path:
    return write_zarr(adata, folder, 3)


def write_csv(adata, folder: Path) -> Path:
    adata.to_df().to_csv(folder / "run.csv")
    return folder / "run.csv"


def write_csv_genes(adata, folder: Path) -> Path:
    adata.to_df().T.to_csv(folder / "run.csv.gz")
    return folder / "run.csv.gz"


def write_tsv(adata, folder: Path) -> Path:
    adata.to_df().T.to_csv(folder / "run.tsv", sep="\t")
    return folder / "run.tsv"


def write_txt_of_r(adata, folder: Path) -> Path:
    """As R's write.table: names in quotes, the first row one field shorter, Windows' line ends."""
    table = adata.to_df().T
    header = " ".join(f'"{name}"' for name in table.columns)
    rows = [f'"{name}" ' + " ".join(map(str, row)) for name, row in zip(table.index, table.to_numpy(), strict=True)]
    (folder / "run.txt").write_bytes("\r\n".join([header, *rows, ""]).encode())
    return folder / "run.txt"


def write_semicolons(adata, folder: Path) -> Path:
    adata.to_df().to_csv(folder / "run.csv", sep=";", encoding="utf-8-sig")
    return folder / "run.csv"


def write_utf16(adata, folder: Path) -> Path:
    adata.to_df().to_csv(folder / "run.txt", sep="\t", encoding="utf-16")
    return folder / "run.txt"


WRITERS = {
    "h5ad": write_h5ad,
    "h5ad csc float64": write_h5ad_csc,
    "h5ad dense int32": write_h5ad_dense,
    "10x h5 v2": write_tenx_v2,
    "10x h5 v3": write_tenx_v3,
    "10x folder": write_mtx,
    "10x folder v2": write_mtx_old,
    "GEO folder": write_mtx_geo,
    "mtx file": write_mtx_file,
    "mtx of cells x genes": write_mtx_transposed,
    "loom": write_loom,
    "zarr 2": write_zarr_2,
    "zarr 3": write_zarr_3,
    "csv": write_csv,
    "csv.gz of genes x cells": write_csv_genes,
    "tsv of genes x cells": write_tsv,
    "txt of R": write_txt_of_r,
    "semicolons and BOM": write_semicolons,
    "utf-16": write_utf16,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_gives_the_same_cells(kind, cells, tmp_path, caplog, recwarn):
    caplog.set_level(logging.INFO, "scperformer")
    path = WRITERS[kind](cells.copy(), tmp_path)
    recwarn.clear()
    found = read_cells(path)
    assert same(found, cells)
    assert np.issubdtype(found.X.dtype, np.floating if "float64" in kind else np.integer)
    assert len(recwarn) == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"read {path}: " in line
    assert "30 cells x 60 genes" in line
    if kind not in (
        "csv",
        "csv.gz of genes x cells",
        "tsv of genes x cells",
        "txt of R",
        "semicolons and BOM",
        "utf-16",
    ):
        ids = found.var["Accession" if kind == "loom" else "gene_ids"]
        assert list(ids) == list(cells.var["gene_ids"])


@pytest.mark.parametrize("kind", ["10x h5 v2", "10x h5 v3"])
def test_10x_files_as_scanpy_reads_them(kind, cells, tmp_path):
    path = WRITERS[kind](cells, tmp_path)
    expected = scanpy.read_10x_h5(path)
    found = read_cells(path)
    assert same(found, expected)
    assert found.var["gene_ids"].tolist() == expected.var["gene_ids"].tolist()


def test_a_loom_file_keeps_labels_and_layers_and_is_read_in_blocks(cells, tmp_path, monkeypatch):
    monkeypatch.setattr("scperformer.loom.BLOCK", 8 * NUM_CELLS)  # chunks of 7 genes: 9 blocks
    found = read_cells(write_loom(cells, tmp_path))
    assert same(found, cells)
    assert list(found.obs["label"]) == list(cells.obs["label"])
    np.testing.assert_array_equal(found.layers["spliced"].toarray(), 2 * cells.X.toarray())


def test_a_table_is_read_in_blocks(cells, tmp_path, monkeypatch):
    monkeypatch.setattr("scperformer.tables.BLOCK", 7 * NUM_GENES)
    cells.X = cells.X.astype(np.float64)
    cells.X.data[-1] = 0.25  # only in the last block
    assert same(read_cells(write_csv(cells, tmp_path)), cells)


# 10x


def test_only_gene_expression_is_kept(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    cells.var["feature_types"] = ["Gene Expression"] * 57 + ["Antibody Capture"] * 3
    expected = cells[:, :57]
    assert same(read_cells(write_tenx_v3(cells, tmp_path)), expected)
    assert "features of other types left out (3 Antibody Capture)" in caplog.text
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "features.tsv").read_text().splitlines()
    text[57:] = [line.replace("Gene Expression", "Antibody Capture") for line in text[57:]]
    (target / "features.tsv").write_text("\n".join(text))
    assert same(read_cells(target), expected)
    cells.var["feature_types"] = "Antibody Capture"
    with pytest.raises(InputError, match=r"no features of the type 'Gene Expression' .*60 Antibody Capture"):
        read_cells(write_tenx_v3(cells, tmp_path))


def test_several_genomes(cells, tmp_path):
    path = tmp_path / "two.h5"
    halves = cells[:, :40].copy(), cells[:, 40:].copy()
    with h5py.File(path, "w") as file:
        for genome, half in zip(("GRCh38", "mm10"), halves, strict=True):
            group = tenx_group(file, genome, half)
            group["genes"] = half.var["gene_ids"].to_numpy().astype("S")
            group["gene_names"] = half.var_names.to_numpy().astype("S")
    found = read_cells(path)
    assert same(found, cells)
    assert found.var["genome"].value_counts().to_dict() == {"GRCh38": 40, "mm10": 20}
    with h5py.File(path, "r+") as file:
        file["mm10/barcodes"][0] = b"OTHER-1"
    with pytest.raises(InputError, match=r"different cells for each genome \(GRCh38: 30, mm10: 30\)"):
        read_cells(path)


def test_repeated_symbols_stay(cells, tmp_path):
    cells.var_names = ["TBCE", "TBCE", *cells.var_names[2:]]
    for write in (write_tenx_v3, write_mtx):
        assert list(read_cells(write(cells, tmp_path)).var_names[:3]) == ["TBCE", "TBCE", "CD2"]


@pytest.mark.parametrize(("part", "value"), [("indices", -1), ("indices", 60), ("indptr", 10**6)])
def test_indices_outside_of_the_matrix(part, value, cells, tmp_path):
    path = write_tenx_v3(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file[f"matrix/{part}"][3] = value
    with pytest.raises(InputError, match="is damaged"):
        read_cells(path)
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file[f"X/{part}"][3] = value
    with pytest.raises(InputError, match="is damaged"):
        read_cells(path)


# Folders


def test_further_columns_of_barcodes_are_read(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    rows = [f"{name}\t{label}\n" for name, label in cells.obs["label"].items()]
    (target / "barcodes.tsv").write_text("barcode\tlabel\n" + "".join(rows))
    assert list(read_cells(target).obs["label"]) == list(cells.obs["label"])


def damage_mtx(name: str, text: str) -> str:
    """An mtx file (integer, 60 x 30) as damaged as its name says."""
    lines = text.splitlines()
    size = next(i for i, line in enumerate(lines) if line == f"{NUM_GENES} {NUM_CELLS} {len(lines) - i - 1}")
    match name:
        case "more entries":
            lines.append("1 1 1")
        case "fewer entries":
            del lines[-1]
        case "negative index":
            lines[-1] = "-1 1 1"
        case "index outside":
            lines[-1] = "61 1 1"
        case "no number":
            lines[-1] = "60 30 x"
        case "a huge promise":
            lines[size] = f"{NUM_GENES} {NUM_CELLS} 99999999999999"
        case "no sizes":
            del lines[size:]
        case "complex":
            lines[0] = lines[0].replace("integer", "complex")
        case "other sizes":
            lines[size] = lines[size].replace(f"{NUM_GENES} ", "58 ", 1)
    return "\n".join(lines) + "\n"


MTX = {
    "more entries": "is damaged .*Too many lines",
    "fewer entries": "is truncated",
    "negative index": "out of bounds",
    "index outside": "out of bounds",
    "no number": "Invalid",
    "a huge promise": "is truncated",
    "no sizes": "does not begin as a sparse matrix",
    "complex": "of the kind 'complex general'",
    "other sizes": r"of 58 x 30 beside 30 barcodes and 60 features; .*take the three files of one sample",
}


@pytest.mark.parametrize("damage", MTX)
def test_damaged_mtx(damage, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text()
    (target / "matrix.mtx").write_text(damage_mtx(damage, text))
    with pytest.raises(InputError, match=MTX[damage]) as error:
        read_cells(target)
    assert "\n" not in str(error.value)


def test_decimals_of_an_mtx_file_that_says_integer_are_kept(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text().rstrip().rpartition(" ")[0] + " 2.5\n"
    (target / "matrix.mtx").write_text("\ufeff" + text.replace("\n", "\r\n"))
    assert 2.5 in read_cells(target).X.data


def test_parts_of_a_folder(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    (target / "features.tsv").rename(target / "other.tsv")
    with pytest.raises(InputError, match=r"no features.tsv or genes.tsv beside .*matrix.mtx"):
        require_readable(target)
    (target / "other.tsv").rename(target / "genes.tsv")
    (target / "barcodes.tsv.gz").write_bytes(gzip.compress(b"A\n"))
    with pytest.raises(InputError, match=r"barcodes.tsv and barcodes.tsv.gz beside"):
        require_readable(target)
    (target / "GSM2_matrix.mtx.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"a folder with 2 mtx files .*name the mtx file itself"):
        require_readable(target)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match=r"is a folder that holds neither matrix.mtx nor a zarr store"):
        require_readable(tmp_path / "nothing")


# h5ad files that other programs wrote


def drop_encodings(file):
    """As anndata 0.6 and SeuratDisk: nothing says what is what, but for the shape of X."""
    file.visititems(lambda _, node: [node.attrs.pop(key, None) for key in ("encoding-type", "encoding-version")])
    file["X"].attrs["h5sparse_format"], file["X"].attrs["h5sparse_shape"] = "csr", file["X"].attrs.pop("shape")


def drop_every_attribute(file):
    file.visititems(lambda _, node: [node.attrs.pop(key) for key in list(node.attrs)])


def old_categories(file):
    group = file["obs"]
    codes, values = group["label/codes"][:], group["label/categories"][:]
    del group["label"]
    group["label"] = codes
    group["__categories/label"] = values
    drop_encodings(file)


def compound_tables(file):
    for name in ("obs", "var"):
        table = np.zeros(len(file[name]["_index"]), dtype=[("index", "S30"), ("number", "i4")])
        table["index"] = file[name]["_index"][:]
        del file[name]
        file[name] = table


def rename_index(file):
    file["obs"].move("_index", "cell_name")
    file["obs"].attrs["_index"] = "cell_name"


def lose_index(file):
    del file["obs"].attrs["_index"]


def misname_index(file):
    file["var"].attrs["_index"] = "nothing_there"


def index_as_list(file):
    file["obs"].attrs["_index"] = np.array(["_index"], dtype=h5py.string_dtype())


def index_as_column(file):
    for name in ("obs", "var", "raw/var"):
        order = ["_index", *file[name].attrs["column-order"]]
        file[name].attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())


def column_twice(file):
    order = [*file["obs"].attrs["column-order"]] * 2
    file["obs"].attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())


def unknown_in_uns(file):
    file["uns"].create_group("new").attrs.update({"encoding-type": "of-the-future", "encoding-version": "9"})


def misshapen_obsm(file):
    del file["obsm/X_pca"]
    file["obsm/X_pca"] = np.zeros((3, 2))


def no_shape(file):
    del file["X"].attrs["shape"]


ODD = {
    change.__name__: change
    for change in (
        *(drop_encodings, drop_every_attribute, old_categories, compound_tables, rename_index, lose_index),
        *(misname_index, index_as_list, index_as_column, column_twice, unknown_in_uns, misshapen_obsm, no_shape),
    )
}


@pytest.mark.parametrize("change", ODD)
@pytest.mark.filterwarnings("ignore:.*no regular h5ad file")
def test_odd_h5ad_files(change, cells, tmp_path):
    cells.raw = cells.copy()
    cells.obs["label"] = cells.obs["label"].astype("category")
    cells.obsm["X_pca"] = np.zeros((NUM_CELLS, 2))
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        ODD[change](file)
    found = read_cells(path)
    assert same(found, cells)
    assert found.raw.shape == cells.shape
    assert found.obs.columns.is_unique
    assert not {"_index"} & {*found.obs, *found.var, *found.raw.var}
    if change != "compound_tables":
        assert list(found.obs["label"]) == list(cells.obs["label"])
    found.write_h5ad(tmp_path / "again.h5ad")
    assert same(read_cells(tmp_path / "again.h5ad"), cells)


def test_what_is_left_out_of_an_odd_file_is_said(cells, tmp_path):
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        unknown_in_uns(file)
    with pytest.warns(UserWarning, match=r"run.h5ad is no regular h5ad file \(.*\); it is read without uns/new"):
        read_cells(path)


def test_annotations_are_added_to_a_file_without_index_attribute(cells, tmp_path):
    from scperformer.io import add_to_h5ad

    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        lose_index(file)
    with pytest.warns(UserWarning, match="no regular h5ad file"):
        add_to_h5ad(path, tmp_path / "out.h5ad", obs=pd.DataFrame({"new": 1}, index=cells.obs_names), obsm={}, uns={})
    assert set(ad.read_h5ad(tmp_path / "out.h5ad").obs) == {"label", "new"}


def test_no_x_but_layers_or_raw(cells, tmp_path):
    cells.layers["counts"] = cells.X.copy()
    cells.raw = cells.copy()
    cells.X = None
    found = read_cells(write_h5ad(cells, tmp_path))
    assert found.X is None
    np.testing.assert_array_equal(found.raw.X.toarray(), found.layers["counts"].toarray())


# Orientation


def table(rows, columns) -> pd.DataFrame:
    return pd.DataFrame(np.arange(len(rows) * len(columns)).reshape(len(rows), -1), index=rows, columns=columns)


GENES = {
    "known symbols": ["HES4", "TNFRSF4", "SSU72", "PARK7"],
    "Ensembl ids": [f"ENSMUSG{i:011d}" for i in range(1, 5)],
    "mouse symbols": ["Xkr4", "Rp1", "Sox17", "Gm37988"],
}
CELLS = {
    "barcodes": ["sample1_AAACATACAACCAC", "AAACATTGAGCTAC-1", "AAACATTGATCAGC-2", "TTTGCATGAGAGGC", "GGGGCATGAGAGGC"],
    "numbered cells": [f"cell_{i}" for i in range(5)],
    "runs": [f"SRR{i}" for i in range(100200, 100205)],
}


@pytest.mark.parametrize("of_cells", CELLS)
@pytest.mark.parametrize("of_genes", GENES)
def test_orientation_by_names(of_cells, of_genes, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    cells_by_genes = table(CELLS[of_cells], GENES[of_genes])
    cells_by_genes.to_csv(tmp_path / "a.csv")
    cells_by_genes.T.to_csv(tmp_path / "b.csv")
    for name, orientation in (("a.csv", "cells_by_genes"), ("b.csv", "genes_by_cells")):
        found = read_cells(tmp_path / name)
        assert list(found.obs_names) == CELLS[of_cells]
        assert list(found.var_names) == GENES[of_genes]
        np.testing.assert_array_equal(found.X.toarray(), cells_by_genes)
        assert f"comma-separated; orientation={orientation} (rows: " in caplog.text


UNDECIDABLE = {
    "numbers on both": (["r0", "r1"], [f"c{i}" for i in range(900)]),  # the longer axis alone says nothing
    "genes on both": (GENES["known symbols"], GENES["known symbols"]),
    "cells on both": (CELLS["barcodes"], CELLS["numbered cells"]),
}


@pytest.mark.parametrize("case", UNDECIDABLE)
def test_names_that_do_not_tell(case, tmp_path):
    rows, columns = UNDECIDABLE[case]
    path = tmp_path / "a.csv"
    table(rows, columns).to_csv(path)
    with pytest.raises(InputError, match=r"do not tell genes from cells .* add orientation=cells_by_genes or orient"):
        read_cells(path)
    assert list(read_cells(path, "cells_by_genes").obs_names) == rows
    assert list(read_cells(path, "genes_by_cells").var_names) == rows


def test_orientation_as_told_wins(cells, tmp_path):
    assert read_cells(write_csv(cells, tmp_path), "genes_by_cells").shape == (NUM_GENES, NUM_CELLS)
    with pytest.warns(UserWarning, match="orientation=genes_by_cells is not used"):
        assert same(read_cells(write_h5ad(cells, tmp_path), "genes_by_cells"), cells)


# Tables


def test_leading_columns_about_genes(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    frame = cells.to_df().T
    frame.insert(0, "id", cells.var["gene_ids"])
    frame.insert(1, "Length", 1000)
    frame.to_csv(tmp_path / "a.tsv", sep="\t")
    found = read_cells(tmp_path / "a.tsv")
    assert same(found, cells)
    assert list(found.var["id"]) == list(cells.var["gene_ids"])
    assert "about genes, not cells: 'id', 'Length'" in caplog.text


HOSTILE = ["=cmd|' /C calc'!A0", "<script>alert(1)</script>", "two\nlines", 'a "quoted", name', "x" * 10_000, "NA", "ä"]


def test_hostile_names_are_plain_strings(tmp_path):
    frame = table(HOSTILE, GENES["known symbols"])
    frame.to_csv(tmp_path / "a.csv")
    found = read_cells(tmp_path / "a.csv", "cells_by_genes")
    assert list(found.obs_names) == HOSTILE
    adata = ad.AnnData(frame.to_numpy(np.float32), obs=frame[[]], var=pd.DataFrame(index=frame.columns))
    assert list(read_cells(write_h5ad(adata, tmp_path)).obs_names) == HOSTILE
    frame.T.to_csv(tmp_path / "b.csv")
    assert list(read_cells(tmp_path / "b.csv", "genes_by_cells").obs_names) == HOSTILE


TABLES = {
    "text in a column": ("c,CD3D,cluster\na,1,T cell\nb,2,B cell\n", r"not numbers.*'cluster' \(e.g. 'T cell'\)"),
    "a column of truth": ("c,CD3D,ok\na,1,TRUE\nb,2,FALSE\n", "'ok'"),
    "missing value": ("c,CD3D,CD4\na,1,NA\nb,2,3\n", r"'CD4' \(e.g. 'NA'\)"),
    "decimal commas": ("c;CD3D;CD4\na;1,5;2\nb;2;3\n", "'CD3D'"),
    "a long row": ("c,CD3D,CD4\na,1,2\nb,1,2,3\n", "different numbers of fields"),
    "a long row, later": ("c,CD3D,CD4\n" + "a,1,2\n" * 40 + "b,1,2,3\n", "is ragged .*line 4[12]"),
    "a short row, later": ("c,CD3D,CD4\n" + "a,1,2\n" * 40 + "b,1\n", "rows that are too short: 'CD4'"),
    "no names of columns": ("a,1,2\nb,3,7\n", r"numbers in the first row \(e.g. 1, 2\)"),
    "no names of rows": ("CD3D,CD4\n5,1\n7,2\n", r"numbers in the first column \(e.g. 5, 7\)"),
    "one column": ("CD3D\n1\n2\n", "is no table"),
    "prose": ("To be, or not to be,\nthat is the question\n", "is no table"),
    "a row of names alone": ("c,CD3D\n", "is no table"),
    "latin-1": ("c,CD3D,CD4\nCélula,1,2\nb,3,4\n".encode("latin-1"), "no UTF-8 .*iconv"),
    "utf-16 without mark": ("c,CD3D\na,1\n".encode("utf-16-le"), "of no known kind"),
    "blank": (" \n\n", "is empty"),
    "a sheet of Excel": (b"PK\x03\x04" + bytes(30), "zip archive; .*save a sheet of Excel as CSV"),
    "RDS": (gzip.compress(b"X\n\x00\x00\x00\x03"), "is an RDS file; .*zellkonverter"),
    "cut gzip": (gzip.compress(b"c,CD3D\na,1\n" * 1000)[:-20], "is truncated"),
    "tar": (gzip.compress(bytes(257) + b"ustar" + bytes(300)), "is a tar archive"),
    "HDF5 in gzip": (gzip.compress(b"\x89HDF\r\n\x1a\n"), "gunzip"),
    "npy": (b"\x93NUMPY\x01\x00", "is a NumPy array"),
    "pickle": (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00c", "of no known kind"),
    "nothing": ("", r"is empty \(0 bytes\)"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_refused(case, tmp_path):
    content, match = TABLES[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=match) as error:
        read_cells(path, "cells_by_genes")
    assert "\n" not in str(error.value)


def test_numbers_that_only_count_are_names(tmp_path):
    pd.DataFrame([[1, 2], [3, 4]], columns=["CD3D", "CD4"]).to_csv(tmp_path / "a.csv")
    assert list(read_cells(tmp_path / "a.csv").obs_names) == ["0", "1"]


# Safety


def external_link(file, other):
    file["uns/away"] = h5py.ExternalLink(str(other), "/secret")


def external_storage(file, other):
    file.create_dataset("uns/away", shape=(2,), dtype="u1", external=[(str(other), 0, 2)])


def virtual_dataset(file, other):
    layout = h5py.VirtualLayout(shape=(2,), dtype="i8")
    layout[:] = h5py.VirtualSource(str(other), "secret", shape=(2,))
    file.create_virtual_dataset("uns/away", layout)


def link_in_a_hidden_group(file, other):
    file.create_group("uns/deep/deeper")["away"] = h5py.ExternalLink(str(other), "/secret")


LINKS = [external_link, external_storage, virtual_dataset, link_in_a_hidden_group]


@pytest.mark.parametrize("add", LINKS, ids=lambda add: add.__name__)
@pytest.mark.parametrize("kind", ["h5ad", "10x h5 v3", "loom"])
def test_nothing_in_another_file_is_read(kind, add, cells, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.arange(2)
    path = WRITERS[kind](cells, tmp_path)
    with h5py.File(path, "r+") as file:
        add(file, tmp_path / "secret.h5")
    for read in (read_cells, require_readable):
        with pytest.raises(InputError, match=r"another file \('/uns/.*away' -> .*secret.h5\)"):
            read(path)


def test_links_within_a_file_are_fine(cells, tmp_path):
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file["uns/same"] = h5py.SoftLink("/obs/label")
        file["uns/hard"] = file["obs/label"]
        file["uns/loop"] = file["uns"]
    assert require_readable(path) == "h5ad"


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_links_that_leave_a_zarr_folder(zarr_format, cells, tmp_path):
    path = write_zarr(cells, tmp_path, zarr_format)
    (tmp_path / "secret").write_text("secret")
    os.symlink(path / "obs", path / "inside")
    assert same(read_cells(path), cells)
    os.symlink(tmp_path / "secret", path / "obs" / "away")
    with pytest.raises(InputError, match=r"with a link that leaves it \('obs/away'\)"):
        read_cells(path)
    (path / "obs" / "away").unlink()
    os.mkfifo(path / "pipe")
    with pytest.raises(InputError, match="'pipe', neither a file nor a folder"):
        require_readable(path)


@pytest.mark.parametrize("where", [".zarray", ".zmetadata"])
@pytest.mark.parametrize(("codec", "match"), [("pickle", "pickled objects"), ("json2", "Python objects")])
def test_pickled_arrays_are_never_loaded(where, codec, match, cells, tmp_path):
    path = write_zarr(cells, tmp_path, 2)
    info = json.loads((path / "obs/_index/.zarray").read_text())
    bad = info | {"dtype": "|O", "filters": [{"id": codec}]}
    if where == ".zarray":
        (path / "obs/_index/.zarray").write_text(json.dumps(bad))
    else:
        (path / where).write_text(json.dumps({"metadata": {"obs/_index/.zarray": bad}, "zarr_consolidated_format": 1}))
    with pytest.raises(InputError, match=match):
        read_cells(path)


@pytest.mark.parametrize("damage", ["no JSON", "chunk", "not AnnData"])
def test_damaged_zarr(damage, cells, tmp_path):
    path = write_zarr(cells, tmp_path, 3)
    if damage == "no JSON":
        (path / "zarr.json").write_text("{")
    elif damage == "chunk":
        next(file for file in (path / "X/data").rglob("*") if file.is_file() and file.name != "zarr.json").write_bytes(
            b"damaged"
        )
    else:
        (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    with pytest.raises(InputError, match="is damaged|no cells in"):
        read_cells(path)


def test_what_is_no_file(tmp_path):
    with pytest.raises(InputError, match=r"no file .*nowhere.*check the path"):
        require_readable(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        require_readable(tmp_path / "pipe")


FOREIGN_HDF5 = {"mod": "it looks like MuData", "assays": "it looks like h5Seurat", "some": "holds some"}


@pytest.mark.parametrize("group", FOREIGN_HDF5)
def test_other_hdf5_files(group, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group(group)
    with pytest.raises(InputError, match=FOREIGN_HDF5[group]):
        read_cells(tmp_path / "a.h5")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("kind", ["10x h5 v2", "10x h5 v3", "loom", "csv.gz of genes x cells"])
def test_truncated_files(kind, share, cells, tmp_path):
    path = WRITERS[kind](cells, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="is truncated|is damaged|is no table"):
        read_cells(path)


def test_a_loom_file_without_names_of_genes(cells, tmp_path):
    path = write_loom(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        del file["row_attrs/Gene"]
    assert list(read_cells(path).var_names) == list(cells.var["gene_ids"])
    with h5py.File(path, "r+") as file:
        file.move("row_attrs/Accession", "row_attrs/Whatever")
    with pytest.raises(InputError, match=r"no names of genes \(row attributes: Whatever\)"):
        read_cells(path)


# Names


NAMES = {
    "a.csv.gz": "a",
    "b.h5": "b",
    "a.b.h5ad": "a.b",
    "GSM1_matrix.mtx.gz": "GSM1",
    "run1/matrix.mtx": "run1",
    "x.zarr": "x",
    "A.TSV": "A",
    "sample": "sample",
}


@pytest.mark.parametrize("name", NAMES)
def test_stem(name, tmp_path):
    assert stem(tmp_path / name) == NAMES[name]


def test_outputs_lie_beside_the_input(tmp_path, monkeypatch):
    (tmp_path / "run.1").mkdir()
    assert stem(tmp_path / "run.1") == "run.1"
    assert readers.beside(tmp_path / "run.1", ".model") == tmp_path / "run.1.model"
    monkeypatch.chdir(tmp_path / "run.1")
    assert readers.beside(".", ".model") == tmp_path / "run.1.model"
    assert readers.beside("a.csv", ".model") == Path("a.model")


@pytest.mark.parametrize("kind", ["csv", "10x folder", "mtx file", "zarr 3"])
def test_the_checksum_changes_with_the_content(kind, cells, tmp_path):
    path = WRITERS[kind](cells, tmp_path)
    before = readers.checksum(path)
    assert before == readers.checksum(path)
    assert len(before) == 64
    part = next(file for file in sorted((path if path.is_dir() else path.parent).rglob("*")) if file.is_file())
    part.write_bytes(part.read_bytes() + b" ")
    assert readers.checksum(path) != before


# Steps


@pytest.mark.parametrize("kind", ["csv", "10x h5 v3", "10x folder", "loom", "zarr 3"])
def test_check_of_any_kind(kind, counts_adata, tiny_model, tmp_path, command):
    counts_adata.var["gene_ids"] = counts_adata.var_names
    counts_adata.obs["label"] = counts_adata.obs["cell_type"].astype(str)
    counts_adata.X = counts_adata.X.astype(np.int64)
    path = WRITERS[kind](counts_adata, tmp_path)
    ran = command("check", path, f"model_path={tiny_model}")
    assert ran.code == 0
    assert "counts in X" in ran.out
    assert "200 of 200 genes" in ran.out
    assert "120 cells x 200 genes" in ran.err


def test_a_table_of_unclear_orientation_is_refused_by_check_unless_told(tmp_path, tiny_model, command):
    path = tmp_path / "a.csv"
    table([f"r{i}" for i in range(3)], [f"c{i}" for i in range(4)]).to_csv(path)
    ran = command("check", path, f"model_path={tiny_model}")
    assert ran.code == 2
    assert "add orientation=cells_by_genes" in ran.out
    ran = command("check", path, f"model_path={tiny_model}", "orientation=sideways")
    assert "orientation=sideways" in ran.err
    assert "auto, cells_by_genes, genes_by_cells" in ran.err


def test_train_and_preprocess_from_a_folder(counts_adata, tmp_path, command):
    counts_adata.var["gene_ids"] = counts_adata.var_names
    counts_adata.X = counts_adata.X.astype(np.int64)
    folder = write_mtx(counts_adata, tmp_path, zipped=False)
    rows = [f"{name}\t{label}\n" for name, label in counts_adata.obs["cell_type"].items()]
    (folder / "barcodes.tsv").write_text("barcode\tcell_type\n" + "".join(rows))
    options = ["label_key=cell_type", "model=tiny", "trainer.max_epochs=1", "logger=none"]
    ran = command("train", folder, *options)
    assert ran.code == 0, ran.err
    info = json.loads((tmp_path / "run.model/bundle.json").read_text())
    assert info["provenance"]["reference"] == "run"
    assert info["provenance"]["reference_sha256"] == readers.checksum(folder)
    ran = command("preprocess", folder / "matrix.mtx", f"model_path={tmp_path / 'run.model'}")
    assert ran.code == 0, ran.err
    assert ad.read_h5ad(folder / "run.prepared.h5ad").shape == (120, len(info["labels"]) and 200)


def test_pretrain_from_a_table_and_a_10x_file(counts_adata, tmp_path, command):
    counts_adata.var["gene_ids"] = counts_adata.var_names
    counts_adata.X = counts_adata.X.astype(np.int64)
    first, second = write_csv(counts_adata[:60], tmp_path), write_tenx_v3(counts_adata[60:].copy(), tmp_path)
    ran = command("pretrain", first, second, "trainer.max_epochs=1", "logger=none")
    assert ran.code == 0, ran.err
    corpus = json.loads((tmp_path / "run.encoder/bundle.json").read_text())["provenance"]["corpus"]
    assert [file["name"] for file in corpus] == ["run.csv", "run.h5"]


def test_real_files(shared_data):
    files = sorted((shared_data / "wild").glob("*.h5ad"))
    assert files
    for path in files:
        if "zero_cells" in path.name:
            with pytest.raises(InputError, match="no cells in"):
                read_cells(path)
        else:
            assert same(read_cells(path), ad.read_h5ad(path))


def test_known_genes_are_those_of_the_packaged_model():
    known = tables._known_genes()
    assert "HES4" in known
    assert len(known) == 765
