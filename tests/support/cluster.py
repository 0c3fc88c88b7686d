"""Commands in the environment of the test cluster (tests/slurm), and nodes that fail."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLUSTER = Path(
    os.environ.get("SLURM_TEST_DIR", Path(os.environ.get("TMPDIR", "/tmp")) / "scperformer-slurm")
)
LONGEST_WAIT = 1200  # seconds; generous, as a busy machine takes many times as long as an idle one
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def slurm_says(*command: str) -> str:
    """Return what a command of Slurm prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wait_for(what: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until something is true; fail after `LONGEST_WAIT`, or when a process ends before."""
    end = time.monotonic() + LONGEST_WAIT
    while not what():
        assert time.monotonic() < end, "it does not happen"
        assert process is None or process.poll() is None, "the process ended before"
        time.sleep(0.2)


def fail_node(node: str) -> None:
    """Kill all processes of a node at once."""
    os.kill(int((CLUSTER / f"run/{node}.pid").read_text()), signal.SIGKILL)
    on_node = f"SLURMD_NODENAME={node}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            parent = re.search(
                r"^PPid:\t(\d+)", (folder / "status").read_text(), flags=re.MULTILINE
            )
            if on_node not in words or parent is None:
                continue
            if Path(f"/proc/{parent[1]}/comm").read_text().startswith("slurmstepd"):
                os.kill(int(parent[1]), signal.SIGKILL)
            os.kill(int(folder.name), signal.SIGKILL)
        except OSError:  # it has ended meanwhile
            continue


def restart_nodes() -> None:
    """Start nodes that have failed, and wait until all of them can take jobs."""
    for node in ("node1", "node2"):
        if "DOWN" in slurm_says("scontrol", "show", "node", node):
            pid = CLUSTER / f"run/{node}.pid"
            pid.unlink(missing_ok=True)
            subprocess.run(["slurmd", "-N", node], check=True)
            wait_for(lambda pid=pid: pid.exists() and pid.read_text())
            with (CLUSTER / "pids").open("a") as pids:
                pids.write(f"slurmd {pid.read_text().strip()}\n")
    wait_for(lambda: slurm_says("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"])
