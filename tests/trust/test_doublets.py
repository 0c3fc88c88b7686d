"""Doublets: the likelihood by a mixture of two labels against a naive loop, and simulated doublets of known types."""

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multinomial
from support.normalised import logs

import scperformer as scp
from scperformer.model.folder import PACKAGED_MODEL
from scperformer.trust.doublets import WEIGHTS, Doublets, NoDoublets, fit_doublets


def made(num_cells: int, num_doublets: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of cells of five types, of which the first are sums of two types; the types; their means."""
    rng = np.random.default_rng(0)
    means = rng.gamma(0.3, 2.0, (5, 500))
    kinds = rng.integers(5, size=num_cells)
    x = rng.poisson(means[kinds] * rng.uniform(0.5, 1.5, (num_cells, 1)))
    for cell in range(num_doublets):
        x[cell] += rng.poisson(means[(kinds[cell] + rng.integers(1, 5)) % 5])
    return np.maximum(x, np.eye(num_cells, 500, dtype=int)), kinds, means  # no cell is empty


def test_gains_are_differences_of_multinomial_likelihoods():
    rng = np.random.default_rng(1)
    expected = rng.dirichlet(np.ones(6), 3)
    counts = np.vstack(
        [rng.multinomial(40, expected[0]), rng.multinomial(60, expected[1] / 2 + expected[2] / 2)]
    )
    counts[:, 5] = 1  # one count is the smallest value of each cell
    gains, found = Doublets(np.arange(6), expected).gains(logs(counts))
    np.testing.assert_allclose(found, counts.sum(axis=1), rtol=1e-4)
    for cell, gain in zip(counts, gains, strict=True):
        alone = [multinomial.logpmf(cell, cell.sum(), label) for label in expected]
        first = int(np.argmax(alone))
        both = [
            multinomial.logpmf(
                cell, cell.sum(), weight * expected[first] + (1 - weight) * expected[other]
            )
            for weight in WEIGHTS
            for other in range(3)
            if other != first
        ]
        assert gain == pytest.approx(max(0, max(both) - alone[first]), abs=1e-3)


def test_sums_of_two_types_have_high_scores():
    reference, labels, means = made(600)
    found = fit_doublets(
        1e4 * means / means.sum(axis=1, keepdims=True), np.zeros(0), logs(reference), labels
    )
    assert isinstance(found, Doublets)
    x, kinds, _ = made(600, 60)
    gains, counts = found.gains(logs(x))
    scores = found.scores(gains, counts, kinds)
    assert (scores[:60] > 1).mean() > 0.7
    assert (scores[60:] > 1).mean() < 0.03  # .02 is stated
    some = found.gains(logs(x)[7:9])[0]
    np.testing.assert_array_equal(some, gains[7:9])  # other cells have no influence
    assert isinstance(fit_doublets(means[:1], np.zeros(0), logs(reference), labels * 0), NoDoublets)


def test_doublets_of_blood_are_found():
    """Half of the sums of two cells of different types, and few single cells."""
    cells = ad.read_h5ad(PACKAGED_MODEL.parents[3] / "data" / "pbmc3k.h5ad")[:1000]
    kinds = cells.obs["cell_type"].to_numpy(str)
    pairs = np.random.default_rng(0).integers(0, 1000, (120, 2))
    pairs = pairs[kinds[pairs[:, 0]] != kinds[pairs[:, 1]]]
    x = sparse.vstack([cells.X, cells.X[pairs[:, 0]] + cells.X[pairs[:, 1]]], "csr")
    found = scp.annotate(ad.AnnData(x, var=cells.var[[]]), PACKAGED_MODEL)
    is_doublet = found.obs["scperformer_doublet"].to_numpy()
    assert is_doublet[1000:].mean() > 0.5
    assert is_doublet[:1000].mean() < 0.05
    assert found.uns["scperformer"]["quality"]["num_doublets"] == is_doublet.sum()
