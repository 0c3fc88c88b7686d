"""Logistic regression: the baseline that is reported beside every result, and the start of the linear branch.

The linear branch sees views of the expression with weighted genes. A view is the expression raised to a power, each
cell scaled to the same length. A low power shows which genes a cell expresses, a high power which few genes dominate
it. Plain logistic regression on logarithms lies between, and is less accurate where two studies differ in that.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix, hstack

from scperformer.base.metrics import negative_log_likelihood
from scperformer.base.progress import progress
from scperformer.model.linear import power_transform
from scperformer.model.network import LinearModel

log = logging.getLogger(__name__)

MAX_ITERATIONS = 1000
SOLVER_TOLERANCE = 1e-3  # of the optimiser for the linear branch; a smaller one changes no label
ROUGH = 5e-3  # of fits that only show how good a fit is
PENALTY_C = 0.1  # inverse strength of the L2 penalty of the linear branch
WEIGHTINGS = ("signal", "standard")  # ways to weight the genes, of which a cross-validation chooses one
CLASS_WEIGHTS = ("none", "balanced")  # ways to weight the labels, likewise
CHOICE_FOLDS = 3  # of the cross-validation that chooses
MAX_CELLS_PER_LABEL = 200  # in that cross-validation: more cells would not change the choice
SIGNAL_FLOOR = 0.01  # added to the squared signal-to-noise ratio: genes without signal keep a small weight
MAX_DUAL = 4000  # cells; up to this number, inner products of cells are faster than sparse products with genes
BLOCK_GENES = 4096  # columns that are dense at a time
POWERS = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}  # of the number of its cells in the weight of a label
JITTER = 1e-5  # added to the inner product of a cell with itself, relative to its mean: cells may be equal


@progress("fitting logistic regression")
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

    counts = np.bincount(labels)
    weight_of = dict(enumerate((counts.mean() / counts) ** POWERS[class_weights]))
    estimator = LogisticRegression(C=c, class_weight=weight_of, max_iter=MAX_ITERATIONS, tol=tolerance)
    with threadpool_limits(1):  # its dense products are small: with threads that wait for each other, ten times slower
        estimator.fit(x, labels)
    weight, bias = estimator.coef_.T, estimator.intercept_
    if len(bias) == 1:  # for two labels scikit-learn keeps only the difference of their logits
        weight, bias = np.hstack([-weight / 2, weight / 2]), np.hstack([-bias / 2, bias / 2])
    return LinearModel(weight.astype(np.float32), bias.astype(np.float32))


@dataclass(frozen=True)
class LinearOptions:
    """Options of the fit of the linear branch."""

    powers: tuple[float, ...]  # one view each; views with a power p above 1 are scaled by 1/p: few genes dominate them
    c: float  # inverse strength of the L2 penalty
    class_weights: str  # as in `fit_logistic`
    weighting: str  # of genes, as in `gene_weights`

    def __post_init__(self) -> None:
        is_known = self.class_weights in POWERS and self.weighting in (*WEIGHTINGS, "none")
        if not is_known or not 0 < self.c < math.inf:
            raise ValueError("options that the linear branch cannot have")


def gene_weights(x: csr_matrix, labels: np.ndarray, how: str) -> np.ndarray:
    """Weights that multiply the genes before a penalised fit, so that informative genes pay less penalty: float64, G.

    `how` is `none` (1), `standard` (1 / standard deviation within labels, shrunken towards the median gene's, as in
    nearest shrunken centroids; Tibshirani et al. 2002, PNAS 99:6567) or `signal`: the latter times the root of the
    gene's signal-to-noise ratio. The signal is the standard deviation of the label means, without the part expected by
    chance.
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


def compact(x: csr_matrix) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Return dense features of N cells with the inner products of `x`, N x G, and the way back to weights of genes.

    With more genes than cells they are N x N, the Cholesky factor of the inner products. A penalised fit to them is the
    same fit, as its weights of genes are sums over cells (the representer theorem; Kimeldorf and Wahba 1970, Ann. Math.
    Stat. 41:495).
    """
    from scipy.linalg import LinAlgError, cholesky, solve_triangular

    if x.shape[1] <= x.shape[0]:
        return x.toarray(), lambda weight: weight
    products = np.zeros((x.shape[0], x.shape[0]), dtype=np.float32)
    columns = x.tocsc()
    for start in range(0, x.shape[1], BLOCK_GENES):
        block = columns[:, start : start + BLOCK_GENES].toarray()
        products += block @ block.T
    jitter = JITTER
    while True:
        exact = products.astype(np.float64)
        exact[np.diag_indices_from(exact)] += jitter * max(exact.trace(), 1e-6) / len(exact)
        try:
            factor = cholesky(exact, lower=True, overwrite_a=True)
            break
        except LinAlgError:  # cells are so similar that the rounding of float32 is larger
            jitter *= 10
    return factor.astype(np.float32), lambda weight: x.T @ solve_triangular(factor, weight, lower=True, trans="T")


def design(
    x: csr_matrix, labels: np.ndarray, linear_options: LinearOptions
) -> tuple[np.ndarray | csr_matrix, Callable[[LinearModel], LinearModel]]:
    """Make the features of the linear branch from expression: CSR float32, N cells x G genes, ln(1 + cp10k).

    Also return the function that turns a fit to the features into a linear branch, with weights of genes.
    """
    views = [power_transform(x, power) for power in linear_options.powers]
    scales = [gene_weights(v, labels, linear_options.weighting) for v in views]
    scales = [scale / max(1.0, power) for scale, power in zip(scales, linear_options.powers, strict=True)]
    weighted = hstack([v.multiply(s.astype(np.float32)[None]) for v, s in zip(views, scales, strict=True)], "csr")
    features, to_genes = compact(weighted) if x.shape[0] <= MAX_DUAL else (weighted, lambda weight: weight)

    def to_branch(fitted: LinearModel) -> LinearModel:
        blocks = np.split(to_genes(fitted.weight), len(views))
        weight = np.hstack([block * scale[:, None] for block, scale in zip(blocks, scales, strict=True)])
        return LinearModel(weight.astype(np.float32), fitted.bias)

    return features, to_branch


def fit_linear_branch(x: csr_matrix, labels: np.ndarray, linear_options: LinearOptions) -> LinearModel:
    """Fit the linear branch to expression: CSR float32, N cells x G genes, ln(1 + cp10k).

    The weight, float32 G x (views * C), is to be multiplied with `power_transform(x, power)` of each power.
    """
    features, to_branch = design(x, labels, linear_options)
    return to_branch(fit_logistic(features, labels, linear_options.c, linear_options.class_weights, SOLVER_TOLERANCE))


def predict_logits(model: LinearModel, x: csr_matrix, linear_options: LinearOptions) -> np.ndarray:
    """Logits of cells, N x C, by a model of `fit_linear_branch`."""
    powers = linear_options.powers
    blocks = np.split(model.weight, len(powers), axis=1)
    return sum(power_transform(x, power) @ block for power, block in zip(powers, blocks, strict=True)) + model.bias


def label_folds(
    labels: np.ndarray, seed: int, num_folds: int = CHOICE_FOLDS, most: int = MAX_CELLS_PER_LABEL
) -> tuple[np.ndarray, np.ndarray]:
    """Deal at most `most` cells of each label to folds: row numbers, and the fold of each.

    A label with a single cell has fold -1, which is never held out: every training then has all labels.
    """
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == label))[:most] for label in np.unique(labels)]
    folds = [np.arange(len(cells)) % num_folds if len(cells) > 1 else np.array([-1]) for cells in rows]
    return np.concatenate(rows), np.concatenate(folds)


def batch_folds(batches: np.ndarray, num_folds: int) -> np.ndarray:
    """Deal whole batches, int64 N, to folds, the largest first, each into the fold with the fewest cells: int64 N."""
    sizes = np.bincount(batches)
    fold_of_batch = np.zeros(len(sizes), dtype=np.int64)
    filled = np.zeros(min(num_folds, int(np.count_nonzero(sizes))), dtype=np.int64)
    for batch in np.argsort(-sizes, kind="stable"):
        fold_of_batch[batch] = filled.argmin()
        filled[fold_of_batch[batch]] += sizes[batch]
    return fold_of_batch[batches]


def labels_of_one_fold(folds: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the labels whose cells are all in one fold: if it is held out, the others do not have them."""
    return np.array([label for label in np.unique(labels) if len(np.unique(folds[labels == label])) == 1], dtype=int)


def held_out_losses(
    x: csr_matrix, labels: np.ndarray, folds: np.ndarray, linear_options: LinearOptions, balances: tuple[str, ...]
) -> list[float]:
    """Mean negative log-likelihood of the cells of each fold by a model of the others, for each of `balances`."""
    logits = np.zeros((len(balances), len(labels), labels.max() + 1))
    for fold in range(folds.max() + 1):
        train = folds != fold
        features, to_branch = design(x[train], labels[train], linear_options)
        for number, balance in enumerate(balances):
            model = to_branch(fit_logistic(features, labels[train], linear_options.c, balance, ROUGH))
            logits[number, ~train] = predict_logits(model, x[~train], linear_options)
    return [negative_log_likelihood(each[folds >= 0], labels[folds >= 0]) for each in logits]


@progress("choosing the options of the linear branch")
def choose_linear_options(
    x: csr_matrix, labels: np.ndarray, powers: tuple[float, ...], seed: int, batches: np.ndarray | None = None
) -> LinearOptions:
    """Choose the weights of genes and labels by the likelihood of held-out cells, in a cross-validation with 3 folds.

    Many genes, few cells and clearly different types favour `signal`; a panel of chosen genes and types that differ a
    little in many genes favour `standard`. `seed` deals the cells to the folds; with `batches`, the index of the batch
    of each cell, whole batches are held out.
    """
    first = LinearOptions(powers, PENALTY_C, CLASS_WEIGHTS[0], WEIGHTINGS[0])
    rows, folds = label_folds(labels, seed)
    if batches is not None:
        folds = batch_folds(batches[rows], CHOICE_FOLDS)
        folds[np.isin(labels[rows], labels_of_one_fold(folds, labels[rows]))] = -1
    if not (folds >= 0).any():  # every label has a single cell
        return first
    losses = {}
    for weighting in WEIGHTINGS:
        options = replace(first, weighting=weighting)
        losses[weighting] = held_out_losses(x[rows], labels[rows], folds, options, CLASS_WEIGHTS)
    best = min(WEIGHTINGS, key=lambda weighting: losses[weighting][0])  # compared with the first class weights
    options = replace(first, weighting=best, class_weights=CLASS_WEIGHTS[int(np.argmin(losses[best]))])
    text = "linear branch: gene weights '%s', class weights '%s', chosen by the loss of held-out cells"
    log.info(text, options.weighting, options.class_weights)
    return options
