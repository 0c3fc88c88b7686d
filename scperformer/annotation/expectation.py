"""What to expect of the labels of a sample: their accuracy, the evidence behind it, and a warning."""

import logging
import math

import numpy as np
import pandas as pd

from scperformer.annotation.adapted import Adapted
from scperformer.annotation.record import (
    BinsRecord,
    CalibrationRecord,
    NoveltyRecord,
    ProfilesRecord,
    Record,
    ShiftRecord,
    texts,
)
from scperformer.annotation.tissue_model import AdaptedTissue
from scperformer.annotation.which_tissue import SPECIFIC, close_tissues
from scperformer.base.messages import listed
from scperformer.cells.reference_labels import CALLED
from scperformer.labels.tree import LabelTree
from scperformer.model.saved_model import SavedModel
from scperformer.trust.confidence import calibration
from scperformer.trust.resemblance import FEW_RESEMBLE, MANY_UNKNOWN
from scperformer.trust.shift import NOT_KNOWN, OTHER, expected_text, file_text, file_warning, unlike_text, unsure_text

log = logging.getLogger(__name__)

# Of a file to the profiles, below which no accuracy is expected: embryos have .04.
MIN_RESEMBLANCE = 0.1
# The accuracy by profiles may be so much below the confidence of labels, more if another tissue fits, too, and so much
# above that of families (benchmarks/NOTES.md).
BELOW = 0.1
BELOW_IF_OTHERS_FIT = 0.2
ABOVE = 0.07
SHALLOW = 0.25  # of the depth of the reference, below which labels of types say too much
SAFE = 0.9  # confidence that is proposed for shallow cells


def expect_by_reference(adapted: Adapted, record: Record, predictions: pd.DataFrame, unknown_share: float) -> str:
    """Record what to expect of predictions, by out-of-fold predictions of the reference; return a warning, or ""."""
    query, saved, shift = adapted.query, adapted.saved, adapted.compared.shift
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
        usual = float(saved.held_out.probabilities.max(axis=1).mean())
        record.fit = {"mean_confidence": confidence, "held_out_confidence": usual}
        unlike = unlike_text(unknown_share, len(saved.labels), saved.provenance.tissue, query.findings.text)
        warning = file_warning(shift.kind, unknown_share, unlike, unsure_text(confidence, usual))
    warning = "; ".join(filter(None, [query.findings.doubt, warning]))
    if shift.kind == NOT_KNOWN:
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
    offsets, factors = adapted.compared.offsets, adapted.compared.factors
    record.shift = ShiftRecord(
        **shift.record(),
        logit_offsets=offsets.logits if len(offsets) else None,
        sum_offsets=offsets.sums if len(offsets) else None,
        label_overlap=offsets.overlap if len(offsets) else None,
        expected_lowest=lowest,
        expected_highest=highest,
        gene_factors=factors if len(factors) else None,
    )
    return warning


def shallow_text(saved: SavedModel, depth_share: float, tree: LabelTree | None, min_confidence: float) -> str:
    """Return what can be said of shallow cells, by out-of-fold cells of the same depth; "" of others.

    Their labels are often wrong, and novelty does not tell which, but families of types are right.
    """
    if saved.held_out is None or tree is None or not depth_share < SHALLOW or min_confidence >= SAFE:
        return ""
    proba = saved.held_out.probabilities
    labels = saved.held_out.labels
    best = proba.argmax(axis=1)
    called = tree.call(proba, best, SAFE)[0]
    above = np.array([[node in tree.path(label) for node in [*tree.nodes, ""]] for label in tree.labels])  # "": none
    is_known = called >= 0
    text = f"shallow cells ({depth_share:.0%} of the depth of the reference): {(best == labels).mean():.0%} of the "
    text += f"labels of out-of-fold cells are right, and with min_confidence={SAFE:g}, which calls families of types "
    return f"{text}where the type is not clear, {above[labels, called][is_known].mean():.0%} of the calls"


def expect_by_profiles(adapted: AdaptedTissue, record: Record, predictions: pd.DataFrame, unknown_share: float) -> str:
    """Record what to expect of predictions by the profiles of a tissue, and return a warning; "" if there is none."""
    predictions = predictions[~predictions["empty"]]
    saved = adapted.saved
    tissue = record.tissue
    compared, kinds = adapted.compared, adapted.compared.kinds
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
    others = nearest[[saved.kinds.get(label, "") not in ("", *kinds) for label in nearest.index]]
    if others.sum() >= MANY_UNKNOWN:
        text = f"{others.sum():.0%} of the cells are not named, as they do not occur in every tissue"
        warnings.append(f"{text}: {listed(f'{share:.0%} {name}' for name, share in others.head(3).items())}")
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
        centre=compared.resemblance.centre,  # both for explain
        shares=compared.resemblance.shares,
        gene_factors=compared.factors if len(compared.factors) else None,
        kinds=texts(kinds) if saved.others else None,
    )
    if kinds:
        share_of_kind = nearest.groupby(lambda label: saved.kinds.get(label)).sum()
        shares = listed(f"{share_of_kind.get(kind, 0):.0%} {kind}" for kind in kinds)
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
