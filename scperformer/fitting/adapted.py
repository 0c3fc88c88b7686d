"""A model adapted to a condition: fitted anew to the cells that it keeps, with the genes and the depth of a file."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.progress import progress
from scperformer.cells import stratified_sample
from scperformer.config import HeadConfig, ModelConfig, TokensConfig
from scperformer.fitting.condition import Condition, depth_share, reduced
from scperformer.fitting.evidence import fill_network, fit_branches
from scperformer.fitting.linear import MOST_DUAL, SOLVER_TOLERANCE, LinearOptions, fit_logistic
from scperformer.model import ReferenceCells, SavedModel, damaged_model
from scperformer.network import CellTypeModel, Model
from scperformer.trust import calibration

NUM_DRAWS = 4  # of thinned counts, from which the encoder learns


@progress("fitting the model to the genes and the depth of a file")
def fit_to_condition(model: Model, reference_cells: ReferenceCells, condition: Condition) -> SavedModel:
    """Fit the branches and the baseline of a model to its kept cells as a file would have measured them.

    The result has the measured genes alone, and normalises cells over these. It has no layers of attention, as they
    were trained for all genes. Without them, gene vectors from co-expression still are an encoder; others are left out.
    """
    saved = model.saved
    seed = int(model.saved.provenance["seed"])
    rows = stratified_sample(reference_cells.labels, MOST_DUAL, seed)
    config = saved.config
    some = ReferenceCells(reference_cells.values[rows], reference_cells.labels[rows], reference_cells.are_counts)
    num_draws = NUM_DRAWS if depth_share(some, condition) < 1 else 1
    x, *draws = (reduced(some, condition, float(config["target_sum"]), seed + draw) for draw in range(num_draws))
    labels = some.labels
    options = ModelConfig(**config["model"])
    head = HeadConfig(**config["head"])
    if options.positions == "coexpression":
        options = replace(options, depth=0)
    else:
        options = replace(options, encoder=False, linear=True)
    linear_options = _linear_options(saved, options, model.path) if options.linear else None
    vectors = None
    if options.encoder and saved.provenance.get("unlabelled"):  # these cells are not kept, but what they taught is
        vectors = saved.weights["model.encoder.embedding.gene.weight"][:-1][condition.measured]
    fits: dict[str, Any] = {"linear_options": linear_options, "model": options, "head": head, "seed": seed}
    fitted = fit_branches(x, labels, **fits, draws=draws, vectors=vectors)
    baseline = fit_logistic(x, labels, tolerance=SOLVER_TOLERANCE)
    scales = fitted.scales
    expected = fitted.evidence.get("accuracy")
    # Simulated cells are too easy to call, and a single cell of each label cannot be held out.
    if saved.provenance.get("kept_cells", {}).get("simulated", False) or expected is None:
        parts = {"linear": fitted.linear, "encoder": fitted.coexpression}
        expected = None
        scales = {name: saved.scales.get(name, 1.0) for name, part in parts.items() if part is not None}
    genes = [gene for gene, is_there in zip(saved.genes, condition.measured, strict=True) if is_there]
    shape = {"tokens": TokensConfig(**config["tokens"]), "model": options, "attention": config["attention"]}
    network = CellTypeModel(len(genes), len(saved.labels), head=head, **shape)
    fill_network(network, fitted, scales)
    weights = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    metrics: dict[str, Any] = {"scales": scales}
    metrics |= {} if linear_options is None else {"linear_branch": asdict(linear_options)}
    held_out = None if expected is None else fitted.held_out
    if held_out is not None:
        metrics |= {"out_of_fold": fitted.evidence}
        metrics["calibration"] = calibration(held_out.logits, held_out.labels, saved.labels)
    about: dict[str, Any] = {"adapted_from": {"name": saved.name, "hash": saved.hash, "num_genes": len(saved.genes)}}
    about |= {"condition": condition.key, "depth": condition.depth, "num_kept_cells": len(labels)}
    about["expected_accuracy"] = expected
    return replace(
        saved,
        genes=genes,
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        config=config | {"model": asdict(options), "own_totals": True},
        metrics=metrics,
        provenance=saved.provenance | about,
        weights=weights | {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias},
        reference_cells=None,
        has_reference_cells=False,
        held_out=held_out,
    )


def _linear_options(saved: SavedModel, options: ModelConfig, path: Path) -> LinearOptions:
    """Return the options with which the linear branch of a model was fitted; usual ones if it was trained otherwise."""
    made = saved.metrics.get("linear_branch", {"c": 0.1, "class_weights": "balanced", "weighting": "signal"})
    known = {"class_weights": ("none", "sqrt", "balanced"), "weighting": ("signal", "standard", "none")}
    try:
        sound = all(made[name] in choices for name, choices in known.items()) and 0 < made["c"] < math.inf
        linear_options = LinearOptions(
            tuple(options.linear_powers), float(made["c"]), made["class_weights"], made["weighting"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_model(path, "no options of its linear branch") from error
    if not sound:
        raise damaged_model(path, "options of its linear branch that it cannot have")
    return linear_options
