"""Errors of the linear attention mechanisms relative to exact softmax attention, on inputs from a trained encoder.

Shape letters: H heads, L tokens, E head width.
"""

from __future__ import annotations

import logging
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from scperformer.attention.base import Sizes
from scperformer.attention.registry import all_mechanisms, make_attention
from scperformer.base.pictures import colour_of, png
from scperformer.lab.attention_maps import Layers
from scperformer.model.load import Model

log = logging.getLogger(__name__)

DPI = 160
GREY = "#777777"
MEAN = "mean of the values"  # the simplest approximation: every token attends equally to all tokens
MARKERS = "osD^vPX<>"
SIZES = (16, 32, 64, 128, 256, 512)  # values of the option that is the size of a mechanism
NUM_DRAWS = 3  # of the random parts of each mechanism
MIN_ERROR = 1e-4  # lower end of the axis: a size that covers the whole cell is nearly exact
COLUMNS = ["mechanism", "size_option", "size", "has_parameters", "shared_qk", "mean", "sd", "p10", "p90", "num_errors"]


def relative_error(out_HLE: torch.Tensor, exact_HLE: torch.Tensor) -> list[float]:
    """Return ||out - exact|| / ||exact|| of each head, in Frobenius norms."""
    difference_H = (out_HLE.double() - exact_HLE).flatten(1).norm(dim=1)
    return (difference_H / exact_HLE.flatten(1).norm(dim=1)).tolist()


@torch.inference_mode()
def approximation_errors(layers: Layers, length: int, seed: int) -> pd.DataFrame:
    """Return the errors of all mechanisms that are not quadratic and have a size, relative to exact softmax attention.

    Mechanisms have their initial parameters, are drawn several times for cells of `length` positions, and have the
    defaults of other options. The table has a row per mechanism and size; the last is the mean of the values.
    """
    known = all_mechanisms()
    mechanisms = {name: kind.size_option for name, kind in known.items() if kind.size_option and not kind.quadratic}
    errors: dict[tuple[str, str, int | None, bool, bool], list[float]] = {}
    errors_of_mean: list[float] = []
    for number, cells in enumerate(layers):
        num_heads, _, head_dim = cells[0].q_HLE.shape
        shape = Sizes(num_heads=num_heads, head_dim=head_dim, length=length)
        exact = {
            shared_qk: [cell.exact_map(shared_qk) @ cell.v_HLE.double() for cell in cells]
            for shared_qk in {False} | {known[name].shared_qk for name in mechanisms}
        }
        for cell, exact_HLE in zip(cells, exact[False], strict=True):
            errors_of_mean += relative_error(cell.v_HLE.mean(dim=1, keepdim=True).expand_as(exact_HLE), exact_HLE)
        for (name, option), size, draw in product(mechanisms.items(), SIZES, range(NUM_DRAWS)):
            (state,) = np.random.SeedSequence([seed, number, draw]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state))
            mechanism = make_attention({"name": name, option: size}, shape, generator)
            if mechanism.starts_from_keys:
                k_1HLE = torch.cat([cell.k_HLE for cell in cells], dim=1).unsqueeze(0)
                mechanism.start(k_1HLE, torch.ones(1, k_1HLE.shape[2], dtype=torch.bool), generator)
            mechanism.eval()
            has_parameters = next(mechanism.parameters(), None) is not None
            own_errors = errors.setdefault((name, option, size, has_parameters, mechanism.shared_qk), [])
            for cell, exact_HLE in zip(cells, exact[mechanism.shared_qk], strict=True):
                q_1HLE, k_1HLE, v_1HLE = (x_HLE.unsqueeze(0) for x_HLE in (cell.q_HLE, cell.k_HLE, cell.v_HLE))
                positions_1L = cell.positions_L.unsqueeze(0)
                keep_1L = torch.ones_like(positions_1L, dtype=torch.bool)
                own_errors += relative_error(mechanism(q_1HLE, k_1HLE, v_1HLE, keep_1L, positions_1L)[0], exact_HLE)
        log.info("layer %d: done", number + 1)
    rows = [
        (*key, np.mean(values), np.std(values), *np.quantile(values, [0.1, 0.9]), len(values))
        for key, values in {**errors, (MEAN, "", None, False, False): errors_of_mean}.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"size": "Int64"})


def draw_approximation(table: pd.DataFrame) -> bytes:
    """Return a PNG of the errors: a line per mechanism, and bars from the 10th to the 90th percentile."""
    figure = Figure(figsize=(9.4, 5), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    sized = table[table["size"].notna()]
    names = sized["mechanism"].unique()
    for place, name in enumerate(names):
        rows = sized[sized["mechanism"] == name]
        first = rows.iloc[0]
        notes = f"{' (untrained)' if first['has_parameters'] else ''}{' *' if first['shared_qk'] else ''}"
        # A small shift, so that the bars of different mechanisms do not cover each other.
        sizes = rows["size"].to_numpy(float) * 1.035 ** (place - (len(names) - 1) / 2)
        line = ("--" if first["has_parameters"] else "-") + MARKERS[place % len(MARKERS)]
        label = f"{name}: {first['size_option']}{notes}"
        axes.plot(sizes, rows["mean"], line, color=colour_of(place), markersize=5, label=label)
        axes.vlines(sizes, rows["p10"], rows["p90"], color=colour_of(place), alpha=0.5, linewidth=1.2)
    axes.axhline(table["mean"].iloc[-1], color=GREY, linestyle=":", label=MEAN)
    if sized["shared_qk"].any():
        axes.plot([], [], " ", label="* exact map with keys = queries")
    axes.set(xscale="log", yscale="log", xlabel="size (the option in the legend)")
    axes.set(ylabel="relative error of the output", ylim=(max(MIN_ERROR, table["mean"].min() / 2), None))
    axes.set_xticks(sorted(sized["size"].unique().astype(float)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25)
    title = "Error relative to exact softmax attention: mean, 10th and 90th percentile of cells, heads and draws"
    figure.suptitle(title, fontsize=11)
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title="mechanism: its size")
    return png(figure)


def analyze_approximation(layers: Layers, model: Model, seed: int) -> tuple[dict, dict[str, Any]]:
    """Return the files of `analyze approximation` by name, and its entries in the summary (none)."""
    table = approximation_errors(layers, len(model.saved.genes) + 1, seed)
    log.info("relative error of the output by size %s:", ", ".join(map(str, SIZES)))
    for name, rows in table.groupby("mechanism", sort=False):
        note = " (untrained)" if rows["has_parameters"].any() else ""
        log.info("  %-20s %s%s", name, " ".join(f"{mean:.3f}" for mean in rows["mean"]), note)
    return {"approximation.csv": table, "approximation.png": draw_approximation(table)}, {}
