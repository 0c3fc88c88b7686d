"""Cells and genes of one or several files as one collection, in memory or on disk.

Each file is read twice before training, block by block: to recognise its values, and to filter its cells and genes. For
cells that stay on disk, only their row numbers are kept in memory.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.cells.detect import Findings, Stated, detect_expression, gene_table, stored_expression
from scperformer.cells.normalisation import align_normalised, merge_genes, normalise, over_own_genes
from scperformer.config.options import AUTO
from scperformer.config.training import DataOptions, NetworkOptions, ReferenceOptions
from scperformer.io.gene_matching import GeneMap
from scperformer.io.gene_names import first_of_each, repeated_note
from scperformer.io.gene_overlap import map_genes_of_files
from scperformer.io.h5ad import open_stored
from scperformer.io.read import require_readable
from scperformer.io.rows import Matrix, Rows
from scperformer.io.safety import reading

log = logging.getLogger(__name__)

STREAMED_KINDS = ("h5ad", "zarr")  # kinds of files whose cells can stay on disk
STREAM_ABOVE = 2 * 2**30  # bytes of expression; training in memory takes about four times as much
VALUE_BYTES = 8  # a float32 value and the int32 number of its column
MAX_GAP = 64  # rows with smaller gaps are read together, which is cheaper than another access to the disk
MAX_RUN = 1024  # rows that are read at once
MAX_OPEN = 64  # files that are open at once
MANY_DROPPED = 0.05  # share of the cells of a file; if more express too few genes, a warning says so
CELLS_AT_ONCE = 4096  # cells that are aligned at once, which takes several times their memory
Config = TypeVar("Config", bound=NetworkOptions)


def stored_matrices(path: Path) -> list[Rows] | None:
    """Open the matrices of a file; None if it cannot be read by rows from disk."""
    if require_readable(path) not in STREAMED_KINDS:
        return None
    try:
        with reading(path):
            cells = open_stored(path)
            raw = [] if cells.raw is None else [cells.raw.X]
            matrices = [Rows(x) for x in (cells.X, *cells.layers.values(), *raw) if x is not None]
    except InputError:  # a file of an older format is read as a whole
        return None
    return None if any(x.by_columns for x in matrices) else matrices


def choose_storage(cfg: Config, paths: Sequence[Path]) -> Config:
    """Return the options; for several labelled files, or above 2 GiB of values, `data.in_memory=auto` becomes false."""
    if not paths and cfg.data.in_memory is False:
        remedy = "leave data.in_memory out, or name files"
        raise InputError("storage", "data.in_memory=false and cells in memory", "files", remedy)
    stored = [stored_matrices(path) for path in paths]
    several = isinstance(cfg, ReferenceOptions) and len(paths) > 1
    if cfg.data.in_memory is True and several:
        found = f"{len(paths)} files to train on and data.in_memory=true"
        raise InputError("storage", found, "one file, or cells that stay on disk", "leave data.in_memory out")
    total = sum(VALUE_BYTES * x.num_values for matrices in stored for x in matrices or ())
    if cfg.data.in_memory != AUTO or not (several or (total > STREAM_ABOVE and None not in stored)):
        return cfg
    log.info("%.1f GiB of expression stay on disk during training (data.in_memory=false)", total / 2**30)
    return replace(cfg, data=replace(cfg.data, in_memory=False))


@dataclass
class Sample:
    """Cells in memory."""

    adata: AnnData
    path: Path
    checksum: str = ""  # SHA-256 of the file; "": the cells come from no file
    findings: Findings | None = None  # result of `detect_expression`, if it is known


@dataclass
class Part:
    """One file of a collection: its expression, and the rows that are cells of the collection."""

    path: Path
    adata: AnnData | None  # None if the cells stay on disk
    findings: Findings
    var: pd.DataFrame  # gene table, each name once
    first: np.ndarray | None  # first column of the same name for each column; None if all names are unique
    target_sum: float
    kept: np.ndarray  # row numbers of the cells of the collection, ascending

    @property
    def summary(self) -> str:
        """The kind and place of the values, and their form after normalisation."""
        return f"{self.findings.kind} from {self.findings.source}, as ln(1 + counts per {self.target_sum:,.0f})"

    def rows(self) -> Rows:
        with reading(self.path):
            cells = open_stored(self.path) if self.adata is None else self.adata
            return stored_expression(cells, self.findings, path=self.path)[0]

    def merged(self, x: Matrix) -> csr_matrix:
        """Add up the columns of repeated names in stored rows."""
        if self.first is None:
            return csr_matrix(x)
        is_gene = self.first == np.arange(len(self.first))
        return merge_genes(x, self.first, self.findings.log_base)[:, is_gene]

    def with_genes(self, is_expressed: csr_matrix, least: int) -> np.ndarray:
        """Return which cells express at least so many genes, boolean; by scanpy for cells in memory."""
        if self.adata is None:
            return np.diff(is_expressed.indptr) >= least
        import scanpy  # takes seconds to import

        return scanpy.pp.filter_cells(AnnData(is_expressed), min_genes=least, inplace=False)[0]

    def cells_of_genes(self, is_expressed: csr_matrix) -> np.ndarray:
        """Return how many cells express each gene, int64; by scanpy for cells in memory."""
        if self.adata is None:
            return np.bincount(is_expressed.indices, minlength=is_expressed.shape[1])
        import scanpy

        return scanpy.pp.filter_genes(AnnData(is_expressed), min_cells=0, inplace=False)[1]


def _open_part(source: Path | Sample, cfg: DataOptions) -> Part:
    """Find the expression of a file; its cells are not filtered yet, and `kept` is empty."""
    path = source.path if isinstance(source, Sample) else source
    adata = source.adata if isinstance(source, Sample) else None
    findings = source.findings if isinstance(source, Sample) else None
    remedy = "write it by rows with anndata (adata.X = adata.X.tocsr(), then write_h5ad)"
    if adata is None and (kind := require_readable(path)) not in STREAMED_KINDS:
        raise InputError("storage", f"{path}, a {kind}", "h5ad or zarr for cells that stay on disk", remedy)
    with nullcontext() if adata is not None else reading(path):
        cells = open_stored(path) if adata is None else adata
        if findings is None:
            findings = detect_expression(cells, Stated.by(cfg), path=path)
            log.info("%s: %s", path, findings.sentence)
            if findings.doubt:
                log.warning("%s: %s", path, findings.doubt)
        rows, names = stored_expression(cells, findings, path=path)
        if adata is None and rows.by_columns and VALUE_BYTES * rows.num_values > STREAM_ABOVE:
            found = f"{findings.source} of {path} is stored by columns (CSC), and takes more than 2 GiB"
            raise InputError("stored-by-columns", found, "rows (CSR or dense) for cells that stay on disk", remedy)
    notes = repeated_note(names)
    first = first_of_each(names) if notes else None
    is_gene = slice(None) if first is None else first == np.arange(len(first))
    var = gene_table(cells, findings).set_axis(names)[is_gene]
    findings = replace(findings, notes=[*findings.notes, *notes])
    return Part(path, adata, findings, var, first, cfg.data.target_sum, kept=np.empty(0, dtype=np.int64))


def _read_scattered(rows: Rows, numbers: np.ndarray) -> csr_matrix:
    """Read the rows with these ascending numbers; neighbouring rows are read together."""
    begins = np.diff(numbers, prepend=-MAX_GAP - 1) > MAX_GAP
    start = numbers[np.maximum.accumulate(np.where(begins, np.arange(len(numbers)), 0))]  # first row of each run
    ends = np.flatnonzero((np.diff(start) != 0) | (np.diff((numbers - start) // MAX_RUN) != 0)) + 1
    runs = np.split(numbers, ends)
    return sparse.vstack([csr_matrix(rows.block(run[0], run[-1] + 1))[run - run[0]] for run in runs], "csr")


@dataclass
class CellCollection:
    """The cells of all files, numbered in the order of the files, over one list of genes."""

    parts: list[Part]
    maps: list[GeneMap]
    genes: list[str]
    own_totals: bool = False  # cells are normalised over these genes alone, which are a panel

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *(len(part.kept) for part in self.parts)])
        self._rows: Callable[[int], Rows] = lru_cache(MAX_OPEN)(lambda file: self.parts[file].rows())

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def file_of_cell(self) -> np.ndarray:
        """The index of the file of each cell, int64."""
        return np.repeat(np.arange(len(self.parts)), np.diff(self.starts))

    def with_columns(self, target: np.ndarray, names: list[str]) -> "CellCollection":
        """Return the same cells with other columns: gene j moves to `target[j]`, or is left out if that is -1."""
        moved = np.append(target, -1)  # so that -1 stays -1
        maps = [replace(mapping, target=moved[mapping.target]) for mapping in self.maps]
        return replace(self, maps=maps, genes=names)

    def of_genes(self, is_kept: np.ndarray) -> "CellCollection":
        """Return the same cells with a part of the genes, boolean G."""
        names = [name for name, keep in zip(self.genes, is_kept, strict=True) if keep]
        return self.with_columns(np.where(is_kept, np.cumsum(is_kept) - 1, -1), names)

    def read(self, cells: np.ndarray) -> csr_matrix:
        """Read the cells with these numbers, in this order: ln(1 + target_sum * share), CSR float32, cells x G."""
        pieces = [csr_matrix((0, len(self.genes)), dtype=np.float32)]
        for start in range(0, len(cells), CELLS_AT_ONCE):
            wanted, order = np.unique(cells[start : start + CELLS_AT_ONCE], return_inverse=True)
            files = np.searchsorted(self.starts, wanted, side="right") - 1
            blocks = [self._read_file(file, wanted[files == file]) for file in np.unique(files)]  # in the order on disk
            pieces.append(csr_matrix(sparse.vstack(blocks, "csr"))[order])
        return csr_matrix(sparse.vstack(pieces, "csr"))

    def _read_file(self, file: int, cells: np.ndarray) -> csr_matrix:
        """Read the cells with these ascending numbers, which are all of one file, as `read`."""
        part = self.parts[file]
        with reading(part.path):
            stored = _read_scattered(self._rows(file), part.kept[cells - self.starts[file]])
        by_scanpy = part.adata is not None
        x = normalise(part.merged(stored), part.findings, part.target_sum, by_scanpy=by_scanpy)  # over all genes
        x = align_normalised(x, self.maps[file], len(self.genes))
        return over_own_genes(x, part.target_sum) if self.own_totals else x


@dataclass
class Stream:
    """Training cells of a collection that stay on disk."""

    collection: CellCollection
    cells: np.ndarray  # numbers of the cells in the collection, ascending
    labels: np.ndarray  # index of the label of each cell, or of its file for pretraining; int64


def make_collection(
    sources: Sequence[Path | Sample],
    cfg: DataOptions,
    vocabulary: Sequence[str] | None = None,
    *,
    min_shared: int = 0,
    left_out: np.ndarray | None = None,
) -> CellCollection:
    """Filter the cells of files, and choose the genes of the collection.

    Cells with fewer than `data.min_genes` genes, or fewer than `min_shared` genes of the collection, are dropped, and
    rows that are `left_out` (boolean, over the rows of all files). The genes are the `vocabulary` or else, in the order
    of the files, the genes that at least `data.min_cells` cells express. It is refused that no cells or genes are left.
    """
    parts = [_open_part(source, cfg) for source in sources]
    file_names = [part.path.name for part in parts]
    names, maps = map_genes_of_files([part.var for part in parts], file_names, vocabulary, cfg.species)
    num_cells = np.zeros(len(names), dtype=np.int64)  # cells that express each gene
    ends = np.cumsum([part.findings.num_cells for part in parts])
    left_out = np.zeros(ends[-1], dtype=bool) if left_out is None else left_out
    with progress("filtering cells", total=len(left_out), unit="cells") as shown:
        for part, mapping, is_left_out in zip(parts, maps, np.split(left_out, ends[:-1]), strict=True):
            kept = []
            if part.findings.is_foreign is not None:
                is_left_out = is_left_out | part.findings.is_foreign
            num_dropped = 0
            with reading(part.path):
                for start, block in part.rows().blocks():
                    # Filters only ask whether a gene is expressed.
                    x = csr_matrix(part.merged(block) > 0, dtype=np.float32)
                    shared = align_normalised(x, mapping, len(names))
                    keep = part.with_genes(x, cfg.data.min_genes) & part.with_genes(shared, min_shared)
                    is_wanted = ~is_left_out[start : start + len(keep)]
                    num_dropped += int((is_wanted & ~keep).sum())
                    keep &= is_wanted
                    num_cells += part.cells_of_genes(shared[keep])
                    kept.append(start + np.flatnonzero(keep))
                    shown.update(len(keep))
            part.kept = np.concatenate(kept)
            log.info("%s: %d of %d cells are used", part.path, len(part.kept), part.findings.num_cells)
            if num_dropped > MANY_DROPPED * part.findings.num_cells:
                text = "%s: %d cells with fewer than %d of the %d genes are left out (data.min_genes)"
                log.warning(text, part.path, num_dropped, cfg.data.min_genes, part.findings.num_genes)
            if not len(part.kept) and not is_left_out.all():
                found = f"data.min_genes={cfg.data.min_genes} drops all {part.findings.num_cells} cells of {part.path}"
                raise InputError("all-cells-dropped", found, "some cells to be kept", "lower it", ["data.min_genes=1"])
    collection = CellCollection(parts, maps, names)
    if vocabulary is not None:
        return collection
    keep = num_cells >= cfg.data.min_cells
    if not keep.any():
        found = f"data.min_cells={cfg.data.min_cells} drops all {len(names)} genes of {len(collection)} cells"
        remedy = "lower it, or add cells"
        raise InputError("all-genes-dropped", found, "some genes to be kept", remedy, ["data.min_cells=1"])
    return collection.of_genes(keep)
