"""The distribution shift of a query, estimated from some of its cells (model/shift.py)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from scperformer.cells.query import Query
from scperformer.cells.splits import stratified_sample
from scperformer.model.batch_effect import batch_effect, correct_batch_effect, gene_factors, label_means
from scperformer.model.linear import linear_logits
from scperformer.model.novelty import Profile, fit_novelty
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import SavedModel, both_have_a_part
from scperformer.model.shift import MIN_CELLS, OTHER, Shift, estimate_shift
from scperformer.training.condition import Condition, reduced, seen_rows

if TYPE_CHECKING:
    from scperformer.model.load import Model  # needs torch, which `check` does without

NUM_ROUNDS = 2  # of calling some cells and finding the factors of their genes; a third changes nothing


@dataclass(frozen=True)
class KnownCells:
    """What cells of the reference look like in the condition of a file, with which its cells are compared."""

    profile: Profile
    scores: np.ndarray  # novelty scores of held-out cells
    has_both: bool  # whether the model has a linear branch and an encoder
    reference_batch_effect: float  # between batches of the reference


def known_cells(saved: SavedModel) -> KnownCells | None:
    """Return what the held-out calls of a model say about known cells; None for a model without them."""
    if saved.held_out is None:
        return None
    profile = Profile(**saved.held_out.profile)
    return KnownCells(profile, saved.held_out.scores, both_have_a_part(saved.scales), saved.reference_batch_effect)


def known_when_adapted(saved: SavedModel, reference_cells: ReferenceCells, condition: Condition) -> KnownCells | None:
    """Return the same as `known_cells` of a model that is adapted to a condition, without adapting it."""
    from scperformer.training.evidence import effects_of_batches, evidence_folds  # needs torch
    from scperformer.training.fit_linear import MAX_DUAL

    if saved.held_out is None or saved.provenance.get("kept_cells", {}).get("simulated", False):
        return None
    seed = int(saved.provenance["seed"])
    cells = reference_cells.some(stratified_sample(reference_cells.labels, MAX_DUAL, seed))
    labels = np.unique(cells.labels, return_inverse=True)[1]
    x = reduced(cells, condition, saved.config["target_sum"], seed)
    folds = evidence_folds(cells.labels, seed, cells.batches)
    if not folds.is_dealt.any():
        return None
    with threadpool_limits(1):
        profile, scores = fit_novelty(x[folds.rows], labels[folds.rows], folds.fold_of_row, seed)
    effects = 0.0 if cells.batches is None else effects_of_batches(x, labels, cells.batches)
    return KnownCells(profile, scores[folds.is_dealt], both_have_a_part(saved.scales), effects)


def find_shift(
    query: Query,
    known: KnownCells,
    saved: SavedModel,
    reference_cells: ReferenceCells | None,
    condition: Condition,
    model: "Model | None" = None,
) -> tuple[Shift, np.ndarray | None, np.ndarray]:
    """Return the shift of a query, for `check` and `predict` alike, and the factors of its genes for `predict`.

    Parameters
    ----------
    saved, reference_cells, condition
        The model before adapting, its stored cells, and the condition of the query. Without cells the batch effect is
        not known. The query has the genes of `known`.
    model
        The model, which may have been adapted to the query; None: gene factors are not wanted.

    Returns
    -------
    The shift; the factors of genes for `correct_batch_effect`, float32 G, or None if there is nothing to correct; the
    novelty scores of the sampled cells.
    """
    rows = seen_rows(query)
    x = query.some(rows)
    x = x[np.diff(x.indptr) > 0]  # cells that express any gene
    scores = known.profile.scores(x)
    numbers: dict[str, Any] = {"has_both": known.has_both, "reference_batch_effect": known.reference_batch_effect}
    if reference_cells is None or len(scores) < MIN_CELLS:
        return estimate_shift(scores, known.scores, math.nan, **numbers), None, scores
    own = x
    # The kept cells of an imported model have its genes alone, and are normalised over these.
    if not query.measured.all() or saved.imported:
        own = query.of_genes(query.measured).some(rows)
        own = own[np.diff(own.indptr) > 0]
    alike = scores <= np.median(scores)  # without the types that the reference lacks
    kept = reduced(reference_cells, condition, query.plan.target_sum, seed=0)
    effects = batch_effect(own[alike], kept, np.unique(reference_cells.labels, return_inverse=True)[1])
    shift = estimate_shift(scores, known.scores, effects, **numbers)
    if model is None or shift.kind != OTHER or saved.imported:  # imported models call cells as their own tools do
        return shift, None, scores
    means = label_means(kept, reference_cells.labels, len(saved.labels))
    return shift, _gene_factors(model, x[alike], own[alike], query.measured, means, shift.fraction), scores


def _gene_factors(
    model: "Model", x: csr_matrix, own: csr_matrix, is_measured: np.ndarray, means: np.ndarray, fraction: float
) -> np.ndarray:
    """Return the factors of the genes of a model, 1 for those that a file does not measure.

    `x` and `own` are the same cells with all genes of the model, and with the measured ones, normalised over these.
    Their labels are called, and once more after the correction by the first factors: by the linear branch, which
    carries over better than the encoder and is faster, or by logistic regression if the encoder is alone. `means` are
    counts per 10,000 of each label, labels x measured genes; `fraction`, the shift, is a power of the factors.
    """
    factors = np.ones(x.shape[1], dtype=np.float32)
    for _ in range(NUM_ROUNDS):
        corrected = correct_batch_effect(x, factors)
        logits = linear_logits(model.saved, corrected)
        if logits is not None and model.saved.scales.get("linear", 0.0) > 0:
            calls = logits.argmax(axis=1)
        else:
            assert model.baseline is not None  # only imported models have none
            calls = model.baseline.predict(corrected)
        factors[is_measured] = gene_factors(own, calls, means) ** fraction
    return factors
