"""Unlabelled files as pretraining wants them: cells of all files, normalised, over one list of genes."""

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
from scperformer.dataset.collection import MAX_FIT_CELLS, MAX_VAL_CELLS, Stream, make_collection, stratified_rows
from scperformer.dataset.preprocess import prepare_reference
from scperformer.errors import InputError
from scperformer.expression import align_normalised
from scperformer.files import PREPARED, checksum
from scperformer.genes import gene_maps, require_unique

log = logging.getLogger(__name__)

MIN_CELLS = 10  # fewer, and neither training nor validation means anything
MIN_EXPRESSED = 2  # genes of a cell: one to hide and one to see


@dataclass
class Sample:
    """A file of the corpus: its cells, its path and its SHA-256 ("" for cells in memory)."""

    adata: AnnData
    path: Path
    checksum: str


@dataclass
class Corpus:
    """Cells of all files: x CSR float32 N x G (ln(1 + cp10k)), and what they were made of."""

    x: csr_matrix
    genes: list[str]
    file_of_cell: np.ndarray  # int64, N
    files: list[dict[str, Any]]  # name, sha256, num_cells, input
    split: tuple[np.ndarray, np.ndarray] | None = None  # rows to train and to validate on, if that is settled
    stream: Stream | None = None  # all training cells, where they stay on disk; x then holds a sample of them

    @property
    def num_cells(self) -> int:
        """Cells that are trained or validated on."""
        if self.stream is None or self.split is None:
            return self.x.shape[0]
        return len(self.stream.cells) + len(self.split[1])


def make_corpus(samples: Iterable[Sample], cfg: PretrainConfig, vocabulary: Sequence[str] | None = None) -> Corpus:
    """Filter and normalise the cells of files, each as `train` would, and align them to one list of genes.

    Parameters
    ----------
    samples
        Asked for one after the other: only the prepared cells of all of them are held at once.
    vocabulary
        The genes of the encoder; None: those that at least `data.min_cells` cells of the corpus express, in the order
        in which the files have them.

    Raises
    ------
    InputError
        A file cannot be used, the files name genes by different kinds of id, or too little is left.
    """
    parts, tables, files = [], [], []
    for sample in samples:
        # A gene that is rare in one file may be common in the next: genes are counted over all of them.
        every_gene = replace(cfg.data, min_cells=0)
        prepared = prepare_reference(
            sample.adata, every_gene, cfg.source, cfg.input_kind, cfg.input_total, cfg.input_base, path=sample.path
        )
        parts.append(csr_matrix(prepared.X, dtype=np.float32))
        tables.append(prepared.var)
        mark = prepared.uns[PREPARED]
        summary = describe(mark["kind"], mark["source"], mark["target_sum"])
        names_cells = {"name": sample.path.name, "sha256": sample.checksum, "num_cells": prepared.n_obs}
        files.append(names_cells | {"input": summary})
        log.info("%s: %d cells, %d genes", sample.path, prepared.n_obs, prepared.n_vars)
    names = [record["name"] for record in files]
    chosen, maps = gene_maps(tables, names, vocabulary, cfg.species)
    aligned = [align_normalised(x, mapping, len(chosen)) for x, mapping in zip(parts, maps, strict=True)]
    x = csr_matrix(sparse.vstack(aligned, format="csr"))
    if vocabulary is None:
        x, chosen = common_genes(x, chosen, cfg.data.min_cells)
    file_of_cell = np.repeat(np.arange(len(parts)), [part.shape[0] for part in parts])
    usable = np.diff(x.indptr) >= MIN_EXPRESSED
    if not usable.all():
        log.warning("%d cells that express fewer than %d of the genes are left out", (~usable).sum(), MIN_EXPRESSED)
    require_cells(int(usable.sum()), len(files))
    x = x[usable]
    x.sort_indices()
    return Corpus(x, chosen, file_of_cell[usable], files)


def stream_corpus(paths: Sequence[Path], cfg: PretrainConfig, vocabulary: Sequence[str] | None = None) -> Corpus:
    """As `make_corpus`, of cells that stay on disk; only those to validate on and a sample are loaded.

    The naive guess, the weights of bins and the means of genes are of the sample.
    """
    at_least_one = replace(cfg, data=replace(cfg.data, min_cells=max(1, cfg.data.min_cells)))
    collection = make_collection(paths, at_least_one, vocabulary, min_shared=MIN_EXPRESSED)
    require_cells(len(collection), len(paths))
    files = collection.file_of_cell
    train, val = split_cells(files, min(cfg.data.val_fraction, MAX_VAL_CELLS / len(files)), cfg.seed)
    sample = train[stratified_rows(files[train], MAX_FIT_CELLS, cfg.seed)]
    log.info(
        "%d of %d training cells, chosen by chance, stand for all in statistics of genes",
        *map(len, (sample, train)),
    )
    held = np.concatenate([sample, val])
    records = [
        {
            "name": part.path.name,
            "sha256": checksum(part.path),
            "num_cells": len(part.kept),
            "input": describe(part.findings.kind, part.findings.source, cfg.data.target_sum),
        }
        for part in collection.parts
    ]
    return Corpus(
        x=collection.read(held),
        genes=collection.genes,
        file_of_cell=files[held],
        files=records,
        split=(np.arange(len(sample)), np.arange(len(sample), len(held))),
        stream=Stream(collection, train, files[train]),
    )


def describe(kind: str, source: str, target_sum: float) -> str:
    """What a file held, and as what it was used."""
    return f"{kind} from {source}, as ln(1 + counts per {target_sum:,.0f})"


def common_genes(x: csr_matrix, names: list[str], min_cells: int) -> tuple[csr_matrix, list[str]]:
    """The columns of genes that at least `min_cells` cells, and at least one, express.

    Raises
    ------
    InputError
        There are none.
    """
    keep = np.bincount(x.indices, minlength=x.shape[1]) >= max(min_cells, 1)
    if not keep.any():
        found = f"no gene that {min_cells} of the {x.shape[0]} cells of the corpus express"
        raise InputError(found, "at least some genes", "lower data.min_cells or add cells")
    return x[:, keep], [name for name, kept in zip(names, keep, strict=True) if kept]


def require_cells(num_cells: int, num_files: int) -> None:
    """Refuse a corpus of too few cells."""
    if num_cells < MIN_CELLS:
        found = f"{num_cells} usable cells in {num_files} file{'s' if num_files > 1 else ''}"
        raise InputError(found, f"at least {MIN_CELLS} to pretrain on", "add files, or lower data.min_genes")


def split_cells(file_of_cell: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for validation: the same share of each file, but at least one cell in all."""
    rng = np.random.default_rng(seed)
    is_val = np.zeros(len(file_of_cell), dtype=bool)
    for file in np.unique(file_of_cell):
        cells = rng.permutation(np.flatnonzero(file_of_cell == file))
        is_val[cells[: round(fraction * len(cells))]] = True
    if not is_val.any():
        is_val[rng.integers(len(is_val))] = True
    if is_val.all():
        is_val[rng.integers(len(is_val))] = False
    return np.flatnonzero(~is_val), np.flatnonzero(is_val)


def read_genes(path: str | Path) -> list[str]:
    """Gene ids from a text file, one in each line; empty lines are passed over.

    Raises
    ------
    InputError
        No such file, no text, no genes, or a gene twice.
    """
    remedy = "name another file with genes_path, or leave it out for the genes of the files"
    expected = "a text file with one gene id in each line"
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"genes_path '{path}' that cannot be read ({error.strerror})", expected, remedy) from error
    except UnicodeDecodeError as error:
        raise InputError(f"genes_path '{path}' with bytes that are no text", expected, remedy) from error
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise InputError(f"no genes in '{path}'", expected, remedy)
    if any("\t" in gene for gene in found):
        raise InputError(f"several columns in '{path}'", expected, remedy)
    require_unique(found, f"'{path}'")
    return found
