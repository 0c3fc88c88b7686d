"""Calibration of the confidence, coverage of label sets, and detection of novel cells.

    python benchmarks/trust.py FOLDER runs.jsonl                    # every task and five seeds
    python benchmarks/trust.py FOLDER runs.jsonl --tasks pbmc3k mixology --seeds 0
    python benchmarks/trust.py FOLDER runs.jsonl --times            # only the CPU seconds of each part of predict

For each seed a model is trained and annotates held-out cells: with all genes and counts, with a quarter of the counts,
and with the 300 most variable genes. In novelty tasks some of these cells have types that are not in the reference:
each type of PBMC 3k in turn is left out, or two of five cell lines, or a blood model annotates pancreas cells. The
novelty score is compared with the largest probability and the entropy of the label probabilities of scperformer, of
logistic regression, and of CellTypist if `--celltypist PYTHON` names the Python of an environment that has it. Each
finished task, seed and row appends a line to the JSON file, and finished lines are not repeated. The result is printed
as Markdown tables.
"""

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from conditions import BETWEEN, WITHIN, Row, fit_logistic, log_normalised, rank_genes, read_pair, reduce
from machine import machine
from panel import LABEL, Pair, Task, missing_files, read_cells
from rivals import celltypist
from scipy.stats import entropy
from words import as_options

from scperformer import annotate, load_model, train
from scperformer.network import Model
from scperformer.trust import NUM_BINS, area_under_curve, calibration_error

ALPHAS = (0.05, 0.1, 0.2)
ROWS = [
    Row("everything", "full"),
    Row("a quarter of the counts", "depth", share=0.25),
    Row("300 most variable genes", "panels", genes="variable", num_genes=300),
]
EMBEDDED = replace(WITHIN, name="embedded", reference="embedded", label_key="bulk_labels")  # without counts
MIXOLOGY = replace(WITHIN, name="mixology", reference="mixology_lung_celllines.h5ad")
PANCREAS = replace(WITHIN, name="pancreas", query="baron_pancreas_mini.h5ad", holdout=None)
LEFT_OUT = replace(WITHIN, name="left_out")
KNOWN = [WITHIN, EMBEDDED, replace(WITHIN, name="zheng_sorted", reference="zheng_sorted_pbmc.h5ad"), BETWEEN]
NOVEL = [LEFT_OUT, MIXOLOGY, PANCREAS]
QUICK = ["experiment=linear"]  # for models without one of the nine types
NUM_LINES = 3  # of the five cell lines, those in the reference
NUM_DRAWS = 200  # draws of correct calls, for the calibration error of a perfect confidence
TIMED_CELLS = 20_000  # drawn from PBMC 3k with replacement
NUM_TIMED = 3  # runs, of which the fastest is reported
LONG = 30.0  # seconds after which a single run is enough
OFF = "ontology=none"  # without the label tree of the model
TIMED: dict[str, tuple[bool, list[str]]] = {  # whether the model has held-out calls, and the options of predict
    "none of them": (False, [OFF]),
    "novelty": (True, [OFF]),
    "novelty, and sets of labels (`alpha=0.1`)": (True, [OFF, "alpha=0.1"]),
    "label tree (`min_confidence=0.9`)": (False, ["min_confidence=0.9"]),
    "constraints (`deny_labels=[Platelet]`)": (False, [OFF, "deny_labels=[Platelet]"]),
    "estimated shares (`prior=em`)": (False, [OFF, "prior=em"]),
    "novelty, sets and label tree": (True, ["alpha=0.1", "min_confidence=0.9"]),
    "`quality=true`": (False, [OFF, "quality=true"]),
    "`clusters=auto`": (False, [OFF, "clusters=auto"]),
    "novelty, sets, label tree, quality and clusters": (
        True,
        ["alpha=0.1", "min_confidence=0.9", "quality=true", "clusters=auto"],
    ),
}
KEYS = ["task", "seed", "row"]  # of a line of the JSON file


def novel_pairs(task: Task, data: Path, seed: int) -> Iterator[tuple[str, Pair]]:
    """Pairs whose queries have known and novel cells, and their names; the true label of novel cells is empty."""
    pair = read_pair(replace(task, query=None, holdout=0.2), data, seed)
    labels = np.unique(pair.reference.obs[LABEL].to_numpy(str))
    if task is PANCREAS:
        novel = read_cells(str(task.query), task.label_key, {}, data)
        query = ad.concat([pair.query, novel], join="inner", index_unique="-")
        yield task.name, replace(pair, query=query, truth=np.append(pair.truth, np.full(novel.n_obs, "")))
        return
    lines = np.random.default_rng(seed).permutation(labels)[NUM_LINES:].tolist()
    parts = {task.name: lines} if task is MIXOLOGY else {f"without {label}": [label] for label in labels}
    for name, out in parts.items():
        is_out = pair.reference.obs[LABEL].isin(out).to_numpy()
        query = ad.concat([pair.query, pair.reference[is_out]], index_unique="-")
        truth = np.append(np.where(np.isin(pair.truth, out), "", pair.truth), np.full(is_out.sum(), ""))
        yield name, replace(pair, reference=pair.reference[~is_out].copy(), query=query, truth=truth)


def unscaled(model: Model, power: float) -> None:
    """Divide the logits of a model and its adapted models by their scales (power -1), or multiply (power 1)."""
    for each in (model, *model.adapted.values()):
        scales = {name: scale**power if scale else 1.0 for name, scale in each.saved.scales.items()}
        each.network.scale_branches(scales.get("linear", 1.0), scales.get("encoder", 1.0))


def error_by_chance(confidence: np.ndarray) -> float:
    """The mean calibration error of calls that are correct with exactly these probabilities; larger for few cells."""
    rng = np.random.default_rng(0)
    return float(
        np.mean([calibration_error(confidence, rng.random(len(confidence)) < confidence) for _ in range(NUM_DRAWS)])
    )


def scores_of_probabilities(proba: np.ndarray, whose: str) -> dict[str, np.ndarray]:
    """The uncertainty of the probabilities of N cells; the entropy is that of the normalised probabilities."""
    return {f"1 - confidence{whose}": 1 - proba.max(axis=1), f"entropy{whose}": entropy(proba, axis=1)}


def rival_scores(reference: ad.AnnData, query: ad.AnnData, python: str | None, folder: Path) -> dict[str, np.ndarray]:
    """The scores of logistic regression and CellTypist on a query; CellTypist's model is kept in `folder`."""
    logistic = fit_logistic(reference)
    proba = logistic.predict_proba(log_normalised(query, reference.var_names))
    scores = scores_of_probabilities(proba, ", logistic regression")
    if python is not None:
        celltypist(python, folder)(reference, query)
        proba = pd.read_csv(folder / "probabilities.csv", index_col=0).to_numpy()
        scores |= scores_of_probabilities(proba, ", CellTypist")
    return scores


def measure_known(model: Model, query: ad.AnnData, truth: np.ndarray) -> dict[str, Any]:
    """Calibration and label sets of cells of known types. `surplus`: confidence minus accuracy, by bin."""
    found: dict[str, Any] = {}
    for alpha in ALPHAS:
        called = annotate(query.copy(), model, options={"alpha": alpha, "min_overlap": 0})
        sets = called.obs["scperformer_set"].astype(str)
        inside = [label in text.split("|") for label, text in zip(truth, sets, strict=True)]
        sizes = called.obs["scperformer_set_size"]
        found |= {f"coverage {alpha}": float(np.mean(inside)), f"size {alpha}": float(sizes.mean())}
    confidence = called.obs["scperformer_confidence"].to_numpy()
    right = called.obs["scperformer_label"] == truth
    found |= {"accuracy": float(right.mean()), "ece": calibration_error(confidence, right.to_numpy())}
    found["ece by chance"] = error_by_chance(confidence)
    found["expected_ece"] = float(called.uns["scperformer"]["calibration"]["error"])
    unscaled(model, -1)
    before = annotate(query.copy(), model, options={"min_overlap": 0}).obs
    unscaled(model, 1)
    right_before = (before["scperformer_label"] == truth).to_numpy()
    found["ece before"] = calibration_error(before["scperformer_confidence"].to_numpy(), right_before)
    found["false alarms"] = float(called.obs["scperformer_unknown"].mean())
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    surplus = np.bincount(bins, confidence - right.to_numpy(), NUM_BINS)
    return found | {"surplus": surplus.tolist(), "known": len(truth)}


def measure_novel(model: Model, query: ad.AnnData, truth: np.ndarray, rivals: dict[str, np.ndarray]) -> dict[str, Any]:
    """How well the flag and each score separate novel cells, which have no true label, from the others."""
    known = truth != ""
    called = annotate(query.copy(), model, options={"min_overlap": 0})
    unknown = called.obs["scperformer_unknown"].to_numpy()
    found = {"false alarms": unknown[known].mean(), "novel cells found": unknown[~known].mean()}
    scores = {"novelty": called.obs["scperformer_novelty"].to_numpy()}
    scores |= scores_of_probabilities(called.obsm["scperformer_proba"].to_numpy(), "") | rivals
    found |= {f"area: {name}": area_under_curve(each[known], each[~known]) for name, each in scores.items()}
    return {name: float(value) for name, value in found.items()}


def read_lines(path: Path) -> dict[tuple, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {tuple(line[key] for key in KEYS): line for line in lines}


def run_task(task: Task, seed: int, arguments: argparse.Namespace) -> None:
    """Append the lines of a task and seed that are not yet in the file."""
    is_novel = task in NOVEL
    pairs = (
        novel_pairs(task, arguments.data, seed) if is_novel else [(task.name, read_pair(task, arguments.data, seed))]
    )
    for name, pair in pairs:
        rows = ROWS[:1] if task in (EMBEDDED, LEFT_OUT) else ROWS
        missing = [row for row in rows if (name, seed, row.name) not in read_lines(arguments.jsonl)]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            overrides = [f"seed={seed}", "logger=none", *(QUICK if task is LEFT_OUT else [])]
            model = load_model(
                train(pair.reference, LABEL, output=Path(folder) / "model", options=as_options(overrides)).path
            )
            ranked = rank_genes(pair) if len(rows) > 1 else np.arange(0)
            for row in missing:
                query = reduce(pair.query, row, ranked, seed)[0]
                line = dict(zip(KEYS, (name, seed, row.name), strict=True))
                if is_novel:
                    rivals = rival_scores(pair.reference, query, arguments.celltypist, Path(folder))
                    line |= measure_novel(model, query, pair.truth, rivals)
                else:
                    line |= measure_known(model, query, pair.truth)
                with arguments.jsonl.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(*(f"{value:.3f}" if isinstance(value, float) else value for value in line.values()), flush=True)


def pooled_error(lines: pd.DataFrame) -> float:
    """The calibration error of the calls of all seeds together; that of one seed with few cells is mostly chance."""
    return float(np.abs(np.sum(lines["surplus"].tolist(), axis=0)).sum() / lines["known"].sum())


def mean_and_spread(values: pd.Series) -> str:
    """The mean over seeds and, with more than one seed, the standard deviation."""
    if len(values) < 2:
        return f"{values.iloc[0]:.3f}" if len(values) else "–"
    return f"{values.mean():.3f} ± {values.std(ddof=0):.3f}"


def table(lines: pd.DataFrame, columns: dict[str, str], pooled: bool = False) -> str:
    """A Markdown table with the mean and the standard deviation over seeds of each task and row."""
    names = [*columns, *(["ECE of all seeds together"] if pooled else [])]
    text = [f"| task | condition | seeds | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for (task, row), part in lines.groupby(["task", "row"], sort=False):
        values = (part[name] for name in columns.values())
        cells = " | ".join(mean_and_spread(each.dropna()) for each in values)
        cells += f" | {pooled_error(part):.3f} |" if pooled else " |"
        text.append(f"| {task} | {row} | {len(part)} | {cells}")
    return "\n".join(text)


def tables(lines: pd.DataFrame) -> str:
    """All tables: calibration and label sets of known cells, and detection of novel cells."""
    known = lines[lines["task"].isin([task.name for task in KNOWN])]
    found = []
    if len(known):
        columns = {"accuracy": "accuracy", "ECE, scales off": "ece before", "ECE": "ece"}
        columns |= {"ECE of a perfect confidence": "ece by chance", "ECE stated": "expected_ece"}
        found.append(table(known, columns | {"known cells flagged": "false alarms"}, pooled=True))
        sets = {f"{what}, alpha={alpha}": f"{what} {alpha}" for alpha in ALPHAS for what in ("coverage", "size")}
        found.append(table(known, sets))
    novel = lines[~lines.index.isin(known.index)]
    if len(novel):
        left_out = novel["task"].str.startswith("without ")
        means = novel[left_out].groupby("seed", as_index=False).mean(numeric_only=True)
        means = means.assign(task="mean of the types left out", row="everything")
        novel = pd.concat([novel, means] if len(means) else [novel])
        found.append(table(novel, {"novel cells flagged": "novel cells found", "known cells flagged": "false alarms"}))
        areas = [name for name in novel if name.startswith("area: ")]
        found.append(table(novel, {name.removeprefix("area: "): name for name in areas}))
    return "\n\n".join(found)


def times(data: Path) -> str:
    """A Markdown table: the CPU time of `annotate` for 20,000 cells with no part, each part, and all parts."""
    pbmc = read_cells("pbmc3k.h5ad", "cell_type", {}, data)
    chosen = np.random.default_rng(0).integers(pbmc.n_obs, size=TIMED_CELLS)
    cells = ad.AnnData(pbmc.X[chosen], obs=pd.DataFrame(index=[f"cell{i}" for i in range(TIMED_CELLS)]), var=pbmc.var)
    seconds: dict[str, list[float]] = {name: [] for name in TIMED}
    with tempfile.TemporaryDirectory() as folder:
        model = load_model(train(pbmc, LABEL, output=Path(folder) / "model", options={"logger": "none"}).path)
        held_out = model.saved.held_out
        for _ in range(NUM_TIMED):
            for name, (has_held_out, options) in TIMED.items():
                if sum(seconds[name]) < LONG:
                    model.saved.held_out = held_out if has_held_out else None
                    query = cells.copy()
                    start = time.process_time()
                    annotate(query, model, options=as_options(options))
                    seconds[name].append(time.process_time() - start)
    least = {name: min(each) for name, each in seconds.items()}
    without = least["none of them"]
    rows = [f"| {name} | {each:.1f} | {each - without:+.1f} |" for name, each in least.items()]
    return "\n".join(["| with | CPU time (s) | added (s) |", "|---|---|---|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the h5ad files")
    parser.add_argument("jsonl", type=Path, help="a line per finished task, seed and row; created or continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in KNOWN + NOVEL])
    parser.add_argument("--celltypist", metavar="PYTHON", help="the Python of an environment with CellTypist")
    parser.add_argument("--times", action="store_true", help="measure times only")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    if arguments.times:
        print(f"{machine()}\n\n{times(arguments.data)}")
        return
    for seed in arguments.seeds:
        for task in [task for task in KNOWN + NOVEL if arguments.tasks is None or task.name in arguments.tasks]:
            if missing := missing_files(task, arguments.data):
                print(f"left out: {task.name} (missing: {', '.join(missing)})")
                continue
            run_task(task, seed, arguments)
    if found := list(read_lines(arguments.jsonl).values()):
        print(f"\n{machine()}\n\n{tables(pd.DataFrame(found))}")


if __name__ == "__main__":
    main()
