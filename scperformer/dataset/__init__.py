"""Labelled or unlabelled cells, prepared for training and prediction.

Files in reading order: quality, query, condition, on_disk, preprocess, labels, splits, reference, corpus.
"""

from scperformer.dataset.condition import (
    Condition,
    adapting_pays,
    depth_class,
    depth_share,
    find_condition,
    reduced,
    simulated,
    unlike_share,
)
from scperformer.dataset.corpus import Corpus, make_corpus, read_genes
from scperformer.dataset.labels import label_columns, rare_labels, rare_note, require_labels
from scperformer.dataset.on_disk import Sample, Stream, settle_in_memory
from scperformer.dataset.quality import (
    FEW_GENES,
    HIGH_SHARE,
    cell_quality,
    doublet_scores,
    low_quality,
    measure_quality,
    mitochondrial,
    why_no_doublets,
)
from scperformer.dataset.query import (
    Query,
    find_expression,
    find_query,
    map_to_model,
    require_fit,
    require_not_annotated,
    require_regular,
    require_short,
)
from scperformer.dataset.reference import Reference, make_reference, read_unlabelled
from scperformer.dataset.splits import stratified_sample
