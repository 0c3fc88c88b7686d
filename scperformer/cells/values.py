"""Judge what the values of a matrix are: counts, log1p values (with base and total), linear, or unusable."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import sparse

from scperformer.files import Matrix, Rows

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


class _Hypothesis(NamedTuple):
    """Properties that some cells would have if their values were logarithms to a base."""

    base: float | None  # None: the values are not logarithms
    spread: float  # coefficient of variation of the cells' sums
    total: float  # median of the cells' sums
    largest_sum: float
    smallest: np.ndarray  # smallest value of each cell
    whole_share: float  # share of the multiples of a cell's smallest value (one count) that are whole numbers
    num_multiples: int  # values that are compared with the smallest value of their cell

    @property
    def has_one_total(self) -> bool:
        """Whether all cells have the same sum."""
        return self.spread < MAX_SPREAD

    @property
    def has_whole_counts(self) -> bool:
        """Whether values are multiples of one count."""
        return self.whole_share >= MIN_WHOLE_SHARE


def undo_log1p(values: np.ndarray, base: float) -> np.ndarray:
    """Return the values before log1p to this base."""
    return np.expm1(values * math.log(base))


def evenly_spaced(num: int, most: int) -> np.ndarray:
    """Return up to `most` evenly spaced positions from 0 to `num` - 1, ascending; int64."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int))


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
    hypotheses = [_assume(rows, base) for base in (*BASE_NAMES, None)]
    steadiest = min(hypotheses, key=lambda hypothesis: hypothesis.spread)
    # A single cell always has a constant sum, so with few cells the total must be a power of ten.
    if steadiest.has_one_total and (rows.shape[0] >= MIN_GROUP or math.log10(steadiest.total).is_integer()):
        return Logarithm(steadiest.base, steadiest.total)
    groups = _groups(rows)
    if len(groups) > 1:
        return Logarithm(groups[0][0], relative=True, groups=groups)
    best = max(hypotheses, key=lambda hypothesis: hypothesis.whole_share)  # of equals, the first: the natural logarithm
    if not best.has_whole_counts:
        return Logarithm(math.e, confirmed=False, too_large=hypotheses[0].largest_sum > MAX_ASSUMED_SUM)
    never_normalised = np.ptp(best.smallest) < 1e-3 * best.smallest.mean()
    total = None if never_normalised else _usual_total(best.smallest)
    # A cell cannot add up to more than the total it was normalised to.
    is_unusual = total is None and (never_normalised or best.largest_sum > MAX_ASSUMED_SUM)
    return Logarithm(best.base, total, relative=bool(is_unusual) and best.base is not None)


def _assume(rows: sparse.csr_matrix, base: float | None) -> _Hypothesis:
    """Measure cells as if their values were logarithms to a base, or, with None, no logarithms."""
    linear = rows.data if base is None else undo_log1p(rows.data, base)
    starts = rows.indptr[:-1]
    sums = np.add.reduceat(linear, starts)
    smallest = np.minimum.reduceat(linear, starts)
    multiples = linear / np.repeat(smallest, np.diff(rows.indptr))
    # The smallest value itself always fits, so it does not count.
    multiples = multiples[(multiples > 1 + WHOLE_TOLERANCE) & (multiples < MAX_MULTIPLE)]
    fits = np.abs(multiples - np.rint(multiples)) < WHOLE_TOLERANCE
    whole_share = float(fits.mean()) if len(fits) >= MIN_MULTIPLES else 0.0
    spread = float(sums.std() / sums.mean())
    total = _rounded(float(np.median(sums)))
    return _Hypothesis(base, spread, total, float(sums.max()), smallest, whole_share, len(fits))


def _rounded(total: float) -> float:
    """Round a total to a power of ten within 1 %, as a few genes may have been removed, or to a half within float32.

    The median of counts, to which scanpy normalises by default, is a whole number or a half.
    """
    power = 10.0 ** round(math.log10(total))
    if abs(total / power - 1) < 0.01:
        return power
    half = round(2 * total) / 2
    return half if half and abs(total / half - 1) < 1e-5 else total


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


def _sums(rows: sparse.csr_matrix, base: float) -> np.ndarray:
    """Add up the values of each cell before log1p to this base."""
    return np.add.reduceat(undo_log1p(rows.data, base), rows.indptr[:-1])


def _groups(rows: sparse.csr_matrix) -> tuple[tuple[float, float], ...]:
    """Find base and total of each group of cells normalised together; () if too many cells are in no group."""
    sums = {base: _sums(rows, base) for base in BASE_NAMES}
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


@dataclass(kw_only=True)
class Candidate:
    """A place of an AnnData whose values were judged as a candidate for the expression, and what they are.

    Users are told about each of them as a `Place`, and about the chosen one in `Findings`.
    """

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
    # Smallest value above 0 of each cell; 1 in a block of rows with whole numbers only.
    lowest: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    mixed: list[tuple[str, np.ndarray]] = field(default_factory=list)  # in a mix, each kind of values and its rows

    @property
    def num_empty(self) -> int:
        """The number of cells without expression."""
        return int((self.num_expressed == 0).sum())

    def sizes(self) -> tuple[np.ndarray, str]:
        """Return the counts of each cell, or the number of its expressed genes if the values do not show the counts."""
        if self.kind == "counts":
            return self.sums, "counts"
        filled = self.num_expressed > 0
        sizes = np.zeros(len(self.lowest))
        if self.kind == "linear":
            sizes[filled] = self.sums[filled] / self.lowest[filled]
        elif self.log.total is not None and self.log.base is not None and not self.log.relative:
            sizes[filled] = self.log.total / undo_log1p(self.lowest[filled], self.log.base)
        else:
            return self.num_expressed, "genes"
        return np.rint(sizes), "counts"


def _per_row(block: Matrix, flags: np.ndarray) -> np.ndarray:
    """Count the flagged stored values of each row; int32."""
    if not isinstance(block, sparse.csr_matrix):
        return np.asarray(flags.sum(axis=1, dtype=np.int32))
    cumulative = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    return np.diff(cumulative[block.indptr]).astype(np.int32)


def _lowest(block: Matrix) -> np.ndarray:
    """Return the smallest value above 0 of each row; 0 for a row without such values."""
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
    """Return which rows have any flagged stored value, boolean."""
    if not isinstance(block, sparse.csr_matrix):
        return np.asarray(flags.any(axis=1))
    has_any = np.zeros(block.shape[0], dtype=bool)
    has_any[np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))[flags]] = True
    return has_any


def _judge_decimals(candidate: Candidate, is_whole: np.ndarray, highest: np.ndarray) -> None:
    """Judge values with decimals: logarithms, linear values, or a mix of logarithms and other values.

    The result is written to `candidate`: kind, text, log and doubt, or text and mixed.

    Parameters
    ----------
    is_whole
        Whether each cell has only whole numbers, boolean, N.
    highest
        The largest value of each cell, N; only used for cells that have values with decimals.
    """
    small = np.flatnonzero(~is_whole & (highest <= MAX_LOG))
    sampled = small[evenly_spaced(len(small), MAX_SAMPLED_CELLS)]
    log = recognise(candidate.x.some(sampled)) if len(sampled) else Logarithm()
    if log.base is not None and log.confirmed:
        candidate.mixed = _mixed_kinds(candidate, log, is_whole, highest)
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
    candidate: Candidate, log: Logarithm, is_whole: np.ndarray, highest: np.ndarray
) -> list[tuple[str, np.ndarray]]:
    """Return each kind of values and its rows if not all cells are logarithms to the same base; [] if they are."""
    small = np.flatnonzero(~is_whole & (highest <= MAX_LOG))
    too_large = np.flatnonzero(~is_whole & (highest > MAX_LOG))
    counts = np.flatnonzero(is_whole & (candidate.num_expressed > 0) & (candidate.sums >= MIN_MIXED_SUM))
    assert log.base is not None
    bases = list(dict.fromkeys([log.base, *(base for base, _ in log.groups)]))
    if len(bases) == 1 and not len(counts) and not len(too_large):
        return []
    base_of_cell = np.full(candidate.x.shape[0], log.base)  # cells of no group have the base of the largest group
    for start in range(0, len(small) if len(bases) > 1 else 0, MAX_SAMPLED_CELLS):
        numbers = small[start : start + MAX_SAMPLED_CELLS]
        cells = candidate.x.some(numbers)
        for base, total in reversed(log.groups):
            base_of_cell[numbers[np.abs(_sums(cells, base) / total - 1) < GROUP_SPREAD]] = base
    kinds = [("counts", counts), ("values that are too large for logarithms", too_large)]
    for base in bases:
        kind = BASE_NAMES[base] if len(bases) > 1 else "logarithms"
        kinds.append((kind, small[base_of_cell[small] == base]))
    return [(kind, rows) for kind, rows in kinds if len(rows)]


def judge_over_all(candidate: Candidate, x: Rows) -> None:
    """Recognise log1p values of genes that were normalised together with features that are no genes.

    `x` has all features of the place, while the candidate has only the genes. If the sums of cells are equal over all
    features but not over the genes, cells are normalised again by the sum of their genes.
    """
    filled = np.flatnonzero(candidate.num_expressed)
    sampled = filled[evenly_spaced(len(filled), MAX_SAMPLED_CELLS)]
    rows = x.some(sampled)
    if len(sampled) < MIN_GROUP or rows.data.min(initial=0) < 0 or rows.data.max(initial=0) > MAX_LOG:
        return
    rows.eliminate_zeros()
    genes = candidate.x.some(sampled)
    genes.eliminate_zeros()
    if any(_assume(genes, base).has_one_total for base in BASE_NAMES) or len(_groups(genes)) > 1:
        return
    log = recognise(rows)
    if log.base is not None and (_assume(rows, log.base).has_one_total or len(log.groups) > 1):
        candidate.log = Logarithm(log.base, relative=True, over_all=True)
        candidate.doubt = ""
        candidate.text = f"log1p ({BASE_NAMES[log.base]}, normalised with features that are no genes)"


def _transformed(rows: sparse.csr_matrix, function: Callable[[np.ndarray], np.ndarray]) -> sparse.csr_matrix:
    """Apply a function to the stored values."""
    return sparse.csr_matrix((function(rows.data), rows.indices, rows.indptr), shape=rows.shape)


def _linear(rows: sparse.csr_matrix, base: float | None) -> sparse.csr_matrix:
    """Return the values before log1p to this base, or the values themselves if the base is None."""
    return rows if base is None else _transformed(rows, lambda values: undo_log1p(values, base))


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


def _doubt(candidate: Candidate, log: Logarithm) -> str:
    """Return what values with decimals probably are if they are neither logarithms nor linear values; else ""."""
    filled = np.flatnonzero(candidate.num_expressed)
    rows = candidate.x.some(filled[evenly_spaced(len(filled), MAX_SAMPLED_CELLS)])
    rows.eliminate_zeros()
    few = rows[evenly_spaced(rows.shape[0], NUM_DOUBTED_CELLS)]
    bases = tuple(BASE_NAMES) if candidate.largest <= MAX_LOG else ()
    hypotheses = [_assume(few, base) for base in (*bases, None)]
    too_few = max(hypothesis.num_multiples for hypothesis in hypotheses) < MIN_MULTIPLES
    if too_few or any(hypothesis.has_whole_counts for hypothesis in hypotheses):
        return ""  # too few values to doubt, or values that come from counts
    if log.total is None and not log.groups:
        squares = _assume(_transformed(few, np.square), None)
        if squares.has_whole_counts:
            return "square roots (their squares are multiples of one count)"
        if squares.has_one_total and few.shape[0] >= MIN_GROUP:
            return "cells that were scaled to one length (the squares of their values have one sum)"
        if bases and _assume(_transformed(few, np.sinh), None).has_whole_counts:
            return "inverse hyperbolic sines of counts (arcsinh)"
        if any(_are_logarithms(_linear(few, base)) for base in bases):
            return "logarithms of logarithms (log1p was applied twice)"
        if _is_scaled(rows):
            return "values that were scaled without centring (all genes have the same standard deviation)"
        if candidate.largest <= 1:
            return "values that were scaled to at most 1 (by the maximum of each gene?)"
    linear = _linear(few, log.base)
    starts = linear.indptr[:-1]
    ratios = np.maximum.reduceat(linear.data, starts) / np.minimum.reduceat(linear.data, starts)
    if np.median(ratios) < MIN_DYNAMIC_RANGE and np.median(np.diff(linear.indptr)) >= MIN_RANGE_GENES:
        how = "logarithms that were " + ("normalised" if log.base is None else "normalised and logged again")
        return f"{how} (the values of a cell differ only by a factor of {np.median(ratios):.1f})"
    return ""


def _are_logarithms(rows: sparse.csr_matrix) -> bool:
    """Whether values are certainly logarithms, to any base."""
    if rows.data.max(initial=0) > MAX_LOG:
        return False
    hypotheses = [_assume(rows, base) for base in BASE_NAMES]
    return any(
        hypothesis.has_whole_counts or (hypothesis.has_one_total and rows.shape[0] >= MIN_GROUP)
        for hypothesis in hypotheses
    )


def judge(source: str, matrix: Matrix | Rows) -> Candidate:
    """Judge what the values of a matrix, cells x genes, are; `source` is the name of its place.

    All values are checked for NaN, negative and whole numbers. A sample of up to 2,000 cells shows whether values are
    logarithms, and their base and total. A sparse matrix is never made dense.
    """
    x = matrix if isinstance(matrix, Rows) else Rows(matrix)
    if x.dtype.kind not in "buif":
        return Candidate(source=source, x=x, text=f"not numbers ({x.dtype})")
    num_not_finite = 0
    low = 0.0
    high = 0.0
    # Properties of each cell; `highest` and `lowest` only matter if a cell has values that are not whole numbers.
    num_expressed = np.zeros(x.shape[0], dtype=np.int32)
    is_whole = np.ones(x.shape[0], dtype=bool)
    highest, sums, lowest = (np.zeros(x.shape[0], dtype=np.float32) for _ in range(3))
    with np.errstate(over="ignore"):  # values that overflow are refused below
        for start, block in x.blocks():
            values = np.asarray(block.data if sparse.issparse(block) else block)
            if values.size and values.dtype.kind == "f" and not np.isfinite(values).all():
                num_not_finite += int(values.size - np.count_nonzero(np.isfinite(values)))
                continue
            if values.size:
                low = min(low, float(values.min()))
                high = max(high, float(values.max()))
            rows = slice(start, start + block.shape[0])
            sums[rows] = np.asarray(block.sum(axis=1, dtype=np.float64)).ravel()
            num_expressed[rows] = _per_row(block, values != 0)
            lowest[rows] = 1
            if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
                is_whole[rows] = ~_rows_with(block, values != np.rint(values))
                maxima = block.max(axis=1)
                highest[rows] = np.asarray(maxima.todense() if sparse.issparse(block) else maxima).ravel()
                lowest[rows] = _lowest(block)
    candidate = Candidate(source=source, x=x, largest=high, num_expressed=num_expressed, sums=sums, lowest=lowest)
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
