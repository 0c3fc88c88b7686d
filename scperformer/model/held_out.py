"""Calls of cells of the reference by fits without them: the evidence for confidences, sets of labels and novelty.

    held_out.npz   per held-out cell: logits, label, novelty score; and the profile that novelty scores are made with

Reading it executes nothing, and sizes are checked before anything is unpacked.
"""

import io
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

HELD_OUT = "held_out.npz"
MOST_UNPACKED = 2**30  # bytes; 10,000 cells of 100 labels with 60,000 genes have 10 MB
ARRAYS = {"logits": "f", "labels": "iu", "scores": "f", "vectors": "f", "means": "f", "whitening": "f"}  # their numbers


@dataclass
class HeldOut:
    """N held-out cells of C labels; K directions of expression in G genes (see trust/novelty.py)."""

    logits: np.ndarray  # float32, N x C, scaled as those of the model
    labels: np.ndarray  # int64, N: index of the true label
    scores: np.ndarray  # float64, N: of novelty
    vectors: np.ndarray  # float32, G x K
    means: np.ndarray  # float64, C x K
    whitening: np.ndarray  # float64, C x K x K

    def to_bytes(self) -> bytes:
        """Return the content of held_out.npz."""
        file = io.BytesIO()
        labels = self.labels.astype(np.min_scalar_type(int(self.labels.max(initial=0))))
        np.savez_compressed(file, **(asdict(self) | {"labels": labels}))
        return file.getvalue()


def read_held_out(folder: Path, num_genes: int, num_labels: int) -> HeldOut:
    """Read the held-out calls of a model folder; the text of a ValueError says how they are damaged."""
    path = folder / HELD_OUT
    try:
        with zipfile.ZipFile(path) as archive:
            if (size := sum(part.file_size for part in archive.infolist())) > MOST_UNPACKED:
                raise ValueError(f"'{HELD_OUT}' of {size:,} bytes when unpacked")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ARRAYS}
    except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"'{HELD_OUT}' unreadable") from error
    num_cells, num_directions = arrays["labels"].size, arrays["vectors"].shape[-1] if arrays["vectors"].ndim else 0
    shapes = {
        "logits": (num_cells, num_labels),
        "labels": (num_cells,),
        "scores": (num_cells,),
        "vectors": (num_genes, num_directions),
        "means": (num_labels, num_directions),
        "whitening": (num_labels, num_directions, num_directions),
    }
    sound = all(
        arrays[name].shape == shape and arrays[name].dtype.kind in ARRAYS[name] for name, shape in shapes.items()
    )
    if not sound or num_cells == 0:
        raise ValueError(f"'{HELD_OUT}' with parts that do not fit")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(f"'{HELD_OUT}' with numbers that are not finite")
    if arrays["labels"].min() < 0 or arrays["labels"].max() >= num_labels:
        raise ValueError(f"'{HELD_OUT}' with labels that the model does not have")
    kinds = {"labels": np.int64, "logits": np.float32, "vectors": np.float32}
    return HeldOut(**{name: array.astype(kinds.get(name, np.float64)) for name, array in arrays.items()})
