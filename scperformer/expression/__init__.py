"""What values are, normalised, aligned to genes."""

from scperformer.expression.alignment import (
    Alignment,
    align,
    align_normalised,
    align_rows,
    merge_genes,
    normalise,
    plan_alignment,
)
from scperformer.expression.detect import (
    Findings,
    Place,
    detect_expression,
    gene_table,
    prepared_total,
    stored_expression,
)
from scperformer.expression.logarithms import ASSUMED_TOTAL
from scperformer.expression.values import BASE_NAMES, MAX_LOG, Slot, judge

__all__ = [
    "ASSUMED_TOTAL",
    "BASE_NAMES",
    "MAX_LOG",
    "Alignment",
    "Findings",
    "Place",
    "Slot",
    "align",
    "align_normalised",
    "align_rows",
    "detect_expression",
    "gene_table",
    "judge",
    "merge_genes",
    "normalise",
    "plan_alignment",
    "prepared_total",
    "stored_expression",
]
