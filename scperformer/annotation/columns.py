"""The columns of an annotation: how each group of them is made, and what is recorded and logged about it.

`OBS_COLUMNS` lists all names. This file is used without torch, too: `check` and the reports read the names.
"""

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import spmatrix
from scipy.special import expit, softmax

from scperformer.base.errors import InputError
from scperformer.base.messages import shortened
from scperformer.cells.detect import gene_table
from scperformer.cells.droplets import Droplets
from scperformer.cells.quality import cell_quality, doublet_scores, low_quality, mitochondrial, why_no_doublets
from scperformer.cells.query import Query
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.safety import reading
from scperformer.labels.cluster_votes import cluster_labels, majority_labels, over_cluster, resolution_of_celltypist
from scperformer.labels.ontology_columns import final_call, term_column, tree_columns, tree_record
from scperformer.labels.texts import means_no_label
from scperformer.labels.tree import MAX_LEVELS, LabelTree
from scperformer.model.confidence import calibration
from scperformer.model.conformal import held_out_coverage, label_sets, set_texts, set_threshold
from scperformer.model.file_verdict import file_text, file_warning
from scperformer.model.held_out import HeldOut
from scperformer.model.novelty import novelty_share
from scperformer.model.saved_model import SavedModel, branch_names
from scperformer.model.shift import MIN_CELLS, OTHER, Shift, expected_text

if TYPE_CHECKING:
    from scperformer.training.calls import Read

log = logging.getLogger(__name__)

ONE_TYPE = 0.9  # whole blood samples have up to .64 of their cells in a parent of at most half of the labels, parts 1.0
LOOKED_AT = 1000  # cells whose genes are counted
UNASSIGNED = "Unassigned"  # as CellTypist writes it: no label has a probability of its own above the threshold
HETEROGENEOUS = "Heterogeneous"  # no label of a cluster has the share that is asked for


@dataclass
class Made:
    """Columns about the cells of a file, and what is recorded about them."""

    columns: Mapping[str, Any]  # the values of all cells by the name of the column, without its prefix
    record: dict[str, Any] = field(default_factory=dict)  # entries for uns
    warnings: list[str] = field(default_factory=list)  # they are logged, and recorded


class Columns(Protocol):
    """A group of columns that are made together."""

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns of all cells.

        Parameters
        ----------
        read
            Returns the calls of all cells, block by block.
        obs
            The columns that have been made before, a row for each cell.
        """
        ...


@dataclass
class CallColumns:
    """The label of each cell, how probable it is, how novel the cell is, whether it is unknown, and its final call.

    Confidence is the probability of the label, margin its lead over the second label. A cell is unknown if its novelty
    is that of at most a share `false_alarms` of the held-out cells of the reference, if its confidence (with a label
    tree: that of its call) is below `min_confidence`, or if it expresses no gene of the model; its label stays, and its
    call is unknown. A model without held-out calls gives no novelty (NaN). In a file of another study, all novelty
    scores are higher, and are compared after division by the factor of its shift.
    """

    saved: SavedModel
    query: Query
    min_confidence: float
    false_alarms: float
    counts_encoder: bool  # whether to count the labels that depend on the encoder
    shift: Shift | None
    factor: float  # by which novelty scores are divided
    expected_accuracy: float  # of cells like the reference's, in the condition of the file

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns, which need those of a label tree; warn about cells that are unlike the reference."""
        blocks = [(*_best_labels(calls.proba), calls.scores, calls.empty, calls.by_encoder) for calls in read()]
        best, confidence, margin, scores, empty, by_encoder = map(np.concatenate, zip(*blocks, strict=True))
        held_out = self.saved.held_out
        novelty = scores if held_out is None else novelty_share(scores / self.factor, held_out.scores)
        safety = obs["call_confidence"].to_numpy() if "call_confidence" in obs else confidence
        unknown = (1 - novelty <= self.false_alarms) | (safety < self.min_confidence) | empty
        # An imported model may have a label that means none, such as "Unknown".
        unknown |= np.array([means_no_label(label) for label in self.saved.labels])[best]
        if "prob_match" in obs:
            unknown |= (obs["prob_match"] == UNASSIGNED).to_numpy()
        columns = {
            "label": pd.Categorical.from_codes(best, categories=self.saved.labels),
            "confidence": confidence,
            "margin": margin,
            "unknown": unknown,
            "novelty": novelty.astype(np.float32),
        }
        columns["call"] = final_call(obs["call"] if "call" in obs else pd.Series(columns["label"]), unknown)
        made = Made(columns, {"num_unknown": int(unknown.sum())})
        is_cell = _is_cell(self.query.plan.findings.droplets, len(best))
        if self.counts_encoder:
            made.record |= self._share_of_encoder(by_encoder[is_cell & ~empty])
        warning = ""
        if held_out is not None:
            made.record |= self._evidence(held_out, confidence[is_cell])
            warning = file_warning(
                None if self.shift is None else self.shift.kind,
                float(unknown[is_cell].sum()) / int(is_cell.sum()),
                len(self.saved.labels),
                self.saved.tissue,
                self.query.plan.findings.text,
                confidence=made.record["fit"]["mean_confidence"],
                held_out=made.record["fit"]["held_out_confidence"],
            )
        if warning:
            made.warnings = [file_text(self.shift, warning)]
        elif self.shift is not None:
            log.info("%s: %s", self.query.path, self.shift.text)
        if self.shift is not None:
            expected = self._accuracy_to_expect(confidence[is_cell & ~empty], is_known=not warning)
            made.record["shift"] = self.shift.record() | expected
        return made

    def _accuracy_to_expect(self, confidence: np.ndarray, is_known: bool) -> dict[str, float]:
        """Return the lowest and the highest accuracy to expect in this file, and log them with their reason.

        They are NaN if they are not known, as the file has a warning.
        """
        assert self.shift is not None
        if not is_known:
            return {"expected_lowest": math.nan, "expected_highest": math.nan}
        lowest = highest = self.expected_accuracy
        if self.saved.batch_accuracies and not math.isnan(self.expected_accuracy):
            lowest = min(lowest, *self.saved.batch_accuracies)
            highest = max(highest, *self.saved.batch_accuracies)
        if self.shift.kind == OTHER:
            lowest, highest = self.shift.expected_accuracy(float(pd.Series(confidence).mean()))
        log.info("%s: %s", self.query.path, expected_text(lowest, highest, self.shift.kind))
        return {"expected_lowest": lowest, "expected_highest": highest}

    def _share_of_encoder(self, by_encoder: np.ndarray) -> dict[str, Any]:
        """Return the record of how many labels the linear branch alone would not give, and log it."""
        num_decided = int(by_encoder.sum())
        kind = branch_names(self.saved.metrics.get("encoder", {}))["encoder"]
        text = "%s: the %s decides %s of %s labels: the linear branch alone would give others"
        log.info(text, self.query.path, kind, f"{num_decided:,}", f"{len(by_encoder):,}")
        return {"encoder": {"num_cells": len(by_encoder), "num_decided": num_decided}}

    def _evidence(self, held_out: HeldOut, confidence: np.ndarray) -> dict[str, Any]:
        """Return the record of how confidences and flags behave on held-out cells of the reference."""
        evidence = calibration(held_out.logits, held_out.labels, self.saved.labels)
        for part in ("bins", "labels"):
            columns = evidence[part].items()
            evidence[part] = {
                name: np.array(values, dtype=object if name == "label" else None) for name, values in columns
            }
        return {
            "calibration": evidence,
            "novelty": {"false_alarms": self.false_alarms, "num_cells": len(held_out.labels)},
            "fit": {
                "mean_confidence": float(pd.Series(confidence).mean()),
                "held_out_confidence": float(_probabilities(held_out).max(axis=1).mean()),
            },
        }


@dataclass
class OneType:
    """No column: a warning about a file with cells of one type, whose depth and batch effect change its calls.

    They would be others, and so would its calls, in a file with all cells of the sample.
    """

    tree: LabelTree

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Warn if a label, or a parent of at most half of the labels, has nearly all known cells."""
        labels = self.tree.labels
        counts = np.bincount(obs["label"].cat.codes[~obs["unknown"]], minlength=len(labels))
        in_node = {node: [node in self.tree.path(label) for label in labels] for node in self.tree.nodes}
        share, _, node = max(
            (counts[inside].sum() / max(1, counts.sum()), -sum(inside), node)
            for node, inside in in_node.items()
            if sum(inside) <= max(1, len(labels) / 2)
        )
        if share <= ONE_TYPE or counts.sum() < MIN_CELLS:
            return Made({})
        text = f"{share:.0%} of the known cells are {shortened(node)}: depth and batch effect are of these alone"
        remedy = "if they are a part of a sample, condition_of=WHOLE_SAMPLE gives them the labels that they have there"
        return Made({}, warnings=[f"{text}; {remedy}"])


@dataclass
class TreeColumns:
    """With a label tree: the call of each cell, which backs off to a parent, its node on each level, and its id."""

    tree: LabelTree
    terms: list[str]  # ontology id of each label
    min_confidence: float
    path: str

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns, and log how many calls back off."""
        own_nodes = np.array([self.tree.nodes.index(label) for label in self.tree.labels])
        blocks = []
        for calls in read():
            best = calls.proba.argmax(axis=1)
            blocks.append((own_nodes[best], *self.tree.call(calls.proba, best, self.min_confidence)))
        own, called, confidence = map(np.concatenate, zip(*blocks, strict=True))
        columns = tree_columns(self.tree, self.terms, called, confidence, self.min_confidence)
        num_backed_off = int((columns["call"].codes != own).sum())
        if self.min_confidence > 0:
            text = "%s: %d calls below min_confidence=%g back off to a parent in the label tree, or to unknown"
            log.info(text, self.path, num_backed_off, self.min_confidence)
        return Made(columns, {"tree": tree_record(self.tree, self.terms) | {"num_backed_off": num_backed_off}})


@dataclass
class OwnColumns:
    """Of models of CellTypist: the largest of the labels' own probabilities; with `prob_match`, all labels above it."""

    labels: list[str]
    prob_match: bool
    p_thres: float

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns from the scores, of which each probability is the sigmoid."""
        scores = []
        texts: list[str] = []
        for calls in read():
            proba = expit(calls.embedding.astype(np.float64))
            scores.append(proba.max(axis=1))
            if self.prob_match:
                rows = [np.flatnonzero(above) for above in proba > self.p_thres]
                texts += ["|".join(self.labels[label] for label in row) or UNASSIGNED for row in rows]
        columns: dict[str, Any] = {"conf_score": np.concatenate(scores)}
        if self.prob_match:
            columns["prob_match"] = pd.Series(texts, dtype=object).astype("category")
        return Made(columns)


@dataclass
class TermColumns:
    """Without a label tree: the ontology id of the label of each cell."""

    terms: list[str]  # ontology id of each label

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the column from the labels."""
        return Made({"ontology_term_id": term_column(obs["label"].cat.codes.to_numpy(), self.terms)})


@dataclass
class BaselineColumns:
    """The label of each cell by logistic regression on the same reference."""

    labels: list[str]

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the column."""
        baseline = np.concatenate([calls.baseline for calls in read()])
        columns = {"baseline_label": pd.Categorical.from_codes(baseline, categories=self.labels)}
        return Made(columns, {"baseline": {"name": "logistic regression (L2, C=1)"}})


@dataclass
class SetColumns:
    """With `alpha`: for each cell a set of labels that contains the true label with the probability 1 - alpha."""

    labels: list[str]
    held_out: HeldOut
    alpha: float
    droplets: Droplets | None

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns, with a threshold from held-out cells of the reference."""
        proba = _probabilities(self.held_out)
        draws = np.random.default_rng(0).random(len(proba))  # the same in each run
        known = (proba, self.held_out.labels, draws, self.alpha)
        threshold = set_threshold(*known)
        texts: list[str] = []
        sizes = []
        for calls in read():
            in_set = label_sets(calls.proba, calls.draws, threshold)
            texts += set_texts(calls.proba, in_set, self.labels)
            sizes.append(in_set.sum(axis=1).astype(np.int32))
        size = np.concatenate(sizes)
        record = {
            "alpha": self.alpha,
            "num_cells": len(proba),
            "held_out_coverage": held_out_coverage(*known),
            "mean_size": float(pd.Series(size[_is_cell(self.droplets, len(size))]).mean()),
        }
        return Made({"set": pd.Series(texts, dtype=object).astype("category"), "set_size": size}, {"sets": record})


@dataclass
class QualityColumns:
    """With `quality=true`: cells of low quality and likely doublets, by all genes of the file."""

    cells: AnnData | BackedH5ad
    query: Query

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns from the expression, and log how many cells are flagged."""
        query = self.query
        findings = query.plan.findings
        with reading(query.path) if isinstance(self.cells, BackedH5ad) else nullcontext():
            measured = cell_quality(query.rows, mitochondrial(gene_table(self.cells, findings.source)), findings)
            scores = None
            threshold = math.nan
            note = why_no_doublets(findings)
            if not note:
                scores, threshold, note = doublet_scores(query.rows, findings.droplets)
        low, least_genes, highest_share = low_quality(measured, findings.droplets)
        if scores is None:
            scores = np.full(len(low), np.nan)
        is_doublet = scores > threshold
        num_doublets = int(is_doublet.sum())
        doublets = note or f"{num_doublets} likely (a score above {threshold:.2f})"
        text = "%s: %d cells of low quality (below %.0f genes, or a mitochondrial share above %.0f %%); doublets: %s"
        log.info(text, query.path, low.sum(), least_genes, 100 * highest_share, doublets)
        columns = {"low_quality": low, "doublet_score": scores.astype(np.float32), "doublet": is_doublet}
        record = {
            "num_low": int(low.sum()),
            "least_genes": least_genes,
            "highest_mitochondrial": highest_share,
            "num_doublets": num_doublets,
            "doublet_threshold": threshold,
            "doublet_note": note,
        }
        return Made(columns, {"quality": record})


@dataclass
class FewGenes:
    """A warning about cells with fewer genes than those for which an imported model was made; there are no columns."""

    query: Query
    min_genes: int
    tool: str

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Count such cells among up to 1,000 of the file; the others are not looked at."""
        num_genes = np.diff(self.query.some(self.query.spread(LOOKED_AT)).indptr)
        num_few = int((num_genes < self.min_genes).sum())
        if not num_few:
            return Made({})
        text = f"{num_few:,} of {len(num_genes):,} cells express fewer than {self.min_genes} genes of the model"
        return Made({}, warnings=[f"{text}: {self.tool} drops such cells, and their labels are less certain"])


@dataclass
class DropletColumns:
    """In an unfiltered matrix: barcodes that cannot be cells have a low quality."""

    droplets: Droplets

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the column unless `QualityColumns`, which flags these barcodes as well, has made it."""
        droplets = self.droplets
        columns = {} if "low_quality" in obs else {"low_quality": ~droplets.is_cell}
        record = {"floor": droplets.floor, "unit": droplets.unit, "num_empty": droplets.num_empty}
        return Made(columns, {"droplets": record}, [droplets.text])


@dataclass
class ClusterColumns:
    """With `clusters`: the cluster of each cell, the label of the cluster, and whether it differs from the cell's.

    Unknown cells have no vote. Barcodes that cannot be cells have none either, and are not clustered: with
    `clusters=auto` they keep their own label and have no cluster.
    """

    option: str  # auto, or a column of obs
    clusters: pd.Categorical | None  # the cluster of each cell; None: they are looked for
    graph: spmatrix | None  # in which they are looked for; None: in the neighbour graph of the embedding
    droplets: Droplets | None

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns from the labels and their confidences; log how many cells differ from their cluster."""
        is_cell = _is_cell(self.droplets, len(obs))
        if self.clusters is None:
            numbers = np.full(len(obs), -1)
            numbers[is_cell] = _find_clusters(read, self.graph, np.flatnonzero(is_cell))
            clusters = pd.Categorical.from_codes(numbers, [str(number) for number in range(numbers.max() + 1)])
            how = f"Leiden on {'the embedding' if self.graph is None else 'the neighbour graph of the file'}"
        else:
            clusters = self.clusters
            how = f"obs['{self.option}']"
        labels = obs["label"].cat
        best = labels.codes.to_numpy(np.int64)
        voters = np.flatnonzero(is_cell & ~obs["unknown"].to_numpy())
        numbers = clusters.codes.astype(np.int64)
        majority = cluster_labels(numbers, best, obs["confidence"].to_numpy(), voters, len(labels.categories))
        disagrees = majority != best
        num_clusters = int(clusters.codes.max()) + 1
        num_disagree = int(disagrees.sum())
        text = "clusters=%s: %d clusters (%s); %d cells (%.1f %%) have another label than their cluster"
        log.info(text, self.option, num_clusters, how, num_disagree, 100 * num_disagree / len(obs))
        columns = {
            "cluster": clusters,
            "cluster_label": pd.Categorical.from_codes(majority, categories=labels.categories),
            "cluster_disagrees": disagrees,
        }
        record = {"key": self.option, "how": how, "num_clusters": num_clusters, "num_disagree": num_disagree}
        return Made(columns, {"clusters": record})


@dataclass
class MajorityColumns:
    """With `majority_voting`: CellTypist's majority voting among all cells of each small cluster."""

    clusters: pd.Categorical | None  # as for `ClusterColumns`
    graph: spmatrix | None
    min_prop: float
    droplets: Droplets | None

    def make(self, read: "Read", obs: pd.DataFrame) -> Made:
        """Make the columns from the labels. Barcodes that cannot be cells have no cluster and no majority."""
        is_cell = _is_cell(self.droplets, len(obs))
        cells = np.flatnonzero(is_cell)
        if self.clusters is not None:
            clusters = self.clusters.codes.astype(np.int64)
        else:
            clusters = np.zeros(len(obs), dtype=np.int64)
            clusters[is_cell] = _find_clusters(read, self.graph, cells, resolution_of_celltypist(len(cells)))
        labels = obs["label"].cat
        best = labels.codes.to_numpy(np.int64)
        majority = majority_labels(clusters, best, cells, len(labels.categories), self.min_prop)
        names = [*labels.categories, HETEROGENEOUS]
        voted = pd.Categorical.from_codes(np.where(majority < 0, len(names) - 1, majority), categories=names)
        columns = {
            "over_clustering": pd.Series(clusters.astype(str), dtype=object).where(is_cell, "none").astype("category"),
            "majority_voting": voted.remove_categories(HETEROGENEOUS) if (majority >= 0).all() else voted,
        }
        return Made(columns, {"majority_voting": {"num_clusters": int(clusters.max()) + 1, "min_prop": self.min_prop}})


# Columns of every annotation, and those that an option asks for.
USUAL_COLUMNS = ("call", "label", "confidence", "novelty", "ontology_term_id")
AGREEMENT = "agreement"  # with several models; several.py makes it
OBS_COLUMNS = (
    *USUAL_COLUMNS,
    *("set", "set_size", "low_quality", "doublet_score", "doublet", "cluster", "cluster_label", "cluster_disagrees"),
    *("conf_score", "prob_match", "over_clustering", "majority_voting", AGREEMENT),
)
# Columns of the table of details in obsm.
DETAILS = ("margin", "call_confidence", "baseline_label", *(f"level{level}" for level in range(1, MAX_LEVELS + 1)))
REQUIRED_COLUMNS = ("call", "label", "confidence")  # reports need no others
# Entries of obsm, with the prefix in place of the braces.
OBSM = ("X_{}", "{}_proba", "{}_own_proba", "{}_details")


def require_not_annotated(cells: AnnData | BackedH5ad, key: str, path: str = "the data") -> None:
    """Refuse cells that have entries which an annotation with this prefix would add."""
    names = {
        "obs": [f"{key}_{name}" for name in OBS_COLUMNS],
        "obsm": [name.format(key) for name in OBSM],
        "uns": [key],
    }
    existing = cells.keys() if isinstance(cells, BackedH5ad) else {place: set(getattr(cells, place)) for place in names}
    taken = [f"{place}['{name}']" for place in names for name in names[place] if name in existing[place]]
    if taken:
        more = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        found = f"{path} already has {', '.join(taken[:3])}{more}"
        expected = "no earlier annotation of this name"
        fixes = ["replace_annotation=true", f"key_added={key}_2"]
        remedy = "add replace_annotation=true to replace it, or key_added=... to keep both"
        raise InputError(found, expected, remedy, fixes)


def require_other_index(cells: AnnData | BackedH5ad, key: str, path: str = "the data") -> None:
    """Refuse cells whose index has the name of a column that an annotation with this prefix would add."""
    name = cells.index_name if isinstance(cells, BackedH5ad) else cells.obs.index.name
    if name in [f"{key}_{column}" for column in OBS_COLUMNS]:
        found = f"'{name}' as the name of the index of obs of {path}"
        raise InputError(found, "a name that no column of the annotation has", "rename the index, or set key_added=...")


def _find_clusters(
    read: "Read", graph: spmatrix | None, rows: np.ndarray, resolution: float | None = None
) -> np.ndarray:
    """Cluster the cells in some rows; return the number of the cluster of each."""
    embedding = np.concatenate([calls.embedding for calls in read()])
    if graph is not None and len(rows) < len(embedding):
        graph = graph.tocsr()[rows][:, rows]
    options = {} if resolution is None else {"resolution": resolution}
    return over_cluster(embedding[rows], graph, **options)


def _best_labels(proba: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the index of the most probable label of each cell, its probability, and its lead over the second label."""
    second, first = np.sort(proba, axis=1)[:, -2:].T
    return proba.argmax(axis=1), first.copy(), first - second  # a view would keep the probabilities in memory


def _is_cell(droplets: Droplets | None, num_cells: int) -> np.ndarray:
    """Return whether each barcode can be a cell, bool N; True for all of them except in an unfiltered matrix."""
    return np.ones(num_cells, dtype=bool) if droplets is None else droplets.is_cell


def _probabilities(held_out: HeldOut) -> np.ndarray:
    """Return the probabilities of held-out cells, float64."""
    return softmax(held_out.logits.astype(np.float64), axis=1)
