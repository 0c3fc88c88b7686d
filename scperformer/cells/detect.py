"""The expression of an AnnData: its place (X, raw or a layer) and the kind of its values."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.base.messages import shortened
from scperformer.cells.droplets import Droplets, find_droplets
from scperformer.cells.features import gene_columns, perhaps_no_genes
from scperformer.cells.values import ASSUMED_TOTAL, BASE_NAMES, MAX_LOG, Candidate, Logarithm, judge, judge_over_all
from scperformer.files import LOG1P_KEY, PREPARED_KEY, Matrix, Rows
from scperformer.genes import id_kind, require_named

COUNT_LAYERS = ("counts", "raw_counts", "count", "raw", "umi", "umis", "matrix")
NOTED_CELLS, NOTED_SHARE = 500, 0.1  # cells that show how much features carry, and the share that is worth a note
PARTIAL_LAYERS = ("unspliced", "ambiguous")  # velocyto: parts of the counts, only used if source=... names them
INPUT_BASES = {"e": math.e, "2": 2.0, "10": 10.0}  # input_base


@dataclass(frozen=True)
class Place:
    """One place of a file that may hold expression."""

    source: str  # X, raw or layers/NAME
    text: str  # its values, for people
    used: bool = False

    @property
    def note(self) -> str:
        """A sentence for a place that is not used."""
        return f"{self.source} is not used: {self.text}"


@dataclass(kw_only=True)
class Findings:
    """The place of the expression, and the kind of its values."""

    source: str  # X, raw or layers/NAME
    kind: str  # counts, linear or log1p
    total: float | None  # log1p: total of a cell before the logarithm; None: not recognised
    log_base: float | None  # log1p: e, 2 or 10
    relative: bool = False  # log1p: the smallest value of each cell is one count, and its total is otherwise unknown
    num_cells: int
    num_genes: int
    id_kind: str
    why: str = ""  # this place was chosen
    places: list[Place] = field(default_factory=list)  # all of them, in the order in which they were judged
    notes: list[str] = field(default_factory=list)  # sentences for people: observations and assumptions
    droplets: Droplets | None = None  # of an unfiltered matrix: the barcodes that cannot be cells

    @property
    def text(self) -> str:
        """The values in words: "log1p in X (natural logarithm, 10,000 counts per cell)"."""
        if self.log_base is None:
            return f"{self.kind} in {self.source}"
        per = "unknown total" if self.total is None else f"{self.total:,.6g} counts per cell"
        return f"{self.kind} in {self.source} ({BASE_NAMES[self.log_base]}, {per})"

    @property
    def sentence(self) -> str:
        """The values, the reason for this place, and all notes, on one line for the log."""
        return "; ".join([f"takes {self.text}: {self.why}", *self.notes])


def _feature_table(adata: AnnData, source: str) -> pd.DataFrame:
    return adata.raw.var if source == "raw" else adata.var


def gene_table(adata: AnnData, source: str) -> pd.DataFrame:
    """Return the var table of the genes of X, layers or raw; other features are left out."""
    var = _feature_table(adata, source)
    is_gene, _ = gene_columns(var)
    return var if is_gene is None else var[is_gene]


def _gene_names(adata: AnnData, source: str) -> list[str]:
    return [str(name).strip() for name in gene_table(adata, source).index]


def stored_expression(adata: AnnData, findings: Findings, path: str | Path = "the data") -> tuple[Rows, list[str]]:
    """Return the matrix that `findings` name, and the gene of each column; several genes without a name are refused."""
    names = _gene_names(adata, findings.source)
    require_named(names, f"{findings.source} of {path}")
    if findings.source == "raw":
        x = adata.raw.X
    else:
        x = adata.X if findings.source == "X" else adata.layers[findings.source.removeprefix("layers/")]
    # SciPy has no sparse matrices of half precision.
    x = x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float16 else x
    return Rows(x, gene_columns(_feature_table(adata, findings.source))[0]), names


def prepared_total(adata: AnnData) -> float | None:
    """Return the total that `preprocess` normalised X to, by its mark, which may remain if X is changed; else None."""
    mark = adata.uns.get(PREPARED_KEY)
    total = mark.get("target_sum") if isinstance(mark, Mapping) else None
    if adata.X is None or not isinstance(total, int | float | np.number):
        return None
    return float(total) if 0 < total < math.inf else None


def detect_expression(
    adata: AnnData,
    source: str = "auto",
    input_kind: str = "auto",
    *,
    input_total: float | None = None,
    input_base: str = "auto",
    path: str | Path = "the data",
) -> Findings:
    """Find the expression in X, raw and layers, and the kind of its values.

    Counts are preferred (most genes first), then log1p values whose normalisation is recognised, then the rest. X of a
    file from `preprocess` is recognised by its mark in uns. A file without usable values is refused.

    `source` (X, raw or layers/NAME) is the only place to use. The values are taken as `input_kind` (counts, linear or
    log1p) says, and logarithms as made with `input_total` counts per cell and `input_base` (e, 2 or 10), whatever they
    look like.
    """
    named = sorted(adata.layers, key=lambda name: str(name).lower() not in COUNT_LAYERS)
    every = {"X": adata.X} | {f"layers/{name}": adata.layers[name] for name in named}
    every["raw"] = None if adata.raw is None else adata.raw.X
    places = {name: x for name, x in every.items() if x is not None}
    if source not in ("auto", *places):
        there = ", ".join(places) or "neither X nor layers nor raw"
        remedy = "set source=... to one"
        fixes = [f"source={name}" for name in places]
        raise InputError(f"no {source} in {path} (it has {there})", "a place that exists", remedy, fixes)
    partial = [name for name in places if source == "auto" and name.removeprefix("layers/") in PARTIAL_LAYERS]
    prepared = prepared_total(adata) if input_kind == "auto" else None
    slots: list[Candidate] = []
    for name, x in places.items():
        if name not in partial and source in ("auto", name):
            slots.append(_judge_place(adata, name, x, prepared, path))
            if slots[-1].prepared:
                break
    usable = [slot for slot in slots if slot.kind != "unusable"]
    if not usable:
        there = "; ".join(f"{slot.source}: {slot.text}" for slot in slots) or "X is empty"
        remedy = "put the counts into X or layers['counts']"
        if any(slot.mixed for slot in slots):
            remedy += " for all cells, or save the cells of each kind as a file of its own"
        elif slots and all("scaled" in slot.text for slot in slots):
            remedy += ", or the values from before scaling, and save the file"
        elif slots and all("no genes" in slot.text for slot in slots):
            remedy = "choose the file that holds the gene expression"
        elif slots and all("NaN" in slot.text for slot in slots):
            how = "numpy.nan_to_num of adata.X, or of adata.X.data if it is sparse"
            remedy += f", or set NaN that mean 0 to 0 ({how}), and save the file"
        else:
            remedy += ", or fix the values, and save the file"
        expected = "counts, or log-normalised values without NaN or negative values"
        raise InputError(f"no usable expression in {path} ({there})", expected, remedy)
    chosen, why = _choose(usable, slots, source, input_kind)

    found = [Place(slot.source, slot.text, slot is chosen) for slot in slots]
    notes = [place.note for place in found if not place.used]
    if chosen.prepared:
        notes.append(f"X was prepared by scperformer ({chosen.log.total:g} counts per cell)")
    else:
        found += [Place(name, "a part of the counts by its name") for name in partial]
    notes += _interpret(chosen, input_kind, input_total, input_base, path)
    if chosen.num_empty:
        notes.append(f"{chosen.num_empty} cell{'s' if chosen.num_empty > 1 else ''} without any count")
    if chosen.kind == "counts" and chosen.largest == 1:
        notes.append("no count is above 1: were the values made binary?")
    if others := gene_columns(_feature_table(adata, chosen.source))[1]:
        notes.append(f"features that are no genes are left out ({_listed(others)})")
    notes += _foreign_note(chosen, _gene_names(adata, chosen.source))
    num_cells, num_genes = chosen.x.shape
    droplets = find_droplets(*chosen.sizes(), num_genes)
    if droplets is not None:
        notes.append(droplets.text)
    log: dict[str, Any] = {"total": chosen.log.total, "log_base": chosen.log.base, "relative": chosen.log.relative}
    about: dict[str, Any] = {"source": chosen.source, "kind": chosen.kind, "why": why, "places": found, "notes": notes}
    kind = id_kind(_gene_names(adata, chosen.source))
    return Findings(num_cells=num_cells, num_genes=num_genes, id_kind=kind, droplets=droplets, **log, **about)


def _listed(others: Mapping[str, int]) -> str:
    """Name kinds of features with their numbers."""
    return ", ".join(f"{num:,} {kind}" for kind, num in others.items())


def _foreign_note(slot: Candidate, names: list[str]) -> list[str]:
    """Return a note on features that are probably no genes by their names, if they carry much of the expression."""
    perhaps = perhaps_no_genes(names)
    if not perhaps.any() or not slot.x.shape[0]:
        return []
    rows = slot.x.some(np.unique(np.linspace(0, slot.x.shape[0] - 1, min(slot.x.shape[0], NOTED_CELLS)).astype(int)))
    if slot.kind == "log1p" and slot.log.base is not None:
        rows.data = np.expm1(rows.data * math.log(slot.log.base))
    share = float(rows[:, np.flatnonzero(perhaps)].sum() / max(rows.sum(), 1e-12))
    if share < NOTED_SHARE:
        return []
    examples = ", ".join(shortened(names[place]) for place in np.flatnonzero(perhaps)[:3])
    text = f"{int(perhaps.sum())} features that look like antibodies or hashtags ({examples}) carry {share:.0%} of the "
    return [f"{text}expression: they are used as genes; if they are none, name their types in var['feature_types']"]


def _judge_place(adata: AnnData, source: str, x: Matrix, prepared: float | None, path: str | Path) -> Candidate:
    """Judge the values of a place, with the marks of `preprocess` and scanpy; in a mix, name cells of each kind."""
    is_gene, others = gene_columns(_feature_table(adata, source))
    try:
        if is_gene is not None and not is_gene.any():
            return Candidate(source=source, x=Rows(x, is_gene), text=f"no genes ({_listed(others)})")
        slot = judge(source, Rows(x, is_gene))
        if is_gene is not None and slot.kind == "log1p":
            judge_over_all(slot, Rows(x))
    except ValueError as error:
        found = f"a damaged matrix in {source} of {path} ({error})"
        raise InputError(found, "arrays that fit each other", "write the file again") from error
    if source == "X" and prepared is not None:
        slot.prepared = slot.largest <= MAX_LOG and not (slot.kind == "counts" and slot.largest > 1)
        if not slot.prepared:
            text = f"X of {path} was changed after scperformer had prepared it: its mark is ignored"
            warnings.warn(text, stacklevel=3)
        elif slot.kind != "unusable":
            slot.kind = "log1p"
            slot.log = Logarithm(math.e, prepared)
    if slot.mixed:
        names = np.asarray(adata.obs_names)
        parts = [f"{kind} in {_some_cells(rows, names)}" for kind, rows in slot.mixed]
        slot.text = f"a mix: {' and '.join(parts)}"

    mark = adata.uns.get(LOG1P_KEY)  # written by scanpy.pp.log1p
    if slot.kind == "log1p" and not slot.log.confirmed and source in ("X", "raw") and isinstance(mark, Mapping):
        said = math.e if mark.get("base") is None else mark["base"]
        known = [base for base in BASE_NAMES if isinstance(said, int | float | np.number) and math.isclose(said, base)]
        if known:
            # Values too large for the usual total: the base is known, and a cell's total is the sum of its genes.
            slot.log = Logarithm(known[0], slot.log.total, relative=slot.log.too_large)
            slot.text = f"log1p ({BASE_NAMES[known[0]]}, by uns['{LOG1P_KEY}'])"
    return slot


def _some_cells(rows: np.ndarray, names: np.ndarray) -> str:
    """Name the first of some cells by name and row; rows that follow each other are a range."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    ranges = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:3])
    named = ", ".join(str(name) for name in names[rows[:3]])
    more, more_runs = (" ..." if len(all_of_them) > 3 else "" for all_of_them in (rows, runs))
    return f"{len(rows)} cell{'s' if len(rows) > 1 else ''} ({named}{more}; rows from 0: {ranges}{more_runs})"


def _choose(usable: list[Candidate], slots: list[Candidate], source: str, input_kind: str) -> tuple[Candidate, str]:
    """Choose the most trustworthy kind with the most genes, and the reason; among equals X, then layers, then raw."""

    def rank(slot: Candidate) -> int:
        trusted = slot.source in ("X", "raw") or slot.source.removeprefix("layers/").lower() in COUNT_LAYERS
        if slot.doubt:
            return 6
        if slot.kind == "counts" and slot.largest == 1:
            return 5  # they show which genes are expressed, at best
        if slot.kind == "counts":
            return 0 if trusted else 2  # another layer of whole numbers may be a mask, for instance
        return (1 if slot.log.confirmed else 3) if slot.kind == "log1p" else 4

    wanted = [slot for slot in usable if slot.kind == input_kind] or usable
    chosen = min(wanted, key=lambda slot: (rank(slot), -slot.x.shape[1]))
    rivals = [slot for slot in usable if slot is not chosen and rank(slot) == rank(chosen)]
    reasons = (
        ("prepared by scperformer", chosen.prepared),
        ("as requested", source != "auto"),
        ("there is no other", len(slots) == 1),
        ("nothing else can be used", len(usable) == 1),
        (f"it fits input_kind={input_kind}", chosen.kind == input_kind),
        ("it has the most genes", any(slot.x.shape[1] < chosen.x.shape[1] for slot in rivals)),
        ("it is the first of several that could be used", bool(rivals)),
        ("counts come first", rank(chosen) == 0),
        ("nothing is better", True),
    )
    return chosen, next(reason for reason, holds in reasons if holds)


def _interpret(
    slot: Candidate, input_kind: str, input_total: float | None, input_base: str, path: str | Path
) -> list[str]:
    """Set kind, base and total of the chosen values as requested, and return notes on them and on all assumptions."""
    notes = []
    if slot.doubt and (input_kind, input_total, input_base) == ("auto", None, "auto"):
        expected = "counts, or logarithms of values that were normalised once"
        remedy = "put counts into X or layers['counts'], or the values from before that step, and save the file; "
        remedy += f"if they are what they should be, say so with input_kind={slot.kind}"
        raise InputError(f"{slot.source} of {path} looks like {slot.doubt}", expected, remedy)
    if input_kind not in ("auto", slot.kind):
        if input_kind == "log1p" and slot.largest > MAX_LOG:
            found = f"values up to {slot.largest:g} in {slot.source} of {path}"
            expected = "log1p values of at most "
            raise InputError(found, f"{expected}{MAX_LOG:g}", "leave out input_kind=log1p", ["input_kind=auto"])
        notes.append(f"used as {input_kind} as requested, though {slot.source} looks like {slot.text}")
        slot.kind = input_kind
        slot.log = Logarithm(math.e if input_kind == "log1p" else None)
    if slot.log.too_large and (input_kind, input_total, input_base) == ("auto", None, "auto"):
        found = f"values up to {slot.largest:.4g} in {slot.source} of {path}, too large for "
        found += f"ln(1 + counts per {ASSUMED_TOTAL:g}), and without a recognised base and total"
        remedy = "put counts into X or layers['counts'], or say what the values are, such as input_kind=linear, "
        remedy += "or input_kind=log1p input_base=2 input_total=1000000"
        expected = "counts, or logarithms whose base and total can be recognised"
        raise InputError(found, expected, remedy, ["input_kind=linear", "input_kind=log1p"])
    if slot.kind != "log1p":
        for option, is_told in (("input_base", input_base != "auto"), ("input_total", input_total is not None)):
            if is_told:
                warnings.warn(f"{option} is not used: {slot.source} holds {slot.kind}", stacklevel=3)
        return notes

    if input_base != "auto":
        base = INPUT_BASES[input_base]  # if it is another, the total was recognised with the wrong base
        slot.log = slot.log._replace(confirmed=True) if base == slot.log.base else Logarithm(base)
        notes.append(f"used as log1p to base {input_base} as requested")
    if not slot.log.confirmed:
        remedy = "set input_kind=... if they are not, or input_base=... if the base is another"
        notes.append(f"used as natural log1p by the range of the values alone; {remedy}")
    unknown = "the total that cells were normalised to is not recognised"
    if input_total is not None:
        notes.append(f"used as {input_total:g} counts per cell as requested")
        slot.log = slot.log._replace(total=float(input_total), relative=False)
    elif slot.log.over_all:
        notes.append("cells were normalised with features that are no genes: totals are taken over the genes again")
    elif slot.log.relative:
        used = "the sum of the genes in the file is used for each cell (set input_total=... if you know the total)"
        notes.append(f"{unknown}, or differs between cells; {used}")
    elif slot.log.total is None:
        used = f"{ASSUMED_TOTAL:g} counts per cell are assumed, set input_total=... if that is wrong"
        notes.append(f"{unknown} (were genes removed afterwards?); {used}")
    return notes
