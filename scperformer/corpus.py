"""Unlabelled files as pretraining wants them: cells of all files, normalised, over one list of genes."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.sparse import csr_matrix

from scperformer import genes
from scperformer.alignment import align_normalised
from scperformer.config import PretrainConfig
from scperformer.errors import InputError
from scperformer.genenames import GeneMap, map_genes
from scperformer.overlap import measure_overlap
from scperformer.preprocess import PREPARED, prepare_reference

log = logging.getLogger(__name__)

MIN_CELLS = 10  # fewer, and neither training nor validation means anything
MIN_EXPRESSED = 2  # genes of a cell: one to hide and one to see
MIN_SHARE = 0.1  # of the genes of the encoder that the files must have


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
        summary = f"{mark['kind']} from {mark['source']}, as ln(1 + counts per {mark['target_sum']:,.0f})"
        names_cells = {"name": sample.path.name, "sha256": sample.checksum, "num_cells": prepared.n_obs}
        files.append(names_cells | {"input": summary})
        log.info("%s: %d cells, %d genes", sample.path, prepared.n_obs, prepared.n_vars)
    paths = [record["name"] for record in files]
    if vocabulary is None:
        chosen, maps = join_genes(tables, paths, cfg.species)
    else:
        chosen = list(vocabulary)
        maps = [map_to(chosen, *table, cfg.species) for table in zip(tables, paths, strict=True)]
        require_known(maps, tables, chosen)
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


def map_to(chosen: Sequence[str], var: pd.DataFrame, file: str, species: str) -> GeneMap:
    """The genes of a file among those of the corpus; what was done to their names is logged."""
    mapping = map_genes(list(map(str, var.index)), chosen, var, species, path=file)
    for note in mapping.notes:
        log.info("%s: %s", file, note)
    return mapping


def join_genes(
    tables: Sequence[pd.DataFrame], files: Sequence[str], species: str = "auto"
) -> tuple[list[str], list[GeneMap]]:
    """One list of genes for all files, by the names of the first file that has them, and each file's way into it.

    Genes that are new with a file are added, unless it names genes in another way than the first file: the same gene
    would be taken for two.

    Raises
    ------
    InputError
        A file names its genes in another way than the first and they cannot be translated, or is of another species.
    """
    chosen: list[str] = []
    maps: list[GeneMap] = []
    kinds = [genes.id_kind(list(map(str, var.index))) for var in tables]
    for var, file, kind in zip(tables, files, kinds, strict=True):
        mapping = map_to(chosen, var, file, species)
        is_new = mapping.target < 0
        if kind.partition("_")[0] == kinds[0].partition("_")[0]:
            target, how = mapping.target.copy(), mapping.how.copy()
            target[is_new], how[is_new] = len(chosen) + np.arange(is_new.sum()), "exact"
            chosen += list(map(str, var.index[is_new]))
            mapping = replace(mapping, target=target, how=how)
        elif is_new.mean() > 1 - MIN_SHARE:
            first, other = genes.KIND_NAMES[kinds[0]], genes.KIND_NAMES[kind]
            raise InputError(
                f"{first} in {files[0]} and {other} in {file}",
                "one kind of gene id in all files of a corpus, or names that can be translated",
                f"convert the var_names of {file} to {first}, or leave it out",
            )
        elif is_new.any():
            log.warning("%s: %d of %d genes could not be translated and are left out", file, is_new.sum(), len(is_new))
        maps.append(mapping)
    return chosen, maps


def require_known(maps: Sequence[GeneMap], tables: Sequence[pd.DataFrame], vocabulary: Sequence[str]) -> None:
    """Refuse files that have too few of the genes that the encoder is to have.

    Raises
    ------
    InputError
        With examples of both sides.
    """
    target = np.concatenate([mapping.target for mapping in maps])
    names = [str(name) for var in tables for name in var.index]
    shared = measure_overlap(target, names, vocabulary)
    if not shared.num_shared or shared.share_of_model < MIN_SHARE:
        raise InputError(
            f"{shared.num_shared} of the {shared.num_model} genes of the encoder in the files "
            f"(e.g. {shared.dropped[:1] or ['none']}; the encoder has e.g. {shared.absent[:1]})",
            f"at least {MIN_SHARE:.0%} of them",
            "give files with the same kind of gene id and of the same species, or another list of genes",
        )
    log.info("%d of the %d genes of the encoder are in the files", shared.num_shared, shared.num_model)


def require_cells(num_cells: int, num_files: int) -> None:
    """Refuse a corpus of too few cells."""
    if num_cells < MIN_CELLS:
        found = f"{num_cells} usable cells in {num_files} file{'s' if num_files > 1 else ''}"
        raise InputError(found, f"at least {MIN_CELLS} to pretrain on", "add files, or lower data.min_genes")


def split_cells(corpus: Corpus, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers for training and for validation: the same share of each file, but at least one cell in all."""
    rng = np.random.default_rng(seed)
    is_val = np.zeros(len(corpus.file_of_cell), dtype=bool)
    for file in np.unique(corpus.file_of_cell):
        cells = rng.permutation(np.flatnonzero(corpus.file_of_cell == file))
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
    genes.require_unique(found, f"'{path}'")
    return found
