"""Queries of another study than the reference: accuracy, unknown cells, expected accuracy; and several studies.

    python benchmarks/studies.py pairs FOLDER runs.jsonl                   # every pair, row and column, seed 0
    python benchmarks/studies.py pairs FOLDER runs.jsonl --use development     # the pairs by which options are chosen
    python benchmarks/studies.py several FOLDER runs.jsonl --queries pbmc3k
    python benchmarks/studies.py doublets FOLDER runs.jsonl

`pairs`: a reference and a query of another study, chemistry, condition or species. The labels of both are merged,
after the prediction, to what both mean: to naive and memory CD4 T cells, or CD14 and CD16 monocytes, if both studies
tell them apart. Labels of no type of blood, such as activated T cells, are left out. Options are chosen by the pairs
of DEVELOPMENT; the others are test pairs. In the files of another tissue all cells are unknown.

`several`: each query is annotated by models of the studies of other laboratories: by each alone, by pairs and by three
joined, as `train` does with several files, and by one model of the cells of all three over the genes that these share.

`doublets`: up to 2,000 cells of each blood query and 8 % sums of two of them with different types; the share of these
that is found, and of the single cells that is marked, by scperformer and by Scrublet.

Finished lines of the JSON file are not repeated. The results are printed as Markdown tables.
"""

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import anndata as ad
import methods as other
import numpy as np
import pandas as pd
import scanpy as sc
from conditions import Methods, Row, rank_genes, reduce
from machine import machine
from panel import LABEL, Lines, Pair, be_quiet
from scipy import sparse
from sklearn.metrics import accuracy_score, f1_score

import scperformer as scp
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.joint import JointModel
from scperformer.labels.joining import StudyLabels, join_labels
from scperformer.model.saved_model import SavedModel
from scperformer.model.saved_model import Study as PartOfModel
from scperformer.trust.confidence import calibration_error
from scperformer.trust.shift import HIGHER, LOWER, OTHER

COLUMNS = [
    "lr",
    "lr_refitted",
    "ranks",
    "ridge",
    *other.NAMES[1:],
    "linear",
    "linear_adapted",
    "default",
]
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
    "zheng_scminer": Study(
        "zheng_sorted_scminer_3500.h5ad", "label_full", ("in_zheng_sorted_pbmc", "False")
    ),
    "kang_ctrl": Study("kang_ifnb_13999.h5ad", where=("condition", "CTRL")),
    "kang_stim": Study("kang_ifnb_13999.h5ad", where=("condition", "STIM")),
    "symphony_3v1": Study(
        "symphony_pbmc_1200_1767genes.h5ad", where=("assay", "3pv1"), layer="counts"
    ),
    "symphony_3v2": Study(
        "symphony_pbmc_1200_1767genes.h5ad", where=("assay", "3pv2"), layer="counts"
    ),
    "symphony_5": Study("symphony_pbmc_1200_1767genes.h5ad", where=("assay", "5p"), layer="counts"),
    "mixology_celseq": Study(
        "mixology_lung_celllines.h5ad", where=("batch", *CELSEQ), tissue="lung cell lines"
    ),
    "mixology_dropseq": Study(
        "mixology_lung_celllines.h5ad", where=("batch", "sc_dropseq"), tissue="lung cell lines"
    ),
    "baron_human": Study("baron_pancreas_mini.h5ad", where=("species", "human"), tissue="pancreas"),
    "baron_mouse": Study("baron_pancreas_mini.h5ad", where=("species", "mouse"), tissue="pancreas"),
}
ZHENG = ("zheng_sorted", "zheng_scminer")
# queries; the others are test queries
DEVELOPMENT = (*ZHENG, "symphony_3v1", "symphony_3v2", "mixology_dropseq", "baron_mouse")
REFERENCES = (
    "pbmc3k",
    "zheng_sorted",
    "kang_ctrl",
    "symphony_3v2",
    "mixology_celseq",
    "mixology_dropseq",
)
REFERENCES = (*REFERENCES, "baron_human", "baron_mouse")
# types of which the reference has no cell, to see whether they are found
LEFT_OUT = ("B", "NK", "Monocyte", "DC", "CD8 T")
WITHOUT = ("pbmc3k", "kang_ctrl")  # references of which they are left out
MIN_MISSING = 8  # cells of a type in a query that can be found
NAMES = {  # what the profiles call a type that is left out
    "B": re.compile("B cell").search,
    "NK": re.compile("NK cell").search,
    "Monocyte": re.compile("monocyte").search,
    "DC": re.compile("DC|dendritic").search,
    "CD8 T": re.compile("CD8|MAIT").search,
}
PARTS = {"pDC": "DC"}  # labels that are left out with a type, and named as it is


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
        """Whether options may be chosen by the task (development) or not (test)."""
        return "development" if self.query in DEVELOPMENT else "test"


def tasks_of(references: Sequence[str], use: str | None) -> list[Task]:
    """The tasks of some references: all queries of other studies, two of other tissues, and the missing types."""
    found = []
    for reference in references:
        tissue = STUDIES[reference].tissue
        for query, study in STUDIES.items():
            same_cells = query == reference or {query, reference} == set(ZHENG)
            is_foreign = study.tissue != tissue
            if same_cells or (
                is_foreign
                and not (tissue == "blood" and query in ("mixology_celseq", "baron_human"))
            ):
                continue
            found.append(Task(reference, query))
            if reference in WITHOUT and not is_foreign:
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


def kind_of(label: str) -> str:
    """The type of a label."""
    return PARTS.get(label, BLOOD.get(label, (label, ""))[0])


def merged(own: Sequence[str], other: Sequence[str]) -> dict[str, str]:
    """What each label of both studies is merged to: parts of a type stay if both studies have two of them or more."""
    parts: list[dict[str, set[str]]] = [{}, {}]
    for labels, found in zip((own, other), parts, strict=True):
        for label in labels:
            kind, part = BLOOD.get(label, (label, ""))
            found.setdefault(kind, set()).add(part)
    fine = {
        kind
        for kind in parts[0]
        if all(len(found.get(kind, ())) > 1 and "" not in found[kind] for found in parts)
    }
    return {
        label: BLOOD[label][1]
        if label in BLOOD and BLOOD[label][0] in fine
        else BLOOD.get(label, (label, ""))[0]
        for label in {*own, *other}
    }


def scores_of(truth: np.ndarray, calls: np.ndarray) -> dict[str, float]:
    """Accuracy, and macro-F1 over the true labels."""
    f1 = f1_score(truth, calls, labels=np.unique(truth), average="macro")
    return {"accuracy": float(accuracy_score(truth, calls)), "macro_f1": float(f1)}


def measure(
    called: ad.AnnData, truth: np.ndarray, task: Task, own: Sequence[str]
) -> dict[str, float]:
    """The scores of an annotated query, over the cells of types that the reference has."""
    obs = called.obs
    found: dict[str, float] = {}
    is_known = np.ones(len(truth), dtype=bool)
    if task.kind != "another tissue":
        to = merged(own, np.unique(truth))
        true = np.array([to[label] for label in truth])
        is_known = np.isin(true, [to[label] for label in own])
        calls = np.array([to[label] for label in obs["scperformer_label"].astype(str)])
        found = scores_of(true[is_known], calls[is_known])
    if "scperformer" not in called.uns:
        return found
    record = called.uns["scperformer"]
    unknown = (obs["scperformer_call"] == "unknown").to_numpy()
    found["known_flagged"] = float(unknown[is_known].mean()) if is_known.any() else np.nan
    looks_like = record["check"].get("looks_like", ())
    found["num_listed"] = len(looks_like)
    found["num_exchanged"] = int(np.sum(record["check"].get("exchanged_cells", 0)))
    is_missing = np.array([kind_of(label) for label in truth]) == task.without
    if task.without and is_missing.sum() >= MIN_MISSING:
        found["missing_flagged"] = float(unknown[is_missing].mean())
        to_check = (
            obs.get("scperformer_looks_like", pd.Series("", index=obs.index)).astype(str).to_numpy()
        )
        listed = [name for name in looks_like if is_missing[to_check == name].mean() > 0.5]
        found |= {
            "missing_listed": float(bool(listed)),
            "missing_named": float(any(map(NAMES[task.without], listed))),
        }
    if task.kind != "another tissue":
        proba = called.obsm["scperformer_proba"].to_numpy()
        groups = np.array([to[label] for label in record["model"]["labels"]])
        summed = np.stack(
            [proba[:, groups == group].sum(axis=1) for group in np.unique(groups)], axis=1
        )
        confidence = summed.max(axis=1)[is_known]  # of the merged labels
        right = np.unique(groups)[summed.argmax(axis=1)][is_known] == true[is_known]
        found["ece"] = calibration_error(confidence, right)
        is_other = record.get("shift", {}).get("kind") == OTHER
        expected = float(confidence.mean() if is_other else record["coverage"]["expected_accuracy"])
        found |= {"expected": expected, "expected_error": abs(expected - float(right.mean()))}
        if is_other:
            found["inside"] = float(expected - LOWER <= right.mean() <= expected + HIGHER)
    return found


def run_reference(
    reference: str, without: str, tasks: list[Task], seed: int, run: argparse.Namespace
) -> None:
    """Append the lines of the tasks of a reference that are not yet in the file."""
    cells = read_study(reference, run.data)
    kinds = np.array([kind_of(label) for label in cells.obs[LABEL]])
    cells = cells[kinds != without].copy()
    few = cells.obs[LABEL].value_counts()
    cells = cells[~cells.obs[LABEL].isin(few.index[few < 2])].copy()
    own = np.unique(cells.obs[LABEL].to_numpy(str)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        methods = Methods(cells, seed, Path(folder), run.others)
        for task in tasks:
            query = read_study(task.query, run.data)
            truth = query.obs[LABEL].to_numpy(str)
            query = ad.AnnData(query.X, var=query.var)
            ranked = rank_genes(Pair(seed, 0, cells, query, truth))
            is_pair = task.kind == "another study"
            for row in [row for row in ROWS if row.name in run.rows] if is_pair else ROWS[:1]:
                if row.num_genes >= len(ranked):
                    continue
                (cut,) = reduce(query, row, ranked, seed)
                for column in [name for name in run.columns if is_pair or name == "default"]:
                    key = (task.reference, task.query, task.without, seed, row.name, column)
                    if key not in run.done.found:
                        numbers = measure(methods.call(column, cut), truth, task, own)
                        run.done.add(
                            key, {"kind": task.kind, "use": task.use, "rows": row.regime} | numbers
                        )


def accuracies(lines: pd.DataFrame, score_name: str) -> str:
    """A Markdown table of a score for each task and row, with the means of each use."""
    lines = lines[lines["kind"] == "another study"]
    values = lines.pivot(
        index=["use", "rows", "reference", "query", "seed", "row"],
        columns="column",
        values=score_name,
    )
    values = values[[column for column in COLUMNS if column in values]].dropna()
    text = [
        f"| {score_name} | {' | '.join(values.columns)} |",
        "|---" * (1 + len(values.columns)) + "|",
    ]
    for (reference, query, row), part in values.groupby(["reference", "query", "row"], sort=False):
        text.append(
            f"| {reference} → {query}, {row} | {' | '.join(f'{mean:.3f}' for mean in part.mean())} |"
        )
    for (use, rows), part in values.groupby(["use", "rows"]):
        text.append(
            f"| **{use}, {rows} ({len(part)})** | {' | '.join(f'{mean:.3f}' for mean in part.mean())} |"
        )
    return "\n".join(text)


def columns_table(lines: pd.DataFrame) -> str:
    """A Markdown table of the mean scores of each column, and of the default on the same pairs.

    "First" counts the rows in which no other column has a higher accuracy.
    """
    keys = ["reference", "query", "seed", "row"]
    lines = lines[lines["kind"] == "another study"].set_index(keys)
    text = [
        "| column | rows | number | accuracy | macro-F1 | default there | default higher | first |",
        "|---" * 8 + "|",
    ]
    for (use, rows), part in lines.groupby(["use", "rows"]):
        best = part["accuracy"].groupby(level=keys).max()
        default = part[part["column"] == "default"]
        for column in [column for column in COLUMNS if column in set(part["column"])]:
            own = part[part["column"] == column]
            same = default[default.index.isin(own.index)]
            is_higher = same["accuracy"] > own["accuracy"].reindex(same.index)
            numbers = (own["accuracy"], own["macro_f1"], same["accuracy"])
            means = " | ".join("" if not len(each) else f"{each.mean():.3f}" for each in numbers)
            first = (own["accuracy"] >= best.reindex(own.index)).sum()
            text.append(
                f"| {column} | {use}, {rows} | {len(own)} | {means} | {is_higher.sum()} | {first} |"
            )
    return "\n".join(text)


def trust(lines: pd.DataFrame) -> str:
    """A Markdown table of the default's flags and confidences."""
    lines = lines[lines["column"] == "default"]
    names = [
        "known_flagged",
        "missing_flagged",
        "num_listed",
        "missing_listed",
        "missing_named",
        "accuracy",
        "expected",
        "expected_error",
        "inside",
        "ece",
    ]
    names = [name for name in names if name in lines]
    text = [f"| default | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]

    def cells_of(part: pd.DataFrame) -> str:
        return " | ".join(
            "" if mean != mean else f"{mean:.3f}" for mean in part[names].astype(float).mean()
        )

    for (reference, query, without, row), part in lines.groupby(
        ["reference", "query", "without", "row"], sort=False
    ):
        left_out = f" without {without}" if without else ""
        text.append(f"| {reference}{left_out} → {query}, {row} | {cells_of(part)} |")
    for (kind, use, rows), part in lines.groupby(["kind", "use", "rows"]):
        text.append(f"| **{kind}, {use}, {rows} ({len(part)})** | {cells_of(part)} |")
    return "\n".join(text)


def pairs(arguments: argparse.Namespace) -> None:
    arguments.done = Lines(arguments.jsonl, KEYS)
    arguments.columns = other.available(arguments.columns, arguments.others)
    tasks = tasks_of(arguments.references, arguments.use)
    for seed in arguments.seeds:
        for reference, without in dict.fromkeys((task.reference, task.without) for task in tasks):
            own = [task for task in tasks if (task.reference, task.without) == (reference, without)]
            run_reference(reference, without, own, seed, arguments)
    lines = arguments.done.table()
    print(f"\n{machine()}\n")
    tables = [
        accuracies(lines, "accuracy"),
        accuracies(lines, "macro_f1"),
        columns_table(lines),
        trust(lines),
    ]
    print("\n\n".join(tables))


SOURCES = {  # studies of a reference, by their laboratory
    "PBMC 3k": ("pbmc3k",),
    "Zheng": ("zheng_sorted", "zheng_scminer"),
    "Kang": ("kang_ctrl", "kang_stim"),
    "symphony": ("symphony_3v1", "symphony_3v2", "symphony_5"),
}
QUERIES = [name for names in SOURCES.values() for name in names]
IN_REFERENCE = {"PBMC 3k": ("pbmc3k",), "Zheng": ("zheng_sorted",), "Kang": ("kang_ctrl",)}
IN_REFERENCE["symphony"] = SOURCES["symphony"]
NUM_CELLS = 1000  # of a query, a random sample
POOLED = "cells of three studies in one fit"


def read_source(laboratory: str, data: Path) -> ad.AnnData:
    """The cells of a laboratory that are a reference; labels of a single cell are left out."""
    cells = ad.concat(
        {name: read_study(name, data) for name in IN_REFERENCE[laboratory]}, index_unique="-"
    )
    counts = cells.obs[LABEL].value_counts()
    return cells[cells.obs[LABEL].isin(counts.index[counts > 1])].copy()


def pooled(sources: dict[str, ad.AnnData]) -> ad.AnnData:
    """The cells of several studies with the genes that all of them have, and types as labels."""
    shared = sorted(set.intersection(*(set(cells.var_names) for cells in sources.values())))
    cells = ad.concat(
        {name: source[:, shared] for name, source in sources.items()}, index_unique="-"
    )
    cells.obs[LABEL] = [BLOOD[label][0] for label in cells.obs[LABEL]]
    return cells


def joined(models: dict[str, Model]) -> Model:
    """The models of several studies as one, without its evidence."""
    labels = [
        StudyLabels(name, model.saved.labels, model.saved.ontology_term_ids)
        for name, model in models.items()
    ]
    joint = join_labels(labels, "packaged")
    parts = [
        PartOfModel(name, model.saved, meaning)
        for (name, model), meaning in zip(models.items(), joint.meanings, strict=True)
    ]
    first = next(iter(models.values()))
    genes = dict.fromkeys(gene for model in models.values() for gene in model.saved.genes)
    whole: SavedModel = replace(
        first.saved,
        genes=list(genes),
        gene_means=np.zeros(len(genes), dtype=np.float32),
        labels=joint.labels,
        ontology_term_ids=joint.terms,
        tree=joint.tree,
        metrics={"scales": {}},
        weights={},
        reference_cells=None,
        has_reference_cells=False,
        held_out=None,
        studies=parts,
    )
    return JointModel(whole, first.path, members=list(models.values()))


def calls_of(model: Model, query: ad.AnnData) -> np.ndarray:
    """The type of each cell by a model, adapted to the query."""
    labels = scp.annotate(query.copy(), model).obs["scperformer_label"].astype(str)
    return np.array([BLOOD.get(label, (label, ""))[0] for label in labels])


def several_scores(
    query_name: str, laboratory: str, models: dict[str, Model], seed: int, data: Path
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each reference and its scores on a query."""
    query = read_study(query_name, data)
    rows = np.sort(np.random.default_rng(seed).permutation(query.n_obs)[:NUM_CELLS])
    query = query[rows].copy()
    truth = np.array([BLOOD[label][0] for label in query.obs[LABEL]])
    del query.obs[LABEL]
    others = {
        name: model
        for name, model in models.items()
        if name != laboratory and not name.startswith("without")
    }
    for size in range(1, len(others) + 1):
        for names in combinations(others, size):
            model = (
                others[names[0]] if size == 1 else joined({name: others[name] for name in names})
            )
            yield (
                " + ".join(names),
                {"num_studies": size} | scores_of(truth, calls_of(model, query)),
            )
    yield (
        POOLED,
        {"num_studies": 3} | scores_of(truth, calls_of(models[f"without {laboratory}"], query)),
    )


def joined_table(lines: pd.DataFrame) -> str:
    """A Markdown table of accuracy and macro-F1 for each query, with means over development and test queries."""
    scores = ["accuracy", "macro_f1"]
    is_pooled = lines["reference"] == POOLED
    single, pair, three = (
        lines[~is_pooled & (lines["num_studies"] == number)] for number in (1, 2, 3)
    )
    best = (
        single.sort_values("accuracy", kind="stable")
        .groupby(["query", "seed"], as_index=False)
        .last()
    )
    columns = {"one study, mean": single, "one study, best": best, "two studies, mean": pair}
    columns |= {"three studies": three, POOLED: lines[is_pooled]}
    text = [f"| accuracy / macro-F1 | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    queries = {query: [query] for query in dict.fromkeys(lines["query"])}
    development = [query for query in queries if query in DEVELOPMENT]
    uses = {
        "development": development,
        "test": [query for query in queries if query not in DEVELOPMENT],
    }
    rows = queries | {f"**{use} ({len(names)})**": names for use, names in uses.items() if names}
    for name, chosen in rows.items():
        means = (
            part[part["query"].isin(chosen)].groupby("query")[scores].mean().mean()
            for part in columns.values()
        )
        text.append(
            f"| {name} | {' | '.join(f'{mean.accuracy:.3f} / {mean.macro_f1:.3f}' for mean in means)} |"
        )
    return "\n".join(text)


def several(arguments: argparse.Namespace) -> None:
    done = Lines(arguments.jsonl, ["query", "seed", "reference"])
    for seed in arguments.seeds:
        finished = {query for query, *rest in done.found if rest == [seed, POOLED]}
        wanted = {
            query: name
            for name, queries in SOURCES.items()
            for query in queries
            if query in arguments.queries
        }
        wanted = {query: name for query, name in wanted.items() if query not in finished}
        if not wanted:
            continue
        sources = {name: read_source(name, arguments.data) for name in SOURCES}
        references = dict(sources)
        for laboratory in dict.fromkeys(wanted.values()):
            rest = {name: cells for name, cells in sources.items() if name != laboratory}
            references[f"without {laboratory}"] = pooled(rest)
        with tempfile.TemporaryDirectory() as folder:
            models = {}
            for number, (name, cells) in enumerate(references.items()):
                made = scp.train(
                    cells,
                    LABEL,
                    output=Path(folder) / str(number),
                    seed=seed,
                    options={"logger": "none"},
                )
                models[name] = made.load()
            for query, laboratory in wanted.items():
                for reference, numbers in several_scores(
                    query, laboratory, models, seed, arguments.data
                ):
                    done.add((query, seed, reference), numbers)
    print(f"\n{machine()}\n\n{joined_table(done.table())}")


NUM_SINGLE = 2000  # cells of a query with simulated doublets
DOUBLETS = 0.08  # share of these that are added


def with_doublets(cells: ad.AnnData, seed: int) -> tuple[ad.AnnData, np.ndarray]:
    """Some cells of a study and sums of two of them with different types; and which are sums."""
    rng = np.random.default_rng(seed)
    cells = cells[np.sort(rng.permutation(cells.n_obs)[:NUM_SINGLE])]
    kinds = np.array([kind_of(label) for label in cells.obs[LABEL]])
    pairs = rng.integers(0, len(kinds), (10 * len(kinds), 2))
    pairs = pairs[kinds[pairs[:, 0]] != kinds[pairs[:, 1]]][: int(DOUBLETS * len(kinds))]
    counts = sparse.csr_matrix(cells.X, dtype=np.float32)
    made = ad.AnnData(
        sparse.vstack([counts, counts[pairs[:, 0]] + counts[pairs[:, 1]]], "csr"), var=cells.var[[]]
    )
    return made, np.arange(made.n_obs) >= cells.n_obs


def doublets(arguments: argparse.Namespace) -> None:
    done = Lines(arguments.jsonl, ["reference", "query", "seed"])
    tasks = [
        task
        for task in tasks_of(("pbmc3k", "kang_ctrl", "zheng_sorted"), None)
        if task.kind == "another study"
    ]
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            for name in dict.fromkeys(task.reference for task in tasks):
                methods = Methods(read_study(name, arguments.data), seed, Path(folder) / name)
                for task in [task for task in tasks if task.reference == name]:
                    if (name, task.query, seed) in done.found:
                        continue
                    cells, is_sum = with_doublets(read_study(task.query, arguments.data), seed)
                    obs = methods.call("linear_adapted", cells).obs
                    marks = obs["scperformer_doublet"].to_numpy()
                    numbers = {
                        "found": float(marks[is_sum].mean()),
                        "false": float(marks[~is_sum].mean()),
                    }
                    # its own needs scikit-image
                    sc.pp.scrublet(cells, threshold=1.0, random_state=seed, verbose=False)
                    for method, scores in (
                        ("scperformer", obs["scperformer_doublet_score"]),
                        ("scrublet", cells.obs["doublet_score"]),
                    ):
                        limit = scores[~is_sum].quantile(0.95)
                        numbers[f"{method} at .05 false"] = float((scores[is_sum] > limit).mean())
                    done.add((name, task.query, seed), {"use": task.use} | numbers)
    lines = done.table().set_index(["reference", "query", "seed"])
    print(
        f"\n{machine()}\n\n{lines.round(3).to_string()}\n\n{lines.groupby('use').mean().round(3).to_string()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    runs = {
        pairs: "one study annotates another",
        several: "one, two and three studies as reference",
    }
    for run, what in (runs | {doublets: "simulated doublets of two types"}).items():
        step = steps.add_parser(run.__name__, help=what)
        step.set_defaults(run=run)
        step.add_argument("data", type=Path, help="folder with the h5ad files")
        step.add_argument(
            "jsonl", type=Path, help="a line per finished result; created or continued"
        )
        step.add_argument("--seeds", type=int, nargs="+", default=[0])
        if run is pairs:
            step.add_argument(
                "--references", nargs="+", choices=REFERENCES, default=list(REFERENCES)
            )
            step.add_argument("--use", choices=["development", "test"])
            step.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
            step.add_argument(
                "--others",
                metavar="PYTHON",
                help="the Python of an environment with the other methods",
            )
            names = [row.name for row in ROWS]
            step.add_argument("--rows", nargs="+", choices=names, default=names)
        elif run is several:
            step.add_argument("--queries", nargs="+", choices=QUERIES, default=QUERIES)
    arguments = parser.parse_args()
    be_quiet()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
