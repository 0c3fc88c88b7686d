"""Resemblance of cells to the profiles of a tissue: calls that need no fit, and cells that resemble no type.

Cells are centred by the mean of their file and profiles by the mean of the same mixture of types (docs/tissues.md). To
name types, the centre is halfway to the mean of all profiles, as a file of one lineage has little left about its own
mean, and ranks over marker genes are compared, too, as in SingleR (Aran et al. 2019). A correlation is compared with
that of a simulated cell with as many counts: shallow cells are not novel for that.

Shape letters: N cells, C labels, G genes.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix
from scipy.special import softmax

from scperformer.base.sparse import TINY, centred, counts_of, gene_means, label_means, with_values

NUM_GENES = 2000  # that vary most between the profiles
HALFWAY = 0.5  # of the way from the mixture of types to the mean of all profiles
NEAREST_ROUNDS = 4  # of finding the nearest profile of each cell, and the mixture of types
NUM_MARKERS = 30  # of each type, whose ranks are compared
# Weights and sharpness of the probabilities by the fit, by correlation and by ranks, from the development files
# (benchmarks/NOTES.md).
WEIGHTS = (0.4, 0.4, 0.2)
SHARPNESS = (15.0, 30.0)
# of the joined probabilities of families, by which they hold on the development files
FAMILY_POWER = 2.5
# correlation of simulated cells of a type; a smaller one would make any cell resemble it
MIN_EXPECTED = 0.15
# Share of known cells with at most this resemblance relative to the usual one of their file: the mean over the
# development files of benchmarks/tissues.py.
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
QUANTILES = (0.0, 0.376, 0.434, 0.524, 0.605, 0.695, 0.769, 0.879, 0.974, 1.125, 1.8)
USUAL = 0.75  # quantile of the resemblance of the cells of a file; types that the tissue lacks are below it
MIN_USUAL = 0.25
FEW_RESEMBLE = 0.35  # median resemblance of a file; below it, the file is of another tissue
# The same of a batch whose batch effect was corrected: those of another tissue have .07 to .14, and of the tissue, by
# simulated full-length reads or of another species, .25 to .41; but .1 if of a single type (benchmarks/NOTES.md).
FEW_RESEMBLE_CORRECTED = 0.2
# share of unknown cells from which a tissue has cells of other kinds than its profiles
MANY_UNKNOWN = 0.2


@dataclass
class Resemblance:
    """The profiles of a tissue as a file is compared with them."""

    # float64 G x C: centred by the mixture, mean 0, length 1; 0 for genes that are not compared
    profiles: np.ndarray
    is_compared: np.ndarray  # float64 G: 1 for genes that are compared, else 0
    centre: np.ndarray  # float64 G: mean of the file; 0 for genes that are not compared
    shares: np.ndarray  # float64 C: mixture of types
    # float64 C: counts at which half of the squared length of a cell of the type is noise
    noise: np.ndarray
    naming_profiles: np.ndarray  # as `profiles`, centred halfway to the mean of all profiles
    naming_centre: np.ndarray  # as `centre`, moved as much
    markers: np.ndarray  # int M: genes whose ranks are compared
    ranks: np.ndarray  # float64 M x C: ranks of the profiles, mean 0, length 1
    usual: float = 1.0  # resemblance of the cells of the file

    def correlations(self, x: csr_matrix) -> np.ndarray:
        """Return the correlation of cells with each profile, float64 N x C, from ln(1 + cp10k), CSR N x G."""
        return _correlations(x, self.is_compared, self.centre, self.profiles)

    def joined(self, proba: np.ndarray, x: csr_matrix, families: np.ndarray) -> np.ndarray:
        """Join the probabilities of a fit, float32 N x C, with those by correlation and by ranks: float32 N x C.

        Those of families, whose numbers are `families`, C, are raised to a power; their labels keep their shares.
        """
        correlations = _correlations(x, self.is_compared, self.naming_centre, self.naming_profiles)
        by_rank = rank_correlations(x[:, self.markers], self.ranks)
        votes = [
            proba,
            softmax(SHARPNESS[0] * correlations, axis=1),
            softmax(SHARPNESS[1] * by_rank, axis=1),
        ]
        joint = np.average(votes, axis=0, weights=WEIGHTS)
        sums = np.zeros((len(joint), int(families.max()) + 1))
        for family, values in zip(families, joint.T, strict=True):
            sums[:, family] += values
        powers = sums**FAMILY_POWER
        factors = powers / powers.sum(axis=1, keepdims=True) / np.maximum(sums, TINY)
        return (joint * factors[:, families]).astype(np.float32)

    def of_cells(self, x: csr_matrix, correlations: np.ndarray) -> np.ndarray:
        """Return the largest resemblance of cells to a type, float64 N; simulated cells have about 1."""
        return (correlations * np.sqrt(1 + self.noise / counts_of(x)[:, None])).max(axis=1)

    def novelty(self, resemblance: np.ndarray) -> np.ndarray:
        """Return the share of known cells that resemble their type more, float64 N, 0 to 1."""
        return 1 - np.interp(resemblance / max(self.usual, MIN_USUAL), QUANTILES, SHARES)


def _correlations(
    x: csr_matrix, is_compared: np.ndarray, centre: np.ndarray, profiles: np.ndarray
) -> np.ndarray:
    """Return the correlations of cells, about a centre, with centred profiles.

    Sparse products treat each cell by itself, so that it does not depend on the others.
    """
    values = x.astype(np.float64)
    squares = values.multiply(values) @ is_compared - 2 * (values @ centre) + centre @ centre
    num_genes = is_compared.sum()
    means = (values @ is_compared - centre.sum()) / num_genes
    lengths = np.sqrt(np.maximum(squares - num_genes * means**2, TINY))
    return (values @ profiles - centre @ profiles) / lengths[:, None]


def rank_correlations(x: csr_matrix, ranks: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of cells with profiles, float64 N x C.

    `x` is CSR N x M, not below 0. `ranks` are those of the profiles, M x C, with mean 0 and length 1. Equal values
    share the mean of their ranks. The values of 0 are the first ones, so that only the others are sorted.
    """
    num_genes = x.shape[1]
    num_positive = np.diff(x.indptr)
    cells = np.repeat(np.arange(x.shape[0]), num_positive)
    order = np.lexsort((x.data, cells))
    is_first = np.r_[True, (np.diff(x.data[order]) != 0) | (np.diff(cells[order]) != 0)][
        : len(order)
    ]
    group = np.cumsum(is_first) - 1
    places = np.arange(len(order)) - x.indptr[:-1][cells[order]]  # from 0 in each cell
    of_group = np.bincount(group, places) / np.maximum(np.bincount(group), 1)
    num_zero = num_genes - num_positive
    of_zero = (num_zero + 1) / 2
    own = np.empty(len(order))
    own[order] = of_group[group]
    own += num_zero[cells] + 1
    mean = (num_genes + 1) / 2
    squares = (
        np.bincount(cells, (own - mean) ** 2, minlength=x.shape[0])
        + num_zero * (of_zero - mean) ** 2
    )
    above_zero = with_values(x, own - of_zero[cells])
    return (above_zero @ ranks) / np.sqrt(np.maximum(squares, TINY))[:, None]


def fit_resemblance(
    centre: np.ndarray, shares: np.ndarray, simulated: csr_matrix, labels: np.ndarray
) -> Resemblance:
    """Compare a file, of which the mean, G, and the shares of the labels, C, are known, with simulated cells."""
    num_labels = int(labels.max()) + 1
    means = label_means(simulated, labels, num_labels)
    mixture = shares @ means
    step = HALFWAY * (means.mean(axis=0) - mixture)
    genes = np.argsort(-means.std(axis=0), kind="stable")[:NUM_GENES]
    is_compared = np.zeros(means.shape[1])
    is_compared[genes] = 1
    profiles, naming = np.zeros_like(means), np.zeros_like(means)
    profiles[:, genes] = centred(means[:, genes] - mixture[genes])
    naming[:, genes] = centred(means[:, genes] - (mixture + step)[genes])
    own = _correlations(simulated, is_compared, mixture * is_compared, profiles.T)[
        np.arange(len(labels)), labels
    ]
    expected = np.array([np.median(own[labels == label]) for label in range(num_labels)])
    noise = float(np.median(counts_of(simulated))) * (
        1 / np.maximum(expected, MIN_EXPECTED) ** 2 - 1
    )
    markers = np.unique(
        np.argsort(np.median(means, axis=0) - means, axis=1, kind="stable")[:, :NUM_MARKERS]
    )
    return Resemblance(
        profiles=profiles.T,
        is_compared=is_compared,
        centre=centre * is_compared,
        shares=shares,
        noise=noise,
        naming_profiles=naming.T,
        naming_centre=(centre + step) * is_compared,
        markers=markers,
        ranks=centred(pd.DataFrame(means[:, markers]).rank(axis=1).to_numpy()).T,
    )


def median_resemblance(
    x: csr_matrix, reference: csr_matrix, labels: np.ndarray, of_file: csr_matrix
) -> float:
    """Return the median resemblance of cells of a file, N x G, to the labels of a reference.

    They are centred by the mean of `of_file`, which are cells of the whole file: a batch may have a single type.

    `reference`, M x G, has the same genes and depth, with the index of the label of each cell, M; each of
    0 to C-1 occurs.
    """
    centre = gene_means(of_file)
    shares = np.bincount(labels) / len(labels)
    # the shares of the labels in the reference
    found = fit_resemblance(centre, shares, reference, labels)
    calls = found.correlations(of_file).argmax(axis=1)
    found = fit_resemblance(
        centre, np.bincount(calls, minlength=len(shares)) / len(calls), reference, labels
    )
    return float(np.median(found.of_cells(x, found.correlations(x))))


def correlations_in_rounds(
    cells: np.ndarray, profiles: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the correlations of cells, N x G, with profiles, C x G, and the mean of the mixture of their types, G.

    Cells are centred by their mean. Profiles are centred by the mean of the nearest profiles of the cells, which are
    found in rounds, from the mean of all.
    """
    own = centred(cells - cells.mean(axis=0))
    mean = profiles.mean(axis=0)
    for _ in range(NEAREST_ROUNDS):
        correlations = own @ centred(profiles - mean).T
        mean = (
            np.bincount(correlations.argmax(axis=1), minlength=len(profiles))
            @ profiles
            / len(cells)
        )
    return correlations, mean
