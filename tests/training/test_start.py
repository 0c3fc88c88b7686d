"""The head on a pretrained encoder starts as logistic regression on the encoder's vectors of the cells."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scperformer.config.compose import make_config
from scperformer.dataset.reference import make_reference
from scperformer.network.batches import Cells
from scperformer.training.start import pooled, start_head
from scperformer.training.train import new_network


def started(counts_adata, init, *overrides):
    words = ["inputs=[a.h5ad]", "label_key=cell_type", f"init='{init}'", *overrides]
    cfg = make_config("train", words)
    reference = make_reference(counts_adata, cfg, "a.h5ad")
    return new_network(reference, cfg), Cells(reference.x, cfg.tokens, reference.labels), cfg


@pytest.mark.parametrize("head", ["mean", "cls"])
@pytest.mark.parametrize("wide", [True, False])
def test_logits_are_those_of_logistic_regression(counts_adata, tiny_model, head, wide):
    network, cells, cfg = started(counts_adata, tiny_model, f"head={head}", f"model.wide={wide}")
    seen = pooled(network, cells, 16)
    start_head(network, cells, cfg)
    estimator = make_pipeline(StandardScaler(), LogisticRegression(C=10, class_weight="balanced", max_iter=1000))
    wanted = estimator.fit(seen, cells.labels).decision_function(seen)
    network.eval()
    with torch.no_grad():
        _, deep, _ = network.branches(cells.batch(np.arange(len(cells))))
    np.testing.assert_allclose(deep, wanted, atol=1e-2 * np.abs(wanted).max())  # both stop at a small gradient
    assert (wanted.argmax(1) == cells.labels).mean() > 0.8  # a third would be right by chance


def test_pooled_is_what_the_head_sees_of_each_cell(counts_adata, tiny_model):
    network, cells, _ = started(counts_adata, tiny_model)
    network.train()
    all_at_once = pooled(network, cells, 16)
    assert network.training
    network.eval()
    with torch.no_grad():
        for cell in (0, 77):
            batch = cells.batch([cell])
            one = network.pool(network.encoder(batch), batch)[0]
            np.testing.assert_allclose(all_at_once[cell], one, atol=1e-5)


def test_heads_with_hidden_layers_and_networks_without_init_stay_as_they_are(counts_adata, tiny_model):
    for overrides in (["head.hidden=[8]"], ["init=null"]):
        network, cells, cfg = started(counts_adata, tiny_model, *overrides)
        before = network.head.labels.weight.clone()
        start_head(network, cells, cfg)
        assert torch.equal(network.head.labels.weight, before)
