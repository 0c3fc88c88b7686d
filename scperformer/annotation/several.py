"""Several models on the same cells: the annotation of each under a prefix of its own, and how often they agree.

The first model has the usual prefix, each other one the prefix and its name. Two labels are the same if they have the
same name or the same Cell Ontology id.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem, write_elem

from scperformer.annotation.annotate import without_slashes
from scperformer.annotation.columns import AGREEMENT, OBSM
from scperformer.base.errors import InputError
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.writing import hdf5_to_write
from scperformer.labels.ontology import UNKNOWN_TERM
from scperformer.model.load import Model

log = logging.getLogger(__name__)


def keys_of(models: list[Model], key: str) -> list[str]:
    """Return the prefix of each model; refuse two models of one name."""
    names = [model.saved.name for model in models]
    for place, name in enumerate(names):
        if name in names[:place]:
            remedy = "import one of them with another name=..."
            raise InputError(f"two models of the name '{name}' in model_path", "models of different names", remedy)
    return [key, *(f"{key}_{name}" for name in without_slashes(names[1:]))]


def add_annotation(target: Path, source: Path, key: str) -> None:
    """Copy the annotation with a prefix from an h5ad file into another one of the same cells."""
    with open_hdf5(source) as theirs, hdf5_to_write(target, "r+") as ours:
        new = [name for name in theirs["obs"].attrs["column-order"] if str(name).startswith(f"{key}_")]
        entries = {"obs": new, "obsm": [name.format(key) for name in OBSM], "uns": [key]}
        for place, names in entries.items():
            for name in names:
                if name not in theirs[place]:
                    continue
                if name in ours[place]:
                    del ours[place][name]
                theirs.copy(theirs[place][name], ours[place], name)
        order = [name for name in ours["obs"].attrs["column-order"] if name not in new]
        ours["obs"].attrs["column-order"] = [*order, *new]


def agreement(models: list[Model], keys: list[str], labels: list[pd.Series]) -> tuple[np.ndarray, dict[str, Any]]:
    """Compare the labels that models give the same N cells; log how often each agrees with the first.

    Returns
    -------
    The share of the other models that give each cell the label of the first, float32 N; and a record: `names` and
    `keys` of the models, and `agreement`, the share of cells with the same label for each pair of models.
    """
    same = np.ones((len(models), len(models)))
    with_first = np.zeros(len(labels[0]), dtype=np.float32)
    for one in range(len(models)):
        for other in range(one):
            is_same = _same_labels(models[one], labels[one], models[other], labels[other])
            same[one, other] = same[other, one] = is_same.mean()
            if other == 0:
                with_first += is_same
                text = "%s and %s give %.1f %% of the cells the same label"
                log.info(text, models[0].saved.name, models[one].saved.name, 100 * same[one, 0])
    names = np.array([model.saved.name for model in models], dtype=object)
    record = {"names": names, "keys": np.array(keys, dtype=object), "agreement": same}
    return with_first / (len(models) - 1), record


def _same_labels(one: Model, labels: pd.Series, other: Model, others: pd.Series) -> np.ndarray:
    """Return whether two models give each cell the same label, by name or by Cell Ontology id."""
    terms = dict(zip(one.saved.labels, one.saved.ontology_term_ids, strict=True))
    other_terms = dict(zip(other.saved.labels, other.saved.ontology_term_ids, strict=True))
    same_name = labels.astype(str).to_numpy() == others.astype(str).to_numpy()
    term = labels.astype(str).map(terms).to_numpy()
    other_term = others.astype(str).map(other_terms).to_numpy()
    return same_name | ((term == other_term) & (term != UNKNOWN_TERM))


def record_in_memory(adata: AnnData, models: list[Model], keys: list[str]) -> None:
    """Add the agreement of models to cells in memory, beside the annotation by the first of them."""
    share, record = agreement(models, keys, [adata.obs[f"{key}_label"] for key in keys])
    adata.obs[f"{keys[0]}_{AGREEMENT}"] = share
    adata.uns[keys[0]]["models"] = record


def record_in_file(path: Path, models: list[Model], keys: list[str]) -> None:
    """Add the agreement of models to an h5ad file, beside the annotation by the first of them."""
    with hdf5_to_write(path, "r+") as file:
        obs = file["obs"]
        labels = [pd.Series(read_elem(obs[f"{key}_label"])) for key in keys]
        share, record = agreement(models, keys, labels)
        name = f"{keys[0]}_{AGREEMENT}"
        write_elem(obs, name, share)
        obs.attrs["column-order"] = [*(column for column in obs.attrs["column-order"] if column != name), name]
        write_elem(file[f"uns/{keys[0]}"], "models", record)
