"""A training that a signal stops in the middle of an epoch: it goes on there, to the same weights."""

import os
import signal

import numpy as np
import pytest
import torch
from support.learning import cells, cfg, last_state, new_network  # noqa: F401 - fixtures

from scperformer.training.learner import Learner, train_network


def interrupted(monkeypatch, train, number: int, epoch: int, step: int) -> int:
    """Run a training that gets a signal in a step; the exit code that it ends with."""

    def training_step(self, batch, batch_idx):
        if (self.current_epoch, batch_idx) == (epoch, step):
            os.kill(os.getpid(), number)
        return original(self, batch, batch_idx)

    original = Learner.training_step
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", training_step)
        with pytest.raises(SystemExit) as stopped:
            train()
    return stopped.value.code


@pytest.mark.parametrize(
    ("number", "epoch", "step"),
    [(signal.SIGTERM, 0, 1), (signal.SIGUSR1, 1, 2), (signal.SIGTERM, 1, -1)],
    ids=["TERM in the first epoch", "USR1 later", "TERM in the last step"],
)
def test_a_signal_loses_nothing(cells, cfg, tmp_path, monkeypatch, number, epoch, step):
    train, val, _ = cells
    torch.set_num_threads(1)
    train_network(new_network(cells, cfg), train, val, cfg, tmp_path / "whole")

    steps = -(-len(train) // cfg.trainer.batch_size)
    seen = []
    monkeypatch.setattr(type(train), "labelled_batch", counting(type(train).labelled_batch, train, seen))
    before = signal.getsignal(number)
    run = lambda: train_network(new_network(cells, cfg), train, val, cfg, tmp_path / "cut")  # noqa: E731
    assert interrupted(monkeypatch, run, number, epoch, step % steps) == 128 + number
    assert signal.getsignal(number) == before
    run()

    whole, resumed = last_state(tmp_path / "whole"), last_state(tmp_path / "cut")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    # No step was made twice; Lightning has fetched a batch ahead when the signal comes.
    assert len(seen) <= cfg.trainer.max_epochs * steps + 1


def counting(original, train, seen):
    """`labelled_batch` that notes the calls for training cells."""

    def labelled_batch(self, rows):
        if self is train:
            seen.append(np.asarray(rows))
        return original(self, rows)

    return labelled_batch
