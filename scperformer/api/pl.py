"""Plots of annotated cells, drawn by scanpy where it has them; each returns a matplotlib figure and changes nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from matplotlib.figure import Figure

from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of

if TYPE_CHECKING:
    from scperformer.explanations.explain import Explanation
    from scperformer.reports.evaluate import Evaluation

MOST_CELLS = 20_000  # in a UMAP that is computed here


def _column(adata: AnnData, name: str, key: str) -> str:
    """Return the column of obs with this name, or of the annotation: `label` is `scperformer_label`."""
    found = name if name in adata.obs or name in adata.var_names else f"{key}_{name}"
    if found not in adata.obs and found not in adata.var_names:
        known = ", ".join(column.removeprefix(f"{key}_") for column in map(str, adata.obs) if column.startswith(key))
        raise InputError(f"no '{name}' in the data", f"a column of obs, a gene or one of {known}", "annotate the cells")
    return found


def _column_of_obs(adata: AnnData, name: str, key: str) -> str:
    """Return the column of obs with this name as `_column`; refuse genes, whose values are no groups of cells."""
    found = _column(adata, name, key)
    if found not in adata.obs:
        raise InputError(f"the gene '{name}' as groups of cells", "a column of obs, such as a sample", "name one")
    return found


def _colours(column: pd.Series) -> dict[str, str]:
    """Return the colour of each category, the same in all plots and whichever of them occur."""
    return {category: colour_of(place) for place, category in enumerate(column.astype("category").cat.categories)}


def embedding(
    adata: AnnData,
    color: str | Sequence[str] = ("label", "confidence"),
    *,
    basis: str | None = None,
    key_added: str = "scperformer",
    seed: int = 0,
    ncols: int = 2,
) -> Figure:
    """Draw annotated cells on a map, one panel for each colour.

    Parameters
    ----------
    adata
        N annotated cells.
    color
        Columns of the annotation (label, confidence, unknown, ...), other columns of obs, or genes.
    basis
        Entry of obsm to draw, such as "X_umap"; None: a UMAP of the model's embedding, of 20,000 random cells at most.
    key_added
        Prefix of the annotation.
    seed
        Of the UMAP and of the choice of its cells.
    ncols
        Panels in a row.
    """
    colours = [_column(adata, name, key_added) for name in ([color] if isinstance(color, str) else color)]
    rows = np.arange(adata.n_obs)
    if basis is None and adata.n_obs > MOST_CELLS:
        rows = np.sort(np.random.default_rng(seed).choice(adata.n_obs, MOST_CELLS, replace=False))
    genes = [name for name in colours if name not in adata.obs]
    adata = adata.to_memory() if adata.isbacked else adata  # views of backed views are not possible
    cells = adata[rows, genes].copy()  # the user's own is not changed
    if basis is None:
        if f"X_{key_added}" not in adata.obsm:
            raise InputError(f"no obsm['X_{key_added}'] in the data", "annotated cells", "call scperformer.annotate")
        sc.pp.neighbors(cells, use_rep=f"X_{key_added}", random_state=seed)
        sc.tl.umap(cells, random_state=seed)
        basis = "X_umap"
    for name in colours:
        if name in cells.obs and isinstance(cells.obs[name].dtype, pd.CategoricalDtype):
            colour = _colours(cells.obs[name])
            cells.obs[name] = cells.obs[name].cat.remove_unused_categories()
            cells.uns[f"{name}_colors"] = [colour[category] for category in cells.obs[name].cat.categories]
    limits = [(0, 1) if name == f"{key_added}_confidence" else (None, None) for name in colours]
    low, high = (list(ends) for ends in zip(*limits, strict=True))
    options = {"vmin": low, "vmax": high, "ncols": ncols, "wspace": 0.5, "return_fig": True, "show": False}
    return sc.pl.embedding(cells, basis.removeprefix("X_"), color=colours, **options)


def composition(adata: AnnData, groupby: str, *, key_added: str = "scperformer") -> Figure:
    """Draw the shares of the labels in each group of annotated cells as stacked bars.

    Parameters
    ----------
    adata
        N annotated cells.
    groupby
        Column of obs, such as the sample or the donor.
    key_added
        Prefix of the annotation.
    """
    label, groups = (_column_of_obs(adata, name, key_added) for name in ("label", groupby))
    shares = pd.crosstab(adata.obs[groups], adata.obs[label], normalize="index")
    figure = Figure(figsize=(8, 1 + 0.4 * len(shares)), layout="constrained")
    axes = figure.subplots()
    shares.iloc[::-1].plot.barh(stacked=True, ax=axes, width=0.85, color=_colours(adata.obs[label]))
    axes.set(xlabel="share of cells", ylabel=groupby, xlim=(0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def confusion(evaluation: "Evaluation", *, normalize: bool = True) -> Figure:
    """Draw the confusion matrix of an evaluation: true labels are rows, predicted labels columns.

    Parameters
    ----------
    evaluation
        From `evaluate`.
    normalize
        Shares of the cells of each true label instead of numbers of cells.
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
    """Draw the expression of the genes that contribute most to each label, as scanpy's dot plot.

    Parameters
    ----------
    explanation
        From `explain`.
    num_genes
        Genes of each label.
    """
    cells = explanation.adata
    key = explanation.key
    means = cells.varm[f"{key}_contributions"]
    labels = [str(label) for label in cells.uns[key]["labels"]]
    order = zip(labels, means.columns, strict=True)
    genes = {label: means[column].nlargest(num_genes).index.tolist() for label, column in order}
    options = {"layer": "expression", "standard_scale": "var", "colorbar_title": "Mean expression,\n0 to 1 per gene"}
    plot = sc.pl.dotplot(cells, genes, f"{key}_label", return_fig=True, show=False, **options)
    plot.make_figure()
    return plot.fig
