"""What to expect of the labels of a sample: their accuracy, the evidence behind it, and a warning."""

import logging
import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import softmax

from scperformer.annotation.record import (
    BinsRecord,
    CalibrationRecord,
    NoveltyRecord,
    ProfilesRecord,
    Record,
    ShiftRecord,
    texts,
)
from scperformer.annotation.which_tissue import SPECIFIC, close_tissues
from scperformer.base.messages import listed
from scperformer.cells.reference_labels import CALLED
from scperformer.labels.tree import LabelTree
from scperformer.model.arrays import HeldOut
from scperformer.model.saved_model import SavedModel
from scperformer.trust.confidence import calibration
from scperformer.trust.resemblance import FEW_RESEMBLE
from scperformer.trust.shift import OTHER, expected_text, file_text, file_warning, unlike_text, unsure_text

if TYPE_CHECKING:
    from scperformer.annotation.adapted import Adapted

log = logging.getLogger(__name__)

MANY_UNKNOWN = 0.2  # share of unknown cells from which a tissue has cells of other kinds than its profiles
# Of a file to the profiles, below which no accuracy is expected: embryos have .04.
MIN_RESEMBLANCE = 0.1
# The accuracy by profiles may be so much below the confidence of labels, more if another tissue fits, too, and so much
# above that of families (benchmarks/NOTES.md).
BELOW = 0.1
BELOW_IF_OTHERS_FIT = 0.2
ABOVE = 0.07
SHALLOW = 0.25  # of the depth of the reference, below which labels of types say too much
SAFE = 0.9  # confidence that is proposed for shallow cells


def expect_by_reference(adapted: "Adapted", record: Record, predictions: pd.DataFrame, unknown_share: float) -> str:
    """Record what to expect of predictions, by out-of-fold predictions of the reference; return a warning, or ""."""
    query, saved, shift = adapted.query, adapted.saved, adapted.shift
    warning = ""
    if saved.held_out is None:
        why = (
            "its kept cells are few or simulated" if adapted.record.adapted else f"{saved.how_to_complete} to have them"
        )
        text = "%s: the model has no out-of-fold predictions (%s): no novelty, no sets of labels"
        log.info(f"{text}; unknown depends on min_confidence alone", query.path, why)
    else:
        found = calibration(saved.held_out.logits, saved.held_out.labels)
        bins = BinsRecord(**{name: np.array(values) for name, values in found.bins.items()})
        record.calibration = CalibrationRecord(num_cells=found.num_cells, error=found.error, bins=bins)
        record.novelty = NoveltyRecord(unknown_fpr=adapted.options.unknown_fpr, num_cells=found.num_cells)
        confidence = float(predictions["confidence"].mean())
        usual = float(probabilities(saved.held_out).max(axis=1).mean())
        record.fit = {"mean_confidence": confidence, "held_out_confidence": usual}
        unlike = unlike_text(unknown_share, len(saved.labels), saved.provenance.tissue, query.findings.text)
        kind = None if shift is None else shift.kind
        warning = file_warning(kind, unknown_share, unlike, unsure_text(confidence, usual))
    warning = "; ".join(filter(None, [query.findings.doubt, warning]))
    if shift is None:
        return warning
    lowest = highest = math.nan
    if warning:
        warning = file_text(shift, warning)
    elif saved.provenance.called:  # the accuracy of a reference without a truth is not known
        warning = CALLED
        log.info("%s: %s", query.path, shift.text)
    else:
        if shift.kind == OTHER:
            expressed = predictions.loc[~predictions["empty"], "confidence"]
            lowest, highest = shift.expected_accuracy(float(expressed.mean()))
        elif not math.isnan(adapted.record.expected_accuracy):
            of_batches = [each for each in saved.batch_scores.accuracy if each is not None]
            accuracies = [adapted.record.expected_accuracy, *of_batches]
            lowest, highest = min(accuracies), max(accuracies)
        log.info("%s: %s", query.path, shift.text)
        log.info("%s: %s", query.path, expected_text(lowest, highest, shift.kind))
    offsets = adapted.offsets
    record.shift = ShiftRecord(
        **shift.record(),
        logit_offsets=None if offsets is None else offsets.logits,
        sum_offsets=None if offsets is None else offsets.sums,
        label_overlap=None if offsets is None else offsets.overlap,
        expected_lowest=lowest,
        expected_highest=highest,
        gene_factors=adapted.gene_factors,
    )
    return warning


def shallow_text(saved: SavedModel, depth_share: float, tree: LabelTree | None, min_confidence: float) -> str:
    """Return what can be said of shallow cells, by out-of-fold cells of the same depth; "" of others.

    Their labels are often wrong, and novelty does not tell which, but families of types are right.
    """
    if saved.held_out is None or tree is None or not depth_share < SHALLOW or min_confidence >= SAFE:
        return ""
    proba = probabilities(saved.held_out)
    labels = saved.held_out.labels
    best = proba.argmax(axis=1)
    called = tree.call(proba, best, SAFE)[0]
    above = np.array([[node in tree.path(label) for node in [*tree.nodes, ""]] for label in tree.labels])  # "": none
    is_known = called >= 0
    text = f"shallow cells ({depth_share:.0%} of the depth of the reference): {(best == labels).mean():.0%} of the "
    text += f"labels of out-of-fold cells are right, and with min_confidence={SAFE:g}, which calls families of types "
    return f"{text}where the type is not clear, {above[labels, called][is_known].mean():.0%} of the calls"


def probabilities(held_out: HeldOut) -> np.ndarray:
    """Return the probabilities of labels of held-out cells, float64 N x C."""
    return softmax(held_out.logits.astype(np.float64), axis=1)


def expect_by_profiles(adapted: "Adapted", record: Record, predictions: pd.DataFrame, unknown_share: float) -> str:
    """Record what to expect of predictions by the profiles of a tissue, and return a warning; "" if there is none."""
    predictions = predictions[~predictions["empty"]]
    saved = adapted.saved
    tissue = record.tissue
    assert adapted.resemblance is not None
    resemblance = float(predictions["scores"].median()) if len(predictions) else math.nan
    instead = None if tissue is None else tissue.instead
    fits_another = instead or (tissue is not None and tissue.how == SPECIFIC and close_tissues(tissue))
    lowest, highest = range_by_profiles(predictions, resemblance, BELOW_IF_OTHERS_FIT if fits_another else BELOW)
    if saved.others or instead:  # the tissue is not determined, or not the right one
        lowest = highest = math.nan
    doubt = adapted.query.findings.doubt
    if doubt:
        lowest = highest = math.nan
    warnings = [text for text in (doubt, instead) if text]
    nearest = pd.Series(np.array(saved.labels)[predictions["best"]]).value_counts(normalize=True)
    others = nearest[[saved.kinds.get(label, "") not in ("", *adapted.kinds) for label in nearest.index]]
    if others.sum() >= MANY_UNKNOWN:
        kinds = listed(f"{share:.0%} {name}" for name, share in others.head(3).items())
        warnings.append(f"{others.sum():.0%} of the cells are not named, as they do not occur in every tissue: {kinds}")
    if unknown_share - others.sum() >= MANY_UNKNOWN:
        text = f"{unknown_share - others.sum():.0%} of the cells resemble no type of {saved.name}"
        warnings.append(f"{text}: malignant cells, or types that it lacks")
    text = profiles_text(lowest, highest)
    path = adapted.query.path
    log.info("%s: resemblance to the profiles %.2f. %s", path, resemblance, text)
    record.novelty = NoveltyRecord(unknown_fpr=adapted.options.unknown_fpr)
    record.profiles = ProfilesRecord(
        resemblance=resemblance,
        expected_lowest=lowest,
        expected_highest=highest,
        centre=adapted.resemblance.centre,  # both for explain
        shares=adapted.resemblance.shares,
        gene_factors=adapted.gene_factors,
        kinds=texts(adapted.kinds) if saved.others else None,
    )
    if adapted.kinds:
        kinds = nearest.groupby(lambda label: saved.kinds.get(label)).sum()
        shares = listed(f"{kinds.get(kind, 0):.0%} {kind}" for kind in adapted.kinds)
        log.info("%s: cells of types that do not occur in every tissue get the name of their kind: %s", path, shares)
    return "; ".join(warnings)


def range_by_profiles(predictions: pd.DataFrame, resemblance: float, below: float) -> tuple[float, float]:
    """Return the lowest and the highest accuracy to expect of cells with a median resemblance to profiles, or NaN.

    The label is one of a family of similar types, and the family is right more often than the label. `below` is how
    much lower than their confidence the accuracy of calls may be. Of few cells, it also varies by chance.
    """
    if not resemblance >= MIN_RESEMBLANCE:
        return math.nan, math.nan
    mean = float(predictions["call_confidence"].mean()) - below
    mean = max(0.0, mean * min(1.0, resemblance / FEW_RESEMBLE))
    lowest = max(0.0, mean - 2 * math.sqrt(mean * (1 - mean) / len(predictions)))
    return lowest, min(1.0, float(predictions["family"].mean()) + ABOVE)


def profiles_text(lowest: float, highest: float) -> str:
    """Return the accuracy to expect of predictions by profiles."""
    expected = "No expected accuracy" if math.isnan(lowest) else f"Expected accuracy {lowest:.2f} to {highest:.2f}"
    return f"{expected}; this reference has no cells"
