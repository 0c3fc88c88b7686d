"""The expression in a file: its place, the kind of its values, normalised values with a model's genes as columns.

features: those that are no genes. values: counts, log1p (with base and total), linear or unusable. droplets: barcodes
that cannot be cells. detect: X, raw or a layer is chosen. alignment: normalised rows in the order of a model's genes.
counts: counts again, thinned, and normalised over some genes alone.
"""

from scperformer.expression.alignment import (
    Alignment,
    align,
    align_normalised,
    align_rows,
    merge_genes,
    normalise,
    plan_alignment,
)
from scperformer.expression.counts import normalise_counts, over_own_genes, recover_counts, thin
from scperformer.expression.detect import (
    Findings,
    Place,
    detect_expression,
    gene_table,
    prepared_total,
    stored_expression,
)
from scperformer.expression.droplets import Droplets
