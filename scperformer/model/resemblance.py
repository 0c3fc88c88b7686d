"""Resemblance of cells to the profiles of a tissue: calls that need no fit, and cells that resemble no type.

The correlation of a cell with a profile, both centred: the cell by the mean of its file, the profile by the mean of the
same mixture of types. What all cells of the file share, its chemistry and its ambient RNA, has no part in it.

A reference of profiles has no cells, whose spread would show how far a cell may be from its type. So the correlation is
compared with a simulated cell of the type that has as many counts: shallow cells are not novel for that.

Shape letters: N cells, C labels, G genes.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import softmax

NUM_GENES = 2000  # that vary most between the profiles
SHARPNESS = 15.0  # of the probabilities by correlation
FAMILY_POWER = 2.5  # of the joined probabilities of families, by which they hold on the choosing files
MIN_EXPECTED = 0.15  # correlation of simulated cells of a type; a smaller one would make any cell resemble it
# Share of known cells with at most this resemblance relative to the usual one of their file: the mean over the choosing
# files of benchmarks/tissues.py.
SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
QUANTILES = (0.0, 0.376, 0.434, 0.524, 0.605, 0.695, 0.769, 0.879, 0.974, 1.125, 1.8)
USUAL = 0.75  # quantile of the resemblance of the cells of a file; types that the tissue lacks are below it
MIN_USUAL = 0.25
FEW_RESEMBLE = 0.35  # median resemblance of a file; below it, the file is of another tissue
TINY = 1e-9  # in place of 0, where a quotient is taken


@dataclass
class Resemblance:
    """The profiles of a tissue as a file is compared with them."""

    profiles: np.ndarray  # float64 G x C: centred by the mixture, mean 0, length 1; 0 for genes that are not compared
    is_compared: np.ndarray  # float64 G: 1 for genes that are compared, else 0
    centre: np.ndarray  # float64 G: mean of the file; 0 for genes that are not compared
    shares: np.ndarray  # float64 C: mixture of types
    noise: np.ndarray  # float64 C: counts at which half of the squared length of a cell of the type is noise
    usual: float = 1.0  # resemblance of the cells of the file

    def correlations(self, x: csr_matrix) -> np.ndarray:
        """Return the correlation of cells with each profile, float64 N x C, from ln(1 + cp10k), CSR N x G.

        Sparse products treat each cell by itself, so that it does not depend on the others.
        """
        values = x.astype(np.float64)
        squares = values.multiply(values) @ self.is_compared - 2 * (values @ self.centre) + self.centre @ self.centre
        num_genes = self.is_compared.sum()
        means = (values @ self.is_compared - self.centre.sum()) / num_genes
        lengths = np.sqrt(np.maximum(squares - num_genes * means**2, TINY))
        return (values @ self.profiles - self.centre @ self.profiles) / lengths[:, None]

    def of_cells(self, x: csr_matrix, correlations: np.ndarray) -> np.ndarray:
        """Return the largest resemblance of cells to a type, float64 N; simulated cells have about 1."""
        return (correlations * np.sqrt(1 + self.noise / counts_of(x)[:, None])).max(axis=1)

    def novelty(self, resemblance: np.ndarray) -> np.ndarray:
        """Return the share of known cells that resemble their type more, float64 N, 0 to 1."""
        return 1 - np.interp(resemblance / max(self.usual, MIN_USUAL), QUANTILES, SHARES)


def joined(proba: np.ndarray, correlations: np.ndarray, families: np.ndarray) -> np.ndarray:
    """Join the probabilities of a fit, float32 N x C, with those by correlation: float32 N x C.

    Those of families, whose numbers are `families`, C, are raised to a power; their labels keep their shares.
    """
    both = proba / 2 + softmax(SHARPNESS * correlations, axis=1) / 2
    sums = np.zeros((len(both), int(families.max()) + 1))
    for family, values in zip(families, both.T, strict=True):
        sums[:, family] += values
    powers = sums**FAMILY_POWER
    factors = powers / powers.sum(axis=1, keepdims=True) / np.maximum(sums, TINY)
    return (both * factors[:, families]).astype(np.float32)


def fit_resemblance(centre: np.ndarray, shares: np.ndarray, simulated: csr_matrix, labels: np.ndarray) -> Resemblance:
    """Compare a file, of which the mean, G, and the shares of the labels, C, are known, with simulated cells."""
    num_labels = int(labels.max()) + 1
    means = np.stack([np.asarray(simulated[labels == label].mean(axis=0)).ravel() for label in range(num_labels)])
    mixture = shares @ means
    genes = np.argsort(-means.std(axis=0), kind="stable")[:NUM_GENES]
    is_compared = np.zeros(means.shape[1])
    is_compared[genes] = 1
    profiles = np.zeros_like(means)
    profiles[:, genes] = centred(means[:, genes] - mixture[genes])
    of_simulated = Resemblance(profiles.T, is_compared, mixture * is_compared, shares, np.zeros(num_labels))
    own = of_simulated.correlations(simulated)[np.arange(len(labels)), labels]
    expected = np.array([np.median(own[labels == label]) for label in range(num_labels)])
    noise = float(np.median(counts_of(simulated))) * (1 / np.maximum(expected, MIN_EXPECTED) ** 2 - 1)
    return Resemblance(profiles.T, is_compared, centre * is_compared, shares, noise)


def median_resemblance(x: csr_matrix, reference: csr_matrix, labels: np.ndarray, of_file: csr_matrix) -> float:
    """Return the median resemblance of cells of a file, N x G, to the labels of a reference.

    They are centred by the mean of `of_file`, which are cells of the whole file: a batch may have a single type.

    `reference`, M x G, is in the same condition, with the index of the label of each cell, M; each of 0 to C-1 occurs.
    """
    centre = np.asarray(of_file.mean(axis=0)).ravel()
    shares = np.bincount(labels) / len(labels)
    found = fit_resemblance(centre, shares, reference, labels)  # the shares of the labels in the reference
    calls = found.correlations(of_file).argmax(axis=1)
    found = fit_resemblance(centre, np.bincount(calls, minlength=len(shares)) / len(calls), reference, labels)
    return float(np.median(found.of_cells(x, found.correlations(x))))


def centred(x: np.ndarray) -> np.ndarray:
    """Return rows with mean 0 and length 1."""
    rest = x - x.mean(axis=1, keepdims=True)
    return rest / np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), TINY)


def counts_of(x: csr_matrix) -> np.ndarray:
    """Return the counts of each cell, float64 N, from ln(1 + cp10k): its smallest expression is one count."""
    smallest = np.full(x.shape[0], np.inf)
    has_any = np.diff(x.indptr) > 0
    smallest[has_any] = np.minimum.reduceat(x.data, x.indptr[:-1][has_any])
    return 1e4 / np.maximum(np.expm1(np.minimum(smallest, 10.0)), TINY)
