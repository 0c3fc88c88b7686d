"""The options about labels, for the cells of one file: constraints, shares, label tree, clusters; quality of cells."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from anndata.io import read_elem

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.cells import (
    Droplets,
    Query,
    cell_quality,
    doublet_scores,
    gene_table,
    label_columns,
    low_quality,
    mitochondrial,
    why_no_doublets,
)
from scperformer.config import PredictConfig
from scperformer.files import BackedH5ad, reading
from scperformer.labels import (
    AUTO_CLUSTERS,
    UNKNOWN_TERM,
    LabelTree,
    allowed_labels,
    find_terms,
    joined_by_terms,
    label_texts,
    majority_labels,
    over_cluster,
    require_igraph,
    reweighted,
    shares_by_em,
)
from scperformer.model import SavedModel
from scperformer.prediction.calls import Calls

log = logging.getLogger(__name__)

MOST_EM_CELLS = 20_000  # cells, evenly spread, from which shares are estimated
NO_CALL = "unknown"  # if neither the label nor a parent is safe
Read = Callable[[], Iterable[Calls]]


@dataclass
class Rules:
    """The options about labels, checked against the model and the file."""

    terms: list[str]  # ontology id of each label
    tree: LabelTree | None
    allowed: np.ndarray  # boolean, C
    shares: np.ndarray | None  # of the labels in the reference, if they are to be estimated anew
    clusters: np.ndarray | None  # number of the cluster of each cell, if the file has them
    graph: sp.spmatrix | None  # of neighbours, for clusters=auto, if the file has one
    quality: pd.DataFrame | None = None  # low_quality, doublet_score and doublet of each cell
    quality_record: dict[str, Any] = field(default_factory=dict)

    @property
    def term_of(self) -> dict[str, str]:
        """The ontology id of each node of the tree that has one."""
        return {} if self.tree is None else self.tree.terms | dict(zip(self.tree.labels, self.terms, strict=True))


def find_rules(cells: AnnData | BackedH5ad, saved: SavedModel, cfg: PredictConfig, path: str = "the data") -> Rules:
    """Check the options about labels before any cell is called.

    Raises
    ------
    InputError
        A label, a column or the ontology cannot be used; the model does not state the cells of each label; or igraph is
        missing for `clusters=auto`.
    """
    labels = saved.labels
    terms = saved.ontology_term_ids
    tree = saved.tree
    if cfg.ontology is not None:
        terms, ontology = find_terms(labels, terms, cfg.ontology)
        tree = None if ontology is None else joined_by_terms(labels, terms, ontology)
        of_model = saved.provenance.get("ontology")
        if ontology is not None and of_model is not None and ontology.version != of_model:
            text = "ontology=%s is of release %s, but the ids of the model are of release %s: some may differ"
            log.warning(text, cfg.ontology, ontology.version, of_model)
    allowed = allowed_labels(labels, cfg.allow_labels, cfg.deny_labels)
    shares = None
    if cfg.prior == "em":
        counts = saved.provenance.get("cells_per_label")
        numbers: list[Any] = [counts.get(label) if isinstance(counts, dict) else None for label in labels]
        if not all(isinstance(num, int) and num > 0 for num in numbers):
            found = "prior=em and a model that does not state the cells of each label"
            raise InputError(found, "a model of 'scperformer train'", "leave prior=em out, or train it again")
        shares = np.array(numbers, dtype=np.float64) / sum(numbers)
    clusters = graph = None
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        if cfg.clusters == AUTO_CLUSTERS:
            require_igraph()
            stored = cells.file.get("obsp", {}) if isinstance(cells, BackedH5ad) else cells.obsp
            if "connectivities" in stored:
                graph = stored["connectivities"] if isinstance(cells, AnnData) else read_elem(stored["connectivities"])
                if graph.shape != (cells.n_obs, cells.n_obs):
                    raise ValueError(f"obsp/connectivities is {graph.shape}, but there are {cells.n_obs} cells")
        elif cfg.clusters is not None:
            clusters = _read_clusters(cells, cfg.clusters, path)
    return Rules(terms, tree, allowed, shares, clusters, graph)


def _read_clusters(cells: AnnData | BackedH5ad, key: str, path: str) -> np.ndarray:
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


def add_quality(rules: Rules, cells: AnnData | BackedH5ad, query: Query) -> None:
    """Measure the quality of the cells of a query with all genes of the file: which are low, and doublet scores."""
    findings = query.plan.findings
    path = query.path
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        measured = cell_quality(query.rows, mitochondrial(gene_table(cells, findings.source)), findings)
        scores = None
        threshold = math.nan
        note = why_no_doublets(findings)
        if not note:
            scores, threshold, note = doublet_scores(query.rows, findings.droplets)
    low, few, high = low_quality(measured, findings.droplets)
    doublets = np.full(len(low), np.nan) if scores is None else scores
    is_doublet = doublets > threshold
    num_doublets = int(is_doublet.sum())
    text = "%s: %d cells of low quality (fewer than %.0f genes, or a mitochondrial share above %.0f %%); doublets: %s"
    log.info(text, path, low.sum(), few, 100 * high, note or f"{num_doublets} likely (a score above {threshold:.2f})")
    columns = {"low_quality": low, "doublet_score": doublets.astype(np.float32), "doublet": is_doublet}
    rules.quality = pd.DataFrame(columns)
    rules.quality_record = {"num_low": int(low.sum()), "least_genes": few, "highest_mitochondrial": high}
    rules.quality_record |= {"num_doublets": num_doublets, "doublet_threshold": threshold, "doublet_note": note}


def with_constraints(
    read: Read, rules: Rules, labels: list[str], droplets: Droplets | None = None
) -> tuple[Read, dict[str, Any]]:
    """Apply constraints to the probabilities of calls; return the calls as before, and a record of the constraints.

    Barcodes that cannot be cells have no part in estimated shares of labels.
    """
    weights = rules.allowed.astype(np.float64)
    record = {}
    if not rules.allowed.all():
        denied = [label for label, allowed in zip(labels, rules.allowed, strict=True) if not allowed]
        log.info("labels that cannot occur: %s; confidences are for the choice among the others", ", ".join(denied))
        record["denied"] = np.array(denied, dtype=object)
    if rules.shares is not None:
        if droplets is None:
            step = -(-sum(len(calls.proba) for calls in read()) // MOST_EM_CELLS)
            some = np.concatenate([calls.proba[::step] for calls in read()])
        else:
            starts = np.cumsum([0, *(len(calls.proba) for calls in read())])
            numbers = droplets.some(MOST_EM_CELLS)
            places = np.searchsorted(numbers, starts)
            parts = zip(read(), starts, places, places[1:], strict=False)
            some = np.concatenate([calls.proba[numbers[begin:end] - start] for calls, start, begin, end in parts])
        before = rules.shares * rules.allowed
        before /= before.sum()
        kept = rules.allowed
        found = np.zeros(len(labels))
        found[kept] = shares_by_em(reweighted(some[:, kept], np.ones(kept.sum())), before[kept])
        weights[kept] = found[kept] / before[kept]
        shown = (f"{label} {new:.1%} ({old:.1%})" for label, new, old in zip(labels, found, before, strict=True))
        text = "prior=em: each call depends on all cells of the file; their estimated shares (reference): %s"
        log.info(text, ", ".join(shown))
        record |= {"estimated_shares": found, "reference_shares": before}
    if not record:
        return read, {}
    record["weights"] = weights  # of the labels' probabilities

    def constrained() -> Iterator[Calls]:
        for calls in read():
            yield replace(calls, proba=reweighted(calls.proba, weights))

    return constrained, record


def cluster_columns(
    obs: pd.DataFrame, key: str, read: Read, rules: Rules, cfg: PredictConfig, droplets: Droplets | None = None
) -> dict[str, Any]:
    """Add the label of each cell's cluster to obs, and whether its own is another one; return the record.

    Barcodes that cannot be cells have no vote, and their own label where clusters are looked for.
    """
    clusters = rules.clusters
    how = f"obs['{cfg.clusters}']"
    voters = np.arange(len(obs)) if droplets is None else np.sort(droplets.cells)
    labels = obs[f"{key}_label"].cat
    best = labels.codes.to_numpy(np.int64)
    winners = best.copy()
    if clusters is None:
        embedding = np.concatenate([calls.embedding for calls in read()])[voters]
        graph = rules.graph if rules.graph is None or droplets is None else rules.graph.tocsr()[voters][:, voters]
        found = over_cluster(embedding, graph)
        clusters = np.full(len(obs), -1)
        clusters[voters] = found
        how = f"Leiden on {'the embedding' if rules.graph is None else 'the neighbour graph of the file'}"
    in_voted = np.isin(clusters, clusters[voters])
    numbers = np.unique(clusters[voters], return_inverse=True)
    weights = obs[f"{key}_confidence"].to_numpy()[voters]
    majority = majority_labels(numbers[1], best[voters], weights, len(labels.categories))
    winners[in_voted] = majority[np.searchsorted(numbers[0], clusters[in_voted])]
    obs[f"{key}_cluster_label"] = pd.Categorical.from_codes(winners, categories=labels.categories)
    obs[f"{key}_cluster_disagrees"] = winners != best
    num = int(clusters.max()) + 1
    other = int((winners != best).sum())
    text = "clusters=%s: %d clusters (%s); %d cells (%.1f %%) have another label than their cluster"
    log.info(text, cfg.clusters, num, how, other, 100 * other / len(obs))
    return {"key": str(cfg.clusters), "how": how, "num_clusters": num, "num_disagree": other}


def tree_columns(proba: np.ndarray, best: np.ndarray, key: str, rules: Rules, least: float) -> dict[str, Any]:
    """Return the columns about the calls in a model's label tree: the call, its probability and its node on each level.

    Below the called node, and below a label on a higher level, a level repeats it.
    """
    assert rules.tree is not None
    tree = rules.tree
    term_of = rules.term_of
    called, confidence = tree.call(proba, best, least)
    names = list(dict.fromkeys([*tree.nodes, *([NO_CALL] if least > 0 else [])]))
    called = np.where(called < 0, names.index(NO_CALL) if least > 0 else 0, called)
    columns: dict[str, Any] = {f"{key}_call": pd.Categorical.from_codes(called, categories=names)}
    columns[f"{key}_call_confidence"] = confidence
    paths = [tree.path(name) for name in names]
    for level in range(tree.num_levels):
        nodes = [path[min(level, len(path) - 1)] for path in paths]
        categories = list(dict.fromkeys(nodes))
        columns[f"{key}_level{level + 1}"] = pd.Categorical(np.array(nodes, object)[called], categories=categories)
    terms = [term_of.get(name, UNKNOWN_TERM) for name in names]
    columns[f"{key}_ontology_term_id"] = pd.Categorical(np.array(terms)[called], categories=sorted(set(terms)))
    return columns
