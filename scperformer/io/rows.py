"""Read a matrix of cells block by block, from memory or from disk, so that it may be larger than memory."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import h5py
import numpy as np
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

from scperformer.base.errors import InputError

log = logging.getLogger(__name__)

Matrix: TypeAlias = sparse.csr_matrix | sparse.csc_matrix | np.ndarray

CSC_VALUES_AT_ONCE = 1 << 20  # values of a CSC matrix on disk
BLOCK_VALUES = 1 << 22  # stored values, or entries of a dense matrix, in a block; some 50 MB of memory
MAX_BLOCK_CELLS = 8192
LOG_ABOVE_BYTES = 10**9  # the log names the folder of a larger temporary file


class Rows:
    """A matrix, cells x genes, with a block of rows in memory at a time.

    The matrix is sparse or dense in memory, or on disk: a result of `anndata.io.sparse_dataset` or an array of h5py or
    zarr. A matrix that is stored by columns (CSC) is converted to rows once, in memory or in a temporary file. With
    `columns`, a boolean mask, only these columns are read, in the same blocks as from a matrix without the others.

    Raises
    ------
    ValueError
        Here or when a block is read: arrays of a sparse matrix do not fit each other, or have indices out of bounds,
        where compiled code would read foreign memory.
    """

    def __init__(self, matrix: Any, columns: np.ndarray | None = None):
        if sparse.issparse(matrix):
            matrix = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
            matrix.check_format(full_check=True)
            matrix = sparse.csr_matrix(matrix)
        self.matrix = matrix
        self.columns = columns
        num_columns = matrix.shape[1] if columns is None else columns.sum()
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(num_columns))
        self.dtype = np.dtype(matrix.dtype)
        self._on_disk = not sparse.issparse(matrix) and not isinstance(matrix, np.ndarray)
        self._by_rows: _ColumnsByRows | None = None  # a CSC matrix on disk, once it is converted
        self._only_block: Matrix | None = None  # the block of a small matrix on disk, kept as several steps read it
        self._selected = None if columns is None else np.flatnonzero(columns)

    @property
    def by_columns(self) -> bool:
        """Whether the matrix is on disk and stored by columns."""
        return isinstance(self.matrix, CSCDataset)

    @cached_property
    def num_values(self) -> int:
        """The number of stored values, or of the entries of a dense matrix."""
        is_sparse = sparse.issparse(self.matrix) or isinstance(self.matrix, CSRDataset | CSCDataset)
        if self.columns is not None and is_sparse:
            if isinstance(self.matrix, CSCDataset):
                return int(np.diff(np.asarray(self.matrix.group["indptr"]))[self.columns].sum())
            indices = self.matrix.group["indices"] if isinstance(self.matrix, CSRDataset) else self.matrix.indices
            starts = range(0, indices.shape[0], BLOCK_VALUES)
            parts = (np.asarray(indices[start : start + BLOCK_VALUES]) for start in starts)
            return sum(int(self.columns.take(part, mode="clip").sum()) for part in parts)
        if isinstance(self.matrix, CSRDataset | CSCDataset):
            return int(self.matrix.group["data"].shape[0])
        return int(self.matrix.nnz) if sparse.issparse(self.matrix) else self.shape[0] * self.shape[1]

    @property
    def block_cells(self) -> int:
        """The number of rows in a block, which depends only on the matrix."""
        per_cell = max(1.0, self.num_values / max(1, self.shape[0]))
        return int(np.clip(BLOCK_VALUES / per_cell, 1, MAX_BLOCK_CELLS))

    def block(self, start: int, stop: int) -> Matrix:
        """Return rows `start` to `stop`: CSR, or an array if the matrix is dense. Callers must not change the block."""
        if isinstance(self.matrix, CSCDataset):
            if self._by_rows is None:
                self._by_rows = _ColumnsByRows(self.matrix.group, tuple(self.matrix.shape), self.block_cells)
            return self._select(self._by_rows.rows(start, stop))
        if self._on_disk and 0 < self.shape[0] <= self.block_cells:
            if self._only_block is None:
                self._only_block = self._read(0, self.shape[0])
            return self._only_block if (start, stop) == (0, self.shape[0]) else self._only_block[start:stop]
        return self._read(start, stop)

    def _select(self, block: Matrix) -> Matrix:
        return block if self._selected is None else block[:, self._selected]

    def _read(self, start: int, stop: int) -> Matrix:
        if not sparse.issparse(self.matrix) and not isinstance(self.matrix, CSRDataset):
            dense = self._select(np.asarray(self.matrix[start:stop]))
            return dense.astype(np.float32) if dense.dtype == np.float16 else dense  # SciPy has no half precision
        block = sparse.csr_matrix(self.matrix[start:stop])
        if isinstance(self.matrix, CSRDataset):
            block.check_format(full_check=True)
        return self._select(block)

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """Iterate over all blocks in order, each with the number of its first row."""
        for start in range(0, self.shape[0], self.block_cells):
            yield start, self.block(start, min(start + self.block_cells, self.shape[0]))

    def some(self, rows: np.ndarray) -> sparse.csr_matrix:
        """Return the rows with these ascending numbers, float64; only blocks that contain such rows are read."""
        pieces = [sparse.csr_matrix((0, self.shape[1]), dtype=np.float64)]
        for start in range(0, self.shape[0], self.block_cells):
            stop = min(start + self.block_cells, self.shape[0])
            first, last = np.searchsorted(rows, [start, stop])
            if first < last:
                pieces.append(sparse.csr_matrix(self.block(start, stop)[rows[first:last] - start], dtype=np.float64))
        return sparse.vstack(pieces, "csr")


class _ColumnsByRows:
    """A CSC matrix on disk that is read by rows, from a temporary file with its values sorted by blocks of rows."""

    def __init__(self, group: h5py.Group, shape: tuple[int, ...], block_cells: int):
        self.shape = shape
        self.block_cells = block_cells
        indices = group["indices"]
        data = group["data"]
        indptr = np.asarray(group["indptr"])
        num_values = indices.shape[0]
        fits = num_values == data.shape[0] and indptr[0] == 0 and indptr[-1] == num_values
        if len(indptr) != shape[1] + 1 or not fits or (np.diff(indptr) < 0).any():
            raise ValueError("indptr does not fit the matrix")
        self.entry = np.dtype([("row", np.int32), ("column", np.int32), ("value", data.dtype)])
        num_bytes = num_values * self.entry.itemsize
        folder = tempfile.gettempdir()
        if num_bytes > shutil.disk_usage(folder).free:
            expected = f"{num_bytes / 1e9:.1f} GB there to sort a matrix that is stored by columns (CSC)"
            remedy = "free some space, set TMPDIR to a folder on a larger disk, "
            remedy += "or save the file with adata.X = adata.X.tocsr()"
            raise InputError(f"too little room in {folder}", expected, remedy)
        if num_bytes >= LOG_ABOVE_BYTES:
            text = "the matrix is stored by columns (CSC): it is sorted by rows in a file of %.1f GB in %s"
            log.info(text, num_bytes / 1e9, folder)
        parts = [slice(begin, begin + CSC_VALUES_AT_ONCE) for begin in range(0, num_values, CSC_VALUES_AT_ONCE)]
        sizes = np.zeros(-(-shape[0] // block_cells), dtype=np.int64)
        for part in parts:
            rows = np.asarray(indices[part])
            if not (rows.min() >= 0 and rows.max() < shape[0]):
                raise ValueError("indices out of bounds")
            sizes += np.bincount(rows // block_cells, minlength=len(sizes))
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  # it is deleted with this object
        free = self.starts[:-1].copy()  # position of the next value of each block
        for part in parts:
            rows = np.asarray(indices[part])
            entries = np.empty(len(rows), dtype=self.entry)
            blocks = rows // block_cells
            entries["row"] = rows
            entries["value"] = data[part]
            entries["column"] = np.searchsorted(indptr, part.start + np.arange(len(rows)), side="right") - 1
            entries = entries[np.argsort(blocks, kind="stable")]
            begins = np.concatenate([[0], np.cumsum(np.bincount(blocks))])
            for block, (begin, end) in enumerate(pairwise(begins)):
                self.file.seek(free[block] * self.entry.itemsize)
                self.file.write(entries[begin:end].tobytes())
                free[block] += end - begin

    def rows(self, start: int, stop: int) -> sparse.csr_matrix:
        """Return rows `start` to `stop`."""
        first = start // self.block_cells
        last = -(-stop // self.block_cells)
        begin, end = self.starts[[first, last]] * self.entry.itemsize
        self.file.seek(begin)
        entries = np.frombuffer(self.file.read(end - begin), dtype=self.entry)
        before = first * self.block_cells
        shape = (min(last * self.block_cells, self.shape[0]) - before, self.shape[1])
        x = sparse.csr_matrix((entries["value"], (entries["row"] - before, entries["column"])), shape=shape)
        return x if (start - before, stop - before) == (0, shape[0]) else x[start - before : stop - before]
