"""Adapt a model to the cells of a file: whether to, and where adapted models are kept."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import in_time, listed
from scperformer.cells.query import Query
from scperformer.config.annotation import AnnotationOptions
from scperformer.io.gene_overlap import MIN_PANEL
from scperformer.model.batch_effect import correct_batch_effect
from scperformer.model.content import INFO
from scperformer.model.folder import damaged_model, load_reference_cells, read_model, write_model
from scperformer.model.inference import torch_state_kept
from scperformer.model.load import Model, as_model
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import SavedModel, Study
from scperformer.model.shift import FAR, OTHER, Shift
from scperformer.training.adapted import fit_to_condition, with_encoder_weight
from scperformer.training.condition import (
    Condition,
    Repeats,
    adapting_pays,
    depth_share,
    find_condition,
    find_repeats,
    find_shift,
    joined_repeats,
    known_cells,
)

log = logging.getLogger(__name__)


@dataclass
class Adapted:
    """A model for the cells of a file, the cells with the genes of this model, and the record of their condition."""

    model: Model
    query: Query
    record: dict[str, Any]
    shift: Shift | None = None  # how far the cells are from the reference; None: not asked for, or not known
    gene_factors: np.ndarray | None = None  # float32 G, by which genes are divided before calls; None: none are
    members: list[Member] = field(default_factory=list)  # of a model of several studies
    repeats: Repeats = field(default_factory=Repeats)  # cells of the reference among those of the file

    def as_in_reference(self, x: csr_matrix) -> csr_matrix:
        """Return aligned cells of the file, CSR float32 N x G, without the gene effects of another study."""
        return x if self.gene_factors is None else correct_batch_effect(x, self.gene_factors)


@dataclass
class Member:
    """The model of one study among several, for the cells of a file."""

    study: Study
    adapted: Adapted
    weight: float  # of its probabilities; the weights of all members sum to 1

    @property
    def usual_score(self) -> float:
        """The novelty score that few known cells exceed in a file like this one; 1 if it is not known."""
        held_out = self.adapted.model.saved.held_out
        factor = 1.0 if self.adapted.shift is None else self.adapted.shift.factor
        known_share = 1 - AnnotationOptions.unknown_fpr
        return 1.0 if held_out is None else factor * float(np.quantile(held_out.scores, known_share))


@torch_state_kept()  # a network draws its first weights at random
def adapt_model(
    model: Model,
    query: Query,
    cfg: AnnotationOptions,
    condition: Condition | None = None,
    with_shift: bool = False,
    whole: Query | None = None,
) -> Adapted:
    """Adapt a model to the condition of a file, or return it as it is, depending on `cfg.adapt`.

    A model that has been adapted to another file of the same condition is reused. `condition` is that of the file
    unless it is given. With `with_shift`, also find how far the file is from the reference; if it is of another study,
    let the encoder weigh less, and find the factors of its genes. With `whole`, the cells of the file are some of those
    of another one: depth and batch effect are estimated on all of these, and its cells are called as there.

    Raises
    ------
    InputError
        `adapt=true`, and the model keeps no cells; or `whole` has other genes or values than the file.
    """
    if model.members:
        return _adapt_members(model, query, cfg, with_shift, whole)
    seen = query
    if whole is not None:
        _require_same_kind(query, whole)
        seen = whole
        log.info("%s: depth and batch effect are taken from %s", query.path, whole.path)
    saved = model.saved
    condition = condition or find_condition(seen, with_depth=cfg.adapt != "false")
    reference_cells = None if cfg.adapt == "false" else load_reference_cells(saved, model.path)
    repeats = find_repeats(query, saved, reference_cells)
    if cfg.adapt == "true" and reference_cells is None:
        found = f"adapt=true and a model that keeps no cells ({model.path})"
        remedy = f"{saved.how_to_complete}, or leave adapt=true out"
        raise InputError(found, "kept cells", remedy)
    share = math.nan if reference_cells is None else depth_share(reference_cells, condition)
    depth = condition.depth
    if share == 1:  # all files that are as deep as the kept cells, or deeper, have one adapted model
        condition = replace(condition, depth=None)
    record: dict[str, Any] = {
        "adapted": False,
        "num_genes": int(condition.measured.sum()),
        "depth": math.nan if depth is None else depth,
        "depth_share": share,
        "key": condition.key,
        "expected_accuracy": math.nan,
        "accuracy_with_all_genes": float(known_accuracy(saved)),
    }
    if whole is not None:
        record |= {"of": Path(whole.path).name, "of_sha256": whole.sha256}
    if reference_cells is None:
        has_depth = saved.provenance.get("depth") in (None, condition.depth)
        if "adapted_from" in saved.provenance and condition.measured.all() and has_depth:
            record["expected_accuracy"] = record["accuracy_with_all_genes"]
    elif cfg.adapt == "auto" and not adapting_pays(seen.plan.overlap.informative_share, share):
        log.info("%s: the model is used as it is, as the file has its genes and depth", query.path)
        record["expected_accuracy"] = record["accuracy_with_all_genes"]
    else:
        model = _adapted_to(model, reference_cells, condition, query.path, cfg)
        query = query.of_genes(condition.measured)
        seen = query if whole is None else whole.of_genes(condition.measured)
        expected = model.saved.provenance["expected_accuracy"]
        record |= {"adapted": True, "expected_accuracy": math.nan if expected is None else float(expected)}
    shift = factors = None
    if with_shift and (known := known_cells(model.saved)) is not None:
        shift, factors, _ = find_shift(seen, known, saved, reference_cells, condition, model)
    if record["adapted"] and (shift is None or shift.kind not in (OTHER, FAR)):  # else it says little
        said = accuracy_beside(record["expected_accuracy"], record["accuracy_with_all_genes"])
        depth_of = "its depth" if share < 1 else "the depth of the reference"
        log.info(
            "%s: %s on reference cells with its %s genes and %s", query.path, said, f"{record['num_genes']:,}", depth_of
        )
    if factors is not None:
        log.info("%s: per-gene batch effects are corrected before annotation", query.path)
    if shift is not None:
        model = with_encoder_weight(model, shift.encoder_weight)
    return Adapted(model, query, record, shift, factors, repeats=repeats)


def _require_same_kind(query: Query, whole: Query) -> None:
    """Refuse a whole file whose genes or values differ from those of a part of it."""
    remedy = "keep all genes and the values in the file of some of its cells, or leave condition_of out"
    num_other = int((query.measured != whole.measured).sum())
    if num_other:
        found = f"{num_other:,} genes of the model that are in one of {query.path} and {whole.path}"
        raise InputError(found, "the same genes in both", remedy)
    read, expected = (each.plan.findings.text for each in (query, whole))
    if read != expected:
        raise InputError(f"{read} of {query.path}", f"{expected}, as in {whole.path}", remedy)


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
        raise InputError(f"too few genes in {query.path}", expected, "use a model for its genes")
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
    repeats = joined_repeats([member.adapted.repeats for member in members])
    return Adapted(model, query, record, nearest.shift, members=members, repeats=repeats)


def _adapted_to(
    model: Model, reference_cells: ReferenceCells, condition: Condition, path: str, cfg: AnnotationOptions
) -> Model:
    """Return a model adapted to a condition: an earlier one, also from `cfg.adapted_folder`, else a new one."""
    if condition.key in model.adapted:
        return model.adapted[condition.key]
    begin = time.perf_counter()
    num_genes = f"{int(condition.measured.sum()):,}"
    log.info("%s: fitting the model to its %s genes and its depth", path, num_genes)
    if cfg.adapted_folder is None:
        saved = fit_to_condition(model, reference_cells, condition)
    else:
        folder = Path(cfg.adapted_folder) / f"{model.saved.hash[:16]}-{condition.key}-{version('scperformer')}"
        if not (folder / INFO).is_file():
            fitted = fit_to_condition(model, reference_cells, condition)
            try:
                write_model(fitted, folder)
            except InputError:
                if not (folder / INFO).is_file():  # else another job has written it meanwhile
                    raise
        # Records name the model that was adapted, not this one.
        saved = replace(read_model(folder), hash=model.saved.hash)
        if saved.genes != [gene for gene, known in zip(model.saved.genes, condition.measured, strict=True) if known]:
            raise damaged_model(folder, "other genes than its condition")
    model.adapted[condition.key] = as_model(saved, model.path)
    log.info("the model was adapted to %s genes in %s", num_genes, in_time(time.perf_counter() - begin))
    return model.adapted[condition.key]


def known_accuracy(saved: SavedModel) -> float:
    """Return the out-of-fold accuracy of a model on its reference; NaN if it is not recorded."""
    return saved.metrics.get("out_of_fold", {}).get("accuracy", math.nan)


def accuracy_beside(adapted: float, original: float) -> str:
    """Return the accuracy of an adapted model on its reference in words, beside that with all genes."""
    if math.isnan(adapted):  # the stored cells are simulated, or too few to hold some out
        return "unknown accuracy"
    return f"accuracy {adapted:.2f}" + ("" if math.isnan(original) else f" ({original:.2f} with all genes)")
