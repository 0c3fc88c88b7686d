"""How far a file is from the reference, by some of its cells; trust/shift.py says what the numbers mean."""

import math

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.cells import Query, stratified_sample
from scperformer.fitting.condition import Condition, reduced, seen_rows
from scperformer.model import ReferenceCells, SavedModel, both_have_a_part
from scperformer.trust import (
    MIN_CELLS,
    Profile,
    Shift,
    fit_profile,
    gene_effects,
    make_shift,
    most_alike,
    novelty_share,
)

# Cells of a file and of a model by which `check` sees whether the two are alike.
LOOK_CELLS = 300
LOOK_KEPT = 1000


def find_shift(
    query: Query, saved: SavedModel, reference_cells: ReferenceCells | None, condition: Condition
) -> Shift | None:
    """Return the shift of a file for a model, which may have been adapted to it; None without held-out calls.

    Parameters
    ----------
    query
        The cells of the file with the genes of the model.
    reference_cells, condition
        The cells that the model before adapting keeps, and the condition of the file: with them, gene effects are
        found. None: they are not known.
    """
    if saved.held_out is None:
        return None
    rows = seen_rows(query)
    x = query.some(rows)
    x = x[_expressed(x)]
    scores = Profile(**saved.held_out.profile).scores(x)
    effects = math.nan
    if reference_cells is not None and len(scores) >= MIN_CELLS:
        own = x
        # The kept cells of an imported model have its genes alone, and are normalised over these.
        if not query.measured.all() or saved.imported:
            own = query.of_genes(query.measured).some(rows)
            own = own[_expressed(own)]
        kept = reduced(reference_cells, condition, query.plan.target_sum, seed=0)
        codes = np.unique(reference_cells.labels, return_inverse=True)[1]
        effects = gene_effects(own[most_alike(scores)], kept, codes)
    has_both = both_have_a_part(saved.scales)
    known = saved.held_out.scores
    return make_shift(scores, known, effects, has_both=has_both, batch_effects=saved.batch_effects)


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
