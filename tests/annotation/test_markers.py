"""Marker genes of clusters: the table equals a naive one, and programs that read such tables can read it."""

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
def test_markers_of_clusters_that_predict_finds(command, tmp_path):
    ad.read_h5ad(PBMC)[:1000].write_h5ad(tmp_path / "sample.h5ad")
    ran = command("predict", "sample.h5ad", "markers_output=markers.tsv", "model_path=pbmc3k")
    assert "by a t-test on at most 1,000 cells of each" in ran.err
    cells = ad.read_h5ad(tmp_path / "sample.annotated.h5ad").obs
    assert set(cells["scperformer_cluster"]) == {str(i) for i in range(cells["scperformer_cluster"].nunique())}
    assert 5 < cells["scperformer_cluster"].nunique() < 20
    lines = [line.split("\t") for line in (tmp_path / "markers.tsv").read_text().splitlines()]
    assert lines[0][:3] == ["cluster", "gene", "score"]  # the UCSC Cell Browser reads them by their places
    assert all(float(line[2]) > 0 for line in lines[1:])
    table = pd.read_csv(tmp_path / "markers.tsv", sep="\t")
    b_cells = table[table["label"] == "B"]
    assert len(b_cells) > 10
    for _, of_cluster in b_cells.groupby("cluster"):
        assert {"CD79A", "MS4A1"} & set(of_cluster["gene"].head(5))
    top = table.groupby("cluster")["gene"].apply(lambda genes: ",".join(genes.head(10)))  # as GPTCelltype does
    assert len(top) == cells["scperformer_cluster"].nunique()


def test_the_table_equals_a_naive_one(counts_adata, tiny_model, write, tmp_path):
    counts_adata.obs["leiden"] = np.where(counts_adata.obs["cell_type"] == "T cell", "10", "2")
    counts_adata.obs.iloc[0, -1] = "alone"
    counts_adata.X[:, 150] = 1.0  # no marker
    path, table_path = write(counts_adata), tmp_path / "sample.csv"
    more = {"markers_output": str(table_path), "unknown_fpr": 0.3}
    output = scperformer.annotate(path, tiny_model, clusters="leiden", options=more)
    table = pd.read_csv(table_path, dtype={"cluster": str})
    assert table["cluster"].unique().tolist() == ["10", "2"]
    obs = ad.read_h5ad(output).obs
    x = counts_adata.X.toarray()
    x = np.log1p(1e4 * x / x.sum(1, keepdims=True))
    for cluster, rows in table.groupby("cluster"):
        inside = (counts_adata.obs["leiden"] == cluster).to_numpy()
        assert rows["rank"].tolist() == list(range(1, len(rows) + 1))
        assert rows["score"].is_monotonic_decreasing
        genes = counts_adata.var_names.get_indexer(rows["gene"])
        assert 150 not in genes
        means = [np.expm1(x[side][:, genes].mean(0)) + 1e-9 for side in (inside, ~inside)]
        np.testing.assert_allclose(rows["avg_log2FC"], np.log2(means[0] / means[1]), atol=1e-3)
        np.testing.assert_allclose(rows["pct.1"], (x[inside][:, genes] > 0).mean(0), atol=1e-4)
        np.testing.assert_allclose(rows["pct.2"], (x[~inside][:, genes] > 0).mean(0), atol=1e-4)
        own = obs[inside]
        label = own["scperformer_cluster_label"].iloc[0]
        confidence = sum(own["scperformer_confidence"][own["scperformer_label"] == label]) / len(own)
        assert set(rows["label"]) == {label}
        assert rows["confidence"].iloc[0] == pytest.approx(confidence, abs=1e-4)
        assert rows["unknown"].iloc[0] == pytest.approx((own["scperformer_call"] == "unknown").mean(), abs=1e-4)
        assert set(rows["cells"]) == {len(own)}


def test_few_cells_of_a_large_cluster_are_compared(counts_adata, tiny_model, write, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(markers, "MAX_CELLS", 10)
    rank = markers.rank_markers
    monkeypatch.setattr(markers, "rank_markers", lambda cells, *rest: seen.append(cells.n_obs) or rank(cells, *rest))
    options = {"markers_output": str(tmp_path / "markers.tsv.gz")}
    scperformer.annotate(write(counts_adata), tiny_model, clusters="cell_type", options=options)
    assert seen == [30]
    assert set(pd.read_csv(tmp_path / "markers.tsv.gz", sep="\t")["cells"]) == {40}


def test_each_file_has_a_table_and_may_be_an_annotated_one(command, counts_adata, tiny_model, write, tmp_path):
    files = [write(counts_adata, f"{name}.h5ad") for name in "ab"]
    model = f"model_path={tiny_model}"
    ran = command("predict", *files, model, "markers_output=found/{sample}.csv", "clusters=cell_type", "output_dir=out")
    assert ran.code == 0
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["a.csv", "b.csv"]
    again = ("out/a.annotated.h5ad", model, "replace_annotation=true", "clusters=scperformer_cluster")
    assert command("predict", *again, "output=c.h5ad", "markers_output=c.csv").code == 0
    assert (tmp_path / "c.csv").read_text() == (tmp_path / "found" / "a.csv").read_text()


@pytest.mark.slow
def test_a_table_of_another_run_is_not_replaced(command, refused, counts_adata, tiny_model, write, tmp_path):
    file = write(counts_adata, "a.h5ad")
    words = ("predict", file, f"model_path={tiny_model}", "clusters=cell_type", "markers_output=m.csv", "resume=true")
    table = tmp_path / "m.csv"
    table.write_text("mine")
    for more in ((), ("overwrite=true",)):
        assert "m.csv" in refused(*words, *more)
        assert table.read_text() == "mine"
    table.unlink()
    assert command(*words).code == 0
    made = table.read_text()
    assert made.startswith("cluster,")
    table.write_text(made + "1,CD3D\n")
    assert command(*words).code == 0  # the same run is finished
    assert "of another run (other unknown_fpr)" in refused(*words, "unknown_fpr=0.2")
    assert table.read_text() == made + "1,CD3D\n"
    assert command(*words, "unknown_fpr=0.2", "overwrite=true").code == 0
    assert table.read_text().startswith("cluster,")
    assert "1,CD3D\n" not in table.read_text()


def test_the_table_appears_after_the_annotation(counts_adata, tiny_model, write, tmp_path, monkeypatch):
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


def test_tables_that_cannot_be_written_are_refused(refused, counts_adata, tiny_model, write, tmp_path):
    counts_adata.obs["one"] = "same"
    files = [write(counts_adata, f"{name}.h5ad") for name in "ab"]
    model = f"model_path={tiny_model}"
    assert "markers_output=all.csv; expected a name with {sample}" in refused(
        "predict", *files, model, "markers_output=all.csv"
    )
    assert "a name that ends in .csv" in refused("predict", files[0], model, "markers_output=markers.xlsx")
    both = refused("predict", files[0], model, "output=a.csv", "markers_output=a.csv")
    assert "markers_output=a.csv; expected a file that is not the output" in both
    (tmp_path / "taken.csv").write_text("mine")
    assert "taken.csv exists" in refused("predict", files[0], model, "markers_output=taken.csv")
    assert "in 1 cluster; expected two" in refused("predict", files[0], model, "clusters=one", "markers_output=a.csv")
    with refusal("output-in-memory"):
        scperformer.annotate(counts_adata, tiny_model, options={"markers_output": "a.csv"})
