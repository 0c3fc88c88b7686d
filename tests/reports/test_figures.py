"""Colours and maps of the report."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from sklearn.neighbors import NearestNeighbors

from scperformer.reports import figures

# Machado, Oliveira and Fernandes 2009, severity 1: what linear RGB looks like to a colour-blind eye.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)


def linear(colours) -> np.ndarray:
    values = np.array([to_rgb(colour) for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(values: np.ndarray) -> np.ndarray:
    """Linear RGB to OKLab (Ottosson 2020), in which distances are about as large as they look."""
    to_cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    to_cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    to_lab = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
    to_lab.append([0.0259040371, 0.7827717662, -0.808675766])
    return np.cbrt(np.clip(values, 0, None) @ np.array(to_cones).T) @ np.array(to_lab).T


@pytest.mark.parametrize("seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"])
@pytest.mark.parametrize(("num_colours", "least"), [(20, 0.07), (30, 0.055)])
def test_colours_differ_for_every_eye(seen, num_colours, least):
    colours = [figures.colour_of(place) for place in range(num_colours)]
    lab = oklab(np.vstack([linear(colours), np.ones((1, 3))]) @ seen.T)  # and from the white page
    gaps = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    # OKLab .02 is about the smallest difference that can be seen.
    assert gaps[~np.eye(len(lab), dtype=bool)].min() > least


def test_text_on_a_colour_is_readable():
    for colour in figures.PALETTE:
        light, dark = sorted((linear([colour, figures.ink_on(colour)]) @ [0.2126, 0.7152, 0.0722]).tolist())[::-1]
        assert (light + 0.05) / (dark + 0.05) > 4.5  # WCAG 2, AA


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


def test_neighbours_stay_neighbours(clouds, xy):
    codes = clouds[1]
    nearest = NearestNeighbors(n_neighbors=6).fit(xy).kneighbors(xy, return_distance=False)[:, 1:]
    assert (codes[nearest] == codes[:, None]).mean() > 0.95


def test_same_seed_same_map(clouds, xy):
    np.testing.assert_array_equal(figures.umap_coordinates(clouds[0], seed=0), xy)
    assert not np.array_equal(figures.umap_coordinates(clouds[0], seed=1), xy)


@pytest.mark.parametrize("num_cells", [figures.MIN_CELLS, figures.MIN_CELLS + 1])
def test_few_cells_have_a_map(clouds, num_cells):
    assert np.isfinite(figures.umap_coordinates(clouds[0][:num_cells], seed=0)).all()


@pytest.mark.parametrize(
    "embedding",
    [np.random.default_rng(0).normal(size=(figures.MIN_CELLS - 1, 4)), np.ones((40, 4)), np.ones((40, 0))],
    ids=["too-few", "all-equal", "no-dimension"],
)
def test_no_map_where_there_is_nothing_to_show(embedding):
    assert figures.umap_coordinates(embedding.astype(np.float32), seed=0) is None


def test_pictures_are_the_same_bytes_and_hold_the_colours(clouds, xy):
    codes = clouds[1]
    picture = figures.draw_labels(xy, codes)
    assert figures.draw_labels(xy, codes) == picture
    pixels = (imread(io.BytesIO(picture))[..., :3].reshape(-1, 3) * 255).round().astype(int)
    seen = {tuple(pixel) for pixel in np.unique(pixels, axis=0).tolist()}
    for code, expected in ((0, True), (1, True), (2, True), (3, False)):
        colour = tuple((np.array(to_rgb(figures.colour_of(code))) * 255).round().astype(int).tolist())
        assert (colour in seen) == expected


def test_least_confident_cells_are_on_top():
    at_one_place = np.zeros((10, 2), dtype=np.float32)
    picture = figures.draw_confidence(at_one_place, np.array([1.0] * 5 + [0.0] + [1.0] * 4))
    pixels = imread(io.BytesIO(picture))
    middle = pixels[pixels.shape[0] // 2, pixels.shape[1] // 2, :3]
    np.testing.assert_allclose(middle, to_rgb(figures.CONFIDENCE_STOPS[0]), atol=1 / 255)


def test_numbers_at_one_place_are_moved_apart():
    points = figures._apart(np.zeros((5, 2)), 10.0)
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)
    assert gaps[~np.eye(5, dtype=bool)].min() > 9.9
    assert np.abs(points).max() < 20
