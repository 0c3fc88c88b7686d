"""Unlabelled cells for pretraining: cells of all files, normalised, over one list of genes; in memory or on disk."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer.config import PretrainConfig
from scperformer.dataset.on_disk import Stream, make_collection
from scperformer.dataset.preprocess import describe_input, prepare_reference
from scperformer.dataset.splits import MAX_FIT_CELLS, MAX_VAL_CELLS, stratified_sample
from scperformer.errors import InputError
from scperformer.expression import align_normalised
from scperformer.files import PREPARED, checksum
from scperformer.genes import gene_maps, require_unique

log = logging.getLogger(__name__)

MIN_CELLS = 10  # with fewer cells neither training nor validation means anything
MIN_EXPRESSED = 2  # genes of a cell: one to mask and one to see


@dataclass
class Sample:
    """A file of the corpus: its cells, its path and its SHA-256 ("" for cells in memory)."""

    adata: AnnData
    path: Path
    checksum: str


@dataclass
class Corpus:
    """Cells of all files: x CSR float32 N x G (ln(1 + cp10k)), and where they come from."""

    x: csr_matrix
    genes: list[str]
    file_of_cell: np.ndarray  # int64, N
    files: list[dict[str, Any]]  # name, sha256, num_cells, input
    split: tuple[np.ndarray, np.ndarray]  # rows to train and to validate on
    stream: Stream | None = None  # all training cells, if they stay on disk; x then holds a sample of them

    @property
    def num_cells(self) -> int:
        """The number of training and validation cells."""
        return self.x.shape[0] if self.stream is None else len(self.stream.cells) + len(self.split[1])


def split_by_file(file_of_cell: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split rows for training and validation: the same share of each file, but at least one cell on each side."""
    rng = np.random.default_rng(seed)
    is_val = np.zeros(len(file_of_cell), dtype=bool)
    for file in np.unique(file_of_cell):
        cells = rng.permutation(np.flatnonzero(file_of_cell == file))
        is_val[cells[: round(fraction * len(cells))]] = True
    if is_val.all() or not is_val.any():
        is_val[rng.integers(len(is_val))] ^= True
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def _require_cells(num_cells: int, num_files: int) -> None:
    if num_cells < MIN_CELLS:
        found = f"{num_cells} usable cells in {num_files} file{'s' if num_files > 1 else ''}"
        raise InputError(found, f"at least {MIN_CELLS} to pretrain on", "add files, or lower data.min_genes")


def make_corpus(samples: Iterable[Sample], cfg: PretrainConfig, vocabulary: Sequence[str] | None = None) -> Corpus:
    """Filter and normalise the cells of files, each as `train` would, and align them to one list of genes.

    Parameters
    ----------
    samples
        Read one after the other, so that only the prepared cells of all of them are in memory at once.
    vocabulary
        The genes of the encoder; None: those that at least `data.min_cells` cells of the corpus express, in the order
        in which the files have them.

    Raises
    ------
    InputError
        A file cannot be used, the files name genes by different kinds of id, or too little is left.
    """
    parts, tables, files = [], [], []
    every_gene = replace(cfg.data, min_cells=0)  # a gene that is rare in one file may be common in the next
    told = cfg.source, cfg.input_kind, cfg.input_total, cfg.input_base
    for sample in samples:
        prepared = prepare_reference(sample.adata, every_gene, *told, path=sample.path)
        parts.append(csr_matrix(prepared.X, dtype=np.float32))
        tables.append(prepared.var)
        done = prepared.uns[PREPARED]
        summary = describe_input(done["kind"], done["source"], done["target_sum"])
        names = {"name": sample.path.name, "sha256": sample.checksum}
        files.append({**names, "num_cells": prepared.n_obs, "input": summary})
        log.info("%s: %d cells, %d genes", sample.path, prepared.n_obs, prepared.n_vars)
    genes, maps = gene_maps(tables, [file["name"] for file in files], vocabulary, cfg.species)
    aligned = [align_normalised(x, mapping, len(genes)) for x, mapping in zip(parts, maps, strict=True)]
    x = csr_matrix(sparse.vstack(aligned, format="csr"))
    if vocabulary is None:
        common = np.bincount(x.indices, minlength=x.shape[1]) >= max(cfg.data.min_cells, 1)
        if not common.any():
            found = f"no gene that {cfg.data.min_cells} of the {x.shape[0]} cells of the corpus express"
            raise InputError(found, "at least some genes", "lower data.min_cells or add cells")
        x, genes = x[:, common], [name for name, is_common in zip(genes, common, strict=True) if is_common]
    usable = np.diff(x.indptr) >= MIN_EXPRESSED
    if not usable.all():
        log.warning("%d cells that express fewer than %d of the genes are left out", (~usable).sum(), MIN_EXPRESSED)
    _require_cells(int(usable.sum()), len(files))
    x = x[usable]
    x.sort_indices()
    file_of_cell = np.repeat(np.arange(len(parts)), [part.shape[0] for part in parts])[usable]
    return Corpus(x, genes, file_of_cell, files, split_by_file(file_of_cell, cfg.data.val_fraction, cfg.seed))


def stream_corpus(paths: Sequence[Path], cfg: PretrainConfig, vocabulary: Sequence[str] | None = None) -> Corpus:
    """As `make_corpus`, for cells that stay on disk; validation cells and a sample of the others are loaded."""
    at_least_one = replace(cfg, data=replace(cfg.data, min_cells=max(1, cfg.data.min_cells)))
    collection = make_collection(paths, at_least_one, vocabulary, min_shared=MIN_EXPRESSED)
    _require_cells(len(collection), len(paths))
    file_of_cell = collection.file_of_cell
    train, val = split_by_file(file_of_cell, min(cfg.data.val_fraction, MAX_VAL_CELLS / len(file_of_cell)), cfg.seed)
    sample = train[stratified_sample(file_of_cell[train], MAX_FIT_CELLS, cfg.seed)]
    log.info("statistics of genes are computed on a random sample of %d of %d training cells", len(sample), len(train))
    held = np.concatenate([sample, val])
    files = []
    for part in collection.parts:
        summary = describe_input(part.findings.kind, part.findings.source, cfg.data.target_sum)
        names = {"name": part.path.name, "sha256": checksum(part.path)}
        files.append({**names, "num_cells": len(part.kept), "input": summary})
    rows = np.arange(len(sample)), np.arange(len(sample), len(held))
    stream = Stream(collection, train, file_of_cell[train])
    return Corpus(collection.read(held), collection.genes, file_of_cell[held], files, rows, stream)


def read_genes(path: str | Path) -> list[str]:
    """Read gene ids from a text file, one in each line; empty lines are ignored."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
        genes = [line.strip() for line in lines if line.strip()]
        wrong = "no genes" if not genes else "several columns" if any("\t" in gene for gene in genes) else None
    except OSError as error:
        wrong = f"no readable file ({error.strerror})"
    except UnicodeDecodeError:
        wrong = "bytes that are not text"
    if wrong is not None:
        remedy = "name another file with genes_path, or leave it out to use the genes of the files"
        raise InputError(f"{wrong} at genes_path '{path}'", "a text file with one gene id in each line", remedy)
    require_unique(genes, f"'{path}'")
    return genes
