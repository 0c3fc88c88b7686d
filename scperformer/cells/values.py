"""Judge what the values of a matrix are: counts, log1p values (with base and total), linear, or unusable."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import sparse

from scperformer.io.rows import Rows

ASSUMED_TOTAL = 1e4  # counts per cell, if the total cannot be recognised
MAX_ASSUMED_SUM = 1.01 * ASSUMED_TOTAL  # cells normalised to the assumed total have no larger sum
USUAL_TOTALS = (1e4, 1e5, 1e6)  # counts per cell, which are recognised even if genes were removed after normalisation
BASE_NAMES = {math.e: "natural logarithm", 2.0: "logarithm to base 2", 10.0: "logarithm to base 10"}
MAX_SPREAD = 0.01  # coefficient of variation of the cells' sums, below which all cells have the same total
# Values are multiples of one count if this share of them are whole multiples of their cell's smallest value. A share of
# 0.1 is expected by chance.
MIN_WHOLE_SHARE = 0.9
MAX_MULTIPLE = 20.5  # higher multiples of one count are blurred if values were rounded to three decimals
WHOLE_TOLERANCE = 0.05  # a multiple of one count may differ from a whole number by this much
MIN_MULTIPLES = 50  # with fewer multiples, the share means nothing
MIN_CELLS_FOR_TOTAL = 20  # cells whose smallest values show the total; a share of 0.04 of them would fit by chance
TOTAL_TOLERANCE = 0.02  # the count of a cell's smallest value may differ from a whole number by this much
MIN_TOTAL_SHARE = 0.9  # share of the cells for which the right total gives a whole count
GROUP_SPREAD = 0.002  # relative spread of the sums of cells that were normalised together, even of rounded values
MIN_GROUP = 5  # cells
MIN_GROUP_SHARE = 0.02  # share of the cells that a group must have
MIN_GROUPED_SHARE = 0.95  # groups are only used if they have this share of the cells together
MAX_LOG = 25.0  # e**25 counts are more than any cell has, in any base that is in use
MAX_VALUE = 1e15  # larger whole numbers are not exact even in float64, and float32 ends at 3e38
MAX_SAMPLED_CELLS = 2000
MIN_MIXED_SUM = 50.0  # whole numbers with a smaller sum may be logarithms by chance
NUM_DOUBTED_CELLS = 500  # sampled to check whether values with decimals are what they look like
MIN_DYNAMIC_RANGE = 20.0  # largest / smallest value of a cell; expression has a ratio of 100 and more
MIN_RANGE_GENES = 100  # expressed genes of a cell, for this ratio to mean something
MIN_SCALED_SHARE = 0.1  # genes expressed in this share of the cells have their standard deviations compared
MIN_SCALED_CELLS = 10  # genes expressed in fewer cells are not compared, however small the file is
MIN_SCALED_GENES = 20  # with fewer such genes, they are not compared
SCALED_TOLERANCE = 0.1  # relative difference from the median, below which most standard deviations are the same


class Logarithm(NamedTuple):
    """How values were transformed from counts."""

    base: float | None = None  # e, 2 or 10; None: the values are not logarithms
    total: float | None = None  # total of a cell before the logarithm; None: not recognised
    confirmed: bool = True  # False: only the range of the values suggests logarithms
    relative: bool = False  # the total is not a usual total, and the smallest value of each cell is one count
    too_large: bool = False  # not confirmed, and the values would exceed the usual total as natural logarithms
    over_all: bool = False  # cells were normalised over more features than the genes, so the genes' sums are smaller
    # Base and total of each group of cells that were normalised together, the largest group first; for several groups.
    groups: tuple[tuple[float, float], ...] = ()


@dataclass(kw_only=True)
class Candidate:
    """A place of an AnnData that may hold the expression, and the kind of its values."""

    source: str  # X, raw or layers/NAME
    x: Rows
    kind: str = "unusable"  # counts, linear, log1p, or unusable
    text: str = ""  # what the values are, for users
    log: Logarithm = field(default_factory=Logarithm)  # how log1p values were transformed
    prepared: bool = False  # written by `preprocess`, according to its mark in uns
    largest: float = 0.0  # largest value
    doubt: str = ""  # what the values probably are instead, for users
    num_expressed: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # genes of each cell
    sums: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))  # sum of each cell's values
    mixed: list[tuple[str, np.ndarray]] = field(default_factory=list)  # in a mix, each kind of values and its rows

    def sample(self) -> sparse.csr_matrix:
        """Return up to 2,000 cells with expression, without stored zeros, float64."""
        filled = np.flatnonzero(self.num_expressed)
        rows = self.x.some(filled[evenly_spaced(len(filled), MAX_SAMPLED_CELLS)])
        rows.eliminate_zeros()
        return rows


def undo_log1p(values: np.ndarray, base: float | None) -> np.ndarray:
    """Return the values before log1p to this base; without a base, the values themselves."""
    return values if base is None else np.expm1(values * math.log(base))


def evenly_spaced(num: int, most: int) -> np.ndarray:
    """Return up to `most` evenly spaced positions from 0 to `num` - 1, ascending; int64."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int))


class _Hypothesis:
    """Properties of cells, none of them empty, if their values before a transformation were `linear`."""

    def __init__(self, rows: sparse.csr_matrix, linear: np.ndarray):
        starts = rows.indptr[:-1]
        self.sums = np.add.reduceat(linear, starts)
        self.smallest = np.minimum.reduceat(linear, starts)
        multiples = linear / np.repeat(self.smallest, np.diff(rows.indptr))
        # The smallest value itself always fits, so it does not count.
        multiples = multiples[(multiples > 1 + WHOLE_TOLERANCE) & (multiples < MAX_MULTIPLE)]
        self.num_multiples = len(multiples)
        # Share of the multiples of a cell's smallest value (one count) that are whole numbers.
        fits = np.abs(multiples - np.rint(multiples)) < WHOLE_TOLERANCE
        self.whole_share = float(fits.mean()) if len(fits) >= MIN_MULTIPLES else 0.0
        self.has_whole_counts = self.whole_share >= MIN_WHOLE_SHARE
        self.spread = float(self.sums.std() / self.sums.mean())
        self.has_one_total = self.spread < MAX_SPREAD
        self.total = _rounded(float(np.median(self.sums)))


def _assume(rows: sparse.csr_matrix, base: float | None) -> _Hypothesis:
    return _Hypothesis(rows, undo_log1p(rows.data, base))


def _rounded(total: float) -> float:
    """Round a total to a power of ten within 1 %, as a few genes may have been removed, or to a half within float32.

    The median of counts, to which scanpy normalises by default, is a whole number or a half.
    """
    power = 10.0 ** round(math.log10(total))
    if abs(total / power - 1) < 0.01:
        return power
    half = round(2 * total) / 2
    return half if half and abs(total / half - 1) < 1e-5 else total


def recognise(rows: sparse.csr_matrix) -> Logarithm:
    """Recognise whether small values with decimals are logarithms, and their base and total.

    With the right base, all cells have the same sum, or the values of each cell are multiples of its smallest value,
    which is one count. If neither is true for any base, the values are taken for unconfirmed natural logarithms.

    Parameters
    ----------
    rows
        Cells x genes, float64, without negative values and empty cells. Stored zeros are removed in place.
    """
    rows.eliminate_zeros()
    hypotheses: dict[float | None, _Hypothesis] = {base: _assume(rows, base) for base in (*BASE_NAMES, None)}
    base = min(hypotheses, key=lambda base: hypotheses[base].spread)
    # A single cell always has a constant sum, so with few cells the total must be a power of ten.
    total = hypotheses[base].total
    if hypotheses[base].has_one_total and (rows.shape[0] >= MIN_GROUP or math.log10(total).is_integer()):
        return Logarithm(base, total)
    groups = _groups(rows)
    if len(groups) > 1:
        return Logarithm(groups[0][0], relative=True, groups=groups)
    base = max(hypotheses, key=lambda base: hypotheses[base].whole_share)  # of equals, the first: the natural logarithm
    best = hypotheses[base]
    if not best.has_whole_counts:
        return Logarithm(math.e, confirmed=False, too_large=hypotheses[math.e].sums.max() > MAX_ASSUMED_SUM)
    never_normalised = np.ptp(best.smallest) < 1e-3 * best.smallest.mean()
    usual = None if never_normalised else _usual_total(best.smallest)
    # A cell cannot add up to more than the total it was normalised to.
    is_unusual = usual is None and (never_normalised or best.sums.max() > MAX_ASSUMED_SUM)
    return Logarithm(base, usual, relative=bool(is_unusual) and base is not None)


def _usual_total(smallest: np.ndarray) -> float | None:
    """Find the usual total for which nearly every cell has a whole number of counts, total / smallest value.

    This also works if genes were removed, but not for values rounded to three decimals.
    """

    def fits(total: float) -> bool:
        counts = total / smallest
        return bool(np.mean(np.abs(counts - np.rint(counts)) < TOTAL_TOLERANCE) >= MIN_TOTAL_SHARE)

    # Multiples of the right total fit as well.
    fitting = (total for total in USUAL_TOTALS if fits(total) and not fits(total / 2) and not fits(total / 5))
    return next(fitting, None) if len(smallest) >= MIN_CELLS_FOR_TOTAL else None


def _groups(rows: sparse.csr_matrix) -> tuple[tuple[float, float], ...]:
    """Find base and total of each group of cells normalised together; () if too many cells are in no group."""
    sums = {base: _assume(rows, base).sums for base in BASE_NAMES}
    left = np.ones(rows.shape[0], dtype=bool)
    groups = []
    while left.sum() > (1 - MIN_GROUPED_SHARE) * len(left):
        densest = []  # for each base, the most cells with nearly the same sum
        for base, sums_of_base in sums.items():
            ordered = np.sort(sums_of_base[left])
            stops = np.searchsorted(ordered, ordered * (1 + GROUP_SPREAD), side="right")
            start = int((stops - np.arange(len(ordered))).argmax())
            cells = ordered[start : stops[start]]
            densest.append((len(cells), float(np.median(cells)), base))
        size, total, base = max(densest)
        if size < max(MIN_GROUP, MIN_GROUP_SHARE * len(left)):
            return ()
        left &= np.abs(sums[base] / total - 1) >= GROUP_SPREAD
        groups.append((base, _rounded(total)))
    return tuple(groups)


def judge(source: str, x: Rows) -> Candidate:
    """Judge what the values of a matrix, cells x genes, are; `source` is the name of its place.

    All values are checked for NaN, negative and whole numbers. A sample of up to 2,000 cells shows whether values are
    logarithms, and their base and total.
    """
    if x.dtype.kind not in "buif":
        return Candidate(source=source, x=x, text=f"not numbers ({x.dtype})")
    num_not_finite = 0
    low = 0.0
    high = 0.0
    num_expressed = np.zeros(x.shape[0], dtype=np.int32)
    is_whole = np.ones(x.shape[0], dtype=bool)
    highest, sums = (np.zeros(x.shape[0], dtype=np.float32) for _ in range(2))
    with np.errstate(over="ignore"):  # values that overflow are refused below
        for start, stored in x.blocks():
            block = sparse.csr_matrix(stored)
            values = block.data
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                num_not_finite += int(values.size - np.count_nonzero(np.isfinite(values)))
                continue
            low = min(low, float(values.min(initial=0)))
            high = max(high, float(values.max(initial=0)))
            rows = slice(start, start + block.shape[0])
            sums[rows] = np.asarray(block.sum(axis=1, dtype=np.float64)).ravel()
            num_expressed[rows] = _by_row(np.add, block, (values != 0).astype(np.int32))
            if values.dtype.kind == "f" and (is_fraction := values != np.rint(values)).any():
                is_whole[rows] = ~_by_row(np.logical_or, block, is_fraction)
                highest[rows] = _by_row(np.maximum, block, values)
    candidate = Candidate(source=source, x=x, largest=high, num_expressed=num_expressed, sums=sums)
    if num_not_finite:
        candidate.text = f"{num_not_finite} NaN or infinite value{'s' if num_not_finite > 1 else ''}"
    elif low < 0:
        candidate.text = f"negative values down to {low:.4g}: scaled or centred"
    elif high > MAX_VALUE:
        candidate.text = f"values up to {high:.4g}, which is too large for expression"
    elif high == 0:
        candidate.text = "nothing but zeros"
    elif is_whole.all():
        candidate.kind = "counts"
        candidate.text = "counts"
    else:
        _judge_decimals(candidate, is_whole, highest)
    return candidate


def _by_row(reduce: np.ufunc, rows: sparse.csr_matrix, values: np.ndarray) -> np.ndarray:
    """Reduce values, one for each stored value, within each row; 0 for rows without stored values."""
    is_filled = np.diff(rows.indptr) > 0
    reduced = np.zeros(rows.shape[0], dtype=values.dtype)
    if is_filled.any():
        reduced[is_filled] = reduce.reduceat(values, rows.indptr[:-1][is_filled])
    return reduced


def _judge_decimals(candidate: Candidate, is_whole: np.ndarray, highest: np.ndarray) -> None:
    """Judge values with decimals, and write kind, text, log, doubt or mixed of the candidate.

    `is_whole` tells which cells have only whole numbers; `highest` is the largest value of each of the others.
    """
    small = np.flatnonzero(~is_whole & (highest <= MAX_LOG))
    sampled = small[evenly_spaced(len(small), MAX_SAMPLED_CELLS)]
    log = recognise(candidate.x.some(sampled)) if len(sampled) else Logarithm()
    if log.base is not None and log.confirmed:
        too_large = np.flatnonzero(~is_whole & (highest > MAX_LOG))
        counts = np.flatnonzero(is_whole & (candidate.num_expressed > 0) & (candidate.sums >= MIN_MIXED_SUM))
        candidate.mixed = _mixed_kinds(candidate.x, log, counts=counts, small=small, too_large=too_large)
        if candidate.mixed:
            candidate.text = " and ".join(f"{kind} in {len(rows)} cells" for kind, rows in candidate.mixed)
            return
    candidate.doubt = _doubt(candidate, log)
    if candidate.largest > MAX_LOG or log.base is None:
        per_million = log.total == 1e6 or np.allclose(candidate.sums[candidate.num_expressed > 0], 1e6, rtol=0.01)
        other = "values that are neither counts nor logarithms"
        candidate.kind = "linear"
        candidate.text = "values per million (TPM or CPM)" if per_million else other
        return
    candidate.kind = "log1p"
    candidate.log = log
    candidate.text = f"values up to {candidate.largest:.4g} that look like logarithms"
    if log.confirmed:
        totals = " or ".join(f"{total:g}" for _, total in log.groups or [(log.base, log.total)] if total)
        candidate.text = f"log1p ({BASE_NAMES[log.base]}{f', {totals} counts per cell' if totals else ''})"


def _mixed_kinds(
    x: Rows, log: Logarithm, *, counts: np.ndarray, small: np.ndarray, too_large: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    """Return each kind of values and its rows if not all cells are logarithms to the same base; [] if they are."""
    bases: list[float | None] = list(dict.fromkeys([log.base, *(base for base, _ in log.groups)]))
    if len(bases) == 1 and not len(counts) and not len(too_large):
        return []
    base_of_cell = np.full(len(small), log.base)  # cells of no group have the base of the largest group
    for start in range(0, len(small) if len(bases) > 1 else 0, MAX_SAMPLED_CELLS):
        part = slice(start, start + MAX_SAMPLED_CELLS)
        cells = x.some(small[part])
        cells.eliminate_zeros()
        for group_base, total in reversed(log.groups):
            base_of_cell[part][np.abs(_assume(cells, group_base).sums / total - 1) < GROUP_SPREAD] = group_base
    kinds = [("counts", counts), ("values that are too large for logarithms", too_large)]
    for base in bases:
        name = BASE_NAMES[base] if base is not None and len(bases) > 1 else "logarithms"
        kinds.append((name, small[base_of_cell == base]))
    return [(kind, rows) for kind, rows in kinds if len(rows)]


def judge_over_all(candidate: Candidate, x: Rows) -> None:
    """Recognise log1p values of genes that were normalised together with non-gene features.

    `x` has all features of the place, while the candidate has only the genes. If the sums of cells are equal over all
    features but not over the genes, cells are normalised again by the sum of their genes.
    """
    filled = np.flatnonzero(candidate.num_expressed)
    rows = x.some(filled[evenly_spaced(len(filled), MAX_SAMPLED_CELLS)])
    genes = candidate.sample()
    if rows.shape[0] < MIN_GROUP or rows.data.min(initial=0) < 0 or rows.data.max(initial=0) > MAX_LOG:
        return
    if any(_assume(genes, base).has_one_total for base in BASE_NAMES) or len(_groups(genes)) > 1:
        return
    log = recognise(rows)
    if log.base is not None and (_assume(rows, log.base).has_one_total or len(log.groups) > 1):
        candidate.log = Logarithm(log.base, relative=True, over_all=True)
        candidate.doubt = ""
        candidate.text = f"log1p ({BASE_NAMES[log.base]}, normalised with non-gene features)"


def _doubt(candidate: Candidate, log: Logarithm) -> str:
    """Return what values with decimals probably are if they are neither logarithms nor linear values; else ""."""
    rows = candidate.sample()
    few = rows[evenly_spaced(rows.shape[0], NUM_DOUBTED_CELLS)]
    bases = tuple(BASE_NAMES) if candidate.largest <= MAX_LOG else ()
    hypotheses = [_assume(few, base) for base in (*bases, None)]
    too_few = max(hypothesis.num_multiples for hypothesis in hypotheses) < MIN_MULTIPLES
    if too_few or any(hypothesis.has_whole_counts for hypothesis in hypotheses):
        return ""  # too few values to doubt, or values that come from counts
    if log.total is None and not log.groups:
        squares = _Hypothesis(few, np.square(few.data))
        if squares.has_whole_counts:
            return "square roots (their squares are multiples of one count)"
        if squares.has_one_total and few.shape[0] >= MIN_GROUP:
            return "cells that were scaled to one length (the squares of their values have one sum)"
        if bases and _Hypothesis(few, np.sinh(few.data)).has_whole_counts:
            return "inverse hyperbolic sines of counts (arcsinh)"
        for values in (undo_log1p(few.data, base) for base in bases):
            twice = [_Hypothesis(few, undo_log1p(values, base)) for base in bases if values.max(initial=0) <= MAX_LOG]
            if any(each.has_whole_counts or (each.has_one_total and few.shape[0] >= MIN_GROUP) for each in twice):
                return "logarithms of logarithms (log1p was applied twice)"
        if _is_scaled(rows):
            return "values that were scaled without centring (all genes have the same standard deviation)"
        if candidate.largest <= 1:
            return "values that were scaled to at most 1 (by the maximum of each gene?)"
    linear = undo_log1p(few.data, log.base)
    starts = few.indptr[:-1]
    ratio = np.median(np.maximum.reduceat(linear, starts) / np.minimum.reduceat(linear, starts))
    if ratio < MIN_DYNAMIC_RANGE and np.median(np.diff(few.indptr)) >= MIN_RANGE_GENES:
        how = "logarithms that were " + ("normalised" if log.base is None else "normalised and logged again")
        return f"{how} (the values of a cell differ only by a factor of {ratio:.1f})"
    return ""


def _is_scaled(rows: sparse.csr_matrix) -> bool:
    """Whether nearly all genes have the same standard deviation, as after scaling without centring."""
    num_cells = rows.shape[0]
    means, squares = (np.asarray(x.mean(axis=0)).ravel() for x in (rows, rows.multiply(rows)))
    min_cells = max(MIN_SCALED_SHARE * num_cells, MIN_SCALED_CELLS)
    is_frequent = np.bincount(rows.indices, minlength=rows.shape[1]) >= min_cells
    if is_frequent.sum() < MIN_SCALED_GENES:
        return False
    variances = np.maximum(squares - means**2, 0)[is_frequent] * num_cells / (num_cells - 1)
    low, median, high = np.quantile(np.sqrt(variances), [0.1, 0.5, 0.9])
    return bool(low > (1 - SCALED_TOLERANCE) * median and high < (1 + SCALED_TOLERANCE) * median)
