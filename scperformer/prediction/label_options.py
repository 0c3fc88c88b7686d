"""The options about labels, checked against a model and a file: constraints, priors, ontology, label tree, clusters."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from anndata.io import read_elem

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.cells import label_columns
from scperformer.config import PredictConfig
from scperformer.files import BackedH5ad, reading
from scperformer.labels import (
    AUTO_CLUSTERS,
    LabelTree,
    allowed_labels,
    find_terms,
    joined_by_terms,
    label_texts,
    require_igraph,
)
from scperformer.model import SavedModel

log = logging.getLogger(__name__)


@dataclass
class LabelOptions:
    """The options about labels for the cells of one file."""

    terms: list[str]  # ontology id of each label
    tree: LabelTree | None
    allowed: np.ndarray  # boolean, C: labels that can occur
    prior: np.ndarray | None  # shares of the labels in the reference, if those of the file are to be estimated
    clusters: np.ndarray | None  # number of the cluster of each cell, if the file has clusters
    graph: sp.spmatrix | None  # neighbour graph for clusters=auto, if the file has one

    @property
    def term_of(self) -> dict[str, str]:
        """The ontology id of each node of the tree that has one."""
        return {} if self.tree is None else self.tree.terms | dict(zip(self.tree.labels, self.terms, strict=True))


def find_label_options(
    cells: AnnData | BackedH5ad, saved: SavedModel, cfg: PredictConfig, path: str = "the data"
) -> LabelOptions:
    """Check the options about labels before any cell is called.

    Raises
    ------
    InputError
        A label, a column or the ontology cannot be used; the model does not state the cells of each label; or igraph is
        missing for `clusters=auto`.
    """
    terms, tree = _terms_and_tree(saved, cfg)
    allowed = allowed_labels(saved.labels, cfg.allow_labels, cfg.deny_labels)
    prior = _shares_in_reference(saved) if cfg.prior == "em" else None
    clusters = None
    graph = None
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        if cfg.clusters == AUTO_CLUSTERS:
            require_igraph()
            graph = _neighbour_graph(cells)
        elif cfg.clusters is not None:
            clusters = _read_clusters(cells, cfg.clusters, path)
    return LabelOptions(terms, tree, allowed, prior, clusters, graph)


def _terms_and_tree(saved: SavedModel, cfg: PredictConfig) -> tuple[list[str], LabelTree | None]:
    """Return the ontology id of each label and the label tree, from the model or from the option `ontology`."""
    if cfg.ontology is None:
        return saved.ontology_term_ids, saved.tree
    terms, ontology = find_terms(saved.labels, saved.ontology_term_ids, cfg.ontology)
    if ontology is None:
        return terms, None
    release = saved.provenance.get("ontology")
    if release is not None and ontology.version != release:
        text = "ontology=%s is of release %s, but the ids of the model are of release %s: some may differ"
        log.warning(text, cfg.ontology, ontology.version, release)
    return terms, joined_by_terms(saved.labels, terms, ontology)


def _shares_in_reference(saved: SavedModel) -> np.ndarray:
    """Return the share of each label among the cells of the reference."""
    counts = saved.provenance.get("cells_per_label")
    numbers: list[Any] = [counts.get(label) if isinstance(counts, dict) else None for label in saved.labels]
    if not all(isinstance(num, int) and num > 0 for num in numbers):
        found = "prior=em and a model that does not state the cells of each label"
        raise InputError(found, "a model of 'scperformer train'", "leave prior=em out, or train it again")
    return np.array(numbers, dtype=np.float64) / sum(numbers)


def _neighbour_graph(cells: AnnData | BackedH5ad) -> sp.spmatrix | None:
    """Return the neighbour graph of scanpy in a file, or None without one."""
    stored = cells.file.get("obsp", {}) if isinstance(cells, BackedH5ad) else cells.obsp
    if "connectivities" not in stored:
        return None
    graph = stored["connectivities"] if isinstance(cells, AnnData) else read_elem(stored["connectivities"])
    if graph.shape != (cells.n_obs, cells.n_obs):
        raise ValueError(f"obsp/connectivities is {graph.shape}, but there are {cells.n_obs} cells")
    return graph


def _read_clusters(cells: AnnData | BackedH5ad, key: str, path: str) -> np.ndarray:
    """Return the number of the cluster of each cell, from a column of obs."""
    obs = cells.columns([key]) if isinstance(cells, BackedH5ad) else cells.obs
    remedy = f"set clusters=... to a column of clusters, or clusters={AUTO_CLUSTERS}"
    if key not in obs:
        likely = ", ".join(f"{name} ({num} values)" for name, num in label_columns(cells.obs).items())
        remedy = did_you_mean(key, cells.obs.columns) + remedy
        raise InputError(f"no column '{key}' in obs of {path}", likely or "a column of clusters", remedy)
    clusters = label_texts(obs[key])
    if num := int(clusters.isna().sum()):
        found = f"{num} of {len(obs)} cells of {path} without a cluster in obs['{key}']"
        raise InputError(found, "a cluster for each cell", f"fill them in, or {remedy}")
    return pd.factorize(clusters)[0]
