"""Columns of expression moved to a model's genes, and added up by gene."""

import numpy as np
import pytest
from scipy import sparse

from scperformer.cells import align, merge_genes
from scperformer.genes import first_of_each


@pytest.mark.parametrize(
    "make",
    [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asarray],
    ids=["csr", "csc", "array", "dense"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_align_and_sums_equal_a_loop(make, dtype):
    rng = np.random.default_rng(1)
    dense = rng.poisson(0.7, (23, 40)).astype(dtype) * 100  # two of them are too much for a byte
    target = np.where(rng.random(40) < 0.7, rng.permutation(60)[:40] - 23, -1)
    target[target < 0] = -1
    expected = np.zeros((23, 37))
    for column, place in enumerate(target):
        if place >= 0:
            expected[:, place] = dense[:, column]
    x = make(dense)
    aligned = align(x, target, 37)
    assert (aligned.format, aligned.dtype, aligned.has_canonical_format) == ("csr", np.float32, True)
    np.testing.assert_array_equal(aligned.toarray(), expected)

    first = first_of_each(rng.integers(0, 20, 40))
    summed = np.zeros((23, 40))
    for column, place in enumerate(first):
        summed[:, place] += dense[:, column]
    np.testing.assert_array_equal(merge_genes(x, first, None).toarray(), summed)
    np.testing.assert_array_equal(x.toarray() if sparse.issparse(x) else x, dense)  # the user's matrix is as it was


def test_align_with_nothing_shared_is_all_zero():
    aligned = align(sparse.csr_matrix(np.ones((3, 2))), np.array([-1, -1]), 3)
    assert aligned.shape == (3, 3)
    assert aligned.nnz == 0
