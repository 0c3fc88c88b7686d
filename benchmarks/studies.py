"""Cells of another study than the reference: accuracy, unknown cells, expected accuracy.

    python benchmarks/studies.py FOLDER runs.jsonl                         # every pair, row and column, seed 0
    python benchmarks/studies.py FOLDER runs.jsonl --use choose            # the pairs by which options are chosen
    python benchmarks/studies.py FOLDER runs.jsonl --references pbmc3k --columns lr default

A pair is a reference and a query of another study, another chemistry, another condition or another species. The labels
of both are merged, after the prediction, to what both mean: to naive and memory CD4 T cells, or CD14 and CD16
monocytes, if both studies tell them apart. Labels of no type of blood, such as activated T cells, are left out of both.
Options are chosen by the pairs of CHOOSING; the others report. In the files of another tissue all cells are unknown.

Each finished pair, seed, row and column appends a line to the JSON file, and finished lines are not repeated. The
result is printed as Markdown tables.
"""

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from conditions import Methods, Row, rank_genes, reduce
from machine import machine
from panel import LABEL, Pair

from scperformer.base.metrics import score
from scperformer.trust import OTHER, calibration_error

COLUMNS = ["lr", "lr_refitted", "linear", "linear_adapted", "default"]
ROWS = [
    Row("whole", "whole"),
    Row("1,000 most variable genes", "cut", genes="variable", num_genes=1000),
    Row("a fifth of the counts", "cut", share=0.2),
]
KEYS = ["reference", "query", "without", "seed", "row", "column"]  # of a line

# label of a study -> the type, and its part if the study tells parts of the type apart
BLOOD = {
    "Naive CD4 T": ("CD4 T", "Naive CD4 T"),
    "CD4 Naive T": ("CD4 T", "Naive CD4 T"),
    "CD4+/CD45RA+/CD25- Naive T": ("CD4 T", "Naive CD4 T"),
    "Memory CD4 T": ("CD4 T", "Memory CD4 T"),
    "CD4 Memory T": ("CD4 T", "Memory CD4 T"),
    "CD4+/CD45RO+ Memory": ("CD4 T", "Memory CD4 T"),
    "CD4+ T Helper2": ("CD4 T", ""),
    "CD4+/CD25 T Reg": ("CD4 T", ""),
    "T_CD4": ("CD4 T", ""),
    "CD8 T": ("CD8 T", ""),
    "T_CD8": ("CD8 T", ""),
    "CD8+ Cytotoxic T": ("CD8 T", ""),
    "CD8+/CD45RA+ Naive Cytotoxic": ("CD8 T", ""),
    "CD14+ Mono": ("Monocyte", "CD14 Mono"),
    "CD14 Mono": ("Monocyte", "CD14 Mono"),
    "Mono_CD14": ("Monocyte", "CD14 Mono"),
    "CD14+ Monocyte": ("Monocyte", "CD14 Mono"),
    "FCGR3A+ Mono": ("Monocyte", "CD16 Mono"),
    "CD16 Mono": ("Monocyte", "CD16 Mono"),
    "Mono_CD16": ("Monocyte", "CD16 Mono"),
    "B": ("B", ""),
    "B Activated": ("B", ""),
    "CD19+ B": ("B", ""),
    "NK": ("NK", ""),
    "CD56+ NK": ("NK", ""),
    "DC": ("DC", ""),
    "Platelet": ("Platelet", ""),
    "Mk": ("Platelet", ""),
    "MK": ("Platelet", ""),
}


@dataclass(frozen=True)
class Study:
    """Cells of one file that belong together; `where` has a column of obs and its values."""

    file: str
    label_key: str = "cell_type"
    where: tuple[str, ...] = ()
    layer: str | None = None
    tissue: str = "blood"


CELSEQ = tuple(f"sc_celseq2{name}" for name in ("", "_5cl_p1", "_5cl_p2", "_5cl_p3"))
STUDIES = {
    "pbmc3k": Study("pbmc3k.h5ad"),
    "zheng_sorted": Study("zheng_sorted_pbmc.h5ad"),
    "zheng_scminer": Study("zheng_sorted_scminer_3500.h5ad", "label_full", ("in_zheng_sorted_pbmc", "False")),
    "kang_ctrl": Study("kang_ifnb_13999.h5ad", where=("condition", "CTRL")),
    "kang_stim": Study("kang_ifnb_13999.h5ad", where=("condition", "STIM")),
    "symphony_3v1": Study("symphony_pbmc_1200_1767genes.h5ad", where=("assay", "3pv1"), layer="counts"),
    "symphony_3v2": Study("symphony_pbmc_1200_1767genes.h5ad", where=("assay", "3pv2"), layer="counts"),
    "symphony_5": Study("symphony_pbmc_1200_1767genes.h5ad", where=("assay", "5p"), layer="counts"),
    "mixology_celseq": Study("mixology_lung_celllines.h5ad", where=("batch", *CELSEQ), tissue="lung cell lines"),
    "mixology_dropseq": Study("mixology_lung_celllines.h5ad", where=("batch", "sc_dropseq"), tissue="lung cell lines"),
    "baron_human": Study("baron_pancreas_mini.h5ad", where=("species", "human"), tissue="pancreas"),
    "baron_mouse": Study("baron_pancreas_mini.h5ad", where=("species", "mouse"), tissue="pancreas"),
}
ZHENG = ("zheng_sorted", "zheng_scminer")
CHOOSING = (*ZHENG, "symphony_3v1", "symphony_3v2", "mixology_dropseq", "baron_mouse")  # queries; the others report
REFERENCES = ("pbmc3k", "zheng_sorted", "kang_ctrl", "symphony_3v2", "mixology_celseq", "mixology_dropseq")
REFERENCES = (*REFERENCES, "baron_human", "baron_mouse")
LEFT_OUT = ("B", "NK", "Monocyte")  # types of which the reference has no cell, to see whether they are unknown


@dataclass(frozen=True)
class Task:
    """A query for a reference: of another study, of another tissue, or with a type that the reference lacks."""

    reference: str
    query: str
    without: str = ""

    @property
    def kind(self) -> str:
        """How the query differs from the reference."""
        if STUDIES[self.reference].tissue != STUDIES[self.query].tissue:
            return "another tissue"
        return "a type is missing" if self.without else "another study"

    @property
    def use(self) -> str:
        """What the task is for: to choose options, or to report."""
        return "choose" if self.query in CHOOSING else "report"


def tasks_of(references: Sequence[str], use: str | None) -> list[Task]:
    """The tasks of some references: all queries of other studies, two of other tissues, and the missing types."""
    found = []
    for reference in references:
        tissue = STUDIES[reference].tissue
        for query, study in STUDIES.items():
            same_cells = query == reference or {query, reference} == set(ZHENG)
            is_foreign = study.tissue != tissue
            if same_cells or (is_foreign and not (tissue == "blood" and query in ("mixology_celseq", "baron_human"))):
                continue
            found.append(Task(reference, query))
            if reference == "pbmc3k" and query in ("zheng_sorted", "kang_ctrl"):
                found += [Task(reference, query, name) for name in LEFT_OUT]
    return [task for task in found if use is None or task.use == use]


def read_study(name: str, data: Path) -> ad.AnnData:
    """The labelled cells of a study: counts; obs has only the labels."""
    study = STUDIES[name]
    cells = ad.read_h5ad(data / study.file)
    keep = cells.obs[study.label_key].astype(str).to_numpy() != ""
    if study.tissue == "blood":
        keep &= cells.obs[study.label_key].isin(BLOOD.keys()).to_numpy()
    if study.where:
        keep &= cells.obs[study.where[0]].astype(str).isin(study.where[1:]).to_numpy()
    counts = cells.X if study.layer is None else cells.layers[study.layer]
    labels = cells.obs.loc[keep, study.label_key].astype(str)
    found = ad.AnnData(counts[keep], obs=labels.to_frame(LABEL), var=cells.var[[]])
    found.var_names_make_unique()
    return found


def merged(own: Sequence[str], other: Sequence[str]) -> dict[str, str]:
    """What each label of both studies is merged to: parts of a type stay if both studies have two of them or more."""
    parts: list[dict[str, set[str]]] = [{}, {}]
    for labels, found in zip((own, other), parts, strict=True):
        for label in labels:
            kind, part = BLOOD.get(label, (label, ""))
            found.setdefault(kind, set()).add(part)
    fine = {kind for kind in parts[0] if all(len(found.get(kind, ())) > 1 and "" not in found[kind] for found in parts)}
    return {
        label: BLOOD[label][1] if label in BLOOD and BLOOD[label][0] in fine else BLOOD.get(label, (label, ""))[0]
        for label in {*own, *other}
    }


def measure(called: ad.AnnData, truth: np.ndarray, task: Task) -> dict[str, float]:
    """The scores of an annotated query, over the cells of types that the reference has."""
    obs = called.obs
    found: dict[str, float] = {}
    is_known = np.ones(len(truth), dtype=bool)
    if task.kind != "another tissue":
        own = [str(label) for label in called.uns["reference_labels"]]
        to = merged(own, np.unique(truth))
        true = np.array([to[label] for label in truth])
        is_known = np.isin(true, [to[label] for label in own])
        calls = np.array([to[label] for label in obs["scperformer_label"].astype(str)])
        scores = score(true[is_known], calls[is_known])
        found = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
    if "scperformer" not in called.uns:
        return found
    record = called.uns["scperformer"]
    unknown = obs["scperformer_unknown"].to_numpy()
    found["known_flagged"] = float(unknown[is_known].mean()) if is_known.any() else np.nan
    if task.without:
        found["missing_flagged"] = float(unknown[~is_known].mean())
    found |= {name: float(value) for name, value in record.get("shift", {}).items() if isinstance(value, float | int)}
    if "accuracy" in found:
        proba = called.obsm["scperformer_proba"].to_numpy()
        groups = np.array([to[label] for label in called.uns["scperformer"]["model"]["labels"]])
        summed = np.stack([proba[:, groups == group].sum(axis=1) for group in np.unique(groups)], axis=1)
        confidence = summed.max(axis=1)[is_known]  # of the merged labels
        right = np.unique(groups)[summed.argmax(axis=1)][is_known] == true[is_known]
        found["ece"] = calibration_error(confidence, right)
        expected = float(confidence.mean()) if record.get("shift", {}).get("kind") == OTHER else np.nan
        if np.isnan(expected):
            expected = float(record["condition"]["expected_accuracy"])
        found |= {"expected": expected, "expected_error": abs(expected - float(right.mean()))}
    return found


@dataclass
class Run:
    """What the command line asks for."""

    data: Path
    jsonl: Path
    columns: list[str]
    rows: list[Row]
    lines: list[dict[str, Any]] = field(default_factory=list)

    def has(self, key: tuple) -> bool:
        return any(tuple(line[name] for name in KEYS) == key for line in self.lines)

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with self.jsonl.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def run_reference(reference: str, without: str, tasks: list[Task], seed: int, run: Run) -> None:
    """Append the lines of the tasks of a reference that are not yet in the file."""
    cells = read_study(reference, run.data)
    kinds = np.array([BLOOD.get(label, (label, ""))[0] for label in cells.obs[LABEL]])
    cells = cells[kinds != without].copy()
    few = cells.obs[LABEL].value_counts()
    cells = cells[~cells.obs[LABEL].isin(few.index[few < 2])].copy()
    with tempfile.TemporaryDirectory() as folder:
        methods = Methods(cells, seed, Path(folder), None)
        for task in tasks:
            query = read_study(task.query, run.data)
            truth = query.obs[LABEL].to_numpy(str)
            query = ad.AnnData(query.X, var=query.var)
            ranked = rank_genes(Pair(seed, 0, cells, query, truth))
            rows = run.rows if task.kind == "another study" else ROWS[:1]
            for row in rows:
                if row.num_genes >= len(ranked):
                    continue
                (cut,) = reduce(query, row, ranked, seed)
                for column in run.columns if task.kind == "another study" else ["default"]:
                    key = (task.reference, task.query, task.without, seed, row.name, column)
                    if run.has(key):
                        continue
                    called = methods.call(column, cut)
                    called.uns["reference_labels"] = np.unique(cells.obs[LABEL].to_numpy(str))
                    line = dict(zip(KEYS, key, strict=True)) | {"kind": task.kind, "use": task.use, "rows": row.regime}
                    numbers = measure(called, truth, task)
                    run.add(line | {name: None if np.isnan(number) else number for name, number in numbers.items()})
                    print(*key, {name: round(number, 3) for name, number in numbers.items()}, flush=True)


def accuracies(lines: pd.DataFrame, score_name: str) -> str:
    """A Markdown table of a score for each task and row, with the means of each use."""
    lines = lines[lines["kind"] == "another study"]
    values = lines.pivot(
        index=["use", "rows", "reference", "query", "seed", "row"], columns="column", values=score_name
    )
    values = values[[column for column in COLUMNS if column in values]].dropna()
    text = [f"| {score_name} | {' | '.join(values.columns)} |", "|---" * (1 + len(values.columns)) + "|"]
    for (reference, query, row), part in values.groupby(["reference", "query", "row"], sort=False):
        text.append(f"| {reference} → {query}, {row} | {' | '.join(f'{mean:.3f}' for mean in part.mean())} |")
    for (use, rows), part in values.groupby(["use", "rows"]):
        text.append(f"| **{use}, {rows} ({len(part)})** | {' | '.join(f'{mean:.3f}' for mean in part.mean())} |")
    return "\n".join(text)


def trust(lines: pd.DataFrame) -> str:
    """A Markdown table of the default's flags and confidences."""
    lines = lines[lines["column"] == "default"]
    names = [
        "novelty_ratio",
        "gene_effects",
        "known_flagged",
        "missing_flagged",
        "accuracy",
        "expected",
        "expected_error",
    ]
    names = [name for name in [*names, "ece"] if name in lines]
    text = [f"| default | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]

    def cells_of(part: pd.DataFrame) -> str:
        return " | ".join("" if mean != mean else f"{mean:.3f}" for mean in part[names].astype(float).mean())

    for (reference, query, without, row), part in lines.groupby(["reference", "query", "without", "row"], sort=False):
        left_out = f" without {without}" if without else ""
        text.append(f"| {reference}{left_out} → {query}, {row} | {cells_of(part)} |")
    for (kind, use, rows), part in lines.groupby(["kind", "use", "rows"]):
        text.append(f"| **{kind}, {use}, {rows} ({len(part)})** | {cells_of(part)} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the h5ad files")
    parser.add_argument("jsonl", type=Path, help="a line per finished pair, seed, row and column; created or continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--references", nargs="+", choices=REFERENCES, default=list(REFERENCES))
    parser.add_argument("--use", choices=["choose", "report"])
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    rows = [row for row in ROWS if row.name in arguments.rows]
    columns = [column for column in COLUMNS if column in arguments.columns]
    run = Run(arguments.data, arguments.jsonl, columns, rows)
    if arguments.jsonl.exists():
        run.lines = [json.loads(line) for line in arguments.jsonl.read_text(encoding="utf-8").splitlines()]
    tasks = tasks_of(arguments.references, arguments.use)
    for seed in arguments.seeds:
        for reference, without in dict.fromkeys((task.reference, task.without) for task in tasks):
            own = [task for task in tasks if (task.reference, task.without) == (reference, without)]
            run_reference(reference, without, own, seed, run)
    lines = pd.DataFrame(run.lines)
    print(f"\n{machine()}\n")
    print("\n\n".join([accuracies(lines, "accuracy"), accuracies(lines, "macro_f1"), trust(lines)]))


if __name__ == "__main__":
    main()
