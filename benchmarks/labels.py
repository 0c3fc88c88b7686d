"""Labels of clusters, back-off in the label tree and label shares by EM: gains and losses.

    python benchmarks/labels.py FOLDER                          # seeds 0 to 2
    python benchmarks/labels.py FOLDER --seeds 3 4 --out labels.csv

Within a data set, a fifth of the cells is predicted by a model trained on the others. Between data sets, all sorted
cells are predicted by models trained on nine tenths of PBMC 3k. For other label shares, a tenth of the predicted cells
of the two most frequent labels is kept. A label is rare if it has less than 3 % of the predicted cells. A call of a
higher level of the tree is correct if the true label is below it. The result is printed as Markdown tables.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy
from panel import LABEL, Pair, Task, pairs, read_tasks
from sklearn.metrics import f1_score
from words import as_options

from scperformer import annotate, load_model, train
from scperformer.network import Model

RARE = 0.03
ASKED = (0.8, 0.9, 0.95)  # min_confidence
SHIFT = next(task for task in read_tasks(Path(__file__).with_name("panel.yaml")) if task.name.endswith("zheng_sorted"))
TASKS = [
    Task(name="pbmc3k", reference="pbmc3k.h5ad", label_key="cell_type", holdout=0.2),
    Task(name="zheng_sorted", reference="zheng_sorted_pbmc.h5ad", label_key="cell_type", holdout=0.2),
    SHIFT,
]
WAYS = ("each cell", "clusters=auto", "clusters=leiden", "prior=em")
OTHER_SHARES = "other shares, "
KEPT = 0.1


def with_leiden(cells: ad.AnnData) -> ad.AnnData:
    """The cells with clusters as a user would compute them: scanpy's tutorial, resolution 1."""
    logged = scanpy.pp.log1p(scanpy.pp.normalize_total(cells, target_sum=1e4, copy=True), copy=True)
    scanpy.pp.highly_variable_genes(logged, n_top_genes=2000)
    scanpy.pp.pca(logged, mask_var="highly_variable", random_state=0)
    scanpy.pp.neighbors(logged, random_state=0)
    scanpy.tl.leiden(logged, 1.0, flavor="igraph", n_iterations=2, directed=False, random_state=0)
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
    rng = np.random.default_rng(pair.seed)
    frequent = pd.Series(truth).value_counts().index[:2]
    kept = ~np.isin(truth, frequent) | (rng.random(len(truth)) < KEPT)
    for way in (WAYS[0], WAYS[3]):
        options = [] if way == "each cell" else [way]
        obs = annotate(cells[kept].copy(), model, options=as_options(options)).obs
        yield {"way": f"{OTHER_SHARES}{way}", **scores(truth[kept], merged(obs["scperformer_label"]))}
    tree = model.saved.tree
    assert tree is not None, "the labels of these data are in the table of cell types"
    below = {
        node: {merge.get(label, label) for label in tree.labels if node in tree.path(label)} for node in tree.nodes
    }
    for asked in ASKED:
        obs = annotate(cells.copy(), model, options={"min_confidence": asked}).obs
        called = obs["scperformer_call"].astype(str).to_numpy()
        right = np.array([label in below.get(call, ()) for label, call in zip(truth, called, strict=True)])
        known = called != "unknown"
        backed_off = called != obs["scperformer_label"].astype(str).to_numpy()
        levels = obs[[f"scperformer_level{i + 1}" for i in range(tree.num_levels)]].astype(str).to_numpy()
        nested = [all(node in tree.path(levels[i, -1]) for node in levels[i]) for i in np.flatnonzero(known)]
        leaf = known & ~backed_off
        yield {
            "way": f"min_confidence={asked:g}",
            "labels kept": float(leaf.mean()),
            "accuracy of these": float(right[leaf].mean()),
            "backed off": float((backed_off & known).mean()),
            "accuracy of these calls": float(right[backed_off & known].mean())
            if (backed_off & known).any()
            else np.nan,
            "mean confidence of these calls": float(obs["scperformer_call_confidence"][backed_off & known].mean()),
            "unknown": float((~known).mean()),
            "nested": float(np.mean(nested)),
        }


def tables(results: pd.DataFrame) -> str:
    """Means and standard deviations over the seeds: a Markdown table for each kind of row."""
    text = ""
    for is_back_off, rows in results.groupby(results["way"].str.startswith("min_confidence")):
        columns = [name for name in rows if name not in ("task", "seed", "way") and rows[name].notna().any()]
        text += f"\n| task | {'asked' if is_back_off else 'label'} | {' | '.join(columns)} |\n"
        text += f"|{'---|' * (len(columns) + 2)}\n"
        for (task, way), some in rows.groupby(["task", "way"], sort=False):
            shown = (f"{some[name].mean():.3f} ± {some[name].std():.3f}" for name in columns)
            text += f"| {task} | `{way}` | {' | '.join(shown)} |\n"
    return text.replace("nan ± nan", "–")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the files of the tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="a CSV file with the row of each seed")
    arguments = parser.parse_args()
    found = []
    for task in TASKS:
        for seed in arguments.seeds:
            task.split_seeds = [seed]
            for pair in pairs(task, arguments.data, 1):
                with tempfile.TemporaryDirectory() as folder:
                    options = [f"seed={seed}", "logger=none"]
                    path = train(pair.reference, LABEL, output=Path(folder) / "model", options=as_options(options)).path
                    rows = rows_of(pair, load_model(path), task.merge)
                    found += [{"task": task.name, "seed": seed, **row} for row in rows]
            print(pd.DataFrame(found).tail(len(WAYS) + 2 + len(ASKED)).to_string(), flush=True)
    results = pd.DataFrame(found)
    if arguments.out is not None:
        results.to_csv(arguments.out, index=False)
    print(tables(results))


if __name__ == "__main__":
    main()
