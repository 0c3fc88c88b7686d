"""The figures of the report as data: colours, symbols, texts and numbers."""

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.base.pictures import colour_of
from scperformer.results import figures


def test_long_names_are_shortened_and_tags_are_escaped():
    assert figures.plain("a<b>&") == "a&lt;b&gt;&amp;"
    assert len(figures.plain("x" * 1000)) < 80


def test_bars_are_shares_of_a_sample_and_unknown_is_hatched():
    counts = np.array([[1, 3], [2, 0]])
    marks = {"A": ("#111111", "circle"), "unknown": ("#222222", "x")}
    figure = figures.composition_bars(
        ["s1", "s2"], counts, marks, {"s1": "g<", "s2": "h; i"}, {"g<": "#333"}
    )
    known, unknown = figure["data"]
    assert known["y"][1] - known["y"][0] > 1  # a gap between groups
    colours = [text.split("color:")[1][:7] for text in figure["layout"]["yaxis"]["ticktext"]]
    assert colours == ['#333">■', figures.MIXED]
    assert (known["x"], unknown["x"]) == ([0.25, 1], [0.75, 0])
    assert ("pattern" in known["marker"], "pattern" in unknown["marker"]) == (False, True)


def test_dots_are_shares_and_means_of_the_highest():
    x = sparse.csr_matrix(np.array([[0, 2], [0, 0], [4, 0], [4, 0], [9, 9]], dtype=np.float32))
    cells = AnnData(x, var=pd.DataFrame(index=["g", "h"]))
    calls = np.array(["A", "A", "B", "B", "unknown"], dtype=object)
    [trace] = figures.dots({"A": ["h"], "B": ["g"]}, cells, calls)["data"]
    assert trace["marker"]["color"] == [1, 0, 0, 1]
    sizes = np.array(trace["marker"]["size"]) - 1
    np.testing.assert_allclose(sizes, [12, 0, 0, 17], atol=0.05)


def test_boxes_are_quartiles():
    cells = pd.DataFrame(
        {"call": np.repeat(["A", "B"], 21), "confidence": np.tile(np.arange(21) / 20, 2)}
    )
    box = figures.confidence(cells, {"A": ("#111111", "circle"), "B": ("#222222", "x")})["data"][0]
    quantiles = [box[name][0] for name in ("lowerfence", "q1", "median", "q3", "upperfence")]
    np.testing.assert_allclose(quantiles, [0.05, 0.25, 0.5, 0.75, 0.95])


def test_columns_of_the_map_have_colours_and_no_tags():
    column = figures.categories("Call", pd.Series(["B", "<i>", "B"]), {"B": ("#123456", "x")})
    assert column["codes"] == [1, 0, 1]
    assert column["values"][0] == {"name": "&lt;i&gt;", "colour": colour_of(0), "symbol": "circle"}
    assert column["values"][1] == {"name": "B", "colour": "#123456", "symbol": "x"}
    assert figures.numbers("Novelty", pd.Series([0.12345, np.nan]), "ab")["numbers"] == [
        0.123,
        None,
    ]


def test_a_name_lies_amid_its_cells_and_not_on_other_groups():
    rng = np.random.default_rng(0)
    xy = rng.normal(size=(430, 2)) * 0.3
    codes = np.zeros(430, dtype=int)
    codes[:10] = 1  # few cells within a large group
    codes[10:30], xy[10:30, 0] = 2, xy[10:30, 0] + 9  # as few on their own
    codes[30:90], xy[30:60, 1] = 3, xy[30:60, 1] + 9  # a group in two parts, one of which is apart
    large, few, apart, parts = figures.name_places(codes, xy.astype(np.float32))
    assert np.linalg.norm(large) < 0.5
    assert few is None
    np.testing.assert_allclose(apart, [9, 0], atol=0.5)
    np.testing.assert_allclose(parts, [0, 9], atol=0.5)
    values = pd.Series(codes.astype(str))
    assert [value["place"] for value in figures.categories("Call", values, {}, xy)["values"]][
        1
    ] is None
