"""The rank of exact softmax attention: singular values of its maps, as in figure 1 of Linformer.

Shape letters: H heads, L tokens.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from scperformer.config import AnalyzeConfig
from scperformer.network import Model
from scperformer.pictures import ink_on, png
from scperformer.reports.attention_maps.inputs import HeadInputs

log = logging.getLogger(__name__)

INDEX = 128  # of the cumulative value in the heat map, as in Linformer
MAX_NUMBERS = 12  # columns of a heat map whose cells have room for a number
DPI = 160
GREY = "#777777"


@dataclass
class Spectrum:
    """Cumulative singular values of the softmax maps of every layer and head."""

    curves: np.ndarray  # layers x heads x indices, mean over cells; 1 past the last singular value of a shorter cell
    at_index: np.ndarray  # layers x heads x cells: the value at index 128
    tokens: np.ndarray  # tokens of each cell, which is the number of its singular values

    def curve_table(self) -> pd.DataFrame:
        """A row per layer, head and index, all counted from 1."""
        layers, heads, indices = (axis.ravel() + 1 for axis in np.indices(self.curves.shape))
        return pd.DataFrame({"layer": layers, "head": heads, "index": indices, "cumulative": self.curves.ravel()})

    def index_table(self) -> pd.DataFrame:
        """A row per layer and head: the value at index 128 over the cells."""
        layers, heads = (axis.ravel() + 1 for axis in np.indices(self.at_index.shape[:2]))
        values = self.at_index.reshape(len(layers), -1)
        return pd.DataFrame(
            {
                "layer": layers,
                "head": heads,
                "index": np.minimum(INDEX, self.tokens.max()),
                "cumulative": values.mean(axis=1),
                "sd": values.std(axis=1),
                "num_cells": len(self.tokens),
                "num_cells_of_at_most_128_tokens": int((self.tokens <= INDEX).sum()),
            }
        )

    def full_rank(self) -> np.ndarray:
        """The curve of maps with equal singular values, such as the identity, for the same cells."""
        indices = np.arange(1, self.curves.shape[2] + 1)
        return np.minimum(indices / self.tokens[:, None], 1).mean(axis=0)


def cumulative(map_HLL: torch.Tensor) -> np.ndarray:
    """Cumulative sums of the singular values of each map, largest first, as shares of their sum; H x L.

    Source: Wang et al. 2020, arXiv 2006.04768, section 3 and figure 1.
    """
    sums_HL = torch.linalg.svdvals(map_HLL).cumsum(dim=1)
    return (sums_HL / sums_HL[:, -1:]).numpy()


def spectrum(layers: Iterable[list[HeadInputs]]) -> Spectrum:
    """The spectrum of the layers that `inputs.layers_of` yields."""
    curves, at_index = [], []
    tokens = np.zeros(0, dtype=np.int64)
    for number, cells in enumerate(layers, start=1):
        tokens = np.array([len(cell.positions_L) for cell in cells])
        by_cell = [cumulative(cell.exact_map()) for cell in cells]
        padded = [np.pad(c, ((0, 0), (0, tokens.max() - c.shape[1])), constant_values=1.0) for c in by_cell]
        curves.append(np.mean(padded, axis=0))
        at_index.append(np.stack([c[:, min(INDEX, c.shape[1]) - 1] for c in by_cell], axis=1))
        log.info("layer %d: %.3f of the singular values' sum by index %d", number, at_index[-1].mean(), INDEX)
    return Spectrum(np.stack(curves), np.stack(at_index), tokens)


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def draw_spectrum(found: Spectrum) -> bytes:
    """A PNG: the cumulative curves of every layer and head, and a heat map of their values at index 128."""
    num_layers, num_heads, length = found.curves.shape
    figure = Figure(figsize=(11, 4.6), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # needs no display, whatever the user's backend
    axes, heat = figure.subplots(1, 2, width_ratios=(1.2, 1))

    indices = np.arange(1, length + 1)
    for layer, head in np.ndindex(num_layers, num_heads):
        # A colour per layer, or per head of a single layer.
        label, place, most = ("layer", layer, num_layers) if num_layers > 1 else ("head", head, num_heads)
        style = {"color": colormaps["viridis"](0.9 * place / max(1, most - 1)), "linewidth": 1.3, "alpha": 0.85}
        first = head == 0 or num_layers == 1
        axes.plot(indices, found.curves[layer, head], label=f"{label} {place + 1}" if first else None, **style)
    axes.plot(indices, found.full_rank(), color=GREY, linestyle="--", linewidth=1.3, label="all equal (identity)")
    if length > INDEX:
        axes.axvline(INDEX, color=GREY, linewidth=1)
        axes.annotate(str(INDEX), (INDEX, 0), xytext=(4, 4), textcoords="offset points")
    axes.set(xscale="log", xlim=(1, length), ylim=(0, 1.02), ylabel="cumulative share of their sum")
    axes.set_xlabel(f"index of the singular value, largest first{' (a line per head)' if num_layers > 1 else ''}")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, frameon=False, fontsize=9)

    values = found.at_index.mean(axis=2)
    low = min(np.floor(values.min() * 20) / 20, 0.95)  # from the next lower multiple of 0.05 to 1
    scale = colormaps["YlGnBu"]
    image = heat.imshow(values, cmap=scale, vmin=low, vmax=1, aspect="auto")
    heat.set_xticks(range(num_heads), [str(head + 1) for head in range(num_heads)])
    heat.set_yticks(range(num_layers), [str(layer + 1) for layer in range(num_layers)])
    heat.set(xlabel="head", ylabel="layer")
    heat.set_title(f"value at index {INDEX}", fontsize=10)
    if num_heads <= MAX_NUMBERS:
        for (layer, head), value in np.ndenumerate(values):
            red, green, blue, _ = scale((value - low) / (1 - low), bytes=True)
            ink = ink_on(f"#{red:02X}{green:02X}{blue:02X}")
            text = f"{value:.{3 if num_heads <= 8 else 2}f}"
            heat.text(head, layer, text, ha="center", va="center", color=ink, fontsize=9)
    figure.colorbar(image, ax=heat, pad=0.02)

    least, most = found.tokens.min(), found.tokens.max()
    tokens = f"{least:,} tokens" if least == most else f"{least:,} to {most:,} tokens"
    sizes = f"{_plural(num_layers, 'layer')} x {_plural(num_heads, 'head')}"
    cells = f"mean of {_plural(len(found.tokens), 'cell')} of {tokens}"
    figure.suptitle(f"Singular values of the softmax maps of {sizes} ({cells})", fontsize=11)
    return png(figure)


def analyze_spectrum(
    layers: Iterable[list[HeadInputs]], model: Model, cfg: AnalyzeConfig
) -> tuple[dict, dict[str, Any]]:
    """The files of `analyze spectrum` by name, and its entries of the summary."""
    found = spectrum(layers)
    files = {
        "spectrum.csv": found.curve_table(),
        "index128.csv": found.index_table(),
        "spectrum.png": draw_spectrum(found),
    }
    return files, {"tokens": found.tokens.tolist(), "mean_at_index_128": float(found.at_index.mean())}
