"""Models as CellTypist writes them, made with scikit-learn, and their scores as CellTypist computes them, densely."""

import pickle
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import StandardScaler

DATA = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"
NUM_CELLS = 300
NUM_GENES = 400  # of a model: the most variable, so that the fit takes a moment
DESCRIPTION = {
    "date": "2022-05-16 00:20:42.927778",
    "details": "immune cells",
    "url": "https://example.org/Immune.pkl",
    "source": "https://doi.org/10.1126/science.abl5197",
    "version": "v2",
    "number_celltypes": np.int64(9),
}
Parts = tuple[Any, StandardScaler, dict[str, Any]]


def pbmc3k(log: bool = True, first: int = 0) -> ad.AnnData:
    """About 300 PBMC with labels in obs.cell_type, other ones for each `first` below 9: ln(1 + cp10k), or counts."""
    cells = ad.read_h5ad(DATA)[first : 9 * NUM_CELLS : 9].copy()
    cells.X = cells.X.astype(np.float32)
    if log:
        sc.pp.normalize_total(cells, target_sum=1e4)
        sc.pp.log1p(cells)
        del cells.uns["log1p"]
    return cells


def fit(
    cells: ad.AnnData, *, kind: str = "logistic", with_mean: bool = True, labels: int | None = None
) -> Parts:
    """Fit a model to log-normalised cells; `labels` keeps the cells of so many labels."""
    texts = cells.obs["cell_type"].astype(str).to_numpy()
    if labels is not None:
        is_kept = np.isin(texts, np.unique(texts)[:labels])
        cells = cells[is_kept]
        texts = texts[is_kept]
    dense = cells.X.toarray()
    genes = np.sort(np.argsort(-dense.var(axis=0), kind="stable")[:NUM_GENES])
    scaler = StandardScaler(with_mean=with_mean).fit(dense[:, genes])
    z = np.minimum(scaler.transform(dense[:, genes]), 10)
    classifier = LogisticRegression(C=0.05, max_iter=50)
    if kind == "sgd":
        classifier = SGDClassifier(loss="log_loss", max_iter=20, random_state=0)
    classifier.fit(z, texts)
    classifier.features = cells.var_names[genes].to_numpy(object)
    return classifier, scaler, dict(DESCRIPTION)


def pickled(parts: Parts, protocol: int = 4) -> bytes:
    """Return the content of a .pkl."""
    return pickle.dumps(
        dict(zip(("Model", "Scaler_", "description"), parts, strict=True)), protocol=protocol
    )


def scores(parts: Parts, cells: ad.AnnData) -> pd.DataFrame:
    """Return CellTypist's decision matrix, computed as there: dense, on the genes of the same name."""
    classifier, scaler, _ = parts
    features = np.asarray(classifier.features)
    present = cells.var_names.intersection(features, sort=False)
    place = [list(features).index(gene) for gene in present]
    x = cells[:, present].X.toarray()
    mean = scaler.mean_[place] if scaler.with_mean else 0
    z = (x - mean) / scaler.scale_[place]
    z[z > 10] = 10
    found = z @ classifier.coef_[:, place].T + classifier.intercept_
    if found.shape[1] == 1:
        found = np.column_stack([-found, found])
    return pd.DataFrame(found, index=cells.obs_names, columns=classifier.classes_)
