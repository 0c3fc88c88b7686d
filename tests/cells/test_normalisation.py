"""Normalisation of any kind of values, compared with the plain formula; counts that are recovered; genes of a model."""

import math

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import csr_matrix, random
from support.normalised import by_scanpy, findings_of, plain, plan_of, split_in_two
from support.opened import detected, opened

from scperformer.cells.detect import gene_table
from scperformer.cells.normalisation import (
    align,
    align_rows,
    merge_genes,
    normalise,
    normalise_counts,
    over_own_genes,
    recover_counts,
    thin,
)
from scperformer.io.gene_names import first_of_each


def weighted(counts):
    """Counts with a weight for each gene, so that values and totals are no whole numbers."""
    weights = np.random.default_rng(0).gamma(2.0, 1.0, counts.shape[1]).astype(np.float32)
    return sparse.csr_matrix(counts.multiply(weights), dtype=np.float32)


@pytest.mark.parametrize("target_sum", [1e4, 2345.5])
@pytest.mark.parametrize("make", [sparse.csr_matrix, weighted], ids=["counts", "linear"])
def test_values_are_those_of_scanpy_bit_for_bit(pbmc3k, make, target_sum):
    """A model may have been trained on cells that scanpy has prepared: cells to annotate have the same values."""
    x = make(pbmc3k.X)
    result = normalise(x, findings_of(x), target_sum)
    expected = by_scanpy(ad.AnnData(x.copy()), target_sum).X
    np.testing.assert_array_equal(result.indptr, expected.indptr)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.data.view(np.int32), expected.data.view(np.int32))


@pytest.mark.parametrize(
    ("base", "total"),
    [(2.0, 1e4), (10.0, 1e4), (math.e, 1e6), (2.0, 2345.0)],
    ids=["2", "10", "e-1e6", "2-2345"],
)
def test_other_logarithms_are_converted(counts_adata, base, total):
    x = sparse.csr_matrix(plain(counts_adata.X, total) / math.log(base))
    result = normalise(x, findings_of(x), 1e4)
    # exp enlarges float32's error
    np.testing.assert_allclose(result.toarray(), plain(counts_adata.X), rtol=3e-6)


def test_normalised_values_stay_as_they_are_bit_for_bit(counts_adata, pbmc):
    x = sparse.csr_matrix(plain(counts_adata.X), dtype=np.float32)
    np.testing.assert_array_equal(normalise(x, findings_of(x), 1e4).toarray(), x.toarray())
    np.testing.assert_array_equal(
        normalise(pbmc.raw.X, detected(pbmc), 1e4).toarray(), pbmc.raw.X.toarray()
    )


def test_without_a_total_counts_keep_their_depth(counts_adata):
    counts = sparse.csr_matrix(counts_adata.X)
    found = normalise(counts, findings_of(counts), None)
    # float32
    np.testing.assert_allclose(
        found.toarray(), np.log(1 + counts.toarray().astype(np.float64)), rtol=1e-6
    )
    assert found.dtype == np.float32


def test_normalising_over_own_genes_equals_normalising_the_counts_of_these_genes(counts_adata):
    counts = counts_adata.X
    whole = normalise_counts(counts, 1e4)
    panel = np.arange(0, 200, 7)
    expected = normalise_counts(counts[:, panel], 1e4).toarray()
    np.testing.assert_allclose(over_own_genes(whole[:, panel], 1e4).toarray(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asarray],
    ids=["csr", "csc", "array", "dense"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_align_and_sums_equal_a_loop(make, dtype):
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.7, (23, 40)).astype(dtype) * 100  # the sum of two overflows a byte
    target = np.where(rng.random(40) < 0.7, rng.permutation(60)[:40] - 23, -1)
    target[target < 0] = -1
    expected = np.zeros((23, 37))
    for column, place in enumerate(target):
        if place >= 0:
            expected[:, place] = dense[:, column]
    x = make(dense)
    aligned = align(x, target, 37)
    assert (aligned.format, aligned.dtype, aligned.has_canonical_format) == (
        "csr",
        np.float32,
        True,
    )
    np.testing.assert_array_equal(aligned.toarray(), expected)

    first = first_of_each(rng.integers(0, 20, 40))
    summed = np.zeros((23, 40))
    for column, place in enumerate(first):
        summed[:, place] += dense[:, column]
    np.testing.assert_array_equal(merge_genes(x, first, None).toarray(), summed)
    # the user's matrix is unchanged
    np.testing.assert_array_equal(x.toarray() if sparse.issparse(x) else x, dense)


VALUES = {
    "counts": lambda x: x,
    "linear": lambda x: sparse.csr_matrix(x * 0.25),
    "log1p": lambda x: sparse.csr_matrix(plain(x), dtype=np.float32),
    "log2": lambda x: sparse.csr_matrix(plain(x, 1e6) / math.log(2), dtype=np.float32),
}


@pytest.mark.parametrize("kind", VALUES)
def test_columns_of_one_gene_are_added_up_as_counts(counts_adata, kind):
    model_genes = [f"GENE{i}" for i in range(0, 260, 2)]
    twice = split_in_two(counts_adata)
    for adata in (counts_adata, twice):
        adata.X = VALUES[kind](adata.X)
    plan = plan_of(twice.var, detected(twice), model_genes)
    assert plan.overlap.notes[0].startswith(
        "200 gene names occur more than once ('GENE0', 'GENE1', 'GENE2')"
    )
    once = align_rows(
        counts_adata.X, plan_of(counts_adata.var, detected(counts_adata), model_genes)
    )
    summed = align_rows(twice.X, plan)
    if kind == "counts":
        np.testing.assert_array_equal(summed.toarray(), once.toarray())
    # logarithms of float32 parts
    np.testing.assert_allclose(summed.toarray(), once.toarray(), rtol=2e-6)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("repeated", [False, True], ids=["unique", "repeated"])
def test_a_row_does_not_depend_on_its_block(counts_adata, kind, repeated):
    adata = split_in_two(counts_adata) if repeated else counts_adata
    adata.X = VALUES[kind](adata.X)
    findings = detected(adata)
    plan = plan_of(gene_table(adata, findings), findings, list(counts_adata.var_names[::3]))
    x = opened(adata).rows.matrix
    whole = align_rows(x, plan)
    for size in (1, 7, 50):
        blocks = [align_rows(x[start : start + size], plan) for start in range(0, 120, size)]
        joined = sparse.vstack(blocks, format="csr")
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(joined, part), getattr(whole, part))
        dense = align_rows(x[:size].toarray(), plan)
        np.testing.assert_array_equal(dense.toarray(), whole[:size].toarray())


@pytest.fixture
def counts() -> csr_matrix:
    rng = np.random.default_rng(0)
    made = rng.poisson(rng.gamma(0.5, 2.0, size=200), size=(60, 200)).astype(np.float32)
    made[:, 0] = 1  # every cell has a gene with one count
    return csr_matrix(made)


@pytest.mark.parametrize("target_sum", [1e4, 1e6])
@pytest.mark.parametrize("decimals", [None, 3], ids=["float32", "three decimals"])
def test_counts_are_recovered_from_normalised_values(counts, target_sum, decimals):
    x = normalise_counts(counts, target_sum)
    if decimals is not None:
        x.data = x.data.round(decimals)
    found = recover_counts(x)
    close = np.abs(found.toarray() - counts.toarray()) <= (
        0 if decimals is None else 0.02 * counts.toarray()
    )
    assert close.all()


def test_counts_are_recovered_from_what_scanpy_has_normalised(pbmc3k):
    found = recover_counts(normalise(pbmc3k.X, detected(pbmc3k), 1e4))
    np.testing.assert_array_equal(found.data, pbmc3k.X.data)


def test_cells_without_counts_stay_empty(counts):
    rows = counts.tolil()
    rows[3] = 0
    found = recover_counts(normalise_counts(rows.tocsr(), 1e4))
    assert found[3].nnz == 0
    np.testing.assert_array_equal(found.toarray(), rows.toarray())


def test_values_that_do_not_come_from_counts_are_recognised():
    x = random(50, 300, density=0.3, format="csr", dtype=np.float32, random_state=0)
    assert recover_counts(x) is None


def test_thinning_keeps_the_share_of_counts_and_depends_on_the_seed(counts):
    kept = thin(counts, 0.25, np.random.default_rng(1))
    again = thin(counts, 0.25, np.random.default_rng(1))
    other = thin(counts, 0.25, np.random.default_rng(2))
    total = counts.sum()
    # four standard deviations
    assert abs(kept.sum() - 0.25 * total) < 4 * np.sqrt(total * 0.25 * 0.75)
    assert (kept.toarray() <= counts.toarray()).all()
    np.testing.assert_array_equal(kept.toarray(), again.toarray())
    assert (kept != other).nnz > 0
