"""Train a model on a labelled reference: make a network, train it, scale its branches, write the model folder.

`wide` is the linear branch, `deep` the encoder."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anndata import AnnData

from scperformer.config import TrainConfig, make_config, quoted
from scperformer.dataset import Reference, make_reference, require_loadable, settle_in_memory, stream_reference
from scperformer.errors import InputError
from scperformer.files import beside, checksum, read_cells
from scperformer.metrics import score
from scperformer.model import INFO, Bundle, sum_of_branches
from scperformer.network import (
    Cells,
    CellTypeModel,
    branch_logits,
    fit_baseline,
    fit_linear_branch,
    gene_means,
    torch_state_kept,
)
from scperformer.outputs import require_absent
from scperformer.training.batch_size import with_batch_size
from scperformer.training.learner import train_network
from scperformer.training.run_folder import (
    Diverged,
    how_it_was_made,
    hush_helper,
    model_config,
    record_start,
    train_in_run_folder,
)
from scperformer.training.scales import earned_scales
from scperformer.training.source import source_of_cells
from scperformer.training.start import add_linear, linear_recipe, start_attention, start_gene_vectors, start_head
from scperformer.training.transfer import adopt_options, in_order_of_init, init_hash, origin, start_from_init

log = logging.getLogger(__name__)


def new_network(reference: Reference, cfg: TrainConfig) -> CellTypeModel:
    """Make the untrained network for a reference; the same for the same seed."""
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
        start_from_init(network.encoder, reference.genes, cfg)
    return network


def scale_on_held_out(network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig) -> dict[str, Any]:
    """Scale the branches of a trained network on the held-out cells.

    Returns
    -------
    Metrics of the scaled network on these cells, beside those of the baseline, and the scales.
    """
    wide, deep = branch_logits(network, val, cfg.trainer.batch_size)
    if not (np.isfinite(wide).all() and np.isfinite(deep).all()):
        raise Diverged("logits", cfg)
    scale_wide, scale_deep, gain = earned_scales(wide, deep, val.known_labels, cfg.optim.deep_min_gain)
    if gain is not None:
        kept = "kept" if scale_deep else "left out"
        log.info("encoder %s: loss of a held-out cell falls by %.3f ± %.3f", kept, gain.mean, gain.standard_error)
    network.scale_branches(scale_wide, scale_deep)
    calls = (scale_wide * wide + scale_deep * deep).argmax(axis=1)
    baseline = fit_baseline(train.x, train.known_labels)
    scales = {"wide": scale_wide, "deep": scale_deep}
    return {
        "num_val_cells": len(val),
        "model": asdict(score(val.known_labels, calls)),
        "baseline": asdict(score(val.known_labels, baseline.predict(val.x))),
        "scales": {name: scale for name, scale in scales.items() if getattr(cfg.model, name)},
        **({} if gain is None else {"encoder_gain": asdict(gain)}),
    }


def fit(reference: Reference, cfg: TrainConfig, source: dict[str, str], name: str, run_folder: Path) -> Bundle | None:
    """Train on a reference; checkpoints and logs go into the run folder.

    Parameters
    ----------
    source
        Entries of the provenance: `reference` (file names) and `reference_sha256` ("" for cells in memory).
    name
        Name of the model.

    Returns
    -------
    The trained model; None in all processes of a distributed run but the first.
    """
    begin = time.perf_counter()
    split = reference.split
    rows = split.train, split.val
    cells, val = source_of_cells(reference.x, reference.labels, rows, stream=reference.stream, tokens=cfg.tokens)
    train = cells.sample
    network = new_network(reference, cfg)
    network.require_length(int(max(train.lengths.max(), val.lengths.max())))
    cfg = with_batch_size(cfg, train, network, run_folder)
    counts = reference.counts
    provenance = {
        **source,
        **origin(cfg, reference.genes),
        "label_key": cfg.label_key,
        "num_cells": int(counts.sum()),
        "cells_per_label": {label: int(n) for label, n in zip(reference.label_names, counts, strict=True)},
        "input": reference.summary,
        "split": split.done,
        "rare_labels": reference.rare.done,
        "notes": reference.notes,
        **how_it_was_made(cfg, [Path(name).name for name in cfg.inputs] if source["reference_sha256"] else []),
    }
    record_start(run_folder, cfg, provenance)

    start_attention(network.encoder, train, cfg)
    start_head(network, train, cfg)
    recipe = linear_recipe(train, cfg)
    linear = None if recipe is None else fit_linear_branch(train.x, train.known_labels, recipe)
    add_linear(network, linear)
    log.info(
        "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, attention %s",
        len(cells),
        len(val),
        len(reference.genes),
        len(reference.label_names),
        sum(p.numel() for p in network.parameters()),
        cfg.attention["name"],
    )
    best_epoch = train_network(network, cells, val, cfg, run_folder)
    if best_epoch is None:
        return None

    metrics = {**scale_on_held_out(network, train, val, cfg), "best_epoch": best_epoch}
    if recipe is not None:
        metrics["linear_branch"] = asdict(recipe)
        # The scales are settled: replace the linear branch by a fit on all cells, including the held-out ones, as for
        # the baseline. (Cells on disk: the sample for linear fits and the held-out cells.)
        scale = metrics["scales"]["wide"]
        add_linear(network, linear, -scale)
        add_linear(network, fit_linear_branch(reference.x, reference.labels, recipe), scale)
    baseline = fit_baseline(reference.x, reference.labels)
    weights = {f"model.{name}": tensor.cpu().numpy() for name, tensor in network.state_dict().items()}
    weights |= {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias}
    log.info(
        "%s (%s): accuracy %.3f, macro-F1 %.3f on %d validation cells; logistic regression %.3f, %.3f",
        f"best epoch {best_epoch}" if best_epoch else "fitted, without training",
        sum_of_branches(metrics["scales"]),
        metrics["model"]["accuracy"],
        metrics["model"]["macro_f1"],
        len(val),
        metrics["baseline"]["accuracy"],
        metrics["baseline"]["macro_f1"],
    )
    return Bundle(
        name=name,
        genes=reference.genes,
        gene_means=gene_means(reference.x),
        labels=reference.label_names,
        ontology_term_ids=reference.ontology_term_ids,
        config=model_config(cfg, ("tokens", "model", "attention", "head")),
        metrics=metrics | {"seconds": round(time.perf_counter() - begin, 1)},
        provenance=provenance,
        weights=weights,
    )


def load_reference(paths: Sequence[Path], cfg: TrainConfig) -> Reference:
    """Load the cells of a file or, with `data.in_memory=false`, open one or more files whose cells stay on disk."""
    if cfg.data.in_memory is False:
        return stream_reference(paths, cfg)
    return make_reference(read_cells(paths[0], cfg.orientation), cfg, paths[0])


@torch_state_kept()  # the imports of other libraries change the number of threads, too
def _train(cells: AnnData | Sequence[Path], cfg: TrainConfig, output: Path) -> Path:
    """Train on a reference, in memory or in files, and write the model folder."""
    hush_helper(cfg)
    if cfg.estimate:
        remedy = "call scperformer.training.estimate.run_estimate, or add --estimate to 'scperformer train'"
        raise InputError("estimate=true in a training", "estimate=false", remedy)
    if isinstance(cells, AnnData):
        require_loadable(cfg)
    else:
        cfg = settle_in_memory(cfg, cells)
    require_absent(output, cfg.overwrite, marker=INFO)
    cfg = adopt_options(cfg)
    if isinstance(cells, AnnData):
        source = {"reference": "AnnData in memory", "reference_sha256": ""}
        reference = make_reference(cells, cfg, source["reference"])
    else:
        source = {"reference": ", ".join(path.name for path in cells), "reference_sha256": checksum(*cells)}
        reference = load_reference(cells, cfg)
    reference = in_order_of_init(reference, cfg)
    name, data = output.name.removesuffix(".model"), source["reference_sha256"] + init_hash(cfg)
    train_in_run_folder(cfg, output, data, lambda folder: fit(reference, cfg, source, name, folder))
    return output


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
    required = ["inputs=[adata]", f"label_key={quoted(label_key)}", f"output={quoted(str(output))}"]
    return _train(adata, make_config("train", [*required, *overrides]), Path(output))


def run_train(cfg: TrainConfig) -> Path:
    """Train a model on the labelled files `cfg.inputs`; write the model folder and return its path.

    Raises
    ------
    InputError
        A file, its labels or its expression cannot be used, or the output exists.
    """
    paths = [Path(name) for name in cfg.inputs]
    return _train(paths, cfg, Path(cfg.output) if cfg.output else beside(paths[0], ".model"))
