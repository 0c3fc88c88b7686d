"""Memory and time of `scperformer predict` for growing numbers of cells, resampled from a real file.

    python benchmarks/predict_memory.py pbmc3k.h5ad cell_type                        # 10k, 100k and 1M cells
    python benchmarks/predict_memory.py pbmc3k.h5ad cell_type --cells 10000 --stored csc --output calls.parquet
    python benchmarks/predict_memory.py pbmc3k.h5ad cell_type --cells 10000 model.wide=false trainer.max_epochs=2

A model is trained on the file first (`experiment=linear` unless other options of `scperformer train` follow). Each
prediction is a new process; its wall-clock time and its peak memory are printed, including imports. The temporary files
(8 GB for a million cells of PBMC 3k, and as much for the annotated copy) are deleted.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
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


def resample(source: str, num_cells: int, stored: str, path: Path) -> None:
    """Write a file of cells drawn with replacement by the seed; CSR block by block, other formats at once."""
    adata = ad.read_h5ad(source)
    rows = np.random.default_rng(0).integers(0, adata.n_obs, num_cells)
    x = csr_matrix(adata.X)
    if stored != "csr":
        whole = x[rows]
        ad.AnnData(csc_matrix(whole) if stored == "csc" else whole.toarray(), var=adata.var[[]]).write_h5ad(path)
        return
    ad.AnnData(x[rows[:BLOCK]], var=adata.var[[]]).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        for start in range(BLOCK, num_cells, BLOCK):
            sparse_dataset(file["X"]).append(x[rows[start : start + BLOCK]])
        del file["obs"]
        write_elem(file, "obs", pd.DataFrame(index=[f"cell_{i}" for i in range(num_cells)]))


def run(words: list[str]) -> tuple[float, float]:
    """Seconds and GiB of a command."""
    start = time.perf_counter()
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument("--cells", type=lambda text: [int(n) for n in text.split(",")], default=[10**4, 10**5, 10**6])
    parser.add_argument("--stored", choices=["csr", "csc", "dense"], default="csr")
    parser.add_argument("--output", default="out.h5ad", help="its ending decides the format")
    parser.add_argument("overrides", nargs="*", help="options of 'scperformer train'")
    arguments = parser.parse_intermixed_args()
    command = [sys.executable, "-m", "scperformer"]
    print(f"{machine()}\n\n| cells | stored | file (GB) | output | seconds | cells/s | peak memory (GiB) |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model, sample, output = Path(folder) / "model", Path(folder) / "sample.h5ad", Path(folder) / arguments.output
        options = arguments.overrides or ["experiment=linear"]
        run([*command, "train", arguments.path, f"label_key={arguments.label_key}", f"output={model}", *options])
        for num_cells in arguments.cells:
            # In a new process: the peak memory of a child includes that of its parent at the fork.
            writer = get_context("spawn").Process(
                target=resample, args=(arguments.path, num_cells, arguments.stored, sample)
            )
            writer.start()
            writer.join()
            seconds, memory = run([*command, "predict", str(sample), f"model_path={model}", f"output={output}"])
            size = sample.stat().st_size / 1e9
            row = f"| {num_cells:,} | {arguments.stored} | {size:.2f} | {output.suffix} | {seconds:.0f} "
            print(f"{row}| {num_cells / seconds:.0f} | {memory:.2f} |", flush=True)
            sample.unlink()
            if output.is_dir():
                shutil.rmtree(output)
            else:
                output.unlink()


if __name__ == "__main__":
    main()
