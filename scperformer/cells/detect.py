"""The expression of an AnnData: its place (X, raw or a layer) and the kind of its values."""

import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import listed, shortened
from scperformer.cells.droplets import Droplets, find_droplets
from scperformer.cells.features import find_non_genes, gene_columns
from scperformer.cells.mixtures import find_mixture
from scperformer.cells.values import (
    ASSUMED_TOTAL,
    MAX_LOG,
    Candidate,
    Logarithm,
    base_name,
    judge,
    zero_of,
)
from scperformer.config.options import AUTO, ExpressionOptions
from scperformer.io.axes import unquoted
from scperformer.io.gene_names import id_kind
from scperformer.io.rows import Matrix
from scperformer.io.safety import words_of

COUNT_LAYERS = ("counts", "raw_counts", "count", "raw", "umi", "umis", "matrix")
# parts of the counts by velocyto, only used if source=... names them
PARTIAL_LAYERS = ("unspliced", "ambiguous")
# Of the genes that the typical cell expresses in the place with the most; counts of variable genes have less.
MIN_WHOLE_GENES = 0.8
SMOOTHED = "most genes are expressed in most cells, as in imputed, denoised or batch-corrected values, or in bulk "
SMOOTHED += "samples: no accuracy is known for their labels; use the counts of the cells"
INPUT_BASES = {"e": math.e, "2": 2.0, "10": 10.0}  # values of input_base


@dataclass(kw_only=True)
class Findings:
    """The place of the expression, and the kind of its values."""

    source: str  # X, raw or layers/NAME
    kind: str  # counts, linear or log1p
    total: float | None  # for log1p, total of a cell before the logarithm; None: not recognised
    log_base: float | None  # for log1p: e, 2 or 10
    relative: bool = False  # for log1p: the total is unknown, and cells are normalised by the sum of their values
    # the zero of a cell is its smallest value, which is subtracted from the others
    from_smallest: bool = False
    num_cells: int
    num_genes: int
    id_kind: str  # kind of gene id
    why: str = ""  # reason why this place was chosen
    unused: dict[str, str] = field(default_factory=dict)  # other places, and what their values are
    # sentences for users: observations and assumptions
    notes: list[str] = field(default_factory=list)
    doubt: str = ""  # a sentence about values of which no accuracy can be expected
    droplets: Droplets | None = None  # the barcodes of an unfiltered matrix that cannot be cells
    is_gene: np.ndarray | None = None  # which features of the place are genes, boolean; None: all
    has_quotes: bool = False  # around the names of genes, of which `gene_table` leaves them out
    # which cells are of another species, or of two, boolean; None: none is
    is_foreign: np.ndarray | None = None
    # Some cells that were read with the first pass (`sample_of`): their row numbers, and their expression as it is
    # stored, float64 cells x genes; None: none are kept
    sample: tuple[np.ndarray, csr_matrix] | None = None

    @property
    def is_cell(self) -> np.ndarray:
        """Which rows are cells of the sample, boolean N: no empty droplets, and no cells of another species."""
        is_cell = (
            np.ones(self.num_cells, dtype=bool) if self.droplets is None else self.droplets.is_cell
        )
        return is_cell if self.is_foreign is None else is_cell & ~self.is_foreign

    @property
    def text(self) -> str:
        """The values in words: "log1p in X (natural logarithm, 10,000 counts per cell)"."""
        if self.log_base is None:
            return f"{self.kind} in {self.source}"
        per = "unknown total" if self.total is None else f"{self.total:,.6g} counts per cell"
        return f"{self.kind} in {self.source} ({base_name(self.log_base)}, {per})"

    @property
    def sentence(self) -> str:
        """The values, the reason for this place, and all notes, on a line of the log."""
        return "; ".join([f"using {self.text} ({self.why})", *self.notes])


def _var(adata: AnnData, source: str) -> pd.DataFrame:
    return adata.raw.var if source == "raw" else adata.var


def gene_table(adata: AnnData, findings: Findings) -> pd.DataFrame:
    """Return the gene table of the expression: the var of its place without features that are not genes, or quotes."""
    var = _var(adata, findings.source)
    var = var if findings.is_gene is None else var[findings.is_gene]
    return var.set_axis(unquoted(var.index.astype(str)), axis=0) if findings.has_quotes else var


def matrices_of(adata: AnnData) -> dict[str, Matrix]:
    """Return the matrices of cells by their places, X, layers/NAME and raw; layers with names of counts come first."""
    names = sorted(adata.layers, key=lambda name: str(name).lower() not in COUNT_LAYERS)
    matrices = {"X": adata.X} | {f"layers/{name}": adata.layers[name] for name in names}
    matrices["raw"] = None if adata.raw is None else adata.raw.X
    return {name: x for name, x in matrices.items() if x is not None}


def detect_expression(
    adata: AnnData, options: ExpressionOptions, path: str | Path = "the data", species: str = AUTO
) -> Findings:
    """Find the expression in X, raw and layers, and the kind of its values; `species` is the one in a file of two.

    Counts are preferred (of the place with the most genes), then log1p values whose normalisation is recognised, then
    other values; but a place with a part of the genes is used only if no reliable one has all. Refused are cells of
    which no place has usable values, and values that are not what they would be taken for.
    """
    candidates, partial = _candidates(adata, options.source, path)
    usable = _usable(candidates, path)
    chosen, why = _choose(usable, candidates, options)
    unused = {
        candidate.source: candidate.text for candidate in candidates if candidate is not chosen
    }
    kind, logarithm, more = _interpreted(chosen, options, path)
    notes = [*(f"{name} is not used: {text}" for name, text in unused.items()), *more]
    unused |= dict.fromkeys(partial, "a part of the counts by its name")
    if num_empty := int((chosen.num_expressed == 0).sum()):
        notes.append(f"{num_empty} cell{'s' if num_empty > 1 else ''} without any count")
    if kind == "counts" and chosen.largest == 1:
        notes.append("no count is above 1: were the values made binary?")
    notes += chosen.remarks
    is_gene = chosen.is_gene
    stored = [str(name).strip() for name in _var(adata, chosen.source).index[is_gene]]
    names = unquoted(stored)
    if has_quotes := sum(map(str.__ne__, stored, names)) > len(names) / 2:
        notes.append(
            f"the quotes around names of genes are left out (e.g. of {stored[len(stored) // 2]})"
        )
    is_foreign = None
    sample = chosen.sample
    species = species if options.species == AUTO else options.species
    if mixture := find_mixture(chosen.x, logarithm.base, names, species):
        is_of_species, is_foreign, text = mixture
        notes.append(text)
        is_gene = np.isin(np.arange(len(is_gene)), np.flatnonzero(is_gene)[is_of_species])
        names = np.array(names, dtype=object)[is_of_species].tolist()
        sample = sample[:, is_of_species]
    sampled = chosen.sample_rows, sample
    droplets = find_droplets(chosen.sums, len(names), sampled) if kind == "counts" else None
    if droplets is not None:
        notes.append(droplets.text)
    return Findings(
        source=chosen.source,
        kind=kind,
        total=logarithm.total,
        log_base=logarithm.base,
        relative=logarithm.relative,
        from_smallest=chosen.from_smallest,
        num_cells=chosen.x.shape[0],
        num_genes=len(names),
        id_kind=id_kind(names),
        why=why,
        unused=unused,
        notes=notes,
        doubt=SMOOTHED if chosen.is_smoothed else "",
        droplets=droplets,
        is_gene=None if is_gene.all() else is_gene,
        has_quotes=has_quotes,
        is_foreign=is_foreign,
        sample=sampled,
    )


def _candidates(adata: AnnData, source: str, path: str | Path) -> tuple[list[Candidate], list[str]]:
    """Judge the places that may have the expression; also return those with a part of the counts by their names."""
    places = matrices_of(adata)
    if source not in (AUTO, *places):
        existing = ", ".join(places) or "neither X nor layers nor raw"
        fixes = [f"source={name}" for name in places]
        found = f"no {source} in {path} (it has {existing})"
        raise InputError(
            "no-source", found, "a place that exists", "set source=... to an existing place", fixes
        )
    partial = [
        name for name in places if source == AUTO and name.removeprefix("layers/") in PARTIAL_LAYERS
    ]
    judged = [name for name in places if name not in partial and source in (AUTO, name)]
    return [_judge_place(adata, name, places[name], path) for name in judged], partial


def _usable(candidates: list[Candidate], path: str | Path) -> list[Candidate]:
    """Return the places with usable values; it is refused that there are none."""
    usable = [candidate for candidate in candidates if candidate.kind != "unusable"]
    if not usable:
        reasons = (
            "; ".join(f"{candidate.source}: {candidate.text}" for candidate in candidates)
            or "X is empty"
        )
        remedy = words_of(
            path,
            "put counts or the values from before scaling into X or layers['counts'], with 0 instead of NaN",
            "in R: put counts or the values from before scaling into the active assay, with 0 instead of NA, "
            "or name another by DefaultAssay(object) <- 'RNA'",
        )
        expected = "counts, or log-normalised values without NaN or negative values"
        raise InputError(
            "no-expression", f"no usable expression in {path} ({reasons})", expected, remedy
        )
    return usable


def _judge_place(adata: AnnData, source: str, x: Matrix, path: str | Path) -> Candidate:
    """Judge the values of the genes in a place; columns that are not genes by their values are left out."""
    var = _var(adata, source)
    is_gene, others = gene_columns(var)
    listed_others = ", ".join(f"{num:,} {kind}" for kind, num in others.items())
    remarks = [f"non-gene features are left out ({listed_others})"] if others else []
    try:
        candidate = judge(source, x, is_gene)
        if not is_gene.any():
            candidate.text = f"no genes ({listed_others})"
            return candidate
        names = np.array(unquoted(var.index.astype(str)), dtype=object)[is_gene]
        is_other = find_non_genes(candidate.sample, candidate.sample_rows, names)
        if is_other.any() and not is_other.all():
            is_gene[is_gene] = ~is_other
            candidate = judge(source, x, is_gene)
            text = "columns whose names and values are not of genes are left out"
            remarks.append(
                f"{is_other.sum():,} {text}: {listed(map(repr, map(shortened, names[is_other])))}"
            )
        if zero := zero_of(candidate):
            candidate = judge(source, x, is_gene, from_smallest=True)
            text = (
                f"the smallest value of each cell, {zero:.4g} in the typical cell, is taken for 0"
            )
            if not candidate.log.confirmed and not candidate.doubt:
                candidate.doubt = f"logarithms of an unknown kind, in which {zero:.4g} stands for 0"
            remarks.append(text)
    except ValueError as error:
        found = f"a damaged matrix in {source} of {path} ({error})"
        raise InputError(
            "damaged-matrix", found, "arrays that fit each other", "write the file again"
        ) from error
    candidate.remarks = remarks
    return candidate


def _choose(
    usable: list[Candidate], candidates: list[Candidate], options: ExpressionOptions
) -> tuple[Candidate, str]:
    """Choose the place with the most reliable values and the most genes, and the reason; X precedes layers and raw."""

    def rank(candidate: Candidate) -> int:
        trusted = (
            candidate.source in ("X", "raw")
            or candidate.source.removeprefix("layers/").lower() in COUNT_LAYERS
        )
        if candidate.doubt:
            return 6
        if candidate.kind == "counts" and candidate.largest == 1:
            return 5  # they only show which genes are expressed
        if candidate.kind == "counts":
            return 0 if trusted else 2  # another layer of whole numbers may be a mask, for example
        return (1 if candidate.log.confirmed else 3) if candidate.kind == "log1p" else 4

    wanted = [candidate for candidate in usable if candidate.kind == options.input_kind] or usable
    reliable = [candidate for candidate in wanted if rank(candidate) <= 1]
    most = max((candidate.typical_genes for candidate in reliable), default=0.0)

    def is_partial(candidate: Candidate) -> bool:
        has_fewer = any(candidate.x.shape[1] < other.x.shape[1] for other in reliable)
        return has_fewer and candidate.typical_genes < MIN_WHOLE_GENES * most

    chosen = min(
        wanted,
        key=lambda candidate: (is_partial(candidate), rank(candidate), -candidate.x.shape[1]),
    )
    for candidate in usable:
        if candidate is not chosen and is_partial(candidate) and candidate.kind != "unusable":
            candidate.text += (
                f" of {candidate.x.shape[1]:,} genes alone (source={candidate.source} uses them)"
            )
    reasons = (
        ("as requested", options.source != AUTO),
        ("the only matrix", len(candidates) == 1),
        ("the only usable matrix", len(usable) == 1),
        (f"fits input_kind={options.input_kind}", chosen.kind == options.input_kind),
        ("counts are preferred", rank(chosen) == 0),
        ("all genes are preferred to counts of some", any(rank(each) == 0 for each in wanted)),
        ("no other matrix is better", True),
    )
    return chosen, next(reason for reason, holds in reasons if holds)


def _doubtful(candidate: Candidate, path: str | Path) -> InputError:
    """Return the refusal of values that look neither like counts nor like usual logarithms."""
    found = f"{candidate.source} of {path} looks like {candidate.doubt}"
    if not candidate.doubt:
        found = f"values up to {candidate.largest:.4g} in {candidate.source} of {path}, too large "
        found += (
            f"for ln(1 + counts per {ASSUMED_TOTAL:g}), and without a recognised base and total"
        )
    expected = "counts, or logarithms of values that were normalised once"
    place = words_of(path, "X or layers['counts']", "the counts of the active assay")
    remedy = f"put counts into {place}, or say what the values are, for example "
    remedy += "input_kind=linear, or input_kind=log1p input_base=2 input_total=1000000"
    return InputError("doubtful-values", found, expected, remedy)


def _interpreted(
    candidate: Candidate, options: ExpressionOptions, path: str | Path
) -> tuple[str, Logarithm, list[str]]:
    """Return kind, base and total of the chosen values, as requested, and notes; refuse doubtful values."""
    source = candidate.source
    kind = candidate.kind
    logarithm = candidate.log
    input_kind = options.input_kind
    input_total = options.input_total
    input_base = options.input_base
    says_values = (input_kind, input_total, input_base) != (AUTO, None, AUTO)
    if (candidate.doubt or candidate.log.too_large) and not says_values:
        raise _doubtful(candidate, path)
    notes = []
    if input_kind not in (AUTO, kind):
        if input_kind == "log1p" and candidate.largest > MAX_LOG:
            found = f"values up to {candidate.largest:g} in {source} of {path}"
            expected = f"log1p values of at most {MAX_LOG:g}"
            raise InputError(
                "too-large-logs", found, expected, "leave out input_kind=log1p", ["input_kind=auto"]
            )
        notes.append(
            f"used as {input_kind} as requested, though {source} looks like {candidate.text}"
        )
        kind = input_kind
        logarithm = Logarithm(math.e if input_kind == "log1p" else None)
    if kind != "log1p":
        for option, is_set in (
            ("input_base", input_base != AUTO),
            ("input_total", input_total is not None),
        ):
            if is_set:
                warnings.warn(f"{option} is not used: {source} holds {kind}", stacklevel=3)
        return kind, logarithm, notes
    if input_base != AUTO:
        base = INPUT_BASES[input_base]
        # With another base than the recognised one, the recognised total is wrong, too.
        same = base == logarithm.base
        logarithm = logarithm._replace(confirmed=True) if same else Logarithm(base)
        notes.append(f"used as log1p to base {input_base} as requested")
    if not logarithm.confirmed:
        remedy = "set input_kind=... if that is wrong, or input_base=... if the base is another"
        shown = base_name(logarithm.base or math.e)
        notes.append(f"used as log1p ({shown}) only because of the range of the values; {remedy}")
    unknown = "the total to which cells were normalised is not recognised"
    if input_total is not None:
        notes.append(f"used as {input_total:g} counts per cell as requested")
        logarithm = logarithm._replace(total=float(input_total), relative=False)
    elif logarithm.relative:
        used = "the sum of the genes in the file is used for each cell (set input_total=... if you know the total)"
        notes.append(f"{unknown}, or differs between cells; {used}")
    elif logarithm.total is None:
        used = (
            f"{ASSUMED_TOTAL:g} counts per cell are assumed, set input_total=... if that is wrong"
        )
        notes.append(f"{unknown} (were genes removed afterwards?); {used}")
    return kind, logarithm, notes
