"""What kind of values a matrix holds: counts, log1p (of which base and total), linear, or nothing usable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from scperformer.expression.logarithms import Group, Logarithm, recognise
from scperformer.files import Matrix, Rows

MAX_LOG = 25.0  # e**25 counts is more than any cell has, in any base that is in use
MOST = 1e15  # whole values beyond are no longer exact even in float64, and float32 ends at 3e38
MAX_SAMPLED_CELLS = 2000
MIN_MIXED_SUM = 50.0  # whole values that add up to less may be logarithms by chance
BASE_NAMES = {math.e: "natural logarithm", 2.0: "logarithm to base 2", 10.0: "logarithm to base 10"}
PER_MILLION = 1e6


@dataclass(kw_only=True)
class Slot:
    """One place of an AnnData that may hold expression, and what its values say."""

    source: str
    x: Rows
    kind: str  # counts, linear, log1p, or unusable
    text: str  # what it is, for a person
    total: float | None = None
    log_base: float | None = None
    confirmed: bool = True  # False: log1p by the range of its values alone
    too_large: bool = False  # and for logarithms of the usual total its values are too large
    relative: bool = False  # log1p of no total that could be: the counts of a cell can be had from its smallest value
    largest: float = 0.0
    num_empty: int = 0  # cells without any value
    mixed: list[tuple[str, np.ndarray]] = field(default_factory=list)  # of a mix: each kind, and the rows that are it


@dataclass
class _Scan:
    """What one pass over all values tells; of each cell, whether it has values, whole ones only, and their sum."""

    num_bad: int
    low: float
    high: float
    filled: np.ndarray
    whole: np.ndarray
    highest: np.ndarray
    sums: np.ndarray


def judge(source: str, matrix: Matrix | Rows) -> Slot:
    """What the stored values of a matrix are.

    NaN, negative and whole values are looked for among all stored values; whether values are logarithms, and
    of what, is judged from at most 2,000 cells.

    Parameters
    ----------
    source
        Name of the place, kept in the result.
    matrix
        N cells x G genes; a sparse matrix is never made dense.
    """
    x = matrix if isinstance(matrix, Rows) else Rows(matrix)
    if x.dtype.kind not in "buif":
        return Slot(source=source, x=x, kind="unusable", text=f"not numbers ({x.dtype})")
    with np.errstate(over="ignore"):  # of values that are refused below
        scan = _scan(x)
    slot = Slot(source=source, x=x, kind="unusable", text="", largest=scan.high)
    slot.num_empty = int((~scan.filled).sum())
    if scan.num_bad:
        slot.text = f"{scan.num_bad} NaN or infinite value{'s' if scan.num_bad > 1 else ''}"
    elif scan.low < 0:
        slot.text = f"negative values down to {scan.low:.4g}: scaled or centred"
    elif scan.high > MOST:
        slot.text = f"values up to {scan.high:.4g}, which no expression has"
    elif scan.high == 0:
        slot.text = "nothing but zeros"
    elif scan.whole.all():
        slot.kind, slot.text = "counts", "counts"
    else:
        _judge_broken(slot, scan)
    return slot


def _scan(x: Rows) -> _Scan:
    num_bad, low, high = 0, 0.0, 0.0
    filled, whole = np.zeros(x.shape[0], dtype=bool), np.ones(x.shape[0], dtype=bool)
    highest, sums = (np.zeros(x.shape[0], dtype=np.float32) for _ in range(2))
    for start, block in x.blocks():
        values = np.asarray(block.data if sparse.issparse(block) else block)
        if values.size and values.dtype.kind == "f" and not np.isfinite(values).all():
            num_bad += int(values.size - np.count_nonzero(np.isfinite(values)))
            continue
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        rows = slice(start, start + block.shape[0])
        sums[rows] = np.asarray(block.sum(axis=1, dtype=np.float64)).ravel()
        filled[rows] = _of_rows(block, values != 0)
        if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
            whole[rows] = ~_of_rows(block, values != np.rint(values))
            highest[rows] = np.asarray(block.max(axis=1).todense() if sparse.issparse(block) else block.max(1)).ravel()
    return _Scan(num_bad, low, high, filled, whole, highest, sums)


def _of_rows(block: Matrix, flags: np.ndarray) -> np.ndarray:
    """Which rows have any of the stored values that are flagged."""
    if not sparse.issparse(block):
        return np.asarray(flags.any(axis=1))
    assert isinstance(block, sparse.csr_matrix)
    found = np.zeros(block.shape[0], dtype=bool)
    found[np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))[flags]] = True
    return found


def _judge_broken(slot: Slot, scan: _Scan) -> None:
    """Values with decimals: logarithms, linear values, or one of them in some cells and something else in others."""
    broken = np.flatnonzero(~scan.whole & (scan.highest <= MAX_LOG))
    sampled = broken[np.unique(np.linspace(0, len(broken) - 1, min(len(broken), MAX_SAMPLED_CELLS)).astype(int))]
    seen = recognise(slot.x.some(sampled)) if len(sampled) else Logarithm(None)
    if seen.base is not None and seen.confirmed:
        others = [
            ("counts", np.flatnonzero(scan.whole & scan.filled & (scan.sums >= MIN_MIXED_SUM))),
            ("values that are too large for logarithms", np.flatnonzero(~scan.whole & (scan.highest > MAX_LOG))),
        ]
        parts = [(kind, rows) for kind, rows in others if len(rows)]
        several = len({group.base for group in seen.groups}) > 1
        if parts or several:
            logarithms = _by_base(slot.x, broken, seen.groups) if several else [("logarithms", broken)]
            slot.mixed = [*parts, *logarithms]
            slot.text = " and ".join(f"{kind} in {len(rows)} cells" for kind, rows in slot.mixed)
            return
    if slot.largest > MAX_LOG or seen.base is None:
        slot.kind = "linear"
        per_million = seen.total == PER_MILLION or np.allclose(scan.sums[scan.filled], PER_MILLION, rtol=0.01)
        slot.text = (
            "values per million (TPM or CPM)" if per_million else "values that are neither counts nor logarithms"
        )
    else:
        _set_logarithm(slot, seen)


def _by_base(x: Rows, rows: np.ndarray, groups: Sequence[Group]) -> list[tuple[str, np.ndarray]]:
    """Which of these rows are logarithms to which base; those of no group count to the largest one."""
    base = np.full(x.shape[0], groups[0].base)
    for start in range(0, len(rows), MAX_SAMPLED_CELLS):
        some = rows[start : start + MAX_SAMPLED_CELLS]
        cells = x.some(some)
        for group in reversed(groups):
            base[some[group.has(cells)]] = group.base
    return [(BASE_NAMES[which], rows[base[rows] == which]) for which in dict.fromkeys(group.base for group in groups)]


def _set_logarithm(slot: Slot, seen: Logarithm) -> None:
    assert seen.base is not None
    slot.kind, slot.log_base, slot.total, slot.confirmed = "log1p", seen.base, seen.total, seen.confirmed
    if not seen.confirmed:
        slot.text = f"values up to {slot.largest:.4g} that look like logarithms"
        slot.too_large = seen.too_large
        return
    totals = " or ".join(f"{group.total:g}" for group in seen.groups) or (f"{seen.total:g}" if seen.total else "")
    per = f", {totals} counts per cell" if totals else ""
    slot.text = f"log1p ({BASE_NAMES[seen.base]}{per})"
    slot.relative = seen.relative
