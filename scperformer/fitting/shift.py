"""How far a file is from the reference, by some of its cells; trust/shift.py says what the numbers mean."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.cells import Query, stratified_sample
from scperformer.fitting.condition import Condition, reduced, seen_rows
from scperformer.model import ReferenceCells, both_have_a_part, linear_logits
from scperformer.trust import (
    MIN_CELLS,
    OTHER,
    Profile,
    Shift,
    fit_profile,
    gene_effects,
    gene_factors,
    label_means,
    make_shift,
    most_alike,
    novelty_share,
    without_effects,
)

if TYPE_CHECKING:
    from scperformer.network import Model  # needs torch, which `check` does without

# Cells of a file and of a model by which `check` sees whether the two are alike.
LOOK_CELLS = 300
LOOK_KEPT = 1000
NUM_ROUNDS = 2  # of calling some cells and finding the factors of their genes; a third changes nothing


def find_shift(
    query: Query, model: "Model", reference_cells: ReferenceCells | None, condition: Condition
) -> tuple[Shift | None, np.ndarray | None]:
    """Return the shift of a file for a model, and the factors of its genes if it is of another study.

    Parameters
    ----------
    query
        The cells of the file with the genes of the model.
    model
        The model, which may have been adapted to the file.
    reference_cells, condition
        The cells that the model before adapting keeps, and the condition of the file: with them, gene effects are
        found. None: they are not known.

    Returns
    -------
    The shift, None for a model without held-out calls; and how many times as much of each gene of the model the file
    has as the reference, float32 G (see `trust.without_effects`), None if there is nothing to take out.
    """
    saved = model.saved
    if saved.held_out is None:
        return None, None
    rows = seen_rows(query)
    x = query.some(rows)
    x = x[_expressed(x)]
    scores = Profile(**saved.held_out.profile).scores(x)
    known = saved.held_out.scores
    numbers: dict[str, Any] = {"has_both": both_have_a_part(saved.scales), "batch_effects": saved.batch_effects}
    if reference_cells is None or len(scores) < MIN_CELLS:
        return make_shift(scores, known, math.nan, **numbers), None
    own = x
    # The kept cells of an imported model have its genes alone, and are normalised over these.
    if not query.measured.all() or saved.imported:
        own = query.of_genes(query.measured).some(rows)
        own = own[_expressed(own)]
    alike = most_alike(scores)
    kept = reduced(reference_cells, condition, query.plan.target_sum, seed=0)
    effects = gene_effects(own[alike], kept, np.unique(reference_cells.labels, return_inverse=True)[1])
    shift = make_shift(scores, known, effects, **numbers)
    if shift.kind != OTHER or saved.imported:  # imported models call cells as their own tools do
        return shift, None
    means = label_means(kept, reference_cells.labels, len(saved.labels))
    return shift, _gene_factors(model, x[alike], own[alike], query.measured, means, shift.way)


def _gene_factors(
    model: "Model", x: csr_matrix, own: csr_matrix, is_measured: np.ndarray, means: np.ndarray, way: float
) -> np.ndarray:
    """Return the factors of the genes of a model, 1 for those that a file does not measure.

    The labels of its cells are called, and once more without the effects that were found with the first ones.

    Parameters
    ----------
    x, own
        The same cells with all genes of the model, and with the measured ones, normalised over these.
    means
        Mean counts per 10,000 of each label, labels x measured genes.
    way
        How far the file is on the way to another study, 0 to 1: a power of the factors.
    """
    factors = np.ones(x.shape[1], dtype=np.float32)
    for _ in range(NUM_ROUNDS):
        calls = _linear_calls(model, without_effects(x, factors))
        factors[is_measured] = gene_factors(own, calls, means) ** way
    return factors


def _linear_calls(model: "Model", x: csr_matrix) -> np.ndarray:
    """Return the label of each cell by the linear branch, which carries over better than the encoder, and is faster.

    If the encoder is alone, logistic regression calls them.
    """
    logits = linear_logits(model.saved, x)
    if logits is not None and model.saved.scales.get("linear", 0.0) > 0:
        return logits.argmax(axis=1)
    assert model.baseline is not None  # only imported models have none
    return model.baseline.predict(x)


def look_at(query: Query, reference_cells: ReferenceCells, condition: Condition, rate: float) -> tuple[float, Shift]:
    """Return the share of up to 300 cells of a file that look like none of the labels, and the shift, for `check`.

    `predict` asks the same of all cells, and of its model. Here one half of up to 1,000 kept cells, reduced to the
    condition of the file, shows what the labels look like, and the other half what known cells score; `rate` of these
    are flagged.
    """
    rows = stratified_sample(reference_cells.labels, LOOK_KEPT, seed=0)
    rows = rows[np.argsort(reference_cells.labels[rows], kind="stable")]  # of each label, every second one is fitted
    some = reference_cells.some(rows)
    kept = reduced(some, condition, query.plan.target_sum, seed=0)
    in_fit = np.arange(len(rows)) % 2 == 0
    profile = fit_profile(kept[in_fit], np.unique(some.labels[in_fit], return_inverse=True)[1])
    known = profile.scores(kept[~in_fit])
    x = query.of_genes(condition.measured).some(query.spread(LOOK_CELLS))
    scores = profile.scores(x)
    is_expressed = _expressed(x)
    effects = math.nan
    if is_expressed.sum() >= MIN_CELLS:
        alike = np.flatnonzero(is_expressed)[most_alike(scores[is_expressed])]
        effects = gene_effects(x[alike], kept, np.unique(some.labels, return_inverse=True)[1])
    shift = make_shift(scores[is_expressed], known, effects)
    return float((1 - novelty_share(scores / shift.factor, known) <= rate).mean()), shift


def _expressed(x: csr_matrix) -> np.ndarray:
    """Return which cells express any gene, boolean N."""
    return np.diff(x.indptr) > 0
