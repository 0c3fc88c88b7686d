"""The effect of pretraining with few labelled cells.

    python benchmarks/pretraining.py pbmc3k.h5ad cell_type --cells 10 25

N cells of each type are labelled (at most half of the type). Half of the other cells are used without their
labels, the other half is the test. The encoder is pretrained on all cells except the test, once for all N; models
without pretraining see the labelled cells only.
"""

import argparse
import json
import tempfile
import time
from itertools import product
from pathlib import Path

import anndata as ad
import numpy as np
import torch
from panel import as_options
from sklearn.metrics import accuracy_score, f1_score

import scperformer

MODES = ("full", "last_layer", "head")
BRANCHES = {"encoder alone": ["model.linear=false"], "default": []}


def split(
    labels: np.ndarray, sizes: list[int], seed: int
) -> tuple[dict[int, np.ndarray], np.ndarray, np.ndarray]:
    """Row numbers of the labelled cells for each N, of the corpus and of the test."""
    rng = np.random.default_rng(seed)
    labelled: dict[int, list[np.ndarray]] = {size: [] for size in sizes}
    rest = []
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        most = len(cells) // 2
        for size in sizes:
            labelled[size].append(cells[: min(size, most)])
        rest.append(cells[min(max(sizes), most) :])
    others = rng.permutation(np.concatenate(rest))
    test = np.sort(others[len(others) // 2 :])
    corpus = np.setdiff1d(np.arange(len(labels)), test)
    return {size: np.sort(np.concatenate(parts)) for size, parts in labelled.items()}, corpus, test


def scores(truth: np.ndarray, calls: np.ndarray) -> tuple[float, float]:
    """Macro-F1 over the true labels of the test, and accuracy."""
    return f1_score(truth, calls, average="macro", labels=np.unique(truth)), accuracy_score(
        truth, calls
    )


def measure(
    adata: ad.AnnData, arguments: argparse.Namespace, seed: int
) -> dict[tuple[int, str], tuple[float, float]]:
    """Scores of all models on one split, by number of labelled cells and name."""
    labels = adata.obs[arguments.label_key].astype(str).to_numpy()
    labelled, corpus, test = split(labels, arguments.cells, seed)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        common = [f"seed={seed}", "logger=none"]
        encoder = Path(folder) / "encoder"
        start = time.perf_counter()
        scperformer.pretrain(
            adata[corpus].copy(), output=encoder, options=as_options([*common, *arguments.pretrain])
        )
        losses = json.loads((encoder / "bundle.json").read_text())["metrics"]
        text = f"loss {losses['loss']:.4f}, naive guess {losses['naive_loss']:.4f}, epoch {losses['best_epoch']}"
        print(
            f"# seed {seed}: pretrained in {time.perf_counter() - start:.0f} s: {text}", flush=True
        )
        starts = {"from scratch": []} | {
            f"init, {mode}": [f"init={encoder}", f"init_mode={mode}"] for mode in MODES
        }
        # Without a pretrained encoder, options have to define it.
        shape = [
            word for word in arguments.pretrain if word.startswith(("tokens", "model", "attention"))
        ]
        for size, (branches, options), (name, init) in product(
            arguments.cells, BRANCHES.items(), starts.items()
        ):
            output = Path(folder) / f"{size} {branches} {name}"
            words = [*common, *shape, *options, *init, *arguments.train]
            scperformer.train(
                adata[labelled[size]].copy(),
                arguments.label_key,
                output=output,
                options=as_options(words),
            )
            sample = adata[test].copy()
            scperformer.annotate(sample, scperformer.load_model(output))
            found[size, f"{branches}, {name}"] = scores(
                labels[test], sample.obs["scperformer_label"].to_numpy(str)
            )
            print(
                f"#   {size} cells, {branches}, {name}: %.3f %.3f"
                % found[size, f"{branches}, {name}"],
                flush=True,
            )
            baseline = scores(
                labels[test], sample.obsm["scperformer_details"]["baseline_label"].to_numpy(str)
            )
            found[size, "logistic regression"] = baseline
    return found


def labels(arguments: argparse.Namespace) -> None:
    adata = ad.read_h5ad(arguments.path)
    runs = [measure(adata, arguments, seed) for seed in range(arguments.seeds)]
    for size in arguments.cells:
        print(f"\n{size} labelled cells of each type     macro-F1          accuracy")
        for name in [name for number, name in runs[0] if number == size]:
            values = np.array([run[size, name] for run in runs])
            numbers = [
                f"{mean:.3f} +- {sd:.3f}"
                for mean, sd in zip(values.mean(0), values.std(0), strict=True)
            ]
            print(f"{name:<34}{'   '.join(numbers)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument(
        "--cells", type=int, nargs="+", default=[10, 25], help="labelled cells of each type"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--pretrain", nargs="*", default=["model=tiny"], help="options of 'scperformer pretrain'"
    )
    parser.add_argument("--train", nargs="*", default=[], help="options of 'scperformer train'")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    labels(arguments)


if __name__ == "__main__":
    main()
