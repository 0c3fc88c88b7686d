"""A model adapted to the cells of a query: its predictions, and what to expect of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.adaptation.compare import Comparison, MeasuredReference
from scperformer.adaptation.coverage import Repeats
from scperformer.adaptation.predictions import Predictions, mean_predictions
from scperformer.adaptation.record import CoverageRecord
from scperformer.base.parallel import usable_cores
from scperformer.cells.query import Query
from scperformer.cells.values import evenly_spaced
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import AUTO
from scperformer.model.imported import ImportedNetwork
from scperformer.model.inference import (
    NetworkOutput,
    choose_device,
    choose_precision,
    predict_cells,
    predicting,
    torch_state_kept,
)
from scperformer.model.minibatches import Cells, row_subset
from scperformer.model.saved_model import SavedModel
from scperformer.trust.clusters import NO_CLUSTERS, Clusters
from scperformer.trust.conformal import cell_draws
from scperformer.trust.doublets import Doublets, NoDoublets
from scperformer.trust.novelty import novelty_share

if TYPE_CHECKING:
    from scperformer.adaptation.fitted import Model

NUM_DRAWS = 2  # of the counts of cells that are thinned
MAX_NOVEL = 400  # novel cells of a block that are kept: they may be looked at together


class NotSampled:
    """In place of cells that show the clusters of a query: these are not found."""

    clusters = NO_CLUSTERS

    def __init__(self, why: str):
        self.why = why

    def keep(self, is_novel: np.ndarray) -> np.ndarray:
        return np.arange(0)


NOT_ANNOTATED = NotSampled("its cells are not annotated")


@dataclass(frozen=True, eq=False)
class SampledCells:
    """Some cells of a query, which show its clusters before any cell is predicted."""

    rows: np.ndarray  # their row numbers, ascending, int64
    x: csr_matrix  # ln(1 + cp10k), cells x G
    clusters: Clusters  # none if the cells are too few

    def keep(self, is_novel: np.ndarray) -> np.ndarray:
        """Return the numbers of novel cells of a block that are to be looked at together."""
        novel = np.flatnonzero(is_novel)
        return novel[evenly_spaced(len(novel), MAX_NOVEL)]


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model for the cells of a query, which have the G genes of this model, and the record of their coverage."""

    model: "Model"
    query: Query
    options: AnnotationOptions
    record: CoverageRecord
    compared: Comparison
    repeats: Repeats  # cells that the query shares with the reference
    reference: MeasuredReference
    doublets: Doublets | NoDoublets
    sampled: SampledCells | NotSampled = NOT_ANNOTATED

    @property
    def saved(self) -> SavedModel:
        """The content of the adapted model."""
        return self.model.saved

    @property
    def temperature(self) -> float:
        """The divisor of logits, for cells of another study."""
        return self.compared.shift.temperature

    @property
    def is_named_by_kind(self) -> np.ndarray:
        """Which labels are called by the kind of their type, bool C."""
        return np.zeros(len(self.saved.labels), dtype=bool)

    def correct(self, x: csr_matrix, rows: np.ndarray | slice) -> csr_matrix:
        """Correct the batch effects of the genes of cells, N x G, with these row numbers in the file."""
        return self.compared.correct(x, self.query, rows)

    def novelty_factor(self, rows: np.ndarray | slice) -> float | np.ndarray:
        """Return the divisor of the novelty scores of cells."""
        return self.compared.novelty_factor(self.query, rows)

    def novelty(self, scores: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the share of known cells that are less novel, float64 N, from the scores of cells; or NaN."""
        held_out = self.saved.held_out
        if held_out is None:
            return scores
        return novelty_share(scores / self.novelty_factor(rows), held_out.scores)

    def predict_block(self, start: int, done: Callable[[int], None] | None = None) -> Predictions:
        """Predict the cells of a block of the query, from row `start` on; none depends on the other cells.

        `done` is called with the number of cells of each finished minibatch. Cells with more tokens than the model's
        attention takes are refused.
        """
        drawn = [
            self._predict(x, start, None if number else done)
            for number, x in enumerate(self.query.draws(start, NUM_DRAWS))
        ]
        return drawn[0] if len(drawn) == 1 else mean_predictions(drawn)

    @property
    def _is_unchanged(self) -> bool:
        """Whether the network stays the same whatever the block, so that it can predict several at a time."""
        network = self.model.network
        has_offsets_of_batches = len(self.compared.offsets) and len(self.compared.batches)
        return isinstance(network, ImportedNetwork) or (
            network.only_sums and not has_offsets_of_batches
        )

    @contextmanager
    def ready(self) -> Iterator[bool]:
        """Have the network on its device within a block; yield whether threads may predict several blocks at a time."""
        if not self._is_unchanged:  # its own products take several threads
            yield False
            return
        network = self.model.network
        device = choose_device(self.options.device, self.options.precision)
        is_imported = isinstance(network, ImportedNetwork)
        with torch_state_kept(), nullcontext() if is_imported else predicting(network, device):
            yield True

    def tokens_of(self, x: csr_matrix, rows: np.ndarray | slice) -> Cells:
        """Return cells, N x G, with these row numbers in the file, as the network takes them."""
        return Cells(self.correct(x, rows), self.model.tokens, measured=self.query.measured)

    def _predict(
        self, x: csr_matrix, start: int, done: Callable[[int], None] | None
    ) -> Predictions:
        """Predict the cells `x` of a block that begins with row `start`."""
        options = self.options
        cells = self.tokens_of(x, slice(start, start + x.shape[0]))
        network = self.model.network
        network.require_length(int(cells.lengths.max(initial=0)), f"a cell of {self.query.path}")
        rows = slice(start, start + x.shape[0])
        with torch_state_kept(usable_cores()):
            device = choose_device(options.device, options.precision)
            predict = partial(predict_cells, network, batch_size=options.batch_size, device=device)
            predicted = self._without_offsets(
                cells, rows, partial(predict, precision=self.precision, done=done)
            )
        proba, scores = self.judge(predicted.proba, x)
        novel = self.sampled.keep(1 - self.novelty(scores, rows) <= options.unknown_fpr)
        gains, counts = self.doublets.gains(x)
        points = self.sampled.clusters.points(x)
        return Predictions(
            proba=proba,
            embedding=predicted.embedding,
            baseline=self.model.baseline.predict(x).astype(np.int32),
            empty=np.diff(x.indptr) == 0,
            scores=scores,
            draws=cell_draws(x),
            by_encoder=predicted.by_encoder,
            gains=gains,
            counts=counts,
            cluster=self.sampled.clusters.nearest(points).astype(np.int16),
            points=points,
            novel_rows=start + novel,
            novel=x[novel],
        )

    @cached_property
    def precision(self) -> str:
        """The precision of the network's products: as the options say, or chosen with the first block."""
        options = self.options
        if options.precision != AUTO:
            return options.precision
        device = choose_device(options.device, options.precision)
        if device == "cpu" or self._is_unchanged:
            return "32-true"
        x = self.query.block(0)
        first = self.tokens_of(x, slice(0, x.shape[0]))
        return choose_precision(self.model.network, first, options.batch_size, device)

    def _without_offsets(
        self, cells: Cells, rows: slice, predict: Callable[[Cells], NetworkOutput]
    ) -> NetworkOutput:
        """Predict cells with these row numbers; each batch has its own offsets."""
        network = self.model.network
        if (
            not len(self.compared.offsets)
            or not len(self.compared.batches)
            or isinstance(network, ImportedNetwork)
        ):
            return predict(cells)
        batch_of_cell = self.query.batches.of_cell[rows]
        parts = [np.flatnonzero(batch_of_cell == number) for number in np.unique(batch_of_cell)]
        outputs = []
        for part in parts:
            with self.compared.offsets.of_batch(network, batch_of_cell[part[0]]):
                some = Cells(row_subset(cells.x, part), cells.tokens, measured=cells.measured)
                outputs.append(predict(some))
        order = np.argsort(np.concatenate(parts))
        return NetworkOutput(*(np.concatenate(part)[order] for part in zip(*outputs, strict=True)))

    def judge(self, proba: np.ndarray, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of labels, N x C, and the novelty score of each cell, N."""
        held_out = self.saved.held_out
        if held_out is None:
            return proba, np.full(x.shape[0], np.nan)
        return proba, held_out.novelty_of(x)
