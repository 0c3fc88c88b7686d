"""Accuracy of scperformer, logistic regression, linear SVM, nearest neighbours and CellTypist on a panel of tasks.

    python benchmarks/accuracy.py runs.csv --data FOLDER                      # every task of panel.yaml
    python benchmarks/accuracy.py runs.csv --data FOLDER --tasks mine.yaml    # your own reference/query pairs
    python benchmarks/accuracy.py runs.csv --data FOLDER --only embedded --methods LR,ours trainer.max_epochs=10

$SCPERFORMER_BENCHMARK_DATA can also name the folder with the data; tasks without their files are listed and skipped.
CellTypist runs if `--celltypist PYTHON` names the Python of an environment that has it. Each run appends a row to the
CSV, and runs in the CSV are not repeated, so an interrupted benchmark can continue. Trailing words are options of
`scperformer train` and appear as a separate method. The result is printed as Markdown tables: mean ± standard
deviation over seeds and folds.
"""

import argparse
import logging
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import rivals
from machine import machine
from panel import Pair, Task, missing_files, pairs, read_tasks
from sklearn.metrics import f1_score

KEYS = ["task", "method", "seed", "fold"]
METHODS = {"LR": rivals.best_logistic, "SVM": rivals.linear_svm, "kNN": rivals.neighbours}


def scored(task: Task, pair: Pair, calls: np.ndarray) -> dict[str, float]:
    """Accuracy and macro-F1 after merging labels; macro-F1 over the true labels, and also over all predicted labels."""
    truth, called = (np.array([task.merge.get(str(v), str(v)) for v in part]) for part in (pair.truth, calls))
    return {
        "accuracy": float((truth == called).mean()),
        "macro_f1": float(f1_score(truth, called, labels=np.unique(truth), average="macro")),
        "macro_f1_called": float(f1_score(truth, called, average="macro")),
    }


def call(method: str, pair: Pair, arguments: argparse.Namespace) -> np.ndarray:
    if method.startswith("ours"):
        return rivals.scperformer(arguments.overrides)(pair.reference, pair.query, pair.seed)
    function = rivals.celltypist(arguments.celltypist) if method == "CellTypist" else METHODS[method]
    return function(pair.reference, pair.query)


def run_task(task: Task, methods: list[str], arguments: argparse.Namespace, path: Path) -> None:
    """Run the methods on a task, except for runs that are already in the CSV."""
    for pair in pairs(task, arguments.data, arguments.seeds):
        for method in methods:
            key = [task.name, method, str(pair.seed), str(pair.fold)]
            if path.exists() and key in pd.read_csv(path)[KEYS].astype(str).to_numpy().tolist():
                continue
            start = time.perf_counter()
            calls = call(method, pair, arguments)
            seconds = time.perf_counter() - start
            row = dict(zip(KEYS, key, strict=True)) | scored(task, pair, calls) | {"seconds": seconds}
            pd.DataFrame([row]).to_csv(path, mode="a", header=not path.exists(), index=False)
            print(" ".join(key), f"{row['accuracy']:.3f} {row['macro_f1']:.3f} ({seconds:.0f} s)", flush=True)


def table(rows: pd.DataFrame, tasks: list[Task], score: str) -> str:
    """A Markdown table: a row per task, a column per method; the last row is the mean over the tasks.

    If a method has fewer runs of a task than another method, their number is shown.
    """
    methods = list(dict.fromkeys(rows["method"]))
    lines = [f"| {score} | {' | '.join(methods)} |", "|---" * (1 + len(methods)) + "|"]
    means: dict[str, list[float]] = {method: [] for method in methods}
    for task in tasks:
        runs = {method: rows[(rows["task"] == task.name) & (rows["method"] == method)][score] for method in methods}
        most = max(len(scores) for scores in runs.values())
        if most == 0:
            continue
        cells = []
        for method, scores in runs.items():
            means[method].append(scores.mean())
            share = "" if len(scores) == most else f" ({len(scores)} of {most})"
            cells.append(f"{scores.mean():.3f} ± {scores.std(ddof=0):.3f}{share}" if len(scores) else "not run")
        lines.append(f"| {task.name} | {' | '.join(cells)} |")
        for name, numbers in task.published.items():
            found = f"{numbers[score]:.3f}" if score in numbers else ""
            lines.append(f"| {task.name}, published: {name} | {found}{' |' * len(methods)}")
    found = [f"**{np.mean(scores):.3f}**" if np.isfinite(scores).all() else "" for scores in means.values()]
    return "\n".join([*lines, f"| **mean** | {' | '.join(found)} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="table of the runs; created or continued")
    folder = os.environ.get("SCPERFORMER_BENCHMARK_DATA")
    parser.add_argument("--data", type=Path, default=Path(folder) if folder else None)
    parser.add_argument("--tasks", type=Path, default=Path(__file__).with_name("panel.yaml"))
    parser.add_argument("--only", action="append", help="name of a task; can be repeated")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="LR,SVM,kNN,CellTypist,ours")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--celltypist", help="Python of an environment with CellTypist")
    parser.add_argument("overrides", nargs="*", help="options of 'scperformer train'")
    arguments = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    tasks = [task for task in read_tasks(arguments.tasks) if arguments.only is None or task.name in arguments.only]
    methods = arguments.methods or [*METHODS, *(["CellTypist"] if arguments.celltypist else []), "ours"]
    if arguments.overrides:
        methods = [f"ours {' '.join(arguments.overrides)}" if m == "ours" else m for m in methods]
    for task in tasks:
        if missing := missing_files(task, arguments.data):
            print(f"left out: {task.name} (missing: {', '.join(missing)}; --data names their folder)")
        else:
            run_task(task, methods, arguments, arguments.csv)
    if arguments.csv.exists():
        rows = pd.read_csv(arguments.csv)
        print(f"\n{machine()}\n")
        print("\n\n".join(table(rows, tasks, score) for score in ("accuracy", "macro_f1", "macro_f1_called")))


if __name__ == "__main__":
    main()
