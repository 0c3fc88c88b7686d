"""Linear models: the baseline that is reported beside every result, and the linear branch.

The linear branch sees views of the expression with weighted genes. A view is the expression raised to a power, each
cell scaled to the same length. A low power shows which genes a cell expresses, a high power which few genes dominate
it. Plain logistic regression on logarithms lies between, and is less accurate where two studies differ in that.

Fits are exact up to 7,000 cells. Of more cells, components are fitted (components.py, docs/large_references.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, hstack

from scperformer.base.sparse import label_means, with_values
from scperformer.cells.splits import stratified_sample
from scperformer.fits import components
from scperformer.fits.logistic import CLASS_WEIGHT_POWERS, Solver, fit_logistic
from scperformer.model.linear import power_transform, sums_over_genes
from scperformer.model.network import LinearModel

SOLVER_TOLERANCE = 1e-3  # of the optimiser for the linear branch; a smaller one changes no label
ROUGH = 5e-3  # of fits that only show how good a fit is
# inverse strength of the L2 penalty of the linear branch, unless another one is better
PENALTY_C = 0.1
WEIGHTINGS = ("signal", "standard", "none")  # ways to weight the genes
# added to the squared signal-to-noise ratio: genes without signal keep a small weight
SIGNAL_FLOOR = 0.01
MAX_DUAL = 7000  # cells whose inner products are computed; more cells are fitted by components
MAX_WEIGHT_CELLS = 20_000  # by which genes are weighted
OFTEN = 0.02  # share of cells that express a gene, above which it is multiplied as dense
PRODUCT_GENES = 4096  # genes that are dense at a time
DIAGONAL_JITTER = 1e-5  # added to the inner product of a cell with itself, relative to its mean: cells may be equal


@dataclass(frozen=True)
class LinearOptions:
    """Options of the fit of the linear branch."""

    # one view each; views with a power p above 1 are scaled by 1/p: few genes dominate them
    powers: tuple[float, ...]
    c: float  # inverse strength of the L2 penalty
    class_weights: str  # as in `fit_logistic`
    weighting: str  # of genes, as in `gene_weights`

    def __post_init__(self) -> None:
        is_known = self.class_weights in CLASS_WEIGHT_POWERS and self.weighting in WEIGHTINGS
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
    counts = np.bincount(labels)
    means = label_means(x, labels, len(counts))
    squares = label_means(with_values(x, x.data**2), labels, len(counts))
    within = (counts[:, None] * np.maximum(squares - means**2, 0)).sum(0) / max(
        1, len(labels) - len(counts)
    )
    between = np.maximum(means.var(0) - within * (1 / counts).mean(), 0)
    varying = within[within > 0]
    deviation = np.sqrt(within) + (np.sqrt(np.median(varying)) if len(varying) else 1.0)
    weights = 1 / deviation
    if how == "signal":
        weights *= (between / deviation**2 + SIGNAL_FLOOR) ** 0.25
    # Cells keep about their length, so that the penalty means the same with all weights.
    total = between + within
    return (
        weights * np.sqrt(total.sum() / (weights**2 * total).sum())
        if total.any()
        else np.ones(x.shape[1])
    )


def inner_products(x: csr_matrix, other: csr_matrix) -> np.ndarray:
    """Return the inner products of N and M cells with the same genes, CSR: float32 N x M.

    Only genes that many cells express are multiplied as dense blocks.
    """
    columns, others = x.tocsc(), other.tocsc()
    is_often = np.diff(columns.indptr) > OFTEN * x.shape[0]
    products = (columns[:, ~is_often].tocsr() @ others[:, ~is_often].tocsr().T).toarray()
    for genes in np.array_split(np.flatnonzero(is_often), is_often.sum() // PRODUCT_GENES + 1):
        block = columns[:, genes].toarray(order="F")
        products += block @ (block if other is x else others[:, genes].toarray(order="F")).T
    return np.asarray(products)


def compact(
    x: csr_matrix,
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray], Callable[[csr_matrix], np.ndarray]]:
    """Return dense features of N cells with the inner products of `x`, N x G, and two functions.

    One turns weights of features into weights of genes; the other returns the features of other cells, CSR M x G. With
    more genes than cells the features are N x N, the Cholesky factor of the inner products: a penalised fit to them is
    the same fit (the representer theorem; Kimeldorf and Wahba 1970, Ann. Math. Stat. 41:495).
    """
    from scipy.linalg import LinAlgError, cholesky, solve_triangular

    if x.shape[1] <= x.shape[0]:
        return x.toarray(), lambda weight: weight, lambda other: other.toarray()
    products = inner_products(x, x)
    jitter = DIAGONAL_JITTER
    while True:
        exact = products.astype(np.float64)
        exact[np.diag_indices_from(exact)] += jitter * max(exact.trace(), 1e-6) / len(exact)
        try:
            factor = cholesky(exact, lower=True, overwrite_a=True)
            break
        except LinAlgError:  # cells are so similar that the rounding of float32 is larger
            jitter *= 10

    def to_genes(weight: np.ndarray) -> np.ndarray:
        return np.asarray(x.T @ solve_triangular(factor, weight, lower=True, trans="T"))

    def features_of(other: csr_matrix) -> np.ndarray:
        return np.asarray(solve_triangular(factor, inner_products(x, other), lower=True).T)

    return factor.astype(np.float32), to_genes, features_of


@dataclass
class Views:
    """What is fitted of expression, CSR float32 N x G, ln(1 + cp10k): powers of it with weighted genes, or itself."""

    powers: tuple[float, ...] = ()  # none: expression itself
    scales: tuple[np.ndarray, ...] = ()  # of the genes in each view, float64 G

    def weighted(self, x: csr_matrix) -> csr_matrix:
        """Return the views side by side, CSR float32 N x (views * G)."""
        if not self.powers:
            return x
        pairs = zip(self.powers, self.scales, strict=True)
        views = [
            power_transform(x, power).multiply(scale.astype(np.float32)[None])
            for power, scale in pairs
        ]
        return csr_matrix(hstack(views, "csr"), dtype=np.float32)

    def components(self, x: csr_matrix, axes: np.ndarray, device: str = "cpu") -> np.ndarray:
        """Return the components of cells on axes, (views * G) x K: float32 N x K."""
        if not self.powers:
            return sums_over_genes(x, [(None, axes)], device)
        pairs = zip(np.split(axes, len(self.powers)), self.scales, strict=True)
        tables = [(block * scale[:, None]).astype(np.float32) for block, scale in pairs]
        return sums_over_genes(x, list(zip(self.powers, tables, strict=True)), device)

    def model(self, weight: np.ndarray, bias: np.ndarray) -> LinearModel:
        """Return the linear model whose weights, (views * G) x C, were fitted: its own are G x (views * C)."""
        if self.powers:
            blocks = np.split(weight, len(self.powers))
            weight = np.hstack(
                [block * scale[:, None] for block, scale in zip(blocks, self.scales, strict=True)]
            )
        return LinearModel(np.asarray(weight, dtype=np.float32), bias)


class Design:
    """Features of N cells, from which linear models are fitted.

    Up to 7,000 cells they are those of `compact`, and above that components of `views`, computed on a device.
    """

    def __init__(
        self, x: csr_matrix, labels: np.ndarray, views: Views, seed: int, device: str = "cpu"
    ):
        self.labels = labels
        self.views = views
        self.device = device
        self.axes: np.ndarray | None = None
        if x.shape[0] <= MAX_DUAL:
            self.features, self.to_genes, features_of = compact(views.weighted(x))
            self.features_of = lambda other: features_of(views.weighted(other))
        else:
            some = x[components.cells_for_axes(labels, seed)]
            axes = self.axes = components.fitted_axes(views.weighted(some), seed)
            self.features_of = lambda other: views.components(other, axes, device)
            self.features, self.to_genes = self.features_of(x), lambda weight: axes @ weight

    @property
    def baseline_c(self) -> float:
        """C of the baseline: scikit-learn's default; with components, that overfits."""
        return 1.0 if self.axes is None else 0.1

    def fit(
        self, c: float, class_weights: str, rows: np.ndarray | None = None, tolerance: float = ROUGH
    ) -> LinearModel:
        """Fit a linear model of the features to all cells or to some `rows`, which have all labels."""
        some = slice(None) if rows is None else rows
        solver = Solver(tolerance) if self.axes is None else components.solver(self.device)
        return fit_logistic(self.features[some], self.labels[some], c, class_weights, solver)

    def model(self, fitted: LinearModel) -> LinearModel:
        """Turn a fit to the features into one of expression, with weights of genes."""
        return self.views.model(self.to_genes(fitted.weight), fitted.bias)


def branch_design(
    x: csr_matrix, labels: np.ndarray, options: LinearOptions, seed: int = 0, device: str = "cpu"
) -> Design:
    """Return the design of the linear branch for expression: CSR float32, N cells x G genes, ln(1 + cp10k).

    The genes of its views are weighted by up to 20,000 cells.
    """
    some = stratified_sample(labels, MAX_WEIGHT_CELLS, seed)
    weights = (
        gene_weights(power_transform(x[some], p), labels[some], options.weighting)
        for p in options.powers
    )
    scales = tuple(w / max(1.0, p) for w, p in zip(weights, options.powers, strict=True))
    return Design(x, labels, Views(options.powers, scales), seed, device)


def fit_linear_branch(x: csr_matrix, labels: np.ndarray, options: LinearOptions) -> LinearModel:
    """Fit the linear branch to expression: CSR float32, N cells x G genes, ln(1 + cp10k).

    The weight, float32 G x (views * C), is to be multiplied with `power_transform(x, power)` of each power.
    """
    design = branch_design(x, labels, options)
    return design.model(design.fit(options.c, options.class_weights, tolerance=SOLVER_TOLERANCE))
