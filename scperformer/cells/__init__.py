"""Cells: what the values of a file are, normalised expression with a model's genes, references and queries.

In reading order:

- What a file holds: `values` (counts, logarithms or other values), `features` (features that are no genes), `droplets`
  (empty droplets), `detect` (the place of the expression and the kind of its values).
- Expression in one form: `normalisation`, `counts` (recovered and thinned), `alignment` (a model's genes as columns).
- Cells to learn from: `on_disk` (several files as one collection, filtered and normalised), `preprocess` (a prepared
  copy of a file), `reference_labels`, `splits`, `reference` (labelled cells), `corpus` (cells for pretraining).
- Cells to annotate: `query` (with the genes of a model), `quality` (empty cells, mitochondrial expression, doublets).
- Cells that occur twice: `repeats`.

Cells and genes are filtered in one place, `on_disk.make_collection`, block by block, for cells in memory and on disk
alike. scanpy filters and normalises cells to learn from, and finds doublets. It takes over a second to import, so cells
to annotate are prepared without it, to the same bits.
"""

from scperformer.cells.alignment import (
    Alignment,
    align,
    align_normalised,
    align_rows,
    merge_genes,
    plan_alignment,
)
from scperformer.cells.corpus import Corpus, make_corpus
from scperformer.cells.counts import recover_counts, thin
from scperformer.cells.detect import Findings, Place, detect_expression, gene_table, prepared_total, stored_expression
from scperformer.cells.droplets import Droplets
from scperformer.cells.normalisation import normalise, normalise_counts, over_own_genes
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
    technical,
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
from scperformer.cells.reference_labels import (
    label_columns,
    rare_labels,
    rare_note,
    require_labels,
    settle_batches,
)
from scperformer.cells.repeats import are_among, cell_hashes, linear
from scperformer.cells.splits import stratified_sample
