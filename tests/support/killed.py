"""A training that ends in the middle of an epoch."""

import os
from collections.abc import Callable

import pytest


class Killed(BaseException):
    """An exception that nothing catches, as a kill would be."""


def interrupted(
    monkeypatch: pytest.MonkeyPatch,
    learner: type,
    train: Callable[[], object],
    *,
    epoch: int,
    step: int,
    number: int = 0,
) -> int | None:
    """Run a training that is killed in a step or gets the signal of a `number`; return the exit code of a signal."""

    def training_step(self, batch, batch_idx):
        if (self.current_epoch, batch_idx) == (epoch, step):
            if not number:
                raise Killed
            os.kill(os.getpid(), number)
        return original(self, batch, batch_idx)

    original = learner.training_step
    with monkeypatch.context() as patch:
        patch.setattr(learner, "training_step", training_step)
        with pytest.raises((SystemExit, Killed)) as stopped:
            train()
    return getattr(stopped.value, "code", None)
