"""Annotations read from files: names of samples, content, refused files."""

from pathlib import Path

import numpy as np
import pytest
from support.annotated import annotated_sample, write_sample
from support.logs import said
from support.refusal import refusal

from scperformer.results.read_annotations import Failed, names_of_samples, read_annotated


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["x/a.prepared.annotated.h5ad", "x/b.h5ad"], ["a", "b"]),
        (["run1/s.annotated.h5ad", "run2/s.annotated.h5ad"], ["run1/s", "run2/s"]),
        (["x/s.h5ad", "x/s.annotated.h5ad"], ["s.h5ad", "s.annotated.h5ad"]),
    ],
)
def test_sample_names(files, names):
    assert names_of_samples([Path(file) for file in files]) == names


def test_reads_the_annotation_and_not_the_expression(tmp_path, monkeypatch):
    sample = annotated_sample(num_cells=30, min_confidence=0.5)
    path = write_sample(tmp_path, "one", sample)
    monkeypatch.setattr("scanpy.read_h5ad", None)
    [read] = read_annotated([path], "scperformer")
    assert read.name == "one"
    assert read.labels.tolist() == sample.obs["scperformer_label"].astype(str).tolist()
    assert read.model_labels == list(sample.uns["scperformer"]["model"]["labels"])
    assert read.umap is None
    np.testing.assert_array_equal(
        read.column("unknown"), sample.obs["scperformer_call"] == "unknown"
    )


def test_the_umap_of_a_file_is_read(tmp_path):
    sample = annotated_sample(num_cells=20)
    sample.obsm["X_umap"] = np.random.default_rng(0).normal(size=(20, 2))
    [read] = read_annotated([write_sample(tmp_path, "one", sample)], "scperformer")
    np.testing.assert_allclose(read.umap, sample.obsm["X_umap"], rtol=1e-6)
    sample.obsm["X_umap"][3] = np.nan  # scanpy would refuse to draw it
    [read] = read_annotated([write_sample(tmp_path, "one", sample)], "scperformer")
    assert read.umap is None


def test_the_remedy_for_a_file_without_the_annotation(tmp_path, pbmc):
    with refusal("not-annotated", "scperformer predict"):
        read_annotated([write_sample(tmp_path, "plain", pbmc)], "scperformer")
    with refusal("not-annotated", "key_added=mine"):
        read_annotated(
            [write_sample(tmp_path, "one", annotated_sample(num_cells=20, key="mine"))],
            "scperformer",
        )


def test_file_given_twice_is_refused(tmp_path):
    path = write_sample(tmp_path, "one", annotated_sample(num_cells=20))
    with refusal("file-twice"):
        read_annotated(
            [path, str(tmp_path / ".." / tmp_path.name / "one.annotated.h5ad")], "scperformer"
        )


def test_files_of_two_models_are_refused(tmp_path):
    one = write_sample(tmp_path, "one", annotated_sample(num_cells=20))
    two = write_sample(tmp_path, "two", annotated_sample(20, 20, model_hash="f" * 64))
    with refusal("several-models"):
        read_annotated([one, two], "scperformer")


def test_files_without_an_annotation_have_a_reason(tmp_path, pbmc, caplog):
    good = write_sample(tmp_path, "good", annotated_sample(num_cells=20))
    plain = write_sample(tmp_path, "plain", pbmc)
    absent = str(tmp_path / "absent.h5ad")
    (tmp_path / "told.failed.json").write_text('{"sample": "told", "error": "no expression in it"}')
    (tmp_path / "too.failed.json").write_text(
        '{"sample": "x", "error": "\\u001b[31mtoo few genes"}'
    )
    (tmp_path / "odd.failed.json").write_text("[]")
    names = ("told.annotated.h5ad", "too.failed.json", "odd.failed.json")
    paths = [plain, good, absent, *(str(tmp_path / name) for name in names)]
    failed: list[Failed] = []
    samples = read_annotated(paths, "scperformer", failed)
    assert [read.name for read in samples] == ["good"]
    reasons = {sample.name: sample.reason for sample in failed}
    assert list(reasons) == ["absent", "odd", "plain", "told", "too"]
    assert reasons["told"] == "no expression in it"
    assert reasons["too"] == "\ufffd[31mtoo few genes"
    assert "no obs column 'scperformer_call'" in reasons["plain"]
    assert "odd.failed.json" in reasons["odd"]
    assert all(
        said(caplog, "read_annotated", *name_and_reason) for name_and_reason in reasons.items()
    )


def test_no_annotated_file_at_all_is_an_error(tmp_path, pbmc):
    paths = [write_sample(tmp_path, name, pbmc) for name in ("a", "b")]
    with refusal("none-annotated"):
        read_annotated(paths, "scperformer", [])


def damaged_column(sample):
    sample.obs["scperformer_confidence"] = "high"


def damaged_record(sample):
    sample.uns["scperformer"]["calibration"] = "{"


@pytest.mark.parametrize(
    ("damage", "place"),
    [(damaged_column, "'scperformer_confidence'"), (damaged_record, "['calibration'] is a text")],
)
def test_a_changed_annotation_is_refused_with_its_place(damage, place, tmp_path):
    sample = annotated_sample()
    damage(sample)
    sample.write_h5ad(tmp_path / "a.h5ad")
    with refusal("damaged-annotation", place):
        read_annotated([str(tmp_path / "a.h5ad")], "scperformer")
