"""The accuracy panel: methods see neither the labels nor the cells that they are tested on."""

from pathlib import Path

import anndata as ad
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def data(tmp_path):
    """Two studies; the first gene of each cell is its number."""
    rng = np.random.default_rng(0)
    for study, num_cells in (("one", 60), ("two", 30)):
        x = rng.poisson(1.0, (num_cells, 5)).astype(np.float32)
        x[:, 0] = np.arange(num_cells) + 1000 * (study == "two")
        kinds = np.array(["a", "b", "c", "x" if study == "two" else "c"])[np.arange(num_cells) % 4]
        adata = ad.AnnData(x)
        adata.obs["kind"] = kinds
        adata.obs["donor"] = np.where(np.arange(num_cells) % 2, "odd", "even")
        adata.write_h5ad(tmp_path / f"{study}.h5ad")
    return tmp_path


SPLITS = {"folds": {"folds": 3}, "few": {"cells_per_label": 5}, "holdout": {"holdout": 0.25}}


@pytest.mark.parametrize("split", SPLITS)
def test_no_cell_is_in_both_parts_and_the_query_has_no_labels(panel, data, split):
    task = panel.Task(name="t", reference="one.h5ad", label_key="kind", **SPLITS[split])
    found = list(panel.pairs(task, data, seeds=2))
    assert len(found) == (6 if split == "folds" else 2)
    for pair in found:
        trained, predicted = (set(part.X[:, 0].tolist()) for part in (pair.reference, pair.query))
        assert not trained & predicted
        assert len(trained | predicted) == 60
        assert list(pair.query.obs) == [] == list(pair.query.uns)
        assert list(pair.reference.obs) == [panel.LABEL]
        expected = np.array(["a", "b", "c", "c"])[pair.query.X[:, 0].astype(int) % 4]
        assert pair.truth.tolist() == expected.tolist()
    assert not np.array_equal(found[0].query.X, found[-1].query.X)


def test_number_of_labelled_cells(panel, data):
    task = panel.Task(name="t", reference="one.h5ad", label_key="kind", cells_per_label=5)
    for pair in panel.pairs(task, data, seeds=1):
        assert pair.reference.obs[panel.LABEL].value_counts().to_dict() == {"a": 5, "b": 5, "c": 5}
    task = panel.Task(name="t", reference="one.h5ad", label_key="kind", cells_per_label=50)
    for pair in panel.pairs(task, data, seeds=1):  # never more than half of a label
        assert pair.reference.obs[panel.LABEL].value_counts().to_dict() == {"a": 7, "b": 7, "c": 15}


def test_query_keeps_all_cells_with_labels_of_the_reference(panel, data):
    task = panel.Task(
        name="t",
        reference="one.h5ad",
        label_key="kind",
        query="two.h5ad",
        query_where={"donor": ["even"]},
        merge={"c": "b"},
    )
    (first, second) = panel.pairs(task, data, seeds=2)
    assert first.truth.tolist() == second.truth.tolist()
    assert sorted(set(first.truth)) == ["a", "c"]  # even cells: a and c; x, which the reference lacks, is odd
    assert first.query.X[:, 0].min() >= 1000 > first.reference.X[:, 0].max()
    assert not np.array_equal(first.reference.X, second.reference.X)
    odd = panel.Task(name="t", reference="one.h5ad", label_key="kind", query="two.h5ad", query_where={"donor": ["odd"]})
    assert set(next(panel.pairs(odd, data, seeds=1)).truth) == {"b"}


def test_several_files_make_one_reference(panel, data):
    task = panel.Task(name="t", reference=["one.h5ad", "two.h5ad"], label_key="kind", holdout=0.5)
    pair = next(panel.pairs(task, data, seeds=1))
    assert sorted([*pair.reference.X[:, 0], *pair.query.X[:, 0]]) == [*range(60), *range(1000, 1030)]
    assert panel.missing_files(
        panel.Task(name="t", reference=["one.h5ad", "no.h5ad"], label_key="k", folds=2), data
    ) == ["no.h5ad"]


def test_missing_files_are_named(panel, data):
    task = panel.Task(name="t", reference="one.h5ad", label_key="kind", query="three.h5ad")
    assert panel.missing_files(task, data) == ["three.h5ad"]
    assert panel.missing_files(task, None) == ["one.h5ad", "three.h5ad"]
    with pytest.raises(SystemExit, match="task 't': give one of query, folds, cells_per_label, holdout"):
        panel.Task(name="t", reference="one.h5ad", label_key="kind")


@pytest.mark.parametrize("name", ["panel.yaml", "panel_download.yaml"])
def test_task_files_can_be_read(panel, name):
    tasks = panel.read_tasks(BENCHMARKS / name)
    assert len({task.name for task in tasks}) == len(tasks) >= 5


def test_embedded_task_uses_the_cells_of_scanpy(panel):
    (task,) = [task for task in panel.read_tasks(BENCHMARKS / "panel.yaml") if task.reference == "embedded"]
    pair = next(panel.pairs(task, None, seeds=1))
    assert pair.reference.shape == (560, 765)
    assert len(pair.truth) == pair.query.n_obs == 140
    assert pair.query.X.min() >= 0
