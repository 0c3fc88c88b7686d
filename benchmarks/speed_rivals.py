"""Other methods to annotate cells, as users write them: speed_rivals.py METHOD STEP FILE LABEL_KEY MODEL OUTPUT.

STEP is `train`, which writes MODEL, or `predict`, which reads it and writes OUTPUT, a copy of FILE with a new column.
FILE has counts. `speed.py` runs this script; CellTypist runs in its own environment.
"""

import sys

import anndata as ad
import numpy as np
import scanpy as sc


def log_normalised(path: str) -> ad.AnnData:
    adata = ad.read_h5ad(path)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


def logistic_regression(step: str, path: str, label_key: str, model: str, output: str) -> None:
    import joblib
    from sklearn.linear_model import LogisticRegression

    adata = log_normalised(path)
    if step == "train":
        joblib.dump(LogisticRegression(C=0.1, max_iter=300).fit(adata.X, adata.obs[label_key].astype(str)), model)
        return
    proba = joblib.load(model).predict_proba(adata.X)
    adata.obs["call"] = proba.argmax(1).astype(str)
    adata.obs["confidence"] = proba.max(1)
    adata.write_h5ad(output)


def celltypist(step: str, path: str, label_key: str, model: str, output: str) -> None:
    import celltypist

    adata = log_normalised(path)
    if step == "train":
        celltypist.train(adata, labels=label_key, n_jobs=1, max_iter=200).write(f"{model}.pkl")
        return
    celltypist.annotate(adata, model=f"{model}.pkl", majority_voting=False).to_adata().write_h5ad(output)


def performer_pytorch(step: str, path: str, label_key: str, model: str, output: str) -> None:
    """scBERT's network with random weights, one dense cell at a time, as scBERT predicts."""
    if step == "train":
        return
    import torch
    from performer_pytorch import PerformerLM

    adata = log_normalised(path)
    length = adata.n_vars + 1
    network = PerformerLM(
        num_tokens=7, max_seq_len=length, dim=200, depth=6, heads=10, dim_head=64, nb_features=266
    ).eval()
    calls = []
    with torch.inference_mode():
        for cell in adata.X:
            bins = np.append(np.minimum(np.asarray(cell.todense()).ravel(), 5).astype(np.int64), 0)
            calls.append(int(network(torch.from_numpy(bins)[None]).mean(1).argmax()))
    adata.obs["call"] = calls
    adata.write_h5ad(output)


METHODS = {"logistic regression": logistic_regression, "celltypist": celltypist, "performer-pytorch": performer_pytorch}

if __name__ == "__main__":
    name, *words = sys.argv[1:]
    METHODS[name](*words)
