"""The options about labels, checked before any cell is called."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import scipy.sparse as sp

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed
from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference_labels import label_columns
from scperformer.config.annotation import AnnotationOptions
from scperformer.labels.cluster_votes import (
    AUTO_CLUSTERS,
    MANY_CLUSTERS_RESOLUTION,
    USUAL_RESOLUTION,
)
from scperformer.labels.constraints import allowed_labels
from scperformer.labels.ontology import find_terms, joined_by_terms
from scperformer.labels.texts import label_texts, means_no_label
from scperformer.labels.tree import LabelTree
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class LabelOptions:
    """The options about the C labels of a model and the N cells of a file."""

    labels: list[str]
    terms: list[str]  # ontology id of each label
    tree: LabelTree | None
    allowed: np.ndarray  # boolean, C: False for a label that cannot occur
    is_type: np.ndarray  # boolean, C: False for a label whose cells are unknown
    min_confidence: float
    clusters: str | None  # a column of obs, or auto
    cluster_of_cell: pd.Categorical | None  # N, from the column of obs
    resolution: float  # of clusters that are looked for
    # where clusters are looked for: the neighbour graph of the file, if it has one
    graph: sp.spmatrix | None
    named: Sequence[str] = ()  # node of the tree by which each label is called; empty: its own

    def with_kinds(self, by_kind: np.ndarray) -> "LabelOptions":
        """Return the options with labels, bool C, that are types by their kind: their parent in the tree."""
        if self.tree is None or not by_kind.any():
            return self
        pairs = zip(self.labels, by_kind, strict=True)
        named = [
            self.tree.parents.get(label, label) if is_named else label for label, is_named in pairs
        ]
        return replace(self, is_type=self.is_type | by_kind, named=named)


def find_label_options(
    cells: OpenedCells, saved: SavedModel, cfg: AnnotationOptions, usual_confidence: float
) -> LabelOptions:
    """Check the options about labels against a model and opened cells, and read the clusters or the graph they need.

    `usual_confidence` is the `min_confidence` of the kind of the model.

    Raises
    ------
    InputError
        A label, a column or the ontology cannot be used.
    """
    terms = saved.ontology_term_ids
    tree = saved.tree
    if cfg.ontology is not None:
        terms, ontology = find_terms(saved.labels, saved.ontology_term_ids, cfg.ontology)
        tree = None if ontology is None else joined_by_terms(saved.labels, terms, ontology)
        release = saved.provenance.ontology
        if ontology is not None and release is not None and ontology.version != release:
            text = "ontology=%s is release %s, but the ids of the model are from release %s: some may differ"
            log.warning(text, cfg.ontology, ontology.version, release)
    clusters = None
    graph = None
    key = AUTO_CLUSTERS if cfg.clusters is None and cfg.markers_output is not None else cfg.clusters
    with cells.reading():
        if key == AUTO_CLUSTERS:
            graph = cells.neighbour_graph()
            if graph is not None and graph.shape != (cells.n_obs, cells.n_obs):
                raise ValueError(
                    f"obsp/connectivities is {graph.shape}, but there are {cells.n_obs} cells"
                )
        elif key is not None:
            clusters = _read_clusters(cells, key)
    return LabelOptions(
        labels=saved.labels,
        terms=terms,
        tree=tree,
        allowed=allowed_labels(saved.labels, cfg.allow_labels, cfg.deny_labels),
        is_type=np.array(
            [not means_no_label(label) and label not in saved.others for label in saved.labels]
        ),
        min_confidence=usual_confidence if cfg.min_confidence is None else cfg.min_confidence,
        clusters=key,
        resolution=MANY_CLUSTERS_RESOLUTION if cfg.markers_output is None else USUAL_RESOLUTION,
        cluster_of_cell=clusters,
        graph=graph,
    )


def _read_clusters(cells: OpenedCells, key: str) -> pd.Categorical:
    """Return the number of each cell's cluster, from 0, by a column of obs."""
    obs = cells.columns([key])
    remedy = f"set clusters=... to a column of clusters, or clusters={AUTO_CLUSTERS}"
    if key not in obs:
        likely = listed(f"{name} ({num} values)" for name, num in label_columns(cells.obs).items())
        remedy = did_you_mean(key, cells.obs.columns) + remedy
        found = f"no column '{key}' in obs of {cells.path}"
        raise InputError("no-column", found, likely or "a column of clusters", remedy)
    clusters = label_texts(obs[key])
    if num := int(clusters.isna().sum()):
        found = f"{num} of {len(obs)} cells of {cells.path} without a cluster in obs['{key}']"
        raise InputError(
            "missing-clusters", found, "a cluster for each cell", f"fill them in, or {remedy}"
        )
    return pd.Categorical(clusters)
