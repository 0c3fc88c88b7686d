"""References of one, two and three studies of blood: how well each calls a study that it does not have.

    python benchmarks/several_studies.py FOLDER runs.jsonl                         # every query, seed 0
    python benchmarks/several_studies.py FOLDER runs.jsonl --queries pbmc3k --seeds 0 1

Each query is called by models of the studies of other laboratories: by each alone, by pairs and by three joined, as
`train` does with several files, and by one model of the cells of all three over the genes that these share. Labels are
merged to what all studies mean. Queries of Zheng and 10x 3' choose options, the others report. Each finished query and
seed appends lines to the JSON file, and finished ones are not repeated. The result is printed as a Markdown table.
"""

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from machine import machine
from panel import LABEL
from studies import BLOOD, CHOOSING, read_study

import scperformer as scp
from scperformer.base.metrics import score
from scperformer.labels import StudyLabels, join_labels
from scperformer.model import SavedModel, Study
from scperformer.network import JoinedModel, Model, load_model

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
    cells = ad.concat({name: read_study(name, data) for name in IN_REFERENCE[laboratory]}, index_unique="-")
    counts = cells.obs[LABEL].value_counts()
    return cells[cells.obs[LABEL].isin(counts.index[counts > 1])].copy()


def pooled(sources: dict[str, ad.AnnData]) -> ad.AnnData:
    """The cells of several studies with the genes that all of them have, and types as labels."""
    shared = sorted(set.intersection(*(set(cells.var_names) for cells in sources.values())))
    cells = ad.concat({name: source[:, shared] for name, source in sources.items()}, index_unique="-")
    cells.obs[LABEL] = [BLOOD[label][0] for label in cells.obs[LABEL]]
    return cells


def joined(models: dict[str, Model]) -> Model:
    """The models of several studies as one, without its evidence."""
    labels = [StudyLabels(name, model.saved.labels, model.saved.ontology_term_ids) for name, model in models.items()]
    joint = join_labels(labels, "packaged")
    parts = [
        Study(name, model.saved, meaning) for (name, model), meaning in zip(models.items(), joint.meanings, strict=True)
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
    return JoinedModel(whole, first.path, list(models.values()))


def calls_of(model: Model, query: ad.AnnData) -> np.ndarray:
    """The type of each cell by a model, adapted to the query."""
    labels = scp.annotate(query.copy(), model).obs["scperformer_label"].astype(str)
    return np.array([BLOOD.get(label, (label, ""))[0] for label in labels])


def lines_of(
    query_name: str, laboratory: str, models: dict[str, Model], seed: int, data: Path
) -> Iterator[dict[str, Any]]:
    """Yield the scores of each reference on a query."""
    query = read_study(query_name, data)
    rows = np.sort(np.random.default_rng(seed).permutation(query.n_obs)[:NUM_CELLS])
    query = query[rows].copy()
    truth = np.array([BLOOD[label][0] for label in query.obs[LABEL]])
    del query.obs[LABEL]
    others = {name: model for name, model in models.items() if name != laboratory and not name.startswith("without")}
    for size in range(1, len(others) + 1):
        for names in combinations(others, size):
            chosen = {name: others[name] for name in names}
            model = next(iter(chosen.values())) if size == 1 else joined(chosen)
            called = calls_of(model, query)
            scores = score(truth, called)
            yield {"reference": " + ".join(names), "num_studies": size} | vars(scores)
    scores = score(truth, calls_of(models[f"without {laboratory}"], query))
    yield {"reference": POOLED, "num_studies": 3} | vars(scores)


def table(lines: pd.DataFrame) -> str:
    """A Markdown table of accuracy and macro-F1 for each query, with means over the queries that choose and report."""
    lines = lines.copy()
    single = lines[lines["num_studies"] == 1]
    best = single.sort_values("accuracy", kind="stable").groupby(["query", "seed"]).last()
    columns = {
        "one study, mean": single.groupby(["query", "seed"])[["accuracy", "macro_f1"]].mean(),
        "one study, best": best[["accuracy", "macro_f1"]],
        "two studies, mean": lines[lines["num_studies"] == 2]
        .groupby(["query", "seed"])[["accuracy", "macro_f1"]]
        .mean(),
    }
    three = lines[lines["num_studies"] == 3]
    columns["three studies"] = three[three["reference"] != POOLED].set_index(["query", "seed"])[
        ["accuracy", "macro_f1"]
    ]
    columns[POOLED] = three[three["reference"] == POOLED].set_index(["query", "seed"])[["accuracy", "macro_f1"]]
    text = [f"| accuracy / macro-F1 | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]

    def cells_of(queries: Sequence[str]) -> str:
        means = (column.loc[column.index.get_level_values("query").isin(queries)].mean() for column in columns.values())
        return " | ".join(f"{mean['accuracy']:.3f} / {mean['macro_f1']:.3f}" for mean in means)

    queries = list(dict.fromkeys(lines["query"]))
    text += [f"| {query} | {cells_of([query])} |" for query in queries]
    for use, chosen in (
        ("choose", [query for query in queries if query in CHOOSING]),
        ("report", [query for query in queries if query not in CHOOSING]),
    ):
        if chosen:
            text.append(f"| **{use} ({len(chosen)})** | {cells_of(chosen)} |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the h5ad files")
    parser.add_argument("jsonl", type=Path, help="lines per finished query and seed; created or continued")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--queries", nargs="+", choices=QUERIES, default=QUERIES)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("scperformer").setLevel(logging.ERROR)
    lines: list[dict[str, Any]] = []
    if arguments.jsonl.exists():
        lines = [json.loads(line) for line in arguments.jsonl.read_text(encoding="utf-8").splitlines()]
    for seed in arguments.seeds:
        done = {line["query"] for line in lines if line["seed"] == seed}
        wanted = {
            query: laboratory
            for laboratory, names in SOURCES.items()
            for query in names
            if query in arguments.queries and query not in done
        }
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
                made = scp.train(cells, LABEL, output=Path(folder) / str(number), seed=seed, options={"logger": "none"})
                models[name] = load_model(made)
            for query, laboratory in wanted.items():
                for line in lines_of(query, laboratory, models, seed, arguments.data):
                    lines.append({"query": query, "seed": seed} | line)
                    print(query, line["reference"], round(line["accuracy"], 3), round(line["macro_f1"], 3), flush=True)
                with arguments.jsonl.open("a", encoding="utf-8") as file:
                    file.writelines(
                        json.dumps(line) + "\n" for line in lines if (line["query"], line["seed"]) == (query, seed)
                    )
    print(f"\n{machine()}\n\n{table(pd.DataFrame(lines))}")


if __name__ == "__main__":
    main()
