"""The benchmark for GPUs: its error without a GPU, and a tiny run on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_error_without_a_gpu():
    ran = run()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1].startswith("error: no GPU; expected one that torch can use")


@pytest.mark.slow
def test_tiny_run_on_the_cpu_fills_every_row():
    ran = run("--device", "cpu", "--tiny")
    assert ran.returncode == 0, ran.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in ran.stdout.splitlines() if "|" in line]
    found = {row[0]: row[1:] for row in rows if not row[0].startswith("-")}
    assert {"model=performer, cpu", "scbert", "base"} < set(found)
    for name in ("performer-pytorch", "scperformer"):
        assert {f"{name}, float32", f"{name}, tf32", f"{name}, bf16"} < set(found)
    measured = [row for name, row in found.items() if name in ("scbert", "base") or ", " in name]
    assert len(measured) == 9
    assert all(float(cell.rstrip("%").replace(",", "")) >= 0 for row in measured for cell in row)
