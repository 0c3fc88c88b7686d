"""Labels of cells: their spelling, ontology ids and tree; constraints on their probabilities; labels of clusters.

Files in reading order: texts (the spelling), tree (labels and their parents), ontology (ids of labels, and trees from
the Cell Ontology), common (the labels of two studies merged to what both mean), joining (the labels of the studies of a
reference), constraints (labels that can occur, and
their shares), clusters (a label for each cluster), columns (of obs, about calls in a tree). They work on arrays and
tables, without torch.
"""

from scperformer.labels.clusters import (
    AUTO_CLUSTERS,
    cluster_labels,
    leiden_clusters,
    majority_labels,
    over_cluster,
    resolution_of_celltypist,
)
from scperformer.labels.columns import NO_CALL, final_call, term_column, tree_columns, tree_record
from scperformer.labels.common import common_labels
from scperformer.labels.constraints import allowed_labels, reweighted, shares_by_em
from scperformer.labels.joining import JointLabels, StudyLabels, join_labels, read_label_map
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
from scperformer.labels.texts import (
    first_container,
    label_texts,
    means_no_label,
    require_no_containers,
    spelled_as,
    without_no_labels,
)
from scperformer.labels.tree import MAX_LEVELS, LabelTree, pairs_of_columns, tree_of_pairs
