"""The other methods of the benchmarks: labels of separable cells over the shared genes, and those that are absent."""

import importlib
import sys
from importlib.metadata import version
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def methods(monkeypatch):
    """benchmarks/methods.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("methods")


@pytest.fixture
def cells():
    """60 cells of two types; a type has ten times the counts of the other in its half of the genes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b"], 30)
    rates = np.where((labels == "a")[:, None] == (np.arange(100) < 50), 10, 1)
    names = pd.DataFrame(index=[f"g{i}" for i in range(100)])
    return ad.AnnData(
        rng.poisson(rates).astype(np.float32),
        obs=pd.DataFrame({"label": labels}, index=[f"c{i}" for i in range(60)]),
        var=names,
    )


@pytest.mark.parametrize("name", ["lr_tuned", "svm", "knn"])
@pytest.mark.parametrize("is_logged", [False, True], ids=["counts", "logs"])
def test_separable_cells_are_called_by_the_shared_genes_in_any_order(
    methods, cells, name, is_logged
):
    if is_logged:
        cells.X = np.log1p(cells.X)
    query = cells[::3, cells.var_names[::-1][:80]].copy()
    truth = query.obs.pop("label").to_numpy(str)
    assert (methods.call(name, cells, query, None) == truth).all()


@pytest.mark.slow
def test_a_method_without_its_package_is_left_out(methods, capsys):
    found = methods.available(["svm", "scanvi", "default"], sys.executable)
    assert found == ["svm", "default"]
    assert (
        "left out: scanvi (--others names a Python that has scvi-tools)" in capsys.readouterr().out
    )


@pytest.mark.slow
def test_versions_are_printed(methods, capsys, monkeypatch):
    monkeypatch.setitem(methods.ELSEWHERE, "scanvi", "scanpy")
    assert methods.available(["scanvi"], sys.executable) == ["scanvi"]
    assert f"scanvi: scanpy {version('scanpy')}" in capsys.readouterr().out
