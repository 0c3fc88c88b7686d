import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def imported(name: str) -> Iterator[ModuleType]:
    """A module of benchmarks/, whose scripts import each other by their plain names."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def panel() -> Iterator[ModuleType]:
    """benchmarks/panel.py."""
    with imported("panel") as module:
        yield module


@pytest.fixture(scope="module")
def conditions() -> Iterator[ModuleType]:
    """benchmarks/conditions.py."""
    with imported("conditions") as module:
        yield module


@pytest.fixture(scope="module")
def roofline() -> Iterator[ModuleType]:
    """benchmarks/roofline.py."""
    with imported("roofline") as module:
        yield module


@pytest.fixture(scope="module")
def studies() -> Iterator[ModuleType]:
    """benchmarks/studies.py."""
    with imported("studies") as module:
        yield module


@pytest.fixture
def several() -> Iterator[ModuleType]:
    """benchmarks/several_studies.py."""
    with imported("several_studies") as module:
        yield module
