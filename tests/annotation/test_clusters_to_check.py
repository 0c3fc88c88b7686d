"""Clusters to check and returned labels, on real cells of blood and pancreas with the packaged model."""

from pathlib import Path
from types import SimpleNamespace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.logs import said

import scperformer as scp
from scperformer.annotation import clusters_to_check
from scperformer.annotation.clusters_to_check import Exchange
from scperformer.annotation.columns import lost_cells

DATA = Path(__file__).parents[2] / "data"
WHOLE = ad.read_h5ad(DATA / "pbmc3k.h5ad")
BLOOD = WHOLE[::2].copy()
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
    assert {"CD79A", "CD79B"} <= set(record["too_high"][0].split(", "))
    assert record["term"][0] in {"CL:0000787", "CL:0000788"}  # memory, naive
    looks_like = without_b.obs[f"{KEY}_looks_like"]
    is_b = (BLOOD.obs["cell_type"] == "B").to_numpy()
    assert set(looks_like.dropna()) == {record["looks_like"][0]}
    assert looks_like.notna().sum() == record["num_cells"][0]
    assert looks_like[is_b].notna().mean() > 0.9 > 0.01 > looks_like[~is_b].notna().mean()
    unknown = without_b.obs[f"{KEY}_call"] == "unknown"
    assert unknown[looks_like.notna()].all()
    assert (
        without_b.obs[f"{KEY}_label"][looks_like.notna()]
        .isin(["Naive CD4 T", "Memory CD4 T", "CD8 T"])
        .mean()
        > 0.7
    )


def test_labels_can_be_kept(without_b):
    kept = annotated(BLOOD, deny_labels=["B"], relabel="false")
    pd.testing.assert_series_equal(
        kept.obs[f"{KEY}_looks_like"], without_b.obs[f"{KEY}_looks_like"]
    )
    is_novel = kept.obs[f"{KEY}_novelty"] > 0.95
    listed = kept.obs[f"{KEY}_looks_like"].notna()
    assert ((kept.obs[f"{KEY}_call"] == "unknown")[listed] == is_novel[listed]).all()
    assert not kept.uns[KEY]["check"]["are_unknown"]


def test_a_file_with_known_types_has_nothing_to_check(complete):
    assert (
        complete.uns[KEY]["check"]["text"]
        == "no cluster to check: all resemble the types of their labels"
    )
    assert f"{KEY}_looks_like" not in complete.obs


def test_an_earlier_column_is_removed_if_nothing_is_to_be_checked(without_b):
    again = scp.annotate(without_b.copy(), scp.load_model("pbmc3k"), options={"overwrite": True})
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
    b, mono = (rng.choice(np.flatnonzero(kinds == kind), 75) for kind in ("B", "CD14+ Mono"))
    doublets = ad.AnnData(BLOOD.X[b] + BLOOD.X[mono], var=BLOOD.var)
    found = annotated(ad.concat([BLOOD, doublets]))
    assert "label" not in found.uns[KEY]["check"]
    assert found.obs[f"{KEY}_doublet"][-75:].mean() > 0.5


def test_a_clone_with_copy_number_changes_is_no_missing_type():
    rng = np.random.default_rng(0)
    blocks = np.arange(BLOOD.n_vars) // 400  # genes are in the order of the genome
    copies = rng.choice([1, 2, 3, 4], blocks.max() + 1, p=[0.2, 0.5, 0.2, 0.1])[blocks]
    rows = rng.choice(np.flatnonzero(BLOOD.obs["cell_type"] == "CD14+ Mono"), 100)
    clone = BLOOD[rows].copy()
    clone.X = clone.X.multiply(copies / 2).tocsr()
    clone.X.data = rng.poisson(clone.X.data).astype(np.float32)
    found = annotated(ad.concat([BLOOD, clone], index_unique="-"))
    assert "label" not in found.uns[KEY]["check"]
    assert (found.obs[f"{KEY}_label"][-100:] == "CD14+ Mono").mean() > 0.8


def test_few_cells_of_a_missing_type_are_found():
    is_b = (WHOLE.obs["cell_type"] == "B").to_numpy()
    rows = np.r_[np.flatnonzero(~is_b)[:1980], np.flatnonzero(is_b)[:10]]
    looks_like = annotated(WHOLE[rows], deny_labels=["B"]).obs[f"{KEY}_looks_like"]
    assert looks_like[-10:].str.endswith("B cell").mean() > 0.7
    assert looks_like[:-10].notna().sum() < 5


@pytest.mark.slow
def test_files_that_cannot_be_checked_say_why(tmp_path):
    # it is refitted to the genes of each file in a second
    options = {"experiment": "linear", "logger": "none"}
    model = scp.train(
        WHOLE[::8].copy(), "cell_type", output=tmp_path / "model", options=options
    ).load()
    files = {
        "few cells": BLOOD[:150, ::4],
        "few genes": BLOOD[:, ::80],
        "pancreas": ad.read_h5ad(DATA / "baron_pancreas.h5ad")[:, ::4],
    }
    texts = {
        name: scp.annotate(cells.copy(), model, options={"min_overlap": 0}).uns[KEY]["check"][
            "text"
        ]
        for name, cells in files.items()
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
    unknown = np.concatenate(
        [np.arange(15) < 3, np.arange(14) < 3, np.arange(4) < 2, np.arange(10) < 9]
    )
    assert lost_cells(labels, unknown) == {"D": (9, 10), "B": (3, 14)}


@pytest.mark.slow
def test_the_first_screen_of_the_report_names_them(without_b, complete, tmp_path):
    label, looks_like = (without_b.uns[KEY]["check"][name][0] for name in ("label", "looks_like"))
    screen = scp.report(without_b, output=tmp_path / "one.html")._repr_html_()
    assert f"Cells labelled {label} are unknown, as they look like {looks_like}" in screen
    assert "Clusters to check: 1." in screen
    page = (tmp_path / "one.html").read_text()
    assert "Its cluster looks like" in page
    assert '"Looks like"' in page
    assert "CD79A" in screen
    assert (
        "No cluster to check: all resemble"
        in scp.report(complete, output=tmp_path / "two.html")._repr_html_()
    )


def test_cells_to_check_are_drawn(without_b):
    without_b.obsm["X_umap"] = np.random.default_rng(0).normal(size=(without_b.n_obs, 2))
    axes = scp.pl.embedding(without_b, "looks_like")
    legend = {text.get_text() for text in axes.get_legend().get_texts()}
    assert legend == {without_b.uns[KEY]["check"]["looks_like"][0], "NA"}


@pytest.mark.slow
def test_cells_with_the_markers_of_a_missing_sibling_are_unknown(tmp_path):
    kinds = WHOLE.obs["cell_type"].astype(str).to_numpy()
    is_first = np.random.default_rng(0).random(len(kinds)) < 0.5
    options = {"experiment": "linear", "logger": "none"}
    model = scp.train(
        WHOLE[is_first & (kinds != "CD8 T")].copy(),
        "cell_type",
        output=tmp_path / "model",
        options=options,
    )
    query = WHOLE[~is_first].copy()
    found = scp.annotate(query.copy(), model.load())
    looks_like = found.obs[f"{KEY}_looks_like"].astype(str)
    named = looks_like.str.contains("CD8 T").to_numpy()
    assert (found.obs[f"{KEY}_call"] == "unknown")[named].all()
    by_markers = (query[:, ["CD8A", "CD8B"]].X.toarray() > 0).any(axis=1)
    called = found.obs[f"{KEY}_label"].isin(["Naive CD4 T", "Memory CD4 T"]).to_numpy()
    assert named[called & by_markers].mean() > 0.6 > 0.02 > named[~by_markers].mean()


@pytest.mark.slow
def test_a_cluster_of_t_cells_takes_the_label_that_it_resembles(complete, monkeypatch, caplog):
    labels = list(complete.uns[KEY]["model"]["labels"])
    old, new = np.isin(labels, ["Naive CD4 T", "Memory CD4 T"]), np.isin(labels, ["CD8 T"])

    def largest(found, profiles, allowed, table):
        of_label = table["cluster"][table["best"] == labels.index("Naive CD4 T")]
        cluster = of_label.mode()[0]
        cells = (table["cluster"] == cluster).to_numpy()
        return [Exchange(cells, old, new, int((cells & old[table["best"]]).sum()), cluster)]

    monkeypatch.setattr(clusters_to_check, "_exchanges", lambda *_: [])
    plain = annotated(BLOOD)
    monkeypatch.setattr(clusters_to_check, "_exchanges", largest)
    with caplog.at_level("INFO"):
        found = annotated(BLOOD)
    record = found.uns[KEY]["check"]
    is_moved = (
        found.obs[f"{KEY}_label"].astype(str) != plain.obs[f"{KEY}_label"].astype(str)
    ).to_numpy()
    assert is_moved.sum() == record["exchanged_cells"][0] > 20
    assert set(found.obs[f"{KEY}_label"][is_moved]) == {"CD8 T"}
    assert (record["exchanged_from"][0], record["exchanged_to"][0]) == (
        "Memory CD4 T; Naive CD4 T",
        "CD8 T",
    )
    assert said(
        caplog, "annotation_of", f"{is_moved.sum():,}", "Memory CD4 T; Naive CD4 T", "CD8 T"
    )
    proba = found.obsm[f"{KEY}_proba"]
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-5)
    assert (
        proba.columns[proba.to_numpy().argmax(axis=1)] == found.obs[f"{KEY}_label"].astype(str)
    ).all()
    assert (found.obs[f"{KEY}_confidence"] == proba.max(axis=1).astype(np.float32)).all()
    kept = annotated(BLOOD, relabel="false")
    assert "exchanged_cells" not in kept.uns[KEY]["check"]


def test_only_t_cells_are_exchanged():
    # CD8, CD4 twice, monocytes, DC
    terms = ["CL:0000625", "CL:0000895", "CL:0000897", "CL:0000860", "CL:0000451"]
    is_own = np.array(
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=bool
    )
    found = pd.DataFrame(
        {
            "number": [4, 5, 6],
            "other": [1, 3, 0],
            "profile": [0, 3, 1],
            "lead": [0.05, 0.2, 0.03],
            "other_share": 0.2,
        }
    ).assign(difference=[0.0, 0.2, 0.03], term=[terms[0], terms[4], terms[1]])
    table = pd.DataFrame({"cluster": [4, 4, 4, 4, 5], "best": [1, 2, 0, 3, 3], "empty": False})
    allowed = np.ones(5, dtype=bool)
    profiles = SimpleNamespace(is_own=is_own, terms=[terms[0], *terms[2:]])
    [exchange] = clusters_to_check._exchanges(found, profiles, allowed, table)
    assert (exchange.cluster, exchange.num_cells) == (4, 2)
    assert exchange.old.tolist() == [False, True, True, False, False]
    assert exchange.new.tolist() == [True, False, False, False, False]
    allowed[0] = False
    assert not clusters_to_check._exchanges(found, profiles, allowed, table)


def test_probabilities_are_exchanged_between_the_labels_of_two_types():
    proba = np.random.default_rng(0).dirichlet(np.ones(4), 200).astype(np.float32)
    clusters = np.random.default_rng(1).integers(0, 3, 200)
    old, new = np.array([True, True, False, False]), np.array([False, False, True, False])
    found = clusters_to_check.exchanged(
        proba, slice(0, 200), [Exchange(clusters == 1, old, new, 0)]
    )
    for before, after, cluster in zip(proba, found, clusters, strict=True):
        expected = before.copy()
        if cluster == 1 and before.argmax() < 2:
            expected[2] = before[:2].sum()
            expected[:2] = before[:2] / before[:2].sum() * before[2]
        np.testing.assert_allclose(after, expected, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)


def test_clusters_of_a_missing_type_are_labelled_unknown(without_b):
    found = annotated(BLOOD, deny_labels=["B"], clusters="cell_type").obs
    is_b = (found["cell_type"] == "B").to_numpy()
    assert set(found[f"{KEY}_cluster_label"][is_b]) == {"unknown"}
    assert not (found[f"{KEY}_cluster_label"][~is_b] == "unknown").any()
    assert not found[f"{KEY}_cluster_disagrees"][is_b].any()


def test_the_evaluation_counts_the_true_labels_of_what_cells_look_like(without_b):
    looks_like = without_b.obs[f"{KEY}_looks_like"]
    counts = scp.evaluate(without_b, truth_key="cell_type").metrics["looks_like"]
    [name] = looks_like.dropna().unique()
    assert counts == {
        name: without_b.obs["cell_type"][looks_like.notna()]
        .value_counts()[lambda num: num > 0]
        .to_dict()
    }


def test_the_table_of_markers_tells_what_clusters_look_like(tmp_path):
    BLOOD.write_h5ad(tmp_path / "blood.h5ad")
    options = {
        "deny_labels": ["B"],
        "clusters": "cell_type",
        "markers_output": str(tmp_path / "markers.tsv"),
    }
    scp.annotate(tmp_path / "blood.h5ad", "pbmc3k", options=options)
    table = pd.read_csv(tmp_path / "markers.tsv", sep="\t", keep_default_na=False)
    is_b = table["cluster"] == "B"
    assert table["looks_like"][is_b].str.endswith("B cell").all()
    assert table["calls"][is_b].str.startswith("unknown ").all()
    assert set(table["looks_like"][~is_b]) == {""}
