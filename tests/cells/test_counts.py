"""Counts are recovered from normalised expression, and thinned at random."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random

from scperformer.cells.detect import detect_expression
from scperformer.cells.normalisation import normalise, normalise_counts, recover_counts, thin


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
    close = np.abs(found.toarray() - counts.toarray()) <= (0 if decimals is None else 0.02 * counts.toarray())
    assert close.all()


def test_counts_are_recovered_from_what_scanpy_has_normalised(pbmc3k):
    found = recover_counts(normalise(pbmc3k.X, detect_expression(pbmc3k), 1e4))
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
    assert abs(kept.sum() - 0.25 * total) < 4 * np.sqrt(total * 0.25 * 0.75)  # four standard deviations
    assert (kept.toarray() <= counts.toarray()).all()
    np.testing.assert_array_equal(kept.toarray(), again.toarray())
    assert (kept != other).nnz > 0
