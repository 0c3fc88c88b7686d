"""Predicting does not change a network, even if it is interrupted."""

import numpy as np
import pytest
from conftest import make_counts
from support.opened import opened

import scperformer
from scperformer.cells.query import find_query
from scperformer.model.inference import branch_logits, predict_cells
from scperformer.model.minibatches import Cells
from scperformer.results.contributions import find_contributions

FUNCTIONS = {
    "predict": lambda network, cells: predict_cells(network, cells, 64),
    "logits of branches": lambda network, cells: branch_logits(network, cells, 64),
    "contributions": lambda network, cells: find_contributions(
        network, cells, np.zeros(len(cells), dtype=np.int64)
    ),
}


@pytest.fixture
def loaded(tiny_model):
    """The network of a model with layers, in training mode, and some cells."""
    model = scperformer.load_model(tiny_model)
    query = find_query(opened(make_counts()[:20].copy()), model.saved)
    return model.network.train(), Cells(query.all_cells(), model.tokens)


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["completed", "interrupted"])
@pytest.mark.parametrize("layers", [True, False], ids=["with layers", "sums only"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_mode_of_a_network_is_restored(name, layers, is_interrupted, loaded, monkeypatch):
    network, cells = loaded
    if not layers:
        network.encoder = None
    assert network.only_sums != layers

    def stop(*_):
        raise KeyboardInterrupt

    if is_interrupted:
        for parts in (type(network), type(network.linear)):
            monkeypatch.setattr(parts, "forward", stop)
        monkeypatch.setattr("scperformer.model.inference.sums_over_genes", stop)
        with pytest.raises(KeyboardInterrupt):
            FUNCTIONS[name](network, cells)
    else:
        FUNCTIONS[name](network, cells)
    assert network.training
    assert all(part.training for part in network.modules())
    assert not layers or network.encoder.unexpressed.measured_G is None
