"""Attention maps of a trained encoder on real cells: their spectrum, and the errors of linear mechanisms.

Shape letters: H heads, L tokens, E head width.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter, StrMethodFormatter

from scperformer.attention import MECHANISMS, Sizes, make_attention
from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of, png, text_colour_on
from scperformer.config import AnalyzeConfig
from scperformer.network import Cells, Encoder, Model

log = logging.getLogger(__name__)

DPI = 160
GREY = "#777777"
INDEX = 128  # of the cumulative value in the heat map, as in Linformer
MAX_NUMBERS = 12  # columns of a heat map whose cells have room for a number
MEAN = "mean of the values"  # the simplest approximation: every token attends equally to all tokens
MARKERS = "osD^vPX<>"
LEAST_ERROR = 1e-4  # shown; a size that covers the whole cell is nearly exact
COLUMNS = ["mechanism", "size_option", "size", "has_parameters", "shared_qk", "mean", "sd", "p10", "p90", "num_errors"]


@dataclass
class HeadInputs:
    """Queries, keys and values of one cell in one layer, and the position (gene) of each token."""

    q_HLE: torch.Tensor
    k_HLE: torch.Tensor
    v_HLE: torch.Tensor
    positions_L: torch.Tensor

    def exact_map(self, shared_qk: bool = False) -> torch.Tensor:
        """softmax(Q K^T / sqrt(E)) of each head (Vaswani et al. 2017, arXiv 1706.03762, equation 1): H x L x L float64.

        With `shared_qk`, softmax(Q Q^T / sqrt(E)) in which no token attends to itself: mechanisms whose queries are
        also the keys approximate this map (Kitaev et al. 2020, arXiv 2001.04451, section 2). Needs two tokens or more.
        """
        q_HLE = self.q_HLE.double()
        k_HLE = (self.q_HLE if shared_qk else self.k_HLE).double()
        scores_HLL = q_HLE @ k_HLE.transpose(1, 2) / q_HLE.shape[-1] ** 0.5
        if shared_qk:
            scores_HLL.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        return torch.softmax(scores_HLL, dim=-1)


Layers = Iterable[list[HeadInputs]]  # for each layer an entry per cell


@torch.inference_mode()
def layers_of(encoder: Encoder, cells: Cells, rows: np.ndarray, *, max_tokens: int, seed: int) -> Layers:
    """Yield the inputs of the attention for each layer of an encoder in eval mode: one entry for each cell in `rows`.

    Hidden states are computed from all tokens of a cell. Of a cell with more than `max_tokens` tokens, the same random
    ones are returned for every layer.
    """
    inputs = []
    batches = []
    chosen = []
    for row in rows:
        batch = cells.batch([row])  # one cell at a time, so that no position is padding
        drawn = np.random.default_rng([seed, int(row)]).permutation(batch.keep_BL.shape[1])[:max_tokens]
        inputs.append(encoder.attention_inputs(batch))
        batches.append(batch)
        chosen.append(torch.from_numpy(np.sort(drawn)))
    lengths = [batch.keep_BL.shape[1] for batch in batches]
    if num_long := sum(length > max_tokens for length in lengths):
        message = "%d of %d cells have more than %d tokens (at most %d): so many of each are drawn at random"
        log.info(message, num_long, len(lengths), max_tokens, max(lengths))
    if not encoder.stack:
        found = "a model without layers of attention (model.depth=0)"
        raise InputError(found, "a model with layers", "train one with model=tiny, small or base")
    if encoder.mechanisms[0].is_causal:
        log.info("the model's attention is causal; here every token attends to all tokens")
    for _ in encoder.stack:
        layer = []
        for given, batch, tokens in zip(inputs, batches, chosen, strict=True):
            q_HLE, k_HLE, v_HLE = (x_1HLE[0, :, tokens] for x_1HLE in next(given))
            layer.append(HeadInputs(q_HLE, k_HLE, v_HLE, batch.genes_BL[0, tokens]))
        yield layer


# The rank of exact softmax attention: singular values of its maps, as in figure 1 of Linformer.


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
        table = pd.DataFrame({"layer": layers, "head": heads, "index": np.minimum(INDEX, self.tokens.max())})
        num_short = int((self.tokens <= INDEX).sum())
        table = table.assign(cumulative=values.mean(axis=1), sd=values.std(axis=1))
        return table.assign(num_cells=len(self.tokens), num_cells_of_at_most_128_tokens=num_short)

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


def spectrum(layers: Layers) -> Spectrum:
    """The spectrum of the layers that `layers_of` yields."""
    curves = []
    at_index = []
    tokens = np.zeros(0, dtype=np.int64)
    for number, cells in enumerate(layers, start=1):
        tokens = np.array([len(cell.positions_L) for cell in cells])
        by_cell = [cumulative(cell.exact_map()) for cell in cells]
        padded = [np.pad(c, ((0, 0), (0, tokens.max() - c.shape[1])), constant_values=1.0) for c in by_cell]
        curves.append(np.mean(padded, axis=0))
        at_index.append(np.stack([c[:, min(INDEX, c.shape[1]) - 1] for c in by_cell], axis=1))
        log.info("layer %d: %.3f of the singular values' sum by index %d", number, at_index[-1].mean(), INDEX)
    return Spectrum(np.stack(curves), np.stack(at_index), tokens)


def _draw_curves(axes: Axes, found: Spectrum) -> None:
    """Draw the cumulative curves of every layer and head, and the curve of full rank."""
    num_layers, num_heads, length = found.curves.shape
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


def draw_spectrum(found: Spectrum) -> bytes:
    """A PNG: the cumulative curves of every layer and head, and a heat map of their values at index 128."""
    figure = Figure(figsize=(11, 4.6), dpi=DPI, layout="constrained")
    axes, heat = figure.subplots(1, 2, width_ratios=(1.2, 1))
    _draw_curves(axes, found)

    values = found.at_index.mean(axis=2)
    num_layers, num_heads = values.shape
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
            ink = text_colour_on(f"#{red:02X}{green:02X}{blue:02X}")
            text = f"{value:.{3 if num_heads <= 8 else 2}f}"
            heat.text(head, layer, text, ha="center", va="center", color=ink, fontsize=9)
    figure.colorbar(image, ax=heat, pad=0.02)

    least = found.tokens.min()
    most = found.tokens.max()
    num_cells = len(found.tokens)
    tokens = f"{least:,} tokens" if least == most else f"{least:,} to {most:,} tokens"
    counts = [(num_layers, "layer"), (num_heads, "head"), (num_cells, "cell")]
    layers, heads, cells = (f"{num:,} {noun}{'' if num == 1 else 's'}" for num, noun in counts)
    title = f"Singular values of the softmax maps of {layers} x {heads} (mean of {cells} of {tokens})"
    figure.suptitle(title, fontsize=11)
    return png(figure)


def analyze_spectrum(layers: Layers, model: Model, cfg: AnalyzeConfig) -> tuple[dict, dict[str, Any]]:
    """The files of `analyze spectrum` by name, and its entries of the summary."""
    found = spectrum(layers)
    tables = {"spectrum.csv": found.curve_table(), "index128.csv": found.index_table()}
    summary = {"tokens": found.tokens.tolist(), "mean_at_index_128": float(found.at_index.mean())}
    return {**tables, "spectrum.png": draw_spectrum(found)}, summary


# The errors of the linear mechanisms relative to exact softmax attention, on the inputs from a trained encoder.


def linear_mechanisms() -> dict[str, str]:
    """The mechanisms that are not quadratic and have a size, with the option that sets it."""
    found = {name: mechanism.size_option for name, mechanism in MECHANISMS.items() if not mechanism.quadratic}
    return {name: option for name, option in found.items() if option is not None}


def relative_error(out_HLE: torch.Tensor, exact_HLE: torch.Tensor) -> list[float]:
    """||out - exact|| / ||exact|| of each head, Frobenius norms."""
    difference_H = (out_HLE.double() - exact_HLE).flatten(1).norm(dim=1)
    return (difference_H / exact_HLE.flatten(1).norm(dim=1)).tolist()


@torch.inference_mode()
def approximation(layers: Layers, length: int, *, sizes: Sequence[int], num_draws: int, seed: int) -> pd.DataFrame:
    """Relative errors of all linear mechanisms of every size, compared with exact softmax attention.

    Each mechanism is as at the start of training, drawn `num_draws` times for cells of `length` positions; the option
    that sets its size takes the values `sizes`, the others have their defaults. The table has a row per mechanism and
    size (docs/formats.md lists its columns); the last row is the mean of the values, which has no size.
    """
    mechanisms = linear_mechanisms()
    errors: dict[tuple[str, str, int | None, bool, bool], list[float]] = {}
    of_mean: list[float] = []
    for number, cells in enumerate(layers):
        num_heads, _, head_dim = cells[0].q_HLE.shape
        shape = Sizes(num_heads=num_heads, head_dim=head_dim, length=length)
        exact = {
            shared_qk: [cell.exact_map(shared_qk) @ cell.v_HLE.double() for cell in cells]
            for shared_qk in {False} | {MECHANISMS[name].shared_qk for name in mechanisms}
        }
        for cell, exact_HLE in zip(cells, exact[False], strict=True):
            of_mean += relative_error(cell.v_HLE.mean(dim=1, keepdim=True).expand_as(exact_HLE), exact_HLE)
        for (name, option), size, draw in product(mechanisms.items(), sizes, range(num_draws)):
            (state,) = np.random.SeedSequence([seed, number, draw]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state))
            mechanism = make_attention({"name": name, option: size}, shape, generator)
            if mechanism.starts_from_keys:
                k_1HLE = torch.cat([cell.k_HLE for cell in cells], dim=1).unsqueeze(0)
                mechanism.start(k_1HLE, torch.ones(1, k_1HLE.shape[2], dtype=torch.bool), generator)
            mechanism.eval()
            has_parameters = next(mechanism.parameters(), None) is not None
            found = errors.setdefault((name, option, size, has_parameters, mechanism.shared_qk), [])
            for cell, exact_HLE in zip(cells, exact[mechanism.shared_qk], strict=True):
                q_1HLE, k_1HLE, v_1HLE = (x_HLE.unsqueeze(0) for x_HLE in (cell.q_HLE, cell.k_HLE, cell.v_HLE))
                positions_1L = cell.positions_L.unsqueeze(0)
                keep_1L = torch.ones_like(positions_1L, dtype=torch.bool)
                found += relative_error(mechanism(q_1HLE, k_1HLE, v_1HLE, keep_1L, positions_1L)[0], exact_HLE)
        log.info("layer %d: done", number + 1)
    rows = [
        (*key, np.mean(found), np.std(found), *np.quantile(found, [0.1, 0.9]), len(found))
        for key, found in {**errors, (MEAN, "", None, False, False): of_mean}.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"size": "Int64"})


def draw_approximation(table: pd.DataFrame) -> bytes:
    """A PNG of the table of `approximation`: a line per mechanism, with 10 to 90 % of its errors."""
    figure = Figure(figsize=(9.4, 5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    sized = table[table["size"].notna()]
    unsized = table[table["size"].isna()]
    names = sized["mechanism"].unique()
    for place, name in enumerate(names):
        rows = sized[sized["mechanism"] == name]
        first = rows.iloc[0]
        notes = f"{' (untrained)' if first['has_parameters'] else ''}{' *' if first['shared_qk'] else ''}"
        # Shifted a little, so that the bars of the mechanisms do not cover each other.
        sizes = rows["size"].to_numpy(float) * 1.035 ** (place - (len(names) - 1) / 2)
        line = ("--" if first["has_parameters"] else "-") + MARKERS[place % len(MARKERS)]
        label = f"{name}: {first['size_option']}{notes}"
        axes.plot(sizes, rows["mean"], line, color=colour_of(place), markersize=5, label=label)
        axes.vlines(sizes, rows["p10"], rows["p90"], color=colour_of(place), alpha=0.5, linewidth=1.2)
    for _, row in unsized.iterrows():
        axes.axhline(row["mean"], color=GREY, linestyle=":", label=row["mechanism"])
    if sized["shared_qk"].any():
        axes.plot([], [], " ", label="* exact map with keys = queries")
    axes.set(xscale="log", yscale="log", xlabel="size (the option in the legend)")
    axes.set(ylabel="relative error of the output", ylim=(max(LEAST_ERROR, table["mean"].min() / 2), None))
    axes.set_xticks(sorted(sized["size"].unique().astype(float)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    title = "Error relative to exact softmax attention: mean, and 10 to 90 % of cells, heads and draws"
    figure.suptitle(title, fontsize=11)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title="mechanism: its size")
    return png(figure)


def analyze_approximation(layers: Layers, model: Model, cfg: AnalyzeConfig) -> tuple[dict, dict[str, Any]]:
    """The files of `analyze approximation` by name, and its entries of the summary (none)."""
    length = len(model.saved.genes) + 1
    table = approximation(layers, length, sizes=cfg.sizes, num_draws=cfg.num_draws, seed=cfg.seed)
    log.info("relative error of the output by size %s:", ", ".join(map(str, cfg.sizes)))
    for name, rows in table.groupby("mechanism", sort=False):
        note = " (untrained)" if rows["has_parameters"].any() else ""
        log.info("  %-20s %s%s", name, " ".join(f"{mean:.3f}" for mean in rows["mean"]), note)
    return {"approximation.csv": table, "approximation.png": draw_approximation(table)}, {}
