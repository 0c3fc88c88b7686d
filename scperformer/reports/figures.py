"""UMAP pictures of the report.

They show no text of the user, only numbers, which the page explains: nothing needs to be escaped for matplotlib.
"""

import warnings

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from scperformer.pictures import colour_of, png

# Low confidence, which readers look for, is bright. Lightness falls evenly, so that the scale also works in grey.
CONFIDENCE_STOPS = ("#F9B233", "#E8785A", "#B5527D", "#6A4590", "#1F3B73")
MIN_CELLS = 15  # UMAP's default number of neighbours
PICTURE_INCHES, PICTURE_DPI = (6.0, 5.1), 180
BADGE_POINTS = 17  # diameter of the circle around a number


def umap_coordinates(embedding: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32] | None:
    """UMAP of an N x dim embedding, N x 2; None for fewer than `MIN_CELLS` cells, or if all have the same embedding.

    Source: McInnes, Healy and Melville 2018; the parameters are scanpy's defaults.
    """
    if len(embedding) < MIN_CELLS or embedding.shape[1] == 0 or not np.ptp(embedding, axis=0).any():
        return None
    import umap  # 2 s; needed nowhere else
    from sklearn.neighbors import NearestNeighbors

    # For 20,000 cells the exact search is faster than compiling umap-learn's approximate one.
    num_neighbours = min(15, len(embedding) - 1)
    search = NearestNeighbors(n_neighbors=num_neighbours, algorithm="brute").fit(embedding)
    distances, neighbours = search.kneighbors(embedding)
    with warnings.catch_warnings():
        # UMAP warns that a seed means one thread, and that it cannot place new cells without its own search.
        warnings.simplefilter("ignore", UserWarning)
        options = {"n_neighbors": num_neighbours, "min_dist": 0.5, "random_state": seed}
        layout = umap.UMAP(**options, precomputed_knn=(neighbours, distances, None))
        return np.asarray(layout.fit_transform(embedding), dtype=np.float32)


def _apart(points: npt.NDArray[np.float64], distance: float) -> npt.NDArray[np.float64]:
    """Push points (K x 2) apart until they are about `distance` from each other."""
    # Points at the same place get different directions to move in.
    angles = np.arange(len(points)) * 2.4
    points = points + 1e-3 * np.column_stack([np.cos(angles), np.sin(angles)])
    for _ in range(200):
        steps = points[:, None] - points[None]
        gaps = np.hypot(steps[..., 0], steps[..., 1])
        np.fill_diagonal(gaps, np.inf)
        push = np.clip(distance - gaps, 0, None) / 2 / gaps
        if not push.any():
            break
        points = points + (steps * push[..., None]).sum(axis=1)
    return points


def _canvas(xy: npt.NDArray[np.float32], colours: list[str] | npt.NDArray[np.floating]) -> tuple[Figure, Axes]:
    """A figure with a dot for each cell, drawn in the order of `xy`, and a margin around them."""
    figure = Figure(figsize=PICTURE_INCHES, dpi=PICTURE_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    low, high = xy.min(axis=0), xy.max(axis=0)
    margin = 0.06 * np.maximum(high - low, 1e-6)
    axes.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    area = float(np.clip(20_000 / len(xy), 2.5, 40))  # square points: larger for fewer cells
    axes.scatter(xy[:, 0], xy[:, 1], c=colours, s=area, linewidths=0)
    return figure, axes


def draw_labels(xy: npt.NDArray[np.float32], codes: npt.NDArray[np.int64]) -> bytes:
    """A PNG of cells coloured by label, with the number of each label (its code + 1) drawn in its centre."""
    order = np.random.default_rng(0).permutation(len(xy))  # otherwise the last label covers the others
    figure, axes = _canvas(xy[order], [colour_of(code) for code in codes[order].tolist()])
    present = np.unique(codes).tolist()
    # The centre is the cell nearest to the median: a mean can lie between two groups.
    groups = [xy[codes == code] for code in present]
    middles = [group[np.square(group - np.median(group, axis=0)).sum(axis=1).argmin()] for group in groups]
    pixels = axes.transData.transform(middles)
    centres = axes.transData.inverted().transform(_apart(pixels, BADGE_POINTS * 1.2 / 72 * PICTURE_DPI))
    rings = [colour_of(code) for code in present]
    # White circles, so that a number stands out from cells of its own colour.
    axes.scatter(centres[:, 0], centres[:, 1], c="white", s=BADGE_POINTS**2, edgecolors=rings, linewidths=2)
    for code, (x, y) in zip(present, centres, strict=True):
        axes.text(x, y, str(code + 1), size=10, weight="bold", ha="center", va="center_baseline")
    return png(figure)


def draw_confidence(xy: npt.NDArray[np.float32], confidence: npt.NDArray[np.floating]) -> bytes:
    """A PNG of cells coloured by confidence (0 to 1), the least confident ones on top."""
    order = np.argsort(-confidence, kind="stable")
    scale = LinearSegmentedColormap.from_list("confidence", CONFIDENCE_STOPS)
    figure, _ = _canvas(xy[order], scale(confidence[order].astype(float)))
    return png(figure)
