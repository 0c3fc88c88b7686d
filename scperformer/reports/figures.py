"""The figures of the report as plain data for plotly.js, and the map of cells as arrays of small integers.

Names of users stand in figures as numbers on an axis with escaped texts: plotly reads tags in texts.
"""

import base64
import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.base.messages import shortened
from scperformer.base.pictures import PALETTE, colour_of

Figure = dict[str, Any]

# Low confidence, which readers look for, is bright. Lightness falls evenly, so that the scale also works in grey.
CONFIDENCE_STOPS = ("#F9B233", "#E8785A", "#B5527D", "#6A4590", "#1F3B73")
EXPRESSION_STOPS = ("#E6E9ED", "#B9CBE3", "#6C9BCF", "#2563A8", "#0B2F66")  # the same the other way round
SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")  # the next one after each 10 labels
PER_SYMBOL = 10
ROW, MARGIN = 26, 70  # pixels of a row of a figure, and of its axis and title
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def symbol_of(position: int) -> str:
    """The symbol of the label at a position: with its colour it is that label's alone, up to 180 labels."""
    return SYMBOLS[position // PER_SYMBOL % len(SYMBOLS)]


def plain(text: object) -> str:
    """A text that plotly shows as it is, shortened."""
    return html.escape(shortened(text), quote=False)


def _rows(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """An axis with a row for each name, the first one on top."""
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
    return {"text": text, "font": {"size": 13}}


def stops(colours: Sequence[str]) -> list[list[Any]]:
    """A colour scale of plotly from equally spaced colours."""
    return [[place / (len(colours) - 1), colour] for place, colour in enumerate(colours)]


def composition(samples: Sequence[str], labels: Sequence[str], counts: npt.NDArray[np.int64]) -> Figure:
    """Stacked bars of the shares of the labels in each sample; `counts` are S x L."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plain(label),
            "y": list(range(len(samples))),
            "x": shares[:, place].tolist(),
            "customdata": counts[:, place].tolist(),
            "text": [plain(label)] * len(samples),
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "marker": {"color": colour_of(place), "line": {"color": "#fff", "width": 0.5}},
            "hovertemplate": f"{plain(label)}<br>%{{customdata:,}} cells, %{{x:.1%}}<extra></extra>",
        }
        for place, label in enumerate(labels)
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.2,
        "showlegend": False,
        "height": MARGIN + (ROW + 8) * len(samples),
        "xaxis": {"range": [0, 1], "tickformat": ".0%", "fixedrange": True},
        "yaxis": _rows(samples, fixedrange=True),
        "uniformtext": {"mode": "hide", "minsize": 10},
    }
    return {"data": traces, "layout": layout, "name": "composition", "width": 340}


def _box(values: Sequence[npt.NDArray[np.floating]], names: Sequence[str], colours: Sequence[str]) -> Figure:
    """A box of the quartiles of each group, with lines to the 5th and 95th percentile; empty groups have none."""
    filled = [place for place, one in enumerate(values) if len(one)]
    low, first, middle, third, high = np.array([np.quantile(values[place], QUANTILES) for place in filled]).T.tolist()
    hover = [
        f"{plain(names[place])}<br>median {middle[i]:,.3g}, interquartile range {first[i]:,.3g} to {third[i]:,.3g}"
        for i, place in enumerate(filled)
    ]
    boxes = [
        {
            "type": "box",
            "orientation": "h",
            "y": [place],
            **{
                "lowerfence": [low[i]],
                "q1": [first[i]],
                "median": [middle[i]],
                "q3": [third[i]],
                "upperfence": [high[i]],
            },
            "name": plain(names[place]),
            "fillcolor": colours[place] + "66",
            "line": {"color": colours[place], "width": 1.5},
            "hoverinfo": "skip",
        }
        for i, place in enumerate(filled)
    ]
    # The hover of boxes without points would be in quartiles without names: an invisible bar has the text instead.
    points = {"type": "scatter", "mode": "markers", "x": middle, "y": filled, "hovertext": hover, "hoverinfo": "text"}
    return {"data": [*boxes, points | {"marker": {"color": "#1d2733", "size": 7, "symbol": "line-ns-open"}}]}


def confidence(cells: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """The quartiles of the confidence of the cells of each label."""
    values = [cells.loc[cells["code"] == place, "confidence"].to_numpy() for place in range(len(labels))]
    figure = _box(values, labels, [colour_of(place) for place in range(len(labels))])
    layout = {
        "showlegend": False,
        "height": MARGIN + ROW * len(labels),
        "xaxis": {"range": [0, 1.01], "title": _title("confidence"), "fixedrange": True},
        "yaxis": _rows(labels, fixedrange=True),
    }
    return figure | {"layout": layout, "name": "confidence", "width": 340}


def quality(tables: dict[str, pd.DataFrame], has_counts: bool) -> Figure:
    """Boxes of genes, counts and mitochondrial share of the cells of each sample, side by side."""
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
        values = [table[column].dropna().to_numpy(float) for table in tables.values()]
        for trace in _box(values, names, [PALETTE[0]] * len(names))["data"]:
            traces.append(trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"})
        domain = [place * width, place * width + width - gap]
        share = {"tickformat": ".0%"} if column == "mitochondrial" else {"nticks": 5, "tickformat": "~s"}
        axis = {"domain": domain, "anchor": f"y{number}", "title": _title(kinds[column]), "rangemode": "tozero"}
        layout[f"xaxis{number}"] = axis | share | {"fixedrange": True}
        layout[f"yaxis{number}"] = _rows(names, anchor=f"x{number}", fixedrange=True, showticklabels=place == 0)
    return {"data": traces, "layout": layout, "name": "quality", "width": 760}


def dots(
    labels: Sequence[str], genes: Sequence[str], means: npt.NDArray[np.floating], shares: npt.NDArray[np.floating]
) -> Figure:
    """A dot plot: size is the share of the cells that express a gene, colour its mean as a share of its highest mean.

    `means` and `shares` are labels x genes.
    """
    y, x = np.indices(means.shape).reshape(2, -1)
    highest = np.nanmax(means, axis=0)
    scaled = np.divide(means, highest, out=np.zeros_like(means), where=highest > 0)
    hover = [
        f"{plain(genes[j])} in {plain(labels[i])}<br>mean {means[i, j]:.2f}, in {shares[i, j]:.0%} of the cells"
        for i, j in zip(y.tolist(), x.tolist(), strict=True)
    ]
    scale = {"colorscale": stops(EXPRESSION_STOPS), "cmin": 0, "cmax": 1, "line": {"color": "#8793a0", "width": 0.5}}
    bar = {"title": _title("mean, of the<br>highest"), "thickness": 12, "len": 0.9, "tickformat": ".1f"}
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": x.tolist(),
        "y": y.tolist(),
        "marker": {
            "size": (1 + 17 * np.sqrt(np.nan_to_num(shares))).ravel().round(1).tolist(),
            "color": np.nan_to_num(scaled).ravel().round(3).tolist(),
            "colorbar": bar,
            **scale,
        },
        "hovertext": hover,
        "hoverinfo": "text",
    }
    ticks = _rows(genes, range=[-0.7, len(genes) - 0.3], tickangle=-90, side="bottom")
    layout = {"showlegend": False, "height": 130 + ROW * len(labels), "xaxis": ticks, "yaxis": _rows(labels)}
    return {"data": [trace], "layout": layout, "name": "markers", "width": 260 + 19 * len(genes)}


def reliability(curves: dict[str, Any], least: int) -> Figure:
    """The accuracy of held-out calls against their confidence; bins of fewer than `least` calls are left out."""
    line = {"color": "#8793a0", "dash": "dash", "width": 1}
    traces: list[Figure] = [
        {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "line": line, "hoverinfo": "skip"}
    ]
    traces[0]["showlegend"] = False
    for place, (name, bins) in enumerate(curves.items()):
        columns = np.array([bins["confidence"], bins["accuracy"], bins["num_cells"]], dtype=float)
        confident, accuracy, num_cells = columns[:, columns[2] >= least]
        trace = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain(name),
            "x": confident.tolist(),
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


def confusion(true: Sequence[str], called: Sequence[str], counts: npt.NDArray[np.int64]) -> Figure:
    """A heat map of the shares of the cells of each true label by predicted label; `counts` are T x C."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    texts = [["" if num == 0 else "<1" if x < 0.005 else f"{100 * x:.0f}" for num, x in zip(*row, strict=True)]
             for row in zip(counts.tolist(), shares.tolist(), strict=True)]  # fmt: skip
    hover = [[f"{plain(label)} called {plain(name)}<br>{counts[i, j]:,} cells, {shares[i, j]:.1%} of the row"
              for j, name in enumerate(called)] for i, label in enumerate(true)]  # fmt: skip
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
    columns = _rows(called, range=[-0.5, len(called) - 0.5], tickangle=-45, side="bottom")
    layout = {"height": 150 + ROW * len(true), "xaxis": columns, "yaxis": _rows(true)}
    return {"data": [trace], "layout": layout, "name": "confusion-matrix", "width": 260 + 34 * len(called)}


def packed(values: npt.NDArray[Any], kind: str) -> dict[str, str]:
    """An array as base64 of little-endian unsigned integers, for typed arrays of JavaScript; `kind` is u1 or u2."""
    return {"kind": kind, "data": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")}


def codes(values: npt.NDArray[np.integer], num: int) -> dict[str, str]:
    """Whole numbers below `num`, packed."""
    return packed(values, "u1" if num < 255 else "u2")


def shares(values: npt.NDArray[np.floating]) -> dict[str, str]:
    """Numbers from 0 to 1, packed in steps of 1 / 65,534; NaN becomes 65,535."""
    return packed(np.where(np.isnan(values), 65535, np.nan_to_num(np.clip(values, 0, 1)) * 65534).round(), "u2")


def expression_levels(values: npt.NDArray[np.floating]) -> dict[str, Any]:
    """Values of a gene from 0 to their highest, packed in 254 steps; NaN (not measured) becomes 255."""
    highest = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    steps = np.nan_to_num(values) * (254 / highest if highest > 0 else 0)
    return {"highest": highest, **packed(np.where(np.isnan(values), 255, steps).round(), "u1")}
