"""Sums over the genes of cells, beside dense products."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from scperformer.model import linear


def made(
    num_cells: int = 60, num_genes: int = 50
) -> tuple[csr_matrix, list[tuple[float | None, np.ndarray]]]:
    """Cells, of which one expresses nothing, and a table for each of three views."""
    rng = np.random.default_rng(0)
    x = rng.poisson(0.3, size=(num_cells, num_genes)).astype(np.float32)
    x[7] = 0
    return csr_matrix(x), [
        (power, rng.normal(size=(num_genes, 5)).astype(np.float32)) for power in (None, 0.5, 2.0)
    ]


def on_cpu(x, tables) -> np.ndarray:
    return linear.sums_over_genes(x, tables)


def on_gpu(x, tables) -> np.ndarray:
    """The gathers of a GPU, made on the CPU."""
    return linear._sums_by_gathers(x, tables, "cpu")


@pytest.fixture(params=[on_cpu, on_gpu])
def sums(request):
    return request.param


def test_sums_are_dense_products(sums):
    x, tables = made()
    expected = np.zeros((60, 5))
    for power, table in tables:
        view = x.toarray().astype(np.float64)
        if power is not None:
            view = np.where(view > 0, view**power, 0)
            view *= 20 / np.maximum(np.linalg.norm(view, axis=1, keepdims=True), 1e-12)
        expected += view @ table
    np.testing.assert_allclose(sums(x, tables), expected, rtol=1e-4, atol=1e-4)


def test_no_cell_changes_another(sums, monkeypatch):
    x, tables = made()
    whole = sums(x, tables)
    monkeypatch.setattr(linear, "CELLS_PER_SUM", 7)
    monkeypatch.setattr(linear, "CELLS_PER_SUM_ON_GPU", 7)
    np.testing.assert_array_equal(sums(x, tables), whole)
    np.testing.assert_array_equal(sums(x[20:33], tables), whole[20:33])
    assert sums(x[:0], tables).shape == (0, 5)
