"""Labels of cells: the column that holds them; those of few cells are kept, merged, left out or refused."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from scperformer.config import DataConfig
from scperformer.errors import InputError
from scperformer.text import unfit

log = logging.getLogger(__name__)

MAX_LABELS = 200  # a column with more values holds names or numbers, not labels
NUM_NAMED = 5  # labels named in a line
NUM_SHOWN = 80  # characters of a label that cannot be one
POLICIES = "data.rare_labels=merge, drop or error"


def label_columns(obs: pd.DataFrame) -> dict[str, int]:
    """The obs columns that could be labels, with their number of values: 2 to 200 texts, two cells each or more."""
    found = {}
    most = min(MAX_LABELS, len(obs) // 2)
    for key in obs.columns:
        column = obs[key]
        is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        num = 0 if is_number else int(column.nunique())
        if 2 <= num <= most:
            found[str(key)] = num
    return found


class HasObs(Protocol):
    """Cells of which a table is known: an AnnData, say."""

    obs: pd.DataFrame


def require_labels(adata: HasObs, label_key: str, path: str | Path) -> pd.Series:
    """The labels of the cells as strings, surrounding blanks removed; NaN where a cell has none.

    Returns
    -------
    Series of N str or NaN (missing, or blank in the file), index = the cells.

    Raises
    ------
    InputError
        There is no such column (the message lists those that could be meant), or it holds no label at all, or
        numbers with decimals.
    """
    remedy = "set label_key=... to the column of labels"
    likely = {key: num for key, num in label_columns(adata.obs).items() if key != label_key}
    mends = [f"label_key={key}" for key in likely]
    if label_key not in adata.obs:
        texts = [f"{key} ({num} values)" for key, num in likely.items()]
        there = ", ".join(texts or map(str, adata.obs.columns)) or "columns in obs, but it has none"
        raise InputError(f"no column '{label_key}' in obs of {path}", there, remedy, mends)
    column = adata.obs[label_key]
    if pd.api.types.is_float_dtype(column.dtype) and not (column.dropna() % 1 == 0).all():
        raise InputError(f"obs['{label_key}'] of {path} holds numbers with decimals", "labels", remedy, mends)
    labels = column.astype(object).map(lambda label: str(label).strip(), na_action="ignore")
    labels = labels.where(labels.notna() & (labels != ""))
    if labels.isna().all():
        raise InputError(f"no cell of {path} has a label in obs['{label_key}']", "labelled cells", remedy, mends)
    return labels


@dataclass
class Settled:
    """Labels to train on (NaN: the cell is left out), and what was done with the rare ones.

    `done` has the policy, `min_cells`, the rare `labels` with their numbers of cells, and the label `into` which they
    were merged, if they were. `note` is the same as a sentence, "" where no label is rare.
    """

    labels: pd.Series
    done: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def rare_labels(labels: pd.Series, min_cells: int) -> dict[str, int]:
    """The labels with fewer than `min_cells` cells, and how many they have, in the order of their names."""
    counts = labels.value_counts()
    return {str(label): int(counts[label]) for label in sorted(counts.index[counts < min_cells])}


def named(cells: dict[str, int]) -> str:
    """Labels with their numbers of cells, such as "'B cell' (1), 'T cell' (3) and 2 more"."""
    more = f" and {len(cells) - NUM_NAMED} more" if len(cells) > NUM_NAMED else ""
    return ", ".join(f"'{label}' ({num})" for label, num in list(cells.items())[:NUM_NAMED]) + more


def rare_note(rare: dict[str, int], min_cells: int) -> str:
    """How many labels are rare, and which: the beginning of a sentence."""
    return f"{len(rare)} label{'s have' if len(rare) > 1 else ' has'} fewer than {min_cells} cells: {named(rare)}"


def require_cells_per_label(labels: pd.Series, min_cells: int, path: str | Path) -> None:
    """Fail when a label has too few cells to learn from.

    Raises
    ------
    InputError
        With the labels and their numbers of cells, and the option that does something else.
    """
    rare = rare_labels(labels, min_cells)
    if rare:
        raise InputError(
            f"{len(rare)} of {labels.nunique()} labels of {path} have fewer than {min_cells} cells: {named(rare)}",
            f"at least {min_cells} cells of each label",
            "data.rare_labels=keep, merge or drop goes on with them, in one label, or without them",
        )


def require_fit_names(labels: pd.Series, path: str | Path) -> None:
    """Fail when a label is too long or holds control characters: model folders, tables and pages name it on a line.

    Raises
    ------
    InputError
        Names the label.
    """
    for label in sorted(labels.dropna().unique()):
        if why := unfit(label):
            found = f"label '{label[:NUM_SHOWN]}' of {path} {why}"
            raise InputError(found, "labels of a line of text", "rename it: adata.obs[...].cat.rename_categories")


def settle_rare_labels(labels: pd.Series, data: DataConfig, path: str | Path) -> Settled:
    """Do with labels of fewer than `data.min_cells_per_label` cells what `data.rare_labels` says, and log it.

    Parameters
    ----------
    labels
        N strings, NaN for a cell without a label.

    Raises
    ------
    InputError
        A label cannot be a name, is rare and `data.rare_labels` is `error`, or the name for merged labels is another
        label's.
    """
    require_fit_names(labels, path)
    least, policy = data.min_cells_per_label, data.rare_labels
    rare = rare_labels(labels, least)
    if not rare:
        return Settled(labels)
    if policy == "error":
        require_cells_per_label(labels, least, path)
    done: dict[str, Any] = {"policy": policy, "min_cells": least, "labels": rare}
    note = rare_note(rare, least)
    if policy == "merge":
        require_free_name(labels, rare, data.rare_label_name, path)
        labels = labels.where(~labels.isin(list(rare)), data.rare_label_name)
        done["into"] = data.rare_label_name
        note += f"; merged into '{data.rare_label_name}' ({sum(rare.values())})"
    elif policy == "drop":
        labels = labels.where(~labels.isin(list(rare)))
        note += f"; their {sum(rare.values())} cells are left out"
    else:
        note += "; kept, but the model will hardly know them"
    log.warning("%s%s", note, f" ({POLICIES} does otherwise)" if policy == "keep" else "")
    return Settled(labels, done, note)


def require_free_name(labels: pd.Series, rare: dict[str, int], name: str, path: str | Path) -> None:
    """Fail when merged labels would get the name of a label that is not one of them.

    Raises
    ------
    InputError
        Names the label.
    """
    if name not in rare and (labels == name).any():
        raise InputError(
            f"label '{name}' of {int((labels == name).sum())} cells in {path}",
            "a name for merged labels that no other label has",
            "set data.rare_label_name to another name",
        )
