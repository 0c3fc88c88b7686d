"""Plots of annotated cells, with scanpy where it offers them. Each returns axes and changes no data.

As in scanpy, `ax` are the axes to draw into, `save` is a file to write the figure into, and `show` shows it at once.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of, text_colour_on
from scperformer.labels.texts import require_no_containers
from scperformer.labels.tree import NO_CALL
from scperformer.results.cell_map import MAX_CELLS, MIN_CELLS, draw_cells
from scperformer.results.explanation_page import dot_plot
from scperformer.results.read_annotations import of_cells, with_details
from scperformer.results.report_tables import UNKNOWN_COLOUR, order_labels

if TYPE_CHECKING:
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.explain import Explanation

File = str | os.PathLike[str]
PANEL = (5.6, 4.8)  # width and height of a panel of an embedding in inches
MARGIN = 0.9  # inches between panels, beside legends


def _column(obs: pd.DataFrame, genes: pd.Index, name: str, key: str) -> str:
    """Return the full name of a column of obs or a gene; annotation columns may be given without the prefix.

    With the usual key, `label` stands for `scperformer_label`.
    """
    for column in (name, f"{key}_{name}"):
        if column in obs:
            require_no_containers(obs[column])
        if column in obs or column in genes:
            return column
    known = ", ".join(
        column.removeprefix(f"{key}_") for column in map(str, obs) if column.startswith(key)
    )
    expected = f"a column of obs, a gene or one of {known}"
    raise InputError("unknown-color", f"no '{name}' in the data", expected, "annotate the cells")


def _colours(adata: AnnData, obs: pd.DataFrame, column: str, key: str) -> dict[str, str]:
    """Return the colour of each category of a column, as in the report: unknown is grey, and has no other colour."""
    if not column.startswith(f"{key}_"):  # all categories of a column of the user, whichever occur
        categories = obs[column].astype("category").cat.categories
        return {category: colour_of(place) for place, category in enumerate(categories)}
    known = {label.name: label.colour for label in order_labels([of_cells(adata, key)])} | {
        NO_CALL: UNKNOWN_COLOUR
    }
    # Of values that are no labels, such as clusters.
    free = (
        colour
        for place in range(1000)
        if (colour := colour_of(place)) not in known.values() or place > 30
    )
    return {value: known.get(value) or next(free) for value in obs[column].value_counts().index}


def _finish(axes: Axes, show: bool, save: File | None) -> Axes:
    """Write the figure of some axes into a file, and show it, if that is wanted; return the axes."""
    if save is not None:
        axes.get_figure(root=True).savefig(save, bbox_inches="tight")  # type: ignore[union-attr]
    if show:
        pyplot.show()
    return axes


def _make_room_for_legends(panels: Sequence[Axes], shape: tuple[int, int]) -> None:
    """Set the size of a figure of panels, rows x columns, so that the widest legend fits between them."""
    figure = panels[0].get_figure(root=True)
    assert figure is not None
    legends = (legend for axes in panels if (legend := axes.get_legend()) is not None)
    gap = (
        MARGIN
        + max((legend.get_window_extent().width for legend in legends), default=0) / figure.dpi
    )
    width, height = shape[1] * (PANEL[0] + gap), shape[0] * (PANEL[1] + MARGIN)
    figure.set_size_inches(width, height)
    ends = {"left": MARGIN / 2 / width, "right": 1 - (gap - MARGIN / 2) / width}
    ends |= {"bottom": MARGIN / 2 / height, "top": 1 - MARGIN / 2 / height}
    figure.subplots_adjust(**ends, wspace=gap / PANEL[0], hspace=MARGIN / PANEL[1])


def embedding(
    adata: AnnData,
    color: str | Sequence[str] = ("call", "confidence"),
    *,
    basis: str | None = None,
    key_added: str = "scperformer",
    seed: int = 0,
    ncols: int = 2,
    ax: Axes | None = None,
    show: bool = False,
    save: File | None = None,
) -> Axes | list[Axes]:
    """Draw annotated cells in two dimensions, with a panel for each colouring.

    Parameters
    ----------
    adata
        N annotated cells.
    color
        Columns of the annotation (call, label, confidence, novelty, ...), other columns of obs, or genes.
    basis
        Entry of obsm to draw, such as "X_pca". None: "X_umap" if the data have it, else a UMAP of their expression as
        in the report, with at most 12,000 random cells.
    key_added
        Prefix of the annotation.
    seed
        Seed of the UMAP and of the random choice of cells.
    ncols
        Number of panels in a row.
    ax
        Axes to draw one colouring into.

    Returns
    -------
    The axes; for several colourings a list of them, in their order.

    Raises
    ------
    InputError
        A column is missing, the cells are not annotated, or there are too few cells for a UMAP.
    """
    obs = with_details(adata.obs, adata.obsm.get(f"{key_added}_details"), key_added)
    colours = [color] if isinstance(color, str) else color
    columns = [_column(obs, adata.var_names, name, key_added) for name in colours]
    rows = np.arange(adata.n_obs)
    # a view of a backed view is not possible
    adata = adata.to_memory() if adata.isbacked else adata
    coordinates = None
    if basis is None:
        drawn = draw_cells([of_cells(adata, key_added)], MAX_CELLS, seed)
        if drawn.xy is None:
            remedy = "choose more cells, or name an entry of obsm with basis=..."
            expected = f"at least {MIN_CELLS} cells that differ"
            raise InputError("few-cells", f"{adata.n_obs} cells for a UMAP", expected, remedy)
        rows, coordinates, basis = drawn.rows, drawn.xy, "X_umap"
    genes = [name for name in columns if name not in obs]
    cells = adata[rows, genes].copy()  # the AnnData of the user stays as it is
    cells.obs = obs.iloc[rows].copy()
    if coordinates is not None:
        cells.obsm[basis] = coordinates
    for name in columns:
        if name in cells.obs and isinstance(cells.obs[name].dtype, pd.CategoricalDtype):
            colour = _colours(adata, obs, name, key_added)
            shown = cells.obs[name].cat.remove_unused_categories()
            cells.obs[name] = shown
            cells.uns[f"{name}_colors"] = [colour[category] for category in shown.cat.categories]
    shape = -(-len(columns) // ncols), min(ncols, len(columns))
    grid = pyplot.subplots(*shape, squeeze=False)[1].ravel().tolist() if ax is None else [ax]
    made: list[Axes] = grid[: len(columns)]
    for name, axes in zip(columns, made, strict=True):
        limits = {"vmin": 0, "vmax": 1} if name == f"{key_added}_confidence" else {}
        sc.pl.embedding(cells, basis.removeprefix("X_"), color=name, ax=axes, show=False, **limits)
    if ax is None:
        _make_room_for_legends(made, shape)
        for empty in grid[len(columns) :]:
            empty.remove()
    _finish(made[0], show, save)
    return made[0] if len(made) == 1 else made


def composition(
    adata: AnnData,
    groupby: str | None = None,
    color: str = "call",
    *,
    key_added: str = "scperformer",
    ax: Axes | None = None,
    show: bool = False,
    save: File | None = None,
) -> Axes:
    """Draw the shares of the calls in each group of annotated cells as stacked bars; unknown cells are hatched.

    Parameters
    ----------
    adata
        N annotated cells.
    groupby
        A column of obs, such as the sample or the donor. None: all cells are one group.
    color
        The column whose values are counted: call, label, level1, ...
    key_added
        Prefix of the annotation.
    """
    obs = with_details(adata.obs, adata.obsm.get(f"{key_added}_details"), key_added)
    none = pd.Index([])  # genes do not group cells
    label = _column(obs, none, color, key_added)
    groups = "all" if groupby is None else obs[_column(obs, none, groupby, key_added)]
    shares = pd.crosstab(groups, obs[label], normalize="index")
    # the legend has a line for each value
    height = max(1 + 0.4 * len(shares), 0.5 + 0.25 * shares.shape[1])
    axes = ax or pyplot.subplots(figsize=(8, height), layout="constrained")[1]
    shares.iloc[::-1].plot.barh(
        stacked=True, ax=axes, width=0.85, color=_colours(adata, obs, label, key_added)
    )
    axes.set(xlabel="share of cells", ylabel=groupby or "cells", xlim=(0, 1))
    for bars in axes.containers:
        if bars.get_label() == NO_CALL:
            for bar in bars:
                bar.set(facecolor="white", edgecolor=UNKNOWN_COLOUR, hatch="////")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return _finish(axes, show, save)


def confusion(
    evaluation: "Evaluation",
    *,
    normalize: bool = True,
    ax: Axes | None = None,
    show: bool = False,
    save: File | None = None,
) -> Axes:
    """Draw the confusion matrix of an evaluation with its numbers; true labels are rows, predicted labels columns.

    Parameters
    ----------
    evaluation
        The result of `evaluate`.
    normalize
        Draw percentages of the cells of each true label instead of numbers of cells.
    """
    table = evaluation.confusion
    table = table.loc[table.sum(axis=1) > 0, (table.sum(axis=0) > 0) | (table.sum(axis=1) > 0)]
    if normalize:
        table = 100 * table.div(table.sum(axis=1), axis=0)
    size = (2.5 + 0.4 * table.shape[1], 2 + 0.4 * table.shape[0])
    axes = ax or pyplot.subplots(figsize=size, layout="constrained")[1]
    image = axes.imshow(table.to_numpy(), cmap="Blues", vmin=0)
    for row, column in zip(*np.nonzero(table.to_numpy()), strict=True):
        number = table.iat[row, column]
        colour = text_colour_on(to_hex(tuple(image.cmap(image.norm(number)))))
        text = "<1" if 0 < number < 0.5 else f"{number:.0f}"
        axes.text(column, row, text, color=colour, fontsize=7, ha="center", va="center")
    axes.set_xticks(range(table.shape[1]), table.columns, rotation=90)
    axes.set_yticks(range(table.shape[0]), table.index)
    axes.set(xlabel="predicted label", ylabel="true label")
    label = "% of the true label" if normalize else "cells"
    axes.get_figure().colorbar(image, ax=axes, label=label)  # type: ignore[union-attr]
    return _finish(axes, show, save)


def markers(
    explanation: "Explanation",
    *,
    num_genes: int = 3,
    ax: Axes | None = None,
    show: bool = False,
    save: File | None = None,
) -> Axes:
    """Draw a dot plot of the expression of the genes that contribute most to each label, among the listed ones.

    Parameters
    ----------
    explanation
        The result of `explain`.
    num_genes
        Number of genes of each label.
    """
    return _finish(dot_plot(explanation.adata, explanation.key, num_genes, ax), show, save)
