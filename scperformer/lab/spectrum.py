"""The rank of exact softmax attention: singular values of its maps on real cells, as in figure 1 of Linformer.

Shape letters: H heads, L tokens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from scperformer.base.pictures import png
from scperformer.lab.attention_maps import Layers
from scperformer.model.load import Model

if TYPE_CHECKING:
    from scperformer.cli.analyze import AnalyzeConfig

log = logging.getLogger(__name__)

DPI = 160
GREY = "#777777"
INDEX = 128  # index of the cumulative value in the heat map, as in Linformer


@dataclass
class Spectrum:
    """Cumulative singular values of the softmax maps of every layer and head."""

    curves: np.ndarray  # layers x heads x indices, means over cells; cells with fewer singular values count as 1
    at_index: np.ndarray  # layers x heads x cells, the values at index 128
    tokens: np.ndarray  # number of tokens, and so of singular values, of each cell

    def curve_table(self) -> pd.DataFrame:
        """Return a row per layer, head and index, counted from 1."""
        layers, heads, indices = (axis.ravel() + 1 for axis in np.indices(self.curves.shape))
        return pd.DataFrame({"layer": layers, "head": heads, "index": indices, "cumulative": self.curves.ravel()})

    def index_table(self) -> pd.DataFrame:
        """Return a row per layer and head: mean and deviation of the value at index 128 over the cells."""
        layers, heads = (axis.ravel() + 1 for axis in np.indices(self.at_index.shape[:2]))
        values = self.at_index.reshape(len(layers), -1)
        table = pd.DataFrame({"layer": layers, "head": heads, "index": np.minimum(INDEX, self.tokens.max())})
        num_short = int((self.tokens <= INDEX).sum())
        table = table.assign(cumulative=values.mean(axis=1), sd=values.std(axis=1))
        return table.assign(num_cells=len(self.tokens), num_cells_of_at_most_128_tokens=num_short)

    def full_rank(self) -> np.ndarray:
        """Return the mean curve of the same cells for maps with equal singular values, such as the identity."""
        indices = np.arange(1, self.curves.shape[2] + 1)
        return np.minimum(indices / self.tokens[:, None], 1).mean(axis=0)


def cumulative(map_HLL: torch.Tensor) -> np.ndarray:
    """Return the cumulative sums of the singular values of each map, largest first, as shares of their sum; H x L.

    Source: Wang et al. 2020, arXiv 2006.04768, section 3 and figure 1.
    """
    sums_HL = torch.linalg.svdvals(map_HLL).cumsum(dim=1)
    return (sums_HL / sums_HL[:, -1:]).numpy()


def find_spectrum(layers: Layers) -> Spectrum:
    """Return the spectrum of the exact softmax maps of some cells in each layer."""
    curves = []
    at_index = []
    tokens = np.zeros(0, dtype=np.int64)
    for number, cells in enumerate(layers, start=1):
        tokens = np.array([len(cell.positions_L) for cell in cells])
        curves_HL = [cumulative(cell.exact_map()) for cell in cells]
        padded = [np.pad(c, ((0, 0), (0, tokens.max() - c.shape[1])), constant_values=1.0) for c in curves_HL]
        curves.append(np.mean(padded, axis=0))
        at_index.append(np.stack([c[:, min(INDEX, c.shape[1]) - 1] for c in curves_HL], axis=1))
        log.info("layer %d: %.3f of the singular values' sum by index %d", number, at_index[-1].mean(), INDEX)
    return Spectrum(np.stack(curves), np.stack(at_index), tokens)


def draw_spectrum(spectrum: Spectrum) -> bytes:
    """Return a PNG of the cumulative curves of every layer and head, and of their values at index 128."""
    figure = Figure(figsize=(11, 4.6), dpi=DPI, layout="constrained")
    axes, heat_map = figure.subplots(1, 2, width_ratios=(1.2, 1))
    num_layers, num_heads, length = spectrum.curves.shape
    indices = np.arange(1, length + 1)
    # One colour per layer, or per head if there is a single layer.
    what, most = ("layer", num_layers) if num_layers > 1 else ("head", num_heads)
    for layer, head in np.ndindex(num_layers, num_heads):
        place = layer if num_layers > 1 else head
        label = f"{what} {place + 1}" if head == 0 or num_layers == 1 else None
        colour = colormaps["viridis"](0.9 * place / max(1, most - 1))
        axes.plot(indices, spectrum.curves[layer, head], label=label, color=colour, linewidth=1.3, alpha=0.85)
    axes.plot(indices, spectrum.full_rank(), color=GREY, linestyle="--", linewidth=1.3, label="all equal (identity)")
    if length > INDEX:
        axes.axvline(INDEX, color=GREY, linewidth=1)
        axes.annotate(str(INDEX), (INDEX, 0), xytext=(4, 4), textcoords="offset points")
    axes.set(xscale="log", xlim=(1, length), ylim=(0, 1.02), ylabel="cumulative share of their sum")
    axes.set_xlabel(f"index of the singular value, largest first{' (a line per head)' if num_layers > 1 else ''}")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, frameon=False, fontsize=9)

    values = spectrum.at_index.mean(axis=2)
    low = min(np.floor(values.min() * 20) / 20, 0.95)  # from the next lower multiple of 0.05 to 1
    image = heat_map.imshow(values, cmap="YlGnBu", vmin=low, vmax=1, aspect="auto")
    heat_map.set_xticks(range(num_heads), [str(head + 1) for head in range(num_heads)])
    heat_map.set_yticks(range(num_layers), [str(layer + 1) for layer in range(num_layers)])
    heat_map.set(xlabel="head", ylabel="layer")
    heat_map.set_title(f"value at index {INDEX}", fontsize=10)
    figure.colorbar(image, ax=heat_map, pad=0.02)

    num_cells = spectrum.at_index.shape[2]
    tokens = f"{spectrum.tokens.min():,} to {spectrum.tokens.max():,} tokens"
    title = f"Singular values of the softmax maps of {num_layers} layers x {num_heads} heads"
    figure.suptitle(f"{title} (mean of {num_cells:,} cells of {tokens})", fontsize=11)
    return png(figure)


def analyze_spectrum(layers: Layers, model: Model, cfg: AnalyzeConfig) -> tuple[dict, dict[str, Any]]:
    """Return the files of `analyze spectrum` by name, and its entries in the summary."""
    spectrum = find_spectrum(layers)
    files = {
        "spectrum.csv": spectrum.curve_table(),
        "index128.csv": spectrum.index_table(),
        "spectrum.png": draw_spectrum(spectrum),
    }
    return files, {"tokens": spectrum.tokens.tolist(), "mean_at_index_128": float(spectrum.at_index.mean())}
