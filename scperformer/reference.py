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

from scperformer.config import TrainConfig
from scperformer.detect import Findings
from scperformer.errors import InputError
from scperformer.labels import Settled, require_labels, settle_rare_labels
from scperformer.preprocess import PREPARED, prepare_reference
from scperformer.splits import TEST, Split, split_cells, split_values

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
    split: Split
    rare: Settled

    @property
    def notes(self) -> list[str]:
        """What people should know about the labels and the split, a sentence each."""
        return ([f"{self.rare.note}."] if self.rare.note else []) + self.split.notes


def make_reference(adata: AnnData, cfg: TrainConfig, path: str | Path, findings: Findings | None = None) -> Reference:
    """Filter, normalise and label the cells of a reference, and part them into training and validation.

    Cells whose side is `test` (`data.split=column`) are taken away before anything else looks at them.

    Parameters
    ----------
    findings
        Of `detect`, where it has been asked about these cells before.

    Raises
    ------
    InputError
        The label column is missing, its labels are too few, rare or not to be parted as asked, or the expression
        cannot be used.
    """
    labels = require_labels(adata, cfg.label_key, path)  # before the long part
    values = split_values(adata.obs, cfg.data, labels.notna().to_numpy(), path)
    if cfg.data.split == "column":
        assert values is not None
        adata = without_test_cells(adata, values)
    told = cfg.source, cfg.input_kind, cfg.input_total, cfg.input_base
    prepared = prepare_reference(adata, cfg.data, *told, path=path, findings=findings)
    settled = settle_rare_labels(require_labels(prepared, cfg.label_key, path), cfg.data, path)
    usable = usable_cells(settled, cfg, path)
    kept, labels = prepared[usable], settled.labels[usable]
    label_names = sorted(labels.unique())
    indices = np.searchsorted(label_names, labels.to_numpy(str)).astype(np.int64)
    values = split_values(kept.obs, cfg.data, usable[usable], path)
    sides = None if values is None else values.to_numpy(str)
    x = csr_matrix(kept.X, dtype=np.float32)
    x.sort_indices()
    terms = ontology_terms(kept.obs, cfg.label_key, labels)
    return Reference(
        x=x,
        labels=indices,
        label_names=label_names,
        ontology_term_ids=[
            UNKNOWN_TERM if name == settled.done.get("into") else term
            for name, term in zip(label_names, terms, strict=True)
        ],
        genes=list(map(str, kept.var_names)),
        summary=describe_preparation(prepared.uns[PREPARED]),
        split=split_cells(indices, label_names, sides, cfg.data, cfg.seed),
        rare=settled,
    )


def without_test_cells(adata: AnnData, values: pd.Series) -> AnnData:
    """The cells whose side is not `test`, in their order."""
    is_test = (values == TEST).to_numpy()
    if not is_test.any():
        return adata
    log.info("%d of %d cells are test cells: nothing is learnt from them", is_test.sum(), len(is_test))
    return adata[~is_test].copy()


def usable_cells(settled: Settled, cfg: TrainConfig, path: str | Path) -> np.ndarray:
    """Which cells can be trained on: those with a label that is not left out; boolean, N.

    Raises
    ------
    InputError
        There are fewer than two labels.
    """
    usable = settled.labels.notna().to_numpy()
    if (num := settled.labels.nunique()) < 2:
        raise InputError(
            f"{num} usable label{'' if num == 1 else 's'} in obs['{cfg.label_key}'] of {path}",
            "two or more",
            "choose another label_key or add cells",
        )
    if not usable.all():
        num_left_out = int((~usable).sum())
        num_rare = sum(settled.done["labels"].values()) if settled.done.get("policy") == "drop" else 0
        unlabelled = num_left_out - num_rare
        log.warning("%d cells are left out: %d without a label, %d of rare ones", num_left_out, unlabelled, num_rare)
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
