"""Training: resumed runs end with the same weights; the loss, its weights, the schedule."""

import numpy as np
import pytest
import torch
from support.learning import OVERRIDES, cells, cfg, last_state, new_network  # noqa: F401 - fixtures
from torch.nn.functional import cross_entropy

from scperformer.config.training import OptimConfig
from scperformer.fits.steps import loss_weights, lr_factor
from scperformer.lab.epochs import load_best, run_epochs
from scperformer.lab.supervised import Learner


def test_loss_is_cross_entropy_of_the_sum_plus_that_of_the_encoder(cells, cfg):
    train, _, num_labels = cells
    weights = loss_weights(np.bincount(train.known_labels), "balanced")
    cfg.optim = OptimConfig(label_smoothing=0.1, class_weights="balanced")
    cfg.model.gene_dropout = 0.0
    network = new_network(cells, cfg).eval()
    learner = Learner(network, train.known_labels, cfg)
    learner.log = lambda *args, **kwargs: None
    batch, labels = train.labelled_batch(np.arange(9))
    linear, encoder, _ = network.branches(batch)
    one_hot = torch.eye(num_labels)[labels] * 0.9 + 0.1 / num_labels
    expected = 0.0
    for logits, share in ((linear + encoder, 1.0), (encoder, 1.0)):
        terms = -(one_hot * weights * logits.log_softmax(1)).sum(1)
        expected += share * terms.sum() / weights[labels].sum()
    torch.testing.assert_close(learner.training_step((batch, labels), 0), expected)
    # the control: without the second term the loss is another one
    plain = cross_entropy(linear + encoder, labels, weight=weights, label_smoothing=0.1)
    assert abs(plain - expected) > 1e-3


@pytest.mark.parametrize(
    ("kind", "expected"), [("balanced", [0.625, 2.5]), ("sqrt", [0.8333333, 1.6666667])]
)
def test_loss_weights_have_mean_one_over_the_cells(kind, expected):
    labels = np.array([0, 0, 0, 0, 1])
    weights = loss_weights(np.bincount(labels), kind)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_allclose(weights[labels].mean(), 1, rtol=1e-6)


def test_learning_rate_warms_up_and_follows_a_cosine():
    factors = [lr_factor(step, 100) for step in range(101)]
    np.testing.assert_allclose(factors[:10], np.arange(1, 11) / 10)
    # half-way through the cosine: the mean of 1 and 0.05
    np.testing.assert_allclose(factors[55], 0.525)
    np.testing.assert_allclose(factors[100], 0.05)
    assert all(np.diff(factors[10:]) <= 0)


def test_the_fitted_linear_branch_stays_while_the_encoder_learns(cells, cfg, tmp_path):
    train, val, _ = cells
    cfg.trainer.max_epochs = 1
    network = new_network(cells, cfg)
    with torch.no_grad():
        network.linear.weight.weight.normal_(std=0.1)
    before = network.linear.weight.weight.clone()
    run_epochs(Learner(network, train.known_labels, cfg), train, val, cfg, tmp_path)
    load_best(network, tmp_path)
    assert torch.equal(network.linear.weight.weight, before)
    assert network.head.labels.weight.abs().max() > 0


def test_an_encoder_from_elsewhere_learns_slowly(cells, cfg):
    network = new_network(cells, cfg)
    cfg.optim, cfg.init = OptimConfig(lr=0.5), "encoder"
    learner = Learner(network, cells[0].known_labels, cfg)
    groups = learner.configure_optimizers()["optimizer"].param_groups
    rate = {id(p): group["initial_lr"] for group in groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        if not name.startswith("linear."):
            assert rate[id(parameter)] == pytest.approx(
                0.5 * 0.03 if name.startswith("encoder.") else 0.5
            ), name
