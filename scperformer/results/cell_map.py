"""The cells on the map of the report and of `scperformer.pl`: their expression, their UMAP and the markers of labels.

scanpy makes all of it, from at most 12,000 random cells.
"""

import logging
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import anndata
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer.annotation.markers import TARGET_SUM, rank_markers
from scperformer.annotation.umap import MAX_CELLS, MIN_CELLS, place_points
from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.cells.detect import Findings, matrices_of
from scperformer.cells.normalisation import normalise
from scperformer.cells.opened import OpenedCells
from scperformer.config.options import ExpressionOptions
from scperformer.io.gene_matching import gene_symbols
from scperformer.io.read import open_adata
from scperformer.labels.tree import NO_CALL
from scperformer.results.read_annotations import Annotated

log = logging.getLogger(__name__)

MIN_GENES_FOR_UMAP = 50  # fewer say too little about cells
NUM_VARIABLE_GENES = 2000  # most variable genes, as is usual with scanpy
NUM_UMAP_COMPONENTS = 50  # the default of scanpy
NUM_UMAP_EPOCHS = 100  # half the usual ones: neighbours are kept as well (trustworthiness .908, not .910, on PBMC 3k)
NUM_LABEL_MARKERS = 10  # of a label


@dataclass(kw_only=True)
class Drawn:
    """The M cells on the map."""

    rows: np.ndarray  # M, int64, ascending row numbers among the cells of all samples
    # M x genes that all samples measure, ln(1 + counts per 10,000); None: cannot be read
    expression: AnnData | None
    xy: np.ndarray | None  # M x 2, float32; None: no map
    source: str  # what the coordinates are, or why there are none


def draw_cells(samples: Sequence[Annotated], max_cells: int = MAX_CELLS, seed: int = 0) -> Drawn:
    """Choose random cells of all samples, and place them by the UMAP of a single file or a new one of all samples."""
    ends = np.cumsum([0, *(len(sample.obs) for sample in samples)])
    rows = np.sort(np.random.default_rng(seed).permutation(ends[-1])[:max_cells])
    of_samples = [rows[(rows >= start) & (rows < end)] - start for start, end in pairwise(ends)]
    log.info("reading the expression of %s cells", f"{len(rows):,}")
    try:
        expression = read_expression(samples, of_samples)
        source = f"it needs at least {MIN_CELLS} cells that differ, "
        source += f"and {MIN_GENES_FOR_UMAP} genes that all samples share"
    except InputError as error:
        log.warning("no markers in the report: %s", error)
        expression = None
        source = str(error)
    xy = None
    if len(samples) == 1 and samples[0].umap is not None:
        xy = samples[0].umap[rows]
        source = "The UMAP of the file (X_umap)"
    elif expression is not None and (xy := umap(expression, seed)) is not None:
        source = "UMAP of the expression"
    return Drawn(rows=rows, expression=expression, xy=xy, source=source)


def read_expression(samples: Sequence[Annotated], rows: Sequence[np.ndarray]) -> AnnData:
    """Return the expression that `predict` used of some cells of each sample, for the genes that all samples measure.

    `rows` are ascending. Returns cells x genes, CSR float32, ln(1 + counts per 10,000). Human Ensembl ids are replaced
    by symbols. A file without expression in the recorded place is refused.
    """
    read = []
    for sample, chosen in zip(samples, rows, strict=True):
        record = sample.record.input
        with (
            open_adata(sample.path) if sample.cells is None else nullcontext(sample.cells) as adata
        ):
            findings = Findings(
                source=str(record.source),
                kind=str(record.kind),
                total=None if np.isnan(record.total) else float(record.total),
                log_base=float(record.log_base),
                relative=bool(record.relative),
                from_smallest=bool(record.from_smallest),
                num_cells=adata.n_obs,
                num_genes=adata.n_vars,
                id_kind="",
                is_gene=None if record.is_gene is None else np.asarray(record.is_gene, dtype=bool),
            )
            matrix = matrices_of(adata).get(findings.source)
            if matrix is None or (
                findings.is_gene is not None and len(findings.is_gene) != matrix.shape[1]
            ):
                found = f"no {findings.source} in {sample.path}, which predict used, or other genes in it"
                raise InputError(
                    "other-expression",
                    found,
                    "the file as predict wrote it",
                    "annotate the file again",
                )
            cells = OpenedCells(
                adata, ExpressionOptions(inputs=[str(sample.path)]), sample.path, findings
            )
            stored = cells.some(chosen)
            names = pd.Index(gene_symbols(cells.var.index), dtype=object)
        is_first = ~names.duplicated()
        x = normalise(stored, findings, TARGET_SUM)
        read.append(AnnData(x[:, is_first], var=pd.DataFrame(index=names[is_first])))
    return anndata.concat(read, join="inner", index_unique="-")


def expression_of(drawn: Drawn, gene: str) -> pd.Series:
    """Return ln(1 + counts per 10,000) of a gene in the cells on the map; refuse one that some sample lacks."""
    names = [] if drawn.expression is None else drawn.expression.var_names
    measured = (
        gene
        if gene in names
        else next((name for name in names if name.upper() == gene.upper()), None)
    )
    if drawn.expression is None or measured is None:
        expected = f"one of the {len(names):,} genes that all samples of a tissue measure"
        raise InputError(
            "unknown-gene",
            f"no gene '{gene}'",
            expected,
            f"{did_you_mean(gene, names)}correct genes=...",
        )
    return pd.Series(drawn.expression[:, measured].X.toarray().ravel())


def umap(cells: AnnData, seed: int) -> np.ndarray | None:
    """Return the UMAP of M cells, M x 2, from ln(1 + counts per 10,000); None for too few cells or genes."""
    import scanpy  # takes seconds to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few cells
        differs = (cells.X.max(axis=0) != cells.X.min(axis=0)).toarray().ravel()
        differs &= scanpy.pp.filter_genes(cells, min_cells=3, inplace=False)[0]
        if cells.n_obs < MIN_CELLS or differs.sum() < MIN_GENES_FOR_UMAP:
            return None
        cells = AnnData(sparse.csr_matrix(cells.X[:, differs]))
        if cells.n_vars > NUM_VARIABLE_GENES:
            scanpy.pp.highly_variable_genes(cells, n_top_genes=NUM_VARIABLE_GENES, subset=True)
        num = min(NUM_UMAP_COMPONENTS, min(cells.shape) - 1)
        points = scanpy.pp.pca(cells.X, n_comps=num, random_state=seed)
    return place_points(points, seed, NUM_UMAP_EPOCHS)


def find_markers(cells: AnnData, calls: np.ndarray) -> dict[str, list[str]]:
    """Return up to 10 markers of each call, best first; unknown cells are left out, and calls with a single cell."""
    is_known = calls != NO_CALL
    return rank_markers(cells[is_known], calls[is_known], NUM_LABEL_MARKERS)
