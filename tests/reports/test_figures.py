"""UMAP coordinates and pictures of the report."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from sklearn.neighbors import NearestNeighbors
from support.colours import linear, oklab

from scperformer.pictures import colour_of
from scperformer.reports import figures


def test_confidence_colours_fall_evenly_in_lightness():
    lightness = oklab(linear(figures.CONFIDENCE_STOPS))[:, 0]
    assert (np.diff(lightness) < -0.05).all()


@pytest.fixture(scope="module")
def clouds() -> tuple[np.ndarray, np.ndarray]:
    """Three well separated clouds of 20 cells in 5 dimensions."""
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 20)
    return (20 * np.eye(5)[codes] + rng.normal(size=(60, 5))).astype(np.float32), codes


@pytest.fixture(scope="module")
def xy(clouds) -> np.ndarray:
    return figures.umap_coordinates(clouds[0], seed=0)


@pytest.mark.slow
def test_neighbours_stay_neighbours(clouds, xy):
    codes = clouds[1]
    nearest = NearestNeighbors(n_neighbors=6).fit(xy).kneighbors(xy, return_distance=False)[:, 1:]
    assert (codes[nearest] == codes[:, None]).mean() > 0.95


@pytest.mark.slow
def test_same_seed_same_coordinates(clouds, xy):
    np.testing.assert_array_equal(figures.umap_coordinates(clouds[0], seed=0), xy)
    assert not np.array_equal(figures.umap_coordinates(clouds[0], seed=1), xy)


@pytest.mark.slow
@pytest.mark.parametrize("num_cells", [figures.MIN_CELLS, figures.MIN_CELLS + 1])
def test_few_cells_are_enough(clouds, num_cells):
    assert np.isfinite(figures.umap_coordinates(clouds[0][:num_cells], seed=0)).all()


@pytest.mark.parametrize(
    "embedding",
    [np.random.default_rng(0).normal(size=(figures.MIN_CELLS - 1, 4)), np.ones((40, 4)), np.ones((40, 0))],
    ids=["too-few", "all-equal", "no-dimension"],
)
def test_no_coordinates_for_too_few_or_equal_cells(embedding):
    assert figures.umap_coordinates(embedding.astype(np.float32), seed=0) is None


def test_pictures_are_the_same_bytes_and_hold_the_colours(clouds):
    xy, codes = clouds[0][:, :2], clouds[1]
    picture = figures.draw_labels(xy, codes)
    assert figures.draw_labels(xy, codes) == picture
    pixels = (imread(io.BytesIO(picture))[..., :3].reshape(-1, 3) * 255).round().astype(int)
    seen = {tuple(pixel) for pixel in np.unique(pixels, axis=0).tolist()}
    for code, expected in ((0, True), (1, True), (2, True), (3, False)):
        colour = tuple((np.array(to_rgb(colour_of(code))) * 255).round().astype(int).tolist())
        assert (colour in seen) == expected


def test_least_confident_cells_are_on_top():
    at_one_place = np.zeros((10, 2), dtype=np.float32)
    picture = figures.draw_confidence(at_one_place, np.array([1.0] * 5 + [0.0] + [1.0] * 4))
    pixels = imread(io.BytesIO(picture))
    middle = pixels[pixels.shape[0] // 2, pixels.shape[1] // 2, :3]
    np.testing.assert_allclose(middle, to_rgb(figures.CONFIDENCE_STOPS[0]), atol=1 / 255)


def test_numbers_at_one_place_are_pushed_apart():
    points = figures._apart(np.zeros((5, 2)), 10.0)
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert gaps[~np.eye(5, dtype=bool)].min() > 9.9
    assert np.abs(points).max() < 20
