"""CellTypist in celltypist_models.py, in an environment that has it: celltypist_there.py STEP FILE MODEL OUT.

`train` writes MODEL from log-normalised cells with labels in obs.label. `annotate` writes an annotated copy, as users
do. `scores` writes the decision matrix and the probabilities; if CellTypist refuses the file, OUT has its reason.
"""

import sys
from pathlib import Path

import anndata as ad
import celltypist
import numpy as np


def train(path: str, model: str, out: str) -> None:
    cells = ad.read_h5ad(path)
    options = {"check_expression": False, "n_jobs": 1, "max_iter": 30, "use_SGD": False}
    celltypist.train(cells, labels="label", **options).write(model)


def annotate(path: str, model: str, out: str) -> None:
    celltypist.annotate(path, model=model, majority_voting=False).to_adata().write_h5ad(out)


def scores(path: str, model: str, out: str) -> None:
    try:
        found = celltypist.annotate(ad.read_h5ad(path), model=model, majority_voting=False)
    except Exception as error:  # noqa: BLE001 - the benchmark shows why
        Path(out).write_text(f"refused: {error}", encoding="utf-8")
        return
    labels = found.predicted_labels["predicted_labels"].to_numpy(str)
    used = {"decision": found.decision_matrix.to_numpy(), "probability": found.probability_matrix.to_numpy()}
    with open(out, "wb") as file:
        np.savez(file, labels=labels, columns=found.decision_matrix.columns.to_numpy(str), **used)


if __name__ == "__main__":
    step, *words = sys.argv[1:]
    {"train": train, "annotate": annotate, "scores": scores}[step](*words)
