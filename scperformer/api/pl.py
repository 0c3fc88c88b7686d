"""Plots of annotated cells, with scanpy where it offers them. Each returns a matplotlib figure and changes nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from matplotlib.figure import Figure

from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of
from scperformer.explanations.page import dot_plot
from scperformer.reports.umap import MIN_CELLS, umap_coordinates

if TYPE_CHECKING:
    from scperformer.explanations.explain import Explanation
    from scperformer.reports.evaluate import Evaluation

MAX_CELLS = 20_000  # the largest number of cells in a UMAP that is computed here


def _column(adata: AnnData, name: str, key: str) -> str:
    """Return the full name of a column of obs or a gene; annotation columns may be given without the prefix.

    With the usual key, `label` stands for `scperformer_label`.
    """
    for column in (name, f"{key}_{name}"):
        if column in adata.obs or column in adata.var_names:
            return column
    known = ", ".join(column.removeprefix(f"{key}_") for column in map(str, adata.obs) if column.startswith(key))
    raise InputError(f"no '{name}' in the data", f"a column of obs, a gene or one of {known}", "annotate the cells")


def _column_of_obs(adata: AnnData, name: str, key: str) -> str:
    """Return the full name of a column of obs, as `_column`; refuse genes, which do not group cells."""
    column = _column(adata, name, key)
    if column not in adata.obs:
        expected = "a column of obs, such as the sample"
        raise InputError(f"the gene '{name}' in place of groups of cells", expected, "choose a column of obs")
    return column


def _colours(column: pd.Series) -> dict[str, str]:
    """Return the colour of each category. It does not depend on which categories occur among the cells."""
    return {category: colour_of(place) for place, category in enumerate(column.astype("category").cat.categories)}


def embedding(
    adata: AnnData,
    color: str | Sequence[str] = ("call", "confidence"),
    *,
    basis: str | None = None,
    key_added: str = "scperformer",
    seed: int = 0,
    ncols: int = 2,
) -> Figure:
    """Draw annotated cells in two dimensions, with a panel for each colouring.

    Parameters
    ----------
    adata
        N annotated cells.
    color
        Columns of the annotation (call, label, confidence, novelty, ...), other columns of obs, or genes.
    basis
        Entry of obsm to draw, such as "X_umap". None: a UMAP of the model's embedding as in the report, with at most
        20,000 random cells.
    key_added
        Prefix of the annotation.
    seed
        Seed of the UMAP and of the random choice of cells.
    ncols
        Number of panels in a row.

    Raises
    ------
    InputError
        A column is missing, the cells are not annotated, or there are too few cells for a UMAP.
    """
    columns = [_column(adata, name, key_added) for name in ([color] if isinstance(color, str) else color)]
    rows = np.arange(adata.n_obs)
    if basis is None and adata.n_obs > MAX_CELLS:
        rows = np.sort(np.random.default_rng(seed).choice(adata.n_obs, MAX_CELLS, replace=False))
    genes = [name for name in columns if name not in adata.obs]
    adata = adata.to_memory() if adata.isbacked else adata  # a view of a backed view is not possible
    cells = adata[rows, genes].copy()  # the AnnData of the user stays as it is
    if basis is None:
        basis = "X_umap"
        cells.obsm[basis] = _umap(cells, key_added, seed)
    for name in columns:
        if name in cells.obs and isinstance(cells.obs[name].dtype, pd.CategoricalDtype):
            colour = _colours(cells.obs[name])
            cells.obs[name] = cells.obs[name].cat.remove_unused_categories()
            cells.uns[f"{name}_colors"] = [colour[category] for category in cells.obs[name].cat.categories]
    limits = [(0, 1) if name == f"{key_added}_confidence" else (None, None) for name in columns]
    lowest, highest = (list(ends) for ends in zip(*limits, strict=True))
    options = {"vmin": lowest, "vmax": highest, "ncols": ncols, "wspace": 0.5, "return_fig": True, "show": False}
    return sc.pl.embedding(cells, basis.removeprefix("X_"), color=columns, **options)


def _umap(cells: AnnData, key: str, seed: int) -> np.ndarray:
    """Return the UMAP of the embeddings of annotated cells, N x 2."""
    if f"X_{key}" not in cells.obsm:
        raise InputError(f"no obsm['X_{key}'] in the data", "annotated cells", "call scperformer.annotate")
    coordinates = umap_coordinates(np.asarray(cells.obsm[f"X_{key}"], dtype=np.float32), seed)
    if coordinates is None:
        remedy = "choose more cells, or name an entry of obsm with basis=..."
        expected = f"at least {MIN_CELLS} cells, not all with the same embedding"
        raise InputError(f"{cells.n_obs} cells for a UMAP", expected, remedy)
    return coordinates


def composition(adata: AnnData, groupby: str, *, key_added: str = "scperformer") -> Figure:
    """Draw the shares of the calls in each group of annotated cells as stacked bars.

    Parameters
    ----------
    adata
        N annotated cells.
    groupby
        A column of obs, such as the sample or the donor.
    key_added
        Prefix of the annotation.
    """
    label, groups = (_column_of_obs(adata, name, key_added) for name in ("call", groupby))
    shares = pd.crosstab(adata.obs[groups], adata.obs[label], normalize="index")
    figure = Figure(figsize=(8, 1 + 0.4 * len(shares)), layout="constrained")
    axes = figure.subplots()
    shares.iloc[::-1].plot.barh(stacked=True, ax=axes, width=0.85, color=_colours(adata.obs[label]))
    axes.set(xlabel="share of cells", ylabel=groupby, xlim=(0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def confusion(evaluation: "Evaluation", *, normalize: bool = True) -> Figure:
    """Draw the confusion matrix of an evaluation, with true labels as rows and predicted labels as columns.

    Parameters
    ----------
    evaluation
        The result of `evaluate`.
    normalize
        Draw shares of the cells of each true label instead of numbers of cells.
    """
    table = evaluation.confusion
    table = table.loc[table.sum(axis=1) > 0, (table.sum(axis=0) > 0) | (table.sum(axis=1) > 0)]
    if normalize:
        table = table.div(table.sum(axis=1), axis=0)
    figure = Figure(figsize=(2.5 + 0.4 * table.shape[1], 2 + 0.4 * table.shape[0]), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table.to_numpy(), cmap="Blues", vmin=0)
    axes.set_xticks(range(table.shape[1]), table.columns, rotation=90)
    axes.set_yticks(range(table.shape[0]), table.index)
    axes.set(xlabel="predicted label", ylabel="true label")
    figure.colorbar(image, label="share of the true label" if normalize else "cells")
    return figure


def markers(explanation: "Explanation", *, num_genes: int = 3) -> Figure:
    """Draw a dot plot of the expression of the genes that contribute most to each label.

    Parameters
    ----------
    explanation
        The result of `explain`.
    num_genes
        Number of genes of each label.
    """
    cells = explanation.adata
    key = explanation.key
    means = cells.varm[f"{key}_contributions"]
    labels = [str(label) for label in cells.uns[key]["labels"]]
    order = zip(labels, means.columns, strict=True)
    genes = {label: means[column].nlargest(num_genes).index.tolist() for label, column in order}
    return dot_plot(cells, key, genes)
