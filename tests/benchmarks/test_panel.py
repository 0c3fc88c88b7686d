"""The tasks of the benchmarks: methods see neither the labels nor the cells that they are tested on."""

import importlib
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def panel(monkeypatch):
    """benchmarks/panel.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("panel")


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


def test_task_files_can_be_read(panel):
    for name in ("panel.yaml", "panel_download.yaml"):
        tasks = panel.read_tasks(BENCHMARKS / name)
        assert len({task.name for task in tasks}) == len(tasks) >= 5
