"""Files that stay on disk as one long list of cells over one list of genes: what to read, and how it becomes cells.

Each file is looked through twice before training, block by block: once to recognise its values (`detect`), and once to
filter its cells and to count the cells that express each gene. Nothing but numbers of rows is kept of its cells.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.config import AUTO, NetworkConfig, PretrainConfig, TrainConfig
from scperformer.dataset.preprocess import is_prepared
from scperformer.errors import InputError
from scperformer.expression import (
    Findings,
    align_normalised,
    detect_expression,
    gene_table,
    merge_genes,
    normalise,
    stored_expression,
)
from scperformer.files import BackedH5ad, Matrix, Rows, open_stored, reading, require_readable
from scperformer.genes import GeneMap, first_of_each, gene_maps, repeated_note

log = logging.getLogger(__name__)

MAX_OPEN = 64  # files at a time
MAX_GAP, MAX_RUN = 64, 1024  # rows between two wanted ones that are read with them; rows that are read at a time
READ_CELLS = (
    4096  # cells that are on their way from disk at a time: until they are done, they take several times as much
)
STREAM_ABOVE = 2 * 2**30  # bytes of expression: in memory, training takes about four times as many
VALUE_BYTES = 8  # a number and its column
STREAMED = ("h5ad", "zarr")
# Of cells that stay on disk these many are in memory: for linear fits and statistics, and to validate on. More would
# hardly change what they say.
MAX_FIT_CELLS, MAX_VAL_CELLS = 20_000, 10_000
Config = TypeVar("Config", TrainConfig, PretrainConfig)


@dataclass
class Part:
    """A file: where its expression is, and how rows of it become cells of the collection."""

    path: Path
    findings: Findings
    var: pd.DataFrame  # of its genes, each name once
    first: np.ndarray | None  # for each column the first one of the same name; None: no name repeats
    is_prepared: bool  # by `preprocess`: nothing is left to filter
    target_sum: float
    kept: np.ndarray  # numbers of the rows that are cells of the collection, ascending

    def rows(self) -> Rows:
        """The matrix on disk."""
        with reading(self.path):
            return Rows(stored_expression(open_stored(self.path), self.findings, path=self.path)[0])

    def merged(self, x: Matrix) -> csr_matrix:
        """Stored rows with a column for each name."""
        if self.first is None:
            return csr_matrix(x)
        is_gene = self.first == np.arange(len(self.first))
        return merge_genes(x, self.first, self.findings.log_base)[:, is_gene]

    def aligned(self, x: Matrix, mapping: GeneMap, num_genes: int) -> csr_matrix:
        """Stored rows as cells: normalised over all genes of the file, then the genes of the collection as columns."""
        return align_normalised(normalise(self.merged(x), self.findings, self.target_sum), mapping, num_genes)


@dataclass
class Collection:
    """The cells of all files, numbered in the order of the files, and the genes that they share."""

    parts: list[Part]
    maps: list[GeneMap]
    genes: list[str]

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *(len(part.kept) for part in self.parts)])
        self._rows: Callable[[int], Rows] = lru_cache(MAX_OPEN)(lambda file: self.parts[file].rows())

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def file_of_cell(self) -> np.ndarray:
        """Which file each cell is from, int64."""
        return np.repeat(np.arange(len(self.parts)), np.diff(self.starts))

    def with_columns(self, target: np.ndarray, names: list[str]) -> "Collection":
        """The same cells with other columns: gene j goes to `target[j]`, or away where that is -1."""
        moved = np.append(target, -1)  # -1 stays -1
        maps = [replace(mapping, target=moved[mapping.target]) for mapping in self.maps]
        return Collection(self.parts, maps, names)

    def read(self, cells: np.ndarray) -> csr_matrix:
        """Cells with these numbers, in this order: CSR float32, ln(1 + cp10k).

        Neighbours are read together, in the order in which they lie on disk.

        Raises
        ------
        InputError
            A file is damaged, or is not what it was.
        """
        pieces = (self._read(cells[i : i + READ_CELLS]) for i in range(0, len(cells), READ_CELLS))
        return stacked(pieces, len(self.genes))

    def _read(self, cells: np.ndarray) -> csr_matrix:
        wanted, place = np.unique(cells, return_inverse=True)
        found = []
        for file in np.unique(np.searchsorted(self.starts, wanted, side="right") - 1):
            first, last = np.searchsorted(wanted, self.starts[file : file + 2])
            part = self.parts[file]
            stored = self._stored(file, part.kept[wanted[first:last] - self.starts[file]])
            found.append(part.aligned(stored, self.maps[file], len(self.genes)))
        return csr_matrix(sparse.vstack(found, "csr"))[place]

    def _stored(self, file: int, numbers: np.ndarray) -> csr_matrix:
        """Rows of a file with these ascending numbers, as they are stored."""
        begins = np.diff(numbers, prepend=-MAX_GAP - 1) > MAX_GAP
        start = numbers[np.maximum.accumulate(np.where(begins, np.arange(len(numbers)), 0))]
        ends = np.flatnonzero((np.diff(start) != 0) | (np.diff((numbers - start) // MAX_RUN) != 0)) + 1
        with reading(self.parts[file].path):
            rows = self._rows(file)
            runs = np.split(numbers, ends)
            return sparse.vstack([csr_matrix(rows.block(run[0], run[-1] + 1))[run - run[0]] for run in runs], "csr")


def stacked(pieces: Iterable[csr_matrix], num_genes: int) -> csr_matrix:
    """CSR float32 of pieces, one below the other; at no time are there more than about two numbers for one."""
    data, indices, lengths = [], [], [np.zeros(1, dtype=np.int64)]
    for piece in pieces:
        data.append(piece.data)
        indices.append(piece.indices)
        lengths.append(np.diff(piece.indptr))
    indptr = np.cumsum(np.concatenate(lengths))
    values = np.concatenate([np.empty(0, dtype=np.float32), *data])
    data.clear()
    columns = np.concatenate([np.empty(0, dtype=np.int32), *indices])
    return csr_matrix((values, columns, indptr), shape=(len(indptr) - 1, num_genes))


@dataclass
class Stream:
    """The cells of a collection that are trained on: their numbers, ascending, and a label each."""

    collection: Collection
    cells: np.ndarray
    labels: np.ndarray


def settle_in_memory(cfg: Config, paths: Sequence[Path]) -> Config:
    """The options with `data.in_memory=false` instead of `auto` where cells are to stay on disk.

    That is a matter of the files alone: they give the same answer on every machine.

    Raises
    ------
    InputError
        A file is of no known kind, the same file is given twice, or several files are to be trained on in memory.
    """
    sizes = [stored_bytes(path) for path in paths]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("the same file twice", "every file once", "name each file once")
    several = isinstance(cfg, TrainConfig) and len(paths) > 1
    if cfg.data.in_memory is True and several:
        found = f"{len(paths)} files to train on and data.in_memory=true"
        raise InputError(found, "one file, or cells that stay on disk", "leave data.in_memory out")
    if cfg.data.in_memory != AUTO:
        return cfg
    total = sum(size or 0 for size in sizes)
    on_disk = several or (total > STREAM_ABOVE and None not in sizes)
    if not on_disk:
        return cfg
    log.info("%.1f GiB of expression stay on disk during training (data.in_memory=false)", total / 2**30)
    return replace(cfg, data=replace(cfg.data, in_memory=False))


def require_loadable(cfg: NetworkConfig) -> None:
    """Refuse `data.in_memory=false` for cells that are in memory already."""
    if cfg.data.in_memory is False:
        raise InputError("data.in_memory=false and cells in memory", "files", "leave it out, or name files")


def stored_bytes(path: Path) -> int | None:
    """Bytes that the matrices of a file take in memory; None where they cannot be read by rows from disk."""
    if require_readable(path) not in STREAMED:
        return None
    try:
        with reading(path):
            cells = open_stored(path)
            raw = [] if cells.raw is None else [cells.raw.X]
            matrices = [Rows(x) for x in (cells.X, *cells.layers.values(), *raw) if x is not None]
    except InputError:  # a file of an older format: it is read as a whole
        return None
    return None if any(x.by_columns for x in matrices) else sum(VALUE_BYTES * x.num_values for x in matrices)


def open_part(path: Path, cfg: NetworkConfig) -> Part:
    """A file before its cells are looked at; `kept` is empty.

    Raises
    ------
    InputError
        It cannot be read by rows from disk, or its expression cannot be used.
    """
    kind = require_readable(path)
    remedy = "write it by rows with anndata (adata.X = adata.X.tocsr(), then write_h5ad), or set data.in_memory=true"
    if kind not in STREAMED:
        raise InputError(f"{path}, a {kind}", "h5ad or zarr for cells that stay on disk", remedy)
    with reading(path):
        cells = open_stored(path)
        told = cfg.source, cfg.input_kind
        findings = detect_expression(cells, *told, input_total=cfg.input_total, input_base=cfg.input_base, path=path)  # type: ignore[arg-type]
        log.info("%s: %s", path, findings.sentence)
        matrix, names = stored_expression(cells, findings, path=path)  # type: ignore[arg-type]
        if Rows(matrix).by_columns:
            found = f"{findings.source} of {path} is stored by columns (CSC)"
            raise InputError(found, "rows (CSR or dense) for cells that stay on disk", remedy)
    notes = repeated_note(names)
    first = first_of_each(names) if notes else None
    is_gene = slice(None) if first is None else first == np.arange(len(first))
    return Part(
        path=path,
        findings=replace(findings, notes=[*findings.notes, *notes]),
        var=gene_table(cells, findings.source).set_axis(names)[is_gene],  # type: ignore[arg-type]
        first=first,
        is_prepared=_is_prepared(cells, findings) and findings.total == cfg.data.target_sum and not notes,
        target_sum=cfg.data.target_sum,
        kept=np.empty(0, dtype=np.int64),
    )


def _is_prepared(cells: BackedH5ad, findings: Findings) -> bool:
    return is_prepared(cells, findings)  # type: ignore[arg-type]


def count_cells(
    part: Part, mapping: GeneMap, num_genes: int, *, min_genes: int, min_shared: int, left_out: np.ndarray | None
) -> np.ndarray:
    """Set the cells of a file that count, and count those that express each gene of the collection: int64.

    Parameters
    ----------
    min_genes, min_shared
        Genes that a cell must express, of the file and of the collection.
    left_out
        Rows that are not looked at, boolean; None: none.
    """
    num_cells = np.zeros(num_genes, dtype=np.int64)
    kept = []
    with reading(part.path):
        for start, block in part.rows().blocks():
            x = part.merged(block)
            x.eliminate_zeros()
            x.data = np.ones_like(x.data)  # that a gene is expressed is all that counts here
            shared = align_normalised(x, mapping, num_genes)
            keep = np.diff(shared.indptr) >= min_shared
            if not part.is_prepared:
                keep &= np.diff(x.indptr) >= min_genes
            if left_out is not None:
                keep &= ~left_out[start : start + len(keep)]
            num_cells += np.bincount(shared[keep].indices, minlength=num_genes)
            kept.append(start + np.flatnonzero(keep))
    part.kept = np.concatenate(kept)
    log.info("%s: %d of %d cells are used", part.path, len(part.kept), part.findings.num_cells)
    return num_cells


def make_collection(
    paths: Sequence[Path],
    cfg: NetworkConfig,
    vocabulary: Sequence[str] | None = None,
    *,
    min_shared: int = 0,
    left_out: np.ndarray | None = None,
) -> Collection:
    """Filter the cells of files, each as if it were in memory, and find the genes that they are to have.

    Parameters
    ----------
    vocabulary
        The genes; None: those that at least `data.min_cells` cells express, in the order in which the files have them.
    min_shared
        Of the genes that a cell must express to be used.
    left_out
        Rows of all files that are not looked at, boolean; None: none.

    Raises
    ------
    InputError
        A file cannot be used, the files name genes by different kinds of id, or the filters leave nothing.
    """
    parts = [open_part(path, cfg) for path in paths]
    files = [path.name for path in paths]
    names, maps = gene_maps([part.var for part in parts], files, vocabulary, cfg.species)
    num_cells = np.zeros(len(names), dtype=np.int64)
    limits = {"min_genes": cfg.data.min_genes, "min_shared": min_shared}
    begin = 0
    for part, mapping in zip(parts, maps, strict=True):
        end = begin + part.findings.num_cells
        without = None if left_out is None else left_out[begin:end]
        num_cells += count_cells(part, mapping, len(names), **limits, left_out=without)
        begin = end
        if not len(part.kept):
            found = f"no cell of {part.path} that expresses data.min_genes={cfg.data.min_genes} genes"
            raise InputError(found, "at least some cells to be kept", "lower it, or leave the file out")
    collection = Collection(parts, maps, names)
    if vocabulary is not None:
        return collection
    all_prepared = all(part.is_prepared for part in parts)
    return _of_common_genes(collection, num_cells >= (0 if all_prepared else cfg.data.min_cells), cfg)


def _of_common_genes(collection: Collection, keep: np.ndarray, cfg: NetworkConfig) -> Collection:
    if not keep.any():
        found = f"no gene that data.min_cells={cfg.data.min_cells} of the {len(collection)} cells express"
        raise InputError(found, "at least some genes", "lower it or add cells")
    target = np.where(keep, np.cumsum(keep) - 1, -1)
    kept = [name for name, is_kept in zip(collection.genes, keep, strict=True) if is_kept]
    return collection.with_columns(target, kept)


def stratified_rows(labels: np.ndarray, most: int, seed: int) -> np.ndarray:
    """At most about `most` rows, seeded: of each label the same share, but at least one; ascending."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    cells = (rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels))
    return np.sort(np.concatenate([rows[: max(1, round(len(rows) * most / len(labels)))] for rows in cells]))
