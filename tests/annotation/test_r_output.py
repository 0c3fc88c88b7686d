"""Annotations for R: a data.frame in the order of the cells, and the line that adds it to an object."""

import shutil
import subprocess

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support import r_files as r

from scperformer.io.rds import read_object

COLUMNS = ["call", "label", "confidence", "novelty"]


@pytest.fixture(scope="module")
def _made() -> dict[str, bytes]:
    """The files that `calls` makes once, and the messages."""
    return {}


@pytest.fixture
def calls(_made, counts_adata, tiny_model, command, tmp_path) -> str:
    """The messages of two runs on an object, with tables as outputs."""
    if not _made:
        r.write_seurat(counts_adata, tmp_path / "object.rds")
        words = "predict", "object.rds", f"model_path={tiny_model}"
        runs = [command(*words, f"output={output}") for output in ("calls.rds", "calls.csv")]
        assert [run.code for run in runs] == [0, 0]
        _made.update({path.name: path.read_bytes() for path in tmp_path.iterdir()})
        _made["messages"] = "".join(run.err for run in runs).encode()
    for name, content in _made.items():
        if name != "messages":
            (tmp_path / name).write_bytes(content)
    return _made["messages"].decode()


def test_a_data_frame_has_a_row_for_each_cell(calls, counts_adata, tmp_path):
    found = read_object(tmp_path / "calls.rds")
    table = pd.read_csv(tmp_path / "calls.csv", index_col="cell")
    assert found.classes == ["data.frame"]
    assert found["row.names"].value == list(counts_adata.obs_names) == list(table.index)
    columns = found.items()
    assert list(columns) == list(table)
    assert {f"scperformer_{name}" for name in COLUMNS} <= columns.keys()
    label = columns["scperformer_label"]
    assert label.classes == ["factor"]
    assert [label["levels"].value[code - 1] for code in label.value] == list(
        table["scperformer_label"]
    )
    assert list(columns["scperformer_confidence"].value) == pytest.approx(
        list(table["scperformer_confidence"])
    )


def test_the_line_of_r_is_logged(calls, command, tiny_model):
    for read in ('readRDS("calls.rds")', 'read.csv("calls.csv", row.names = 1)'):
        assert f"in R: object <- AddMetaData(object, {read})" in calls
        assert (
            f"in R: calls <- {read}[colnames(object), ]; colData(object)[names(calls)] <- calls"
            in calls
        )
    ran = command("predict", "object.rds", f"model_path={tiny_model}")
    assert "written: object.annotated.h5ad" in ran.err
    assert "output=object.calls.rds writes a data.frame for R" in ran.err


def test_probabilities_and_the_map_are_attributes(counts_adata, tiny_model, command, tmp_path):
    r.write_seurat(counts_adata, tmp_path / "object.rds")
    words = "predict", "object.rds", f"model_path={tiny_model}", "umap=true"
    assert [command(*words, f"output={output}").code for output in ("calls.rds", "a.h5ad")] == [
        0,
        0,
    ]
    assert command(*words, "output=calls.csv").code == 2
    found = read_object(tmp_path / "calls.rds")
    expected = ad.read_h5ad(tmp_path / "a.h5ad").obsm
    names = {"proba": list(expected["scperformer_proba"]), "umap": ["UMAP_1", "UMAP_2"]}
    for name, values in {
        "proba": expected["scperformer_proba"].to_numpy(),
        "umap": expected["X_umap"],
    }.items():
        assert list(found[name]["dim"].value) == list(values.shape)
        assert [part.value for part in found[name]["dimnames"].value] == [
            list(counts_adata.obs_names),
            names[name],
        ]
        np.testing.assert_array_equal(found[name].value.reshape(values.shape, order="F"), values)


def test_an_annotation_in_a_table_is_not_evaluated(calls, refused):
    error = refused("evaluate", "calls.rds", "truth_key=cell_type", "output=evaluation")
    assert "calls.rds" in error
    assert ".h5ad" in error


def test_labels_in_a_data_frame(counts_adata, command, tmp_path):
    r.write_seurat(counts_adata, tmp_path / "object.rds")
    r.save_rds(
        r.frame(counts_adata.obs[["cell_type"]].rename(columns={"cell_type": "type"})),
        tmp_path / "labels.rds",
    )
    words = (
        "train",
        "object.rds",
        "labels=labels.rds",
        "label_key=type",
        "model.encoder=false",
        "output=model",
    )
    assert command(*words).code == 0


def test_cells_of_the_same_name_have_no_data_frame(counts_adata, tiny_model, refused, tmp_path):
    counts_adata.obs_names = ["same"] * counts_adata.n_obs
    counts_adata.write_h5ad(tmp_path / "sample.h5ad")
    error = refused("predict", "sample.h5ad", f"model_path={tiny_model}", "output=calls.rds")
    assert "cell 'same' more than once" in error


def test_a_column_of_text_without_any_value(counts_adata, tiny_model, command, tmp_path):
    counts_adata.obs["note"] = np.array([None] * counts_adata.n_obs, dtype=object)
    r.write_seurat(counts_adata, tmp_path / "object.rds")
    assert command("check", "object.rds", "label_key=note").code == 2
    for output in ("a.h5ad", "a.zarr"):
        assert (
            command("predict", "object.rds", f"model_path={tiny_model}", f"output={output}").code
            == 0
        )
        written = (ad.read_h5ad if output == "a.h5ad" else ad.read_zarr)(tmp_path / output)
        assert written.obs["note"].isna().all()
        assert written.obs["scperformer_call"].notna().all()


def test_labels_of_an_object_are_trained_on(counts_adata, command, tmp_path):
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype("category")
    r.write_seurat(counts_adata, tmp_path / "object.rds")
    assert command("check", "object.rds", "label_key=cell_type").code == 0
    assert (
        command(
            "train", "object.rds", "label_key=cell_type", "model.encoder=false", "output=model"
        ).code
        == 0
    )


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")
def test_r_reads_the_data_frame(calls, tmp_path):
    script = (
        'rds <- readRDS("calls.rds"); csv <- read.csv("calls.csv", row.names = 1); '
        "stopifnot(is.data.frame(rds), identical(dim(rds), dim(csv)), identical(rownames(rds), rownames(csv)), "
        "identical(names(rds), names(csv)), all(as.character(rds$scperformer_label) == csv$scperformer_label), "
        "isTRUE(all.equal(rds$scperformer_confidence, csv$scperformer_confidence)))"
    )
    subprocess.run(["Rscript", "-e", script], cwd=tmp_path, check=True)
