"""Clusters to check: those whose cells, taken together, resemble another type than their labels do.

Cells of a type that the reference lacks get the label of a similar type, often with a high confidence. A single cell
says too little to notice it; the mean of a cluster does not. It is divided by what all clusters of the file share, the
effect of the study, and compared with the published profiles of a tissue (model/tissues.py). So are the means of the
labels in the reference. If a cluster resembles another family of types than its labels, it is to be checked. The names
of the labels have no part in it, so that any model can be used.

The same comparison returns labels: a label that would lose many cells as unknown keeps them, if these cells, taken
together, resemble its type more than any type of any tissue, and are not called with a low confidence.

Shape letters: K groups of cells, C labels, G genes. Means are counts per 10,000.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.sparse import csr_matrix

from scperformer.annotation.adapted import Adapted
from scperformer.annotation.columns import lost_cells
from scperformer.annotation.coverage import seen_rows
from scperformer.annotation.record import CLUSTER_ENTRIES, CheckRecord
from scperformer.cells.quality import technical
from scperformer.cells.query import Query
from scperformer.cells.values import evenly_spaced
from scperformer.model.label_profiles import MIN_GENES, Profiles, find_profiles
from scperformer.model.tissues import collection
from scperformer.trust.batch_effect import log_factors, mean_counts
from scperformer.trust.shift import FAR

log = logging.getLogger(__name__)

MIN_CELLS = 200  # of a file that has clusters
# By Ward's method: as good as Leiden's clusters (benchmarks/NOTES.md), which take longer to import than to be found.
MAX_CLUSTERS = 25
MEAN_CLUSTER = 20  # cells, at least
MIN_CLUSTER = 10
NUM_VARIABLE = 1000  # genes by which cells are clustered
NUM_DIRECTIONS = 30
# Correlation with the nearest profile minus that with the families of the labels. In the development pairs of
# benchmarks/studies.py: up to .055 where no type is missing, .11 or more where one is.
MIN_DIFFERENCE = 0.07
MIN_RESEMBLANCE = 0.4  # of a cluster to check, to the nearest profile
MAX_LISTED = 3
NUM_GENES = 6  # of a cluster, which are too high, and too low
NUM_LOOKED_AT = 200  # unknown cells of a label
MIN_RETURNED = 0.3  # their resemblance to its type, for them to keep it
MIN_LEAD = 0.08  # of this resemblance over that to specific types of other tissues; cell lines in a pancreas have .06
MIN_CONFIDENCE = 0.6  # their mean confidence, with profiles that of the family


@dataclass(frozen=True)
class Clusters:
    """Clusters of some cells of a file, which its other cells can join."""

    numbers: np.ndarray  # int, of the cells' clusters, from 0
    genes: np.ndarray  # int, by which cells are clustered
    directions: np.ndarray  # float64 genes x D: principal components
    centres: np.ndarray  # float64 K x D

    def nearest(self, x: csr_matrix) -> np.ndarray:
        """Return the number of the cluster with the nearest centre for each cell, from ln(1 + cp10k), cells x G."""
        points = x[:, self.genes] @ self.directions
        return np.asarray((points @ self.centres.T - (self.centres**2).sum(axis=1) / 2).argmax(axis=1))


def fit_clusters(x: csr_matrix, left_out: np.ndarray) -> Clusters:
    """Cluster cells, from ln(1 + cp10k), cells x G, by principal components of the genes that vary most."""
    variance = np.asarray(x.multiply(x).mean(axis=0)).ravel() - np.asarray(x.mean(axis=0)).ravel() ** 2
    genes = np.argsort(-np.where(left_out, 0, variance), kind="stable")[:NUM_VARIABLE]
    values = x[:, genes].toarray().astype(np.float64)
    last = (max(0, len(genes) - NUM_DIRECTIONS), len(genes) - 1)
    directions = eigh(np.cov(values, rowvar=False), subset_by_index=last)[1]
    points = values @ directions
    num_clusters = min(MAX_CLUSTERS, len(points) // MEAN_CLUSTER)
    numbers = fcluster(linkage(points, "ward"), num_clusters, "maxclust") - 1
    centres = np.stack([points[numbers == number].mean(axis=0) for number in range(numbers.max() + 1)])
    return Clusters(numbers, genes, directions, centres)


@dataclass
class Checked:
    """What was found in the cells of a query."""

    record: CheckRecord
    returned: np.ndarray  # bool: unknown cells that get their label back
    column: pd.Categorical | None = None  # what the cells of clusters to check look like, else missing


def check_clusters(adapted: Adapted, table: pd.DataFrame, unknown: np.ndarray) -> Checked:
    """Find the clusters of a query that are to be checked, and the unknown cells that get their label back; log both.

    `table` has the predictions of each cell, as `gather_predictions` returns them; `unknown` cells are given by a
    boolean.
    """
    query = adapted.query.of_genes(adapted.query.measured)
    is_cell = query.findings.is_cell & ~table["empty"].to_numpy()
    rows = seen_rows(query)
    rows = rows[is_cell[rows]]
    profiles = _profiles_for(adapted, len(rows))
    if isinstance(profiles, str):
        text = f"clusters were not checked: {profiles}"
        log.info("%s: %s", query.path, text)
        return Checked(CheckRecord(text=text), np.zeros(len(table), dtype=bool))
    found = _find_clusters(query, adapted, table, rows, profiles)
    place = np.full(len(table), -1)
    column = None
    title = collection().title(profiles.tissue)
    record = CheckRecord(text="", tissue=title, num_looked_at=len(rows), num_clusters=found.num_clusters)
    if found.clusters is None:
        record.text = f"no cluster to check: fewer than {MIN_CELLS} cells have no clusters"
    elif not len(found.table):
        record.text = "no cluster to check: all resemble the types of their labels"
    else:
        of_cell = np.concatenate([found.clusters.nearest(query.block(start)) for start in query.starts()])
        of_cell[rows] = found.clusters.numbers
        for number, listed_as in zip(found.table["number"], found.table["place"], strict=True):
            place[is_cell & (of_cell == number)] = listed_as
        groups = found.table.groupby("place")
        clusters = groups.first()
        clusters["label"] = groups["label"].agg(lambda names: ", ".join(dict.fromkeys(names)))
        clusters["num_cells"] = np.bincount(place[place >= 0])
        column = pd.Categorical.from_codes(place, clusters["looks_like"])
        values = {name: clusters[name].to_numpy() for name in CLUSTER_ENTRIES}
        record = replace(record, text=f"clusters to check: {len(clusters)}", **values)
    log.info("%s: %s", query.path, record.text)
    for text in record.sentences:
        log.warning("%s: to check: %s", query.path, text)
    returned = _returned_cells(query, adapted, table[is_cell], unknown[is_cell], place[is_cell] >= 0, found)
    record.num_returned = len(returned)
    return Checked(record, np.isin(np.arange(len(table)), returned), column)


def _profiles_for(adapted: Adapted, num_seen: int) -> Profiles | str:
    """Return the profiles with which the labels of a model are compared, or why there are none."""
    if adapted.label_means is None:
        return "this needs stored cells of one reference, and no adapt=false"
    if not num_seen or (adapted.shift is not None and adapted.shift.kind == FAR):
        return "its cells are of another tissue"
    saved = adapted.saved
    genes = np.array(saved.genes)[adapted.query.measured].tolist()
    profiles = find_profiles((saved.name, saved.provenance.tissue), genes, adapted.label_means)
    return profiles or f"the labels resemble no packaged tissue, or share fewer than {MIN_GENES} genes with it"


@dataclass
class _Found:
    """Clusters of some cells, beside profiles."""

    profiles: Profiles
    clusters: Clusters | None  # None: too few cells
    num_clusters: int
    table: pd.DataFrame  # of the clusters to check, the most different first
    study_G: np.ndarray  # what all clusters share: the logarithm of a factor per gene


def _find_clusters(
    query: Query, adapted: Adapted, predictions: pd.DataFrame, rows: np.ndarray, profiles: Profiles
) -> _Found:
    """Cluster some cells of a query, and find the clusters that resemble another type than their labels do."""
    saved = adapted.saved
    genes = np.array(saved.genes)[adapted.query.measured]
    best = predictions["best"].to_numpy()[rows]
    x = query.some(rows)
    clusters = fit_clusters(x, technical(genes)) if len(rows) >= MIN_CELLS else None
    numbers = np.zeros(len(rows), dtype=np.int64) if clusters is None else clusters.numbers
    large = np.flatnonzero(np.bincount(numbers) >= min(MIN_CLUSTER, len(rows)))
    assert adapted.label_means is not None
    groups = [numbers == number for number in large]
    table, study_G = _compare_clusters(x, best, groups, profiles, adapted.label_means, genes)
    table = table.assign(number=large, label=np.array(saved.labels, dtype=object)[table["called"]])
    is_other = (table["difference"] >= MIN_DIFFERENCE) & (table["resemblance"] >= MIN_RESEMBLANCE)
    table = table[is_other].sort_values("difference", ascending=False, kind="stable")
    table["place"] = pd.factorize(table["family"])[0]  # a type may have several clusters, which are listed as one
    return _Found(profiles, clusters, len(large), table[table["place"] < MAX_LISTED], study_G)


def _returned_cells(
    query: Query, adapted: Adapted, table: pd.DataFrame, unknown: np.ndarray, is_listed: np.ndarray, found: _Found
) -> np.ndarray:
    """Return the numbers of the rows of unknown cells that keep their label: together they resemble its type.

    `table` has the predictions of the cells, of which some are `unknown`, and some in a cluster to check, `is_listed`.
    """
    saved = adapted.saved
    best = table["best"].to_numpy()
    confidence = table["family" if "family" in table else "confidence"].to_numpy()
    returned = []
    for label in lost_cells(best, unknown):
        cells = unknown & (best == label) & ~is_listed
        if saved.labels[label] in saved.others or not cells.any():  # the others are not named
            continue
        rows = table.index[cells].to_numpy()
        is_sure = confidence[cells].mean() >= MIN_CONFIDENCE
        if is_sure and _is_of_type(query, rows, label, found.profiles, found.study_G):
            returned.append(rows)
            text = "%s: %s novel cells keep the label %s, as together they resemble its type"
            log.info(text, query.path, f"{len(rows):,}", saved.labels[label])
    return np.concatenate([np.arange(0), *returned])


def _compare_clusters(
    x: csr_matrix,
    best: np.ndarray,
    groups: Sequence[np.ndarray],
    profiles: Profiles,
    means_CG: np.ndarray,
    genes: np.ndarray,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Compare clusters with their labels; also return what all clusters share, the logarithm of a factor per gene.

    `groups` are K boolean arrays over the cells of `x`, whose labels are `best`. The table has the columns of
    `Profiles.compare`, the index of the label that most cells are `called`, and the genes that are too high and too
    low for the labels.
    """
    pairs = [log_factors(x[k], best[k], means_CG) for k in groups]
    logs_KG, labels_KG = map(np.stack, zip(*pairs, strict=True))
    study_G = np.median(logs_KG, axis=0)
    means_KG = np.stack([mean_counts(x[k]) for k in groups]) / np.exp(study_G)
    shares_KC = np.stack([np.bincount(best[k], minlength=len(means_CG)) / k.sum() for k in groups])
    table = profiles.compare(means_KG, shares_KC).assign(called=shares_KC.argmax(axis=1))
    excess_KG = (logs_KG - study_G) * np.log1p(np.maximum(means_KG, labels_KG)) * ~technical(genes)
    for name, sign in {"too_high": -1, "too_low": 1}.items():
        table[name] = [", ".join(genes[np.argsort(sign * excess, kind="stable")[:NUM_GENES]]) for excess in excess_KG]
    return table, study_G


def _is_of_type(query: Query, rows: np.ndarray, label: int, profiles: Profiles, study_G: np.ndarray) -> bool:
    """Return whether some cells, taken together, resemble the type of a label."""
    x = query.some(rows[evenly_spaced(len(rows), NUM_LOOKED_AT)])
    shares = np.eye(len(profiles.of_labels))[[label]]
    mean = mean_counts(x)[None] / np.exp(study_G)
    found = profiles.compare(mean, shares).iloc[0]
    if found["difference"] > 0 or found["resemblance"] < MIN_RETURNED:
        return False
    return bool(found["resemblance"] >= profiles.of_other_tissues(mean) + MIN_LEAD)
