"""What a list of marker genes says of the calls of a model that was made by it, beside the model itself."""

import numpy as np
import pandas as pd

from scperformer.adaptation.adapted import Adapted, SampledCells
from scperformer.adaptation.record import MarkersRecord, texts
from scperformer.cells.marker_types import find_types
from scperformer.model.bundle import MarkerFacts

MIN_CELLS = 60  # of a sample; fewer show no neighbours
MIN_OF_CALL = 10  # cells of a label


def named_by(adapted: Adapted, best: np.ndarray) -> pd.Categorical | None:
    """Return what names the label of each cell, given its index: `markers` of the list, or the other `reference`."""
    facts = adapted.saved.provenance.markers
    if facts is None:
        return None
    is_of_list = np.isin(adapted.saved.labels, list(facts.genes))
    return pd.Categorical.from_codes(is_of_list[best].astype(int), categories=["reference", "markers"])


def markers_record(adapted: Adapted, best: np.ndarray) -> MarkersRecord | None:
    """Return the list of a model, and for each of its labels which share of some cells has markers of another type.

    `best` is the index of the label of each cell.
    """
    facts = adapted.saved.provenance.markers
    if facts is None:
        return None
    pairs = [(label, gene) for label, genes in facts.genes.items() for gene in genes]
    label, gene = (texts(each) for each in zip(*pairs, strict=True))
    disagreeing = pd.Series(dtype=float)
    sampled = adapted.sampled
    if isinstance(sampled, SampledCells) and len(sampled.rows) >= MIN_CELLS:
        disagreeing = _disagreeing(adapted, sampled, facts, best[sampled.rows])
    return MarkersRecord(
        source=facts.source, label=label, gene=gene, called=texts(disagreeing.index), share=disagreeing.to_numpy(float)
    )


def _disagreeing(adapted: Adapted, sampled: SampledCells, facts: MarkerFacts, best: np.ndarray) -> pd.Series:
    saved = adapted.saved
    weights = np.array([[float(gene in genes) for genes in facts.genes.values()] for gene in saved.genes])
    of_type, _ = find_types(sampled.x, weights)
    called = np.asarray(saved.labels, dtype=object)[best]
    is_named = (of_type >= 0) & np.isin(called, list(facts.genes))
    differs = pd.Series(np.asarray(list(facts.genes), dtype=object)[of_type] != called)[is_named]
    groups = differs.groupby(called[is_named])
    return groups.mean()[groups.size() >= MIN_OF_CALL]
