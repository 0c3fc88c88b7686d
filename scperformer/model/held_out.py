"""Out-of-fold predictions of cells of the reference: the evidence for confidences, sets of labels and novelty.

    held_out.npz   per held-out cell: logits, label, novelty score; and the profile from which novelty scores are made

Reading it executes nothing, and sizes are checked before anything is unpacked.
"""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scperformer.model.arrays import read_arrays

HELD_OUT = "held_out.npz"
# The arrays of cells and of the profile, and the kinds of their numbers.
CELL_ARRAYS = {"logits": "f", "labels": "iu", "scores": "f"}
PROFILE = {"weights": "f", "vectors": "f", "means": "f", "whitening": "f", "outside": "f"}
FLOAT32 = ("logits", "weights", "vectors")
MAX_VALUES = 2**29  # of all arrays; 100,000 cells of 1,000 labels have 100 million logits


@dataclass
class HeldOut:
    """N held-out cells of C labels, and the profile of the labels (see model/novelty.py)."""

    logits: np.ndarray  # float32, N x C, scaled as the model's
    labels: np.ndarray  # int64, N: index of the true label
    scores: np.ndarray  # float64, N: of novelty
    profile: dict[str, np.ndarray]  # the parts of a `Profile`; empty for several studies, which have one each

    def to_bytes(self) -> bytes:
        """Return the content of held_out.npz."""
        file = io.BytesIO()
        labels = self.labels.astype(np.min_scalar_type(int(self.labels.max(initial=0))))
        np.savez_compressed(file, logits=self.logits, labels=labels, scores=self.scores, **self.profile)  # type: ignore[arg-type]
        return file.getvalue()


def read_held_out(
    folder: Path, num_genes: int, num_labels: int, *, has_profile: bool = True, some: bool = False
) -> HeldOut:
    """Read the held-out cells of a model folder; the text of a ValueError says how they are damaged.

    With `some`, the profile may have some of the labels only, as in imported models.
    """
    arrays = read_arrays(folder / HELD_OUT, CELL_ARRAYS | (PROFILE if has_profile else {}), MAX_VALUES)
    num_cells = arrays["labels"].size
    shapes: dict[str, tuple[int, ...]] = {"logits": (num_cells, num_labels), "labels": (num_cells,)}
    shapes["scores"] = (num_cells,)
    if has_profile:
        num_profiled = min(num_labels, len(arrays["means"])) if some and arrays["means"].ndim else num_labels
        num_directions = arrays["vectors"].shape[-1] if arrays["vectors"].ndim else 0
        shapes |= {
            "weights": (num_genes,),
            "vectors": (num_genes, num_directions),
            "means": (num_profiled, num_directions),
            "whitening": (num_profiled, num_directions, num_directions),
            "outside": (num_profiled, 2),
        }
    if num_cells == 0 or any(arrays[name].shape != shape for name, shape in shapes.items()):
        raise ValueError(f"'{HELD_OUT}' with parts that do not fit")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(f"'{HELD_OUT}' with numbers that are not finite")
    if arrays["labels"].min() < 0 or arrays["labels"].max() >= num_labels:
        raise ValueError(f"'{HELD_OUT}' with labels that the model does not have")
    if has_profile and (arrays["outside"][:, 1] <= 0).any():
        raise ValueError(f"'{HELD_OUT}' with a standard deviation that is not above 0")
    for name, array in arrays.items():
        arrays[name] = array.astype(np.int64 if name == "labels" else np.float32 if name in FLOAT32 else np.float64)
    logits, labels, scores = (arrays.pop(name) for name in CELL_ARRAYS)
    return HeldOut(logits, labels, scores, arrays)
