"""Read a matrix of cells block by block, from memory or from disk, so that it may be larger than memory."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

from scperformer.base.parallel import map_in_order, usable_cores
from scperformer.io.chunks import read_span

log = logging.getLogger(__name__)

Matrix: TypeAlias = sparse.csr_matrix | sparse.csc_matrix | np.ndarray
Result = TypeVar("Result")

# stored values, or entries of a dense matrix, in a block; some 50 MB of memory
BLOCK_VALUES = 1 << 22
MAX_BLOCK_CELLS = 8192


def native(values: np.ndarray) -> np.ndarray:
    """Return numbers in the byte order of this machine, the only one that SciPy and pandas accept."""
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


class Rows:
    """A matrix, cells x genes, with a block of rows in memory at a time.

    The matrix is sparse or dense in memory, or on disk: a result of `anndata.io.sparse_dataset` or an array of h5py or
    zarr. A matrix that is stored by columns (CSC) is read as a whole. With `columns`, a boolean mask, only these
    columns are returned; with `from_smallest`, their values minus the smallest one of the row. A ValueError, here or
    when a block is read, says that arrays of a sparse matrix do not fit each other, or have indices out of bounds,
    where compiled code would read foreign memory.
    """

    def __init__(self, matrix: Any, columns: np.ndarray | None = None, from_smallest: bool = False):
        if sparse.issparse(matrix):
            matrix = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
            matrix.check_format(full_check=True)
            matrix = sparse.csr_matrix(matrix)
        self.matrix = matrix
        self.by_columns = isinstance(matrix, CSCDataset)  # on disk
        num_columns = matrix.shape[1] if columns is None else columns.sum()
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(num_columns))
        self.dtype = np.dtype(matrix.dtype).newbyteorder("=")
        self._lock = threading.Lock()
        # the block of a small matrix on disk, kept as several steps read it
        self._only_block: Matrix | None = None
        self._selected = None if columns is None or columns.all() else np.flatnonzero(columns)
        self._from_smallest = from_smallest

    @cached_property
    def num_values(self) -> int:
        """The number of stored values of all columns, or of the entries of a dense matrix."""
        if isinstance(self.matrix, CSRDataset | CSCDataset):
            return int(self.matrix.group["data"].shape[0])
        return (
            int(self.matrix.nnz)
            if sparse.issparse(self.matrix)
            else int(np.prod(self.matrix.shape))
        )

    @property
    def block_cells(self) -> int:
        """The number of rows in a block, which depends only on the matrix."""
        per_cell = max(1.0, self.num_values / max(1, self.shape[0]))
        return int(np.clip(BLOCK_VALUES / per_cell, 1, MAX_BLOCK_CELLS))

    def block(self, start: int, stop: int) -> Matrix:
        """Return rows `start` to `stop`: CSR, or an array if the matrix is dense. Callers must not change the block."""
        with self._lock:
            if isinstance(self.matrix, CSCDataset):
                log.info("the matrix is stored by columns (CSC): it is read into memory as a whole")
                whole = self.matrix.to_memory()
                whole.check_format(full_check=True)
                self.matrix = sparse.csr_matrix(whole)
        is_in_memory = sparse.issparse(self.matrix) or isinstance(self.matrix, np.ndarray)
        if is_in_memory or self.shape[0] > self.block_cells:
            return self._read(start, stop)
        if self._only_block is None:
            self._only_block = self._read(0, self.shape[0])
        return (
            self._only_block
            if (start, stop) == (0, self.shape[0])
            else self._only_block[start:stop]
        )

    def _read(self, start: int, stop: int) -> Matrix:
        if sparse.issparse(self.matrix):
            block = sparse.csr_matrix(self.matrix[start:stop])
        elif isinstance(self.matrix, CSRDataset):
            stored = self.matrix.group
            indptr = stored["indptr"][start : stop + 1]
            values, indices = (
                read_span(stored[name], int(indptr[0]), int(indptr[-1]))
                for name in ("data", "indices")
            )
            shape = len(indptr) - 1, self.matrix.shape[1]
            block = sparse.csr_matrix((values, indices, indptr - indptr[0]), shape=shape)
            block.check_format(full_check=True)
        else:
            block = native(np.asarray(self.matrix[start:stop]))
            # SciPy has no half precision
            block = block.astype(np.float32) if block.dtype == np.float16 else block
        block = block if self._selected is None else block[:, self._selected]
        if not self._from_smallest:
            return block
        dense = block.toarray() if sparse.issparse(block) else block
        dense = dense.view(np.uint8) if dense.dtype == bool else dense
        return sparse.csr_matrix(dense - dense.min(axis=1, keepdims=True))

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """Iterate over all blocks in order, each with the number of its first row."""
        for start in range(0, self.shape[0], self.block_cells):
            yield start, self.block(start, min(start + self.block_cells, self.shape[0]))

    def over_blocks(
        self, function: Callable[[int, Matrix], Result], of: Iterable[int] | None = None
    ) -> list[Result]:
        """Return the results of a function of the first row of each block, and of the block; `of` some, or of all.

        Several threads call it.
        """

        def result(start: int) -> Result:
            return function(start, self.block(start, min(start + self.block_cells, self.shape[0])))

        starts = range(0, self.shape[0], self.block_cells) if of is None else of
        return list(map_in_order(result, starts, usable_cores()))

    def some(self, rows: np.ndarray) -> sparse.csr_matrix:
        """Return the rows with these ascending numbers, float64; only blocks that contain such rows are read."""

        def chosen(start: int, block: Matrix) -> sparse.csr_matrix:
            first, last = np.searchsorted(rows, [start, start + block.shape[0]])
            return sparse.csr_matrix(block[rows[first:last] - start], dtype=np.float64)

        pieces = self.over_blocks(chosen, np.unique(rows // self.block_cells) * self.block_cells)
        return sparse.vstack(
            [sparse.csr_matrix((0, self.shape[1]), dtype=np.float64), *pieces], "csr"
        )
