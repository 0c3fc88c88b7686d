"""A labelled file as training wants it: filtered, normalised, with a label index for every cell."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.check import require_cells_per_label, require_labels
from scperformer.config import TrainConfig
from scperformer.errors import InputError
from scperformer.preprocess import PREPARED, prepare_reference

log = logging.getLogger(__name__)

UNKNOWN_TERM = "unknown"  # what the CELLxGENE schema writes where there is no ontology term


@dataclass
class Reference:
    """A prepared reference: x CSR float32 N x G (ln(1 + cp10k)), labels int64 N, and what it was made of."""

    x: csr_matrix
    labels: np.ndarray
    label_names: list[str]
    ontology_term_ids: list[str]
    genes: list[str]
    summary: str


def make_reference(adata: AnnData, cfg: TrainConfig, path: str | Path) -> Reference:
    """Filter, normalise and label the cells of a reference.

    Raises
    ------
    InputError
        The label column is missing, its labels are too few or too rare, or the expression cannot be used.
    """
    require_labels(adata, cfg.label_key, path)  # before the long part
    prepared = prepare_reference(adata, cfg.data, cfg.source, cfg.input_kind, cfg.input_total, path=path)
    labels = require_labels(prepared, cfg.label_key, path)
    usable = usable_cells(labels, cfg, path)
    kept, labels = prepared[usable], labels[usable]
    label_names = sorted(labels.unique())
    x = csr_matrix(kept.X, dtype=np.float32)
    x.sort_indices()
    return Reference(
        x=x,
        labels=np.searchsorted(label_names, labels.to_numpy(str)).astype(np.int64),
        label_names=label_names,
        ontology_term_ids=ontology_terms(kept.obs, cfg.label_key, labels),
        genes=list(map(str, kept.var_names)),
        summary=describe_preparation(prepared.uns[PREPARED]),
    )


def usable_cells(labels: pd.Series, cfg: TrainConfig, path: str | Path) -> np.ndarray:
    """Which cells can be trained on: those with a label that enough cells have; boolean, N.

    Raises
    ------
    InputError
        A label is too rare and `data.rare_labels` is `error`, or fewer than two labels are left.
    """
    if cfg.data.rare_labels == "error":
        require_cells_per_label(labels, cfg.data.min_cells_per_label, path)
    counts = labels.value_counts()
    enough = counts.index[counts >= cfg.data.min_cells_per_label]
    usable = labels.isin(enough).to_numpy()
    if len(enough) < 2:
        raise InputError(
            f"{len(enough)} usable labels in obs['{cfg.label_key}'] of {path}",
            "two or more",
            "choose another label_key or add cells",
        )
    if not usable.all():
        log.warning(
            "%d cells are left out: %d without a label, %d with a label that fewer than %d cells have",
            (~usable).sum(),
            labels.isna().sum(),
            (~usable).sum() - labels.isna().sum(),
            cfg.data.min_cells_per_label,
        )
    return usable


def describe_preparation(mark: Mapping[str, Any]) -> str:
    """One sentence on what `prepare_reference` found and did, for the model card."""
    return (
        f"{mark['kind']} from {mark['source']}, as ln(1 + counts per {mark['target_sum']:,.0f}); "
        f"{mark['cells_dropped']} cells and {mark['genes_dropped']} genes dropped by the filters"
    )


def ontology_terms(obs: pd.DataFrame, label_key: str, labels: pd.Series) -> list[str]:
    """The id of each label, in sorted order, where `<label_key>_ontology_term_id` gives just one, else "unknown"."""
    column = f"{label_key}_ontology_term_id"
    if column not in obs:
        return [UNKNOWN_TERM] * labels.nunique()
    terms = obs[column].astype(str).groupby(labels.to_numpy(str), sort=True).unique()
    return [str(ids[0]) if len(ids) == 1 else UNKNOWN_TERM for ids in terms]
