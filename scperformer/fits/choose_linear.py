"""The options of the linear branch: chosen by the loss of held-out cells of the reference.

Which views, weights and penalty are best depends on the reference: few clearly different types, subtypes that differ a
little in many genes, or chosen genes. Each step compares alternatives with the best options so far, and changes one of
them only if the loss falls by a tenth, and by two standard errors: smaller gains do not hold in another study
(benchmarks/NOTES.md).
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.metrics import cell_losses
from scperformer.base.parallel import map_in_order, usable_cores
from scperformer.base.progress import progress
from scperformer.fits.folds import choice_folds
from scperformer.fits.linear import PENALTY_C, Design, LinearOptions, branch_design
from scperformer.fits.scales import branch_scale

log = logging.getLogger(__name__)

FIRST = LinearOptions((0.5, 2.0), PENALTY_C, "none", "signal")
# The alternatives of each step.
ALTERNATIVES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("powers", ((1.0,), (2.0,), (1.0, 2.0))),
    ("weighting", ("standard", "none")),
    ("c", (1.0,)),
    ("class_weights", ("balanced",)),
)
MIN_RELATIVE_GAIN = 0.1  # of the loss
MIN_STANDARD_ERRORS = 2.0  # standard errors of the gain


def held_out_losses(
    x: csr_matrix, labels: np.ndarray, folds: np.ndarray
) -> Callable[..., np.ndarray]:
    """Return a function that gives the loss of each held-out cell by a model of the other folds, float64 N.

    The logits have the scale with the lowest loss, as those of the model. The second argument are the losses of other
    options: if these are lower in the first fold, the rest is left out, and the losses are infinite. The third one is
    the number of folds that are fitted at a time.
    """
    dealt = folds >= 0

    def losses_of(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return scaled_losses(logits[rows], labels[rows])

    @cache
    def design_without(
        fold: int, powers: tuple[float, ...], weighting: str
    ) -> tuple[Design, np.ndarray]:
        """Return the design of the cells of the other folds, and the features of its own cells."""
        side = folds != fold
        design = branch_design(
            x[side], labels[side], replace(FIRST, powers=powers, weighting=weighting)
        )
        features = design.features_of(x[~side])
        del design.to_genes, design.features_of  # they hold most of its memory
        return design, features

    def logits_of(options: LinearOptions, fold: int) -> np.ndarray:
        design, features = design_without(fold, options.powers, options.weighting)
        fitted = design.fit(options.c, options.class_weights)
        return np.asarray(features @ fitted.weight + fitted.bias)

    def losses(
        options: LinearOptions, others: np.ndarray | None = None, threads: int = 1
    ) -> np.ndarray:
        logits = np.zeros((len(labels), labels.max() + 1))
        numbers = range(folds.max() + 1)
        for fold, found in zip(
            numbers, map_in_order(partial(logits_of, options), numbers, threads), strict=True
        ):
            own = folds == fold
            logits[own] = found
            if (
                fold == 0
                and others is not None
                and losses_of(logits, own).mean() > others[own[dealt]].mean()
            ):
                return np.full(int(dealt.sum()), np.inf)
        return losses_of(logits, dealt)

    return losses


def scaled_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the loss of each cell, float64 N, by logits in the scale with the lowest mean."""
    return cell_losses(branch_scale(logits, labels) * logits, labels)


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
    threads = usable_cores()
    with progress(
        "choosing the options of the linear branch", total=1 + len(ALTERNATIVES), unit="steps"
    ) as shown:
        best, lowest = FIRST, losses(FIRST, threads=threads)
        for name, values in ALTERNATIVES:
            shown.update()
            alternatives = [replace(best, **{name: value}) for value in values]
            of_each = partial(losses, others=lowest, threads=max(1, threads // len(values)))
            tried = zip(
                alternatives,
                map_in_order(of_each, alternatives, min(threads, len(values))),
                strict=True,
            )
            options, loss = min(tried, key=lambda pair: pair[1].mean())
            if np.isinf(loss).all():
                continue
            if is_lower(loss, lowest):
                best, lowest = options, loss
    powers = " and ".join(f"{power:g}" for power in best.powers)
    text = "linear branch: powers %s, gene weights '%s', class weights '%s', C %g, chosen by the loss of held-out cells"
    log.info(text, powers, best.weighting, best.class_weights, best.c)
    return best


def is_lower(losses: np.ndarray, before: np.ndarray) -> bool:
    """Return whether the losses of cells fall by a tenth, and by two standard errors."""
    gain = before - losses
    error = gain.std() / len(gain) ** 0.5
    return bool(gain.mean() > max(MIN_RELATIVE_GAIN * before.mean(), MIN_STANDARD_ERRORS * error))
