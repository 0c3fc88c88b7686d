"""One list of genes for several files, and each file's way into it."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from scperformer.errors import InputError
from scperformer.genes.matching import GeneMap, map_genes
from scperformer.genes.names import KIND_NAMES, id_kind
from scperformer.genes.overlap import measure_overlap

log = logging.getLogger(__name__)

MIN_SHARE = 0.1  # of the genes of the encoder that the files must have


def gene_maps(
    tables: Sequence[pd.DataFrame], files: Sequence[str], vocabulary: Sequence[str] | None, species: str
) -> tuple[list[str], list[GeneMap]]:
    """The genes of a collection of files: those given, or those of the files; and each file's way into them.

    Raises
    ------
    InputError
        As `join_genes` and `require_known`.
    """
    if vocabulary is None:
        return join_genes(tables, files, species)
    chosen = list(vocabulary)
    maps = [map_to(chosen, *table, species) for table in zip(tables, files, strict=True)]
    require_known(maps, tables, chosen)
    return chosen, maps


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
    kinds = [id_kind(list(map(str, var.index))) for var in tables]
    for var, file, kind in zip(tables, files, kinds, strict=True):
        mapping = map_to(chosen, var, file, species)
        is_new = mapping.target < 0
        if kind.partition("_")[0] == kinds[0].partition("_")[0]:
            target, how = mapping.target.copy(), mapping.how.copy()
            target[is_new], how[is_new] = len(chosen) + np.arange(is_new.sum()), "exact"
            chosen += list(map(str, var.index[is_new]))
            mapping = replace(mapping, target=target, how=how)
        elif is_new.mean() > 1 - MIN_SHARE:
            first, other = KIND_NAMES[kinds[0]], KIND_NAMES[kind]
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
