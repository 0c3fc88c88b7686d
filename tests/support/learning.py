"""A small training run, for the tests of the learner and of interruptions."""

import numpy as np
import pytest
import torch

from scperformer.cells.opened import OpenedCells
from scperformer.cells.preprocess import prepare_reference
from scperformer.cells.splits import stratified_split
from scperformer.cli.compose import make_config
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

OVERRIDES = [
    "inputs=[reference.h5ad]",
    "label_key=cell_type",
    "model=tiny",
    "logger=none",
    "trainer.max_epochs=3",
    "attention.redraw_interval=4",
    "data.min_genes=0",
]


@pytest.fixture
def cfg():
    return make_config("train", OVERRIDES)


@pytest.fixture
def cells(counts_adata, cfg):
    prepared = prepare_reference(OpenedCells(counts_adata, cfg))
    names, labels = np.unique(prepared.obs["cell_type"].astype(str), return_inverse=True)
    train, val = stratified_split(labels, 0.2, seed=0)
    x = prepared.X
    return *(Cells(x[rows], cfg.tokens, labels[rows]) for rows in (train, val)), len(names)


def new_network(cells, cfg) -> CellTypeModel:
    train, _, num_labels = cells
    torch.manual_seed(cfg.seed)
    parts = {name: getattr(cfg, name) for name in ("tokens", "model", "attention", "head", "seed")}
    return CellTypeModel(train.x.shape[1], num_labels, **parts)


def last_state(folder) -> dict[str, torch.Tensor]:
    saved = torch.load(folder / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    return saved["state_dict"]
