"""Label colours, the reliability diagram, scores of runs, and figures as PNG."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

# The six mid-tones of Okabe and Ito (2008). Each further colour has the largest distance in OKLab from white and all
# earlier colours, for normal vision, deuteranopia and protanopia (Machado et al. 2009, severity 1).
PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#78000F", "#003C78", "#C3D2B4"),
    *("#5A87FF", "#A52D3C", "#2D3CB4", "#B4D2FF", "#C3E13C", "#2D5A78", "#A5B487", "#2D7878", "#691E4B"),
    *("#69C3C3", "#3C69E1", "#C33C1E", "#6996D2", "#A5D269", "#872D00", "#F0694B", "#00695A", "#7878D2"),
    *("#1EA5FF", "#2D5AC3", "#2D4B87"),
)
MIN_BIN_CALLS = 10  # bins of a reliability diagram with fewer calls are not drawn


def colour_of(position: int) -> str:
    """Return the colour of the label at a position; the palette repeats after its last colour."""
    return PALETTE[position % len(PALETTE)]


def text_colour_on(colour: str) -> str:
    """Return black or white, whichever has the higher contrast on a colour (WCAG 2)."""
    channels = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ [0.2126, 0.7152, 0.0722])
    # Contrast is 1.05 / (L + .05) with white and (L + .05) / .05 with black: they are equal at L = .179.
    return "#000000" if luminance > 0.179 else "#FFFFFF"


def draw_reliability(bins: Mapping[str, Any]) -> bytes:
    """Return a PNG of accuracy against confidence, one dot per bin with an area that grows with its number of calls.

    `bins` has the columns of `reliability_curve` (model/confidence.py). The accuracy of bins with fewer than 10 calls
    is mostly chance, so they are left out.
    """
    figure = Figure(figsize=(4.6, 4.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--")
    columns = np.array([bins["confidence"], bins["accuracy"], bins["num_cells"]], dtype=float)
    confidence, accuracy, num_cells = columns[:, columns[2] >= MIN_BIN_CALLS]
    axes.plot(confidence, accuracy, color=PALETTE[0], linewidth=1.5)
    axes.scatter(
        confidence, accuracy, color=PALETTE[0], s=10 + 150 * num_cells / num_cells.sum(), clip_on=False, zorder=3
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy", aspect="equal")
    axes.spines[["top", "right"]].set_visible(False)
    return png(figure)


def draw_scores(panels: Mapping[str, Sequence[tuple[str, float]]], score: str, baselines: Mapping[str, float]) -> bytes:
    """Return a PNG with a panel for each option: a dot for the value and the score of each run, and the means by value.

    `score` names the axis of scores, and `baselines` are drawn as dashed lines. Numbers are in their order, other
    values in the order of the runs.
    """
    figure = Figure(figsize=(1.2 + 3.2 * len(panels), 3.6), dpi=150, layout="constrained")
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (option, runs) in zip(drawn, panels.items(), strict=True):
        values = _in_order([value for value, _ in runs])
        place = {value: number for number, value in enumerate(values)}
        axes.scatter([place[value] for value, _ in runs], [number for _, number in runs], color=PALETTE[0], s=22)
        means = [np.mean([number for value, number in runs if value == wanted]) for wanted in values]
        axes.plot(range(len(values)), means, color=PALETTE[0], linewidth=1.2)
        for name, number in baselines.items():
            axes.axhline(number, color="#999999", linewidth=1, linestyle="--", label=name)
        axes.set_xticks(range(len(values)), values)
        axes.set_xlabel(option)
        axes.spines[["top", "right"]].set_visible(False)
    drawn[0].set_ylabel(score)
    drawn[-1].legend(frameon=False, fontsize=8)
    return png(figure)


def _in_order(values: Sequence[str]) -> list[str]:
    """Return values without repeats: numbers by size, others as they come."""
    unique = list(dict.fromkeys(values))
    try:
        return sorted(unique, key=float)
    except ValueError:
        return unique


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    file = io.BytesIO()
    # Without matplotlib's version in its metadata, the same figure gives the same bytes.
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
