"""The palette for colour-blind readers, text on each colour, and the reliability diagram."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from scperformer.base.pictures import colour_of, draw_reliability, on_dark

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as seen with a colour vision deficiency.
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
PROTANOPIA = np.array(
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
)


def linear(colours) -> np.ndarray:
    values = np.array([to_rgb(colour) for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(values: np.ndarray) -> np.ndarray:
    """Linear RGB to OKLab (Ottosson 2020), in which distances are about as large as they look."""
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
    ]
    to_cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    to_lab = [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
    ]
    to_lab.append([0.0259040371, 0.7827717662, -0.808675766])
    return np.cbrt(np.clip(values, 0, None) @ np.array(to_cones).T) @ np.array(to_lab).T


@pytest.mark.parametrize(
    "seen", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["normal", "deuteranopia", "protanopia"]
)
@pytest.mark.parametrize(("num_colours", "least"), [(20, 0.07), (30, 0.055)])
def test_colours_differ_for_every_kind_of_colour_vision(seen, num_colours, least):
    colours = [colour_of(place) for place in range(num_colours)]
    # including the white of the page
    lab = oklab(np.vstack([linear(colours), np.ones((1, 3))]) @ seen.T)
    gaps = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    # In OKLab .02 is about the smallest visible difference.
    assert gaps[~np.eye(len(lab), dtype=bool)].min() > least


def test_colours_of_a_dark_page_are_seen_on_it_and_differ():
    colours = [colour_of(place) for place in range(30)]
    dark = [on_dark(colour) for colour in colours]
    assert len(set(dark)) == 30
    before, after = oklab(linear(colours)), oklab(linear(dark))
    assert (after[:, 0] > before[:, 0]).all()
    assert (after[:, 0] - oklab(linear(["#15191f"]))[0, 0]).min() > 0.3


def test_a_reliability_diagram_leaves_out_bins_of_few_calls():
    bins = {"num_cells": [10, 90], "confidence": [0.5, 0.9], "accuracy": [0.4, 0.95]}
    few = {
        "num_cells": [9, *bins["num_cells"]],
        "confidence": [0.3, 0.5, 0.9],
        "accuracy": [1.0, 0.4, 0.95],
    }
    picture = draw_reliability(bins)
    assert picture.startswith(b"\x89PNG")
    assert draw_reliability(few) == picture
    assert draw_reliability(few | {"num_cells": [10, 10, 90]}) != picture
