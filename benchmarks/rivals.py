"""The methods of the accuracy panel: each is trained on a reference and predicts the labels of a query.

The query has no labels: `panel.Pair` holds the true labels separately.
"""

import subprocess
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import anndata as ad
import numpy as np
import torch
from panel import LABEL
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from torch import nn
from words import as_options

from scperformer import annotate, train
from scperformer.cells import align_rows, detect_expression, gene_table, plan_alignment, stored_expression
from scperformer.cells.preprocess import prepare_reference
from scperformer.config import PreprocessConfig, TokensConfig, make_config
from scperformer.learning import informative_genes, variability
from scperformer.network import load_model, simulate_conditions
from scperformer.network.tokens import tokenize

STRENGTHS = (0.01, 0.1, 1.0, 10.0)
INNER_FOLDS = 3
# Width of the hidden layers, training steps and batch size of the perceptron.
WIDTH = 128
NUM_STEPS = 2500
BATCH_CELLS = 64
CELLTYPIST = Path(__file__).with_name("celltypist_calls.py")


def matrices(reference: ad.AnnData, query: ad.AnnData) -> tuple[csr_matrix, np.ndarray, csr_matrix]:
    """ln(1 + cp10k) of reference and query (scperformer's, all genes of the reference), and the labels."""
    prepared = prepare_reference(reference, PreprocessConfig(inputs=["reference"]))
    findings = detect_expression(query)
    genes = gene_table(query, findings.source)
    plan = plan_alignment(genes, findings, list(prepared.var_names), target_sum=1e4, min_overlap=0.0)
    x = align_rows(stored_expression(query, findings)[0].block(0, query.n_obs), plan)
    return csr_matrix(prepared.X), prepared.obs[LABEL].to_numpy(str), x


def logistic(c: float, penalty: str):
    if penalty == "L2":
        return LogisticRegression(C=c, max_iter=1000)
    return OneVsRestClassifier(LogisticRegression(C=c, l1_ratio=1, solver="liblinear", max_iter=100))


def best_logistic(reference: ad.AnnData, query: ad.AnnData) -> np.ndarray:
    """Logistic regression on all genes; an inner cross-validation chooses C and L1 or L2 by macro-F1."""
    x, labels, x_query = matrices(reference, query)
    folds = list(StratifiedKFold(INNER_FOLDS, shuffle=True, random_state=0).split(x, labels))

    def quality(choice: tuple[float, str]) -> float:
        calls = np.empty(len(labels), dtype=object)
        for rows, held_out in folds:
            calls[held_out] = logistic(*choice).fit(x[rows], labels[rows]).predict(x[held_out])
        return f1_score(labels, calls.astype(str), average="macro")

    best = max(((c, penalty) for penalty in ("L2", "L1") for c in STRENGTHS), key=quality)
    return logistic(*best).fit(x, labels).predict(x_query)


def linear_svm(reference: ad.AnnData, query: ad.AnnData) -> np.ndarray:
    """scikit-learn's linear support vector machine with its defaults, on all genes."""
    x, labels, x_query = matrices(reference, query)
    return LinearSVC(max_iter=10_000).fit(x, labels).predict(x_query)


def neighbours(reference: ad.AnnData, query: ad.AnnData) -> np.ndarray:
    """15 nearest neighbours on 50 principal components of the reference."""
    x, labels, x_query = matrices(reference, query)
    space = TruncatedSVD(min(50, x.shape[0] - 1), random_state=0)
    return make_pipeline(space, KNeighborsClassifier(min(15, x.shape[0]))).fit(x, labels).predict(x_query)


def fit_perceptron(x: csr_matrix, labels: np.ndarray, seed: int) -> Callable[[csr_matrix], np.ndarray]:
    """Predict with a perceptron of two hidden layers of 128, trained on random genes and depths (`conditions=full`).

    `x` is ln(1 + cp10k) of counts; each cell is scaled to the same norm.
    """
    names, targets = np.unique(labels, return_inverse=True)
    conditions = make_config("train", ["inputs=[reference]", f"label_key={LABEL}", "conditions=full"]).conditions
    preferred = (variability(x), informative_genes(x, targets))
    tokens = TokensConfig()
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(x.shape[1], WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Dropout(0.2))
    second = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, len(names)))
    network = nn.Sequential(first, second)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, NUM_STEPS)
    weights = torch.from_numpy(np.bincount(targets) ** -0.5).float()

    def logits(x_BG: torch.Tensor) -> torch.Tensor:
        return network(10 * nn.functional.normalize(x_BG))

    for _ in range(NUM_STEPS):
        rows = torch.randint(len(targets), (BATCH_CELLS,)).numpy()
        seen = simulate_conditions(tokenize(x[rows], tokens), conditions, tokens, *preferred, 1e4)
        x_BG = torch.zeros(BATCH_CELLS, x.shape[1] + 1).scatter_add_(1, seen.genes_BL, seen.x_BL * seen.keep_BL)[:, :-1]
        truth = torch.from_numpy(targets[rows])
        loss = nn.functional.cross_entropy(logits(x_BG), truth, weights / weights.mean(), label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()

    def call(x: csr_matrix) -> np.ndarray:
        with torch.inference_mode():
            return names[logits(torch.from_numpy(x.toarray().astype(np.float32))).argmax(1).numpy()]

    return call


def celltypist(python: str, kept: Path | None = None) -> Callable[[ad.AnnData, ad.AnnData], np.ndarray]:
    """CellTypist trained on the reference, in a separate environment because it needs scikit-learn < 1.8.

    With a folder `kept`, its model is saved there, and later calls with the same reference do not train again.
    """

    def run(reference: ad.AnnData, query: ad.AnnData) -> np.ndarray:
        x, labels, x_query = matrices(reference, query)
        genes = [f"g{i}" for i in range(x.shape[1])]
        with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
            for name, cells in (("reference", x), ("query", x_query)):
                adata = ad.AnnData(cells, var={"gene": genes})
                adata.var_names = genes
                if name == "reference":
                    adata.obs[LABEL] = labels
                adata.write_h5ad(Path(folder) / f"{name}.h5ad")
            subprocess.run([python, str(CELLTYPIST), str(folder)], check=True, capture_output=True)
            return np.loadtxt(Path(folder) / "calls.txt", dtype=str, delimiter="\t")

    return run


def scperformer(overrides: list[str]) -> Callable[[ad.AnnData, ad.AnnData, int], np.ndarray]:
    """This package, through its public Python functions."""

    def run(reference: ad.AnnData, query: ad.AnnData, seed: int) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            options = [f"seed={seed}", "logger=none", *overrides]
            path = train(reference, LABEL, output=Path(folder) / "model", options=as_options(options)).path
            called = annotate(query.copy(), load_model(path))
        return called.obs["scperformer_label"].to_numpy(str)

    return run
