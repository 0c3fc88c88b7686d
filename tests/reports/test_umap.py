"""The UMAP of cells: neighbours stay neighbours, as with umap-learn."""

import numpy as np
import pytest
from sklearn.manifold import trustworthiness
from sklearn.neighbors import NearestNeighbors

from scperformer.reports.umap import MIN_CELLS, neighbour_graph, umap_coordinates


@pytest.fixture(scope="module")
def clouds() -> tuple[np.ndarray, np.ndarray]:
    """Three well separated clouds of 60 cells in 5 dimensions."""
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 60)
    return (20 * np.eye(5)[codes] + rng.normal(size=(180, 5))).astype(np.float32), codes


@pytest.fixture(scope="module")
def xy(clouds) -> np.ndarray:
    return umap_coordinates(clouds[0], seed=0)


def test_neighbours_stay_neighbours(clouds, xy):
    codes = clouds[1]
    nearest = NearestNeighbors(n_neighbors=6).fit(xy).kneighbors(xy, return_distance=False)[:, 1:]
    assert (codes[nearest] == codes[:, None]).mean() > 0.98
    shuffled = np.random.default_rng(0).permutation(codes)
    assert (shuffled[nearest] == shuffled[:, None]).mean() < 0.5  # a control: random groups are not neighbours


def test_same_seed_same_coordinates(clouds, xy):
    np.testing.assert_array_equal(umap_coordinates(clouds[0], seed=0), xy)
    assert not np.array_equal(umap_coordinates(clouds[0], seed=1), xy)


@pytest.mark.parametrize("num_cells", [MIN_CELLS, MIN_CELLS + 1])
@pytest.mark.parametrize("num_dims", [1, 5])
def test_few_cells_and_one_dimension_are_enough(clouds, num_cells, num_dims):
    assert np.isfinite(umap_coordinates(clouds[0][:num_cells, :num_dims], seed=0)).all()


def test_cells_with_the_same_embedding_are_drawn(clouds):
    repeated = np.repeat(clouds[0][::30], 30, axis=0)
    assert np.isfinite(umap_coordinates(repeated, seed=0)).all()


@pytest.mark.parametrize(
    "embedding",
    [np.random.default_rng(0).normal(size=(MIN_CELLS - 1, 4)), np.ones((40, 4)), np.ones((40, 0))],
    ids=["too-few", "all-equal", "no-dimension"],
)
def test_no_coordinates_for_too_few_or_equal_cells(embedding):
    assert umap_coordinates(embedding.astype(np.float32), seed=0) is None


@pytest.mark.slow
def test_graph_and_map_are_those_of_umap_learn():
    """The weights of the graph agree, and the map is as trustworthy, within 0.02."""
    from umap import UMAP
    from umap.umap_ import fuzzy_simplicial_set

    rng = np.random.default_rng(0)
    codes = rng.integers(0, 8, 1000)
    cells = (3 * rng.normal(size=(8, 20))[codes] + rng.normal(size=(1000, 20))).astype(np.float32)
    distances, neighbours = NearestNeighbors(n_neighbors=16).fit(cells).kneighbors(cells)
    # umap-learn counts each cell as the first of its neighbours.
    theirs, _, _ = fuzzy_simplicial_set(
        cells, 16, np.random.RandomState(0), "euclidean", knn_indices=neighbours, knn_dists=distances
    )
    ours = neighbour_graph(cells, 15)
    strong = theirs.toarray() > 0.05
    assert np.abs(ours.toarray() - theirs.toarray())[strong].mean() < 0.05
    scores = [
        trustworthiness(cells, xy, n_neighbors=15)
        for xy in (umap_coordinates(cells, 0), UMAP(min_dist=0.5, random_state=0).fit_transform(cells))
    ]
    assert scores[0] > scores[1] - 0.02
