"""The .npz files of a model folder: kept cells (cells.npz) and out-of-fold predictions (held_out.npz; docs/formats.md).

They may come from anywhere: nothing in them is executed, and types and sizes are checked before anything is unpacked.
"""

import io
import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from scipy.sparse import csr_matrix
from scipy.special import softmax

from scperformer.trust.novelty import NoveltyModel

CELLS_FILE = "cells.npz"
# and the kinds of their numbers
REFERENCE_ARRAYS = {"labels": "iu", "lengths": "iu", "steps": "iu", "values": "iuf"}
BATCHES = "batches"
MAX_STORED_CELLS = 2**22
MAX_VALUES = 2**28  # 20,000 cells with 13,000 expressed genes; they take 2 GiB of memory
HELD_OUT = "held_out.npz"
# The arrays of cells and of the novelty model, and the kinds of their numbers.
HELD_OUT_ARRAYS = {"logits": "f", "labels": "iu", "scores": "f"}
NOVELTY_ARRAYS = {"weights": "f", "vectors": "f", "means": "f", "whitening": "f", "outside": "f"}
FLOAT32 = ("logits", "weights", "vectors")
MAX_HELD_OUT = 2**29  # of all arrays; 100,000 cells of 1,000 labels have 100 million logits
MAX_UNPACKED = 2 * 2**30  # bytes; 20,000 cells with 5,000 expressed genes have .4 GB
MAX_HEADER = 1000  # characters; NumPy writes 118 for our arrays
BYTES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (4, 8)}  # of a number of each kind
# Of zipfile and NumPy; a RuntimeError is about a password, or about compression that zipfile does not have.
ERRORS = (
    *(OSError, KeyError, ValueError, TypeError, EOFError, RuntimeError, OverflowError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)
# by the version of the header
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, kinds: Mapping[str, str], most_values: int) -> dict[str, np.ndarray]:
    """Read arrays after their declared types and sizes have been checked; the text of a ValueError is the problem.

    `kinds` are the kinds of numbers (`dtype.kind`) that each array may have, such as "iu"; `most_values` are of all
    arrays together.
    """
    problem = "unreadable"
    arrays = {}
    num_bytes = 0
    num_values = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for name, allowed in kinds.items():
                info = archive.getinfo(f"{name}.npy")
                with archive.open(info) as file:
                    shape, _, dtype = READERS[npy.read_magic(file)](
                        file, max_header_size=MAX_HEADER
                    )
                    start = file.tell()
                if dtype.kind not in allowed or dtype.itemsize not in BYTES[dtype.kind]:
                    problem = f"with {name} of type {dtype}"
                    raise ValueError(problem)
                if start + math.prod(shape) * dtype.itemsize != info.file_size:
                    raise ValueError(problem)
                num_bytes += info.file_size
                num_values += math.prod(shape)
            if num_bytes > MAX_UNPACKED or num_values > most_values:
                problem = f"of {num_values:,} numbers and {num_bytes:,} bytes when unpacked"
                raise ValueError(problem)
            for name in kinds:
                with archive.open(f"{name}.npy") as file:
                    arrays[name] = npy.read_array(
                        file, allow_pickle=False, max_header_size=MAX_HEADER
                    )
    except ERRORS as error:
        raise ValueError(f"'{path.name}' {problem}") from error
    return arrays


@dataclass
class ReferenceCells:
    """Cells of a reference before normalisation, and the index of the label of each."""

    values: csr_matrix  # float32, N x G; whole numbers if they are counts
    labels: np.ndarray  # int64, N; every label occurs, except in imported models
    are_counts: bool  # False: relative expression, which cannot be thinned
    # int64, N: index of the batch of each cell; None: it is not known
    batches: np.ndarray | None = None

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
        arrays = {
            name: array.astype(np.min_scalar_type(int(array.max(initial=0))))
            for name, array in arrays.items()
        }
        file = io.BytesIO()
        np.savez_compressed(file, values=values, **arrays)  # type: ignore[arg-type]
        return file.getvalue()


def read_reference_cells(
    folder: Path, num_genes: int, num_labels: int, num_batches: int = 0, *, some: bool = False
) -> ReferenceCells:
    """Read the cells of a model folder; the text of a ValueError says how they are damaged.

    With `some`, the cells may have some of the labels only, as in imported models.
    """
    kinds = REFERENCE_ARRAYS | ({BATCHES: "iu"} if num_batches else {})
    arrays = read_arrays(folder / CELLS_FILE, kinds, 3 * MAX_STORED_CELLS + 2 * MAX_VALUES)
    batches = arrays.pop(BATCHES, None)
    labels, lengths, steps, values = arrays.values()
    fits = all(array.ndim == 1 for array in (labels, lengths, steps, values))
    fits = (
        fits
        and len(labels) == len(lengths) <= MAX_STORED_CELLS
        and len(steps) == len(values) <= MAX_VALUES
    )
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
    # neither is true of NaN
    if len(content) and not (content.min() > 0 and content.max() < np.inf):
        raise ValueError(f"'{CELLS_FILE}' with values that are not above 0")
    found = set(np.unique(labels).tolist())
    if not found <= set(range(num_labels)) or (len(found) < num_labels and not some):
        raise ValueError(f"'{CELLS_FILE}' with other labels than the model's")
    is_known = batches is None or (
        batches.shape == labels.shape and set(np.unique(batches)) <= set(range(num_batches))
    )
    if not is_known:
        raise ValueError(f"'{CELLS_FILE}' with other batches than the model's")
    indices = steps.astype(np.int32)
    indices[starts[1:]] -= last[:-1].astype(np.int32)  # each cell begins anew
    np.cumsum(indices, out=indices)
    matrix = csr_matrix((content, indices, indptr), shape=(len(labels), num_genes))
    batches = None if batches is None else batches.astype(np.int64)
    return ReferenceCells(
        matrix, labels.astype(np.int64), are_counts=values.dtype.kind != "f", batches=batches
    )


@dataclass
class HeldOut:
    """N held-out cells of C labels, and the novelty model of the labels."""

    logits: np.ndarray  # float32, N x C, scaled as the model's
    labels: np.ndarray  # int64, N: index of the true label
    scores: np.ndarray  # float64, N: of novelty
    # of the labels; None: of several studies, which have one each
    novelty_model: NoveltyModel | None = None

    def novelty_of(self, x: csr_matrix) -> np.ndarray:
        """Return the novelty scores of cells, float64 N, from ln(1 + cp10k), N x G."""
        assert self.novelty_model is not None, "each study is asked for itself"
        return self.novelty_model.scores(x)

    @property
    def probabilities(self) -> np.ndarray:
        """The probabilities of labels, float64 N x C."""
        return np.asarray(softmax(self.logits.astype(np.float64), axis=1))

    def to_bytes(self) -> bytes:
        """Return the content of held_out.npz."""
        file = io.BytesIO()
        labels = self.labels.astype(np.min_scalar_type(int(self.labels.max(initial=0))))
        parts = {} if self.novelty_model is None else vars(self.novelty_model)
        np.savez_compressed(file, logits=self.logits, labels=labels, scores=self.scores, **parts)  # type: ignore[arg-type]
        return file.getvalue()


def read_held_out(
    folder: Path,
    num_genes: int,
    num_labels: int,
    *,
    has_novelty_model: bool = True,
    some: bool = False,
) -> HeldOut:
    """Read the held-out cells of a model folder; the text of a ValueError says how they are damaged.

    With `some`, the novelty model may have some of the labels only, as in imported models.
    """
    arrays = read_arrays(
        folder / HELD_OUT,
        HELD_OUT_ARRAYS | (NOVELTY_ARRAYS if has_novelty_model else {}),
        MAX_HELD_OUT,
    )
    num_cells = arrays["labels"].size
    shapes: dict[str, tuple[int, ...]] = {"logits": (num_cells, num_labels), "labels": (num_cells,)}
    shapes["scores"] = (num_cells,)
    if has_novelty_model:
        num_modelled = (
            min(num_labels, len(arrays["means"])) if some and arrays["means"].ndim else num_labels
        )
        num_directions = arrays["vectors"].shape[-1] if arrays["vectors"].ndim else 0
        shapes |= {
            "weights": (num_genes,),
            "vectors": (num_genes, num_directions),
            "means": (num_modelled, num_directions),
            "whitening": (num_modelled, num_directions, num_directions),
            "outside": (num_modelled, 2),
        }
    if num_cells == 0 or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise ValueError(f"'{HELD_OUT}' with parts that do not fit")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(f"'{HELD_OUT}' with numbers that are not finite")
    if arrays["labels"].min() < 0 or arrays["labels"].max() >= num_labels:
        raise ValueError(f"'{HELD_OUT}' with labels that the model does not have")
    if has_novelty_model and (arrays["outside"][:, 1] <= 0).any():
        raise ValueError(f"'{HELD_OUT}' with a standard deviation that is not above 0")
    for name, array in arrays.items():
        arrays[name] = array.astype(
            np.int64 if name == "labels" else np.float32 if name in FLOAT32 else np.float64
        )
    logits, labels, scores = (arrays.pop(name) for name in HELD_OUT_ARRAYS)
    return HeldOut(logits, labels, scores, NoveltyModel(**arrays) if has_novelty_model else None)
