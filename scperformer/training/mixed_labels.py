"""Labels with cells of another type, such as CD8 T cells in a cluster of CD4 T cells, by their markers.

Cells of a sibling type (cells/siblings.py) get its label. For other types, the published profile of a type
(model/tissues.py) has genes that no type of the label's own family expresses. Cells that express two of these are
counted, beside the number expected if the genes were independent, as ambient RNA is. They are of that type, or doublets
with it.

Shape letters: N cells, G genes, C labels, P profiles.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from scperformer.base.messages import listed
from scperformer.base.sparse import label_means, undo_log
from scperformer.cells.collection import CELLS_AT_ONCE
from scperformer.cells.quality import technical
from scperformer.cells.reference import Reference
from scperformer.cells.siblings import Siblings, are_alike, find_siblings
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import TrainOptions
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.label_profiles import Profiles, find_profiles
from scperformer.model.tissues import family_of

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


def sort_mixed(reference: Reference, cfg: TrainOptions) -> tuple[Reference, list[str], str | None]:
    """Give cells of a sibling type its label, if `relabel_reference`.

    Returns the reference, a sentence for each label that has cells of others, and the packaged tissue whose profiles
    were compared: `tissue`, or else the one that the labels resemble, if any.
    """
    rows = stratified_sample(reference.labels, MAX_SAMPLED_CELLS, cfg.seed)
    x, labels = reference.x[rows], reference.labels[rows]
    means_CG = label_means(undo_log(x), labels, len(reference.label_names))
    profiles = find_profiles([cfg.tissue], reference.genes, means_CG, reference.terms.ids)
    if profiles is None:
        return reference, [], None
    notes = _other_types(x, labels, profiles, reference)
    names, genes = reference.label_names, reference.genes
    for siblings in find_siblings(x, labels, profiles, genes):
        label = siblings.label
        changed = _relabelled(reference, siblings, means_CG)
        num = reference.counts[label] - changed.counts[label]
        type_name = packaged_ontology().names[family_of(profiles.terms[siblings.is_type][0])]
        note = f"{num:,} of {reference.counts[label]:,} cells labelled {names[label]} express "
        note += f"{listed(genes[place] for place in siblings.markers)} as a {type_name} does"
        if siblings.has_type.any() and cfg.relabel_reference:
            reference = changed
            of_type = listed(names[place] for place in np.flatnonzero(siblings.has_type))
            note += f": they are labelled {of_type}"
        log.warning("%s", note)
        notes.append(f"{note}.")
    return reference, notes, profiles.tissue


def _relabelled(reference: Reference, siblings: Siblings, means_CG: np.ndarray) -> Reference:
    """Give the cells of a label that are of a sibling type its most likely label; a further one if it has none."""
    new = np.flatnonzero(siblings.has_type)

    def changed(labels: np.ndarray, read: Callable[[np.ndarray], csr_matrix]) -> np.ndarray:
        labels = labels.copy()
        places = np.flatnonzero(labels == siblings.label)
        for start in range(0, len(places), CELLS_AT_ONCE):
            some = places[start : start + CELLS_AT_ONCE]
            x = read(some)
            is_in = siblings.include(x)
            if len(new):
                counts = np.expm1(x[is_in].toarray())
                labels[some[is_in]] = new[
                    (counts @ np.log(means_CG[new] + PSEUDO_COUNTS).T).argmax(axis=1)
                ]
            else:
                labels[some[is_in]] = len(means_CG)
        return labels

    stream = reference.stream
    if stream is not None:
        read, cells = stream.collection.read, stream.cells
        stream = replace(stream, labels=changed(stream.labels, lambda places: read(cells[places])))
    labels = changed(reference.labels, lambda places: reference.x[places])
    return replace(reference, labels=labels, stream=stream)


def _other_types(
    x: csr_matrix, labels: np.ndarray, profiles: Profiles, reference: Reference
) -> list[str]:
    """Return a sentence for each label whose cells carry the markers of a type of another kind, and log it."""
    names, genes = reference.label_names, reference.genes
    is_usual = ~technical(np.array(genes)[profiles.shared])
    compared = profiles.shared[is_usual]
    logs_PG = np.log(profiles.counts[:, is_usual] + PSEUDO_COUNTS)
    is_on = (x[:, compared] > 0).tocsc()
    is_alike = are_alike(profiles)
    notes = []
    for label, name in enumerate(names):
        in_family = profiles.is_own[label]
        factors_PG = logs_PG - logs_PG[in_family].max(axis=0)
        is_marker = (factors_PG > np.log(MIN_FACTOR)) & (
            logs_PG > np.log(MIN_MARKER + PSEUDO_COUNTS)
        )
        cells = is_on[labels == label]
        others = np.flatnonzero(~in_family & ~is_alike[in_family].any(axis=0))
        if not len(others):
            continue
        counted = [_carriers(cells, np.where(is_marker[row], factors_PG[row], 0)) for row in others]
        (deviations, num, expected, markers), row = max(
            zip(counted, others, strict=True), key=lambda pair: pair[0][0]
        )
        least = max(MIN_EXCESS_CELLS, MIN_EXCESS_SHARE * cells.shape[0])
        if num - expected < least or deviations < MIN_DEVIATIONS:
            continue
        note = f"{num} of {cells.shape[0]:,} cells labelled {name} express two or more markers of "
        shown = listed(genes[place] for place in compared[markers])
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
