"""The tables, the pictures and the page of an explanation, an AnnData as `explain` makes it."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.figure import Figure

from scperformer.base.messages import escape_formula
from scperformer.base.pictures import colour_of, png
from scperformer.reports import render_page

NUM_TOP = 20  # genes of a label that are compared with its markers
NUM_LISTED = 100  # genes of a label in the table
NUM_SHOWN, NUM_AGAINST = 12, 4  # genes of a label on the page, for and against it
MOST_DRAWN, CELLS_DRAWN = 60, 40  # genes in the pictures, but at least one of each label; cells of each label
DELETED = {"contribution": "largest contributions", "random": "random", "expression": "most expressed"}
DPI = 140


def gene_tables(made: AnnData, key: str) -> dict[str, pd.DataFrame]:
    """A table of all genes for each label of the cells, in descending order of the mean contribution.

    Columns: mean, and rank among the markers of the label that is explained (NaN: they are not known).
    """
    means = made.varm[f"{key}_contributions"]
    ranks = made.varm.get(f"{key}_marker_ranks")
    tables = {}
    for place, label in enumerate(made.uns[key]["labels"]):
        columns = {"mean": means.iloc[:, place], "rank": np.nan if ranks is None else ranks.iloc[:, place]}
        tables[label] = pd.DataFrame(columns).sort_values("mean", ascending=False, kind="stable")
    return tables


def marker_overlap(made: AnnData, key: str) -> dict[str, int]:
    """How many of the 20 genes with the largest mean contribution are among the 20 best markers, by label.

    Without labels whose markers are not known, and without cells of other labels than the one that is explained.
    """
    own = {label: table for label, table in gene_tables(made, key).items() if made.uns[key]["label"] in ("", label)}
    known = {label: table["rank"] for label, table in own.items() if table["rank"].notna().any()}
    return {label: int((rank.head(NUM_TOP) <= NUM_TOP).sum()) for label, rank in known.items()}


def genes_per_label(made: AnnData, key: str) -> pd.DataFrame:
    """The genes with the largest mean contributions for each label, positive or negative, in descending order."""
    tables = []
    for label, genes in gene_tables(made, key).items():
        chosen = genes[genes["mean"].abs().rank(ascending=False, method="first") <= NUM_LISTED]
        cells = made[made.obs[f"{key}_label"] == label, chosen.index]
        columns = {
            "label": escape_formula(label),
            "gene": map(escape_formula, chosen.index),
            "mean_contribution": chosen["mean"],
        }
        columns |= {"num_expressing": cells.layers["expression"].getnnz(axis=0), "num_cells": cells.n_obs}
        tables.append(pd.DataFrame(columns | {"marker_rank": chosen["rank"].astype("Int64")}))
    return pd.concat(tables, ignore_index=True)


def deletion_text(table: pd.DataFrame) -> str:
    """The result of the deletion test of 20 genes, in words."""
    before = table.iloc[0]
    after = table.set_index("num_genes").loc[20]
    text = f"mean probability {before['contribution']:.2f}; without the 20 genes of each cell that contribute most "
    return text + f"{after['contribution']:.2f}, without 20 random genes {after['random']:.2f}"


@contextmanager
def _scanpy_pictures() -> Iterator[Any]:
    """scanpy's plots, drawn without a screen and with gene names as they are (no formulas)."""
    import matplotlib
    import scanpy as sc  # takes seconds to import
    from matplotlib import pyplot as plt

    backend = matplotlib.get_backend()
    figures = plt.get_fignums()
    plt.switch_backend("agg")
    try:
        with plt.rc_context({"text.parse_math": False, "figure.dpi": DPI, "savefig.dpi": DPI, "savefig.bbox": "tight"}):
            yield sc.pl
    finally:
        for number in set(plt.get_fignums()).difference(figures):
            plt.close(number)
        plt.switch_backend(backend)


def drawn_genes(made: AnnData, key: str) -> dict[str, list[str]]:
    """The genes of the pictures: the first of each label, up to 5, fewer with many labels."""
    tables = gene_tables(made, key)
    num = int(np.clip(MOST_DRAWN // len(tables), 1, 5))
    return {label: list(table.index[:num]) for label, table in tables.items()}


def draw_heat_map(made: AnnData, key: str) -> bytes:
    """A PNG of the contributions of the first genes of each label in some of the cells, by scanpy."""
    rng = np.random.default_rng(0)
    groups = made.obs.groupby(f"{key}_label", observed=True).indices
    rows = np.concatenate([np.sort(rng.permutation(cells)[:CELLS_DRAWN]) for cells in groups.values()])
    some = made[rows].copy()
    genes = drawn_genes(made, key)
    some.uns[f"{key}_label_colors"] = [colour_of(place) for place in range(len(genes))]
    most = float(np.quantile(np.abs(some.X.data), 0.999))
    scale = {"cmap": "RdBu_r", "vmin": -most, "vcenter": 0, "vmax": most}
    size = 2.5 + 0.24 * sum(map(len, genes.values())), 1.5 + 0.014 * len(rows)
    with _scanpy_pictures() as pl:
        axes = pl.heatmap(some, genes, f"{key}_label", figsize=size, show_gene_labels=True, show=False, **scale)
        return png(axes["heatmap_ax"].figure)


def draw_dots(made: AnnData, key: str) -> bytes:
    """A PNG of the expression of the same genes in the cells of each label, by scanpy."""
    options = {"layer": "expression", "standard_scale": "var", "colorbar_title": "Mean expression,\n0 to 1 per gene"}
    with _scanpy_pictures() as pl:
        plot = pl.dotplot(made, drawn_genes(made, key), f"{key}_label", return_fig=True, **options)
        plot.make_figure()
        return png(plot.fig)


def draw_deletion(table: pd.DataFrame) -> bytes:
    """A PNG of the mean probability against the number of deleted genes."""
    figure = Figure(figsize=(6.4, 4.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for place, (name, text) in enumerate(DELETED.items()):
        axes.plot(table["num_genes"], table[name], marker="o", color=colour_of(place), label=text)
    axes.set(xlabel="genes deleted from each cell", ylabel="mean probability of the label", ylim=(0, 1.02))
    axes.grid(alpha=0.25)
    axes.legend(title="deleted genes", frameon=False)
    return png(figure)


def _rows(made: AnnData, key: str) -> list[dict[str, Any]]:
    """One row of the page for each label: cells, first genes for and against it, overlap with the markers."""
    overlap = marker_overlap(made, key)
    counts = made.obs[f"{key}_label"].value_counts()
    rows = []
    for label, genes in gene_tables(made, key).items():
        row: dict[str, Any] = {"label": label, "num_cells": int(counts[label]), "overlap": overlap.get(label)}
        sides = {"for": genes[genes["mean"] > 0].head(NUM_SHOWN)}
        sides["against"] = genes[genes["mean"] < 0].iloc[::-1].head(NUM_AGAINST)
        for side, some in sides.items():
            row[side] = [(gene, mean, rank <= NUM_TOP) for gene, mean, rank in some.itertuples()]
        rows.append(row)
    return rows


def render_explanation(made: AnnData, key: str, sample: str) -> str:
    """The HTML page of an explanation."""
    facts = made.uns[key]
    table = made.uns[key]["deletion"]
    pictures = {"heat": draw_heat_map(made, key), "dots": draw_dots(made, key), "deletion": draw_deletion(table)}
    rows = _rows(made, key)
    overlaps = [row["overlap"] for row in rows if row["overlap"] is not None]
    at_20 = table.set_index("num_genes").loc[20]
    return render_page(
        "explanation.html.jinja",
        sample=sample,
        facts=facts,
        num_cells=made.n_obs,
        num_genes=made.n_vars,
        rows=rows,
        num_top=NUM_TOP,
        overlap=float(np.mean(overlaps)) if overlaps else None,
        error=float(np.abs(made.obs[f"{key}_error"]).max()),
        logit=float(made.obs[f"{key}_logit"].mean()),
        bias=float(made.obs[f"{key}_bias"].mean()),
        deletion=table.to_dict("records"),
        names=DELETED,
        at_20=at_20,
        is_passed=bool(at_20["contribution"] < at_20["random"]),
        pictures={name: base64.b64encode(content).decode("ascii") for name, content in pictures.items()},
    )
