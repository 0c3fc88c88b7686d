"""Columns that are not genes are found by their names and values, in tables and h5ad files, counts and logarithms."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy
from scipy import sparse
from support.refusal import refusal

from scperformer.cells.detect import Stated, detect_expression, gene_table
from scperformer.io.read import open_adata
from scperformer.model.tissues import collection

NUM = 200


def columns(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "coordinates": {"Bregma": rng.uniform(0, 9000, NUM).round(2), "y_centroid": rng.uniform(0, 9000, NUM).round(2)},
        "an area": {"soma": rng.uniform(40, 300, NUM).round(1)},
        "whole coordinates": {"x": rng.integers(0, 9000, NUM), "y": rng.integers(0, 9000, NUM)},
        "ids": {"EntityID": np.arange(NUM) + 10**9},
        "numbers of the rows": {"Unnamed: 0": np.arange(NUM)},
        "a total": {"sum of all": rng.integers(1000, 3000, NUM)},
        "negative values": {"axis 1": rng.normal(0, 3, NUM)},
        "missing values": {"distance": np.where(np.arange(NUM) % 3, rng.uniform(0, 5, NUM), np.nan)},
        "several kinds": {
            "x": rng.integers(0, 9000, NUM),
            "soma": rng.uniform(40, 300, NUM),
            "row": np.arange(NUM) + 1,
        },
    }[kind]


KINDS = ["coordinates", "an area", "whole coordinates", "ids", "numbers of the rows", "a total", "negative values"]
KINDS += ["missing values", "several kinds"]


def with_columns(cells: ad.AnnData, kind: str) -> ad.AnnData:
    added = pd.DataFrame(columns(kind))
    x = sparse.hstack([sparse.csr_matrix(added.to_numpy(np.float64)), cells.X], "csr")
    return ad.AnnData(x, obs=cells.obs, var=pd.DataFrame(index=[*added.columns, *cells.var_names]))


@pytest.fixture
def plain(pbmc3k) -> ad.AnnData:
    return pbmc3k[:NUM].copy()


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_left_out_of_counts(plain, kind):
    cells = with_columns(plain, kind)
    findings = detect_expression(cells)
    assert gene_table(cells, findings).index.tolist() == plain.var_names.tolist()
    assert (findings.kind, findings.num_genes) == ("counts", plain.n_vars)
    names = ", ".join(map(repr, columns(kind)))
    assert findings.notes == [f"columns whose names and values are not of genes are left out: {names}"]


@pytest.mark.slow
def test_rows_about_cells_are_left_out_of_logarithms(plain, tmp_path):
    """As tables of GEO have them, genes in rows: numbers of tumours, and codes of whether a cell is malignant."""
    scanpy.pp.normalize_total(plain, target_sum=1e5)
    scanpy.pp.log1p(plain, base=2)
    rows = {"tumor": 53 + np.arange(NUM) % 40, "malignant(1=no,2=yes)": 1 + np.arange(NUM) % 2}
    table = pd.concat([pd.DataFrame(rows, index=plain.obs_names).T, plain.to_df().T.round(4)])
    table.to_csv(tmp_path / "logs.txt", sep="\t", index_label="Cell")
    with open_adata(tmp_path / "logs.txt") as cells:
        findings = detect_expression(cells)
    assert (findings.kind, findings.log_base, findings.num_genes) == ("log1p", 2.0, plain.n_vars)
    assert any("'tumor', 'malignant(1=no,2=yes)'" in note for note in findings.notes)


@pytest.mark.parametrize("name", ["MALAT1", "Rn45s", "ENSG00000251562", "LINC00486", "AC006064.6"])
def test_a_gene_stays_whatever_its_values(plain, name):
    cells = with_columns(plain, "a total")
    cells.var_names = [
        name if gene == "sum of all" else f"{gene}x" if gene == name else gene for gene in cells.var_names
    ]
    assert detect_expression(cells).num_genes == plain.n_vars + 1


def test_columns_that_may_not_be_genes_are_refused(plain):
    """Where most names are unknown, an unknown name says little; nor does a column that is not much larger."""
    cells = with_columns(plain, "a total")
    cells.var_names = ["sum of all", *(f"zgc{number}" for number in range(plain.n_vars))]
    with refusal("doubtful-genes"):
        detect_expression(cells, path="z.h5ad")
    assert (
        detect_expression(cells, Stated(input_kind="counts")).num_genes == plain.n_vars + 1
    )  # the user says otherwise
    cells = with_columns(plain, "a total")
    x = cells.X.toarray()
    x[:, 0] = 4 * x[:, 1:].max(axis=1)
    with refusal("doubtful-genes"):
        detect_expression(ad.AnnData(x, obs=cells.obs, var=cells.var))


def test_negative_values_of_genes_are_refused(plain):
    cells = with_columns(plain, "negative values")
    x = cells.X.toarray()
    x[:, 1:] -= 1
    with refusal("no-expression"):
        detect_expression(ad.AnnData(x, obs=cells.obs, var=cells.var))


def test_the_largest_gene_of_mouse_cells_of_one_type_stays():
    names = [*collection().genes("mouse")[:400], "Gstm1"]
    x = np.random.default_rng(0).poisson(2, (20, len(names))).astype(np.float32)
    x[:, -1] = 4 * x.max(axis=1)  # of a family of genes, without an ortholog of its own
    cells = ad.AnnData(x, var=pd.DataFrame(index=names))
    assert detect_expression(cells).num_genes == len(names)
    cells.var_names = [*names[:-1], "Area"]
    with refusal("doubtful-genes"):
        detect_expression(cells)
