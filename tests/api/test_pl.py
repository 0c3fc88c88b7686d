"""Plots of annotated cells: they show the right numbers, and leave the data as they are."""

import numpy as np
import pandas as pd
import pytest
from conftest import make_counts
from matplotlib.colors import to_hex
from scperformer.reports.umap import umap_coordinates

import scperformer as scp
from scperformer.base.errors import InputError
from scperformer.base.pictures import colour_of


@pytest.fixture(scope="module")
def annotated(tiny_model):
    adata = scp.annotate(make_counts(), scp.load_model(tiny_model))
    adata.obs["sample"] = np.where(np.arange(adata.n_obs) < 30, "one", "two")
    adata.obsm["X_map"] = np.random.default_rng(0).normal(size=(adata.n_obs, 2))
    return adata


def test_embedding_has_a_panel_for_each_colour(annotated):
    entries = (list(annotated.uns), list(annotated.obs))
    figure = scp.pl.embedding(annotated, ["label", "confidence", "sample", "GENE0"], basis="X_map")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["scperformer_label", "scperformer_confidence", "sample", "GENE0"]
    drawn = figure.axes[0].collections[0]
    assert len(drawn.get_offsets()) == annotated.n_obs
    confidence = next(axes for axes in figure.axes if axes.get_title() == "scperformer_confidence")
    assert confidence.collections[0].get_clim() == (0, 1)
    assert (list(annotated.uns), list(annotated.obs)) == entries


def test_unknown_columns_are_refused(annotated):
    with pytest.raises(InputError, match=r"no 'labl' in the data; .* label, confidence"):
        scp.pl.embedding(annotated, "labl", basis="X_map")


def test_embedding_draws_the_umap_of_the_report(annotated):
    figure = scp.pl.embedding(annotated)
    expected = umap_coordinates(annotated.obsm["X_scperformer"], seed=0)
    drawn = figure.axes[0].collections[0].get_offsets()
    np.testing.assert_array_equal(np.sort(drawn, axis=0), np.sort(expected, axis=0))  # scanpy shuffles or sorts cells
    assert "X_umap" not in annotated.obsm


def test_embedding_draws_random_cells_of_large_data(annotated, monkeypatch):
    monkeypatch.setattr("scperformer.api.pl.MAX_CELLS", 50)
    figure = scp.pl.embedding(annotated)
    assert len(figure.axes[0].collections[0].get_offsets()) == 50


def test_too_few_cells_for_a_umap_are_refused(annotated):
    with pytest.raises(InputError, match="14 cells for a UMAP; expected at least 15 cells"):
        scp.pl.embedding(annotated[:14])


def test_composition_shows_shares(annotated):
    axes = scp.pl.composition(annotated, "sample").axes[0]
    shares = pd.crosstab(annotated.obs["sample"], annotated.obs["scperformer_label"], normalize="index")
    labels = list(annotated.obs["scperformer_label"].cat.categories)
    assert [bars.get_label() for bars in axes.containers] == list(shares)
    for bars in axes.containers:
        assert [bar.get_width() for bar in bars] == pytest.approx(shares[bars.get_label()].iloc[::-1].tolist())
        assert to_hex(bars[0].get_facecolor()) == colour_of(labels.index(bars.get_label())).lower()
    assert axes.get_ylabel() == "sample"


def test_a_gene_is_refused_as_groups(annotated):
    with pytest.raises(InputError, match="the gene 'GENE0' in place of groups of cells; expected a column of obs"):
        scp.pl.composition(annotated, "GENE0")


def test_confusion_shows_shares_or_cells(annotated):
    evaluation = scp.evaluate(annotated, "cell_type")
    counts = scp.pl.confusion(evaluation, normalize=False).axes[0]
    np.testing.assert_array_equal(counts.images[0].get_array(), evaluation.confusion)
    shares = scp.pl.confusion(evaluation).axes[0]
    np.testing.assert_allclose(shares.images[0].get_array().sum(axis=1), 1)
    assert (shares.get_xlabel(), shares.get_ylabel()) == ("predicted label", "true label")


def test_markers_are_the_genes_that_contribute_most(annotated, tiny_model):
    explanation = scp.explain(annotated, tiny_model, num_cells=5)
    figure = scp.pl.markers(explanation, num_genes=2)
    shown = {text.get_text() for axes in figure.axes for text in axes.get_xticklabels()}
    for _, genes in explanation.genes.groupby("label"):
        assert set(genes["gene"].head(2)) <= shown
