"""Explanations: reproduced calls, tables compared with loops, the deletion test and its control, the page, refusals."""

import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from conftest import make_counts
from scipy import sparse, stats
from support.refusal import refusal
from support.tissues import cells_of_tissue
from support.words import as_options

import scperformer
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.model.inference import branch_logits
from scperformer.model.minibatches import Cells
from scperformer.results.explain import delete_genes, marker_ranks
from scperformer.results.explanation_page import (
    attention_per_label,
    deletion_text,
    genes_per_label,
    marker_overlap,
)

# each has 30 genes of its own
LABELS = {"B cell": "B / <b>cell</b>", "T cell": "$\\alpha_T$", "Monocyte": "=Monocyte"}
QUICK = ["logger=none", "data.min_genes=0", "trainer.max_steps=30"]
KEY = "scperformer"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Model:
    """A model with the default options of `train`, except that its encoder is trained for a twentieth of the steps."""
    cells = make_counts()
    output = tmp_path_factory.mktemp("explain") / "model"
    cells.obs["cell_type"] = cells.obs["cell_type"].map(LABELS)
    return load_model(
        scperformer.train(cells, "cell_type", output=output, options=as_options(QUICK)).path
    )


@pytest.fixture(scope="module")
def annotated(model) -> ad.AnnData:
    return scperformer.annotate(make_counts(), model)


@pytest.fixture(scope="module")
def explained(annotated, model) -> ad.AnnData:
    return scperformer.explain(annotated, model, options=as_options(["cells=all"])).adata


@pytest.fixture
def path(annotated, write):
    return str(write(annotated, "sample.annotated.h5ad"))


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_contributions_and_bias_are_the_logit_of_the_label(explained, annotated, model):
    """The logits of both branches are computed from the expression in the explanation."""
    x = sparse.csr_matrix(explained.layers["expression"])
    linear, encoder = branch_logits(model.network, Cells(x, model.tokens), 64)
    codes = (
        explained.obs[f"{KEY}_label"]
        .map({label: i for i, label in enumerate(model.saved.labels)})
        .astype(int)
    )
    logits = (linear + encoder)[np.arange(len(codes)), codes]
    np.testing.assert_allclose(explained.obs[f"{KEY}_logit"], logits, rtol=1e-4)
    sums = np.asarray(explained.X.sum(axis=1)).ravel() + explained.obs[f"{KEY}_bias"]
    np.testing.assert_allclose(sums, logits, atol=0.02 * np.abs(logits).max())
    assert list(explained.obs_names) == list(annotated.obs_names)
    assert (
        explained.obs[f"{KEY}_label"].astype(str) == annotated.obs[f"{KEY}_label"].astype(str)
    ).all()
    np.testing.assert_allclose(
        explained.obs[f"{KEY}_probability"], annotated.obs[f"{KEY}_confidence"], rtol=1e-5
    )


def test_the_table_of_genes_against_a_loop(explained):
    table = genes_per_label(explained, KEY)
    assert set(table["label"]) == {"B / <b>cell</b>", "$\\alpha_T$", "'=Monocyte"}  # not a formula
    contributions = explained.X.toarray()
    expression = explained.layers["expression"].toarray()
    for label, rows in table.groupby("label"):
        assert len(rows) == 100
        assert (np.diff(rows["mean_contribution"]) <= 0).all()
        cells = np.flatnonzero(explained.obs[f"{KEY}_label"] == label.removeprefix("'"))
        means = {
            gene: sum(contributions[cell, i] for cell in cells) / len(cells)
            for i, gene in enumerate(explained.var_names)
        }
        assert rows["mean_contribution"].abs().min() == pytest.approx(
            sorted(map(abs, means.values()))[-100], rel=1e-4
        )
        for row in rows.iloc[::20].itertuples():
            assert row.mean_contribution == pytest.approx(means[row.gene], rel=1e-4)
            assert (
                row.num_expressing
                == (expression[cells, list(explained.var_names).index(row.gene)] > 0).sum()
            )
            assert row.num_cells == len(cells)


def test_attention_by_label_against_a_loop(explained, model):
    x = sparse.csr_matrix(explained.layers["expression"])
    cells = Cells(x, model.tokens)
    weights = model.network.encoder.gene_weights(cells.batch(np.arange(x.shape[0]))).numpy()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    means = explained.varm[f"{KEY}_attention"]
    table = attention_per_label(explained, KEY)
    for place, label in enumerate(explained.uns[KEY]["labels"]):
        is_own = (explained.obs[f"{KEY}_label"] == label).to_numpy()
        expected = weights[is_own].mean(axis=0)
        np.testing.assert_allclose(means.iloc[:, place], expected, rtol=1e-4, atol=1e-8)
        rows = table[table["label"].str.removeprefix("'") == label]
        assert list(rows["gene"][:20]) == list(
            explained.var_names[np.argsort(-expected, kind="stable")[:20]]
        )
        assert rows["mean_attention"].iloc[0] == pytest.approx(expected.max(), rel=1e-4)
    assert len(table) == 300


def test_markers_are_ranked_by_welchs_test_with_overestimated_variance(model):
    """Compared with scipy's test, in which the number of other cells is taken as that of the label."""
    ranks = marker_ranks(model, model.saved)
    cells = make_counts()
    counts = cells[:, model.saved.genes].X.toarray()
    x = np.log1p(1e4 * counts / counts.sum(axis=1, keepdims=True))
    for code, label in enumerate(model.saved.labels):
        own = (cells.obs["cell_type"].map(LABELS) == label).to_numpy()
        parts = [
            (part.mean(axis=0), part.std(axis=0, ddof=1), own.sum()) for part in (x[own], x[~own])
        ]
        scores = stats.ttest_ind_from_stats(*parts[0], *parts[1], equal_var=False).statistic
        assert np.argsort(ranks[:, code])[:20].tolist() == np.argsort(-scores)[:20].tolist()


def test_deletion_against_a_loop_and_a_control(explained, model):
    third = explained[::3]
    x = sparse.csr_matrix(third.layers["expression"])
    contributions = sparse.csr_matrix(third.X)
    codes = pd.Index(model.saved.labels).get_indexer(third.obs[f"{KEY}_label"])
    table = delete_genes(model, x, contributions, codes, seed=0)
    at_10 = table.set_index("num_genes").loc[10]
    rest = x.toarray()
    for cell in range(len(rest)):
        for gene in sorted(range(200), key=lambda gene: -contributions[cell, gene])[:10]:
            rest[cell, gene] = 0
    linear, encoder = branch_logits(model.network, Cells(sparse.csr_matrix(rest), model.tokens), 64)
    proba = np.exp(linear + encoder) / np.exp(linear + encoder).sum(axis=1, keepdims=True)
    assert at_10["contribution"] == pytest.approx(
        proba[np.arange(len(codes)), codes].mean(), abs=1e-5
    )
    assert at_10["contribution"] < at_10["random"] - 0.1
    assert (np.diff(table["contribution"]) < 0).all()
    opposite = delete_genes(model, x, -contributions, codes, seed=0).set_index("num_genes").loc[10]
    assert opposite["contribution"] > opposite["random"]
    assert delete_genes(model, x, contributions, codes, seed=0).equals(table)
    assert (
        delete_genes(model, x, contributions, codes, seed=1)["random"].tolist()
        != table["random"].tolist()
    )
    at_20 = table.set_index("num_genes").loc[20]
    assert (
        f"without the 20 genes of each cell that contribute most: {at_20['contribution']:.2f}"
        in deletion_text(table)
    )


def test_another_label_is_explained_in_all_cells(annotated, model):
    label = model.saved.labels[0]
    other = scperformer.explain(
        annotated, model, options=as_options([f"label='{label}'", "cells=5"])
    ).adata
    assert other.n_obs == 15
    columns = annotated.obsm[f"{KEY}_proba"].iloc[:, 0]
    np.testing.assert_allclose(other.obs[f"{KEY}_probability"], columns[other.obs_names], rtol=1e-5)
    # cells of other labels need not express its markers
    assert set(marker_overlap(other, KEY)) == {label}
    again, seeded = (
        scperformer.explain(annotated, model, options=as_options(["cells=5", f"seed={seed}"])).adata
        for seed in (0, 1)
    )
    assert list(again.obs_names) == list(other.obs_names)
    assert list(seeded.obs_names) != list(other.obs_names)


def test_the_adapted_model_is_explained(model):
    panel = make_counts()[:, 20:140].copy()
    scperformer.annotate(panel, model, options=as_options(["adapt=true"]))
    assert panel.uns[KEY]["coverage"]["adapted"]
    adapted = set(model.adapted)
    shallow = np.argsort(np.asarray(panel.X.sum(axis=1)).ravel())[:40]
    # their depth is not that of all cells
    explained = scperformer.explain(panel[shallow].copy(), model).adata
    assert set(model.adapted) == adapted  # adapted to the recorded condition, so no further model
    assert set(explained.var_names) == set(panel.var_names)
    assert explained.uns[KEY]["model"]["adapted"]
    assert np.abs(explained.obs[f"{KEY}_error"]).max() < 0.1
    with refusal("other-genes"):
        scperformer.explain(panel[:, :100].copy(), model)


def test_the_folder(command, path, explained, tmp_path, model):
    assert command("explain", path, "cells=all", f"model_path={model.path}").code == 0
    folder = tmp_path / "sample.annotated.explanation"
    assert names(folder) == [
        ".scperformer.json",
        "attention_per_label.csv",
        "contributions.h5ad",
        "deletion.csv",
        "genes_per_label.csv",
        "report.html",
    ]
    written = ad.read_h5ad(folder / "contributions.h5ad")
    np.testing.assert_array_equal(written.X.toarray(), explained.X.toarray())
    assert list(written.varm) == [f"{KEY}_attention", f"{KEY}_contributions", f"{KEY}_marker_ranks"]
    table = pd.read_csv(folder / "genes_per_label.csv")
    columns = [
        "label",
        "gene",
        "mean_contribution",
        "mean_attention",
        "num_expressing",
        "num_cells",
        "marker_rank",
    ]
    assert list(table) == list(pd.read_csv(folder / "attention_per_label.csv")) == columns
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 1
    assert "<script" not in page
    assert "<b>cell</b>" not in page
    assert "B / &lt;b&gt;cell&lt;/b&gt;" in page
    assert "Please check" not in page
    assert "Attention is not evidence" in page
    ran = command("explain", path)
    assert (ran.code, "explanation exists" in ran.err) == (2, True)
    formats = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    entries = [
        *names(folder),
        *table,
        *(f"uns/{name}" for name in written.uns[KEY]),
        *written.layers,
    ]
    entries += [name.replace(KEY, "KEY") for name in (*written.obs, *written.varm)]
    assert [entry for entry in entries if f"`{entry}`" not in formats] == []


def test_labels_that_the_model_does_not_reproduce_are_refused(annotated, model):
    edited = annotated.copy()
    labels = edited.obs[f"{KEY}_label"].astype(str).to_numpy(copy=True)
    labels[0] = next(label for label in model.saved.labels if label != labels[0])
    edited.obs[f"{KEY}_label"] = labels
    explained = scperformer.explain(edited, model, options=as_options(["cells=all"])).adata
    # one of 120 cells may differ, because of another device
    assert explained.n_obs == annotated.n_obs - 1
    labels[:2] = "a label of a user"
    edited.obs[f"{KEY}_label"] = labels
    with refusal("other-labels"):
        scperformer.explain(edited, model, options=as_options(["cells=all"]))


def test_the_model_is_found_in_the_library_by_another_name(model, tmp_path, monkeypatch):
    library = tmp_path / "library"
    monkeypatch.setenv("SCPERFORMER_MODELS", str(library))
    shutil.copytree(model.path, tmp_path / "m")
    cells = scperformer.annotate(make_counts(), tmp_path / "m")
    library.mkdir()
    shutil.move(tmp_path / "m", library / "renamed")
    assert scperformer.explain(cells, num_cells=1).adata.n_obs == 3
    shutil.rmtree(library)
    with refusal("other-model"):
        scperformer.explain(cells, num_cells=1)


def test_refusals(annotated, model):
    with refusal("not-annotated"):
        scperformer.explain(make_counts(), model)
    other = annotated.copy()
    other.uns[KEY] = {**other.uns[KEY], "model": {**other.uns[KEY]["model"], "hash": "f" * 64}}
    with refusal("other-model"):
        scperformer.explain(other, model)
    with refusal("unknown-label"):
        scperformer.explain(annotated, model, options=as_options(["label=none"]))
    with refusal("option-range"):
        scperformer.explain(annotated, model, options=as_options(["cells=0"]))
    damaged = annotated.copy()
    damaged.uns[KEY] = {**damaged.uns[KEY], "config_json": "{"}
    with refusal("damaged-annotation"):
        scperformer.explain(damaged, model)


# Without a model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pancreas", "mouse pancreas"])
def test_calls_by_the_profiles_of_a_tissue_are_reproduced(name, monkeypatch, write, refused):
    """Also of half of the cells, with mouse symbols in capitals, and without a label that some cells would get."""
    monkeypatch.delenv("SCPERFORMER_MODEL")
    cells = cells_of_tissue(name, 8)[:, ::4].copy()
    cells.var_names = cells.var_names.str.upper()
    [denied] = cells.obs["cell_type"].cat.categories[:1]
    annotated = scperformer.annotate(cells, options={"deny_labels": [denied]})
    assert annotated.uns[KEY]["tissue"]["name"] == name
    half = annotated[::2].copy()
    made = scperformer.explain(half, num_cells=None).adata
    assert made.n_obs == half.n_obs
    assert (made.obs[f"{KEY}_label"].astype(str) == half.obs[f"{KEY}_label"].astype(str)).all()
    np.testing.assert_allclose(
        made.obs[f"{KEY}_probability"], half.obs[f"{KEY}_confidence"], rtol=1e-5
    )
    assert made.obs[f"{KEY}_error"].abs().max() < 1e-4
    record = half.uns[KEY]["profiles"]
    record["centre"] = 0.999 * record["centre"]  # too little to change a label
    other = scperformer.explain(half, num_cells=None).adata
    assert (other.obs[f"{KEY}_probability"] - half.obs[f"{KEY}_confidence"]).abs().max() > 1e-5
    error = refused("explain", write(annotated), "model_path=pbmc3k")
    assert "expected the same model, not pbmc3k" in error
    assert "leave model_path out" in error


@pytest.mark.slow
def test_cells_of_a_deeper_file_are_explained_as_predict_thinned_them():
    """Whether predict thinned them is read from its record, and not decided anew."""
    cells = ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")
    rng = np.random.default_rng(0)
    types = cells.obs["cell_type"].to_numpy(str)
    rows = [
        rng.choice(np.flatnonzero(types == types[row]), 5)
        for row in rng.integers(0, cells.n_obs, 60)
    ]
    x = sparse.csr_matrix(
        np.vstack([cells.X[of_sum].sum(axis=0) for of_sum in rows]), dtype=np.float32
    )
    deep = ad.AnnData(
        x, obs=pd.DataFrame(index=[f"sum{number}" for number in range(60)]), var=cells.var[[]]
    )
    scperformer.annotate(deep, "pbmc3k")
    assert deep.uns[KEY]["coverage"]["thinned_to"] < 0.3
    explained = scperformer.explain(deep, "pbmc3k", options={"cells": "all"}).adata
    assert explained.n_obs > 50
    deep.uns[KEY]["coverage"]["thinned_to"] = 2.0
    with refusal("damaged-annotation"):
        scperformer.explain(deep, "pbmc3k")
