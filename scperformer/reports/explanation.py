"""The tables, the pictures and the page of an explanation, an AnnData as `explain` makes it."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.figure import Figure

from scperformer.pictures import colour_of, png
from scperformer.reports.report import render_page
from scperformer.text import defused

NUM_TOP = 20  # genes of a label that are compared with its markers
NUM_LISTED = 100  # genes of a label in the table
NUM_SHOWN, NUM_AGAINST = 12, 4  # genes of a label on the page, for and against it
MOST_DRAWN, CELLS_DRAWN = 60, 40  # genes of the pictures, as far as each label has one; cells of each label
DELETED = {"contribution": "largest contributions", "random": "random", "expression": "most expressed"}
DPI = 140


def label_means(made: AnnData, key: str) -> dict[str, pd.Series]:
    """The mean contribution of each gene over the cells of each label, by label."""
    table = made.varm[f"{key}_contributions"]
    return {label: table.iloc[:, place] for place, label in enumerate(made.uns[key]["labels"])}


def label_markers(made: AnnData, key: str) -> dict[str, pd.Series]:
    """The rank of each gene among the markers of the label that is explained, by the label of the cells."""
    ranks, explained = made.varm.get(f"{key}_marker_ranks"), made.uns[key]["label"]
    if ranks is None:
        return {}
    return {label: ranks[(explained or label).replace("/", "|")] for label in made.uns[key]["labels"]}


def marker_overlap(made: AnnData, key: str) -> dict[str, int]:
    """How many of the first genes of each label are among its first markers; without labels whose markers are unknown.

    The first are the 20 genes with the largest mean contribution, and the 20 best markers.
    """
    means = label_means(made, key)
    known = {label: ranks for label, ranks in label_markers(made, key).items() if ranks.notna().any()}
    return {
        label: int((ranks[means[label].nlargest(NUM_TOP).index] <= NUM_TOP).sum()) for label, ranks in known.items()
    }


def genes_per_label(made: AnnData, key: str) -> pd.DataFrame:
    """The genes with the largest mean contributions for each label, positive or negative, in descending order."""
    markers, parts = label_markers(made, key), []
    for label, means in label_means(made, key).items():
        chosen = means[means.abs().nlargest(NUM_LISTED).index].sort_values(ascending=False, kind="stable")
        cells = made[made.obs[f"{key}_label"] == label, chosen.index]
        table = {"label": defused(label), "gene": [defused(gene) for gene in chosen.index], "mean_contribution": chosen}
        table |= {"num_expressing": cells.layers["expression"].getnnz(axis=0), "num_cells": cells.n_obs}
        ranks = markers[label][chosen.index] if label in markers else pd.Series(np.nan, chosen.index)
        parts.append(pd.DataFrame(table | {"marker_rank": ranks.astype("Int64")}))
    return pd.concat(parts, ignore_index=True)


def deletion_text(table: pd.DataFrame) -> str:
    """The result of the deletion test of 20 genes, in words."""
    before, after = table.iloc[0], table.set_index("num_genes").loc[20]
    text = f"mean probability {before['contribution']:.2f}; without the 20 genes of each cell that contribute most "
    return text + f"{after['contribution']:.2f}, without 20 random genes {after['random']:.2f}"


@contextmanager
def _scanpy_pictures() -> Iterator[Any]:
    """scanpy's plots, drawn without a screen and with gene names as they are (no formulas)."""
    import matplotlib
    import scanpy as sc  # takes seconds to import
    from matplotlib import pyplot as plt

    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    with plt.rc_context({"text.parse_math": False, "figure.dpi": DPI, "savefig.dpi": DPI, "savefig.bbox": "tight"}):
        yield sc.pl
        plt.close("all")
    plt.switch_backend(before)


def drawn_genes(made: AnnData, key: str) -> dict[str, list[str]]:
    """The genes of the pictures: the first of each label, up to 5, fewer with many labels."""
    means = label_means(made, key)
    num = int(np.clip(MOST_DRAWN // len(means), 1, 5))
    return {label: list(mean.nlargest(num).index) for label, mean in means.items()}


def draw_heat_map(made: AnnData, key: str) -> bytes:
    """A PNG of the contributions of the first genes of each label in some of the cells, by scanpy."""
    groups = made.obs.groupby(f"{key}_label", observed=True).indices
    rows = np.concatenate(
        [np.sort(np.random.default_rng(0).permutation(cells)[:CELLS_DRAWN]) for cells in groups.values()]
    )
    genes = drawn_genes(made, key)
    some = made[rows].copy()
    some.uns[f"{key}_label_colors"] = [colour_of(place) for place in range(len(genes))]
    names = [gene for some in genes.values() for gene in some]
    most = float(np.quantile(np.abs(some[:, list(dict.fromkeys(names))].X.data), 0.98))
    with _scanpy_pictures() as pl:
        size = (2.5 + 0.24 * len(names), 1.5 + 0.014 * len(rows))
        scale = {"cmap": "RdBu_r", "vmin": -most, "vcenter": 0, "vmax": most}
        axes = pl.heatmap(some, genes, f"{key}_label", figsize=size, show_gene_labels=True, show=False, **scale)
        return png(axes["heatmap_ax"].figure)


def draw_dots(made: AnnData, key: str) -> bytes:
    """A PNG of the expression of the same genes in the cells of each label, by scanpy."""
    with _scanpy_pictures() as pl:
        options = {
            "layer": "expression",
            "standard_scale": "var",
            "colorbar_title": "Mean expression,\n0 to 1 per gene",
        }
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
    overlap, markers = marker_overlap(made, key), label_markers(made, key)
    counts, rows = made.obs[f"{key}_label"].value_counts(), []
    for label, means in label_means(made, key).items():
        is_marker = markers[label] <= NUM_TOP if label in overlap else pd.Series(False, means.index)
        best = means.nlargest(NUM_SHOWN)
        worst = means[means < 0].nsmallest(NUM_AGAINST)
        shown = [[(gene, float(mean), bool(is_marker[gene])) for gene, mean in some.items()] for some in (best, worst)]
        row = {"label": label, "num_cells": int(counts[label]), "for": shown[0], "against": shown[1]}
        rows.append(row | {"overlap": overlap.get(label)})
    return rows


def render_explanation(made: AnnData, key: str, sample: str) -> str:
    """The HTML page of an explanation."""
    facts, table = made.uns[key], made.uns[key]["deletion"]
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
