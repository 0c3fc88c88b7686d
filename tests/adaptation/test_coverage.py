"""The coverage of a file: its genes and its depth, the same however it is stored; and cells reduced to it."""

from types import SimpleNamespace

import anndata as ad
import numpy as np
import pytest
from scipy.sparse import csr_matrix
from support.opened import opened

from scperformer.adaptation.coverage import Coverage, depth_share, find_coverage, reduced, seen_rows
from scperformer.cells.batches import Batches
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import find_query
from scperformer.config.options import ModelOptions
from scperformer.model.arrays import ReferenceCells
from scperformer.model.bundle import NetworkConfig

GENES = [f"GENE{i}" for i in range(0, 300, 2)]  # of the model; the cells have GENE0 to GENE199


def query_of(adata: ad.AnnData, genes: list[str] = GENES):
    model = SimpleNamespace(
        genes=genes,
        importance=None,
        config=NetworkConfig(target_sum=1e4),
        is_tissue=False,
        can_be_refitted=True,
    )
    return find_query(opened(adata), model)


def with_ones(adata: ad.AnnData, share: float = 1.0) -> ad.AnnData:
    """Cells with a share of their counts, each with one count of GENE0: the smallest value is one count."""
    x = np.random.default_rng(0).binomial(adata.X.toarray().astype(int), share)
    x[:, 0] = 1
    return ad.AnnData(csr_matrix(x, dtype=np.float32), obs=adata.obs, var=adata.var)


def logged(adata: ad.AnnData, target_sum: float) -> ad.AnnData:
    x = adata.X.toarray()
    values = np.log1p(x / x.sum(axis=1, keepdims=True) * target_sum).astype(np.float32)
    return ad.AnnData(csr_matrix(values), obs=adata.obs, var=adata.var)


def rounded(median: float) -> float:
    """The power of the square root of 2 that is nearest in logarithms, by trying them."""
    powers = 2.0 ** (np.arange(-4, 60) / 2)
    return float(powers[np.abs(np.log(powers / median)).argmin()])


@pytest.mark.parametrize("share", [1.0, 0.2], ids=["encoder", "shallow"])
def test_genes_and_depth_are_those_of_the_counts(counts_adata, share):
    adata = with_ones(counts_adata, share)
    found = find_coverage(query_of(adata))
    np.testing.assert_array_equal(found.measured, [int(gene[4:]) < 200 for gene in GENES])
    assert found.depth == pytest.approx(rounded(np.median(adata.X[:, ::2].toarray().sum(axis=1))))


def test_logarithms_give_the_condition_of_their_counts(counts_adata):
    counts = with_ones(counts_adata)
    wanted, found = find_coverage(query_of(counts)), find_coverage(query_of(logged(counts, 1e6)))
    np.testing.assert_array_equal(found.measured, wanted.measured)
    assert (found.depth, found.key) == (wanted.depth, wanted.key)


def test_other_orders_and_more_genes_are_the_same_condition(counts_adata):
    adata = with_ones(counts_adata)
    wanted = find_coverage(query_of(adata)).key
    rng = np.random.default_rng(0)
    shuffled = adata[rng.permutation(adata.n_obs)][:, rng.permutation(adata.n_vars)].copy()
    assert find_coverage(query_of(shuffled)).key == wanted
    # the controls: a gene less; another depth
    assert find_coverage(query_of(adata[:, adata.var_names != "GENE2"].copy())).key != wanted
    assert find_coverage(query_of(with_ones(counts_adata, 0.3))).key != wanted


@pytest.fixture
def reference_cells() -> ReferenceCells:
    """400 cells of 60 genes with about 600 counts each."""
    counts = np.random.default_rng(0).poisson(10.0, size=(400, 60)).astype(np.float32)
    return ReferenceCells(csr_matrix(counts), np.arange(400) % 2, are_counts=True)


def full_sample(genes: slice, depth: float | None) -> Coverage:
    measured = np.zeros(60, dtype=bool)
    measured[genes] = True
    return Coverage(measured, depth)


HALF = slice(0, 60, 2)  # 300 counts a cell, of the class 2 ** 8


@pytest.mark.parametrize(
    ("depth", "share"), [(2**8, 1.0), (2**12, 16.0), (None, 1.0), (2**7, 0.5), (2**5.5, 2**-2.5)]
)
def test_the_share_of_the_depth(reference_cells, depth, share):
    assert depth_share(reference_cells, full_sample(HALF, depth)) == pytest.approx(share)
    relative = ReferenceCells(reference_cells.values, reference_cells.labels, are_counts=False)
    assert depth_share(relative, full_sample(HALF, depth)) == 1


def test_reduced_cells_are_thinned_to_the_depth(reference_cells):
    wanted = full_sample(HALF, 2**6)
    x = reduced(reference_cells, wanted, 1e4, seed=0)
    assert x.shape == (400, 30)
    linear = np.expm1(x.toarray().astype(np.float64))
    np.testing.assert_allclose(linear.sum(axis=1), 1e4, rtol=1e-4)
    # of about 75 counts in 30 genes, a single one is the least
    one = np.array([row[row > 0].min() for row in linear])
    thin, original = np.rint(linear / one[:, None]), reference_cells.values.toarray()[:, HALF]
    assert (thin <= original).all()
    # Each of 120,000 counts is kept with a probability of 1/4: the standard error of the share is 0.5 %.
    assert thin.sum() == pytest.approx(original.sum() / 4, rel=0.02)


@pytest.mark.parametrize("batch", [None, 1])
def test_rows_that_are_looked_at_are_spread_over_a_file_or_a_batch_of_it(batch):
    """From 20 of 45 blocks, of which the last one is small; as many rows of each as it has."""
    num_cells = 44 * 100 + 7
    findings = SimpleNamespace(droplets=None, is_cell=np.ones(num_cells, dtype=bool))
    batches = Batches("run", ["a", "b"], (np.arange(num_cells) % 3 == 0).astype(np.int64))
    cells = OpenedCells(ad.AnnData(np.zeros((num_cells, 5))), ModelOptions(inputs=[""]))
    cells._findings, cells.rows = findings, SimpleNamespace(block_cells=100)
    found = seen_rows(SimpleNamespace(cells=cells, batches=batches), batch)
    own = [row for row in range(num_cells) if batch is None or row % 3 == 0]
    blocks = {int(44 * number / 19) for number in range(20)}
    own = [row for row in own if row // 100 in blocks]
    most = min(2000, len(own))
    assert found.tolist() == sorted(
        {own[int((len(own) - 1) * number / (most - 1))] for number in range(most)}
    )
    of_block = np.bincount(found // 100)
    if batch is None:
        assert of_block[44] == 7
