"""The overlap of the genes of a file and of a model, files with too little of it, and one list for several files."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.genes.axes import AXIS_SHARE, axis_shares, without_affixes
from scperformer.genes.matching import GeneMap, map_genes
from scperformer.genes.names import KIND_NAMES, guess_species, id_kind

log = logging.getLogger(__name__)

NUM_EXAMPLES = 20
MIN_OFFERED = 0.05  # a lower min_overlap is not suggested
MIN_SHARE = 0.1  # of the genes of a list that several files must have
MIN_PANEL = 50  # genes of a file or a panel
LOW_SHARE = 0.7  # of the informative expression; accuracy is lower with less (docs/inputs.md#genes)


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
    absent: list[str]  # the first 20 in the model's order
    dropped: list[str]  # the first 20 in the file's order
    notes: list[str] = field(default_factory=list)  # sentences on how the names were matched


def measure_overlap(
    target: np.ndarray,
    file_genes: Sequence[str],
    model_genes: Sequence[str],
    *,
    importance: np.ndarray | None = None,
    notes: Sequence[str] = (),
) -> Overlap:
    """Measure how many of a model's genes a file has; `target` is the column in the model of each of its genes, or -1.

    `importance` of the model's genes is 0 or more; None: all genes have the same.
    """
    reached = np.zeros(len(model_genes), dtype=bool)
    reached[target[target >= 0]] = True
    weight = np.ones(len(model_genes))
    if importance is not None and np.sum(importance) > 0:
        weight = np.asarray(importance, dtype=np.float64)
    absent = [gene for gene, there in zip(model_genes, reached, strict=True) if not there]
    dropped = [gene for gene, column in zip(file_genes, target, strict=True) if column < 0]
    share = float(weight[reached].sum() / weight.sum()) if len(reached) else 0.0
    doubt = f"the file has only {share:.1%} of the model's informative expression: check the labels before you use them"
    return Overlap(
        num_model=len(model_genes),
        num_file=len(file_genes),
        num_shared=int(reached.sum()),
        share_of_model=float(reached.mean()) if len(reached) else 0.0,
        informative_share=share,
        num_absent=len(absent),
        num_dropped=len(dropped),
        absent=absent[:NUM_EXAMPLES],
        dropped=dropped[:NUM_EXAMPLES],
        notes=[*notes, doubt] if 0 < share < LOW_SHARE else list(notes),
    )


def require_overlap(
    found: Overlap,
    min_overlap: float,
    path: str | Path,
    *,
    file_genes: Sequence[str],
    model_genes: Sequence[str],
    var: pd.DataFrame | None = None,
    can_adapt: bool = False,
    own_totals: bool = False,
) -> None:
    """Refuse a file with less than `min_overlap` of the model's informative expression, or with fewer than 50 genes.

    Fewer are enough for a model of a panel (`own_totals`), and with a `min_overlap` of 0. With `can_adapt`, the model
    will be fitted to the genes of the file: 50 of its genes are enough, if they are half of the file's. A column of
    `var`, the file's table of its genes, may hold the names that the model uses.
    """
    few = 1 if own_totals or min_overlap == 0 or found.num_model < MIN_PANEL else MIN_PANEL
    if found.num_shared >= few and found.informative_share >= min_overlap:
        return
    if can_adapt and found.num_shared >= max(MIN_PANEL, found.num_file / 2):
        return
    wanted = {str(gene) for gene in model_genes}
    tables = {} if var is None else var
    num_found = {str(name): len(wanted & set(values.astype(str))) for name, values in tables.items()}
    column = max(num_found, key=lambda name: num_found[name], default="")
    kind = id_kind(file_genes)
    kind_wanted = id_kind(model_genes)
    share_genes, share_cells = axis_shares(file_genes)
    _, patterns = without_affixes(file_genes, guess_species(model_genes))
    if share_cells >= AXIS_SHARE > share_genes:
        remedy = "cells seem to be in var_names: if genes are in obs_names, transpose it (adata = adata.T)"
    elif num_found.get(column, 0) > found.num_shared:
        remedy = f'take the names in var["{column}"] as var_names ({KIND_NAMES[kind_wanted]}, as in the model)'
    elif kind.partition("_")[0] != kind_wanted.partition("_")[0]:
        remedy = f"convert var_names from {KIND_NAMES[kind]} to {KIND_NAMES[kind_wanted]}"
    else:
        remedy = "use a model trained on the same species and platform"
        remedy += ", or lower min_overlap" if found.num_shared else ", and take names of genes as var_names"
    # Examples from the middle: the first names of a sorted list are often unusual (5_8S_rRNA, AL627309.1).
    middle = (list(genes)[len(genes) // 2 :][:2] for genes in (file_genes, model_genes))
    ours, theirs = (", ".join(repr(str(name)) for name in names) for names in middle)
    ours += f", read as {' and '.join(patterns)}" if patterns else ""
    enough = math.floor(1000 * found.informative_share) / 1000
    text = f"{found.num_shared} of {found.num_model} model genes ({100 * found.share_of_model:.1f} %) found in {path}, "
    text += f"with {100 * found.informative_share:.1f} % of the model's informative expression "
    text += f"(e.g. {ours}; model has e.g. {theirs})"
    expected = f"at least {100 * min_overlap:g} % of that expression" if min_overlap > 0 else "at least one gene"
    if found.num_shared < few == MIN_PANEL:
        expected = f"{MIN_PANEL} genes or more, and {expected}"
        enough = 0
    raise InputError(text, expected, remedy, [f"min_overlap={enough:g}"] if enough >= MIN_OFFERED else [])


def find_panel(panel: Sequence[str], known: Sequence[str], owner: str, *, species: str, path: str | Path) -> np.ndarray:
    """Find the genes of a panel, read from `path`, among those of the `owner`, a model or a reference: boolean.

    Unknown genes are a warning; a panel with fewer than 50 known genes, or with less than half of them, is refused.
    """
    target = map_genes(panel, known, None, species, path=path).target
    unknown = [gene for gene, column in zip(panel, target, strict=True) if column < 0]
    num_known = len(panel) - len(unknown)
    if num_known < max(MIN_PANEL, len(panel) / 2):
        example = f" (not '{unknown[0]}')" if unknown else ""
        found = f"{num_known} of the {len(panel)} genes of '{path}' known to the {owner}{example}"
        remedy = f"name genes as the {owner} does (e.g. '{known[0]}')"
        raise InputError(found, f"{MIN_PANEL} or more, and half of them", remedy)
    if unknown:
        log.warning("%s: %d genes are unknown to the %s (e.g. '%s')", path, len(unknown), owner, unknown[0])
    measured = np.zeros(len(known), dtype=bool)
    measured[target[target >= 0]] = True
    return measured


def gene_maps(
    tables: Sequence[pd.DataFrame], files: Sequence[str], vocabulary: Sequence[str] | None, species: str
) -> tuple[list[str], list[GeneMap]]:
    """Match the genes of several files to a vocabulary, or to the genes of all these files.

    Returns the list of genes, and a match for each file (`tables`: of their genes, `files`: their names). Without a
    vocabulary, genes have the name that the first file with them uses. A file with another kind of gene id than the
    first file adds no genes: the same gene would be in the list twice. If it cannot be translated, it is refused.
    """
    chosen = list(vocabulary or [])
    maps = []
    first_kind = id_kind(list(map(str, tables[0].index)))
    for var, file in zip(tables, files, strict=True):
        names = list(map(str, var.index))
        mapping = map_genes(names, chosen, var, species, path=file)
        for note in mapping.notes:
            log.info("%s: %s", file, note)
        maps.append(mapping)
        if vocabulary is not None:
            continue
        kind = id_kind(names)
        is_new = mapping.target < 0
        if kind.partition("_")[0] == first_kind.partition("_")[0]:
            target = mapping.target.copy()
            how = mapping.how.copy()
            target[is_new] = len(chosen) + np.arange(is_new.sum())
            how[is_new] = "exact"
            chosen += [name for name, new in zip(names, is_new, strict=True) if new]
            maps[-1] = replace(mapping, target=target, how=how)
        elif is_new.mean() > 1 - MIN_SHARE:
            text = f"{KIND_NAMES[first_kind]} in {files[0]} and {KIND_NAMES[kind]} in {file}"
            expected = "one kind of gene id in all files of a corpus, or names that can be translated"
            remedy = f"convert the var_names of {file} to {KIND_NAMES[first_kind]}, or leave it out"
            raise InputError(text, expected, remedy)
        elif is_new.any():
            log.warning("%s: %d of %d genes could not be translated and are left out", file, is_new.sum(), len(is_new))
    if vocabulary is not None:
        target = np.concatenate([mapping.target for mapping in maps])
        shared = measure_overlap(target, [str(name) for var in tables for name in var.index], chosen)
        if not shared.num_shared or shared.share_of_model < MIN_SHARE:
            text = f"{shared.num_shared} of the {shared.num_model} genes of the list in the files "
            text += f"(e.g. {shared.dropped[:1] or ['none']}; the list has e.g. {shared.absent[:1]})"
            remedy = "give files with the same kind of gene id and of the same species, or another list of genes"
            raise InputError(text, f"at least {MIN_SHARE:.0%} of them", remedy)
        log.info("%d of the %d genes of the list are in the files", shared.num_shared, shared.num_model)
    return chosen, maps
