"""The composition of samples: shares of calls, labels and levels, in the order of similar samples, and their tests."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from natsort import natsorted

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.base.pictures import colour_of
from scperformer.labels.ontology_columns import NO_CALL
from scperformer.results.read_annotations import Annotated, as_text
from scperformer.results.report_tables import SHEET, UNKNOWN_COLOUR, Label, Table

log = logging.getLogger(__name__)

MAX_GROUPS = 12  # values of a column that groups samples
MIN_SAMPLES = 3  # samples of each group that is tested: with fewer, no difference can be told from chance
MAX_CLUSTERED = 2000  # samples that are put in the order of their similarity


def sample_of_cells(samples: Sequence[Annotated], cells: pd.DataFrame, sample_key: str | None) -> npt.NDArray[Any]:
    """Return the sample of each cell: its file, or with `sample_key` its value in this column of obs."""
    if sample_key is None:
        return cells["sample"].to_numpy(object)
    for sample in samples:
        if sample_key not in sample.obs:
            remedy = f"{did_you_mean(sample_key, sample.obs.columns)}name a column of obs"
            found = f"no column '{sample_key}' in obs of {sample.path}"
            raise InputError(found, "a column with the sample of each cell", remedy)
    return np.concatenate([as_text(sample.obs[sample_key]) for sample in samples])


def group_columns(
    samples: Sequence[Annotated], of_cell: npt.NDArray[Any], names: Sequence[str], wanted: Sequence[str]
) -> dict[str, list[str]]:
    """Return the columns that group the samples, such as a condition or a batch, with the value of each sample.

    Parameters
    ----------
    of_cell
        The sample of each cell.
    names
        The samples, in their order.
    wanted
        Columns of obs. Empty: those of the sample sheet, else all columns that have one value in each sample, and 2 to
        12 values in all of them.

    Raises
    ------
    InputError
        A column of `wanted` is missing, or has several values in a sample.
    """
    known = set.intersection(*(set(map(str, sample.obs)) for sample in samples))
    sheet = [str(name) for name in samples[0].facts.get(SHEET, []) if str(name) in known]
    own = [str(name) for name in samples[0].obs if str(name) in known]
    candidates = wanted or sheet or [name for name in own if not name.startswith(f"{samples[0].key}_")]
    groups = {}
    for column in candidates:
        if column not in known:
            remedy = f"{did_you_mean(column, sorted(known))}name columns that every file has"
            raise InputError(f"group_by={column}, which is no column of obs of all files", "columns of obs", remedy)
        values = pd.Series(np.concatenate([as_text(sample.obs[column]) for sample in samples]))
        by_sample = values.groupby(of_cell)
        if (by_sample.nunique() > 1).any():
            if wanted:
                sample = by_sample.nunique().idxmax()
                found = f"group_by={column}, which has {by_sample.nunique().max()} values in sample {sample}"
                raise InputError(found, "a column with one value for each sample", "name another, or sample_key=...")
            continue
        first = by_sample.first()
        if wanted or 2 <= first.nunique() <= min(MAX_GROUPS, len(names) - 1):
            groups[column] = [str(first[name]) for name in names]
    if groups and not wanted:
        log.info("samples are grouped by %s (group_by=COLUMN chooses others)", ", ".join(groups))
    return groups


def value_colours(values: Iterable[str], labels: Sequence[Label]) -> dict[str, str]:
    """Return the colour of each value: of the label of this name, grey for unknown, or one that no label has."""
    known = {label.name: label.colour for label in labels} | {NO_CALL: UNKNOWN_COLOUR}
    free = (colour for place in range(1000) if (colour := colour_of(place)) not in known.values() or place > 30)
    return {value: known.get(value) or next(free) for value in values}


def _kind(name: str, texts: npt.NDArray[Any], labels: Sequence[Label]) -> dict[str, Any]:
    """Return the values of a kind of composition, the most frequent first and unknown last, with their colours."""
    counts = pd.Series(texts).value_counts()
    values = [value for value in counts.index if value != NO_CALL] + [NO_CALL] * (NO_CALL in counts)
    return {"name": name, "values": values, "colours": list(value_colours(values, labels).values())}


def composition_data(
    samples: Sequence[Annotated],
    cells: pd.DataFrame,
    labels: Sequence[Label],
    of_cell: npt.NDArray[Any],
    groups: dict[str, list[str]],
) -> dict[str, Any]:
    """Return the composition of each sample as plain data: counts by call, by label and by each level of a tree.

    `order` has the places of the samples by similarity: average linkage of Hellinger distances, with optimal order.
    """
    names = list(dict.fromkeys(of_cell.tolist()))
    final = np.array([label.name for label in labels], dtype=object)[cells["code"].to_numpy()]
    texts = {"Call": final, "Most probable label": cells["label"].to_numpy(object)}
    level = 1
    while all(f"{sample.key}_level{level}" in sample.obs for sample in samples):
        stored = np.concatenate([as_text(sample.column(f"level{level}")) for sample in samples])
        texts[f"Level {level}"] = np.where(final == NO_CALL, NO_CALL, stored)
        level += 1
    kinds = []
    for name, values in texts.items():
        kind = _kind(name, values, labels)
        table = pd.crosstab(of_cell, values).reindex(index=names, columns=kind["values"], fill_value=0)
        kinds.append(kind | {"counts": table.to_numpy().tolist()})
    counts = np.array(kinds[0]["counts"], dtype=float)
    return {"samples": names, "kinds": kinds, "order": _by_similarity(counts), "groups": groups}


def _by_similarity(counts: npt.NDArray[np.floating]) -> list[int]:
    """Return the places of samples, so that similar ones are neighbours; `counts` are samples x labels."""
    if not 3 <= len(counts) <= MAX_CLUSTERED:
        return list(range(len(counts)))
    from scipy.cluster.hierarchy import leaves_list, linkage

    roots = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    return leaves_list(linkage(roots, "average", optimal_ordering=True)).tolist()


def group_tables(data: dict[str, Any]) -> list[Table]:
    """Return a table for each column that groups samples: the mean share of each call in each group, and its test.

    Groups of at least three samples are compared: two by Mann-Whitney's test, more by that of Kruskal and Wallis. The
    samples, not the cells, are the observations. P values are adjusted for the number of calls (Benjamini-Hochberg).
    """
    from scipy.stats import false_discovery_control, kruskal, mannwhitneyu

    kind = data["kinds"][0]
    counts = np.array(kind["counts"], dtype=float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    tables = []
    for number, (column, values) in enumerate(data["groups"].items()):
        found = natsorted(set(values))
        numbers = np.array([found.index(value) for value in values])
        tested = [place for place in range(len(found)) if (numbers == place).sum() >= MIN_SAMPLES]
        p_values = []
        for place in range(len(kind["values"])):
            parts = [shares[numbers == group, place] for group in tested]
            if len(tested) < 2:
                p_values.append(np.nan)
            elif np.ptp(np.concatenate(parts)) == 0:
                p_values.append(1.0)
            else:
                p_values.append(float((mannwhitneyu if len(parts) == 2 else kruskal)(*parts).pvalue))
        kinds = {"Call": "label"} | {f"Mean share, {value}": "share" for value in found}
        adjusted = p_values
        if len(tested) >= 2:
            kinds |= {"P value": "p", "Adjusted P value": "p"}
            adjusted = false_discovery_control(p_values).tolist()
        rows = []
        for place, value in enumerate(kind["values"]):
            means = [float(shares[numbers == group, place].mean()) for group in range(len(found))]
            rows.append([value, *means, *([p_values[place], adjusted[place]] if len(tested) >= 2 else [])])
        title = f"Calls by {column} ({', '.join(f'{value}: {(numbers == i).sum()}' for i, value in enumerate(found))})"
        tables.append(Table(id=f"groups-{number}-table", title=title, columns=list(kinds.items()), rows=rows))
    return tables
