"""What kind of values a matrix holds: counts, log1p (of which base and total), linear, or nothing usable."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

Matrix: TypeAlias = "sparse.csr_matrix | sparse.csc_matrix | np.ndarray"

MAX_LOG = 25.0  # e**25 counts is more than any cell has, in any base that is in use
MAX_SAMPLED_CELLS = 2000
MAX_SPREAD = 0.01  # relative spread of the cells' sums below which they count as one constant
MIN_UNIT_SHARE = 0.9  # of the values are whole multiples of their cell's smallest one; by chance 0.1 are
BASE_NAMES = {math.e: "natural logarithm", 2.0: "logarithm to base 2", 10.0: "logarithm to base 10"}


@dataclass(kw_only=True)
class Slot:
    """One place of an AnnData that may hold expression, and what its values say."""

    source: str
    x: Matrix
    kind: str  # counts, linear, log1p, or unusable
    text: str  # what it is, for a person
    total: float | None = None
    log_base: float | None = None
    confirmed: bool = True  # False: log1p by the range of its values alone
    largest: float = 0.0


def judge(source: str, x: Matrix) -> Slot:
    """What the stored values of a matrix are.

    NaN, negative and whole values are looked for among all stored values; whether values are logarithms, and
    of what, is judged from at most 2,000 cells.

    Parameters
    ----------
    source
        Name of the place, kept in the result.
    x
        N cells x G genes; a sparse matrix is never made dense.
    """
    dtype = np.dtype(x.dtype)
    if dtype.kind not in "buif":
        return Slot(source=source, x=x, kind="unusable", text=f"not numbers ({dtype})")
    num_bad, low, high, whole = _scan(x)
    slot = Slot(source=source, x=x, kind="unusable", text="", largest=high)
    if num_bad:
        slot.text = f"{num_bad} NaN or infinite value{'s' if num_bad > 1 else ''}"
    elif low < 0:
        slot.text = f"negative values down to {low:.4g}: scaled or centred"
    elif high == 0:
        slot.text = "nothing but zeros"
    elif whole:
        slot.kind, slot.text = "counts", "counts"
    elif high > MAX_LOG:
        slot.kind, slot.text = "linear", "values that are neither whole numbers nor logarithms"
    else:
        _judge_small(slot)
    return slot


def _scan(x: Matrix) -> tuple[int, float, float, bool]:
    """Number of NaN or infinite values, smallest and largest value, and whether all are whole numbers."""
    num_bad, low, high, whole = 0, 0.0, 0.0, True
    for block in _blocks(x):
        if block.dtype.kind == "f":
            finite = np.isfinite(block)
            if not finite.all():
                num_bad += int(block.size - np.count_nonzero(finite))
                continue
            whole = whole and bool(np.array_equal(block, np.rint(block)))
        low, high = min(low, float(block.min())), max(high, float(block.max()))
    return num_bad, low, high, whole


def _blocks(x: Matrix) -> Iterator[np.ndarray]:
    """All stored values in blocks of about a million, so that tests make no copy of the whole."""
    values = np.asarray(x.data if sparse.issparse(x) else x)
    step = max(1, (1 << 20) // max(1, int(np.prod(values.shape[1:]))))
    for start in range(0, values.shape[0], step):
        yield np.asarray(values[start : start + step])


def _judge_small(slot: Slot) -> None:
    """Tell log1p values (and their base and total) from small linear ones."""
    num_cells = slot.x.shape[0]
    sampled = np.unique(np.linspace(0, num_cells - 1, min(num_cells, MAX_SAMPLED_CELLS)).astype(int))
    rows = sparse.csr_matrix(slot.x[sampled], dtype=np.float64)
    rows.eliminate_zeros()
    starts = rows.indptr[:-1][np.diff(rows.indptr) > 0]
    trials = [_try_base(rows.data, starts, base) for base in (math.e, 2.0, 10.0, None)]
    steady = min(trials, key=lambda trial: trial.spread)
    whole = max(trials, key=lambda trial: trial.unit_share)  # of equals the first: base e
    # The sum of a single cell is always constant: with few cells only a power of ten is believed.
    believed = len(starts) >= 5 or math.log10(steady.total).is_integer()
    if steady.spread < MAX_SPREAD and believed:
        _set_kind(slot, steady.base, steady.total)
    elif whole.unit_share >= MIN_UNIT_SHARE:
        _set_kind(slot, whole.base, None)
    else:
        _set_kind(slot, math.e, None)
        slot.confirmed = False
        slot.text = f"values up to {slot.largest:.4g} that look like logarithms"


class _Trial(NamedTuple):
    base: float | None  # None: the values as they are, no logarithm
    spread: float  # of the cells' sums, as a share of their mean
    total: float  # the cells' usual sum
    unit_share: float


def _try_base(data: np.ndarray, starts: np.ndarray, base: float | None) -> _Trial:
    """What the values of the sampled cells look like if they are logarithms to this base."""
    if not len(starts):  # none of the sampled cells has a count
        return _Trial(base, math.inf, 1.0, 0.0)
    linear = data if base is None else np.expm1(data * math.log(base))
    sums = np.add.reduceat(linear, starts)
    total = float(np.median(sums))
    return _Trial(base, float(sums.std() / sums.mean()), _snapped(total), _unit_share(linear, starts))


def _set_kind(slot: Slot, base: float | None, total: float | None) -> None:
    if base is None:
        slot.kind, slot.text = "linear", "values that are neither whole numbers nor logarithms"
        return
    slot.kind, slot.log_base, slot.total = "log1p", base, total
    per = "" if total is None else f", {total:g} counts per cell"
    slot.text = f"log1p ({BASE_NAMES[base]}{per})"


def _snapped(total: float) -> float:
    """The power of ten within 1 %: a few genes dropped after normalising take that much."""
    power = 10.0 ** round(math.log10(total))
    return power if abs(total / power - 1) < 0.01 else total


def _unit_share(linear: np.ndarray, starts: np.ndarray) -> float:
    """Share of values that are whole multiples of their cell's smallest value (one count).

    Values of one count are left out (they would always fit), and so are high multiples, where rounding to
    three decimals blurs the next whole number. Fewer than 50 values prove nothing: 0.
    """
    lengths = np.diff(np.append(starts, len(linear)))
    ratio = linear / np.repeat(np.minimum.reduceat(linear, starts), lengths)
    ratio = ratio[(ratio > 1.05) & (ratio < 20.5)]
    return float(np.mean(np.abs(ratio - np.rint(ratio)) < 0.05)) if len(ratio) >= 50 else 0.0
