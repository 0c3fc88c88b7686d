"""Accuracy, time and memory of the commands `train` and `predict`: 80 % of a labelled file, then the rest.

    python benchmarks/holdout.py pbmc3k.h5ad cell_type                 # seed 0
    python benchmarks/holdout.py pbmc3k.h5ad cell_type --seeds 3 model=tiny

Prints accuracy and macro-F1, compared with logistic regression on the same split, the minutes of training, the cells
per second of prediction and the peak memory of both processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anndata as ad
import numpy as np
from sklearn.model_selection import train_test_split


def run(*words: str) -> tuple[float, float, float]:
    """Run a command and return its wall seconds, peak memory in GiB and CPU seconds."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "scperformer", *words])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"'{' '.join(words)}' failed")
    return time.perf_counter() - start, usage.ru_maxrss / 2**20, usage.ru_utime + usage.ru_stime


def measure(adata: ad.AnnData, label_key: str, seed: int, overrides: list[str]) -> dict[str, float]:
    """All measurements of one split."""
    labels = adata.obs[label_key].astype(str)
    rows, held_out = train_test_split(np.arange(adata.n_obs), test_size=0.2, stratify=labels, random_state=seed)
    with tempfile.TemporaryDirectory() as folder:
        names = {name: f"{folder}/{name}" for name in ("reference.h5ad", "sample.h5ad", "out.h5ad", "model", "scores")}
        adata[rows].copy().write_h5ad(names["reference.h5ad"])
        adata[held_out].copy().write_h5ad(names["sample.h5ad"])
        key = f"label_key={label_key}"
        train = run("train", names["reference.h5ad"], key, f"output={names['model']}", f"seed={seed}", *overrides)
        model = f"model_path={names['model']}"
        out = names["out.h5ad"]
        predict = run("predict", names["sample.h5ad"], model, f"output={out}")
        run("evaluate", out, f"truth_key={label_key}", f"output={names['scores']}")
        scores = json.loads((Path(names["scores"]) / "metrics.json").read_text())
        seconds = ad.read_h5ad(out).uns["scperformer"]["seconds"]
    return {
        "accuracy": scores["model"]["accuracy"],
        "macro-F1": scores["model"]["macro_f1"],
        "LR accuracy": scores["baseline"]["accuracy"],
        "LR macro-F1": scores["baseline"]["macro_f1"],
        "training min": train[0] / 60,
        "training GiB": train[1],
        "training CPU s": train[2],
        "predict cells/s": len(held_out) / seconds,
        "predict wall s": predict[0],
        "predict GiB": predict[1],
        "predict CPU s": predict[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="options of 'scperformer train'")
    arguments = parser.parse_intermixed_args()
    adata = ad.read_h5ad(arguments.path)
    runs = [measure(adata, arguments.label_key, seed, arguments.overrides) for seed in range(arguments.seeds)]
    for name in runs[0]:
        values = [result[name] for result in runs]
        print(f"{name:<16} {np.mean(values):9.3f}   {' '.join(f'{value:.3f}' for value in values)}")


if __name__ == "__main__":
    main()
