"""Labelled cells for training: prepared, split, with a label index for each; in memory or on disk."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.cells.corpus import read_genes
from scperformer.cells.on_disk import Collection, Sample, Stream, make_collection, stored_bytes
from scperformer.cells.reference_labels import (
    TERM_ENDING,
    LabelSelection,
    Terms,
    require_labels,
    settle_rare_labels,
    settle_terms,
)
from scperformer.cells.splits import (
    MAX_FIT_CELLS,
    MAX_VAL_CELLS,
    TEST,
    Split,
    split_cells,
    split_values,
    stratified_sample,
)
from scperformer.config import TrainConfig
from scperformer.files import PREPARED_KEY, open_stored, read_cells, reading
from scperformer.genes import find_panel

log = logging.getLogger(__name__)


@dataclass
class Reference:
    """A prepared reference: x CSR float32 N x G (ln(1 + cp10k)), labels int64 N, and their origin."""

    x: csr_matrix
    labels: np.ndarray
    label_names: list[str]
    terms: Terms
    genes: list[str]
    summary: str
    split: Split
    rare: LabelSelection
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


def _label(
    obs: pd.DataFrame, cfg: TrainConfig, path: str | Path, max_val: float
) -> tuple[np.ndarray, np.ndarray, list[str], Terms, Split, LabelSelection]:
    """Settle the labels of cells that have passed the filters, and split them with at most `max_val` to validate on.

    Returns which of the cells are usable (boolean); of the usable ones the labels (int64), their names and ontology
    terms, and the split; and the treatment of rare labels.
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
    obs = obs[usable]
    labels = rare.labels[usable].to_numpy(str)
    names = sorted(set(labels.tolist()))
    terms = settle_terms(obs, labels, cfg, path, merged=rare.done.get("into"))
    values = split_values(obs, cfg.data, usable[usable], path)
    sides = None if values is None else values.to_numpy(str)
    numbers = np.searchsorted(names, labels).astype(np.int64)
    few = replace(cfg.data, val_fraction=min(cfg.data.val_fraction, max_val / len(numbers)))
    split = split_cells(numbers, names, sides, few, cfg.seed)
    return usable, numbers, names, terms, split, rare


def _test_cells(obs: pd.DataFrame, cfg: TrainConfig, path: str | Path) -> np.ndarray | None:
    """Find the test cells, boolean over all cells; None if there are none. Refuses missing columns early."""
    labelled = require_labels(obs, cfg.label_key, path).notna().to_numpy()
    values = split_values(obs, cfg.data, labelled, path)
    if cfg.data.split != "column" or values is None or not (is_test := (values == TEST).to_numpy()).any():
        return None
    log.info("%d of %d cells are test cells: they are left out of the training", is_test.sum(), len(is_test))
    return is_test


def _of_panel(collection: Collection, path: str, species: str) -> Collection:
    """Leave the genes of a panel alone, which a text file names; cells are then normalised over these."""
    chosen = find_panel(read_genes(path), collection.genes, "reference", species=species, path=path)
    genes = [gene for gene, is_chosen in zip(collection.genes, chosen, strict=True) if is_chosen]
    log.info("%s: the model has its %d genes alone, and cells are normalised over these", path, len(genes))
    return replace(collection.with_columns(np.where(chosen, np.cumsum(chosen) - 1, -1), genes), own_totals=True)


@progress("preparing the reference")
def make_reference(source: Sample | Sequence[Path], cfg: TrainConfig) -> Reference:
    """Filter, normalise and label cells, and split them into training and validation cells.

    Test cells (`data.split=column`) have no part in any filter, mean or fit. The cells of files stay on disk; only
    those for validation and linear fits are loaded.
    """
    tables = []
    first = source.path if isinstance(source, Sample) else source[0]
    sources: Sequence[Path | Sample] = [source] if isinstance(source, Sample) else source
    path = first if len(sources) == 1 else f"the {len(sources)} files"
    columns = cfg.label_key, *cfg.label_keys, cfg.ontology_key or f"{cfg.label_key}{TERM_ENDING}", cfg.data.split_key
    wanted = list(dict.fromkeys(name for name in columns if name is not None))
    for file in sources:
        if isinstance(file, Sample):
            tables.append(file.adata.obs)
            continue
        with reading(file):
            stored = open_stored(file)
            found = stored.columns(wanted)
            # The error about a missing label column names the columns that there are.
            tables.append(found if cfg.label_key in found else stored.obs)
    is_test = _test_cells(pd.concat(tables, ignore_index=True), cfg, path)
    if is_test is not None and isinstance(source, Sample):  # not even the kind of the values depends on test cells
        return make_reference(replace(source, adata=source.adata[~is_test].copy()), cfg)
    collection = make_collection(sources, cfg, left_out=is_test)
    kept = [table.iloc[part.kept] for table, part in zip(tables, collection.parts, strict=True)]
    obs = pd.concat(kept, ignore_index=True)
    by_column = cfg.data.split_key is not None
    most = math.inf if isinstance(source, Sample) or by_column else MAX_VAL_CELLS
    usable, labels, names, terms, split, rare = _label(obs, cfg, path, most)
    numbers = np.flatnonzero(usable)
    num_left = len(collection.genes)
    findings = collection.parts[0].findings
    panel = ""
    if cfg.conditions.genes is not None:
        collection = _of_panel(collection, cfg.conditions.genes, cfg.species)
        panel = f"; {len(collection.genes)} genes of {Path(cfg.conditions.genes).name} alone, and totals over these"
    genes = collection.genes
    summary = "; ".join(dict.fromkeys(part.summary for part in collection.parts))
    if isinstance(source, Sample):
        num_cells = findings.num_cells - len(collection)
        num_genes = findings.num_genes - num_left
        record = source.adata.uns[PREPARED_KEY] if collection.parts[0].is_prepared else {}
        if {"kind", "source", "cells_dropped", "genes_dropped"} <= set(
            record
        ):  # what `preprocess` had read and dropped
            summary = f"{record['kind']} from {record['source']}, as ln(1 + counts per {cfg.data.target_sum:,.0f})"
            num_cells = record["cells_dropped"]
            num_genes = record["genes_dropped"]
        summary += f"; {num_cells} cells and {num_genes} genes dropped by the filters{panel}"
        return Reference(collection.read(numbers), labels, names, terms, genes, summary, split, rare)
    fit = split.train[stratified_sample(labels[split.train], MAX_FIT_CELLS, cfg.seed)]
    val = split.val[stratified_sample(labels[split.val], MAX_VAL_CELLS, cfg.seed)] if by_column else split.val
    notes = [f"Cells stayed on disk while the encoder learned from {len(split.train):,} of them."]
    if len(fit) < len(split.train):
        notes.append(f"Linear fits are on a sample of {len(fit):,} of these, each label in proportion.")
    if len(val) < len(split.val):
        notes.append(f"Validation is on a sample of {len(val):,} of {len(split.val):,} cells.")
    for note in notes:
        log.info("%s", note)
    held = np.concatenate([fit, val])
    loaded = Split(np.arange(len(fit)), np.arange(len(fit), len(held)), split.done, [*split.notes, *notes])
    stream = Stream(collection, numbers[split.train], labels[split.train])
    summary = f"{summary}; {len(sources)} files{panel}"
    x = collection.read(numbers[held])
    return Reference(x, labels[held], names, terms, genes, summary, loaded, rare, stream)


def read_unlabelled(reference: Reference, cfg: TrainConfig) -> csr_matrix | None:
    """Read cells of `cfg.unlabelled`, 20,000 at most, with the genes of a reference; None without files.

    Of more cells as many are drawn at random, the same share of each file. Files that can stay on disk are read block
    by block. Cells are normalised like the reference's, but not filtered by `data.min_genes`: a panel has few genes. A
    file with fewer than half of the genes is refused: for the vectors of genes, absent ones count as not expressed.
    """
    if not cfg.unlabelled:
        return None
    files = [Path(name) for name in cfg.unlabelled]
    on_disk = [stored_bytes(file) is not None for file in files]
    sources = [
        file if is_on_disk else Sample(read_cells(file, cfg.orientation), file)
        for file, is_on_disk in zip(files, on_disk, strict=True)
    ]
    unfiltered = replace(cfg, data=replace(cfg.data, min_genes=0))
    collection = make_collection(sources, unfiltered, reference.genes, min_shared=1)
    collection = replace(collection, own_totals=cfg.conditions.genes is not None)
    cells = stratified_sample(collection.file_of_cell, MAX_FIT_CELLS, cfg.seed)
    num_genes = len(reference.genes)
    of_file = collection.file_of_cell[cells]
    for number, (file, mapping) in enumerate(zip(files, collection.maps, strict=True)):
        num_shared = len(np.unique(mapping.target[mapping.target >= 0]))
        if num_shared < num_genes / 2:
            found = f"{num_shared} of the {num_genes} genes of the reference in unlabelled file {file}"
            raise InputError(found, "half of them", "leave it out, or give cells measured with the same genes")
        text = "%s: vectors of genes are also learned from %d of its %d cells, with %d of the genes"
        log.info(text, file, (of_file == number).sum(), len(collection.parts[number].kept), num_shared)
    return collection.read(cells)
