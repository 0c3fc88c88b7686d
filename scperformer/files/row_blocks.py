"""Read a matrix of cells block by block, from memory or from disk, so that its size does not matter."""

import logging
from collections.abc import Iterator
from typing import Any, TypeAlias

import h5py
import numpy as np
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

log = logging.getLogger(__name__)

Matrix: TypeAlias = sparse.csr_matrix | sparse.csc_matrix | np.ndarray

PART_VALUES = 1 << 20  # values of a CSC matrix on disk that are read at a time
BLOCK_VALUES = 1 << 22  # stored values (of a dense matrix: entries) in a block; some 50 MB of memory
MAX_BLOCK_CELLS = 8192
PART_BLOCKS = 4  # blocks of a CSC matrix on disk that are in memory; each 4 blocks take one pass over the file
MANY_PASSES = 10  # from this number on, a log line recommends how to avoid them


class Rows:
    """A matrix, cells x genes, with a block of rows in memory at a time.

    In memory it is sparse or dense; on disk it is opened by `anndata.io.sparse_dataset`, or an array of h5py or zarr.
    One that is stored by columns (CSC) is converted to rows: in memory once, on disk by reading all of it for each part
    of the rows. A `ValueError`, here or when a block is read, refuses sparse arrays that do not fit each other or point
    outside of the matrix: compiled code would read foreign memory there.
    """

    def __init__(self, matrix: Any):
        if sparse.issparse(matrix):
            matrix = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
            matrix.check_format(full_check=True)
            matrix = sparse.csr_matrix(matrix)
        self.matrix = matrix
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = np.dtype(matrix.dtype)
        self._on_disk = not sparse.issparse(matrix) and not isinstance(matrix, np.ndarray)
        self._columns: _Columns | None = None  # of a CSC matrix on disk
        self._only: Matrix | None = None  # the block of a small matrix on disk: several steps look at it
        self._part: tuple[int, sparse.csr_matrix] | None = None  # of it, in memory now: the first row, and the rows

    @property
    def by_columns(self) -> bool:
        """Whether the matrix is on disk and stored by columns."""
        return isinstance(self.matrix, CSCDataset)

    @property
    def num_values(self) -> int:
        """The number of stored values; of a dense matrix, of its entries."""
        if isinstance(self.matrix, CSRDataset | CSCDataset):
            return int(self.matrix.group["data"].shape[0])
        return int(self.matrix.nnz) if sparse.issparse(self.matrix) else self.shape[0] * self.shape[1]

    @property
    def block_cells(self) -> int:
        """The number of rows in a block; it depends on the matrix alone."""
        per_cell = max(1.0, self.num_values / max(1, self.shape[0]))
        return int(np.clip(BLOCK_VALUES / per_cell, 1, MAX_BLOCK_CELLS))

    def block(self, start: int, stop: int) -> Matrix:
        """Return rows `start` to `stop`: CSR, or an array if the matrix is dense; not to be changed."""
        if isinstance(self.matrix, CSCDataset):  # keeps a part itself
            return self._from_columns(start, stop)
        if self._on_disk and 0 < self.shape[0] <= self.block_cells:
            if self._only is None:
                self._only = self._read(0, self.shape[0])
            return self._only if (start, stop) == (0, self.shape[0]) else self._only[start:stop]
        return self._read(start, stop)

    def _read(self, start: int, stop: int) -> Matrix:
        if not sparse.issparse(self.matrix) and not isinstance(self.matrix, CSRDataset):
            dense = np.asarray(self.matrix[start:stop])
            return dense.astype(np.float32) if dense.dtype == np.float16 else dense  # SciPy has no half precision
        block = sparse.csr_matrix(self.matrix[start:stop])
        if isinstance(self.matrix, CSRDataset):
            block.check_format(full_check=True)
        return block

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """Iterate over all rows in order: the number of the first row of a block, and the block."""
        for start in range(0, self.shape[0], self.block_cells):
            yield start, self.block(start, min(start + self.block_cells, self.shape[0]))

    def some(self, rows: np.ndarray) -> sparse.csr_matrix:
        """Return the rows with these ascending numbers, float64; blocks without any of them are not read."""
        found = [sparse.csr_matrix((0, self.shape[1]), dtype=np.float64)]
        for start in range(0, self.shape[0], self.block_cells):
            stop = min(start + self.block_cells, self.shape[0])
            first, last = np.searchsorted(rows, [start, stop])
            if first < last:
                found.append(sparse.csr_matrix(self.block(start, stop)[rows[first:last] - start], dtype=np.float64))
        return sparse.vstack(found, "csr")

    def _from_columns(self, start: int, stop: int) -> sparse.csr_matrix:
        """Return rows of a CSC matrix on disk, from a part of several blocks for which all of it is read once."""
        if self._columns is None:
            self._columns = _Columns(self.matrix.group, self.shape)
            passes = -(-self.shape[0] // (PART_BLOCKS * self.block_cells))
            if passes >= MANY_PASSES:
                log.info("stored by columns (CSC): read %d times; files with adata.X.tocsr() are read once", passes)
        if self._part is None or not self._part[0] <= start < stop <= self._part[0] + self._part[1].shape[0]:
            self._part = None  # not both in memory
            last = min(max(stop, start + PART_BLOCKS * self.block_cells), self.shape[0])
            self._part = start, self._columns.rows(start, last)
        first, rows = self._part
        return rows[start - first : stop - first]


class _Columns:
    """CSC arrays on disk, converted to rows a part of the values at a time; only the rows are in memory."""

    def __init__(self, group: h5py.Group, shape: tuple[int, int]):
        self.group, self.shape = group, shape
        self.indptr = np.asarray(group["indptr"])
        self.num_values = group["indices"].shape[0]
        unfit = self.num_values != group["data"].shape[0] or self.indptr[0] != 0 or self.indptr[-1] != self.num_values
        if len(self.indptr) != shape[1] + 1 or unfit or (np.diff(self.indptr) < 0).any():
            raise ValueError("indptr does not fit the matrix")
        lengths = np.zeros(shape[0], dtype=np.int64)
        for _, rows in self._parts():
            if len(rows) and not (rows.min() >= 0 and rows.max() < shape[0]):
                raise ValueError("indices outside of the matrix")
            lengths += np.bincount(rows, minlength=shape[0])
        self.starts = np.concatenate([[0], np.cumsum(lengths)])

    def _parts(self) -> Iterator[tuple[slice, np.ndarray]]:
        for begin in range(0, self.num_values, PART_VALUES):
            part = slice(begin, begin + PART_VALUES)
            yield part, np.asarray(self.group["indices"][part])

    def rows(self, start: int, stop: int) -> sparse.csr_matrix:
        """Return rows `start` to `stop`, their values in the order of the columns."""
        indptr = self.starts[start : stop + 1] - self.starts[start]
        free = indptr[:-1].copy()  # where the next value of each row goes
        data = np.empty(indptr[-1], dtype=self.group["data"].dtype)
        columns = np.empty(indptr[-1], dtype=np.int32)
        for part, rows in self._parts():
            wanted = np.flatnonzero((rows >= start) & (rows < stop))
            wanted = wanted[np.argsort(rows[wanted], kind="stable")]
            row = rows[wanted] - start
            # Values of one row lie side by side now: each goes to the next free place of its row.
            first = np.flatnonzero(np.diff(row, prepend=-1))
            lengths = np.diff(np.append(first, len(row)))
            places = np.arange(len(row)) + np.repeat(free[row[first]] - first, lengths)
            data[places] = np.asarray(self.group["data"][part])[wanted]
            columns[places] = np.searchsorted(self.indptr, part.start + wanted, side="right") - 1
            free[row[first]] += lengths
        rows = sparse.csr_matrix((data, columns, indptr), shape=(stop - start, self.shape[1]))
        rows.sum_duplicates()
        return rows
