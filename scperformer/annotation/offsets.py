"""The offsets of a query: what its study adds to the results of each branch beyond the batch effects of single genes.

Factors of genes do not correct all that a study changes: branches see powers and sums of the expression. So the means
of what they compute are compared between cells of the query and of the reference with the same label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.annotation.compare import MeasuredReference, first_labels
from scperformer.annotation.coverage import seen_rows
from scperformer.cells.query import Query
from scperformer.model.linear import linear_logits
from scperformer.model.network import CellTypeModel
from scperformer.trust.novelty import NoveltyModel

if TYPE_CHECKING:
    from scperformer.annotation.fitted import FittedModel

MIN_OF_LABEL = 5  # cells of a query with a label whose mean is compared


@dataclass(frozen=True, eq=False)
class Offsets:
    """Differences of means between query and reference, averaged over their labels; empty for a missing branch."""

    logits: np.ndarray  # float32 C: of the linear branch
    sums: np.ndarray  # float32 X: of the Performer's sums over genes

    def fit(self, network: CellTypeModel) -> bool:
        """Return whether a network has these results."""
        num_labels = 0 if network.linear is None else len(network.linear.bias)
        num_sums = 0 if network.performer is None else len(network.performer.reader.mean_X)
        have_sizes = self.logits.shape == (num_labels,) and self.sums.shape == (num_sums,)
        return have_sizes and bool(np.isfinite(self.logits).all() and np.isfinite(self.sums).all())

    @torch.no_grad()
    def subtract_in(self, network: CellTypeModel) -> None:
        """Change a network so that it computes for cells of the query what it would for cells of the reference."""
        if network.linear is not None:
            network.linear.bias.sub_(torch.from_numpy(self.logits))
        if network.performer is not None:
            network.performer.reader.mean_X.add_(torch.from_numpy(self.sums))


def find_offsets(
    query: Query,
    model: FittedModel,
    reference: MeasuredReference,
    correct: Callable[[csr_matrix, np.ndarray], csr_matrix],
    fraction: float,
) -> Offsets:
    """Return the offsets of a query whose shift has a fraction; `correct` corrects the batch effects of some rows.

    Sums are compared over half of the cells, the less novel: types that the reference lacks would move all others.
    """
    network = model.network
    assert isinstance(network, CellTypeModel)
    assert model.saved.held_out is not None
    rows = seen_rows(query)
    x = query.some(rows)
    scores = NoveltyModel(**model.saved.held_out.profile).scores(x)
    is_expressed = x.getnnz(axis=1) > 0
    x = correct(x, rows)[is_expressed]
    scores = scores[is_expressed]
    values = reference.cells.values
    places = np.flatnonzero(query.measured)
    own = csr_matrix((values.data, places[values.indices], values.indptr), shape=(values.shape[0], x.shape[1]))

    def offset(results: Callable[[csr_matrix], np.ndarray], cells: csr_matrix) -> np.ndarray:
        calls = first_labels(model, cells)
        return mean_difference(results(cells), calls, results(own), reference.cells.labels, fraction)

    logits = sums = np.zeros(0, dtype=np.float32)
    if network.linear is not None:
        logits = offset(lambda cells: np.asarray(linear_logits(model.saved, cells)), x)
    if network.performer is not None:
        sums = offset(network.performer.sums_of, x[scores <= np.median(scores)])
    return Offsets(logits, sums)


def mean_difference(
    x: np.ndarray, calls: np.ndarray, own: np.ndarray, labels: np.ndarray, fraction: float = 1.0
) -> np.ndarray:
    """Return a fraction of the difference of means between cells, N x K, and reference cells, M x K: float32 K.

    It is the mean over the labels that five `calls` of the cells or more have, in proportion to their reference cells.
    """
    num_cells = np.bincount(labels)
    has_calls = np.bincount(calls, minlength=len(num_cells))[: len(num_cells)] >= MIN_OF_LABEL
    weights = num_cells * has_calls
    total = np.zeros(x.shape[1])
    for label in np.flatnonzero(weights):
        total += weights[label] * (x[calls == label].mean(axis=0) - own[labels == label].mean(axis=0))
    return (fraction * total / max(1, weights.sum())).astype(np.float32)
