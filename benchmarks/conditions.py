"""Accuracy and trust of models on queries with fewer genes or counts than their reference, or of another study.

    python benchmarks/conditions.py grid FOLDER runs.jsonl            # every task, column and seed
    python benchmarks/conditions.py grid FOLDER runs.jsonl --tasks pbmc3k --columns lr default --seeds 0
    python benchmarks/conditions.py trust FOLDER runs.jsonl
    python benchmarks/conditions.py times FOLDER

`grid`: a row is the query of a task with a share of its counts or some of its genes; a column is a method.

`trust`: calibration, coverage of label sets, and detection of novel cells. In novelty tasks some cells have types
that are not in the reference: each type of PBMC 3k in turn is left out, or two of five cell lines, or a blood model
annotates pancreas cells. Novelty is compared with the largest probability of scperformer, logistic regression and
CellTypist.

`times`: CPU seconds that sets and clusters add to `annotate`. Finished lines of a JSON file are not repeated.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anndata as ad
import methods as other
import numpy as np
import pandas as pd
from machine import machine
from methods import log_normalised
from panel import (
    LABEL,
    Lines,
    Pair,
    Task,
    as_options,
    be_quiet,
    missing_files,
    pairs,
    read_cells,
    read_reference,
)
from scipy import sparse
from scipy.stats import rankdata
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.preprocessing import StandardScaler, normalize

from scperformer import annotate, train
from scperformer.adaptation.fitted import Model
from scperformer.trust.confidence import calibration_error

GENE_SETS = 2  # random gene sets of a row for each seed; its line has their means
KEYS = ["task", "seed", "row", "column"]
OURS: dict[str, tuple[list[str], list[str]]] = {  # column -> options of `train` and of `predict`
    "linear": (["experiment=linear"], ["adapt=false"]),
    "linear_adapted": (["experiment=linear"], ["adapt=true"]),
    "pooled": (["model=pooled"], []),  # the default without attention
    "default": ([], []),
}
COLUMNS = ["lr", "lr_refitted", *OURS]
NUM_COMPONENTS = 100  # of ranks
RIDGE = 1.0  # penalty of ridge regression for each gene

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
BETWEEN = replace(
    WITHIN,
    name="pbmc3k_to_zheng_sorted",
    holdout=None,
    query="zheng_sorted_pbmc.h5ad",
    merge=COARSE,
)
SCMINER = replace(BETWEEN, name="pbmc3k_to_zheng_scminer", query="zheng_sorted_scminer_3500.h5ad")
# no cell in both
SCMINER = replace(SCMINER, truth_key="label_full", query_where={"in_zheng_sorted_pbmc": ["False"]})
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
REGIMES = {
    name: name.split(" and ") for name in ("full", "depth", "panels", "depth and panels", "studies")
}
REGIMES["studies, agreed labels"] = ["studies, agreed"]


def rows_of(task: Task) -> list[Row]:
    """The conditions of a task."""
    if task.query is None:
        return ROWS_WITHIN
    return (
        [replace(row, regime="studies, agreed") for row in ROWS_BETWEEN]
        if task.merge is MERGED
        else ROWS_BETWEEN
    )


def read_pair(task: Task, data: Path, seed: int) -> Pair:
    """A random split of one file, or all cells of two files with coarse labels."""
    if task.query is None:
        return next(pairs(replace(task, split_seeds=[seed]), data, seeds=1))
    reference = read_reference(task, data)
    query = read_cells(task.query, task.truth_key or task.label_key, task.query_where, data)
    for cells in (reference, query):
        cells.obs[LABEL] = [task.merge.get(label, label) for label in cells.obs[LABEL]]
    return Pair(
        seed, 0, reference, ad.AnnData(query.X, var=query.var), query.obs[LABEL].to_numpy(str)
    )


def rank_genes(pair: Pair) -> np.ndarray:
    """The shared genes, in descending order of variance relative to the mean of their counts in the reference."""
    counts = sparse.csr_matrix(pair.reference.X, dtype=float)
    mean, square = (np.asarray(x.mean(axis=0)).ravel() for x in (counts, counts.power(2)))
    genes = pair.reference.var_names[
        np.argsort(-(square - mean**2) / np.maximum(mean, 0.01), kind="stable")
    ]
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


def fit_logistic(cells: ad.AnnData) -> LogisticRegression:
    fitted = LogisticRegression(C=0.1, max_iter=300, class_weight="balanced")
    return fitted.fit(log_normalised(cells, cells.var_names), cells.obs[LABEL].to_numpy(str))


def ranks(x: sparse.csr_matrix) -> sparse.csr_matrix:
    """Ranks of the genes within each cell, ties averaged, less the rank of silent genes: cells of length 1."""
    ranked = sparse.csr_matrix(x, dtype=np.float64, copy=True)
    for row in range(ranked.shape[0]):
        part = slice(ranked.indptr[row], ranked.indptr[row + 1])
        num = part.stop - part.start
        ranked.data[part] = rankdata(ranked.data[part]) + (ranked.shape[1] - num - 1) / 2
    return normalize(ranked)


def call_by_ranks(reference: ad.AnnData, query: ad.AnnData) -> np.ndarray:
    """Labels by logistic regression on principal components of ranks (as in arXiv 2602.16696)."""
    x, y = (ranks(log_normalised(cells, reference.var_names)) for cells in (reference, query))
    components = TruncatedSVD(NUM_COMPONENTS, random_state=0).fit(x)
    scaled = StandardScaler().fit(components.transform(x))
    x, y = (scaled.transform(components.transform(each)) for each in (x, y))
    return (
        LogisticRegression(C=0.1, max_iter=1000)
        .fit(x, reference.obs[LABEL].to_numpy(str))
        .predict(y)
    )


def call_by_ridge(reference: ad.AnnData, query: ad.AnnData) -> np.ndarray:
    """Labels by ridge regression on genes that are standardised in the reference and in the query, each by itself."""
    sides = (log_normalised(cells, reference.var_names).toarray() for cells in (reference, query))
    x, y = (np.clip(StandardScaler().fit_transform(side), -10, 10) for side in sides)
    fitted = RidgeClassifier(alpha=RIDGE * x.shape[1]).fit(x, reference.obs[LABEL].to_numpy(str))
    return fitted.predict(y)


# columns of methods that see the shared genes alone
SHARED = {"ranks": call_by_ranks, "ridge": call_by_ridge}


@dataclass
class Methods:
    """The columns for one reference and seed; a model is trained when it is first needed, and kept."""

    reference: ad.AnnData
    seed: int
    folder: Path
    others: str | None = None  # the Python of the other methods
    models: dict[str, Any] = field(default_factory=dict)

    def call(self, column: str, query: ad.AnnData) -> ad.AnnData:
        """A copy of the query with obs.scperformer_label; columns of `OURS` have everything that `annotate` adds."""
        called = query.copy()
        if column in OURS:
            options, of_predict = OURS[column]
            name = " ".join(["scperformer", *options])
            if name not in self.models:
                words = as_options([f"seed={self.seed}", "logger=none", *options])
                self.models[name] = train(
                    self.reference, LABEL, output=self.folder / name, options=words
                ).load()
            return annotate(
                called, self.models[name], options=as_options(["min_overlap=0", *of_predict])
            )
        if column == "lr":
            if "lr" not in self.models:
                self.models["lr"] = fit_logistic(self.reference)
            calls = self.models["lr"].predict(log_normalised(query, self.reference.var_names))
        elif column in SHARED:
            genes = self.reference.var_names.intersection(query.var_names, sort=False)
            calls = SHARED[column](self.reference[:, genes], query[:, genes])
        elif column in other.NAMES:
            calls = other.call(column, self.reference, query, self.others)
        else:
            shared = self.reference[:, self.reference.var_names.isin(query.var_names)].copy()
            depth, wanted = (
                np.median(np.asarray(c[:, shared.var_names].X.sum(axis=1))) for c in (shared, query)
            )
            thin(shared, min(1.0, wanted / max(depth, 1)), np.random.default_rng(self.seed))
            calls = fit_logistic(shared).predict(log_normalised(query, shared.var_names))
        called.obs["scperformer_label"] = calls
        return called


def measure(called: ad.AnnData, truth: np.ndarray) -> dict[str, float]:
    """The scores of one annotated query; calibration and expected accuracy only if it has confidences."""
    calls = called.obs["scperformer_label"].to_numpy(str)
    found = {"accuracy": accuracy_score(truth, calls)}
    found["macro_f1"] = f1_score(truth, calls, labels=np.unique(truth), average="macro")
    if "scperformer" in called.uns:
        found["ece"] = calibration_error(
            called.obs["scperformer_confidence"].to_numpy(float), truth == calls
        )
        if condition := called.uns["scperformer"].get("condition"):
            found["expected_error"] = abs(float(condition["expected_accuracy"]) - found["accuracy"])
    return found


def present(tasks: list[Task], arguments: argparse.Namespace) -> list[Task]:
    """The tasks that were asked for and have their files."""
    found = []
    for task in tasks:
        if arguments.tasks is None or task.name in arguments.tasks:
            if missing := missing_files(task, arguments.data):
                print(f"left out: {task.name} (missing: {', '.join(missing)})")
            else:
                found.append(task)
    return found


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
    parts = {
        f"{task}, {row}": (names["task"] == task) & (names["row"] == row) for task, row in every
    }
    parts |= {f"**{name}**": names["regime"].isin(regimes) for name, regimes in REGIMES.items()}
    text = [f"| {score} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name, part in parts.items():
        if part.any():
            text.append(
                f"| {name} | {' | '.join(entry(values.loc[part, column]) for column in columns)} |"
            )
    return "\n".join(text)


def calibration(lines: pd.DataFrame) -> str:
    """A Markdown table of |expected - true accuracy| and of the calibration error."""
    text = ["| regime | column | error of the expected accuracy | ECE |", "|---|---|---|---|"]
    for name, regimes in REGIMES.items():
        for column in [column for column in OURS if column in set(lines["column"])]:
            part = lines[lines["regime"].isin(regimes) & (lines["column"] == column)]
            means = part.reindex(columns=["expected_error", "ece"]).astype(float).mean()
            if len(part):
                text.append(
                    f"| {name} | {column} | {' | '.join('' if m != m else f'{m:.3f}' for m in means)} |"
                )
    return "\n".join(text)


def grid(arguments: argparse.Namespace) -> None:
    done = Lines(arguments.jsonl, KEYS)
    for task in present(TASKS, arguments):
        for seed in arguments.seeds:
            pair = read_pair(task, arguments.data, seed)
            ranked = rank_genes(pair)
            with tempfile.TemporaryDirectory() as folder:
                methods = Methods(pair.reference, seed, Path(folder))
                for row in [row for row in rows_of(task) if row.num_genes < len(ranked)]:
                    queries = reduce(pair.query, row, ranked, seed)
                    for column in arguments.columns:
                        key = (task.name, seed, row.name, column)
                        if key not in done.found:
                            called = [methods.call(column, query) for query in queries]
                            numbers = (
                                pd.DataFrame([measure(cells, pair.truth) for cells in called])
                                .mean()
                                .to_dict()
                            )
                            done.add(key, {"regime": row.regime} | numbers)
    lines = done.table()
    if len(lines):
        print(f"\n{machine()}\n")
        print("\n\n".join([table(lines, "macro_f1"), table(lines, "accuracy"), calibration(lines)]))


ALPHAS = (0.05, 0.1, 0.2)
TRUST_ROWS = [
    Row("everything", "full"),
    Row("a quarter of the counts", "depth", share=0.25),
    Row("300 most variable genes", "panels", genes="variable", num_genes=300),
]
# without counts
EMBEDDED = replace(WITHIN, name="embedded", reference="embedded", label_key="bulk_labels")
MIXOLOGY = replace(WITHIN, name="mixology", reference="mixology_lung_celllines.h5ad")
PANCREAS = replace(WITHIN, name="pancreas", query="baron_pancreas_mini.h5ad", holdout=None)
LEFT_OUT = replace(WITHIN, name="left_out")
KNOWN = [
    WITHIN,
    EMBEDDED,
    replace(WITHIN, name="zheng_sorted", reference="zheng_sorted_pbmc.h5ad"),
    BETWEEN,
]
NOVEL = [LEFT_OUT, MIXOLOGY, PANCREAS]
QUICK = ["experiment=linear"]  # for models without one of the nine types
NUM_LINES = 3  # of the five cell lines, those in the reference
TIMED_CELLS = 20_000  # drawn from PBMC 3k with replacement
NUM_TIMED = 3  # runs, of which the fastest is reported
TIMED = {  # options of predict
    "none of them": [],
    "sets and levels": ["alpha=0.1", "min_confidence=0.9"],
    "clusters=auto": ["clusters=auto"],
}
TRUST_KEYS = ["task", "seed", "row"]


def novel_pairs(task: Task, data: Path, seed: int) -> Iterator[tuple[str, Pair]]:
    """Pairs whose queries have known and novel cells, and their names; the true label of novel cells is empty."""
    pair = read_pair(replace(task, query=None, holdout=0.2), data, seed)
    labels = np.unique(pair.reference.obs[LABEL].to_numpy(str))
    if task is PANCREAS:
        novel = read_cells(str(task.query), task.label_key, {}, data)
        query = ad.concat([pair.query, novel], join="inner", index_unique="-")
        yield (
            task.name,
            replace(pair, query=query, truth=np.append(pair.truth, np.full(novel.n_obs, ""))),
        )
        return
    lines = np.random.default_rng(seed).permutation(labels)[NUM_LINES:].tolist()
    parts = (
        {task.name: lines}
        if task is MIXOLOGY
        else {f"without {label}": [label] for label in labels}
    )
    for name, out in parts.items():
        is_out = pair.reference.obs[LABEL].isin(out).to_numpy()
        query = ad.concat([pair.query, pair.reference[is_out]], index_unique="-")
        truth = np.append(
            np.where(np.isin(pair.truth, out), "", pair.truth), np.full(is_out.sum(), "")
        )
        yield (
            name,
            replace(pair, reference=pair.reference[~is_out].copy(), query=query, truth=truth),
        )


def rival_scores(
    reference: ad.AnnData, query: ad.AnnData, python: str | None, folder: Path
) -> dict[str, np.ndarray]:
    """1 - the largest probability of logistic regression, and of CellTypist, whose files are kept in `folder`."""
    proba = fit_logistic(reference).predict_proba(log_normalised(query, reference.var_names))
    scores = {"LR": 1 - proba.max(axis=1)}
    if python is not None:
        other.call_elsewhere("celltypist", reference, query, python, folder)
        scores["CellTypist"] = 1 - pd.read_csv(
            folder / "probabilities.csv", index_col=0
        ).to_numpy().max(axis=1)
    return scores


def measure_known(model: Model, query: ad.AnnData, truth: np.ndarray) -> dict[str, Any]:
    """Calibration and label sets of cells of known types."""
    found: dict[str, Any] = {}
    for alpha in ALPHAS:
        called = annotate(query.copy(), model, options={"alpha": alpha, "min_overlap": 0})
        sets = called.obs["scperformer_set"].astype(str).str.split("|")
        inside = [label in labels for label, labels in zip(truth, sets, strict=True)]
        found |= {
            f"coverage {alpha}": float(np.mean(inside)),
            f"size {alpha}": float(sets.str.len().mean()),
        }
    confidence = called.obs["scperformer_confidence"].to_numpy()
    right = (called.obs["scperformer_label"] == truth).to_numpy()
    found |= {"accuracy": float(right.mean()), "ece": calibration_error(confidence, right)}
    return found | {"false alarms": float((called.obs["scperformer_call"] == "unknown").mean())}


def measure_novel(
    model: Model, query: ad.AnnData, truth: np.ndarray, rivals: dict[str, np.ndarray]
) -> dict[str, Any]:
    """How well the flag and each score separate novel cells, which have no true label, from the others."""
    is_novel = truth == ""
    obs = annotate(query.copy(), model, options={"min_overlap": 0}).obs
    unknown = (obs["scperformer_call"] == "unknown").to_numpy()
    found = {
        "false alarms": unknown[~is_novel].mean(),
        "novel cells found": unknown[is_novel].mean(),
    }
    scores = {
        "novelty": obs["scperformer_novelty"],
        "1 - confidence": 1 - obs["scperformer_confidence"],
    }
    found |= {
        f"area: {name}": roc_auc_score(is_novel, each) for name, each in (scores | rivals).items()
    }
    return {name: float(value) for name, value in found.items()}


def trust_tables(lines: pd.DataFrame) -> str:
    """Mean ± standard deviation over seeds: calibration and label sets of known cells, and detection of novel cells."""
    is_known = lines["task"].isin([task.name for task in KNOWN])
    novel = lines[~is_known]
    means = (
        novel[novel["task"].str.startswith("without ")]
        .groupby("seed", as_index=False)
        .mean(numeric_only=True)
    )
    novel = pd.concat([novel, means.assign(task="mean of the types left out", row="everything")])
    found = []
    for part in (lines[is_known], novel):
        columns = [name for name in part if name not in TRUST_KEYS and part[name].notna().any()]
        text = [
            f"| task | condition | seeds | {' | '.join(columns)} |",
            "|---" * (3 + len(columns)) + "|",
        ]
        for (task, row), group in part.groupby(["task", "row"], sort=False):
            values = (
                f"{group[name].mean():.3f} ± {group[name].std(ddof=0):.3f}" for name in columns
            )
            text.append(f"| {task} | {row} | {len(group)} | {' | '.join(values)} |")
        if len(part):
            found.append("\n".join(text))
    return "\n\n".join(found)


def trust(arguments: argparse.Namespace) -> None:
    done = Lines(arguments.jsonl, TRUST_KEYS)
    for seed in arguments.seeds:
        for task in present(KNOWN + NOVEL, arguments):
            rows = TRUST_ROWS[:1] if task in (EMBEDDED, LEFT_OUT) else TRUST_ROWS
            known = [] if task in NOVEL else [(task.name, read_pair(task, arguments.data, seed))]
            for name, pair in known or novel_pairs(task, arguments.data, seed):
                missing = [row for row in rows if (name, seed, row.name) not in done.found]
                if not missing:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    words = as_options(
                        [f"seed={seed}", "logger=none", *(QUICK if task is LEFT_OUT else [])]
                    )
                    model = train(
                        pair.reference, LABEL, output=Path(folder) / "model", options=words
                    ).load()
                    ranked = rank_genes(pair) if len(rows) > 1 else np.arange(0)
                    for row in missing:
                        query = reduce(pair.query, row, ranked, seed)[0]
                        if known:
                            numbers = measure_known(model, query, pair.truth)
                        else:
                            rivals = rival_scores(
                                pair.reference, query, arguments.others, Path(folder)
                            )
                            numbers = measure_novel(model, query, pair.truth, rivals)
                        done.add((name, seed, row.name), numbers)
    if done.found:
        print(f"\n{machine()}\n\n{trust_tables(done.table())}")


def times(arguments: argparse.Namespace) -> None:
    """A Markdown table: the CPU time of `annotate` for 20,000 cells without and with each part."""
    pbmc = read_cells("pbmc3k.h5ad", "cell_type", {}, arguments.data)
    chosen = np.random.default_rng(0).integers(pbmc.n_obs, size=TIMED_CELLS)
    cells = ad.AnnData(
        pbmc.X[chosen],
        obs=pd.DataFrame(index=[f"cell{i}" for i in range(TIMED_CELLS)]),
        var=pbmc.var,
    )
    seconds: dict[str, list[float]] = {name: [] for name in TIMED}
    with tempfile.TemporaryDirectory() as folder:
        model = train(pbmc, LABEL, output=Path(folder) / "model", options={"logger": "none"}).load()
        for _ in range(NUM_TIMED):
            for name, options in TIMED.items():
                query = cells.copy()
                start = time.process_time()
                annotate(query, model, options=as_options(options))
                seconds[name].append(time.process_time() - start)
    least = {name: min(each) for name, each in seconds.items()}
    print(f"{machine()}\n\n| with | CPU time (s) | added (s) |\n|---|---|---|")
    for name, each in least.items():
        print(f"| {name} | {each:.1f} | {each - least['none of them']:+.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    for name, run, tasks, seeds in (("grid", grid, TASKS, 3), ("trust", trust, KNOWN + NOVEL, 5)):
        step = steps.add_parser(name)
        step.set_defaults(run=run)
        step.add_argument("data", type=Path, help="folder with the h5ad files")
        step.add_argument(
            "jsonl", type=Path, help="a line per finished result; created or continued"
        )
        step.add_argument("--seeds", type=int, nargs="+", default=list(range(seeds)))
        step.add_argument("--tasks", nargs="+", choices=[task.name for task in tasks])
        if run is grid:
            step.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
        else:
            step.add_argument(
                "--others", metavar="PYTHON", help="the Python of an environment with CellTypist"
            )
    step = steps.add_parser("times")
    step.set_defaults(run=times)
    step.add_argument("data", type=Path, help="folder with pbmc3k.h5ad")
    arguments = parser.parse_args()
    be_quiet()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
