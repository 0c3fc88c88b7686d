"""The predictions of a block of cells by a model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.annotation.adapt import Adapted
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import AUTO
from scperformer.model.inference import choose_device, choose_precision, predict_cells, torch_state_kept
from scperformer.model.minibatches import Cells
from scperformer.trust.conformal import cell_draws
from scperformer.trust.fusion import fuse
from scperformer.trust.novelty import NoveltyModel
from scperformer.trust.shift import tempered

NUM_DRAWS = 2  # of the counts of cells that are thinned


@dataclass
class Predictions:
    """The calls of N cells: C labels, embedding width D."""

    proba: np.ndarray  # float32 N x C, each row sums to 1
    embedding: np.ndarray  # float32 N x D; float64 if it is the scores of an imported model
    baseline: np.ndarray  # int32 N, index of the label by logistic regression; -1 without it
    empty: np.ndarray  # bool N, True for a cell that expresses none of the model's genes
    # float64 N, novelty scores (trust/novelty.py) or resemblance (trust/resemblance.py); NaN without both
    scores: np.ndarray
    draws: np.ndarray  # float64 N, 0 to 1, the random parts of sets of labels (trust/conformal.py)
    by_encoder: np.ndarray  # bool N, True if the linear branch alone gives another label; False with a single branch
    gains: np.ndarray  # float64 N, by which a second label explains the counts better (trust/doublets.py); or NaN
    counts: np.ndarray  # float64 N, of the cell over the genes of the model; or NaN


# Returns the calls of all cells of a file, block by block in the order of the cells. It can be called repeatedly: a
# file's calls are read from disk each time, so that they are never in memory as a whole.
Read = Callable[[], Iterable[Predictions]]


def predict_block(
    adapted: Adapted, start: int, cfg: AnnotationOptions, done: Callable[[int], None] | None = None
) -> Predictions:
    """Call the cells of a block of a file, from row `start` on; no call depends on the other cells.

    `done` is called with the number of cells of each finished batch. Cells with more tokens than the model's attention
    takes are refused.
    """
    if adapted.members:
        return _joined(adapted, start, cfg, done)
    query = adapted.query
    if query.share < 1:
        first = _call(adapted, query.block(start), start, cfg, done)
        others = [_call(adapted, query.block(start, draw), start, cfg, None) for draw in range(1, NUM_DRAWS)]
        return _mean([first, *others])
    return _call(adapted, query.block(start), start, cfg, done)


def _call(
    adapted: Adapted, x: csr_matrix, start: int, cfg: AnnotationOptions, done: Callable[[int], None] | None
) -> Predictions:
    """Call the cells `x` of a block that begins with row `start`."""
    query = adapted.query
    model = adapted.model

    def cells_of(x: csr_matrix, first: int) -> Cells:
        rows = slice(first, first + x.shape[0])
        return Cells(adapted.corrected(x, rows), model.tokens, measured=query.measured)

    cells = cells_of(x, start)
    model.network.require_length(int(cells.lengths.max(initial=0)), f"a cell of {query.path}")
    with torch_state_kept(cfg.threads):
        device = choose_device(cfg.device, cfg.precision)
        if adapted.precision is None and cfg.precision == AUTO:
            first = cells if start == 0 else cells_of(query.block(0), 0)
            adapted.precision = choose_precision(model.network, first, cfg.batch_size, device)
        precision = adapted.precision or cfg.precision
        predicted = predict_cells(model.network, cells, cfg.batch_size, device, precision, done)
    baseline = np.full(x.shape[0], -1, dtype=np.int32)
    if model.baseline is not None:
        baseline = model.baseline.predict(x).astype(np.int32)
    held_out = model.saved.held_out
    scores = np.full(x.shape[0], np.nan)
    proba = predicted.proba
    if adapted.resemblance is not None:
        correlations = adapted.resemblance.correlations(x)
        scores = adapted.resemblance.of_cells(x, correlations)
        assert model.saved.families is not None
        proba = adapted.resemblance.joined(proba, x, model.saved.families)
    elif held_out is not None:
        scores = NoveltyModel(**held_out.profile).scores(x)
    gains = counts = np.full(x.shape[0], np.nan)
    if adapted.doublets is not None:
        gains, counts = adapted.doublets.gains(x)
    is_empty = np.diff(x.indptr) == 0
    draws = cell_draws(x)
    return Predictions(
        proba, predicted.embedding, baseline, is_empty, scores, draws, predicted.by_encoder, gains, counts
    )


def _mean(drawn: list[Predictions]) -> Predictions:
    """Return the mean calls of several draws of the counts of cells; what has no mean is of the first draw."""
    first = drawn[0]
    means = {
        name: np.mean([getattr(calls, name) for calls in drawn], axis=0, dtype=getattr(first, name).dtype)
        for name in ("proba", "embedding", "scores", "gains", "counts")
    }
    return replace(first, **means, empty=np.logical_and.reduce([calls.empty for calls in drawn]))


def _joined(adapted: Adapted, start: int, cfg: AnnotationOptions, done: Callable[[int], None] | None) -> Predictions:
    """Join the calls of a block by the models of several studies; embeddings are side by side."""
    members = adapted.members
    calls = [predict_block(member.adapted, start, cfg) for member in members]
    meanings = [member.study.meaning for member in members]
    joint = fuse([each.proba for each in calls], meanings, np.array([member.weight for member in members]))
    scores = []
    for each, member in zip(calls, members, strict=True):
        usual: float | np.ndarray = 1.0  # the novelty score that few known cells exceed in a file like this one
        if (held_out := member.adapted.model.saved.held_out) is not None:
            factor = member.adapted.novelty_factor(slice(start, start + len(joint)))
            usual = factor * float(np.quantile(held_out.scores, 1 - AnnotationOptions.unknown_fpr))
        scores.append(each.scores / usual)
    if done is not None:
        done(len(joint))
    return Predictions(
        tempered(joint, float(adapted.model.saved.metrics.get("temperature", 1.0))),
        np.hstack([each.embedding for each in calls]),
        np.full(len(joint), -1, dtype=np.int32),
        np.logical_and.reduce([each.empty for each in calls]),
        np.min(scores, axis=0),  # a cell is as novel as for the study that knows it best
        calls[0].draws,
        np.zeros(len(joint), dtype=bool),
        np.full(len(joint), np.nan),
        np.full(len(joint), np.nan),
    )
