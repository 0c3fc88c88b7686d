"""A matrix of cells read block by block, in memory or on disk, so that its size does not matter."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import h5py
import numpy as np
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

Matrix: TypeAlias = sparse.csr_matrix | sparse.csc_matrix | np.ndarray

BLOCK_VALUES = 1 << 22  # stored values, or places of a dense matrix, in a block: some 50 MB while one is worked on
MAX_BLOCK_CELLS = 8192
PART_BLOCKS = 4  # of rows of a CSC matrix on disk that are in memory; each part costs one pass over the file


class Rows:
    """Cells x genes, of which a block of rows at a time is in memory.

    Parameters
    ----------
    matrix
        In memory: sparse or dense. On disk: what `anndata.io.sparse_dataset` opens, or an array of h5py or zarr.
        Columns that are stored together (CSC) are put into rows: in memory once, on disk by reading them again for each
        part of the rows.

    Raises
    ------
    ValueError
        Sparse arrays that do not fit each other or point outside of the matrix, here or when a block is read:
        compiled code would read whatever lies there.
    """

    def __init__(self, matrix: Any):
        if sparse.issparse(matrix):
            matrix = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
            matrix.check_format(full_check=True)
            matrix = sparse.csr_matrix(matrix)
        self.matrix = matrix
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype = np.dtype(matrix.dtype)
        self._part: tuple[int, sparse.csr_matrix] | None = None  # of CSC on disk: first row, and rows

    @property
    def by_columns(self) -> bool:
        """Whether rows on disk are scattered over all of it."""
        return isinstance(self.matrix, CSCDataset)

    @property
    def num_values(self) -> int:
        """Stored values; of a dense matrix, its places."""
        if isinstance(self.matrix, CSRDataset | CSCDataset):
            return int(self.matrix.group["data"].shape[0])
        return int(self.matrix.nnz) if sparse.issparse(self.matrix) else self.shape[0] * self.shape[1]

    @property
    def block_cells(self) -> int:
        """Rows in a block; a function of the matrix alone."""
        per_cell = max(1.0, self.num_values / max(1, self.shape[0]))
        return int(np.clip(BLOCK_VALUES / per_cell, 1, MAX_BLOCK_CELLS))

    def block(self, start: int, stop: int) -> Matrix:
        """Rows `start` to `stop`: CSR, or an array of a dense matrix."""
        if isinstance(self.matrix, CSCDataset):
            return self._from_columns(start, stop)
        if not sparse.issparse(self.matrix) and not isinstance(self.matrix, CSRDataset):
            return np.asarray(self.matrix[start:stop])
        block = sparse.csr_matrix(self.matrix[start:stop])
        if isinstance(self.matrix, CSRDataset):
            block.check_format(full_check=True)
        return block

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """All rows in order: the first row of each block, and the block."""
        for start in range(0, self.shape[0], self.block_cells):
            yield start, self.block(start, min(start + self.block_cells, self.shape[0]))

    def some(self, rows: np.ndarray) -> sparse.csr_matrix:
        """The rows with these ascending numbers, float64; blocks without any of them are passed over."""
        found = [sparse.csr_matrix((0, self.shape[1]), dtype=np.float64)]
        for start in range(0, self.shape[0], self.block_cells):
            stop = min(start + self.block_cells, self.shape[0])
            first, last = np.searchsorted(rows, [start, stop])
            if first < last:
                found.append(sparse.csr_matrix(self.block(start, stop)[rows[first:last] - start], dtype=np.float64))
        return sparse.vstack(found, "csr")

    def _from_columns(self, start: int, stop: int) -> sparse.csr_matrix:
        """Rows of a matrix on disk that is stored by columns: all of it is read for many blocks' rows at once."""
        if self._part is None or not self._part[0] <= start < stop <= self._part[0] + self._part[1].shape[0]:
            last = min(max(stop, start + PART_BLOCKS * self.block_cells), self.shape[0])
            self._part = start, _rows_of_columns(self.matrix.group, self.shape, start, last)
        first, rows = self._part
        return rows[start - first : stop - first]


def _rows_of_columns(group: h5py.Group, shape: tuple[int, int], start: int, stop: int) -> sparse.csr_matrix:
    """The rows `start` to `stop` of CSC arrays on disk, read a part of the values at a time."""
    indptr = np.asarray(group["indptr"])
    if len(indptr) != shape[1] + 1 or indptr[-1] != group["indices"].shape[0] or (np.diff(indptr) < 0).any():
        raise ValueError("indptr does not fit the matrix")
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for begin in range(0, group["indices"].shape[0], BLOCK_VALUES):
        rows = np.asarray(group["indices"][begin : begin + BLOCK_VALUES])
        if len(rows) and not (rows.min() >= 0 and rows.max() < shape[0]):
            raise ValueError("indices outside of the matrix")
        wanted = np.flatnonzero((rows >= start) & (rows < stop))
        columns = (np.searchsorted(indptr, begin + wanted, side="right") - 1).astype(np.int32)
        data = np.asarray(group["data"][begin : begin + BLOCK_VALUES])[wanted]
        parts.append((data, (rows[wanted] - start).astype(np.int32), columns))
    data, row, column = (np.concatenate([part[i] for part in parts]) if parts else np.zeros(0, int) for i in range(3))
    return sparse.csr_matrix((data, (row, column)), shape=(stop - start, shape[1]))
