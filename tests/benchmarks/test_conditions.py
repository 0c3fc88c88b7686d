"""The benchmark of other genes and depths: its rows, its scores, and that it continues where it was."""

import json
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy
from scipy import sparse


@pytest.fixture
def data(tmp_path, counts_adata):
    """A file of one study, and two of another with fewer genes; some cells of the second are in the third."""
    counts_adata.obs["cell_type"] = np.resize(["Naive CD4 T", "CD14+ Mono", "FCGR3A+ Mono", "B"], counts_adata.n_obs)
    counts_adata.write_h5ad(tmp_path / "pbmc3k.h5ad")
    query = counts_adata[:50, 40:].copy()
    query.obs["cell_type"] = np.resize(["CD4+/CD25 T Reg", "CD14+ Monocyte", "CD19+ B"], 50)
    query.write_h5ad(tmp_path / "zheng_sorted_pbmc.h5ad")
    query.obs = query.obs.rename(columns={"cell_type": "label_full"})
    query.obs["in_zheng_sorted_pbmc"] = np.arange(50) < 20
    query.write_h5ad(tmp_path / "zheng_sorted_scminer_3500.h5ad")
    return tmp_path


def test_random_genes_are_drawn_by_the_seed_and_the_others_are_absent(conditions, counts_adata):
    ranked = counts_adata.var_names[50:].to_numpy()
    row = conditions.Row("r", "panels", genes="random", num_genes=60)
    first, second = conditions.reduce(counts_adata, row, ranked, seed=0)
    assert first.shape == second.shape == (120, 60)
    assert set(first.var_names) | set(second.var_names) <= set(ranked)
    assert set(first.var_names) != set(second.var_names)
    again, other = (conditions.reduce(counts_adata, row, ranked, seed=seed)[0] for seed in (0, 1))
    assert list(first.var_names) == list(again.var_names) != list(other.var_names)
    assert (first.X != counts_adata[:, first.var_names].X).nnz == 0


def test_variable_genes_and_all_others(conditions, counts_adata):
    ranked = np.random.default_rng(0).permutation(counts_adata.var_names.to_numpy())
    (top,), (rest,) = (
        conditions.reduce(counts_adata, conditions.Row("r", "panels", genes=genes, num_genes=30), ranked, seed=0)
        for genes in ("variable", "others")
    )
    assert set(top.var_names) == set(ranked[:30])
    assert set(rest.var_names) == set(ranked[30:])


def test_counts_are_thinned_by_the_seed(conditions, counts_adata):
    before, row = counts_adata.X.copy(), conditions.Row("r", "depth", share=0.25)
    genes = counts_adata.var_names.to_numpy()
    (cells,), (again,), (other,) = (conditions.reduce(counts_adata, row, genes, seed=seed) for seed in (0, 0, 1))
    assert (before != counts_adata.X).nnz == 0
    assert (before < cells.X).nnz == 0
    total = before.sum()  # about 93,000: the standard deviation of the share of kept counts is 0.0014
    assert cells.X.sum() / total == pytest.approx(0.25, abs=0.01)
    assert (cells.X != again.X).nnz == 0 < (cells.X != other.X).nnz


def test_rank_of_the_genes(conditions, data):
    task = conditions.BETWEEN
    pair = conditions.read_pair(task, data, seed=0)
    expected = {}
    for gene, counts in pair.reference[:, pair.query.var_names].to_df().items():
        expected[gene] = counts.var(ddof=0) / max(counts.mean(), 0.01)
    ranked = conditions.rank_genes(pair)
    assert sorted(ranked) == sorted(expected)
    found = [expected[gene] for gene in ranked]
    assert found == pytest.approx(sorted(found, reverse=True), rel=1e-5)  # the counts are float32


def test_tasks_between_studies_have_coarse_labels_and_no_common_cell(conditions, data):
    tasks = [task for task in conditions.TASKS if task.query]
    first, second, agreed, _ = (conditions.read_pair(task, data, seed=0) for task in tasks)
    assert first.reference.n_obs == 120
    assert set(first.reference.obs[conditions.LABEL]) == {"CD4 T", "Monocyte", "B"}
    assert first.truth.tolist() == np.resize(["CD4 T", "Monocyte", "B"], 50).tolist()
    assert list(first.query.obs) == []
    assert second.truth.tolist() == first.truth.tolist()[20:]
    assert agreed.truth.tolist() == np.resize(["T", "Monocyte or DC", "B"], 50).tolist()
    assert set(agreed.reference.obs[conditions.LABEL]) == {"T", "Monocyte or DC", "B"}
    assert {row.regime for row in conditions.rows_of(tasks[2])} == {"studies, agreed"}


def test_log_normalised_is_scanpys_with_absent_genes_as_zeros(conditions, counts_adata):
    genes = pd.Index(["absent", *counts_adata.var_names[:150][::-1]])
    expected = counts_adata[:, genes[1:]].copy()
    scanpy.pp.normalize_total(expected, target_sum=1e4)
    scanpy.pp.log1p(expected)
    found = conditions.log_normalised(counts_adata, genes).toarray()
    assert not found[:, 0].any()
    np.testing.assert_allclose(found[:, 1:], expected.X.toarray(), rtol=1e-5)  # scanpy: float32


def test_refitted_regression_has_the_depth_and_genes_of_the_query(conditions, counts_adata, monkeypatch):
    counts_adata.obs[conditions.LABEL] = counts_adata.obs["cell_type"].astype(str)
    query = counts_adata[:40, :100].copy()
    query.X = sparse.csr_matrix(query.X.multiply(2))
    fitted = []
    fit = conditions.fit_logistic
    monkeypatch.setattr(conditions, "fit_logistic", lambda cells: fitted.append(cells) or fit(cells))
    methods = conditions.Methods(counts_adata, 0, Path(), None)
    for factor in (1, 0.25):  # twice and half as deep as the reference
        shallow = ad.AnnData(sparse.csr_matrix(query.X.multiply(factor)), var=query.var)
        calls = methods.call("lr_refitted", shallow).obs["scperformer_label"].to_numpy()
        assert (calls == query.obs["cell_type"].to_numpy()).mean() > 0.9
        found, wanted, most = (
            np.median(np.asarray(cells.X.sum(axis=1))) for cells in (fitted[-1], shallow, counts_adata[:, :100])
        )
        assert list(fitted[-1].var_names) == list(query.var_names)
        assert found == pytest.approx(min(wanted, most), rel=0.03)


def test_the_perceptron_copes_with_other_genes_and_depths(conditions, counts_adata, monkeypatch):
    monkeypatch.setattr(conditions.rivals, "NUM_STEPS", 150)
    counts_adata.obs[conditions.LABEL] = counts_adata.obs["cell_type"].astype(str)
    methods = conditions.Methods(counts_adata[::2].copy(), 0, Path(), None)
    shallow = counts_adata[1::2, 20:].copy()
    conditions.thin(shallow, 0.2, np.random.default_rng(0))
    first = methods.call("perceptron", shallow).obs["scperformer_label"].to_numpy()
    assert (first == shallow.obs["cell_type"].to_numpy()).mean() > 0.6  # a third by chance
    monkeypatch.setattr(conditions.rivals, "fit_perceptron", None)  # not trained again
    assert (methods.call("perceptron", shallow).obs["scperformer_label"] == first).all()


def test_calibration_error(conditions):
    confidence = np.array([0.95, 1.0, 0.5, 0.51, 0.2])
    right = np.array([True, False, True, True, False])
    # bins: {.95, 1}: |.5 - .975|, 2 cells; {.5, .51}: |1 - .505|, 2 cells; {.2}: |0 - .2|, 1 cell
    assert conditions.calibration_error(confidence, right) == pytest.approx((2 * 0.475 + 2 * 0.495 + 0.2) / 5)


@pytest.fixture
def quick(conditions, monkeypatch):
    """Few rows, and columns that are trained in a second; annotations say what accuracy to expect."""
    rows = [
        conditions.Row("everything", "full"),
        conditions.Row("half", "depth", share=0.5),
        conditions.Row("30 random", "panels", genes="random", num_genes=30),
        conditions.Row("all of them", "panels", genes="random", num_genes=200),
    ]
    monkeypatch.setattr(conditions, "ROWS_WITHIN", rows)
    quick = {column: (["experiment=linear"], []) for column in ("linear_adapted", "default")}
    monkeypatch.setattr(conditions, "OURS", quick)
    annotate, trained = conditions.annotate, []

    def annotate_with_condition(*words, **options):
        called = annotate(*words, **options)
        called.uns["scperformer"]["condition"] = {"adapted": False, "expected_accuracy": 0.75}
        return called

    def train(*words, **options):
        trained.append(options["options"])
        return original(*words, **options)

    original = conditions.train
    monkeypatch.setattr(conditions, "annotate", annotate_with_condition)
    monkeypatch.setattr(conditions, "train", train)
    return trained


@pytest.mark.slow
def test_a_run_continues_where_it_was(conditions, data, quick, monkeypatch, capsys):
    def run(*words):
        columns = ("lr", "linear_adapted", "default", "celltypist")
        command = ["conditions.py", str(data), str(data / "runs.jsonl"), "--tasks", "pbmc3k", "baron"]
        monkeypatch.setattr(sys, "argv", [*command, "--columns", *columns, *words])
        conditions.main()
        return [json.loads(line) for line in (data / "runs.jsonl").read_text().splitlines()], capsys.readouterr().out

    first, _ = run("--seeds", "0")
    assert [line["row"] for line in first] == ["everything"] * 3 + ["half"] * 3 + ["30 random"] * 3
    assert len(quick) == 1  # linear_adapted and default share a model here
    (data / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in first[:5]))
    lines, shown = run("--seeds", "0", "1")
    assert lines[:9] == first
    assert [options["seed"] for options in quick] == [0, 0, 1]
    again, shown_again = run("--seeds", "0", "1")
    assert again == lines
    assert shown_again.splitlines()[-1] == shown.splitlines()[-1]
    assert len(quick) == 3

    for line in lines:
        assert (line["num_cells"], line["num_genes"]) == (24, 30 if line["row"] == "30 random" else 200)
        if line["column"] != "lr":
            assert (line["adapted"], line["expected_accuracy"]) == (0, 0.75)
            assert line["expected_error"] >= abs(0.75 - line["accuracy"]) - 1e-12  # a mean over gene sets
    assert {line["num_differ"] for line in lines if line["column"] == "default"} == {0}
    assert "left out: baron (missing: baron_pancreas_mini.h5ad)" in shown
    assert "left out: celltypist" in shown
    scores = [line["macro_f1"] for line in lines if (line["row"], line["column"]) == ("half", "lr")]
    assert f"| pbmc3k, half | {np.mean(scores):.3f} ± {np.std(scores):.3f} |" in shown
    scores = [[line["macro_f1"] for line in lines if line["column"] == "lr" and line["seed"] == s] for s in (0, 1)]
    means = [np.mean(of_seed[1:]) for of_seed in scores]  # all but everything
    assert f"| **depth and panels** | {np.mean(means):.3f} ± {np.std(means):.3f} |" in shown
    errors = [line["ece"] for line in lines if (line["row"], line["column"]) == ("everything", "default")]
    [loss] = {line["loss"] for line in lines if line["column"] == "default"}
    assert {line["loss"] for line in lines if line["column"] == "lr"} == {None}
    assert (
        f"| {np.mean(errors):.3f} | 0.000 | {loss:.3f} | 0.000 |"
        in shown.split("| full | default |")[1].splitlines()[0]
    )


def test_a_mean_lacks_seeds_that_are_not_finished(conditions):
    lines = [
        {"task": "pbmc3k", "seed": seed, "row": row.name, "column": column, "regime": row.regime, "accuracy": value}
        for row in conditions.ROWS_WITHIN[:3]
        for column, seed, value in (("lr", 0, 0.5), ("lr", 1, 0.7), ("linear", 0, 0.9), ("linear", 1, 0.9))
        if (row.name, column, seed) != ("half of the counts", "linear", 1)
        and (column, row.regime) != ("linear", "full")
    ]
    shown = conditions.table(pd.DataFrame(lines), "accuracy")
    assert "| pbmc3k, everything | 0.600 ± 0.100 | not run |" in shown
    assert "| pbmc3k, half of the counts | 0.600 ± 0.100 | 0.900 ± 0.000 (1 of 2) |" in shown
    assert "| **depth** | 0.600 ± 0.100 | 0.900 ± 0.000 (1 of 2) |" in shown
    assert "studies" not in shown
