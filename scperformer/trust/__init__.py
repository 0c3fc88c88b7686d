"""How far a call can be trusted, from arrays alone: confidence, sets of labels, novelty, and warnings about a file.

Files in reading order: confidence, conformal, novelty, unlike.
"""

from scperformer.trust.confidence import NUM_BINS, calibration, calibration_error, label_calibration, reliability_curve
from scperformer.trust.conformal import cell_draws, held_out_coverage, label_sets, set_threshold
from scperformer.trust.novelty import Profile, area_under_curve, fit_novelty, fit_profile, left_out_table, novelty_share
from scperformer.trust.unlike import MOST_UNKNOWN, foreign_text, unsure_text
