"""What small values are logarithms of: the base, and what each cell was normalised to."""

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse

ASSUMED_TOTAL = 1e4  # what log1p data are taken to be normalised to when it cannot be seen
MAX_SPREAD = 0.01  # relative spread of the cells' sums below which they count as one constant
MIN_UNIT_SHARE = 0.9  # of the values are whole multiples of their cell's smallest one; by chance 0.1 are
MIN_CELLS = 20  # whose smallest values tell a total; by chance 0.04 of them would fit one
TOTAL_TOLERANCE = 0.02  # counts by which a cell's number of counts may miss a whole number
MIN_TOTAL_SHARE = 0.9  # of the cells have whole numbers of counts with the right total
# A median of counts is a whole number or a half; people choose round numbers.
GROUP_SPREAD = 0.002  # relative spread of the sums of cells that were normalised together, rounded values included
MIN_GROUP, MIN_GROUP_SHARE = 5, 0.02  # cells of a group
MIN_GROUPED_SHARE = 0.95  # of the cells are in one of the groups, or there are none
TOTALS = np.concatenate([np.arange(400, 100_000) / 2, np.arange(5, 101) * 1e4])


class Group(NamedTuple):
    """Cells that were normalised together: the base of their logarithm, and what each of them adds up to before."""

    base: float
    total: float

    def has(self, rows: sparse.csr_matrix) -> np.ndarray:
        """Which of some cells may belong to it."""
        return np.abs(_sums(rows, self.base) / self.total - 1) < GROUP_SPREAD


class Logarithm(NamedTuple):
    """What values are.

    base : e, 2 or 10; None: no logarithms
    total : what a cell adds up to before the logarithm; None: cannot be seen
    confirmed : False: nothing but the range of the values speaks for it
    relative : the total cannot be the usual one, but each cell's smallest value is one count
    too_large : not confirmed, and cells would add up to more than the usual total: hardly natural logarithms of it
    groups : of cells that were normalised each in its own way, in the order of their size
    """

    base: float | None
    total: float | None = None
    confirmed: bool = True
    relative: bool = False
    too_large: bool = False
    groups: tuple[Group, ...] = ()


def recognise(rows: sparse.csr_matrix) -> Logarithm:
    """Tell log1p values, and their base and total, from small linear ones.

    Parameters
    ----------
    rows
        Some cells x genes, float64, none of them negative.
    """
    rows.eliminate_zeros()
    starts = rows.indptr[:-1][np.diff(rows.indptr) > 0]
    trials = [_try_base(rows.data, starts, base) for base in (math.e, 2.0, 10.0, None)]
    steady = min(trials, key=lambda trial: trial.spread)
    whole = max(trials, key=lambda trial: trial.unit_share)  # of equals the first: base e
    # The sum of a single cell is always constant: with few cells only a power of ten is believed.
    believed = len(starts) >= 5 or math.log10(steady.total).is_integer()
    if steady.spread < MAX_SPREAD and believed:
        exact = _total_of_units(whole.smallest) if whole.unit_share >= MIN_UNIT_SHARE else None
        # Where some genes are gone the usual sum is a little too small, and not the same for any part of the cells.
        near = exact is not None and whole.base == steady.base and abs(exact / steady.total - 1) < 0.05
        return Logarithm(steady.base, exact if near else steady.total)
    groups = _groups(rows)
    if len(groups) > 1:
        return Logarithm(groups[0].base, relative=True, groups=groups)
    if whole.unit_share < MIN_UNIT_SHARE:
        return Logarithm(math.e, confirmed=False, too_large=trials[0].largest_sum > 1.01 * ASSUMED_TOTAL)
    same = np.ptp(whole.smallest) < 1e-3 * whole.smallest.mean()  # logarithms of counts that nobody has normalised
    total = None if same else _total_of_units(whole.smallest)
    # A cell cannot add up to more than it was normalised to.
    relative = total is None and (same or whole.largest_sum > 1.01 * ASSUMED_TOTAL)
    return Logarithm(whole.base, total, relative=relative and whole.base is not None)


def _sums(rows: sparse.csr_matrix, base: float) -> np.ndarray:
    """What each cell adds up to if its values are log1p to this base."""
    linear = sparse.csr_matrix((np.expm1(rows.data * math.log(base)), rows.indices, rows.indptr), shape=rows.shape)
    return np.asarray(linear.sum(axis=1)).ravel()


def _groups(rows: sparse.csr_matrix) -> tuple[Group, ...]:
    """The groups of cells that were normalised together, if nearly all of them are in one; else none."""
    rows = rows[np.diff(rows.indptr) > 0]
    sums = {base: _sums(rows, base) for base in (math.e, 2.0, 10.0)}
    left, found = np.ones(rows.shape[0], dtype=bool), []
    least = max(MIN_GROUP, MIN_GROUP_SHARE * len(left))
    while left.sum() > (1 - MIN_GROUPED_SHARE) * len(left):
        (size, total), base = max((_densest(of_base[left]), base) for base, of_base in sums.items())
        if size < least:
            return ()
        left &= np.abs(sums[base] / total - 1) >= GROUP_SPREAD
        found.append(Group(base, _snapped(total)))
    return tuple(found)


def _densest(sums: np.ndarray) -> tuple[int, float]:
    """The largest number of sums that are nearly the same, and their middle."""
    ordered = np.sort(sums)
    stops = np.searchsorted(ordered, ordered * (1 + GROUP_SPREAD), side="right")
    sizes = stops - np.arange(len(ordered))
    start = int(sizes.argmax())
    return int(sizes[start]), float(np.median(ordered[start : stops[start]]))


class _Trial(NamedTuple):
    base: float | None  # None: the values as they are, no logarithm
    spread: float  # of the cells' sums, as a share of their mean
    total: float  # the cells' usual sum
    largest_sum: float
    unit_share: float
    smallest: np.ndarray  # value of each cell


def _try_base(data: np.ndarray, starts: np.ndarray, base: float | None) -> _Trial:
    """What the values of the sampled cells look like if they are logarithms to this base."""
    if not len(starts):  # none of the sampled cells has a count
        return _Trial(base, math.inf, 1.0, 0.0, 0.0, data)
    linear = data if base is None else np.expm1(data * math.log(base))
    sums = np.add.reduceat(linear, starts)
    smallest = np.minimum.reduceat(linear, starts)
    spread = float(sums.std() / sums.mean())
    share = _unit_share(linear, smallest, np.diff(np.append(starts, len(linear))))
    return _Trial(base, spread, _snapped(float(np.median(sums))), float(sums.max()), share, smallest)


def _snapped(total: float) -> float:
    """The power of ten within 1 %: a few genes dropped after normalising take that much; or what rounding has missed.

    A median of counts is a whole number or a half: float32 leaves it by a hair that depends on the cells.
    """
    power = 10.0 ** round(math.log10(total))
    if abs(total / power - 1) < 0.01:
        return power
    half = round(2 * total) / 2
    return half if half and abs(total / half - 1) < 1e-5 else total


def _unit_share(linear: np.ndarray, smallest: np.ndarray, lengths: np.ndarray) -> float:
    """Share of values that are whole multiples of their cell's smallest value (one count).

    Values of one count are left out (they would always fit), and so are high multiples, where rounding to
    three decimals blurs the next whole number. Fewer than 50 values prove nothing: 0.
    """
    ratio = linear / np.repeat(smallest, lengths)
    ratio = ratio[(ratio > 1.05) & (ratio < 20.5)]
    return float(np.mean(np.abs(ratio - np.rint(ratio)) < 0.05)) if len(ratio) >= 50 else 0.0


def _total_of_units(smallest: np.ndarray) -> float | None:
    """What cells were normalised to, from the value of one count in each of them.

    A cell of n counts that was normalised to a total T has T / n for one count. With the right T, T divided by that
    value is a whole number for nearly every cell. That survives the loss of genes, but not values rounded to three
    decimals.
    """
    if len(smallest) < MIN_CELLS:
        return None
    some = smallest[:: max(1, len(smallest) // 200)]
    fitting = TOTALS[_fits(TOTALS, some)]
    if not len(fitting):
        return None
    near = fitting[fitting <= fitting[0] * 1.001]  # multiples fit as well, and what is a hair's breadth away
    return float(near[_misses(near, some).mean(axis=1).argmin()])


def _misses(totals: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """For each total and cell, by how much its number of counts is not whole."""
    counts = totals[:, None] / smallest
    return np.abs(counts - np.rint(counts))


def _fits(totals: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    """For each total, whether nearly all cells have a whole number of counts."""
    likely = np.flatnonzero(_share(totals, smallest[:MIN_CELLS]))  # most are out of the question after a few cells
    fits = np.zeros(len(totals), dtype=bool)
    fits[likely] = _share(totals[likely], smallest)
    return fits


def _share(totals: np.ndarray, smallest: np.ndarray) -> np.ndarray:
    return (_misses(totals, smallest) < TOTAL_TOLERANCE).mean(axis=1) >= MIN_TOTAL_SHARE
