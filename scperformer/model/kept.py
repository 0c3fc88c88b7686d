"""Cells of the reference that a model keeps, as counts: with them it adapts to the genes and the depth of a file.

    cells.npz   per cell: label, number of expressed genes; per value: count, distance to the expressed gene before it

Reading it executes nothing, and sizes are checked before anything is unpacked.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.model.arrays import read_arrays

CELLS = "cells.npz"
ARRAYS = {"labels": "iu", "lengths": "iu", "steps": "iu", "values": "iuf"}  # and the kinds of their numbers


@dataclass
class KeptCells:
    """Cells of a reference before normalisation, and the index of the label of each."""

    values: csr_matrix  # float32, N x G; whole numbers if they are counts
    labels: np.ndarray  # int64, N; every label occurs
    are_counts: bool  # False: relative expression, which cannot be thinned

    def to_bytes(self) -> bytes:
        """Return the content of cells.npz."""
        indptr, indices = self.values.indptr, self.values.indices.astype(np.int64)
        steps = np.diff(indices, prepend=0)
        starts = indptr[:-1][np.diff(indptr) > 0]
        steps[starts] = indices[starts]
        values = self.values.data
        if self.are_counts:
            values = values.astype(np.min_scalar_type(int(values.max(initial=0))))
        arrays = {"steps": steps, "labels": self.labels, "lengths": np.diff(indptr)}
        arrays = {name: array.astype(np.min_scalar_type(int(array.max(initial=0)))) for name, array in arrays.items()}
        file = io.BytesIO()
        np.savez_compressed(file, values=values, **arrays)  # type: ignore[arg-type]
        return file.getvalue()


def read_kept(folder: Path, num_genes: int, num_labels: int) -> KeptCells:
    """Read the cells of a model folder; the text of a ValueError says how they are damaged."""
    arrays = read_arrays(folder / CELLS, ARRAYS)
    labels, lengths, steps, values = arrays.values()
    sound = all(array.ndim == 1 and array.dtype.kind in ARRAYS[name] for name, array in arrays.items())
    if not sound or len(labels) != len(lengths) or not len(steps) == len(values) == lengths.sum(dtype=np.int64):
        raise ValueError(f"'{CELLS}' with parts that do not fit")
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    indices = np.cumsum(steps, dtype=np.int64)
    starts = indptr[:-1][lengths > 0]
    indices -= np.repeat(indices[starts] - steps[starts].astype(np.int64), lengths[lengths > 0])
    later = np.ones(len(steps), dtype=bool)
    later[starts] = False
    if len(steps) and (indices.max() >= num_genes or indices.min() < 0 or (steps[later] == 0).any()):
        raise ValueError(f"'{CELLS}' with genes that the model does not have")
    if not np.isfinite(values).all() or (values <= 0).any():
        raise ValueError(f"'{CELLS}' with values that are not above 0")
    if set(np.unique(labels).tolist()) != set(range(num_labels)):
        raise ValueError(f"'{CELLS}' with other labels than the model's")
    content = values.astype(np.float32), indices, indptr
    are_counts = values.dtype.kind != "f"
    return KeptCells(csr_matrix(content, shape=(len(labels), num_genes)), labels.astype(np.int64), are_counts)
