"""A stand-in for wandb, which may not be installed; it notes the calls of Lightning's logger."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pytorch_lightning.loggers import wandb as of_wandb


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> ModuleType:
    """Put a module with this content in the place of a library."""
    made = ModuleType(name)
    made.__path__ = []  # it has submodules
    made.__spec__ = SimpleNamespace(name=name)  # as find_spec expects
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Install a wandb; its `init` notes how a run begins, and returns a run that notes what it gets."""
    run = MagicMock()
    init = MagicMock(return_value=run)
    module(monkeypatch, "wandb", init=init, run=None)
    module(monkeypatch, "wandb.sdk.lib", RunDisabled=type("RunDisabled", (), {}))
    module(monkeypatch, "wandb.sdk")
    module(monkeypatch, "wandb.wandb_run", Run=type("Run", (), {}))
    monkeypatch.setattr(of_wandb, "_WANDB_AVAILABLE", True)
    return init
