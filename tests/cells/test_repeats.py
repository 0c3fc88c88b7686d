"""Hashes of cells: equal for equal cells in any form, and for no others."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from scperformer.base.sparse import undo_log
from scperformer.cells.repeats import are_among, cell_hashes


@pytest.fixture
def counts() -> csr_matrix:
    rng = np.random.default_rng(0)
    return csr_matrix(rng.poisson(rng.gamma(0.3, 1.0, 300), (500, 300)), dtype=np.float32)


def test_cells_of_equal_counts_have_equal_hashes_and_others_not(counts):
    """Compared with all pairs of cells: three are copies, and two differ by one count in one gene."""
    dense = counts.toarray()
    dense[7], dense[8], dense[9] = dense[1], dense[2], dense[1]
    dense[10] = dense[3]
    dense[10, np.flatnonzero(dense[3])[5]] += 1
    hashes = cell_hashes(csr_matrix(dense))
    equal = (dense[:, None] == dense[None]).all(axis=2)
    np.testing.assert_array_equal(hashes[:, None] == hashes[None], equal)
    assert equal.sum() == 500 + 6 + 2


@pytest.mark.parametrize("total", [1e4, 1e6, 123.4])
def test_normalised_copies_have_the_hashes_of_the_counts(counts, total):
    per_cell = np.asarray(counts.sum(axis=1))
    logged = csr_matrix(np.log1p(counts.toarray() / per_cell * total), dtype=np.float32)
    np.testing.assert_array_equal(cell_hashes(undo_log(logged)), cell_hashes(counts))


def test_cells_with_few_genes_are_equal_to_none(counts):
    few = counts[:3].toarray()
    few[0] = 0
    few[1, np.flatnonzero(few[1])[19:]] = 0
    few[2, np.flatnonzero(few[2])[20:]] = 0
    hashes = cell_hashes(csr_matrix(few))
    assert (hashes != 0).tolist() == [False, False, True]
    assert are_among(hashes, hashes).tolist() == [False, False, True]
    assert cell_hashes(csr_matrix((2, 5), dtype=np.float32)).tolist() == [0, 0]


def test_the_hashes_in_models_stay_the_same():
    """Made with NumPy 2.4; another result means that the hashes of existing models no longer fit."""
    assert cell_hashes(csr_matrix(np.arange(1, 25, dtype=np.float32)[None])).tolist() == [
        9571554335743376805
    ]
