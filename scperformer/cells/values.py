"""Judge what the values of a matrix are: counts, log1p values (with base and total), linear, or unusable."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.base.sparse import by_row
from scperformer.io.rows import Matrix, Rows

AnyMatrix: TypeAlias = sparse.spmatrix | sparse.sparray | np.ndarray

ASSUMED_TOTAL = 1e4  # counts per cell, if the total cannot be recognised
MAX_ASSUMED_SUM = 1.01 * ASSUMED_TOTAL  # cells normalised to the assumed total have no larger sum
BASES = (math.e, 2.0, 10.0)
# coefficient of variation of the cells' sums, below which all cells have the same total
MAX_SPREAD = 0.01
MIN_CELLS_OF_TOTAL = 5  # with fewer cells, equal sums mean little
# Values are multiples of one count if this share of them are whole multiples of their cell's smallest value. A share of
# 0.1 is expected by chance.
MIN_WHOLE_SHARE = 0.9
# higher multiples of one count are blurred if values were rounded to three decimals
MAX_MULTIPLE = 20.5
WHOLE_TOLERANCE = 0.05  # a multiple of one count may differ from a whole number by this much
MIN_MULTIPLES = 50  # with fewer multiples, the share means nothing
# Logarithms to another base, or in another unit, are recognised by the steps between the smallest values of cells: with
# the right base, they are whole numbers of counts. The two smallest values, one count and two, suggest the base.
NUM_STEPS = 12
SAME_VALUE = 1e-5  # relative difference of values that differ by rounding alone
MIN_STEP = 0.01  # between the two smallest values
MIN_STEP_RATIO = 1.02  # of the second value to the smallest one; from MAX_STEP_RATIO on, values are nearly linear
MAX_STEP_RATIO = 1.95
MIN_STEP_MULTIPLE = 2.5  # a multiple of two fits by the choice of the base
# Logarithms of TPM are no multiples of one count. Sums of cells without some genes vary by up to .08 with the right
# base, and by half as much again with another one (5 studies by Smart-seq2, with base 2, e and 10).
MAX_NEAR_SPREAD = 0.1
MAX_SPREAD_RATIO = 0.67
MAX_LOG = 25.0  # e**25 counts are more than any cell has, in any base that is in use
MAX_VALUE = 1e15  # larger whole numbers are not exact even in float64, and float32 ends at 3e38
# with decimals, to recognise logarithms; if the sample has fewer, more are read
MIN_SAMPLED_CELLS = 100
# A sample of a file, which is read with the first pass over it, and kept.
SAMPLE_CELLS = 2000
SAMPLE_BLOCKS = 20  # that they come from
# Logarithms that were rounded have small values only, in cells with many genes; without the logarithm, the sums of the
# cells differ less. Counts have sums that differ more by 1.15 and more, rounded logarithms by .95 and less.
MAX_ROUNDED_LOG = 14.0
MIN_ROUNDED_GENES = 100  # expressed in the typical cell
MAX_ROUNDED_RATIO = 0.95
# expressed in the typical cell; one of them has more counts than the largest logarithm
MANY_GENES = 500
# Bulk samples and profiles express more of the measured genes than this: single cells up to .35, profiles of cell types
# .40 and more (25 data sets). Panels measure fewer genes.
MIN_BULK_SHARE = 0.4
MIN_BULK_GENES = 1000
MIN_MIXED_SUM = 50.0  # whole numbers with a smaller sum may be logarithms by chance
# largest / smallest value of a cell; expression has a ratio of 100 and more
MIN_DYNAMIC_RANGE = 20.0
MIN_RANGE_GENES = 100  # expressed genes of a cell, for this ratio to mean something
# of the genes of a cell have its smallest value, if that stands for no expression
MIN_ZERO_SHARE = 0.3
# Of the genes that are expressed in any cell, the typical cell expresses .5 to 1 in values that were imputed, denoised
# or corrected for batches, and at most .5 in measured ones, but for counts of panels.
MIN_SMOOTHED_SHARE = 0.6
MIN_CORRECTED_SHARE = 0.45  # if something else speaks against measured values
MAX_DIFFERENT = 0.5  # share of different values of a gene, other than 0; after a correction, many cells have the same
MIN_ABSENT = 0.05  # share of the cells that do not express genes of which a cell has one count
MIN_SMOOTHED_CELLS = 20  # with fewer cells, of all genes
MAX_MEDIAN = 0.5  # median / mean expression of the genes of a cell; profiles, which express all genes, have up to .3
NUM_SCALED_CELLS = 500  # sampled to compare the standard deviations of genes
# genes expressed in this share of the cells have their standard deviations compared
MIN_SCALED_SHARE = 0.1
MIN_SCALED_GENES = 20  # with fewer such genes, they are not compared
# relative difference from the median, below which standard deviations are the same
SCALED_TOLERANCE = 0.1
MIN_SAME_SHARE = 0.8  # of the genes
# Transformations that are not supported, and their inverse.
OTHER_TRANSFORMATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "square roots": np.square,
    "inverse hyperbolic sines (arcsinh)": np.sinh,
    "logarithms of logarithms (log1p was applied twice)": lambda values: np.expm1(np.expm1(values)),
    "variance-stabilised values (vst)": lambda values: np.cosh(values * math.log(2)) - 1,
}


class Logarithm(NamedTuple):
    """How values were transformed from counts."""

    base: float | None = None  # e, 2 or 10; None if the values are not logarithms
    total: float | None = None  # total of a cell before the logarithm; None if it is not recognised
    confirmed: bool = True  # False: only the range of the values suggests logarithms
    # the total is not 10,000, and the smallest value of each cell is one count
    relative: bool = False
    # not confirmed, and the values would exceed 10,000 counts as natural logarithms
    too_large: bool = False


@dataclass(kw_only=True)
class Candidate:
    """A place of an AnnData that may hold the expression, N cells x its features that are genes, and their values."""

    source: str  # X, raw or layers/NAME
    x: Rows
    is_gene: np.ndarray  # of the features of the place, boolean
    from_smallest: bool  # values were above the smallest value of their cell, not above 0
    largest: float  # largest value
    num_expressed: np.ndarray  # genes of each cell, int32 N
    sums: np.ndarray  # of the values of each cell, float32 N
    sample: csr_matrix  # cells of `sample_of`, as they are stored, float64
    sample_rows: np.ndarray  # their row numbers
    kind: str = "unusable"  # counts, linear, log1p, or unusable
    text: str = ""  # what the values are, for users
    log: Logarithm = field(default_factory=Logarithm)  # how log1p values were transformed
    doubt: str = ""  # what the values probably are instead, for users
    is_smoothed: bool = False  # hardly a value is 0
    # sentences about other features, and about the zero
    remarks: list[str] = field(default_factory=list)

    @property
    def filled(self) -> csr_matrix:
        """The sampled cells that express a gene, without stored zeros."""
        rows = self.sample[self.num_expressed[self.sample_rows] > 0]
        rows.eliminate_zeros()
        return rows

    @property
    def typical_genes(self) -> float:
        """The median number of genes that a cell expresses; 0 without cells."""
        return float(np.median(self.num_expressed)) if len(self.num_expressed) else 0.0


def undo_log1p(values: np.ndarray, base: float | None) -> np.ndarray:
    """Return the values before log1p to this base; without a base, the values themselves."""
    return values if base is None else np.expm1(values * math.log(base))


def linear_values(x: AnyMatrix, base: float | None) -> csr_matrix:
    """Return expression before log1p to this base, CSR float64; without a base, the expression itself."""
    rows = csr_matrix(x, dtype=np.float64)
    return csr_matrix((undo_log1p(rows.data, base), rows.indices, rows.indptr), shape=rows.shape)


def base_name(base: float) -> str:
    """Return the base of logarithms in words."""
    return "natural logarithm" if base == math.e else f"logarithm to base {base:.4g}"


def are_bulk(num_expressed: np.ndarray, num_genes: int) -> bool:
    """Whether rows are bulk samples or profiles of cell types, by the number of genes that each of them expresses."""
    return (
        num_genes >= MIN_BULK_GENES and float(np.median(num_expressed)) > MIN_BULK_SHARE * num_genes
    )


def evenly_spaced(num: int, most: int) -> np.ndarray:
    """Return up to `most` evenly spaced positions from 0 to `num` - 1, ascending; int64."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int))


def some_of(x: csr_matrix, most: int) -> csr_matrix:
    """Return up to `most` evenly spaced rows of a matrix."""
    return x[evenly_spaced(x.shape[0], most)]


def sample_of(rows: np.ndarray, block_cells: int) -> np.ndarray:
    """Return up to 2,000 of some rows, ascending, that are spread over up to 20 blocks of the file."""
    blocks = rows // block_cells
    present = np.unique(blocks)
    rows = rows[np.isin(blocks, present[evenly_spaced(len(present), SAMPLE_BLOCKS)])]
    return rows[evenly_spaced(len(rows), SAMPLE_CELLS)]


class _Hypothesis:
    """Properties of cells, none of them empty, if their values before a transformation were `linear`."""

    def __init__(self, rows: csr_matrix, linear: np.ndarray):
        starts = rows.indptr[:-1]
        self.sums = np.add.reduceat(linear, starts)
        self.smallest = np.minimum.reduceat(linear, starts)
        multiples = linear / np.repeat(self.smallest, np.diff(rows.indptr))
        # The smallest value itself always fits, so it does not count.
        multiples = multiples[(multiples > 1 + WHOLE_TOLERANCE) & (multiples < MAX_MULTIPLE)]
        # Share of the multiples of a cell's smallest value (one count) that are whole numbers.
        fits = np.abs(multiples - np.rint(multiples)) < WHOLE_TOLERANCE
        self.num_multiples = len(fits)
        self.whole_share = float(fits.mean()) if len(fits) >= MIN_MULTIPLES else 0.0
        self.has_whole_counts = self.whole_share >= MIN_WHOLE_SHARE
        self.spread = float(self.sums.std() / self.sums.mean())
        # The total within a power of ten by 1 %, as a few genes may have been removed, or a half within float32: the
        # median of counts, to which scanpy normalises by default, is a whole number or a half.
        self.total = float(np.median(self.sums))
        power = 10.0 ** round(math.log10(self.total)) if 0 < self.total < math.inf else math.nan
        half = round(2 * self.total) / 2 if self.total < math.inf else math.nan
        if abs(self.total / power - 1) < 0.01:
            self.total = power
        elif half and abs(self.total / half - 1) < 1e-5:
            self.total = half
        # A single cell always has a constant sum, so with few cells the total must be a power of ten.
        self.has_one_total = self.spread < MAX_SPREAD and (
            rows.shape[0] >= MIN_CELLS_OF_TOTAL or self.total == power
        )


def recognise(rows: csr_matrix) -> Logarithm:
    """Recognise whether small values with decimals are logarithms, and their base and total.

    With the right base, all cells have the same sum, or the values of each cell are multiples of its smallest value,
    which is one count. If neither is true for any base, the values are taken for unconfirmed natural logarithms. Those
    that are too large for these are taken for logarithms to base 2 if they are from bulk samples, or to the base with
    which the cells have nearly the same sum. `rows` are cells x genes, float64,
    without negative values and empty cells; stored zeros are removed in place.
    """
    rows.eliminate_zeros()
    hypotheses: dict[float | None, _Hypothesis] = {
        base: _Hypothesis(rows, undo_log1p(rows.data, base)) for base in (*BASES, None)
    }
    base = min(hypotheses, key=lambda base: hypotheses[base].spread)
    if hypotheses[base].has_one_total:
        return Logarithm(base, hypotheses[base].total)
    # of equals, the first: the natural logarithm
    base = max(hypotheses, key=lambda base: hypotheses[base].whole_share)
    best = hypotheses[base]
    if not best.has_whole_counts and (found := _base_of_steps(rows)):
        base = found
        best = _Hypothesis(rows, undo_log1p(rows.data, base))
        if best.has_one_total:
            return Logarithm(base, best.total)
    elif not best.has_whole_counts:
        too_large = bool(hypotheses[math.e].sums.max() > MAX_ASSUMED_SUM)
        if too_large and are_bulk(np.diff(rows.indptr), rows.shape[1]):
            return Logarithm(2.0, confirmed=False, relative=True)
        spreads = {base: hypotheses[base].spread for base in BASES}
        base, other = sorted(spreads, key=spreads.__getitem__)[:2]
        if too_large and spreads[base] < min(MAX_NEAR_SPREAD, MAX_SPREAD_RATIO * spreads[other]):
            return Logarithm(base, confirmed=False, relative=True)
        return Logarithm(math.e, confirmed=False, too_large=too_large)
    never_normalised = np.ptp(best.smallest) < 1e-3 * best.smallest.mean()
    # A cell cannot add up to more than the total it was normalised to.
    is_unusual = never_normalised or best.sums.max() > MAX_ASSUMED_SUM
    return Logarithm(base, relative=bool(is_unusual) and base is not None)


def _base_of_steps(rows: csr_matrix) -> float | None:
    """Return the base with which steps between the smallest values of cells are whole numbers of counts, or None."""
    from scipy.optimize import brentq  # takes a while to import, and is seldom needed

    few = some_of(rows, MIN_SAMPLED_CELLS)
    different = (np.unique(few.data[start:stop]) for start, stop in pairwise(few.indptr.tolist()))
    smallest = [
        values[np.diff(values, prepend=0) > SAME_VALUE * values][:NUM_STEPS] for values in different
    ]
    logs = []

    def excess(log: float, one: float, two: float) -> float:
        return math.expm1(log * two) / math.expm1(log * one) - 2

    for one, two in (values[:2] for values in smallest if len(values) > 1):
        if two - one > MIN_STEP and MIN_STEP_RATIO < two / one < MAX_STEP_RATIO:
            # exceeds the root, but for large values by less than the rounding
            most = math.log(2) / (two - one)
            logs.append(brentq(excess, 1e-6 * most, 1.01 * most, (one, two)))
    for base in (*BASES, *([math.exp(np.median(logs))] if logs else [])):
        steps = [np.diff(undo_log1p(values, base), prepend=0) for values in smallest]
        multiples = np.concatenate([np.cumsum(each) / each.min() for each in steps])
        multiples = multiples[(multiples > MIN_STEP_MULTIPLE) & (multiples < MAX_MULTIPLE)]
        is_whole = np.abs(multiples - np.rint(multiples)) < WHOLE_TOLERANCE
        if len(multiples) >= MIN_MULTIPLES and is_whole.mean() >= MIN_WHOLE_SHARE:
            return base
    return None


def zero_of(candidate: Candidate) -> float:
    """Return the value that stands for 0 in the typical cell, as a constant was added to all values; 0 if that is 0.

    It is the smallest value of a cell, which many genes have.
    """
    if not candidate.sample.shape[1]:
        return 0.0
    few = some_of(candidate.sample, NUM_SCALED_CELLS)
    smallest = few.min(axis=1).toarray().ravel()
    is_smallest = few.data == np.repeat(smallest, np.diff(few.indptr))
    nums = by_row(np.add, few, is_smallest.astype(np.int64))
    is_other = (smallest != 0) & (nums >= MIN_ZERO_SHARE * few.shape[1])
    return float(np.median(smallest)) if is_other.mean() > MIN_WHOLE_SHARE else 0.0


def judge(
    source: str, matrix: Matrix, is_gene: np.ndarray, from_smallest: bool = False
) -> Candidate:
    """Judge what the values of the genes in a matrix are, by all values and a sample; `source` is its place."""
    x = Rows(matrix, is_gene, from_smallest)
    is_number = x.dtype.kind in "buif"
    num_expressed = np.zeros(x.shape[0], dtype=np.int32)
    is_whole = np.ones(x.shape[0], dtype=bool)
    highest = np.zeros(x.shape[0])
    sums = np.zeros(x.shape[0], dtype=np.float32)
    sample_rows = sample_of(np.arange(x.shape[0]), x.block_cells)

    def measure(start: int, stored: Matrix) -> tuple[csr_matrix, int, float]:
        """Measure the cells of a block; return the sampled ones, how many values are not finite, and the lowest."""
        block = csr_matrix(stored)
        first, last = np.searchsorted(sample_rows, [start, start + block.shape[0]])
        sample = block[sample_rows[first:last] - start].astype(np.float64)
        values = block.data
        if num_not_finite := int(np.count_nonzero(~np.isfinite(values))):
            return sample, num_not_finite, 0.0
        rows = slice(start, start + block.shape[0])
        with np.errstate(over="ignore"):  # values that overflow are refused below
            sums[rows] = np.asarray(block.sum(axis=1, dtype=np.float64)).ravel()
        num_expressed[rows] = by_row(np.add, block, (values != 0).astype(np.int32))
        highest[rows] = by_row(np.maximum, block, values)
        if values.dtype.kind == "f":
            is_whole[rows] = ~by_row(np.logical_or, block, values != np.rint(values))
        return sample, 0, float(values.min(initial=0))

    empty = csr_matrix((0, x.shape[1]), dtype=np.float64)
    sampled, nums_not_finite, lowest = zip(
        (empty, 0, 0.0), *(x.over_blocks(measure) if is_number else ()), strict=True
    )
    num_not_finite = sum(nums_not_finite)
    low = min(lowest)
    candidate = Candidate(
        source=source,
        x=x,
        is_gene=is_gene,
        from_smallest=from_smallest,
        largest=float(highest.max(initial=0)),
        num_expressed=num_expressed,
        sums=sums,
        sample=sparse.vstack(sampled, "csr"),
        sample_rows=sample_rows,
    )
    if not is_number:
        candidate.text = f"not numbers ({x.dtype})"
    elif num_not_finite:
        candidate.text = (
            f"{num_not_finite} NaN or infinite value{'s' if num_not_finite > 1 else ''}"
        )
    elif low < 0:
        candidate.text = f"negative values down to {low:.4g}: scaled or centred"
    elif candidate.largest > MAX_VALUE:
        candidate.text = f"values up to {candidate.largest:.4g}, which is too large for expression"
    elif candidate.largest == 0:
        candidate.text = "nothing but zeros"
    elif is_whole.all():
        candidate.kind = "counts"
        candidate.text = "counts"
        candidate.doubt = _doubt_of_counts(candidate)
    else:
        _judge_decimals(candidate, is_whole, highest)
    return candidate


def _judge_decimals(candidate: Candidate, is_whole: np.ndarray, highest: np.ndarray) -> None:
    """Judge values with decimals in cells that are not `is_whole`, of which `highest` is the largest value."""
    is_small = ~is_whole & (highest <= MAX_LOG)
    small = np.flatnonzero(is_small)
    sampled = candidate.sample[is_small[candidate.sample_rows]]
    if sampled.shape[0] < min(len(small), MIN_SAMPLED_CELLS):
        sampled = candidate.x.some(small[evenly_spaced(len(small), SAMPLE_CELLS)])
    log = recognise(sampled) if len(small) else Logarithm()
    num_others = int(
        (~is_whole & (highest > MAX_LOG)).sum()
        + (is_whole & (candidate.sums >= MIN_MIXED_SUM)).sum()
    )
    if log.base is not None and log.confirmed and num_others:
        candidate.text = (
            f"a mix: logarithms in {len(small)} cells, counts or other values in {num_others} cells"
        )
        return
    if candidate.largest > MAX_LOG or log.base is None:
        per_million = log.total == 1e6 or np.allclose(
            candidate.sums[candidate.num_expressed > 0], 1e6, rtol=0.01
        )
        other = "values that are neither counts nor logarithms"
        candidate.kind = "linear"
        candidate.text = "values per million (TPM or CPM)" if per_million else other
    else:
        candidate.kind = "log1p"
        candidate.log = log
        total = "" if log.total is None else f", {log.total:g} counts per cell"
        candidate.text = f"log1p ({base_name(log.base)}{total})"
        if not log.confirmed:
            candidate.text = f"values up to {candidate.largest:.4g} that look like logarithms"
    candidate.doubt = _doubt(sampled, log) if len(small) else ""
    candidate.is_smoothed = _are_smoothed(candidate.filled, candidate.log)


def _are_smoothed(rows: csr_matrix, log: Logarithm) -> bool:
    """Whether values, of cells that are not empty, were imputed, denoised or corrected, or are from bulk samples.

    The typical cell expresses most of the genes that any cell expresses. If it expresses fewer of them, the values were
    corrected if they are of an unknown kind, or if genes have the same value, other than 0, in many cells.
    """
    num_cells = rows.shape[0]
    nums = np.bincount(rows.indices, minlength=rows.shape[1])
    num_genes = rows.shape[1] if num_cells < MIN_SMOOTHED_CELLS else np.count_nonzero(nums)
    share = float(np.median(np.diff(rows.indptr))) / max(1, num_genes)
    if num_genes < MIN_RANGE_GENES or share < MIN_CORRECTED_SHARE:
        return False
    best = _Hypothesis(rows, undo_log1p(rows.data, log.base))
    if best.has_whole_counts or _base_of_steps(rows) is not None:
        # Genes of which a cell has one count are not expressed in others.
        ones = rows.indices[
            rows.data <= np.repeat(by_row(np.minimum, rows, rows.data), np.diff(rows.indptr))
        ]
        if num_cells < MIN_SMOOTHED_CELLS or 1 - nums[ones].mean() / num_cells > MIN_ABSENT:
            return False
    if share >= MIN_SMOOTHED_SHARE or not log.confirmed:
        return True
    few = some_of(rows, MIN_SAMPLED_CELLS)
    num_different = len(np.unique(few.indices + 1j * few.data))
    return num_different < MAX_DIFFERENT * few.nnz


def _doubt_of_counts(candidate: Candidate) -> str:
    """Return that whole numbers are rounded logarithms, if they are; else ""."""
    if not 1 < candidate.largest <= MAX_ROUNDED_LOG or candidate.typical_genes < MIN_ROUNDED_GENES:
        return ""
    rows = candidate.filled
    *logs, counts = (
        _Hypothesis(rows, undo_log1p(rows.data, base)).spread for base in (*BASES, None)
    )
    are_alike = rows.shape[0] >= MIN_CELLS_OF_TOTAL and min(logs) < MAX_ROUNDED_RATIO * counts
    return (
        "logarithms that were rounded to whole numbers"
        if are_alike or candidate.typical_genes >= MANY_GENES
        else ""
    )


def _doubt(rows: csr_matrix, log: Logarithm) -> str:
    """Return what values probably are if they are neither logarithms nor linear values, such as scaled; else ""."""
    best = _Hypothesis(rows, undo_log1p(rows.data, log.base))
    if best.has_whole_counts or best.num_multiples < MIN_MULTIPLES:
        return ""  # values that come from counts, or too few values to doubt
    if log.total is None:
        with np.errstate(over="ignore", invalid="ignore"):
            for name, undo in OTHER_TRANSFORMATIONS.items():
                hypothesis = _Hypothesis(rows, undo(rows.data))
                if hypothesis.has_whole_counts or hypothesis.has_one_total:
                    return name
        few = some_of(rows, NUM_SCALED_CELLS)
        is_frequent = (
            np.bincount(few.indices, minlength=few.shape[1]) >= MIN_SCALED_SHARE * few.shape[0]
        )
        deviations = few[:, is_frequent].toarray().std(axis=0)
        is_same = np.abs(deviations - np.median(deviations)) < SCALED_TOLERANCE * np.median(
            deviations
        )
        if is_frequent.sum() >= MIN_SCALED_GENES and is_same.mean() > MIN_SAME_SHARE:
            return "values that were scaled without centring (all genes have the same standard deviation)"
    few = some_of(rows, MIN_SAMPLED_CELLS)
    linear = undo_log1p(few.toarray(), log.base)
    median = float(np.median(np.median(linear, axis=1) / linear.mean(axis=1)))
    if median > MAX_MEDIAN and rows.shape[1] >= MIN_RANGE_GENES:
        return f"values without a zero (the typical gene has {median:.2f} of the mean expression)"
    largest = np.maximum.reduceat(undo_log1p(rows.data, log.base), rows.indptr[:-1])
    ratio = np.median(largest / best.smallest)
    if ratio < MIN_DYNAMIC_RANGE and np.median(np.diff(rows.indptr)) >= MIN_RANGE_GENES:
        return f"logarithms that were normalised (the values of a cell differ only by a factor of {ratio:.1f})"
    return ""
