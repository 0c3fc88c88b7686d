"""The size of a model: parameters, and the operations of its matrix products."""

import pytest

import scperformer as scp
from scperformer.lab.measure import size_of


@pytest.mark.parametrize("attention", ["favor", "softmax"])
def test_operations_of_an_encoder_by_hand(counts_adata, tmp_path, attention):
    options = {"model": "tiny", "model.linear": False, "trainer.max_epochs": 1, "logger": "none"}
    options |= {"tokens.unexpressed": "full", "data.min_cells": 0}
    scp.train(
        counts_adata, "cell_type", output=tmp_path / "m", attention=attention, options=options
    )
    model = scp.load_model(tmp_path / "m")
    L, D, H, E, C, M = counts_adata.n_vars + 1, 32, 2, 16, 3, 44  # M = E ln E features
    embedding = 2 * L * (1 * D + D * D)  # of the expression
    layer = 2 * L * (D * 3 * H * E + H * E * D + 2 * D * 4 * D)
    # each head: q k^T and the weights times v; or the features of q and k, their sums and the products of these
    of_heads = 2 * 2 * L * L * E if attention == "softmax" else 2 * L * M * (2 * E + 2 * E)
    found = size_of(model)
    assert found["gflops"] * 1e9 == pytest.approx(embedding + layer + H * of_heads + 2 * D * C)
    assert found["parameters"] == sum(each.numel() for each in model.network.parameters())


def test_without_stored_cells_there_is_no_cell_to_count(counts_adata, tmp_path):
    options = {"keep_cells": 0, "model.encoder": False, "logger": "none"}
    scp.train(counts_adata, "cell_type", output=tmp_path / "m", options=options)
    assert size_of(scp.load_model(tmp_path / "m")).keys() == {"parameters"}
