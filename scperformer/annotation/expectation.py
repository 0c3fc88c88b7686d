"""What to expect of the calls of a sample: parts of its record, with the evidence behind them."""

import math
from typing import Any

import numpy as np
import pandas as pd

from scperformer.adaptation.record import (
    BinsRecord,
    CalibrationRecord,
    NoveltyRecord,
    ProfilesRecord,
    ShiftRecord,
    TissueRecord,
    texts,
)
from scperformer.adaptation.tissue_model import ProfileComparison
from scperformer.adaptation.which_tissue import SPECIFIC, close_tissues
from scperformer.annotation.calls import Calls
from scperformer.trust.confidence import calibration
from scperformer.trust.resemblance import FEW_RESEMBLE
from scperformer.trust.shift import FAR, MAX_UNKNOWN, NOT_KNOWN, OTHER, is_unsure

# Of a file to the profiles, below which no accuracy is expected: embryos have .04.
MIN_RESEMBLANCE = 0.1
# The accuracy by profiles may be so much below the confidence of labels, more if another tissue fits, too, and so much
# above that of families (benchmarks/NOTES.md).
BELOW = 0.1
BELOW_IF_OTHERS_FIT = 0.2
ABOVE = 0.07


def expected(calls: Calls, tissue: TissueRecord | None) -> dict[str, Any]:
    """Return the entries of the record about what to expect of calls; `tissue` is how their tissue was found."""
    compared = calls.adapted.compared
    if tissue is None or not isinstance(compared, ProfileComparison):
        return _by_reference(calls)
    saved = calls.adapted.saved
    cells = calls.of_cells[~calls.of_cells["empty"]]
    resemblance = float(cells["scores"].median()) if len(cells) else math.nan
    fits_another = tissue.instead or (tissue.how == SPECIFIC and close_tissues(tissue))
    lowest, highest = range_by_profiles(
        cells, resemblance, BELOW_IF_OTHERS_FIT if fits_another else BELOW
    )
    # The tissue is not determined, or not the right one; or the values are in doubt.
    if saved.others or tissue.instead or calls.query.findings.doubt:
        lowest = highest = math.nan
    return {
        "novelty": NoveltyRecord(unknown_fpr=calls.adapted.options.unknown_fpr),
        "profiles": ProfilesRecord(
            resemblance=resemblance,
            expected_lowest=lowest,
            expected_highest=highest,
            centre=compared.resemblance.centre,  # both for explain
            shares=compared.resemblance.shares,
            gene_factors=compared.factors if len(compared.factors) else None,
            kinds=texts(compared.kinds) if saved.others else None,
        ),
    }


def _by_reference(calls: Calls) -> dict[str, Any]:
    """Return what out-of-fold predictions of the reference say about the calls of a sample."""
    adapted = calls.adapted
    saved = adapted.saved
    compared = adapted.compared
    shift = adapted.compared.shift
    parts: dict[str, Any] = {}
    if saved.held_out is not None:
        found = calibration(saved.held_out.logits, saved.held_out.labels)
        bins = BinsRecord(**{name: np.array(values) for name, values in found.bins.items()})
        confidence = float(calls.of_cells["confidence"].mean())
        usual = float(saved.held_out.probabilities.max(axis=1).mean())
        parts["calibration"] = CalibrationRecord(
            num_cells=found.num_cells, error=found.error, bins=bins
        )
        parts["novelty"] = NoveltyRecord(
            unknown_fpr=adapted.options.unknown_fpr, num_cells=found.num_cells
        )
        parts["fit"] = {"mean_confidence": confidence, "held_out_confidence": usual}
    if shift.kind == NOT_KNOWN:
        return parts
    lowest, highest = math.nan, math.nan
    if not is_doubtful(calls, parts.get("fit")):
        lowest, highest = _accuracy(calls)
    offsets = compared.offsets
    parts["shift"] = ShiftRecord(
        **shift.record(),
        logit_offsets=offsets.logits if len(offsets) else None,
        sum_offsets=offsets.sums if len(offsets) else None,
        label_overlap=offsets.overlap if len(offsets) else None,
        expected_lowest=lowest,
        expected_highest=highest,
        gene_factors=compared.factors if len(compared.factors) else None,
    )
    return parts


def is_doubtful(calls: Calls, fit: dict[str, float] | None) -> bool:
    """Return whether no accuracy is expected: values are in doubt, the tissue is another one, or cells are unsure.

    `fit` has the mean confidence of the cells and of out-of-fold cells, if these are known.
    """
    kind = calls.adapted.compared.shift.kind
    if calls.query.findings.doubt or calls.adapted.saved.provenance.called:
        return True
    if fit is None:
        return False
    if kind == FAR or calls.novel_share > MAX_UNKNOWN:
        return True
    return kind != OTHER and is_unsure(fit["mean_confidence"], fit["held_out_confidence"])


def _accuracy(calls: Calls) -> tuple[float, float]:
    """Return the lowest and the highest accuracy to expect, by the shift of the sample; NaN if it is not known."""
    adapted = calls.adapted
    cells = calls.of_cells
    shift = adapted.compared.shift
    of_study = adapted.record.expected_accuracy
    if shift.kind == OTHER:
        return shift.expected_accuracy(float(cells.loc[~cells["empty"], "confidence"].mean()))
    if math.isnan(of_study):
        return math.nan, math.nan
    accuracies = [
        of_study,
        *(each for each in adapted.saved.batch_scores.accuracy if each is not None),
    ]
    return min(accuracies), max(accuracies)


def range_by_profiles(
    predictions: pd.DataFrame, resemblance: float, below: float
) -> tuple[float, float]:
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
