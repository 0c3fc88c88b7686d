"""The machine of a benchmark, and the time and memory of processes."""

import os
import platform
import re
import subprocess
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import torch
from anndata.io import sparse_dataset, write_elem
from scipy.sparse import csc_matrix, csr_matrix

BLOCK = 20_000  # cells resampled at a time


def machine() -> str:
    """Processor, cores, torch and, if there is one, the GPU."""
    text = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    )
    found = re.search(r"model name\s*:\s*(.+)", text)
    processor = found[1] if found else platform.processor()
    capability = torch.backends.cpu.get_cpu_capability()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{processor} ({capability}), {os.cpu_count()} cores, torch {torch.__version__}{gpu}"


def peak_gb() -> float:
    """Peak memory of this process in GB (10^9 bytes).

    `ru_maxrss` is not used, because a process inherits it from its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found
    return int(found[1]) * 1024 / 1e9


@dataclass(frozen=True)
class Cost:
    """Wall-clock seconds, CPU seconds and peak memory in GiB of one process."""

    wall: float
    cpu: float
    memory: float


def run(words: list[str], threads: int = 1) -> Cost:
    """Run a command to its end."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    start = time.perf_counter()
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {errors.decode()[-500:]}")
    wall = time.perf_counter() - start
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def in_new_process(function, *arguments) -> None:
    """Call a function in a new process, as the peak memory of a child includes the peak of its parent at the fork."""
    process = get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")


def resample(source: str, num_cells: int, stored: str, path: Path, seed: int = 0) -> None:
    """Write a file of cells drawn at random with replacement; CSR block by block, other formats at once."""
    adata = ad.read_h5ad(source)
    rows = np.random.default_rng(seed).integers(0, adata.n_obs, num_cells)
    x = csr_matrix(adata.X)
    obs = adata.obs.iloc[rows].reset_index(drop=True)
    var = adata.var[[]]
    obs.index = pd.Index([f"cell_{i}" for i in range(num_cells)])
    if stored != "csr":
        whole = x[rows]
        ad.AnnData(
            csc_matrix(whole) if stored == "csc" else whole.toarray(), obs=obs, var=var
        ).write_h5ad(path)
        return
    ad.AnnData(x[rows[:BLOCK]], obs=obs[:BLOCK], var=var).write_h5ad(path)
    if num_cells > BLOCK:
        with h5py.File(path, "r+") as file:
            for start in range(BLOCK, num_cells, BLOCK):
                sparse_dataset(file["X"]).append(x[rows[start : start + BLOCK]])
            del file["obs"]
            write_elem(file, "obs", obs)
