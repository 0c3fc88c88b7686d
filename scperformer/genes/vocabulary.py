"""One list of genes for several files, and the match of each file's genes to it."""

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
    """Match the genes of several files to a vocabulary, or to the genes of all these files.

    Without a vocabulary, genes have the name that the first file with them uses. A file with another kind of gene id
    than the first file adds no genes: the same gene would be in the list twice.

    Parameters
    ----------
    tables, files
        The var table and the name of each file.

    Returns
    -------
    The list of genes, and a match for each file.

    Raises
    ------
    InputError
        The files have too few genes of the vocabulary, a file uses another kind of gene id than the first file and its
        names cannot be translated, or a file is of another species.
    """
    chosen, maps = list(vocabulary or []), []
    first_kind = id_kind(list(map(str, tables[0].index)))
    for var, file in zip(tables, files, strict=True):
        names = list(map(str, var.index))
        mapping = map_genes(names, chosen, var, species, path=file)
        for note in mapping.notes:
            log.info("%s: %s", file, note)
        maps.append(mapping)
        if vocabulary is not None:
            continue
        kind, is_new = id_kind(names), mapping.target < 0
        if kind.partition("_")[0] == first_kind.partition("_")[0]:
            target, how = mapping.target.copy(), mapping.how.copy()
            target[is_new], how[is_new] = len(chosen) + np.arange(is_new.sum()), "exact"
            chosen += [name for name, new in zip(names, is_new, strict=True) if new]
            maps[-1] = replace(mapping, target=target, how=how)
        elif is_new.mean() > 1 - MIN_SHARE:
            raise InputError(
                f"{KIND_NAMES[first_kind]} in {files[0]} and {KIND_NAMES[kind]} in {file}",
                "one kind of gene id in all files of a corpus, or names that can be translated",
                f"convert the var_names of {file} to {KIND_NAMES[first_kind]}, or leave it out",
            )
        elif is_new.any():
            log.warning("%s: %d of %d genes could not be translated and are left out", file, is_new.sum(), len(is_new))
    if vocabulary is not None:
        target = np.concatenate([mapping.target for mapping in maps])
        shared = measure_overlap(target, [str(name) for var in tables for name in var.index], chosen)
        if not shared.num_shared or shared.share_of_model < MIN_SHARE:
            raise InputError(
                f"{shared.num_shared} of the {shared.num_model} genes of the encoder in the files "
                f"(e.g. {shared.dropped[:1] or ['none']}; the encoder has e.g. {shared.absent[:1]})",
                f"at least {MIN_SHARE:.0%} of them",
                "give files with the same kind of gene id and of the same species, or another list of genes",
            )
        log.info("%d of the %d genes of the encoder are in the files", shared.num_shared, shared.num_model)
    return chosen, maps
