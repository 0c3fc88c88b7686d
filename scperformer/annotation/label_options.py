"""The options about labels, checked before any cell is called, and constraints on the probabilities of calls."""

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from anndata.io import read_elem

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed
from scperformer.cells.droplets import Droplets
from scperformer.cells.reference_labels import label_columns
from scperformer.config.annotation import AnnotationOptions
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.safety import reading
from scperformer.labels.cluster_votes import AUTO_CLUSTERS
from scperformer.labels.constraints import allowed_labels, reweighted, shares_by_em
from scperformer.labels.ontology import find_terms, joined_by_terms
from scperformer.labels.texts import label_texts
from scperformer.labels.tree import LabelTree
from scperformer.model.saved_model import SavedModel
from scperformer.training.calls import Calls, Read

log = logging.getLogger(__name__)

MAX_EM_CELLS = 20_000  # shares are estimated from so many cells, evenly spread over the file


@dataclass
class LabelOptions:
    """The options about the C labels of a model and the cells of a file."""

    terms: list[str]  # ontology id of each label
    tree: LabelTree | None
    allowed: np.ndarray  # boolean, C: False for a label that cannot occur
    shares: np.ndarray | None  # prior=em: the share of each label among the cells of the reference
    clusters: pd.Categorical | None  # the cluster of each cell, from a column of obs
    graph: sp.spmatrix | None  # where clusters are looked for: the neighbour graph of the file, if it has one


def find_label_options(
    cells: AnnData | BackedH5ad, saved: SavedModel, cfg: AnnotationOptions, path: str = "the data"
) -> LabelOptions:
    """Check the options about labels against a model and an open file, and read the clusters or the graph they need.

    Raises
    ------
    InputError
        A label, a column or the ontology cannot be used, or the model does not state the cells of each label.
    """
    terms, tree = _terms_and_tree(saved, cfg)
    allowed = allowed_labels(saved.labels, cfg.allow_labels, cfg.deny_labels)
    shares = _reference_shares(saved) if cfg.prior == "em" else None
    clusters = None
    graph = None
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        if cfg.clusters == AUTO_CLUSTERS:
            graph = _read_graph(cells)
        elif cfg.clusters is not None:
            clusters = _read_clusters(cells, cfg.clusters, path)
    return LabelOptions(terms, tree, allowed, shares, clusters, graph)


def _terms_and_tree(saved: SavedModel, cfg: AnnotationOptions) -> tuple[list[str], LabelTree | None]:
    """Return the ontology id of each label and the label tree, from `cfg.ontology` or else from the model."""
    if cfg.ontology is None:
        return saved.ontology_term_ids, saved.tree
    terms, ontology = find_terms(saved.labels, saved.ontology_term_ids, cfg.ontology)
    if ontology is None:
        return terms, None
    release = saved.provenance.get("ontology")
    if release is not None and ontology.version != release:
        text = "ontology=%s is release %s, but the ids of the model are from release %s: some may differ"
        log.warning(text, cfg.ontology, ontology.version, release)
    return terms, joined_by_terms(saved.labels, terms, ontology)


def _reference_shares(saved: SavedModel) -> np.ndarray:
    """Return the share of each label among the cells that a model was trained on."""
    counts = saved.provenance.get("cells_per_label")
    numbers: list[Any] = [counts.get(label) if isinstance(counts, dict) else None for label in saved.labels]
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        found = "prior=em and a model that does not state the cells of each label"
        raise InputError(found, "a model of 'scperformer train'", "leave prior=em out, or train it again")
    return np.array(numbers, dtype=np.float64) / sum(numbers)


def _read_graph(cells: AnnData | BackedH5ad) -> sp.spmatrix | None:
    """Return the neighbour graph that scanpy has stored with the cells; None if there is none."""
    stored = cells.file.get("obsp", {}) if isinstance(cells, BackedH5ad) else cells.obsp
    if "connectivities" not in stored:
        return None
    graph = stored["connectivities"] if isinstance(cells, AnnData) else read_elem(stored["connectivities"])
    if graph.shape != (cells.n_obs, cells.n_obs):
        raise ValueError(f"obsp/connectivities is {graph.shape}, but there are {cells.n_obs} cells")
    return graph


def _read_clusters(cells: AnnData | BackedH5ad, key: str, path: str) -> pd.Categorical:
    """Return the number of each cell's cluster, from 0, by a column of obs."""
    obs = cells.columns([key]) if isinstance(cells, BackedH5ad) else cells.obs
    remedy = f"set clusters=... to a column of clusters, or clusters={AUTO_CLUSTERS}"
    if key not in obs:
        likely = listed(f"{name} ({num} values)" for name, num in label_columns(cells.obs).items())
        remedy = did_you_mean(key, cells.obs.columns) + remedy
        raise InputError(f"no column '{key}' in obs of {path}", likely or "a column of clusters", remedy)
    clusters = label_texts(obs[key])
    if num := int(clusters.isna().sum()):
        found = f"{num} of {len(obs)} cells of {path} without a cluster in obs['{key}']"
        raise InputError(found, "a cluster for each cell", f"fill them in, or {remedy}")
    return pd.Categorical(clusters)


def constrained(
    read: Read, options: LabelOptions, labels: list[str], droplets: Droplets | None
) -> tuple[Read, dict[str, Any]]:
    """Apply the constraints to the probabilities of calls; return how to read these calls, and a record.

    The record is empty without constraints. Shares of labels are estimated without the barcodes that cannot be cells.
    """
    weights = options.allowed.astype(np.float64)
    record: dict[str, Any] = {}
    if not options.allowed.all():
        denied = [label for label, allowed in zip(labels, options.allowed, strict=True) if not allowed]
        log.info("excluded labels: %s; probabilities are renormalised over the remaining labels", listed(denied))
        record["denied"] = np.array(denied, dtype=object)
    if options.shares is not None:
        estimated, reference = _estimated_shares(read, options.shares, options.allowed, droplets)
        weights[options.allowed] = estimated[options.allowed] / reference[options.allowed]
        shares = zip(labels, estimated, reference, strict=True)
        text = "prior=em: calls depend on all cells of the query; estimated label frequencies (reference): %s"
        log.info(text, listed(f"{label} {new:.1%} ({old:.1%})" for label, new, old in shares))
        record |= {"estimated_shares": estimated, "reference_shares": reference}
    if not record:
        return read, {}
    record["weights"] = weights  # factors of the labels' probabilities

    def read_constrained() -> Iterator[Calls]:
        for calls in read():
            yield replace(calls, proba=reweighted(calls.proba, weights))

    return read_constrained, record


def _estimated_shares(
    read: Read, shares: np.ndarray, allowed: np.ndarray, droplets: Droplets | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the estimated share of each label in the file, and its share in the reference among the allowed labels."""
    proba = _some_probabilities(read, droplets)
    reference = shares * allowed
    reference /= reference.sum()
    estimated = np.zeros(len(shares))
    renormalised = reweighted(proba[:, allowed], np.ones(allowed.sum()))
    estimated[allowed] = shares_by_em(renormalised, reference[allowed])
    return estimated, reference


def _some_probabilities(read: Read, droplets: Droplets | None) -> np.ndarray:
    """Return the probabilities of some `MAX_EM_CELLS` cells, without the barcodes that cannot be cells."""
    starts = np.cumsum([0, *(len(calls.proba) for calls in read())])
    if droplets is None:
        step = -(-int(starts[-1]) // MAX_EM_CELLS)
        return np.concatenate([calls.proba[::step] for calls in read()])
    rows = droplets.some(MAX_EM_CELLS)
    places = np.searchsorted(rows, starts)
    blocks = zip(read(), starts, places, places[1:], strict=False)
    return np.concatenate([calls.proba[rows[begin:end] - start] for calls, start, begin, end in blocks])
