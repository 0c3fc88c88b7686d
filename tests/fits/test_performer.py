import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from support.killed import interrupted
from support.linear_fits import labelled_cells

from scperformer.cli.train import TrainConfig
from scperformer.config.training import HeadConfig, ModelConfig, OptimConfig, TrainerConfig
from scperformer.fits.linear import power_transform
from scperformer.fits.performer import gene_vectors, start_performer, train_readouts
from scperformer.fits.trainer import CHECKPOINTS, LAST, StepsLearner, is_damaged


@pytest.fixture(scope="module")
def cells() -> tuple[csr_matrix, np.ndarray]:
    return labelled_cells(300, 120, 0.6, 3.0, 20)


def options(seed: int = 0, **model) -> TrainConfig:
    return TrainConfig(
        inputs=[""],
        label_key="",
        seed=seed,
        model=ModelConfig(positions="coexpression", dim=8, **model),
        head=HeadConfig(name="weighted", hidden=[16], dropout=0.1),
        optim=OptimConfig(lr=0.005, weight_decay=0.05, label_smoothing=0.05, gradient_clip=0.0),
        trainer=TrainerConfig(batch_size=64, max_steps=100, accelerator="cpu"),
    )


def test_gene_vectors_are_those_of_a_dense_decomposition(cells):
    x, _ = cells
    vectors = gene_vectors(x, 5, seed=0)
    v = power_transform(x, 1.0).toarray().astype(np.float64)
    deviation = v.std(axis=0)
    weights = 1 / (deviation + np.median(deviation[deviation > 0]))
    components = np.linalg.svd(v * weights)[2][1:6]
    z, expected = v @ vectors, v @ (weights * components).T
    # the noise beyond has no stable direction
    for found, wanted in zip(z[:, :2].T, expected[:, :2].T, strict=True):
        assert abs(np.corrcoef(found, wanted)[0, 1]) > 0.999
    assert z.std(axis=0).max() == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("depth", [0, 1])
def test_copies_trained_together_learn_the_labels_of_their_own_cells(cells, depth):
    x, labels = cells
    cfg = options(depth=depth)
    performer = start_performer(gene_vectors(x, 8, seed=0), x, cfg)
    sums = performer.sums_of(x)
    # the second half is labelled otherwise
    wrong = np.where(np.arange(300) < 150, labels, (labels + 1) % 3)
    sides = np.array([np.arange(300) < 150, np.arange(300) >= 150])
    first, second = train_readouts(performer, sums, wrong, sides, cfg)
    logits = [
        copy(torch.from_numpy(sums), performer.keys_GD, performer.vectors_GD)
        for copy in (first, second)
    ]
    assert (logits[0].argmax(1).numpy() == labels).mean() > 0.95
    assert (logits[1].argmax(1).numpy() == (labels + 1) % 3).mean() > 0.95


def test_a_copy_is_the_same_alone_or_beside_others_but_for_its_draws(cells):
    """The gradient of each copy is its own: with the same cells and no dropout, copies differ by their start alone."""
    x, labels = cells
    cfg = options(dropout=0.0)
    cfg.head.dropout = 0.0
    performer = start_performer(gene_vectors(x, 8, seed=0), x, cfg)
    sums = performer.sums_of(x)
    (alone,) = train_readouts(performer, sums, labels, np.ones((1, 300), dtype=bool), cfg)
    first, _ = train_readouts(
        performer, sums, labels, np.array([np.ones(300), np.arange(300) < 150], dtype=bool), cfg
    )
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(first.state_dict()[name], weight, rtol=1e-3, atol=1e-4, msg=name)


def test_a_run_that_a_signal_stopped_goes_on_to_the_same_weights(cells, tmp_path, monkeypatch):
    x, labels = cells
    cfg = options()
    performer = start_performer(gene_vectors(x, 8, seed=0), x, cfg)
    sums = performer.sums_of(x)

    def train(folder):
        return train_readouts(performer, sums, labels, np.ones((2, 300), dtype=bool), cfg, folder)

    whole = train(tmp_path / "whole")
    stop = {"epoch": 0, "step": 40, "number": signal.SIGTERM}
    assert (
        interrupted(monkeypatch, StepsLearner, lambda: train(tmp_path / "cut"), **stop) == 128 + 15
    )
    assert not is_damaged(tmp_path / "cut" / CHECKPOINTS / LAST)  # resume=true takes it
    resumed = train(tmp_path / "cut")
    for one, other in zip(whole, resumed, strict=True):
        assert all(
            torch.equal(one.state_dict()[name], tensor)
            for name, tensor in other.state_dict().items()
        )


def test_without_a_run_the_steps_are_those_of_lightning(cells, tmp_path):
    x, labels = cells
    cfg = options(dropout=0.2)
    cfg.optim.gradient_clip = 0.5
    performer = start_performer(gene_vectors(x, 8, seed=0), x, cfg)
    given = performer, performer.sums_of(x), labels, np.ones((2, 300), dtype=bool), cfg
    for one, other in zip(train_readouts(*given), train_readouts(*given, tmp_path), strict=True):
        for name, weights in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], weights), name


def test_steps_on_the_cpu_do_not_import_lightning():
    code = "import scperformer.fits.evidence, sys; print('pytorch_lightning' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
