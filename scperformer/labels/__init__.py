"""Labels as texts, ontology terms and trees; constraints and clusters; the columns of an annotation.

Files in reading order: texts, tree, ontology, constraints, clusters, columns.
"""

from scperformer.labels.clusters import AUTO_CLUSTERS, majority_labels, over_cluster, require_igraph
from scperformer.labels.columns import COLUMNS, in_order, is_optional
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
