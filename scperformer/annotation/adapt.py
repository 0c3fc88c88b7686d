"""Adapt a model to the genes and the depth of a query: whether to, and the fit to the cells that it stores."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.annotation.coverage import (
    BatchShifts,
    Coverage,
    Repeats,
    adapted_model,
    depth_share,
    find_coverage,
    find_repeats,
    find_shift,
    reduced,
    shifts_of_batches,
)
from scperformer.annotation.fit_imported import distilled
from scperformer.annotation.tissue_model import compare_with_profiles, fit_tissue
from scperformer.base.errors import InputError
from scperformer.base.messages import in_time, listed
from scperformer.base.progress import progress
from scperformer.cells.query import Query
from scperformer.cells.splits import stratified_sample
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import HeadConfig, ModelConfig, NetworkOptions, OptimConfig, TokensConfig
from scperformer.io.gene_overlap import MIN_PANEL
from scperformer.model.arrays import ReferenceCells
from scperformer.model.content import INFO
from scperformer.model.folder import damaged_model, load_reference_cells, read_model, write_model
from scperformer.model.imported import ImportedNetwork
from scperformer.model.inference import torch_state_kept
from scperformer.model.load import Model, as_model
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import SavedModel, Study, encoder_is_silent
from scperformer.training.evidence import FitPlan, fill_network, fit_branches
from scperformer.training.fit_linear import PENALTY_C, LinearOptions
from scperformer.training.folds import evidence_folds
from scperformer.trust.batch_effect import correct_batch_effect, label_means
from scperformer.trust.confidence import calibration
from scperformer.trust.doublets import Doublets, fit_doublets
from scperformer.trust.resemblance import Resemblance
from scperformer.trust.shift import FAR, FEW, OTHER, Shift

log = logging.getLogger(__name__)

# From this share of the informative expression, and of the depth, on, adapting a model to a file does not pay.
PAYS_GENES = 0.99
MAX_CELLS = 4000  # to which a model is refitted
PAYS_DEPTH = 0.75
# From this depth on, as a multiple of the reference's, the counts of a query are thinned if it then resembles the
# reference more: values that are rare at the depth of the reference would speak for wrong labels.
DEEPER = 1.5
MOST_GENES = 0.9  # share of the informative expression, below which a query is a panel here
MAX_LEFT = 0.7  # of the batch effect of a panel, after thinning
NUM_DRAWS = 4  # thinned copies of the cells, from which the encoder learns
MAX_STEPS = 300  # of its training: twice as many take twice as long, and change the loss of new cells by .002


@dataclass
class Adapted:
    """A model for the cells of a query, the cells with the genes of this model, and the record of their coverage."""

    model: Model
    query: Query
    record: dict[str, Any]
    shift: Shift | None = None  # None: not asked for, or not known
    gene_factors: np.ndarray | None = None  # float32 G, by which genes are divided before calls; None: none are
    members: list[Member] = field(default_factory=list)  # of a model of several studies
    repeats: Repeats = field(default_factory=Repeats)  # cells that the query shares with the reference
    resemblance: Resemblance | None = None  # of a file to the profiles of a tissue
    # float64 C x measured genes: counts per 10,000 of each label, as the query would have measured it; None: not known
    label_means: np.ndarray | None = None
    doublets: Doublets | None = None  # None: doublets cannot be found
    batches: BatchShifts | None = None  # whose batch effects are corrected apart, in place of that of the file
    precision: str | None = None  # of the network's products, chosen with the first block of cells; None: not yet

    def corrected(self, x: csr_matrix, rows: np.ndarray | slice) -> csr_matrix:
        """Correct the batch effects of the genes of cells, N x G, with these row numbers in the file."""
        if self.batches is None:
            return correct_batch_effect(x, self.gene_factors)
        return correct_batch_effect(x, self.batches.factors, self.batches.batches.of_cell[rows])

    def novelty_factor(self, rows: np.ndarray | slice) -> float | np.ndarray:
        """Return the divisor of the novelty scores of cells."""
        if self.batches is not None and self.batches.shifts:
            return self.batches.novelty[self.batches.batches.of_cell[rows]]
        return 1.0 if self.shift is None else self.shift.factor


@dataclass
class Member:
    """The model of one study among several, for the cells of a query."""

    study: Study
    adapted: Adapted
    weight: float  # of its probabilities; the weights of all members sum to 1


@torch_state_kept()  # a network draws its first weights at random
def adapt_model(
    model: Model,
    query: Query,
    cfg: AnnotationOptions,
    coverage: Coverage | None = None,
    with_shift: bool = False,
    whole: Query | None = None,
) -> Adapted:
    """Adapt a model to the coverage of a query, or return it as it is, depending on `cfg.adapt`.

    A model that has been adapted to another query of the same coverage is reused. `coverage` is that of the query
    unless it is given. With `with_shift`, also estimate the distribution shift of the query; if it is of another study,
    let the encoder weigh less, and estimate per-gene batch effects. With `whole`, the query is a subset of another one:
    depth and batch effect are estimated on all cells of that, and its cells are called as there.

    Raises
    ------
    InputError
        `adapt=true`, and the model keeps no cells; or `whole` has other genes or values than the query.
    """
    if model.members:
        return _adapt_members(model, query, cfg, with_shift, whole)
    saved = model.saved
    is_tissue = _is_tissue(saved)
    if is_tissue and not cfg.adapts:
        found = f"adapt=false and the profiles of {saved.name}, which are no fitted model"
        raise InputError("adapt-tissue", found, "a model named by model_path", "leave adapt=false out")
    seen = whole or query
    if whole is not None:
        _require_subset(query, whole)
        log.info("%s: depth and batch effect are taken from %s", query.path, whole.path)
    coverage = coverage or find_coverage(seen, with_depth=cfg.adapts)
    reference_cells = load_reference_cells(saved, model.path) if cfg.adapts else None
    if cfg.adapt == "true" and reference_cells is None:
        found = f"adapt=true and a model that keeps no cells ({model.path})"
        raise InputError("no-kept-cells", found, "kept cells", f"{saved.how_to_complete}, or leave adapt=true out")
    repeats = find_repeats(query, saved, reference_cells)
    share = math.nan if reference_cells is None else depth_share(reference_cells, coverage)
    depth = coverage.depth
    if share >= 1:  # all queries that are as deep as the kept cells, or deeper, have one adapted model
        coverage = replace(coverage, depth=None)
    informative = seen.plan.overlap.informative_share
    own_accuracy = known_accuracy(saved)
    expected_accuracy = math.nan
    is_adapted = False
    if reference_cells is None:
        has_depth = saved.provenance.get("depth") in (None, coverage.depth)
        if "adapted_from" in saved.provenance and coverage.measured.all() and has_depth:
            expected_accuracy = own_accuracy
    elif not is_tissue and cfg.adapt == "auto" and informative >= PAYS_GENES and share >= PAYS_DEPTH:
        depth_of = "is deeper" if share >= DEEPER else "depth"
        log.info("%s: the model is used as it is, as the file has its genes and %s", query.path, depth_of)
        expected_accuracy = own_accuracy
    else:
        is_adapted = True
        model = _adapted_to(model, reference_cells, coverage, query.path, cfg.adapted_folder)
        query = query.of_genes(coverage.measured)
        seen = query if whole is None else whole.of_genes(coverage.measured)
        found_accuracy = model.saved.provenance["expected_accuracy"]
        expected_accuracy = math.nan if found_accuracy is None else float(found_accuracy)
    kept = means = None
    if reference_cells is not None:
        kept = replace(reference_cells, values=reduced(reference_cells, coverage, saved.config["target_sum"], seed=0))
        means = label_means(kept.values, kept.labels, len(saved.labels))
    compared = _compare_with_reference(seen, model, saved, kept, means, with_shift=with_shift, depth=share)
    model, shift, factors, batches = compared.model, compared.shift, compared.factors, compared.batches
    query = replace(query, share=compared.share)
    if query.share < 1:
        text = "%s: %.1f times as deep as the reference: its counts are thinned to the depth of the reference"
        log.info(text, query.path, share)
    if with_shift and seen.batches is not None and batches is None:
        log.warning("%s: no batch is corrected, as the model has no out-of-fold predictions", query.path)
    if batches is not None:
        assert query.batches is not None
        batches = replace(batches, batches=query.batches)
    doublets = None
    if kept is not None and means is not None and depth is not None and (shift is None or shift.kind != FAR):
        doublets = _mixtures(query, kept, means, factors, simulated=is_tissue)
    num_genes = int(coverage.measured.sum())
    if is_adapted and not is_tissue and (shift is None or shift.kind not in (OTHER, FAR)):  # else it says little
        said = accuracy_beside(expected_accuracy, own_accuracy)
        depth_of = "its depth" if share < 1 else "the depth of the reference"
        log.info("%s: %s on reference cells with its %s genes and %s", query.path, said, f"{num_genes:,}", depth_of)
    if factors is not None:
        log.info("%s: per-gene batch effects are corrected before annotation", query.path)
    record: dict[str, Any] = {
        "adapted": is_adapted,
        "num_genes": num_genes,
        "depth": math.nan if depth is None else depth,
        "depth_share": share,
        "thinned_to": query.share,
        "key": coverage.key,
        "expected_accuracy": expected_accuracy,
        "accuracy_with_all_genes": own_accuracy,
    }
    if whole is not None:
        record |= {"of": Path(whole.path).name, "of_sha256": whole.sha256}
    adapted = Adapted(model, query, record, shift, factors, repeats=repeats, resemblance=compared.resemblance)
    return replace(adapted, label_means=means, doublets=doublets, batches=batches)


def _mixtures(
    query: Query, kept: ReferenceCells, means: np.ndarray, factors: np.ndarray | None, *, simulated: bool
) -> Doublets | None:
    """Compare the labels with their mixtures, over the genes of the model that a query measures."""
    places = np.flatnonzero(query.measured)
    own_factors = None if factors is None else factors[places]
    found = fit_doublets(means, own_factors, kept.values, kept.labels, simulated=simulated)
    return found and replace(found, genes=places[found.genes])


def _require_subset(query: Query, whole: Query) -> None:
    """Refuse a subset of the cells of a file with other genes or values than this file."""
    read, expected = (each.plan.findings.text for each in (query, whole))
    remedy = "keep all genes and the values in the file of some of its cells, or leave full_sample out"
    if num_other := int((query.measured != whole.measured).sum()):
        found = f"{num_other:,} genes of the model that are in one of {query.path} and {whole.path}"
        raise InputError("other-genes", found, "the same genes in both", remedy)
    if read != expected:
        raise InputError("other-values", f"{read} of {query.path}", f"{expected}, as in {whole.path}", remedy)


@dataclass
class _Comparison:
    """How a query differs from the reference, and the depth at which its cells are called."""

    model: Model  # whose encoder may weigh less
    share: float = 1.0  # of the counts of the query
    shift: Shift | None = None
    factors: np.ndarray | None = None
    resemblance: Resemblance | None = None
    batches: BatchShifts | None = None


def _compare_with_reference(
    seen: Query,
    model: Model,
    saved: SavedModel,
    kept: ReferenceCells | None,
    means: np.ndarray | None,
    *,
    with_shift: bool,
    depth: float,
) -> _Comparison:
    """Compare a query of a `depth`, as a multiple of the reference's, with the kept cells, as `find_shift` has them.

    A query that is deeper is thinned to the depth of the reference, if it then resembles the reference more.
    """
    found = _Comparison(model)
    is_deeper = depth >= DEEPER
    has_most_genes = seen.plan.overlap.informative_share >= MOST_GENES
    estimate: Callable[..., tuple[Shift | None, np.ndarray | None]] | None = None  # of a batch
    if _is_tissue(saved):
        assert kept is not None
        assert means is not None
        is_deeper = False  # its cells are simulated
        compare = partial(compare_with_profiles, seen, model.saved, kept, means)
        factors, found.resemblance = compare()
        found.factors = factors if with_shift else None
        estimate = lambda *of_batch: (None, compare(*of_batch)[0])  # noqa: E731
    elif with_shift and (held_out := model.saved.held_out) is not None:
        estimate = partial(find_shift, seen, held_out, saved, kept, means, model)
        shift, found.factors = estimate()
        if is_deeper:
            at_depth = partial(find_shift, replace(seen, share=1 / depth), held_out, saved, kept, means, model)
            thinned, factors_at_depth = at_depth()
            is_deeper = _gains_by_thinning(shift, thinned, has_most_genes)
            if is_deeper:
                estimate, shift, found.factors = at_depth, thinned, factors_at_depth
        found.shift = shift
        found.model = with_encoder_weight(model, shift.encoder_weight)
    else:
        is_deeper &= has_most_genes
    if is_deeper:
        found.share = 1 / depth
    if with_shift and seen.batches is not None and estimate is not None:
        at_share = replace(seen, share=found.share)
        found.batches = shifts_of_batches(at_share, found.shift, found.factors, estimate)
    return found


def _is_tissue(saved: SavedModel) -> bool:
    """Whether a model is the profiles of a tissue, before it is fitted."""
    return "profiles" in saved.provenance and not saved.weights


def _gains_by_thinning(deep: Shift, thinned: Shift, has_its_genes: bool) -> bool:
    """Return whether a query that is deeper than the reference resembles it more at the depth of the reference.

    Of a panel, this must explain most of the batch effect: in another study it loses more by fewer counts
    (benchmarks/NOTES.md).
    """
    if thinned.batch_effect < MAX_LEFT * deep.batch_effect:
        return True
    return has_its_genes and (deep.kind == FEW or thinned.relative_novelty < deep.relative_novelty)


def _adapt_members(
    model: Model, query: Query, cfg: AnnotationOptions, with_shift: bool, whole: Query | None
) -> Adapted:
    """Adapt the model of each study with enough shared genes; a study of another tissue gets no weight."""
    found = []
    for study, member in zip(model.saved.studies, model.members, strict=True):
        own = replace(query.of_model(study.saved), path=f"{query.path}, study {study.name}")
        num_genes = int(own.measured.sum())
        if num_genes < min(MIN_PANEL, len(study.saved.genes)):
            text = "%s: study %s is left out, as it shares %d genes with the file"
            log.warning(text, query.path, study.name, num_genes)
            continue
        own_whole = None if whole is None else whole.of_model(study.saved)
        found.append((study, adapt_model(member, own, cfg, with_shift=with_shift, whole=own_whole)))
    if not found:
        expected = f"{MIN_PANEL} genes of one of the {len(model.members)} studies"
        raise InputError("few-genes", f"too few genes in {query.path}", expected, "use a model for its genes")
    shifts = [each.shift for _, each in found]
    ratios = np.array([math.nan if shift is None else shift.relative_novelty for shift in shifts])
    is_far = np.array([shift is not None and shift.kind == FAR for shift in shifts])
    # Larger weights for studies that are nearer to the file did not make calls more accurate (docs/trust.md).
    weights = np.ones(len(found)) if is_far.all() else 1.0 - is_far
    weights /= weights.sum()
    members = [Member(study, each, float(weight)) for (study, each), weight in zip(found, weights, strict=True)]
    distances = [(math.inf, math.inf) if shift is None else shift.distance for shift in shifts]
    nearest_first = sorted(range(len(members)), key=distances.__getitem__)
    nearest = members[nearest_first[0]].adapted
    shown = listed(f"{members[place].study.name} ({ratios[place]:.1f})" for place in nearest_first)
    log.info("%s: the studies by their distance, as novelty of the file: %s", query.path, shown)
    keys = [member.adapted.record["key"] for member in members if member.adapted.record["adapted"]]
    record = nearest.record | {
        "adapted": bool(keys),
        "num_genes": int(query.measured.sum()),
        "key": "-".join(keys),
        "expected_accuracy": known_accuracy(model.saved),
        "accuracy_with_all_genes": known_accuracy(model.saved),
        "studies": {
            "name": np.array([member.study.name for member in members], dtype=object),
            "weight": weights,
            "relative_novelty": ratios,
        },
    }
    repeats = [member.adapted.repeats for member in members]
    joined = Repeats(repeats[0].num_seen, np.unique(np.concatenate([each.rows for each in repeats])))
    joint = Adapted(model, query, record, nearest.shift, members=members, repeats=joined)
    return replace(joint, batches=nearest.batches)


def _adapted_to(
    model: Model, reference_cells: ReferenceCells, coverage: Coverage, path: str, adapted_folder: str | None
) -> Model:
    """Return a model adapted to a coverage: an earlier one, also from `adapted_folder`, else a new one."""
    if coverage.key in model.adapted:
        return model.adapted[coverage.key]
    begin = time.perf_counter()
    num_genes = f"{int(coverage.measured.sum()):,}"
    log.info("%s: fitting the model to its %s genes and its depth", path, num_genes)
    if adapted_folder is None:
        saved = fit_to_coverage(model, reference_cells, coverage)
    else:
        # Tissues have one hash, and symbols in capitals are another model.
        identity = f"{model.saved.hash} {model.saved.name} {model.saved.genes}".encode()
        digest = hashlib.sha256(identity).hexdigest()[:16]
        folder = Path(adapted_folder) / f"{digest}-{coverage.key}-{version('scperformer')}"
        log.info("%s: the fit is kept in %s", path, folder)
        if not (folder / INFO).is_file():
            fitted = fit_to_coverage(model, reference_cells, coverage)
            try:
                write_model(fitted, folder)
            except InputError:
                if not (folder / INFO).is_file():  # else another job has written it meanwhile
                    raise
        # Records name the model that was adapted, not this one.
        saved = replace(read_model(folder), hash=model.saved.hash)
        if saved.genes != [gene for gene, known in zip(model.saved.genes, coverage.measured, strict=True) if known]:
            raise damaged_model(folder, "other genes than its coverage")
    model.adapted[coverage.key] = as_model(saved, model.path)
    log.info("the model was adapted to %s genes in %s", num_genes, in_time(time.perf_counter() - begin))
    return model.adapted[coverage.key]


@progress("fitting the model to the genes and the depth of a file")
def fit_to_coverage(model: Model, reference_cells: ReferenceCells, coverage: Coverage) -> SavedModel:
    """Fit the branches and the baseline of a model to its stored cells as a query would have measured them.

    The result has the measured genes alone, and normalises cells over these. An encoder with attention between tokens
    is left out, as it was trained for all genes.
    """
    saved = model.saved
    if not saved.weights:
        return fit_tissue(saved, coverage)
    if isinstance(model.network, ImportedNetwork):
        return distilled(model, reference_cells, coverage)
    cfg = _training_options(saved)
    cells = reference_cells.some(stratified_sample(reference_cells.labels, MAX_CELLS, cfg.seed))
    labels = cells.labels
    num_draws = NUM_DRAWS if depth_share(cells, coverage) < 1 else 1
    x, *draws = (reduced(cells, coverage, saved.config["target_sum"], cfg.seed + draw) for draw in range(num_draws))
    linear_options = None
    if cfg.model.linear:
        made: dict[str, Any] = {"c": PENALTY_C, "class_weights": "balanced", "weighting": "signal"}
        made |= saved.metrics.get("linear_branch", {}) | {"powers": tuple(cfg.model.linear_powers)}
        try:
            linear_options = LinearOptions(**made)
        except (TypeError, ValueError) as error:
            raise damaged_model(model.path, "options of its linear branch that it cannot have") from error
    vectors = None
    if cfg.model.encoder:  # they were learned from all genes at full depth, perhaps also from further cells
        vectors = saved.weights["model.encoder.embedding.gene.weight"][:-1][coverage.measured]
    plan = FitPlan(cfg, linear_options, draws, vectors=vectors, tests_baseline=False)  # that takes as long as the model
    fitted = fit_branches(x, labels, plan, evidence_folds(labels, cfg.data.seed_of_split(cfg.seed), cells.batches))
    held_out = fitted.held_out
    metrics: dict[str, Any] = {"scales": fitted.scales}
    if fitted.evidence is None or held_out is None:  # the only cell of a label cannot be held out
        branches = {"linear": fitted.linear, "encoder": fitted.encoder}
        metrics["scales"] = {name: saved.scales.get(name, 1.0) for name, part in branches.items() if part is not None}
    else:
        metrics["out_of_fold"] = fitted.evidence.record()
        metrics["calibration"] = calibration(held_out.logits, held_out.labels)
    if linear_options is not None:
        metrics["linear_branch"] = asdict(linear_options)
    if fitted.encoder is not None:
        from scperformer.training.fit_performer import encoder_facts  # needs Lightning

        metrics["encoder"] = encoder_facts(fitted.encoder.performer, cfg)
    options: dict[str, Any] = {name: getattr(cfg, name) for name in ("tokens", "model", "attention", "head")}
    network = CellTypeModel(x.shape[1], len(saved.labels), **options)
    fill_network(network, fitted, metrics["scales"])
    baseline = fitted.baseline
    assert baseline is not None
    weights = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    return adapted_model(
        saved,
        coverage,
        x,
        None if fitted.evidence is None else fitted.evidence.accuracy,
        config=saved.config | {"model": asdict(cfg.model), "own_totals": True},
        metrics=metrics,
        weights=weights | {"baseline.weight": baseline.weight, "baseline.bias": baseline.bias},
        held_out=held_out,
    )


def _training_options(saved: SavedModel) -> NetworkOptions:
    """Return the options of a training; of the encoders, a Performer stays, unless it is left out."""
    usual = NetworkOptions(inputs=[""])
    model = ModelConfig(**saved.config["model"])
    if not model.uses_cross_attention or encoder_is_silent(saved.scales):
        model = replace(model, encoder=False, linear=True)
    training = saved.config.get("training", {})  # only a Performer has it
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
        # The adapted model, and the labels of a query, are then the same with a GPU and without.
        trainer=replace(usual.trainer, accelerator="cpu", max_steps=steps, batch_size=size),
    )


def with_encoder_weight(model: Model, weight: float) -> Model:
    """Return a model with the logits of its encoder multiplied by a weight; see trust/shift.py."""
    if weight == 1:
        return model
    network = deepcopy(model.network)
    assert isinstance(network, CellTypeModel)
    network.scale_branches(1.0, weight)
    scales = model.saved.scales | {"encoder": weight * model.saved.scales["encoder"]}
    saved = replace(model.saved, metrics=model.saved.metrics | {"scales": scales})
    return replace(model, saved=saved, own_network=network)


def known_accuracy(saved: SavedModel) -> float:
    """Return the out-of-fold accuracy of a model on its reference; NaN if it is not recorded."""
    return float(saved.metrics.get("out_of_fold", {}).get("accuracy", math.nan))


def accuracy_beside(adapted: float, original: float) -> str:
    """Return the accuracy of an adapted model on its reference in words, beside that with all genes."""
    if math.isnan(adapted):  # the stored cells are too few to hold some out
        return "unknown accuracy"
    return f"accuracy {adapted:.2f}" + ("" if math.isnan(original) else f" ({original:.2f} with all genes)")
