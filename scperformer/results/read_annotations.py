"""Annotations from the h5ad files that `predict` wrote, read without the expression, or from cells in memory."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem
from natsort import natsorted

from scperformer.adaptation.record import ModelRecord, Record
from scperformer.annotation.columns import REQUIRED_COLUMNS, UMAP
from scperformer.base.errors import InputError, one_line
from scperformer.base.inputs import sha256
from scperformer.base.outputs import FAILED_SUFFIX
from scperformer.base.progress import progress
from scperformer.cells.opened import IN_MEMORY
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import require_readable
from scperformer.io.safety import reading
from scperformer.labels.ontology import packaged_ontology
from scperformer.labels.tree import NO_CALL, LabelTree
from scperformer.model.content import INFO
from scperformer.model.folder import PACKAGED_MODEL, imported_models, library_folder

log = logging.getLogger(__name__)

MAX_REASON = 5000  # characters
NUMBER_COLUMNS = ("confidence", "margin", "novelty", "call_confidence")  # of obs and details
# endings that the steps add to the name of a sample
SUFFIXES = (FAILED_SUFFIX, ".h5ad", ".curated", ".annotated", ".prepared")


@dataclass(kw_only=True)
class Annotated:
    """One annotated sample of N cells: a file, without its expression, or cells in memory."""

    name: str  # name of the sample, unique among the files read together
    path: Path
    key: str  # prefix of the annotation
    # N rows: all columns of obs, the details of the annotation (as KEY_margin), and KEY_unknown
    obs: pd.DataFrame
    umap: np.ndarray | None  # N x 2, float32, obsm["X_umap"]; None without
    record: Record  # uns[key]
    cells: AnnData | None = None  # the cells in memory, with their expression; None for a file

    def column(self, name: str) -> pd.Series:
        """Return the annotation column `obs["KEY_name"]`."""
        return self.obs[f"{self.key}_{name}"]

    def flag(self, name: str) -> np.ndarray | None:
        """Return the flag `obs["KEY_name"]` of each cell; None if the sample does not have it."""
        column = self.obs.get(f"{self.key}_{name}")
        return None if column is None or column.dtype != bool else column.to_numpy(bool)

    @property
    def labels(self) -> np.ndarray:
        """The label that the model gives each cell, N strings."""
        return as_text(self.column("label"))

    @property
    def model_labels(self) -> list[str]:
        """The labels of the model."""
        return list(map(str, self.record.model.labels))

    @property
    def parents(self) -> dict[str, str]:
        """The parent of each node of the label tree, "" for the highest ones; none without a tree."""
        tree = self.record.tree
        return (
            {}
            if tree is None
            else dict(zip(map(str, tree.nodes), map(str, tree.parents), strict=True))
        )

    @property
    def terms(self) -> dict[str, str]:
        """The Cell Ontology ids of labels and their parents, of those that have one."""
        tree = self.record.tree
        pairs = [] if tree is None else zip(tree.nodes, tree.ontology_term_ids, strict=True)
        return {
            str(node): str(term) for node, term in pairs if str(term) in packaged_ontology().names
        }

    @property
    def model_id(self) -> str:
        """Name and short hash of the model that annotated the sample."""
        return f"model {self.record.model.name} ({self.record.model.hash[:12]})"


def as_text(values: pd.Series) -> np.ndarray:
    """Return a column as N strings; missing values become "nan"."""
    return values.astype(object).astype(str).to_numpy(object)


def cell_table(samples: Sequence[Annotated]) -> pd.DataFrame:
    """Return a table of the cells of all samples: sample, label, call, confidence, unknown.

    Other columns are added if all samples have them: `baseline` (the label by logistic regression) and `novelty`, which
    imported models may lack; `set` (labels joined by |) and `set_size`; `cluster_label`. `looks_like`, what cells of
    clusters to check look like, is "" for other cells.
    """
    texts = ("label", "call", "baseline_label", "set", "cluster_label")
    names = [*texts, "confidence", "unknown", "set_size", "novelty"]
    names = [
        name for name in names if all(f"{sample.key}_{name}" in sample.obs for sample in samples)
    ]
    tables = []
    for sample in samples:
        columns = {name: sample.column(name) for name in names}
        values = {
            name: as_text(column) if name in texts else column.to_numpy()
            for name, column in columns.items()
        }
        looks_like = sample.obs.get(f"{sample.key}_looks_like")
        values["looks_like"] = (
            "" if looks_like is None else as_text(looks_like.astype(object).fillna(""))
        )
        tables.append(pd.DataFrame({"sample": sample.name} | values))
    return pd.concat(tables, ignore_index=True).rename(columns={"baseline_label": "baseline"})


def texts_of(samples: Sequence[Annotated], column: str) -> np.ndarray:
    """Return a column of obs of the cells of all samples, as N strings."""
    return np.concatenate([as_text(sample.obs[column]) for sample in samples])


def all_labels(samples: Sequence[Annotated]) -> list[str]:
    """Return the labels of the model of the samples; with several tissues, the labels of all, each once."""
    return list(dict.fromkeys(label for sample in samples for label in sample.model_labels))


def common_tree(samples: Sequence[Annotated]) -> LabelTree | None:
    """Return the label tree that all samples share; None if the model has none, or the trees or the labels differ."""
    parents = samples[0].parents
    labels = all_labels(samples)
    if (
        not parents
        or any(sample.parents != parents for sample in samples)
        or labels != samples[0].model_labels
    ):
        return None
    with reading(samples[0].path):
        return LabelTree(labels, {node: parent for node, parent in parents.items() if parent})


def names_of_samples(paths: Sequence[Path]) -> list[str]:
    """Return a short unique name for each file: `sample` for `sample.annotated.h5ad`, or more of the path."""
    files = [path.resolve() for path in paths]
    stems = [file.name for file in files]
    for suffix in SUFFIXES:
        stems = [stem.removesuffix(suffix) or stem for stem in stems]
    in_folders = [f"{file.parent.name}/{stem}" for file, stem in zip(files, stems, strict=True)]
    for names in (stems, in_folders, [file.name for file in files], [str(file) for file in files]):
        if len(set(names)) == len(names):
            return names
    repeated = next(path for place, path in enumerate(paths) if files[place] in files[:place])
    raise InputError(
        "file-twice", f"{repeated} is given twice", "each file once", "remove the repeated file"
    )


def of_cells(adata: AnnData, key: str) -> Annotated:
    """Return the annotation of cells in memory."""
    parts = {"obs": adata.obs, "uns": adata.uns.get(key)}
    parts |= {"details": adata.obsm.get(f"{key}_details"), "umap": adata.obsm.get(UMAP)}
    return _annotated("cells", Path(IN_MEMORY), key, parts, adata)


def _annotated(
    name: str, path: Path, key: str, parts: Mapping[str, Any], cells: AnnData | None = None
) -> Annotated:
    """Return an annotation of the `parts` of a file or of `cells`; refuse one that is not `predict`'s."""
    obs, uns = parts["obs"], parts.get("uns")
    columns = [str(column) for column in obs.columns] if isinstance(obs, pd.DataFrame) else []
    required = [f"{key}_{column}" for column in REQUIRED_COLUMNS]
    missing = [f"obs column '{column}'" for column in required if column not in columns]
    if missing or uns is None:
        missing.append(f"uns['{key}']")
        others = [column.removesuffix("_call") for column in columns if column.endswith("_call")]
        remedy = f"run 'scperformer predict {path}' first and give the file that it writes"
        if cells is not None:
            remedy = "call scperformer.annotate first"
        if other := next((other for other in others if f"{other}_confidence" in columns), None):
            remedy = f"add key_added={other}, the key of the annotation in this file"
        raise InputError("not-annotated", f"no {missing[0]} in {path}", "an annotated file", remedy)
    obs = with_details(obs, parts.get("details"), key)
    try:
        for column in (f"{key}_{name}" for name in NUMBER_COLUMNS):
            if column in obs and obs[column].dtype.kind != "f":
                raise ValueError(f"obs column '{column}' is of type {obs[column].dtype}")
        record = Record.from_uns(uns, key)
    except ValueError as error:
        remedy = f"annotate its cells again: scperformer predict ... key_added={key}"
        expected = "an annotation as predict writes it"
        raise InputError("damaged-annotation", f"{error} in {path}", expected, remedy) from error
    umap: Any = parts.get("umap")
    if (
        getattr(umap, "ndim", 0) != 2
        or umap.shape[1] != 2
        or not np.isfinite(np.asarray(umap, np.float32)).all()
    ):
        umap = None
    xy = None if umap is None else np.asarray(umap, np.float32)
    return Annotated(name=name, path=path, key=key, obs=obs, umap=xy, record=record, cells=cells)


def with_details(obs: pd.DataFrame, details: Any, key: str) -> pd.DataFrame:
    """Return obs with the details of its annotation as columns, and with whether each cell is unknown."""
    if isinstance(details, pd.DataFrame) and len(details) == len(obs):
        obs = obs.assign(**{f"{key}_{name}": column.array for name, column in details.items()})
    if f"{key}_call" in obs:
        obs = obs.assign(**{f"{key}_unknown": as_text(obs[f"{key}_call"]) == NO_CALL})
    return obs


def find_model(model: ModelRecord) -> Path | None:
    """Return the folder of the model with the recorded hash; without any, the recorded folder if it exists."""
    recorded = Path(model.path).expanduser()
    for folder in (recorded, PACKAGED_MODEL, *imported_models(library_folder())):
        if (folder / INFO).is_file() and sha256(folder / INFO) == model.hash:
            return folder
    return recorded if recorded.is_dir() else None


@dataclass(kw_only=True)
class Failed:
    """A sample without a readable annotation, and the reason."""

    name: str
    reason: str


def _read(path: Path, name: str, key: str) -> Annotated:
    if (kind := require_readable(path)) != "h5ad":
        remedy = "give the annotation that predict writes as .h5ad, which has the record of its model, too"
        raise InputError("not-h5ad", f"{path} is of the kind '{kind}'", "an h5ad file", remedy)
    with reading(path), open_hdf5(path) as file:
        places = {"uns": f"uns/{key}", "details": f"obsm/{key}_details", "umap": f"obsm/{UMAP}"}
        parts = {name: read_elem(file[place]) for name, place in places.items() if place in file}
        parts["obs"] = read_elem(file["obs"])
    return _annotated(name, path, key, parts)


def _reason_of(path: Path, error: InputError) -> str:
    """Return why a sample has no annotation: the error that `predict keep_going` wrote in its place, or `error`."""
    sample = path.name.removesuffix(".h5ad").removesuffix(".annotated")
    record = path if path.name.endswith(FAILED_SUFFIX) else path.parent / f"{sample}{FAILED_SUFFIX}"
    if (record != path and path.exists()) or not record.is_file():
        return str(error)
    try:
        return one_line(str(json.loads(record.read_text(encoding="utf-8"))["error"]))[:MAX_REASON]
    except (OSError, ValueError, KeyError, TypeError) as damage:
        log.info("%s cannot be read: %s", record, damage)
        return str(error)


def read_annotated(
    paths: Sequence[str], key: str, failed: list[Failed] | None = None
) -> list[Annotated]:
    """Read the annotations with the prefix `key` from h5ad files.

    Files that cannot be read or are not annotated are refused. With a list `failed`, they are added to it with the
    reason, and the samples are in the natural order of their names. Annotations by different models are refused.
    """
    samples: list[Annotated] = []
    errors: list[InputError] = []
    files = [Path(path) for path in paths]
    pairs = list(zip(names_of_samples(files), files, strict=True))
    log.info("reading %d annotated file%s", len(paths), "" if len(paths) == 1 else "s")
    with progress("reading annotations", total=len(files), unit="samples") as shown:
        for name, path in pairs if failed is None else natsorted(pairs, key=lambda pair: pair[0]):
            try:
                samples.append(_read(path, name, key))
            except InputError as error:
                if failed is None:
                    raise
                errors.append(error)
                failed.append(Failed(name=name, reason=_reason_of(path, error)))
            shown.update()
    if not samples and failed:
        if len(failed) == 1:
            raise errors[0]
        reasons = "; ".join(f"{sample.name}: {sample.reason}" for sample in failed)
        found = f"none of {len(failed)} files is annotated: {reasons}"
        raise InputError(
            "none-annotated", found, "at least one annotated file", "see the reason for each file"
        )
    for left_out in failed or ():
        log.warning("%s is in the report without an annotation: %s", left_out.name, left_out.reason)
    first = samples[0]
    for sample in samples[1:]:
        if sample.record.model.hash != first.record.model.hash:
            found = f"{first.path} was annotated by {first.model_id}, {sample.path} by {sample.model_id}"
            remedy = "annotate them again with the same model_path, or give one file at a time"
            raise InputError("several-models", found, "files annotated by one model", remedy)
    return samples
