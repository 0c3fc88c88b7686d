"""Batches of a query: cells of one sample or technology, by the column of obs that is named, or may be meant."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.cells.opened import OpenedCells
from scperformer.cells.splits import batches_of
from scperformer.labels.texts import first_container, label_texts

MAX_BATCHES = 200
# of each batch in a column that is suggested; with fewer, no shift is estimated
MIN_CELLS_OF_BATCH = 20
# Columns that are suggested, from the most to the least technical.
LIKELY_COLUMNS = [
    *(
        "technology",
        "tech",
        "platform",
        "protocol",
        "chemistry",
        "assay",
        "method",
        "batch",
        "library",
        "dataset",
    ),
    *("study", "sample", "orig ident", "donor", "patient", "individual", "subject", "condition"),
]


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of N cells."""

    key: str  # the column of obs
    names: list[str]
    of_cell: np.ndarray  # the number of its name for each cell, int64 N

    def rows(self, number: int) -> np.ndarray:
        return np.flatnonzero(self.of_cell == number)


LIKELY = "obs['{0}'] may name batches: batch_key={0} corrects each of them apart"
NO_BATCHES = Batches("", [], np.zeros(0, dtype=np.int64))


def read_query_batches(cells: OpenedCells, key: str, names: list[str] | None = None) -> Batches:
    """Return the batches of opened cells by a column of obs, sorted, or numbered as the given `names`.

    A column that is missing, or has more than 200 values or others than `names`, is refused.
    """
    remedy = "set batch_key=... to the column of batches, or leave it out"
    with cells.reading():
        obs = cells.columns([key])
        # the message names all columns
        values = batches_of(obs if key in obs else cells.obs, key, cells.path)
    known, of_cell = np.unique(values, return_inverse=True)
    if len(known) > MAX_BATCHES:
        found = f"{len(known):,} values in obs['{key}'] of {cells.path}"
        raise InputError("too-many-batches", found, f"at most {MAX_BATCHES:,}", remedy)
    if names is None:
        return Batches(key, known.tolist(), of_cell.astype(np.int64))
    numbers = pd.Index(names).get_indexer(pd.Index(known))
    if (numbers < 0).any():
        found = f"batch '{known[numbers < 0][0]}' in obs['{key}'] of {cells.path} alone"
        raise InputError("batch-not-in-sample", found, "batches of the whole sample", remedy)
    return Batches(key, names, numbers[of_cell].astype(np.int64))


def named_as_batches(columns: Iterable[str]) -> list[str]:
    """Return the columns of obs with names that batches usually have, from the most to the least technical."""
    by_words: dict[str, str] = {}
    for name in sorted(columns):
        by_words.setdefault(
            re.sub(r"[\W_]+", " ", re.sub(r"[\W_]*(id|key|name)?$", "", name.lower())), name
        )
    return [by_words[words] for words in LIKELY_COLUMNS if words in by_words]


def likely_batches(cells: OpenedCells) -> str | None:
    """Return the column of obs that seems to name batches, of 20 cells or more each; None if there is none."""
    for key in named_as_batches(cells.keys()["obs"]):
        column = cells.columns([key])[key]
        if first_container(column) is None:
            sizes = label_texts(column).value_counts(dropna=False)
            if 2 <= len(sizes) <= MAX_BATCHES and sizes.min() >= MIN_CELLS_OF_BATCH:
                return key
    return None
