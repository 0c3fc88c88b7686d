"""The labels of a reference: their column, labels with few cells, ontology ids and the label tree."""

import logging
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed, name_problem, named, shortened
from scperformer.cells.splits import batches_of
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import DataConfig, ReferenceOptions
from scperformer.io.safety import words_of
from scperformer.labels.joining import joined_spellings, read_label_map
from scperformer.labels.ontology import find_terms, joined_by_terms
from scperformer.labels.texts import first_container, label_texts, without_no_labels
from scperformer.labels.tree import UNKNOWN_TERM, LabelTree, tree_of_columns

log = logging.getLogger(__name__)

MAX_LABELS = 200  # a column with more values holds names or numbers, not labels
MAX_LABEL_SHARE = 0.8  # labels of cells; more are names of cells
TERM_SUFFIX = "_ontology_term_id"  # after the name of the label column, as CELLxGENE names the column of ontology ids
CALLS = re.compile(r"(?P<key>.+)_(call|label|cluster_label)")  # columns of an annotation by this program
CALLED = "the labels are calls of scperformer: accuracies are the agreement with these calls, not with the truth"


def label_columns(obs: pd.DataFrame) -> dict[str, int]:
    """Return columns of obs that could be labels: 2 to 200 text values, of two cells or more on average."""
    columns = {}
    for key in obs.columns:
        column = obs[key]
        is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        num = 0 if is_number or first_container(column) is not None else label_texts(column).nunique()
        if 2 <= num <= min(MAX_LABELS, len(obs) // 2):
            columns[str(key)] = num
    return columns


def require_labels(obs: pd.DataFrame, label_key: str | None, path: str | Path) -> pd.Series:
    """Return the labels of the cells as text, NaN for texts that mean none; refuse a column that has no labels."""
    remedy = "set label_key=... to the column of labels"
    likely = {key: num for key, num in label_columns(obs).items() if key != label_key}
    options = [f"label_key={key}" for key in likely]
    if label_key is None or label_key not in obs:
        found = f"no label_key for {path}" if label_key is None else f"no column '{label_key}' in obs of {path}"
        remedy = did_you_mean(label_key or "", obs.columns) + remedy
        columns = [f"{key} ({num} values)" for key, num in likely.items()] or map(str, obs.columns)
        expected = listed(columns) or "columns in obs, but it has none"
        raise InputError("no-column", found, expected, remedy, options)
    column = obs[label_key]
    if pd.api.types.is_float_dtype(column.dtype) and not (column.dropna() % 1 == 0).all():
        found = f"obs['{label_key}'] of {path} holds numbers with decimals"
        raise InputError("decimal-labels", found, "labels", remedy, options)
    texts = label_texts(column)
    labels = without_no_labels(texts)
    if labels.isna().all():
        example = "" if texts.isna().all() else f" ('{shortened(texts.dropna().iloc[0])}' means none)"
        found = f"no cell of {path} has a label in obs['{label_key}']{example}"
        raise InputError("no-labels", found, "labelled cells", remedy, options)
    return labels


def deepest_labels(obs: pd.DataFrame, cfg: ReferenceOptions, path: str | Path) -> pd.Series:
    """Return the label of each cell on the finest of the levels `label_keys` on which it has one; NaN without any."""
    labels = require_labels(obs, cfg.label_key, path)
    for key in reversed(cfg.label_keys[:-1]):
        labels = labels.where(labels.notna(), require_labels(obs, key, path))
    return labels


def columns_of_calls(names: Iterable[str]) -> list[str]:
    """Return the columns with calls or labels of an annotation, also of one under a different name (`key_added`)."""
    names = set(names)
    found = ((match, name) for name in names if (match := CALLS.fullmatch(name)))
    return sorted(
        name
        for match, name in found
        if match["key"] == AnnotationOptions.key_added
        or {f"{match['key']}_{part}" for part in ("call", "label", "confidence")} <= names
    )


def are_calls(labels: pd.Series, obs: pd.DataFrame, key: str | None, path: str | Path) -> bool:
    """Return, and log, whether labels are calls of this program: their column, or a copy of it under another name."""
    columns = columns_of_calls(map(str, obs.columns))
    known = labels.dropna()
    copies = (name for name in columns if len(known) and (label_texts(obs[name])[known.index] == known).all())
    found = key if key in columns else next(copies, None)
    if found is not None:
        log.warning("%s, obs['%s']: %s", path, found, CALLED)
    return found is not None


@dataclass
class LabelSelection:
    """The labels to train on, and the rare labels that were left out."""

    labels: pd.Series  # label of each cell; NaN: the cell is left out
    # The entries min_cells and labels (rare labels and their numbers of cells); {} if no label is rare.
    record: dict[str, object] = field(default_factory=dict)
    note: str = ""  # the record as a sentence; "": no label is rare


def without_rare_labels(labels: pd.Series, data: DataConfig, path: str | Path) -> LabelSelection:
    """Leave out labels with fewer than `data.min_cells_per_label` cells, and log them; refuse unfit names."""
    for label in sorted(labels.dropna().unique()):
        if reason := name_problem(label):
            found = f"label '{label[:80]}' of {path} {reason}"
            remedy = f"rename it: {words_of(path, 'adata.obs[...].cat.rename_categories', 'levels(object$COLUMN)')}"
            raise InputError("bad-label", found, "labels that are a short line of text", remedy)
    counts = labels.value_counts()
    if len(counts) > MAX_LABEL_SHARE * counts.sum():
        found = f"{len(counts)} labels of {counts.sum()} cells in {path}"
        remedy = (
            "set label_key=... to the column of cell types, or add profiles=true if each row is the profile of a type"
        )
        raise InputError("many-labels", found, "labels that many cells share", remedy)
    rare = {str(label): int(counts[label]) for label in sorted(counts.index[counts < data.min_cells_per_label])}
    if not rare:
        return LabelSelection(labels)
    note = f"{len(rare)} label{'s have' if len(rare) > 1 else ' has'} fewer than {data.min_cells_per_label} cells"
    note += f": {named(rare)}; their {sum(rare.values())} cells are left out"
    log.warning("%s", note)
    record = {"min_cells": data.min_cells_per_label, "labels": rare}
    return LabelSelection(labels.where(~labels.isin(list(rare))), record, note)


def read_batches(
    obs: pd.DataFrame, labels: np.ndarray, key: str | None, path: str | Path
) -> tuple[list[str], np.ndarray | None]:
    """Return the sorted names of the batches in a column of obs, and the index of the batch of each cell, int64.

    `labels` is the index of the label of each cell. Without a key there are no batches. A column with one value, or
    batches that share no label, are refused.
    """
    if key is None:
        return [], None
    remedy = "set batch_key=... to the column of batches, or leave it out"
    names, batches = np.unique(batches_of(obs, key, path), return_inverse=True)
    if len(names) < 2:
        found = f"one value ('{names[0]}') in obs['{key}'] of the labelled cells"
        raise InputError("one-batch", found, "two or more batches, of which whole ones are held out", remedy)
    if max(len(np.unique(batches[labels == label])) for label in np.unique(labels)) < 2:
        found = f"no label with cells in two of the {len(names)} values of obs['{key}']"
        raise InputError("unshared-labels", found, "batches that share labels", remedy)
    log.info("%d batches in obs['%s']: whole ones are held out", len(names), key)
    return names.tolist(), batches.astype(np.int64)


@dataclass
class Terms:
    """The ontology ids and the tree of labels."""

    ids: list[str]  # ontology id of each label, or "unknown"
    tree: LabelTree | None
    release: str | None  # release of the ontology


def _given_terms(obs: pd.DataFrame, labels: np.ndarray, cfg: ReferenceOptions, path: str | Path) -> dict[str, str]:
    """Return the id of each label in the column of ontology ids, or `unknown`; in the order of the names."""
    names = sorted(set(labels.tolist()))
    column = cfg.ontology_key or f"{cfg.label_key}{TERM_SUFFIX}"
    term_of = dict.fromkeys(names, UNKNOWN_TERM)
    if column in obs:  # all cells of a label must have the same id
        ids = label_texts(obs[column]).fillna(UNKNOWN_TERM).groupby(labels).unique()
        term_of |= {str(name): str(values[0]) for name, values in ids.items() if len(values) == 1}
    elif cfg.ontology_key is not None:
        remedy = f"{did_you_mean(column, obs.columns)}set ontology_key=... to it, or leave it out"
        raise InputError("no-column", f"no column '{column}' in obs of {path}", "a column with ontology ids", remedy)
    return term_of


def joined_labels(
    labels: pd.Series, obs: pd.DataFrame, cfg: ReferenceOptions, path: str | Path, apart: Container[str] = ()
) -> pd.Series:
    """Return the labels of cells with one name for each type, and log which were joined, or may be of one type.

    The names are those of `label_map`; other labels are joined if they are spellings of one name or names of one term
    of the ontology. Labels in `apart` are not, nor are any below columns of levels, `label_keys`.
    """
    is_known = labels.notna()
    term_of = _given_terms(obs[is_known.to_numpy()], labels[is_known].to_numpy(str), cfg, path)
    joint_of = {} if cfg.label_map is None else read_label_map(cfg.label_map, list(term_of))
    free = {label: term for label, term in term_of.items() if label not in joint_of and label not in apart}
    joined, unsure = joined_spellings(list(free), list(free.values()), cfg.ontology)
    if cfg.label_keys:
        unsure += [[first, label] for label, (first, _) in joined.items()]
        joined = {}
    if joined:
        shown = listed(f"'{label}' is '{first}' ({term})" for label, (first, term) in joined.items())
        log.warning("spellings of one type are joined: %s; label_map=... keeps labels apart", shown)
    if unsure:
        shown = listed(" or ".join(f"'{label}'" for label in alike) for alike in unsure)
        row = ",".join(reversed(unsure[0][:2]))
        log.warning("may be one type: %s; if so, join them by label_map=FILE with rows such as %s", shown, row)
    unchanged = {label: label for label in term_of}
    return labels.map(unchanged | {old: first for old, (first, _) in joined.items()} | joint_of)


def read_terms(obs: pd.DataFrame, labels: np.ndarray, cfg: ReferenceOptions, path: str | Path) -> Terms:
    """Find the ontology ids of the cells' `labels`, and their tree, from `label_keys` or the ontology; log both."""
    term_of = _given_terms(obs, labels, cfg, path)
    names = list(term_of)
    terms, ontology = find_terms(names, list(term_of.values()), cfg.ontology)
    num_known = sum(term != UNKNOWN_TERM for term in terms)
    shown = listed(f"{name} = {term}" for name, term in zip(names, terms, strict=True))
    log.info("%d of %d labels have an ontology id: %s", num_known, len(names), shown)
    tree = None
    if cfg.label_keys:
        levels = [require_labels(obs, key, path).to_numpy(object) for key in cfg.label_keys[:-1]]
        try:
            tree = tree_of_columns(pd.DataFrame(dict(enumerate([*levels, labels]))), names)
        except ValueError as error:
            found = f"columns {', '.join(cfg.label_keys)} of {path} with {error}"
            raise InputError("bad-tree", found, "at most one parent for each name", "correct them") from error
    if tree is not None and ontology is not None:
        inner = {node: ontology.term(node) for node in tree.nodes if node not in names}
        tree = replace(tree, terms={node: term for node, term in inner.items() if term is not None})
    elif ontology is not None:
        tree = joined_by_terms(names, terms, ontology)
    if tree is not None:
        log.info("label tree of %d levels and %d nodes", tree.num_levels, len(tree.nodes))
    return Terms(terms, tree, None if ontology is None else ontology.version)
