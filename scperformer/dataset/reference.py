"""A labelled file as training wants it: filtered, normalised, with a label index for every cell."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.config import TrainConfig
from scperformer.dataset.collection import MAX_FIT_CELLS, MAX_VAL_CELLS, Stream, make_collection, stratified_rows
from scperformer.dataset.labels import Settled, require_labels, settle_rare_labels
from scperformer.dataset.preprocess import prepare_reference
from scperformer.dataset.splits import TEST, Split, split_cells, split_values
from scperformer.errors import InputError
from scperformer.expression import Findings
from scperformer.files import PREPARED, open_stored, reading

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
    stream: Stream | None = None  # all training cells, where they stay on disk; x then holds a sample of them

    @property
    def counts(self) -> np.ndarray:
        """How many cells each label has among those that are trained or validated on; int64."""
        if self.stream is None:
            return np.bincount(self.labels)
        held_out = self.labels[self.split.val]
        return np.bincount(np.concatenate([self.stream.labels, held_out]), minlength=len(self.label_names))

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
        ontology_term_ids=known_terms(label_names, terms, settled),
        genes=list(map(str, kept.var_names)),
        summary=describe_preparation(prepared.uns[PREPARED]),
        split=split_cells(indices, label_names, sides, cfg.data, cfg.seed),
        rare=settled,
    )


@dataclass
class Table:
    """What is known of cells that stay on disk, as far as training asks for it."""

    obs: pd.DataFrame


def stream_reference(paths: Sequence[Path], cfg: TrainConfig) -> Reference:
    """As `make_reference`, of cells that stay on disk; only those to validate and to fit on are loaded.

    Raises
    ------
    InputError
        As `make_reference` and `make_collection`.
    """
    where = paths[0] if len(paths) == 1 else f"the {len(paths)} files"
    columns = [
        cfg.label_key,
        f"{cfg.label_key}_ontology_term_id",
        *([cfg.data.split_key] if cfg.data.split_key else []),
    ]
    table = read_table(paths, columns)
    labels = require_labels(table, cfg.label_key, where)
    values = split_values(table.obs, cfg.data, labels.notna().to_numpy(), where)
    is_test = (values == TEST).to_numpy() if cfg.data.split == "column" and values is not None else None
    if is_test is not None and is_test.any():
        log.info("%d of %d cells are test cells: nothing is learnt from them", is_test.sum(), len(is_test))
    collection = make_collection(paths, cfg, left_out=is_test)
    begins = np.cumsum([0, *(part.findings.num_cells for part in collection.parts)])
    rows = np.concatenate([begin + part.kept for begin, part in zip(begins, collection.parts, strict=False)])
    table = Table(table.obs.iloc[rows].reset_index(drop=True))
    settled = settle_rare_labels(require_labels(table, cfg.label_key, where), cfg.data, where)
    usable = usable_cells(settled, cfg, where)
    obs, labels = table.obs[usable], settled.labels[usable]
    label_names = sorted(labels.unique())
    indices = np.searchsorted(label_names, labels.to_numpy(str)).astype(np.int64)
    values = split_values(obs, cfg.data, usable[usable], where)
    sides = None if values is None else values.to_numpy(str)
    enough = replace(cfg.data, val_fraction=min(cfg.data.val_fraction, MAX_VAL_CELLS / len(indices)))
    split = split_cells(indices, label_names, sides, enough if sides is None else cfg.data, cfg.seed)
    fit_rows = split.train[stratified_rows(indices[split.train], MAX_FIT_CELLS, cfg.seed)]
    val_rows = split.val
    if sides is not None:
        val_rows = val_rows[stratified_rows(indices[val_rows], MAX_VAL_CELLS, cfg.seed)]
    split.notes += held_notes(len(fit_rows), len(split.train), len(val_rows), len(split.val))
    held = np.concatenate([fit_rows, val_rows])
    cells = np.flatnonzero(usable)
    terms = ontology_terms(obs, cfg.label_key, labels)
    marks = [part.findings for part in collection.parts]
    return Reference(
        x=collection.read(cells[held]),
        labels=indices[held],
        label_names=label_names,
        ontology_term_ids=known_terms(label_names, terms, settled),
        genes=collection.genes,
        summary=f"{'; '.join(dict.fromkeys(f'{mark.kind} from {mark.source}' for mark in marks))}, "
        f"as ln(1 + counts per {cfg.data.target_sum:,.0f}); {len(begins)} files",
        split=replace(split, train=np.arange(len(fit_rows)), val=np.arange(len(fit_rows), len(held))),
        rare=settled,
        stream=Stream(collection, cells[split.train], indices[split.train]),
    )


def read_table(paths: Sequence[Path], columns: Sequence[str]) -> Table:
    """Some columns of obs of several files, one below the other."""
    parts = []
    for path in paths:
        with reading(path):
            cells = open_stored(path)
            found = cells.columns(columns)
            # Whoever asks for a label that is not there is to be told what there is.
            parts.append(found if columns[0] in found else cells.obs)
    return Table(pd.concat(parts, ignore_index=True))


def held_notes(num_fit: int, num_train: int, num_val: int, num_held_out: int) -> list[str]:
    """What is not done with all cells where they stay on disk, a sentence each; logged."""
    notes = [f"Cells stayed on disk while the encoder learned from {num_train:,} of them."]
    if num_fit < num_train:
        notes.append(f"Linear fits are on a sample of {num_fit:,} of these, each label in proportion.")
    if num_val < num_held_out:
        notes.append(f"{num_val:,} of {num_held_out:,} validation cells are looked at.")
    for note in notes:
        log.info("%s", note)
    return notes


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


def known_terms(label_names: list[str], terms: list[str], settled: Settled) -> list[str]:
    """The id of each label; a label into which others were merged has none."""
    into = settled.done.get("into")
    return [UNKNOWN_TERM if name == into else term for name, term in zip(label_names, terms, strict=True)]


def ontology_terms(obs: pd.DataFrame, label_key: str, labels: pd.Series) -> list[str]:
    """The id of each label, in sorted order, where `<label_key>_ontology_term_id` gives just one, else "unknown"."""
    column = f"{label_key}_ontology_term_id"
    if column not in obs:
        return [UNKNOWN_TERM] * labels.nunique()
    terms = obs[column].astype(str).groupby(labels.to_numpy(str), sort=True).unique()
    return [str(ids[0]) if len(ids) == 1 else UNKNOWN_TERM for ids in terms]
