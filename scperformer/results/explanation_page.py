"""The tables, the figures and the page of an explanation, which is an AnnData from explain.py."""

import base64
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib
import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scperformer.base.messages import escape_formula
from scperformer.base.pictures import png
from scperformer.results.pages import render_page

NUM_TOP = 20  # genes of a label that are compared with its markers, and deleted in the text about the deletion test
NUM_LISTED = 100  # genes of a label in the table
NUM_FOR = 12  # genes with contributions for a label, and genes with attention, on the page
NUM_AGAINST = 4  # genes with contributions against a label on the page
MAX_DRAWN = 60  # genes in the dot plot, but at least one of each label
MAX_DRAWN_PER_LABEL = 5
DELETED = {
    "contribution": "strongest genes",
    "random": "random genes",
    "expression": "most expressed",
}

Genes: TypeAlias = list[tuple[str, float, bool]]  # with a number, and whether they are markers


@dataclass(kw_only=True)
class Row:
    """The cells of a label, and the genes with the largest mean contributions and attention."""

    label: str
    num_cells: int
    overlap: int | None  # with the markers of the label
    support: Genes
    oppose: Genes
    attention: Genes  # empty without an encoder


@dataclass(kw_only=True)
class Page:
    """What the template of an explanation shows."""

    sample: str
    # of the explanation: its `uns`, with the model, the label and the versions
    facts: dict[str, Any]
    num_cells: int
    rows: list[Row]
    num_top: int
    overlap: float | None  # mean of the rows
    error: float  # largest one of a sum
    logit: float  # means
    bias: float
    deletion: pd.DataFrame  # mean probabilities; the index has the numbers of deleted genes
    names: dict[str, str]  # of its columns
    dots: str  # a picture in base64


def explained_genes(explanation: AnnData, key: str, *, listed: bool = True) -> pd.DataFrame:
    """Return a row for each gene, or `listed` gene, of each label of the cells, the highest mean contribution first."""
    tables = []
    means = {
        "mean_contribution": "contributions",
        "mean_attention": "attention",
        "marker_rank": "marker_ranks",
    }
    for place, label in enumerate(explanation.uns[key]["labels"]):
        cells = explanation[explanation.obs[f"{key}_label"] == label]
        table = pd.DataFrame({"label": label, "gene": explanation.var_names, "marker_rank": np.nan})
        for column, name in means.items():
            if f"{key}_{name}" in explanation.varm:
                table[column] = explanation.varm[f"{key}_{name}"].iloc[:, place].to_numpy()
        table["num_expressing"] = cells.layers["expression"].getnnz(axis=0)
        table["num_cells"] = cells.n_obs
        if listed:
            table = table[explanation.var["listed"].to_numpy()]
        tables.append(table.sort_values("mean_contribution", ascending=False, kind="stable"))
    columns = [
        "label",
        "gene",
        "mean_contribution",
        "mean_attention",
        "num_expressing",
        "num_cells",
        "marker_rank",
    ]
    table = pd.concat(tables, ignore_index=True).astype({"marker_rank": "Int64"})
    return table[[name for name in columns if name in table]]


def marker_overlap(explanation: AnnData, key: str) -> dict[str, int]:
    """Return how many of the 20 genes that contribute most to a label are among its 20 best markers, if known."""
    explained = explanation.uns[key]["label"]
    groups = explained_genes(explanation, key, listed=False).groupby("label", sort=False)[
        "marker_rank"
    ]
    return {
        label: int((ranks.head(NUM_TOP) <= NUM_TOP).sum())
        for label, ranks in groups
        if explained in ("", label)  # cells of other labels need not express its markers
        and ranks.notna().any()
    }


def genes_per_label(explanation: AnnData, key: str) -> pd.DataFrame:
    """Return the 100 genes with the largest absolute mean contributions to each label, in descending order."""
    table = explained_genes(explanation, key)
    sizes = table["mean_contribution"].abs().groupby(table["label"])
    return _without_formulas(table[sizes.rank(ascending=False, method="first") <= NUM_LISTED])


def attention_per_label(explanation: AnnData, key: str) -> pd.DataFrame:
    """Return the 100 genes with the highest mean attention in the cells of each label; empty if cells read no genes."""
    if f"{key}_attention" not in explanation.varm:
        return pd.DataFrame()
    groups = explained_genes(explanation, key).groupby("label", sort=False)
    tables = [
        genes.sort_values("mean_attention", ascending=False, kind="stable") for _, genes in groups
    ]
    return _without_formulas(pd.concat([genes.head(NUM_LISTED) for genes in tables]))


def _without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    texts = {name: table[name].map(escape_formula) for name in ("label", "gene")}
    return table.assign(**texts).reset_index(drop=True)


def deletion_text(table: pd.DataFrame) -> str:
    """Return the result of the deletion of 20 genes as text."""
    before = table.iloc[0]
    after = table.set_index("num_genes").loc[NUM_TOP]
    return (
        f"mean probability of the label: {before['contribution']:.2f}; without the {NUM_TOP} genes of each cell that "
        f"contribute most: {after['contribution']:.2f}; without {NUM_TOP} random genes: {after['random']:.2f}"
    )


def dot_plot(explanation: AnnData, key: str, num_genes: int, ax: Axes | None = None) -> Axes:
    """Draw the expression of the first genes of each label in the cells of each label; return the axes of the dots."""
    import scanpy as sc  # takes seconds to import

    groups = explained_genes(explanation, key).groupby("label", sort=False)["gene"]
    genes = {label: list(names.head(num_genes)) for label, names in groups}
    options = {
        "layer": "expression",
        "standard_scale": "var",
        "colorbar_title": "Mean expression\n(scaled per gene)",
    }
    plot = sc.pl.dotplot(explanation, genes, f"{key}_label", ax=ax, return_fig=True, **options)
    axes: Axes = plot.get_axes()["mainplot_ax"]
    return axes


def _rows(explanation: AnnData, key: str) -> list[Row]:
    """Return a row of the page for each label."""
    overlap = marker_overlap(explanation, key)
    rows = []
    for label, genes in explained_genes(explanation, key).groupby("label", sort=False):
        means = genes["mean_contribution"]
        attended = pd.DataFrame()
        if "mean_attention" in genes:
            attended = genes.sort_values("mean_attention", ascending=False, kind="stable").head(
                NUM_FOR
            )
        row = Row(
            label=label,
            num_cells=genes["num_cells"].iloc[0],
            overlap=overlap.get(label),
            support=_genes(genes[means > 0].head(NUM_FOR), "mean_contribution"),
            oppose=_genes(genes[means < 0].iloc[::-1].head(NUM_AGAINST), "mean_contribution"),
            attention=_genes(attended, "mean_attention"),
        )
        rows.append(row)
    return rows


def _genes(table: pd.DataFrame, column: str) -> Genes:
    if table.empty:
        return []
    is_marker = (table["marker_rank"] <= NUM_TOP).fillna(False)
    return list(zip(table["gene"], table[column], is_marker, strict=True))


def render_explanation(explanation: AnnData, key: str, sample: str) -> str:
    """Return the HTML page of an explanation; `sample` is the name of the sample."""
    facts = explanation.uns[key]
    num_labels = len(facts["labels"])
    num = int(np.clip(MAX_DRAWN // num_labels, 1, MAX_DRAWN_PER_LABEL))
    # names of genes are no formulas
    with matplotlib.rc_context({"text.parse_math": False, "savefig.bbox": "tight"}):
        figure = Figure(figsize=(3 + 0.35 * num * num_labels, 1.2 + 0.35 * num_labels), dpi=140)
        dot_plot(explanation, key, num, figure.subplots())
        dots = base64.b64encode(png(figure)).decode("ascii")
    rows = _rows(explanation, key)
    overlaps = [row.overlap for row in rows if row.overlap is not None]
    page = Page(
        sample=sample,
        facts=facts,
        num_cells=explanation.n_obs,
        rows=rows,
        num_top=NUM_TOP,
        overlap=float(np.mean(overlaps)) if overlaps else None,
        error=float(np.abs(explanation.obs[f"{key}_error"]).max()),
        logit=float(explanation.obs[f"{key}_logit"].mean()),
        bias=float(explanation.obs[f"{key}_bias"].mean()),
        deletion=facts["deletion"].set_index("num_genes"),
        names=DELETED,
        dots=dots,
    )
    return render_page("explanation.html.jinja", **vars(page))
