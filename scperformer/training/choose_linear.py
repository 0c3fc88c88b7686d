"""The options of the linear branch: chosen by the loss of held-out cells of the reference.

Which views, weights and penalty are best depends on the reference: few clearly different types, subtypes that differ a
little in many genes, or chosen genes. Each step compares alternatives with the best options so far, and changes one of
them only if the loss falls by a tenth, and by two standard errors: smaller gains do not hold in another study
(benchmarks/NOTES.md).
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.metrics import cell_losses
from scperformer.base.progress import progress
from scperformer.training.fit_linear import PENALTY_C, Design, LinearOptions, branch_design
from scperformer.training.folds import choice_folds
from scperformer.training.scales import branch_scale

log = logging.getLogger(__name__)

FIRST = LinearOptions((0.5, 2.0), PENALTY_C, "none", "signal")
# The alternatives of each step.
STEPS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("powers", ((1.0,), (2.0,), (1.0, 2.0))),
    ("weighting", ("standard", "none")),
    ("c", (1.0,)),
    ("class_weights", ("balanced",)),
)
MIN_GAIN = 0.1  # of the loss
MIN_ERRORS = 2.0  # standard errors of the gain


def held_out_losses(x: csr_matrix, labels: np.ndarray, folds: np.ndarray) -> Callable[[LinearOptions], np.ndarray]:
    """Return a function that gives the loss of each held-out cell by a model of the other folds, float64 N.

    The logits have the scale with the lowest loss, as those of the model. A design is kept until other views or weights
    are asked for.
    """
    kept: dict[str, object] = {}

    def designs(options: LinearOptions) -> list[tuple[Design, np.ndarray]]:
        """Return the design of the other folds' cells for each fold, and the features of its own cells."""
        key = (options.powers, options.weighting)
        if kept.get("key") != key:
            sides = [folds != fold for fold in range(folds.max() + 1)]
            made = [(side, branch_design(x[side], labels[side], options)) for side in sides]
            kept.update(key=key, designs=[(design, design.features_of(x[~side])) for side, design in made])
        return kept["designs"]  # type: ignore[return-value]

    def losses(options: LinearOptions) -> np.ndarray:
        logits = np.zeros((len(labels), labels.max() + 1))
        for fold, (design, features) in enumerate(designs(options)):
            fitted = design.fit(options.c, options.class_weights)
            logits[folds == fold] = features @ fitted.weight + fitted.bias
        dealt = folds >= 0
        return cell_losses(branch_scale(logits[dealt], labels[dealt]) * logits[dealt], labels[dealt])

    return losses


def choose_linear_options(
    x: csr_matrix, labels: np.ndarray, seed: int, batches: np.ndarray | None = None
) -> LinearOptions:
    """Choose views, weights of genes and labels, and the penalty, in a cross-validation with 3 folds of 1,500 cells.

    `x` is CSR float32, N cells x G genes, ln(1 + cp10k). `seed` deals the cells to the folds; with `batches`, the index
    of the batch of each cell, whole batches are held out.
    """
    rows, folds = choice_folds(labels, seed, batches)
    if not (folds >= 0).any():  # every label has a single cell
        return FIRST
    losses = held_out_losses(x[rows], np.unique(labels[rows], return_inverse=True)[1], folds)
    with progress("choosing the options of the linear branch", total=1 + len(STEPS), unit="steps") as shown:
        best, lowest = FIRST, losses(FIRST)
        for name, values in STEPS:
            shown.update()
            tried = {value: losses(replace(best, **{name: value})) for value in values}
            value = min(tried, key=lambda value: tried[value].mean())
            gain = lowest - tried[value]
            error = gain.std() / len(gain) ** 0.5
            if gain.mean() > max(MIN_GAIN * lowest.mean(), MIN_ERRORS * error):
                best, lowest = replace(best, **{name: value}), tried[value]
    log.info("linear branch: %s, chosen by the loss of held-out cells", in_words(best))
    return best


def in_words(options: LinearOptions) -> str:
    """Return the options in words, such as "powers 0.5 and 2, gene weights 'signal', C 0.1, class weights 'none'"."""
    powers = " and ".join(f"{power:g}" for power in options.powers)
    values = asdict(options)
    return "powers {0}, gene weights '{weighting}', class weights '{class_weights}', C {c:g}".format(powers, **values)
