"""The benchmark between studies: its labels, its tasks, its scores, and that it continues where it was."""

import json
import sys

import anndata as ad
import numpy as np
import pytest
from scipy import sparse


def test_labels_are_merged_to_what_both_studies_mean(studies):
    pbmc = ["Naive CD4 T", "Memory CD4 T", "CD14+ Mono", "FCGR3A+ Mono", "B"]
    kang = ["CD4 Naive T", "CD4 Memory T", "CD14 Mono", "CD16 Mono", "B Activated", "B"]
    fine = studies.merged(pbmc, kang)
    assert fine["Naive CD4 T"] == fine["CD4 Naive T"] == "Naive CD4 T"
    assert fine["FCGR3A+ Mono"] == fine["CD16 Mono"] != fine["CD14 Mono"]
    assert fine["B Activated"] == fine["B"] == "B"
    coarse = studies.merged(pbmc, ["T_CD4", "CD14+ Monocyte", "NK"])
    assert coarse["Naive CD4 T"] == coarse["Memory CD4 T"] == coarse["T_CD4"] == "CD4 T"
    assert coarse["FCGR3A+ Mono"] == coarse["CD14+ Monocyte"] == "Monocyte"
    assert coarse["NK"] == "NK"


def test_the_tasks_of_a_reference(studies):
    tasks = studies.tasks_of(["pbmc3k"], None)
    kinds = {(task.query, task.without): task.kind for task in tasks}
    assert kinds[("kang_stim", "")] == "another study"
    assert kinds[("mixology_celseq", "")] == "another tissue"
    assert kinds[("kang_ctrl", "B")] == "a type is missing"
    assert ("pbmc3k", "") not in kinds
    uses = {use: studies.tasks_of(["pbmc3k"], use) for use in ("choose", "report")}
    assert sorted(map(str, uses["choose"] + uses["report"])) == sorted(map(str, tasks))
    assert all(task.query in studies.CHOOSING for task in uses["choose"])
    assert ("zheng_scminer", "") not in {
        (task.query, task.without) for task in studies.tasks_of(["zheng_sorted"], None)
    }


@pytest.fixture
def data(tmp_path, counts_adata, studies, monkeypatch):
    """Two studies of three types, the second with fewer genes and another platform, and one of another tissue."""
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype(str).replace({"T cell": "CD8 T"}).to_numpy()
    names = {"B cell": "B", "Monocyte": "CD14 Mono", "CD8 T": "CD8 T"}
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].map(names).astype(str)
    counts_adata[:80].copy().write_h5ad(tmp_path / "one.h5ad")
    other = counts_adata[80:, 40:].copy()
    other.X = sparse.csr_matrix(other.X.multiply(np.random.default_rng(0).integers(1, 4, size=other.n_vars)))
    other.write_h5ad(tmp_path / "two.h5ad")
    far = ad.AnnData(counts_adata.X[:30][:, ::-1], obs=counts_adata.obs[:30], var=counts_adata.var)
    far.write_h5ad(tmp_path / "far.h5ad")
    found = {"one": studies.Study("one.h5ad"), "two": studies.Study("two.h5ad")}
    found["mixology_celseq"] = studies.Study("far.h5ad", tissue="lung")
    monkeypatch.setattr(studies, "STUDIES", found)
    monkeypatch.setattr(studies, "CHOOSING", ("two",))
    return tmp_path


@pytest.mark.slow
def test_a_run_continues_where_it_was(studies, data, monkeypatch, capsys):
    def run(*columns: str) -> tuple[list[dict], str]:
        monkeypatch.setattr(sys, "argv", ["studies.py", str(data), str(data / "runs.jsonl"), "--columns", *columns])
        monkeypatch.setattr(studies, "REFERENCES", ("one",))
        studies.main()
        return [json.loads(line) for line in (data / "runs.jsonl").read_text().splitlines()], capsys.readouterr().out

    first, _ = run("lr", "default")
    assert {(line["query"], line["row"], line["column"]) for line in first} == {
        *(("two", row, column) for row in ("whole", "a fifth of the counts") for column in ("lr", "default")),
        ("mixology_celseq", "whole", "default"),
    }
    default = next(
        line for line in first if (line["query"], line["row"], line["column"]) == ("two", "whole", "default")
    )
    assert {"accuracy", "macro_f1", "known_flagged", "novelty_ratio", "gene_effects", "ece"} <= set(default)
    assert 0 <= default["accuracy"] <= 1
    assert default["gene_effects"] > 0.12  # each gene is counted once to three times
    again, printed = run("lr", "default")
    assert again == first
    assert "| one → two, whole |" in printed
    assert "| **another tissue, report, whole (1)** |" in printed
