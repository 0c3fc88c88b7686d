"""The tasks of the benchmarks (training cells, predicted cells, true labels) and the file of their results."""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy
import yaml
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

LABEL = "label"  # obs column of both parts of a pair
REFERENCE_SHARE = 0.9  # of the cells of a reference with a separate query, drawn by the seed


@dataclass(kw_only=True)
class Task:
    """One entry of the YAML file, which explains the fields."""

    name: str
    reference: str | list[str]
    label_key: str
    query: str | None = None
    truth_key: str | None = None
    folds: int | None = None
    cells_per_label: int | None = None
    holdout: float | None = None
    split_seeds: list[int] | None = None
    seeds: int | None = None
    where: dict[str, list[str]] = field(default_factory=dict)
    query_where: dict[str, list[str]] = field(default_factory=dict)
    merge: dict[str, str] = field(default_factory=dict)
    published: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ways = [self.query, self.folds, self.cells_per_label, self.holdout]
        if sum(way is not None for way in ways) != 1:
            raise SystemExit(
                f"task '{self.name}': give one of query, folds, cells_per_label, holdout"
            )

    @property
    def references(self) -> list[str]:
        return [self.reference] if isinstance(self.reference, str) else self.reference


@dataclass
class Pair:
    """One split: labelled cells, cells without labels, and the true labels, which methods do not see."""

    seed: int
    fold: int
    reference: ad.AnnData  # obs has only LABEL
    query: ad.AnnData  # obs is empty
    truth: np.ndarray


def read_tasks(path: Path) -> list[Task]:
    return [
        Task(name=name, **entry)
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items()
    ]


def missing_files(task: Task, data: Path | None) -> list[str]:
    """The missing files of a task."""
    names = [name for name in (*task.references, task.query) if name not in (None, "embedded")]
    return [
        str(name)
        for name in dict.fromkeys(names)
        if data is None or not (data / str(name)).exists()
    ]


def read_reference(task: Task, data: Path | None) -> ad.AnnData:
    """The cells of one file, or of several files with their common genes."""
    parts = [read_cells(name, task.label_key, task.where, data) for name in task.references]
    return parts[0] if len(parts) == 1 else ad.concat(parts, join="inner", index_unique="-")


def read_cells(
    name: str, label_key: str, where: dict[str, list[str]], data: Path | None
) -> ad.AnnData:
    """The cells of a file that have a label and the values of `where`; obs has only the labels."""
    if name == "embedded":
        adata = scanpy.datasets.pbmc68k_reduced()
        adata = ad.AnnData(adata.raw.X, obs=adata.obs, var=adata.raw.var)
    else:
        assert data is not None
        adata = ad.read_h5ad(data / name)
    keep = adata.obs[label_key].notna().to_numpy()
    for column, values in where.items():
        keep &= adata.obs[column].astype(str).isin(values).to_numpy()
    labels = adata.obs.loc[keep, label_key].astype(str)
    return ad.AnnData(adata.X[keep], obs=labels.to_frame(LABEL), var=adata.var[[]])


def pairs(task: Task, data: Path | None, seeds: int) -> Iterator[Pair]:
    """Every split of a task."""
    cells = read_reference(task, data)
    labels = cells.obs[LABEL].to_numpy(str)
    if task.query is not None:
        query = read_cells(task.query, task.truth_key or task.label_key, task.query_where, data)
        known = {task.merge.get(label, label) for label in labels}
        truth = query.obs[LABEL].map(lambda label: task.merge.get(label, label))
        query = query[truth.isin(known).to_numpy()].copy()
    for seed in task.split_seeds or range(task.seeds or seeds):
        for fold, (train, test) in enumerate(splits(task, labels, seed)):
            held_out = query if task.query is not None else cells[test]
            truth = held_out.obs[LABEL].to_numpy(str)
            hidden = ad.AnnData(
                held_out.X.copy(), obs=held_out.obs[[]].copy(), var=held_out.var.copy()
            )
            yield Pair(seed, fold, cells[train].copy(), hidden, truth)


def splits(task: Task, labels: np.ndarray, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers of training and predicted cells; the latter are empty for a task with a separate query."""
    if task.folds is not None:
        yield from StratifiedKFold(task.folds, shuffle=True, random_state=seed).split(
            labels, labels
        )
    elif task.holdout is not None:
        yield from StratifiedShuffleSplit(1, test_size=task.holdout, random_state=seed).split(
            labels, labels
        )
    else:
        rng = np.random.default_rng(seed)
        chosen = []
        for label in np.unique(labels):
            cells = rng.permutation(np.flatnonzero(labels == label))
            few = task.cells_per_label
            chosen.append(
                cells[
                    : round(REFERENCE_SHARE * len(cells))
                    if few is None
                    else min(few, len(cells) // 2)
                ]
            )
        train = np.sort(np.concatenate(chosen))
        yield train, np.setdiff1d(np.arange(len(labels)), train)


class Lines:
    """The finished results of a benchmark: lines of a JSON file, which are found by their keys and not repeated."""

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.path = path
        self.keys = keys
        self.found = {
            tuple(line[key] for key in keys): line for line in map(json.loads, text.splitlines())
        }

    def add(self, key: tuple, numbers: dict[str, Any]) -> None:
        """Append a line; NaN becomes null."""
        values = {name: None if number != number else number for name, number in numbers.items()}
        self.found[key] = dict(zip(self.keys, key, strict=True)) | values
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.found[key]) + "\n")
        shown = (
            f"{name} {value:.3f}" for name, value in values.items() if isinstance(value, float)
        )
        print(*key, ", ".join(shown), flush=True)

    def table(self) -> pd.DataFrame:
        return pd.DataFrame(list(self.found.values()))


def as_options(words: Sequence[str]) -> dict[str, Any]:
    """Turn words such as `trainer.max_epochs=5` into options of a function."""
    pairs = (word.partition("=") for word in words)
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def be_quiet() -> None:
    """Show errors only."""
    warnings.simplefilter("ignore")
    logging.getLogger("scperformer").setLevel(logging.ERROR)
