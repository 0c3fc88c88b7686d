"""A model adapted to the cells of a query: its predictions, and what to expect of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.annotation.compare import BatchShifts, corrected
from scperformer.annotation.coverage import Repeats
from scperformer.annotation.expectation import expect_by_reference
from scperformer.annotation.offsets import Offsets
from scperformer.annotation.predictions import Predictions, mean_predictions
from scperformer.annotation.record import CoverageRecord
from scperformer.cells.query import Query
from scperformer.cells.values import evenly_spaced
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import AUTO
from scperformer.model.inference import NetworkOutput, choose_device, choose_precision, predict_cells, torch_state_kept
from scperformer.model.minibatches import Cells, row_subset
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import SavedModel
from scperformer.trust.conformal import cell_draws
from scperformer.trust.doublets import Doublets
from scperformer.trust.novelty import NoveltyModel, novelty_share
from scperformer.trust.resemblance import Resemblance
from scperformer.trust.shift import Shift

if TYPE_CHECKING:
    from scperformer.annotation.clusters_to_check import SampledCells
    from scperformer.annotation.fitted import Model

NUM_DRAWS = 2  # of the counts of cells that are thinned
MAX_NOVEL = 400  # novel cells of a block that are kept: they may be looked at together


@dataclass
class Adapted:
    """A model for the cells of a query, which have the G genes of this model, and the record of their coverage."""

    model: "Model"
    query: Query
    options: AnnotationOptions
    record: CoverageRecord
    shift: Shift | None = None  # None: not asked for, or not known
    gene_factors: np.ndarray | None = None  # float32 G, by which genes are divided before predictions; None: none are
    repeats: Repeats = field(default_factory=Repeats)  # cells that the query shares with the reference
    # float64 C x measured genes: counts per 10,000 of each label, as the query would have measured it; None: not known
    label_means: np.ndarray | None = None
    doublets: Doublets | None = None  # None: doublets cannot be found
    batches: BatchShifts | None = None  # whose batch effects are corrected apart, in place of that of the query
    offsets: Offsets | None = None  # of the results of the branches, which the model subtracts
    resemblance: Resemblance | None = None  # to the profiles of a tissue; only of a tissue
    kinds: Sequence[str] = ()  # broad types by which cells of other types are named, if the tissue is not known
    # Cells that show the clusters of the query, or why there are none.
    sampled: "SampledCells | str" = "its cells are not annotated"
    precision: str | None = None  # of the network's products, chosen with the first block; None: as the options say

    @property
    def saved(self) -> SavedModel:
        """The content of the adapted model."""
        return self.model.saved

    @property
    def temperature(self) -> float:
        """The divisor of logits, for cells of another study."""
        return 1.0 if self.shift is None else self.shift.temperature

    @property
    def is_named_by_kind(self) -> np.ndarray:
        """Which labels are called by the kind of their type, bool C."""
        kinds = self.saved.kinds
        return np.array([kinds.get(label) in self.kinds for label in self.saved.labels])

    def correct(self, x: csr_matrix, rows: np.ndarray | slice) -> csr_matrix:
        """Correct the batch effects of the genes of cells, N x G, with these row numbers in the file."""
        return corrected(x, rows, self.gene_factors, self.batches)

    def novelty_factor(self, rows: np.ndarray | slice) -> float | np.ndarray:
        """Return the divisor of the novelty scores of cells."""
        if self.batches is not None and self.batches.shifts:
            return self.batches.novelty[self.batches.batches.of_cell[rows]]
        return 1.0 if self.shift is None else self.shift.factor

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
        first = self._predict(self.query.block(start), start, done)
        if self.query.share == 1:
            return first
        others = [self._predict(self.query.block(start, draw), start, None) for draw in range(1, NUM_DRAWS)]
        return mean_predictions([first, *others])

    def tokens_of(self, x: csr_matrix, rows: np.ndarray | slice) -> Cells:
        """Return cells, N x G, with these row numbers in the file, as the network takes them."""
        return Cells(self.correct(x, rows), self.model.tokens, measured=self.query.measured)

    def _predict(self, x: csr_matrix, start: int, done: Callable[[int], None] | None) -> Predictions:
        """Predict the cells `x` of a block that begins with row `start`."""
        options = self.options
        cells = self.tokens_of(x, slice(start, start + x.shape[0]))
        network = self.model.network
        network.require_length(int(cells.lengths.max(initial=0)), f"a cell of {self.query.path}")
        with torch_state_kept(options.threads):
            device = choose_device(options.device, options.precision)
            if self.precision is None and options.precision == AUTO:
                first = cells if start == 0 else self._first_block()
                self.precision = choose_precision(network, first, options.batch_size, device)
            precision = self.precision or options.precision
            predict = partial(predict_cells, network, batch_size=options.batch_size, device=device, precision=precision)
            predicted = self._without_offsets(cells, start, partial(predict, done=done))
        baseline = np.full(x.shape[0], -1, dtype=np.int32)
        if self.model.baseline is not None:
            baseline = self.model.baseline.predict(x).astype(np.int32)
        proba, scores = self.judge(predicted.proba, x)
        cluster = np.full(x.shape[0], -1)
        points = np.zeros((x.shape[0], 0), dtype=np.float32)
        novel = np.arange(0)
        if not isinstance(self.sampled, str):
            if self.sampled.clusters is not None:
                points = self.sampled.clusters.points(x)
                cluster = self.sampled.clusters.nearest(points)
            is_novel = 1 - self.novelty(scores, slice(start, start + x.shape[0])) <= options.unknown_fpr
            novel = np.flatnonzero(is_novel)
            novel = novel[evenly_spaced(len(novel), MAX_NOVEL)]
        gains = counts = np.full(x.shape[0], np.nan)
        if self.doublets is not None:
            gains, counts = self.doublets.gains(x)
        return Predictions(
            proba=proba,
            embedding=predicted.embedding,
            baseline=baseline,
            empty=np.diff(x.indptr) == 0,
            scores=scores,
            draws=cell_draws(x),
            by_encoder=predicted.by_encoder,
            gains=gains,
            counts=counts,
            cluster=cluster.astype(np.int16),
            points=points,
            novel_rows=start + novel,
            novel=x[novel],
        )

    def _without_offsets(self, cells: Cells, start: int, predict: Callable[[Cells], NetworkOutput]) -> NetworkOutput:
        """Predict the cells of a block that begins with row `start`, those of each batch with its own offsets."""
        if self.offsets is None or self.batches is None:
            return predict(cells)
        network = self.model.network
        assert isinstance(network, CellTypeModel)
        batch_of_cell = self.batches.batches.of_cell[start : start + len(cells)]
        parts = [np.flatnonzero(batch_of_cell == number) for number in np.unique(batch_of_cell)]
        outputs = []
        for rows in parts:
            with self.offsets.of_batch(network, batch_of_cell[rows[0]]):
                some = Cells(row_subset(cells.x, rows), cells.tokens, measured=cells.measured)
                outputs.append(predict(some))
        order = np.argsort(np.concatenate(parts))
        return NetworkOutput(*(np.concatenate(part)[order] for part in zip(*outputs, strict=True)))

    def _first_block(self) -> Cells:
        x = self.query.block(0)
        return self.tokens_of(x, slice(0, x.shape[0]))

    def judge(self, proba: np.ndarray, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities of labels, N x C, and the novelty score of each cell, N."""
        held_out = self.saved.held_out
        if held_out is None:
            return proba, np.full(x.shape[0], np.nan)
        return proba, NoveltyModel(**held_out.profile).scores(x)

    expect = expect_by_reference
