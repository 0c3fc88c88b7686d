"""Label colours, the reliability diagram, and figures as PNG."""

import io
from collections.abc import Mapping
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
    """Return a PNG of accuracy against confidence, a dot per bin (`reliability_curve`) of 10 calls or more."""
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


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    file = io.BytesIO()
    # Without matplotlib's version in its metadata, the same figure gives the same bytes.
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
