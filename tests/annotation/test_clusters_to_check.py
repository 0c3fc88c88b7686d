"""Clusters to check and returned labels, on real cells of blood and pancreas with the packaged model."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scperformer as scp
from scperformer.annotation import clusters_to_check
from scperformer.annotation.clusters_to_check import Exchange
from scperformer.annotation.columns import lost_cells

DATA = Path(__file__).parents[2] / "data"
BLOOD = ad.read_h5ad(DATA / "pbmc3k.h5ad")
KEY = "scperformer"


def annotated(cells: ad.AnnData, **options) -> ad.AnnData:
    return scp.annotate(cells.copy(), scp.load_model("pbmc3k"), options=options)


@pytest.fixture(scope="module")
def without_b() -> ad.AnnData:
    """B cells with the labels of other types, as if the reference had none of them."""
    return annotated(BLOOD, deny_labels=["B"])


@pytest.fixture(scope="module")
def complete() -> ad.AnnData:
    return annotated(BLOOD)


def test_cells_of_a_type_without_a_label_are_unknown_listed_and_named(without_b):
    record = without_b.uns[KEY]["check"]
    names = {"label", "looks_like", "term", "num_cells", "difference", "too_high", "too_low"}
    assert {len(record[name]) for name in names} == {1}
    assert record["text"] == "clusters to check: 1"
    assert record["looks_like"][0].endswith("B cell")
    assert {"CD79A", "MS4A1"} <= set(record["too_high"][0].split(", "))
    assert record["term"][0] in {"CL:0000787", "CL:0000788"}  # memory, naive
    looks_like = without_b.obs[f"{KEY}_looks_like"]
    is_b = (BLOOD.obs["cell_type"] == "B").to_numpy()
    assert set(looks_like.dropna()) == {record["looks_like"][0]}
    assert looks_like.notna().sum() == record["num_cells"][0]
    assert looks_like[is_b].notna().mean() > 0.9 > 0.01 > looks_like[~is_b].notna().mean()
    unknown = without_b.obs[f"{KEY}_call"] == "unknown"
    assert unknown[looks_like.notna()].all()
    assert without_b.obs[f"{KEY}_label"][looks_like.notna()].isin(["Naive CD4 T", "Memory CD4 T", "CD8 T"]).mean() > 0.7


def test_labels_can_be_kept(without_b):
    kept = annotated(BLOOD, deny_labels=["B"], relabel="false")
    pd.testing.assert_series_equal(kept.obs[f"{KEY}_looks_like"], without_b.obs[f"{KEY}_looks_like"])
    is_novel = kept.obs[f"{KEY}_novelty"] > 0.95
    listed = kept.obs[f"{KEY}_looks_like"].notna()
    assert ((kept.obs[f"{KEY}_call"] == "unknown")[listed] == is_novel[listed]).all()
    assert not kept.uns[KEY]["check"]["are_unknown"]


def test_a_file_with_known_types_has_nothing_to_check(complete):
    assert complete.uns[KEY]["check"]["text"] == "no cluster to check: all resemble the types of their labels"
    assert f"{KEY}_looks_like" not in complete.obs


def test_an_earlier_column_is_removed_if_nothing_is_to_be_checked(without_b):
    again = scp.annotate(without_b.copy(), scp.load_model("pbmc3k"), options={"replace_annotation": True})
    assert f"{KEY}_looks_like" not in again.obs


@pytest.mark.parametrize("kind", ["CD14+ Mono", "Naive CD4 T"])
def test_a_file_of_one_type_has_nothing_to_check(kind):
    cells = BLOOD[BLOOD.obs["cell_type"] == kind]
    assert "label" not in annotated(cells).uns[KEY]["check"]


def test_sorted_cells_of_similar_types_have_nothing_to_check():
    cells = BLOOD[BLOOD.obs["cell_type"].isin(["Naive CD4 T", "Memory CD4 T", "CD8 T", "NK"])]
    assert "label" not in annotated(cells).uns[KEY]["check"]


def test_doublets_of_known_types_are_no_missing_type():
    rng = np.random.default_rng(0)
    kinds = BLOOD.obs["cell_type"].to_numpy()
    b, mono = (rng.choice(np.flatnonzero(kinds == kind), 150) for kind in ("B", "CD14+ Mono"))
    doublets = ad.AnnData(BLOOD.X[b] + BLOOD.X[mono], var=BLOOD.var)
    found = annotated(ad.concat([BLOOD, doublets]))
    assert "label" not in found.uns[KEY]["check"]
    assert found.obs[f"{KEY}_doublet"][-150:].mean() > 0.5


@pytest.mark.parametrize("num_cells", [10, 20])
def test_few_cells_of_a_missing_type_are_found(num_cells):
    is_b = (BLOOD.obs["cell_type"] == "B").to_numpy()
    rows = np.r_[np.flatnonzero(~is_b)[:1980], np.flatnonzero(is_b)[:num_cells]]
    looks_like = annotated(BLOOD[rows], deny_labels=["B"]).obs[f"{KEY}_looks_like"]
    assert looks_like[-num_cells:].str.endswith("B cell").mean() > 0.7
    assert looks_like[:-num_cells].notna().sum() < 5


def test_files_that_cannot_be_checked_say_why():
    texts = {
        "few cells": annotated(BLOOD[:150]).uns[KEY]["check"]["text"],
        "few genes": annotated(BLOOD[:, ::80], min_overlap=0).uns[KEY]["check"]["text"],
        "pancreas": annotated(ad.read_h5ad(DATA / "baron_pancreas.h5ad")).uns[KEY]["check"]["text"],
    }
    assert texts == {
        "few cells": "no cluster to check: fewer than 200 cells have no clusters",
        "few genes": "clusters were not checked: the labels resemble no packaged tissue, or share fewer than 200 genes "
        "with it",
        "pancreas": "clusters were not checked: its cells are of another tissue",
    }


def test_a_label_that_would_lose_many_cells_of_its_type_keeps_them(complete):
    obs = complete.obs
    is_platelet = obs[f"{KEY}_label"] == "Platelet"
    assert (obs[f"{KEY}_novelty"][is_platelet] > 0.95).mean() > 0.2
    assert (obs[f"{KEY}_call"][is_platelet] == "Platelet").all()
    # Other labels keep their unknown cells: of held-out cells, a twentieth is novel.
    assert 0.02 < (obs[f"{KEY}_call"] == "unknown").mean() < 0.08


def test_novel_cells_of_another_type_get_no_label_back(without_b):
    obs = without_b.obs
    is_b = (BLOOD.obs["cell_type"] == "B").to_numpy()
    novel = is_b & (obs[f"{KEY}_novelty"] > 0.95).to_numpy()
    assert (obs[f"{KEY}_call"][novel] == "unknown").all()


def test_a_fifth_of_the_cells_and_three_are_many():
    labels = np.repeat(["A", "B", "C", "D"], [15, 14, 4, 10])
    unknown = np.concatenate([np.arange(15) < 3, np.arange(14) < 3, np.arange(4) < 2, np.arange(10) < 9])
    assert lost_cells(labels, unknown) == {"D": (9, 10), "B": (3, 14)}


def test_the_first_screen_of_the_report_names_them(without_b, complete, tmp_path):
    label, looks_like = (without_b.uns[KEY]["check"][name][0] for name in ("label", "looks_like"))
    screen = scp.report(without_b, output=tmp_path / "one.html")._repr_html_()
    assert f"Cells labelled {label} are unknown, as they look like {looks_like}" in screen
    assert "Clusters to check: 1." in screen
    assert "CD79A" in screen
    assert "No cluster to check: all resemble" in scp.report(complete, output=tmp_path / "two.html")._repr_html_()


def test_cells_to_check_are_drawn(without_b):
    without_b.obsm["X_umap"] = np.random.default_rng(0).normal(size=(without_b.n_obs, 2))
    axes = scp.pl.embedding(without_b, "looks_like")
    legend = {text.get_text() for text in axes.get_legend().get_texts()}
    assert legend == {without_b.uns[KEY]["check"]["looks_like"][0], "NA"}


def test_clusters_of_t_cells_take_the_label_that_they_resemble(complete, monkeypatch, caplog):
    monkeypatch.setattr(clusters_to_check, "MIN_DIFFERENCE_T", 1e-6)
    with caplog.at_level("INFO"):
        found = annotated(BLOOD)
    record = found.uns[KEY]["check"]
    is_moved = (found.obs[f"{KEY}_label"].astype(str) != complete.obs[f"{KEY}_label"].astype(str)).to_numpy()
    print(record.get("exchanged_from"), record.get("exchanged_to"), record.get("exchanged_cells"), is_moved.sum())
    kept = annotated(BLOOD, relabel="false")
    assert (kept.obs[f"{KEY}_label"] == complete.obs[f"{KEY}_label"]).all()


def test_probabilities_are_exchanged_between_the_labels_of_two_types():
    proba = np.random.default_rng(0).dirichlet(np.ones(4), 200).astype(np.float32)
    clusters = np.random.default_rng(1).integers(0, 3, 200)
    old, new = np.array([True, True, False, False]), np.array([False, False, True, False])
    found = clusters_to_check.exchanged(proba, clusters, [Exchange(1, old, new, 0)])
    for before, after, cluster in zip(proba, found, clusters, strict=True):
        expected = before.copy()
        if cluster == 1 and before.argmax() < 2:
            expected[2] = before[:2].sum()
            expected[:2] = before[:2] / before[:2].sum() * before[2]
        np.testing.assert_allclose(after, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
