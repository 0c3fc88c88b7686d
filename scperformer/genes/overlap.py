"""How much of what a model looks at a file has, and the refusal of files that have too little of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.errors import InputError
from scperformer.genes.names import KIND_NAMES, id_kind

NUM_EXAMPLES = 20
MIN_OFFERED = 0.05  # no command with a lower min_overlap is offered
LOW_SHARE = 0.7  # of the informative expression; with less, accuracy has been seen to fall (docs/inputs.md#genes)


@dataclass(kw_only=True)
class Overlap:
    """How the genes of a file and of a model overlap."""

    num_model: int
    num_file: int
    num_shared: int  # model genes that the file has
    share_of_model: float  # num_shared / num_model
    informative_share: float  # of the importance of the model's genes, that of the shared ones
    num_absent: int  # model genes that the file lacks
    num_dropped: int  # file genes that the model does not know
    absent: list[str]  # the first 20 of them, in the model's order
    dropped: list[str]  # the first 20 of them, in the file's order
    notes: list[str] = field(default_factory=list)  # how the names were matched, in sentences


def measure_overlap(
    target: np.ndarray,
    file_genes: Sequence[str],
    model_genes: Sequence[str],
    *,
    importance: np.ndarray | None = None,
    notes: Sequence[str] = (),
) -> Overlap:
    """What of a model's genes a file has.

    Parameters
    ----------
    target
        For each gene of the file its column in the model, or -1.
    importance
        Of each gene of the model, 0 or more: how much the model sees of it; None: all count alike.
    """
    reached = np.zeros(len(model_genes), dtype=bool)
    reached[target[target >= 0]] = True
    weight = np.ones(len(model_genes)) if importance is None else np.asarray(importance, dtype=np.float64)
    if weight.sum() == 0:
        weight = np.ones(len(model_genes))
    absent = [gene for gene, there in zip(model_genes, reached, strict=True) if not there]
    dropped = [gene for gene, column in zip(file_genes, target, strict=True) if column < 0]
    share = float(weight[reached].sum() / weight.sum()) if len(reached) else 0.0
    doubts = []
    if 0 < share < LOW_SHARE:
        doubts = [
            f"only {share:.1%} of what the model looks at is in the file: look at the labels before you trust them"
        ]
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
        notes=[*notes, *doubts],
    )


def require_overlap(
    found: Overlap,
    min_overlap: float,
    path: str | Path,
    *,
    file_genes: Sequence[str],
    model_genes: Sequence[str],
    var: pd.DataFrame | None = None,
) -> None:
    """Fail when a file has too little of what a model looks at to say anything about its cells.

    Parameters
    ----------
    min_overlap
        Least share of the model's informative expression, 0 to 1. Even with 0, one shared gene is needed.
    var
        What the file says about its genes, one row each: a column of it may hold the names that the model knows.

    Raises
    ------
    InputError
        With counts, examples of both sides, and a remedy that fits the kinds of id.
    """
    if found.num_shared > 0 and found.informative_share >= min_overlap:
        return
    column = None if var is None else _column_with_genes(var, model_genes, more_than=found.num_shared)
    raise InputError(
        f"{found.num_shared} of {found.num_model} model genes ({100 * found.share_of_model:.1f} %) found in {path}, "
        f"with {100 * found.informative_share:.1f} % of the model's informative expression "
        f"({_example(file_genes)}; model has {_example(model_genes)})",
        f"at least {100 * min_overlap:g} % of that expression" if min_overlap > 0 else "at least one gene",
        _remedy(file_genes, model_genes, column),
        _lower(found),
    )


def _lower(found: Overlap) -> list[str]:
    """The option that lets in what there is; none where that would be a guess."""
    share = math.floor(1000 * found.informative_share) / 1000
    return [f"min_overlap={share:g}"] if share >= MIN_OFFERED else []


def _example(names: Sequence[str]) -> str:
    # Names from the middle: the first ones of a sorted list are often odd (5_8S_rRNA, AL627309.1).
    middle = len(names) // 2
    return "e.g. " + ", ".join(repr(str(name)) for name in list(names)[middle : middle + 2])


def _column_with_genes(var: pd.DataFrame, model_genes: Sequence[str], more_than: int) -> str | None:
    """The column of `var` that holds most of the model's genes, if it holds more of them than `more_than`."""
    wanted = {str(gene) for gene in model_genes}
    num_found = {str(name): len(wanted.intersection(values.astype(str))) for name, values in var.items()}
    best = max(num_found, key=lambda name: num_found[name], default=None)
    return best if best is not None and num_found[best] > more_than else None


def _remedy(file_genes: Sequence[str], model_genes: Sequence[str], column: str | None) -> str:
    kind, wanted = id_kind(file_genes), id_kind(model_genes)
    if column is not None:
        return f'take the names in var["{column}"] as var_names ({KIND_NAMES[wanted]}, as in the model)'
    if kind.partition("_")[0] != wanted.partition("_")[0]:
        return f"convert var_names from {KIND_NAMES[kind]} to {KIND_NAMES[wanted]}"
    return "use a model trained on the same species and platform, or lower min_overlap"
