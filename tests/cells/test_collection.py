"""Cells that stay on disk are the same as in memory; large files and several labelled files stay on disk."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.logs import said
from support.refusal import refusal
from support.words import config_of as config

from scperformer.cells import collection
from scperformer.cells.collection import Filters, choose_storage, make_collection, stored_cells
from scperformer.cells.corpus import make_corpus
from scperformer.cells.opened import OpenedCells, whole_cells


@pytest.fixture
def files(counts_adata, tmp_path) -> list[Path]:
    """The 120 cells as an h5ad file of 50, with repeated gene names and few of the genes, and a zarr store of 70."""
    one = counts_adata[:50, :150].copy()
    one.var_names = [*one.var_names[:-1], one.var_names[3]]
    two = counts_adata[50:].copy()
    two.X = two.X.toarray()
    paths = [tmp_path / "one.h5ad", tmp_path / "two.zarr"]
    one.write_h5ad(paths[0])
    two.write_zarr(paths[1])
    return paths


def opened(files, cfg) -> list[OpenedCells]:
    return [stored_cells(path, cfg) for path in files]


def test_cells_and_genes_equal_those_in_memory_bit_for_bit(files, monkeypatch):
    cfg = config("pretrain", "data.min_genes=125", "data.min_cells=60")
    cfg.data.val_fraction = 0.2
    expected = make_corpus([whole_cells(path, cfg) for path in files])
    assert 20 < len(expected.genes) < 200
    assert 20 < expected.x.shape[0] < 120
    found = make_collection(opened(files, cfg), Filters(125, 60, min_shared=2))
    assert found.genes == expected.genes
    assert np.array_equal(found.file_of_cell, expected.file_of_cell)
    order = np.random.default_rng(0).permutation(len(found))[:40]
    order[3] = order[4]  # a cell that is read twice
    assert (found.read(order) != expected.x[order]).nnz == 0
    monkeypatch.setattr(collection, "CELLS_AT_ONCE", 7)
    assert (found.read(order) != expected.x[order]).nnz == 0
    # each file is opened when it is read
    monkeypatch.setattr("scperformer.cells.opened.MAX_OPEN", 1)
    many = make_collection(opened(files, cfg), Filters(125, 60, min_shared=2))
    assert (many.read(order) != expected.x[order]).nnz == 0
    streamed = make_corpus(opened(files, cfg))
    assert [file.input for file in streamed.files] == [file.input for file in expected.files]
    assert streamed.num_cells == expected.num_cells


def test_scattered_rows_are_read_in_short_runs(files, monkeypatch):
    monkeypatch.setattr(collection, "MAX_GAP", 3)
    monkeypatch.setattr(collection, "MAX_RUN", 10)
    found = make_collection(opened(files, config("pretrain")), Filters())
    everything = found.read(np.arange(120))
    read = []
    block = collection.Rows.block
    monkeypatch.setattr(
        collection.Rows, "block", lambda rows, a, b: read.append(b - a) or block(rows, a, b)
    )
    wanted = np.array([119, 0, 1, 2, 5, 9, 40, *range(60, 85)])
    assert (found.read(wanted) != everything[wanted]).nnz == 0
    assert max(read) <= 10
    assert sum(read) <= 6 + 1 + 1 + 25 + 1


def test_large_files_that_cannot_be_read_by_rows_are_refused(
    counts_adata, write, tmp_path, monkeypatch
):
    cfg = config("pretrain", "data.in_memory=false")
    counts_adata.X = counts_adata.X.tocsc()
    monkeypatch.setattr(collection, "STREAM_ABOVE", 8 * counts_adata.X.nnz - 1)
    with refusal("stored-by-columns"):
        make_collection(opened([write(counts_adata, "csc.h5ad")], cfg), Filters())
    table = tmp_path / "cells.csv"
    pd.DataFrame(counts_adata.X.toarray(), counts_adata.obs_names, counts_adata.var_names).to_csv(
        table
    )
    with refusal("storage"):
        stored_cells(table, cfg)


def test_filters_that_drop_everything_are_refused(files):
    with refusal("all-cells-dropped"):
        make_collection(opened(files, config("pretrain")), Filters(min_genes=500))
    with refusal("all-genes-dropped"):
        make_collection(opened(files, config("pretrain")), Filters(min_cells=500))


def test_large_files_stay_on_disk_by_default(counts_adata, write, monkeypatch, caplog):
    caplog.set_level("INFO", logger="scperformer")
    path = write(counts_adata)
    cfg = config("pretrain", paths=[path])
    assert choose_storage(cfg, [path]) is cfg
    monkeypatch.setattr(collection, "STREAM_ABOVE", 8 * counts_adata.X.nnz - 1)
    assert choose_storage(cfg, [path]).data.in_memory is False
    assert said(caplog, "choose_storage", "data.in_memory=false")
    told = config("pretrain", "data.in_memory=true", paths=[path])
    assert choose_storage(told, [path]) is told
    counts_adata.X = counts_adata.X.tocsc()  # stored by columns, so it is loaded
    by_columns = write(counts_adata, "csc.h5ad")
    assert choose_storage(cfg, [by_columns]) is cfg


def test_several_labelled_files_stay_on_disk(counts_adata, write):
    paths = [write(counts_adata[start::2].copy(), f"part{start}.h5ad") for start in (0, 1)]
    assert choose_storage(config("train", paths=paths), paths).data.in_memory is False
    with refusal("storage"):
        choose_storage(config("train", "data.in_memory=true", paths=paths), paths)
