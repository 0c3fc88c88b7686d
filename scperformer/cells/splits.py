"""Split labelled cells into training and validation cells: at random within each label, by group, or by a column."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.cells.reference_labels import NUM_NAMED, named
from scperformer.config import DataConfig
from scperformer.labels import label_texts

log = logging.getLogger(__name__)

TRAIN, VAL, TEST = SIDES = ("train", "val", "test")
NUM_DRAWS = 20  # random orders of groups that are tried; the choice nearest to the wanted share is taken
FAR = 2.0  # a share that is larger or smaller than the wanted one by this factor is worth a warning
# Cells that are loaded if the others stay on disk: for linear fits and statistics, and for validation. The results of
# more cells would hardly differ.
MAX_FIT_CELLS = 20_000
MAX_VAL_CELLS = 10_000


@dataclass
class Split:
    """Row numbers for training and validation; `done` describes the split as data, `notes` in sentences."""

    train: np.ndarray
    val: np.ndarray
    done: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def stratified_sample(labels: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Draw about `most` rows, ascending: the same share of each label, but at least one row."""
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    cells = (rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels))
    return np.sort(np.concatenate([rows[: max(1, round(len(rows) * most / len(labels)))] for rows in cells]))


def stratified_split(labels: np.ndarray, fraction: float, seed: int, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Split rows for training and validation: a share of each label, rounded, but at least one cell and never all.

    With `least=0` this holds for all cells together, and not for each label.
    """
    rng = np.random.default_rng(seed)
    is_val = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        is_val[cells[: min(max(least, round(fraction * len(cells))), len(cells) - least)]] = True
    if not least and (is_val.all() or not is_val.any()):
        is_val[rng.integers(len(is_val))] ^= True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def group_split(groups: np.ndarray, labels: np.ndarray, fraction: float, seed: int) -> np.ndarray | None:
    """Choose whole groups for validation, near the wanted share of the cells; no label loses its last group.

    `groups` and `labels` are N indices from 0; every index occurs. Returns the indices of the chosen groups, sorted;
    None if each group has all cells of some label.
    """
    table = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(table, (groups, labels), 1)
    sizes = table.sum(axis=1)
    wanted = fraction * len(groups)
    rng = np.random.default_rng(seed)
    best: list[int] = []
    for _ in range(NUM_DRAWS):
        chosen: list[int] = []
        left = table.sum(axis=0)
        size = 0
        for group in rng.permutation(len(table)):
            nearer = not chosen or abs(size + sizes[group] - wanted) < abs(size - wanted)
            if nearer and (left > table[group]).all():
                chosen.append(int(group))
                left = left - table[group]
                size = size + sizes[group]
        if chosen and (not best or abs(size - wanted) < abs(sizes[best].sum() - wanted)):
            best = chosen
    return np.sort(best) if best else None


def split_values(obs: pd.DataFrame, data: DataConfig, labelled: np.ndarray, path: str | Path) -> pd.Series | None:
    """Return the values of `data.split_key` as `label_texts`; None for a stratified split.

    Only cells with a label (`labelled`, boolean) must have a value.
    """
    key = data.split_key
    if key is None:
        return None
    remedy = "set data.split_key to another column, or choose data.split=stratified"
    if key not in obs:
        expected = f"data.split_key to be one of {', '.join(map(str, obs.columns))}"
        raise InputError(f"no column '{key}' in obs of {path}", expected, did_you_mean(key, obs.columns) + remedy)
    values = label_texts(obs[key])
    if missing := int((values.isna() & labelled).sum()):
        raise InputError(f"{missing} labelled cells of {path} without a value in obs['{key}']", "one in each", remedy)
    if data.split == "column" and (wrong := sorted(set(values[labelled]) - set(SIDES))):
        advice = f"fix the column, or choose data.split=group to keep each value of '{key}' on one side"
        raise InputError(f"{_quoted(wrong)} in obs['{key}'] of {path}", "train, val or test", advice)
    return values


def _quoted(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values[:NUM_NAMED]) + (" ..." if len(values) > NUM_NAMED else "")


def _by_group(labels: np.ndarray, label_names: list[str], values: np.ndarray, data: DataConfig, seed: int) -> Split:
    names, groups = np.unique(values.astype(str), return_inverse=True)
    column = f"obs['{data.split_key}']"
    remedy = "choose another data.split_key, or data.split=stratified"
    if len(names) < 2:
        found = f"one value ('{names[0]}') in {column} of the labelled cells"
        raise InputError(found, "two or more groups to split", remedy)
    chosen = group_split(groups, labels, data.val_fraction, seed)
    if chosen is None:
        only = next(label for label in np.unique(labels) if len(np.unique(groups[labels == label])) == 1)
        group = names[groups[labels == only][0]]
        found = f"each of the {len(names)} values of {column} has all cells of some label, as '{group}' of"
        advice = f"leave such labels out with data.rare_labels=drop and data.min_cells_per_label, or {remedy}"
        raise InputError(f"{found} '{label_names[only]}'", "a group that training can do without", advice)
    is_val = np.isin(groups, chosen)
    share = is_val.mean()
    held_out = [str(names[group]) for group in chosen]
    note = f"{len(held_out)} of {len(names)} values of {column} are held out whole: {_quoted(held_out)}"
    note += f" ({share:.1%} of the cells)"
    far = max(share / data.val_fraction, data.val_fraction / share) > FAR
    log.log(logging.WARNING if far else logging.INFO, "%s%s", note, f", not {data.val_fraction:.1%}" if far else "")
    done = {"val_groups": held_out, "num_groups": len(names)}
    return Split(np.flatnonzero(~is_val), np.flatnonzero(is_val), done, [f"{note}."])


def split_cells(
    labels: np.ndarray, label_names: list[str], values: np.ndarray | None, data: DataConfig, seed: int
) -> Split:
    """Split cells into training and validation cells according to `data.split`, and log its notes.

    `labels` are N indices of `label_names`; every index occurs. `values` are the group or the side of each cell; None
    for `data.split=stratified`. A split without validation cells, or without training cells of a label, is refused.
    """
    if data.split == "stratified":
        split = Split(*stratified_split(labels, data.val_fraction, seed))
    elif data.split == "group":
        assert values is not None
        split = _by_group(labels, label_names, values, data, seed)
    else:
        split = Split(np.flatnonzero(values == TRAIN), np.flatnonzero(values == VAL))
        split.notes.append(f"Training and validation cells are those of obs['{data.split_key}'].")
    by_column = data.split == "column"
    where = f"obs['{data.split_key}']" if by_column else f"data.split={data.split}"
    for side, rows in ((TRAIN, split.train), (VAL, split.val)):
        if len(rows) == 0:
            remedy = f"mark some cells as '{side}'" if by_column else "add cells: no label has two"
            raise InputError(f"no labelled {side} cell with {where}", "cells on both sides", remedy)
    num_train, num_val = (np.bincount(labels[rows], minlength=len(label_names)) for rows in (split.train, split.val))
    if (num_train == 0).any():
        lost = named({label_names[label]: int(num_val[label]) for label in np.flatnonzero(num_train == 0)})
        remedy = "mark cells of these labels as 'train', or as 'test' to leave them out"
        raise InputError(f"labels whose cells are all '{VAL}' in {where}: {lost}", "training cells of each", remedy)
    key = {"key": data.split_key} if data.split_key else {}
    sizes = {"num_train_cells": len(split.train), "num_val_cells": len(split.val)}
    split.done = {"how": data.split, **key, **sizes, **split.done}
    if (num_val == 0).any():
        total = np.bincount(labels, minlength=len(label_names))
        without = {label_names[label]: int(total[label]) for label in np.flatnonzero(num_val == 0)}
        note = f"no validation cell, and so no score, of these labels: {named(without)}"
        log.warning("%s", note)
        split.done["labels_without_val_cells"] = without
        split.notes.append(f"{note[0].upper()}{note[1:]}.")
    return split
