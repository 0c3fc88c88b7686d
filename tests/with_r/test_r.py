"""Objects that R itself writes: they are read, and the lines that the log, errors and docs print run in R."""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import io, sparse

from scperformer.base.errors import InputError
from scperformer.io.read import read_cells

ROOT = Path(__file__).parents[2]
PACKAGES = "Seurat", "SingleCellExperiment", "DropletUtils", "Biobase"
WHOLE = "workflow", "sce", "no_colnames", "converted", "assay", "counts_emptied"  # expression in X
WHOLE += "CsparseMatrix", "RsparseMatrix", "TsparseMatrix", "unpackedMatrix", "matrix"
BESIDE = "adt_active", "adt_main", "sct"  # counts in raw
REFUSED = (
    "data_frame",
    "with_genes",
    "DataFrame",
    "expression_set",
    "list",
    "named_list",
    "logical",
    "text",
    "folder",
)


def run_r(script: str, folder: Path) -> str:
    ran = subprocess.run(
        ["Rscript", "-e", script], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def has_r() -> bool:
    checks = f"quit(status = !all(sapply(c{PACKAGES}, requireNamespace, quietly = TRUE)))"
    return (
        shutil.which("Rscript") is not None
        and subprocess.run(["Rscript", "-e", checks]).returncode == 0
    )


pytestmark = [pytest.mark.r, pytest.mark.slow]


@pytest.fixture(scope="module")
def cells() -> ad.AnnData:
    """Real cells, in the order in which R has them."""
    found = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")[:200].copy()
    return found[:, np.asarray((found.X > 0).sum(axis=0)).ravel() >= 5].copy()


@pytest.fixture(scope="module")
def objects(cells, tmp_path_factory) -> Path:
    """The folder of the objects that objects.R makes."""
    if not has_r():
        pytest.skip(f"needs R with {', '.join(PACKAGES)}")
    folder = tmp_path_factory.mktemp("r")
    (folder / "tenx").mkdir()
    names = {
        "barcodes": cells.obs_names,
        "features": cells.var_names + "\t" + cells.var_names + "\tGene Expression",
    }
    for name, lines in names.items():
        (folder / "tenx" / f"{name}.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    with gzip.open(folder / "tenx" / "matrix.mtx.gz", "wb") as file:
        io.mmwrite(file, sparse.coo_matrix(cells.X.T, dtype=int))
    subprocess.run(
        ["Rscript", ROOT / "tests" / "with_r" / "objects.R"], cwd=folder, check=True, timeout=900
    )
    cells.write_h5ad(folder / "cells.h5ad")
    return folder


def same_counts(x, var_names, cells: ad.AnnData) -> bool:
    """Whether counts are those of the cells; Seurat writes dashes for underscores, and SCTransform drops rare genes."""
    places = pd.Index(cells.var_names.str.replace("_", "-")).get_indexer(
        var_names.str.replace("_", "-")
    )
    return (places >= 0).all() and (abs(sparse.csr_matrix(x) - cells.X[:, places]) > 0).nnz == 0


@pytest.mark.parametrize("name", [*WHOLE, *BESIDE])
def test_objects_are_read_as_r_has_them(name, objects, cells):
    if name == "sct" and not (objects / "sct.rds").exists():
        pytest.skip("needs sctransform")
    found = read_cells(objects / f"{name}.rds")
    assert list(found.obs_names) == list(cells.obs_names)
    if name in BESIDE:
        assert same_counts(found.raw.X, found.raw.var_names, cells)
        assert found.raw.shape == cells.shape
    elif name == "counts_emptied":
        totals = np.asarray(np.expm1(found.X.astype(np.float64)).sum(axis=1))
        np.testing.assert_allclose(totals, 1e4, rtol=1e-4)
    else:
        assert found.shape == cells.shape
        assert same_counts(found.X, found.var_names, cells)
    if name == "workflow":
        assert found.obs["note"].isna().all()
        assert list(found.obs["group"].astype(object).fillna("?")[:3]) == ["a", "?", "a"]
        assert found.obs["seurat_clusters"].nunique() > 1


@pytest.mark.parametrize("name", REFUSED)
def test_the_lines_of_an_error_convert_the_object(name, objects, cells, tmp_path):
    path = objects / "refused" / (name if name == "folder" else f"{name}.rds")
    if not path.exists():
        pytest.skip("needs HDF5Array")
    with pytest.raises(InputError) as error:
        read_cells(path)
    line = re.search(r"in R: (.*)", error.value.remedy)[1]
    (name_made,) = re.findall(r"saveRDS\(.*, '(.*)'\)", line)
    before = "" if name == "folder" else f"object <- readRDS('{path}'); "
    run_r(
        f"suppressPackageStartupMessages({{library(Seurat); library(Matrix)}}); {before}{line}",
        tmp_path,
    )
    found = read_cells(tmp_path / name_made)
    expected = cells[: found.n_obs].copy()
    if name == "logical":
        expected.X = (expected.X > 0).astype(np.float32)
    assert same_counts(found.X, found.var_names, expected)


def test_the_lines_of_the_log_and_the_docs_run_in_r(objects, command, tmp_path):
    """The calls of each cell, as from h5ad, are added to reordered objects: twice by the lines of the log."""
    for name in ("workflow.rds", "sce.rds", "cells.h5ad"):
        shutil.copy(objects / name, tmp_path)
    words = "predict", "tissue=blood"
    expected = command(*words, "cells.h5ad", "output=expected.rds")
    ran = command(*words, "workflow.rds", "output=calls.rds", "umap=true")
    of_sce = command(*words, "sce.rds", "output=calls.csv")
    assert [each.code for each in (expected, ran, of_sce)] == [0, 0, 0]
    seurat, bioconductor = re.findall(r"in R: (.*)", ran.err)
    _, from_csv = re.findall(r"in R: (.*)", of_sce.err)
    page = (ROOT / "docs" / "from_other_tools.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```r\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    right = "as.character(object$scperformer_call) == as.character(expected[colnames(object), 'scperformer_call'])"
    script = f"""
        suppressPackageStartupMessages({{library(Seurat); library(SingleCellExperiment)}})
        pdf(NULL)
        expected <- readRDS("expected.rds")
        for (line in c({seurat!r}, {bioconductor!r}, {from_csv!r})) {{
            object <- readRDS(if (grepl("Seurat", line)) "workflow.rds" else "sce.rds")
            object <- object[, rev(colnames(object))]
            for (time in 1:2) eval(parse(text = line))
            columns <- if (grepl("Seurat", line)) names(object[[]]) else names(colData(object))
            stopifnot({right}, sum(columns == "scperformer_call") == 1)
        }}
        sce <- object
        object <- readRDS("workflow.rds")
        object <- object[, rev(colnames(object))]
        {"".join(blocks)}
        proba <- as.matrix(GetAssayData(object[["calls"]]))
        best <- rownames(proba)[apply(proba, 2, which.max)]
        stopifnot({right}, abs(colSums(proba) - 1) < 1e-4)
        stopifnot(mean(best == as.character(object$scperformer_label)) > 0.9)  # some T cells get another label
        stopifnot(Embeddings(object, "calls_umap")[colnames(sce), ] == reducedDim(sce, "calls"))
        object <- sce
        stopifnot({right})
    """
    run_r(script, tmp_path)
