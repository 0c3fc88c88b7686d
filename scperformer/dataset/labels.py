"""Labels of cells: the column that holds them, and the treatment of labels with few cells."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from scperformer.config import DataConfig
from scperformer.errors import InputError
from scperformer.text import unfit

log = logging.getLogger(__name__)

MAX_LABELS = 200  # a column with more values holds names or numbers, not labels
NUM_NAMED = 5  # names in a line
NUM_SHOWN = 80  # characters of a label that cannot be one


def label_columns(obs: pd.DataFrame) -> dict[str, int]:
    """Return the obs columns that could be labels and their numbers of values: 2 to 200 texts for two cells or more."""
    found = {}
    for key in obs.columns:
        column = obs[key]
        is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        num = 0 if is_number else int(column.nunique())
        if 2 <= num <= min(MAX_LABELS, len(obs) // 2):
            found[str(key)] = num
    return found


def require_labels(obs: pd.DataFrame, label_key: str, path: str | Path) -> pd.Series:
    """Return the labels of the cells as strings without surrounding blanks; NaN for a missing or blank label.

    Raises
    ------
    InputError
        The column is missing (the message lists likely columns), has no label, or holds numbers with decimals.
    """
    remedy = "set label_key=... to the column of labels"
    likely = {key: num for key, num in label_columns(obs).items() if key != label_key}
    options = [f"label_key={key}" for key in likely]
    if label_key not in obs:
        columns = [f"{key} ({num} values)" for key, num in likely.items()] or map(str, obs.columns)
        expected = ", ".join(columns) or "columns in obs, but it has none"
        raise InputError(f"no column '{label_key}' in obs of {path}", expected, remedy, options)
    column = obs[label_key]
    if pd.api.types.is_float_dtype(column.dtype) and not (column.dropna() % 1 == 0).all():
        raise InputError(f"obs['{label_key}'] of {path} holds numbers with decimals", "labels", remedy, options)
    labels = column.astype(object).map(lambda label: str(label).strip(), na_action="ignore")
    labels = labels.where(labels.notna() & (labels != ""))
    if labels.isna().all():
        raise InputError(f"no cell of {path} has a label in obs['{label_key}']", "labelled cells", remedy, options)
    return labels


def rare_labels(labels: pd.Series, min_cells: int) -> dict[str, int]:
    """Return the labels with fewer than `min_cells` cells and their numbers of cells, in alphabetical order."""
    counts = labels.value_counts()
    return {str(label): int(counts[label]) for label in sorted(counts.index[counts < min_cells])}


def named(cells: dict[str, int]) -> str:
    """Name labels with their numbers of cells, as in "'B cell' (1), 'T cell' (3) and 2 more"."""
    more = f" and {len(cells) - NUM_NAMED} more" if len(cells) > NUM_NAMED else ""
    return ", ".join(f"'{label}' ({num})" for label, num in list(cells.items())[:NUM_NAMED]) + more


def rare_note(rare: dict[str, int], min_cells: int) -> str:
    """Begin a sentence with the number and names of rare labels."""
    return f"{len(rare)} label{'s have' if len(rare) > 1 else ' has'} fewer than {min_cells} cells: {named(rare)}"


@dataclass
class Settled:
    """Labels to train on (NaN: the cell is left out), and the treatment of the rare ones."""

    labels: pd.Series
    done: dict[str, Any] = field(default_factory=dict)  # policy, min_cells, rare labels; into: their new label
    note: str = ""  # the same as a sentence; "": no label is rare


def settle_rare_labels(labels: pd.Series, data: DataConfig, path: str | Path) -> Settled:
    """Treat labels of fewer than `data.min_cells_per_label` cells according to `data.rare_labels`, and log it.

    Labels that are too long or have control characters are refused.
    """
    for label in sorted(labels.dropna().unique()):
        if why := unfit(label):
            found = f"label '{label[:NUM_SHOWN]}' of {path} {why}"
            raise InputError(found, "labels of a line of text", "rename it: adata.obs[...].cat.rename_categories")
    least, policy = data.min_cells_per_label, data.rare_labels
    rare = rare_labels(labels, least)
    if not rare:
        return Settled(labels)
    is_rare, num_rare = labels.isin(list(rare)), sum(rare.values())
    done: dict[str, Any] = {"policy": policy, "min_cells": least, "labels": rare}
    note = rare_note(rare, least)
    if policy == "error":
        found = f"{len(rare)} of {labels.nunique()} labels of {path} have fewer than {least} cells: {named(rare)}"
        remedy = "set data.rare_labels=keep, merge or drop to keep them, merge them into one label, or leave them out"
        raise InputError(found, f"at least {least} cells of each label", remedy)
    if policy == "merge":
        name = data.rare_label_name
        if name not in rare and (labels == name).any():
            found = f"label '{name}' of {int((labels == name).sum())} cells in {path}"
            remedy = "set data.rare_label_name to another name"
            raise InputError(found, "a name for merged labels that no other label has", remedy)
        labels, done["into"] = labels.where(~is_rare, name), name
        note += f"; merged into '{name}' ({num_rare})"
    elif policy == "drop":
        labels = labels.where(~is_rare)
        note += f"; their {num_rare} cells are left out"
    else:
        note += "; kept, but the model will hardly recognise them"
    log.warning("%s%s", note, " (data.rare_labels=merge, drop or error changes this)" if policy == "keep" else "")
    return Settled(labels, done, note)
