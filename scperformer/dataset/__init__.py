"""Labelled or unlabelled cells, prepared for training and prediction.

Files in reading order: query, preprocess, labels, splits; in_memory, part, collection (on disk); reference, corpus.
"""

from scperformer.dataset.collection import Stream
from scperformer.dataset.corpus import Corpus, Sample, make_corpus, read_genes, stream_corpus
from scperformer.dataset.in_memory import require_loadable, settle_in_memory
from scperformer.dataset.labels import label_columns, rare_labels, rare_note, require_labels
from scperformer.dataset.query import Query, find_query, keys_of, require_not_annotated
from scperformer.dataset.reference import Reference, make_reference, stream_reference
