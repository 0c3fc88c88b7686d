"""The errors of the linear mechanisms relative to exact softmax attention, on the inputs from a trained encoder.

Shape letters: H heads, L tokens, E head width.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from scperformer.attention import MECHANISMS, Attention, Sizes, make_attention
from scperformer.config import AnalyzeConfig
from scperformer.network import Model
from scperformer.pictures import colour_of, png
from scperformer.reports.attention_maps.inputs import HeadInputs
from scperformer.reports.attention_maps.spectrum import DPI, GREY

log = logging.getLogger(__name__)

MEAN = "mean of the values"  # the simplest approximation: every token attends equally to all tokens
MARKERS = "osD^vPX<>"
LEAST_ERROR = 1e-4  # shown; a size that covers the whole cell is nearly exact


def linear_mechanisms() -> dict[str, str]:
    """The mechanisms that are not quadratic and have a size, with the option that sets it."""
    return {
        name: mechanism.size_option
        for name, mechanism in MECHANISMS.items()
        if mechanism.size_option is not None and not mechanism.quadratic
    }


def relative_error(out_HLE: torch.Tensor, exact_HLE: torch.Tensor) -> list[float]:
    """||out - exact|| / ||exact|| of each head, Frobenius norms."""
    difference_H = (out_HLE.double() - exact_HLE).flatten(1).norm(dim=1)
    return (difference_H / exact_HLE.flatten(1).norm(dim=1)).tolist()


def _untrained(
    attention: dict[str, object], length: int, cells: list[HeadInputs], generator: torch.Generator
) -> Attention:
    """A mechanism as it is at the start of training, with other options at their defaults."""
    num_heads, _, head_dim = cells[0].q_HLE.shape
    mechanism = make_attention(attention, Sizes(num_heads=num_heads, head_dim=head_dim, length=length), generator)
    if mechanism.starts_from_keys:
        k_1HLE = torch.cat([cell.k_HLE for cell in cells], dim=1).unsqueeze(0)
        mechanism.start(k_1HLE, torch.ones(k_1HLE.shape[0], k_1HLE.shape[2], dtype=torch.bool), generator)
    return mechanism.eval()


@torch.inference_mode()
def approximation(
    layers: Iterable[list[HeadInputs]], length: int, *, sizes: Sequence[int], num_draws: int, seed: int
) -> pd.DataFrame:
    """Relative errors of all linear mechanisms of every size, untrained, compared with exact softmax attention.

    Parameters
    ----------
    layers
        As `inputs.layers_of` yields them.
    length
        Number of positions of a cell.
    sizes
        Values of the option that sets the size of a mechanism.
    num_draws
        Random initialisations of each mechanism.

    Returns
    -------
    A row per mechanism and size: `mechanism`, `size_option`, `size`, `has_parameters` (the mechanism would learn some),
    `shared_qk` (queries are also the keys: compared with the exact map of this kind), and over cells, layers, heads and
    draws the `mean`, `sd`, tenth and ninetieth percentile (`p10`, `p90`) of the relative error and the number of errors
    `num_errors`. The last row is the mean of the values, which has no size.
    """
    mechanisms = linear_mechanisms()
    errors: dict[tuple[str, str, int | None, bool, bool], list[float]] = {}
    of_mean: list[float] = []
    for number, cells in enumerate(layers):
        exact = {
            shared_qk: [cell.exact_map(shared_qk) @ cell.v_HLE.double() for cell in cells]
            for shared_qk in {False} | {MECHANISMS[name].shared_qk for name in mechanisms}
        }
        for cell, exact_HLE in zip(cells, exact[False], strict=True):
            of_mean += relative_error(cell.v_HLE.mean(dim=1, keepdim=True).expand_as(exact_HLE), exact_HLE)
        for (name, option), size, draw in product(mechanisms.items(), sizes, range(num_draws)):
            (state,) = np.random.SeedSequence([seed, number, draw]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state))
            mechanism = _untrained({"name": name, option: size}, length, cells, generator)
            has_parameters = next(mechanism.parameters(), None) is not None
            found = errors.setdefault((name, option, size, has_parameters, mechanism.shared_qk), [])
            for cell, exact_HLE in zip(cells, exact[mechanism.shared_qk], strict=True):
                q_1HLE, k_1HLE, v_1HLE = (x_HLE.unsqueeze(0) for x_HLE in (cell.q_HLE, cell.k_HLE, cell.v_HLE))
                positions_1L = cell.positions_L.unsqueeze(0)
                keep_1L = torch.ones_like(positions_1L, dtype=torch.bool)
                found += relative_error(mechanism(q_1HLE, k_1HLE, v_1HLE, keep_1L, positions_1L)[0], exact_HLE)
        log.info("layer %d: done", number + 1)
    rows = []
    for key, found in {**errors, (MEAN, "", None, False, False): of_mean}.items():
        row = dict(zip(("mechanism", "size_option", "size", "has_parameters", "shared_qk"), key, strict=True))
        p10, p90 = np.quantile(found, [0.1, 0.9])
        rows.append(
            row | {"mean": np.mean(found), "sd": np.std(found), "p10": p10, "p90": p90, "num_errors": len(found)}
        )
    return pd.DataFrame(rows).astype({"size": "Int64"})


def draw_approximation(table: pd.DataFrame) -> bytes:
    """A PNG of the table of `approximation`: a line per mechanism, with 10 to 90 % of its errors."""
    figure = Figure(figsize=(9.4, 5), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sized, unsized = table[table["size"].notna()], table[table["size"].isna()]
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
    figure.suptitle(
        "Error relative to exact softmax attention: mean, and 10 to 90 % of cells, heads and draws", fontsize=11
    )
    figure.legend(loc="outside right center", frameon=False, fontsize=9, title="mechanism: its size")
    return png(figure)


def analyze_approximation(
    layers: Iterable[list[HeadInputs]], model: Model, cfg: AnalyzeConfig
) -> tuple[dict, dict[str, Any]]:
    """The files of `analyze approximation` by name, and its entries of the summary (none)."""
    length = len(model.bundle.genes) + 1
    table = approximation(layers, length, sizes=cfg.sizes, num_draws=cfg.num_draws, seed=cfg.seed)
    log.info("relative error of the output by size %s:", ", ".join(map(str, cfg.sizes)))
    for name, rows in table.groupby("mechanism", sort=False):
        note = " (untrained)" if rows["has_parameters"].any() else ""
        log.info("  %-20s %s%s", name, " ".join(f"{mean:.3f}" for mean in rows["mean"]), note)
    return {"approximation.csv": table, "approximation.png": draw_approximation(table)}, {}
