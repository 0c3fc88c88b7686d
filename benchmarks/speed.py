"""Time and memory of whole commands for increasing numbers of cells, resampled from a real file; and of other tools.

    python benchmarks/speed.py pbmc3k.h5ad cell_type table.md
    python benchmarks/speed.py pbmc3k.h5ad cell_type table.md --cells 2638 20000 --rounds 3 --celltypist PYTHON
    python benchmarks/speed.py pbmc3k.h5ad cell_type table.md --methods linear --cells 10000 1000000 --stored csc

Each method is trained on the file. Each run is a new process, measured from its start to the written file: wall-clock
time, CPU time and peak memory, including imports. The methods take turns, so that the load of the machine affects all
of them alike. Medians over the rounds and ratios to the first method are written as Markdown. Files of cells (8 GB for
a million cells of PBMC 3k) are temporary. CellTypist runs if `--celltypist` names a Python that has it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata.io import sparse_dataset, write_elem
from machine import machine
from scipy.sparse import csc_matrix, csr_matrix

BLOCK = 20_000  # cells resampled at a time
RIVALS = Path(__file__).with_name("speed_rivals.py")
MODELS: dict[str, list[str]] = {  # options of `scperformer train`
    "linear": ["experiment=linear"],
    "default": [],
    "base": ["model=base", "model.linear=false", "trainer.max_epochs=1"],
    "scbert": ["model=scbert", "model.positions=gene", "data.min_cells=0", "trainer.max_epochs=1"],
}
MOST_CELLS = {"base": 2_638, "scbert": 16, "performer-pytorch": 16}  # most cells of methods that take minutes for more
FEW_TO_LEARN = {"scbert": 4}  # cells of each label: training 17 million parameters takes hours for 2,638 cells
METHODS = [*MODELS, "logistic regression", "celltypist", "performer-pytorch", "check", "train"]


@dataclass(frozen=True)
class Cost:
    """Wall-clock seconds, CPU seconds and peak memory in GiB of one process."""

    wall: float
    cpu: float
    memory: float


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
        ad.AnnData(csc_matrix(whole) if stored == "csc" else whole.toarray(), obs=obs, var=var).write_h5ad(path)
        return
    ad.AnnData(x[rows[:BLOCK]], obs=obs[:BLOCK], var=var).write_h5ad(path)
    if num_cells > BLOCK:
        with h5py.File(path, "r+") as file:
            for start in range(BLOCK, num_cells, BLOCK):
                sparse_dataset(file["X"]).append(x[rows[start : start + BLOCK]])
            del file["obs"]
            write_elem(file, "obs", obs)


def run(words: list[str], threads: int = 1) -> Cost:
    """Run a command to its end."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    start = time.perf_counter()
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {errors.decode()[-500:]}")
    wall = time.perf_counter() - start
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def in_new_process(function, *arguments) -> None:
    """Call a function in a new process, as the peak memory of a child includes that of its parent at the fork."""
    process = get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")


def words_of(method: str, sample: Path, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """The command of a method for a file of cells; it writes into the folder."""
    ours = [sys.executable, "-m", "scperformer"]
    output = folder / arguments.output
    if method == "check":
        return [*ours, "check", str(sample)]
    if method == "train":
        label = f"label_key={arguments.label_key}"
        return [*ours, "train", str(sample), label, f"output={output}", "logger=none", "overwrite=true"]
    if method in MODELS:
        model = f"model_path={folder / method}"
        return [*ours, "predict", str(sample), model, f"output={output}", "overwrite=true", "min_overlap=0"]
    python = arguments.celltypist if method == "celltypist" else sys.executable
    return [python, str(RIVALS), method, "predict", str(sample), arguments.label_key, str(folder / method), str(output)]


def write_few(source: str, label_key: str, each: int, path: Path) -> None:
    """Write the first cells of each label."""
    adata = ad.read_h5ad(source)
    adata[adata.obs.groupby(label_key, observed=True).cumcount().to_numpy() < each].copy().write_h5ad(path)


def learn(method: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Train the model of a method, if it has one."""
    if method in MODELS:
        reference = arguments.path
        if method in FEW_TO_LEARN:
            reference = str(folder / "few.h5ad")
            in_new_process(write_few, arguments.path, arguments.label_key, FEW_TO_LEARN[method], Path(reference))
        words = ["train", reference, f"label_key={arguments.label_key}", f"output={folder / method}"]
        run([sys.executable, "-m", "scperformer", *words, "logger=none", *MODELS[method]], threads=2)
    elif method not in ("check", "train"):
        python = arguments.celltypist if method == "celltypist" else sys.executable
        model = str(folder / method)
        label = arguments.label_key
        run([python, str(RIVALS), method, "train", arguments.path, label, model, ""], threads=2)


def measure(folder: Path, arguments: argparse.Namespace) -> Iterator[dict]:
    """A row for each run; the methods take turns."""
    sample = folder / "sample.h5ad"
    output = folder / arguments.output
    for num_cells in arguments.cells:
        methods = [method for method in arguments.methods if num_cells <= MOST_CELLS.get(method, num_cells)]
        if not methods:
            continue
        in_new_process(resample, arguments.path, num_cells, arguments.stored, sample)
        for _ in range(arguments.rounds):
            for threads in arguments.threads:
                for method in methods:
                    cost = run(words_of(method, sample, folder, arguments), threads)
                    line = {"method": method, "cells": num_cells, "threads": threads, **vars(cost)}
                    print(json.dumps(line), file=sys.stderr, flush=True)
                    yield line
                    for left in (output, folder / f"{output.name}.run"):
                        if left.is_dir():
                            shutil.rmtree(left)
                        else:
                            left.unlink(missing_ok=True)
        sample.unlink()


def table(lines: list[dict], methods: list[str]) -> str:
    """Medians for each method, number of cells and threads, and ratios to the first method of the same setting."""
    keys = ["cells", "threads", "method"]
    medians = pd.DataFrame(lines).groupby(keys).median().reset_index()
    medians["place"] = medians["method"].map(methods.index)
    text = [
        "| cells | threads | | wall time (s) | CPU time (s) | peak memory (GiB) | times the wall time | the CPU time |"
    ]
    text.append("|---" * 8 + "|")
    for (cells, threads), rows in medians.sort_values([*keys[:2], "place"]).groupby(keys[:2]):
        first = rows.iloc[0]
        for _, row in rows.iterrows():
            numbers = f"{row.wall:.1f} | {row.cpu:.1f} | {row.memory:.2f}"
            ratios = f"{row.wall / first.wall:.2f} | {row.cpu / first.cpu:.2f}"
            text.append(f"| {cells:,} | {threads} | {row.method} | {numbers} | {ratios} |")
    return "\n".join(text)


def growth(lines: list[dict], methods: list[str]) -> str:
    """Cells per second between the smallest and the largest file (without start-up), and the slope of log time."""
    medians = pd.DataFrame(lines).groupby(["method", "threads", "cells"])[["wall", "cpu"]].median()
    text = ["| | threads | cells | cells/s after start-up | cells/s of CPU time | slope of log CPU time |"]
    text.append("|---" * 6 + "|")
    for method in methods:
        for threads in pd.DataFrame(lines)["threads"].unique():
            if (method, threads) not in medians.index.droplevel("cells"):
                continue
            rows = medians.loc[method, threads]
            if len(rows) < 2:
                continue
            few = rows.iloc[0]
            many = rows.iloc[-1]
            more = rows.index[-1] - rows.index[0]
            slope = np.polyfit(np.log(rows.index.to_numpy(float)), np.log(rows["cpu"].to_numpy()), 1)[0]
            speeds = f"{more / (many.wall - few.wall):,.0f} | {more / (many.cpu - few.cpu):,.0f}"
            span = f"{rows.index[0]:,} to {rows.index[-1]:,}"
            text.append(f"| {method} | {threads} | {span} | {speeds} | {slope:.2f} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument("markdown", type=Path, help="the tables are written to this file")
    parser.add_argument("--cells", type=int, nargs="+", default=[16, 2_638, 20_000, 100_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--stored", choices=["csr", "csc", "dense"], default="csr")
    parser.add_argument("--output", default="out.h5ad", help="its ending decides the format of our predictions")
    parser.add_argument("--celltypist", help="Python of an environment with CellTypist")
    arguments = parser.parse_args()
    if arguments.celltypist is None and "celltypist" in arguments.methods:
        arguments.methods.remove("celltypist")
        print("left out: celltypist (--celltypist names a Python that has it)")
    with tempfile.TemporaryDirectory() as name:
        for method in arguments.methods:
            learn(method, Path(name), arguments)
        lines = list(measure(Path(name), arguments))
    parts = [machine(), table(lines, arguments.methods), growth(lines, arguments.methods)]
    arguments.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
