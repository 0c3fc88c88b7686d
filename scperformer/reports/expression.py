"""The expression in annotated files, a block of cells at a time: quality, marker genes, contributions, shown genes."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

from scperformer.base.errors import InputError
from scperformer.cells import (
    Alignment,
    Findings,
    align_rows,
    cell_quality,
    gene_table,
    mitochondrial,
    normalise,
    plan_alignment,
    stored_expression,
)
from scperformer.files import Rows, open_cells, reading
from scperformer.genes import human_genes, id_kind, ids_and_symbols
from scperformer.model import SavedModel, linear_contributions, read_model
from scperformer.reports.read_annotations import Annotated, find_model

log = logging.getLogger(__name__)

TARGET_SUM = 10_000.0  # counts per cell of shown values
MOST_GENES, MOST_PER_LABEL = 60, 5  # on the page, and of one label; at least one of each label
LEAST_EXPRESSING, LEAST_CHANGE = 0.1, 1.0  # of a marker: share of the cells of the label, log2 fold change
EXPLAINED_CELLS = 100  # of each label and sample, for contributions
NUM_TOP = 10  # genes of a label in the table


@dataclass
class Expression:
    """The open expression of a sample."""

    rows: Rows
    var: pd.DataFrame
    findings: Findings

    @cached_property
    def genes(self) -> pd.Index:
        """The name of each column: the symbol, if the file has Ensembl ids that the table of human genes knows."""
        return shown_names(tuple(str(name).strip() for name in self.var.index))

    @cached_property
    def is_mitochondrial(self) -> npt.NDArray[np.bool_]:
        """The mitochondrial genes."""
        return mitochondrial(self.var)

    def blocks(self) -> Iterator[tuple[slice, sparse.csr_matrix, pd.DataFrame]]:
        """The rows, the values as ln(1 + counts per 10,000), and the quality (`cell_quality`) of each block."""
        for start, stored in self.rows.blocks():
            quality = cell_quality(Rows(stored), self.is_mitochondrial, self.findings)
            block = sparse.csr_matrix(stored)
            yield slice(start, start + block.shape[0]), normalise(block, self.findings, TARGET_SUM), quality


@lru_cache(maxsize=8)  # samples often have the same genes
def shown_names(names: tuple[str, ...]) -> pd.Index:
    """Names of genes for the page; symbols for human Ensembl ids."""
    if id_kind(names) in ("ensembl", "ensembl_versioned"):
        symbols = human_genes().symbols
        split = ids_and_symbols(names)
        shown = [
            symbol or symbols.get(str(gene_id), name) for (gene_id, symbol), name in zip(split, names, strict=True)
        ]
        return pd.Index(shown, dtype=object)
    return pd.Index(list(names), dtype=object)


@contextmanager
def open_expression(sample: Annotated) -> Iterator[Expression]:
    """Open the expression from which the labels of a sample were made, as its record names it."""
    found = sample.facts["input"]
    numbers = {name: float(found.get(name, math.nan)) for name in ("total", "log_base")}
    is_log = found["kind"] == "log1p"
    given = {name: None if math.isnan(x) else x for name, x in numbers.items()}
    with open_cells(sample.path) if sample.cells is None else nullcontext(sample.cells) as cells:
        findings = Findings(
            source=str(found["source"]),
            kind=str(found["kind"]),
            total=given["total"],
            log_base=(given["log_base"] or math.e) if is_log else None,  # files of earlier versions lack the base
            relative=bool(found.get("relative", False)),
            num_cells=cells.n_obs,
            num_genes=cells.n_vars,
            id_kind="",
        )
        places = {"X": cells.X, "raw": cells.raw} | {f"layers/{name}": x for name, x in cells.layers.items()}
        if places.get(findings.source) is None:
            place = f"no {findings.source} in {sample.path}, from which its labels were made"
            raise InputError(place, "the file as predict wrote it", "annotate it again")
        with reading(sample.path):
            rows = stored_expression(cells, findings, sample.path)[0]  # type: ignore[arg-type]
            yield Expression(rows, gene_table(cells, findings.source), findings)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class LabelProfile:
    """Sums over the cells of each label of a sample (L x G), and the quality of each cell."""

    genes: pd.Index  # unique, G
    num_cells: npt.NDArray[np.int64]  # L
    sums: npt.NDArray[np.float64]  # of ln(1 + counts per 10,000)
    squares: npt.NDArray[np.float64]
    expressing: npt.NDArray[np.float64]  # cells
    quality: pd.DataFrame  # of each cell: num_genes, total, mitochondrial (NaN without such genes)
    contributions: pd.DataFrame | None  # genes of the model x L: sums over some cells of each label
    num_explained: npt.NDArray[np.int64]  # these cells, L


Plans = dict[tuple[str, ...], Alignment]  # the way to the genes of the model, by the names of a file


def profile(
    sample: Annotated, codes: npt.NDArray[np.int64], num_labels: int, model: SavedModel | None, plans: Plans
) -> LabelProfile | None:
    """Read the expression of a sample once; None if it cannot be read, which is logged."""
    try:
        with open_expression(sample) as expression:
            return _profile(sample, expression, codes, num_labels, model, plans)
    except InputError as error:
        log.warning("%s: no expression for the report: %s", sample.name, error)
        return None


def _profile(
    sample: Annotated,
    expression: Expression,
    codes: npt.NDArray[np.int64],
    num_labels: int,
    model: SavedModel | None,
    plans: Plans,
) -> LabelProfile:
    is_first = ~expression.genes.duplicated()
    shape = (num_labels, int(is_first.sum()))
    sums, squares, expressing = (np.zeros(shape) for _ in range(3))
    qualities = []
    for cells, block, quality in expression.blocks():
        qualities.append(quality)
        one_hot = sparse.csr_matrix(
            (np.ones(len(quality), np.float32), codes[cells], np.arange(len(quality) + 1)), (len(quality), num_labels)
        ).T.tocsr()
        block = block[:, is_first] if not is_first.all() else block
        for total, power in ((sums, 1), (squares, 2), (expressing, 0)):
            values = block.copy()
            values.data **= power
            total += (one_hot @ values).toarray()
    quality = pd.concat(qualities, ignore_index=True)
    if not expression.is_mitochondrial.any():
        quality["mitochondrial"] = np.nan
    contributions = None
    num_explained = np.zeros(num_labels, dtype=np.int64)
    if model is not None and not sample.adapted:  # the weights of an adapted model are others, and not stored
        contributions, num_explained = _contributions(sample, expression, codes, num_labels, model, plans)
    return LabelProfile(
        genes=expression.genes[is_first],
        num_cells=np.bincount(codes, minlength=num_labels),
        sums=sums,
        squares=squares,
        expressing=expressing,
        quality=quality,
        contributions=contributions,
        num_explained=num_explained,
    )


def _contributions(
    sample: Annotated,
    expression: Expression,
    codes: npt.NDArray[np.int64],
    num_labels: int,
    model: SavedModel,
    plans: Plans,
) -> tuple[pd.DataFrame | None, npt.NDArray[np.int64]]:
    """Sums of the contributions of genes by the linear branch, in up to 100 random cells of each label."""
    rng = np.random.default_rng(0)
    chosen = []
    for code in np.unique(codes):
        chosen.append(rng.permutation(np.flatnonzero(codes == code))[:EXPLAINED_CELLS])
    rows = np.sort(np.concatenate(chosen))
    names = (*map(str, expression.var.columns), *map(str, expression.var.index))
    if names not in plans:
        plans[names] = plan_alignment(
            expression.var,
            expression.findings,
            model.genes,
            target_sum=float(model.config["target_sum"]),
            min_overlap=None,
            own_totals=bool(model.config.get("own_totals", False)),
            path=sample.path,
        )
    plan = replace(plans[names], findings=expression.findings)
    x = align_rows(expression.rows.some(rows), plan)
    found = np.zeros((len(model.genes), num_labels))
    called = sample.labels[rows]
    for code in np.unique(codes[rows]):
        cells = codes[rows] == code
        if (label := called[cells][0]) not in model.labels:
            continue
        mean = linear_contributions(model, x[cells], model.labels.index(label))
        if mean is None:
            return None, np.zeros(num_labels, dtype=np.int64)
        found[:, code] = mean * cells.sum()
    table = pd.DataFrame(found, index=shown_names(tuple(model.genes))).groupby(level=0, sort=False).sum()
    return table, np.bincount(codes[rows], minlength=num_labels)


def model_of(samples: Sequence[Annotated]) -> SavedModel | None:
    """The model that annotated the samples, if its folder is still there; None is logged."""
    record = samples[0].facts["model"]
    folder = find_model(samples[0].facts)
    try:
        if folder is not None and (saved := read_model(folder)).hash == record["hash"]:
            return saved
    except InputError as error:
        log.info("the model in %s cannot be read: %s", folder, error)
    text = "the model %s is neither at its recorded place nor imported: the report shows markers without contributions"
    log.info(text, record["name"])
    return None


@dataclass(kw_only=True)
class GeneTable:
    """Genes of all samples: L labels x G genes. A gene counts in the cells of the samples that measure it."""

    genes: pd.Index
    means: npt.NDArray[np.float64]  # of ln(1 + counts per 10,000); NaN without cells
    shares: npt.NDArray[np.float64]  # of the cells that express the gene
    markers: npt.NDArray[np.float64]  # score of the gene as a marker of the label; -inf where it is none
    changes: npt.NDArray[np.float64]  # log2 fold change of the mean counts against the other cells
    contributions: npt.NDArray[np.float64] | None  # mean contribution to the logit of the label, by the linear branch

    def top(self, scores: npt.NDArray[np.float64], label: int, num: int) -> npt.NDArray[np.int64]:
        """The columns of up to `num` genes with the highest scores above 0, the best first."""
        order = np.argsort(-scores[label], kind="stable")[:num]
        return order[scores[label, order] > 0]

    def shown(self, labels: Sequence[int]) -> dict[int, npt.NDArray[np.int64]]:
        """The markers of each label on the page: up to 5, fewer with many labels; each gene once."""
        num = int(np.clip(MOST_GENES // max(1, len(labels)), 1, MOST_PER_LABEL))
        taken = set[int]()
        found = {}
        for label in labels:
            best = [gene for gene in self.top(self.markers, label, 4 * num).tolist() if gene not in taken][:num]
            taken.update(best)
            found[label] = np.array(best, dtype=np.int64)
        return found


def combine(profiles: Sequence[LabelProfile], labels: Sequence[int]) -> GeneTable | None:
    """Combine the profiles of samples; None if no gene can be a marker, because there is one label.

    A marker is expressed by a tenth of the cells of its label and has twice the mean of the other cells. Its score is
    the t statistic against them with overestimated variance: their number is taken as that of the label, as in
    `scanpy.tl.rank_genes_groups(method="t-test_overestim_var")`.
    """
    if len(labels) < 2 or not profiles:
        return None
    genes = profiles[0].genes
    for other in profiles[1:]:
        genes = genes.append(other.genes.difference(genes, sort=False))
    shape = (len(profiles[0].num_cells), len(genes))
    num, sums, squares, expressing = (np.zeros(shape) for _ in range(4))
    for one in profiles:
        place = genes.get_indexer(one.genes)
        num[:, place] += one.num_cells[:, None]
        sums[:, place] += one.sums
        squares[:, place] += one.squares
        expressing[:, place] += one.expressing
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums / num
        shares = expressing / num
        variances = np.maximum(squares - num * means**2, 0) / np.maximum(num - 1, 1)
        rest = num.sum(axis=0) - num
        other = (sums.sum(axis=0) - sums) / rest
        rest_variances = np.maximum(squares.sum(axis=0) - squares - rest * other**2, 0) / np.maximum(rest - 1, 1)
        scores = (means - other) / np.sqrt((variances + rest_variances) / num)
        changes = np.log2((np.expm1(means) + 1e-9) / (np.expm1(other) + 1e-9))  # as scanpy's logfoldchanges
    scores[~(np.isfinite(scores) & (shares >= LEAST_EXPRESSING) & (changes >= LEAST_CHANGE))] = -np.inf
    contributions = None
    if explained := [(one.contributions, one.num_explained) for one in profiles if one.contributions is not None]:
        contributions = np.zeros(shape)
        for table, _ in explained:
            place = genes.get_indexer(table.index)
            contributions[:, place[place >= 0]] += table.to_numpy()[place >= 0].T
        contributions /= np.maximum(sum(num for _, num in explained), 1)[:, None]
    return GeneTable(
        genes=genes, means=means, shares=shares, markers=scores, changes=changes, contributions=contributions
    )


def gene_values(sample: Annotated, genes: pd.Index, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.float32] | None:
    """The values of genes in some cells (ascending), cells x genes; NaN for genes that the sample does not measure."""
    try:
        with open_expression(sample) as expression:
            names = expression.genes
            found = np.full((len(cells), len(genes)), np.nan, dtype=np.float32)
            is_first = ~names.duplicated()
            place = pd.Index(names[is_first]).get_indexer(genes)
            columns = np.flatnonzero(is_first)[place[place >= 0]]
            for start, stored in expression.rows.blocks():
                first, last = np.searchsorted(cells, [start, start + stored.shape[0]])
                if first < last:
                    some = normalise(stored[cells[first:last] - start], expression.findings, TARGET_SUM)
                    found[first:last, place >= 0] = some[:, columns].toarray()
            return found
    except InputError as error:
        log.warning("%s: no expression for the map: %s", sample.name, error)
        return None
