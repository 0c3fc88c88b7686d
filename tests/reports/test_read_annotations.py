"""Annotations read from files: names of samples, content, refused files."""

from pathlib import Path

import numpy as np
import pytest
from support.annotated import annotated_sample, write_sample

from scperformer.base.errors import InputError
from scperformer.reports import read_annotated, sample_names
from scperformer.reports.read_annotations import read_samples


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["x/a.annotated.h5ad", "x/b.h5ad"], ["a", "b"]),
        (["x/a.prepared.annotated.h5ad"], ["a"]),
        (["run1/s.annotated.h5ad", "run2/s.annotated.h5ad"], ["run1/s", "run2/s"]),
        (["x/s.h5ad", "x/s.annotated.h5ad"], ["s.h5ad", "s.annotated.h5ad"]),
        (["x/.annotated.h5ad"], [".annotated"]),
    ],
    ids=["plain", "two-suffixes", "two-folders", "same-stem", "nothing-left"],
)
def test_sample_names(files, names):
    assert sample_names([Path(file) for file in files]) == names


def test_reads_the_annotation_and_not_the_expression(tmp_path, monkeypatch):
    sample = annotated_sample(num_cells=30, min_confidence=0.5)
    path = write_sample(tmp_path, "one", sample)
    monkeypatch.setattr("scanpy.read_h5ad", None)
    [read], failed = read_samples([path], "scperformer")
    assert failed == []
    assert read.name == "one"
    assert read.labels.tolist() == sample.obs["scperformer_label"].astype(str).tolist()
    assert read.model_labels == list(sample.uns["scperformer"]["model"]["labels"])
    np.testing.assert_array_equal(read.embedding, sample.obsm["X_scperformer"])
    np.testing.assert_array_equal(read.column("unknown"), sample.obs["scperformer_unknown"])


def test_embeddings_of_models_adapted_to_different_conditions_are_replaced_by_probabilities(tmp_path):
    """Such embeddings are not comparable; logarithms of probabilities are."""
    samples = [annotated_sample(first, num_cells=20) for first in (0, 20)]

    def embeddings(*keys: str | None) -> list[np.ndarray]:
        paths = []
        for number, (sample, key) in enumerate(zip(samples, keys, strict=True)):
            sample.uns["scperformer"]["condition"] = {"adapted": key is not None, "key": key or "f" * 16}
            paths.append(write_sample(tmp_path, f"s{number}", sample))
        return [read.embedding for read in read_samples(paths, "scperformer")[0]]

    for same in (("a" * 16,) * 2, (None, None)):
        for found, sample in zip(embeddings(*same), samples, strict=True):
            np.testing.assert_array_equal(found, sample.obsm["X_scperformer"])
    for other in (("a" * 16, "b" * 16), ("a" * 16, None)):
        for found, sample in zip(embeddings(*other), samples, strict=True):
            proba = sample.obsm["scperformer_proba"].to_numpy()
            np.testing.assert_allclose(found, np.log(np.clip(proba, 1e-3, None)), rtol=1e-6)


def test_embedding_is_read_only_on_request(tmp_path):
    path = write_sample(tmp_path, "one", annotated_sample(num_cells=20))
    assert read_annotated([path], "scperformer")[0].embedding is None


@pytest.mark.parametrize("missing", ["scperformer_label", "scperformer_confidence", "scperformer_unknown"])
def test_missing_column_is_refused(tmp_path, missing):
    sample = annotated_sample(num_cells=20)
    del sample.obs[missing]
    path = write_sample(tmp_path, "one", sample)
    with pytest.raises(
        InputError, match=f"no obs column '{missing}' in .*one.annotated.h5ad; expected an annotated file"
    ):
        read_annotated([path], "scperformer")


def test_missing_facts_or_embedding_are_refused(tmp_path):
    sample = annotated_sample(num_cells=20)
    del sample.obsm["X_scperformer"]
    path = write_sample(tmp_path, "one", sample)
    with pytest.raises(InputError, match=r"no obsm\['X_scperformer'\]"):
        read_samples([path], "scperformer")
    del sample.uns["scperformer"]
    path = write_sample(tmp_path, "two", sample)
    with pytest.raises(InputError, match=r"no uns\['scperformer'\]"):
        read_annotated([path], "scperformer")


def test_remedy_for_a_file_without_annotation_is_predict(tmp_path, pbmc):
    path = write_sample(tmp_path, "plain", pbmc)
    with pytest.raises(InputError, match=r"run 'scperformer predict .*plain.annotated.h5ad' first"):
        read_annotated([path], "scperformer")


def test_remedy_for_another_key_names_it(tmp_path):
    path = write_sample(tmp_path, "one", annotated_sample(num_cells=20, key="mine"))
    with pytest.raises(InputError, match="add key_added=mine"):
        read_annotated([path], "scperformer")


def test_file_given_twice_is_refused(tmp_path):
    path = write_sample(tmp_path, "one", annotated_sample(num_cells=20))
    with pytest.raises(InputError, match="is given twice"):
        read_annotated([path, str(tmp_path / ".." / tmp_path.name / "one.annotated.h5ad")], "scperformer")


def test_files_of_two_models_are_refused(tmp_path):
    one = write_sample(tmp_path, "one", annotated_sample(num_cells=20))
    two = write_sample(tmp_path, "two", annotated_sample(20, 20, model_hash="f" * 64))
    with pytest.raises(InputError, match=r"0123456789ab.*ffffffffffff.*expected files annotated by one model"):
        read_annotated([one, two], "scperformer")


def test_truncated_file_is_refused(tmp_path):
    path = Path(write_sample(tmp_path, "one", annotated_sample(num_cells=20)))
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"one.annotated.h5ad is (truncated|damaged)"):
        read_annotated([str(path)], "scperformer")


def test_samples_are_in_natural_order(tmp_path):
    sample = annotated_sample(num_cells=20)
    paths = [write_sample(tmp_path, name, sample) for name in ("s10", "s2", "S1")]
    assert [read.name for read in read_samples(paths, "scperformer")[0]] == ["S1", "s2", "s10"]


def test_files_without_an_annotation_have_a_reason(tmp_path, pbmc, caplog):
    good = write_sample(tmp_path, "good", annotated_sample(num_cells=20))
    plain = write_sample(tmp_path, "plain", pbmc)
    absent = str(tmp_path / "absent.h5ad")
    (tmp_path / "told.failed.json").write_text('{"sample": "told", "error": "no expression in it"}')
    (tmp_path / "too.failed.json").write_text('{"sample": "x", "error": "\\u001b[31mtoo few genes"}')
    (tmp_path / "odd.failed.json").write_text("[]")
    names = ("told.annotated.h5ad", "too.failed.json", "odd.failed.json")
    paths = [plain, good, absent, *(str(tmp_path / name) for name in names)]
    samples, failed = read_samples(paths, "scperformer")
    assert [read.name for read in samples] == ["good"]
    reasons = {sample.name: sample.reason for sample in failed}
    assert list(reasons) == ["absent", "odd", "plain", "told", "too"]
    assert reasons["told"] == "no expression in it"
    assert reasons["too"] == "\ufffd[31mtoo few genes"
    assert "no obs column 'scperformer_label'" in reasons["plain"]
    assert "odd.failed.json" in reasons["odd"]
    assert caplog.text.count("is in the report without an annotation") == 5


def test_no_annotated_file_at_all_is_an_error(tmp_path, pbmc):
    paths = [write_sample(tmp_path, name, pbmc) for name in ("a", "b")]
    with pytest.raises(InputError, match=r"none of 2 files is annotated: a: no obs column .*; b: no obs column"):
        read_samples(paths, "scperformer")


def test_probabilities_of_chosen_cells(tmp_path):
    sample = annotated_sample(num_cells=20)
    [read] = read_annotated([write_sample(tmp_path, "one", sample)], "scperformer")
    rows = np.array([3, 17])
    np.testing.assert_array_equal(read.probabilities(rows), sample.obsm["scperformer_proba"].to_numpy()[rows])
