"""Two fine types of a family, such as classical and non-classical monocytes, are told apart at the gap between cells.

All cells of a file may resemble one of both types more, for example those of a stimulated sample. The logarithm of the
ratio of their probabilities, averaged over the nearest cells, still has two groups, but the gap between them is not
at 0. Where it is clear, and the genes of both groups differ as those of the profiles do, cells on the other side of it
exchange the two probabilities. Else they stay as they are, and the label tree decides what is called.

Shape letters: N cells of a family, S of them, G genes, K labels.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.annotation.adapted import Adapted
from scperformer.annotation.clusters_to_check import SampledCells
from scperformer.annotation.predictions import Blocks, Predictions
from scperformer.annotation.record import FineTypesRecord, texts
from scperformer.config.options import AUTO
from scperformer.trust.batch_effect import mean_counts

log = logging.getLogger(__name__)

MIN_CELLS = 60  # of two types
NUM_NEAREST = 16  # cells: 15 neighbours, and the cell itself
TINY = 1e-4  # added to probabilities before the quotient is taken
# A clear gap: the distance of the means of both groups in standard deviations, and the share of the smaller group.
MIN_DISTANCE = 1.7
MIN_SHARE = 0.03
NUM_GENES = 100  # that differ most between both profiles
# How much of their difference the groups must show. Types have .34 to 1, halves of one type up to .2 (NOTES.md).
MIN_SLOPE = 0.35
SEED = 0


@dataclass(frozen=True, eq=False)
class FineTypes:
    """Two labels of a family, and the cells that exchange their probabilities."""

    labels: tuple[int, int]
    rows: np.ndarray  # of the cells of both labels in the file, ascending, int64 N
    is_second: np.ndarray  # bool N: which of them are of the second label
    cut: float  # logarithm of the ratio of the probability of the second label to that of the first
    num_changed: int  # cells that get the other label


def find_fine_types(adapted: Adapted, blocks: Blocks, table: pd.DataFrame) -> list[FineTypes]:
    """Find the pairs of labels with a clear gap: in each family of labels, the two that most cells have.

    `table` has the predictions of the cells in `blocks`, as `gather_predictions` returns them. Models have none, nor
    has a part of a sample, whose cells need not show the gap.
    """
    families, sampled = adapted.saved.families, adapted.sampled
    if families is None or isinstance(sampled, str) or sampled.clusters is None:
        return []
    if adapted.options.relabel != AUTO or adapted.record.of is not None:
        return []
    points, proba = map(np.concatenate, zip(*((block.points, block.proba) for block in blocks()), strict=True))
    best = np.where(table["empty"], -1, table["best"])
    counts = np.bincount(best[best >= 0], minlength=len(families))
    found = []
    for family in np.unique(families):
        labels = np.flatnonzero(families == family)
        labels = np.sort(labels[np.argsort(-counts[labels], kind="stable")[:2]])
        rows = np.flatnonzero(np.isin(best, labels))
        if len(labels) == 2:
            pair = proba[np.ix_(rows, labels)].astype(np.float64) + TINY
            found += _cut(adapted, sampled, labels, rows, points[rows], np.log(pair[:, 1] / pair[:, 0]))
    return found


def _cut(
    adapted: Adapted, sampled: SampledCells, labels: np.ndarray, rows: np.ndarray, points: np.ndarray, ratio: np.ndarray
) -> list[FineTypes]:
    """Cut the cells of two labels, with these rows in the file, at the gap of their `ratio`, N; none without a gap.

    The gap is that of sampled cells, among which all cells have their neighbours.
    """
    is_seen = np.isin(rows, sampled.rows)
    if is_seen.sum() < MIN_CELLS:
        return []
    smooth = smoothed(ratio[is_seen], points[is_seen], points)
    cut = clear_gap(smooth[is_seen])
    if cut is None:
        return []
    is_second = smooth > cut
    x = sampled.x[np.isin(sampled.rows, rows)][:, adapted.query.measured]
    assert adapted.label_means is not None
    if slope(x, is_second[is_seen], adapted.label_means[labels]) < MIN_SLOPE:
        return []
    changed = is_second != (ratio > 0)
    return [FineTypes((int(labels[0]), int(labels[1])), rows, is_second, cut, int(changed.sum()))]


def smoothed(ratio: np.ndarray, points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the mean of the `ratio` of S cells over the nearest ones of each of N other cells, or of the same cells.

    `points`, S x D, and `others`, N x D, show which are the nearest.
    """
    from sklearn.neighbors import NearestNeighbors  # takes a while to import

    nearest = NearestNeighbors(n_neighbors=NUM_NEAREST).fit(points).kneighbors(others, return_distance=False)
    return np.asarray(ratio[nearest].mean(axis=1))


def clear_gap(smooth: np.ndarray) -> float | None:
    """Return where two groups of cells are as likely, if two Gaussians describe S values better than one, else None."""
    from sklearn.mixture import GaussianMixture  # takes a while to import

    values = smooth[:, None]
    one, two = (GaussianMixture(num, n_init=2, reg_covar=1e-3, random_state=SEED).fit(values) for num in (1, 2))
    low, high = np.sort(two.means_.ravel())
    grid = np.linspace(low, high, 200)
    is_high = two.predict_proba(grid[:, None])[:, two.means_.argmax()]
    cut = float(grid[np.abs(is_high - 0.5).argmin()])
    share = (smooth > cut).mean()
    distance = (high - low) / np.sqrt(two.covariances_.mean())
    is_clear = distance > MIN_DISTANCE and MIN_SHARE < share < 1 - MIN_SHARE
    return cut if is_clear and two.bic(values) < one.bic(values) else None


def slope(x: csr_matrix, is_second: np.ndarray, means_2G: np.ndarray) -> float:
    """Return how much of the difference of two types two groups of cells show: of ln(1 + cp10k), over its main genes.

    `x` is S x G, and `means_2G` are the counts per 10,000 of both types.
    """
    expected = np.log1p(means_2G[1]) - np.log1p(means_2G[0])
    genes = np.argsort(-np.abs(expected), kind="stable")[:NUM_GENES]
    some = x[:, genes]
    logs = [np.log1p(mean_counts(some[group])) for group in (~is_second, is_second)]
    expected = expected[genes]
    return float((logs[1] - logs[0]) @ expected / (expected @ expected))


def with_fine_types(blocks: Blocks, found: Sequence[FineTypes]) -> Iterator[Predictions]:
    """Yield predictions in which the labels of each pair have exchanged their probabilities where the gap says so."""
    start = 0
    for block in blocks():
        proba = block.proba.copy()
        stop = start + len(proba)
        for pair in found:
            first, last = np.searchsorted(pair.rows, [start, stop])
            rows = pair.rows[first:last] - start
            ordered = np.sort(proba[np.ix_(rows, pair.labels)], axis=1)
            is_second = pair.is_second[first:last, None]
            proba[np.ix_(rows, pair.labels)] = np.where(is_second, ordered, ordered[:, ::-1])
        start = stop
        yield replace(block, proba=proba)



def fine_types_record(found: Sequence[FineTypes], names: Sequence[str]) -> FineTypesRecord:
    """Return the record of pairs of labels, of which all have their `names`."""
    return FineTypesRecord(
        first=texts(names[pair.labels[0]] for pair in found),
        second=texts(names[pair.labels[1]] for pair in found),
        cut=np.array([pair.cut for pair in found]),
        num_cells=np.array([len(pair.rows) for pair in found]),
        num_changed=np.array([pair.num_changed for pair in found]),
    )
