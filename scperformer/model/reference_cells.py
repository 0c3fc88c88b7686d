"""Cells of the reference stored with a model, as counts: with them it is refitted to the genes and depth of a query.

    cells.npz   per cell: label, batch (if they are known), number of expressed genes; per value: count, distance to the
                expressed gene before it

Reading it executes nothing, and sizes are checked before anything is unpacked.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.model.arrays import read_arrays

CELLS_FILE = "cells.npz"
ARRAYS = {"labels": "iu", "lengths": "iu", "steps": "iu", "values": "iuf"}  # and the kinds of their numbers
BATCHES = "batches"
MAX_CELLS = 2**22
MAX_VALUES = 2**28  # 20,000 cells with 13,000 expressed genes; they take 2 GiB of memory


@dataclass
class ReferenceCells:
    """Cells of a reference before normalisation, and the index of the label of each."""

    values: csr_matrix  # float32, N x G; whole numbers if they are counts
    labels: np.ndarray  # int64, N; every label occurs, except in imported models
    are_counts: bool  # False: relative expression, which cannot be thinned
    batches: np.ndarray | None = None  # int64, N: index of the batch of each cell; None: it is not known

    def some(self, rows: np.ndarray) -> "ReferenceCells":
        """Return the cells with these row numbers."""
        batches = None if self.batches is None else self.batches[rows]
        return ReferenceCells(self.values[rows], self.labels[rows], self.are_counts, batches)

    def to_bytes(self) -> bytes:
        """Return the content of cells.npz."""
        indptr = self.values.indptr
        indices = self.values.indices.astype(np.int64)
        steps = np.diff(indices, prepend=0)
        starts = indptr[:-1][np.diff(indptr) > 0]
        steps[starts] = indices[starts]
        values = self.values.data
        if self.are_counts:
            values = values.astype(np.min_scalar_type(int(values.max(initial=0))))
        arrays = {"steps": steps, "labels": self.labels, "lengths": np.diff(indptr)}
        if self.batches is not None:
            arrays[BATCHES] = self.batches
        arrays = {name: array.astype(np.min_scalar_type(int(array.max(initial=0)))) for name, array in arrays.items()}
        file = io.BytesIO()
        np.savez_compressed(file, values=values, **arrays)  # type: ignore[arg-type]
        return file.getvalue()


def read_reference_cells(
    folder: Path, num_genes: int, num_labels: int, num_batches: int = 0, *, some: bool = False
) -> ReferenceCells:
    """Read the cells of a model folder; the text of a ValueError says how they are damaged.

    With `some`, the cells may have some of the labels only, as in imported models.
    """
    kinds = ARRAYS | ({BATCHES: "iu"} if num_batches else {})
    arrays = read_arrays(folder / CELLS_FILE, kinds, 3 * MAX_CELLS + 2 * MAX_VALUES)
    batches = arrays.pop(BATCHES, None)
    labels, lengths, steps, values = arrays.values()
    fits = all(array.ndim == 1 for array in (labels, lengths, steps, values))
    fits = fits and len(labels) == len(lengths) <= MAX_CELLS and len(steps) == len(values) <= MAX_VALUES
    # Numbers are compared before they are added, and sums before they are expanded: neither can overflow.
    fits = fits and lengths.min(initial=0) >= 0 and lengths.max(initial=0) <= len(values)
    if not fits or len(values) != lengths.sum(dtype=np.int64):
        raise ValueError(f"'{CELLS_FILE}' with parts that do not fit")
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    starts = indptr[:-1][lengths > 0]
    known = steps.min(initial=0) >= 0 and steps.max(initial=0) < num_genes
    last = np.add.reduceat(steps, starts, dtype=np.int64) if known and len(starts) else np.arange(0)
    is_repeated = np.count_nonzero(steps) < len(steps) - np.count_nonzero(steps[starts] == 0)
    if not known or last.max(initial=0) >= num_genes or is_repeated:
        raise ValueError(f"'{CELLS_FILE}' with genes that the model does not have")
    with np.errstate(over="ignore"):
        content = values.astype(np.float32)
    if len(content) and not (content.min() > 0 and content.max() < np.inf):  # neither is true of NaN
        raise ValueError(f"'{CELLS_FILE}' with values that are not above 0")
    found = set(np.unique(labels).tolist())
    if not found <= set(range(num_labels)) or (len(found) < num_labels and not some):
        raise ValueError(f"'{CELLS_FILE}' with other labels than the model's")
    is_known = batches is None or (batches.shape == labels.shape and set(np.unique(batches)) <= set(range(num_batches)))
    if not is_known:
        raise ValueError(f"'{CELLS_FILE}' with other batches than the model's")
    indices = steps.astype(np.int32)
    indices[starts[1:]] -= last[:-1].astype(np.int32)  # each cell begins anew
    np.cumsum(indices, out=indices)
    matrix = csr_matrix((content, indices, indptr), shape=(len(labels), num_genes))
    batches = None if batches is None else batches.astype(np.int64)
    return ReferenceCells(matrix, labels.astype(np.int64), are_counts=values.dtype.kind != "f", batches=batches)
