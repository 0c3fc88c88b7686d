"""Train a model on a labelled reference: prepare, fit, score, fit to all cells, write the model folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from anndata import AnnData
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from scperformer.attention.registry import with_source
from scperformer.base.errors import InputError
from scperformer.base.messages import named
from scperformer.base.metrics import score
from scperformer.cells.normalisation import linear, recover_counts
from scperformer.cells.on_disk import Sample, choose_storage
from scperformer.cells.profiles import reference_with_profiles
from scperformer.cells.reference import Reference, make_reference, read_unlabelled
from scperformer.cells.repeats import cell_hashes
from scperformer.cells.splits import stratified_sample
from scperformer.config.training import NetworkOptions, TokensConfig, TrainerConfig, TrainOptions
from scperformer.io.read import origins, read_cells
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.inference import branch_logits, torch_state_kept
from scperformer.model.minibatches import Cells, gene_means, row_subset
from scperformer.model.network import CellTypeModel, LinearModel, require_encoder
from scperformer.model.saved_model import HASHES, SavedModel, branch_names, sum_of_branches
from scperformer.training.all_cells import fit_to_cells_on_disk
from scperformer.training.choose_linear import choose_linear_options
from scperformer.training.estimate import training_cost
from scperformer.training.evidence import Fitted, fill_network, fit_branches
from scperformer.training.fit_linear import LinearOptions
from scperformer.training.fit_performer import encoder_facts
from scperformer.training.folds import evidence_folds
from scperformer.training.kept_fits import KeptFits
from scperformer.training.mixed_labels import mixed_labels
from scperformer.training.run_folder import Diverged, Run, training_run
from scperformer.training.scales import MIN_ERRORS, scales_if_significant
from scperformer.training.trainer import device_of
from scperformer.trust.confidence import calibration
from scperformer.trust.novelty import fit_novelty_model

log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=NetworkOptions)
LONG = 300.0  # seconds of a training, whose estimate is logged


@dataclass
class Training:
    """A training under way: reference, options, network and cells."""

    reference: Reference
    cfg: TrainOptions
    network: CellTypeModel
    train: Cells  # the cells to train on that are in memory: all of them, or a sample of cells on disk
    val: Cells  # to validate on
    unlabelled: csr_matrix | None  # more cells, from which vectors of genes are learned, too
    linear_options: LinearOptions | None  # None: there is no linear branch
    kept: KeptFits  # of an interrupted run; nothing is kept of small references
    fits_once: bool  # all cells train, and the folds show how good the model is: there are no other validation cells

    @property
    def learns(self) -> bool:
        """Whether there are layers between tokens, which are trained after all else has been fitted."""
        return self.cfg.model.encoder and not self.cfg.model.uses_cross_attention


def train_cells(
    cells: AnnData | None, cfg: TrainOptions, output: Path, encoder: Any = None, profiles: Sequence[Path] = ()
) -> Path:
    """Train on cells in memory or, without them, on the files `cfg.inputs`; write the model folder, and return it.

    `encoder` is a `TokenEncoder` of the lab, if the options ask for attention between tokens or for `init`;
    None: the linear branch and the Performer are fitted. `profiles` are files that complete the labels of the only
    other one.
    """
    if cfg.model.encoder:
        device_of(cfg.trainer)  # refuses a missing GPU before any cell is read
    cfg = settled(cfg) if encoder is None else encoder.cfg
    paths = [Path(name) for name in cfg.inputs] if cells is None else []
    own = [path for path in paths if path not in profiles]
    cfg = choose_storage(cfg, own)
    with training_run(cfg, output, paths, "" if encoder is None else encoder.init_hash) as run:
        if run is not None:
            reference = load_reference(own if cells is None else cells, cfg, profiles)
            if encoder is not None:
                reference = encoder.ordered(reference)
            with torch_state_kept(cfg.trainer.threads):  # set here, as reading imports libraries that change it
                saved = train_on(reference, cfg, run, source_of(paths), encoder)
            if saved is not None:
                run.write(saved)
    return output


def source_of(paths: Sequence[Path]) -> dict[str, str]:
    """Return the entries of the provenance about the files of a reference; none: cells in memory."""
    if not paths:
        return {"reference": "AnnData in memory", "reference_sha256": ""}
    files, digest = origins(paths)
    names = ", ".join(Path(file).name for file in files)
    return {"reference": names, "reference_path": ", ".join(files), "reference_sha256": digest}


def load_reference(
    source: AnnData | Sequence[Path], cfg: TrainOptions, profiles: Sequence[Path] = (), apart: Container[str] = ()
) -> Reference:
    """Load cells in memory or a file, or open one or more files whose cells stay on disk (`data.in_memory=false`).

    The files `profiles` complete the labels of cells in memory. Labels in `apart` are not joined with others.
    """
    if not isinstance(source, AnnData) and cfg.data.in_memory is False:
        if profiles:
            remedy = "leave data.in_memory out, or add studies=true for a model of each file"
            raise InputError("storage", f"profiles beside {source[0]}, which stays on disk", "cells in memory", remedy)
        return make_reference(source, cfg, apart)
    path = Path("AnnData in memory") if isinstance(source, AnnData) else source[0]
    adata = source if isinstance(source, AnnData) else read_cells(path, cfg.orientation)
    more = [Sample(read_cells(file, cfg.orientation), file) for file in profiles]
    return reference_with_profiles(Sample(adata, path), more, cfg, apart)


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
        log.warning("%s: no effect with model=performer or pooled, which read sums over the genes of a cell", names)
    return cfg


def train_on(
    reference: Reference, cfg: TrainOptions, run: Run, source: dict[str, str], encoder: Any = None
) -> SavedModel | None:
    """Train on a reference from `source_of` files; None in all processes of a distributed run but the first."""
    begin = time.perf_counter()
    if encoder is None:
        _log_cost(reference)
    hashes = _hashes(reference)
    stored = cells_to_store(reference, cfg)
    fits_once = _fits_once(reference, cfg)
    every = np.arange(len(reference.labels))
    sides = (every, every[:0]) if fits_once else (reference.split.train, reference.split.val)
    train, val = (Cells(row_subset(reference.x, rows), cfg.tokens, reference.labels[rows]) for rows in sides)
    kept = KeptFits(run.folder if fits_once and run.is_whole else None)
    options = None
    if cfg.model.linear:
        batches = _batches(reference, fits_once)
        chosen = kept.of(
            "options", lambda: choose_linear_options(train.x, train.known_labels, cfg.seed, batches).arrays
        )
        options = LinearOptions.of_arrays(chosen)
        cfg = replace(cfg, model=replace(cfg.model, linear_powers=list(options.powers)))
    network = new_network(reference, cfg)
    training = Training(reference, cfg, network, train, val, read_unlabelled(reference, cfg), options, kept, fits_once)
    facts = source | ({} if encoder is None else encoder.prepare(training)) | _facts(training, stored)
    recorded = run.record(training.cfg, facts)
    if reference.own_totals:
        recorded["config"]["own_totals"] = True
    if not training.learns and not run.is_first:  # the first process fits alone
        return None

    fitted = fit(training, run.folder)
    best_epoch: int | None = 0
    if encoder is not None and training.learns:
        stored = None  # frees memory during the training; the same cells are drawn again below
        best_epoch = encoder.train(training, run.folder)
        if best_epoch is None:
            return None
        stored = cells_to_store(reference, cfg)

    metrics, held_out = score_on_held_out(training, fitted)
    metrics["best_epoch"] = best_epoch
    if held_out is not None:
        cells = enumerate(facts["cells_per_label"].items())
        if untested := {name: num for label, (name, num) in cells if label not in held_out.labels}:
            text = "no cell of these labels is held out, as they have few cells or occur in few batches: %s"
            log.warning(text, named(untested))
        metrics["calibration"] = calibration(held_out.logits, held_out.labels)
        text = "calibration error of the confidence: %.3f on %d held-out cells"
        log.info(text, metrics["calibration"]["error"], len(held_out.labels))
    if options is not None:
        metrics["linear_branch"] = asdict(options)
    baseline = fitted.baseline if fits_once else fit_to_all_cells(training, fitted, metrics["scales"])
    assert baseline is not None
    weights = {f"model.{name}": tensor.cpu().numpy() for name, tensor in training.network.state_dict().items()}
    weights |= {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias, HASHES: hashes}
    if training.network.encoder is not None:
        metrics["encoder"] = encoder_facts(training.network.encoder, training.cfg)
    metrics["seconds"] = round(time.perf_counter() - begin, 1)
    saved = SavedModel(
        name=run.folder.stem.removesuffix(".model"),
        genes=reference.genes,
        gene_means=gene_means(reference.x),
        labels=reference.label_names,
        ontology_term_ids=reference.terms.ids,
        tree=reference.terms.tree,
        metrics=metrics,
        weights=weights,
        reference_cells=stored,
        held_out=held_out,
        **recorded,
    )
    log_scores(saved, training.cfg)
    return saved


def _log_cost(reference: Reference) -> None:
    """Log the time and memory of a long training."""
    cells, genes, labels = int(reference.counts.sum()), len(reference.genes), len(reference.label_names)
    values = reference.x.nnz * cells / reference.x.shape[0]
    seconds, text = training_cost(cells, genes, labels, values, reference.stream is not None)
    if seconds > LONG:
        log.info("%s", text)


def _fits_once(reference: Reference, cfg: TrainOptions) -> bool:
    """Whether out-of-fold cells stand for validation cells: a second fit, to all cells, would change nothing."""
    is_learned = cfg.model.encoder and not cfg.model.uses_cross_attention
    if is_learned or cfg.data.split_key is not None:
        return False
    return bool(evidence_folds(reference.labels, cfg.data.seed_of_split(cfg.seed), reference.batches).is_dealt.any())


def _hashes(reference: Reference) -> np.ndarray:
    """Return a hash of each cell; refuse cells that are all the same, and warn of some that are."""
    hashes = cell_hashes(linear(reference.x))
    known = hashes[hashes != 0]  # 0: too few genes to say
    if len(known) == len(hashes) and len(np.unique(known)) == 1:
        found = f"{len(hashes)} cells with the same expression in the reference"
        raise InputError(
            "identical-cells",
            found,
            "cells that differ",
            "name the place of their counts, such as source=layers/counts",
        )
    if num := len(known) - len(np.unique(known)):
        text = "%d of %d cells are copies of others, so that accuracies of held-out cells are too high: remove them"
        log.warning(text, num, len(hashes))
    return hashes


def cells_to_store(reference: Reference, cfg: TrainOptions) -> ReferenceCells | None:
    """Return up to `keep_cells` cells of the reference as counts, or as relative expression if it has none."""
    if not cfg.keep_cells:
        return None
    rows = stratified_sample(reference.labels, cfg.keep_cells, cfg.seed)
    x = reference.x[rows]
    counts = recover_counts(x)
    relative = csr_matrix((np.expm1(x.data), x.indices, x.indptr), shape=x.shape) if counts is None else counts
    batches = None if reference.batches is None else reference.batches[rows]
    return ReferenceCells(relative, reference.labels[rows], are_counts=counts is not None, batches=batches)


def new_network(reference: Reference, cfg: TrainOptions) -> CellTypeModel:
    """Make the untrained network for a reference, the same for the same seed."""
    torch.manual_seed(cfg.seed)
    options: dict[str, Any] = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    return CellTypeModel(len(reference.genes), len(reference.label_names), seed=cfg.seed, **options)


def _facts(training: Training, stored: ReferenceCells | None) -> dict[str, Any]:
    """Return the entries of the provenance about the cells and labels of a reference; log the limits of its cells."""
    reference = training.reference
    cfg = training.cfg
    names, genes = reference.label_names, reference.genes
    mixed = mixed_labels(reference.x, reference.labels, names, genes, cfg.tissue, cfg.seed)
    facts: dict[str, Any] = {
        "label_key": cfg.label_key or "",  # the names of profiles
        "num_cells": int(reference.counts.sum()),
        "cells_per_label": dict(zip(reference.label_names, reference.counts.tolist(), strict=True)),
        "input": reference.summary,
        "split": reference.split.done,
        "rare_labels": reference.rare.done,
        "notes": reference.notes + mixed,
    }
    batches = None if reference.batches is None else {"key": cfg.batch_key, "names": reference.batch_names}
    optional: dict[str, Any] = {"batches": batches, "tissue": cfg.tissue, "ontology": reference.terms.release}
    optional["cells_without_label"] = reference.num_unlabelled or None
    optional["unlabelled"] = [Path(name).name for name in cfg.unlabelled] or None
    optional["kept_cells"] = None if stored is None else {"num_cells": len(stored.labels)}
    if stored is not None and not stored.are_counts:
        log.info("the reference has no counts: a model adapted to a file takes its genes into account, not its depth")
    return facts | {name: value for name, value in optional.items() if value is not None}


def fit(training: Training, folder: Path) -> Fitted:
    """Fit the branches to the training cells, and put them into the network; scales, if no layers follow."""
    cfg = training.cfg
    train = training.train
    network = training.network
    stream = training.reference.stream
    text = "training on %d cells, validating on %d: %d genes, %d labels, %d parameters, %s"
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    sizes = len(train if stream is None else stream.cells), len(training.val), train.x.shape[1], network.num_labels
    has_attention = network.encoder is not None and bool(network.encoder.mechanisms)
    log.info(text, *sizes, num_parameters, f"attention {cfg.attention['name']}" if has_attention else "no attention")
    fitted = fit_branches(
        train.x,
        train.known_labels,
        linear_options=training.linear_options,
        cfg=cfg,
        unlabelled=training.unlabelled,
        batches=_batches(training.reference, training.fits_once),
        with_evidence=not training.learns,
        folder=folder,
        kept=training.kept,
    )
    if training.fits_once and stream is not None and fitted.branch is not None:
        inputs = fitted.branch, training.reference, folder, device_of(cfg.trainer).of_sums
        with threadpool_limits(1):  # sums in another order would change the last bits
            made = training.kept.of("all_cells", lambda: fit_to_cells_on_disk(*inputs))
        fitted.linear = LinearModel(made["weight"], made["bias"])
    fill_network(network, fitted, fitted.scales)
    return fitted


def score_on_held_out(training: Training, fitted: Fitted) -> tuple[dict[str, Any], HeldOut | None]:
    """Return the metrics on the validation cells, the baseline's and the scales; also held-out calls with these scales.

    Scales and held-out calls of layers that were trained are from the validation cells, else from cross-validation.
    """
    train = training.train
    val = training.val
    if training.fits_once:
        assert fitted.held_out is not None
        if not np.isfinite(fitted.held_out.logits).all():
            raise Diverged("logits", training.cfg)
        metrics = {"num_val_cells": fitted.evidence["num_cells"]}
        for name, scores in (("model", fitted.evidence), ("baseline", fitted.evidence["baseline"])):
            metrics[name] = {score: scores[score] for score in ("accuracy", "macro_f1", "weighted_f1")}
        return metrics | {"scales": fitted.scales, "out_of_fold": fitted.evidence}, fitted.held_out
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
            profile = fit_novelty_model(train.x, train.known_labels, training.cfg.seed)
        held_out = HeldOut(logits, val.known_labels, profile.scores(val.x), vars(profile))
    assert fitted.baseline is not None
    metrics = {
        "num_val_cells": len(val),
        "model": score(val.known_labels, logits.argmax(axis=1)),
        "baseline": score(val.known_labels, fitted.baseline.predict(val.x)),
        **evidence,
    }
    if training.cfg.model.linear and encoder.any():  # also of an encoder that the model leaves out (scale 0)
        metrics["encoder_alone"] = score(val.known_labels, encoder.argmax(axis=1))
    return metrics, held_out


def scale_by_validation(
    training: Training, linear: np.ndarray, encoder: np.ndarray
) -> tuple[np.ndarray, dict[str, Any]]:
    """Scale the branches of a trained network on the validation cells; return their logits and the evidence.

    `linear` and `encoder` are the logits of the branches, N x C. An encoder whose gain is not significant is left out.
    """
    options = training.cfg.model
    min_errors = 0.0 if options.uses_cross_attention else MIN_ERRORS
    scale_linear, scale_encoder, gain = scales_if_significant(linear, encoder, training.val.known_labels, min_errors)
    training.network.scale_branches(scale_linear, scale_encoder)
    scales = {"linear": scale_linear, "encoder": scale_encoder}
    evidence: dict[str, Any] = {"scales": {name: scale for name, scale in scales.items() if getattr(options, name)}}
    if gain is not None:
        evidence["encoder_gain"] = gain
        text = "encoder %s: it lowers the loss of held-out cells by %.3f ± %.3f"
        log.info(text, "used" if scale_encoder else "left out (scale 0)", gain["mean"], gain["standard_error"])
    return scale_linear * linear + scale_encoder * encoder, evidence


@torch.no_grad()
def fit_to_all_cells(training: Training, fitted: Fitted, scales: dict[str, float]) -> LinearModel:
    """Replace what was fitted in the network by fits to all cells, the validation cells included; the scales stay.

    Of cells on disk, the sample for linear fits and the validation cells are all cells. Returns the baseline.
    """
    final = fit_branches(
        training.reference.x,
        training.reference.labels,
        linear_options=training.linear_options,
        cfg=training.cfg,
        unlabelled=training.unlabelled,
        with_evidence=False,
    )
    if not training.learns:
        fill_network(training.network, final, scales)
    elif fitted.linear is not None and final.linear is not None:
        branch = training.network.linear
        assert branch is not None
        for linear, times in ((fitted.linear, -scales["linear"]), (final.linear, scales["linear"])):
            branch.weight.weight[:-1].add_(torch.from_numpy(linear.weight), alpha=times)
            branch.bias.add_(torch.from_numpy(linear.bias), alpha=times)
    assert final.baseline is not None
    return final.baseline


def _batches(reference: Reference, fits_once: bool) -> np.ndarray | None:
    """Return the batch of each cell that trains, int64; None: they are not known."""
    if reference.batches is None or fits_once:
        return reference.batches
    return reference.batches[reference.split.train]


def log_scores(saved: SavedModel, cfg: TrainOptions) -> None:
    """Log the scores of the model beside logistic regression and each branch alone."""
    metrics = saved.metrics
    how = f"best epoch {metrics['best_epoch']}"
    if not metrics["best_epoch"]:
        how = f"trained for {cfg.trainer.max_steps} steps" if cfg.model.encoder else "fitted, without training"
    ours, baseline = (metrics[name] for name in ("model", "baseline"))
    text = "%s (%s): accuracy %.3f, macro-F1 %.3f on %d held-out cells; logistic regression %.3f, %.3f"
    scores = ours["accuracy"], ours["macro_f1"], metrics["num_val_cells"], baseline["accuracy"], baseline["macro_f1"]
    log.info(text, how, sum_of_branches(metrics["scales"]), *scores)
    titles = branch_names(metrics.get("encoder", {}))
    each = "{accuracy:.3f}, {macro_f1:.3f}, {loss:.3f}"
    texts = [f"{titles[name]} {each.format(**scores)}" for name, scores in saved.branch_scores.items()]
    if texts:
        log.info("out-of-fold accuracy, macro-F1 and loss: %s", "; ".join(texts))
    ours, baseline = metrics.get("out_of_fold", ours), metrics.get("out_of_fold", metrics).get("baseline", baseline)
    if ours["accuracy"] < baseline["accuracy"]:
        text = "the model is below logistic regression on held-out cells (accuracy %.3f, %.3f): %s"
        remedy = "check it by 'scperformer evaluate' on other labelled cells before use"
        log.warning(text, ours["accuracy"], baseline["accuracy"], remedy)
