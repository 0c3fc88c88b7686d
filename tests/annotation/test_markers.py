"""The table of clusters: a row for each, with calls, markers and an empty name; it equals a naive one."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.refusal import refusal

import scperformer
from scperformer.annotation import markers

PBMC = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"


@pytest.mark.slow
def test_clusters_that_predict_finds(command, tmp_path):
    ad.read_h5ad(PBMC)[:1000].write_h5ad(tmp_path / "sample.h5ad")
    words = ("predict", "sample.h5ad", "model_path=pbmc3k", "clusters=auto")
    ran = command(*words, "markers_output=clusters.tsv")
    assert "by a t-test on at most 1,000 cells of each" in ran.err
    cells = ad.read_h5ad(tmp_path / "sample.annotated.h5ad").obs
    num = cells["scperformer_cluster"].nunique()
    assert 5 < num < 20
    table = pd.read_csv(
        tmp_path / "clusters.tsv", sep="\t", dtype={"cluster": str}, keep_default_na=False
    )
    assert list(table) == [
        "cluster",
        "cells",
        "calls",
        "confidence",
        "looks_like",
        "markers",
        "name",
    ]
    assert len(table) == num
    assert set(table["name"]) == {""}
    assert table["cells"].sum() == 1000
    assert table["cells"].is_monotonic_decreasing
    b_cells = table[table["calls"].str.startswith("B ")]
    assert len(b_cells) > 0
    for genes in b_cells["markers"].str.split(", "):
        assert len(genes) == 10
        assert {"CD79A", "MS4A1"} & set(genes[:5])
    assert command(*words, "output=many.h5ad").code == 0  # without the table, clusters are small
    assert (
        ad.read_h5ad(tmp_path / "many.h5ad", backed="r").obs["scperformer_cluster"].nunique()
        > 3 * num
    )


def test_the_table_equals_a_naive_one(counts_adata, tiny_model, write, tmp_path):
    counts_adata.obs["leiden"] = np.where(counts_adata.obs["cell_type"] == "T cell", "10", "2")
    counts_adata.obs.iloc[0, -1] = "alone"
    counts_adata.X[:, 150] = 1.0  # no marker
    path, table_path = write(counts_adata), tmp_path / "sample.csv"
    more = {"markers_output": str(table_path), "unknown_fpr": 0.3}
    output = scperformer.annotate(path, tiny_model, clusters="leiden", options=more)
    table = pd.read_csv(table_path, dtype=str, keep_default_na=False).set_index("cluster")
    assert table.index.tolist() == ["2", "10", "alone"]
    assert table.loc["alone", "markers"] == ""
    obs = ad.read_h5ad(output).obs
    x = counts_adata.X.toarray()
    x = np.log1p(1e4 * x / x.sum(1, keepdims=True))
    for cluster in ("2", "10"):
        row = table.loc[cluster]
        inside = (counts_adata.obs["leiden"] == cluster).to_numpy()
        genes = counts_adata.var_names.get_indexer(row["markers"].split(", "))
        assert len(genes) == 10
        assert 150 not in genes
        means = [np.expm1(x[side][:, genes].mean(0)) for side in (inside, ~inside)]
        assert (np.log2(means[0] / means[1]) >= 1).all()
        assert ((x[inside][:, genes] > 0).mean(0) >= 0.1).all()
        difference = x[inside][:, genes].mean(0) - x[~inside][:, genes].mean(0)
        error = np.sqrt(x[inside][:, genes].var(0, ddof=1) + x[~inside][:, genes].var(0, ddof=1))
        assert (np.diff(difference / error) < 0.3).all()  # about in the order of the test's score
        own = obs[inside]
        shares = own["scperformer_call"].value_counts() / len(own)
        shown = "; ".join(
            f"{call} {share:.2f}".replace(" 0.", " .")
            for call, share in shares[shares > 0.01].items()
        )
        assert row["calls"] in (shown, shown.rpartition("; ")[0])  # at most three
        assert float(row["confidence"]) == pytest.approx(
            own["scperformer_confidence"].mean(), abs=1e-3
        )
        assert int(row["cells"]) == len(own)


def test_few_cells_of_a_large_cluster_are_compared(
    counts_adata, tiny_model, write, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(markers, "MAX_CELLS", 10)
    rank = markers.rank_markers
    monkeypatch.setattr(
        markers, "rank_markers", lambda cells, *rest: seen.append(cells.n_obs) or rank(cells, *rest)
    )
    options = {"markers_output": str(tmp_path / "markers.tsv.gz")}
    scperformer.annotate(write(counts_adata), tiny_model, clusters="cell_type", options=options)
    assert seen == [30]
    assert set(pd.read_csv(tmp_path / "markers.tsv.gz", sep="\t")["cells"]) == {40}


def test_a_workbook(counts_adata, tiny_model, write, tmp_path):
    pytest.importorskip("openpyxl")
    options = {"markers_output": str(tmp_path / "clusters.xlsx")}
    scperformer.annotate(write(counts_adata), tiny_model, clusters="cell_type", options=options)
    table = pd.read_excel(tmp_path / "clusters.xlsx")
    assert list(table) == list(markers.CLUSTER_COLUMNS)
    assert set(table["cluster"]) == {"B cell", "Monocyte", "T cell"}


def test_a_single_cluster_has_no_markers(command, counts_adata, tiny_model, write, tmp_path):
    counts_adata.obs["one"] = "same"
    words = (
        write(counts_adata),
        f"model_path={tiny_model}",
        "clusters=one",
        "markers_output=a.csv",
    )
    assert "clusters without markers: same" in command("predict", *words).err
    assert pd.read_csv(tmp_path / "a.csv")["markers"].isna().all()


def test_each_file_has_a_table_and_may_be_an_annotated_one(
    command, counts_adata, tiny_model, write, tmp_path
):
    files = [write(counts_adata, f"{name}.h5ad") for name in "ab"]
    model = f"model_path={tiny_model}"
    ran = command(
        "predict",
        *files,
        model,
        "markers_output=found/{sample}.csv",
        "clusters=cell_type",
        "output_dir=out",
    )
    assert ran.code == 0
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["a.csv", "b.csv"]
    again = ("out/a.annotated.h5ad", model, "overwrite=true", "clusters=scperformer_cluster")
    assert command("predict", *again, "output=c.h5ad", "markers_output=c.csv").code == 0
    assert (tmp_path / "c.csv").read_text() == (tmp_path / "found" / "a.csv").read_text()


def test_a_table_of_another_run_is_not_replaced(
    command, refused, counts_adata, tiny_model, write, tmp_path
):
    file = write(counts_adata, "a.h5ad")
    words = (
        "predict",
        file,
        f"model_path={tiny_model}",
        "clusters=cell_type",
        "markers_output=m.csv",
        "resume=true",
    )
    table = tmp_path / "m.csv"
    table.write_text("mine")
    for more in ((), ("overwrite=true",)):
        assert "m.csv" in refused(*words, *more)
        assert table.read_text() == "mine"
    table.unlink()
    assert command(*words).code == 0
    made = table.read_text()
    assert made.startswith("cluster,")
    named = made.replace(",\n", ",plasmablast\n", 1)
    table.write_text(named)
    assert command(*words).code == 0  # the same run is finished
    assert "of another run" in refused(*words, "unknown_fpr=0.2")
    assert "m.csv" in refused(*words, "unknown_fpr=0.2", "overwrite=true")
    assert table.read_text() == named  # names that a person gave are not lost
    table.write_text(made)
    assert "of another run (other unknown_fpr)" in refused(*words, "unknown_fpr=0.2")
    assert command(*words, "unknown_fpr=0.2", "overwrite=true").code == 0
    assert table.read_text().startswith("cluster,")


def test_the_table_appears_after_the_annotation(
    counts_adata, tiny_model, write, tmp_path, monkeypatch
):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    file = write(counts_adata)
    options = {"markers_output": str(tmp_path / "m.csv"), "resume": True}
    with monkeypatch.context() as patch:
        patch.setattr("scperformer.annotation.predict.write_annotation", stopped)
        with pytest.raises(KeyboardInterrupt):
            scperformer.annotate(file, tiny_model, clusters="cell_type", options=options)
    assert not (tmp_path / "m.csv").exists()
    scperformer.annotate(file, tiny_model, clusters="cell_type", options=options)
    assert (tmp_path / "m.csv").exists()


def test_tables_that_cannot_be_written_are_refused(
    refused, counts_adata, tiny_model, write, tmp_path
):
    files = [write(counts_adata, f"{name}.h5ad") for name in "ab"]
    model = f"model_path={tiny_model}"
    assert "markers_output=all.csv; expected a name with {sample}" in refused(
        "predict", *files, model, "markers_output=all.csv"
    )
    assert "a name that ends in .xlsx, .csv" in refused(
        "predict", files[0], model, "markers_output=markers.txt"
    )
    both = refused("predict", files[0], model, "output=a.csv", "markers_output=a.csv")
    assert "markers_output=a.csv; expected a file that is not the output" in both
    (tmp_path / "taken.csv").write_text("mine")
    assert "taken.csv exists" in refused("predict", files[0], model, "markers_output=taken.csv")
    with refusal("output-in-memory"):
        scperformer.annotate(counts_adata, tiny_model, options={"markers_output": "a.csv"})
