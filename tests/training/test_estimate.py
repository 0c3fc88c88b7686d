"""The estimated time and memory of a training."""

import re

import numpy as np
import pytest
from support.logs import said

import scperformer
from scperformer.cli.compose import make_config
from scperformer.io.rows import Rows
from scperformer.training.estimate import cost_of_files, training_cost


@pytest.mark.parametrize(
    ("sizes", "seconds", "gib"),
    [
        ((2638, 13_714, 9, 2.2e6, False), 44, 1.0),
        ((3060, 19_017, 51, 2.8e6, False), 59, 1.2),
        ((6077, 12_000, 13, 3.4e6, False), 100, 1.9),
        ((13_653, 14_053, 13, 7.6e6, False), 48, 1.1),
        ((9096, 24_205, 51, 8.2e6, False), 46, 1.2),
        ((10_000, 15_000, 300, 1.57e7, False), 139, 1.5),
        ((10_000, 15_000, 1000, 1.57e7, False), 262, 1.8),
        ((10_000, 15_000, 3000, 1.57e7, False), 271, 3.2),
        ((100_168, 30_000, 51, 9e7, False), 174, 4.8),
        ((100_168, 30_000, 102, 9e7, True), 165, 2.3),
        ((1_001_340, 30_000, 51, 9e8, True), 524, 3.1),
    ],
    ids=lambda value: "" if not isinstance(value, tuple) else f"{value[0]}/{value[2]}",
)
def test_estimates_are_within_a_factor_of_two_of_what_was_measured(sizes, seconds, gib):
    """As in docs/large_references.md."""
    found, text = training_cost(*sizes)
    assert seconds / 2 < found < 2 * seconds
    assert gib / 1.5 < float(re.search("([0-9.]+) GiB", text)[1]) < 1.5 * gib


def test_no_matrix_is_read_and_nothing_written(counts_adata, write, command, tmp_path, monkeypatch):
    counts_adata.layers["dense"] = counts_adata.X.toarray()
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype(object)
    counts_adata.obs.iloc[:3, 0] = np.nan
    path = write(counts_adata, "a.h5ad")
    write(counts_adata[:40].copy(), "b.h5ad")
    monkeypatch.setattr(Rows, "block", None)
    before = sorted(tmp_path.iterdir())
    ran = command("train", "a.h5ad", "label_key=cell_type", "--estimate")
    assert (ran.code, ran.out.count("\n")) == (0, 1)
    assert re.match(
        r"a.h5ad: 117 cells, 3 labels: about \d+ s on one CPU core, 0.8 GiB of memory", ran.out
    )
    cfg = make_config("train", [f"inputs=['{path}']", "label_key=cell_type"])
    assert (
        cost_of_files(cfg)
        == training_cost(117, 200, 3, float(counts_adata.X.nnz), on_disk=False)[1]
    )
    # a model of each
    ran = command("train", "a.h5ad", "b.h5ad", "label_key=cell_type", "--estimate")
    assert [line.partition(" cells")[0] for line in ran.out.splitlines()] == [
        "a.h5ad: 117",
        "b.h5ad: 37",
    ]
    ran = command("train", "a.h5ad", "b.h5ad", "label_key=cell_type", "studies=false", "--estimate")
    assert ran.out.startswith("a.h5ad, b.h5ad: 154 cells")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train", "csc.h5ad", "label_key=cell_type"],
            "csc.h5ad; expected h5ad or zarr, stored by rows",
        ),
        (
            ["train", "a.h5ad", "label_key=cell_type", "model=tiny"],
            "expected model=performer or pooled",
        ),
        (["train", "a.h5ad", "label_key=nothing"], "no column 'nothing'"),
        (["check", "a.h5ad"], "'--estimate'; expected a file"),
    ],
)
def test_what_has_no_estimate_is_refused(counts_adata, write, refused, words, message):
    write(counts_adata, "a.h5ad")
    counts_adata.X = counts_adata.X.tocsc()
    write(counts_adata, "csc.h5ad")
    assert message in refused(*words, "--estimate")


@pytest.mark.parametrize("long", [True, False])
def test_a_long_training_begins_with_its_cost(counts_adata, tmp_path, monkeypatch, caplog, long):
    monkeypatch.setattr("scperformer.training.train.LONG_TRAINING", 1.0 if long else 300.0)
    options = {"experiment": "linear", "logger": "none", "data.min_genes": 0}
    with caplog.at_level("INFO", logger="scperformer"):
        scperformer.train(counts_adata, "cell_type", output=tmp_path / "model", options=options)
    assert bool(said(caplog, "_log_cost", 120, 3, "30 s", "0.8 GiB")) == long
    assert bool(said(caplog, "_log_cost")) == long
