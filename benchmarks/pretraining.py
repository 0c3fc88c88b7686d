"""What pretraining learns, and its effect with few labelled cells.

    python benchmarks/pretraining.py genes pbmc3k.h5ad --share 0.15 --pretrain trainer.max_epochs=20
    python benchmarks/pretraining.py labels pbmc3k.h5ad cell_type --cells 10 25 --pretrain model=tiny

`genes`: an encoder is pretrained on four fifths of the cells and predicts hidden genes of the others, beside the mean
of the gene and linear reconstruction: scores of a singular value decomposition of the training cells, found from the
visible genes by least squares with the best of several penalties, which is chosen on training cells.

`labels`: N cells of each type are labelled (at most half of the type). Half of the other cells are used without their
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
from scipy.sparse import csr_matrix
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils.extmath import randomized_svd

import scperformer
from scperformer.cells.corpus import make_corpus
from scperformer.cells.on_disk import Sample
from scperformer.cli.compose import make_config
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.pretrain import MaskedPerformer, hide_genes, load_pretraining
from scperformer.model.batches import Cells
from scperformer.model.folder import read_model
from scperformer.model.load import rebuild
from scperformer.model.performer import Performer, ReadLayer

BATCH = 64
DIM = 32
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
MODES = ("full", "last_layer", "head")
BRANCHES = {"encoder alone": ["model.linear=false"], "default": []}


def read_network(folder: Path) -> MaskedPerformer:
    """Return the network of a pretrained folder, with the layer that predicts."""
    saved = read_model(folder)
    encoder = rebuild(saved, folder)
    assert isinstance(encoder, Performer)
    network = MaskedPerformer(encoder, ReadLayer(ModelConfig(**saved.config["model"])))
    load_pretraining(network, saved.weights)
    return network.eval()


class Linear:
    """Linear reconstruction from the visible genes."""

    def __init__(self, x: np.ndarray):
        self.mean = x.mean(axis=0)
        _, _, self.components = randomized_svd(x - self.mean, DIM, random_state=0)

    def __call__(self, x: np.ndarray, genes: np.ndarray, penalty: float) -> np.ndarray:
        seen = np.ones(len(self.mean), dtype=bool)
        seen[genes] = False
        v = self.components[:, seen]
        gram = v @ v.T + penalty / len(self.mean) * np.eye(DIM)
        scores = np.linalg.solve(gram, v @ (x[:, seen] - self.mean[seen]).T).T
        return self.mean[genes] + scores @ self.components[:, genes]


def squared_errors(network: MaskedPerformer, train: np.ndarray, test: csr_matrix, share: float) -> dict[str, float]:
    """Return the mean squared error of ln(1 + cp10k) of hidden genes, by each prediction."""
    num_genes = train.shape[1]
    linear = Linear(train)
    _, genes = hide_genes(Cells(test[:1], TokensConfig()).batch([0]), num_genes, share, seed=10**6)
    losses = {p: ((linear(train, genes.numpy(), p) - train[:, genes.numpy()]) ** 2).mean() for p in PENALTIES}
    penalty = min(losses, key=lambda p: losses[p])
    cells = Cells(test, TokensConfig())
    dense = test.toarray()
    errors: dict[str, list[np.ndarray]] = {"mean of the gene": [], "linear": [], "pretrained": []}
    for number, start in enumerate(range(0, len(dense), BATCH)):
        rows = np.arange(start, min(start + BATCH, len(dense)))
        seen, genes_K = hide_genes(cells.batch(rows), num_genes, share, seed=number)
        genes = genes_K.numpy()
        true = dense[np.ix_(rows, genes)]
        errors["mean of the gene"].append((linear.mean[genes] - true) ** 2)
        errors["linear"].append((linear(dense[rows], genes, penalty) - true) ** 2)
        with torch.inference_mode():
            found = network.from_sums(network.encoder.sums(seen), genes_K).numpy()
        errors["pretrained"].append((found - true) ** 2)
    return {name: float(np.concatenate([part.ravel() for part in parts]).mean()) for name, parts in errors.items()}


def genes(arguments: argparse.Namespace) -> None:
    adata = ad.read_h5ad(arguments.path)
    cfg = make_config("pretrain", ["inputs=[a.h5ad]", "data.min_genes=0"])
    is_test = np.random.default_rng(arguments.seed).permutation(adata.n_obs) < adata.n_obs // 5
    with tempfile.TemporaryDirectory() as folder:
        options = as_options(["logger=none", f"seed={arguments.seed}", *arguments.pretrain])
        made = scperformer.pretrain(adata[~is_test].copy(), output=Path(folder) / "enc", options=options)
        network = read_network(made.path)
        names = read_model(made.path).genes
    sides = [Sample(adata[side].copy(), Path("a.h5ad"), "") for side in (~is_test, is_test)]
    train, test = (make_corpus([side], cfg, names).x for side in sides)
    for share in arguments.share:
        for name, error in squared_errors(network, train.toarray(), test, share).items():
            print(f"{share:.2f} {name:<20} {error:.4f}", flush=True)


def split(labels: np.ndarray, sizes: list[int], seed: int) -> tuple[dict[int, np.ndarray], np.ndarray, np.ndarray]:
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
    return f1_score(truth, calls, average="macro", labels=np.unique(truth)), accuracy_score(truth, calls)


def measure(adata: ad.AnnData, arguments: argparse.Namespace, seed: int) -> dict[tuple[int, str], tuple[float, float]]:
    """Scores of all models on one split, by number of labelled cells and name."""
    labels = adata.obs[arguments.label_key].astype(str).to_numpy()
    labelled, corpus, test = split(labels, arguments.cells, seed)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        common = [f"seed={seed}", "logger=none"]
        encoder = Path(folder) / "encoder"
        start = time.perf_counter()
        scperformer.pretrain(adata[corpus].copy(), output=encoder, options=as_options([*common, *arguments.pretrain]))
        losses = json.loads((encoder / "bundle.json").read_text())["metrics"]
        text = f"loss {losses['loss']:.4f}, naive guess {losses['naive_loss']:.4f}, epoch {losses['best_epoch']}"
        print(f"# seed {seed}: pretrained in {time.perf_counter() - start:.0f} s: {text}", flush=True)
        starts = {"from scratch": []} | {f"init, {mode}": [f"init={encoder}", f"init_mode={mode}"] for mode in MODES}
        # Without a pretrained encoder, options have to define it.
        shape = [word for word in arguments.pretrain if word.startswith(("tokens", "model", "attention"))]
        for size, (branches, options), (name, init) in product(arguments.cells, BRANCHES.items(), starts.items()):
            output = Path(folder) / f"{size} {branches} {name}"
            words = [*common, *shape, *options, *init, *arguments.train]
            scperformer.train(
                adata[labelled[size]].copy(), arguments.label_key, output=output, options=as_options(words)
            )
            sample = adata[test].copy()
            scperformer.annotate(sample, scperformer.load_model(output))
            found[size, f"{branches}, {name}"] = scores(labels[test], sample.obs["scperformer_label"].to_numpy(str))
            print(f"#   {size} cells, {branches}, {name}: %.3f %.3f" % found[size, f"{branches}, {name}"], flush=True)
            baseline = scores(labels[test], sample.obsm["scperformer_details"]["baseline_label"].to_numpy(str))
            found[size, "logistic regression"] = baseline
    return found


def labels(arguments: argparse.Namespace) -> None:
    adata = ad.read_h5ad(arguments.path)
    runs = [measure(adata, arguments, seed) for seed in range(arguments.seeds)]
    for size in arguments.cells:
        print(f"\n{size} labelled cells of each type     macro-F1          accuracy")
        for name in [name for number, name in runs[0] if number == size]:
            values = np.array([run[size, name] for run in runs])
            numbers = [f"{mean:.3f} +- {sd:.3f}" for mean, sd in zip(values.mean(0), values.std(0), strict=True)]
            print(f"{name:<34}{'   '.join(numbers)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("genes", help="squared error of hidden genes")
    step.set_defaults(run=genes)
    step.add_argument("path")
    step.add_argument("--share", nargs="+", type=float, default=[0.15, 0.5])
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--pretrain", nargs="*", default=[], help="options of 'scperformer pretrain'")
    step = steps.add_parser("labels", help="labels with few labelled cells")
    step.set_defaults(run=labels)
    step.add_argument("path")
    step.add_argument("label_key")
    step.add_argument("--cells", type=int, nargs="+", default=[10, 25], help="labelled cells of each type")
    step.add_argument("--seeds", type=int, default=3)
    step.add_argument("--pretrain", nargs="*", default=[], help="options of 'scperformer pretrain'")
    step.add_argument("--train", nargs="*", default=[], help="options of 'scperformer train'")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
