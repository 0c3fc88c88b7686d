"""Commands that start several processes."""

import os
import subprocess
import sys
from pathlib import Path

TWO = ["trainer=ddp", "trainer.accelerator=cpu"]


def said(folder: Path, *words: str) -> str:
    """Run a step of scperformer in a folder, with two processes on the CPU; it has to end well."""
    done = subprocess.run(
        [sys.executable, "-m", "scperformer", *words, *TWO],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr
