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
from scipy.sparse import csr_matrix, vstack

from scperformer.annotation.adapted import Adapted
from scperformer.annotation.columns import lost_cells
from scperformer.annotation.predictions import Blocks
from scperformer.annotation.record import CLUSTER_ENTRIES, CheckRecord
from scperformer.cells.quality import technical
from scperformer.cells.values import evenly_spaced
from scperformer.model.label_profiles import MIN_GENES, Profiles, find_profiles
from scperformer.model.tissues import collection
from scperformer.trust.batch_effect import log_factors, mean_counts
from scperformer.trust.clusters import Clusters, fit_clusters
from scperformer.trust.shift import FAR

log = logging.getLogger(__name__)

MIN_CELLS = 200  # of a file that has clusters
MIN_CLUSTER = 10
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
class SampledCells:
    """Some cells of a query, which show its clusters before any cell is predicted."""

    rows: np.ndarray  # their row numbers, ascending, int64
    x: csr_matrix  # ln(1 + cp10k), cells x G
    clusters: Clusters | None  # None: too few cells


def sample_cells(adapted: Adapted) -> SampledCells | str:
    """Return the cells of a query that show its clusters, or why clusters are not checked."""
    if adapted.label_means is None:
        return "this needs stored cells of one reference, and no adapt=false"
    query = adapted.query
    rows = query.cells.sample_rows()
    x = query.some(rows)
    is_expressed = np.diff(x.indptr) > 0
    rows, x = rows[is_expressed], x[is_expressed]
    if not len(rows) or (adapted.shift is not None and adapted.shift.kind == FAR):
        return "its cells are of another tissue"
    return SampledCells(rows, x, fit_clusters(x, technical(adapted.saved.genes)) if len(rows) >= MIN_CELLS else None)


def _profiles_for(adapted: Adapted) -> Profiles | str:
    """Return the profiles with which the labels of a model are compared, or why there are none."""
    if isinstance(adapted.sampled, str):
        return adapted.sampled
    saved = adapted.saved
    genes = np.array(saved.genes)[adapted.query.measured].tolist()
    assert adapted.label_means is not None
    profiles = find_profiles((saved.name, saved.provenance.tissue), genes, adapted.label_means)
    return profiles or f"the labels resemble no packaged tissue, or share fewer than {MIN_GENES} genes with it"


@dataclass
class Checked:
    """What was found in the cells of a query."""

    record: CheckRecord
    returned: np.ndarray  # bool: unknown cells that get their label back
    column: pd.Categorical | None = None  # what the cells of clusters to check look like, else missing


def check_clusters(adapted: Adapted, blocks: Blocks, table: pd.DataFrame, unknown: np.ndarray) -> Checked:
    """Find the clusters of a query that are to be checked, and the unknown cells that get their label back; log both.

    `table` has the predictions of each cell in `blocks`, as `gather_predictions` returns them; `unknown` cells are
    given by a boolean.
    """
    query, sampled = adapted.query, adapted.sampled
    profiles = _profiles_for(adapted)
    if isinstance(profiles, str) or isinstance(sampled, str):
        text = f"clusters were not checked: {profiles}"
        log.info("%s: %s", query.path, text)
        return Checked(CheckRecord(text=text), np.zeros(len(table), dtype=bool))
    is_cell = query.findings.is_cell & ~table["empty"].to_numpy()
    found = _find_clusters(adapted, sampled, table, profiles)
    place = np.full(len(table), -1)
    column = None
    record = CheckRecord(
        text="",
        tissue=collection().title(profiles.tissue),
        num_looked_at=len(sampled.rows),
        num_clusters=found.num_clusters,
    )
    if sampled.clusters is None:
        record.text = f"no cluster to check: fewer than {MIN_CELLS} cells have no clusters"
    elif not len(found.table):
        record.text = "no cluster to check: all resemble the types of their labels"
    else:
        of_cell = table["cluster"].to_numpy(copy=True)
        of_cell[sampled.rows] = sampled.clusters.numbers
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
    returned = _returned_cells(adapted, blocks, table, unknown & is_cell & (place < 0), found)
    record.num_returned = len(returned)
    return Checked(record, np.isin(np.arange(len(table)), returned), column)


@dataclass
class _Found:
    """Clusters of some cells, beside profiles."""

    profiles: Profiles
    num_clusters: int
    table: pd.DataFrame  # of the clusters to check, the most different first
    study_G: np.ndarray  # what all clusters share: the logarithm of a factor per gene


def _find_clusters(adapted: Adapted, sampled: SampledCells, predictions: pd.DataFrame, profiles: Profiles) -> _Found:
    """Find the clusters of some cells of a query that resemble another type than their labels do."""
    saved, rows = adapted.saved, sampled.rows
    measured = adapted.query.measured
    best = predictions["best"].to_numpy()[rows]
    numbers = np.zeros(len(rows), dtype=np.int64) if sampled.clusters is None else sampled.clusters.numbers
    large = np.flatnonzero(np.bincount(numbers) >= min(MIN_CLUSTER, len(rows)))
    assert adapted.label_means is not None
    groups = [numbers == number for number in large]
    genes = np.array(saved.genes)[measured]
    x = sampled.x if measured.all() else sampled.x[:, measured]
    table, study_G = _compare_clusters(x, best, groups, profiles, adapted.label_means, genes)
    table = table.assign(number=large, label=np.array(saved.labels, dtype=object)[table["called"]])
    is_other = (table["difference"] >= MIN_DIFFERENCE) & (table["resemblance"] >= MIN_RESEMBLANCE)
    table = table[is_other].sort_values("difference", ascending=False, kind="stable")
    table["place"] = pd.factorize(table["family"])[0]  # a type may have several clusters, which are listed as one
    return _Found(profiles, len(large), table[table["place"] < MAX_LISTED], study_G)


def _returned_cells(
    adapted: Adapted, blocks: Blocks, table: pd.DataFrame, unknown: np.ndarray, found: _Found
) -> np.ndarray:
    """Return the numbers of the rows of novel cells that keep their label: together they resemble its type.

    `table` has the predictions of the cells in `blocks`, of which some are `unknown` and in no cluster to check.
    """
    saved = adapted.saved
    best = table["best"].to_numpy()
    confidence = table["family" if "family" in table else "confidence"].to_numpy()
    kept = np.concatenate([block.novel_rows for block in blocks()])
    is_cell = adapted.query.findings.is_cell & ~table["empty"].to_numpy()
    returned = []
    for label in lost_cells(best[is_cell], unknown[is_cell]):
        cells = unknown & (best == label)
        # Others are not named.
        if saved.labels[label] in saved.others or confidence[cells].mean() < MIN_CONFIDENCE:
            continue
        of_label = kept[cells[kept]]
        chosen = of_label[evenly_spaced(len(of_label), NUM_LOOKED_AT)]
        x = vstack([block.novel[np.isin(block.novel_rows, chosen)] for block in blocks()], "csr")
        if len(chosen) and _is_of_type(x[:, adapted.query.measured], label, found.profiles, found.study_G):
            returned.append(np.flatnonzero(cells))
            text = "%s: %s novel cells keep the label %s, as together they resemble its type"
            log.info(text, adapted.query.path, f"{cells.sum():,}", saved.labels[label])
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


def _is_of_type(x: csr_matrix, label: int, profiles: Profiles, study_G: np.ndarray) -> bool:
    """Return whether cells, taken together, resemble the type of a label."""
    shares = np.eye(len(profiles.of_labels))[[label]]
    mean = mean_counts(x)[None] / np.exp(study_G)
    found = profiles.compare(mean, shares).iloc[0]
    if found["difference"] > 0 or found["resemblance"] < MIN_RETURNED:
        return False
    return bool(found["resemblance"] >= profiles.of_other_tissues(mean) + MIN_LEAD)
