"""Cells of a label that are of a sibling type, such as CD8 T cells among cells labelled CD4 T cells, by their markers.

Siblings are families of one kind (model/tissues.py), such as T cells. A marker is a gene that most types of a family
express, and neither the types of the label nor those of other kinds express as much. The counts of all markers in a
cell are Poisson: of the sibling, or of ambient RNA, as in cells of other kinds. The share of the sibling is the most
likely one. Doublets have more counts than other cells of the label, and half as much of a marker as the sibling.

Shape letters: N cells, G genes, C labels, P profiles, M markers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import expit, logit

from scperformer.base.sparse import counts_of
from scperformer.cells.quality import technical
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.label_profiles import Profiles
from scperformer.model.tissues import collection

MAX_MARKERS = 5
MIN_MARKERS = 2
MIN_FACTOR = 5.0  # of a marker over the types of the label in three quarters of the pairs, and over ambient RNA
MIN_MARKER = 0.5  # counts per 10,000 of a marker in the median type of the family
PSEUDO_COUNTS = 0.05  # counts per 10,000, added before the quotient is taken
MIN_OTHERS = 50  # cells of other kinds, which show the ambient RNA
# cells with a label of the sibling, whose mean is taken in place of that of its profiles
MIN_OWN = 10
NUM_ROUNDS = 50  # of finding the share
# Cells above the number by chance: their number, their share of the label, and their standard deviations. Naive CD4
# T cells by clusters have shares of .09 to .25 in four references, sorted ones and other labels up to .02.
MIN_EXCESS_CELLS = 10
MIN_EXCESS_SHARE = 0.04
MIN_DEVIATIONS = 5.0
MIN_LEVEL = 0.4  # of each marker in these cells, as a share of its mean in the sibling; doublets in a pancreas have .25
MAX_RATIO = 1.3  # of the medians of their counts and of those of all cells of the label
MAX_DEPTH = 2.0  # counts of one of them, in medians of the label
DOUBLETS = 0.1  # doublets with the sibling for each cell of it, before the markers are seen
SHARES = (1e-4, 0.95)
OWN, TYPE, OTHER = 1, 2, 3  # cells of the label, of labels of the sibling, and of other kinds


@dataclass(frozen=True, eq=False)
class Siblings:
    """The cells of a label that are of a sibling type."""

    markers: np.ndarray  # int M
    mean: float  # counts per 10,000 of all markers in cells of the type
    ambient: float
    max_counts: float
    share: float = 0.5  # of the type among the cells of the label
    label: int = 0
    # P: profiles of the type
    is_type: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    # C: labels of the type
    has_type: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def include(self, x: csr_matrix) -> np.ndarray:
        """Return which cells with the label, from ln(1 + cp10k), N x G, are of the type, bool N."""
        counts = counts_of(x)
        return self.are_of(_counts_of_genes(x[:, self.markers], counts), counts)

    def are_of(self, markers_NM: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the same from the counts of markers and of all genes, N."""
        of_type = counts / 1e4 * self.mean
        of_doublet = counts / 1e4 * (self.mean + self.ambient) / 2
        sums = markers_NM.sum(axis=1)
        is_single = sums * np.log(of_type / of_doublet) - of_type + of_doublet > np.log(DOUBLETS)
        return (self.odds(markers_NM, counts) > 0) & is_single & (counts <= self.max_counts)

    def odds(self, markers_NM: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the logarithm of the odds that cells are of the type, from counts of markers and of all genes, N."""
        excess = counts / 1e4 * (self.mean - self.ambient)
        return (
            markers_NM.sum(axis=1) * np.log(self.mean / self.ambient) - excess + logit(self.share)
        )


def _counts_of_genes(x: csr_matrix, counts: np.ndarray) -> np.ndarray:
    """Return the counts of some genes, float64 N x M, from ln(1 + cp10k) and the counts of the cells, N."""
    return np.rint(np.expm1(x.toarray().astype(np.float64)) * counts[:, None] / 1e4)


def are_alike(profiles: Profiles) -> np.ndarray:
    """Return which profiles are of one kind, such as T cells, bool P x P."""
    kinds = [packaged_ontology().ancestors(term) & collection().kinds for term in profiles.terms]
    return np.array([[not one.isdisjoint(other) for other in kinds] for one in kinds])


def find_siblings(
    x: csr_matrix, labels: np.ndarray, profiles: Profiles, genes: Sequence[str]
) -> list[Siblings]:
    """Find the labels that hold cells of a sibling type, whether another label is of this type or not.

    `x` is ln(1 + cp10k), N x G; `labels` are the indices of the labels of its cells.
    """
    is_alike = are_alike(profiles)
    counts = counts_of(x)
    columns = x.tocsc()
    total = np.expm1(columns[:, profiles.shared].data.astype(np.float64)).sum() / x.shape[0]
    logs_PG = np.log(
        profiles.counts * (total / profiles.counts.sum(axis=1, keepdims=True)) + PSEUDO_COUNTS
    )
    is_usual = ~technical(np.array(genes)[profiles.shared])
    found = []
    for family in np.unique(profiles.families):
        is_type = profiles.families == family
        is_other = ~is_alike[is_type].any(axis=0)
        lows_G = np.quantile(logs_PG[is_type], 0.25, axis=0)
        medians_G = np.median(logs_PG[is_type], axis=0)
        is_own = medians_G > logs_PG[is_other].max(
            axis=0, initial=np.log(MIN_MARKER + PSEUDO_COUNTS)
        )
        has_type: np.ndarray = np.asarray(profiles.is_own[:, is_type].any(axis=1))
        has_other = ~np.asarray(profiles.is_own[:, ~is_other].any(axis=1))
        for label in np.unique(labels):
            types = profiles.is_own[label]
            if has_type[label] or not is_alike[np.ix_(types, is_type)].all():
                continue
            factors_G = lows_G - np.quantile(logs_PG[types], 0.75, axis=0)
            factors_G = np.where(is_usual & is_own & (factors_G > np.log(MIN_FACTOR)), factors_G, 0)
            markers = np.argsort(-factors_G, kind="stable")[:MAX_MARKERS]
            markers = markers[factors_G[markers] > 0]
            is_new = has_type & ~np.asarray((profiles.is_own & types).any(axis=1))
            group = np.where(has_other[labels], OTHER, 0)
            group[is_new[labels]] = TYPE
            group[labels == label] = OWN
            genes_M = profiles.shared[markers]
            markers_NM = _counts_of_genes(columns[:, genes_M], counts)
            one = _fit(markers_NM, counts, group, np.exp(medians_G[markers]), genes_M)
            if one is not None:
                found.append(replace(one, label=int(label), is_type=is_type, has_type=is_new))
    return found


def _fit(
    markers_NM: np.ndarray,
    counts: np.ndarray,
    group: np.ndarray,
    means_M: np.ndarray,
    genes_M: np.ndarray,
) -> Siblings | None:
    """Find the `OWN` cells that are of the sibling, as `TYPE` cells are and `OTHER` cells are not; None: too few.

    `markers_NM` are the counts of the markers `genes_M`, and `counts` those of all genes; the sibling has the means
    `means_M` in its profiles.
    """
    own, other, of_type = group == OWN, group == OTHER, group == TYPE
    if other.sum() < MIN_OTHERS:
        return None
    if of_type.sum() >= MIN_OWN:
        means_M = 1e4 * markers_NM[of_type].sum(axis=0) / counts[of_type].sum()
    ambient_M = 1e4 * (markers_NM[other].sum(axis=0) + 0.5) / counts[other].sum()
    is_marker = means_M > MIN_FACTOR * ambient_M
    if is_marker.sum() < MIN_MARKERS:
        return None
    markers_NM = markers_NM[:, is_marker]
    means_M = means_M[is_marker]
    max_counts = MAX_DEPTH * float(np.median(counts[own]))
    one = Siblings(
        genes_M[is_marker], float(means_M.sum()), float(ambient_M[is_marker].sum()), max_counts
    )
    odds = one.odds(markers_NM[own], counts[own])
    for _ in range(NUM_ROUNDS):
        one = replace(one, share=float(np.clip(expit(odds + logit(one.share)).mean(), *SHARES)))
    is_in = one.are_of(markers_NM, counts)
    expected = is_in[other].mean() * own.sum()
    found = is_in & own
    excess = found.sum() - expected
    if excess < max(
        MIN_EXCESS_CELLS, MIN_EXCESS_SHARE * own.sum(), MIN_DEVIATIONS * np.sqrt(expected + 1)
    ):
        return None
    levels_M = 1e4 * markers_NM[found].sum(axis=0) / counts[found].sum() / means_M
    are_single = np.median(counts[found]) < MAX_RATIO * np.median(counts[own])
    return one if are_single and levels_M.min() >= MIN_LEVEL else None
