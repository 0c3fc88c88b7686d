"""The makers of an annotation's columns: each makes some columns of obs and their entries in the record.

Columns that depend on the cell alone are made block by block, the others when all blocks are there. Names are those of
labels/columns.py, without the prefix.
"""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.special import softmax

from scperformer.base.messages import joined
from scperformer.cells import (
    Droplets,
    Query,
    cell_quality,
    doublet_scores,
    gene_table,
    low_quality,
    mitochondrial,
    why_no_doublets,
)
from scperformer.config import PredictConfig
from scperformer.files import BackedH5ad, reading
from scperformer.labels import UNKNOWN_TERM, LabelTree, majority_labels, over_cluster
from scperformer.model import HeldOut, SavedModel
from scperformer.prediction.calls import Calls, Read
from scperformer.prediction.label_options import LabelOptions
from scperformer.trust import calibration, held_out_coverage, label_sets, novelty_share, set_threshold

log = logging.getLogger(__name__)

NO_CALL = "unknown"  # the call of a cell for which neither the label nor a parent reaches the confidence
Columns = dict[str, Any]  # name -> one value per cell
Record = dict[str, Any]


class ColumnMaker:
    """Makes columns, and entries of the record."""

    def of_block(self, calls: Calls, columns: Columns) -> Columns:
        """Return columns of the cells of a block; `columns` are those that earlier makers have made."""
        return {}

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Return columns of all cells and entries of the record; `obs` has the columns so far."""
        return {}, {}


@dataclass
class TreeColumns(ColumnMaker):
    """The calls in a label tree: the called node, its probability and its node on each level."""

    tree: LabelTree
    term_of: dict[str, str]  # ontology id of each node that has one
    min_confidence: float
    path: str

    def of_block(self, calls: Calls, columns: Columns) -> Columns:
        """Below the called node, and below a label on a higher level, a level repeats it."""
        called, confidence = self.tree.call(calls.proba, calls.proba.argmax(axis=1), self.min_confidence)
        may_fail = self.min_confidence > 0
        names = list(dict.fromkeys([*self.tree.nodes, *([NO_CALL] if may_fail else [])]))
        called = np.where(called < 0, names.index(NO_CALL) if may_fail else 0, called)
        made: Columns = {"call": pd.Categorical.from_codes(called, categories=names), "call_confidence": confidence}
        paths = [self.tree.path(name) for name in names]
        for level in range(self.tree.num_levels):
            nodes = [path[min(level, len(path) - 1)] for path in paths]
            categories = list(dict.fromkeys(nodes))
            made[f"level{level + 1}"] = pd.Categorical(np.array(nodes, object)[called], categories=categories)
        terms = [self.term_of.get(name, UNKNOWN_TERM) for name in names]
        return made | {"ontology_term_id": pd.Categorical(np.array(terms)[called], categories=sorted(set(terms)))}

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Record the tree, and the number of calls that are not the label of the cell."""
        # As codes: as text, a million cells would take a quarter of a GB.
        calls = obs["call"].cat
        best = obs["label"].cat
        num_backed_off = int((calls.set_categories(best.categories).cat.codes != best.codes).sum())
        if self.min_confidence > 0:
            text = "%s: %d calls below min_confidence=%g back off to a parent in the label tree, or to unknown"
            log.info(text, self.path, num_backed_off, self.min_confidence)
        nodes = self.tree.nodes
        record = {
            "nodes": np.array(nodes, dtype=object),
            "parents": np.array([self.tree.parents.get(node, "") for node in nodes], dtype=object),
            "ontology_term_ids": np.array([self.term_of.get(node, UNKNOWN_TERM) for node in nodes], dtype=object),
            "num_levels": self.tree.num_levels,
            "num_backed_off": num_backed_off,
        }
        return {}, {"tree": record}


@dataclass
class CallColumns(ColumnMaker):
    """The label of each cell, how far it can be trusted, and the label by logistic regression.

    The confidence is the probability of the label, the margin its lead over the second one. A cell is flagged unknown
    if its novelty is that of at most a share `false_alarms` of the held-out cells of the reference, if its confidence
    is below `min_confidence`, or if it expresses no gene of the model; its label stays. With a label tree, the highest
    confidence of the label and its parents counts. A model without held-out calls gives no novelty (NaN).
    """

    saved: SavedModel
    terms: list[str]  # ontology id of each label
    cfg: PredictConfig
    is_cell: np.ndarray  # boolean, N: barcodes that can be cells

    def of_block(self, calls: Calls, columns: Columns) -> Columns:
        """Make the columns that every annotation has."""
        labels = self.saved.labels
        held_out = self.saved.held_out
        best = calls.proba.argmax(axis=1)
        top_two = np.sort(calls.proba, axis=1)[:, -2:]
        highest = columns.get("call_confidence", top_two[:, 1])
        novelty = calls.scores if held_out is None else novelty_share(calls.scores, held_out.scores)
        is_novel = 1 - novelty <= self.cfg.false_alarms
        made: Columns = {
            "label": pd.Categorical.from_codes(best, categories=labels),
            "confidence": top_two[:, 1],
            "margin": top_two[:, 1] - top_two[:, 0],
            "unknown": is_novel | (highest < self.cfg.min_confidence) | calls.empty,
            "novelty": novelty.astype(np.float32),
            "baseline_label": pd.Categorical.from_codes(calls.baseline, categories=labels),
        }
        if "ontology_term_id" not in columns:  # without a label tree, the term is that of the label
            terms = np.array(self.terms)[best]
            made["ontology_term_id"] = pd.Categorical(terms, categories=sorted(set(self.terms)))
        return made

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Record the evidence for confidences and flags, from held-out cells of the reference."""
        record: Record = {"num_unknown": int(obs["unknown"].sum())}
        held_out = self.saved.held_out
        if held_out is None:
            return {}, record
        curve = calibration(held_out.logits, held_out.labels, self.saved.labels)
        for part in ("bins", "labels"):
            arrays = curve[part].items()
            curve[part] = {name: np.array(each, dtype=object if name == "label" else None) for name, each in arrays}
        record["calibration"] = curve
        record["novelty"] = {"false_alarms": self.cfg.false_alarms, "num_cells": len(held_out.labels)}
        record["fit"] = {
            "mean_confidence": float(obs["confidence"][self.is_cell].mean()),
            "held_out_confidence": float(softmax(held_out.logits.astype(np.float64), axis=1).max(axis=1).mean()),
        }
        return {}, record


class SetColumns(ColumnMaker):
    """A set of labels for each cell, most probable first, that contains the truth with probability 1 - alpha."""

    def __init__(self, labels: list[str], held_out: HeldOut, alpha: float, is_cell: np.ndarray):
        self.names = [joined([label]) for label in labels]
        self.alpha = alpha
        self.is_cell = is_cell
        proba = softmax(held_out.logits.astype(np.float64), axis=1)
        # The draws are always the same.
        self.known_cells = proba, held_out.labels, np.random.default_rng(0).random(len(proba))
        self.threshold = set_threshold(*self.known_cells, alpha)

    def of_block(self, calls: Calls, columns: Columns) -> Columns:
        """Make the set as text, and its size."""
        in_set = label_sets(calls.proba, calls.draws, self.threshold)
        order = np.argsort(-calls.proba, axis=1, kind="stable")
        texts = ["|".join(self.names[i] for i in row if is_in[i]) for row, is_in in zip(order, in_set, strict=True)]
        return {"set": np.array(texts, dtype=object), "set_size": in_set.sum(axis=1).astype(np.int32)}

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Make categories of the sets, which no block knows all, and record their coverage of held-out cells."""
        record = {
            "alpha": self.alpha,
            "num_cells": len(self.known_cells[0]),
            "held_out_coverage": held_out_coverage(*self.known_cells, self.alpha),
            "mean_size": float(obs["set_size"][self.is_cell].mean()),
        }
        return {"set": obs["set"].astype("category")}, {"sets": record}


@dataclass
class QualityColumns(ColumnMaker):
    """Cells of low quality and doublets, among the cells of the file."""

    columns: Columns
    record: Record

    @classmethod
    def measure(cls, cells: AnnData | BackedH5ad, query: Query) -> "QualityColumns":
        """Measure the quality of the cells of a query with all genes of the file."""
        findings = query.plan.findings
        with reading(query.path) if isinstance(cells, BackedH5ad) else nullcontext():
            measured = cell_quality(query.rows, mitochondrial(gene_table(cells, findings.source)), findings)
            scores = None
            threshold = math.nan
            note = why_no_doublets(findings)
            if not note:
                scores, threshold, note = doublet_scores(query.rows, findings.droplets)
        is_low, least_genes, highest_share = low_quality(measured, findings.droplets)
        doublets = np.full(len(is_low), np.nan) if scores is None else scores
        is_doublet = doublets > threshold
        num_doublets = int(is_doublet.sum())
        limits = f"fewer than {least_genes:.0f} genes, or a mitochondrial share above {100 * highest_share:.0f} %"
        likely = note or f"{num_doublets} likely (a score above {threshold:.2f})"
        log.info("%s: %d cells of low quality (%s); doublets: %s", query.path, is_low.sum(), limits, likely)
        columns = {"low_quality": is_low, "doublet_score": doublets.astype(np.float32), "doublet": is_doublet}
        record = {
            "num_low": int(is_low.sum()),
            "least_genes": least_genes,
            "highest_mitochondrial": highest_share,
            "num_doublets": num_doublets,
            "doublet_threshold": threshold,
            "doublet_note": note,
        }
        return cls(columns, record)

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Give the columns that were measured."""
        return self.columns, {"quality": self.record}


@dataclass
class DropletColumns(ColumnMaker):
    """Barcodes that cannot be cells, in an unfiltered matrix."""

    droplets: Droplets

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Mark them as of low quality; where quality was measured, they are marked already."""
        droplets = self.droplets
        record = {"floor": droplets.floor, "unit": droplets.unit, "num_empty": droplets.num_empty}
        return {"low_quality": obs.get("low_quality", ~droplets.is_cell)}, {"droplets": record}


@dataclass
class ClusterColumns(ColumnMaker):
    """The label of each cell's cluster by majority, and whether the cell's own label is another one.

    Barcodes that cannot be cells have no vote, and their own label where clusters are looked for.
    """

    options: LabelOptions
    key: str  # the option `clusters`
    droplets: Droplets | None

    def of_file(self, read: Read, obs: pd.DataFrame) -> tuple[Columns, Record]:
        """Find the clusters, unless the file has them, and let their cells vote."""
        voters = np.arange(len(obs)) if self.droplets is None else np.sort(self.droplets.cells)
        labels = obs["label"].cat
        best = labels.codes.to_numpy(np.int64)
        clusters, how = self._clusters(read, voters, len(obs))
        has_voters = np.isin(clusters, clusters[voters])
        names, numbers = np.unique(clusters[voters], return_inverse=True)
        confidence = obs["confidence"].to_numpy()[voters]
        majority = majority_labels(numbers, best[voters], confidence, len(labels.categories))
        winners = best.copy()
        winners[has_voters] = majority[np.searchsorted(names, clusters[has_voters])]
        disagrees = winners != best
        num_clusters = int(clusters.max()) + 1
        num_disagree = int(disagrees.sum())
        text = "clusters=%s: %d clusters (%s); %d cells (%.1f %%) have another label than their cluster"
        log.info(text, self.key, num_clusters, how, num_disagree, 100 * num_disagree / len(obs))
        columns = {
            "cluster_label": pd.Categorical.from_codes(winners, categories=labels.categories),
            "cluster_disagrees": disagrees,
        }
        record = {"key": str(self.key), "how": how, "num_clusters": num_clusters, "num_disagree": num_disagree}
        return columns, {"clusters": record}

    def _clusters(self, read: Read, voters: np.ndarray, num_cells: int) -> tuple[np.ndarray, str]:
        """Return the number of the cluster of each cell (-1: none), and where the clusters are from."""
        if self.options.clusters is not None:
            return self.options.clusters, f"obs['{self.key}']"
        graph = self.options.graph
        how = f"Leiden on {'the embedding' if graph is None else 'the neighbour graph of the file'}"
        if graph is not None and self.droplets is not None:
            graph = graph.tocsr()[voters][:, voters]
        embedding = np.concatenate([calls.embedding for calls in read()])[voters]
        clusters = np.full(num_cells, -1)
        clusters[voters] = over_cluster(embedding, graph)
        return clusters, how


def column_makers(
    saved: SavedModel,
    options: LabelOptions,
    quality: QualityColumns | None,
    cfg: PredictConfig,
    droplets: Droplets | None,
    num_cells: int,
    path: str,
) -> list[ColumnMaker]:
    """Return the makers for a model and the options; a maker may depend on the columns of those before it."""
    is_cell = np.ones(num_cells, dtype=bool) if droplets is None else droplets.is_cell
    makers: list[ColumnMaker] = []
    if options.tree is not None:
        makers.append(TreeColumns(options.tree, options.term_of, cfg.min_confidence, path))
    makers.append(CallColumns(saved, options.terms, cfg, is_cell))
    if cfg.alpha is not None and saved.held_out is not None:
        makers.append(SetColumns(saved.labels, saved.held_out, cfg.alpha, is_cell))
    if quality is not None:
        makers.append(quality)
    if droplets is not None:
        makers.append(DropletColumns(droplets))
    if cfg.clusters is not None:
        makers.append(ClusterColumns(options, cfg.clusters, droplets))
    return makers
