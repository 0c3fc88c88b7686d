"""Imported models go to a folder of the test."""

import pytest


@pytest.fixture(autouse=True)
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"
