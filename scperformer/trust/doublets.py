"""Doublets: cells whose counts two labels explain better than one, and that have many counts for their label.

The counts of a cell have a multinomial likelihood under the mean expression of its most likely label, and another under
mixtures of this label with a second one: the score compares both. Means of the reference are multiplied by the per-gene
batch effects of the query. Two cells of one label are not found: they differ from one cell in their counts alone.

Shape letters: N cells, C labels, G genes, K genes that are compared.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.sparse import counts_of, undo_log

NUM_GENES = 1000  # that vary most between labels
WEIGHTS = (0.35, 0.5, 0.65)  # of the most likely label in a mixture
PSEUDO_EXPRESSION = 0.02  # counts per 10,000, added to means
HIGH = 0.98  # quantile of the scores of reference cells, above which a cell is a likely doublet
OUTLIER = 2.0  # interquartile ranges above the upper quartile of the file; a likely doublet is also above that
USUAL = 0.5  # by how much the logarithm of the counts may be below its median, for a score above 0
MIN_CELLS = 20  # of a label, whose median is then known
MAX_CELLS = 2000  # of the reference
TINY = 1e-9  # in place of 0, where a quotient is taken


@dataclass(frozen=True)
class Doublets:
    """The labels of a reference as the cells of a query are compared with them."""

    genes: np.ndarray  # int, K
    expected: np.ndarray  # float64 C x K: the share of each gene in the counts of a label
    depth: float = 1.0  # median counts of the cells of the reference
    limit: float = 0.0  # that few cells of the reference exceed; 0: not known

    def gains(self, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much a second label raises the log-likelihood of cells, and their counts, float64 N each.

        `x` is expression, ln(1 + cp10k), N x G; each cell is treated by itself.
        """
        counts = counts_of(x)
        some = undo_log(x[:, self.genes])
        alone = some @ np.log(self.expected.T)
        first = alone.argmax(axis=1)
        gains = np.zeros(x.shape[0])
        for label in np.unique(first):
            others = np.delete(self.expected, label, axis=0)
            both = np.concatenate(
                [weight * self.expected[label] + (1 - weight) * others for weight in WEIGHTS]
            )
            rows = np.flatnonzero(first == label)
            gains[rows] = (some[rows] @ np.log(both.T)).max(axis=1) - alone[rows, label]
        return np.maximum(gains, 0) * counts / 1e4, counts

    def scores(self, gains: np.ndarray, counts: np.ndarray, calls: np.ndarray) -> np.ndarray:
        """Return the doublet score of each cell of a file, float64 N, from `gains` and the index of its label.

        A score above 1 is above 98 % of the cells of the reference, and an outlier of the file.
        """
        scores = self._products(gains, counts, calls)
        low, high = np.quantile(scores, (0.25, 0.75)) if len(scores) else (0.0, 0.0)
        return scores / max(self.limit, high + OUTLIER * (high - low), TINY)

    def _products(self, gains: np.ndarray, counts: np.ndarray, calls: np.ndarray) -> np.ndarray:
        """Return the products of the roots of gains and of the counts, relative to the median of the label."""
        logs = np.log(np.maximum(counts, TINY))
        usual = np.full(len(counts), np.median(logs) if len(logs) else 0.0)
        for label in np.flatnonzero(np.bincount(calls) >= MIN_CELLS):
            usual[calls == label] = np.median(logs[calls == label])
        # gains are proportional to counts
        deeper = max(1.0, np.median(counts) / self.depth) if len(counts) else 1.0
        return np.sqrt(gains / deeper) * np.maximum(logs - usual + USUAL, 0)


class NoDoublets:
    """In place of labels with which cells are compared: doublets are not looked for."""

    def gains(self, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        nothing = np.full(x.shape[0], np.nan)
        return nothing, nothing

    def scores(self, gains: np.ndarray, counts: np.ndarray, calls: np.ndarray) -> np.ndarray:
        return np.full(len(gains), np.nan)


def fit_doublets(
    means: np.ndarray,
    factors: np.ndarray,
    reference: csr_matrix,
    labels: np.ndarray,
    *,
    simulated: bool = False,
) -> Doublets | NoDoublets:
    """Compare labels and their mixtures, if there are several labels.

    `means` are counts per 10,000 of each label, C x G, `factors` of genes between the query and the reference, G, or
    empty if they are not known, and `reference` are cells with the genes and the depth of the query, M x G, with the
    index of the label of each, M. Cells that are `simulated` say nothing about the scores of single cells.
    """
    if len(means) < 2:
        return NoDoublets()

    def compared(means: np.ndarray) -> Doublets:
        logs = np.log1p(means)
        genes = np.sort(np.argsort(-logs.std(axis=0), kind="stable")[:NUM_GENES])
        expected = means[:, genes] + PSEUDO_EXPRESSION
        return Doublets(genes, expected / expected.sum(axis=1, keepdims=True))

    some = np.linspace(0, len(labels) - 1, min(len(labels), MAX_CELLS)).astype(int)
    own = compared(means)
    gains, counts = own.gains(reference[some])
    depth = max(float(np.median(counts)), TINY)
    limit = 0.0
    if not simulated:
        limit = float(
            np.quantile(replace(own, depth=depth)._products(gains, counts, labels[some]), HIGH)
        )
    return replace(compared(means * factors) if len(factors) else own, depth=depth, limit=limit)
