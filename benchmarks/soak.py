"""Run many annotations in one process, in threads and in process pools; check for equal results and constant memory.

python benchmarks/soak.py                   # 300 annotations, 4 threads, a fork and a spawn pool
python benchmarks/soak.py --number 60
"""

import argparse
import hashlib
import multiprocessing
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import anndata as ad
import numpy as np
import psutil
from machine import machine

import scperformer

ROOT = Path(__file__).parents[1]
NUM_FILES = 6
NUM_CELLS = 200


@cache
def files() -> list[ad.AnnData]:
    """Cells with all genes, for the model itself, and with panels, for which the model is adapted."""
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    made = []
    for number in range(NUM_FILES):
        genes = np.arange(cells.n_vars) if number % 3 else np.arange(number % 2, cells.n_vars, 2 + number // 2)
        made.append(cells[number * NUM_CELLS : (number + 1) * NUM_CELLS, genes].copy())
    return made


@cache
def model() -> "scperformer.network.Model":
    return scperformer.load_model()


def annotated(number: int) -> str:
    """Annotate one of the files; return a checksum of everything that is written."""
    cells = scperformer.annotate(files()[number % NUM_FILES].copy(), model())
    text = cells.obs.to_csv() + cells.obsm["scperformer_proba"].to_csv()
    return hashlib.sha256(text.encode() + cells.obsm["X_scperformer"].tobytes()).hexdigest()


def memory() -> float:
    """Memory of this process and its children in MiB."""
    process = psutil.Process()
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 2**20


def soak(name: str, pool: Executor | None, number: int, expected: list[str]) -> None:
    """Annotate `number` files; print wrong results, seconds, and memory after a sixth, a half and all of them."""
    begin = time.perf_counter()
    wrong = 0
    seen = []
    step = number // 6
    for first in range(0, number, step):
        numbers = range(first, min(first + step, number))
        found = map(annotated, numbers) if pool is None else pool.map(annotated, numbers)
        wrong += sum(one != expected[each % NUM_FILES] for each, one in zip(numbers, found, strict=True))
        seen.append(memory())
    seconds = time.perf_counter() - begin
    sizes = " | ".join(f"{seen[place]:.0f}" for place in (0, len(seen) // 2, -1))
    print(f"| {name} | {number} | {wrong} | {seconds:.0f} | {sizes} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300, help="annotations in each row")
    number = parser.parse_args().number
    print(machine())
    expected = [annotated(each) for each in range(NUM_FILES)]
    print("\n| | Annotations | Other results | Seconds | MiB after a sixth | after a half | at the end |")
    print("|---|---|---|---|---|---|---|")
    soak("one after the other", None, number, expected)
    with ThreadPoolExecutor(4) as pool:
        soak("4 threads", pool, number, expected)
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            soak(f"2 processes by {method}", pool, number, expected)


if __name__ == "__main__":
    main()
