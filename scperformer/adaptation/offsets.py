"""The offsets of a query: what its study adds to the results of each branch beyond the batch effects of single genes.

Factors of genes do not correct all that a study changes: branches see powers and sums of the expression. So the means
of what they compute are compared between cells of the query and of the reference with the same label. Sorted cells get
none: if most cells of the query have other labels than the reference, differences within labels are not of the study.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.model.linear import linear_logits
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import SavedModel

MIN_OF_LABEL = 5  # cells of a query with a label whose mean is compared
# of a query or a batch; the means of fewer are noise, which costs up to 3 of 20 labels
MIN_CELLS_OF_BATCH = 100
# The share of cells whose labels the query and the reference have in common, from which there are offsets. Below,
# sorted cells would get the labels of other types (benchmarks/NOTES.md).
MIN_OVERLAP = 0.5


@dataclass(frozen=True, eq=False)
class Offsets:
    """Differences of means between query and reference, averaged over their labels; empty for a missing branch.

    The first row is of the query, the others are of its B batches; there is none where nothing is subtracted.
    """

    logits: np.ndarray  # float32 1 + B x C: of the linear branch
    sums: np.ndarray  # float32 1 + B x X: of the Performer's sums over genes
    overlap: np.ndarray  # float64 1 + B: the share of cells whose labels the reference has, too

    def __len__(self) -> int:
        return len(self.overlap)

    @property
    def text(self) -> str:
        """What was found about the query, for the log: the end of a sentence."""
        if not len(self):
            return ""
        if self.overlap[0] < MIN_OVERLAP:
            return f", but not within labels, as only {self.overlap[0]:.0%} of these are shared with the reference"
        if not self.logits.any() and not self.sums.any():
            return ", but not within labels, as the cells are few"
        return f" and within labels (logits up to {np.abs(self.logits[0]).max(initial=0):.2f})"

    def fit(self, network: CellTypeModel, num_batches: int) -> bool:
        """Return whether a network has these results."""
        num_labels = 0 if network.linear is None else len(network.linear.bias)
        num_sums = 0 if network.performer is None else len(network.performer.reader.mean_X)
        shapes = self.logits.shape, self.sums.shape
        have_sizes = shapes == ((1 + num_batches, num_labels), (1 + num_batches, num_sums))
        return have_sizes and bool(np.isfinite(self.logits).all() and np.isfinite(self.sums).all())

    @torch.no_grad()
    def subtract_in(self, network: CellTypeModel) -> None:
        """Change a network so that it computes for cells of the query what it would for cells of the reference."""
        self._add(network, self.logits[0], self.sums[0])

    @contextmanager
    def of_batch(self, network: CellTypeModel, number: int) -> Iterator[None]:
        """Give a network from which the offsets of the query are subtracted those of a batch within a block."""
        before = {name: tensor.clone() for name, tensor in _changed_by_offsets(network).items()}
        self._add(
            network, self.logits[1 + number] - self.logits[0], self.sums[1 + number] - self.sums[0]
        )
        try:
            yield
        finally:
            for name, tensor in _changed_by_offsets(network).items():
                tensor.copy_(before[name])

    def _add(self, network: CellTypeModel, logits: np.ndarray, sums: np.ndarray) -> None:
        for name, tensor in _changed_by_offsets(network).items():
            tensor.add_(torch.from_numpy(-logits if name == "logits" else sums))


def _changed_by_offsets(network: CellTypeModel) -> dict[str, torch.Tensor]:
    """Return the bias of the logits, and the mean that is subtracted from the sums."""
    found = {}
    if network.linear is not None:
        found["logits"] = network.linear.bias.detach()
    if network.performer is not None:
        found["sums"] = network.performer.reader.mean_X
    return found


NO_OFFSETS = Offsets(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0))


@dataclass(frozen=True, eq=False)
class BranchResults:
    """What each branch of a network computes of N cells; N x 0 for a missing branch."""

    saved: SavedModel
    network: CellTypeModel

    def logits(self, x: csr_matrix) -> np.ndarray:
        logits = linear_logits(self.saved, x)
        return np.zeros((x.shape[0], 0), dtype=np.float32) if logits is None else logits

    def sums(self, x: csr_matrix) -> np.ndarray:
        performer = self.network.performer
        return (
            np.zeros((x.shape[0], 0), dtype=np.float32)
            if performer is None
            else performer.sums_of(x)
        )


def label_overlap(calls: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of labels, from 0 to 1, that two sets of cells have in common."""
    num_labels = 1 + max(calls.max(initial=0), labels.max(initial=0))
    of_query, of_reference = (
        np.bincount(each, minlength=num_labels) / max(1, len(each)) for each in (calls, labels)
    )
    return float(np.minimum(of_query, of_reference).sum())


def mean_difference(
    x: np.ndarray, calls: np.ndarray, own: np.ndarray, labels: np.ndarray, fraction: float = 1.0
) -> np.ndarray:
    """Return a fraction of the difference of means between cells, N x K, and reference cells, M x K: float32 K.

    It is the mean over the labels that five `calls` of the cells or more have. All weigh the same: labels that are rare
    in the reference would be pushed down otherwise.
    """
    num_labels = 1 + max(calls.max(initial=0), labels.max(initial=0))
    of_query, of_reference = (np.bincount(each, minlength=num_labels) for each in (calls, labels))
    shared = np.flatnonzero((of_query >= MIN_OF_LABEL) & (of_reference > 0))
    if fraction == 0 or not len(shared):
        return np.zeros(x.shape[1], dtype=np.float32)
    differences = [
        x[calls == label].mean(axis=0) - own[labels == label].mean(axis=0) for label in shared
    ]
    return (fraction * np.mean(differences, axis=0)).astype(np.float32)
