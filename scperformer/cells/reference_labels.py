"""The labels of a reference: their column, labels with few cells, ontology ids and the label tree."""

import logging
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed, name_problem, named, shortened
from scperformer.cells.batches import named_as_batches
from scperformer.cells.label_tables import in_order_of_cells, read_cell_table
from scperformer.cells.marker_types import with_marker_labels
from scperformer.cells.opened import OpenedCells, close_many
from scperformer.cells.splits import TEST, Split, batches_of, split_cells, split_values
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import ReferenceOptions
from scperformer.io.marker_lists import read_marker_list
from scperformer.io.safety import words_of
from scperformer.labels.joining import joined_spellings, read_label_map
from scperformer.labels.ontology import find_terms, joined_by_terms
from scperformer.labels.texts import TERM_SUFFIX, first_container, label_texts, without_no_labels
from scperformer.labels.tree import UNKNOWN_TERM, LabelTree, tree_of_columns

log = logging.getLogger(__name__)

MAX_LABELS = 200  # a column with more values holds names or numbers, not labels
MAX_LABEL_SHARE = 0.8  # labels of cells; more are names of cells
# columns of an annotation by this program
CALLS = re.compile(r"(?P<key>.+)_(call|label|cluster_label)")
# a file of a reference, or cells in memory
ReferenceFile: TypeAlias = OpenedCells[ReferenceOptions]
# the column of names that a person gave to clusters, beside KEY_named
NAMED = re.compile(r"(.+)_curated")
LISTED = (
    "labels are by marker genes: accuracies are the agreement with the list, not with the truth"
)
CALLED = "labels are calls of scperformer: accuracies are the agreement with these calls, not with the truth"


def label_columns(obs: pd.DataFrame) -> dict[str, int]:
    """Return columns of obs that could be labels: 2 to 200 text values, of two cells or more on average."""
    columns = {}
    for key in obs.columns:
        column = obs[key]
        is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(
            column.dtype
        )
        num = (
            0 if is_number or first_container(column) is not None else label_texts(column).nunique()
        )
        if 2 <= num <= min(MAX_LABELS, len(obs) // 2):
            columns[str(key)] = num
    return columns


def require_labels(obs: pd.DataFrame, label_key: str | None, path: str | Path) -> pd.Series:
    """Return the labels of the cells as text, NaN for texts that mean none; refuse a column that has no labels."""
    remedy = "set label_key=... to the column of labels"
    likely = {key: num for key, num in label_columns(obs).items() if key != label_key}
    options = [f"label_key={key}" for key in likely]
    if label_key is None or label_key not in obs:
        found = (
            f"no label_key for {path}"
            if label_key is None
            else f"no column '{label_key}' in obs of {path}"
        )
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
        example = (
            "" if texts.isna().all() else f" ('{shortened(texts.dropna().iloc[0])}' means none)"
        )
        found = f"no cell of {path} has a label in obs['{label_key}']{example}"
        raise InputError("no-labels", found, "labelled cells", remedy, options)
    return labels


def curated_column(names: Iterable[str]) -> str | None:
    """Return the only column with names that a person gave to clusters; None without one, or with several."""
    names = set(map(str, names))
    found = [
        name for name in names if NAMED.fullmatch(name) and NAMED.sub(r"\1_named", name) in names
    ]
    return found[0] if len(found) == 1 else None


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
        raise InputError(
            "one-batch", found, "two or more batches, of which whole ones are held out", remedy
        )
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


@dataclass(kw_only=True)
class Labelled:
    """Labelled cells, and their split: what a reference is, without its expression."""

    labels: np.ndarray  # index of the label of each cell, int64, N
    label_names: list[str]
    terms: Terms
    split: Split
    # labels with few cells, with their numbers of cells (labels) and the limit (min_cells)
    rare: dict[str, object]
    batch_names: list[str]
    batches: np.ndarray | None  # index of the batch of each cell, int64, N; None without batches
    cell_names: np.ndarray  # N; of files on disk, row numbers
    num_unlabelled: int  # cells that are left out, as they have no label
    called: bool  # some labels, or all, are calls of this program
    named: list[str]  # labels that a person gave to clusters
    notes: list[str]  # sentences for users

    def some(self, train: np.ndarray, val: np.ndarray) -> "Labelled":
        """Return some of the training and validation cells, in this order."""
        cells = np.concatenate([train, val])
        split = replace(
            self.split, train=np.arange(len(train)), val=np.arange(len(train), len(cells))
        )
        batches = None if self.batches is None else self.batches[cells]
        return replace(
            self,
            labels=self.labels[cells],
            cell_names=self.cell_names[cells],
            batches=batches,
            split=split,
        )


def columns_with_labels(cells: ReferenceFile) -> pd.DataFrame:
    """Return the columns of obs with labels, ontology ids, batches and the split; of a table of labels, too."""
    options = cells.options
    with cells.reading():
        obs = _columns_on_disk(cells) if cells.is_on_disk else cells.obs
        names = pd.Index([] if options.labels is None else cells.names(0, cells.n_obs))
    if options.labels is not None:
        table, _ = read_cell_table(options.labels, options.label_key or "", "labels")
        added = in_order_of_cells(table, names, cells.path, options.labels).set_axis(obs.index)
        obs = obs.drop(columns=[name for name in added if name in obs]).join(added)
    return (
        obs
        if options.types is None
        else with_marker_labels(cells, obs, read_marker_list(options.types))
    )


def _columns_on_disk(cells: ReferenceFile) -> pd.DataFrame:
    options = cells.options
    existing = cells.keys()["obs"]
    if options.labels is None and options.label_key not in existing:
        return cells.obs  # the error lists its columns
    wanted = [
        options.label_key,
        *options.label_keys,
        options.ontology_key or f"{options.label_key}{TERM_SUFFIX}",
    ]
    wanted += [
        NAMED.sub(r"\1_named", options.label_key or ""),
        options.data.split_key,
        options.batch_key,
        *named_as_batches(existing),
        *columns_of_calls(existing),
    ]
    return cells.columns(dict.fromkeys(filter(None, wanted)))


@dataclass(frozen=True)
class CellLabels:
    """The label of each cell of one or several files, and the columns of obs that belong to it."""

    obs: pd.DataFrame
    # on the finest of the levels `label_keys` on which a cell has a label; NaN: it has none
    labels: pd.Series
    options: ReferenceOptions
    path: str  # in messages
    names: np.ndarray  # of the cells; of files on disk, row numbers

    @classmethod
    def of(cls, obs: pd.DataFrame, options: ReferenceOptions, path: str) -> "CellLabels":
        """Return the labels of cells with a table obs.

        Raises
        ------
        InputError
            A column of labels is missing, or has no labels.
        """
        names = obs.index.to_numpy()
        obs = obs.reset_index(drop=True)
        labels = require_labels(obs, options.label_key, path)
        for key in reversed(options.label_keys[:-1]):
            labels = labels.where(labels.notna(), require_labels(obs, key, path))
        return cls(obs, labels, options, path, names)

    @classmethod
    def of_files(cls, files: Sequence[ReferenceFile]) -> "CellLabels":
        path = files[0].path if len(files) == 1 else f"the {len(files)} files"
        tables = []
        for cells in files:
            tables.append(columns_with_labels(cells))
            close_many(files)
        return cls.of(pd.concat(tables), files[0].options, path)

    def rows(self, chosen: np.ndarray) -> "CellLabels":
        """Return the labels of some cells, by their numbers or a boolean mask."""
        of_cells = {
            "obs": self.obs.iloc[chosen],
            "labels": self.labels.iloc[chosen],
            "names": self.names[chosen],
        }
        return replace(self, **of_cells)

    @property
    def is_known(self) -> np.ndarray:
        """Which cells have a label, boolean."""
        return self.labels.notna().to_numpy()

    @property
    def is_named(self) -> pd.Series | None:
        """Whether a person gave the label of each cell, boolean; None: the labels are no names of clusters."""
        named = self.obs.get(NAMED.sub(r"\1_named", self.options.label_key or ""))
        return None if named is None or named.name == self.options.label_key else named.eq(True)

    def are_calls(self) -> bool:
        """Return, and log, whether no label is the truth: by marker genes, or calls of this program or their copy."""
        if self.options.types is not None:
            log.warning("%s: %s", self.path, LISTED)
            return True
        if self.is_named is not None:
            calls = without_no_labels(self.labels[~self.is_named]).value_counts()
            text = "%s: labels that no person gave are calls of scperformer, no independent evidence: %s"
            if len(calls):
                log.warning(text, self.path, named(calls))
            return len(calls) > 0
        columns = columns_of_calls(map(str, self.obs.columns))
        known = self.labels.dropna()
        copies = (
            name
            for name in columns
            if len(known) and (label_texts(self.obs[name])[known.index] == known).all()
        )
        key = self.options.label_key
        column = key if key in columns else next(copies, None)
        if column is not None:
            log.warning("%s, obs['%s']: %s", self.path, column, CALLED)
        return column is not None

    def test_cells(self) -> np.ndarray:
        """Return which cells are test cells, boolean, and log them. A missing column of the split is refused."""
        values = split_values(self.obs, self.options.data, self.is_known, self.path)
        if self.options.data.split != "column" or values is None:
            return np.zeros(len(self.labels), dtype=bool)
        is_test = (values == TEST).to_numpy()
        only = set(self.labels[is_test].dropna()) - set(self.labels[~is_test])
        nums = self.labels[self.labels.isin(only)].value_counts().to_dict()
        lost = (
            f"; the model will not know labels that only they have: {named(nums)}" if nums else ""
        )
        text = "%d of %d cells are test cells: they are left out of the training%s"
        if is_test.any():
            log.info(text, is_test.sum(), len(is_test), lost)
        return is_test

    def unlabelled(self) -> np.ndarray:
        """Return which cells have no label, boolean, and log them: they are left out, of the filters of genes, too."""
        is_unlabelled = ~self.is_known
        if is_unlabelled.any():
            texts = (
                label_texts(self.obs[self.options.label_key])[is_unlabelled]
                .value_counts()
                .to_dict()
            )
            means_none = (
                f" (no label: {named(texts)}; to keep one as a type, rename it)" if texts else ""
            )
            text = "%d of %d cells without a label to train on are left out%s"
            log.warning(text, is_unlabelled.sum(), len(self.labels), means_none)
        return is_unlabelled

    def without_rare(self) -> tuple["CellLabels", dict[str, object], list[str]]:
        """Leave out labels with fewer than `data.min_cells_per_label` cells, and log them; refuse unfit names.

        Also return a record of these labels, empty if there are none, and a note.
        """
        for label in sorted(self.labels.dropna().unique()):
            if reason := name_problem(label):
                found = f"label '{label[:80]}' of {self.path} {reason}"
                words = words_of(
                    self.path, "adata.obs[...].cat.rename_categories", "levels(object$COLUMN)"
                )
                raise InputError(
                    "bad-label",
                    found,
                    "labels that are a short line of text",
                    f"rename it: {words}",
                )
        counts = self.labels.value_counts()
        if len(counts) > MAX_LABEL_SHARE * counts.sum():
            found = f"{len(counts)} labels of {counts.sum()} cells in {self.path}"
            remedy = "set label_key=... to the column of cell types, "
            remedy += "or add profiles=true if each row is the profile of a type"
            raise InputError("many-labels", found, "labels that many cells share", remedy)
        least = self.options.data.min_cells_per_label
        rare = {str(label): int(counts[label]) for label in sorted(counts.index[counts < least])}
        if not rare:
            return self, {}, []
        note = f"{len(rare)} label{'s have' if len(rare) > 1 else ' has'} fewer than {least} cells"
        note += f": {named(rare)}; their {sum(rare.values())} cells are left out"
        log.warning("%s", note)
        kept = replace(self, labels=self.labels.where(~self.labels.isin(list(rare))))
        return kept, {"min_cells": least, "labels": rare}, [f"{note}."]

    def given_terms(self) -> dict[str, str]:
        """Return the id of each label in the column of ontology ids, or `unknown`; in the order of the names."""
        is_known = self.is_known
        labels = self.labels[is_known].to_numpy(str)
        column = self.options.ontology_key or f"{self.options.label_key}{TERM_SUFFIX}"
        term_of = dict.fromkeys(sorted(set(labels.tolist())), UNKNOWN_TERM)
        if column in self.obs:  # all cells of a label must have the same id
            ids = (
                label_texts(self.obs[column])[is_known]
                .fillna(UNKNOWN_TERM)
                .groupby(labels)
                .unique()
            )
            term_of |= {
                str(name): str(values[0]) for name, values in ids.items() if len(values) == 1
            }
        elif self.options.ontology_key is not None:
            remedy = f"{did_you_mean(column, self.obs.columns)}set ontology_key=... to it, or leave it out"
            found = f"no column '{column}' in obs of {self.path}"
            raise InputError("no-column", found, "a column with ontology ids", remedy)
        return term_of

    def joined(self, distinct: Container[str] = ()) -> "CellLabels":
        """Return the labels with one name for each type, and log which were joined, or may be of one type.

        The names are those of `label_map`; other labels are joined if they are spellings of one name or names of one
        term of the ontology. Labels that are `distinct` are not, nor are any below columns of levels, `label_keys`.
        """
        term_of = self.given_terms()
        label_map = self.options.label_map
        name_of = {} if label_map is None else read_label_map(label_map, list(term_of))
        free = {
            label: term
            for label, term in term_of.items()
            if label not in name_of and label not in distinct
        }
        spellings, unsure = joined_spellings(list(free), list(free.values()), self.options.ontology)
        if self.options.label_keys:
            unsure += [[first, label] for label, (first, _) in spellings.items()]
            spellings = {}
        if spellings:
            shown = listed(
                f"'{label}' is '{first}' ({term})" for label, (first, term) in spellings.items()
            )
            log.warning(
                "spellings of one type are joined: %s; label_map=... keeps labels apart", shown
            )
        if unsure:
            shown = listed(" or ".join(f"'{label}'" for label in alike) for alike in unsure)
            row = ",".join(reversed(unsure[0][:2]))
            log.warning(
                "may be one type: %s; if so, join them by label_map=FILE with rows such as %s",
                shown,
                row,
            )
        unchanged = {label: label for label in term_of}
        changed = {label: first for label, (first, _) in spellings.items()}
        return replace(self, labels=self.labels.map(unchanged | changed | name_of))

    def terms(self) -> Terms:
        """Find the ontology ids of the labels, and their tree, from `label_keys` or the ontology; log both."""
        term_of = self.given_terms()
        names = list(term_of)
        terms, ontology = find_terms(names, list(term_of.values()), self.options.ontology)
        num_known = sum(term != UNKNOWN_TERM for term in terms)
        shown = listed(f"{name} = {term}" for name, term in zip(names, terms, strict=True))
        log.info("%d of %d labels have an ontology id: %s", num_known, len(names), shown)
        tree = None
        if self.options.label_keys:
            tree = self._tree_of_levels(names)
        if tree is not None and ontology is not None:
            inner = {node: ontology.term(node) for node in tree.nodes if node not in names}
            tree = replace(
                tree, terms={node: term for node, term in inner.items() if term is not None}
            )
        elif ontology is not None:
            tree = joined_by_terms(names, terms, ontology)
        if tree is not None:
            log.info("label tree of %d levels and %d nodes", tree.num_levels, len(tree.nodes))
        return Terms(terms, tree, None if ontology is None else ontology.version)

    def _tree_of_levels(self, names: list[str]) -> LabelTree | None:
        *coarser, _ = keys = self.options.label_keys
        levels = [require_labels(self.obs, key, self.path).to_numpy(object) for key in coarser]
        try:
            return tree_of_columns(
                pd.DataFrame(dict(enumerate([*levels, self.labels.to_numpy(str)]))), names
            )
        except ValueError as error:
            found = f"columns {', '.join(keys)} of {self.path} with {error}"
            raise InputError(
                "bad-tree", found, "at most one parent for each name", "correct them"
            ) from error

    def labelled(
        self, num_unlabelled: int, called: bool, max_val: float
    ) -> tuple[np.ndarray, Labelled]:
        """Return the numbers of the cells with labels that are not rare, and these; at most `max_val` validate."""
        table, rare, notes = self.without_rare()
        num = table.labels.nunique()
        if num < 2:
            found = f"{num} usable label{'' if num == 1 else 's'} in obs['{self.options.label_key}'] of {self.path}"
            raise InputError(
                "few-labels", found, "two or more labels", "choose another label_key or add cells"
            )
        rows = np.flatnonzero(table.is_known)
        table = table.rows(rows)
        names, numbers = np.unique(table.labels.to_numpy(str), return_inverse=True)
        terms = table.terms()
        data = self.options.data
        values = split_values(table.obs, data, table.is_known, self.path)
        sides = None if values is None else values.to_numpy(str)
        capped = replace(data, val_fraction=min(data.val_fraction, max_val / len(numbers)))
        numbers = numbers.astype(np.int64)
        split = split_cells(
            numbers, names.tolist(), sides, capped, data.seed_of_split(self.options.seed)
        )
        batch_names, batches = read_batches(table.obs, numbers, self.options.batch_key, self.path)
        how = CALLED if self.options.types is None else LISTED
        return rows, Labelled(
            labels=numbers,
            label_names=names.tolist(),
            terms=terms,
            split=split,
            rare=rare,
            batch_names=batch_names,
            batches=batches,
            cell_names=table.names,
            num_unlabelled=num_unlabelled,
            called=called,
            named=[] if table.is_named is None else sorted(set(table.labels[table.is_named])),
            notes=[f"{how.capitalize()}."] * called + notes + split.notes,
        )
