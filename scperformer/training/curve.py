"""The learning curve of a training as a picture: its loss, and its scores beside those of logistic regression."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scperformer.pictures import PALETTE, png
from scperformer.training.history import Epoch

INCHES, DPI = (9.0, 3.9), 150
INK, FAINT = "#333333", "#999999"
SCORES = {"macro_f1": "macro-F1", "accuracy": "accuracy"}


def draw_learning_curve(epochs: list[Epoch], best_epoch: int, baseline: Mapping[str, float]) -> bytes:
    """A PNG of the training loss, and of validation macro-F1 and accuracy, by epoch.

    Parameters
    ----------
    epochs
        At least one, in their order.
    best_epoch
        The epoch whose weights the model has; marked.
    baseline
        `macro_f1` and `accuracy` of logistic regression on the same validation cells: dashed lines.
    """
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)  # draws without a display, whatever backend the user has set
    left, right = figure.subplots(1, 2)
    numbers = [epoch["epoch"] for epoch in epochs]
    left.plot(numbers, [epoch["train_loss"] for epoch in epochs], color=INK, marker=".")
    left.set_title("training loss", loc="left")
    for colour, (name, text) in zip(PALETTE, SCORES.items(), strict=False):
        values = [epoch[f"val_{name}"] for epoch in epochs]
        right.plot(numbers, values, color=colour, marker=".", label=text)
        at_best = [value for number, value in zip(numbers, values, strict=True) if number == best_epoch]
        right.plot([best_epoch] * len(at_best), at_best, color=colour, marker="o", markersize=7)
        right.axhline(baseline[name], color=colour, linestyle="--", linewidth=1, label=f"{text}, logistic regression")
    right.set_title("scores on the validation cells", loc="left")
    for axes in (left, right):
        _finish(axes, best_epoch, len(epochs))
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return png(figure)


def _finish(axes: Axes, best_epoch: int, num_epochs: int) -> None:
    """Mark the best epoch and leave out what says nothing."""
    axes.axvline(best_epoch, color=FAINT, linewidth=1, zorder=0)
    axes.set_xlabel(f"epoch (best: {best_epoch})")
    axes.set_xlim(0.5, num_epochs + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
