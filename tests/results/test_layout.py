"""Where cells are on the map: neighbours stay neighbours, whether UMAP is fitted to all cells or to some."""

from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from scperformer.results import layout


@pytest.fixture(scope="module")
def clouds() -> tuple[np.ndarray, np.ndarray]:
    """Three well separated clouds of 60 cells in 5 dimensions."""
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 60)
    return (20 * np.eye(5)[codes] + rng.normal(size=(180, 5))).astype(np.float32), codes


@pytest.mark.parametrize("max_fitted", [12_000, 90], ids=["all", "some"])
def test_neighbours_stay_neighbours(clouds, max_fitted, monkeypatch):
    points, codes = clouds
    monkeypatch.setattr(layout, "MAX_FITTED", max_fitted)
    placed = layout.umap(points, 0, "words")
    nearest = NearestNeighbors(n_neighbors=6).fit(placed.xy).kneighbors(placed.xy, return_distance=False)[:, 1:]
    assert (codes[nearest] == codes[:, None]).mean() > 0.98
    shuffled = np.random.default_rng(0).permutation(codes)
    assert (shuffled[nearest] == shuffled[:, None]).mean() < 0.5  # a control: random groups are not neighbours
    assert len(placed.fitted) == min(180, max_fitted)
    assert (codes[placed.fitted[placed.nearest]] == codes).all()
    np.testing.assert_array_equal(layout.umap(points, 0, "words").xy, placed.xy)


@pytest.mark.parametrize(
    "points",
    [np.random.default_rng(0).normal(size=(layout.MIN_CELLS - 1, 4)), np.ones((40, 4)), np.ones((40, 0))],
    ids=["too-few", "all-equal", "no-dimension"],
)
def test_no_coordinates_for_too_few_or_equal_cells(points):
    assert layout.umap(points.astype(np.float32), 0, "words") is None


def test_components_have_the_variance_of_a_dense_decomposition():
    x = np.random.default_rng(0).poisson(1, (80, 12)).astype(np.float32)
    found = layout.principal_components(sparse.csr_matrix(x), 0)
    singular = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)[: found.shape[1]]
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), singular, rtol=1e-3)


def test_known_markers_are_among_the_variable_genes():
    cells = ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")[:1000]
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    chosen = set(cells.var_names[layout.variable_genes(sparse.csr_matrix(cells.X))])
    assert len(chosen) == layout.NUM_GENES
    assert {"LYZ", "S100A9", "NKG7", "GNLY", "CD79A", "MS4A1", "FCGR3A", "PPBP"} <= chosen
    assert not {"ACTB", "GAPDH", "RPL13"} <= chosen  # expressed by all cells
