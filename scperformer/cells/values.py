"""Judging the values of a matrix: counts, log1p (with base and total), linear, or unusable."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import sparse

from scperformer.files import Matrix, Rows

ASSUMED_TOTAL = 1e4  # counts per cell, where the total cannot be recognised
USUAL_TOTALS = (1e4, 1e5, 1e6)  # counts per cell, recognised also where genes were removed after normalising
BASE_NAMES = {math.e: "natural logarithm", 2.0: "logarithm to base 2", 10.0: "logarithm to base 10"}
MAX_SPREAD = 0.01  # standard deviation of the cells' sums / their mean, below which all cells have one total
MIN_UNIT_SHARE = 0.9  # share of the values that are whole multiples of their cell's smallest value; by chance 0.1 are
MIN_TELLING = 50  # multiples without which the share means nothing
MIN_CELLS = 20  # cells whose smallest values show a total; by chance 0.04 of them would fit
TOTAL_TOLERANCE = 0.02  # counts by which the number of counts of a cell may differ from a whole number
MIN_TOTAL_SHARE = 0.9  # share of the cells that have a whole number of counts with the right total
GROUP_SPREAD = 0.002  # relative spread of the sums of cells that were normalised together, also if values were rounded
MIN_GROUP, MIN_GROUP_SHARE = 5, 0.02  # cells of a group
MIN_GROUPED_SHARE = 0.95  # share of the cells in groups; below it, groups are not used
MAX_LOG = 25.0  # e**25 counts is more than any cell has, in any base that is in use
MOST = 1e15  # larger whole numbers are not exact even in float64, and float32 ends at 3e38
MAX_SAMPLED_CELLS = 2000
MIN_MIXED_SUM = 50.0  # whole values that add up to less may be logarithms by chance
DOUBTED_CELLS = 500  # that show whether values that do not come from counts are what they look like
FLAT, MIN_FLAT_GENES = 20.0, 100  # highest / smallest value of a cell with so many genes: of expression, 100 and more
SCALED_SHARE, MIN_SCALED_GENES = 0.1, 20  # of cells with a gene, and genes with so many, whose deviations are compared
SCALED_TOLERANCE = 0.1  # by which the deviations of most of them may differ from the median


class Logarithm(NamedTuple):
    """How values were made from counts."""

    base: float | None = None  # e, 2 or 10; None: the values are not logarithms
    total: float | None = None  # of a cell before the logarithm; None: not recognised
    confirmed: bool = True  # False: only the range of the values suggests logarithms
    relative: bool = False  # the total is not the usual one, and the smallest value of each cell is one count
    too_large: bool = False  # not confirmed, and as natural logarithms the values would exceed the usual total
    over_all: bool = False  # cells were normalised over more features than the genes, which add up to less
    # base and total of cells that were normalised together, where there are several such groups, the largest first
    groups: tuple[tuple[float, float], ...] = ()


class _Reading(NamedTuple):
    """Properties that some cells would have if their values were logarithms to a base."""

    base: float | None  # None: the values are not logarithms
    spread: float  # standard deviation of the cells' sums / their mean
    total: float  # median sum
    largest_sum: float
    smallest: np.ndarray  # value of each cell
    unit_share: float  # of the values that are whole multiples of their cell's smallest value (one count)
    num_telling: int  # values of which this share is

    @property
    def is_steady(self) -> bool:
        """Whether cells have one sum."""
        return self.spread < MAX_SPREAD

    @property
    def is_whole(self) -> bool:
        """Whether values are multiples of one count."""
        return self.unit_share >= MIN_UNIT_SHARE


def recognise(rows: sparse.csr_matrix) -> Logarithm:
    """Recognise logarithms among small values with decimals: float64, without negative values and empty cells.

    With the right base all cells have the same sum, or each cell's values are multiples of its smallest, one count.
    """
    rows.eliminate_zeros()
    readings = [_read(rows, base) for base in (*BASE_NAMES, None)]
    steady = min(readings, key=lambda reading: reading.spread)
    # A single cell always has a constant sum: with few cells only a power of ten is believed.
    if steady.is_steady and (rows.shape[0] >= MIN_GROUP or math.log10(steady.total).is_integer()):
        return Logarithm(steady.base, steady.total)
    groups = _groups(rows)
    if len(groups) > 1:
        return Logarithm(groups[0][0], relative=True, groups=groups)
    whole = max(readings, key=lambda reading: reading.unit_share)  # of equals the first: base e
    if not whole.is_whole:
        return Logarithm(math.e, confirmed=False, too_large=readings[0].largest_sum > 1.01 * ASSUMED_TOTAL)
    never_normalised = np.ptp(whole.smallest) < 1e-3 * whole.smallest.mean()
    total = None if never_normalised else _usual_total(whole.smallest)
    # A cell cannot add up to more than the total it was normalised to.
    unusual = total is None and (never_normalised or whole.largest_sum > 1.01 * ASSUMED_TOTAL)
    return Logarithm(whole.base, total, relative=bool(unusual) and whole.base is not None)


def _read(rows: sparse.csr_matrix, base: float | None) -> _Reading:
    linear = rows.data if base is None else np.expm1(rows.data * math.log(base))
    starts = rows.indptr[:-1]
    sums = np.add.reduceat(linear, starts)
    smallest = np.minimum.reduceat(linear, starts)
    # Values of one count would always fit. In high multiples, rounding to three decimals blurs whole numbers.
    multiples = linear / np.repeat(smallest, np.diff(rows.indptr))
    multiples = multiples[(multiples > 1.05) & (multiples < 20.5)]
    fits = np.abs(multiples - np.rint(multiples)) < 0.05
    unit_share = float(fits.mean()) if len(fits) >= MIN_TELLING else 0.0
    spread = float(sums.std() / sums.mean())
    total = _rounded(float(np.median(sums)))
    return _Reading(base, spread, total, float(sums.max()), smallest, unit_share, len(fits))


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
    """Find the usual total with which nearly every cell has a whole number of counts, T / its smallest value.

    This also shows where genes were removed, but not in values rounded to three decimals.
    """

    def fits(total: float) -> bool:
        counts = total / smallest
        return bool(np.mean(np.abs(counts - np.rint(counts)) < TOTAL_TOLERANCE) >= MIN_TOTAL_SHARE)

    # Multiples of the right total fit as well.
    right = (total for total in USUAL_TOTALS if fits(total) and not fits(total / 2) and not fits(total / 5))
    return next(right, None) if len(smallest) >= MIN_CELLS else None


def _sums(rows: sparse.csr_matrix, base: float) -> np.ndarray:
    """Add up the values of each cell before a logarithm to this base."""
    return np.add.reduceat(np.expm1(rows.data * math.log(base)), rows.indptr[:-1])


def _groups(rows: sparse.csr_matrix) -> tuple[tuple[float, float], ...]:
    """Find base and total of the cells that were normalised together; none if too many cells are in no such group."""
    sums = {base: _sums(rows, base) for base in BASE_NAMES}
    left = np.ones(rows.shape[0], dtype=bool)
    found = []
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
        found.append((base, _rounded(total)))
    return tuple(found)


@dataclass(kw_only=True)
class Candidate:
    """One place of an AnnData that may hold expression, and its values."""

    source: str
    x: Rows
    kind: str = "unusable"  # counts, linear, log1p, or unusable
    text: str = ""  # for people
    log: Logarithm = field(default_factory=Logarithm)  # of log1p values
    prepared: bool = False  # `preprocess` wrote it, by its mark
    largest: float = 0.0
    doubt: str = ""  # what the values probably are instead, for people
    # Of each cell: the expressed genes, the sum of the values, and the smallest one above 0 where some are not whole.
    num_expressed: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    sums: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    lowest: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    mixed: list[tuple[str, np.ndarray]] = field(default_factory=list)  # in a mix: each kind and its rows

    @property
    def num_empty(self) -> int:
        """Cells without values."""
        return int((self.num_expressed == 0).sum())

    def sizes(self) -> tuple[np.ndarray, str]:
        """Return the counts of each cell; or, where the values do not show them, its number of expressed genes."""
        if self.kind == "counts":
            return self.sums, "counts"
        filled = self.num_expressed > 0
        sizes = np.zeros(len(self.lowest))
        if self.kind == "linear":
            sizes[filled] = self.sums[filled] / self.lowest[filled]
        elif self.log.total is not None and self.log.base is not None and not self.log.relative:
            sizes[filled] = self.log.total / np.expm1(self.lowest[filled] * math.log(self.log.base))
        else:
            return self.num_expressed, "genes"
        return np.rint(sizes), "counts"


def _per_row(block: Matrix, flags: np.ndarray) -> np.ndarray:
    """Count the flagged stored values of each row; int32."""
    if not isinstance(block, sparse.csr_matrix):
        return np.asarray(flags.sum(axis=1, dtype=np.int32))
    counted = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    return np.diff(counted[block.indptr]).astype(np.int32)


def _lowest(block: Matrix) -> np.ndarray:
    """Return the smallest value above 0 of each row; 0 without any."""
    if not isinstance(block, sparse.csr_matrix):
        lowest = np.where(block > 0, block, np.inf).min(axis=1, initial=np.inf)
    else:
        lowest = np.full(block.shape[0], np.inf)
        starts = block.indptr[:-1][np.diff(block.indptr) > 0]
        if len(starts):
            positive = np.where(block.data > 0, block.data, np.inf)
            lowest[np.diff(block.indptr) > 0] = np.minimum.reduceat(positive, starts)
    return np.where(np.isfinite(lowest), lowest, 0)


def _rows_with(block: Matrix, flags: np.ndarray) -> np.ndarray:
    """Find the rows that have any of the flagged stored values."""
    if not sparse.issparse(block):
        return np.asarray(flags.any(axis=1))
    assert isinstance(block, sparse.csr_matrix)
    found = np.zeros(block.shape[0], dtype=bool)
    found[np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))[flags]] = True
    return found


def _judge_decimals(slot: Candidate, whole: np.ndarray, highest: np.ndarray) -> None:
    """Judge values with decimals: logarithms, linear values, or logarithms in some cells and other values in others."""
    filled = slot.num_expressed > 0
    sums = slot.sums
    small = np.flatnonzero(~whole & (highest <= MAX_LOG))
    sampled = small[np.unique(np.linspace(0, len(small) - 1, min(len(small), MAX_SAMPLED_CELLS)).astype(int))]
    seen = recognise(slot.x.some(sampled)) if len(sampled) else Logarithm()
    if seen.base is not None and seen.confirmed:
        too_large = np.flatnonzero(~whole & (highest > MAX_LOG))
        counts = np.flatnonzero(whole & filled & (sums >= MIN_MIXED_SUM))
        bases = dict.fromkeys([seen.base, *(base for base, _ in seen.groups)])
        base_of = np.full(slot.x.shape[0], seen.base)  # cells of no group have the base of the largest group
        for start in range(0, len(small) if len(bases) > 1 else 0, MAX_SAMPLED_CELLS):
            some = small[start : start + MAX_SAMPLED_CELLS]
            cells = slot.x.some(some)
            for base, total in reversed(seen.groups):
                base_of[some[np.abs(_sums(cells, base) / total - 1) < GROUP_SPREAD]] = base
        if len(bases) > 1 or len(counts) or len(too_large):
            names = BASE_NAMES if len(bases) > 1 else {seen.base: "logarithms"}
            parts = [("counts", counts), ("values that are too large for logarithms", too_large)]
            parts += [(names[base], small[base_of[small] == base]) for base in bases]
            slot.mixed = [(kind, rows) for kind, rows in parts if len(rows)]
            slot.text = " and ".join(f"{kind} in {len(rows)} cells" for kind, rows in slot.mixed)
            return
    slot.doubt = _doubt(slot, seen)
    if slot.largest > MAX_LOG or seen.base is None:
        per_million = seen.total == 1e6 or np.allclose(sums[filled], 1e6, rtol=0.01)
        other = "values that are neither counts nor logarithms"
        slot.kind = "linear"
        slot.text = "values per million (TPM or CPM)" if per_million else other
        return
    slot.kind = "log1p"
    slot.log = seen
    slot.text = f"values up to {slot.largest:.4g} that look like logarithms"
    if seen.confirmed:
        totals = " or ".join(f"{total:g}" for _, total in seen.groups or [(seen.base, seen.total)] if total)
        slot.text = f"log1p ({BASE_NAMES[seen.base]}{f', {totals} counts per cell' if totals else ''})"


def judge_over_all(slot: Candidate, x: Rows) -> None:
    """Find out if log1p values of genes were normalised with all features of `x`; totals are then the genes' sums."""
    filled = np.flatnonzero(slot.num_expressed)
    chosen = filled[np.unique(np.linspace(0, len(filled) - 1, min(len(filled), MAX_SAMPLED_CELLS)).astype(int))]
    rows = x.some(chosen)
    if len(chosen) < MIN_GROUP or rows.data.min(initial=0) < 0 or rows.data.max(initial=0) > MAX_LOG:
        return
    rows.eliminate_zeros()
    own = slot.x.some(chosen)
    own.eliminate_zeros()
    if any(_read(own, base).is_steady for base in BASE_NAMES) or len(_groups(own)) > 1:
        return
    seen = recognise(rows)
    if seen.base is not None and (_read(rows, seen.base).is_steady or len(seen.groups) > 1):
        slot.log = Logarithm(seen.base, relative=True, over_all=True)
        slot.doubt = ""
        slot.text = f"log1p ({BASE_NAMES[seen.base]}, normalised with features that are no genes)"


def _undone(rows: sparse.csr_matrix, undo: Callable[[np.ndarray], np.ndarray]) -> sparse.csr_matrix:
    """Return the values before a transformation that `undo` reverts."""
    return sparse.csr_matrix((undo(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def _linear(rows: sparse.csr_matrix, base: float | None) -> sparse.csr_matrix:
    """Return the values before a logarithm to this base; None: there was none."""
    return rows if base is None else _undone(rows, lambda values: np.expm1(values * math.log(base)))


def _is_scaled(rows: sparse.csr_matrix) -> bool:
    """Whether nearly all genes have the same standard deviation, as after scaling without centring."""
    num_cells = rows.shape[0]
    means, squares = (np.asarray(x.mean(axis=0)).ravel() for x in (rows, rows.multiply(rows)))
    often = np.bincount(rows.indices, minlength=rows.shape[1]) >= max(SCALED_SHARE * num_cells, 10)
    if often.sum() < MIN_SCALED_GENES:
        return False
    variances = np.maximum(squares - means**2, 0)[often] * num_cells / (num_cells - 1)
    few, median, most = np.quantile(np.sqrt(variances), [0.1, 0.5, 0.9])
    return bool(few > (1 - SCALED_TOLERANCE) * median and most < (1 + SCALED_TOLERANCE) * median)


def _doubt(slot: Candidate, seen: Logarithm) -> str:
    """Return what values with decimals probably are, if they are neither logarithms nor linear values; else ""."""
    filled = np.flatnonzero(slot.num_expressed)
    chosen = filled[np.unique(np.linspace(0, len(filled) - 1, min(len(filled), MAX_SAMPLED_CELLS)).astype(int))]
    rows = slot.x.some(chosen)
    rows.eliminate_zeros()
    some = rows[np.unique(np.linspace(0, rows.shape[0] - 1, min(rows.shape[0], DOUBTED_CELLS)).astype(int))]
    bases = tuple(BASE_NAMES) if slot.largest <= MAX_LOG else ()
    readings = [_read(some, base) for base in (*bases, None)]
    if any(reading.is_whole for reading in readings) or max(reading.num_telling for reading in readings) < MIN_TELLING:
        return ""  # they come from counts, or are too few
    if seen.total is None and not seen.groups:
        squares = _read(_undone(some, np.square), None)
        if squares.is_whole:
            return "square roots (their squares are multiples of one count)"
        if squares.is_steady and some.shape[0] >= MIN_GROUP:
            return "cells that were scaled to one length (the squares of their values have one sum)"
        if bases and _read(_undone(some, np.sinh), None).is_whole:
            return "inverse hyperbolic sines of counts (arcsinh)"
        for base in bases:
            single = _linear(some, base)
            if single.data.max(initial=0) > MAX_LOG:
                continue
            twice = [_read(single, other) for other in BASE_NAMES]
            if any(reading.is_whole or (reading.is_steady and some.shape[0] >= MIN_GROUP) for reading in twice):
                return "logarithms of logarithms (log1p was applied twice)"
        if _is_scaled(rows):
            return "values that were scaled without centring (all genes have the same standard deviation)"
        if slot.largest <= 1:
            return "values that were scaled to at most 1 (by the maximum of each gene?)"
    linear = _linear(some, seen.base)
    starts = linear.indptr[:-1]
    ratios = np.maximum.reduceat(linear.data, starts) / np.minimum.reduceat(linear.data, starts)
    if np.median(ratios) < FLAT and np.median(np.diff(linear.indptr)) >= MIN_FLAT_GENES:
        how = "logarithms that were " + ("normalised" if seen.base is None else "normalised and logged again")
        return f"{how} (the values of a cell differ by a factor of {np.median(ratios):.1f} only)"
    return ""


def judge(source: str, matrix: Matrix | Rows) -> Candidate:
    """Say what the values of a matrix, cells x genes, are; `source` is the name of its place.

    All values are checked for NaN, negative and whole numbers. Up to 2,000 cells show whether values are logarithms,
    and their base and total. A sparse matrix is never made dense.
    """
    x = matrix if isinstance(matrix, Rows) else Rows(matrix)
    if x.dtype.kind not in "buif":
        return Candidate(source=source, x=x, text=f"not numbers ({x.dtype})")
    num_bad = 0
    low = 0.0
    high = 0.0
    # For each cell: its expressed genes; all values are whole numbers; the highest of a cell that is not whole; their
    # sum; the smallest one.
    num_expressed = np.zeros(x.shape[0], dtype=np.int32)
    whole = np.ones(x.shape[0], dtype=bool)
    highest, sums, lowest = (np.zeros(x.shape[0], dtype=np.float32) for _ in range(3))
    with np.errstate(over="ignore"):  # values that overflow are refused below
        for start, block in x.blocks():
            values = np.asarray(block.data if sparse.issparse(block) else block)
            if values.size and values.dtype.kind == "f" and not np.isfinite(values).all():
                num_bad += int(values.size - np.count_nonzero(np.isfinite(values)))
                continue
            if values.size:
                low = min(low, float(values.min()))
                high = max(high, float(values.max()))
            rows = slice(start, start + block.shape[0])
            sums[rows] = np.asarray(block.sum(axis=1, dtype=np.float64)).ravel()
            num_expressed[rows] = _per_row(block, values != 0)
            lowest[rows] = 1
            if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
                whole[rows] = ~_rows_with(block, values != np.rint(values))
                top = block.max(axis=1)
                highest[rows] = np.asarray(top.todense() if sparse.issparse(block) else top).ravel()
                lowest[rows] = _lowest(block)
    slot = Candidate(source=source, x=x, largest=high, num_expressed=num_expressed, sums=sums, lowest=lowest)
    if num_bad:
        slot.text = f"{num_bad} NaN or infinite value{'s' if num_bad > 1 else ''}"
    elif low < 0:
        slot.text = f"negative values down to {low:.4g}: scaled or centred"
    elif high > MOST:
        slot.text = f"values up to {high:.4g}, which is too large for expression"
    elif high == 0:
        slot.text = "nothing but zeros"
    elif whole.all():
        slot.kind = "counts"
        slot.text = "counts"
    else:
        _judge_decimals(slot, whole, highest)
    return slot
