"""Accuracy of scperformer and other methods on a panel of tasks.

    python benchmarks/accuracy.py methods FOLDER runs.jsonl                     # every task of panel.yaml
    python benchmarks/accuracy.py methods FOLDER runs.jsonl --tasks mine.yaml   # your own reference/query pairs
    python benchmarks/accuracy.py methods FOLDER runs.jsonl --methods svm ours --train experiment=linear
    python benchmarks/accuracy.py labels FOLDER
    python benchmarks/accuracy.py imported

`methods` compares scperformer with the methods of methods.py. Tasks without their files are left out. Finished runs
are not repeated. The result is mean ± standard deviation over seeds and folds.

`labels` measures labels of clusters, parent labels of low-confidence cells, and label shares by EM. Within a data
set, a fifth of the cells is predicted by a model trained on the others; between data sets, all sorted cells by models
trained on nine tenths of PBMC 3k. For other label shares, a tenth of the two most frequent labels is kept. A label is
rare if it has less than 3 % of the predicted cells.

`imported` fits a model of 3,000 genes, as CellTypist writes it, to 800 cells of PBMC 3k, imports it with 700 others as
labelled cells, and annotates 1,138 more: as it is, refitted, and with the accuracy that `predict` expects.
"""

import argparse
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from machine import machine
from methods import NAMES, are_counts, available
from methods import call as call_other
from panel import LABEL, Lines, Pair, Task, as_options, be_quiet, missing_files, pairs, read_tasks
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import StandardScaler

import scperformer as scp
from scperformer import annotate, train
from scperformer.adaptation.fitted import Model

PANEL = Path(__file__).with_name("panel.yaml")
DATA = Path(__file__).parents[1] / "data" / "pbmc3k.h5ad"
METHODS = [*NAMES, "ours"]
KEYS = ["task", "method", "seed", "fold"]
RARE = 0.03
ASKED = (0.8, 0.9, 0.95)  # min_confidence
SHIFT = next(task for task in read_tasks(PANEL) if task.name.endswith("zheng_sorted"))
LABEL_TASKS = [
    Task(name="pbmc3k", reference="pbmc3k.h5ad", label_key="cell_type", holdout=0.2),
    Task(
        name="zheng_sorted", reference="zheng_sorted_pbmc.h5ad", label_key="cell_type", holdout=0.2
    ),
    SHIFT,
]
WAYS = ("each cell", "clusters=auto", "clusters=leiden")
NUM_TRAINED = 800
NUM_GENES = 3_000
PANELS = (1_000, 200, 50)
FIRST_TEST = 1_500


def call(method: str, pair: Pair, arguments: argparse.Namespace) -> np.ndarray:
    if method in NAMES:
        return call_other(method, pair.reference, pair.query, arguments.others)
    with tempfile.TemporaryDirectory() as name:
        options = as_options([f"seed={pair.seed}", "logger=none", *arguments.train])
        model = train(pair.reference, LABEL, output=Path(name) / "model", options=options).load()
        return annotate(pair.query.copy(), model).obs["scperformer_label"].to_numpy(str)


def scored(task: Task, pair: Pair, calls: np.ndarray) -> dict[str, float]:
    """Accuracy and macro-F1 after merging labels; macro-F1 is the mean over the true labels."""
    truth, called = (
        np.array([task.merge.get(str(v), str(v)) for v in part]) for part in (pair.truth, calls)
    )
    f1 = f1_score(truth, called, labels=np.unique(truth), average="macro")
    return {"accuracy": accuracy_score(truth, called), "macro_f1": float(f1)}


def table(rows: pd.DataFrame, tasks: list[Task], score: str) -> str:
    """A Markdown table: a row per task, a column per method; the last row is the mean over the tasks.

    If a method has fewer runs of a task than another method, their number is shown.
    """
    methods = list(dict.fromkeys(rows["method"]))
    lines = [f"| {score} | {' | '.join(methods)} |", "|---" * (1 + len(methods)) + "|"]
    means: dict[str, list[float]] = {method: [] for method in methods}
    for task in tasks:
        runs = {
            method: rows[(rows["task"] == task.name) & (rows["method"] == method)][score]
            for method in methods
        }
        most = max(len(scores) for scores in runs.values())
        if most == 0:
            continue
        cells = []
        for method, scores in runs.items():
            means[method].append(scores.mean())
            share = "" if len(scores) == most else f" ({len(scores)} of {most})"
            cells.append(
                f"{scores.mean():.3f} ± {scores.std(ddof=0):.3f}{share}"
                if len(scores)
                else "not run"
            )
        lines.append(f"| {task.name} | {' | '.join(cells)} |")
        for name, numbers in task.published.items():
            found = f"{numbers[score]:.3f}" if score in numbers else ""
            lines.append(f"| {task.name}, published: {name} | {found}{' |' * len(methods)}")
    found = [
        f"**{np.mean(scores):.3f}**" if np.isfinite(scores).all() else ""
        for scores in means.values()
    ]
    return "\n".join([*lines, f"| **mean** | {' | '.join(found)} |"])


def methods(arguments: argparse.Namespace) -> None:
    tasks = [
        task
        for task in read_tasks(arguments.tasks)
        if arguments.only is None or task.name in arguments.only
    ]
    names = available(arguments.methods, arguments.others)
    if arguments.train:
        names = [f"ours {' '.join(arguments.train)}" if name == "ours" else name for name in names]
    done = Lines(arguments.jsonl, KEYS)
    for task in tasks:
        if missing := missing_files(task, arguments.data):
            print(f"left out: {task.name} (missing: {', '.join(missing)})")
            continue
        for pair in pairs(task, arguments.data, arguments.seeds):
            for method in names:
                key = (task.name, method, pair.seed, pair.fold)
                if method == "scanvi" and not are_counts(pair.reference):
                    print(f"left out: scanvi, {task.name} (no counts)")
                elif key not in done.found:
                    done.add(key, scored(task, pair, call(method, pair, arguments)))
    if done.found:
        print(f"\n{machine()}\n")
        print("\n\n".join(table(done.table(), tasks, score) for score in ("accuracy", "macro_f1")))


def with_leiden(cells: ad.AnnData) -> ad.AnnData:
    """The cells with clusters as a user would compute them: scanpy's tutorial, resolution 1."""
    logged = sc.pp.log1p(sc.pp.normalize_total(cells, target_sum=1e4, copy=True), copy=True)
    sc.pp.highly_variable_genes(logged, n_top_genes=2000)
    sc.pp.pca(logged, mask_var="highly_variable", random_state=0)
    sc.pp.neighbors(logged, random_state=0)
    sc.tl.leiden(logged, 1.0, flavor="igraph", n_iterations=2, directed=False, random_state=0)
    cells.obs["leiden"] = logged.obs["leiden"]
    return cells


def scores(truth: np.ndarray, called: np.ndarray) -> dict[str, float]:
    """Accuracy, and the mean F1 over the true labels and over the rare true labels."""
    labels, counts = np.unique(truth, return_counts=True)
    f1 = f1_score(truth, called, labels=labels, average=None, zero_division=0)
    rare = counts < RARE * len(truth)
    return {
        "accuracy": float((truth == called).mean()),
        "macro-F1": float(f1.mean()),
        "F1 of rare labels": float(f1[rare].mean()) if rare.any() else np.nan,
    }


def rows_of(pair: Pair, model: Model, merge: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The scores of each way to call, for each value of min_confidence."""

    def merged(labels: Any) -> np.ndarray:
        return np.array([merge.get(label, label) for label in labels])

    truth = merged(pair.truth)
    cells = with_leiden(pair.query)
    for way in WAYS:
        options = [] if way == "each cell" else [way]
        obs = annotate(cells.copy(), model, options=as_options(options)).obs
        column = "scperformer_cluster_label" if way.startswith("clusters") else "scperformer_label"
        yield {"way": way, **scores(truth, merged(obs[column]))}
    tree = model.saved.tree
    assert tree is not None, "the labels of these data are in the table of cell types"
    below = {
        node: {merge.get(label, label) for label in tree.labels if node in tree.path(label)}
        for node in tree.nodes
    }
    for asked in ASKED:
        annotated = annotate(cells.copy(), model, options={"min_confidence": asked})
        obs = annotated.obs
        details = annotated.obsm["scperformer_details"]
        called = obs["scperformer_call"].astype(str).to_numpy()
        right = np.array(
            [label in below.get(call, ()) for label, call in zip(truth, called, strict=True)]
        )
        known = called != "unknown"
        backed_off = called != obs["scperformer_label"].astype(str).to_numpy()
        levels = details[[f"level{i + 1}" for i in range(tree.num_levels)]].astype(str).to_numpy()
        nested = [
            all(node in tree.path(levels[i, -1]) for node in levels[i])
            for i in np.flatnonzero(known)
        ]
        leaf = known & ~backed_off
        yield {
            "way": f"min_confidence={asked:g}",
            "labels kept": float(leaf.mean()),
            "accuracy of these": float(right[leaf].mean()),
            "backed off": float((backed_off & known).mean()),
            "accuracy of these calls": float(right[backed_off & known].mean())
            if (backed_off & known).any()
            else np.nan,
            "mean confidence of these calls": float(
                details["call_confidence"][backed_off & known].mean()
            ),
            "unknown": float((~known).mean()),
            "nested": float(np.mean(nested)),
        }


def label_tables(results: pd.DataFrame) -> str:
    """Means and standard deviations over the seeds: a Markdown table for each kind of row."""
    text = ""
    for is_back_off, rows in results.groupby(results["way"].str.startswith("min_confidence")):
        columns = [
            name
            for name in rows
            if name not in ("task", "seed", "way") and rows[name].notna().any()
        ]
        text += f"\n| task | {'asked' if is_back_off else 'label'} | {' | '.join(columns)} |\n"
        text += f"|{'---|' * (len(columns) + 2)}\n"
        for (task, way), some in rows.groupby(["task", "way"], sort=False):
            shown = (f"{some[name].mean():.3f} ± {some[name].std():.3f}" for name in columns)
            text += f"| {task} | `{way}` | {' | '.join(shown)} |\n"
    return text.replace("nan ± nan", "–")


def labels(arguments: argparse.Namespace) -> None:
    found = []
    for task in LABEL_TASKS:
        for seed in arguments.seeds:
            task.split_seeds = [seed]
            for pair in pairs(task, arguments.data, 1):
                with tempfile.TemporaryDirectory() as folder:
                    options = {"seed": seed, "logger": "none"}
                    model = train(
                        pair.reference, LABEL, output=Path(folder) / "model", options=options
                    ).load()
                    found += [
                        {"task": task.name, "seed": seed, **row}
                        for row in rows_of(pair, model, task.merge)
                    ]
            print(pd.DataFrame(found).tail(len(WAYS) + len(ASKED)).to_string(), flush=True)
    print(label_tables(pd.DataFrame(found)))


def write_model(cells: ad.AnnData, path: Path) -> np.ndarray:
    """Write a model as CellTypist does, and return its genes."""
    cells = cells.copy()
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    x = cells.X.toarray()
    genes = np.sort(np.argsort(-x.var(axis=0), kind="stable")[:NUM_GENES])
    scaler = StandardScaler().fit(x[:, genes])
    z = np.minimum(scaler.transform(x[:, genes]), 10)
    classifier = LogisticRegression(C=0.05, max_iter=50).fit(z, cells.obs["cell_type"].astype(str))
    classifier.features = cells.var_names[genes].to_numpy(object)
    path.write_bytes(pickle.dumps({"Model": classifier, "Scaler_": scaler, "description": {}}))
    return classifier.features


def imported_rows(
    cells: ad.AnnData, seed: int, num_kept: int, folder: Path
) -> dict[str, tuple[float, float, float]]:
    """Return the accuracy as it is, adapted, and expected, by the condition of the file."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(cells.n_obs)
    genes = write_model(cells[order[:NUM_TRAINED]], folder / "model.pkl")
    cells[order[NUM_TRAINED : NUM_TRAINED + num_kept]].copy().write_h5ad(folder / "kept.h5ad")
    test = cells[order[FIRST_TEST:]].copy()
    named = {"reference": folder / "kept.h5ad", "label_key": "cell_type", "overwrite": True}
    model = scp.import_model(folder / "model.pkl", **named).load()
    files = {"all genes": test}
    files |= {
        f"{num:,} genes": test[:, list(rng.choice(genes, num, replace=False))].copy()
        for num in PANELS
    }
    shallow = test.copy()
    sc.pp.downsample_counts(
        shallow, counts_per_cell=(np.asarray(test.X.sum(1)).ravel() / 4).astype(int)
    )
    shallow.X = shallow.X.astype(np.float32)
    files["a quarter of the counts"] = shallow
    truth = test.obs["cell_type"].astype(str).to_numpy()
    found = {}
    for name, file in files.items():
        scores = []
        for adapt in ("false", "auto"):
            made = scp.annotate(file.copy(), model, options={"adapt": adapt, "min_overlap": 0.0})
            scores.append(float((made.obs["scperformer_label"].astype(str) == truth).mean()))
        found[name] = (*scores, float(made.uns["scperformer"]["coverage"]["expected_accuracy"]))
    return found


def imported(arguments: argparse.Namespace) -> None:
    cells = ad.read_h5ad(arguments.source)
    cells.X = cells.X.astype(np.float32)
    found = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as name:
            os.environ["SCPERFORMER_MODELS"] = str(Path(name) / "models")
            found.append(imported_rows(cells, seed, arguments.kept, Path(name)))
    print("| file | as it is | refitted | expected |\n|---|---|---|---|")
    for name in found[0]:
        columns = (", ".join(f"{row[name][place]:.3f}" for row in found) for place in range(3))
        print(f"| {name} | {' | '.join(columns)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("methods", help="tasks of panel.yaml by several methods")
    step.set_defaults(run=methods)
    step.add_argument("data", type=Path, help="folder with the h5ad files")
    step.add_argument("jsonl", type=Path, help="a line per finished run; created or continued")
    step.add_argument("--tasks", type=Path, default=PANEL, help="a YAML file like panel.yaml")
    step.add_argument("--only", nargs="+", help="names of tasks")
    step.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    step.add_argument("--seeds", type=int, default=3)
    step.add_argument(
        "--others", metavar="PYTHON", help="the Python of an environment with the other methods"
    )
    step.add_argument("--train", nargs="+", default=[], help="options of 'scperformer train'")
    step = steps.add_parser(
        "labels", help="labels of clusters, parent labels and label shares by EM"
    )
    step.set_defaults(run=labels)
    step.add_argument("data", type=Path, help="folder with the h5ad files")
    step.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    step = steps.add_parser("imported", help="an imported model on panels and shallow queries")
    step.set_defaults(run=imported)
    step.add_argument("--kept", type=int, default=700, help="labelled cells")
    step.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    step.add_argument("--source", type=Path, default=DATA)
    arguments = parser.parse_args()
    be_quiet()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
