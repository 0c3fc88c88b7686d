"""Where the linear (wide) branch starts: logistic regression on views of the expression, its genes weighted by signal.

A view is the expression raised to a power, each cell scaled to the same length: a low power says which genes a cell
expresses, a high one which few genes dominate it. Plain logistic regression on logarithms lies between, and loses
where two studies differ in exactly that.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack

from scperformer.metrics import negative_log_likelihood
from scperformer.network.baseline import LinearModel, fit_logistic

TOLERANCE = 1e-3  # of the optimiser; smaller changes no label
LENGTH = 20.0  # of every cell in every view: with it, penalties mean about what they mean on logarithms
CHOICES = {"weighting": ("signal", "standard"), "class_weights": ("none", "balanced")}  # what `auto` chooses from
NUM_FOLDS = 3  # of that choice
MAX_CELLS_PER_LABEL = 200  # in that choice: more cells would not change it
SIGNAL_FLOOR = 0.01  # of the squared signal-to-noise ratio: genes without visible signal keep a small weight


@dataclass(frozen=True)
class Recipe:
    """How the branch is fitted.

    powers : one view each; views with a power p above 1 count 1/p, as a few genes make up most of them
    c : inverse strength of the L2 penalty
    class_weights : `none`, `sqrt` or `balanced`, weight of a label by its number of cells
    weighting : of genes, as `gene_weights` takes it

    The last two may be `auto` until `settle` has chosen.
    """

    powers: tuple[float, ...]
    c: float
    class_weights: str
    weighting: str


def view(x: csr_matrix, power: float) -> csr_matrix:
    """Expression raised to a power, each cell scaled to length 20; cells without expression stay 0.

    Parameters
    ----------
    x
        CSR float32, N cells x G genes, ln(1 + cp10k).

    Returns
    -------
    CSR float32, N x G.
    """
    values = x.data**power
    cells = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    lengths = np.sqrt(np.bincount(cells, values.astype(np.float64) ** 2, minlength=x.shape[0]))
    values *= (LENGTH / lengths[cells]).astype(np.float32)
    return csr_matrix((values, x.indices, x.indptr), shape=x.shape)


def gene_weights(x: csr_matrix, labels: np.ndarray, how: str) -> np.ndarray:
    """What to multiply each gene with before a penalised fit, float64, G: the penalty then spares telling genes.

    Parameters
    ----------
    x
        CSR, N cells x G genes.
    labels
        int64, N; every one of 0..C-1 occurs.
    how
        `standard`: 1 / standard deviation within labels, shrunken towards the median gene's.
        `signal`: that times the root of the gene's signal-to-noise ratio, the standard deviation of the label
        means (less what chance alone would give) over that within labels. `none`: 1.

    Source
    ------
    The shrunken deviation is that of nearest shrunken centroids (Tibshirani et al. 2002, PNAS 99:6567).
    """
    if how == "none":
        return np.ones(x.shape[1])
    counts = np.bincount(labels).astype(np.float64)
    members = csr_matrix((np.ones(len(labels)), (labels, np.arange(len(labels)))))
    means = (members @ x).toarray() / counts[:, None]
    squares = (members @ x.multiply(x)).toarray() / counts[:, None]
    within = (counts[:, None] * np.maximum(squares - means**2, 0)).sum(0) / max(1, len(labels) - len(counts))
    between = np.maximum(means.var(0) - within * (1 / counts).mean(), 0)
    varying = within[within > 0]
    deviation = np.sqrt(within) + (np.sqrt(np.median(varying)) if len(varying) else 1.0)
    weights = 1 / deviation
    if how == "signal":
        weights *= (between / deviation**2 + SIGNAL_FLOOR) ** 0.25
    # Cells keep about their length, so that the penalty means the same whatever the weights are.
    total = between + within
    return weights * np.sqrt(total.sum() / (weights**2 * total).sum()) if total.any() else np.ones(x.shape[1])


def fit_linear_branch(x: csr_matrix, labels: np.ndarray, recipe: Recipe) -> LinearModel:
    """L2-penalised multinomial logistic regression on views of the expression.

    Parameters
    ----------
    x
        CSR float32, N cells x G genes, ln(1 + cp10k).
    labels
        int64, N; every one of 0..C-1 occurs.

    Returns
    -------
    weight float32 G x (views * C), to be multiplied with `view(x, power)` of each power; bias float32 C.
    """
    views = [view(x, power) for power in recipe.powers]
    scales = [gene_weights(v, labels, recipe.weighting) for v in views]
    scales = [scale / max(1.0, power) for scale, power in zip(scales, recipe.powers, strict=True)]
    weighted = hstack([v.multiply(s.astype(np.float32)[None]) for v, s in zip(views, scales, strict=True)], "csr")
    fitted = fit_logistic(weighted, labels, c=recipe.c, class_weights=recipe.class_weights, tolerance=TOLERANCE)
    blocks = np.split(fitted.weight, len(views))
    weight = np.hstack([block * scale[:, None] for block, scale in zip(blocks, scales, strict=True)])
    return LinearModel(weight.astype(np.float32), fitted.bias)


def predict_logits(model: LinearModel, x: csr_matrix, recipe: Recipe) -> np.ndarray:
    """Logits of cells, N x C, by a model that `fit` returned."""
    blocks = np.split(model.weight, len(recipe.powers), axis=1)
    return sum(view(x, power) @ block for power, block in zip(recipe.powers, blocks, strict=True)) + model.bias


def settle_recipe(x: csr_matrix, labels: np.ndarray, recipe: Recipe, seed: int) -> Recipe:
    """The recipe with `auto` replaced by what predicts held-out cells of the same reference best.

    Many genes, few cells and clear types want `signal`; a panel of genes that somebody chose already and types that
    differ by a little of everything want `standard`. Decided by the likelihood in a cross-validation with 3 folds.

    Parameters
    ----------
    x, labels
        As for `fit`.
    seed
        Chooses the folds.
    """
    rows, folds = label_folds(labels, seed)
    for name, options in CHOICES.items():
        if getattr(recipe, name) == "auto":
            # While genes are weighted, labels are not yet; without a cell to hold out the first option it is.
            changes: list[dict[str, Any]] = [{name: option} for option in options]
            candidates = [replace(recipe, **change) for change in changes]
            judged = candidates if (folds >= 0).any() else candidates[:1]
            recipe = min(judged, key=lambda candidate: held_out_loss(x[rows], labels[rows], folds, candidate))
    return recipe


def held_out_loss(x: csr_matrix, labels: np.ndarray, folds: np.ndarray, recipe: Recipe) -> float:
    """Mean negative log-likelihood of the cells of each fold by a model of the others; fold -1 is never held out."""
    if recipe.class_weights == "auto":
        recipe = replace(recipe, class_weights="none")
    logits = np.zeros((len(labels), labels.max() + 1))
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        model = fit_linear_branch(x[~held_out], labels[~held_out], recipe)
        logits[held_out] = predict_logits(model, x[held_out], recipe)
    return negative_log_likelihood(logits[folds >= 0], labels[folds >= 0])


def label_folds(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """At most 200 cells of each label, dealt out to 3 folds: row numbers, and the fold of each (-1: in no fold).

    A label of a single cell is in no fold, so that there is no training without it.
    """
    rng = np.random.default_rng(seed)
    rows, folds = [], []
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))[:MAX_CELLS_PER_LABEL]
        rows.append(cells)
        folds.append(np.arange(len(cells)) % NUM_FOLDS if len(cells) > 1 else np.array([-1]))
    return np.concatenate(rows), np.concatenate(folds)
