"""Labelled or unlabelled cells, as training and prediction want them."""

from scperformer.dataset.collection import Stream, require_loadable, settle_in_memory
from scperformer.dataset.corpus import Corpus, Sample, make_corpus, read_genes, split_cells, stream_corpus
from scperformer.dataset.labels import label_columns, rare_labels, rare_note, require_labels
from scperformer.dataset.query import Query, find_query, keys_of, require_not_annotated
from scperformer.dataset.reference import Reference, make_reference, stream_reference

__all__ = [
    "Corpus",
    "Query",
    "Reference",
    "Sample",
    "Stream",
    "find_query",
    "keys_of",
    "label_columns",
    "make_corpus",
    "make_reference",
    "rare_labels",
    "rare_note",
    "read_genes",
    "require_labels",
    "require_loadable",
    "require_not_annotated",
    "settle_in_memory",
    "split_cells",
    "stream_corpus",
    "stream_reference",
]
