"""Fine types of a family, such as classical and non-classical monocytes: told apart at the gap between their cells.

All cells of a file may resemble one of two types more, for example in a stimulated sample. The logarithm of the
ratio of their probabilities, averaged over the nearest cells, still has two groups, but the gap between them is not
at 0. Where it is clear, and the genes of both groups differ as in the profiles, cells on the other side of it
exchange the two probabilities. A label that the nearest cells have less often is less certain: its parent is called.

Shape letters: N cells of a family, S of them, G genes, K labels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.adaptation.adapted import Adapted, SampledCells
from scperformer.adaptation.predictions import Blocks, Predictions
from scperformer.adaptation.record import FineTypesRecord, texts
from scperformer.base.sparse import mean_counts
from scperformer.config.options import AUTO
from scperformer.trust.clusters import smoothed

MIN_CELLS = 60  # of a family, and of the two types
TINY = 1e-4  # added to probabilities before the quotient is taken
JUST_BEST = 1.001  # times the next label
# A clear gap: the distance of the means of both groups in standard deviations, and the share of the smaller group.
MIN_DISTANCE = 2.0
MIN_SHARE = 0.03
NUM_GENES = 100  # that differ most between both profiles
# How much of their difference the groups must show. Types have .34 to 1, halves of one type up to .2 (NOTES.md).
MIN_SLOPE = 0.4
SEED = 0


@dataclass(frozen=True, eq=False)
class Family:
    """The cells of a family of labels, and how they share its probability."""

    rows: np.ndarray  # of its cells in the file, ascending, int64 N
    labels: np.ndarray  # int64 K
    shares: np.ndarray  # float64 N x K, each row sums to 1
    # if there is one, a row of `FineTypesRecord`
    gap: tuple[str, str, float, int, int] | None = None


def find_families(adapted: Adapted, blocks: Blocks, table: pd.DataFrame) -> list[Family]:
    """Find how the cells of each family share its probability, by the file as a whole.

    `table` has the predictions of the cells in `blocks`, as `gather_predictions` returns them. Models have no families.
    A part of a sample need not show its gaps, and keeps its labels.
    """
    families = adapted.saved.families
    sampled = adapted.sampled
    is_off = adapted.options.relabel != AUTO or adapted.record.of is not None
    if (
        families is None
        or is_off
        or not isinstance(sampled, SampledCells)
        or not len(sampled.clusters.centres)
    ):
        return []
    points, proba = map(
        np.concatenate, zip(*((block.points, block.proba) for block in blocks()), strict=True)
    )
    family_of_cell = np.where(table["empty"], -1, families[table["best"]])
    found: list[Family] = []
    for number in np.unique(families):
        labels = np.flatnonzero(families == number)
        rows = np.flatnonzero(family_of_cell == number)
        is_seen = np.isin(rows, sampled.rows)
        if len(labels) == 1 or is_seen.sum() < MIN_CELLS:
            continue
        shares = proba[np.ix_(rows, labels)].astype(np.float64)
        shares /= shares.sum(axis=1, keepdims=True)
        family = cut_at_gap(adapted, sampled, Family(rows, labels, shares), points[rows])
        mean = smoothed(family.shares[is_seen], points[rows[is_seen]], points[rows])
        found.append(replace(family, shares=as_nearest(family.shares, mean)))
    return found


def cut_at_gap(
    adapted: Adapted, sampled: SampledCells, family: Family, points: np.ndarray
) -> Family:
    """Cut the two labels of a family that most cells have at the gap between their cells, if there is one.

    Sampled cells show the gap. All cells, N x D, have their nearest ones among these.
    """
    best = family.shares.argmax(axis=1)
    counts = np.bincount(best, minlength=len(family.labels))
    pair = np.sort(np.argsort(-counts, kind="stable")[:2])
    cells = np.flatnonzero(np.isin(best, pair))
    rows = family.rows[cells]
    is_seen = np.isin(rows, sampled.rows)
    if is_seen.sum() < MIN_CELLS or counts[pair].min() == 0:
        return family
    both = family.shares[np.ix_(cells, pair)]
    ratio = np.log(both[:, 1] + TINY) - np.log(both[:, 0] + TINY)
    smooth = smoothed(ratio[is_seen], points[cells[is_seen]], points[cells])
    cut = clear_gap(smooth[is_seen])
    if cut is None:
        return family
    is_second = smooth > cut
    x = sampled.x[np.isin(sampled.rows, rows)][:, adapted.query.measured]
    labels = family.labels[pair]
    if slope(x, is_second[is_seen], adapted.reference.means[labels]) < MIN_SLOPE:
        return family
    shares = family.shares.copy()
    both.sort(axis=1)
    shares[np.ix_(cells, pair)] = np.where(is_second[:, None], both, both[:, ::-1])
    first, second = (adapted.saved.labels[label] for label in labels)
    gap = first, second, cut, len(cells), int((is_second != (ratio > 0)).sum())
    return replace(family, shares=shares, gap=gap)


def as_nearest(shares: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the shares of labels, N x K, with a smaller one of the best label where the nearest cells have less.

    It is halfway to their `mean`, N x K; if another label is the best there, it is hardly above the next label's.
    """
    cells = np.arange(len(shares))
    best = shares.argmax(axis=1)
    own = shares[cells, best]
    rest = np.maximum(1 - own, TINY)
    second = np.maximum(np.sort(shares, axis=1)[:, -2], TINY)
    lead = np.where(mean.argmax(axis=1) == best, np.minimum(own, (own + mean[cells, best]) / 2), 0)
    lead = np.maximum(lead, JUST_BEST * second / (rest + second))
    found = shares * ((1 - lead) / rest)[:, None]
    found[cells, best] = lead
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def clear_gap(smooth: np.ndarray) -> float | None:
    """Return where two groups of cells are as likely, if two Gaussians describe S values better than one, else None."""
    from sklearn.mixture import GaussianMixture  # takes a while to import

    values = smooth[:, None]
    one, two = (
        GaussianMixture(num, n_init=2, reg_covar=1e-3, random_state=SEED).fit(values)
        for num in (1, 2)
    )
    low, high = np.sort(two.means_.ravel())
    between = np.linspace(low, high, 200)
    is_high = two.predict(between[:, None]) == two.means_.argmax()
    cut = float(between[is_high.argmax()])
    share = (smooth > cut).mean()
    is_apart = high - low > MIN_DISTANCE * np.sqrt(two.covariances_.mean())
    is_clear = is_apart and MIN_SHARE < share < 1 - MIN_SHARE and two.bic(values) < one.bic(values)
    return cut if is_clear else None


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


def with_families(blocks: Blocks, found: Sequence[Family]) -> Iterator[Predictions]:
    """Yield predictions in which the labels of families have their shares; the probability of a family stays."""
    start = 0
    for block in blocks():
        proba = block.proba.copy()
        stop = start + len(proba)
        for family in found:
            first, last = np.searchsorted(family.rows, [start, stop])
            places = np.ix_(family.rows[first:last] - start, family.labels)
            proba[places] = family.shares[first:last] * proba[places].sum(axis=1, keepdims=True)
        start = stop
        yield replace(block, proba=proba)


def fine_types_record(found: Sequence[Family]) -> FineTypesRecord | None:
    """Return the record of the families with a gap; None without any."""
    gaps = [family.gap for family in found if family.gap is not None]
    if not gaps:
        return None
    first, second, *numbers = zip(*gaps, strict=True)
    cut, num_cells, num_changed = map(np.array, numbers)
    return FineTypesRecord(
        first=texts(first),
        second=texts(second),
        cut=cut,
        num_cells=num_cells,
        num_changed=num_changed,
    )
