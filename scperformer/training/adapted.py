"""A model adapted to a condition: fitted anew to the cells that it stores, with the genes and the depth of a file."""

import logging
import math
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.progress import progress
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import HeadConfig, ModelConfig, NetworkConfig, OptimConfig, TokensConfig
from scperformer.model.confidence import calibration
from scperformer.model.folder import damaged_model
from scperformer.model.imported import ImportedNetwork
from scperformer.model.load import Model
from scperformer.model.network import CellTypeModel
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import SavedModel
from scperformer.training.condition import Condition, adapted_model, depth_class, depth_share, reduced
from scperformer.training.evidence import fill_network, fit_branches
from scperformer.training.fit_imported import distilled
from scperformer.training.fit_linear import MAX_DUAL, SOLVER_TOLERANCE, LinearOptions, fit_logistic

log = logging.getLogger(__name__)

NUM_DRAWS = 4  # thinned copies of the cells, from which the encoder learns
DEPTHS = {"half of the depth": 0.5, "a tenth of the depth": 0.1}
NUM_RANDOM, NUM_VARIABLE = 1000, (1000, 300)  # genes; a targeted panel has 300 to 1,000
MAX_STEPS = 300  # of its training: twice as many take twice as long, and change the loss of new cells by .002


@progress("fitting the model to the genes and the depth of a file")
def fit_to_condition(model: Model, reference_cells: ReferenceCells, condition: Condition) -> SavedModel:
    """Fit the branches and the baseline of a model to its stored cells as a file would have measured them.

    The result has the measured genes alone, and normalises cells over these. It has no layers of attention, as they
    were trained for all genes. Without them, gene vectors from co-expression still are an encoder; others are left out.
    """
    if isinstance(model.network, ImportedNetwork):
        return distilled(model, reference_cells, condition)
    saved = model.saved
    seed = int(saved.provenance["seed"])
    rows = stratified_sample(reference_cells.labels, MAX_DUAL, seed)
    cells = reference_cells.some(rows)
    labels = cells.labels
    num_draws = NUM_DRAWS if depth_share(cells, condition) < 1 else 1
    target_sum = saved.config["target_sum"]
    x, *draws = (reduced(cells, condition, target_sum, seed + draw) for draw in range(num_draws))
    cfg = _training_options(saved)
    linear_options = _linear_options(saved, cfg.model, model.path) if cfg.model.linear else None
    vectors = None
    original = ModelConfig(**saved.config["model"])
    is_fitted = original.reads_genes or original.depth == 0
    # The vectors were learned from all genes at full depth, perhaps also from further cells. Layers between tokens have
    # trained them with the labels, also of the cells that are held out here.
    if cfg.model.encoder and (is_fitted or saved.provenance.get("unlabelled")):
        vectors = saved.weights["model.encoder.embedding.gene.weight"][:-1][condition.measured]
    fitted = fit_branches(
        x, labels, linear_options=linear_options, cfg=cfg, draws=draws, vectors=vectors, batches=cells.batches
    )
    scales = fitted.scales
    held_out = fitted.held_out
    # Simulated cells are too easy to call, and the only cell of a label cannot be held out.
    if held_out is None or saved.provenance.get("kept_cells", {}).get("simulated", False):
        branches = {"linear": fitted.linear, "encoder": fitted.encoder}
        scales = {name: saved.scales.get(name, 1.0) for name, branch in branches.items() if branch is not None}
        held_out = None
    metrics: dict[str, Any] = {"scales": scales}
    if linear_options is not None:
        metrics["linear_branch"] = asdict(linear_options)
    if fitted.encoder is not None:
        from scperformer.training.fit_performer import encoder_facts  # needs Lightning

        metrics["encoder"] = encoder_facts(fitted.encoder.performer, cfg)
    if held_out is not None:
        metrics["out_of_fold"] = fitted.evidence
        metrics["calibration"] = calibration(held_out.logits, held_out.labels, saved.labels)
    options: dict[str, Any] = {name: getattr(cfg, name) for name in ("tokens", "model", "attention", "head")}
    network = CellTypeModel(x.shape[1], len(saved.labels), **options)
    fill_network(network, fitted, scales)
    baseline = fit_logistic(x, labels, tolerance=SOLVER_TOLERANCE)
    weights = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    return adapted_model(
        saved,
        condition,
        x,
        None if held_out is None else fitted.evidence["accuracy"],
        config=saved.config | {"model": asdict(cfg.model), "own_totals": True},
        metrics=metrics,
        weights=weights | {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias},
        held_out=held_out,
    )


def _training_options(saved: SavedModel) -> NetworkConfig:
    """Return the options of a training: gene vectors from co-expression stay, and what reads them; the rest goes."""
    usual = NetworkConfig(inputs=[""])
    model = ModelConfig(**saved.config["model"])
    if model.positions != "coexpression":
        model = replace(model, encoder=False, linear=True)
    elif not model.reads_genes:
        model = replace(model, depth=0)
    training = saved.config.get("training", {})  # models of earlier versions do not have it
    steps = min(training.get("max_steps", MAX_STEPS), MAX_STEPS)
    size = training.get("batch_size", usual.trainer.batch_size)
    return replace(
        usual,
        seed=int(saved.provenance["seed"]),
        tokens=TokensConfig(**saved.config["tokens"]),
        model=model,
        attention=saved.config["attention"],
        head=HeadConfig(**saved.config["head"]),
        optim=OptimConfig(**training.get("optim", asdict(usual.optim))),
        # The adapted model, and the labels of a file, are then the same with a GPU and without.
        trainer=replace(usual.trainer, accelerator="cpu", max_steps=steps, batch_size=size),
    )


def _linear_options(saved: SavedModel, options: ModelConfig, path: Path) -> LinearOptions:
    """Return the options of the fit of a linear branch, or defaults if it was trained in another way."""
    made = saved.metrics.get("linear_branch", {"c": 0.1, "class_weights": "balanced", "weighting": "signal"})
    known = {"class_weights": ("none", "sqrt", "balanced"), "weighting": ("signal", "standard", "none")}
    try:
        is_sound = all(made[name] in choices for name, choices in known.items()) and 0 < made["c"] < math.inf
        found = LinearOptions(tuple(options.linear_powers), float(made["c"]), made["class_weights"], made["weighting"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_model(path, "no options of its linear branch") from error
    if not is_sound:
        raise damaged_model(path, "options of its linear branch that it cannot have")
    return found


def with_encoder_weight(model: Model, weight: float) -> Model:
    """Return a model with the logits of its encoder multiplied by a weight; see model/shift.py."""
    if weight == 1:
        return model
    network = deepcopy(model.network)
    assert isinstance(network, CellTypeModel)
    network.scale_branches(1.0, weight)
    scales = model.saved.scales | {"encoder": weight * model.saved.scales["encoder"]}
    saved = replace(model.saved, metrics=model.saved.metrics | {"scales": scales})
    return replace(model, saved=saved, own_network=network)


def usual_conditions(reference_cells: ReferenceCells, seed: int) -> dict[str, Condition]:
    """Return usual conditions of files, with fewer genes than the model, by their names in the model card."""
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
    """Return the expected accuracy and macro-F1 of a model under usual conditions, adapted to all but its own."""
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
