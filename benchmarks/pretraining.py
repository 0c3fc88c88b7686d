"""Does pretraining help when few cells are labelled? A labelled file plays both parts: few labels, many cells.

    python benchmarks/pretraining.py pbmc3k.h5ad cell_type
    python benchmarks/pretraining.py pbmc3k.h5ad cell_type --cells 10 25 --seeds 3 --pretrain trainer.max_epochs=20

Of each type N cells are labelled (at most half of the type). Half of the other cells are there without their labels,
and the rest is the test. The encoder is pretrained on the labelled and the unlabelled cells; what has no encoder from
there sees the labelled cells alone. Prints the mean macro-F1 and accuracy on the test cells over the seeds, with the
standard deviation, and saves nothing.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import anndata as ad
import numpy as np
from sklearn.metrics import accuracy_score, f1_score

import scperformer

MODES = ("full", "last_layer", "head")
BRANCHES = {"encoder alone": ["model.wide=false"], "default": []}


def split(labels: np.ndarray, num_labelled: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row numbers of the labelled cells, of the unlabelled ones that are available, and of the test."""
    rng = np.random.default_rng(seed)
    labelled, rest = [], []
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        size = min(num_labelled, len(cells) // 2)
        labelled.append(cells[:size])
        rest.append(cells[size:])
    others = rng.permutation(np.concatenate(rest))
    return np.concatenate(labelled), others[: len(others) // 2], others[len(others) // 2 :]


def scores(truth: np.ndarray, calls: np.ndarray) -> tuple[float, float]:
    """Macro-F1 over the types of the test, and accuracy."""
    return f1_score(truth, calls, average="macro", labels=np.unique(truth)), accuracy_score(truth, calls)


def measure(
    adata: ad.AnnData, label_key: str, num_labelled: int, seed: int, arguments: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Scores of everything that is compared, on one split."""
    labels = adata.obs[label_key].astype(str).to_numpy()
    labelled, unlabelled, test = split(labels, num_labelled, seed)
    reference, sample = adata[np.sort(labelled)].copy(), adata[np.sort(test)].copy()
    truth = labels[np.sort(test)]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = adata[np.sort(np.concatenate([labelled, unlabelled]))].copy()
        common = [f"seed={seed}", "logger=none"]
        encoder = Path(folder) / "encoder"
        start = time.perf_counter()
        scperformer.pretrain(corpus, output=encoder, overrides=[*common, *arguments.pretrain])
        print(f"# {num_labelled} cells, seed {seed}: pretrained in {time.perf_counter() - start:.0f} s", flush=True)
        starts = {"scratch": []} | {mode: [f"init={encoder}", f"init_mode={mode}"] for mode in MODES}
        # Without a start the encoder has to be told what it is like.
        shape = [word for word in arguments.pretrain if word.startswith(("tokens", "model", "attention"))]
        for branches, options in BRANCHES.items():
            for name, init in starts.items():
                output = Path(folder) / f"{branches} {name}"
                words = [*common, *shape, *options, *init, *arguments.train]
                scperformer.train(reference, label_key, output=output, overrides=words)
                sample_copy = sample.copy()
                scperformer.annotate(sample_copy, scperformer.load_model(output))
                found[f"{branches}, {name}"] = scores(truth, sample_copy.obs["scperformer_label"].to_numpy(str))
        found["logistic regression"] = scores(truth, sample_copy.obs["scperformer_baseline_label"].to_numpy(str))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument("--cells", type=int, nargs="+", default=[10, 25], help="labelled cells of each type")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pretrain", nargs="*", default=[], help="options of 'scperformer pretrain'")
    parser.add_argument("--train", nargs="*", default=[], help="options of 'scperformer train'")
    arguments = parser.parse_args()
    logging.getLogger("scperformer").addHandler(logging.NullHandler())
    adata = ad.read_h5ad(arguments.path)
    for num_labelled in arguments.cells:
        runs = [measure(adata, arguments.label_key, num_labelled, s, arguments) for s in range(arguments.seeds)]
        print(f"\n{num_labelled} labelled cells of each type          macro-F1          accuracy")
        for name in runs[0]:
            values = np.array([run[name] for run in runs])
            means, spreads = values.mean(0), values.std(0)
            numbers = "   ".join(f"{mean:.3f} +- {sd:.3f}" for mean, sd in zip(means, spreads, strict=True))
            print(f"{name:<34}{numbers}", flush=True)


if __name__ == "__main__":
    main()
