"""A training that is killed: an exception that nothing catches, as a kill would be."""

from collections.abc import Callable

import pytest


def run_until_killed(monkeypatch: pytest.MonkeyPatch, learner: type, train: Callable[[], object]) -> None:
    """Run a training that ends in its second epoch, after some of its steps."""

    class Killed(BaseException):
        pass

    def killed(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 2:
            raise Killed
        return original(self, batch, batch_idx)

    original = learner.training_step
    with monkeypatch.context() as patch:
        patch.setattr(learner, "training_step", killed)
        with pytest.raises(Killed):
            train()
