"""Normalisation of any kind of values, compared with the plain formula."""

import math
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import anndata as ad
import numpy as np
import pytest
import scanpy
from scipy import sparse
from support.normalised import findings_of, plain

from scperformer.base.errors import InputError
from scperformer.cells import normalisation
from scperformer.cells.detect import detect_expression
from scperformer.cells.normalisation import import_scanpy, normalise, normalise_counts, over_own_genes

# The values are float32 (relative precision 6e-8), and so is scanpy's division by the total.
TOLERANCE = {"rtol": 1e-6, "atol": 0}


@pytest.mark.parametrize("target_sum", [1e4, 1e6, 123.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.tocsc(),
        lambda x: x.astype(np.int32),
        lambda x: x.toarray(),
        lambda x: x.toarray() * 0.37,
    ],
    ids=["csr", "csc", "int32", "dense", "linear"],
)
def test_counts_are_normalised_by_the_plain_formula(counts_adata, make, target_sum):
    counts = counts_adata.X.tolil()
    counts[5] = 0
    x = make(counts.tocsr())
    before = x.copy()
    result = normalise(x, findings_of(x), target_sum)
    assert (result.format, result.dtype, result.has_canonical_format) == ("csr", np.float32, True)
    np.testing.assert_allclose(result.toarray(), plain(x, target_sum), **TOLERANCE)
    assert result[5].nnz == 0
    assert (abs(x - before)).max() == 0  # the user's matrix is unchanged


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


@pytest.mark.parametrize("with_scanpy", [False, True], ids=["ours", "scanpy"])
@pytest.mark.parametrize("target_sum", [1e4, 2345.5])
@pytest.mark.parametrize("make", [sparse.csr_matrix, weighted], ids=["counts", "linear"])
def test_values_are_those_of_scanpy_bit_for_bit(pbmc3k, make, target_sum, with_scanpy):
    """A model may have been trained on cells that scanpy has prepared: cells to annotate have the same values."""
    x = make(pbmc3k.X)
    result = normalise(x, findings_of(x), target_sum, with_scanpy=with_scanpy)
    expected = by_scanpy(x, target_sum)
    np.testing.assert_array_equal(result.indptr, expected.indptr)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.data.view(np.int32), expected.data.view(np.int32))


@pytest.mark.parametrize("num_filled", [0, 5])
def test_scanpy_does_not_warn_about_empty_cells(counts_adata, num_filled):
    counts = sparse.csr_matrix(sparse.diags([0.0] + [1.0] * num_filled + [0.0] * (119 - num_filled)) @ counts_adata.X)
    findings = findings_of(counts_adata.X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = normalise(counts, findings, 1e4, with_scanpy=True)
    np.testing.assert_allclose(result.toarray(), plain(counts), **TOLERANCE)


def test_scanpy_is_used_only_where_numba_is_safe(counts_adata, monkeypatch):
    """Not in other threads than the main thread, and not in a fork."""
    expected = normalise(counts_adata.X, findings_of(counts_adata.X), 1e4)

    def run():
        return normalise(counts_adata.X, findings_of(counts_adata.X), 1e4, with_scanpy=True)

    monkeypatch.setattr("scanpy.pp.log1p", lambda adata: pytest.fail("scanpy was used"))
    with pytest.raises(pytest.fail.Exception, match="scanpy was used"):
        run()
    with ThreadPoolExecutor(1) as pool:
        assert (pool.submit(run).result() != expected).nnz == 0
    monkeypatch.setattr(normalisation, "PROCESS", -1)
    assert (run() != expected).nnz == 0


def test_a_machine_on_which_scanpy_cannot_compile_is_refused(tmp_path, monkeypatch):
    text = "cannot cache function 'sum_rows': no locator available for file 'rows.py'"
    (tmp_path / "scanpy.py").write_text(f'raise RuntimeError("{text}")')
    monkeypatch.delitem(sys.modules, "scanpy")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"no folder in which numba can keep .*export NUMBA_CACHE_DIR=FOLDER"):
        import_scanpy()


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


def test_an_unknown_total_is_assumed_to_be_ten_thousand(pbmc):
    expected = np.log1p(np.expm1(pbmc.raw.X.toarray().astype(np.float64)) * 100)
    np.testing.assert_allclose(normalise(pbmc.raw.X, detect_expression(pbmc), 1e6).toarray(), expected, rtol=1e-6)
    given = normalise(pbmc.raw.X, detect_expression(pbmc, input_total=1e5), 1e4).toarray()
    expected = np.log1p(np.expm1(pbmc.raw.X.toarray().astype(np.float64)) / 10)
    np.testing.assert_allclose(given, expected, rtol=1e-6)


def test_without_a_total_counts_keep_their_depth(counts_adata):
    counts = sparse.csr_matrix(counts_adata.X)
    found = normalise(counts, findings_of(counts), None, with_scanpy=True)
    np.testing.assert_allclose(found.toarray(), np.log(1 + counts.toarray().astype(np.float64)), rtol=1e-6)  # float32
    assert found.dtype == np.float32


def test_normalising_over_own_genes_equals_normalising_the_counts_of_these_genes(counts_adata):
    counts = counts_adata.X
    whole = normalise_counts(counts, 1e4)
    panel = np.arange(0, 200, 7)
    expected = normalise_counts(counts[:, panel], 1e4).toarray()
    np.testing.assert_allclose(over_own_genes(whole[:, panel], 1e4).toarray(), expected, rtol=1e-5)
