"""Labelled cells for training: prepared, split, with a label index for each; in memory or on disk."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.config import TrainConfig
from scperformer.dataset.labels import Settled, require_labels, settle_rare_labels
from scperformer.dataset.on_disk import Stream, make_collection
from scperformer.dataset.preprocess import describe_input, prepare_reference
from scperformer.dataset.splits import (
    MAX_FIT_CELLS,
    MAX_VAL_CELLS,
    TEST,
    Split,
    split_cells,
    split_values,
    stratified_sample,
)
from scperformer.errors import InputError
from scperformer.expression import Findings
from scperformer.files import PREPARED, open_stored, reading

log = logging.getLogger(__name__)

UNKNOWN_TERM = "unknown"  # in the CELLxGENE schema: there is no ontology term


@dataclass
class Reference:
    """A prepared reference: x CSR float32 N x G (ln(1 + cp10k)), labels int64 N, and their origin."""

    x: csr_matrix
    labels: np.ndarray
    label_names: list[str]
    ontology_term_ids: list[str]
    genes: list[str]
    summary: str
    split: Split
    rare: Settled
    stream: Stream | None = None  # all training cells, if they stay on disk; x then holds a sample of them

    @property
    def counts(self) -> np.ndarray:
        """The number of training and validation cells of each label; int64."""
        if self.stream is None:
            return np.bincount(self.labels)
        labels = np.concatenate([self.stream.labels, self.labels[self.split.val]])
        return np.bincount(labels, minlength=len(self.label_names))

    @property
    def notes(self) -> list[str]:
        """Facts about the labels and the split for people, a sentence each."""
        return ([f"{self.rare.note}."] if self.rare.note else []) + self.split.notes


class _Labelled(NamedTuple):
    """The cells that can be used for training, and the label of each."""

    usable: np.ndarray  # boolean, over all cells
    labels: np.ndarray  # int64, of the usable cells
    names: list[str]
    terms: list[str]
    split: Split
    rare: Settled  # the treatment of rare labels


def _label(obs: pd.DataFrame, cfg: TrainConfig, path: str | Path, max_val: float = math.inf) -> _Labelled:
    """Settle the labels of cells that have passed the filters, and split them; fewer than two labels are refused.

    A drawn split has at most `max_val` validation cells.
    """
    rare = settle_rare_labels(require_labels(obs, cfg.label_key, path), cfg.data, path)
    usable = rare.labels.notna().to_numpy()
    if (num := rare.labels.nunique()) < 2:
        found = f"{num} usable label{'' if num == 1 else 's'} in obs['{cfg.label_key}'] of {path}"
        raise InputError(found, "two or more", "choose another label_key or add cells")
    if not usable.all():
        num_left_out = int((~usable).sum())
        num_rare = sum(rare.done["labels"].values()) if rare.done.get("policy") == "drop" else 0
        text = "%d cells are left out: %d without a label, %d of rare labels"
        log.warning(text, num_left_out, num_left_out - num_rare, num_rare)
    obs, labels = obs[usable], rare.labels[usable].to_numpy(str)
    names = sorted(set(labels.tolist()))
    terms, column = [UNKNOWN_TERM] * len(names), f"{cfg.label_key}_ontology_term_id"
    if column in obs:  # a label has a term if all its cells have the same; merged labels have none
        ids, into = obs[column].astype(str).groupby(labels, sort=True).unique(), rare.done.get("into")
        terms = [str(some[0]) if len(some) == 1 and name != into else UNKNOWN_TERM for name, some in ids.items()]
    values = split_values(obs, cfg.data, usable[usable], path)
    sides = None if values is None else values.to_numpy(str)
    numbers = np.searchsorted(names, labels).astype(np.int64)
    few = replace(cfg.data, val_fraction=min(cfg.data.val_fraction, max_val / len(numbers)))
    split = split_cells(numbers, names, sides, few, cfg.seed)
    return _Labelled(usable, numbers, names, terms, split, rare)


def _test_cells(obs: pd.DataFrame, cfg: TrainConfig, path: str | Path) -> np.ndarray | None:
    """Find the test cells, boolean over all cells; None if there are none. Refuses missing columns early."""
    labelled = require_labels(obs, cfg.label_key, path).notna().to_numpy()
    values = split_values(obs, cfg.data, labelled, path)
    if cfg.data.split != "column" or values is None or not (is_test := (values == TEST).to_numpy()).any():
        return None
    log.info("%d of %d cells are test cells: they are left out of the training", is_test.sum(), len(is_test))
    return is_test


def make_reference(adata: AnnData, cfg: TrainConfig, path: str | Path, findings: Findings | None = None) -> Reference:
    """Filter, normalise and label the cells of a reference, and split them into training and validation cells.

    Test cells (`data.split=column`) are removed before any filter, mean or fit. `findings` is the result of
    `detect_expression` for these cells, if it is known.
    """
    is_test = _test_cells(adata.obs, cfg, path)
    if is_test is not None:
        adata = adata[~is_test].copy()
    told = cfg.source, cfg.input_kind, cfg.input_total, cfg.input_base
    prepared = prepare_reference(adata, cfg.data, *told, path=path, findings=findings)
    cells = _label(prepared.obs, cfg, path)
    x = csr_matrix(prepared.X[cells.usable], dtype=np.float32)
    x.sort_indices()
    done = prepared.uns[PREPARED]
    dropped = f"{done['cells_dropped']} cells and {done['genes_dropped']} genes dropped by the filters"
    summary = f"{describe_input(done['kind'], done['source'], done['target_sum'])}; {dropped}"
    genes = list(map(str, prepared.var_names))
    return Reference(x, cells.labels, cells.names, cells.terms, genes, summary, cells.split, cells.rare)


def stream_reference(paths: Sequence[Path], cfg: TrainConfig) -> Reference:
    """As `make_reference`, for cells that stay on disk; only those for validation and linear fits are loaded."""
    path = paths[0] if len(paths) == 1 else f"the {len(paths)} files"
    wanted, columns = (cfg.label_key, f"{cfg.label_key}_ontology_term_id", cfg.data.split_key), []
    for file in paths:
        with reading(file):
            stored = open_stored(file)
            found = stored.columns([name for name in wanted if name is not None])
            # The error about a missing label column names the columns that there are.
            columns.append(found if cfg.label_key in found else stored.obs)
    collection = make_collection(paths, cfg, left_out=_test_cells(pd.concat(columns, ignore_index=True), cfg, path))
    kept = [table.iloc[part.kept] for table, part in zip(columns, collection.parts, strict=True)]
    by_column = cfg.data.split_key is not None
    cells = _label(pd.concat(kept, ignore_index=True), cfg, path, math.inf if by_column else MAX_VAL_CELLS)
    split = cells.split
    fit = split.train[stratified_sample(cells.labels[split.train], MAX_FIT_CELLS, cfg.seed)]
    val = split.val[stratified_sample(cells.labels[split.val], MAX_VAL_CELLS, cfg.seed)] if by_column else split.val
    notes = [f"Cells stayed on disk while the encoder learned from {len(split.train):,} of them."]
    if len(fit) < len(split.train):
        notes.append(f"Linear fits are on a sample of {len(fit):,} of these, each label in proportion.")
    if len(val) < len(split.val):
        notes.append(f"Validation is on a sample of {len(val):,} of {len(split.val):,} cells.")
    for note in notes:
        log.info("%s", note)
    held, numbers = np.concatenate([fit, val]), np.flatnonzero(cells.usable)
    kinds = dict.fromkeys(f"{part.findings.kind} from {part.findings.source}" for part in collection.parts)
    summary = f"{'; '.join(kinds)}, as ln(1 + counts per {cfg.data.target_sum:,.0f}); {len(paths)} files"
    loaded = Split(np.arange(len(fit)), np.arange(len(fit), len(held)), split.done, [*split.notes, *notes])
    stream = Stream(collection, numbers[split.train], cells.labels[split.train])
    x, labels, genes = collection.read(numbers[held]), cells.labels[held], collection.genes
    return Reference(x, labels, cells.names, cells.terms, genes, summary, loaded, cells.rare, stream)
