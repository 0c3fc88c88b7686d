"""The linear branch of a reference whose cells stay on disk: fitted to the principal components of all of them."""

from pathlib import Path

import numpy as np

from scperformer.base.progress import progress
from scperformer.cells.on_disk import CELLS_AT_ONCE
from scperformer.cells.reference import Reference
from scperformer.model.minibatches import row_subset
from scperformer.training.components import fit_components
from scperformer.training.evidence import FittedBranch
from scperformer.training.fit_linear import label_weights
from scperformer.training.kept_fits import Arrays

FEATURES_FILE = ".scperformer-components"  # in the run folder: the components, float16, a kilobyte for each cell


def fit_to_cells_on_disk(branch: FittedBranch, reference: Reference, folder: Path, device: str) -> Arrays:
    """Fit the linear branch to all cells of a reference, read once from disk; memory does not grow with them.

    The components are those of the loaded cells, to which the branch was fitted before.
    """
    stream = reference.stream
    assert stream is not None
    val = reference.split.val
    labels = np.concatenate([stream.labels, reference.labels[val]])
    file = folder / FEATURES_FILE
    try:
        shape = len(labels), branch.axes.shape[1]
        features: np.ndarray = np.memmap(file, dtype=np.float16, mode="w+", shape=shape)
        with progress("reading all cells", total=len(stream.cells), unit="cells") as shown:
            for start in range(0, len(stream.cells), CELLS_AT_ONCE):
                cells = stream.cells[start : start + CELLS_AT_ONCE]
                x = stream.collection.read(cells)
                features[start : start + len(cells)] = branch.views.components(x, branch.axes, device)
                shown.update(len(cells))
        features[len(stream.cells) :] = branch.views.components(row_subset(reference.x, val), branch.axes, device)
        with progress("fitting the linear branch to all cells"):
            weights = label_weights(labels, branch.options.class_weights)
            fitted = fit_components(features, labels, branch.options.c, weights, device)
    finally:
        file.unlink(missing_ok=True)
    return vars(branch.views.model(branch.axes @ fitted.weight, fitted.bias))
