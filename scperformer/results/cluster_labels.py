"""Clusters of cells beside their calls: whether groups that were found without the model have one label each."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.cells.quality import technical
from scperformer.labels.cluster_votes import leiden_clusters
from scperformer.results.cell_map import Drawn
from scperformer.results.read_annotations import Annotated, as_text
from scperformer.results.report_tables import Table

log = logging.getLogger(__name__)

USUAL = ("leiden", "louvain", "seurat_clusters", "clusters", "cluster")  # names of columns with clusters
MAX_CLUSTERS = 100
RESOLUTION = 1.0  # of Leiden, the default of scanpy
NUM_MARKERS = 5


@dataclass(kw_only=True)
class Clusters:
    """The cluster of each of the M cells on the map."""

    names: list[str]
    codes: npt.NDArray[np.int64]  # M, places in `names`
    source: str  # where they come from, in words


def find_clusters(samples: Sequence[Annotated], drawn: Drawn, cluster_key: str | None) -> Clusters | None:
    """Return the clusters of the cells on the map; None if there are none.

    They are a column of the files (`cluster_key`, that of the annotation, or one of a usual name), or else made by
    Leiden in the neighbour graph of the map.
    """
    key = samples[0].key
    names = [f"{key}_cluster", *USUAL] if cluster_key is None else [cluster_key]
    for name in names:
        if any(name not in sample.obs for sample in samples):
            continue
        texts = np.concatenate([as_text(sample.obs[name]) for sample in samples])[drawn.chosen]
        codes, found = pd.factorize(texts, sort=True)
        if len(found) > MAX_CLUSTERS and cluster_key is None:
            continue
        order = sorted(range(len(found)), key=lambda place: (len(str(found[place])), str(found[place])))
        places = np.argsort(order)
        log.info("clusters of the report: obs['%s']%s", name, "" if cluster_key else " (cluster_key=... chooses)")
        return Clusters(names=[str(found[place]) for place in order], codes=places[codes], source=f"obs['{name}']")
    if cluster_key is not None:
        remedy = f"{did_you_mean(cluster_key, samples[0].obs.columns)}name a column of clusters that every file has"
        raise InputError(f"cluster_key={cluster_key}, which is no column of all files", "a column of obs", remedy)
    placed = drawn.layout
    if placed is None or placed.graph is None or placed.nearest is None or "expression" not in placed.source:
        return None
    codes = leiden_clusters(placed.graph, RESOLUTION)[placed.nearest]
    source = f"made for this report by Leiden (resolution {RESOLUTION:g}) in the neighbour graph of the map"
    return Clusters(names=[str(number) for number in range(codes.max() + 1)], codes=codes, source=source)


def cluster_markers(clusters: Clusters, drawn: Drawn, *, all_genes: bool = True) -> list[str]:
    """Return the first markers of each cluster among the most variable genes, by scanpy's t-test; empty if unknown.

    Without `all_genes`, ribosomal and mitochondrial genes and MALAT1 are left out.
    """
    if drawn.values is None or not drawn.num_variable or len(clusters.names) < 2:
        return [""] * len(clusters.names)
    import scanpy

    sizes = np.bincount(clusters.codes, minlength=len(clusters.names))
    groups = [name for name, size in zip(clusters.names, sizes, strict=True) if size >= 2]
    obs = pd.DataFrame({"cluster": pd.Categorical.from_codes(clusters.codes, clusters.names)})
    obs.index = obs.index.astype(str)
    genes = drawn.genes[: drawn.num_variable].astype(str)
    kept = np.arange(len(genes)) if all_genes else np.flatnonzero(~technical(genes))
    cells = AnnData(drawn.values.x[:, kept], obs=obs, var=pd.DataFrame(index=genes[kept]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about genes without expression
        options = {"method": "t-test_overestim_var", "n_genes": NUM_MARKERS}
        scanpy.tl.rank_genes_groups(cells, "cluster", groups=groups, **options)
    ranked = cells.uns["rank_genes_groups"]
    is_marker = {name: ranked["scores"][name] > 0 for name in groups}
    texts = {name: ", ".join(ranked["names"][name][is_marker[name]]) for name in groups}
    return [texts.get(name, "") for name in clusters.names]


def cluster_table(clusters: Clusters, cells: pd.DataFrame, final: npt.NDArray[np.object_], markers: list[str]) -> Table:
    """Return a row for each cluster: its size, its calls, how sure they are, and its markers.

    Parameters
    ----------
    cells
        The table of the cells on the map.
    final
        The calls of these cells.
    """
    kinds = {"Cluster": "text", "Cells": "count", "Most frequent call": "label", "Share with this call": "share"}
    kinds |= {"Second call": "label", "Share of the second": "share", "Unknown": "share", "Median confidence": "number"}
    kinds |= {"Markers": "gene"}
    confidence = cells["confidence"].to_numpy()
    unknown = cells["unknown"].to_numpy(bool)
    rows = []
    for code, name in enumerate(clusters.names):
        is_in = clusters.codes == code
        if not is_in.any():
            continue
        shares = pd.Series(final[is_in]).value_counts(normalize=True)
        second = [str(shares.index[1]), float(shares.iloc[1])] if len(shares) > 1 else [None, None]
        first = [str(shares.index[0]), float(shares.iloc[0])]
        sure = [float(unknown[is_in].mean()), float(np.median(confidence[is_in]))]
        rows.append([name, int(is_in.sum()), *first, *second, *sure, markers[code]])
    return Table(id="clusters-table", title="Clusters and their calls", columns=list(kinds.items()), rows=rows)


def cluster_counts(
    clusters: Clusters, final: npt.NDArray[np.object_], labels: Sequence[str]
) -> tuple[list[str], list[str], npt.NDArray[np.int64]]:
    """Return the clusters in the order of their calls, the calls, and the counts of cells of both."""
    counts = pd.crosstab(clusters.codes, final).reindex(columns=[name for name in labels if name in set(final)])
    order = np.lexsort([-counts.to_numpy().max(axis=1), counts.to_numpy().argmax(axis=1)])
    names = [clusters.names[code] for code in counts.index[order]]
    return names, list(counts.columns), counts.to_numpy()[order]
