"""Split labelled cells into training and validation cells: at random within each label, by groups, or by a column."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed, named
from scperformer.config.training import DataConfig
from scperformer.labels.texts import label_texts

log = logging.getLogger(__name__)

TRAIN = "train"
VAL = "val"
TEST = "test"
SIDES = (TRAIN, VAL, TEST)
NO_BATCH = "no value"  # of cells whose batch is missing
# random orders of groups; the split with a share nearest to the requested share is taken
NUM_ORDERS_TRIED = 20
# Cells that are loaded although the others stay on disk. More cells would hardly change the results.
MAX_FIT_CELLS = 20_000  # for statistics
MAX_LOADED_CELLS = 40_000  # of cells that stay on disk: for all fits but that of the linear branch
MAX_VAL_CELLS = 10_000  # for validation


@dataclass
class Split:
    """Training and validation cells."""

    train: np.ndarray  # row numbers, int64
    val: np.ndarray  # row numbers, int64
    record: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # the record in sentences for users


def stratified_sample(labels: np.ndarray, max_cells: int, seed: int) -> np.ndarray:
    """Draw about `max_cells` rows at random, the same share of each label, but at least one; int64, ascending."""
    if len(labels) <= max_cells:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    cells = (rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels))
    return np.sort(
        np.concatenate(
            [rows[: max(1, round(len(rows) * max_cells / len(labels)))] for rows in cells]
        )
    )


def stratified_split(
    labels: np.ndarray, fraction: float, seed: int, min_cells: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows at random: validation gets the `fraction` of each label, but at least one cell and never all.

    With `min_cells=0`, the bounds apply to all cells together, not to each label. Returns training and validation rows.
    """
    rng = np.random.default_rng(seed)
    is_val = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        is_val[
            cells[: min(max(min_cells, round(fraction * len(cells))), len(cells) - min_cells)]
        ] = True
    if not min_cells and (is_val.all() or not is_val.any()):
        is_val[rng.integers(len(is_val))] ^= True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def group_split(
    groups: np.ndarray, labels: np.ndarray, fraction: float, seed: int
) -> np.ndarray | None:
    """Choose whole groups for validation with about the requested share of the cells; no label loses its last group.

    `groups` and `labels` are the indices of the group and of the label of each cell; every index from 0 occurs. Returns
    the indices of the chosen groups, sorted; None if each group has all cells of some label.
    """
    table = np.zeros((groups.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(table, (groups, labels), 1)
    sizes = table.sum(axis=1)
    wanted = fraction * len(groups)
    rng = np.random.default_rng(seed)
    best: list[int] = []
    for _ in range(NUM_ORDERS_TRIED):
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


def values_of(
    obs: pd.DataFrame, key: str, option: str, remedy: str, labelled: np.ndarray, path: object
) -> pd.Series:
    """Return a column of obs, which an option names, as text; labelled cells without a value are refused."""
    if key not in obs:
        expected = f"{option} to be one of {listed(obs.columns)}"
        remedy = did_you_mean(key, obs.columns) + remedy
        raise InputError("no-column", f"no column '{key}' in obs of {path}", expected, remedy)
    values = label_texts(obs[key])
    if missing := int((values.isna() & labelled).sum()):
        found = f"{missing} labelled cells of {path} without a value in obs['{key}']"
        raise InputError("missing-values", found, "a value for each labelled cell", remedy)
    return values


def batches_of(obs: pd.DataFrame, key: str, path: str | Path) -> np.ndarray:
    """Return the batch of each cell by a column of obs, as text; cells without a value are a batch of their own."""
    remedy = "set batch_key=... to the column of batches, or leave it out"
    values = values_of(obs, key, "batch_key", remedy, np.zeros(len(obs), dtype=bool), path)
    if missing := int(values.isna().sum()):
        log.warning(
            "%d cells of %s without a value in obs['%s'] are one batch, '%s'",
            missing,
            path,
            key,
            NO_BATCH,
        )
    return values.fillna(NO_BATCH).to_numpy(str)


def split_values(
    obs: pd.DataFrame, data: DataConfig, labelled: np.ndarray, path: str | Path
) -> pd.Series | None:
    """Return the values of `data.split_key` as text, which labelled cells must have; None for a stratified split."""
    if (key := data.split_key) is None:
        return None
    remedy = "set data.split_key to another column, or choose data.split=stratified"
    values = values_of(obs, key, "data.split_key", remedy, labelled, path)
    if data.split == "column" and (wrong := sorted(set(values[labelled]) - set(SIDES))):
        remedy = (
            f"fix the column, or choose data.split=group to keep each value of '{key}' on one side"
        )
        found = f"{listed(map(repr, wrong))} in obs['{key}'] of {path}"
        raise InputError("bad-split", found, "train, val or test", remedy)
    return values


def _split_groups(
    labels: np.ndarray, label_names: list[str], values: np.ndarray, data: DataConfig, seed: int
) -> Split:
    """Split cells by the groups in `values`, and log the split; refused if no group can be held out."""
    names, groups = np.unique(values.astype(str), return_inverse=True)
    column = f"obs['{data.split_key}']"
    remedy = "choose another data.split_key, or data.split=stratified"
    if len(names) < 2:
        found = f"one value ('{names[0]}') in {column} of the labelled cells"
        raise InputError("one-group", found, "two or more groups to split", remedy)
    chosen = group_split(groups, labels, data.val_fraction, seed)
    if chosen is None:
        only = next(
            label for label in np.unique(labels) if len(np.unique(groups[labels == label])) == 1
        )
        group = names[groups[labels == only][0]]
        example = f"as '{group}' of '{label_names[only]}'"
        found = (
            f"each of the {len(names)} values of {column} has all cells of some label, {example}"
        )
        remedy = f"leave such labels out with data.min_cells_per_label, or {remedy}"
        raise InputError(
            "only-group-of-label", found, "a group that is not the only one of any label", remedy
        )
    is_val = np.isin(groups, chosen)
    held_out = [str(names[group]) for group in chosen]
    note = f"{len(held_out)} of {len(names)} values of {column} are held out whole: {listed(map(repr, held_out))}"
    note += f" ({is_val.mean():.1%} of the cells)"
    log.info("%s", note)
    record = {"val_groups": held_out, "num_groups": len(names)}
    return Split(np.flatnonzero(~is_val), np.flatnonzero(is_val), record, [f"{note}."])


def split_cells(
    labels: np.ndarray,
    label_names: list[str],
    values: np.ndarray | None,
    data: DataConfig,
    seed: int,
) -> Split:
    """Split cells into training and validation cells according to `data.split`.

    `labels` is the index of the label of each cell; `values` its group or side, None for a stratified split. A split
    without validation cells, or without training cells of a label, is refused.
    """
    if data.split == "stratified":
        split = Split(*stratified_split(labels, data.val_fraction, seed))
    elif data.split == "group":
        assert values is not None
        split = _split_groups(labels, label_names, values, data, seed)
    else:
        split = Split(np.flatnonzero(values == TRAIN), np.flatnonzero(values == VAL))
        split.notes.append(f"Training and validation cells are given by obs['{data.split_key}'].")
    by_column = data.split == "column"
    where = f"obs['{data.split_key}']" if by_column else f"data.split={data.split}"
    for side, rows in ((TRAIN, split.train), (VAL, split.val)):
        if len(rows) == 0:
            remedy = f"mark some cells as '{side}'" if by_column else "add cells: no label has two"
            raise InputError(
                "empty-split",
                f"no labelled {side} cell with {where}",
                "cells on both sides",
                remedy,
            )
    total, num_train = (
        np.bincount(each, minlength=len(label_names)) for each in (labels, labels[split.train])
    )
    if lost := {label_names[label]: int(total[label]) for label in np.flatnonzero(num_train == 0)}:
        remedy = "mark cells of these labels as 'train', or as 'test' to leave them out"
        found = f"labels whose cells are all '{VAL}' in {where}: {named(lost)}"
        raise InputError(
            "label-without-training-cells", found, "training cells of each label", remedy
        )
    key = {"key": data.split_key} if data.split_key else {}
    sizes = {"num_train_cells": len(split.train), "num_val_cells": len(split.val)}
    split.record = {"how": data.split, **key, **sizes, **split.record}
    return split
