"""Cells and genes of one or several files as one collection, in memory or on disk: a reference, which scanpy prepares.

Each file is read twice before training, block by block: to recognise its values, and to filter its cells and genes. For
cells that stay on disk, only their row numbers are kept in memory.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from anndata import AnnData
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.cells.detect import matrices_of
from scperformer.cells.normalisation import align_normalised, normalise_reference, over_own_genes
from scperformer.cells.opened import OpenedCells, close_many, whole_cells
from scperformer.config.options import AUTO
from scperformer.config.training import DataConfig, DataOptions, NetworkOptions, ReferenceOptions
from scperformer.io.gene_matching import GeneMap
from scperformer.io.gene_overlap import map_genes_of_files
from scperformer.io.h5ad import open_stored
from scperformer.io.read import require_readable
from scperformer.io.rows import Rows
from scperformer.io.safety import reading

log = logging.getLogger(__name__)

STREAMED_KINDS = ("h5ad", "zarr")  # kinds of files whose cells can stay on disk
STREAM_ABOVE = 2 * 2**30  # bytes of expression; training in memory takes about four times as much
VALUE_BYTES = 8  # a float32 value and the int32 number of its column
# rows with smaller gaps are read together, which is cheaper than another access to the disk
MAX_GAP = 64
MAX_RUN = 1024  # rows that are read at once
# share of the cells of a file; if more express too few genes, a warning says so
MANY_DROPPED_CELLS = 0.05
CELLS_AT_ONCE = 4096  # cells that are aligned at once, which takes several times their memory
BY_ROWS = "write it by rows with anndata (adata.X = adata.X.tocsr(), then write_h5ad)"
Config = TypeVar("Config", bound=NetworkOptions)


def stored_matrices(path: Path) -> list[Rows] | None:
    """Open the matrices of a file; None if it cannot be read by rows from disk."""
    if require_readable(path) not in STREAMED_KINDS:
        return None
    try:
        with reading(path):
            matrices = [Rows(x) for x in matrices_of(open_stored(path)).values()]
    except InputError:  # a file of an older format is read as a whole
        return None
    return None if any(x.by_columns for x in matrices) else matrices


def choose_storage(options: Config, paths: Sequence[Path]) -> Config:
    """Return the options; for several labelled files, or above 2 GiB of values, `data.in_memory=auto` becomes false."""
    if not paths and options.data.in_memory is False:
        remedy = "leave data.in_memory out, or name files"
        raise InputError("storage", "data.in_memory=false and cells in memory", "files", remedy)
    stored = [stored_matrices(path) for path in paths]
    several = isinstance(options, ReferenceOptions) and len(paths) > 1
    if options.data.in_memory is True and several:
        found = f"{len(paths)} files to train on and data.in_memory=true"
        raise InputError(
            "storage", found, "one file, or cells that stay on disk", "leave data.in_memory out"
        )
    total = sum(VALUE_BYTES * x.num_values for matrices in stored for x in matrices or ())
    if options.data.in_memory != AUTO or not (
        several or (total > STREAM_ABOVE and None not in stored)
    ):
        return options
    log.info(
        "%.1f GiB of expression stay on disk during training (data.in_memory=false)", total / 2**30
    )
    return replace(options, data=replace(options.data, in_memory=False))


def stored_cells(path: Path, options: DataOptions) -> OpenedCells:
    """Return the cells of a file, which stay on disk; a file that cannot be read by rows is refused."""
    if (kind := require_readable(path)) not in STREAMED_KINDS:
        raise InputError(
            "storage", f"{path}, a {kind}", "h5ad or zarr for cells that stay on disk", BY_ROWS
        )
    with reading(path):
        cells = OpenedCells(open_stored(path), options, path)
    cells.close()  # until it is read: there may be many files
    return cells


def reference_cells(path: Path, options: DataOptions) -> OpenedCells:
    """Return the cells of a file, which stay on disk with `data.in_memory=false`."""
    return (
        stored_cells(path, options)
        if options.data.in_memory is False
        else whole_cells(path, options)
    )


@dataclass(frozen=True)
class Filters:
    """Which cells and genes are kept."""

    min_genes: int = 0  # that a cell expresses
    min_cells: int = 0  # that express a gene
    min_shared: int = 0  # genes of the collection that a cell expresses

    @classmethod
    def by(cls, data: DataConfig) -> "Filters":
        return cls(data.min_genes, data.min_cells)


@dataclass
class CellCollection:
    """The cells of all files, numbered in the order of the files, over one list of genes."""

    files: list[OpenedCells]
    maps: list[GeneMap]
    genes: list[str]
    kept: list[np.ndarray]  # row numbers of the cells of each file, ascending
    own_totals: bool = False  # cells are normalised over these genes alone, which are a panel

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *map(len, self.kept)])
        self.target_sum: float = self.files[0].options.data.target_sum

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def rows(self) -> np.ndarray:
        """The number of each cell among the rows of all files, int64."""
        starts = np.cumsum([0, *(cells.n_obs for cells in self.files)])
        return np.concatenate(
            [start + kept for start, kept in zip(starts, self.kept, strict=False)]
        )

    @property
    def file_of_cell(self) -> np.ndarray:
        """The index of the file of each cell, int64."""
        return np.repeat(np.arange(len(self.files)), np.diff(self.starts))

    @property
    def summaries(self) -> list[str]:
        """The kind and place of the values of each file, and their form after normalisation."""
        found = [cells.findings for cells in self.files]
        return [
            f"{each.kind} from {each.source}, as ln(1 + counts per {self.target_sum:,.0f})"
            for each in found
        ]

    def with_columns(self, target: np.ndarray, names: list[str]) -> "CellCollection":
        """Return the same cells with other columns: gene j moves to `target[j]`, or is left out if that is -1."""
        return replace(self, maps=[mapping.moved(target) for mapping in self.maps], genes=names)

    def of_genes(self, is_kept: np.ndarray) -> "CellCollection":
        """Return the same cells with a part of the genes, boolean G."""
        names = [name for name, keep in zip(self.genes, is_kept, strict=True) if keep]
        return replace(self, maps=[mapping.only(is_kept) for mapping in self.maps], genes=names)

    def of_panel(self, is_kept: np.ndarray) -> "CellCollection":
        """Return the same cells with a part of the genes, boolean G, normalised over these alone."""
        return replace(self.of_genes(is_kept), own_totals=True)

    def read(self, cells: np.ndarray) -> csr_matrix:
        """Read the cells with these numbers, in this order: ln(1 + target_sum * share), CSR float32, cells x G."""
        pieces = [csr_matrix((0, len(self.genes)), dtype=np.float32)]
        for start in range(0, len(cells), CELLS_AT_ONCE):
            wanted, order = np.unique(cells[start : start + CELLS_AT_ONCE], return_inverse=True)
            files = np.searchsorted(self.starts, wanted, side="right") - 1
            # in the order on disk
            blocks = [self._read_file(file, wanted[files == file]) for file in np.unique(files)]
            pieces.append(csr_matrix(sparse.vstack(blocks, "csr"))[order])
        return csr_matrix(sparse.vstack(pieces, "csr"))

    def _read_file(self, file: int, numbers: np.ndarray) -> csr_matrix:
        """Read the cells with these ascending numbers, which are all of one file, as `read`: neighbours together."""
        cells = self.files[file]
        rows = self.kept[file][numbers - self.starts[file]]
        begins = np.diff(rows, prepend=-MAX_GAP - 1) > MAX_GAP
        first = rows[begins][np.cumsum(begins) - 1]  # of the run of each row
        ends = np.flatnonzero((np.diff(first) != 0) | (np.diff((rows - first) // MAX_RUN) != 0)) + 1
        with cells.reading():
            runs = [
                csr_matrix(cells.rows.block(run[0], run[-1] + 1))[run - run[0]]
                for run in np.split(rows, ends)
            ]
        stored = sparse.vstack(runs, "csr")
        close_many(self.files)
        # over all genes of the file
        x = normalise_reference(cells.merged(stored), cells.findings, self.target_sum)
        x = align_normalised(x, self.maps[file], len(self.genes))
        return over_own_genes(x, self.target_sum) if self.own_totals else x


@dataclass
class Stream:
    """Training cells of a collection that stay on disk."""

    collection: CellCollection
    cells: np.ndarray  # numbers of the cells in the collection, ascending
    labels: np.ndarray  # index of the label of each cell, or of its file for pretraining; int64


def _find_expression(cells: OpenedCells) -> None:
    """Find and log the expression of a file, if it is not known; refuse a large one that is stored by columns."""
    if not cells.is_known:
        log.info("%s: %s", cells.path, cells.findings.sentence)
        if cells.findings.doubt:
            log.warning("%s: %s", cells.path, cells.findings.doubt)
    rows = cells.rows
    if cells.is_on_disk and rows.by_columns and VALUE_BYTES * rows.num_values > STREAM_ABOVE:
        found = f"{cells.findings.source} of {cells.path} is stored by columns (CSC), and takes more than 2 GiB"
        raise InputError(
            "stored-by-columns", found, "rows (CSR or dense) for cells that stay on disk", BY_ROWS
        )


def make_collection(
    files: Sequence[OpenedCells],
    filters: Filters,
    vocabulary: Sequence[str] | None = None,
    left_out: np.ndarray | None = None,
) -> CellCollection:
    """Filter the cells of files, and choose the genes of the collection.

    Rows that are `left_out` (boolean, over the rows of all files) are dropped, too. The genes are the `vocabulary` or
    else, in the order of the files, the genes that enough cells express. It is refused that no cells or genes are left.
    """
    for cells in files:
        _find_expression(cells)
        close_many(files)
    tables = [cells.var.set_axis(cells.gene_names)[cells.is_first] for cells in files]
    names, maps = map_genes_of_files(
        tables, [cells.name for cells in files], vocabulary, files[0].options.species
    )
    num_cells = np.zeros(len(names), dtype=np.int64)  # cells that express each gene
    ends = np.cumsum([cells.n_obs for cells in files])
    left_out = np.zeros(ends[-1], dtype=bool) if left_out is None else left_out
    kept = []
    with progress("filtering cells", total=len(left_out), unit="cells") as shown:
        for cells, mapping, is_left_out in zip(
            files, maps, np.split(left_out, ends[:-1]), strict=True
        ):
            if cells.findings.is_foreign is not None:
                is_left_out = is_left_out | cells.findings.is_foreign
            is_kept = np.zeros(cells.n_obs, dtype=bool)
            with cells.reading():
                for start, block in cells.rows.blocks():
                    # Filters only ask whether a gene is expressed.
                    x = csr_matrix(cells.merged(block) > 0, dtype=np.float32)
                    shared = align_normalised(x, mapping, len(names))
                    keep = _with_genes(x, filters.min_genes) & _with_genes(
                        shared, filters.min_shared
                    )
                    is_kept[start : start + len(keep)] = keep
                    num_cells += _cells_of_genes(
                        shared[keep & ~is_left_out[start : start + len(keep)]]
                    )
                    shown.update(len(keep))
            close_many(files)
            kept.append(np.flatnonzero(is_kept & ~is_left_out))
            _report(cells, filters, is_kept, is_left_out)
    collection = CellCollection(list(files), maps, names, kept)
    if vocabulary is not None:
        return collection
    is_frequent = num_cells >= filters.min_cells
    if not is_frequent.any():
        found = f"data.min_cells={filters.min_cells} drops all {len(names)} genes of {len(collection)} cells"
        remedy = "lower it, or add cells"
        raise InputError(
            "all-genes-dropped", found, "some genes to be kept", remedy, ["data.min_cells=1"]
        )
    return collection.of_genes(is_frequent)


def _with_genes(is_expressed: csr_matrix, least: int) -> np.ndarray:
    """Return which cells express at least so many genes, boolean."""
    import scanpy  # takes seconds to import

    return scanpy.pp.filter_cells(AnnData(is_expressed), min_genes=least, inplace=False)[0]


def _cells_of_genes(is_expressed: csr_matrix) -> np.ndarray:
    """Return how many cells express each gene, int64."""
    import scanpy

    return scanpy.pp.filter_genes(AnnData(is_expressed), min_cells=0, inplace=False)[1]


def _report(
    cells: OpenedCells, filters: Filters, is_kept: np.ndarray, is_left_out: np.ndarray
) -> None:
    """Log how many cells of a file are used; it is refused that a filter drops all of them."""
    num_used = int((is_kept & ~is_left_out).sum())
    log.info("%s: %d of %d cells are used", cells.path, num_used, cells.n_obs)
    num_dropped = int((~is_kept & ~is_left_out).sum())
    if num_dropped > MANY_DROPPED_CELLS * cells.n_obs:
        text = "%s: %d cells with fewer than %d of the %d genes are left out (data.min_genes)"
        log.warning(text, cells.path, num_dropped, filters.min_genes, cells.findings.num_genes)
    if not num_used and not is_left_out.all():
        found = f"data.min_genes={filters.min_genes} drops all {cells.n_obs} cells of {cells.path}"
        raise InputError(
            "all-cells-dropped", found, "some cells to be kept", "lower it", ["data.min_genes=1"]
        )
