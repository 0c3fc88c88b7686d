"""Where an AnnData keeps its expression (X, raw, a layer), and what kind of values they are."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.errors import InputError
from scperformer.expression.logarithms import ASSUMED_TOTAL
from scperformer.expression.values import BASE_NAMES, MAX_LOG, Slot, judge
from scperformer.files import LOG_MARK, PREPARED, Matrix
from scperformer.genes import id_kind, require_named

COUNT_LAYERS = ("counts", "raw_counts", "count", "raw", "umi", "umis", "matrix")
PARTIAL_LAYERS = ("unspliced", "ambiguous")  # velocyto: parts of the counts, never used unless asked for
BASES = {"e": math.e, "2": 2.0, "10": 10.0}  # input_base


@dataclass(frozen=True)
class Place:
    """One place of a file that may hold expression."""

    source: str  # X, raw or layers/NAME
    text: str  # what it holds, for a person
    used: bool = False

    @property
    def note(self) -> str:
        """That it is not used, as a sentence."""
        return f"{self.source} is not used: {self.text}"


@dataclass(kw_only=True)
class Findings:
    """Where the expression is and what it is."""

    source: str  # X, raw or layers/NAME
    kind: str  # counts, linear or log1p
    total: float | None  # log1p: what a cell adds up to before the logarithm; None: cannot be seen
    log_base: float | None  # log1p: e, 2 or 10
    relative: bool = False  # log1p: each cell's smallest value is one count, and nothing else is known of its total
    num_cells: int
    num_genes: int
    id_kind: str
    why: str = ""  # this place and no other one
    places: list[Place] = field(default_factory=list)  # all of them, in the order in which they were looked at
    notes: list[str] = field(default_factory=list)  # plain sentences: what was seen, what is assumed

    @property
    def text(self) -> str:
        """What is used, as in "log1p in X (natural logarithm, 10,000 counts per cell)"."""
        if self.log_base is None:
            return f"{self.kind} in {self.source}"
        per = "unknown total" if self.total is None else f"{self.total:,.6g} counts per cell"
        return f"{self.kind} in {self.source} ({BASE_NAMES[self.log_base]}, {per})"

    @property
    def sentence(self) -> str:
        """What is used, why, and everything that was noted, on one line for the log."""
        return "; ".join([f"takes {self.text}: {self.why}", *self.notes])

    def as_dict(self) -> dict[str, Any]:
        """The findings as JSON-able values."""
        return asdict(self) | {"text": self.text}


def detect_expression(
    adata: AnnData,
    source: str = "auto",
    input_kind: str = "auto",
    *,
    input_total: float | None = None,
    input_base: str = "auto",
    path: str | Path = "the data",
) -> Findings:
    """Find the expression in X, raw and layers, and say what kind of values they are.

    Counts are preferred (most genes first), then log1p values whose normalisation can be recognised, then the
    rest. X of a file that `preprocess` wrote is taken as its mark says.

    Parameters
    ----------
    source
        auto, X, raw or layers/NAME: look there only.
    input_kind
        auto, counts, linear or log1p: taken as told, whatever the values look like.
    input_total, input_base
        What log1p values were normalised to, in counts per cell; their base (auto, e, 2 or 10). Win over what is seen.
    path
        Where `adata` came from, for messages.

    Raises
    ------
    InputError
        No place holds usable values (NaN and negative values never are), or `source` does not exist.
    """
    total = prepared_total(adata) if source in ("auto", "X") and input_kind == "auto" else None
    slots = _slots(adata, source if total is None else "X", path)
    if total is not None and (slots[0].largest > MAX_LOG or (slots[0].kind == "counts" and slots[0].largest > 1)):
        warnings.warn(f"X of {path} is not what scperformer had prepared: it is looked at anew", stacklevel=2)
        total, slots = None, _slots(adata, source, path)
    usable = [slot for slot in slots if slot.kind != "unusable"]
    if not usable:
        raise _nothing_usable(slots, path)
    if total is not None:
        chosen = usable[0]
        chosen.kind, chosen.log_base, chosen.total, chosen.confirmed = "log1p", math.e, total, True
        chosen.too_large = False
        notes = [f"X was prepared by scperformer ({total:g} counts per cell)"]
        why = "prepared by scperformer"
    else:
        wanted = [slot for slot in usable if slot.kind == input_kind] or usable
        chosen = min(wanted, key=_preference)  # the first of equals: X before layers before raw
        why = _reason(chosen, slots, source, input_kind)
        notes = []
    places = [Place(slot.source, slot.text, slot is chosen) for slot in slots]
    if total is None:
        notes += [place.note for place in places if not place.used]
        notes += _obey(chosen, input_kind, path)
    if source == "auto" and total is None:
        places += [Place(f"layers/{name}", "a part of the counts by its name") for name in _parts_of_counts(adata)]
    if chosen.too_large and (input_kind, input_total, input_base) == ("auto", None, "auto"):
        raise _no_known_logarithm(chosen, path)
    notes += _base_notes(chosen, input_base) + _total_notes(chosen, input_total)
    return replace(_findings(adata, chosen, notes), why=why, places=places)


def _nothing_usable(slots: list[Slot], path: str | Path) -> InputError:
    there = "; ".join(f"{slot.source}: {slot.text}" for slot in slots) or "X is empty"
    expected = "counts, or log-normalised values without NaN or negative values"
    return InputError(f"no usable expression in {path} ({there})", expected, _remedy(slots))


def _slots(adata: AnnData, source: str, path: str | Path) -> list[Slot]:
    """What each of the places to look at holds."""
    slots = [_judged(adata, name, x, path) for name, x in _places(adata, source, path)]
    for slot in slots:
        _believe_scanpy(slot, adata)
    return slots


def _parts_of_counts(adata: AnnData) -> list[str]:
    return [name for name in adata.layers if name in PARTIAL_LAYERS]


def _reason(chosen: Slot, slots: list[Slot], source: str, input_kind: str) -> str:
    """Why this place and no other one."""
    usable = [slot for slot in slots if slot.kind != "unusable"]
    if source != "auto":
        return "as told"
    if len(slots) == 1:
        return "there is no other"
    if len(usable) == 1:
        return "nothing else can be used"
    if input_kind != "auto" and chosen.kind == input_kind:
        return f"it is what input_kind={input_kind} says"
    tier, _ = _preference(chosen)
    rivals = [slot for slot in usable if slot is not chosen and _preference(slot)[0] == tier]
    if any(slot.x.shape[1] < chosen.x.shape[1] for slot in rivals):
        return "it has the most genes"
    if rivals:
        return "the first of those that would do"
    return {0: "counts come first", 1: "logarithms that are sure come next to counts"}.get(tier, "nothing is better")


def _remedy(slots: list[Slot]) -> str:
    """What can be done where no place is usable."""
    start = "put the counts into X or layers['counts']"
    if any(slot.mixed for slot in slots):
        return f"{start} for all cells, or save the cells of each kind as a file of its own"
    if slots and all("scaled" in slot.text for slot in slots):
        return f"{start}, or the values from before scaling, and save the file"
    if slots and all("NaN" in slot.text for slot in slots):
        how = "numpy.nan_to_num of adata.X, or of adata.X.data if it is sparse"
        return f"{start}, or set NaN that mean 0 to 0 ({how}), and save the file"
    return f"{start}, or mend the values, and save the file"


def prepared_total(adata: AnnData) -> float | None:
    """What X was normalised to, if a mark says that `preprocess` wrote it; such a mark may outlive its X."""
    mark = adata.uns.get(PREPARED)
    total = mark.get("target_sum") if isinstance(mark, Mapping) else None
    if adata.X is None or not isinstance(total, int | float | np.number):
        return None
    return float(total) if 0 < total < math.inf else None


def _believe_scanpy(slot: Slot, adata: AnnData) -> None:
    """Take the base of logarithms from the mark of `scanpy.pp.log1p`, where their values do not tell it."""
    mark = adata.uns.get(LOG_MARK)
    if slot.kind != "log1p" or slot.confirmed or slot.source not in ("X", "raw") or not isinstance(mark, Mapping):
        return
    said = mark.get("base")
    said = math.e if said is None else said
    known = [base for base in BASE_NAMES if isinstance(said, int | float | np.number) and math.isclose(said, base)]
    if known:
        # Too large for the usual total: the base is known, and the sum of a cell stands for its total.
        slot.log_base, slot.confirmed, slot.relative, slot.too_large = known[0], True, slot.too_large, False
        slot.text = f"log1p ({BASE_NAMES[known[0]]}, by uns['{LOG_MARK}'])"


def _judged(adata: AnnData, source: str, x: Matrix, path: str | Path) -> Slot:
    """What `judge` says; of a mix of kinds it names some cells of each."""
    try:
        slot = judge(source, x)
    except ValueError as error:
        found = f"a damaged matrix in {source} of {path} ({error})"
        raise InputError(found, "arrays that fit each other", "write the file anew") from error
    if slot.mixed:
        names = np.asarray(adata.obs_names)
        parts = [f"{kind} in {_these(rows, names)}" for kind, rows in slot.mixed]
        slot.text = f"a mix: {' and '.join(parts)}"
    return slot


def _these(rows: np.ndarray, names: np.ndarray) -> str:
    """Some cells by number, name and row, the first of them if they are many: rows that follow each other as one."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    ranges = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:3]]
    more = [" ..." if len(all_of_them) > 3 else "" for all_of_them in (rows, runs)]
    named = ", ".join(str(name) for name in names[rows[:3]])
    return (
        f"{len(rows)} cell{'s' if len(rows) > 1 else ''} ({named}{more[0]}; rows from 0: {', '.join(ranges)}{more[1]})"
    )


def _places(adata: AnnData, source: str, path: str | Path) -> list[tuple[str, Matrix]]:
    """Name and matrix of each place to look at, in order of preference."""
    named = sorted(adata.layers, key=lambda name: str(name).lower() not in COUNT_LAYERS)
    places = {"X": adata.X} | {f"layers/{name}": adata.layers[name] for name in named}
    if adata.raw is not None:
        places["raw"] = adata.raw.X
    places = {name: x for name, x in places.items() if x is not None}
    if source == "auto":
        return [(name, x) for name, x in places.items() if name.removeprefix("layers/") not in PARTIAL_LAYERS]
    if source not in places:
        there = ", ".join(places) or "neither X nor layers nor raw"
        remedy, mends = "set source=... to one", [f"source={name}" for name in places]
        raise InputError(f"no {source} in {path} (it has {there})", "a place that exists", remedy, mends)
    return [(source, places[source])]


def _preference(slot: Slot) -> tuple[int, int]:
    """Sort key: the most trustworthy kind first, then the most genes."""
    trusted = slot.source in ("X", "raw") or slot.source.removeprefix("layers/").lower() in COUNT_LAYERS
    if slot.kind == "counts":
        tier = 0 if trusted else 2  # a layer of whole numbers may be anything, a mask for instance
    elif slot.kind == "log1p":
        tier = 1 if slot.confirmed else 3
    else:
        tier = 4
    return tier, -slot.x.shape[1]


def _obey(slot: Slot, input_kind: str, path: str | Path) -> list[str]:
    """Take the values as told, with a note where they look otherwise."""
    if input_kind in ("auto", slot.kind):
        return []
    if input_kind == "log1p" and slot.largest > MAX_LOG:
        raise InputError(
            f"values up to {slot.largest:g} in {slot.source} of {path}",
            f"log1p values of at most {MAX_LOG:g}",
            "leave out input_kind=log1p",
            ["input_kind=auto"],
        )
    note = f"taken as {input_kind} as told, though {slot.source} looks like {slot.text}"
    slot.kind, slot.total, slot.relative = input_kind, None, False
    slot.log_base = math.e if input_kind == "log1p" else None
    return [note]


def _no_known_logarithm(slot: Slot, path: str | Path) -> InputError:
    usual = f"ln(1 + counts per {ASSUMED_TOTAL:g})"
    found = (
        f"values up to {slot.largest:.4g} in {slot.source} of {path}, too large for {usual} and of no base and total"
    )
    remedy = (
        "put counts into X or layers['counts'], or say what the values are, such as input_kind=linear, "
        "or input_kind=log1p input_base=2 input_total=1000000"
    )
    expected = "counts, or logarithms of a base and a total that can be seen"
    return InputError(found, expected, remedy, ["input_kind=linear", "input_kind=log1p"])


def _base_notes(slot: Slot, input_base: str) -> list[str]:
    if input_base == "auto":
        return []
    if slot.kind != "log1p":
        warnings.warn(f"input_base is not used: {slot.source} holds {slot.kind}", stacklevel=3)
        return []
    base = BASES[input_base]
    if base != slot.log_base:  # what was seen of the total was seen with another base
        slot.total, slot.relative = None, False
    slot.log_base, slot.confirmed = base, True
    return [f"taken as log1p to base {input_base} as told"]


def _total_notes(slot: Slot, input_total: float | None) -> list[str]:
    if slot.kind != "log1p":
        if input_total is not None:
            warnings.warn(f"input_total is not used: {slot.source} holds {slot.kind}", stacklevel=3)
        return []
    notes = []
    if not slot.confirmed:
        notes.append(
            "taken as natural log1p by the range of the values alone; "
            "set input_kind=... if they are not, or input_base=... if the base is another"
        )
    if input_total is not None:
        notes.append(f"taken as {input_total:g} counts per cell as told")
        slot.total, slot.relative = float(input_total), False
    elif slot.relative:
        notes.append(
            "what the values were normalised to cannot be seen, or is not the same for all; the total of each cell is "
            "taken as that of the genes in the file (set input_total=... if you know better)"
        )
    elif slot.total is None:
        notes.append(
            "what the values were normalised to cannot be seen (genes dropped afterwards?); "
            f"they are taken as per {ASSUMED_TOTAL:g} counts, set input_total=... if that is wrong"
        )
    return notes


def _findings(adata: AnnData, slot: Slot, notes: list[str]) -> Findings:
    if slot.num_empty:
        notes.append(f"{slot.num_empty} cell{'s' if slot.num_empty > 1 else ''} without any count")
    if slot.kind == "counts" and slot.largest == 1:
        notes.append("no count is above 1: were the values made binary?")
    return Findings(
        source=slot.source,
        kind=slot.kind,
        total=slot.total,
        log_base=slot.log_base,
        relative=slot.relative,
        num_cells=slot.x.shape[0],
        num_genes=slot.x.shape[1],
        id_kind=id_kind(_gene_names(adata, slot.source)),
        notes=notes,
    )


def gene_table(adata: AnnData, source: str) -> pd.DataFrame:
    """The var table of the genes of X, layers or raw."""
    return adata.raw.var if source == "raw" else adata.var


def _gene_names(adata: AnnData, source: str) -> list[str]:
    return [str(name).strip() for name in gene_table(adata, source).index]


def stored_expression(adata: AnnData, findings: Findings, path: str | Path = "the data") -> tuple[Matrix, list[str]]:
    """The matrix that `findings` names, and the gene name of each of its columns; names may repeat.

    Raises
    ------
    InputError
        Several genes have no name.
    """
    names = _gene_names(adata, findings.source)
    require_named(names, f"{findings.source} of {path}")
    if findings.source == "raw":
        x = adata.raw.X
    else:
        x = adata.X if findings.source == "X" else adata.layers[findings.source.removeprefix("layers/")]
    # SciPy has no sparse matrices of half precision.
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float16 else x, names
