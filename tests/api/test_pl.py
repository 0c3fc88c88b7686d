"""Plots of annotated cells: they show the right numbers, and leave the data as they are."""

import numpy as np
import pandas as pd
import pytest
from conftest import make_counts
from matplotlib import pyplot
from matplotlib.colors import to_hex
from support.refusal import refusal

import scperformer as scp
from scperformer.results.cell_map import draw_cells
from scperformer.results.read_annotations import of_cells
from scperformer.results.report_tables import UNKNOWN_COLOUR, order_labels


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def annotated(tiny_model):
    adata = scp.annotate(make_counts(), scp.load_model(tiny_model))
    adata.obs["sample"] = np.where(np.arange(adata.n_obs) < 30, "one", "two")
    adata.obsm["X_map"] = np.random.default_rng(0).normal(size=(adata.n_obs, 2))
    return adata


def test_embedding_has_a_panel_for_each_colour(annotated):
    entries = (list(annotated.uns), list(annotated.obs))
    panels = scp.pl.embedding(annotated, ["label", "confidence", "sample", "GENE0"], basis="X_map")
    titles = [axes.get_title() for axes in panels]
    assert titles == ["scperformer_label", "scperformer_confidence", "sample", "GENE0"]
    drawn = panels[0].collections[0]
    assert len(drawn.get_offsets()) == annotated.n_obs
    assert panels[1].collections[0].get_clim() == (0, 1)
    assert (list(annotated.uns), list(annotated.obs)) == entries


@pytest.mark.parametrize("ncols", [1, 2, 3])
def test_legends_of_an_embedding_leave_the_other_panels_free(ncols, annotated):
    own = annotated.copy()
    own.obs["long"] = np.resize(
        [f"{number} granulocyte-monocyte progenitor cells" for number in range(20)], own.n_obs
    )
    panels = scp.pl.embedding(
        own, ["long", "confidence", "long", "label"], basis="X_map", ncols=ncols
    )
    figure = panels[0].get_figure()
    figure.draw_without_rendering()
    legends = [axes.get_legend() for axes in panels if axes.get_legend() is not None]
    assert len(legends) == 3
    for legend in legends:
        box = legend.get_window_extent()
        others = [
            axes.get_tightbbox(for_layout_only=True) for axes in panels if axes is not legend.axes
        ]
        assert box.count_overlaps(others) == 0
        assert box.x1 < figure.bbox.x1


def test_embedding_draws_the_map_of_the_report(annotated):
    [axes, _] = scp.pl.embedding(annotated)
    drawn = axes.collections[0].get_offsets()
    expected = draw_cells([of_cells(annotated, "scperformer")]).xy
    # scanpy shuffles or sorts cells
    np.testing.assert_array_equal(np.sort(drawn, axis=0), np.sort(expected, axis=0))
    assert "X_umap" not in annotated.obsm


def test_embedding_draws_the_umap_of_the_data(annotated):
    own = annotated.copy()
    own.obsm["X_umap"] = own.obsm["X_map"]
    drawn = scp.pl.embedding(own, "confidence").collections[0].get_offsets()
    np.testing.assert_allclose(
        np.sort(drawn, axis=0), np.sort(own.obsm["X_map"], axis=0), rtol=1e-6
    )


def test_too_few_cells_for_a_umap_are_refused(annotated):
    with refusal("few-cells"):
        scp.pl.embedding(annotated[:29])


def test_plots_are_drawn_into_axes_and_saved(annotated, tmp_path):
    _, (left, right) = pyplot.subplots(1, 2)
    assert scp.pl.embedding(annotated, "label", basis="X_map", ax=left) is left
    saved = tmp_path / "both.png"
    assert scp.pl.composition(annotated, "sample", ax=right, save=saved) is right
    assert saved.read_bytes().startswith(b"\x89PNG")


def test_unknown_cells_are_hatched(annotated):
    own = annotated.copy()
    own.obs["scperformer_call"] = ["unknown"] * 10 + ["B"] * (own.n_obs - 10)
    bars = scp.pl.composition(own, "sample").containers
    assert {container.get_label(): container[0].get_hatch() for container in bars} == {
        "B": None,
        "unknown": "////",
    }


def test_calls_have_the_colours_of_the_report(annotated):
    own = annotated.copy()
    labels = own.obs["scperformer_label"].astype(str)
    own.obs["scperformer_call"] = pd.Categorical(["unknown"] * 10 + labels.iloc[10:].tolist())
    colours = {
        label.name: label.colour.lower() for label in order_labels([of_cells(own, "scperformer")])
    }
    assert colours["unknown"] == UNKNOWN_COLOUR.lower()
    for name in ("call", "label"):
        column = own.obs[f"scperformer_{name}"].astype(str)
        legend = scp.pl.embedding(own, name, basis="X_map").get_legend()
        drawn = {
            text.get_text(): to_hex(mark.get_facecolor())
            for text, mark in zip(legend.texts, legend.legend_handles, strict=True)
        }
        assert drawn == {label: colours[label] for label in set(column)}


def test_composition_shows_shares(annotated):
    axes = scp.pl.composition(annotated, "sample", "label")
    shares = pd.crosstab(
        annotated.obs["sample"], annotated.obs["scperformer_label"], normalize="index"
    )
    colours = {
        label.name: label.colour.lower()
        for label in order_labels([of_cells(annotated, "scperformer")])
    }
    assert [bars.get_label() for bars in axes.containers] == list(shares)
    for bars in axes.containers:
        assert [bar.get_width() for bar in bars] == pytest.approx(
            shares[bars.get_label()].iloc[::-1].tolist()
        )
        assert to_hex(bars[0].get_facecolor()) == colours[bars.get_label()]
    assert axes.get_ylabel() == "sample"


def test_a_gene_is_refused_as_groups(annotated):
    with refusal("unknown-color"):
        scp.pl.composition(annotated, "GENE0")


def test_confusion_shows_shares_or_cells(annotated):
    evaluation = scp.evaluate(annotated, "cell_type")
    counts = scp.pl.confusion(evaluation, normalize=False)
    np.testing.assert_array_equal(counts.images[0].get_array(), evaluation.confusion)
    written = {
        tuple(map(int, text.get_position()[::-1])): int(text.get_text()) for text in counts.texts
    }
    table = evaluation.confusion.to_numpy()
    assert written == {
        (row, column): table[row, column] for row, column in zip(*np.nonzero(table), strict=True)
    }
    shares = scp.pl.confusion(evaluation)
    np.testing.assert_allclose(shares.images[0].get_array().sum(axis=1), 100)
    assert (shares.get_xlabel(), shares.get_ylabel()) == ("predicted label", "true label")


def test_markers_are_the_genes_that_contribute_most(annotated, tiny_model):
    explanation = scp.explain(annotated, tiny_model, num_cells=5)
    axes = scp.pl.markers(explanation, num_genes=2)
    shown = {text.get_text() for text in axes.get_xticklabels()}
    for _, genes in explanation.genes.groupby("label"):
        assert set(genes["gene"].head(2)) <= shown
