"""Label colours, the reliability diagram, and figures as PNG."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from scipy.spatial.distance import cdist

# The six mid-tones of Okabe and Ito (2008). Each further colour has the largest distance in OKLab from white and all
# earlier colours, for normal vision, deuteranopia and protanopia (Machado et al. 2009, severity 1).
PALETTE = (
    *(
        "#0072B2",
        "#E69F00",
        "#009E73",
        "#CC79A7",
        "#56B4E9",
        "#D55E00",
        "#78000F",
        "#003C78",
        "#C3D2B4",
    ),
    *(
        "#5A87FF",
        "#A52D3C",
        "#2D3CB4",
        "#B4D2FF",
        "#C3E13C",
        "#2D5A78",
        "#A5B487",
        "#2D7878",
        "#691E4B",
    ),
    *(
        "#69C3C3",
        "#3C69E1",
        "#C33C1E",
        "#6996D2",
        "#A5D269",
        "#872D00",
        "#F0694B",
        "#00695A",
        "#7878D2",
    ),
    *("#1EA5FF", "#2D5AC3", "#2D4B87"),
)
# Machado et al. 2009: linear RGB as seen with normal vision, deuteranopia and protanopia.
VISION = np.array(
    [
        np.eye(3),
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ],
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
    ]
)
# Ottosson 2020: from linear RGB to cones, and from their cube roots to OKLab, whose distances are those that are seen.
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
DARKEST = 0.35  # lightness in OKLab, 0 to 1, that black gets on a dark page
MIN_BIN_CALLS = 10  # bins of a reliability diagram with fewer calls are not drawn


def colour_of(position: int) -> str:
    """Return the colour of the label at a position; the palette repeats after its last colour."""
    return PALETTE[position % len(PALETTE)]


def colour_distances() -> np.ndarray:
    """Return the distance of each two colours of the palette in OKLab, the least for all kinds of vision."""
    rgb = np.array([_linear(colour) for colour in PALETTE])
    seen = [np.cbrt(np.clip(rgb @ kind.T @ TO_CONES.T, 0, None)) @ TO_LAB.T for kind in VISION]
    return np.min([cdist(lab, lab) for lab in seen], axis=0)


def on_dark(colour: str) -> str:
    """Return a colour for a dark page: lighter, with the same hue; the order of lightness stays."""
    lab = np.cbrt(_linear(colour) @ TO_CONES.T) @ TO_LAB.T
    lab[0] = DARKEST + (1 - DARKEST) * lab[0]
    linear = np.clip((lab @ np.linalg.inv(TO_LAB.T)) ** 3 @ np.linalg.inv(TO_CONES.T), 0, 1)
    channels = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return to_hex(channels.clip(0, 1)).upper()


def _linear(colour: str) -> np.ndarray:
    """Return the linear RGB of a colour, 0 to 1."""
    channels = np.array(to_rgb(colour))
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def text_colour_on(colour: str) -> str:
    """Return black or white, whichever has the higher contrast on a colour (WCAG 2)."""
    luminance = float(_linear(colour) @ [0.2126, 0.7152, 0.0722])
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
        confidence,
        accuracy,
        color=PALETTE[0],
        s=10 + 150 * num_cells / num_cells.sum(),
        clip_on=False,
        zorder=3,
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
