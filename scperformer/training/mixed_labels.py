"""Labels with cells of another type, such as CD8 T cells in a cluster of CD4 T cells, by their markers.

A published profile of another family of types (model/tissues.py) has genes that no type of the label's own family
expresses. Cells that express two of these are counted, beside the number expected if the genes were independent, as
ambient RNA is. They are of that type, or doublets with it.

Shape letters: N cells, G genes, C labels, P profiles.
"""

import logging
import math
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from scperformer.cells.quality import technical
from scperformer.cells.splits import stratified_sample
from scperformer.model.label_profiles import find_profiles
from scperformer.trust.batch_effect import mean_counts

log = logging.getLogger(__name__)

MAX_SAMPLED_CELLS = 20_000  # that are looked at, the same share of each label
MAX_MARKERS = 5  # of a type
MIN_FACTOR = 5.0  # of a marker between the type and all types of the label's family
MIN_MARKER = 0.5  # counts per 10,000 of a marker in its type
PSEUDO_COUNTS = 0.05  # counts per 10,000, added before the quotient is taken
MIN_EXCESS_CELLS = 10
# Cells above the expected number: their share of a label, and their standard deviations. In PBMC 3k, .048 and 8 or
# more for the labels with CD8 T cells, up to .024 and 2.7 for the others.
MIN_EXCESS_SHARE = 0.04
MIN_DEVIATIONS = 5.0


def mixed_labels(
    x: csr_matrix, labels: np.ndarray, names: Sequence[str], genes: Sequence[str], tissue: str | None, seed: int
) -> list[str]:
    """Return a sentence for each label whose cells carry the markers of another type, and log it.

    `x` is ln(1 + cp10k), CSR N x G; `labels` are indices of `names`. If `tissue` is none of the packaged ones, it is
    the tissue that the labels resemble.
    """
    rows = stratified_sample(labels, MAX_SAMPLED_CELLS, seed)
    x, labels = x[rows], labels[rows]
    means_CG = np.stack([mean_counts(x[labels == label]) for label in range(len(names))])
    profiles = find_profiles([tissue], genes, means_CG)
    if profiles is None:
        return []
    is_usual = ~technical(np.array(genes)[profiles.shared])
    compared = profiles.shared[is_usual]
    logs_PG = np.log(profiles.counts[:, is_usual] + PSEUDO_COUNTS)
    is_on = (x[:, compared] > 0).tocsc()
    notes = []
    for label, name in enumerate(names):
        in_family = profiles.is_own[label]
        factors_PG = logs_PG - logs_PG[in_family].max(axis=0)
        is_marker = (factors_PG > np.log(MIN_FACTOR)) & (logs_PG > np.log(MIN_MARKER + PSEUDO_COUNTS))
        cells = is_on[labels == label]
        others = np.flatnonzero(~in_family)
        if not len(others):
            continue
        counted = [_carriers(cells, np.where(is_marker[row], factors_PG[row], 0)) for row in others]
        (deviations, num, expected, markers), row = max(zip(counted, others, strict=True), key=lambda pair: pair[0][0])
        least = max(MIN_EXCESS_CELLS, MIN_EXCESS_SHARE * cells.shape[0])
        if num - expected < least or deviations < MIN_DEVIATIONS:
            continue
        shown = ", ".join(genes[compared[marker]] for marker in markers)
        note = f"{num} of {cells.shape[0]:,} cells labelled {name} express two or more markers of "
        note += f"{profiles.labels[row]} ({shown}), where {expected:.0f} are expected by chance"
        log.warning("%s: the label may hold two types", note)
        notes.append(f"{note}.")
    return notes


def _carriers(is_on: csc_matrix, factors_G: np.ndarray) -> tuple[float, int, float, np.ndarray]:
    """Count the cells that express two or more of the genes with the highest factors, from N x G; 0 is no marker.

    Returns how many standard deviations the number is above the one that is expected of independent markers, both
    numbers, and the markers, int.
    """
    markers = np.argsort(-factors_G, kind="stable")[:MAX_MARKERS]
    markers = markers[factors_G[markers] > 0]
    cells = is_on[:, markers].toarray()
    numbers = np.ones(1)  # probabilities of 0, 1, 2... markers in a cell
    for share in cells.mean(axis=0):
        numbers = np.convolve(numbers, [1 - share, share])
    num, expected = int((cells.sum(axis=1) >= 2).sum()), float(numbers[2:].sum() * len(cells))
    return (num - expected) / math.sqrt(expected + 1), num, expected, markers
