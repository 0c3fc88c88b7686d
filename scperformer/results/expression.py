"""What a report needs of the expression in annotated files: quality of the cells, marker genes, contributions, values.

Files are read a block of cells at a time, so that they need not fit into memory.
"""

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
from scperformer.cells.alignment import Alignment, align_rows, plan_alignment
from scperformer.cells.detect import Findings, gene_table, stored_expression
from scperformer.cells.quality import cell_quality, mitochondrial, technical
from scperformer.cells.normalisation import normalise
from scperformer.io.rows import Rows
from scperformer.io.read import open_cells
from scperformer.io.safety import reading
from scperformer.io.gene_table import human_genes
from scperformer.io.gene_names import id_kind, ids_and_symbols
from scperformer.model.saved_model import SavedModel
from scperformer.model.linear import linear_contributions
from scperformer.model.folder import read_model
from scperformer.results.read_annotations import Annotated, find_model

log = logging.getLogger(__name__)

TARGET_SUM = 10_000.0  # counts per cell to which expression is normalised for the page
MAX_GENES = 60  # genes in the dot plot and on the map, but at least one of each label
MAX_GENES_PER_LABEL = 5  # the largest number of these genes for one label
MIN_EXPRESSING = 0.1  # share of the cells of a label that express a marker
MIN_CHANGE = 1.0  # log2 fold change of a marker
MAX_EXPLAINED = 100  # cells per label and sample for contributions
NUM_TOP = 10  # genes of a label in the table of markers


@dataclass
class Expression:
    """The expression of a sample, open for reading."""

    rows: Rows
    var: pd.DataFrame
    findings: Findings

    @cached_property
    def genes(self) -> pd.Index:
        """Name of each gene on the page: the symbol, for human genes with Ensembl ids."""
        return shown_names(tuple(str(name).strip() for name in self.var.index))

    @cached_property
    def is_mitochondrial(self) -> npt.NDArray[np.bool_]:
        """True for mitochondrial genes."""
        return mitochondrial(self.var)

    def blocks(self) -> Iterator[tuple[slice, sparse.csr_matrix, pd.DataFrame]]:
        """Yield the rows, the values as ln(1 + counts per 10,000), and the quality of the cells of each block."""
        for start, stored in self.rows.blocks():
            quality = cell_quality(Rows(stored), self.is_mitochondrial, self.findings)
            block = sparse.csr_matrix(stored)
            yield slice(start, start + block.shape[0]), normalise(block, self.findings, TARGET_SUM), quality


@lru_cache(maxsize=8)  # samples often have the same genes
def shown_names(names: tuple[str, ...]) -> pd.Index:
    """Return the names of genes for the page; human Ensembl ids become symbols."""
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
    """Open the expression that `predict` used for a sample, as the annotation records it."""
    record = sample.facts["input"]
    total = float(record.get("total", math.nan))
    log_base = None
    if record["kind"] == "log1p":
        recorded = float(record.get("log_base", math.nan))
        log_base = math.e if math.isnan(recorded) else recorded  # files of earlier versions lack the base
    with open_cells(sample.path) if sample.cells is None else nullcontext(sample.cells) as cells:
        findings = Findings(
            source=str(record["source"]),
            kind=str(record["kind"]),
            total=None if math.isnan(total) else total,
            log_base=log_base,
            relative=bool(record.get("relative", False)),
            num_cells=cells.n_obs,
            num_genes=cells.n_vars,
            id_kind="",
        )
        places = {"X": cells.X, "raw": cells.raw} | {f"layers/{name}": x for name, x in cells.layers.items()}
        if places.get(findings.source) is None:
            found = f"no {findings.source} in {sample.path}, which predict used"
            raise InputError(found, "the file as predict wrote it", "annotate the file again")
        with reading(sample.path):
            rows = stored_expression(cells, findings, sample.path)[0]  # type: ignore[arg-type]
            yield Expression(rows, gene_table(cells, findings.source), findings)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class LabelProfile:
    """Sums of a sample over the cells of each of L labels for G genes, and the quality of its cells."""

    genes: pd.Index  # G unique names
    num_cells: npt.NDArray[np.int64]  # L
    sums: npt.NDArray[np.float64]  # L x G, sums of ln(1 + counts per 10,000)
    squares: npt.NDArray[np.float64]  # L x G, sums of its squares
    num_expressing: npt.NDArray[np.float64]  # L x G, cells that express the gene
    quality: pd.DataFrame  # a row per cell: num_genes, total, mitochondrial (NaN without mitochondrial genes)
    contributions: pd.DataFrame | None  # genes of the model x L, sums of contributions over `num_explained` cells
    num_explained: npt.NDArray[np.int64]  # L


Plans = dict[tuple[str, ...], Alignment]  # alignments to the genes of the model, by the gene names of files


def read_profile(
    sample: Annotated, codes: npt.NDArray[np.int64], num_labels: int, model: SavedModel | None, plans: Plans
) -> LabelProfile | None:
    """Read the expression of a sample; None, with a warning, if that is not possible.

    Parameters
    ----------
    codes
        The label of each cell, N numbers below `num_labels`.
    model
        The model of the annotation, for the contributions of genes; None: without contributions.
    plans
        Alignments of earlier samples. Samples with the same genes share an alignment, which is added here.
    """
    try:
        with open_expression(sample) as expression:
            return _profile_of(sample, expression, codes, num_labels, model, plans)
    except InputError as error:
        log.warning("%s: no expression for the report: %s", sample.name, error)
        return None


def _profile_of(
    sample: Annotated,
    expression: Expression,
    codes: npt.NDArray[np.int64],
    num_labels: int,
    model: SavedModel | None,
    plans: Plans,
) -> LabelProfile:
    """Read the open expression of a sample, as `read_profile` does."""
    is_first = ~expression.genes.duplicated()
    shape = (num_labels, int(is_first.sum()))
    sums = np.zeros(shape)
    squares = np.zeros(shape)
    num_expressing = np.zeros(shape)
    qualities = []
    for cells, block, quality in expression.blocks():
        qualities.append(quality)
        num_rows = len(quality)
        one_hot = sparse.csr_matrix(
            (np.ones(num_rows, np.float32), codes[cells], np.arange(num_rows + 1)), (num_rows, num_labels)
        ).T.tocsr()
        block = block[:, is_first] if not is_first.all() else block
        for total, power in ((sums, 1), (squares, 2), (num_expressing, 0)):
            values = block.copy()
            values.data **= power
            total += (one_hot @ values).toarray()
    quality = pd.concat(qualities, ignore_index=True)
    if not expression.is_mitochondrial.any():
        quality["mitochondrial"] = np.nan
    contributions = None
    num_explained = np.zeros(num_labels, dtype=np.int64)
    if model is not None and not sample.adapted:  # an adapted model has other weights, which are not stored
        contributions, num_explained = _contributions(sample, expression, codes, num_labels, model, plans)
    return LabelProfile(
        genes=expression.genes[is_first],
        num_cells=np.bincount(codes, minlength=num_labels),
        sums=sums,
        squares=squares,
        num_expressing=num_expressing,
        quality=quality,
        contributions=contributions,
        num_explained=num_explained,
    )


def measured_genes(sample: Annotated) -> pd.Index | None:
    """Return the names of the genes of a sample, each once; None, with a warning, if they cannot be read."""
    try:
        with open_expression(sample) as expression:
            return expression.genes[~expression.genes.duplicated()]
    except InputError as error:
        log.warning("%s: no expression for the map: %s", sample.name, error)
        return None


def merged(profiles: Sequence[LabelProfile]) -> list[LabelProfile]:
    """Add up the profiles of samples with the same genes; their cells have no quality any more.

    200 samples need the memory of one.
    """
    sums: list[LabelProfile] = []
    for profile in profiles:
        same = next((place for place, other in enumerate(sums) if other.genes.equals(profile.genes)), None)
        if same is None:
            sums.append(replace(profile, quality=profile.quality.iloc[:0]))
        else:
            sums[same] = _sum(sums[same], profile)
    return sums


def _sum(first: LabelProfile, second: LabelProfile) -> LabelProfile:
    """Add the sums of the second profile to those of the first, in place."""
    for name in ("num_cells", "sums", "squares", "num_expressing", "num_explained"):
        total = getattr(first, name)
        total += getattr(second, name)
    if first.contributions is None or second.contributions is None:
        contributions = second.contributions if first.contributions is None else first.contributions
        return replace(first, contributions=contributions)
    return replace(first, contributions=first.contributions.add(second.contributions, fill_value=0))


def _contributions(
    sample: Annotated,
    expression: Expression,
    codes: npt.NDArray[np.int64],
    num_labels: int,
    model: SavedModel,
    plans: Plans,
) -> tuple[pd.DataFrame | None, npt.NDArray[np.int64]]:
    """Return sums of the contributions of genes by the linear branch, and the number of cells, for each label.

    They are of up to 100 random cells of each label. Without a linear branch, the sums are None.
    """
    rng = np.random.default_rng(0)
    cells_of_label = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    rows = np.sort(np.concatenate([rng.permutation(cells)[:MAX_EXPLAINED] for cells in cells_of_label]))
    names = (*map(str, expression.var.columns), *map(str, expression.var.index))
    if names not in plans:
        plans[names] = plan_alignment(
            expression.var,
            expression.findings,
            model.genes,
            target_sum=model.config["target_sum"],
            min_overlap=None,
            own_totals=bool(model.config.get("own_totals", False)),
            path=sample.path,
        )
    plan = replace(plans[names], findings=expression.findings)
    x = align_rows(expression.rows.some(rows), plan)
    sums = np.zeros((len(model.genes), num_labels))
    labels = sample.labels[rows]
    for code in np.unique(codes[rows]):
        has_label = codes[rows] == code
        label = labels[has_label][0]
        if label not in model.labels:  # labels can be edited
            continue
        mean = linear_contributions(model, x[has_label], model.labels.index(label))
        if mean is None:
            return None, np.zeros(num_labels, dtype=np.int64)
        sums[:, code] = mean * has_label.sum()
    table = pd.DataFrame(sums, index=shown_names(tuple(model.genes))).groupby(level=0, sort=False).sum()
    return table, np.bincount(codes[rows], minlength=num_labels)


def model_of(samples: Sequence[Annotated]) -> SavedModel | None:
    """Return the model that annotated the samples; None, with a line in the log, if it cannot be found."""
    record = samples[0].facts["model"]
    folder = find_model(samples[0].facts)
    try:
        if folder is not None and (saved := read_model(folder)).hash == record["hash"]:
            return saved
    except InputError as error:
        log.info("the model in %s cannot be read: %s", folder, error)
    text = "the model %s is neither in its recorded folder nor imported: the report has markers but no contributions"
    log.info(text, record["name"])
    return None


@dataclass(kw_only=True)
class GeneTable:
    """Genes of all samples, L labels x G genes. Cells of samples that do not measure a gene do not count for it."""

    genes: pd.Index
    means: npt.NDArray[np.float64]  # means of ln(1 + counts per 10,000); NaN without cells
    shares: npt.NDArray[np.float64]  # shares of the cells that express the gene
    markers: npt.NDArray[np.float64]  # scores of markers of the label; -inf for other genes
    changes: npt.NDArray[np.float64]  # log2 fold changes of the mean counts against the other cells
    contributions: npt.NDArray[np.float64] | None  # mean contributions to the logit of the label, by the linear branch

    def top(self, scores: npt.NDArray[np.float64], label: int, num: int) -> npt.NDArray[np.int64]:
        """Return the columns of up to `num` genes with the highest scores above 0, in descending order."""
        order = np.argsort(-scores[label], kind="stable")[:num]
        return order[scores[label, order] > 0]

    def shown(self, labels: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the columns of the markers in the dot plot and on the map, label by label, each gene once."""
        num = int(np.clip(MAX_GENES // max(1, len(labels)), 1, MAX_GENES_PER_LABEL))
        columns: list[int] = []
        for label in labels:
            candidates = self.top(self.markers, label, 4 * num).tolist()
            columns += [gene for gene in candidates if gene not in columns][:num]
        return np.array(columns, dtype=np.int64)


def combine(profiles: Sequence[LabelProfile], labels: Sequence[int], *, all_genes: bool = True) -> GeneTable | None:
    """Combine the profiles of samples; None with fewer than two labels, which have no markers.

    Without `all_genes`, ribosomal and mitochondrial genes and MALAT1 are left out.

    A marker is expressed by a tenth of the cells of its label, and its mean is at least twice that of the other cells.
    Its score is the t statistic of Welch's test against the other cells with overestimated variance: the number of the
    other cells is taken as that of the label, as in `scanpy.tl.rank_genes_groups(method="t-test_overestim_var")`.
    scanpy needs all cells in one matrix in memory; here they are in several files, with different genes, and are read
    in blocks. So the sums are kept, and scipy makes the test from them.
    """
    if len(labels) < 2 or not profiles:
        return None
    from scipy.stats import ttest_ind_from_stats  # takes a while to import

    genes = profiles[0].genes
    for other in profiles[1:]:
        genes = genes.append(other.genes.difference(genes, sort=False))
    shape = (len(profiles[0].num_cells), len(genes))
    num = np.zeros(shape)
    sums = np.zeros(shape)
    squares = np.zeros(shape)
    num_expressing = np.zeros(shape)
    for profile in profiles:
        columns = genes.get_indexer(profile.genes)
        num[:, columns] += profile.num_cells[:, None]
        sums[:, columns] += profile.sums
        squares[:, columns] += profile.squares
        num_expressing[:, columns] += profile.num_expressing
    num_other = num.sum(axis=0) - num
    with np.errstate(divide="ignore", invalid="ignore"):  # labels without cells, genes without expression
        means, deviations = _means_and_deviations(num, sums, squares)
        other_means, other_deviations = _means_and_deviations(
            num_other, sums.sum(axis=0) - sums, squares.sum(axis=0) - squares
        )
        scores = ttest_ind_from_stats(
            means, deviations, num, other_means, other_deviations, num, equal_var=False
        ).statistic
        shares = num_expressing / num
        changes = np.log2((np.expm1(means) + 1e-9) / (np.expm1(other_means) + 1e-9))  # as scanpy's logfoldchanges
    is_marker = np.isfinite(scores) & (shares >= MIN_EXPRESSING) & (changes >= MIN_CHANGE)
    contributions = _mean_contributions(profiles, genes)
    kept = slice(None) if all_genes else ~technical(genes)
    return GeneTable(
        genes=genes[kept],
        means=means[:, kept],
        shares=shares[:, kept],
        markers=np.where(is_marker, scores, -np.inf)[:, kept],
        changes=changes[:, kept],
        contributions=None if contributions is None else contributions[:, kept],
    )


def _means_and_deviations(
    num: npt.NDArray[np.float64], sums: npt.NDArray[np.float64], squares: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return means and sample standard deviations from numbers of values, their sums and the sums of their squares."""
    means = sums / num
    variances = np.maximum(squares - num * means**2, 0) / np.maximum(num - 1, 1)
    return means, np.sqrt(variances)


def _mean_contributions(profiles: Sequence[LabelProfile], genes: pd.Index) -> npt.NDArray[np.float64] | None:
    """Return the mean contributions of genes, L x G, over the explained cells of all samples; None without any."""
    sums: npt.NDArray[np.float64] | None = None
    num_explained = np.zeros(len(profiles[0].num_explained), dtype=np.int64)
    for profile in profiles:
        if profile.contributions is None:
            continue
        if sums is None:
            sums = np.zeros((len(num_explained), len(genes)))
        columns = genes.get_indexer(profile.contributions.index)
        sums[:, columns[columns >= 0]] += profile.contributions.to_numpy()[columns >= 0].T
        num_explained += profile.num_explained
    return None if sums is None else sums / np.maximum(num_explained, 1)[:, None]


@dataclass(kw_only=True)
class Values:
    """Values of G genes in M cells, ln(1 + counts per 10,000)."""

    x: sparse.csr_matrix  # M x G, 0 where a gene is not measured
    measured: npt.NDArray[np.bool_]  # M x G is too large for many samples: a row for each sample, S x G
    sample: npt.NDArray[np.int64]  # M, the number of the sample of each cell

    def column(self, place: int) -> npt.NDArray[np.float32]:
        """Return the values of one gene, M; NaN where it is not measured."""
        values = self.x[:, [place]].toarray().ravel()
        values[~self.measured[self.sample, place]] = np.nan
        return values


def gene_values(samples: Sequence[Annotated], genes: pd.Index, rows: Sequence[npt.NDArray[np.int64]]) -> Values:
    """Return the values of genes in some cells of each sample, given by their ascending row numbers.

    The genes of a sample whose expression cannot be read are not measured; a warning says so.
    """
    pieces = []
    measured = np.zeros((len(samples), len(genes)), dtype=bool)
    for number, (sample, chosen) in enumerate(zip(samples, rows, strict=True)):
        values = sparse.csr_matrix((len(chosen), len(genes)), dtype=np.float32)
        try:
            with open_expression(sample) as expression:
                is_first = ~expression.genes.duplicated()
                places = pd.Index(expression.genes[is_first]).get_indexer(genes)
                measured[number] = places >= 0
                columns = np.flatnonzero(is_first)[places[places >= 0]]
                # From the measured genes of the file to all genes, where the others stay empty.
                spread = sparse.csr_matrix(
                    (np.ones(len(columns), np.float32), (np.arange(len(columns)), np.flatnonzero(places >= 0))),
                    shape=(len(columns), len(genes)),
                )
                blocks = [values[:0]]
                for start in range(0, len(sample.obs), expression.rows.block_cells):
                    stop = min(start + expression.rows.block_cells, len(sample.obs))
                    first, last = np.searchsorted(chosen, [start, stop])
                    if first < last:
                        stored = expression.rows.block(start, stop)[chosen[first:last] - start]
                        block = normalise(sparse.csr_matrix(stored), expression.findings, TARGET_SUM)
                        blocks.append(block[:, columns] @ spread)
                values = sparse.vstack(blocks, "csr", dtype=np.float32)
        except InputError as error:
            log.warning("%s: no expression for the map: %s", sample.name, error)
        pieces.append(values)
    numbers = np.repeat(np.arange(len(samples)), [len(chosen) for chosen in rows])
    return Values(x=sparse.vstack(pieces, "csr"), measured=measured, sample=numbers)
