"""Which strategy trains a model, and the cells that it trains and validates on."""

from types import SimpleNamespace

import numpy as np
import pytest

from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference import make_reference
from scperformer.cli.compose import make_config
from scperformer.cli.train import run as run_train
from scperformer.model.folder import read_model
from scperformer.training import strategies
from scperformer.training.strategies import (
    CalibratedByFolds,
    CalibratedBySplit,
    CrossValidatedCalibration,
    start_training,
)

STRATEGIES = {
    "a Performer": ([], CrossValidatedCalibration),
    "layers between tokens": (["model=tiny"], CalibratedBySplit),
    "a given split": (["data.split=group", "data.split_key=donor"], CalibratedByFolds),
}


@pytest.mark.parametrize("case", STRATEGIES)
def test_validation_cells_are_held_out_only_if_they_are_needed(counts_adata, tmp_path, case):
    words, strategy = STRATEGIES[case]
    counts_adata.obs["donor"] = np.arange(120) % 5
    cfg = make_config(
        "train", ["inputs=[a.h5ad]", "label_key=cell_type", "data.min_genes=0", *words]
    )
    reference = make_reference([OpenedCells(counts_adata, cfg, "a.h5ad")])
    training = start_training(reference, cfg, SimpleNamespace(folder=tmp_path))
    assert type(training) is strategy
    assert len(training.train) + len(training.val) == 120
    assert (len(training.val) == 0) == (strategy is CrossValidatedCalibration)
    assert training.folds.is_dealt.any() == (case != "layers between tokens")
    assert len(training.folds.fold_of_cell) == len(training.train)


def test_the_linear_branch_of_cells_on_disk_sees_all_of_them(
    counts_adata, write, tmp_path, monkeypatch
):
    # more cells are fitted by components
    monkeypatch.setattr("scperformer.fits.linear.MAX_DUAL", 30)
    monkeypatch.setattr("scperformer.cells.splits.MAX_LOADED_CELLS", 60)
    files = write(counts_adata[:70].copy(), "a.h5ad"), write(counts_adata[70:].copy(), "b.h5ad")
    words = [
        f"inputs=['{files[0]}','{files[1]}']",
        "studies=false",
        "label_key=cell_type",
        "logger=none",
    ]
    seen = []
    fit = strategies.fit_to_cells_on_disk
    monkeypatch.setattr(
        strategies, "fit_to_cells_on_disk", lambda *given: seen.append(given[1]) or fit(*given)
    )
    run_train(
        make_config("train", [*words, "trainer.max_steps=20", f"output='{tmp_path / 'model'}'"])
    )
    [reference] = seen
    assert len(reference.stream.cells) + len(reference.split.val) == 120
    assert reference.x.shape[0] < 80
    assert not list((tmp_path / "model.run").glob(".scperformer-*"))
    assert read_model(tmp_path / "model").metrics.out_of_fold.accuracy > 0.8
