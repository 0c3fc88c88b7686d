"""Every benchmark starts and prints its help."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# used by the others
PARTS = ("machine", "methods", "organs", "panel", "rank_correlation", "rivals")


@pytest.mark.parametrize(
    "name", sorted({path.stem for path in BENCHMARKS.glob("*.py")} - set(PARTS))
)
def test_help(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: {name}.py" in capsys.readouterr().out
