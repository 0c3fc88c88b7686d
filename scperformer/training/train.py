"""Train a model on a labelled reference: prepare, fit or train, score, refit to all cells, write the model folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from anndata import AnnData
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from scperformer.base.errors import InputError
from scperformer.base.metrics import score
from scperformer.cells.normalisation import recover_counts
from scperformer.cells.on_disk import Sample, settle_in_memory
from scperformer.cells.reference import Reference, make_reference, read_unlabelled
from scperformer.cells.repeats import cell_hashes, linear
from scperformer.cells.splits import stratified_sample
from scperformer.io.read import checksum, origins, read_cells
from scperformer.lab.batch_size import with_batch_size
from scperformer.lab.initialise import (
    Init,
    add_linear,
    adopt_options,
    find_linear_options,
    in_order_of_init,
    load_init,
    start_attention,
    start_encoder,
    start_head,
)
from scperformer.lab.supervised import has_layers, train_network
from scperformer.model.batches import Cells, gene_means
from scperformer.model.confidence import calibration
from scperformer.model.held_out import HeldOut
from scperformer.model.inference import branch_logits, torch_state_kept
from scperformer.model.load import as_model
from scperformer.model.network import CellTypeModel
from scperformer.model.novelty import fit_profile, left_out_table
from scperformer.model.performer import Performer
from scperformer.model.reference_cells import MAX_CELLS, MAX_VALUES, ReferenceCells
from scperformer.model.saved_model import HASHES, SavedModel, branch_names, sum_of_branches
from scperformer.training.condition import simulated
from scperformer.training.evidence import (
    MIN_GAIN,
    Fitted,
    evidence_folds,
    fill_network,
    fit_branches,
    scales_if_significant,
)
from scperformer.training.expected_accuracy import conditions_table
from scperformer.training.fit_linear import MAX_DUAL, LinearOptions, fit_linear_branch, fit_logistic
from scperformer.training.fit_performer import encoder_facts
from scperformer.training.loaders import StreamedCells, source_of_cells
from scperformer.training.run_folder import (
    Diverged,
    checksum_with,
    is_finished,
    is_helper,
    opened_run,
    quiet_if_helper,
    record_start,
    require_place,
    write_trained,
)
from scperformer.training.studies import train_studies, trains_studies
from scperformer.training.trainer import device_of

if TYPE_CHECKING:
    from scperformer.cli.train import TrainConfig

log = logging.getLogger(__name__)


@torch_state_kept()  # other libraries change the number of threads, too, when they are imported
def train_cells(cells: AnnData | None, cfg: TrainConfig, output: Path) -> Path:
    """Train on cells in memory or, without them, on the files `cfg.inputs`, and write the model folder."""
    if cells is None:
        require_distinct(cfg.inputs)
    if cfg.model.encoder:
        device_of(cfg.trainer)  # refuses a missing GPU before any cell is read
    if trains_studies(cfg, len(cfg.inputs) if cells is None else 1):
        return train_studies(cells, cfg, output, train_on)
    quiet_if_helper(cfg)
    paths = [Path(name) for name in cfg.inputs] if cells is None else []
    cfg = settle_in_memory(cfg, paths)
    require_place(cfg, output)
    init = load_init(cfg)
    cfg = adopt_options(cfg, init)
    reference = load_reference(paths if cells is None else cells, cfg, init)
    source = source_of(paths)
    data_checksum = checksum_with(cfg, checksum(*paths) if paths else "", init)
    if is_finished(cfg, output, data_checksum):
        log.info("%s is finished: nothing to resume", output)
        return output
    with opened_run(cfg, output, data_checksum) as folder:
        saved = train_on(reference, cfg, folder, init, source)
        if saved is not None:
            write_trained(saved, output, folder, overwrite=cfg.overwrite)
    return output


def source_of(paths: Sequence[Path]) -> dict[str, str]:
    """Return the entries of the provenance about the files of a reference; none: cells in memory."""
    if not paths:
        return {"reference": "AnnData in memory", "reference_sha256": ""}
    files, digest = origins(paths)
    names = ", ".join(Path(file).name for file in files)
    return {"reference": names, "reference_path": ", ".join(files), "reference_sha256": digest}


def require_distinct(inputs: Sequence[str]) -> None:
    """Refuse a file that is named twice."""
    for number, name in enumerate(inputs):
        if Path(name).resolve() in [Path(other).resolve() for other in inputs[:number]]:
            raise InputError(f"{name} twice among the files to train on", "each file once", "leave one of them out")


def load_reference(source: AnnData | Sequence[Path], cfg: TrainConfig, init: Init | None) -> Reference:
    """Load cells in memory or a file, or open one or more files whose cells stay on disk (`data.in_memory=false`)."""
    if isinstance(source, AnnData):
        reference = make_reference(Sample(source, Path("AnnData in memory")), cfg)
    elif cfg.data.in_memory is not False:
        reference = make_reference(Sample(read_cells(source[0], cfg.orientation), source[0]), cfg)
    else:
        reference = make_reference(source, cfg)
    return in_order_of_init(reference, init)


@dataclass
class Training:
    """What a training works on."""

    reference: Reference
    cfg: TrainConfig  # with a number as batch size
    network: CellTypeModel
    cells: Cells | StreamedCells  # to train on
    val: Cells  # to validate on
    num_known_genes: int  # genes that `init` knows
    unlabelled: csr_matrix | None  # more cells, from which vectors of genes are learned, too

    @property
    def vectors(self) -> np.ndarray | None:
        """The vectors of genes, G x D, that a Performer takes from `init`; None: they are learned from the cells."""
        encoder = self.network.encoder
        if self.cfg.init is None or not isinstance(encoder, Performer):
            return None
        return encoder.vectors_GD.detach().numpy()

    @property
    def train(self) -> Cells:
        """The cells to train on that are in memory: all of them, or a sample of cells on disk."""
        return self.cells.sample

    @property
    def batches(self) -> np.ndarray | None:
        """The index of the batch of each of the cells `train`, if batches are known."""
        batches = self.reference.batches
        return None if batches is None else batches[self.reference.split.train]

    @property
    def learns(self) -> bool:
        """Whether the network has layers to train; else its branches are fitted."""
        return has_layers(self.network)


def train_on(
    reference: Reference, cfg: TrainConfig, folder: Path, init: Init | None, source: dict[str, str]
) -> SavedModel | None:
    """Train on a reference in the run folder; None in all processes of a distributed run but the first.

    `source` has the entries of the provenance about its files (`source_of`).
    """
    begin = time.perf_counter()
    hashes = cell_hashes(linear(reference.x))
    if len(np.unique(hashes)) == 1 and hashes[0]:  # 0: too few genes to say
        found = f"{len(hashes)} cells with the same expression in the reference"
        raise InputError(found, "cells that differ", "name the place of their counts, such as source=layers/counts")
    if num := np.count_nonzero(hashes) - len(np.unique(hashes[hashes != 0])):
        text = "%d of %d cells are copies of others, so that accuracies of held-out cells are too high: remove them"
        log.warning(text, num, len(hashes))
    reference_cells = cells_to_store(reference, cfg)
    training = prepare(reference, cfg, init, folder)
    facts = source | facts_about(training, init) | facts_about_stored(reference_cells, cfg)
    files = [Path(name).name for name in cfg.inputs] if source["reference_sha256"] else []
    recorded = record_start(folder, training.cfg, facts, files)
    if not training.learns and is_helper(cfg):  # the first process fits alone
        return None

    linear_options, fitted = fit(training, folder)
    if training.learns:
        reference_cells = None  # frees memory during the training; the same cells are drawn again below
    best_epoch = train_network(training.network, training.cells, training.val, training.cfg, folder)
    if best_epoch is None:
        return None
    if training.learns:
        reference_cells = cells_to_store(reference, cfg)

    metrics, held_out = score_on_held_out(training, fitted)
    metrics["best_epoch"] = best_epoch
    metrics |= evidence_of_trust(training, held_out)
    if linear_options is not None:
        metrics["linear_branch"] = asdict(linear_options)
    weights = refit(training, fitted, linear_options, metrics["scales"]) | {HASHES: hashes}
    if training.network.encoder is not None:
        metrics["encoder"] = encoder_facts(training.network.encoder, training.cfg)
    log_scores(metrics, training)
    saved = SavedModel(
        name=folder.stem.removesuffix(".model"),
        genes=reference.genes,
        gene_means=gene_means(reference.x),
        labels=reference.label_names,
        ontology_term_ids=reference.terms.ids,
        tree=reference.terms.tree,
        metrics=metrics,
        weights=weights,
        reference_cells=reference_cells,
        held_out=held_out,
        **recorded,
    )
    log_branch_scores(saved)
    if cfg.card == "full" and reference_cells is not None:
        metrics["conditions"] = conditions_table(as_model(saved, folder), reference_cells, cfg.seed)
    metrics["seconds"] = round(time.perf_counter() - begin, 1)
    return saved


# Prepare


def cells_to_store(reference: Reference, cfg: TrainConfig) -> ReferenceCells | None:
    """Return up to `keep_cells` cells of the reference as counts, or as relative expression if it has none.

    With `keep_cells=0` as many as adapting uses are simulated instead; None without counts.
    """
    rows = stratified_sample(reference.labels, cfg.keep_cells or MAX_DUAL, cfg.seed)
    x = reference.x[rows]
    labels = reference.labels[rows]
    batches = None if reference.batches is None else reference.batches[rows]
    if len(rows) > MAX_CELLS or x.nnz > MAX_VALUES:
        found = f"{len(rows):,} cells to keep, with {x.nnz:,} values"
        raise InputError(found, f"at most {MAX_CELLS:,} with {MAX_VALUES:,}", f"lower keep_cells={cfg.keep_cells}")
    counts = recover_counts(x)
    if counts is None and cfg.card == "full":
        remedy = "name counts with source=layers/NAME, or leave card=full out"
        raise InputError("card=full and a reference without counts", "counts, which can be thinned", remedy)
    if counts is not None:
        cells = ReferenceCells(counts, labels, are_counts=True, batches=batches)
        return cells if cfg.keep_cells else simulated(cells, MAX_DUAL, cfg.seed)
    if not cfg.keep_cells:
        return None
    relative = csr_matrix((np.expm1(x.data), x.indices, x.indptr), shape=x.shape)
    return ReferenceCells(relative, labels, are_counts=False, batches=batches)


def prepare(reference: Reference, cfg: TrainConfig, init: Init | None, folder: Path | None) -> Training:
    """Make the untrained network, split the cells into training and validation cells, and settle the batch size."""
    rows = reference.split.train, reference.split.val
    cells, val = source_of_cells(reference, reference.labels, rows, cfg.tokens)
    network, num_known_genes = new_network(reference, cfg, init)
    network.require_length(int(max(cells.sample.lengths.max(), val.lengths.max())))
    cfg = with_batch_size(cfg, cells.sample, network, folder)
    return Training(reference, cfg, network, cells, val, num_known_genes, read_unlabelled(reference, cfg))


def new_network(reference: Reference, cfg: TrainConfig, init: Init | None) -> tuple[CellTypeModel, int]:
    """Make the untrained network for a reference, the same for the same seed, and count the genes that `init` knows."""
    torch.manual_seed(cfg.seed)
    options: dict[str, Any] = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    network = CellTypeModel(len(reference.genes), len(reference.label_names), seed=cfg.seed, **options)
    num_known_genes = 0
    if network.encoder is not None:
        num_known_genes = start_encoder(network.encoder, reference.genes, cfg, init)
    return network, num_known_genes


def facts_about(training: Training, init: Init | None) -> dict[str, Any]:
    """Return the entries of the provenance about the cells and labels of a reference."""
    reference = training.reference
    cfg = training.cfg
    facts: dict[str, Any] = {}
    if init is not None:
        facts["init"] = init.provenance(training.num_known_genes) | {"mode": init.mode}
    facts |= {
        "label_key": cfg.label_key,
        "num_cells": int(reference.counts.sum()),
        "cells_per_label": {
            label: int(num) for label, num in zip(reference.label_names, reference.counts, strict=True)
        },
        "input": reference.summary,
        "split": reference.split.done,
        "rare_labels": reference.rare.done,
        "notes": reference.notes,
    }
    if reference.batches is not None:
        facts["batches"] = {"key": cfg.batch_key, "names": reference.batch_names}
    if cfg.tissue is not None:
        facts["tissue"] = cfg.tissue
    if reference.terms.release is not None:
        facts["ontology"] = reference.terms.release
    if cfg.unlabelled:
        facts["unlabelled"] = [Path(name).name for name in cfg.unlabelled]
    return facts


def facts_about_stored(reference_cells: ReferenceCells | None, cfg: TrainConfig) -> dict[str, Any]:
    """Return the entry of the provenance about the stored cells, and log what they cannot be used for."""
    if reference_cells is None:
        log.warning("the reference has no counts from which cells could be simulated: the model cannot adapt to a file")
        return {}
    if not reference_cells.are_counts:
        log.info("the reference has no counts: a model adapted to a file takes its genes into account, not its depth")
    return {"kept_cells": {"num_cells": len(reference_cells.labels), "simulated": not cfg.keep_cells}}


# Fit, score, refit


def fit(training: Training, folder: Path | None = None) -> tuple[LinearOptions | None, Fitted]:
    """Fit all that is fitted before a training: the start of attention and head, the branches without layers.

    Branches that are not trained afterwards also get their scales, from cross-validated calls.
    """
    network = training.network
    train = training.train
    cfg = training.cfg
    start_attention(network.encoder, train, cfg)
    start_head(network, train, cfg)
    linear_options = find_linear_options(train, cfg, training.batches)
    fitted = fit_branches(
        train.x,
        train.known_labels,
        linear_options=linear_options,
        cfg=cfg,
        unlabelled=training.unlabelled,
        vectors=training.vectors,
        batches=training.batches,
        with_evidence=not training.learns,
        folder=folder,
    )
    fill_network(network, fitted, fitted.scales)
    reference = training.reference
    text = "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, %s"
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    sizes = len(training.cells), len(training.val), len(reference.genes), len(reference.counts), num_parameters
    has_attention = network.encoder is not None and bool(network.encoder.mechanisms)
    log.info(text, *sizes, f"attention {cfg.attention['name']}" if has_attention else "no attention")
    return linear_options, fitted


def score_on_held_out(training: Training, fitted: Fitted) -> tuple[dict[str, Any], HeldOut | None]:
    """Return the metrics on the validation cells, the baseline's and the scales; also held-out calls with these scales.

    A network that was trained gets its scales and its held-out calls from the validation cells, one that was fitted has
    both already, from cross-validation.
    """
    train = training.train
    val = training.val
    linear, encoder = branch_logits(training.network, val, training.cfg.trainer.batch_size)
    if not (np.isfinite(linear).all() and np.isfinite(encoder).all()):
        raise Diverged("logits", training.cfg)
    if fitted.scales:
        logits = linear + encoder
        held_out = fitted.held_out
        evidence: dict[str, Any] = {"scales": fitted.scales, "out_of_fold": fitted.evidence}
    else:
        logits, evidence = scale_by_validation(training, linear, encoder)
        with threadpool_limits(1):  # sums in another order would change the last bits
            profile = fit_profile(train.x, train.known_labels, training.cfg.seed)
        held_out = HeldOut(logits, val.known_labels, profile.scores(val.x), vars(profile))
    baseline = fit_logistic(train.x, train.known_labels)
    metrics = {
        "num_val_cells": len(val),
        "model": score(val.known_labels, logits.argmax(axis=1)),
        "baseline": score(val.known_labels, baseline.predict(val.x)),
        **evidence,
    }
    if training.cfg.model.linear and encoder.any():  # it tells encoders apart whose model leaves them out
        metrics["encoder_alone"] = score(val.known_labels, encoder.argmax(axis=1))
    return metrics, held_out


def scale_by_validation(
    training: Training, linear: np.ndarray, encoder: np.ndarray
) -> tuple[np.ndarray, dict[str, Any]]:
    """Scale the branches of a trained network on the validation cells; return their logits and the evidence.

    `linear` and `encoder` are the logits of the branches, N x C. An encoder whose gain is not significant is left out.
    """
    # Layers on a fitted encoder are kept in any case: they start at 0, and were seen to help other studies.
    min_gain = 0.0 if training.cfg.model.positions == "coexpression" else MIN_GAIN
    labels = training.val.known_labels
    scale_linear, scale_encoder, gain = scales_if_significant(linear, encoder, labels, min_gain)
    training.network.scale_branches(scale_linear, scale_encoder)
    scales = {"linear": scale_linear, "encoder": scale_encoder}
    evidence: dict[str, Any] = {
        "scales": {name: scale for name, scale in scales.items() if getattr(training.cfg.model, name)}
    }
    if gain is not None:
        evidence["encoder_gain"] = gain
        lowers = f"lowers the loss of held-out cells by {gain['mean']:.3f} ± {gain['standard_error']:.3f}"
        found = lowers if round(gain["mean"], 3) > 0 else "does not lower the loss of held-out cells"
        if scale_encoder:
            log.info("encoder used: it %s", found)
        else:
            # More epochs did not help on PBMC 3k: beside the linear branch, a small encoder has little to add.
            text = "encoder left out (scale 0): it %s; model.linear=false gives labels by the encoder alone, to try it"
            log.warning(text, found)
    return scale_linear * linear + scale_encoder * encoder, evidence


def evidence_of_trust(training: Training, held_out: HeldOut | None) -> dict[str, Any]:
    """Return the calibration of held-out calls and, with `card=full`, the detection of cells of a left-out label."""
    labels = training.reference.label_names
    metrics: dict[str, Any] = {}
    if held_out is not None:
        metrics["calibration"] = calibration(held_out.logits, held_out.labels, labels)
        text = "calibration error of the confidence: %.3f on %d held-out cells, whose calls the model keeps (%.1f MB)"
        megabytes = len(held_out.to_bytes()) / 1e6
        log.info(text, metrics["calibration"]["error"], len(held_out.labels), megabytes)
    if training.cfg.card == "full":
        train = training.train
        folds = evidence_folds(train.known_labels, training.cfg.seed, training.batches)
        some = train.x[folds.rows], train.known_labels[folds.rows]
        areas = left_out_table(*some, folds.fold_of_row, training.cfg.seed)
        metrics["novelty"] = [
            {"label": label, "area": area}
            for label, area in zip(labels, areas.tolist(), strict=True)
            if np.isfinite(area)
        ]
    return metrics


def refit(
    training: Training, fitted: Fitted, linear_options: LinearOptions | None, scales: dict[str, float]
) -> dict[str, np.ndarray]:
    """Replace what was fitted by fits to all cells, the validation cells included; return all weights of the model.

    The scales stay. Of cells on disk, the sample for linear fits and the validation cells are all cells.
    """
    reference = training.reference
    network = training.network
    cfg = training.cfg
    if not training.learns:
        final = fit_branches(
            reference.x,
            reference.labels,
            linear_options=linear_options,
            cfg=cfg,
            unlabelled=training.unlabelled,
            vectors=training.vectors,
            with_evidence=False,
        )
        fill_network(network, final, scales)
    elif fitted.linear is not None and linear_options is not None:
        scale = scales["linear"]
        add_linear(network, fitted.linear, -scale)
        add_linear(network, fit_linear_branch(reference.x, reference.labels, linear_options), scale)
    baseline = fit_logistic(reference.x, reference.labels)
    weights = {f"model.{name}": tensor.cpu().numpy() for name, tensor in network.state_dict().items()}
    return weights | {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias}


def log_scores(metrics: dict[str, Any], training: Training) -> None:
    """Log the scores of the model beside those of logistic regression."""
    best_epoch = metrics["best_epoch"]
    how = f"best epoch {best_epoch}" if best_epoch else "fitted, without training"
    if training.network.encoder is not None and not best_epoch:
        how = f"trained for {training.cfg.trainer.max_steps} steps"
    ours = metrics["model"]
    baseline = metrics["baseline"]
    text = "%s (%s): accuracy %.3f, macro-F1 %.3f on %d validation cells; logistic regression %.3f, %.3f"
    scores = ours["accuracy"], ours["macro_f1"], metrics["num_val_cells"], baseline["accuracy"], baseline["macro_f1"]
    log.info(text, how, sum_of_branches(metrics["scales"]), *scores)


def log_branch_scores(saved: SavedModel) -> None:
    """Log the out-of-fold scores of each branch alone beside those of both."""
    titles = branch_names(saved.metrics.get("encoder", {}))
    texts = [
        f"{titles[name]} {scores['accuracy']:.3f}, {scores['macro_f1']:.3f}, {scores['loss']:.3f}"
        for name, scores in saved.branch_scores.items()
    ]
    if texts:
        log.info("out-of-fold accuracy, macro-F1 and loss: %s", "; ".join(texts))
