"""Distribution shift: the difference between a query and the reference of a model, in two numbers and in words.

docs/trust_methods.md#distribution-shift explains both numbers. They come from the half of the query with the lower
novelty scores; the limits below come from pairs of studies (benchmarks/studies.py).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scperformer.trust.resemblance import FEW_RESEMBLE

MIN_CELLS = 20  # of a query; with fewer, the shift cannot be estimated
QUARTILE = 0.25
# Out-of-fold cells of the reference's own study have a batch effect up to .11, and up to .2 if they are few, shallow or
# of one label; blood of other kits and conditions has .15 to 1.2. From the second limit on, a query is another study.
LIKE_EFFECT = 0.12
OTHER_EFFECT = 0.22
# The same for the relative novelty, which counts only if the batch effect is not known: 1.0 to 1.4, and 1.0 to 28.
LIKE_NOVELTY = 1.3
OTHER_NOVELTY = 1.7
# Other tissues have a batch effect of .9 to 2.3 and a relative novelty of 22 to 220, or 5 to 33 with 1,000 genes. Small
# references find stimulated cells of their own tissue as novel, but these resemble the labels (trust/resemblance.py).
FAR_NOVELTY = 5.0
FAR_EFFECT = 1.0
FARTHER_NOVELTY = 35.0  # another tissue whatever the batch effect
MAX_FACTOR = 6.0  # larger ones would hide cells of other tissues
# Between the studies by which options are chosen, more of the encoder gains nothing, and makes the sum too sure.
OTHER_ENCODER = 0.5
OTHER_TEMPERATURE = 1.3  # of the logits of a model with a single branch, in another study
# The accuracy in another study lies between the mean confidence minus LOWER and plus HIGHER, in 60 of 63 queries of
# benchmarks/studies.py, whole or cut; it is higher in the others.
LOWER = 0.14
HIGHER = 0.07
TINY = 1e-12  # in place of 0, where a quotient is taken
# fraction of unknown cells in a query; above it, the model is probably for another tissue
MAX_UNKNOWN = 0.5
NEARLY_ALL = 0.95  # fraction of unknown cells from which misread values are a likely cause, too
FAR_BELOW = 0.1  # difference between mean confidences

LIKE = "like the reference"
OTHER = "another protocol or condition"
FAR = "another tissue"
FEW = "too few cells"
NOT_KNOWN = "not known"
ADVICE = {
    OTHER: ", whose labels are plausible, with lowered confidence",
    FAR: ", whose labels are not to be used",
}


@dataclass(frozen=True)
class Shift:
    """The distribution shift of a query; a number that is not known is NaN."""

    relative_novelty: float  # 1: as out-of-fold cells of the reference
    batch_effect: float  # standard deviation of natural logarithms, weighted by expression
    num_cells: int  # from which both were estimated
    has_both: bool = False  # whether the model has a linear branch and an encoder
    # between batches of the reference, whole ones of which were held out
    reference_batch_effect: float = 0.0
    # of its cells to the labels; only of a query that is far by the other two numbers
    resemblance: float = math.nan

    @property
    def kind(self) -> str:
        """`LIKE`, `OTHER`, `FAR` or `FEW`."""
        if math.isnan(self.relative_novelty):
            return FEW
        is_far = self.relative_novelty >= FAR_NOVELTY and self.batch_effect >= FAR_EFFECT
        is_far |= self.relative_novelty >= FARTHER_NOVELTY
        if is_far and not self.resemblance >= FEW_RESEMBLE:
            return FAR
        return OTHER if self.fraction > 0 else LIKE

    @property
    def fraction(self) -> float:
        """The shift from 0, the reference's own study, to 1, another study."""
        if math.isnan(self.batch_effect):
            fraction = (self.relative_novelty - LIKE_NOVELTY) / (OTHER_NOVELTY - LIKE_NOVELTY)
        else:  # a query may differ from the reference as much as its batches do from each other
            like = max(LIKE_EFFECT, self.reference_batch_effect)
            fraction = (self.batch_effect - like) / (OTHER_EFFECT - LIKE_EFFECT)
        return min(1.0, max(0.0, fraction))

    @property
    def distance(self) -> tuple[float, float]:
        """The order of studies by their distance to a query; infinite if it is not known."""
        return (
            (math.inf, math.inf)
            if math.isnan(self.relative_novelty)
            else (self.fraction, self.relative_novelty)
        )

    @property
    def factor(self) -> float:
        """The divisor of novelty scores: a batch effect raises the novelty of all cells.

        Cells of another tissue are novel for their type, so nothing is divided.
        """
        return min(max(self.relative_novelty, 1.0), MAX_FACTOR) if self.kind == OTHER else 1.0

    @property
    def encoder_weight(self) -> float:
        """The factor of the encoder's logits beside a linear branch, which carries over better."""
        is_other = self.has_both and self.kind not in (LIKE, FEW)
        return 1.0 - self.fraction * (1.0 - OTHER_ENCODER) if is_other else 1.0

    @property
    def temperature(self) -> float:
        """The divisor of logits: probabilities calibrated in one study are too sure in others.

        With both branches, the smaller weight of the encoder has made them less sure already.
        """
        is_like = self.has_both or self.kind in (LIKE, FEW)
        return 1.0 if is_like else 1.0 + self.fraction * (OTHER_TEMPERATURE - 1.0)

    def expected_accuracy(self, mean_confidence: float) -> tuple[float, float]:
        """Return the least and the highest accuracy to expect in another study.

        `mean_confidence` is of the cells of the query, with the smaller weight of the encoder or the temperature.
        """
        return max(0.0, mean_confidence - LOWER), min(1.0, mean_confidence + HIGHER)

    @property
    def numbers(self) -> str:
        if self.kind == FEW:
            return f"{self.num_cells} cells"
        numbers = f"relative novelty {self.relative_novelty:.1f}"
        return numbers + (
            "" if math.isnan(self.batch_effect) else f", batch effect {self.batch_effect:.2f}"
        )

    @property
    def text(self) -> str:
        """Kind, advice and both numbers, for the log."""
        return f"{self.kind}{ADVICE.get(self.kind, '')} ({self.numbers})"

    def record(self) -> dict[str, Any]:
        names = ("kind", "factor", "encoder_weight", "temperature")
        return asdict(self) | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class FarBatch(Shift):
    """The shift of a batch as far as another tissue, whose cells resemble the labels once they are corrected."""

    @property
    def kind(self) -> str:
        return OTHER

    @property
    def numbers(self) -> str:
        return f"{super().numbers}, as far as {FAR}, but its corrected cells resemble the labels"


@dataclass(frozen=True)
class UnknownShift(Shift):
    """In place of a shift that was not asked for, or cannot be known; it changes nothing."""

    @property
    def kind(self) -> str:
        return NOT_KNOWN


NO_SHIFT = UnknownShift(math.nan, math.nan, 0)


def estimate_shift(
    scores: np.ndarray,
    held_out: np.ndarray,
    batch_effect: float,
    has_both: bool = False,
    of_batches: float = 0.0,
) -> Shift:
    """Return the shift of a query, from the novelty scores of some cells that express genes of the model.

    `held_out` are the scores of out-of-fold cells of the reference; the others are fields of `Shift`.
    """
    if len(scores) < MIN_CELLS:
        return Shift(math.nan, math.nan, len(scores), has_both, of_batches)
    usual = max(float(np.quantile(held_out, QUARTILE)), TINY)
    relative = float(np.quantile(scores, QUARTILE)) / usual
    return Shift(relative, batch_effect, len(scores), has_both, of_batches)


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Divide the logits behind probabilities, float32 N x C, by a temperature; labels and their order stay."""
    if temperature == 1:
        return proba
    powers = proba.astype(np.float64) ** (1 / temperature)
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def expected_text(lowest: float, highest: float, kind: str) -> str:
    """Return the accuracy to expect of the labels of a query, and why, for the log."""
    if kind == FAR:
        return "no expected accuracy"
    if math.isnan(lowest):
        return "the expected accuracy is not known"
    if kind == OTHER:
        why = "as labels of other studies also differ in their meaning"
        return f"expected accuracy {lowest:.2f} to {highest:.2f}, {why}"
    if lowest < highest:
        return f"expected accuracy {lowest:.2f} to {highest:.2f} (batches of the reference, each held out)"
    return f"expected accuracy {lowest:.2f} (out-of-fold cells of the reference)"


def is_unsure(confidence: float, held_out: float) -> bool:
    """Return whether a mean confidence is far below the mean of out-of-fold cells; not if one of them is NaN."""
    return confidence < held_out - FAR_BELOW
