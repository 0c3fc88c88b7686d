"""Accuracy of every attention mechanism and of logistic regression: 80 % of a labelled file, then the rest.

    python benchmarks/mechanisms_accuracy.py pbmc3k.h5ad cell_type results.csv
    python benchmarks/mechanisms_accuracy.py pbmc3k.h5ad cell_type results.csv --mechanisms favor,window --seeds 1

Mechanisms that depend on the order of the tokens run twice: with the genes in the order of the file, and in a random
order. By default models have no linear branch (`model.linear=false`), which would hide the effect of the mechanism;
`--with-linear` keeps it. Each run appends a row to the CSV, and runs in the CSV are not repeated, so an interrupted
benchmark can continue. The result is printed as a Markdown table: mean ± standard deviation over the seeds. Times are
CPU times of whole commands, including imports (about 6 s).
"""

import argparse
from itertools import product
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
from holdout import measure

from scperformer.attention import MECHANISMS

KEYS = ["mechanism", "order", "seed", "options"]
ORDERS = ("file", "shuffled")
SHOWN = {"accuracy": 3, "macro-F1": 3, "training CPU s": 0, "predict CPU s": 1}  # decimals


def in_order(adata: ad.AnnData, order: str, seed: int) -> ad.AnnData:
    """The cells with their genes in the order of the file, or in a random order."""
    if order == "file":
        return adata
    return adata[:, np.random.default_rng(seed).permutation(adata.n_vars)].copy()


def run_all(adata: ad.AnnData, arguments: argparse.Namespace, options: list[str]) -> pd.DataFrame:
    """Run each mechanism, order and seed that is not yet in the CSV; a row per run."""
    path = Path(arguments.csv)
    text = " ".join(options)
    for seed, name, order in product(range(arguments.seeds), arguments.mechanisms, ORDERS):
        if order == "shuffled" and not MECHANISMS[name].order_sensitive:
            continue
        done = pd.read_csv(path)[KEYS].astype(str).to_numpy().tolist() if path.exists() else []
        if [name, order, str(seed), text] in done:
            continue
        found = measure(
            in_order(adata, order, seed), arguments.label_key, seed, [f"attention={name}", "logger=none", *options]
        )
        row = pd.DataFrame([{"mechanism": name, "order": order, "seed": seed, "options": text, **found}])
        row.to_csv(path, mode="a", header=not path.exists(), index=False)
        print(f"{name} {order} seed {seed}: {found['accuracy']:.3f} {found['macro-F1']:.3f}", flush=True)
    rows = pd.read_csv(path)
    wanted = rows["mechanism"].isin(arguments.mechanisms) & (rows["seed"] < arguments.seeds)
    return rows[wanted & (rows["options"] == text)]


def table(rows: pd.DataFrame) -> str:
    """A Markdown table: a row per mechanism and order, and logistic regression on the same splits."""
    lines = [f"| Attention | Genes | {' | '.join(SHOWN)} |", "|---" * (2 + len(SHOWN)) + "|"]
    for (name, order), runs in rows.groupby(["mechanism", "order"], sort=False):
        numbers = [f"{runs[key].mean():.{n}f} ± {runs[key].std(ddof=0):.{n}f}" for key, n in SHOWN.items()]
        lines.append(f"| `{name}` | {order} | {' | '.join(numbers)} |")
    rival = rows.drop_duplicates("seed")
    numbers = [f"{rival[f'LR {key}'].mean():.3f} ± {rival[f'LR {key}'].std(ddof=0):.3f}" for key in list(SHOWN)[:2]]
    return "\n".join([*lines, f"| logistic regression | any | {' | '.join(numbers)} | | |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument("csv", help="table of the runs; created or continued")
    parser.add_argument("--mechanisms", type=lambda text: text.split(","), default=list(MECHANISMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--with-linear", action="store_true", help="keep the linear branch")
    parser.add_argument("overrides", nargs="*", help="more options of 'scperformer train', such as model.dim=64")
    arguments = parser.parse_intermixed_args()
    branches = [] if arguments.with_wide else ["model.linear=false"]
    options = [f"trainer.max_epochs={arguments.epochs}", *branches, *arguments.overrides]
    print(table(run_all(ad.read_h5ad(arguments.path), arguments, options)))


if __name__ == "__main__":
    main()
