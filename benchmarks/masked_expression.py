"""The expression of hidden genes of held-out cells: what a pretrained Performer predicts, beside simple predictions.

    python benchmarks/masked_expression.py pbmc3k.h5ad
    python benchmarks/masked_expression.py pbmc3k.h5ad --share 0.15 0.5 --pretrain trainer.max_epochs=20

A fifth of the cells is the test; the encoder is pretrained on the others. Of each batch of test cells, a share of the
genes is hidden. The predictions are compared with the mean of the gene and with linear reconstruction: a cell's scores
of a singular value decomposition of the training cells are found from the visible genes, by least squares with the best
of several penalties, which is chosen on training cells. Prints the mean squared error of ln(1 + cp10k), the mean over
genes of the correlation over cells, and the mean over cells of the correlation over genes of what is above the mean of
the gene; saves nothing.
"""

import argparse
import tempfile
from pathlib import Path

import anndata as ad
import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.utils.extmath import randomized_svd
from words import as_options

import scperformer
from scperformer.cells import Sample, make_corpus
from scperformer.config import ModelConfig, TokensConfig, make_config
from scperformer.model import read_model
from scperformer.network import Cells, Performer, ReadLayer, rebuild
from scperformer.training.masked_genes import MaskedPerformer, hide_genes

NAMES = "mean of the gene", "linear", "pretrained"
BATCH = 64
DIM = 32
PENALTIES = (1.0, 10.0, 100.0, 1000.0)
MIN_CELLS = 10  # test cells that express a gene whose correlation counts


def read_network(folder: Path) -> MaskedPerformer:
    """Return the network of a pretrained folder, with the layer that predicts."""
    saved = read_model(folder)
    encoder = rebuild(saved, folder)
    assert isinstance(encoder, Performer)
    network = MaskedPerformer(encoder, ReadLayer(ModelConfig(**saved.config["model"])))
    network.load_pretraining({name: torch.from_numpy(array) for name, array in saved.weights.items()})
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


def correlation(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return the correlations of the rows of two matrices; 0 where one of them is constant."""
    one = one - one.mean(axis=1, keepdims=True)
    two = two - two.mean(axis=1, keepdims=True)
    lengths = np.sqrt((one**2).sum(axis=1) * (two**2).sum(axis=1))
    return (one * two).sum(axis=1) / np.maximum(lengths, 1e-12)


def scores(found: np.ndarray, true: np.ndarray, mean: np.ndarray) -> tuple[float, float, float]:
    """Return squared error, correlation per gene and correlation per cell."""
    is_measured = ((true > 0) & ~np.isnan(found)).sum(axis=0) >= MIN_CELLS
    per_gene = []
    for gene in np.flatnonzero(is_measured):
        rows = ~np.isnan(found[:, gene])
        per_gene.append(correlation(found[None, rows, gene], true[None, rows, gene])[0])
    per_cell = []
    for cell in range(len(found)):
        genes = ~np.isnan(found[cell]) & is_measured
        above = [values[cell, genes] - mean[genes] for values in (found, true)]
        per_cell.append(correlation(above[0][None], above[1][None])[0])
    return float(np.nanmean((found - true) ** 2)), float(np.mean(per_gene)), float(np.mean(per_cell))


def measure(
    network: MaskedPerformer, train: np.ndarray, test: csr_matrix, share: float
) -> dict[str, tuple[float, float, float]]:
    """Return the scores of each prediction."""
    num_genes = train.shape[1]
    linear = Linear(train)
    _, genes = hide_genes(Cells(test[:1], TokensConfig()).batch([0]), num_genes, share, seed=10**6)
    losses = {p: ((linear(train, genes.numpy(), p) - train[:, genes.numpy()]) ** 2).mean() for p in PENALTIES}
    penalty = min(losses, key=lambda p: losses[p])
    cells = Cells(test, TokensConfig())
    dense = test.toarray()
    found = {name: np.full(dense.shape, np.nan, dtype=np.float32) for name in NAMES}
    for number, start in enumerate(range(0, len(dense), BATCH)):
        rows = np.arange(start, min(start + BATCH, len(dense)))
        seen, genes_K = hide_genes(cells.batch(rows), num_genes, share, seed=number)
        genes = genes_K.numpy()
        place = np.ix_(rows, genes)
        found["mean of the gene"][place] = linear.mean[genes]
        found["linear"][place] = linear(dense[rows], genes, penalty)
        with torch.inference_mode():
            found["pretrained"][place] = network.from_sums(network.encoder.sums(seen), genes_K).numpy()
    return {name: scores(values, dense, linear.mean) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--share", nargs="+", type=float, default=[0.15, 0.5])
    parser.add_argument("--pretrain", nargs="*", default=[])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    adata = ad.read_h5ad(arguments.file)
    cfg = make_config("pretrain", ["inputs=[a.h5ad]", "data.min_genes=0"])
    is_test = np.random.default_rng(arguments.seed).permutation(adata.n_obs) < adata.n_obs // 5
    with tempfile.TemporaryDirectory() as folder:
        options = ["logger=none", f"seed={arguments.seed}", *arguments.pretrain]
        made = scperformer.pretrain(adata[~is_test].copy(), output=Path(folder) / "enc", options=as_options(options))
        network = read_network(made.path)
        genes = read_model(made.path).genes
    sides = [Sample(adata[side].copy(), Path("a.h5ad"), "") for side in (~is_test, is_test)]
    train, test = (make_corpus([side], cfg, genes).x for side in sides)
    for share in arguments.share:
        for name, values in measure(network, train.toarray(), test, share).items():
            print(f"{share:.2f} {name:<20}", *(f"{value:.4f}" for value in values), flush=True)


if __name__ == "__main__":
    main()
