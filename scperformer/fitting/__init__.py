"""Fits of both branches to labelled cells in seconds, and their scales, by evidence on cells that a fit has not seen.

Files in reading order: linear, pooled, branches, adapted. Training uses them on a reference, prediction on the cells
that a model keeps, reduced to the genes and the depth of a file.
"""

from scperformer.fitting.adapted import adapted_bundle
from scperformer.fitting.branches import (
    Fitted,
    branch_scales,
    earned_scales,
    evidence_folds,
    fill_network,
    fit_branches,
)
from scperformer.fitting.linear import MOST_DUAL, TOLERANCE, Recipe, fit_linear_branch, fit_logistic, settle_recipe
from scperformer.fitting.pooled import Pooled, gene_vectors
