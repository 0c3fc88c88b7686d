"""How far a call can be trusted: calibration, sets of labels, novel cells; labels as terms and trees; clusters.

Files in reading order: texts, confidence, conformal, novelty, hierarchy, ontology, constraints, clusters. They work on
arrays and tables alone, without torch.
"""

from scperformer.trust.clusters import AUTO_CLUSTERS, majority_labels, over_cluster, require_igraph
from scperformer.trust.confidence import NUM_BINS, calibration, calibration_error, label_calibration, reliability_curve
from scperformer.trust.conformal import cell_draws, held_out_coverage, label_sets, set_thresholds
from scperformer.trust.constraints import allowed_labels, reweighted, shares_by_em
from scperformer.trust.hierarchy import LabelTree, pairs_of_columns, tree_of_pairs
from scperformer.trust.novelty import Profile, area_under_curve, fit_novelty, fit_profile, left_out_table, novelty_share
from scperformer.trust.ontology import (
    NO_ONTOLOGY,
    PACKAGED,
    UNKNOWN_TERM,
    Ontology,
    find_terms,
    joined_by_terms,
    packaged_ontology,
    read_obo,
    read_pairs,
)
from scperformer.trust.texts import label_texts, spelled_as
