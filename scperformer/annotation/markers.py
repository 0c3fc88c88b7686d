"""Marker genes of clusters, as a table for those who label clusters by other means.

Its first columns are what the UCSC Cell Browser reads, `cluster`, `gene` and `score`; `avg_log2FC`, `pct.1` and `pct.2`
are named as by Seurat, as GPTCelltype and other language models with a table of markers expect.
"""

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.cells.normalisation import normalise
from scperformer.cells.quality import technical
from scperformer.cells.query import Query
from scperformer.io.gene_matching import gene_symbols
from scperformer.labels.tree import NO_CALL

if TYPE_CHECKING:
    from scperformer.annotation.annotate import Annotation  # imports torch, which reports do without

log = logging.getLogger(__name__)

MAX_CELLS = 1000  # of a cluster
NUM_MARKERS = 50  # of a cluster; the Cell Browser shows as many
MIN_EXPRESSING = 0.1  # share of the cells of a group that express a marker
MIN_CHANGE = 1.0  # log2 fold change of a marker
TARGET_SUM = 1e4  # counts per cell to which expression is normalised
COLUMNS = {
    **{"names": "gene", "scores": "score", "logfoldchanges": "avg_log2FC"},
    **{"pct_nz_group": "pct.1", "pct_nz_reference": "pct.2"},
}


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
        scanpy.tl.rank_genes_groups(cells, "group", groups=tested, method="t-test_overestim_var", **options)
    return tested


def rank_markers(cells: AnnData, groups: Sequence[str], most: int) -> dict[str, pd.DataFrame]:
    """Return up to `most` markers of each group, best first; groups with a single cell have none.

    `cells` are ln(1 + counts per 10,000), N cells x G genes, in N `groups`. The test is scanpy's t-test against the
    other cells, with overestimated variance; ribosomal and mitochondrial genes and MALAT1 are no markers. The tables
    have the columns of `COLUMNS` and `rank`; there are none if there is one group.
    """
    import scanpy  # takes seconds to import

    codes, names = pd.factorize(np.asarray(groups, dtype=object))
    kept = ~technical(cells.var_names)
    tested_cells = AnnData(cells.X[:, kept], var=pd.DataFrame(index=cells.var_names[kept]))
    markers = {}
    for code in compare_genes(tested_cells, codes, pts=True):
        table = scanpy.get.rank_genes_groups_df(tested_cells, code, log2fc_min=MIN_CHANGE)
        table = table[(table["scores"] > 0) & (table["pct_nz_group"] >= MIN_EXPRESSING)].head(most)
        table = table[list(COLUMNS)].rename(columns=COLUMNS)
        markers[str(names[int(code)])] = table.assign(rank=np.arange(1, len(table) + 1))
    return markers


def cluster_markers(query: Query, annotation: "Annotation") -> pd.DataFrame:
    """Return the markers of each cluster with its label, from at most 1,000 random cells of each; a row for each gene.

    `confidence` is the mean confidence of the cells in the label of their cluster, where cells with another label count
    as 0; `unknown` is the share of unknown cells; `looks_like` is the type that most of them look like, or "".
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
    markers = rank_markers(AnnData(x, var=pd.DataFrame(index=names[is_first])), clusters[rows], NUM_MARKERS)
    if not markers:
        found = f"cells of {query.path} in {clusters.nunique()} cluster{'s' if clusters.nunique() > 1 else ''}"
        expected = "two clusters or more, and two cells in one of them"
        raise InputError("one-cluster", found, expected, "leave markers_output out, or name other clusters")
    tables = []
    for cluster, cells in obs.groupby(clusters, observed=True):
        label = cells[f"{key}_cluster_label"].mode()[0]
        confidence = cells[f"{key}_confidence"].where(cells[f"{key}_label"].astype(str) == str(label), 0.0)
        about = {"label": label, "confidence": confidence.mean(), "cells": len(cells)}
        about["unknown"] = (cells[f"{key}_call"] == NO_CALL).mean()
        types = cells.get(f"{key}_looks_like", pd.Series(dtype=object)).value_counts()
        about["looks_like"] = types.index[0] if types.max() > len(cells) / 2 else ""
        table = markers.get(str(cluster), pd.DataFrame()).assign(**about)
        table.insert(0, "cluster", str(cluster))
        tables.append(table)
    made = pd.concat(tables, ignore_index=True).round(4)
    text = "%s: %d markers of %d clusters, by a t-test on at most %s cells of each"
    log.info(text, query.path, len(made), made["cluster"].nunique(), f"{MAX_CELLS:,}")
    if without := sorted(set(clusters.dropna().astype(str)) - set(made["cluster"])):
        log.warning("%s: clusters without markers: %s", query.path, ", ".join(without))
    return made
