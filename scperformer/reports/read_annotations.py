"""Annotations read back from the h5ad files that `predict` wrote, without the expression; or of cells in memory."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem
from natsort import natsorted

from scperformer.base.errors import InputError, one_line
from scperformer.base.outputs import FAILED_SUFFIX
from scperformer.files import open_hdf5, reading, require_h5ad, sha256
from scperformer.labels import LabelTree
from scperformer.model import INFO, PACKAGED_MODEL, library_folder, with_current_branches
from scperformer.prediction import REQUIRED_COLUMNS

log = logging.getLogger(__name__)

LONGEST_REASON = 5000  # characters
LEAST_PROBABILITY = 1e-3  # in logarithms: smaller ones are noise
SUFFIXES = (FAILED_SUFFIX, ".h5ad", ".annotated", ".prepared")  # endings that the steps add to the name of a sample


@dataclass(kw_only=True)
class Annotated:
    """One annotated file, without its expression, or annotated cells in memory: N cells."""

    name: str  # of the sample, unique among the files read together
    path: Path
    key: str  # prefix of the annotation
    obs: pd.DataFrame  # N rows, all obs columns of the file
    embedding: npt.NDArray[np.float32] | None  # N x dim; None unless requested
    facts: dict[str, Any]  # uns[key]: model, condition, input, genes, baseline, versions
    cells: AnnData | None = None  # in memory, with their expression; None: they are in the file

    @property
    def mean_held_out(self) -> float:
        """The mean confidence of held-out calls under the condition of this file; NaN if the model keeps none."""
        bins = self.facts.get("calibration", {}).get("bins")
        return float("nan") if bins is None else float(np.average(bins["confidence"], weights=bins["num_cells"]))

    def probabilities(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The probabilities of some cells, one column for each label of the model."""
        if self.cells is not None:
            return np.asarray(self.cells.obsm[f"{self.key}_proba"], dtype=np.float32)[cells]
        with reading(self.path), open_hdf5(self.path) as file:
            stored = file[f"obsm/{self.key}_proba"]
            # One column at a time: those of a million cells need not be in memory together.
            columns = [np.asarray(stored[name])[cells] for name in stored.attrs["column-order"]]
        return np.stack(columns, axis=1).astype(np.float32)

    @property
    def adapted(self) -> str:
        """The condition that the model was adapted to; empty if it was used as it is."""
        condition = self.facts.get("condition", {})  # files of earlier versions lack it
        return str(condition["key"]) if condition.get("adapted", False) else ""

    def column(self, name: str) -> pd.Series:
        """The annotation column obs[key_name]."""
        return self.obs[f"{self.key}_{name}"]

    def flag(self, name: str) -> npt.NDArray[np.bool_] | None:
        """The flag obs[key_name] of each cell; of doublets also scanpy's `predicted_doublet`; None without it."""
        names = [f"{self.key}_{name}", *(["predicted_doublet"] if name == "doublet" else [])]
        column = next((self.obs[name] for name in names if name in self.obs), None)
        return None if column is None or column.dtype != bool else column.to_numpy(bool)

    @property
    def labels(self) -> npt.NDArray[np.object_]:
        """The label of each cell by the model, N strings."""
        return as_text(self.column("label"))

    @property
    def model_labels(self) -> list[str]:
        """The labels of the model."""
        return [str(label) for label in self.facts["model"]["labels"]]

    @property
    def scales(self) -> dict[str, float]:
        """The factors of the branches of the model in its logits; files of the first versions lack them."""
        return with_current_branches(self.facts["model"].get("scales", {}))

    @property
    def model_id(self) -> str:
        """Name and short hash of the model that annotated the file."""
        model = self.facts["model"]
        return f"model {model['name']} ({model['hash'][:12]})"


def as_text(values: pd.Series) -> npt.NDArray[np.object_]:
    """A column as N strings; missing values become "nan"."""
    return values.astype(object).astype(str).to_numpy(object)


def cell_table(samples: Sequence[Annotated]) -> pd.DataFrame:
    """One row per cell of all samples: sample, label, baseline (label by logistic regression), confidence, unknown.

    If all samples have them, also `set` (of labels, joined by |) and `set_size`; `call` (in the label tree); and
    `cluster_label`.
    """
    texts = ("set", "call", "cluster_label")
    shared = [name for name in (*texts, "set_size") if all(f"{sample.key}_{name}" in sample.obs for sample in samples)]
    columns = [
        {
            "sample": sample.name,
            "label": sample.labels,
            "baseline": as_text(sample.column("baseline_label")),
            "confidence": sample.column("confidence").to_numpy(float),
            "unknown": sample.column("unknown").to_numpy(bool),
            **{
                name: as_text(sample.column(name)) if name in texts else sample.column(name).to_numpy()
                for name in shared
            },
        }
        for sample in samples
    ]
    return pd.concat([pd.DataFrame(one) for one in columns], ignore_index=True)


def common_tree(samples: Sequence[Annotated]) -> LabelTree | None:
    """The label tree of all samples; None if the model has none, or the files have different ones."""
    trees = [sample.facts.get("tree", {"nodes": [], "parents": []}) for sample in samples]
    pairs = [list(zip(map(str, tree["nodes"]), map(str, tree["parents"]), strict=True)) for tree in trees]
    if not pairs[0] or any(other != pairs[0] for other in pairs):
        return None
    with reading(samples[0].path):
        return LabelTree(samples[0].model_labels, {node: parent for node, parent in pairs[0] if parent})


def sample_names(paths: Sequence[Path]) -> list[str]:
    """A short unique name for each file: `sample` for `sample.annotated.h5ad`, or more of the path."""
    files = [path.resolve() for path in paths]
    stems = [file.name for file in files]
    for suffix in SUFFIXES:
        stems = [stem.removesuffix(suffix) or stem for stem in stems]
    in_folders = [f"{file.parent.name}/{stem}" for file, stem in zip(files, stems, strict=True)]
    for names in (stems, in_folders, [file.name for file in files], [str(file) for file in files]):
        if len(set(names)) == len(names):
            return names
    twice = next(path for place, path in enumerate(paths) if files[place] in files[:place])
    raise InputError(f"{twice} is named twice", "each file once", "remove the repeated file")


def of_cells(adata: AnnData, key: str, name: str = "cells", embedding: bool = False) -> Annotated:
    """The annotation of cells in memory; with `embedding` they must have one, and probabilities."""
    there = {place: set(getattr(adata, place)) for place in ("obs", "uns", "obsm")}
    wanted = [("obs", f"{key}_{column}") for column in REQUIRED_COLUMNS] + [("uns", key)]
    wanted += [("obsm", f"X_{key}"), ("obsm", f"{key}_proba")] if embedding else []
    for place, entry in wanted:
        if entry not in there[place]:
            found = f"no obs column '{entry}'" if place == "obs" else f"no {place}['{entry}']"
            raise InputError(f"{found} in the data", "annotated cells", "call scperformer.annotate first")
    facts = adata.uns[key]
    coordinates = adata.obsm.get(f"X_{key}")
    values = None if coordinates is None else np.asarray(coordinates, dtype=np.float32)
    return Annotated(name=name, path=Path(name), key=key, obs=adata.obs, embedding=values, facts=facts, cells=adata)


def find_model(facts: dict[str, Any]) -> Path | None:
    """The folder of the model that an annotation names: the recorded one, the packaged one, or one of the library.

    It has the recorded hash. Another model at the recorded place is returned if there is none; None without it.
    """
    recorded = Path(os.path.expanduser(str(facts["model"]["path"])))  # relative in files of earlier versions
    library = library_folder()
    others = sorted(library.iterdir()) if library.is_dir() else []
    for folder in (recorded, PACKAGED_MODEL, *others):
        if (folder / INFO).is_file() and sha256(folder / INFO) == facts["model"]["hash"]:
            return folder
    return recorded if recorded.is_dir() else None


@dataclass(kw_only=True)
class Failed:
    """A sample that has no annotation to read, and the reason."""

    name: str
    reason: str


def _read(path: Path, name: str, key: str, embedding: bool) -> Annotated:
    require_h5ad(path)
    with reading(path), open_hdf5(path) as file:
        obs = read_elem(file["obs"])
        facts = read_elem(file[f"uns/{key}"]) if f"uns/{key}" in file else None
        coordinates = read_elem(file[f"obsm/X_{key}"]) if embedding and f"obsm/X_{key}" in file else None
    columns = [str(column) for column in obs.columns] if isinstance(obs, pd.DataFrame) else []
    required = [f"{key}_{column}" for column in REQUIRED_COLUMNS]
    missing = [f"obs column '{column}'" for column in required if column not in columns]
    missing += [f"obsm['X_{key}']"] if embedding and coordinates is None else []
    if missing or facts is None:
        missing.append(f"uns['{key}']")
        suffix = "_baseline_label"
        other = next((column.removesuffix(suffix) for column in columns if column.endswith(suffix)), None)
        remedy = f"run 'scperformer predict {path}' first and give the file that it writes"
        if other is not None:
            remedy = f"add key_added={other}, the key of the annotations in this file"
        raise InputError(f"no {missing[0]} in {path}", "an annotated file", remedy)
    values = None if coordinates is None else np.asarray(coordinates, dtype=np.float32)
    return Annotated(name=name, path=path, key=key, obs=obs, embedding=values, facts=facts)


def _require_one_model(samples: Sequence[Annotated]) -> None:
    first = samples[0]
    for sample in samples[1:]:
        if sample.facts["model"]["hash"] != first.facts["model"]["hash"]:
            found = f"{first.path} was annotated by {first.model_id}, {sample.path} by {sample.model_id}"
            remedy = "annotate them again with the same model_path, or give one file at a time"
            raise InputError(found, "files annotated by one model", remedy)


def read_annotated(paths: Sequence[str], key: str) -> list[Annotated]:
    """Read the annotations under `key` of h5ad files that one model has annotated, without embeddings."""
    files = [Path(path) for path in paths]
    for path in files:
        require_h5ad(path)
    samples = [_read(path, name, key, False) for path, name in zip(files, sample_names(files), strict=True)]
    _require_one_model(samples)
    return samples


def _reason_of(path: Path, error: InputError) -> str:
    """The error in the file that `predict keep_going=true` has left in place of a sample, else the error itself."""
    sample = path.name.removesuffix(".h5ad").removesuffix(".annotated")
    left = path if path.name.endswith(FAILED_SUFFIX) else path.parent / f"{sample}{FAILED_SUFFIX}"
    if (left != path and path.exists()) or not left.is_file():
        return str(error)
    try:
        return one_line(str(json.loads(left.read_text(encoding="utf-8"))["error"]))[:LONGEST_REASON]
    except (OSError, ValueError, KeyError, TypeError) as damage:
        log.info("%s cannot be read: %s", left, damage)
        return str(error)


def read_samples(paths: Sequence[str], key: str) -> tuple[list[Annotated], list[Failed]]:
    """Read annotations with their embeddings, as `read_annotated`, in the natural order of their names.

    Files that cannot be read, or are not annotated, are returned with the reason; if there are no others, this is an
    error. Embeddings by models that were adapted to different conditions cannot be compared: they are replaced by the
    logarithms of the probabilities.
    """
    samples: list[Annotated] = []
    failed: list[Failed] = []
    files = [Path(path) for path in paths]
    errors: list[InputError] = []
    for name, path in natsorted(zip(sample_names(files), files, strict=True), key=lambda pair: pair[0]):
        try:
            samples.append(_read(path, name, key, True))
        except InputError as error:
            errors.append(error)
            failed.append(Failed(name=name, reason=_reason_of(path, error)))
    if not samples:
        if len(failed) == 1:
            raise errors[0]
        found = f"none of {len(failed)} files is annotated: {'; '.join(f'{one.name}: {one.reason}' for one in failed)}"
        raise InputError(found, "at least one annotated file", "see the reason for each of them")
    for one in failed:
        log.warning("%s is in the report without an annotation: %s", one.name, one.reason)
    _require_one_model(samples)
    if len({sample.adapted for sample in samples}) > 1:
        for sample in samples:
            proba = sample.probabilities(np.arange(len(sample.obs)))
            sample.embedding = np.log(np.maximum(proba, LEAST_PROBABILITY))
    return samples, failed
