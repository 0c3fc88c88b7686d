"""How far a call can be trusted: calibration of confidences, sets of labels, novel cells.

Files in reading order: confidence (calibration), conformal (sets of labels), novelty (distances to the labels),
effects (what another study measures differently), shift (how far a file is from the reference), fusion (several
models joined), unlike (warnings about files). They work on arrays, without torch.
"""

from scperformer.trust.confidence import NUM_BINS, calibration, calibration_error, label_calibration, reliability_curve
from scperformer.trust.conformal import cell_draws, held_out_coverage, label_sets, set_texts, set_threshold
from scperformer.trust.effects import gene_effects, gene_factors, label_means, without_effects
from scperformer.trust.fusion import fuse
from scperformer.trust.novelty import Profile, area_under_curve, fit_novelty, fit_profile, left_out_table, novelty_share
from scperformer.trust.shift import (
    FAR,
    FEW,
    LIKE,
    MIN_CELLS,
    OTHER,
    Shift,
    expected_text,
    make_shift,
    most_alike,
    tempered,
)
from scperformer.trust.unlike import MAX_UNKNOWN, file_text, file_warning, foreign_text, unsure_text
