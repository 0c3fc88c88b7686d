"""Every benchmark starts and prints its help."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = (  # used by the others
    *(
        "celltypist_calls.py",
        "celltypist_there.py",
        "machine.py",
        "panel.py",
        "rivals.py",
        "speed_rivals.py",
        "words.py",
    ),
)


def test_help_of_every_benchmark(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for path in sorted(BENCHMARKS.glob("*.py")):
        if path.name not in PARTS:
            monkeypatch.setattr(sys, "argv", [str(path), "--help"])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(path), run_name="__main__")
            assert ended.value.code == 0
            assert f"usage: {path.name}" in capsys.readouterr().out
