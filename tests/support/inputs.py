"""Write the same small cells as every kind of input."""

import gzip
import warnings
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.io
from scipy import sparse
from support.r_files import dgc, experiment, save_rds

NUM_CELLS, NUM_GENES = 30, 60


def small_cells() -> ad.AnnData:
    """Make 30 cells x 60 genes of counts: barcodes and symbols as names, Ensembl ids in var, two labels in obs."""
    rng = np.random.default_rng(5)
    x = rng.poisson(rng.gamma(1.0, 1.0, NUM_GENES), (NUM_CELLS, NUM_GENES))
    x[:, 0] += 1  # no cell is empty
    barcodes = ["".join(rng.choice(list("ACGT"), 16)) + "-1" for _ in range(NUM_CELLS)]
    return ad.AnnData(
        sparse.csr_matrix(x.astype(np.int64)),
        obs=pd.DataFrame(
            {"label": np.where(np.arange(NUM_CELLS) % 2, "T cell", "B cell")}, index=barcodes
        ),
        var=pd.DataFrame(
            {"gene_ids": [f"ENSG{i:011d}" for i in range(NUM_GENES)]},
            index=["MT-CO1", *(f"CD{i}" for i in range(1, NUM_GENES))],
        ),
    )


def table(rows, columns) -> pd.DataFrame:
    return pd.DataFrame(
        np.arange(len(rows) * len(columns)).reshape(len(rows), -1), index=rows, columns=columns
    )


def same(found: ad.AnnData, expected: ad.AnnData) -> bool:
    """Fail unless matrix and names are equal."""
    np.testing.assert_array_equal(dense(found.X), dense(expected.X))
    assert list(found.obs_names) == list(expected.obs_names)
    assert list(found.var_names) == list(expected.var_names)
    return True


def dense(x) -> np.ndarray:
    return x.toarray() if sparse.issparse(x) else np.asarray(x)


def nullable(adata: ad.AnnData, dtype: str = "string", missing: str = "") -> ad.AnnData:
    """Return the cells with the types of pandas that can be missing, as anndata 0.13 reads and writes them.

    `missing`: also one of the names of `obs` or `var` is missing; of `raw`, its genes have such names.
    """
    made, some = adata.copy(), np.arange(adata.n_obs) % 7 == 0
    for what, table in (("obs", made.obs), ("var", made.var)):
        names = pd.Series(table.index.astype(str)).astype(dtype)
        if what == missing:
            names[3] = pd.NA
        table.index = pd.Index(names, name=table.index.name)
    texts = pd.Series(
        [f"text {place}" for place in range(adata.n_obs)], index=made.obs.index
    ).astype(dtype)
    made.obs["text"] = texts  # anndata makes categories of texts in obs that repeat or lack
    made.obs["category"] = texts.str[-1].where(~some).astype("category")
    made.obs["number"] = (
        pd.Series(np.arange(adata.n_obs), index=made.obs.index).astype("Int32").where(~some)
    )
    made.obs["flag"] = (
        pd.Series(np.arange(adata.n_obs) % 3 == 0, index=made.obs.index)
        .astype("boolean")
        .where(~some)
    )
    made.var["text"] = pd.Series(made.var.index, index=made.var.index).astype(dtype)
    made.obsm["table"] = pd.DataFrame({"text": texts.where(~some), "number": made.obs["number"]})
    made.varm["table"] = made.var[["text"]].copy()
    made.uns["table"] = made.obs[["text"]].reset_index(drop=True).rename(index=str)
    if missing == "raw":
        made.raw = made.copy()
    return made


def write_nullable(adata: ad.AnnData, path: Path) -> Path:
    """Write cells as `nullable` makes them, as h5ad or zarr."""
    with ad.settings.override(allow_write_nullable_strings=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about zarr, and about names that are missing
        (adata.write_zarr if path.suffix == ".zarr" else adata.write_h5ad)(path)
    return path


# Writers, one for each kind; each returns the path of the input


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
    """Write the parts that both versions have."""
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


def write_mtx(
    adata, folder: Path, *, prefix: str = "", features: str = "features.tsv", zipped: bool = True
) -> Path:
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
        if "label" in adata.obs:
            file["col_attrs/label"] = adata.obs["label"].to_numpy(object)
        file["layers/spliced"] = adata.X.T.toarray() * 2
    return folder / "run.loom"


def write_zarr(adata, folder: Path, zarr_format: int) -> Path:
    before = ad.settings.zarr_write_format
    ad.settings.zarr_write_format = zarr_format
    try:
        with warnings.catch_warnings():
            # about what the next versions of zarr and anndata will write
            warnings.simplefilter("ignore")
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


def write_txt_of_r(adata, folder: Path) -> Path:
    """Write as R's write.table: names in quotes, the first row one field shorter; line ends of Windows."""
    table = adata.to_df().T
    header = " ".join(f'"{name}"' for name in table.columns)
    rows = [
        f'"{name}" ' + " ".join(map(str, row))
        for name, row in zip(table.index, table.to_numpy(), strict=True)
    ]
    (folder / "run.txt").write_bytes("\r\n".join([header, *rows, ""]).encode())
    return folder / "run.txt"


def write_semicolons(adata, folder: Path) -> Path:
    adata.to_df().to_csv(folder / "run.csv", sep=";", encoding="utf-8-sig")
    return folder / "run.csv"


def write_experiment(adata, folder: Path) -> Path:
    made = experiment(
        {"counts": dgc(adata.X, adata.var_names, adata.obs_names)}, adata.obs, adata.var
    )
    return save_rds(made, folder / "run.rds")


WRITERS = {
    "h5ad": write_h5ad,
    "h5ad csc float64": write_h5ad_csc,
    "h5ad dense int32": write_h5ad_dense,
    "10x h5 v2": write_tenx_v2,
    "10x h5 v3": write_tenx_v3,
    "10x folder": write_mtx,
    "10x folder v2": write_mtx_old,
    "mtx file": write_mtx_file,
    "mtx of cells x genes": write_mtx_transposed,
    "loom": write_loom,
    "zarr 2": write_zarr_2,
    "zarr 3": write_zarr_3,
    "csv": write_csv,
    "csv.gz of genes x cells": write_csv_genes,
    "txt of R": write_txt_of_r,
    "semicolons and BOM": write_semicolons,
    "rds, float32": write_experiment,
}
