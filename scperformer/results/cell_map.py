"""The map of the cells: where they are, and everything that can colour them or is shown when one is pointed at."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy import sparse

from scperformer.labels.texts import label_texts
from scperformer.results import expression, figures, layout
from scperformer.results.read_annotations import Annotated, as_text

log = logging.getLogger(__name__)

OWN = "Columns of the files"  # a group of columns
AUTO = "auto"  # X_umap of a single file that has it, else the expression
EXPRESSION = "expression"
PROBABILITIES = "probabilities"
MIN_SHARED_GENES = 50  # fewer say too little about cells
CELLS_FOR_GENES = 4000  # cells among which the most variable genes are found
SAMPLES_FOR_GENES = 20  # samples that these cells come from
MAX_CATEGORIES = 60  # a column with more values cannot colour the map
MAX_COLUMNS = 20  # columns of the user on the map
MIN_PROBABILITY = 1e-3  # smaller probabilities are noise, which logarithms would enlarge
FLAGS = {"unknown": "Unknown", "doublet": "Likely doublet", "low_quality": "Low quality"}  # columns, and their titles
NUMBERS = {"novelty": "Novelty", "doublet_score": "Doublet score", "call_confidence": "Confidence of the call"}
QUALITY = {"num_genes": "Genes per cell", "total": "Counts per cell", "mitochondrial": "Mitochondrial share"}


@dataclass(kw_only=True)
class Drawn:
    """The M cells on the map, of all samples."""

    rows: list[npt.NDArray[np.int64]]  # for each sample the ascending row numbers of its cells on the map
    chosen: npt.NDArray[np.int64]  # M, the same among the cells of all samples
    layout: layout.Layout | None  # None: too few cells
    values: expression.Values | None  # of the most variable genes, then of the genes shown; None: cannot be read
    genes: pd.Index  # the names of both; the first `num_variable` are the most variable ones
    num_variable: int


def draw(
    samples: Sequence[Annotated],
    measured: Sequence[pd.Index],
    shown_genes: pd.Index,
    *,
    all_read: bool,
    how: str,
    max_cells: int,
    seed: int,
) -> Drawn:
    """Choose at most `max_cells` random cells of all samples, read their genes, and place them.

    Parameters
    ----------
    measured
        The different sets of genes of the samples whose expression could be read: that of all of them if `all_read`.
    shown_genes
        Genes that can colour the map.
    how
        auto, X_umap, expression or probabilities, as the option `layout` of the report.
    """
    num_cells = sum(len(sample.obs) for sample in samples)
    chosen = np.arange(num_cells)
    if num_cells > max_cells:
        chosen = np.sort(np.random.default_rng(seed).choice(num_cells, max_cells, replace=False))
    ends = np.cumsum([0, *(len(sample.obs) for sample in samples)])
    rows = [chosen[(chosen >= start) & (chosen < end)] - start for start, end in pairwise(ends)]
    variable = pd.Index([], dtype=object)
    if measured and all_read and len(chosen) >= layout.MIN_CELLS:
        variable = _variable_genes(samples, measured, seed)
    genes = variable.append(shown_genes)
    values = None
    if len(genes):
        log.info("reading %d genes of %s cells for the map", len(genes), f"{len(chosen):,}")
        values = expression.gene_values(samples, genes, rows)
    variable_values = None if values is None else values.x[:, : len(variable)]
    placed = _place(samples, rows, variable_values, how, seed)
    return Drawn(rows=rows, chosen=chosen, layout=placed, values=values, genes=genes, num_variable=len(variable))


def _variable_genes(samples: Sequence[Annotated], measured: Sequence[pd.Index], seed: int) -> pd.Index:
    """Return the most variable of the genes that all samples measure; none if they share fewer than 50."""
    shared = measured[0]
    for genes in measured[1:]:
        shared = shared.intersection(genes, sort=False)
    if len(shared) < MIN_SHARED_GENES:
        log.info("the samples share %d genes: too few for a map of their expression", len(shared))
        return shared[:0]
    rng = np.random.default_rng(seed)
    some = [samples[place] for place in np.sort(rng.permutation(len(samples))[:SAMPLES_FOR_GENES])]
    num = -(-CELLS_FOR_GENES // len(some))
    rows = [np.sort(rng.permutation(len(sample.obs))[:num]) for sample in some]
    return shared[layout.variable_genes(expression.gene_values(some, shared, rows).x)]


def _place(
    samples: Sequence[Annotated],
    rows: Sequence[npt.NDArray[np.int64]],
    values: sparse.csr_matrix | None,
    how: str,
    seed: int,
) -> layout.Layout | None:
    """Return the coordinates of the cells on the map, and say what they are."""
    has_umap = all(sample.umap is not None for sample in samples)
    is_one = len(samples) == 1
    if how == "X_umap" or (how == AUTO and has_umap and is_one):
        pieces = [sample.umap[drawn] for sample, drawn in zip(samples, rows, strict=True) if sample.umap is not None]
        if len(pieces) == len(samples):
            source = "The UMAP of the file (X_umap)" if is_one else "The UMAP of the files (X_umap)"
            log.info("map: %s", source)
            return layout.Layout(xy=np.concatenate(pieces), source=source)
        log.warning("layout=X_umap, but not every file has it: the map is made anew")
    if how == AUTO and has_umap and not is_one:
        text = "the files have a UMAP each, which may not be one of all files: the map is made anew"
        log.info("%s (layout=X_umap takes theirs)", text)
    if how != PROBABILITIES and values is not None and values.shape[1]:
        log.info("placing %s cells on the map by their expression", f"{values.shape[0]:,}")
        source = f"UMAP of expression ({values.shape[1]:,} most variable genes that all samples share)"
        return layout.umap(layout.principal_components(values, seed), seed, source)
    log.info("placing %s cells on the map by the probabilities of their labels", f"{sum(map(len, rows)):,}")
    proba = [sample.probabilities(drawn) for sample, drawn in zip(samples, rows, strict=True)]
    points = np.log(np.maximum(np.concatenate(proba), MIN_PROBABILITY))
    return layout.umap(points, seed, "UMAP of the probabilities of the labels, which separates labels by construction")


def map_columns(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    labels: Sequence[str],
    quality: dict[str, pd.DataFrame],
    drawn: Drawn,
    truth_key: str | None,
) -> list[dict[str, Any]]:
    """Return everything that can colour the cells on the map, packed; each column has a name and a group.

    Parameters
    ----------
    cells
        The table of the cells of all samples.
    labels
        Names of the labels of the page.
    quality
        Quality of the cells of samples by name.
    truth_key
        Column of obs with the true labels, if there is one.
    """
    chosen = drawn.chosen
    names = pd.Index(labels)
    key = samples[0].key
    columns: list[dict[str, Any]] = []

    def of_obs(name: str) -> pd.Series | None:
        if any(name not in sample.obs for sample in samples):
            return None
        parts = [sample.obs[name] for sample in samples]
        if isinstance(parts[0].dtype, pd.CategoricalDtype) or len({part.dtype for part in parts}) > 1:
            parts = [label_texts(part) for part in parts]
        return pd.concat(parts, ignore_index=True).iloc[chosen]

    def add(name: str, group: str, values: pd.Series | None) -> None:
        is_own = group == OWN  # such a column may have a value for each cell
        if values is not None and (packed := _packed(values, names, always=not is_own)) is not None:
            columns.append({"name": name, "group": group, **packed})

    annotation = "Annotation"
    add("Call", annotation, pd.Series(np.array(labels, dtype=object)[cells["code"].to_numpy()[chosen]]))
    add("Label", annotation, cells["label"].iloc[chosen])
    level = 1
    while (values := of_obs(f"{key}_level{level}")) is not None:
        add(f"Level {level}", annotation, values)
        level += 1
    add("Confidence", annotation, cells["confidence"].iloc[chosen])
    for column, title in NUMBERS.items():
        add(title, annotation, of_obs(f"{key}_{column}"))
    add(FLAGS["unknown"], annotation, cells["unknown"].iloc[chosen])
    if "baseline" in cells:
        add("Logistic regression", annotation, cells["baseline"].iloc[chosen])
    if "cluster_label" in cells:
        add("Cluster label", annotation, cells["cluster_label"].iloc[chosen])
    if "cluster" in cells:
        add("Cluster", annotation, cells["cluster"].iloc[chosen])
    add("Sample", "Samples", cells["sample"].iloc[chosen])
    if len(quality) == len(samples):
        table = pd.concat([quality[sample.name] for sample in samples], ignore_index=True).iloc[chosen]
        for column, title in QUALITY.items():
            add(title, "Quality", table[column])
    for column in ("doublet", "low_quality"):
        flags = [flag for sample in samples if (flag := sample.flag(column)) is not None]
        if len(flags) == len(samples):
            add(FLAGS[column], "Quality", pd.Series(np.concatenate(flags)[chosen]))
    own = [str(name) for name in samples[0].obs if not str(name).startswith(f"{key}_")]
    own = [name for name in own if all(name in sample.obs for sample in samples)]
    own.sort(key=lambda name: name != truth_key)  # stable
    for name in own[:MAX_COLUMNS]:
        add(f"True label: {name}" if name == truth_key else name, OWN, of_obs(name))
    if len(own) > MAX_COLUMNS:
        text = "%d columns of the files can colour the map, and %d more cannot: %s and others"
        log.info(text, MAX_COLUMNS, len(own) - MAX_COLUMNS, own[MAX_COLUMNS])
    if drawn.values is not None:
        for place in range(drawn.num_variable, len(drawn.genes)):
            values = drawn.values.column(place)
            if np.isfinite(values).any():
                name = str(drawn.genes[place])
                columns.append({"name": name, "group": "Expression", **figures.expression_levels(values)})
    return columns


def _packed(values: pd.Series, labels: pd.Index, always: bool) -> dict[str, Any] | None:
    """Pack a column: as places in `labels`, as few other texts, or as numbers; None if it cannot colour the map."""
    if is_numeric_dtype(values.dtype) and not is_bool_dtype(values.dtype):
        numbers = values.to_numpy(float)
        return figures.numbers(numbers) if np.isfinite(numbers).any() else None
    texts = as_text(values)
    if set(texts) <= {"True", "False"}:
        return {"values": ["no", "yes"], "codes": figures.codes((texts == "True").astype(np.int64), 2)}
    places = labels.get_indexer(texts)
    if (places >= 0).all():
        return {"values": None, "codes": figures.codes(places, len(labels))}
    numbers, found = pd.factorize(texts, sort=True)
    if len(found) > MAX_CATEGORIES and not always:
        return None
    return {"values": list(map(str, found)), "codes": figures.codes(numbers, len(found))}


def map_data(drawn: Drawn, columns: list[dict[str, Any]], names: Sequence[str], *, as_hexagons: bool) -> dict[str, Any]:
    """Return the map as plain data; coordinates are whole numbers up to 65,535 of the `span` of each axis."""
    assert drawn.layout is not None, "there is a map"
    xy = drawn.layout.xy
    low = xy.min(axis=0)
    span = np.maximum(np.ptp(xy, axis=0), 1e-6)
    return {
        "span": span.tolist(),
        "x": figures.packed((xy[:, 0] - low[0]) / span[0] * 65535, "u2"),
        "y": figures.packed((xy[:, 1] - low[1]) / span[1] * 65535, "u2"),
        "cells": list(names),
        "columns": columns,
        "hexagons": as_hexagons,
    }
