"""Clusters to check: clusters whose mean expression resembles a different type than their labels.

docs/trust_methods.md describes them. The same comparison returns labels: a label that would lose many cells as unknown
keeps them, if these cells, taken together, resemble its type more than any type of any tissue, and are not called with
a low confidence. Cells with the markers of a sibling type that no label is of are listed, too (cells/siblings.py).

Shape letters: K groups of cells, C labels, G genes. Means are counts per 10,000.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix, vstack

from scperformer.adaptation.adapted import Adapted, NotSampled, SampledCells
from scperformer.adaptation.predictions import Blocks
from scperformer.adaptation.record import BETWEEN_LABELS, CLUSTER_ENTRIES, CheckRecord, texts
from scperformer.annotation.columns import MANY_LOST, lost_cells
from scperformer.base.sparse import mean_counts
from scperformer.cells.collection import CELLS_AT_ONCE
from scperformer.cells.quality import technical
from scperformer.cells.siblings import Siblings, find_siblings
from scperformer.cells.values import evenly_spaced
from scperformer.config.options import AUTO
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.label_profiles import MIN_GENES, Profiles, find_profiles
from scperformer.model.tissues import collection, family_of
from scperformer.trust.batch_effect import log_factors
from scperformer.trust.clusters import NO_CLUSTERS, fit_clusters
from scperformer.trust.shift import FAR

log = logging.getLogger(__name__)

MIN_CELLS = 200  # of a file that has clusters
MIN_CLUSTER = 10
# Correlation with the nearest profile minus that with the families of the labels. In the development pairs of
# benchmarks/studies.py: up to .055 where no type is missing, .11 or more where one is.
MIN_DIFFERENCE = 0.07
MIN_DIFFERENCE_NEW = 0.03  # if no label is of the type of the nearest profile
MIN_RESEMBLANCE = 0.5  # to the nearest profile
LEAST_RESEMBLANCE = 0.4  # if the difference is large and no label is of its type
MIN_DIFFERENCE_T = 0.04  # of T cells from the T cells of another label, which they then take
# of the depth of the reference, below which T cells of mixed clusters keep their labels
SHALLOW = 0.5
MIN_SHARE_T = 0.1  # of these in a cluster
T_CELL = "CL:0000084"
CD8_T_CELL = "CL:0000625"
NUM_GENES = 6  # of a cluster, which are too high, and too low
NUM_LOOKED_AT = 200  # unknown cells of a label
MIN_RETURNED = 0.3  # their resemblance to its type, for them to keep it
MIN_LEAD = 0.08  # of this resemblance over that to specific types of other tissues; cell lines in a pancreas have .06
MIN_CONFIDENCE = 0.6  # their mean confidence, with profiles that of the family
TINY = np.float32(1e-9)  # in place of a probability of 0, by which others are divided


def with_sampled_cells(adapted: Adapted) -> Adapted:
    """Return the adapted model with cells of its query that show the clusters of this, or with why there are none."""
    if not adapted.reference.has_cells:
        return replace(
            adapted,
            sampled=NotSampled("this needs stored cells of one reference, and no adapt=false"),
        )
    query = adapted.query
    rows = query.cells.sample_rows()
    x = query.some(rows)
    is_expressed = np.diff(x.indptr) > 0
    rows = rows[is_expressed]
    x = x[is_expressed]
    if not len(rows) or adapted.compared.shift.kind == FAR:
        return replace(adapted, sampled=NotSampled("its cells are of another tissue"))
    clusters = (
        fit_clusters(x, technical(adapted.saved.genes)) if len(rows) >= MIN_CELLS else NO_CLUSTERS
    )
    return replace(adapted, sampled=SampledCells(rows, x, clusters))


@dataclass(frozen=True)
class Exchange:
    """Cells that take the labels of a similar type: of a cluster that resembles it more, or with its markers."""

    cells: np.ndarray  # bool N
    old: np.ndarray  # bool C: labels that they lose
    new: np.ndarray  # bool C: labels of the other type
    num_cells: int  # that lose their label
    cluster: int = -1  # -1: of none


@dataclass(frozen=True)
class NotCompared:
    """In place of compared clusters: why they were not compared."""

    why: str
    exchanges: Sequence[Exchange] = ()


@dataclass(frozen=True, eq=False)
class Compared:
    """The clusters of a query beside profiles, or one group of its cells if they are few."""

    sampled: SampledCells
    profiles: Profiles
    num_clusters: int
    listed: pd.DataFrame  # clusters of a type without a label, the most different first
    exchanges: list[Exchange]
    study_G: np.ndarray  # what all clusters share: the logarithm of a factor per gene
    # of listed rows that are no clusters, whose numbers are negative: bool N
    cells: dict[int, np.ndarray]


@dataclass
class Checked:
    """What was found in the cells of a query."""

    record: CheckRecord
    returned: np.ndarray  # bool: unknown cells that get their label back
    is_listed: np.ndarray  # bool: cells of clusters to check
    column: pd.Categorical | None = None  # what these look like, else missing


def compare_clusters(
    adapted: Adapted, table: pd.DataFrame, allowed: np.ndarray
) -> Compared | NotCompared:
    """Compare the clusters of a query with the types of their labels; or return why they cannot be compared.

    `table` has the predictions of its cells, as `gather_predictions` returns them; `allowed` are the labels that can
    occur, bool C.
    """
    sampled = adapted.sampled
    if isinstance(sampled, NotSampled):
        return NotCompared(sampled.why)
    saved = adapted.saved
    measured = adapted.query.measured
    genes = np.array(saved.genes)[measured]
    means = adapted.reference.means
    names = saved.name, saved.provenance.tissue, saved.provenance.resembles
    profiles = find_profiles(names, genes.tolist(), means, saved.ontology_term_ids)
    if profiles is None:
        return NotCompared(
            f"the labels resemble no packaged tissue, or share fewer than {MIN_GENES} genes with it"
        )
    best = table["best"].to_numpy()[sampled.rows]
    numbers = np.maximum(0, table["cluster"].to_numpy()[sampled.rows])  # one group without clusters
    large = np.flatnonzero(np.bincount(numbers) >= min(MIN_CLUSTER, len(best)))
    groups = [numbers == number for number in large]
    x = sampled.x if measured.all() else sampled.x[:, measured]
    found, study_G = _compare_groups(x, best, groups, profiles, means, genes)
    found = found.assign(number=large, label=np.array(saved.labels, dtype=object)[found["called"]])
    found = found[found["resemblance"] >= LEAST_RESEMBLANCE]
    exchanges = []
    if adapted.options.relabel == AUTO and len(sampled.clusters.centres):
        # In a mixed cluster, cells called CD8 T cells may have their markers, but CD4 T cells have none of their own.
        # Few counts do not show these markers.
        is_clear = found["difference"] >= MIN_DIFFERENCE_T
        if not adapted.record.depth_share < SHALLOW:
            is_clear |= found["term"].map(family_of) == CD8_T_CELL
        exchanges = _exchanges(found[is_clear], profiles, allowed, table)
    has_other = [each.cluster for each in exchanges]
    is_different = found["difference"] >= MIN_DIFFERENCE
    is_alike = found["resemblance"] >= MIN_RESEMBLANCE
    is_new = ~found["is_known"] & (
        is_different | (is_alike & (found["difference"] >= MIN_DIFFERENCE_NEW))
    )
    is_other = (is_different & is_alike) | is_new
    rows = [found[is_other & ~found["number"].isin(has_other)]]
    cells = {}
    for number, siblings in enumerate(find_siblings(x, best, profiles, genes.tolist()), start=2):
        is_in = _of_siblings(adapted, table, siblings)
        if adapted.options.relabel == AUTO and _is_t(profiles)[siblings.has_type].any():
            exchanges += _exchange(
                siblings.has_type & allowed, siblings.label, profiles, is_in, table
            )
        if not profiles.is_own[:, siblings.is_type].any():
            mean = mean_counts(x[is_in[sampled.rows]])[None] / np.exp(study_G)
            row = profiles.compare(
                mean, np.eye(len(saved.labels))[[siblings.label]], siblings.is_type
            )
            shown = {"too_high": ", ".join(genes[siblings.markers]), "too_low": ""}
            rows.append(row.assign(number=-number, label=saved.labels[siblings.label], **shown))
            cells[-number] = is_in
    listed = pd.concat(rows).sort_values("difference", ascending=False, kind="stable")
    # a type may have several clusters, which are listed as one
    listed["place"] = pd.factorize(listed["family"])[0]
    return Compared(sampled, profiles, len(large), listed, exchanges, study_G, cells)


def _of_siblings(adapted: Adapted, table: pd.DataFrame, siblings: Siblings) -> np.ndarray:
    """Return which cells of a label have the markers of a sibling type, bool N."""
    is_in = np.zeros(len(table), dtype=bool)
    places = np.flatnonzero(_cells(adapted, table) & (table["best"] == siblings.label).to_numpy())
    for some in np.array_split(places, len(places) // CELLS_AT_ONCE + 1):
        is_in[some] = siblings.include(adapted.query.some(some)[:, adapted.query.measured])
    return is_in


def _cells(adapted: Adapted, table: pd.DataFrame) -> np.ndarray:
    """Return which barcodes are cells with expression, bool."""
    return adapted.query.findings.is_cell & ~table["empty"].to_numpy()


def _is_t(profiles: Profiles) -> np.ndarray:
    """Return which labels are of T cells alone, bool C."""
    is_t = np.array([T_CELL in packaged_ontology().ancestors(term) for term in profiles.terms])
    return np.asarray(~(profiles.is_own & ~is_t).any(axis=1))


def _exchanges(
    found: pd.DataFrame, profiles: Profiles, allowed: np.ndarray, table: pd.DataFrame
) -> list[Exchange]:
    """Return the clusters of T cells that resemble the T cells of another label more."""
    exchanges = []
    is_other = (found["lead"] >= MIN_DIFFERENCE_T) & (found["other_share"] >= MIN_SHARE_T)
    for row in found[is_other].itertuples():
        cells = (table["cluster"] == row.number).to_numpy()
        new = profiles.is_own[:, row.profile] & allowed
        exchanges += [
            replace(each, cluster=row.number)
            for each in _exchange(new, row.other, profiles, cells, table)
        ]
    return exchanges


def _exchange(
    new: np.ndarray, label: int, profiles: Profiles, cells: np.ndarray, table: pd.DataFrame
) -> list[Exchange]:
    """Return the exchange by which cells lose a label, and those of its type, to new labels, if all are of T cells."""
    is_t = _is_t(profiles)
    old = (profiles.is_own & profiles.is_own[label]).any(axis=1) & is_t & ~new
    if not (is_t[label] and new.any() and is_t[new].all()):
        return []
    return [Exchange(cells, old, new, int((cells & old[table["best"]] & ~table["empty"]).sum()))]


def exchanged(proba: np.ndarray, rows: slice, exchanges: Sequence[Exchange]) -> np.ndarray:
    """Exchange the probabilities of two types in cells that resemble the other one.

    `proba` are of cells with these row numbers, N x C. Only cells with a label that is to be lost change; the labels
    of a type keep their shares of its probability.
    """
    proba = proba.copy()
    for each in exchanges:
        changed = np.flatnonzero(each.cells[rows] & each.old[proba.argmax(axis=1)])
        parts = [proba[np.ix_(changed, labels)] + TINY for labels in (each.old, each.new)]
        sums = [part.sum(axis=1, keepdims=True) for part in parts]
        proba[np.ix_(changed, each.old)] = parts[0] * sums[1] / sums[0]
        proba[np.ix_(changed, each.new)] = parts[1] * sums[0] / sums[1]
    return proba


def check_clusters(
    adapted: Adapted,
    blocks: Blocks,
    table: pd.DataFrame,
    unknown: np.ndarray,
    compared: Compared | NotCompared,
) -> Checked:
    """Find the cells of clusters to check, and the unknown cells that get their label back; log both.

    `table` has the predictions of each cell in `blocks`, as `gather_predictions` returns them; `unknown` cells are
    given by a boolean.
    """
    query = adapted.query
    none = np.zeros(len(table), dtype=bool)
    if isinstance(compared, NotCompared):
        text = f"clusters were not checked: {compared.why}"
        log.info("%s: %s", query.path, text)
        return Checked(CheckRecord(text=text), none, none)
    is_cell = _cells(adapted, table)
    place = np.full(len(table), -1)
    for row in compared.listed.itertuples():
        is_own = compared.profiles.is_own[table["best"], row.profile]
        is_in = compared.cells.get(row.number, table["cluster"] == row.number)
        place[is_cell & is_in & ~is_own] = row.place
    has_cells = np.bincount(place[place >= 0], minlength=compared.listed["place"].nunique()) > 0
    place = np.append(has_cells.cumsum() - 1, -1)[place]
    record = _record(adapted, compared, place, has_cells)
    log.info("%s: %s", query.path, record.text)
    returned = _returned_cells(adapted, blocks, table, unknown & is_cell & (place < 0), compared)
    record.num_returned = len(returned)
    column = (
        None if record.looks_like is None else pd.Categorical.from_codes(place, record.looks_like)
    )
    return Checked(record, np.isin(np.arange(len(table)), returned), place >= 0, column)


def _record(
    adapted: Adapted, compared: Compared, place: np.ndarray, has_cells: np.ndarray
) -> CheckRecord:
    """Return the record of clusters beside profiles; `place` has the place of each cell in the list, or -1."""
    names = np.array(adapted.saved.labels, dtype=object)
    record = CheckRecord(
        text="no cluster to check: all resemble the types of their labels",
        tissue=collection().title(compared.profiles.tissue),
        num_looked_at=len(compared.sampled.rows),
        num_clusters=compared.num_clusters,
        are_unknown=adapted.options.relabel == AUTO,
    )
    if not len(compared.sampled.clusters.centres):
        record.text = f"no cluster to check: fewer than {MIN_CELLS} cells have no clusters"
    elif has_cells.any():
        groups = compared.listed.groupby("place")
        clusters = groups.first()
        clusters["label"] = groups["label"].agg(lambda labels: ", ".join(dict.fromkeys(labels)))
        clusters = clusters[has_cells].assign(num_cells=np.bincount(place[place >= 0]))
        values = {name: clusters[name].to_numpy() for name in CLUSTER_ENTRIES}
        record = replace(record, text=f"clusters to check: {len(clusters)}", **values)
    if compared.exchanges:
        record.exchanged_from = texts(
            BETWEEN_LABELS.join(names[each.old]) for each in compared.exchanges
        )
        record.exchanged_to = texts(
            BETWEEN_LABELS.join(names[each.new]) for each in compared.exchanges
        )
        record.exchanged_cells = np.array([each.num_cells for each in compared.exchanges])
    return record


def _returned_cells(
    adapted: Adapted, blocks: Blocks, table: pd.DataFrame, unknown: np.ndarray, found: Compared
) -> np.ndarray:
    """Return the numbers of the rows of novel cells that keep their label: together they resemble its type.

    `table` has the predictions of the cells in `blocks`, of which some are `unknown` and in no cluster to check.
    """
    saved = adapted.saved
    best = table["best"].to_numpy()
    confidence = table["family" if "family" in table else "confidence"].to_numpy()
    kept = np.concatenate([block.novel_rows for block in blocks()])
    is_cell = _cells(adapted, table)
    returned = []
    # Of a list of markers, the reference is the clear cells of the file, from which all others differ.
    share = MANY_LOST if saved.provenance.markers is None else 0.0
    for label in lost_cells(best[is_cell], unknown[is_cell], share):
        cells = unknown & (best == label)
        # Others are not named.
        if saved.labels[label] in saved.others or confidence[cells].mean() < MIN_CONFIDENCE:
            continue
        of_label = kept[cells[kept]]
        chosen = of_label[evenly_spaced(len(of_label), NUM_LOOKED_AT)]
        x = vstack([block.novel[np.isin(block.novel_rows, chosen)] for block in blocks()], "csr")
        if len(chosen) and _is_of_type(
            x[:, adapted.query.measured], label, found.profiles, found.study_G
        ):
            returned.append(np.flatnonzero(cells))
            text = "%s: %s novel cells keep the label %s, as together they resemble its type"
            log.info(text, adapted.query.path, f"{cells.sum():,}", saved.labels[label])
    return np.concatenate([np.arange(0), *returned])


def _compare_groups(
    x: csr_matrix,
    best: np.ndarray,
    groups: Sequence[np.ndarray],
    profiles: Profiles,
    means_CG: np.ndarray,
    genes: np.ndarray,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Compare groups of cells with their labels; also return what all share, the logarithm of a factor per gene.

    `groups` are K boolean arrays over the cells of `x`, whose labels are `best`. The table has the columns of
    `Profiles.compare`, the index of the label that most cells are `called`, that of the `other` T cells among them,
    with their share and the `lead` of the nearest profile over theirs, and the genes that are too high and too low.
    """
    pairs = [log_factors(x[k], best[k], means_CG) for k in groups]
    logs_KG, labels_KG = map(np.stack, zip(*pairs, strict=True))
    study_G = np.median(logs_KG, axis=0)
    means_KG = np.stack([mean_counts(x[k]) for k in groups]) / np.exp(study_G)
    shares_KC = np.stack([np.bincount(best[k], minlength=len(means_CG)) / k.sum() for k in groups])
    table = profiles.compare(means_KG, shares_KC).assign(called=shares_KC.argmax(axis=1))
    others_KC = shares_KC * (_is_t(profiles)[:, None] & ~profiles.is_own[:, table["profile"]]).T
    lead = profiles.compare(means_KG, others_KC)["difference"]
    table = table.assign(
        other=others_KC.argmax(axis=1), other_share=others_KC.max(axis=1), lead=lead
    )
    excess_KG = (logs_KG - study_G) * np.log1p(np.maximum(means_KG, labels_KG)) * ~technical(genes)
    for name, sign in {"too_high": -1, "too_low": 1}.items():
        table[name] = [
            ", ".join(genes[np.argsort(sign * excess, kind="stable")[:NUM_GENES]])
            for excess in excess_KG
        ]
    return table, study_G


def _is_of_type(x: csr_matrix, label: int, profiles: Profiles, study_G: np.ndarray) -> bool:
    """Return whether cells, taken together, resemble the type of a label."""
    shares = np.eye(len(profiles.is_own))[[label]]
    mean = mean_counts(x)[None] / np.exp(study_G)
    found = profiles.compare(mean, shares).iloc[0]
    if found["difference"] > 0 or found["resemblance"] < MIN_RETURNED:
        return False
    return bool(found["resemblance"] >= profiles.of_other_tissues(mean) + MIN_LEAD)
