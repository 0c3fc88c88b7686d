"""The figures of the report as plain data for plotly.js, and the map of cells as arrays of small integers.

Samples, labels and genes are numbers in the data; their names appear only as escaped texts, because plotly interprets
some HTML tags in texts.
"""

import base64
import html
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.base.messages import shortened
from scperformer.base.pictures import PALETTE, colour_of

Figure = dict[str, Any]

# Low confidence, which readers look for, is bright. Lightness falls evenly, so that the scales also work in grey.
CONFIDENCE_STOPS = ("#F9B233", "#E8785A", "#B5527D", "#6A4590", "#1F3B73")
EXPRESSION_STOPS = ("#E6E9ED", "#B9CBE3", "#6C9BCF", "#2563A8", "#0B2F66")  # high expression is dark
SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")
LABELS_PER_SYMBOL = 10
ROW = 26  # height of a row of a figure in pixels
MARGIN = 70  # height of the axis and the margins of a figure in pixels
LEAST_DOUBT = 1e-4  # smaller values of 1 - confidence are drawn as this
CONFIDENCE_TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999)
NUM_NOVELTY_BINS = 40
COUNT_TICKS = (1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)  # of a logarithmic axis
TALL = 25  # rows of a figure that is scrolled, whose axis is on top
KNOWN = "#6C9BCF"  # cells within the limit of novelty
NOVEL = "#D55E00"  # cells beyond it
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # ends of the lines, quartiles and median of a box


def symbol_of(position: int) -> str:
    """Return the symbol of the label at a position; up to 60 labels have unique pairs of colour and symbol."""
    return SYMBOLS[position // LABELS_PER_SYMBOL % len(SYMBOLS)]


def plain(text: object) -> str:
    """Return a text that plotly shows literally, shortened if it is very long."""
    return html.escape(shortened(text), quote=False)


def _rows(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return an axis with a row for each name, the first on top."""
    ticks = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": [plain(name) for name in names]}
    return {
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
        **ticks,
        **more,
    }


def _title(text: str) -> dict[str, Any]:
    """Return the title of an axis or a colour bar."""
    return {"text": text, "font": {"size": 13}}


def stops(colours: Sequence[str]) -> list[list[Any]]:
    """Return a colour scale for plotly from equally spaced colours."""
    return [[place / (len(colours) - 1), colour] for place, colour in enumerate(colours)]


def _box(
    values: Sequence[npt.NDArray[np.floating]],
    names: Sequence[str],
    colours: Sequence[str],
    shown: Callable[[npt.NDArray[np.floating]], npt.NDArray[np.floating]] = lambda numbers: numbers,
) -> Figure:
    """Return a box for each group with values: its quartiles, with lines to the 5th and 95th percentile.

    `shown` maps values to places on the axis, in the same order.
    """
    filled = [place for place, group in enumerate(values) if len(group)]
    numbers = np.array([np.quantile(values[place], QUANTILES) for place in filled])
    low, first, middle, third, high = shown(numbers).T.tolist()
    hover = [
        f"{plain(names[place])}<br>median {row[2]:,.3g}, interquartile range {row[1]:,.3g} to {row[3]:,.3g}"
        for place, row in zip(filled, numbers.tolist(), strict=True)
    ]
    boxes = [
        {
            "type": "box",
            "orientation": "h",
            "y": [place],
            "lowerfence": [low[i]],
            "q1": [first[i]],
            "median": [middle[i]],
            "q3": [third[i]],
            "upperfence": [high[i]],
            "name": plain(names[place]),
            "fillcolor": colours[place] + "66",
            "line": {"color": colours[place], "width": 1.5},
            "hoverinfo": "skip",
        }
        for i, place in enumerate(filled)
    ]
    # The own hover text of a box does not name the numbers, so a mark at the median has the text.
    points = {"type": "scatter", "mode": "markers", "x": middle, "y": filled, "hovertext": hover, "hoverinfo": "text"}
    return {"data": [*boxes, points | {"marker": {"color": "#1d2733", "size": 7, "symbol": "line-ns-open"}}]}


def confidence(cells: pd.DataFrame, labels: Sequence[str], colours: Sequence[str]) -> Figure:
    """Return boxes of the confidence of the cells of each label, on the axis of -log10(1 - confidence).

    Most confidences are close to 1, where boxes on an even axis would be lines.
    """
    values = [cells.loc[cells["code"] == place, "confidence"].to_numpy(float) for place in range(len(labels))]
    figure = _box(values, labels, colours, lambda shares: -np.log10(np.maximum(1 - shares, LEAST_DOUBT)))
    ticks = {"tickmode": "array", "tickvals": (-np.log10(1 - np.array(CONFIDENCE_TICKS))).tolist()}
    ticks |= {"ticktext": [f"{share:g}" for share in CONFIDENCE_TICKS], "rangemode": "tozero"}
    layout = {
        "showlegend": False,
        "height": MARGIN + ROW * len(labels),
        "xaxis": {"title": _title("confidence"), "fixedrange": True, **ticks},
        "yaxis": _rows(labels, fixedrange=True),
    }
    return figure | {"layout": layout, "name": "confidence", "width": 340}


def novelty(values: npt.NDArray[np.floating], limits: Sequence[float]) -> Figure:
    """Return a histogram of the novelty of cells, with the limits above which they are flagged as unknown.

    Cells like those of the reference fill all bins alike, which the dashed line shows.
    """
    edges = np.linspace(0, 1, NUM_NOVELTY_BINS + 1)
    counts = np.histogram(values, edges)[0]
    middles = (edges[1:] + edges[:-1]) / 2
    lowest = min(limits, default=1.0)
    bars = {
        "type": "bar",
        "x": middles.tolist(),
        "y": counts.tolist(),
        "marker": {"color": [NOVEL if middle > lowest else KNOWN for middle in middles]},
        "customdata": [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)],
        "hovertemplate": "novelty %{customdata}<br>%{y:,} cells<extra></extra>",
    }
    even = len(values) / NUM_NOVELTY_BINS
    dashed = {"color": "#566270", "dash": "dash", "width": 1.5}
    lines = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": even, "y1": even, "line": dashed}]
    upright = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": NOVEL, "width": 2}}
    lines += [upright | {"x0": limit, "x1": limit} for limit in limits]
    layout = {
        "height": 300,
        "showlegend": False,
        "bargap": 0.04,
        "xaxis": {"range": [0, 1], "title": _title("novelty"), "fixedrange": True},
        "yaxis": {"title": _title("cells"), "fixedrange": True, "automargin": True},
        "shapes": lines,
    }
    return {"data": [bars], "layout": layout, "name": "novelty", "width": 320}


def quality(tables: dict[str, pd.DataFrame], has_counts: bool) -> Figure:
    """Return boxes of genes, counts and mitochondrial share of the cells of each sample, side by side."""
    names = list(tables)
    kinds = {"num_genes": "genes per cell", "total": "counts per cell", "mitochondrial": "mitochondrial share"}
    columns = [name for name in kinds if name != "total" or has_counts]
    columns = [name for name in columns if any(table[name].notna().any() for table in tables.values())]
    layout: dict[str, Any] = {"showlegend": False, "height": MARGIN + ROW * len(names)}
    traces = []
    gap = 0.04
    width = (1 + gap) / len(columns)
    for place, column in enumerate(columns):
        number = "" if place == 0 else str(place + 1)
        is_share = column == "mitochondrial"
        values = [table[column].dropna().to_numpy(float) for table in tables.values()]
        shown = (lambda shares: shares) if is_share else (lambda counts: np.log10(np.maximum(counts, 1)))
        for trace in _box(values, names, [PALETTE[0]] * len(names), shown)["data"]:
            traces.append(trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"})
        domain = [place * width, place * width + width - gap]
        scale: dict[str, Any] = {"tickformat": ".0%", "rangemode": "tozero"}
        if not is_share:
            ticks = [f"{tick // 1000}k" if tick >= 1000 else str(tick) for tick in COUNT_TICKS]
            scale = {"tickmode": "array", "tickvals": np.log10(COUNT_TICKS).tolist(), "ticktext": ticks, "tickangle": 0}
        axis = {"domain": domain, "anchor": f"y{number}", "title": _title(kinds[column])}
        layout[f"xaxis{number}"] = axis | scale | {"fixedrange": True, "side": "top" if len(names) > TALL else "bottom"}
        layout[f"yaxis{number}"] = _rows(names, anchor=f"x{number}", fixedrange=True, showticklabels=place == 0)
    if len(names) > TALL:
        layout["margin"] = {"l": 10, "r": 16, "t": 50, "b": 12}
    return {"data": traces, "layout": layout, "name": "quality", "width": 760}


def dots(
    labels: Sequence[str], genes: Sequence[str], means: npt.NDArray[np.floating], shares: npt.NDArray[np.floating]
) -> Figure:
    """Return a dot plot of genes by label.

    The size is the share of the cells that express a gene, the colour its mean as a share of its highest mean among
    these labels. `means` and `shares` are labels x genes.
    """
    y, x = np.indices(means.shape).reshape(2, -1)
    highest = np.nanmax(means, axis=0)
    scaled = np.divide(means, highest, out=np.zeros_like(means), where=highest > 0)
    hover = [
        f"{plain(genes[j])} in {plain(labels[i])}<br>mean {means[i, j]:.2f}, in {shares[i, j]:.0%} of the cells"
        for i, j in zip(y.tolist(), x.tolist(), strict=True)
    ]
    scale = {"colorscale": stops(EXPRESSION_STOPS), "cmin": 0, "cmax": 1, "line": {"color": "#8793a0", "width": 0.5}}
    title = _title("Mean expression<br>(scaled per gene)")
    bar = {"title": title, "thickness": 12, "len": 0.9, "tickformat": ".1f"}
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": x.tolist(),
        "y": y.tolist(),
        "marker": {
            "size": (1 + 17 * np.sqrt(np.nan_to_num(shares))).ravel().round(1).tolist(),
            "color": np.nan_to_num(scaled).ravel().round(3).tolist(),
            "colorbar": bar,
            "opacity": 1,  # the default for marks of different sizes is 0.7, which changes the colours
            **scale,
        },
        "hovertext": hover,
        "hoverinfo": "text",
    }
    ticks = _rows(genes, range=[-0.7, len(genes) - 0.3], tickangle=-90, side="bottom")
    layout = {"showlegend": False, "height": 130 + ROW * len(labels), "xaxis": ticks, "yaxis": _rows(labels)}
    return {"data": [trace], "layout": layout, "name": "markers", "width": 260 + 19 * len(genes)}


def reliability(curves: dict[str, Any], least: int) -> Figure:
    """Return the accuracy of held-out calls by their confidence; bins with fewer than `least` calls are left out."""
    line = {"color": "#8793a0", "dash": "dash", "width": 1}
    diagonal = {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "line": line, "hoverinfo": "skip"}
    traces: list[Figure] = [diagonal | {"showlegend": False}]
    for place, (name, bins) in enumerate(curves.items()):
        columns = np.array([bins["confidence"], bins["accuracy"], bins["num_cells"]], dtype=float)
        mean_confidence, accuracy, num_cells = columns[:, columns[2] >= least]
        trace = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain(name),
            "x": mean_confidence.tolist(),
            "y": accuracy.tolist(),
            "customdata": num_cells.astype(int).tolist(),
            "line": {"color": colour_of(place), "width": 1.5},
            "marker": {
                "size": (5 + 22 * np.sqrt(num_cells / max(num_cells.sum(), 1))).round(1).tolist(),
                "symbol": SYMBOLS[place % len(SYMBOLS)],
            },
            "hovertemplate": "confidence %{x:.2f}, accuracy %{y:.2f}<br>%{customdata:,} cells<extra></extra>",
        }
        traces.append(trace)
    axis = {"range": [0, 1.03], "fixedrange": True, "automargin": True}
    layout = {
        "height": 420,
        "showlegend": len(curves) > 1,
        "legend": {"orientation": "h", "y": -0.18},
        "xaxis": axis | {"title": _title("confidence")},
        "yaxis": axis | {"title": _title("accuracy of held-out calls")},
    }
    return {"data": traces, "layout": layout, "name": "calibration", "width": 300}


def heat_map(
    name: str, rows: Sequence[str], columns: Sequence[str], counts: npt.NDArray[np.int64], between: str = "called"
) -> Figure:
    """Return a heat map of counts of cells, rows x columns, as shares of each row.

    `between` stands between the names of row and column in the text of an entry.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    texts = []
    hover = []
    for label, row_counts, row_shares in zip(rows, counts.tolist(), shares.tolist(), strict=True):
        pairs = list(zip(row_counts, row_shares, strict=True))
        texts.append(["" if num == 0 else "<1" if share < 0.005 else f"{100 * share:.0f}" for num, share in pairs])
        lines = [f"{num:,} cell{'' if num == 1 else 's'}, {share:.1%} of the row" for num, share in pairs]
        heads = [f"{plain(label)} {between} {plain(column)}" for column in columns]
        hover.append([f"{head}<br>{line}" for head, line in zip(heads, lines, strict=True)])
    # White for 0, and a light grey from 0.1% on.
    colours = [[0, "#FFFFFF"], [0.001, "#EDF1F6"], *([0.001 + 0.999 * x, c] for x, c in stops(EXPRESSION_STOPS)[1:])]
    trace = {
        "type": "heatmap",
        "z": shares.round(4).tolist(),
        "text": texts,
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "hovertext": hover,
        "hoverinfo": "text",
        "colorscale": colours,
        "zmin": 0,
        "zmax": 1,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }
    ticks = _rows(columns, range=[-0.5, len(columns) - 0.5], tickangle=-45, side="bottom")
    layout = {"height": 150 + ROW * len(rows), "xaxis": ticks, "yaxis": _rows(rows)}
    return {"data": [trace], "layout": layout, "name": name, "width": 260 + 34 * len(columns)}


def packed(values: npt.NDArray[Any], kind: str) -> dict[str, str]:
    """Pack an array for a typed array of JavaScript: base64 of little-endian unsigned integers, `kind` u1 or u2."""
    return {"kind": kind, "data": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")}


def codes(values: npt.NDArray[np.integer], num: int) -> dict[str, str]:
    """Pack whole numbers below `num`; -1 becomes the largest value, which stands for no category."""
    return packed(values, "u1" if num < 255 else "u2")


def numbers(values: npt.NDArray[np.floating]) -> dict[str, Any]:
    """Pack numbers in 65,534 steps from the lowest to the highest; NaN becomes 65,535."""
    low = float(np.nanmin(values[np.isfinite(values)]))
    high = float(np.nanmax(values[np.isfinite(values)]))
    steps = np.nan_to_num((values - low) * (65534 / (high - low) if high > low else 0), posinf=65535, neginf=65535)
    return {"low": low, "high": high, **packed(np.where(np.isfinite(values), steps, 65535).round(), "u2")}


def expression_levels(values: npt.NDArray[np.floating]) -> dict[str, Any]:
    """Pack the values of a gene in 254 steps from 0 to the highest value; NaN (not measured) becomes 255."""
    highest = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    steps = np.nan_to_num(values) * (254 / highest if highest > 0 else 0)
    return {"low": 0.0, "high": highest, **packed(np.where(np.isnan(values), 255, steps).round(), "u1")}
