"""The rank of exact softmax attention: singular values of its maps on real cells, as in figure 1 of Linformer.

Shape letters: H heads, L tokens.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from scperformer.base.pictures import png
from scperformer.lab.attention_maps import Layers
from scperformer.model.load import Model

log = logging.getLogger(__name__)

DPI = 160
GREY = "#777777"
INDEX = 128  # index of the cumulative value in the heat map, as in Linformer


def find_spectrum(layers: Layers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cumulative singular values of the exact softmax maps, largest first, as shares of their sum.

    Source: Wang et al. 2020, arXiv 2006.04768, section 3 and figure 1.

    Returns
    -------
    Their means over cells, layers x heads x indices, where cells with fewer singular values count as 1; the values at
    index 128, layers x heads x cells; and the number of tokens, and so of singular values, of each cell.
    """
    curves = []
    at_index = []
    tokens = np.zeros(0, dtype=np.int64)
    for number, cells in enumerate(layers, start=1):
        tokens = np.array([len(cell.positions_L) for cell in cells])
        sums = [torch.linalg.svdvals(cell.exact_map()).cumsum(dim=1) for cell in cells]
        curves_HL = [(sums_HL / sums_HL[:, -1:]).numpy() for sums_HL in sums]
        padded = [np.pad(c, ((0, 0), (0, tokens.max() - c.shape[1])), constant_values=1.0) for c in curves_HL]
        curves.append(np.mean(padded, axis=0))
        at_index.append(np.stack([c[:, min(INDEX, c.shape[1]) - 1] for c in curves_HL], axis=1))
        log.info("layer %d: %.3f of the singular values' sum by index %d", number, at_index[-1].mean(), INDEX)
    return np.stack(curves), np.stack(at_index), tokens


def draw_spectrum(curves: np.ndarray, at_index: np.ndarray, tokens: np.ndarray) -> bytes:
    """Return a PNG of the cumulative curves of every layer and head, and of their values at index 128."""
    figure = Figure(figsize=(11, 4.6), dpi=DPI, layout="constrained")
    axes, heat_map = figure.subplots(1, 2, width_ratios=(1.2, 1))
    num_layers, num_heads, length = curves.shape
    indices = np.arange(1, length + 1)
    # One colour per layer, or per head if there is a single layer.
    what, most = ("layer", num_layers) if num_layers > 1 else ("head", num_heads)
    for layer, head in np.ndindex(num_layers, num_heads):
        place = layer if num_layers > 1 else head
        label = f"{what} {place + 1}" if head == 0 or num_layers == 1 else None
        colour = colormaps["viridis"](0.9 * place / max(1, most - 1))
        axes.plot(indices, curves[layer, head], label=label, color=colour, linewidth=1.3, alpha=0.85)
    full_rank = np.minimum(indices / tokens[:, None], 1).mean(axis=0)  # of the same cells, with equal singular values
    axes.plot(indices, full_rank, color=GREY, linestyle="--", linewidth=1.3, label="all equal (identity)")
    if length > INDEX:
        axes.axvline(INDEX, color=GREY, linewidth=1)
        axes.annotate(str(INDEX), (INDEX, 0), xytext=(4, 4), textcoords="offset points")
    axes.set(xscale="log", xlim=(1, length), ylim=(0, 1.02), ylabel="cumulative share of their sum")
    axes.set_xlabel(f"index of the singular value, largest first{' (a line per head)' if num_layers > 1 else ''}")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, frameon=False, fontsize=9)

    values = at_index.mean(axis=2)
    low = min(np.floor(values.min() * 20) / 20, 0.95)  # from the next lower multiple of 0.05 to 1
    image = heat_map.imshow(values, cmap="YlGnBu", vmin=low, vmax=1, aspect="auto")
    heat_map.set_xticks(range(num_heads), [str(head + 1) for head in range(num_heads)])
    heat_map.set_yticks(range(num_layers), [str(layer + 1) for layer in range(num_layers)])
    heat_map.set(xlabel="head", ylabel="layer")
    heat_map.set_title(f"value at index {INDEX}", fontsize=10)
    figure.colorbar(image, ax=heat_map, pad=0.02)

    sizes = f"{tokens.min():,} to {tokens.max():,} tokens"
    title = f"Singular values of the softmax maps of {num_layers} layers x {num_heads} heads"
    figure.suptitle(f"{title} (mean of {len(tokens):,} cells of {sizes})", fontsize=11)
    return png(figure)


def analyze_spectrum(layers: Layers, model: Model, seed: int) -> tuple[dict, dict[str, Any]]:
    """Return the files of `analyze spectrum` by name, and its entries in the summary."""
    curves, at_index, tokens = find_spectrum(layers)
    layer, head, index = (axis.ravel() + 1 for axis in np.indices(curves.shape))
    curve_table = pd.DataFrame({"layer": layer, "head": head, "index": index, "cumulative": curves.ravel()})
    layer, head = (axis.ravel() + 1 for axis in np.indices(at_index.shape[:2]))
    values = at_index.reshape(len(layer), -1)
    index_table = pd.DataFrame({"layer": layer, "head": head, "index": np.minimum(INDEX, tokens.max())}).assign(
        cumulative=values.mean(axis=1),
        sd=values.std(axis=1),
        num_cells=len(tokens),
        num_cells_of_at_most_128_tokens=int((tokens <= INDEX).sum()),
    )
    files = {
        "spectrum.csv": curve_table,
        "index128.csv": index_table,
        "spectrum.png": draw_spectrum(curves, at_index, tokens),
    }
    return files, {"tokens": tokens.tolist(), "mean_at_index_128": float(at_index.mean())}
