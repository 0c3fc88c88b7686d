"""Predict labels with CellTypist for rivals.py, in an environment with CellTypist: celltypist_calls.py FOLDER.

Reads reference.h5ad (ln(1 + cp10k), obs: label) and query.h5ad in the folder, writes calls.txt with one label per line,
and probabilities.csv with a column per label. Trains model.pkl first if the folder has none.
"""

import sys
from pathlib import Path

import anndata as ad
import celltypist
import numpy as np

folder = Path(sys.argv[1])
reference, query = (ad.read_h5ad(folder / f"{name}.h5ad") for name in ("reference", "query"))
if not (folder / "model.pkl").exists():
    model = celltypist.train(reference, labels="label", check_expression=False, n_jobs=1, max_iter=200)
    model.write(str(folder / "model.pkl"))
called = celltypist.annotate(query, model=str(folder / "model.pkl"), majority_voting=False)
np.savetxt(folder / "calls.txt", called.predicted_labels["predicted_labels"].to_numpy(str), fmt="%s")
called.probability_matrix.to_csv(folder / "probabilities.csv")
