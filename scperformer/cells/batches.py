"""Batches of a query: cells of one sample or technology, by the column of obs that is named, or may be meant."""

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.cells.splits import batches_of
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.safety import reading
from scperformer.labels.texts import first_container, label_texts

MAX_BATCHES = 200
ENOUGH_CELLS = 20  # of each batch in a column that is suggested; with fewer, no shift is estimated
# Columns that are suggested, from the most to the least technical.
TECHNICAL = "technology|tech|platform|protocol|chemistry|assay|method|batch|library|dataset|study|sample|orig ident"
LIKELY = [*f"{TECHNICAL}|donor|patient|individual|subject|condition".split("|")]


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of N cells."""

    key: str  # the column of obs
    names: list[str]
    of_cell: np.ndarray  # the number of its name for each cell, int64 N

    def rows(self, number: int) -> np.ndarray:
        """Return the numbers of the cells of a batch, ascending."""
        return np.flatnonzero(self.of_cell == number)


def read_query_batches(
    cells: AnnData | BackedH5ad, key: str, path: str | Path = "the data", names: list[str] | None = None
) -> Batches:
    """Return the batches of an open file by a column of obs, sorted, or numbered as the given `names`.

    A column that is missing, or has more than 200 values or others than `names`, is refused.
    """
    remedy = "set batch_key=... to the column of batches, or leave it out"
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        obs = _columns(cells, [key])
        obs = obs if key in obs else cells.obs  # the message names its columns
        values = batches_of(obs, key, path)
    known, of_cell = np.unique(values, return_inverse=True)
    if len(known) > MAX_BATCHES:
        raise InputError(
            "too-many-batches", f"{len(known):,} values in obs['{key}'] of {path}", f"at most {MAX_BATCHES:,}", remedy
        )
    if names is not None:
        numbers = pd.Index(names).get_indexer(pd.Index(known))
        if (numbers < 0).any():
            found = f"batch '{known[numbers < 0][0]}' in obs['{key}'] of {path} alone"
            raise InputError("batch-not-in-sample", found, "batches of the whole sample", remedy)
        return Batches(key, names, numbers[of_cell].astype(np.int64))
    return Batches(key, known.tolist(), of_cell.astype(np.int64))


def named_as_batches(columns: Iterable[str]) -> list[str]:
    """Return the columns of obs with names that batches usually have, from the most to the least technical."""
    by_words: dict[str, str] = {}
    for name in sorted(columns):
        by_words.setdefault(re.sub(r"[\W_]+", " ", re.sub(r"[\W_]*(id|key|name)?$", "", name.lower())), name)
    return [by_words[words] for words in LIKELY if words in by_words]


def likely_batches(cells: AnnData | BackedH5ad) -> str | None:
    """Return the column of obs that seems to name batches, of 20 cells or more each; None if there is none."""
    for key in named_as_batches(cells.keys()["obs"] if isinstance(cells, BackedH5ad) else map(str, cells.obs)):
        column = _columns(cells, [key])[key]
        if first_container(column) is None:
            sizes = label_texts(column).value_counts(dropna=False)
            if 2 <= len(sizes) <= MAX_BATCHES and sizes.min() >= ENOUGH_CELLS:
                return key
    return None


def _columns(cells: AnnData | BackedH5ad, names: Iterable[str]) -> pd.DataFrame:
    return cells.columns(names) if isinstance(cells, BackedH5ad) else cells.obs
