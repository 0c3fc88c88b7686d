"""Make the pictures of the pages from the embedded data, with fixed seeds: `make pictures` takes two minutes.

Each function draws one PNG beside the pages. `rule_graph` returns the graph of the workflow for docs/workflow.md, and
docs/report.png and docs/app.png are photographs of a report and of the page of the app.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anndata as ad
import matplotlib as mpl
import matplotlib.patheffects
import numpy as np
import scanpy as sc
import torch
from anndata import AnnData
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from torch.utils.flop_counter import FlopCounterMode

import scperformer as scp
from scperformer.attention.base import Sizes
from scperformer.attention.registry import MECHANISMS, make_attention
from scperformer.base.pictures import MIN_BIN_CALLS, PALETTE
from scperformer.lab.measure import OF_CPU

DOCS = Path(__file__).parent
DATA = DOCS.parent / "data"
BLUE, ORANGE, GREEN, PINK, SKY, VERMILION = PALETTE[:6]
GREY, LIGHT = "#767676", "#D5D9DE"
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
}
MISSING = "B"  # the type that the reference of the pictures of docs/trust.md lacks
TOKENS = (256, 512, 1024, 2048, 4096)


@cache
def model_without_b_cells(folder: Path) -> Any:
    """Return a model of every second cell of PBMC 3k, trained without B cells."""
    reference = ad.read_h5ad(DATA / "pbmc3k.h5ad")[::2]
    reference = reference[reference.obs["cell_type"] != MISSING].copy()
    options = {"tissue": "blood", "logger": "none", "trainer": "cpu"}
    return scp.train(
        reference, "cell_type", output=folder / "without_b_cells", options=options
    ).load()


@cache
def annotated_with_b_cells(folder: Path) -> AnnData:
    """Return the other cells of PBMC 3k, B cells included, annotated by the model without B cells."""
    cells = ad.read_h5ad(DATA / "pbmc3k.h5ad")[1::2].copy()
    return scp.annotate(cells, model_without_b_cells(folder))


def place(cells: AnnData) -> np.ndarray:
    """Return the UMAP of cells with the settings of the report: N x 2."""
    drawn = cells.copy()
    sc.pp.normalize_total(drawn, target_sum=1e4)
    sc.pp.log1p(drawn)
    sc.pp.highly_variable_genes(drawn, n_top_genes=2000)
    sc.pp.pca(drawn, n_comps=50)
    sc.pp.neighbors(drawn, n_neighbors=15)
    sc.tl.umap(drawn, random_state=0)
    return drawn.obsm["X_umap"]


def draw_labels(axes: Axes, xy: np.ndarray, labels: np.ndarray, colours: dict[str, str]) -> None:
    """Draw cells in the colours of their labels, and write each label at the median of its cells."""
    for label, colour in colours.items():
        marker, size = ("x", 14) if label == "unknown" else (".", 12 if len(xy) > 1000 else 35)
        axes.scatter(*xy[labels == label].T, s=size, marker=marker, linewidths=0.8, color=colour)
    halo = mpl.patheffects.withStroke(linewidth=3, foreground="white")
    for label in colours:
        if label != "unknown" and (labels == label).sum() > 10:
            axes.annotate(
                label,
                np.median(xy[labels == label], axis=0),
                ha="center",
                fontsize=9,
                path_effects=[halo],
            )


def title_map(axes: Axes, title: str) -> None:
    """Give axes of a map a title in place of ticks."""
    axes.set_title(title, loc="left")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def box(
    axes: Axes, x: float, y: float, text: str, colour: str, width: float = 2.2, height: float = 0.9
) -> None:
    """Draw a box around its centre, with text."""
    corner = (x - width / 2, y - height / 2)
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "linewidth": 1.3}
    axes.add_patch(
        FancyBboxPatch(corner, width, height, facecolor=f"{colour}22", edgecolor=colour, **style)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5, linespacing=1.35)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    bend: float = 0,
) -> None:
    """Draw an arrow, with text beside its middle."""
    style = {
        "arrowstyle": "-|>",
        "color": GREY,
        "linewidth": 1.3,
        "connectionstyle": f"arc3,rad={bend}",
    }
    axes.annotate("", end, start, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})
    if text:
        axes.text(
            (start[0] + end[0]) / 2 + 0.08,
            (start[1] + end[1]) / 2,
            text,
            fontsize=9,
            color=GREY,
            va="center",
        )


def performer(_: Path) -> Figure:
    """The default model: the linear branch, the cross-attention from a cell to its genes, and the sum of both."""
    figure = Figure(figsize=(8, 7.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(0, 9.25))
    axes.axis("off")
    box(
        axes,
        5,
        8.8,
        "expression $x_g$ of all measured genes of a cell, ln(1 + counts per 10,000)",
        GREY,
        8.4,
        0.6,
    )

    axes.text(1.65, 8.05, "Linear branch", fontsize=11, weight="bold", color=BLUE, va="center")
    box(
        axes,
        1.45,
        7.0,
        "two views of the\nexpression: $x^{1/2}$ and $x^2$,\neach scaled to length 20",
        BLUE,
        2.5,
        1.2,
    )
    box(
        axes,
        1.45,
        3.3,
        "logistic regression\n$\\Sigma_g\\;$ view$_g\\,\\beta_g\\;+\\;$bias",
        BLUE,
        2.5,
        0.9,
    )
    arrow(axes, (1.45, 8.5), (1.45, 7.6))
    arrow(axes, (1.45, 6.4), (1.45, 3.75))
    arrow(axes, (1.45, 2.85), (1.45, 1.5), "logits")

    axes.text(
        6.45,
        8.05,
        "Encoder (Performer)",
        fontsize=11,
        weight="bold",
        color=VERMILION,
        va="center",
        ha="center",
    )
    box(
        axes,
        4.5,
        7.0,
        "gene vectors $v_g$ = values\n(SVD of the reference,\nwithout labels)",
        ORANGE,
        2.4,
        1.2,
    )
    box(
        axes,
        8.2,
        7.0,
        "keys $k_g$: vectors at fixed length\n16 features for each head:\n$\\varphi_m(k)=\\exp(w_m\\cdot k-|k|^2/2)$",
        ORANGE,
        3.3,
        1.2,
    )
    arrow(axes, (5.7, 7.0), (6.55, 7.0))
    arrow(axes, (4.5, 8.5), (4.5, 7.6))
    arrow(axes, (8.4, 8.5), (8.4, 7.6))
    box(
        axes,
        4.5,
        5.2,
        "vector of the cell (pooling)\n$c = \\Sigma_g\\, x_g v_g\\;-\\;$mean cell",
        VERMILION,
        2.4,
        0.95,
    )
    sums = "$S=\\Sigma_g\\, x_g\\,\\varphi(k_g)\\,v_g^T$\n$z=\\Sigma_g\\, x_g\\,\\varphi(k_g)$"
    box(axes, 8.2, 5.2, f"sums over the genes, once for a cell\n{sums}", VERMILION, 3.3, 1.15)
    arrow(axes, (4.5, 6.4), (4.5, 5.68), "weights $x_g$")
    arrow(axes, (8.4, 6.4), (8.4, 5.78), "weights $x_g$")
    arrow(axes, (5.5, 6.4), (7.3, 5.78))

    frame = {
        "boxstyle": "round,pad=0,rounding_size=0.15",
        "facecolor": "none",
        "edgecolor": GREY,
        "linestyle": "--",
    }
    axes.add_patch(FancyBboxPatch((3.1, 2.05), 6.8, 2.3, **frame))
    axes.text(
        4.62, 4.1, "cross-attention layer: twice, two heads", fontsize=9.5, color=GREY, va="center"
    )
    box(axes, 4.5, 3.3, "query of the cell\n$q = W_q\\,$LayerNorm$(c)$", VERMILION, 2.4, 0.9)
    box(
        axes,
        8.2,
        3.3,
        "read = $\\varphi(q)\\,S\\;/\\;\\varphi(q)\\cdot z$\nminus the same of the mean cell",
        VERMILION,
        3.0,
        0.9,
    )
    arrow(axes, (4.5, 4.72), (4.5, 3.75))
    arrow(axes, (5.7, 3.3), (6.7, 3.3))
    arrow(axes, (8.4, 4.62), (8.4, 3.75))
    arrow(axes, (8.2, 2.85), (4.7, 2.85), bend=-0.12)
    axes.text(6.45, 2.25, "$c\\;\\leftarrow\\;c + W_o\\,$read", ha="center", fontsize=9.5)
    arrow(axes, (4.5, 2.05), (4.5, 1.5), "head: logits")

    box(axes, 3, 1.2, "scaled sum of both logits", GREEN, 4.6, 0.6)
    box(axes, 3, 0.35, "softmax: label and confidence", GREEN, 4.6, 0.5)
    arrow(axes, (3, 0.9), (3, 0.6))
    legend = {
        BLUE: "fitted without gradient steps",
        ORANGE: "computed from the reference, then fixed",
        VERMILION: "computed for a cell; $W$ and the head are trained",
        GREEN: "scales fitted to out-of-fold predictions",
    }
    for number, (colour, text) in enumerate(legend.items()):
        y = 1.45 - 0.36 * number
        axes.add_patch(
            Rectangle((5.6, y - 0.09), 0.22, 0.18, facecolor=f"{colour}22", edgecolor=colour)
        )
        axes.text(5.95, y, text, fontsize=9.5, va="center")
    return figure


def reliability(folder: Path) -> Figure:
    """Accuracy against confidence: out of fold, in cells of known types, and with a type that the reference lacks."""
    cells = annotated_with_b_cells(folder)
    is_known = (cells.obs["cell_type"] != MISSING).to_numpy()
    confidence = cells.obs["scperformer_confidence"].to_numpy()
    is_right = (
        cells.obs["scperformer_label"].astype(str) == cells.obs["cell_type"].astype(str)
    ).to_numpy()
    out_of_fold = model_without_b_cells(folder).saved.metrics.calibration.bins
    curves = {
        "reference, out of fold": [
            np.array(out_of_fold[name]) for name in ("num_cells", "confidence", "accuracy")
        ],
        "other cells of known types": binned(confidence[is_known], is_right[is_known]),
        "with cells of a missing type": binned(confidence, is_right),
    }
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (title, (num_cells, mean, accuracy)) in zip(
        figure.subplots(1, 3, sharey=True), curves.items(), strict=True
    ):
        error = np.abs(mean - accuracy) @ num_cells / num_cells.sum()
        drawn = num_cells >= MIN_BIN_CALLS
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
        axes.plot(mean[drawn], accuracy[drawn], color=BLUE, linewidth=1.3)
        sizes = 15 + 200 * num_cells[drawn] / num_cells.sum()
        axes.scatter(mean[drawn], accuracy[drawn], s=sizes, color=BLUE, zorder=3, clip_on=False)
        axes.text(
            0.98,
            0.06,
            f"{num_cells.sum():,} cells\ncalibration error {error:.3f}",
            ha="right",
            fontsize=9,
        )
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", aspect="equal")
        axes.set_title(title, loc="left", fontsize=10)
    figure.axes[0].set_ylabel("share of correct labels")
    return figure


def binned(confidence: np.ndarray, is_right: np.ndarray) -> list[np.ndarray]:
    """Return the number, mean confidence and accuracy of the cells in each of ten bins that has cells."""
    number = np.digitize(confidence, np.linspace(0, 1, 11)[1:-1])
    counts = np.bincount(number, minlength=10)
    used = counts > 0
    means = [
        np.bincount(number, values, minlength=10)[used] / counts[used]
        for values in (confidence, is_right)
    ]
    return [counts[used], *means]


def unknown(folder: Path) -> Figure:
    """Maps of a sample with B cells, which the reference lacks: true types, calls and novelty."""
    cells = annotated_with_b_cells(folder)
    xy = place(cells)
    labels = sorted(cells.obs["cell_type"].unique())
    colours = {label: PALETTE[number] for number, label in enumerate(labels)}
    figure = Figure(figsize=(8, 6.6), layout="constrained")
    (truth, call), (novelty, confidence) = figure.subplots(2, 2)
    draw_labels(truth, xy, cells.obs["cell_type"].to_numpy(), colours)
    title_map(truth, "true type (B cells are not in the reference)")
    calls = cells.obs["scperformer_call"].astype(str).to_numpy()
    called = {label: colour for label, colour in colours.items() if label != MISSING}
    draw_labels(call, xy, calls, called | {"unknown": "#222222"})
    title_map(call, f"scperformer_call ({(calls == 'unknown').sum()} unknown: ×)")
    for axes, name in ((novelty, "novelty"), (confidence, "confidence")):
        values = cells.obs[f"scperformer_{name}"].to_numpy()
        points = axes.scatter(*xy.T, s=7, c=values, cmap="cividis", vmin=0, vmax=1)
        figure.colorbar(points, ax=axes, shrink=0.7)
        title_map(axes, f"scperformer_{name}")
    return figure


def check(folder: Path) -> Figure:
    """A cluster to check: where it is, and the genes that do not belong to its label."""
    cells = annotated_with_b_cells(folder)
    listed = cells.uns["scperformer"]["check"]
    is_listed = cells.obs["scperformer_looks_like"].notna().to_numpy()
    label = listed["label"][0].split(", ")[0]
    genes = [*listed["too_high"][0].split(", "), *listed["too_low"][0].split(", ")]
    normalised = sc.pp.normalize_total(cells, target_sum=1e4, copy=True)
    of_label = (cells.obs["cell_type"] == label).to_numpy()
    means = [
        np.asarray(normalised[chosen, genes].X.mean(axis=0)).ravel()
        for chosen in (is_listed, of_label)
    ]
    fold = np.log2((means[0] + 0.1) / (means[1] + 0.1))
    figure = Figure(figsize=(8, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    xy = place(cells)
    left.scatter(*xy[~is_listed].T, s=7, color=LIGHT)
    left.scatter(*xy[is_listed].T, s=9, color=VERMILION)
    title_map(
        left,
        f"{listed['num_cells'][0]} cells labelled {listed['label'][0]}\nlook like: {listed['looks_like'][0]}",
    )
    right.barh(
        genes[::-1], fold[::-1], color=[VERMILION if value > 0 else BLUE for value in fold[::-1]]
    )
    right.axvline(0, color=GREY, linewidth=1)
    right.set_xlabel(f"log2 fold change against {label}")
    right.set_title("genes that do not belong to the label", loc="left", fontsize=10)
    return figure


def result(folder: Path) -> Figure:
    """The pancreas annotated without a model: calls and confidence."""
    cells = scp.annotate(ad.read_h5ad(DATA / "baron_pancreas.h5ad"))
    xy = place(cells)
    calls = cells.obs["scperformer_call"].astype(str)
    counts = calls[calls != "unknown"].value_counts()
    colours = {label: PALETTE[number] for number, label in enumerate(counts.index)} | {
        "unknown": "#222222"
    }
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    draw_labels(left, xy, calls.to_numpy(), colours)
    title_map(left, f"scperformer_call ({(calls == 'unknown').sum()} unknown: ×)")
    points = right.scatter(
        *xy.T, s=12, c=cells.obs["scperformer_confidence"], cmap="cividis", vmin=0, vmax=1
    )
    figure.colorbar(points, ax=right, shrink=0.8)
    title_map(right, "scperformer_confidence")
    return figure


def explanation(_: Path) -> Figure:
    """The genes that contribute most to four labels of the packaged model."""
    cells = ad.read_h5ad(DATA / "pbmc3k.h5ad")[1::4].copy()
    model = scp.load_model()
    genes = scp.explain(scp.annotate(cells, model), model, num_cells=20).genes
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    for axes, label in zip(
        figure.subplots(1, 4), ("B", "NK", "CD14+ Mono", "Platelet"), strict=True
    ):
        top = genes[genes["label"] == label].nlargest(8, "mean_contribution")[::-1]
        axes.barh(top["gene"], top["mean_contribution"], color=BLUE)
        axes.set_title(label, loc="left")
    figure.supxlabel("mean contribution to the logit of the label", fontsize=10)
    return figure


@torch.no_grad()
def attention_cost(_: Path) -> Figure:
    """The floating-point operations of the matrix products of each mechanism, over the number of tokens."""
    figure = Figure(figsize=(8, 3.9), layout="constrained")
    axes = figure.subplots()
    names_of: dict[tuple[float, ...], list[str]] = {}
    for name in MECHANISMS:
        names_of.setdefault(
            tuple(count_flops(name, num_tokens) / 1e9 for num_tokens in TOKENS), []
        ).append(name)
    for number, (costs, names) in enumerate(
        sorted(names_of.items(), key=lambda item: -item[0][-1])
    ):
        style = ("-", "--", "-.")[number % 3]
        axes.plot(
            TOKENS,
            costs,
            style,
            color=PALETTE[number],
            linewidth=1.8,
            marker=".",
            label=", ".join(names),
        )
    axes.set(
        xscale="log", yscale="log", xlabel="tokens of a cell", ylabel="GFLOP of matrix products"
    )
    axes.set_xticks(TOKENS, [f"{number:,}" for number in TOKENS])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def count_flops(name: str, num_tokens: int) -> int:
    """Return the operations in matrix products of a mechanism: 10 heads of 64, one cell."""
    sizes = Sizes(num_heads=10, head_dim=64, length=num_tokens)
    mechanism = make_attention({"name": name}, sizes, torch.Generator().manual_seed(0)).eval()
    q, k, v = torch.randn(3, 1, 10, num_tokens, 64, generator=torch.Generator().manual_seed(0))
    keep, positions = torch.ones(1, num_tokens, dtype=torch.bool), torch.arange(num_tokens)[None]
    if mechanism.starts_from_keys:
        mechanism.start(k, keep, torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False, custom_mapping=OF_CPU) as counter:
        mechanism(q, k, v, keep, positions)
    return counter.get_total_flops()


def rule_graph() -> str:
    """Return the graph of the rules of the workflow on the embedded data, for mermaid."""
    command = [sys.executable, "-m", "snakemake", "--rulegraph", "mermaid-js", "annotate"]
    printed = subprocess.run(
        command, cwd=DOCS.parent, capture_output=True, text=True, check=True
    ).stdout
    rules = dict(re.findall(r"(id\d+)\[(\w+)\]", printed))
    arrows = sorted(
        f"    {rules[start]} --> {rules[end]}"
        for start, end in re.findall(r"(id\d+) --> (id\d+)", printed)
    )
    return "\n".join(["flowchart LR", *arrows, ""])


PICTURES: tuple[Callable[[Path], Figure], ...] = (
    *(performer, reliability, unknown, check, result, explanation, attention_cost),
)


def draw(folder: Path, names: Sequence[str] = ()) -> None:
    """Write the pictures with these names into a folder, by default all."""
    mpl.use("agg")
    with TemporaryDirectory() as models, mpl.rc_context(STYLE):
        for picture in PICTURES:
            if not names or picture.__name__ in names:
                figure = picture(Path(models))
                figure.savefig(
                    folder / f"{picture.__name__}.png", dpi=120, metadata={"Software": None}
                )


def main() -> None:
    """Write the pictures that the command names, by default all and the graph of the rules."""
    names = sys.argv[1:]
    draw(DOCS, names)
    if not names or "rule_graph" in names:
        page = DOCS / "workflow.md"
        block = r"(<!-- made by docs/pictures.py -->\n```mermaid\n).*?```"
        text = re.sub(
            block, rf"\1{rule_graph()}```", page.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
