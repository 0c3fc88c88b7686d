"""The columns of an annotation: each function makes some of them, and most return them with what is recorded of them.

The names are here, too; `check` and the reports read them without torch.
"""

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from scperformer.adaptation.predictions import Blocks
from scperformer.adaptation.record import QualityRecord
from scperformer.annotation.label_options import LabelOptions
from scperformer.base.errors import InputError
from scperformer.base.messages import shortened
from scperformer.cells.opened import OpenedCells
from scperformer.cells.quality import low_quality
from scperformer.cells.query import Query
from scperformer.cells.values import evenly_spaced
from scperformer.labels.cluster_votes import cluster_labels, leiden
from scperformer.labels.tree import NO_CALL, UNKNOWN_TERM, LabelTree, best_labels
from scperformer.model.arrays import HeldOut
from scperformer.trust.conformal import set_scores, set_texts, set_threshold
from scperformer.trust.doublets import Doublets, NoDoublets
from scperformer.trust.shift import MIN_CELLS

log = logging.getLogger(__name__)

Column: TypeAlias = np.ndarray | pd.Series | pd.Categorical

# Columns of obs: of every annotation, and those that an option asks for.
QUALITY_COLUMNS = ("low_quality", "doublet_score", "doublet")
USUAL_COLUMNS = ("call", "label", "confidence", "novelty", "ontology_term_id", *QUALITY_COLUMNS)
CURATED_COLUMNS = ("curated", "curated_ontology_term_id", "named")  # by a person (curate.py)
CLUSTER_COLUMNS = ("cluster", "cluster_label", "cluster_disagrees", "looks_like", "named_by")
OBS_COLUMNS = (*USUAL_COLUMNS, "set", "set_size", *CLUSTER_COLUMNS, *CURATED_COLUMNS)
REQUIRED_COLUMNS = ("call", "label", "confidence")  # reports need no others
# Entries of obsm, with the prefix in place of the braces.
OBSM = ("X_{}", "{}_proba", "{}_own_proba", "{}_details")
UMAP = "X_umap"  # entry of obsm in which scanpy and cell browsers look for a UMAP

PREDICTION_ENTRIES = ("scores", "empty", "by_encoder", "baseline", "gains", "counts", "cluster")
MANY_LOST = 0.2  # share of the cells of a label that are unknown
MIN_LOST = 3  # cells; fewer say too little about a label
ONE_TYPE = 0.9  # whole blood samples have up to .64 of their cells in a parent of at most half of the labels, parts 1.0
NO_DOUBLETS = "not looked for (needs counts, stored cells of one reference of this tissue, and no adapt=false)"
LOOKED_AT = 1000  # cells whose genes are counted


def require_not_annotated(
    cells: OpenedCells, key: str, *, replace: bool = False, umap: bool = False
) -> None:
    """Refuse cells to which an annotation with this prefix cannot be added.

    They have entries of its names, which `replace` allows, an index with the name of one of its columns, or a UMAP in
    place of a new one, `umap`.
    """
    columns = [f"{key}_{name}" for name in OBS_COLUMNS]
    if cells.index_name in columns:
        found = f"'{cells.index_name}' as the name of the index of obs of {cells.path}"
        expected = "a name that no column of the annotation has"
        raise InputError(
            "index-name-taken", found, expected, "rename the index, or set key_added=..."
        )
    names = {"obs": columns, "obsm": [name.format(key) for name in OBSM], "uns": [key]}
    existing = cells.keys()
    taken = [
        f"{place}['{name}']" for place in names for name in names[place] if name in existing[place]
    ]
    if umap and UMAP in existing["obsm"]:
        expected = "no UMAP beside umap=true"
        remedy = "add overwrite=true to replace it, or leave out umap=true"
        raise InputError(
            "umap-exists", f"{cells.path} already has obsm['{UMAP}']", expected, remedy
        )
    if taken and not replace:
        more = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        found = f"{cells.path} already has {', '.join(taken[:3])}{more}"
        fixes = ["overwrite=true", f"key_added={key}_2"]
        remedy = "add overwrite=true to replace it, or key_added=... to keep both"
        raise InputError(
            "annotation-exists", found, "no earlier annotation of this name", remedy, fixes
        )


def gather_predictions(
    blocks: Blocks,
    tree: LabelTree | None,
    min_confidence: float,
    families: np.ndarray | None = None,
    named: Sequence[str] = (),
) -> pd.DataFrame:
    """Return what is needed of the calls of N cells in one table, without their probabilities.

    Its columns are `best`, the index of the label (`best_labels`); `confidence`, its probability; `margin`, its lead
    over the best other label; with `families`, `family`, the probability of its family; `PREDICTION_ENTRIES`
    as in `Predictions`; and `called` and `call_confidence`, the index of the called node of a
    label tree and its probability (without a tree, the label and its probability). `named` is as in `LabelTree.call`.
    """
    tables = []
    for block in blocks():
        proba = block.proba
        best = best_labels(proba, families)
        first = np.take_along_axis(proba, best[:, None], axis=1)[:, 0]
        others = proba.copy()
        np.put_along_axis(others, best[:, None], 0, axis=1)
        called = (best, first) if tree is None else tree.call(proba, best, min_confidence, named)
        columns = {"best": best, "confidence": first, "margin": first - others.max(axis=1)}
        if families is not None:
            columns["family"] = np.where(families == families[best][:, None], proba, 0).sum(axis=1)
        columns |= {name: getattr(block, name) for name in PREDICTION_ENTRIES}
        tables.append(
            pd.DataFrame(columns | dict(zip(("called", "call_confidence"), called, strict=True)))
        )
    return pd.concat(tables, ignore_index=True)


def unknown_cells(
    calls: pd.DataFrame,
    novelty: np.ndarray,
    is_type: np.ndarray,
    unknown_fpr: float,
    min_confidence: float,
) -> np.ndarray:
    """Return which of N cells are unknown, boolean.

    These are as novel as at most a share `unknown_fpr` of held-out cells of the reference, have a call below
    `min_confidence`, express no gene of the model, or have a label that is not a type, of which `is_type` is False.
    """
    unknown = (
        (1 - novelty <= unknown_fpr) | (calls["call_confidence"] < min_confidence) | calls["empty"]
    )
    return unknown.to_numpy() | ~is_type[calls["best"]]


def lost_cells(
    labels: np.ndarray, unknown: np.ndarray, share: float = MANY_LOST
) -> dict[Any, tuple[int, int]]:
    """Return the labels that lose more than a `share` of their cells to unknown, the most first: unknown and all cells.

    `labels` are of N cells, of which some are `unknown`.
    """
    counts = pd.Series(unknown).groupby(labels).agg(["sum", "size"])
    many = counts[(counts["sum"] >= MIN_LOST) & (counts["sum"] > share * counts["size"])]
    many = many.sort_values("sum", ascending=False, kind="stable")
    return {
        label: (int(num_lost), int(num_cells)) for label, num_lost, num_cells in many.itertuples()
    }


def final_call(called: np.ndarray, names: Sequence[str], unknown: np.ndarray) -> pd.Categorical:
    """Return the called name of each of N cells, given by its index, or `NO_CALL` for those that are unknown.

    Only calls that occur are categories: plots of scanpy refuse others.
    """
    names = list(dict.fromkeys([*names, NO_CALL]))  # a label may have this name
    codes = np.where(unknown, names.index(NO_CALL), called)
    return pd.Categorical.from_codes(codes, categories=names).remove_unused_categories()


def named_columns(
    calls: pd.DataFrame,
    unknown: np.ndarray,
    labels: Sequence[str],
    terms: Sequence[str],
    tree: LabelTree | None,
) -> tuple[dict[str, Column], dict[str, Column]]:
    """Return the columns with names of labels, of obs and of the details.

    Below the called node, and below a label on a higher level, a level repeats it. `terms` are the ontology ids.
    """
    called = calls["called"].to_numpy()
    nodes = list(labels) if tree is None else tree.nodes
    ids = list(terms) if tree is None else tree.ids(terms)
    obs = {
        "call": final_call(called, nodes, unknown),
        "label": pd.Categorical.from_codes(calls["best"], categories=labels),
        "ontology_term_id": _renamed(called, [*ids, UNKNOWN_TERM]),
    }
    details: dict[str, Column] = {}
    if tree is not None:
        details["call_confidence"] = calls["call_confidence"]
        paths = [tree.path(node) for node in nodes]
        for level in range(tree.num_levels):
            names = [path[min(level, len(path) - 1)] for path in paths]
            details[f"level{level + 1}"] = _renamed(called, [*names, NO_CALL])
    return obs, details


def _renamed(codes: np.ndarray, names: list[str]) -> pd.Categorical:
    """Return the name of each code, where several codes can have the same name; -1 has the last name."""
    categories = list(dict.fromkeys(names))
    places = np.array([categories.index(name) for name in names])
    return pd.Categorical.from_codes(
        places[codes], categories=categories
    ).remove_unused_categories()


def set_columns(
    blocks: Blocks, labels: Sequence[str], held_out: HeldOut, alpha: float, is_cell: np.ndarray
) -> tuple[dict[str, Column], dict[str, float]]:
    """Return the set of labels of each cell that contains the true one with the probability 1 - alpha, and a record."""
    proba = held_out.probabilities
    draws = np.random.default_rng(0).random(len(proba))  # the same in each run
    threshold = set_threshold(proba, held_out.labels, draws, alpha)
    texts: list[str] = []
    sizes = []
    for block in blocks():
        in_set = set_scores(block.proba, block.draws) <= threshold
        texts += set_texts(block.proba, in_set, labels)
        sizes.append(in_set.sum(axis=1).astype(np.int32))
    size = np.concatenate(sizes)
    record = {"alpha": alpha, "num_cells": len(proba), "mean_size": float(size[is_cell].mean())}
    return {"set": pd.Series(texts, dtype=object).astype("category"), "set_size": size}, record


def quality_columns(
    query: Query, table: pd.DataFrame, doublets: Doublets | NoDoublets
) -> tuple[dict[str, Column], QualityRecord]:
    """Return which cells are of low quality, by all genes of the file, or likely doublets, and a record."""
    findings = query.findings
    low, least_genes, highest_share = low_quality(query.cells.quality(), findings.is_cell)
    scores = np.full(len(table), np.nan)
    is_cell = ~table["empty"].to_numpy() & findings.is_cell
    own = table[is_cell]
    scores[is_cell] = doublets.scores(
        *(own[name].to_numpy() for name in ("gains", "counts", "best"))
    )
    is_doublet = scores > 1
    record = QualityRecord(
        num_low=int(low.sum()),
        least_genes=least_genes,
        highest_mitochondrial=highest_share,
        num_doublets=int(is_doublet.sum()),
        doublet_note=NO_DOUBLETS if isinstance(doublets, NoDoublets) else "",
    )
    text = "%s: %d cells of low quality (below %.0f genes, or a mitochondrial share above %.0f %%); likely doublets: %s"
    shown = record.doublet_note or record.num_doublets
    log.info(text, query.path, record.num_low, least_genes, 100 * highest_share, shown)
    return dict(
        zip(QUALITY_COLUMNS, (low, scores.astype(np.float32), is_doublet), strict=True)
    ), record


def cluster_labels_columns(
    table: pd.DataFrame,
    unknown: np.ndarray,
    is_new: np.ndarray,
    blocks: Blocks,
    options: LabelOptions,
    query: Query,
) -> tuple[dict[str, Column], dict[str, int | str | None]]:
    """Return the columns and the record of clusters, which have the deepest label on which most of the calls agree.

    Clusters with a majority of unknown cells, or of cells that look like a type without a label, `is_new`, are unknown.
    """
    is_cell = query.findings.is_cell
    how = f"obs['{options.clusters}']"
    clusters = options.cluster_of_cell
    if clusters is None:
        # Barcodes that cannot be cells have no cluster.
        rows, graph = np.flatnonzero(is_cell), options.graph
        embedding = np.concatenate([block.embedding for block in blocks()])
        if graph is not None and len(rows) < len(embedding):
            graph = graph.tocsr()[rows][:, rows]
        found = np.full(len(is_cell), -1)
        found[rows] = leiden(embedding[rows], graph, options.resolution)
        clusters = pd.Categorical.from_codes(
            found, [str(number) for number in range(found.max() + 1)]
        )
        place = "the embedding" if options.graph is None else "the neighbour graph of the file"
        how = f"Leiden on {place}, resolution {options.resolution:g}"
    tree = options.tree
    nodes = options.labels if tree is None else tree.nodes
    above = np.eye(len(nodes), dtype=bool)
    if tree is not None:
        above = np.array([[node in path for node in nodes] for path in map(tree.path, nodes)])
    called = table["called"].to_numpy(np.int64)
    voters = np.flatnonzero(is_cell & ~unknown & (called >= 0))
    numbers = np.where(is_cell, clusters.codes.astype(np.int64), -1)
    agreed = cluster_labels(numbers, called, table["call_confidence"].to_numpy(), voters, above)
    has_no_label = (agreed < 0) | (
        pd.Series(is_new).groupby(numbers).transform("mean").to_numpy() > 0.5
    )
    own = np.array([nodes.index(label) for label in options.labels])[table["best"]]
    disagrees = ~above[own, agreed] & ~has_no_label
    num_disagree = int(disagrees.sum())
    label = final_call(agreed, nodes, has_no_label)
    record = {"key": options.clusters, "how": how, "num_clusters": int(clusters.codes.max()) + 1}
    text = "%s: clusters=%s: %d clusters (%s); %d cells (%.1f %%) differ from the label of their cluster"
    share = 100 * num_disagree / len(table)
    log.info(text, query.path, options.clusters, record["num_clusters"], how, num_disagree, share)
    columns = {"cluster": clusters, "cluster_label": label, "cluster_disagrees": disagrees}
    return columns, record | {"num_disagree": num_disagree}


def few_cells_of_genes(query: Query, min_genes: int) -> str:
    """Return how many cells express fewer genes of the model, in words; "" if there are none."""
    rows = query.cells.sample_rows()
    num_genes = np.diff(query.some(rows[evenly_spaced(len(rows), LOOKED_AT)]).indptr)
    num_few = int((num_genes < min_genes).sum())
    return f"{num_few:,} of {len(num_genes):,} cells" if num_few else ""


def one_type(best: np.ndarray, tree: LabelTree) -> str:
    """Return the label, or the parent of at most half of the labels, that has nearly all known cells; "" without one.

    A subset with cells of one type has another depth and batch effect than its whole sample. `best` is the index of the
    label of each known cell.
    """
    labels = tree.labels
    counts = np.bincount(best, minlength=len(labels))
    in_node = {node: [node in tree.path(label) for label in labels] for node in tree.nodes}
    share, _, node = max(
        (counts[inside].sum() / max(1, counts.sum()), -sum(inside), node)
        for node, inside in in_node.items()
        if sum(inside) <= max(1, len(labels) / 2)
    )
    if share <= ONE_TYPE or counts.sum() < MIN_CELLS:
        return ""
    return f"{share:.0%} of the known cells are {shortened(node)}"
