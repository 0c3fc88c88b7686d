"""Train a model on a labelled reference: prepare, fit, evaluate, fit to all cells, write the model folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from anndata import AnnData

from scperformer.attention.registry import with_source
from scperformer.base.errors import InputError
from scperformer.base.messages import named
from scperformer.base.sparse import gene_means, undo_log
from scperformer.cells.collection import Config, choose_storage, reference_cells
from scperformer.cells.normalisation import recover_counts
from scperformer.cells.opened import OpenedCells, whole_cells
from scperformer.cells.profiles import reference_of
from scperformer.cells.reference import Reference
from scperformer.cells.repeats import cell_hashes
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import TokensConfig, TrainerConfig, TrainOptions
from scperformer.fits.performer import encoder_facts
from scperformer.fits.steps import device_of
from scperformer.io.gene_matching import map_genes
from scperformer.io.marker_lists import read_marker_list
from scperformer.io.read import origins
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.bundle import BatchNames, MarkerFacts, OriginalModel, Provenance, Values
from scperformer.model.inference import torch_state_kept
from scperformer.model.network import require_encoder
from scperformer.model.saved_model import HASHES, SavedModel, branch_names, sum_of_branches
from scperformer.training.estimate import training_cost
from scperformer.training.mixed_labels import sort_mixed
from scperformer.training.run_folder import RunFolder, training_run
from scperformer.training.strategies import Training, start_training
from scperformer.trust.confidence import Calibration, calibration

log = logging.getLogger(__name__)

NO_FILE = "AnnData in memory"
LONG_TRAINING = 300.0  # seconds of a training, whose estimate is logged


class TokenEncoder(Protocol):
    """Attention between tokens for a training, which the lab has."""

    cfg: TrainOptions
    init_hash: str  # of the model from which it starts

    def ordered(self, reference: Reference) -> Reference: ...
    def prepare(self, training: Training) -> OriginalModel | None: ...
    def train(self, training: Training, folder: Path) -> None: ...
    def load_best(self, training: Training, folder: Path) -> int: ...


def train_cells(
    cells: AnnData | None,
    cfg: TrainOptions,
    output: Path,
    encoder: TokenEncoder | None = None,
    profiles: Sequence[Path] = (),
) -> Path:
    """Train on cells in memory or, without them, on the files `cfg.inputs`; write the model folder, and return it.

    `encoder` is needed if the options ask for attention between tokens or for `init`. If None, the linear branch and
    the Performer are fitted. `profiles` are files that complete the labels of the only other one.
    """
    if cfg.model.encoder:
        device_of(cfg.trainer)  # refuses a missing GPU before any cell is read
    cfg = settled(cfg) if encoder is None else encoder.cfg
    paths = [Path(name) for name in cfg.inputs] if cells is None else []
    cell_paths = [path for path in paths if path not in profiles]
    cfg = choose_storage(cfg, cell_paths)
    with training_run(cfg, output, paths, "" if encoder is None else encoder.init_hash) as run:
        if run is not None:
            files = [reference_cells(path, cfg) for path in cell_paths]
            if cells is not None:
                files = [OpenedCells(cells, cfg, NO_FILE)]
            reference = reference_of(files, [whole_cells(path, cfg) for path in profiles])
            if encoder is not None:
                reference = encoder.ordered(reference)
            # set here, as reading imports libraries that change it
            with torch_state_kept(cfg.trainer.threads):
                saved = train_on(reference, cfg, run, source_of(paths), encoder)
            if saved is not None:
                run.write(saved)
    return output


def source_of(paths: Sequence[Path]) -> Values:
    """Return the entries of the provenance about the files of a reference; none: cells in memory."""
    if not paths:
        return {"reference": NO_FILE, "reference_sha256": ""}
    files, digest = origins(paths)
    names = ", ".join(Path(file).name for file in files)
    return {"reference": names, "reference_path": ", ".join(files), "reference_sha256": digest}


def settled(cfg: Config) -> Config:
    """Return the options of a network with the source of its mechanism; refuse options that fit no network.

    Options without effect on a Performer or the pooled encoder, which are trained on sums over genes, are logged.
    """
    cfg = replace(cfg, attention=with_source(cfg.attention))
    if cfg.model.encoder:
        require_encoder(cfg.tokens, cfg.model, cfg.attention)
    if not cfg.model.uses_cross_attention:
        return cfg
    unused = {"tokens": cfg.tokens != TokensConfig(), "model.norm": cfg.model.norm != "pre"}
    unused["attention"] = cfg.model.depth == 0 and cfg.attention["name"] != "favor"
    for name in ("max_epochs", "patience", "devices", "num_nodes"):
        unused[f"trainer.{name}"] = getattr(cfg.trainer, name) != getattr(TrainerConfig, name)
    if any(unused.values()):
        names = ", ".join(name for name, is_set in unused.items() if is_set)
        log.warning(
            "%s: no effect with model=performer or pooled, which read sums over the genes of a cell",
            names,
        )
    return cfg


def train_on(
    reference: Reference,
    cfg: TrainOptions,
    run: RunFolder,
    source: Values,
    encoder: TokenEncoder | None = None,
) -> SavedModel | None:
    """Train on a reference from `source_of` files; return None in the helping processes of a distributed run."""
    begin = time.perf_counter()
    if encoder is None:
        _log_cost(reference)
    reference, mixed, resembles = sort_mixed(reference, cfg)
    hashes = _hashes(reference)
    stored = cells_to_store(reference, cfg.keep_cells, cfg.seed)
    training = start_training(reference, cfg, run)
    init = None if encoder is None else encoder.prepare(training)
    provenance, config = run.record(
        training.cfg, _provenance(training, stored, source, init, mixed, resembles)
    )
    if reference.own_totals:
        config.own_totals = True
    if encoder is None and not run.is_first:  # the first process fits alone
        return None

    fitted = training.fit()
    best_epoch = 0  # branches that are fitted have no epochs
    if encoder is not None:
        stored = None  # frees memory during the training; the same cells are drawn again below
        encoder.train(training, run.folder)
        if not run.is_first:
            return None
        best_epoch = encoder.load_best(training, run.folder)
        stored = cells_to_store(reference, cfg.keep_cells, cfg.seed)

    metrics, held_out = training.evaluate(fitted)
    metrics.best_epoch = best_epoch
    metrics.calibration = _calibration(held_out, provenance.cells_per_label or {})
    if training.plan.linear is not None:
        metrics.linear_branch = asdict(training.plan.linear)
    baseline = training.refit(fitted, metrics.scales or {})
    weights = {
        f"model.{name}": tensor.cpu().numpy()
        for name, tensor in training.network.state_dict().items()
    }
    weights |= {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias, HASHES: hashes}
    if training.network.encoder is not None:
        metrics.encoder = encoder_facts(training.network.encoder, training.cfg)
    metrics.seconds = round(time.perf_counter() - begin, 1)
    saved = SavedModel(
        name=run.folder.stem.removesuffix(".model"),
        genes=reference.genes,
        gene_means=gene_means(reference.x),
        labels=reference.label_names,
        ontology_term_ids=reference.terms.ids,
        tree=reference.terms.tree,
        config=config,
        metrics=metrics,
        provenance=provenance,
        weights=weights,
        reference_cells=stored,
        held_out=held_out,
    )
    log_scores(saved)
    return saved


def _log_cost(reference: Reference) -> None:
    num_cells = int(reference.counts.sum())
    values = reference.x.nnz * num_cells / reference.x.shape[0]
    sizes = num_cells, len(reference.genes), len(reference.label_names), values
    seconds, text = training_cost(*sizes, on_disk=reference.stream is not None)
    if seconds > LONG_TRAINING:
        log.info("%s", text)


def _hashes(reference: Reference) -> np.ndarray:
    """Return a hash of each cell; refuse cells that are all the same, and warn of some that are."""
    hashes = cell_hashes(undo_log(reference.x))
    known = hashes[hashes != 0]  # 0: too few genes to say
    if len(known) == len(hashes) and len(np.unique(known)) == 1:
        found = f"{len(hashes)} cells with the same expression in the reference"
        remedy = "name the place of their counts, such as source=layers/counts"
        raise InputError("identical-cells", found, "cells that differ", remedy)
    if num := len(known) - len(np.unique(known)):
        text = "%d of %d cells are copies of others, so that accuracies of held-out cells are too high: remove them"
        log.warning(text, num, len(hashes))
    return hashes


def cells_to_store(reference: Reference, num: int, seed: int) -> ReferenceCells | None:
    """Return up to `num` cells of the reference as counts, or as relative expression if it has none."""
    if not num:
        return None
    rows = stratified_sample(reference.labels, num, seed)
    x = reference.x[rows]
    counts = recover_counts(x)
    relative = undo_log(x).astype(np.float32) if counts is None else counts
    batches = None if reference.batches is None else reference.batches[rows]
    return ReferenceCells(
        relative, reference.labels[rows], are_counts=counts is not None, batches=batches
    )


def _provenance(
    training: Training,
    stored: ReferenceCells | None,
    source: Values,
    init: OriginalModel | None,
    mixed: list[str],
    resembles: str | None,
) -> Provenance:
    """Return what the provenance states about a reference with `mixed` labels, which resemble a packaged tissue.

    Logs the limits of its cells.
    """
    reference = training.reference
    cfg = training.cfg
    if stored is not None and not stored.are_counts:
        log.info(
            "the reference has no counts: a model adapted to a file takes its genes into account, not its depth"
        )
    batches = (
        None
        if reference.batches is None
        else BatchNames(key=cfg.batch_key, names=reference.batch_names)
    )
    return Provenance(
        **source,
        init=init,
        label_key=cfg.label_key or "",  # the names of profiles
        called=reference.called or None,
        named=reference.named or None,
        num_cells=int(reference.counts.sum()),
        cells_per_label=dict(zip(reference.label_names, reference.counts.tolist(), strict=True)),
        input=reference.summary,
        split=reference.split.record,
        rare_labels=reference.rare,
        notes=reference.notes + mixed,
        batches=batches,
        tissue=cfg.tissue,
        resembles=resembles,
        ontology=reference.terms.release,
        cells_without_label=reference.num_unlabelled or None,
        unlabelled=[Path(name).name for name in cfg.unlabelled] or None,
        markers=_marker_facts(reference, cfg),
        kept_cells=None if stored is None else {"num_cells": len(stored.labels)},
        seed=cfg.seed,
    )


def _marker_facts(reference: Reference, cfg: TrainOptions) -> MarkerFacts | None:
    """Return the list of marker genes that named the cells, with its genes that the reference has."""
    if cfg.types is None:
        return None
    markers = read_marker_list(cfg.types)
    target = map_genes(reference.genes, markers.genes, species=cfg.species).target
    name_of = {
        markers.genes[target[place]]: reference.genes[place]
        for place in np.flatnonzero(target >= 0)
    }
    genes = {
        label: [
            name_of[gene]
            for gene, weight in markers.of_label(label).items()
            if weight > 0 and gene in name_of
        ]
        for label in markers.labels
        if label in reference.label_names
    }
    return MarkerFacts(source=Path(cfg.types).name, genes=genes) if any(genes.values()) else None


def _calibration(held_out: HeldOut, cells_per_label: dict[str, int]) -> Calibration:
    """Return the calibration of the confidence on held-out cells; log it, and the labels without such cells."""
    labels = enumerate(cells_per_label.items())
    if untested := {name: num for label, (name, num) in labels if label not in held_out.labels}:
        text = "no cell of these labels is held out, as they have few cells or occur in few batches: %s"
        log.warning(text, named(untested))
    found = calibration(held_out.logits, held_out.labels)
    text = "calibration error of the confidence: %.3f on %d held-out cells"
    log.info(text, found.error, len(held_out.labels))
    return found


def log_scores(saved: SavedModel) -> None:
    """Log the scores of the model beside logistic regression and each branch alone."""
    metrics = saved.metrics
    how = f"best epoch {metrics.best_epoch}"
    if not metrics.best_epoch:
        training = saved.config.training
        how = (
            "fitted, without training"
            if training is None
            else f"trained for {training.max_steps} steps"
        )
    ours, baseline = metrics.model or {}, metrics.baseline or {}
    text = (
        "%s (%s): accuracy %.3f, macro-F1 %.3f on %d held-out cells; logistic regression %.3f, %.3f"
    )
    scores = (
        ours["accuracy"],
        ours["macro_f1"],
        metrics.num_val_cells,
        baseline["accuracy"],
        baseline["macro_f1"],
    )
    log.info(text, how, sum_of_branches(saved.scales), *scores)
    titles = branch_names(metrics.encoder)
    each = "{accuracy:.3f}, {macro_f1:.3f}, {loss:.3f}"
    texts = [
        f"{titles[name]} {each.format(**scores)}" for name, scores in saved.branch_scores.items()
    ]
    if texts:
        log.info("out-of-fold accuracy, macro-F1 and loss: %s", "; ".join(texts))
    fold = metrics.out_of_fold
    accuracy = ours["accuracy"] if fold is None else fold.accuracy
    least = ((fold and fold.baseline) or baseline)["accuracy"]
    if accuracy < least:
        text = "the model is below logistic regression on held-out cells (accuracy %.3f, %.3f): %s"
        remedy = "check it by 'scperformer evaluate' on other labelled cells before use"
        log.warning(text, accuracy, least, remedy)
