"""Gene overlap between files and a model, a panel or each other."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.io.gene_matching import GeneMap, map_genes
from scperformer.io.gene_names import KIND_NAMES, id_kind

log = logging.getLogger(__name__)

NUM_EXAMPLES = 20
MIN_SHARED = 0.1  # share of a list of genes that files must have, and of a file's genes that must be translated
MIN_PANEL = 50  # genes of a file or a panel
# share of the informative expression below which accuracy is lower (docs/inputs.md#genes)
LOW_SHARE = 0.7


@dataclass(kw_only=True)
class Overlap:
    """Counts and examples of the genes that a file and a model share."""

    num_model: int
    num_file: int
    num_shared: int  # model genes that the file has
    share_of_model: float  # num_shared / num_model
    informative_share: float  # importance of the shared genes / importance of all model genes
    num_absent: int  # model genes that the file lacks
    num_dropped: int  # file genes that the model lacks
    absent: list[str]  # the first 20 model genes that the file lacks
    dropped: list[str]  # the first 20 file genes that the model lacks
    notes: list[str] = field(default_factory=list)  # sentences on how the names were matched


def measure_overlap(
    target: np.ndarray,
    file_genes: Sequence[str],
    model_genes: Sequence[str],
    importance: np.ndarray | None = None,
) -> Overlap:
    """Measure how many of a model's genes a file has, whose genes are in the columns `target` (-1: in none)."""
    is_shared = np.isin(np.arange(len(model_genes)), target)
    weight = np.ones(len(model_genes))
    if importance is not None and np.sum(importance) > 0:
        weight = np.asarray(importance, dtype=np.float64)
    absent = [gene for gene, shared in zip(model_genes, is_shared, strict=True) if not shared]
    dropped = [gene for gene, column in zip(file_genes, target, strict=True) if column < 0]
    share = float(weight[is_shared].sum() / weight.sum()) if len(is_shared) else 0.0
    doubt = f"the file has only {share:.1%} of the model's informative expression: check the labels before you use them"
    return Overlap(
        num_model=len(model_genes),
        num_file=len(file_genes),
        num_shared=int(is_shared.sum()),
        share_of_model=float(is_shared.mean()) if len(is_shared) else 0.0,
        informative_share=share,
        num_absent=len(absent),
        num_dropped=len(dropped),
        absent=absent[:NUM_EXAMPLES],
        dropped=dropped[:NUM_EXAMPLES],
        notes=[doubt] if 0 < share < LOW_SHARE else [],
    )


def find_panel(
    panel: Sequence[str], known: Sequence[str], owner: str, *, species: str, path: str | Path
) -> np.ndarray:
    """Find the genes of a panel among `known` genes.

    `owner` is what the `known` genes belong to (model or reference), `path` the file of the panel. A panel is refused
    if fewer than 50, or less than half, of its genes are known. Returns whether it has each of the `known` genes.
    """
    target = map_genes(panel, known, None, species, path=path).target
    unknown = [gene for gene, column in zip(panel, target, strict=True) if column < 0]
    num_known = len(panel) - len(unknown)
    if num_known < max(MIN_PANEL, len(panel) / 2):
        example = f" (not '{unknown[0]}')" if unknown else ""
        found = f"{num_known} of the {len(panel)} genes of '{path}' known to the {owner}{example}"
        remedy = f"name genes as the {owner} does (e.g. '{known[0]}')"
        raise InputError(
            "few-genes", found, f"{MIN_PANEL} genes or more, and at least half of them", remedy
        )
    if unknown:
        log.warning(
            "%s: %d genes are unknown to the %s (e.g. '%s')", path, len(unknown), owner, unknown[0]
        )
    return np.isin(np.arange(len(known)), target)


def map_genes_of_files(
    tables: Sequence[pd.DataFrame],
    files: Sequence[str],
    vocabulary: Sequence[str] | None,
    species: str,
) -> tuple[list[str], list[GeneMap]]:
    """Match the gene tables of several files to a vocabulary, or to the genes of all these files; return both.

    Without a vocabulary, a gene has the name in the first file that measures it. A file with a different kind of gene
    id than the first file adds no genes, as the same gene would be in the list twice; it is refused if its names cannot
    be translated.
    """
    genes = list(vocabulary or [])
    maps = []
    first_kind = id_kind(list(map(str, tables[0].index)))
    for var, file in zip(tables, files, strict=True):
        names = list(map(str, var.index))
        mapping = map_genes(names, genes, var, species, path=file)
        for note in mapping.notes:
            log.info("%s: %s", file, note)
        is_new = mapping.target < 0
        kind = id_kind(names)
        if vocabulary is None and kind == first_kind:
            target = mapping.target.copy()
            target[is_new] = len(genes) + np.arange(is_new.sum())
            genes += [name for name, new in zip(names, is_new, strict=True) if new]
            mapping = replace(mapping, target=target)
        elif vocabulary is None and is_new.mean() > 1 - MIN_SHARED:
            found = f"{KIND_NAMES[first_kind]} in {files[0]} and {KIND_NAMES[kind]} in {file}"
            expected = "one kind of gene id in all files, or names that can be translated"
            remedy = f"convert the var_names of {file} to {KIND_NAMES[first_kind]}, or leave it out"
            raise InputError("mixed-gene-ids", found, expected, remedy)
        elif vocabulary is None and is_new.any():
            log.warning(
                "%s: %d of %d genes could not be translated and are left out",
                file,
                is_new.sum(),
                len(is_new),
            )
        maps.append(mapping)
    if vocabulary is not None:
        target = np.concatenate([mapping.target for mapping in maps])
        overlap = measure_overlap(
            target, [str(name) for var in tables for name in var.index], genes
        )
        if not overlap.num_shared or overlap.share_of_model < MIN_SHARED:
            found = (
                f"{overlap.num_shared} of the {overlap.num_model} genes of the list in the files "
            )
            found += (
                f"(e.g. {overlap.dropped[:1] or ['none']}; the list has e.g. {overlap.absent[:1]})"
            )
            remedy = "give files with the same kind of gene id and of the same species, or a different list of genes"
            raise InputError("few-genes", found, f"at least {MIN_SHARED:.0%} of them", remedy)
        log.info(
            "%d of the %d genes of the list are in the files", overlap.num_shared, overlap.num_model
        )
    return genes, maps
