"""The quality of cells, compared with plain loops over a dense matrix."""

import math

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.stats import median_abs_deviation
from support.opened import detected

from scperformer.cells.opened import OpenedCells
from scperformer.cells.quality import low_quality, mitochondrial, technical
from scperformer.config.options import ModelOptions

OPTIONS = ModelOptions(inputs=[""])


@pytest.fixture
def cells() -> ad.AnnData:
    """90 cells x 300 genes of counts, ten of them mitochondrial; two cells are empty, thirty are dying."""
    rng = np.random.default_rng(3)
    x = rng.poisson(rng.gamma(2.0, 2.0, 300), (90, 300)) * (
        rng.random((90, 300)) < np.linspace(0.5, 1, 90)[:, None]
    )
    x = x.astype(np.float64)
    x[:, :10] += 1
    x[:30, :10] *= 20
    x[[4, 50]] = 0
    names = (
        [f"MT-{i}" for i in range(5)]
        + [f"mt-{i}" for i in range(5)]
        + [f"GENE{i}" for i in range(290)]
    )
    return ad.AnnData(sparse.csr_matrix(x), var=pd.DataFrame(index=names))


def measured(cells: ad.AnnData, x=None) -> dict:
    """Return the quality of cells as a dictionary; `x` replaces their matrix."""
    x = cells.X if x is None else x
    return OpenedCells(ad.AnnData(x, var=cells.var), OPTIONS).typical_quality()


def naive(x: np.ndarray) -> dict:
    """Measure the same with a loop over the cells."""
    genes, totals, shares = [], [], []
    for row in x:
        genes.append(sum(value > 0 for value in row))
        totals.append(sum(row))
        if totals[-1] > 0:
            shares.append(sum(row[:10]) / totals[-1])
    return {
        "num_seen": len(x),
        "median_genes": pytest.approx(np.median(genes)),
        "median_counts": pytest.approx(np.median(totals)),
        "median_mitochondrial": pytest.approx(np.median(shares)),
    }


@pytest.mark.parametrize("make", [sparse.csr_matrix, np.asarray], ids=["sparse", "dense"])
def test_quality_equals_a_naive_loop(cells, make, monkeypatch):
    monkeypatch.setattr("scperformer.io.rows.BLOCK_VALUES", 4000)
    x = cells.X.toarray()
    expected = naive(x)
    assert measured(cells, make(x)) == expected


def test_a_large_file_is_described_by_a_sample(cells, monkeypatch):
    monkeypatch.setattr("scperformer.cells.values.SAMPLE_CELLS", 30)
    seen = np.unique(np.linspace(0, 89, 30).astype(int))
    assert measured(cells) == naive(cells.X.toarray()[seen])


def test_shares_of_logarithms_equal_those_of_counts(cells):
    base = 2.0
    x = cells.X.toarray()
    x = np.log1p(x * (1e4 / np.maximum(x.sum(axis=1, keepdims=True), 1))) / math.log(base)
    logged = ad.AnnData(sparse.csr_matrix(x), var=cells.var)
    assert detected(logged).log_base == base
    assert measured(logged) == naive(cells.X.toarray()) | {"median_counts": None}


def test_technical_genes_by_name_or_id():
    listed = ["RPS6KA1", "RPSAP58X", "MTOR", "CD3D", "MRPL1", "RPE65", "ENSG00000167286"]
    left_out = [
        "RPL13A",
        "Rps27l",
        "RPS4Y1",
        "RPL36AL",
        "RPLP0",
        "RPSA",
        "RPL13AP5",
        "MT-ND1",
        "mt-Co1",
        "Malat1",
    ]
    left_out += ["ENSG00000251562", "ENSG00000142541"]  # MALAT1, RPL13A
    assert technical(listed + left_out).tolist() == [False] * len(listed) + [True] * len(left_out)
    assert technical([]).tolist() == []  # samples of two species share no gene


def test_mitochondrial_genes_by_name_id_or_column():
    names = [
        "MT-ND1",
        "mt-Nd1",
        "ENSG00000198888",
        "ENSG00000198888.2",
        "MT-CO1_ENSG00000198804",
        "MTOR",
        "MT1A",
        "",
    ]
    assert mitochondrial(pd.DataFrame(index=names)).tolist() == [True] * 5 + [False] * 3
    var = pd.DataFrame(
        {"feature_name": ["mt-Co1", "Gapdh"]}, index=["ENSMUSG00000064351", "ENSMUSG00000057666"]
    )
    assert mitochondrial(var).tolist() == [True, False]
    assert (
        mitochondrial(pd.DataFrame(index=["MT.ND1", "mt.Nd1", "MTOR", "MT1A"])).tolist()
        == [True] * 2 + [False] * 2
    )


def test_low_quality_is_relative_to_the_file(cells):
    """Thirty cells are dying, and another has a tenth of the genes. The expected limits are those of scipy."""
    x = cells.X.toarray()
    x[80, 30:] = 0
    measured = OpenedCells(ad.AnnData(sparse.csr_matrix(x), var=cells.var), OPTIONS).quality()
    low, few, high = low_quality(measured, np.ones(len(measured), dtype=bool))
    logs, shares = (
        np.log1p((x > 0).sum(axis=1)),
        x[:, :10].sum(axis=1) / np.maximum(x.sum(axis=1), 1),
    )
    assert few == pytest.approx(np.expm1(np.median(logs) - 5 * median_abs_deviation(logs)))
    assert high == pytest.approx(max(np.median(shares) + 3 * median_abs_deviation(shares), 0.08))
    assert low.tolist() == ((logs < np.log1p(few)) | (shares > high)).tolist()
    assert low[[4, 50, 80]].all()
    assert not low_quality(measured[31:49], np.ones(18, dtype=bool))[0].any()


def test_empty_droplets_do_not_influence_medians_and_limits(raw_pbmc, few_pbmc):
    limits, quality = [], []
    for adata in (few_pbmc, raw_pbmc):
        opened = OpenedCells(adata, OPTIONS)
        quality.append(opened.typical_quality())
        low, few, high = low_quality(opened.quality(), opened.findings.is_cell)
        limits.append((few, high))
    assert quality[1] == quality[0]
    assert limits[1] == limits[0]
    assert low[~raw_pbmc.obs["is_cell"]].all()
    assert low[raw_pbmc.obs["is_cell"]].sum() < 6
