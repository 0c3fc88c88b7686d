"""How far a call can be trusted: calibration of confidences, sets of labels with a stated error, novel cells.

Files: confidence, conformal, novelty; each works on arrays alone.
"""

from scperformer.trust.confidence import NUM_BINS, calibration, calibration_error, label_calibration, reliability_curve
from scperformer.trust.conformal import cell_draws, held_out_coverage, label_sets, set_thresholds
from scperformer.trust.novelty import Profile, area_under_curve, fit_novelty, fit_profile, left_out_table, novelty_share
