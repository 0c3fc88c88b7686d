"""Normalisation of any kind of values, compared with the plain formula."""

import math

import anndata as ad
import numpy as np
import pytest
import scanpy
from scipy import sparse
from support.normalised import findings_of, plain

from scperformer.cells.detect import detect_expression
from scperformer.cells.normalisation import normalise, normalise_counts, over_own_genes


def by_scanpy(x, target_sum):
    """Normalise rows as scanpy's tutorials do."""
    adata = ad.AnnData(x.copy())
    scanpy.pp.normalize_total(adata, target_sum=target_sum)
    scanpy.pp.log1p(adata)
    return adata.X


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
    expected = by_scanpy(x, target_sum)
    np.testing.assert_array_equal(result.indptr, expected.indptr)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.data.view(np.int32), expected.data.view(np.int32))


@pytest.mark.parametrize(
    ("base", "total"), [(2.0, 1e4), (10.0, 1e4), (math.e, 1e6), (2.0, 2345.0)], ids=["2", "10", "e-1e6", "2-2345"]
)
def test_other_logarithms_are_converted(counts_adata, base, total):
    x = sparse.csr_matrix(plain(counts_adata.X, total) / math.log(base))
    result = normalise(x, findings_of(x), 1e4)
    np.testing.assert_allclose(result.toarray(), plain(counts_adata.X), rtol=3e-6)  # exp enlarges float32's error


def test_normalised_values_stay_as_they_are_bit_for_bit(counts_adata, pbmc):
    x = sparse.csr_matrix(plain(counts_adata.X), dtype=np.float32)
    np.testing.assert_array_equal(normalise(x, findings_of(x), 1e4).toarray(), x.toarray())
    np.testing.assert_array_equal(normalise(pbmc.raw.X, detect_expression(pbmc), 1e4).toarray(), pbmc.raw.X.toarray())


def test_without_a_total_counts_keep_their_depth(counts_adata):
    counts = sparse.csr_matrix(counts_adata.X)
    found = normalise(counts, findings_of(counts), None)
    np.testing.assert_allclose(found.toarray(), np.log(1 + counts.toarray().astype(np.float64)), rtol=1e-6)  # float32
    assert found.dtype == np.float32


def test_normalising_over_own_genes_equals_normalising_the_counts_of_these_genes(counts_adata):
    counts = counts_adata.X
    whole = normalise_counts(counts, 1e4)
    panel = np.arange(0, 200, 7)
    expected = normalise_counts(counts[:, panel], 1e4).toarray()
    np.testing.assert_allclose(over_own_genes(whole[:, panel], 1e4).toarray(), expected, rtol=1e-5)
