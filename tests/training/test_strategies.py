"""Which strategy trains a model, and the cells that it trains and validates on."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scperformer.cells.on_disk import Sample
from scperformer.cells.reference import make_reference
from scperformer.cli.compose import make_config
from scperformer.training.strategies import CrossValidatedCalibration, ValidationSplit, start_training

STRATEGIES = {
    "a Performer": ([], CrossValidatedCalibration),
    "layers between tokens": (["model=tiny"], ValidationSplit),
    "a given split": (["data.split=group", "data.split_key=donor"], ValidationSplit),
}


@pytest.mark.parametrize("case", STRATEGIES)
def test_validation_cells_are_held_out_only_if_they_are_needed(counts_adata, tmp_path, case):
    words, strategy = STRATEGIES[case]
    counts_adata.obs["donor"] = np.arange(120) % 5
    cfg = make_config("train", ["inputs=[a.h5ad]", "label_key=cell_type", "data.min_genes=0", *words])
    reference = make_reference(Sample(counts_adata, Path("a.h5ad")), cfg)
    training = start_training(reference, cfg, SimpleNamespace(folder=tmp_path, is_whole=False))
    assert type(training) is strategy
    assert len(training.train) + len(training.val) == 120
    assert (len(training.val) == 0) == (strategy is CrossValidatedCalibration)
    assert training.folds.is_dealt.any() == (case != "layers between tokens")
    assert len(training.folds.fold_of_cell) == len(training.train)
