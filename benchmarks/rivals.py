"""Other tools as their users call them, run by the benchmarks in an environment that has them: rivals.py STEP ...

    rivals.py fit METHOD FILE LABEL_KEY MODEL      # FILE holds counts
    rivals.py annotate METHOD FILE MODEL OUT       # writes a copy of FILE with a new column
    rivals.py celltypist FOLDER                    # reference.h5ad and query.h5ad -> calls.txt, probabilities.csv
    rivals.py scores FILE MODEL OUT                # CellTypist's decision matrix and probabilities, or why it refused

METHOD is `logistic regression`, `celltypist` or `performer-pytorch`. In FOLDER and for `scores`, the cells are
log-normalised.
"""

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc

QUICK = {"check_expression": False, "n_jobs": 1}


def log_normalised(path: str) -> ad.AnnData:
    adata = ad.read_h5ad(path)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return adata


def fit(method: str, path: str, label_key: str, model: str) -> None:
    if method == "logistic regression":
        import joblib
        from sklearn.linear_model import LogisticRegression

        adata = log_normalised(path)
        joblib.dump(LogisticRegression(C=0.1, max_iter=300).fit(adata.X, adata.obs[label_key].astype(str)), model)
    elif method == "celltypist":
        import celltypist

        celltypist.train(log_normalised(path), labels=label_key, n_jobs=1, max_iter=200).write(model)


def annotate(method: str, path: str, model: str, out: str) -> None:
    adata = log_normalised(path)
    if method == "celltypist":
        import celltypist

        adata = celltypist.annotate(adata, model=model, majority_voting=False).to_adata()
    elif method == "logistic regression":
        import joblib

        proba = joblib.load(model).predict_proba(adata.X)
        adata.obs["call"] = proba.argmax(1).astype(str)
        adata.obs["confidence"] = proba.max(1)
    else:
        adata.obs["call"] = scbert_calls(adata)
    adata.write_h5ad(out)


def scbert_calls(adata: ad.AnnData) -> list[int]:
    """scBERT's network with random weights, one dense cell at a time, as scBERT predicts."""
    import torch
    from performer_pytorch import PerformerLM

    sizes = {"dim": 200, "depth": 6, "heads": 10, "dim_head": 64, "nb_features": 266}
    network = PerformerLM(num_tokens=7, max_seq_len=adata.n_vars + 1, **sizes).eval()
    calls = []
    with torch.inference_mode():
        for cell in adata.X:
            bins = np.append(np.minimum(np.asarray(cell.todense()).ravel(), 5).astype(np.int64), 0)
            calls.append(int(network(torch.from_numpy(bins)[None]).mean(1).argmax()))
    return calls


def celltypist_calls(name: str) -> None:
    """Train a model, or use the one that an earlier call left in the folder, and predict."""
    import celltypist

    folder = Path(name)
    model = folder / "model.pkl"
    if not model.exists():
        reference = ad.read_h5ad(folder / "reference.h5ad")
        celltypist.train(reference, labels="label", max_iter=200, **QUICK).write(str(model))
    query = ad.read_h5ad(folder / "query.h5ad")
    called = celltypist.annotate(query, model=str(model), majority_voting=False)
    np.savetxt(folder / "calls.txt", called.predicted_labels["predicted_labels"].to_numpy(str), fmt="%s")
    called.probability_matrix.to_csv(folder / "probabilities.csv")


def scores(path: str, model: str, out: str) -> None:
    import celltypist

    try:
        found = celltypist.annotate(ad.read_h5ad(path), model=model, majority_voting=False)
    except Exception as error:  # noqa: BLE001 - the benchmark shows why
        Path(out).write_text(f"refused: {error}", encoding="utf-8")
        return
    labels = found.predicted_labels["predicted_labels"].to_numpy(str)
    matrices = {"decision": found.decision_matrix.to_numpy(), "probability": found.probability_matrix.to_numpy()}
    with open(out, "wb") as file:
        np.savez(file, labels=labels, **matrices)


if __name__ == "__main__":
    step, *words = sys.argv[1:]
    {"fit": fit, "annotate": annotate, "celltypist": celltypist_calls, "scores": scores}[step](*words)
