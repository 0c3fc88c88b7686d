"""The figures of the report as data: colours, symbols, texts, packed arrays."""

import base64

import numpy as np
import pandas as pd
import pytest
from support.colours import linear, oklab

from scperformer.base.pictures import colour_of
from scperformer.results import figures


@pytest.mark.parametrize(
    "stops", [figures.CONFIDENCE_STOPS, figures.EXPRESSION_STOPS], ids=["confidence", "expression"]
)
def test_lightness_of_colour_scales_falls_evenly(stops):
    lightness = oklab(linear(stops))[:, 0]
    assert (np.diff(lightness) < -0.05).all()


def test_labels_have_unique_pairs_of_colour_and_symbol():
    pairs = [(colour_of(place), figures.symbol_of(place)) for place in range(60)]
    assert len(set(pairs)) == 60
    assert {figures.symbol_of(place) for place in range(10)} == {"circle"}


def unpacked(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["data"]), f"<{packed['kind']}")


def test_packed_numbers_are_close_and_missing_values_are_marked():
    values = np.array([0, 0.1, 0.73, 1, np.nan])
    packed = figures.numbers(5 * values - 2)
    steps = unpacked(packed)
    assert steps[-1] == 65535
    found = packed["low"] + steps[:-1] / 65534 * (packed["high"] - packed["low"])
    np.testing.assert_allclose(found, 5 * values[:-1] - 2, atol=1e-4)
    packed = figures.expression_levels(np.array([0, 1.5, 3, np.nan]))
    assert (packed["high"], unpacked(packed).tolist()) == (3.0, [0, 127, 254, 255])
    assert unpacked(figures.expression_levels(np.full(2, np.nan))).tolist() == [255, 255]
    assert unpacked(figures.expression_levels(np.zeros(2))).tolist() == [0, 0]
    assert unpacked(figures.codes(np.array([0, 300]), 301)).tolist() == [0, 300]


def test_long_names_are_shortened_and_tags_are_escaped():
    assert figures.plain("a<b>&") == "a&lt;b&gt;&amp;"
    assert len(figures.plain("x" * 1000)) < 80


def test_labels_with_the_same_beginning_have_rows_of_their_own():
    names = ["x" * 100 + "1", "x" * 100 + "2"]
    cells = pd.DataFrame({"code": [0, 1], "confidence": [0.5, 0.7]})
    rows = figures.confidence(cells, names, ["#111111", "#222222"])["layout"]["yaxis"]
    assert rows["tickvals"] == [0, 1]


def test_dots_are_shares_and_means_of_the_highest():
    means = np.array([[0.0, 2.0], [4.0, np.nan]])
    shares = np.array([[0.0, 0.25], [1.0, np.nan]])
    [trace] = figures.dots(["A", "B"], ["g", "h"], means, shares)["data"]
    assert trace["marker"]["color"] == [0, 1, 1, 0]
    sizes = np.array(trace["marker"]["size"]) - 1
    np.testing.assert_allclose(sizes, [0, 8.5, 17, 0])


def test_boxes_are_quartiles():
    cells = pd.DataFrame({"code": np.repeat([0, 1], 21), "confidence": np.tile(np.arange(21) / 20, 2)})
    box = figures.confidence(cells, ["A", "B"], ["#111111", "#222222"])["data"][0]
    quantiles = [box[name][0] for name in ("lowerfence", "q1", "median", "q3", "upperfence")]
    np.testing.assert_allclose(1 - 10.0 ** -np.array(quantiles), [0.05, 0.25, 0.5, 0.75, 0.95])


def test_novelty_beyond_its_limit_has_another_colour():
    figure = figures.novelty(np.array([0.01, 0.5, 0.96, 0.99, 0.99]), [0.95])
    bars = figure["data"][0]
    assert sum(bars["y"]) == 5
    beyond = [num for num, colour in zip(bars["y"], bars["marker"]["color"], strict=True) if colour == figures.NOVEL]
    assert beyond == [1, 2]
    even, limit = figure["layout"]["shapes"]
    assert (even["y0"], limit["x0"]) == (5 / figures.NUM_NOVELTY_BINS, 0.95)


def test_cells_of_the_confusion_matrix():
    [trace] = figures.heat_map("confusion-matrix", ["A", "B"], ["A", "B"], np.array([[399, 1], [0, 5]]))["data"]
    assert trace["z"] == [[0.9975, 0.0025], [0, 1]]
    assert trace["text"] == [["100", "<1"], ["", "100"]]
    assert trace["hovertext"][0][1] == "A called B<br>1 cell, 0.2% of the row"
