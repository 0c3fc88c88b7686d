"""Judging the values of a matrix: counts, log1p (with base and total), linear, or unusable."""

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from scperformer.expression.logarithms import BASES, Logarithm, recognise
from scperformer.files import Matrix, Rows

MAX_LOG = 25.0  # e**25 counts is more than any cell has, in any base that is in use
MOST = 1e15  # larger whole numbers are not exact even in float64, and float32 ends at 3e38
MAX_SAMPLED_CELLS = 2000
MIN_MIXED_SUM = 50.0  # whole values that add up to less may be logarithms by chance
BASE_NAMES = dict(zip(BASES, ("natural logarithm", "logarithm to base 2", "logarithm to base 10"), strict=True))
PER_MILLION = 1e6


@dataclass(kw_only=True)
class Slot:
    """One place of an AnnData that may hold expression, and what its values are."""

    source: str
    x: Rows
    kind: str = "unusable"  # counts, linear, log1p, or unusable
    text: str = ""  # for people
    total: float | None = None
    log_base: float | None = None
    confirmed: bool = True  # False: log1p by the range of its values alone
    too_large: bool = False  # not confirmed, and too large for logarithms of the usual total
    relative: bool = False  # log1p of an unknown total: the smallest value of a cell is one count
    prepared: bool = False  # `preprocess` wrote it, by its mark
    largest: float = 0.0
    num_empty: int = 0  # cells without values
    mixed: list[tuple[str, np.ndarray]] = field(default_factory=list)  # in a mix: each kind and its rows


@dataclass
class _Scan:
    """The result of one pass over all values; arrays have an entry for each cell."""

    num_bad: int
    low: float
    high: float
    filled: np.ndarray  # the cell has values
    whole: np.ndarray  # all its values are whole numbers
    highest: np.ndarray  # value, of cells that are not whole
    sums: np.ndarray


def judge(source: str, matrix: Matrix | Rows) -> Slot:
    """Say what the values of a matrix are.

    All values are checked for NaN, negative and whole numbers. Up to 2,000 cells show whether values are logarithms,
    and their base and total.

    Parameters
    ----------
    source
        Name of the place, kept in the result.
    matrix
        N cells x G genes; a sparse matrix is never made dense.
    """
    x = matrix if isinstance(matrix, Rows) else Rows(matrix)
    if x.dtype.kind not in "buif":
        return Slot(source=source, x=x, text=f"not numbers ({x.dtype})")
    with np.errstate(over="ignore"):  # values that overflow are refused below
        scan = _scan(x)
    slot = Slot(source=source, x=x, largest=scan.high, num_empty=int((~scan.filled).sum()))
    if scan.num_bad:
        slot.text = f"{scan.num_bad} NaN or infinite value{'s' if scan.num_bad > 1 else ''}"
    elif scan.low < 0:
        slot.text = f"negative values down to {scan.low:.4g}: scaled or centred"
    elif scan.high > MOST:
        slot.text = f"values up to {scan.high:.4g}, which is too large for expression"
    elif scan.high == 0:
        slot.text = "nothing but zeros"
    elif scan.whole.all():
        slot.kind, slot.text = "counts", "counts"
    else:
        _judge_decimals(slot, scan)
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
        filled[rows] = _rows_with(block, values != 0)
        if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
            whole[rows] = ~_rows_with(block, values != np.rint(values))
            highest[rows] = np.asarray(block.max(axis=1).todense() if sparse.issparse(block) else block.max(1)).ravel()
    return _Scan(num_bad, low, high, filled, whole, highest, sums)


def _rows_with(block: Matrix, flags: np.ndarray) -> np.ndarray:
    """Find the rows that have any of the flagged stored values."""
    if not sparse.issparse(block):
        return np.asarray(flags.any(axis=1))
    assert isinstance(block, sparse.csr_matrix)
    found = np.zeros(block.shape[0], dtype=bool)
    found[np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))[flags]] = True
    return found


def _judge_decimals(slot: Slot, scan: _Scan) -> None:
    """Judge values with decimals: logarithms, linear values, or logarithms in some cells and other values in others."""
    small = np.flatnonzero(~scan.whole & (scan.highest <= MAX_LOG))
    sampled = small[np.unique(np.linspace(0, len(small) - 1, min(len(small), MAX_SAMPLED_CELLS)).astype(int))]
    seen = recognise(slot.x.some(sampled)) if len(sampled) else Logarithm(None)
    if seen.base is not None and seen.confirmed:
        counts = np.flatnonzero(scan.whole & scan.filled & (scan.sums >= MIN_MIXED_SUM))
        large = np.flatnonzero(~scan.whole & (scan.highest > MAX_LOG))
        bases = _rows_by_base(slot.x, small, seen)
        if len(counts) or len(large) or len(bases) > 1:
            logarithms = bases if len(bases) > 1 else [("logarithms", small)]
            parts = [("counts", counts), ("values that are too large for logarithms", large), *logarithms]
            slot.mixed = [(kind, rows) for kind, rows in parts if len(rows)]
            slot.text = " and ".join(f"{kind} in {len(rows)} cells" for kind, rows in slot.mixed)
            return
    if slot.largest > MAX_LOG or seen.base is None:
        per_million = seen.total == PER_MILLION or np.allclose(scan.sums[scan.filled], PER_MILLION, rtol=0.01)
        slot.kind = "linear"
        slot.text = (
            "values per million (TPM or CPM)" if per_million else "values that are neither counts nor logarithms"
        )
        return
    slot.kind, slot.log_base, slot.total, slot.confirmed = "log1p", seen.base, seen.total, seen.confirmed
    slot.relative, slot.too_large = seen.relative, seen.too_large
    if seen.confirmed:
        totals = " or ".join(f"{group.total:g}" for group in seen.groups) or (f"{seen.total:g}" if seen.total else "")
        slot.text = f"log1p ({BASE_NAMES[seen.base]}{f', {totals} counts per cell' if totals else ''})"
    else:
        slot.text = f"values up to {slot.largest:.4g} that look like logarithms"


def _rows_by_base(x: Rows, rows: np.ndarray, seen: Logarithm) -> list[tuple[str, np.ndarray]]:
    """Split rows by the base of their logarithms; those of no group have the base of the largest group."""
    bases = dict.fromkeys(group.base for group in seen.groups)
    if len(bases) < 2:
        return []
    base_of = np.full(x.shape[0], seen.groups[0].base)
    for start in range(0, len(rows), MAX_SAMPLED_CELLS):
        some = rows[start : start + MAX_SAMPLED_CELLS]
        cells = x.some(some)
        for group in reversed(seen.groups):
            base_of[some[group.has(cells)]] = group.base
    return [(BASE_NAMES[base], rows[base_of[rows] == base]) for base in bases]
