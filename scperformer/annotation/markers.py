"""Marker genes of groups of cells, and the table of clusters with an empty column for the names that a person gives."""

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.messages import listed
from scperformer.cells.normalisation import normalise
from scperformer.cells.quality import technical
from scperformer.cells.query import Query
from scperformer.io.gene_matching import gene_symbols

if TYPE_CHECKING:
    # imports torch, which reports do without
    from scperformer.annotation.annotate import Annotation

log = logging.getLogger(__name__)

MAX_CELLS = 1000  # of a cluster
NUM_MARKERS = 10  # of a cluster
NUM_CALLS = 3  # of a cluster, the most frequent ones,
LEAST_SHARE = 0.01  # with this share of its cells or more
MIN_EXPRESSING = 0.1  # share of the cells of a group that express a marker
MIN_CHANGE = 1.0  # log2 fold change of a marker
TARGET_SUM = 1e4  # counts per cell to which expression is normalised
# Of the table; `name` is for the person.
CLUSTER_COLUMNS = ("cluster", "cells", "calls", "confidence", "looks_like", "markers", "name")


def compare_genes(cells: AnnData, codes: np.ndarray, **options: Any) -> list[str]:
    """Compare the genes of groups of cells with those of the others; return the groups with two cells or more.

    The test is scanpy's t-test with overestimated variance, whose `options` are others than its usual ones. `codes` has
    the number of the group of each cell; with one group there is no test.
    """
    import scanpy  # takes seconds to import

    tested = [str(code) for code in np.flatnonzero(np.bincount(codes) > 1)]
    if len(np.unique(codes)) < 2 or not tested:
        return []
    cells.obs["group"] = pd.Categorical(codes.astype(str))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about genes without expression
        scanpy.tl.rank_genes_groups(
            cells, "group", groups=tested, method="t-test_overestim_var", **options
        )
    return tested


def rank_markers(cells: AnnData, groups: Sequence[str], most: int) -> dict[str, list[str]]:
    """Return up to `most` markers of each group, best first; groups with a single cell have none.

    `cells` are ln(1 + counts per 10,000), N cells x G genes, in N `groups`. The test is scanpy's t-test against the
    other cells, with overestimated variance; ribosomal and mitochondrial genes and MALAT1 are no markers. There are
    none if there is one group.
    """
    codes, names = pd.factorize(np.asarray(groups, dtype=object))
    kept = ~technical(cells.var_names)
    tested_cells = AnnData(cells.X[:, kept], var=pd.DataFrame(index=cells.var_names[kept]))
    markers = {}
    for code in compare_genes(tested_cells, codes, pts=True):
        # Not `rank_genes_groups_df`, which joins tables of all genes for each group.
        table = tested_cells.uns["rank_genes_groups"]
        genes = table["names"][code]
        is_marker = (table["logfoldchanges"][code] > MIN_CHANGE) & (table["scores"][code] > 0)
        is_marker &= table["pts"].loc[genes, code].to_numpy() >= MIN_EXPRESSING
        markers[str(names[int(code)])] = genes[is_marker][:most].tolist()
    return markers


def cluster_table(query: Query, annotation: "Annotation") -> pd.DataFrame:
    """Return a row for each cluster, the largest first, with the columns of `CLUSTER_COLUMNS`.

    `calls` are the most frequent ones with their shares, `confidence` the mean, `looks_like` the type that most cells
    look like, or "". The test for markers takes at most 1,000 random cells of each cluster.
    """
    key = annotation.key
    obs = annotation.obs
    clusters = obs[f"{key}_cluster"]
    shuffled = clusters.dropna().sample(frac=1, random_state=0)
    rows = np.sort(shuffled.groupby(shuffled, observed=True).head(MAX_CELLS).index.to_numpy())
    stored = query.cells.some(rows)
    names = pd.Index(gene_symbols(query.cells.var.index))
    is_first = ~names.duplicated()
    x = normalise(stored, query.findings, TARGET_SUM)[:, is_first]
    markers = rank_markers(
        AnnData(x, var=pd.DataFrame(index=names[is_first])), clusters[rows], NUM_MARKERS
    )
    found = []
    for cluster, num_cells in clusters.value_counts().items():
        cells = obs[clusters == cluster]
        shares = cells[f"{key}_call"].value_counts(normalize=True).head(NUM_CALLS)
        calls = [
            f"{call} {share:.2f}".replace(" 0.", " .")
            for call, share in shares.items()
            if share >= LEAST_SHARE
        ]
        types = cells.get(f"{key}_looks_like", pd.Series(dtype=object)).value_counts()
        looks_like = types.index[0] if types.max() > num_cells / 2 else ""
        confidence = round(cells[f"{key}_confidence"].mean(), 3)
        of_cluster = ", ".join(markers.get(str(cluster), []))
        found.append(
            (str(cluster), num_cells, "; ".join(calls), confidence, looks_like, of_cluster, "")
        )
    table = pd.DataFrame(found, columns=list(CLUSTER_COLUMNS))
    text = "%s: %d clusters, with markers by a t-test on at most %s cells of each"
    log.info(text, query.path, len(table), f"{MAX_CELLS:,}")
    if without := table["cluster"][table["markers"] == ""].tolist():
        log.warning("%s: clusters without markers: %s", query.path, listed(without))
    return table
