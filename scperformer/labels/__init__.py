"""TODO."""

from scperformer.labels.clusters import AUTO_CLUSTERS, majority_labels, over_cluster, require_igraph
from scperformer.labels.constraints import allowed_labels, reweighted, shares_by_em
from scperformer.labels.ontology import (
    NO_ONTOLOGY,
    PACKAGED_TERMS,
    UNKNOWN_TERM,
    Ontology,
    find_terms,
    joined_by_terms,
    packaged_ontology,
    read_obo,
    read_pairs,
)
from scperformer.labels.texts import label_texts, spelled_as
from scperformer.labels.tree import LabelTree, pairs_of_columns, tree_of_pairs
