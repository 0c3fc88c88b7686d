"""A training that spends no time on what these tests do not look at."""

import pytest

from scperformer.training import run_folder


@pytest.fixture(autouse=True)
def _no_drawing(monkeypatch):
    """Drawing is a third of a small training; test_run_folder and the tests of other rooms draw."""
    monkeypatch.setattr(run_folder, "draw_learning_curve", lambda *_: b"picture")
