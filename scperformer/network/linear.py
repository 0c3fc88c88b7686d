"""Logistic regression: the baseline that is reported beside every result, and the start of the linear branch.

The linear branch sees views of the expression with weighted genes. A view is the expression raised to a power, each
cell scaled to the same length. A low power shows which genes a cell expresses, a high power which few genes dominate
it. Plain logistic regression on logarithms lies between, and is less accurate where two studies differ in that.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix, hstack

from scperformer.metrics import negative_log_likelihood

MAX_ITERATIONS = 1000
TOLERANCE = 1e-3  # of the optimiser for the linear branch; a smaller one changes no label
LENGTH = 20.0  # of every cell in every view: about its length in logarithms, so that penalties mean the same
CHOICES = {"weighting": ("signal", "standard"), "class_weights": ("none", "balanced")}  # that `auto` chooses from
NUM_FOLDS = 3  # of the cross-validation that chooses
MAX_CELLS_PER_LABEL = 200  # in that cross-validation: more cells would not change the choice
SIGNAL_FLOOR = 0.01  # added to the squared signal-to-noise ratio: genes without signal keep a small weight


@dataclass
class LinearModel:
    """Logits = x @ weight + bias; weight float32 G genes x C labels, bias float32 C."""

    weight: np.ndarray
    bias: np.ndarray

    def predict(self, x: csr_matrix) -> np.ndarray:
        """Index of the label with the largest logit of each cell; int64, N."""
        return np.asarray(x @ self.weight + self.bias).argmax(axis=1)


def fit_logistic(
    x: csr_matrix | np.ndarray, labels: np.ndarray, c: float = 1.0, class_weights: str = "none", tolerance: float = 1e-4
) -> LinearModel:
    """Fit scikit-learn's multinomial logistic regression to features of N cells; with its defaults, it is the baseline.

    `labels` is int64, N, and has every one of 0..C-1; `c` is the inverse strength of the L2 penalty. The weight of a
    label's cells is 1 (`none`), inverse to their number (`balanced`) or the root of that (`sqrt`). The optimiser stops
    when no entry of the gradient is larger than `tolerance`.
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[class_weights]
    counts = np.bincount(labels)
    weight_of = dict(enumerate((counts.mean() / counts) ** power))
    estimator = LogisticRegression(C=c, class_weight=weight_of, max_iter=MAX_ITERATIONS, tol=tolerance)
    with threadpool_limits(1):  # its dense products are small: with threads that wait for each other, ten times slower
        estimator.fit(x, labels)
    weight, bias = estimator.coef_.T, estimator.intercept_
    if weight.shape[1] == 1:  # for two labels scikit-learn keeps only the difference of their logits
        weight, bias = np.hstack([-weight / 2, weight / 2]), np.array([-bias[0] / 2, bias[0] / 2])
    return LinearModel(weight.astype(np.float32), bias.astype(np.float32))


@dataclass(frozen=True)
class Recipe:
    """Options of the fit of the linear branch; the last two may be `auto` until `settle_recipe` has chosen."""

    powers: tuple[float, ...]  # one view each; views with a power p above 1 are scaled by 1/p: few genes dominate them
    c: float  # inverse strength of the L2 penalty
    class_weights: str  # as in `fit_logistic`
    weighting: str  # of genes, as in `gene_weights`


def view(x: csr_matrix, power: float) -> csr_matrix:
    """Raise expression (CSR float32, N x G) to a power, with each cell scaled to length 20; empty cells stay 0."""
    values = x.data**power
    cells = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    lengths = np.sqrt(np.bincount(cells, values.astype(np.float64) ** 2, minlength=x.shape[0]))
    values *= (LENGTH / lengths[cells]).astype(np.float32)
    return csr_matrix((values, x.indices, x.indptr), shape=x.shape)


def gene_weights(x: csr_matrix, labels: np.ndarray, how: str) -> np.ndarray:
    """Weights that multiply the genes before a penalised fit, so that informative genes pay less penalty: float64, G.

    `how` is `none` (1), `standard` (1 / standard deviation within labels, shrunken towards the median gene's) or
    `signal`: the latter times the root of the gene's signal-to-noise ratio. The signal is the standard deviation of the
    label means, without the part expected by chance; the noise is the deviation within labels. The shrunken deviation
    is from nearest shrunken centroids (Tibshirani et al. 2002, PNAS 99:6567).
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
    # Cells keep about their length, so that the penalty means the same with all weights.
    total = between + within
    return weights * np.sqrt(total.sum() / (weights**2 * total).sum()) if total.any() else np.ones(x.shape[1])


def fit_linear_branch(x: csr_matrix, labels: np.ndarray, recipe: Recipe) -> LinearModel:
    """Fit `fit_logistic` on views of the expression: CSR float32, N cells x G genes, ln(1 + cp10k).

    The weight, float32 G x (views * C), is to be multiplied with `view(x, power)` of each power.
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
    """Logits of cells, N x C, by a model of `fit_linear_branch`."""
    blocks = np.split(model.weight, len(recipe.powers), axis=1)
    return sum(view(x, power) @ block for power, block in zip(recipe.powers, blocks, strict=True)) + model.bias


def settle_recipe(x: csr_matrix, labels: np.ndarray, recipe: Recipe, seed: int) -> Recipe:
    """Replace `auto` by the option that predicts held-out cells of the same reference best; `seed` chooses the folds.

    Many genes, few cells and clearly different types favour `signal`; a panel of chosen genes and types that differ a
    little in many genes favour `standard`. The likelihood in a cross-validation with 3 folds decides.
    """
    rows, folds = label_folds(labels, seed)
    x, labels = x[rows], labels[rows]
    for name, options in CHOICES.items():
        if getattr(recipe, name) == "auto":
            candidates = [replace(recipe, **{name: option}) for option in options]  # type: ignore[arg-type]
            judged = candidates if (folds >= 0).any() else candidates[:1]  # without a cell to hold out, the first
            recipe = min(judged, key=lambda candidate: held_out_loss(x, labels, folds, candidate))
    return recipe


def label_folds(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Deal at most 200 cells of each label to 3 folds: row numbers, and the fold of each.

    A label with a single cell has fold -1, which is never held out: every training then has all labels.
    """
    rng = np.random.default_rng(seed)
    rows, folds = [], []
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))[:MAX_CELLS_PER_LABEL]
        rows.append(cells)
        folds.append(np.arange(len(cells)) % NUM_FOLDS if len(cells) > 1 else np.array([-1]))
    return np.concatenate(rows), np.concatenate(folds)


def held_out_loss(x: csr_matrix, labels: np.ndarray, folds: np.ndarray, recipe: Recipe) -> float:
    """Mean negative log-likelihood of the cells of each fold by a model of the others."""
    if recipe.class_weights == "auto":  # while the weighting of genes is chosen
        recipe = replace(recipe, class_weights="none")
    logits = np.zeros((len(labels), labels.max() + 1))
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        model = fit_linear_branch(x[~held_out], labels[~held_out], recipe)
        logits[held_out] = predict_logits(model, x[held_out], recipe)
    return negative_log_likelihood(logits[folds >= 0], labels[folds >= 0])
