"""TODO."""

from scperformer.cells.alignment import (
    Alignment,
    align,
    align_normalised,
    align_rows,
    merge_genes,
    normalise,
    plan_alignment,
)
from scperformer.cells.corpus import Corpus, make_corpus, read_genes
from scperformer.cells.counts import normalise_counts, over_own_genes, recover_counts, thin
from scperformer.cells.detect import Findings, Place, detect_expression, gene_table, prepared_total, stored_expression
from scperformer.cells.droplets import Droplets
from scperformer.cells.on_disk import Sample, Stream, settle_in_memory
from scperformer.cells.preprocess import prepare, run_preprocess
from scperformer.cells.quality import (
    FEW_GENES,
    HIGH_SHARE,
    cell_quality,
    doublet_scores,
    low_quality,
    measure_quality,
    mitochondrial,
    why_no_doublets,
)
from scperformer.cells.query import (
    Query,
    find_expression,
    find_query,
    map_to_model,
    require_fit,
    require_regular,
    require_short,
)
from scperformer.cells.reference import Reference, make_reference, read_unlabelled
from scperformer.cells.reference_labels import label_columns, rare_labels, rare_note, require_labels
from scperformer.cells.splits import stratified_sample
