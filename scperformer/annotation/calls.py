"""The calls of the cells of a query: calibrated probabilities, labels, unknown cells, and clusters to check."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.predictions import Blocks, Predictions
from scperformer.annotation.clusters_to_check import (
    Checked,
    Exchange,
    check_clusters,
    compare_clusters,
    exchanged,
)
from scperformer.annotation.columns import gather_predictions, unknown_cells
from scperformer.annotation.fine_types import Family, find_families, with_families
from scperformer.annotation.label_options import LabelOptions
from scperformer.annotation.marker_evidence import MarkerEvidence, marker_evidence
from scperformer.base.messages import listed
from scperformer.cells.query import Query
from scperformer.config.options import AUTO
from scperformer.labels.constraints import reweighted
from scperformer.trust.shift import tempered

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of the N cells of a query by an adapted model."""

    adapted: Adapted
    options: LabelOptions
    blocks: Blocks  # with calibrated probabilities, some of which are exchanged
    table: pd.DataFrame  # of `gather_predictions`; barcodes that are no cells are empty
    novelty: np.ndarray  # float64 N
    checked: Checked
    is_novel: np.ndarray  # bool N: unknown by the cell itself
    markers: MarkerEvidence | None  # of a model by a list of marker genes
    fine_types: list[Family]  # without a model: how labels of families share their probability

    @property
    def query(self) -> Query:
        return self.adapted.query

    @cached_property
    def unknown(self) -> np.ndarray:
        """The cells that are unknown, by themselves or by their cluster, bool N."""
        return self.is_novel | self.is_new

    @property
    def is_new(self) -> np.ndarray:
        """The cells that are unknown as they look like a type without a label, bool N."""
        return self.checked.is_listed & (self.adapted.options.relabel == AUTO)

    @property
    def is_cell(self) -> np.ndarray:
        """The barcodes that are cells of the sample, bool N."""
        return self.query.findings.is_cell

    @cached_property
    def of_cells(self) -> pd.DataFrame:
        """The rows of the table that are cells of the sample."""
        return self.table[self.is_cell]

    @property
    def novel_share(self) -> float:
        """The share of the cells of the sample that are unknown by themselves."""
        return float(self.is_novel[self.is_cell].mean())


def find_calls(adapted: Adapted, blocks: Blocks, options: LabelOptions) -> Calls:
    """Call the cells of an adapted model, given predictions of all blocks, which are read several times."""
    labels = adapted.saved.labels
    if denied := [
        label for label, allowed in zip(labels, options.allowed, strict=True) if not allowed
    ]:
        log.info(
            "excluded labels: %s; probabilities are renormalised over the remaining labels",
            listed(denied),
        )
    options = options.with_kinds(adapted.is_named_by_kind)
    how = blocks, adapted.temperature, options.allowed
    calibrated: Blocks = partial(_calibrated, *how)
    table = _table_of(adapted, calibrated, options)
    compared = compare_clusters(adapted, table, options.allowed)
    if compared.exchanges:
        calibrated = partial(_calibrated, *how, compared.exchanges)
        table = _table_of(adapted, calibrated, options)
    fine_types = find_families(adapted, calibrated, table)
    if fine_types:
        calibrated = partial(with_families, calibrated, fine_types)
        table = _table_of(adapted, calibrated, options)
    novelty = adapted.novelty(table["scores"].to_numpy())
    flags = options.is_type, adapted.options.unknown_fpr, options.min_confidence
    of_kind = adapted.is_named_by_kind[table["best"]]  # a kind was judged as a whole
    unknown = unknown_cells(table, np.where(of_kind, 0.0, novelty), *flags)
    checked = check_clusters(adapted, blocks, table, unknown, compared)
    # Novel cells that, taken together, resemble the type of their label keep it.
    is_novel = unknown_cells(table, np.where(of_kind | checked.returned, 0.0, novelty), *flags)
    markers = marker_evidence(adapted, table["best"].to_numpy(), table["cluster"].to_numpy())
    if markers is not None:
        is_novel |= markers.has_none
    return Calls(
        adapted, options, calibrated, table, novelty, checked, is_novel, markers, fine_types
    )


def _calibrated(
    blocks: Blocks, temperature: float, allowed: np.ndarray, exchanges: Sequence[Exchange] = ()
) -> Iterator[Predictions]:
    """Yield predictions with calibrated probabilities, which allowed labels share, and some cells exchange."""
    start = 0
    for block in blocks():
        rows = slice(start, start + len(block.proba))
        start = rows.stop
        proba = tempered(block.proba, temperature)
        if not allowed.all():
            proba = reweighted(proba, allowed.astype(np.float64))
        yield replace(block, proba=exchanged(proba, rows, exchanges) if exchanges else proba)


def _table_of(adapted: Adapted, blocks: Blocks, options: LabelOptions) -> pd.DataFrame:
    """Return the predictions of all cells in one table; empty droplets and cells of another species are unknown."""
    tree, least = options.tree, options.min_confidence
    table = gather_predictions(blocks, tree, least, adapted.saved.families, options.named)
    return table.assign(empty=table["empty"] | ~adapted.query.findings.is_cell)
