"""Train a model on a labelled reference: make a network, train it, scale its branches, write the model folder."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anndata import AnnData
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from scperformer.base.errors import InputError
from scperformer.base.metrics import score
from scperformer.cells import Reference, Sample, make_reference, read_unlabelled, recover_counts, stratified_sample
from scperformer.config import TrainConfig
from scperformer.files import checksum, default_output, read_cells
from scperformer.fitting import (
    MOST_DUAL,
    Fitted,
    conditions_table,
    evidence_folds,
    fill_network,
    fit_branches,
    fit_linear_branch,
    fit_logistic,
    scales_if_significant,
    simulated,
)
from scperformer.model import MOST_CELLS, MOST_VALUES, HeldOut, ReferenceCells, SavedModel, sum_of_branches
from scperformer.network import Cells, CellTypeModel, as_model, branch_logits, gene_means
from scperformer.training import initialise
from scperformer.training.batch_size import with_batch_size
from scperformer.training.loaders import StreamedCells, source_of_cells
from scperformer.training.run_folder import Diverged, is_helper, record_start, train_in_run_folder
from scperformer.training.supervised import has_to_learn, train_network
from scperformer.trust import calibration, fit_profile, left_out_table

log = logging.getLogger(__name__)


def load_reference(paths: Sequence[Path], cfg: TrainConfig) -> Reference:
    """Load the cells of a file or, with `data.in_memory=false`, open one or more files whose cells stay on disk."""
    in_memory = cfg.data.in_memory is not False
    source = Sample(read_cells(paths[0], cfg.orientation), paths[0]) if in_memory else paths
    return initialise.in_order_of_init(make_reference(source, cfg), cfg)


def new_network(reference: Reference, cfg: TrainConfig) -> CellTypeModel:
    """Make the untrained network for a reference; the same for the same seed."""
    torch.manual_seed(cfg.seed)
    options: dict[str, Any] = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    network = CellTypeModel(len(reference.genes), len(reference.label_names), seed=cfg.seed, **options)
    if network.encoder is not None:
        initialise.start_encoder(network.encoder, reference.genes, cfg)
    return network


def new_training(
    reference: Reference, cfg: TrainConfig, run_folder: Path | None
) -> tuple[CellTypeModel, Cells | StreamedCells, Cells, TrainConfig]:
    """Make the untrained network, part the cells into those to train and to validate on, and settle the batch size."""
    rows = reference.split.train, reference.split.val
    cells, val = source_of_cells(reference, reference.labels, rows, cfg.tokens)
    network = new_network(reference, cfg)
    network.require_length(int(max(cells.sample.lengths.max(), val.lengths.max())))
    return network, cells, val, with_batch_size(cfg, cells.sample, network, run_folder)


def scores_on_held_out(
    network: CellTypeModel, train: Cells, val: Cells, cfg: TrainConfig, fitted: Fitted
) -> tuple[dict[str, Any], HeldOut | None]:
    """Return the metrics on the held-out cells, the baseline's and the scales; also held-out calls with these scales.

    A network that was trained gets its scales and its held-out calls from these cells, one that was fitted has both
    already, from other cells.
    """
    linear, encoder = branch_logits(network, val, cfg.trainer.batch_size)
    if not (np.isfinite(linear).all() and np.isfinite(encoder).all()):
        raise Diverged("logits", cfg)
    found: dict[str, Any] = {"scales": fitted.scales, "out_of_fold": fitted.evidence}
    logits = linear + encoder
    held_out = fitted.held_out
    if not fitted.scales:
        min_gain = (
            0.0 if cfg.model.positions == "coexpression" else cfg.optim.encoder_min_gain
        )  # it has been seen to pay
        scale_linear, scale_encoder, gain = scales_if_significant(linear, encoder, val.known_labels, min_gain)
        if gain is not None:
            facts = "kept" if scale_encoder else "left out", gain["mean"], gain["standard_error"]
            log.info("encoder %s: loss of a held-out cell falls by %.3f ± %.3f", *facts)
        network.scale_branches(scale_linear, scale_encoder)
        scales = {"linear": scale_linear, "encoder": scale_encoder}
        found = {"scales": {name: scale for name, scale in scales.items() if getattr(cfg.model, name)}}
        found |= {} if gain is None else {"encoder_gain": gain}
        logits = scale_linear * linear + scale_encoder * encoder
        with threadpool_limits(1):  # sums in another order would change the last bits
            profile = fit_profile(train.x, train.known_labels, cfg.seed)
        held_out = HeldOut(logits, val.known_labels, profile.scores(val.x), vars(profile))
    baseline = fit_logistic(train.x, train.known_labels)
    return {
        "num_val_cells": len(val),
        "model": asdict(score(val.known_labels, logits.argmax(axis=1))),
        "baseline": asdict(score(val.known_labels, baseline.predict(val.x))),
        **found,
    }, held_out


def cells_to_keep(reference: Reference, cfg: TrainConfig) -> ReferenceCells | None:
    """Return up to `keep_cells` cells of the reference as counts, or as relative expression if it has none.

    With `keep_cells=0` as many as adapting uses are simulated instead; None without counts.
    """
    rows = stratified_sample(reference.labels, cfg.keep_cells or MOST_DUAL, cfg.seed)
    x = reference.x[rows]
    labels = reference.labels[rows]
    if len(rows) > MOST_CELLS or x.nnz > MOST_VALUES:
        found = f"{len(rows):,} cells to keep, with {x.nnz:,} values"
        raise InputError(found, f"at most {MOST_CELLS:,} with {MOST_VALUES:,}", f"lower keep_cells={cfg.keep_cells}")
    counts = recover_counts(x)
    if counts is not None:
        reference_cells = ReferenceCells(counts, labels, are_counts=True)
        return reference_cells if cfg.keep_cells else simulated(reference_cells, MOST_DUAL, cfg.seed)
    if not cfg.keep_cells:
        return None
    return ReferenceCells(csr_matrix((np.expm1(x.data), x.indices, x.indptr), shape=x.shape), labels, are_counts=False)


def facts_about(reference: Reference, cfg: TrainConfig) -> dict[str, Any]:
    """Return the entries of the provenance about the cells and labels of a reference."""
    counts = reference.counts
    facts: dict[str, Any] = {
        **initialise.origin(cfg, reference.genes),
        "label_key": cfg.label_key,
        "num_cells": int(counts.sum()),
        "cells_per_label": {label: int(n) for label, n in zip(reference.label_names, counts, strict=True)},
        "input": reference.summary,
        "split": reference.split.done,
        "rare_labels": reference.rare.done,
        "notes": reference.notes,
    }
    facts |= {} if cfg.tissue is None else {"tissue": cfg.tissue}
    facts |= {} if reference.terms.release is None else {"ontology": reference.terms.release}
    facts |= {"unlabelled": [Path(name).name for name in cfg.unlabelled]} if cfg.unlabelled else {}
    return facts


def fit(reference: Reference, cfg: TrainConfig, run_folder: Path, source: dict[str, str]) -> SavedModel | None:
    """Train on a reference in the run folder; None in all processes of a distributed run but the first.

    `source` has two entries of the provenance, `reference` (file names) and `reference_sha256` ("": cells in memory).
    """
    begin = time.perf_counter()
    reference_cells = cells_to_keep(reference, cfg)
    if cfg.conditions_table and (reference_cells is None or not reference_cells.are_counts):
        remedy = "name counts with source=layers/NAME, or leave conditions_table out"
        raise InputError("conditions_table=true and a reference without counts", "counts, which can be thinned", remedy)
    network, cells, val, cfg = new_training(reference, cfg, run_folder)
    train = cells.sample
    counts = reference.counts
    data = source | facts_about(reference, cfg)
    if reference_cells is None:
        log.warning("the reference has no counts from which cells could be simulated: the model cannot adapt to a file")
    elif not reference_cells.are_counts:
        log.info("the reference has no counts: a model adapted to a file takes its genes into account, not its depth")
    if reference_cells is not None:
        data["kept_cells"] = {"num_cells": len(reference_cells.labels), "simulated": not cfg.keep_cells}
    files = [Path(name).name for name in cfg.inputs] if source["reference_sha256"] else []
    recorded = record_start(run_folder, cfg, data, files)

    learns = has_to_learn(network, cfg.optim)
    if not learns and is_helper(cfg):  # nothing to share between processes
        return None
    initialise.start_attention(network.encoder, train, cfg)
    initialise.start_head(network, train, cfg)
    linear_options = initialise.find_linear_options(train, cfg)
    options: dict[str, Any] = {"linear_options": linear_options, "model": cfg.model, "head": cfg.head, "seed": cfg.seed}
    options["unlabelled"] = read_unlabelled(reference, cfg)
    fitted = fit_branches(train.x, train.known_labels, **options, with_evidence=not learns)
    fill_network(network, fitted, fitted.scales)
    sizes = len(cells), len(val), len(reference.genes), len(counts), sum(p.numel() for p in network.parameters())
    text = "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, attention %s"
    log.info(text, *sizes, cfg.attention["name"])
    if learns:
        reference_cells = (
            None  # a training may take long: their memory is free meanwhile, and the same cells are found again
        )
    best_epoch = train_network(network, cells, val, cfg, run_folder)
    if best_epoch is None:
        return None
    if learns:
        reference_cells = cells_to_keep(reference, cfg)

    metrics, held_out = scores_on_held_out(network, train, val, cfg, fitted)
    metrics["best_epoch"] = best_epoch
    if held_out is not None:
        metrics["calibration"] = calibration(held_out.logits, held_out.labels, reference.label_names)
        text = "calibration error of the confidence: %.3f on %d held-out cells, whose calls are kept (%.1f MB)"
        log.info(text, metrics["calibration"]["error"], len(held_out.labels), len(held_out.to_bytes()) / 1e6)
    if cfg.novelty_table:
        rows, folds = evidence_folds(train.known_labels, cfg.seed)
        areas = left_out_table(train.x[rows], train.known_labels[rows], folds, cfg.seed)
        found = zip(reference.label_names, areas.tolist(), strict=True)
        metrics["novelty"] = [{"label": label, "area": area} for label, area in found if np.isfinite(area)]
    if linear_options is not None:
        metrics["linear_branch"] = asdict(linear_options)
    # The scales are settled: replace what was fitted by fits to all cells, including the held-out ones, as for the
    # baseline. (Cells on disk: the sample for linear fits and the held-out cells.)
    if not learns:
        final = fit_branches(reference.x, reference.labels, **options, with_evidence=False)
        fill_network(network, final, metrics["scales"])
    elif fitted.linear is not None and linear_options is not None:
        scale = metrics["scales"]["linear"]
        initialise.add_linear(network, fitted.linear, -scale)
        initialise.add_linear(network, fit_linear_branch(reference.x, reference.labels, linear_options), scale)
    baseline = fit_logistic(reference.x, reference.labels)
    weights = {f"model.{name}": tensor.cpu().numpy() for name, tensor in network.state_dict().items()}
    how = f"best epoch {best_epoch}" if best_epoch else "fitted, without training"
    scores = [metrics[side][name] for side in ("model", "baseline") for name in ("accuracy", "macro_f1")]
    about = how, sum_of_branches(metrics["scales"]), *scores[:2], len(val), *scores[2:]
    log.info("%s (%s): accuracy %.3f, macro-F1 %.3f on %d validation cells; logistic regression %.3f, %.3f", *about)
    saved = SavedModel(
        name=run_folder.stem.removesuffix(".model"),
        genes=reference.genes,
        gene_means=gene_means(reference.x),
        labels=reference.label_names,
        ontology_term_ids=reference.terms.ids,
        tree=reference.terms.tree,
        metrics=metrics,
        weights=weights | {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias},
        reference_cells=reference_cells,
        held_out=held_out,
        **recorded,
    )
    if cfg.conditions_table and reference_cells is not None:
        metrics["conditions"] = conditions_table(as_model(saved, run_folder), reference_cells, cfg.seed)
    metrics["seconds"] = round(time.perf_counter() - begin, 1)
    return saved


def train_cells(cells: AnnData | None, cfg: TrainConfig, output: Path) -> Path:
    """Train on cells in memory or, without them, on the files `cfg.inputs`, and write the model folder."""
    if cfg.estimate:
        remedy = "add --estimate to 'scperformer train'"
        raise InputError("estimate=true in a training", "estimate=false", remedy)
    paths = [Path(name) for name in cfg.inputs] if cells is None else []
    names = ", ".join(path.name for path in paths) or "AnnData in memory"
    source = {"reference": names, "reference_sha256": ""}

    def load(cfg: TrainConfig) -> tuple[Reference, str]:
        if cells is not None:
            return initialise.in_order_of_init(make_reference(Sample(cells, Path(names)), cfg), cfg), ""
        source["reference_sha256"] = checksum(*paths)
        return load_reference(paths, cfg), source["reference_sha256"]

    return train_in_run_folder(cfg, paths, output, load, partial(fit, source=source))


def run_train(cfg: TrainConfig) -> Path:
    """Train a model on the labelled files `cfg.inputs`; write the model folder and return its path."""
    return train_cells(None, cfg, Path(cfg.output) if cfg.output else default_output(Path(cfg.inputs[0]), ".model"))
