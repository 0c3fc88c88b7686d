"""Stand-ins for wandb and mlflow, which may not be installed; they note the calls of Lightning's loggers."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pytorch_lightning.loggers import mlflow as of_mlflow
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


def fake_mlflow(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Install an mlflow; its client notes its address and what it gets."""
    client = MagicMock()
    entities = {name: lambda **values: SimpleNamespace(**values) for name in ("Metric", "Param")}
    module(monkeypatch, "mlflow", set_tracking_uri=lambda uri: None)
    module(monkeypatch, "mlflow.tracking", MlflowClient=client)
    module(monkeypatch, "mlflow.tracking.context", resolve_tags=dict)
    module(monkeypatch, "mlflow.entities", **entities)
    module(monkeypatch, "mlflow.utils")
    module(monkeypatch, "mlflow.utils.mlflow_tags", MLFLOW_RUN_NAME="name")
    monkeypatch.setattr(of_mlflow, "_MLFLOW_AVAILABLE", True)
    return client
