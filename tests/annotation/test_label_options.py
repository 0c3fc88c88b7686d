"""Options about labels: constraints, label tree, clusters and quality, in memory and in files."""

from dataclasses import replace

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
from support.logs import said
from support.words import as_options

import scperformer
from scperformer.adaptation.load import load_model
from scperformer.annotation.columns import NO_DOUBLETS, USUAL_COLUMNS
from scperformer.base.errors import InputError
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.labels.tree import LabelTree
from scperformer.model.folder import write_model

TREE = LabelTree(
    ["B cell", "Monocyte", "T cell"],
    {"B cell": "lymphocyte", "T cell": "lymphocyte"},
    {"lymphocyte": "L:1"},
)
IDS = ["B:1", "unknown", "T:1"]


@pytest.fixture(scope="module")
def model(tiny_model):
    plain = load_model(tiny_model)
    return replace(plain, saved=replace(plain.saved, tree=TREE, ontology_term_ids=IDS))


@pytest.fixture
def folder(model, tmp_path):
    """The same model as a folder."""
    write_model(replace(model.saved, has_reference_cells=False), tmp_path / "m")
    return tmp_path / "m"


def test_levels_are_nested_and_unsafe_calls_back_off(counts_adata, model):
    least = float(
        np.median(scperformer.annotate(counts_adata.copy(), model).obs["scperformer_confidence"])
    )
    scperformer.annotate(counts_adata, model, options=as_options([f"min_confidence={least}"]))
    details = counts_adata.obsm["scperformer_details"].add_prefix("scperformer_")
    obs = counts_adata.obs.join(details)
    proba = counts_adata.obsm["scperformer_proba"].astype(float)
    terms = dict(zip(TREE.labels, IDS, strict=True)) | {"lymphocyte": "L:1"}
    num_backed_off = 0
    for (_, cell), (_, row) in zip(obs.iterrows(), proba.iterrows(), strict=True):
        label = cell["scperformer_label"]
        both = np.float32(row["B cell"] + row["T cell"])
        call = (
            label
            if cell["scperformer_confidence"] >= least
            else "lymphocyte"
            if both >= least
            else "unknown"
        )
        first = "lymphocyte" if call.endswith(("B cell", "T cell")) else call
        assert [cell[f"scperformer_{name}"] for name in ("call", "level1", "level2")] == [
            call,
            first,
            call,
        ]
        assert cell["scperformer_ontology_term_id"] == terms.get(call, "unknown")
        assert cell["scperformer_call_confidence"] >= least or call == "unknown"
        num_backed_off += call != label
    assert set(obs["scperformer_call"]) == {*TREE.labels, "lymphocyte", "unknown"}
    assert counts_adata.uns["scperformer"]["tree"]["num_backed_off"] == num_backed_off


def test_denied_labels_are_never_called_and_the_others_are_renormalised(
    counts_adata, model, caplog
):
    plain = scperformer.annotate(counts_adata.copy(), model)
    with caplog.at_level("INFO", logger="scperformer"):
        scperformer.annotate(counts_adata, model, options=as_options(["deny_labels=[T cell]"]))
    before, after = (cells.obsm["scperformer_proba"] for cells in (plain, counts_adata))
    assert (after["T cell"] == 0).all()
    both = before[["B cell", "Monocyte"]].astype(float)
    np.testing.assert_allclose(after[both.columns], both.div(both.sum(axis=1), axis=0), atol=1e-6)
    assert "T cell" not in set(counts_adata.obs["scperformer_label"])
    np.testing.assert_allclose(counts_adata.obs["scperformer_confidence"], after.max(axis=1))
    assert list(counts_adata.uns["scperformer"]["constraints"]["denied"]) == ["T cell"]
    assert said(caplog, "find_calls", "T cell")
    np.testing.assert_array_equal(counts_adata.obsm["X_scperformer"], plain.obsm["X_scperformer"])
    allowed = scperformer.annotate(
        plain, model, overwrite=True, options=as_options(["allow_labels=[B cell,Monocyte]"])
    )
    pd.testing.assert_frame_equal(allowed.obs, counts_adata.obs)


def test_clusters_of_a_column_get_a_label_by_votes(counts_adata, folder, write, monkeypatch):
    monkeypatch.setattr("scperformer.io.rows.BLOCK_VALUES", 6000)  # four blocks
    plain = scperformer.annotate(counts_adata.copy(), load_model(folder)).obs
    rng = np.random.default_rng(0)
    odd = np.where(
        rng.random(120) < 0.1, rng.integers(0, 3, 120), counts_adata.obs["cell_type"].cat.codes
    )
    counts_adata.obs["leiden"] = pd.Categorical(odd.astype(str))
    path = write(counts_adata)
    cfg = PredictConfig(inputs=[str(path)], model_path=str(folder), clusters="leiden")
    (output,) = run_predict(cfg)
    annotated = ad.read_h5ad(output)
    votes = (
        plain.groupby([odd, "scperformer_label"], observed=True)["scperformer_confidence"]
        .sum()
        .unstack()
        .fillna(0)
    )
    expected = votes.idxmax(axis=1)[odd].to_numpy()
    assert list(annotated.obs["scperformer_cluster_label"]) == list(expected)
    assert list(annotated.obs["scperformer_label"]) == list(plain["scperformer_label"])
    differs = expected != plain["scperformer_label"].astype(str).to_numpy()
    assert list(annotated.obs["scperformer_cluster_disagrees"]) == list(differs)
    assert 0 < differs.sum() == annotated.uns["scperformer"]["clusters"]["num_disagree"]
    memory = scperformer.annotate(
        counts_adata, load_model(folder), options=as_options(["clusters=leiden"])
    )
    pd.testing.assert_frame_equal(memory.obs, annotated.obs)
    counts_adata.obs["leiden"] = [
        f"{number} " if place % 2 else f" {number}" for place, number in enumerate(odd)
    ]
    options = as_options(["clusters=leiden", "overwrite=true"])
    blanks = scperformer.annotate(counts_adata, load_model(folder), options=options)
    pd.testing.assert_series_equal(
        blanks.obs["scperformer_cluster_label"], annotated.obs["scperformer_cluster_label"]
    )


@pytest.mark.slow
def test_clusters_of_a_neighbour_graph_in_the_file(counts_adata, model, folder, write):
    kind = counts_adata.obs["cell_type"].cat.codes.to_numpy()
    counts_adata.obsp["connectivities"] = (kind[:, None] == kind).astype(np.float32) - np.eye(
        120, dtype=np.float32
    )
    path = write(counts_adata)
    (output,) = run_predict(
        PredictConfig(inputs=[str(path)], model_path=str(folder), clusters="auto")
    )
    annotated = ad.read_h5ad(output)
    assert (
        annotated.uns["scperformer"]["clusters"]["how"]
        == "Leiden on the neighbour graph of the file, resolution 20"
    )
    memory = scperformer.annotate(counts_adata, model, options=as_options(["clusters=auto"]))
    assert list(memory.obs["scperformer_cluster_label"]) == list(
        annotated.obs["scperformer_cluster_label"]
    )


@pytest.mark.parametrize(
    ("option", "match"),
    [
        (
            "clusters=louvain",
            r"no column 'louvain' in obs of .*; expected cell_type \(3 values\), .*clusters=auto",
        ),
        (
            "clusters=holes",
            r"2 of 120 cells of .* without a cluster in obs\['holes'\]; expected a cluster for each",
        ),
        (
            "deny_labels=[q cell]",
            r"deny_labels with 'q cell'; expected labels of the model \(B cell, Monocyte, T cell\)",
        ),
        ("ontology=none.obo", r"none\.obo cannot be read"),
        ("ontology=cl.owl", r"ontology=cl\.owl; expected packaged, none, or a file in \.obo"),
    ],
)
def test_wrong_options_are_refused_and_change_nothing(counts_adata, model, option, match):
    counts_adata.obs["holes"] = pd.Categorical(["a"] * 60 + ["b"] * 58 + [None] * 2)
    before = list(counts_adata.obs)
    with pytest.raises(InputError, match=match):
        scperformer.annotate(counts_adata, model, options=as_options([option]))
    assert list(counts_adata.obs) == before


def test_an_ontology_can_be_added_to_a_model_without_one(
    counts_adata, tiny_model, tmp_path, caplog
):
    model = load_model(tiny_model)
    scperformer.annotate(counts_adata, model, options=as_options(["ontology=packaged"]))
    assert set(counts_adata.obs["scperformer_ontology_term_id"]) == {
        "CL:0000236",
        "CL:0000084",
        "CL:0000576",
    }
    assert set(counts_adata.obsm["scperformer_details"]["level1"]) == {"lymphocyte", "Monocyte"}
    assert not said(caplog, "find_label_options")
    (tmp_path / "cl.obo").write_text(
        "data-version: cl/releases/2020-01-01/cl.owl\n[Term]\nid: CL:1\nname: cell\n"
    )
    model.saved.provenance.ontology = "2026-03-26"
    scperformer.annotate(
        counts_adata, model, overwrite=True, options=as_options([f"ontology='{tmp_path}/cl.obo'"])
    )
    assert said(caplog, "find_label_options", "2020-01-01", "2026-03-26")


def test_columns_of_an_earlier_annotation_are_removed(counts_adata, folder, tiny_model, write):
    counts_adata.obs["mine"] = "a"
    counts_adata.obs["scperformer_levels"] = "of the user"
    first = str(write(counts_adata))
    options = {"clusters": "cell_type", "output": first.replace("sample", "one")}
    run_predict(PredictConfig(inputs=[first], model_path=str(folder), **options))
    again = scperformer.annotate(
        ad.read_h5ad(options["output"]), load_model(tiny_model), overwrite=True
    )
    second = PredictConfig(inputs=[options["output"]], model_path=str(tiny_model), overwrite=True)
    output = run_predict(second)[0]
    written = ad.read_h5ad(output)
    with h5py.File(output) as file:
        assert not [name for name in file["obs"] if "cluster" in name]
    expected = {
        "cell_type",
        "mine",
        "scperformer_levels",
        *(f"scperformer_{name}" for name in USUAL_COLUMNS),
    }
    for cells in (written, again):
        assert set(cells.obs) == expected
        assert list(cells.obsm["scperformer_details"]) == ["margin", "baseline_label"]


def test_cells_of_low_quality_are_flagged(counts_adata, folder, write, caplog):
    x = counts_adata.X.toarray()
    x[7, 20:] = 0
    counts_adata.X = x
    counts_adata.var_names = [*(f"MT-{i}" for i in range(3)), *counts_adata.var_names[3:]]
    path = str(write(counts_adata))
    with caplog.at_level("INFO", logger="scperformer"):
        (output,) = run_predict(PredictConfig(inputs=[path], model_path=str(folder), adapt="false"))
    annotated = ad.read_h5ad(output)
    low = annotated.obs["scperformer_low_quality"]
    record = annotated.uns["scperformer"]["quality"]
    assert low.iloc[7]
    assert low.sum() == record["num_low"] < 60
    expected = (x > 0).sum(axis=1) < record["least_genes"]
    expected |= x[:, :3].sum(axis=1) / x.sum(axis=1) > record["highest_mitochondrial"]
    assert list(low) == list(expected)
    # adapt=false: the stored cells are not read
    assert said(caplog, "quality_columns", low.sum(), NO_DOUBLETS)
    assert annotated.obs["scperformer_doublet_score"].isna().all()
    assert not annotated.obs["scperformer_doublet"].any()
