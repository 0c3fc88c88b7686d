"""Read what `predict` wrote into h5ad files, without loading the expression."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas as pd
from anndata.io import read_elem

from scperformer.errors import InputError
from scperformer.files import READ_ERRORS, damaged, require_h5ad

SUFFIXES = (".h5ad", ".annotated", ".prepared")  # of files that the steps write; not part of a sample's name


@dataclass(kw_only=True)
class Annotated:
    """One annotated file: N cells, without their expression."""

    name: str  # of the sample, unique among the files read together
    path: Path
    key: str  # prefix of the annotation
    obs: pd.DataFrame  # N rows, every obs column of the file
    embedding: npt.NDArray[np.float32] | None  # N x dim, None unless asked for
    facts: dict[str, Any]  # uns[key]: model, input, genes, baseline, versions

    def column(self, name: str) -> pd.Series:
        """The annotation column obs[key_name]."""
        return self.obs[f"{self.key}_{name}"]

    @property
    def labels(self) -> npt.NDArray[np.object_]:
        """What the model called each cell, N strings."""
        return as_text(self.column("label"))

    @property
    def baseline_labels(self) -> npt.NDArray[np.object_]:
        """What plain logistic regression called each cell, N strings."""
        return as_text(self.column("baseline_label"))

    @property
    def model_labels(self) -> list[str]:
        """The labels that the model knows."""
        return [str(label) for label in self.facts["model"]["labels"]]


def as_text(values: pd.Series) -> npt.NDArray[np.object_]:
    """A column as N strings; missing values become "nan"."""
    return values.astype(object).astype(str).to_numpy(object)


def sample_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each file: `sample` for `sample.annotated.h5ad`, more of the path where needed.

    Raises
    ------
    InputError
        A file is named twice.
    """
    whole = [path.resolve() for path in paths]
    if len(set(whole)) < len(whole):
        twice = paths[next(i for i, path in enumerate(whole) if whole.index(path) < i)]
        raise InputError(f"{twice} is named twice", "each file once", "leave the second one out")
    ways = (
        _stem,
        lambda path: f"{path.parent.name}/{_stem(path)}",
        lambda path: path.name,
        lambda path: f"{path.parent.name}/{path.name}",
    )
    for way in ways:
        names = [way(path) for path in whole]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in whole]


def _stem(path: Path) -> str:
    name = path.name
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix) or name
    return name


def read_annotated(paths: Sequence[str], key: str, *, embedding: bool = False) -> list[Annotated]:
    """The annotations of files that were annotated with one and the same model.

    Parameters
    ----------
    paths
        h5ad files that `predict` wrote.
    key
        Prefix of what it wrote (`key_added`).
    embedding
        Whether to read obsm[X_key] as well.

    Raises
    ------
    InputError
        A file cannot be read, is named twice, holds no annotation under `key`, or another model made it.
    """
    files = [Path(path) for path in paths]
    for path in files:
        require_h5ad(path)
    samples = [_read(path, name, key, embedding) for path, name in zip(files, sample_names(files), strict=True)]
    first = samples[0]
    for other in samples[1:]:
        if other.facts["model"]["hash"] != first.facts["model"]["hash"]:
            raise InputError(
                f"{first.path} was annotated with {model_id(first)}, {other.path} with {model_id(other)}",
                "files annotated with one model",
                "annotate them again with the same model_path, or give one file at a time",
            )
    return samples


def model_id(sample: Annotated) -> str:
    """Name and short hash of the model that annotated a file."""
    model = sample.facts["model"]
    return f"model {model['name']} ({model['hash'][:12]})"


def _read(path: Path, name: str, key: str, embedding: bool) -> Annotated:
    try:
        with h5py.File(path, "r") as file:
            obs = read_elem(file["obs"])
            facts = read_elem(file[f"uns/{key}"]) if f"uns/{key}" in file else None
            coordinates = read_elem(file[f"obsm/X_{key}"]) if embedding and f"obsm/X_{key}" in file else None
    except READ_ERRORS as error:
        raise damaged(path, error) from error
    columns = [str(column) for column in obs.columns] if isinstance(obs, pd.DataFrame) else []
    wanted = [f"{key}_{what}" for what in ("label", "confidence", "unknown", "baseline_label")]
    missing = [f"obs column '{column}'" for column in wanted if column not in columns]
    missing += [f"obsm['X_{key}']"] if embedding and coordinates is None else []
    if missing or facts is None:
        missing.append(f"uns['{key}']")
        raise InputError(f"no {missing[0]} in {path}", "an annotated file", _remedy(path, columns))
    values = None if coordinates is None else np.asarray(coordinates, dtype=np.float32)
    return Annotated(name=name, path=path, key=key, obs=obs, embedding=values, facts=facts)


def _remedy(path: Path, columns: list[str]) -> str:
    """What to do about a file without annotation: name the key it has, or annotate it."""
    suffix = "_baseline_label"
    keys = [column.removesuffix(suffix) for column in columns if column.endswith(suffix)]
    if keys:
        return f"it has annotations of the name '{keys[0]}': add key_added={keys[0]}"
    return f"run 'scperformer predict {path}' first and give the file it writes"
