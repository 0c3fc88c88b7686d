"""The tables, the figures and the page of an explanation, which is an AnnData from explain.py."""

import base64
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.figure import Figure

from scperformer.base.messages import escape_formula
from scperformer.base.pictures import colour_of, png
from scperformer.results.pages import render_page

NUM_TOP = 20  # genes of a label that are compared with its markers, and deleted in the text about the deletion test
NUM_LISTED = 100  # genes of a label in the table
NUM_FOR = 12  # genes with contributions for a label, and genes with attention, on the page
NUM_AGAINST = 4  # genes with contributions against a label on the page
MAX_DRAWN = 60  # genes in the dot plot, but at least one of each label
MAX_DRAWN_PER_LABEL = 5
DELETED = {"contribution": "largest contributions", "random": "random", "expression": "most expressed"}
DPI = 140


def gene_tables(explanation: AnnData, key: str, *, listed: bool = True) -> dict[str, pd.DataFrame]:
    """Return a table of genes for each label of the cells, in descending order of the mean contribution.

    Only `listed` genes are in it (column `listed` of var), or else all.

    Its columns are `mean`; `rank` among the markers of the explained label (NaN: unknown); and the mean `attention` to
    the gene, if cells read genes.
    """
    names = {"mean": "contributions", "rank": "marker_ranks", "attention": "attention"}
    known = {column: explanation.varm.get(f"{key}_{name}") for column, name in names.items()}
    tables = {}
    for place, label in enumerate(explanation.uns[key]["labels"]):
        columns = {column: table.iloc[:, place] for column, table in known.items() if table is not None}
        columns = {"mean": columns["mean"], "rank": np.nan} | columns
        table = pd.DataFrame(columns)[explanation.var["listed"] | (not listed)]
        tables[label] = table.sort_values("mean", ascending=False, kind="stable")
    return tables


def marker_overlap(explanation: AnnData, key: str) -> dict[str, int]:
    """Return how many of the 20 genes with the largest mean contributions are among the 20 best markers, by label.

    Labels without known markers are left out. If a given label is explained in all cells, only the cells of this label
    count, because other cells need not express its markers.
    """
    explained = explanation.uns[key]["label"]
    tables = gene_tables(explanation, key, listed=False)
    ranks = {label: table["rank"] for label, table in tables.items() if explained in ("", label)}
    return {label: int((rank.head(NUM_TOP) <= NUM_TOP).sum()) for label, rank in ranks.items() if rank.notna().any()}


def genes_per_label(explanation: AnnData, key: str) -> pd.DataFrame:
    """Return the 100 genes with the largest absolute mean contributions to each label, in descending order."""
    chosen = {
        label: genes[genes["mean"].abs().rank(ascending=False, method="first") <= NUM_LISTED]
        for label, genes in gene_tables(explanation, key).items()
    }
    return _table_of(chosen, explanation, key)


def attention_per_label(explanation: AnnData, key: str) -> pd.DataFrame:
    """Return the 100 genes with the highest mean attention in the cells of each label; empty if cells read no genes."""
    if f"{key}_attention" not in explanation.varm:
        return pd.DataFrame()
    chosen = {
        label: genes.sort_values("attention", ascending=False, kind="stable").head(NUM_LISTED)
        for label, genes in gene_tables(explanation, key).items()
    }
    return _table_of(chosen, explanation, key)


def _table_of(genes_of_label: dict[str, pd.DataFrame], explanation: AnnData, key: str) -> pd.DataFrame:
    """Return one table of some rows of `gene_tables`, with the numbers of cells that express each gene."""
    tables = []
    for label, chosen in genes_of_label.items():
        cells = explanation[explanation.obs[f"{key}_label"] == label, chosen.index]
        columns = {
            "label": escape_formula(label),
            "gene": map(escape_formula, chosen.index),
            "mean_contribution": chosen["mean"],
        }
        if "attention" in chosen:
            columns["mean_attention"] = chosen["attention"]
        columns |= {"num_expressing": cells.layers["expression"].getnnz(axis=0), "num_cells": cells.n_obs}
        tables.append(pd.DataFrame(columns | {"marker_rank": chosen["rank"].astype("Int64")}))
    return pd.concat(tables, ignore_index=True)


def deletion_text(table: pd.DataFrame) -> str:
    """Return the result of the deletion of 20 genes as text."""
    before = table.iloc[0]
    after = table.set_index("num_genes").loc[NUM_TOP]
    return (
        f"mean probability of the label: {before['contribution']:.2f}; without the {NUM_TOP} genes of each cell that "
        f"contribute most: {after['contribution']:.2f}; without {NUM_TOP} random genes: {after['random']:.2f}"
    )


def draw_dots(explanation: AnnData, key: str) -> bytes:
    """Return a dot plot of the expression of the first genes of each label in the cells of each label, as PNG."""
    import matplotlib
    import scanpy as sc  # takes seconds to import
    from matplotlib import pyplot as plt

    tables = gene_tables(explanation, key)
    num = int(np.clip(MAX_DRAWN // len(tables), 1, MAX_DRAWN_PER_LABEL))
    genes = {label: list(table.index[:num]) for label, table in tables.items()}
    options = {"layer": "expression", "standard_scale": "var", "colorbar_title": "Mean expression\n(scaled per gene)"}
    backend = matplotlib.get_backend()
    plt.switch_backend("agg")  # draws without a screen
    figures = plt.get_fignums()
    try:  # names of genes are no formulas
        with plt.rc_context({"text.parse_math": False, "figure.dpi": DPI, "savefig.dpi": DPI, "savefig.bbox": "tight"}):
            plot = sc.pl.dotplot(explanation, genes, f"{key}_label", return_fig=True, **options)
            plot.make_figure()
            return png(plot.fig)
    finally:
        for number in set(plt.get_fignums()).difference(figures):
            plt.close(number)
        plt.switch_backend(backend)


def draw_deletion(table: pd.DataFrame) -> bytes:
    """Return a figure of the mean probability by the number of deleted genes, as PNG."""
    figure = Figure(figsize=(6.4, 4.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for place, (name, text) in enumerate(DELETED.items()):
        axes.plot(table["num_genes"], table[name], marker="o", color=colour_of(place), label=text)
    axes.set(xlabel="genes deleted from each cell", ylabel="mean probability of the label", ylim=(0, 1.02))
    axes.grid(alpha=0.25)
    axes.legend(title="deleted genes", frameon=False)
    return png(figure)


def _rows(explanation: AnnData, key: str) -> list[dict[str, Any]]:
    """Return a row of the page for each label: its cells, overlap with markers, and genes for, against and read."""
    overlap = marker_overlap(explanation, key)
    counts = explanation.obs[f"{key}_label"].value_counts()
    rows = []
    for label, genes in gene_tables(explanation, key).items():
        row: dict[str, Any] = {"label": label, "num_cells": int(counts[label]), "overlap": overlap.get(label)}
        sides = {"for": genes[genes["mean"] > 0].head(NUM_FOR)}
        sides["against"] = genes[genes["mean"] < 0].iloc[::-1].head(NUM_AGAINST)
        if "attention" in genes:
            sides["attention"] = genes.sort_values("attention", ascending=False, kind="stable").head(NUM_FOR)
        for side, first in sides.items():
            numbers = first["attention" if side == "attention" else "mean"]
            row[side] = list(zip(first.index, numbers, first["rank"] <= NUM_TOP, strict=True))
        rows.append(row)
    return rows


def render_explanation(explanation: AnnData, key: str, sample: str) -> str:
    """Return the HTML page of an explanation; `sample` is the name of the sample."""
    facts = explanation.uns[key]
    table = facts["deletion"]
    pictures = {
        "dots": draw_dots(explanation, key),
        "deletion": draw_deletion(table),
    }
    rows = _rows(explanation, key)
    overlaps = [row["overlap"] for row in rows if row["overlap"] is not None]
    at_20 = table.set_index("num_genes").loc[NUM_TOP]
    return render_page(
        "explanation.html.jinja",
        sample=sample,
        facts=facts,
        num_cells=explanation.n_obs,
        num_genes=explanation.n_vars,
        rows=rows,
        has_attention="attention" in rows[0],
        num_top=NUM_TOP,
        overlap=float(np.mean(overlaps)) if overlaps else None,
        error=float(np.abs(explanation.obs[f"{key}_error"]).max()),
        logit=float(explanation.obs[f"{key}_logit"].mean()),
        bias=float(explanation.obs[f"{key}_bias"].mean()),
        deletion=table.to_dict("records"),
        names=DELETED,
        at_20=at_20,
        is_passed=bool(at_20["contribution"] < at_20["random"]),
        pictures={name: base64.b64encode(content).decode("ascii") for name, content in pictures.items()},
    )
