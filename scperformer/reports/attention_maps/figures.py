"""The figures of the analyses."""

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter, StrMethodFormatter

from scperformer.pictures import colour_of, ink_on, png
from scperformer.reports.attention_maps.spectrum import INDEX, Spectrum

DPI = 160
MOST_NUMBERS = 12  # columns of a heat map whose cells still have room for a number
GREY = "#777777"
MARKERS = "osD^vPX<>"
LEAST_ERROR = 1e-4  # shown: what is nearer than that (a size that takes in the whole cell) is as good as exact


def draw_spectrum(found: Spectrum) -> bytes:
    """A PNG: the cumulative curves of every layer and head, and a heat map of their values at index 128."""
    num_layers, num_heads, _ = found.curves.shape
    figure = Figure(figsize=(11, 4.6), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user has set
    curves, heat = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _draw_curves(curves, found)
    _draw_heat(heat, found.at_index.mean(axis=2))
    least, most = found.tokens.min(), found.tokens.max()
    tokens = f"{least:,} tokens" if least == most else f"{least:,} to {most:,} tokens"
    sizes = " x ".join((_plural(num_layers, "layer"), _plural(num_heads, "head")))
    of = f"mean of {_plural(len(found.tokens), 'cell')} of {tokens}"
    figure.suptitle(f"Singular values of the softmax maps of {sizes} ({of})", fontsize=11)
    return png(figure)


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _draw_curves(axes: Axes, found: Spectrum) -> None:
    num_layers, num_heads, length = found.curves.shape
    by_layer = num_layers > 1  # a colour per layer, or per head where there is one layer
    scale = colormaps["viridis"]
    indices = np.arange(1, length + 1)
    for layer, head in np.ndindex(num_layers, num_heads):
        place, most = (layer, num_layers) if by_layer else (head, num_heads)
        label = f"{'layer' if by_layer else 'head'} {place + 1}" if not by_layer or head == 0 else None
        colour = scale(0.9 * place / max(1, most - 1))
        axes.plot(indices, found.curves[layer, head], color=colour, linewidth=1.3, alpha=0.85, label=label)
    axes.plot(indices, found.full_rank(), color=GREY, linestyle="--", linewidth=1.3, label="all equal (identity)")
    if length > INDEX:
        axes.axvline(INDEX, color=GREY, linewidth=1)
        axes.annotate(str(INDEX), (INDEX, 0), xytext=(4, 4), textcoords="offset points")
    axes.set(xscale="log", xlim=(1, length), ylim=(0, 1.02), ylabel="cumulative share of their sum")
    axes.set_xlabel(f"index of the singular value, largest first{' (a line per head)' if by_layer else ''}")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, frameon=False, fontsize=9)


def _draw_heat(axes: Axes, values: np.ndarray) -> None:
    num_layers, num_heads = values.shape
    low = min(np.floor(values.min() * 20) / 20, 0.95)  # from the next lower multiple of .05 to 1
    scale = colormaps["YlGnBu"]
    image = axes.imshow(values, cmap=scale, vmin=low, vmax=1, aspect="auto")
    axes.set_xticks(range(num_heads), [str(head + 1) for head in range(num_heads)])
    axes.set_yticks(range(num_layers), [str(layer + 1) for layer in range(num_layers)])
    axes.set(xlabel="head", ylabel="layer", title=f"value at index {INDEX}")
    axes.title.set_fontsize(10)
    decimals = 3 if num_heads <= 8 else 2
    if num_heads <= MOST_NUMBERS:
        for (layer, head), value in np.ndenumerate(values):
            red, green, blue, _ = scale((value - low) / (1 - low), bytes=True)
            ink = ink_on(f"#{red:02X}{green:02X}{blue:02X}")
            axes.text(head, layer, f"{value:.{decimals}f}", ha="center", va="center", color=ink, fontsize=9)
    axes.figure.colorbar(image, ax=axes, pad=0.02)


def draw_approximation(table: pd.DataFrame) -> bytes:
    """A PNG of the errors of `approximation.approximation`: a line per mechanism, with its spread."""
    figure = Figure(figsize=(9.4, 5), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sized, unsized = table[table["size"].notna()], table[table["size"].isna()]
    names = sized["mechanism"].unique()
    for place, name in enumerate(names):
        rows = sized[sized["mechanism"] == name]
        first = rows.iloc[0]
        notes = f"{' (untrained)' if first['has_parameters'] else ''}{' *' if first['shared_qk'] else ''}"
        # a little beside each other, or their spreads would be one bar
        sizes = rows["size"].to_numpy(float) * 1.035 ** (place - (len(names) - 1) / 2)
        line = ("--" if first["has_parameters"] else "-") + MARKERS[place % len(MARKERS)]
        label = f"{name}: {first['size_option']}{notes}"
        axes.plot(sizes, rows["mean"], line, color=colour_of(place), markersize=5, label=label)
        axes.vlines(sizes, rows["p10"], rows["p90"], color=colour_of(place), alpha=0.5, linewidth=1.2)
    for _, row in unsized.iterrows():
        axes.axhline(row["mean"], color=GREY, linestyle=":", label=row["mechanism"])
    if sized["shared_qk"].any():
        axes.plot([], [], " ", label="* exact with keys = queries")
    axes.set(xscale="log", yscale="log", xlabel="size (which option it is: see the legend)")
    axes.set(ylabel="relative error of the mixed values", ylim=(max(LEAST_ERROR, table["mean"].min() / 2), None))
    axes.set_xticks(sorted(sized["size"].unique().astype(float)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    figure.suptitle(
        "Distance from exact softmax attention: mean, and 10 to 90 % of cells, heads and draws", fontsize=11
    )
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title="mechanism: its size")
    return png(figure)
