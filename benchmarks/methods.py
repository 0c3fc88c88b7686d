"""Other methods that annotate a query by labelled cells, over the genes that both have.

Methods of `HERE` need scikit-learn alone. Those of `ELSEWHERE` run in an environment of their own, by rivals.py;
`--others` names its Python. It needs scanpy, and celltypist (with scikit-learn before 1.8), harmonypy 2, singler and
scranpy, or scvi-tools. Methods without their package are left out.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import sklearn
from panel import LABEL
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from scperformer.cells.normalisation import align

RIVALS = Path(__file__).with_name("rivals.py")
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
INNER_FOLDS = 3


def are_counts(cells: ad.AnnData) -> bool:
    return not np.any(sparse.csr_matrix(cells.X).data % 1)


def log_normalised(cells: ad.AnnData, genes: pd.Index) -> sparse.csr_matrix:
    """ln(1 + counts per 10,000) over `genes`; absent genes are 0. Values that are not counts are left as they are."""
    values = align(cells.X, genes.get_indexer(cells.var_names), len(genes)).astype(np.float64)
    if not are_counts(cells):
        return sparse.csr_matrix(values)
    totals = np.asarray(values.sum(axis=1)).ravel()
    return (sparse.diags(1e4 / np.maximum(totals, 1)) @ values).tocsr().log1p()


def logistic(c: float, penalty: str):
    if penalty == "L2":
        return LogisticRegression(C=c, max_iter=1000)
    return OneVsRestClassifier(
        LogisticRegression(C=c, l1_ratio=1, solver="liblinear", max_iter=100)
    )


def best_logistic(
    x: sparse.csr_matrix, labels: np.ndarray, x_query: sparse.csr_matrix
) -> np.ndarray:
    """Logistic regression on all genes; an inner cross-validation chooses C and L1 or L2 by macro-F1."""
    folds = StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=0)

    def quality(choice: tuple[float, str]) -> float:
        calls = cross_val_predict(logistic(*choice), x, labels, cv=folds)
        return f1_score(labels, calls, average="macro")

    best = max(((c, penalty) for penalty in ("L2", "L1") for c in STRENGTHS), key=quality)
    return logistic(*best).fit(x, labels).predict(x_query)


def linear_svm(x: sparse.csr_matrix, labels: np.ndarray, x_query: sparse.csr_matrix) -> np.ndarray:
    """scikit-learn's linear support vector machine with its defaults, on all genes."""
    return LinearSVC(max_iter=10_000).fit(x, labels).predict(x_query)


def neighbours(x: sparse.csr_matrix, labels: np.ndarray, x_query: sparse.csr_matrix) -> np.ndarray:
    """15 nearest neighbours on 50 principal components of the reference."""
    space = TruncatedSVD(min(50, x.shape[0] - 1), random_state=0)
    return (
        make_pipeline(space, KNeighborsClassifier(min(15, x.shape[0])))
        .fit(x, labels)
        .predict(x_query)
    )


HERE = {"lr_tuned": best_logistic, "svm": linear_svm, "knn": neighbours}
ELSEWHERE = {
    "harmony_knn": "harmonypy",
    "singler": "singler",
    "celltypist": "celltypist",
    "scanvi": "scvi-tools",
}
NAMES = [*HERE, *ELSEWHERE]


def available(names: Sequence[str], python: str | None) -> list[str]:
    """The names without methods that `python` lacks; prints these, and the versions of the others."""
    wanted = {name: ELSEWHERE[name] for name in names if name in ELSEWHERE}
    found = {name: sklearn.__version__ for name in names if name in HERE}
    if python is not None and wanted:
        words = [python, str(RIVALS), "versions", *wanted.values()]
        versions = json.loads(
            subprocess.run(words, check=True, capture_output=True, text=True).stdout
        )
        found |= {
            name: versions[package] for name, package in wanted.items() if package in versions
        }
    for name, version in found.items():
        print(f"{name}: {wanted.get(name, 'scikit-learn')} {version}")
    for name in [name for name in wanted if name not in found]:
        print(f"left out: {name} (--others names a Python that has {wanted[name]})")
    return [name for name in names if name in found or name not in wanted]


def call_elsewhere(
    method: str, reference: ad.AnnData, query: ad.AnnData, python: str | None, folder: Path
) -> np.ndarray:
    """The calls of a method of `ELSEWHERE`; its files, such as CellTypist's probabilities, stay in the folder."""
    assert python is not None
    genes = reference.var_names.intersection(query.var_names, sort=False)
    for name, cells in {"reference": reference, "query": query}.items():
        part = cells[:, genes]
        written = ad.AnnData(
            log_normalised(part, genes), obs=part.obs, var=part.var[[]], layers={"counts": part.X}
        )
        written.write_h5ad(folder / f"{name}.h5ad")
    found = subprocess.run(
        [python, str(RIVALS), "call", method, str(folder)], capture_output=True, text=True
    )
    if found.returncode:
        raise SystemExit(f"{method} failed: {found.stderr[-2000:]}")
    return np.loadtxt(folder / "calls.txt", dtype=str, delimiter="\t")


def call(method: str, reference: ad.AnnData, query: ad.AnnData, python: str | None) -> np.ndarray:
    """The labels of the query by a method of `NAMES`."""
    if method in ELSEWHERE:
        with tempfile.TemporaryDirectory() as folder:
            return call_elsewhere(method, reference, query, python, Path(folder))
    genes = reference.var_names.intersection(query.var_names, sort=False)
    x, x_query = (log_normalised(cells[:, genes], genes) for cells in (reference, query))
    return HERE[method](x, reference.obs[LABEL].to_numpy(str), x_query)
