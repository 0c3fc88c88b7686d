"""Which labelled cells train and which validate: by chance within each label, by whole groups, or as a column says."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scperformer.config import DataConfig
from scperformer.dataset.labels import named
from scperformer.errors import InputError

log = logging.getLogger(__name__)

TRAIN, VAL, TEST = SIDES = ("train", "val", "test")
NUM_DRAWS = 20  # orders in which groups are tried; the choice nearest to the wanted share is taken
NUM_NAMED = 5  # values named in a line
FAR = 2.0  # a share so many times larger or smaller than asked for is worth a warning


@dataclass
class Split:
    """Row numbers for training and for validation, and how they were chosen.

    `done` says it in numbers and names, `notes` in sentences for people.
    """

    train: np.ndarray
    val: np.ndarray
    done: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def stratified_split(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for validation; every label is in training, and in both if it has two cells.

    Parameters
    ----------
    labels
        N label indices.
    fraction
        Share of each label for validation, rounded, at least one cell and never all.
    seed
        Chooses the cells.
    """
    rng = np.random.default_rng(seed)
    val = []
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        val.append(cells[: min(max(1, round(fraction * len(cells))), len(cells) - 1)])
    is_val = np.zeros(len(labels), dtype=bool)
    is_val[np.concatenate(val)] = True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def group_split(groups: np.ndarray, labels: np.ndarray, fraction: float, seed: int) -> np.ndarray | None:
    """The groups to validate on: whole ones, near the wanted share of the cells, and no label loses its last group.

    Parameters
    ----------
    groups
        N group indices 0..K-1, each occurring.
    labels
        N label indices 0..C-1, each occurring.
    fraction
        Wanted share of the cells in the chosen groups.
    seed
        Chooses among the groups that come near it.

    Returns
    -------
    Chosen group indices, sorted; None where each group alone holds all cells of some label.
    """
    table = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(table, (groups, labels), 1)
    sizes, wanted = table.sum(axis=1), fraction * len(groups)
    rng = np.random.default_rng(seed)
    best: list[int] = []
    for _ in range(NUM_DRAWS):
        chosen: list[int] = []
        left, size = table.sum(axis=0), 0
        for group in rng.permutation(len(table)):
            nearer = not chosen or abs(size + sizes[group] - wanted) < abs(size - wanted)
            if nearer and (left > table[group]).all():
                chosen.append(int(group))
                left, size = left - table[group], size + sizes[group]
        if chosen and (not best or abs(size - wanted) < abs(sizes[best].sum() - wanted)):
            best = chosen
    return np.sort(best) if best else None


def split_values(obs: pd.DataFrame, data: DataConfig, labelled: np.ndarray, path: str | Path) -> pd.Series | None:
    """What `data.split_key` says of each cell, as strings without blanks around; None for splits that need no column.

    Parameters
    ----------
    labelled
        Which cells have a label: only they must have a value.

    Raises
    ------
    InputError
        There is no such column, a labelled cell has no value in it, or (`data.split=column`) another one than train,
        val or test.
    """
    key = data.split_key
    if key is None:
        return None
    remedy = "set data.split_key to another column, or choose data.split=stratified"
    if key not in obs:
        there = ", ".join(map(str, obs.columns))
        raise InputError(f"no column '{key}' in obs of {path}", f"data.split_key to be one of {there}", remedy)
    values = obs[key].astype(object).map(lambda value: str(value).strip(), na_action="ignore")
    values = values.where(values.notna() & (values != ""))
    if missing := int((values.isna() & labelled).sum()):
        raise InputError(f"{missing} labelled cells of {path} without a value in obs['{key}']", "one in each", remedy)
    wrong = sorted(set(values[labelled]) - set(SIDES)) if data.split == "column" else []
    if wrong:
        found = ", ".join(f"'{value}'" for value in wrong[:NUM_NAMED]) + (" ..." if len(wrong) > NUM_NAMED else "")
        advice = f"mend the column, or choose data.split=group to keep each value of '{key}' on one side"
        raise InputError(f"{found} in obs['{key}'] of {path}", "train, val or test", advice)
    return values


def split_cells(
    labels: np.ndarray, label_names: list[str], values: np.ndarray | None, data: DataConfig, seed: int
) -> Split:
    """Part the cells as `data.split` says, and log what is worth knowing about it.

    Parameters
    ----------
    labels
        N indices of `label_names`, each occurring.
    values
        N strings: the group of each cell, or its side; None for `data.split=stratified`.

    Raises
    ------
    InputError
        No such split leaves cells to validate on, and cells of every label to train on.
    """
    if data.split == "group":
        assert values is not None
        split = _by_group(labels, label_names, values, data, seed)
    elif data.split == "column":
        assert values is not None
        split = Split(np.flatnonzero(values == TRAIN), np.flatnonzero(values == VAL))
        split.notes.append(f"Training and validation cells are those of obs['{data.split_key}'].")
    else:
        split = Split(*stratified_split(labels, data.val_fraction, seed))
    _require_both_sides(split, labels, label_names, data)
    about = {"key": data.split_key} if data.split_key else {}
    sizes = {"num_train_cells": len(split.train), "num_val_cells": len(split.val)}
    split.done = {"how": data.split, **about, **sizes, **split.done}
    _note_labels_without_validation(split, labels, label_names)
    return split


def _by_group(labels: np.ndarray, label_names: list[str], values: np.ndarray, data: DataConfig, seed: int) -> Split:
    names, groups = np.unique(values.astype(str), return_inverse=True)
    remedy = "choose another data.split_key, or data.split=stratified"
    if len(names) < 2:
        found = f"one value ('{names[0]}') in obs['{data.split_key}'] of the labelled cells"
        raise InputError(found, "two or more groups to part", remedy)
    chosen = group_split(groups, labels, data.val_fraction, seed)
    if chosen is None:
        only = next(label for label in np.unique(labels) if len(np.unique(groups[labels == label])) == 1)
        group = names[groups[labels == only][0]]
        found = f"each of the {len(names)} values of obs['{data.split_key}'] alone has all cells of some label"
        found += f", as '{group}' of '{label_names[only]}'"
        advice = f"leave such labels out with data.rare_labels=drop and data.min_cells_per_label, or {remedy}"
        raise InputError(found, "a group that training can do without", advice)
    is_val = np.isin(groups, chosen)
    share = is_val.mean()
    held_out = [str(names[group]) for group in chosen]
    text = ", ".join(f"'{name}'" for name in held_out[:NUM_NAMED]) + (" ..." if len(held_out) > NUM_NAMED else "")
    note = f"{len(held_out)} of {len(names)} values of obs['{data.split_key}'] are held out whole: {text}"
    note += f" ({share:.1%} of the cells)"
    far = max(share / data.val_fraction, data.val_fraction / share) > FAR
    log.log(logging.WARNING if far else logging.INFO, "%s%s", note, f", not {data.val_fraction:.1%}" if far else "")
    done = {"val_groups": held_out, "num_groups": len(names)}
    return Split(np.flatnonzero(~is_val), np.flatnonzero(is_val), done, [f"{note}."])


def _require_both_sides(split: Split, labels: np.ndarray, label_names: list[str], data: DataConfig) -> None:
    where = f"obs['{data.split_key}']" if data.split == "column" else f"data.split={data.split}"
    for side, rows in ((TRAIN, split.train), (VAL, split.val)):
        if len(rows) == 0:
            remedy = f"mark some cells as '{side}'" if data.split == "column" else "add cells: no label has two"
            raise InputError(f"no labelled {side} cell with {where}", "cells on both sides", remedy)
    counts = np.bincount(labels[split.train], minlength=len(label_names))
    lost = np.flatnonzero(counts == 0)
    if len(lost):
        in_val = np.bincount(labels[split.val], minlength=len(label_names))
        text = named({label_names[label]: int(in_val[label]) for label in lost})
        advice = "mark cells of these labels as 'train', or as 'test' to leave them out"
        raise InputError(f"labels whose cells are all '{VAL}' in {where}: {text}", "training cells of each", advice)


def _note_labels_without_validation(split: Split, labels: np.ndarray, label_names: list[str]) -> None:
    total = np.bincount(labels, minlength=len(label_names))
    without = np.flatnonzero(np.bincount(labels[split.val], minlength=len(label_names)) == 0)
    if len(without):
        cells = {label_names[label]: int(total[label]) for label in without}
        note = f"no validation cell, and so no score, of these labels: {named(cells)}"
        log.warning("%s", note)
        split.done["labels_without_val_cells"] = cells
        split.notes.append(f"{note[0].upper()}{note[1:]}.")
