"""How often the matrix of a file is read: once for what the file states as a whole, and once for the predictions."""

from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
from support.inputs import write_csv, write_loom, write_mtx, write_tenx_v3, write_zarr_3

import scperformer as scp
import scperformer.io.read
from scperformer.cli.predict import PredictConfig, run
from scperformer.io.rows import Rows

DATA = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"


@pytest.fixture
def num_read(monkeypatch) -> list[int]:
    """The number of rows of each block that is read; a file of 1,319 cells has 7 blocks."""
    monkeypatch.setattr("scperformer.io.rows.MAX_BLOCK_CELLS", 200)
    found = []
    read = Rows._read

    def counted(rows: Rows, start: int, stop: int):
        found.append(stop - start)
        return read(rows, start, stop)

    monkeypatch.setattr(Rows, "_read", counted)
    return found


def stored(path: Path, values: str) -> str:
    cells = ad.read_h5ad(DATA)[::2].copy()
    if values == "log1p":
        sc.pp.normalize_total(cells, target_sum=1e4)
        sc.pp.log1p(cells)
    if values == "a twentieth of the depth":
        cells.X.data = (
            np.random.default_rng(0).binomial(cells.X.data.astype(int), 0.05).astype(np.float32)
        )
        cells.X.eliminate_zeros()
    cells.write_h5ad(path)
    return str(path)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ("counts", {"model_path": "pbmc3k", "adapt": "false"}),
        ("log1p", {"model_path": "pbmc3k"}),
        # clusters to check, and novel cells
        ("counts", {"model_path": "pbmc3k", "deny_labels": ["B", "Platelet"]}),
        # refitted
        pytest.param("a twentieth of the depth", {"model_path": "pbmc3k"}, marks=pytest.mark.slow),
        ("counts", {}),  # its tissue is found
    ],
)
def test_predict_reads_the_matrix_twice(values, options, num_read, tmp_path):
    path = stored(tmp_path / "cells.h5ad", values)
    run(PredictConfig(inputs=[path], output=str(tmp_path / "calls.csv"), **options))
    assert sum(num_read) <= 2 * 1319


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(write_csv, marks=pytest.mark.slow),
        write_mtx,
        write_tenx_v3,
        write_loom,
        write_zarr_3,
    ],
)
def test_other_kinds_of_files_are_read_once(write, tmp_path, monkeypatch):
    """As a whole: they are annotated from memory."""
    found = []
    read = scperformer.io.read.read_cells

    def counted(path, *options, **named):
        found.append(path)
        return read(path, *options, **named)

    monkeypatch.setattr("scperformer.io.read.read_cells", counted)
    cells = ad.read_h5ad(DATA)[:150].copy()
    cells.var["gene_ids"] = cells.var_names
    path = write(cells, tmp_path)
    run(PredictConfig(inputs=[str(path)], model_path="pbmc3k", output=str(tmp_path / "calls.csv")))
    assert found == [path]
    assert not scp.check(path, model="pbmc3k").problems
    assert found == [path, path]


def test_check_reads_the_matrix_once(num_read, tmp_path):
    path = stored(tmp_path / "cells.h5ad", "counts")
    for model in ("pbmc3k", None):
        num_read.clear()
        assert not scp.check(path, model=model).problems
        assert sum(num_read) <= 1319
