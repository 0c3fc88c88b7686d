"""The accuracy to expect on files with fewer genes or a lower depth than the reference, for the model card."""

import logging
from typing import Any

import numpy as np

from scperformer.base.progress import progress
from scperformer.model.load import Model
from scperformer.model.reference_cells import ReferenceCells
from scperformer.training.adapted import fit_to_condition
from scperformer.training.condition import Condition, depth_class

log = logging.getLogger(__name__)

DEPTHS = {"half of the depth": 0.5, "a tenth of the depth": 0.1}
NUM_RANDOM, NUM_VARIABLE = 1000, (1000, 300)  # genes; a targeted panel has 300 to 1,000


def usual_conditions(reference_cells: ReferenceCells, seed: int) -> dict[str, Condition]:
    """Return usual conditions of files by their names in the model card, the reference's own first.

    `reference_cells` are counts. Conditions with as many genes as the model has, or more, are left out.
    """
    num_genes = reference_cells.values.shape[1]
    depth = depth_class(reference_cells.values)
    means = np.asarray(reference_cells.values.mean(axis=0)).ravel()
    variances = np.asarray(reference_cells.values.multiply(reference_cells.values).mean(axis=0)).ravel() - means**2
    variable = np.argsort(-np.divide(variances, means, out=np.zeros_like(means), where=means > 0), kind="stable")
    chosen = {f"{NUM_RANDOM:,} genes at random": np.random.default_rng(seed).permutation(num_genes)[:NUM_RANDOM]}
    chosen |= {f"the {num:,} most variable genes": variable[:num] for num in NUM_VARIABLE}

    everything = np.ones(num_genes, dtype=bool)
    found = {"all genes": Condition(everything, None)}
    if depth is not None:  # None: no cell has any count
        found |= {name: Condition(everything, depth * share) for name, share in DEPTHS.items()}
    for name, genes in chosen.items():
        if len(genes) < num_genes:
            found[name] = Condition(np.isin(np.arange(num_genes), genes), None)
    return found


def conditions_table(model: Model, reference_cells: ReferenceCells, seed: int) -> list[dict[str, Any]]:
    """Return the expected accuracy and macro-F1 of a model under usual conditions, from fits without the called cells.

    Under all conditions but the reference's own, the model is adapted as `predict` adapts it to a file.
    """
    rows = []
    conditions = usual_conditions(reference_cells, seed)
    with progress("finding the expected accuracy", total=len(conditions), unit="conditions") as shown:
        for name, condition in conditions.items():
            own = model.saved.metrics.get("out_of_fold") if name == "all genes" else None
            scores = own or fit_to_condition(model, reference_cells, condition).metrics.get("out_of_fold")
            shown.update()
            if scores is None:  # no label has a second cell
                continue
            row = {"condition": name, "num_genes": int(condition.measured.sum())}
            rows.append(row | {score: scores[score] for score in ("accuracy", "macro_f1")})
            log.info("expected with %s: accuracy %.3f, macro-F1 %.3f", name, scores["accuracy"], scores["macro_f1"])
    return rows
