"""Judge what the values of a matrix are: counts, log1p values (with base and total), linear, or unusable."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import sparse

from scperformer.io.rows import Rows

ASSUMED_TOTAL = 1e4  # counts per cell, if the total cannot be recognised
MAX_ASSUMED_SUM = 1.01 * ASSUMED_TOTAL  # cells normalised to the assumed total have no larger sum
BASE_NAMES = {math.e: "natural logarithm", 2.0: "logarithm to base 2", 10.0: "logarithm to base 10"}
MAX_SPREAD = 0.01  # coefficient of variation of the cells' sums, below which all cells have the same total
MIN_CELLS = 5  # with fewer cells, equal sums mean little
# Values are multiples of one count if this share of them are whole multiples of their cell's smallest value. A share of
# 0.1 is expected by chance.
MIN_WHOLE_SHARE = 0.9
MAX_MULTIPLE = 20.5  # higher multiples of one count are blurred if values were rounded to three decimals
WHOLE_TOLERANCE = 0.05  # a multiple of one count may differ from a whole number by this much
MIN_MULTIPLES = 50  # with fewer multiples, the share means nothing
MAX_LOG = 25.0  # e**25 counts are more than any cell has, in any base that is in use
MAX_VALUE = 1e15  # larger whole numbers are not exact even in float64, and float32 ends at 3e38
MIN_SAMPLED_CELLS = 100  # with decimals, to recognise logarithms; if the sample has fewer, more are read
# A sample of a file, which is read with the first pass over it, and kept.
SAMPLE_CELLS = 2000
SAMPLE_BLOCKS = 20  # that they come from
# Logarithms that were rounded have small values only, in cells with many genes; without the logarithm, the sums of the
# cells differ less. Counts have sums that differ more by 1.15 and more, rounded logarithms by .95 and less.
MAX_ROUNDED_LOG = 14.0
MIN_ROUNDED_GENES = 100  # expressed in the typical cell
MAX_ROUNDED_RATIO = 0.95
MANY_GENES = 500  # expressed in the typical cell; one of them has more counts than the largest logarithm
# Bulk samples and profiles express more of the measured genes than this: single cells up to .35, profiles of cell types
# .40 and more (25 data sets). Panels measure fewer genes.
MIN_BULK_SHARE = 0.4
MIN_BULK_GENES = 1000
MIN_MIXED_SUM = 50.0  # whole numbers with a smaller sum may be logarithms by chance
MIN_DYNAMIC_RANGE = 20.0  # largest / smallest value of a cell; expression has a ratio of 100 and more
MIN_RANGE_GENES = 100  # expressed genes of a cell, for this ratio to mean something
NUM_SCALED_CELLS = 500  # sampled to compare the standard deviations of genes
MIN_SCALED_SHARE = 0.1  # genes expressed in this share of the cells have their standard deviations compared
MIN_SCALED_GENES = 20  # with fewer such genes, they are not compared
SCALED_TOLERANCE = 0.1  # relative difference from the median, below which standard deviations are the same
MIN_SAME_SHARE = 0.8  # of the genes
# Transformations that are not supported, and their inverse.
OTHER_TRANSFORMATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "square roots": np.square,
    "inverse hyperbolic sines (arcsinh)": np.sinh,
    "logarithms of logarithms (log1p was applied twice)": lambda values: np.expm1(np.expm1(values)),
}


class Logarithm(NamedTuple):
    """How values were transformed from counts."""

    base: float | None = None  # e, 2 or 10; None if the values are not logarithms
    total: float | None = None  # total of a cell before the logarithm; None if it is not recognised
    confirmed: bool = True  # False: only the range of the values suggests logarithms
    relative: bool = False  # the total is not 10,000, and the smallest value of each cell is one count
    too_large: bool = False  # not confirmed, and the values would exceed 10,000 counts as natural logarithms


@dataclass(kw_only=True)
class Candidate:
    """A place of an AnnData that may hold the expression, and the kind of its values."""

    source: str  # X, raw or layers/NAME
    x: Rows
    kind: str = "unusable"  # counts, linear, log1p, or unusable
    text: str = ""  # what the values are, for users
    log: Logarithm = field(default_factory=Logarithm)  # how log1p values were transformed
    largest: float = 0.0  # largest value
    doubt: str = ""  # what the values probably are instead, for users
    num_expressed: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # genes of each cell
    sums: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))  # sum of each cell's values
    sample: sparse.csr_matrix | None = None  # cells of `sample_of`, as they are stored, float64
    sample_rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # their row numbers
    is_gene: np.ndarray | None = None  # which features of the place are genes, boolean; None if all are
    left_out: list[str] = field(default_factory=list)  # sentences about the other features
    doubtful: list[str] = field(default_factory=list)  # names of features that may not be genes

    @property
    def typical_genes(self) -> float:
        """The median number of genes that a cell expresses; 0 without cells."""
        return float(np.median(self.num_expressed)) if len(self.num_expressed) else 0.0


def undo_log1p(values: np.ndarray, base: float | None) -> np.ndarray:
    """Return the values before log1p to this base; without a base, the values themselves."""
    return values if base is None else np.expm1(values * math.log(base))


def are_bulk(num_expressed: np.ndarray, num_genes: int) -> bool:
    """Whether rows are bulk samples or profiles of cell types, by the number of genes that each of them expresses."""
    return num_genes >= MIN_BULK_GENES and float(np.median(num_expressed)) > MIN_BULK_SHARE * num_genes


def evenly_spaced(num: int, most: int) -> np.ndarray:
    """Return up to `most` evenly spaced positions from 0 to `num` - 1, ascending; int64."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).astype(int))


def sample_of(rows: np.ndarray, block_cells: int) -> np.ndarray:
    """Return up to 2,000 of some rows, ascending, that are spread over up to 20 blocks of the file."""
    blocks = rows // block_cells
    present = np.unique(blocks)
    rows = rows[np.isin(blocks, present[evenly_spaced(len(present), SAMPLE_BLOCKS)])]
    return rows[evenly_spaced(len(rows), SAMPLE_CELLS)]


class _Hypothesis:
    """Properties of cells, none of them empty, if their values before a transformation were `linear`."""

    def __init__(self, rows: sparse.csr_matrix, linear: np.ndarray):
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
        self.has_one_total = self.spread < MAX_SPREAD and (rows.shape[0] >= MIN_CELLS or self.total == power)


def recognise(rows: sparse.csr_matrix) -> Logarithm:
    """Recognise whether small values with decimals are logarithms, and their base and total.

    With the right base, all cells have the same sum, or the values of each cell are multiples of its smallest value,
    which is one count. If neither is true for any base, the values are taken for unconfirmed natural logarithms, or for
    logarithms to base 2 if they are too large for these and from bulk samples. `rows` are cells x genes, float64,
    without negative values and empty cells; stored zeros are removed in place.
    """
    rows.eliminate_zeros()
    hypotheses: dict[float | None, _Hypothesis] = {
        base: _Hypothesis(rows, undo_log1p(rows.data, base)) for base in (*BASE_NAMES, None)
    }
    base = min(hypotheses, key=lambda base: hypotheses[base].spread)
    if hypotheses[base].has_one_total:
        return Logarithm(base, hypotheses[base].total)
    base = max(hypotheses, key=lambda base: hypotheses[base].whole_share)  # of equals, the first: the natural logarithm
    best = hypotheses[base]
    if not best.has_whole_counts:
        too_large = bool(hypotheses[math.e].sums.max() > MAX_ASSUMED_SUM)
        if too_large and are_bulk(np.diff(rows.indptr), rows.shape[1]):
            return Logarithm(2.0, confirmed=False, relative=True)
        return Logarithm(math.e, confirmed=False, too_large=too_large)
    never_normalised = np.ptp(best.smallest) < 1e-3 * best.smallest.mean()
    # A cell cannot add up to more than the total it was normalised to.
    is_unusual = never_normalised or best.sums.max() > MAX_ASSUMED_SUM
    return Logarithm(base, relative=bool(is_unusual) and base is not None)


def judge(source: str, x: Rows) -> Candidate:
    """Judge what the values of a matrix, cells x genes, are, by all values and a sample; `source` is its place."""
    if x.dtype.kind not in "buif":
        return Candidate(source=source, x=x, text=f"not numbers ({x.dtype})")
    num_not_finite = 0
    low = 0.0
    high = 0.0
    num_expressed = np.zeros(x.shape[0], dtype=np.int32)
    is_whole = np.ones(x.shape[0], dtype=bool)
    highest, sums = (np.zeros(x.shape[0], dtype=np.float32) for _ in range(2))
    sample_rows = sample_of(np.arange(x.shape[0]), x.block_cells)
    sampled = [sparse.csr_matrix((0, x.shape[1]), dtype=np.float64)]
    with np.errstate(over="ignore"):  # values that overflow are refused below
        for start, stored in x.blocks():
            block = sparse.csr_matrix(stored)
            first, last = np.searchsorted(sample_rows, [start, start + block.shape[0]])
            if first < last:
                sampled.append(block[sample_rows[first:last] - start].astype(np.float64))
            values = block.data
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                num_not_finite += int(values.size - np.count_nonzero(np.isfinite(values)))
                continue
            low = min(low, float(values.min(initial=0)))
            high = max(high, float(values.max(initial=0)))
            rows = slice(start, start + block.shape[0])
            sums[rows] = np.asarray(block.sum(axis=1, dtype=np.float64)).ravel()
            is_expressed = values != 0
            num_expressed[rows] = np.diff(block.indptr)
            if not is_expressed.all():
                num_expressed[rows] = _by_row(np.add, block, is_expressed.astype(np.int32))
            if values.dtype.kind == "f" and (is_fraction := values != np.rint(values)).any():
                is_whole[rows] = ~_by_row(np.logical_or, block, is_fraction)
                highest[rows] = _by_row(np.maximum, block, values)
    candidate = Candidate(source=source, x=x, largest=high, num_expressed=num_expressed, sums=sums)
    candidate.sample, candidate.sample_rows = sparse.vstack(sampled, "csr"), sample_rows
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
        candidate.doubt = _doubt_of_counts(candidate)
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
    """Judge values with decimals in cells that are not `is_whole`, of which `highest` is the largest value."""
    assert candidate.sample is not None
    is_small = ~is_whole & (highest <= MAX_LOG)
    small = np.flatnonzero(is_small)
    sampled = candidate.sample[is_small[candidate.sample_rows]]
    if sampled.shape[0] < min(len(small), MIN_SAMPLED_CELLS):
        sampled = candidate.x.some(small[evenly_spaced(len(small), SAMPLE_CELLS)])
    log = recognise(sampled) if len(small) else Logarithm()
    num_others = int((~is_whole & (highest > MAX_LOG)).sum() + (is_whole & (candidate.sums >= MIN_MIXED_SUM)).sum())
    if log.base is not None and log.confirmed and num_others:
        candidate.text = f"a mix: logarithms in {len(small)} cells, counts or other values in {num_others} cells"
        return
    if candidate.largest > MAX_LOG or log.base is None:
        per_million = log.total == 1e6 or np.allclose(candidate.sums[candidate.num_expressed > 0], 1e6, rtol=0.01)
        other = "values that are neither counts nor logarithms"
        candidate.kind = "linear"
        candidate.text = "values per million (TPM or CPM)" if per_million else other
    else:
        candidate.kind = "log1p"
        candidate.log = log
        total = "" if log.total is None else f", {log.total:g} counts per cell"
        candidate.text = f"log1p ({BASE_NAMES[log.base]}{total})"
        if not log.confirmed:
            candidate.text = f"values up to {candidate.largest:.4g} that look like logarithms"
    candidate.doubt = _doubt(sampled, log) if len(small) else ""


def _doubt_of_counts(candidate: Candidate) -> str:
    """Return that whole numbers are rounded logarithms, if they are; else ""."""
    if not 1 < candidate.largest <= MAX_ROUNDED_LOG or candidate.typical_genes < MIN_ROUNDED_GENES:
        return ""
    assert candidate.sample is not None
    rows = candidate.sample[np.diff(candidate.sample.indptr) > 0]

    def spread(values: np.ndarray) -> float:
        sums = np.add.reduceat(values, rows.indptr[:-1])
        return float(sums.std() / sums.mean())

    least = min(spread(undo_log1p(rows.data, base)) for base in BASE_NAMES)
    are_alike = rows.shape[0] >= MIN_CELLS and least < MAX_ROUNDED_RATIO * spread(rows.data)
    return "logarithms that were rounded to whole numbers" if are_alike or candidate.typical_genes >= MANY_GENES else ""


def _doubt(rows: sparse.csr_matrix, log: Logarithm) -> str:
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
        few = rows[evenly_spaced(rows.shape[0], NUM_SCALED_CELLS)]
        is_frequent = np.bincount(few.indices, minlength=few.shape[1]) >= MIN_SCALED_SHARE * few.shape[0]
        deviations = few[:, is_frequent].toarray().std(axis=0)
        is_same = np.abs(deviations - np.median(deviations)) < SCALED_TOLERANCE * np.median(deviations)
        if is_frequent.sum() >= MIN_SCALED_GENES and is_same.mean() > MIN_SAME_SHARE:
            return "values that were scaled without centring (all genes have the same standard deviation)"
    largest = np.maximum.reduceat(undo_log1p(rows.data, log.base), rows.indptr[:-1])
    ratio = np.median(largest / best.smallest)
    if ratio < MIN_DYNAMIC_RANGE and np.median(np.diff(rows.indptr)) >= MIN_RANGE_GENES:
        return f"logarithms that were normalised (the values of a cell differ only by a factor of {ratio:.1f})"
    return ""
