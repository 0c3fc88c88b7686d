"""Answers that can be trusted: labels as terms and trees, labels of clusters, and constraints, without torch.

Files in reading order: hierarchy, ontology, constraints, clusters.
"""

from scperformer.trust.clusters import AUTO_CLUSTERS, majority_labels, over_cluster, require_igraph
from scperformer.trust.constraints import allowed_labels, reweighted, shares_by_em
from scperformer.trust.hierarchy import LabelTree, pairs_of_columns, tree_of_pairs
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
