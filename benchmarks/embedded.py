"""Accuracy on the PBMC data inside scanpy: k-fold cross-validation, several seeds, beside logistic regression.

    python benchmarks/embedded.py                       # 5 folds, seeds 0-2, the default options
    python benchmarks/embedded.py --seeds 1 model=small optim.lr=1e-3

Prints accuracy and macro-F1 over all cells (each predicted once per seed), mean and spread over the seeds.
"""

import argparse
import logging
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import scanpy
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from scperformer import baseline
from scperformer.compose import make_config
from scperformer.inference import load_model
from scperformer.metrics import score
from scperformer.predict import make_annotation
from scperformer.training import train

LABEL_KEY = "bulk_labels"


def cross_validate(seed: int, folds: int, overrides: list[str]) -> dict[str, np.ndarray]:
    """Labels given to each cell by each method when the cell was in the held-out fold."""
    adata = scanpy.datasets.pbmc68k_reduced()
    truth = adata.obs[LABEL_KEY].astype(str).to_numpy()
    names = ["scperformer", "logistic regression (C=1)", "logistic regression (C=0.1, balanced)"]
    calls = {name: np.empty(len(truth), dtype=object) for name in names}
    x = adata.raw.X.tocsr()
    for rows, held_out in StratifiedKFold(folds, shuffle=True, random_state=seed).split(truth, truth):
        with tempfile.TemporaryDirectory() as folder:
            options = [f"seed={seed}", "logger=none", *overrides]
            path = train(adata[rows].copy(), LABEL_KEY, output=Path(folder) / "model", overrides=options)
            cfg = make_config("predict", ["inputs=[held-out]"])
            annotation = make_annotation(adata[held_out].copy(), load_model(path), cfg)
        calls[names[0]][held_out] = annotation.obs["scperformer_label"].to_numpy(str)
        labels, codes = np.unique(truth[rows], return_inverse=True)
        for name, c, balanced in ((names[1], 1.0, False), (names[2], 0.1, True)):
            rival = baseline.fit(x[rows], codes, c=c, balanced=balanced)
            calls[name][held_out] = labels[rival.predict(x[held_out])]
        # The yardstick once more, straight from scikit-learn: our baseline must be it.
        theirs = LogisticRegression(max_iter=1000).fit(x[rows], truth[rows]).predict(x[held_out])
        assert (theirs == calls[names[1]][held_out]).mean() > 0.99
    return {"truth": truth, **calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="options of 'scperformer train'")
    arguments = parser.parse_intermixed_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    start, results = time.perf_counter(), {}
    for seed in range(arguments.seeds):
        calls = cross_validate(seed, arguments.folds, arguments.overrides)
        truth = calls.pop("truth").astype(str)
        for name, labels in calls.items():
            scores = score(truth, labels.astype(str))
            results.setdefault(name, []).append((scores.accuracy, scores.macro_f1))
            print(f"seed {seed}  {name:<40} {scores.accuracy:.3f} {scores.macro_f1:.3f}", flush=True)
    print(f"\n{'method':<40} accuracy        macro-F1")
    for name, rows in results.items():
        (accuracy, f1), (accuracy_sd, f1_sd) = np.mean(rows, axis=0), np.std(rows, axis=0)
        print(f"{name:<40} {accuracy:.3f} ± {accuracy_sd:.3f}   {f1:.3f} ± {f1_sd:.3f}")
    machine = platform.processor() or platform.machine()
    print(f"\n{time.perf_counter() - start:.0f} s, {machine}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
