"""Recognising logarithms: their base, and the total that each cell was normalised to."""

import math
from typing import NamedTuple

import numpy as np
from scipy import sparse

ASSUMED_TOTAL = 1e4  # counts per cell, where the total cannot be recognised
USUAL_TOTALS = (1e4, 1e5, 1e6)  # counts per cell, recognised also where genes were removed after normalising
BASES = (math.e, 2.0, 10.0)
MAX_SPREAD = 0.01  # standard deviation of the cells' sums / their mean, below which all cells have one total
MIN_UNIT_SHARE = 0.9  # of the values are whole multiples of their cell's smallest value; by chance 0.1 are
MIN_CELLS = 20  # whose smallest values show a total; by chance 0.04 of them would fit
TOTAL_TOLERANCE = 0.02  # counts by which the number of counts of a cell may differ from a whole number
MIN_TOTAL_SHARE = 0.9  # of the cells have a whole number of counts with the right total
GROUP_SPREAD = 0.002  # relative spread of the sums of cells that were normalised together, also if values were rounded
MIN_GROUP, MIN_GROUP_SHARE = 5, 0.02  # cells of a group
MIN_GROUPED_SHARE = 0.95  # of the cells are in groups; with fewer there are no groups


class Group(NamedTuple):
    """Cells that were normalised together: the base of their logarithm, and their total before it."""

    base: float
    total: float

    def has(self, rows: sparse.csr_matrix) -> np.ndarray:
        """Say which of some cells may belong to it."""
        return np.abs(_sums(rows, self.base) / self.total - 1) < GROUP_SPREAD


class Logarithm(NamedTuple):
    """How values were made from counts.

    base : e, 2 or 10; None: the values are not logarithms
    total : total of a cell before the logarithm; None: not recognised
    confirmed : False: only the range of the values suggests logarithms
    relative : the total is not the usual one, and the smallest value of each cell is one count
    too_large : not confirmed, and as natural logarithms the values would exceed the usual total
    groups : cells that were normalised each in their own way, the largest group first
    """

    base: float | None
    total: float | None = None
    confirmed: bool = True
    relative: bool = False
    too_large: bool = False
    groups: tuple[Group, ...] = ()


class _Reading(NamedTuple):
    """Properties that some cells would have if their values were logarithms to a base."""

    base: float | None  # None: the values are not logarithms
    spread: float  # standard deviation of the cells' sums / their mean
    total: float  # median sum
    largest_sum: float
    smallest: np.ndarray  # value of each cell
    unit_share: float  # of the values that are whole multiples of their cell's smallest value (one count)


def recognise(rows: sparse.csr_matrix) -> Logarithm:
    """Recognise logarithms among small values with decimals.

    With the right base all cells have the same sum, or the values of each cell are multiples of its smallest one (one
    count).

    Parameters
    ----------
    rows
        Some cells x genes, float64, without negative values and without empty cells.
    """
    rows.eliminate_zeros()
    readings = [_read(rows, base) for base in (*BASES, None)]
    steady = min(readings, key=lambda reading: reading.spread)
    # A single cell always has a constant sum: with few cells only a power of ten is believed.
    if steady.spread < MAX_SPREAD and (rows.shape[0] >= MIN_GROUP or math.log10(steady.total).is_integer()):
        return Logarithm(steady.base, steady.total)
    groups = _groups(rows)
    if len(groups) > 1:
        return Logarithm(groups[0].base, relative=True, groups=groups)
    whole = max(readings, key=lambda reading: reading.unit_share)  # of equals the first: base e
    if whole.unit_share < MIN_UNIT_SHARE:
        return Logarithm(math.e, confirmed=False, too_large=readings[0].largest_sum > 1.01 * ASSUMED_TOTAL)
    never_normalised = np.ptp(whole.smallest) < 1e-3 * whole.smallest.mean()
    total = None if never_normalised else _usual_total(whole.smallest)
    # A cell cannot add up to more than the total it was normalised to.
    unusual = total is None and (never_normalised or whole.largest_sum > 1.01 * ASSUMED_TOTAL)
    return Logarithm(whole.base, total, relative=bool(unusual) and whole.base is not None)


def _read(rows: sparse.csr_matrix, base: float | None) -> _Reading:
    linear = rows.data if base is None else np.expm1(rows.data * math.log(base))
    starts = rows.indptr[:-1]
    sums, smallest = np.add.reduceat(linear, starts), np.minimum.reduceat(linear, starts)
    # Values of one count would always fit. In high multiples, rounding to three decimals blurs whole numbers.
    multiples = linear / np.repeat(smallest, np.diff(rows.indptr))
    multiples = multiples[(multiples > 1.05) & (multiples < 20.5)]
    enough = len(multiples) >= 50
    return _Reading(
        base=base,
        spread=float(sums.std() / sums.mean()),
        total=_rounded(float(np.median(sums))),
        largest_sum=float(sums.max()),
        smallest=smallest,
        unit_share=float(np.mean(np.abs(multiples - np.rint(multiples)) < 0.05)) if enough else 0.0,
    )


def _sums(rows: sparse.csr_matrix, base: float) -> np.ndarray:
    """Add up the values of each cell before a logarithm to this base."""
    return np.add.reduceat(np.expm1(rows.data * math.log(base)), rows.indptr[:-1])


def _rounded(total: float) -> float:
    """Round a total to a power of ten within 1 % (a few genes were removed), or to the half that float32 has blurred.

    A median of counts, as scanpy normalises to by default, is a whole number or a half.
    """
    power = 10.0 ** round(math.log10(total))
    if abs(total / power - 1) < 0.01:
        return power
    half = round(2 * total) / 2
    return half if half and abs(total / half - 1) < 1e-5 else total


def _usual_total(smallest: np.ndarray) -> float | None:
    """Find the usual total with which nearly every cell has a whole number of counts.

    A cell of n counts that was normalised to a total T has the value T / n for one count. This also shows where genes
    were removed, but not in values rounded to three decimals.
    """

    def fits(total: float) -> bool:
        counts = total / smallest
        return bool(np.mean(np.abs(counts - np.rint(counts)) < TOTAL_TOLERANCE) >= MIN_TOTAL_SHARE)

    if len(smallest) < MIN_CELLS:
        return None
    # Multiples of the right total fit as well.
    return next((total for total in USUAL_TOTALS if fits(total) and not fits(total / 2) and not fits(total / 5)), None)


def _groups(rows: sparse.csr_matrix) -> tuple[Group, ...]:
    """Find the groups of cells that were normalised together; none if too many cells are in no group."""
    sums = {base: _sums(rows, base) for base in BASES}
    left, found = np.ones(rows.shape[0], dtype=bool), []
    while left.sum() > (1 - MIN_GROUPED_SHARE) * len(left):
        densest = []  # for each base, the most cells with nearly the same sum
        for base, of_base in sums.items():
            ordered = np.sort(of_base[left])
            stops = np.searchsorted(ordered, ordered * (1 + GROUP_SPREAD), side="right")
            start = int((stops - np.arange(len(ordered))).argmax())
            cells = ordered[start : stops[start]]
            densest.append((len(cells), float(np.median(cells)), base))
        size, total, base = max(densest)
        if size < max(MIN_GROUP, MIN_GROUP_SHARE * len(left)):
            return ()
        left &= np.abs(sums[base] / total - 1) >= GROUP_SPREAD
        found.append(Group(base, _rounded(total)))
    return tuple(found)
