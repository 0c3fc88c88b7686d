"""What a list of marker genes says of the calls of a model that was made by it, beside the model itself.

Cells of a cluster in which few cells have the markers of any type of the list are of none of its types.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from scperformer.adaptation.adapted import Adapted, SampledCells
from scperformer.adaptation.record import MarkersRecord, texts
from scperformer.cells.marker_types import find_types

MIN_CELLS = 60  # of a sample; fewer show no neighbours
MIN_OF_CALL = 10  # cells of a label
MIN_SHARE = 0.2  # of the cells of a cluster with the markers of any type (benchmarks/NOTES.md)


@dataclass(frozen=True, eq=False)
class MarkerEvidence:
    """The types of the N cells of a query by a list of marker genes."""

    source: str  # the name of the list
    genes: dict[str, list[str]]  # of each label of the list
    is_listed: np.ndarray  # bool N: the label of the cell is one of the list
    has_none: np.ndarray  # bool N: such a label, but a cluster without the markers of any type
    differing: pd.Series  # by label, the share of the sampled cells with the markers of another one

    @property
    def named_by(self) -> pd.Categorical:
        """Whether the list or another reference names the label of each cell."""
        return pd.Categorical.from_codes(
            self.is_listed.astype(int), categories=["reference", "markers"]
        )

    @property
    def record(self) -> MarkersRecord:
        pairs = [(label, gene) for label, genes in self.genes.items() for gene in genes]
        label, gene = (texts(each) for each in zip(*pairs, strict=True))
        called, share = texts(self.differing.index), self.differing.to_numpy(float)
        return MarkersRecord(source=self.source, label=label, gene=gene, called=called, share=share)


def marker_evidence(
    adapted: Adapted, best: np.ndarray, cluster: np.ndarray
) -> MarkerEvidence | None:
    """Return what the list of a model says, given the index of the label and the cluster of each cell, int64 N."""
    saved = adapted.saved
    facts = saved.provenance.markers
    if facts is None:
        return None
    listed = np.array(list(facts.genes), dtype=object)
    called = np.array(saved.labels, dtype=object)[best]
    is_listed = np.isin(called, listed)
    has_none = np.zeros(len(best), dtype=bool)
    differing = pd.Series(dtype=float)
    sampled = adapted.sampled
    if isinstance(sampled, SampledCells) and len(sampled.rows) >= MIN_CELLS:
        weights = np.array(
            [[float(gene in genes) for genes in facts.genes.values()] for gene in saved.genes]
        )
        of_type, _ = find_types(sampled.x, weights)
        rows = sampled.rows
        share = pd.Series(of_type >= 0).groupby(cluster[rows]).mean()
        has_none = is_listed & np.isin(cluster, share.index[share < MIN_SHARE])
        is_named = (of_type >= 0) & is_listed[rows]
        groups = pd.Series(listed[of_type] != called[rows])[is_named].groupby(
            called[rows][is_named]
        )
        differing = groups.mean()[groups.size() >= MIN_OF_CALL]
    return MarkerEvidence(facts.source, facts.genes, is_listed, has_none, differing)
