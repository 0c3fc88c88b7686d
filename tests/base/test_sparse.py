"""Arithmetic of sparse cells agrees with that of dense ones."""

import numpy as np
import pytest
from scipy import sparse

from scperformer.base.sparse import (
    by_row,
    gene_deviation,
    inverse_deviation,
    label_means,
    mean_counts,
    of_length,
    undo_log,
)


@pytest.fixture(scope="module")
def x() -> sparse.csr_matrix:
    dense = np.random.default_rng(0).poisson(0.7, (30, 12)).astype(np.float32)
    dense[4] = 0
    dense[:, 3] = 0
    return sparse.csr_matrix(dense)


def test_genes_are_described_as_in_dense_cells(x):
    dense = x.toarray().astype(np.float64)
    assert gene_deviation(x) == pytest.approx(dense.std(axis=0))
    assert mean_counts(x) == pytest.approx(np.expm1(dense).mean(axis=0))
    assert undo_log(x).toarray() == pytest.approx(np.expm1(dense))
    weights = inverse_deviation(gene_deviation(x))
    assert weights[3] == 0
    assert (np.delete(weights, 3) > 0).all()


def test_means_of_labels_are_those_of_their_cells(x):
    labels = np.arange(30) % 3
    means = label_means(x, labels, 4)
    assert means[1] == pytest.approx(x.toarray()[labels == 1].mean(axis=0))
    assert not means[3].any()  # no cell has the label


def test_cells_get_a_length_and_values_are_reduced(x):
    lengths = np.linalg.norm(of_length(x, 20).toarray(), axis=1)
    assert lengths == pytest.approx(np.where(np.arange(30) == 4, 0, 20), rel=1e-6)
    assert by_row(np.add, x, x.data) == pytest.approx(np.asarray(x.sum(axis=1)).ravel())
    assert np.delete(by_row(np.minimum, x, x.data), 4).min() == 1
