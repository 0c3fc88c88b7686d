"""Training on a labelled reference: prepare, split, fit the baseline, train the network, save the best as a bundle."""

import logging
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anndata import AnnData

from scperformer.config import AUTO, TrainConfig
from scperformer.dataset import Reference, make_reference, require_loadable, settle_in_memory, stream_reference
from scperformer.errors import InputError
from scperformer.files import beside, checksums, read_cells
from scperformer.metrics import score
from scperformer.model import INFO, Bundle, save_bundle, sum_of_branches
from scperformer.network import (
    Cells,
    CellTypeModel,
    LinearModel,
    Recipe,
    branch_logits,
    fit_baseline,
    fit_linear_branch,
    gene_means,
    require_encoder,
    row_subset,
    settle_recipe,
    torch_state_kept,
)
from scperformer.outputs import require_absent
from scperformer.training.batch_size import with_batch_size
from scperformer.training.encoder_start import start_attention, start_gene_vectors
from scperformer.training.head_start import start_head
from scperformer.training.run_folder import (
    changed_options,
    hush_helper,
    is_helper,
    open_run,
    record_end,
    record_start,
    recorded_options,
    recorded_versions,
)
from scperformer.training.scales import earned_scales
from scperformer.training.streaming import StreamedCells
from scperformer.training.transfer import adopt_options, in_order_of_init, init_hash, origin, start_from_init

log = logging.getLogger(__name__)


def fit(
    reference: Reference, cfg: TrainConfig, run_folder: Path
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Train on a reference: the weights of a bundle and the metrics on the validation cells.

    Parameters
    ----------
    reference
        The cells and their labels.
    run_folder
        Checkpoints and logs go here.

    Returns
    -------
    Arrays by name (`model.*`, `baseline.*`); metrics of model and baseline, chosen epoch, seconds. None in the
    processes of a distributed run that only help.
    """
    from scperformer.training.learner import train_network  # Lightning takes seconds to import

    start = time.perf_counter()
    x, labels = reference.x, reference.labels
    train_rows, val_rows = reference.split.train, reference.split.val
    train = Cells(row_subset(x, train_rows), cfg.tokens, labels[train_rows])
    val = Cells(row_subset(x, val_rows), cfg.tokens, labels[val_rows])
    network = new_network(reference, cfg)
    network.require_length(int(max(train.lengths.max(), val.lengths.max())))
    start_attention(network.encoder, train, cfg)
    start_head(network, train, cfg)
    recipe = wide_recipe(train, cfg)
    wide_start = fit_wide(train, recipe)
    move_wide(network, wide_start)
    log.info(
        "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, attention %s",
        len(train) if reference.stream is None else len(reference.stream.cells),
        len(val),
        x.shape[1],
        len(reference.label_names),
        sum(p.numel() for p in network.parameters()),
        cfg.attention["name"],
    )
    cells = train if reference.stream is None else StreamedCells(reference.stream, cfg.tokens, train)
    best_epoch = train_network(network, cells, val, cfg, run_folder)
    if best_epoch is None:
        return None
    try:
        metrics = {**scale_on_held_out(network, train, val, cfg), "best_epoch": best_epoch}
        metrics |= {} if recipe is None else {"linear_branch": asdict(recipe)}
    except InputError:  # it diverged: resume=true must not go on from here
        shutil.rmtree(run_folder / "checkpoints")
        raise
    # The held-out cells have done their work: the linear part learns from them too, as the baseline does. (Of cells
    # that stay on disk these are the sample and the held-out ones.)
    everything = Cells(x, cfg.tokens, labels)
    scale = metrics["scales"].get("wide", 0.0)
    move_wide(network, wide_start, by=-scale)
    move_wide(network, fit_wide(everything, recipe), by=scale)
    rival = fit_baseline(x, labels)
    weights = {f"model.{name}": tensor.cpu().numpy() for name, tensor in network.state_dict().items()}
    weights |= {"baseline.weight": rival.weight, "baseline.bias": rival.bias}
    return weights, metrics | {"seconds": round(time.perf_counter() - start, 1)}


def new_network(reference: Reference, cfg: TrainConfig) -> CellTypeModel:
    """The untrained network for a reference; the same for the same seed."""
    torch.manual_seed(cfg.seed)
    network = CellTypeModel(
        len(reference.genes),
        len(reference.label_names),
        tokens=cfg.tokens,
        model=cfg.model,
        attention=cfg.attention,
        head=cfg.head,
        seed=cfg.seed,
    )
    if network.encoder is not None:
        start_gene_vectors(network.encoder, reference.genes, cfg)
    start_from_init(network, reference.genes, cfg)
    return network


def scale_on_held_out(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig) -> dict[str, Any]:
    """Scale the branches of a trained network on the held-out cells; its metrics there, beside the baseline's."""
    wide, deep = branch_logits(network, val, cfg.trainer.batch_size)
    if not (np.isfinite(wide).all() and np.isfinite(deep).all()):
        found = "training that diverged (logits that are not finite)"
        raise InputError(found, "a loss that falls", f"lower optim.lr (now {cfg.optim.lr:g})")
    scale_wide, scale_deep, gain = earned_scales(wide, deep, val.known_labels, cfg.optim.deep_min_gain)
    if gain is not None:
        kept = "kept" if scale_deep else "left out"
        log.info("encoder %s: loss of a held-out cell falls by %.3f ± %.3f", kept, gain.mean, gain.standard_error)
    network.scale_branches(scale_wide, scale_deep)
    calls = (scale_wide * wide + scale_deep * deep).argmax(axis=1)
    rival = fit_baseline(train.x, train.known_labels)
    scales = {"wide": scale_wide, "deep": scale_deep}
    return {
        "num_val_cells": len(val),
        "model": asdict(score(val.known_labels, calls)),
        "baseline": asdict(score(val.known_labels, rival.predict(val.x))),
        "scales": {name: scale for name, scale in scales.items() if getattr(cfg.model, name)},
        **({} if gain is None else {"encoder_gain": asdict(gain)}),
    }


def wide_recipe(train: Cells, cfg: TrainConfig) -> Recipe | None:
    """How the wide branch is fitted, settled on the training cells; None if it starts at zero or is off."""
    optim = cfg.optim
    if not cfg.model.wide or optim.wide_start == "zero":
        return None
    powers = tuple(cfg.model.wide_powers)
    recipe = Recipe(powers, optim.wide_c, optim.wide_class_weights, optim.wide_gene_weights)
    settled = settle_recipe(train.x, train.known_labels, recipe, cfg.seed)
    if settled != recipe:
        chosen = settled.weighting, settled.class_weights
        log.info("linear branch: gene weights '%s', class weights '%s', the likelier ones on held-out cells", *chosen)
    return settled


def fit_wide(cells: Cells, recipe: Recipe | None) -> LinearModel | None:
    """What a wide branch starts as: logistic regression on its views; None for zeros or no wide branch."""
    return None if recipe is None else fit_linear_branch(cells.x, cells.known_labels, recipe)


def move_wide(network: CellTypeModel, linear: LinearModel | None, by: float = 1.0) -> None:
    """Add `by` times a linear model to the wide branch."""
    if network.wide is not None and linear is not None:
        with torch.no_grad():
            network.wide.weight.weight[:-1].add_(torch.from_numpy(linear.weight), alpha=by)
            network.wide.bias.add_(torch.from_numpy(linear.bias), alpha=by)


def provenance(reference: Reference, cfg: TrainConfig, source: dict[str, str]) -> dict[str, Any]:
    """Where a model comes from: data, options, command, versions.

    Parameters
    ----------
    source
        `reference` (file name) and `reference_sha256`.
    """
    counts = reference.counts
    return {
        **source,
        **origin(cfg, reference.genes),
        "label_key": cfg.label_key,
        "num_cells": int(counts.sum()),
        "cells_per_label": {label: int(n) for label, n in zip(reference.label_names, counts, strict=True)},
        "input": reference.summary,
        "split": reference.split.done,
        "rare_labels": reference.rare.done,
        "notes": reference.notes,
        "seed": cfg.seed,
        "command": command(cfg, source),
        "options": recorded_options(cfg),
        "versions": recorded_versions(),
    }


def to_bundle(
    reference: Reference, cfg: TrainConfig, *, name: str, made: dict[str, Any], fitted: tuple[dict, dict]
) -> Bundle:
    """Everything that prediction and a reader need to know, in one place.

    Parameters
    ----------
    made
        What `provenance` returns.
    fitted
        Weights and metrics, as `fit` returns them.
    """
    weights, metrics = fitted
    groups = {group: asdict(cfg)[group] for group in ("tokens", "model", "attention", "head")}
    if cfg.model.gene2vec_path is not None:
        groups["model"]["gene2vec_path"] = Path(cfg.model.gene2vec_path).name  # folders are nobody else's business
    return Bundle(
        name=name,
        genes=reference.genes,
        gene_means=gene_means(reference.x),
        labels=reference.label_names,
        ontology_term_ids=reference.ontology_term_ids,
        config={"target_sum": cfg.data.target_sum, **groups},
        metrics=metrics,
        provenance=made,
        weights=weights,
    )


def command(cfg: TrainConfig, source: dict[str, str]) -> str:
    """What trains such a model again: a line for a shell or, for cells in memory, a call in Python."""
    options = changed_options(cfg)
    if source["reference_sha256"]:
        return shlex.join(["scperformer", "train", *(Path(name).name for name in cfg.inputs), *options])
    overrides = [option for option in options if not option.startswith("label_key=")]
    return f"scperformer.train(adata, label_key={cfg.label_key!r}, overrides={overrides})"


def run_train(cfg: TrainConfig) -> Path:
    """Train a model on the labelled file `cfg.inputs[0]`; writes the model folder and returns its path.

    Raises
    ------
    InputError
        The file, its labels or its expression cannot be used, or the output exists.
    """
    hush_helper(cfg)
    paths = [Path(name) for name in cfg.inputs]
    cfg = settle_in_memory(cfg, paths)
    output = Path(cfg.output) if cfg.output else beside(paths[0], ".model")
    require_absent(output, cfg.overwrite, marker=INFO)
    source = {"reference": ", ".join(path.name for path in paths), "reference_sha256": checksums(paths)}
    _train(lambda cfg: load_reference(paths, cfg), cfg, output, source)
    return output


def load_reference(paths: Sequence[Path], cfg: TrainConfig) -> Reference:
    """The cells of a file in memory or, as `data.in_memory` says, those of one or more files on disk."""
    if cfg.data.in_memory is False:
        return stream_reference(paths, cfg)
    return make_reference(read_cells(paths[0], cfg.orientation), cfg, paths[0])


def train(adata: AnnData, label_key: str, *, output: str | Path, overrides: Sequence[str] = ()) -> Path:
    """Train a model on labelled cells in memory.

    Parameters
    ----------
    adata
        N cells x G genes: counts or log-normalised expression in X, a layer or `.raw`.
    label_key
        Column of `adata.obs` with the cell types.
    output
        The model folder to write.
    overrides
        Options as on the command line, such as `["model=tiny", "trainer.max_epochs=5"]`.

    Returns
    -------
    The path of the model folder, for `load_model`.
    """
    from scperformer.config import make_config, quoted

    required = ["inputs=[adata]", f"label_key={quoted(label_key)}", f"output={quoted(str(output))}"]
    cfg = make_config("train", [*required, *overrides])
    hush_helper(cfg)
    require_absent(output, cfg.overwrite, marker=INFO)
    require_loadable(cfg)
    source = {"reference": "AnnData in memory", "reference_sha256": ""}
    _train(lambda cfg: make_reference(adata, cfg, source["reference"]), cfg, Path(output), source)
    return Path(output)


@torch_state_kept()  # other libraries change the number of threads, too, when they are imported
def _train(load: Callable[[TrainConfig], Reference], cfg: TrainConfig, output: Path, source: dict[str, str]) -> None:
    if cfg.estimate:
        remedy = "call scperformer.estimate.run_estimate, or add --estimate to 'scperformer train'"
        raise InputError("estimate=true in a training", "estimate=false", remedy)
    cfg = adopt_options(cfg)
    if cfg.model.deep:
        require_encoder(cfg.tokens, cfg.model, cfg.attention)
    reference = in_order_of_init(load(cfg), cfg)
    run_folder = open_run(cfg, output, source["reference_sha256"] + init_hash(cfg))
    try:
        with torch_state_kept(cfg.trainer.threads):
            if cfg.trainer.batch_size == AUTO:
                train_cells = Cells(reference.x, cfg.tokens, reference.labels).subset(reference.split.train)
                cfg = with_batch_size(cfg, train_cells, new_network(reference, cfg), run_folder)
            made = provenance(reference, cfg, source)
            record_start(run_folder, cfg, made)
            fitted = fit(reference, cfg, run_folder)
    except InputError:  # an option that cannot be, or it diverged: nothing worth keeping has been written
        if not is_helper(cfg) and not (run_folder / "checkpoints").exists():
            shutil.rmtree(run_folder)
        raise
    if fitted is None:  # a helping process of a distributed run
        return
    _, metrics = fitted
    log.info(
        "%s (%s): accuracy %.3f, macro-F1 %.3f on %d validation cells; logistic regression %.3f, %.3f",
        f"best epoch {metrics['best_epoch']}" if metrics["best_epoch"] else "fitted, without training",
        sum_of_branches(metrics["scales"]),
        metrics["model"]["accuracy"],
        metrics["model"]["macro_f1"],
        metrics["num_val_cells"],
        metrics["baseline"]["accuracy"],
        metrics["baseline"]["macro_f1"],
    )
    bundle = to_bundle(reference, cfg, name=output.name.removesuffix(".model"), made=made, fitted=fitted)
    save_bundle(bundle, output, overwrite=cfg.overwrite, more=record_end(run_folder, metrics))
    shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)  # the logs stay
    log.info("written: %s", output)
