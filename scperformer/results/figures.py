"""The figures of the report and the map of the cells as plain data for plotly.js.

Samples, labels and genes are numbers in the data; their names appear only as escaped texts, because plotly interprets
some HTML tags in texts.
"""

import html
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.messages import shortened
from scperformer.base.pictures import PALETTE, colour_of, on_dark
from scperformer.labels.tree import NO_CALL
from scperformer.results.label_marks import LABELS_PER_SYMBOL, SYMBOLS

Figure = dict[str, Any]

# Low confidence, which readers look for, is bright. Lightness falls evenly, so that the scales also work in grey.
CONFIDENCE_STOPS = ("#F9B233", "#E8785A", "#B5527D", "#6A4590", "#1F3B73")
# high expression is dark,
EXPRESSION_STOPS = ("#E6E9ED", "#B9CBE3", "#6C9BCF", "#2563A8", "#0B2F66")
# and bright on a dark page
DARK_EXPRESSION = ("#2A323C", "#31496B", "#3F73B0", "#86B4E6", "#E3F0FF")
PAPER = "#fff"  # of a light page; the page knows the dark one
ROW = 26  # height of a row of a figure in pixels
BOX_ROW = 30  # of a row whose name may have two lines
MARGIN = 70  # height of the axis and the margins of a figure in pixels
MIXED = "#8793A0"  # of a sample whose cells are of several groups
NUM_SQUARES = 24  # of the map in each direction, in which cells of a value are counted
MIN_NAMED = 5  # cells of a value with a name on the map
MIN_OWN = 0.2  # share of these among all cells around its name
GAP = 0.5  # rows between groups of samples
MAX_DOTS = 60  # genes in the dot plot, but at least one of each label
MAX_DOTS_PER_LABEL = 5
# of a box
QUANTILES = {"lowerfence": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "upperfence": 0.95}


def symbol_of(position: int) -> str:
    """Return the symbol of the value at a position; up to 60 values have unique pairs of colour and symbol."""
    return SYMBOLS[position // LABELS_PER_SYMBOL % len(SYMBOLS)]


def plain(text: object) -> str:
    """Return a text that plotly shows literally, shortened if it is very long."""
    return html.escape(shortened(text), quote=False)


def _rows(names: Sequence[str], **more: Any) -> Figure:
    """Return an axis with a row for each name, the first on top."""
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [plain(name) for name in names],
    }
    return {
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        **ticks,
        **more,
    }


def _title(text: str) -> Figure:
    return {"text": text, "font": {"size": 13}}


def stops(colours: Sequence[str]) -> list[list[Any]]:
    """Return a colour scale for plotly from equally spaced colours."""
    return [[place / (len(colours) - 1), colour] for place, colour in enumerate(colours)]


def composition_bars(
    samples: Sequence[str],
    counts: np.ndarray,
    marks: Mapping[str, tuple[str, str]],
    groups: Mapping[str, str],
    group_colours: Mapping[str, str],
) -> Figure:
    """Return stacked bars of the shares of calls in each sample; `counts` are samples x labels, unknown is hatched.

    `marks` has the colour and the symbol of each label; `groups` the group of each sample, in whose order they are.
    """
    of_sample = [groups.get(name, "") for name in samples]
    places = [row + GAP * len(set(of_sample[: row + 1])) - GAP for row in range(len(samples))]
    ticks = [plain(name) for name in samples]
    if groups:
        pairs = zip(ticks, of_sample, strict=True)
        ticks = [
            f'{tick} <span style="color:{group_colours.get(group, MIXED)}">■</span>'
            for tick, group in pairs
        ]
    shares = counts / counts.sum(axis=1, keepdims=True)
    hatch = {"shape": "/", "bgcolor": PAPER, "size": 7, "solidity": 0.35, "fillmode": "replace"}
    traces = []
    for place, (label, (colour, symbol)) in enumerate(marks.items()):
        marker: Figure = {"color": colour, "line": {"color": PAPER, "width": 0.5}}
        marker |= {"pattern": hatch | {"fgcolor": colour}} if label == NO_CALL else {}
        row = zip(samples, counts[:, place].tolist(), shares[:, place].tolist(), strict=True)
        trace = {
            "type": "bar",
            "orientation": "h",
            "name": plain(label),
            "meta": symbol,
            "y": places,
            "width": 0.8,
            "x": shares[:, place].round(5).tolist(),
            "text": "" if label == NO_CALL else plain(label),
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "marker": marker,
            "hovertext": [
                f"{plain(sample)}, {plain(label)}<br>{num:,} cells, {share:.1%}"
                for sample, num, share in row
            ],
            "hoverinfo": "text",
        }
        traces.append(trace)
    layout = {
        "height": MARGIN + round(ROW * (places[-1] + 1)),
        "barmode": "stack",
        "showlegend": False,
        "uniformtext": {"mode": "hide", "minsize": 10},
        "xaxis": {
            "range": [0, 1.001],
            "tickvals": [0, 0.25, 0.5, 0.75, 1],
            "tickformat": ".0%",
            "fixedrange": True,
        },
        "yaxis": _rows(
            samples,
            range=[places[-1] + 0.5, -0.5],
            tickvals=places,
            ticktext=ticks,
            fixedrange=True,
        ),
    }
    return {"data": traces, "layout": layout, "name": "composition", "width": 340}


def confidence(cells: pd.DataFrame, marks: Mapping[str, tuple[str, str]]) -> Figure:
    """Return boxes of the confidence of each call, from the lowest tenth that has one to 1; `marks` as above."""
    traces: list[Figure] = []
    for place, (label, (colour, _)) in enumerate(marks.items()):
        values = np.quantile(
            cells.loc[cells["call"] == label, "confidence"], list(QUANTILES.values())
        )
        ends = {
            name: [number] for name, number in zip(QUANTILES, values.round(4).tolist(), strict=True)
        }
        line = {
            "line": {"color": colour, "width": 1.5},
            "fillcolor": f"{colour}66",
            "hoverinfo": "skip",
        }
        traces.append(
            {"type": "box", "orientation": "h", "y": [place], "name": plain(label), **ends, **line}
        )
    lowest = min((trace["lowerfence"][0] for trace in traces), default=0)
    axis = {
        "range": [min(0.9, np.floor(10 * lowest) / 10), 1.005],
        "nticks": 5,
        "tickangle": 0,
        "fixedrange": True,
    }
    # Lines of some 22 characters leave room for the boxes on a telephone.
    lines = [textwrap.wrap(shortened(label), 22, break_long_words=False) or [""] for label in marks]
    layout = {
        "showlegend": False,
        "height": MARGIN + BOX_ROW * len(marks),
        "xaxis": {"title": _title("confidence"), **axis},
        "yaxis": _rows(
            list(marks),
            fixedrange=True,
            ticktext=["<br>".join(map(plain, parts)) for parts in lines],
        ),
    }
    return {"data": traces, "layout": layout, "name": "confidence", "width": 340}


def dots(markers: Mapping[str, Sequence[str]], cells: AnnData, calls: np.ndarray) -> Figure:
    """Return a dot plot of markers in the cells of each call: size is the share that express one, colour the mean."""
    num = int(np.clip(MAX_DOTS // len(markers), 1, MAX_DOTS_PER_LABEL))
    genes = list(dict.fromkeys(gene for of_label in markers.values() for gene in of_label[:num]))
    labels = list(markers)
    values = pd.DataFrame(cells[:, genes].X.toarray(), columns=genes)
    means = values.groupby(calls).mean().loc[labels].to_numpy()
    shares = (values > 0).groupby(calls).mean().loc[labels].to_numpy()
    y, x = np.indices(means.shape).reshape(2, -1).tolist()
    hover = [
        f"{plain(genes[j])} in {plain(labels[i])}<br>mean {means[i, j]:.2f}, in {shares[i, j]:.0%} of the cells"
        for i, j in zip(y, x, strict=True)
    ]
    title = _title("Mean expression<br>(scaled per gene)")
    marker = {
        "size": (1 + 17 * np.sqrt(shares)).ravel().round(1).tolist(),
        "color": (means / np.maximum(means.max(axis=0), 1e-9)).ravel().round(3).tolist(),
        "colorbar": {"title": title, "thickness": 12, "len": 0.9, "tickformat": ".1f"},
        "opacity": 1,  # the default for marks of different sizes is 0.7, which changes the colours
        "colorscale": stops(EXPRESSION_STOPS),
        "cmin": 0,
        "cmax": 1,
        "line": {"color": "#8793a0", "width": 0.5},
    }
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "marker": marker,
        "hovertext": hover,
    }
    ticks = _rows(genes, range=[-0.7, len(genes) - 0.3], tickangle=-90, side="bottom")
    layout = {
        "showlegend": False,
        "height": 130 + ROW * len(labels),
        "xaxis": ticks,
        "yaxis": _rows(labels),
    }
    data = [trace | {"hoverinfo": "text"}]
    return {"data": data, "layout": layout, "name": "markers", "width": 260 + 19 * len(genes)}


def confusion_map(counts: pd.DataFrame) -> Figure:
    """Return a heat map of a confusion matrix as shares of each true label, which are rows."""
    true, predicted = list(counts.index), list(counts)
    shares = counts.div(counts.sum(axis=1), axis=0).to_numpy()
    texts = [
        ["" if x == 0 else "<1" if x < 0.005 else f"{100 * x:.0f}" for x in row]
        for row in shares.tolist()
    ]
    hover = [
        [
            f"{plain(label)} called {plain(other)}<br>{num:,} cells"
            for other, num in zip(predicted, row, strict=True)
        ]
        for label, row in zip(true, counts.to_numpy().tolist(), strict=True)
    ]
    # White for 0, and a light grey from 0.1% on.
    colours = [
        [0, PAPER],
        [0.001, "#EDF1F6"],
        *([0.001 + 0.999 * x, c] for x, c in stops(EXPRESSION_STOPS)[1:]),
    ]
    trace = {
        "type": "heatmap",
        "z": shares.round(4).tolist(),
        "zmin": 0,
        "zmax": 1,
        "xgap": 1,
        "ygap": 1,
    }
    trace |= {
        "text": texts,
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "colorscale": colours,
    }
    trace |= {"hovertext": hover, "hoverinfo": "text", "showscale": False}
    ticks = _rows(predicted, range=[-0.5, len(predicted) - 0.5], tickangle=-45, side="bottom")
    layout = {"height": 150 + ROW * len(true), "xaxis": ticks, "yaxis": _rows(true)}
    return {
        "data": [trace],
        "layout": layout,
        "name": "confusion-matrix",
        "width": 260 + 34 * len(predicted),
    }


def dark_colours(used: Iterable[str]) -> dict[str, str]:
    """Return the colours of a dark page in place of those of the figures and the `used` ones."""
    plain_ones = dict.fromkeys([*PALETTE, *CONFIDENCE_STOPS, MIXED, *used])
    return {colour: on_dark(colour) for colour in plain_ones} | dict(
        zip(EXPRESSION_STOPS, DARK_EXPRESSION, strict=True)
    )


def name_places(codes: np.ndarray, xy: np.ndarray) -> list[list[float] | None]:
    """Return where the name of each value lies on the map: amid its cells, where they are many and others few.

    None: a few of its cells lie among those of others, whose name it would seem to be.
    """
    ends = xy.min(axis=0), xy.max(axis=0)
    squares = ((xy - ends[0]) / np.maximum(ends[1] - ends[0], 1e-9) * NUM_SQUARES).astype(int)
    num_cells = np.zeros((NUM_SQUARES + 1, NUM_SQUARES + 1))
    np.add.at(num_cells, tuple(squares.T), 1)
    places: list[list[float] | None] = []
    for code in range(codes.max() + 1):
        occupied, counts = np.unique(squares[codes == code], axis=0, return_counts=True)
        best = occupied[(counts**2 / num_cells[tuple(occupied.T)]).argmax()]
        is_near = (np.abs(squares - best) <= 1).all(axis=1)
        cells_near = xy[is_near & (codes == code)]
        is_named = len(cells_near) >= max(MIN_NAMED, MIN_OWN * is_near.sum())
        places.append(
            np.median(cells_near, axis=0).astype(float).round(3).tolist() if is_named else None
        )
    return places


def categories(
    name: str,
    values: pd.Series,
    known: Mapping[str, tuple[str, str]] | None = None,
    xy: np.ndarray | None = None,
) -> Figure:
    """Return a column of texts that colours the map; `known` has the colour and the symbol of some values.

    With the places of the cells, `xy`, the names of the values are on the map.
    """
    codes, names = pd.factorize(values, sort=True)
    marks = [
        (known or {}).get(value, (colour_of(place), symbol_of(place)))
        for place, value in enumerate(names)
    ]
    shown: list[Figure] = [
        {"name": plain(value), "colour": colour, "symbol": symbol}
        for value, (colour, symbol) in zip(names, marks, strict=True)
    ]
    if xy is not None:
        for value, place in zip(shown, name_places(codes, xy), strict=True):
            value["place"] = place
    return {"name": plain(name), "values": shown, "codes": codes.tolist()}


def numbers(name: str, values: pd.Series, colours: Sequence[str], highest: float = 1.0) -> Figure:
    """Return a column of numbers from 0 to `highest` that colours the map; missing ones are None."""
    shown = [None if np.isnan(value) else value for value in values.astype(float).round(3)]
    return {
        "name": plain(name),
        "numbers": shown,
        "scale": stops(colours),
        "highest": round(highest, 3),
    }
