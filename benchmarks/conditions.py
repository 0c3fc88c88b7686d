"""Accuracy of models on queries with fewer genes or a smaller depth than their reference.

    python benchmarks/conditions.py FOLDER runs.jsonl                    # every task, column and seed
    python benchmarks/conditions.py FOLDER runs.jsonl --tasks pbmc3k --columns lr default --seeds 0

A row is the query of a task with a share of its counts or some of its genes; the other genes have no column. A column
is a method. Each finished task, seed, row and column appends a line to the JSON file, and finished lines are not
repeated, so an interrupted benchmark can continue. The result is printed as Markdown tables. CellTypist runs if
`--celltypist PYTHON` names the Python of an environment that has it.
"""

import argparse
import json
import logging
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import rivals
from machine import machine
from panel import LABEL, Pair, Task, missing_files, pairs, read_cells, read_reference
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from words import as_options

from scperformer import annotate, load_model, train
from scperformer.base.metrics import score
from scperformer.cells import align
from scperformer.trust import calibration_error

GENE_SETS = 2  # random gene sets of a row for each seed; its line has their means
LAYERS = ["experiment=encoder", "conditions=full", "model=pooled", "model.depth=1", "model.queries=tokens"]
OURS: dict[str, tuple[list[str], list[str]]] = {  # column -> options of `train` and of `predict`
    "linear": (["experiment=linear"], ["adapt=false"]),
    "linear_adapted": (["experiment=linear"], ["adapt=true"]),
    "default": ([], []),
    "pooled": (["model=pooled"], []),  # the default without attention
    "encoder": (LAYERS, ["adapt=false"]),
}
COLUMNS = ["lr", "lr_refitted", *OURS, "perceptron", "celltypist"]

# The sorted cells have no DC and no platelets. The reference keeps both: a user does not know what a query lacks.
COARSE = {
    "Naive CD4 T": "CD4 T",
    "Memory CD4 T": "CD4 T",
    "CD14+ Mono": "Monocyte",
    "FCGR3A+ Mono": "Monocyte",
    "CD4+ T Helper2": "CD4 T",
    "CD4+/CD25 T Reg": "CD4 T",
    "CD4+/CD45RA+/CD25- Naive T": "CD4 T",
    "CD4+/CD45RO+ Memory": "CD4 T",
    "CD8+ Cytotoxic T": "CD8 T",
    "CD8+/CD45RA+ Naive Cytotoxic": "CD8 T",
    "CD14+ Monocyte": "Monocyte",
    "CD19+ B": "B",
    "CD56+ NK": "NK",
}
# Labels with the same meaning in both studies: pbmc3k's clusters of CD4 T cells include naive CD8 T cells, and most
# cells sorted as monocytes in zheng_sorted express the genes of the DC cluster.
AGREED = {"CD4 T": "T", "CD8 T": "T", "Monocyte": "Monocyte or DC", "DC": "Monocyte or DC"}
WITHIN = Task(name="pbmc3k", reference="pbmc3k.h5ad", label_key="cell_type", holdout=0.2)
BETWEEN = replace(WITHIN, name="pbmc3k_to_zheng_sorted", holdout=None, query="zheng_sorted_pbmc.h5ad", merge=COARSE)
SCMINER = replace(BETWEEN, name="pbmc3k_to_zheng_scminer", query="zheng_sorted_scminer_3500.h5ad")
SCMINER = replace(SCMINER, truth_key="label_full", query_where={"in_zheng_sorted_pbmc": ["False"]})  # no cell in both
MERGED = AGREED | {label: AGREED.get(coarse, coarse) for label, coarse in COARSE.items()}
TASKS = [
    WITHIN,
    replace(WITHIN, name="zheng_sorted", reference="zheng_sorted_pbmc.h5ad"),
    replace(WITHIN, name="mixology", reference="mixology_lung_celllines.h5ad"),
    replace(WITHIN, name="baron", reference="baron_pancreas_mini.h5ad"),
    BETWEEN,
    SCMINER,
    replace(BETWEEN, name="pbmc3k_to_zheng_sorted, agreed", merge=MERGED),
    replace(SCMINER, name="pbmc3k_to_zheng_scminer, agreed", merge=MERGED),
]


@dataclass(frozen=True)
class Row:
    """A condition: a share of the query's counts, or some of the genes shared by query and reference."""

    name: str
    regime: str
    share: float = 1.0  # of the counts
    genes: str = "all"  # "random" or "variable": num_genes of these; "others": all except the num_genes most variable
    num_genes: int = 0


ROWS_WITHIN = [
    Row("everything", "full"),
    Row("half of the counts", "depth", share=0.5),
    Row("a quarter of the counts", "depth", share=0.25),
    Row("a tenth of the counts", "depth", share=0.1),
    Row("5,000 random genes", "panels", genes="random", num_genes=5000),
    Row("1,000 random genes", "panels", genes="random", num_genes=1000),
    Row("1,000 most variable genes", "panels", genes="variable", num_genes=1000),
    Row("300 most variable genes", "panels", genes="variable", num_genes=300),
    Row("all but the 300 most variable genes", "panels", genes="others", num_genes=300),
]
ROWS_BETWEEN = [
    Row("whole", "studies"),
    Row("2,000 random genes", "studies", genes="random", num_genes=2000),
    Row("500 most variable genes", "studies", genes="variable", num_genes=500),
    Row("a fifth of the counts", "studies", share=0.2),
]
REGIMES = {name: name.split(" and ") for name in ("full", "depth", "panels", "depth and panels", "studies")}
REGIMES["studies, agreed labels"] = ["studies, agreed"]
KEYS = ["task", "seed", "row", "column"]  # of a line


def rows_of(task: Task) -> list[Row]:
    """The conditions of a task."""
    if task.query is None:
        return ROWS_WITHIN
    return [replace(row, regime="studies, agreed") for row in ROWS_BETWEEN] if task.merge is MERGED else ROWS_BETWEEN


def read_pair(task: Task, data: Path, seed: int) -> Pair:
    """A random split of one file, or all cells of two files with coarse labels."""
    if task.query is None:
        return next(pairs(replace(task, split_seeds=[seed]), data, seeds=1))
    reference = read_reference(task, data)
    query = read_cells(task.query, task.truth_key or task.label_key, task.query_where, data)
    for cells in (reference, query):
        cells.obs[LABEL] = [task.merge.get(label, label) for label in cells.obs[LABEL]]
    return Pair(seed, 0, reference, ad.AnnData(query.X, var=query.var), query.obs[LABEL].to_numpy(str))


def rank_genes(pair: Pair) -> np.ndarray:
    """The shared genes, in descending order of variance relative to the mean of their counts in the reference."""
    counts = sparse.csr_matrix(pair.reference.X, dtype=float)
    mean, square = (np.asarray(x.mean(axis=0)).ravel() for x in (counts, counts.power(2)))
    genes = pair.reference.var_names[np.argsort(-(square - mean**2) / np.maximum(mean, 0.01), kind="stable")]
    return genes[genes.isin(pair.query.var_names)].to_numpy()


def thin(cells: ad.AnnData, share: float, rng: np.random.Generator) -> None:
    """Keep each count with the probability `share`, as if the cells were sequenced less deeply."""
    counts = sparse.csr_matrix(cells.X, dtype=np.float32, copy=True)
    counts.data = rng.binomial(counts.data.astype(np.int64), share).astype(np.float32)
    counts.eliminate_zeros()
    cells.X = counts


def reduce(query: ad.AnnData, row: Row, ranked: np.ndarray, seed: int) -> list[ad.AnnData]:
    """The query under a condition, once for each gene set; `ranked` is the result of `rank_genes`."""
    found = []
    for draw in range(GENE_SETS if row.genes == "random" else 1):
        rng = np.random.default_rng([seed, draw])
        order = rng.permutation(ranked) if row.genes == "random" else ranked
        chosen = order[row.num_genes :] if row.genes == "others" else order[: row.num_genes]
        cells = (query if row.genes == "all" else query[:, query.var_names.isin(chosen)]).copy()
        if row.share < 1:
            thin(cells, row.share, rng)
        found.append(cells)
    return found


def log_normalised(cells: ad.AnnData, genes: pd.Index) -> sparse.csr_matrix:
    """ln(1 + counts per 10,000) over `genes`; absent genes are 0."""
    counts = align(cells.X, genes.get_indexer(cells.var_names), len(genes)).astype(np.float64)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    return (sparse.diags(1e4 / np.maximum(totals, 1)) @ counts).tocsr().log1p()


def fit_logistic(cells: ad.AnnData) -> LogisticRegression:
    fitted = LogisticRegression(C=0.1, max_iter=300, class_weight="balanced")
    return fitted.fit(log_normalised(cells, cells.var_names), cells.obs[LABEL].to_numpy(str))


@dataclass
class Methods:
    """The columns for one reference and seed; a model is trained when it is first needed, and kept."""

    reference: ad.AnnData
    seed: int
    folder: Path
    python: str | None  # with CellTypist
    models: dict[str, Any] = field(default_factory=dict)

    def call(self, column: str, query: ad.AnnData) -> ad.AnnData:
        """A copy of the query with obs.scperformer_label; columns of `OURS` have everything that `annotate` adds."""
        called = query.copy()
        if column in OURS:
            options, of_predict = OURS[column]
            name = " ".join(["scperformer", *options])
            if name not in self.models:
                overrides = [f"seed={self.seed}", "logger=none", *options]
                path = train(self.reference, LABEL, output=self.folder / name, options=as_options(overrides)).path
                self.models[name] = load_model(path)
            return annotate(called, self.models[name], options=as_options(["min_overlap=0", *of_predict]))
        if column == "lr":
            if "lr" not in self.models:
                self.models["lr"] = fit_logistic(self.reference)
            calls = self.models["lr"].predict(log_normalised(query, self.reference.var_names))
        elif column == "lr_refitted":
            shared = self.reference[:, self.reference.var_names.isin(query.var_names)].copy()
            depth, wanted = (np.median(np.asarray(c[:, shared.var_names].X.sum(axis=1))) for c in (shared, query))
            thin(shared, min(1.0, wanted / max(depth, 1)), np.random.default_rng(self.seed))
            calls = fit_logistic(shared).predict(log_normalised(query, shared.var_names))
        elif column == "perceptron":
            if "perceptron" not in self.models:
                x = log_normalised(self.reference, self.reference.var_names)
                labels = self.reference.obs[LABEL]
                fitted = rivals.fit_perceptron(x.astype(np.float32), labels.to_numpy(str), self.seed)
                self.models["perceptron"] = fitted
            calls = self.models["perceptron"](log_normalised(query, self.reference.var_names))
        else:
            calls = rivals.celltypist(str(self.python), self.folder)(self.reference, query)
        called.obs["scperformer_label"] = calls
        return called

    def loss(self, column: str) -> float | None:
        """The out-of-fold loss of a column's model on its reference, if it is one of `OURS`."""
        model = self.models.get(" ".join(["scperformer", *OURS[column][0]])) if column in OURS else None
        return None if model is None else model.saved.metrics["out_of_fold"]["loss"]


def measure(called: ad.AnnData, truth: np.ndarray) -> dict[str, float]:
    """The scores of one annotated query; those of confidence and expected accuracy only if it has them."""
    calls = called.obs["scperformer_label"].to_numpy(str)
    scores = score(truth, calls)
    found = {"num_cells": called.n_obs, "num_genes": called.n_vars}
    found |= {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
    if "scperformer" in called.uns:
        found["ece"] = calibration_error(called.obs["scperformer_confidence"].to_numpy(float), truth == calls)
        if condition := called.uns["scperformer"].get("condition"):
            expected = float(condition["expected_accuracy"])
            found |= {"adapted": float(condition["adapted"]), "expected_accuracy": expected}
            found["expected_error"] = abs(expected - scores.accuracy)
    return found


def read_lines(path: Path) -> dict[tuple, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {tuple(line[key] for key in KEYS): line for line in lines}


def run_task(task: Task, seed: int, columns: list[str], arguments: argparse.Namespace) -> None:
    """Append the lines of a task and seed that are not yet in the file."""
    pair = read_pair(task, arguments.data, seed)
    ranked = rank_genes(pair)
    labels = np.unique(pair.reference.obs[LABEL].to_numpy(str))
    with tempfile.TemporaryDirectory() as folder:
        methods = Methods(pair.reference, seed, Path(folder), arguments.celltypist)
        for row in rows_of(task):
            if row.num_genes >= len(ranked):
                continue
            queries = reduce(pair.query, row, ranked, seed)
            for column in columns:
                done = read_lines(arguments.jsonl)
                key = (task.name, seed, row.name, column)
                if key in done:
                    continue
                called = [methods.call(column, query) for query in queries]
                numbers = pd.DataFrame([measure(cells, pair.truth) for cells in called]).mean().to_dict()
                line = dict(zip(KEYS, key, strict=True)) | {"regime": row.regime}
                line |= {name: None if np.isnan(number) else number for name, number in numbers.items()}
                line["loss"] = methods.loss(column)
                calls = [np.searchsorted(labels, cells.obs["scperformer_label"].to_numpy(str)) for cells in called]
                adapted = done.get((*key[:3], "linear_adapted"))
                if column == "linear_adapted":
                    line["calls"] = [found.tolist() for found in calls]
                elif column == "default" and adapted:
                    line["num_differ"] = float((np.array(calls) != adapted["calls"]).sum(axis=1).mean())
                with arguments.jsonl.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(*key, f"{line['accuracy']:.3f} {line['macro_f1']:.3f}", flush=True)


def entry(values: pd.Series) -> str:
    """Mean ± standard deviation over the finished seeds of a column, and their number if some are missing."""
    by_seed = values.unstack("seed")
    means = by_seed.dropna(axis=1).mean()
    share = "" if len(means) == by_seed.shape[1] else f" ({len(means)} of {by_seed.shape[1]})"
    return f"{means.mean():.3f} ± {means.std(ddof=0):.3f}{share}" if len(means) else "not run"


def table(lines: pd.DataFrame, score: str) -> str:
    """A Markdown table of a score: a row per task and condition, then the means of the regimes."""
    values = lines.pivot(index=["regime", "task", "row", "seed"], columns="column", values=score)
    names = values.index.to_frame()
    columns = [column for column in COLUMNS if column in values]
    every = [(task.name, row.name) for task in TASKS for row in ROWS_WITHIN + ROWS_BETWEEN]
    parts = {f"{task}, {row}": (names["task"] == task) & (names["row"] == row) for task, row in every}
    parts |= {f"**{name}**": names["regime"].isin(regimes) for name, regimes in REGIMES.items()}
    text = [f"| {score} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name, part in parts.items():
        if part.any():
            text.append(f"| {name} | {' | '.join(entry(values.loc[part, column]) for column in columns)} |")
    return "\n".join(text)


def calibration(lines: pd.DataFrame) -> str:
    """A Markdown table of |expected - true accuracy|, calibration, loss, and calls that differ from linear_adapted."""
    lines = lines.assign(differ=lines.get("num_differ", np.nan) / lines["num_cells"])
    scores = {"expected_error": "error of the expected accuracy", "ece": "ECE", "adapted": "adapted"}
    scores |= {"loss": "out-of-fold loss of the model", "differ": "calls unlike linear_adapted's"}
    text = [f"| regime | column | {' | '.join(scores.values())} |", "|---" * (2 + len(scores)) + "|"]
    for name, regimes in REGIMES.items():
        for column in OURS:
            part = lines[lines["regime"].isin(regimes) & (lines["column"] == column)]
            means = part.reindex(columns=list(scores)).astype(float).mean()
            if len(part):
                text.append(f"| {name} | {column} | {' | '.join('' if m != m else f'{m:.3f}' for m in means)} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the h5ad files")
    parser.add_argument("jsonl", type=Path, help="a line per finished task, seed, row and column; created or continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS])
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--celltypist", help="Python of an environment with CellTypist")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    columns = [column for column in COLUMNS if column in arguments.columns]
    if arguments.celltypist is None and "celltypist" in columns:
        columns.remove("celltypist")
        print("left out: celltypist (--celltypist names a Python that has it)")
    for task in [task for task in TASKS if arguments.tasks is None or task.name in arguments.tasks]:
        if missing := missing_files(task, arguments.data):
            print(f"left out: {task.name} (missing: {', '.join(missing)})")
            continue
        for seed in arguments.seeds:
            run_task(task, seed, columns, arguments)
    if found := list(read_lines(arguments.jsonl).values()):
        lines = pd.DataFrame(found)
        print(f"\n{machine()}\n")
        print("\n\n".join([table(lines, "macro_f1"), table(lines, "accuracy"), calibration(lines)]))


if __name__ == "__main__":
    main()
