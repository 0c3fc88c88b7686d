"""Other tools as their users call them, run by the benchmarks in an environment that has them: rivals.py STEP ...

    rivals.py fit METHOD FILE LABEL_KEY MODEL      # FILE holds counts
    rivals.py annotate METHOD FILE MODEL OUT       # writes a copy of FILE with a new column
    rivals.py call OTHER FOLDER                    # reference.h5ad and query.h5ad -> calls.txt
    rivals.py versions PACKAGES                    # those that are installed
    rivals.py scores FILE MODEL OUT                # CellTypist's decision matrix and probabilities, or why it refused

METHOD is `logistic regression`, `celltypist` or `performer-pytorch`, OTHER a name of `OTHERS`. In FOLDER and for
`scores`, the cells are log-normalised; in FOLDER the layer `counts` has their counts.
"""

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc

QUERY_EPOCHS = 100  # of scANVI, as in the tutorial
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
        joblib.dump(
            LogisticRegression(C=0.1, max_iter=300).fit(adata.X, adata.obs[label_key].astype(str)),
            model,
        )
    elif method == "celltypist":
        import celltypist

        celltypist.train(log_normalised(path), labels=label_key, n_jobs=1, max_iter=200).write(
            model
        )


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


def celltypist_calls(reference: ad.AnnData, query: ad.AnnData, folder: Path) -> np.ndarray:
    """CellTypist with its defaults, without the votes of clusters; its probabilities stay in the folder."""
    import celltypist

    model = celltypist.train(reference, labels="label", max_iter=200, **QUICK)
    called = celltypist.annotate(query, model=model, majority_voting=False)
    called.probability_matrix.to_csv(folder / "probabilities.csv")
    return called.predicted_labels["predicted_labels"].to_numpy(str)


def singler_calls(reference: ad.AnnData, query: ad.AnnData, folder: Path) -> np.ndarray:
    """SingleR with all cells of the reference; its markers for single cells, by AUC, and fine-tuning."""
    import singler

    found = singler.annotate_single(
        test_data=query.X.T,
        test_features=list(query.var_names),
        ref_data=reference.X.T,
        ref_features=list(reference.var_names),
        ref_labels=reference.obs["label"].astype(str).tolist(),
        train_args={"marker_method": "auc"},
    )
    return np.array(found.column("best"), dtype=str)


def harmony_calls(reference: ad.AnnData, query: ad.AnnData, folder: Path) -> np.ndarray:
    """15 nearest neighbours in 50 principal components of both files that Harmony corrects; 2,000 variable genes."""
    import harmonypy
    from sklearn.neighbors import KNeighborsClassifier

    both = ad.concat({"reference": reference, "query": query}, label="study", index_unique="-")
    sc.pp.highly_variable_genes(both, n_top_genes=2000, batch_key="study")
    sc.pp.pca(both, mask_var="highly_variable", random_state=0)
    x = harmonypy.run_harmony(
        both.obsm["X_pca"], both.obs, "study", ncores=1, verbose=False
    ).result()
    is_query = (both.obs["study"] == "query").to_numpy()
    return (
        KNeighborsClassifier()
        .set_params(n_neighbors=15)
        .fit(x[~is_query], reference.obs["label"])
        .predict(x[is_query])
    )


def scanvi_calls(reference: ad.AnnData, query: ad.AnnData, folder: Path) -> np.ndarray:
    """scANVI as in scvi-tools' tutorial of reference mapping, with 2,000 variable genes; 25 ms a step on one core."""
    import scvi

    scvi.settings.seed = 0
    scvi.settings.num_threads = 1  # otherwise all cores, whatever OMP_NUM_THREADS says
    sc.pp.highly_variable_genes(reference, n_top_genes=2000)
    for name, cells in {"reference": reference, "query": query}.items():
        cells.X = cells.layers["counts"]
        cells.obs["study"] = name
    query.obs["label"] = "Unknown"
    chosen = reference.var["highly_variable"].to_numpy()
    reference, query = reference[:, chosen].copy(), query[:, chosen].copy()
    scvi.model.SCVI.setup_anndata(reference, batch_key="study")
    layers = {
        "use_layer_norm": "both",
        "use_batch_norm": "none",
        "encode_covariates": True,
        "n_layers": 2,
    }
    first = scvi.model.SCVI(reference, dropout_rate=0.2, **layers)
    first.train(accelerator="cpu")
    model = scvi.model.SCANVI.from_scvi_model(first, "Unknown", labels_key="label")
    model.train(accelerator="cpu", n_samples_per_label=100)
    mapped = scvi.model.SCANVI.load_query_data(query, model, accelerator="cpu")
    mapped.train(max_epochs=QUERY_EPOCHS, accelerator="cpu", plan_kwargs={"weight_decay": 0.0})
    return mapped.predict().astype(str)


OTHERS = {
    "celltypist": celltypist_calls,
    "singler": singler_calls,
    "harmony_knn": harmony_calls,
    "scanvi": scanvi_calls,
}


def call(method: str, name: str) -> None:
    """Train on the reference of a folder and annotate its query."""
    folder = Path(name)
    reference, query = (ad.read_h5ad(folder / f"{part}.h5ad") for part in ("reference", "query"))
    np.savetxt(folder / "calls.txt", OTHERS[method](reference, query, folder), fmt="%s")


def versions(*packages: str) -> None:
    """Print the versions of the packages that are installed, as JSON."""
    found = {each.metadata["Name"]: each.version for each in distributions()}
    print(json.dumps({name: found[name] for name in packages if name in found}))


def scores(path: str, model: str, out: str) -> None:
    import celltypist

    try:
        found = celltypist.annotate(ad.read_h5ad(path), model=model, majority_voting=False)
    except Exception as error:  # noqa: BLE001 - the benchmark shows why
        Path(out).write_text(f"refused: {error}", encoding="utf-8")
        return
    labels = found.predicted_labels["predicted_labels"].to_numpy(str)
    matrices = {
        "decision": found.decision_matrix.to_numpy(),
        "probability": found.probability_matrix.to_numpy(),
    }
    with open(out, "wb") as file:
        np.savez(file, labels=labels, **matrices)


if __name__ == "__main__":
    step, *words = sys.argv[1:]
    {"fit": fit, "annotate": annotate, "call": call, "versions": versions, "scores": scores}[step](
        *words
    )
