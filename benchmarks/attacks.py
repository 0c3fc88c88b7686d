"""Queries that are no samples of their reference: what an option of `predict` changes there.

    python benchmarks/attacks.py FOLDER runs.jsonl --against shift=genes
    python benchmarks/attacks.py FOLDER runs.jsonl --against relabel=false --references pbmc3k --seeds 0 1

Each pair is a reference and a query of another study (`studies.py`). An attack is a part of the query: one type alone,
two types, 95 cells of a type to 5 of another, 20 to 100 cells, all types but one; or the query of a reference without
a type. Each is annotated by default, and with the options of `--against` by a model with those of `--against-train`.
A default is accepted if it loses more than .02 of accuracy in at most 5 % of the attacks, and more than .1 in none.

Finished lines of the JSON file are not repeated. The results are printed as Markdown tables.
"""

import argparse
import tempfile
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
from machine import machine
from panel import LABEL, Lines, as_options, be_quiet
from studies import Task, kind_of, measure, read_study, tasks_of

import scperformer as scp

REFERENCES = ("pbmc3k", "zheng_sorted", "kang_ctrl", "symphony_3v2")
MAX_CELLS = 1000  # of a query, drawn by the seed
MIN_OF_TYPE = 20  # cells of a type that is alone
NUM_FEW = (20, 50, 100)
RARE = 0.05  # share of the second type of 95/5
MISSING = ("B", "NK")  # types that a reference lacks
KEYS = ["reference", "query", "attack", "seed"]
SCORES = ("accuracy", "ece", "known_flagged")
LOSS, LARGE_LOSS, MAX_SHARE = 0.02, 0.1, 0.05


def attacks_of(
    kinds: np.ndarray, known: Container[str], seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield attacks on a query with cells of these kinds, and the rows of each; `known` are in the reference."""
    rng = np.random.default_rng(seed)
    rows = {kind: rng.permutation(np.flatnonzero(kinds == kind)) for kind in np.unique(kinds)}
    large = [
        kind
        for kind in sorted(rows, key=lambda kind: -len(rows[kind]))
        if len(rows[kind]) >= MIN_OF_TYPE
    ]
    large = [kind for kind in large if kind in known]
    yield "whole", np.arange(len(kinds))
    for kind in large:
        yield f"{kind} alone", rows[kind]
        if len(rows) > 1:
            yield f"no {kind}", np.flatnonzero(kinds != kind)
    for one, other in [large[:2], [large[0], large[-1]]] if len(large) > 1 else []:
        yield f"{one} and {other}", np.concatenate([rows[one], rows[other]])
        for many, few in ((one, other), (other, one)):
            num_few = max(1, round(RARE / (1 - RARE) * len(rows[many])))
            yield f"95/5 {many} and {few}", np.concatenate([rows[many], rows[few][:num_few]])
    for num in NUM_FEW:
        yield f"{num} cells", rng.permutation(len(kinds))[:num]


def group_of(attack: str) -> str:
    """The kind of an attack."""
    if attack == "whole":
        return attack
    if attack.startswith("95/5"):
        return "95/5"
    if attack.startswith("reference"):
        return "a type is missing"
    if attack.startswith("no "):
        return "all types but one"
    if attack.endswith(" alone"):
        return "one type alone"
    return "20 to 100 cells" if attack.endswith(" cells") else "two types"


def parts_of(
    task: Task, data: Path, known: Container[str], seed: int
) -> Iterator[tuple[str, ad.AnnData]]:
    """Yield the attacks of a pair, and the cells of each: counts and labels."""
    query = read_study(task.query, data)
    query = query[np.sort(np.random.default_rng(seed).permutation(query.n_obs)[:MAX_CELLS])].copy()
    kinds = np.array([kind_of(label) for label in query.obs[LABEL]])
    if not task.without:
        for attack, rows in attacks_of(kinds, known, seed):
            yield attack, query[rows].copy()
    elif task.without in kinds:
        yield f"reference without {task.without}", query


def run_reference(reference: str, without: str, seed: int, run: argparse.Namespace) -> None:
    """Append the lines of all queries of a reference, or of one without a type, that are not yet in the file."""
    cells = read_study(reference, run.data)
    cells = cells[[kind_of(label) != without for label in cells.obs[LABEL]]].copy()
    tasks = [task for task in tasks_of([reference], run.use) if task.kind == "another study"]
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for name, options in {"": {}, "_against": run.against_train}.items():
            if name and not options:
                models[name] = models[""]  # with all that it has been refitted to
                continue
            options = {"logger": "none"} | options
            made = scp.train(
                cells, LABEL, output=Path(folder) / f"model{name}", seed=seed, options=options
            )
            models[name] = made.load()
        for task in [replace(task, without=without) for task in tasks]:
            known = {kind_of(label) for label in models[""].saved.labels}
            for attack, part in parts_of(task, run.data, known, seed):
                key = (reference, task.query, attack, seed)
                if key in run.done.found:
                    continue
                truth = part.obs.pop(LABEL).to_numpy(str)
                numbers: dict[str, float] = {"num_cells": part.n_obs}
                for name, options in {"": {}, "_against": run.against}.items():
                    called = scp.annotate(
                        part.copy(), models[name], options={"min_overlap": 0} | options
                    )
                    of_part = measure(called, truth, task, models[name].saved.labels)
                    numbers |= {f"{score}{name}": of_part[score] for score in SCORES}
                run.done.add(key, numbers)


def tables(lines: pd.DataFrame) -> str:
    """Markdown tables: the means and the losses of each kind of attack, and each loss above LOSS."""
    lines = lines.assign(
        kind=lines["attack"].map(group_of), gain=lines["accuracy"] - lines["accuracy_against"]
    )
    text = [
        "| Attack | queries | accuracy | without | ECE | without | lose > .02 | lose > .1 | gain > .02 |"
    ]
    text.append("|---" * 9 + "|")
    for name, part in [*lines.groupby("kind"), ("**all**", lines)]:
        means = (
            part[column].mean() for column in ("accuracy", "accuracy_against", "ece", "ece_against")
        )
        numbers = " | ".join(f"{mean:.3f}" for mean in means)
        counts = [part["gain"] < -LOSS, part["gain"] < -LARGE_LOSS, part["gain"] > LOSS]
        text.append(
            f"| {name} | {len(part)} | {numbers} | {' | '.join(str(each.sum()) for each in counts)} |"
        )
    text += ["", "| Loses more than .02 | cells | accuracy | without |", "|---" * 4 + "|"]
    for line in lines[lines["gain"] < -LOSS].sort_values("gain").itertuples():
        name = f"{line.reference} → {line.query}, {line.attack}"
        text.append(
            f"| {name} | {line.num_cells} | {line.accuracy:.3f} | {line.accuracy_against:.3f} |"
        )
    share, num_large = (lines["gain"] < -LOSS).mean(), (lines["gain"] < -LARGE_LOSS).sum()
    verdict = "accepted" if share <= MAX_SHARE and num_large == 0 else "not accepted"
    return "\n".join(
        [
            *text,
            "",
            f"{share:.1%} lose more than {LOSS}, {num_large} more than {LARGE_LOSS}: {verdict}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder with the h5ad files")
    parser.add_argument("jsonl", type=Path, help="a line per finished attack; created or continued")
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="OPTION=VALUE",
        help="options of predict, without",
    )
    parser.add_argument(
        "--against-train", nargs="+", default=[], metavar="OPTION=VALUE", help="options of train"
    )
    parser.add_argument("--references", nargs="+", choices=REFERENCES, default=list(REFERENCES))
    parser.add_argument("--use", choices=["development", "test"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    arguments.against = as_options(arguments.against)
    arguments.against_train = as_options(arguments.against_train)
    arguments.done = Lines(arguments.jsonl, KEYS)
    be_quiet()
    for seed in arguments.seeds:
        for reference in arguments.references:
            for without in ("", *MISSING):
                run_reference(reference, without, seed, arguments)
    print(f"\n{machine()}\n\n{tables(arguments.done.table())}")


if __name__ == "__main__":
    main()
