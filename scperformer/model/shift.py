"""How far the cells of a file are from the reference of a model, as a whole: another kit, another state, or tissue.

Between studies everything moves a little: the chemistry, the laboratory and the state of the cells change the
expression of many genes in all cells. Two numbers say how much, from the half of the file's cells that looks most like
the reference, so that types which the reference lacks have no part in them. The novelty ratio compares the lower
quartile of their novelty scores with that of held-out cells of the reference. The gene effects (effects.py) are
the spread of the factors by which the mean expression of genes differs from that of the same mixture of the reference's
labels. benchmarks/studies.py measures both; the limits here come from its pairs.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

MIN_CELLS = 20  # fewer cells of a file say little about all of them
QUARTILE = 0.25
# Held-out cells of the reference's own study have gene effects up to .11, and up to .2 if they are few, shallow or of
# one label; blood of other kits and states has .15 to 1.2. From the second limit on, a file is of another study.
LIKE_EFFECTS = 0.12
OTHER_EFFECTS = 0.22
# The same for the novelty ratio, which is asked only if gene effects are not known: 1.0 to 1.4, and 1.0 to 28.
LIKE_RATIO = 1.3
OTHER_RATIO = 1.7
# Other tissues have ratios of 22 to 69 and gene effects of .9 to 1.5.
FAR_RATIO = 20.0
FAR_EFFECTS = 1.0
FARTHER_RATIO = 35.0  # another tissue whatever the gene effects
MAX_FACTOR = 6.0  # larger ones would hide cells of other tissues
# In another study, the encoder's logits are multiplied by this. Between the studies by which options are chosen, more
# of the encoder beside the linear branch gains nothing from here on, and makes the sum too sure.
OTHER_ENCODER = 0.5
OTHER_TEMPERATURE = 1.3  # of the logits of a model with a single branch, in another study
LOWER = 0.1  # the accuracy in another study may be so much lower or higher than the mean confidence
HIGHER = 0.07
TINY = 1e-12  # in place of 0, where a quotient is taken

LIKE = "like the reference"
OTHER = "another protocol or state"
FAR = "another tissue"
FEW = "too few cells to say"  # how far they are
ADVICE = {OTHER: "labels are plausible, confidence is lowered", FAR: "do not use these labels"}


@dataclass(frozen=True)
class Shift:
    """The two numbers of a file, from some of its cells; NaN where they are not known."""

    novelty_ratio: float  # 1: as held-out cells of the reference
    gene_effects: float  # standard deviation of natural logarithms, weighted by expression
    num_cells: int  # from which they were found
    has_both: bool = False  # whether the model has a linear branch and an encoder
    batch_effects: float = 0.0  # gene effects between batches of the reference, whole ones of which were held out

    @property
    def kind(self) -> str:
        """What the numbers mean, in words."""
        if math.isnan(self.novelty_ratio):
            return FEW
        is_far = self.novelty_ratio >= FAR_RATIO and self.gene_effects >= FAR_EFFECTS
        if is_far or self.novelty_ratio >= FARTHER_RATIO:
            return FAR
        return OTHER if self.way > 0 else LIKE

    @property
    def way(self) -> float:
        """How far a file is on the way from the reference's own study, 0, to another one, 1."""
        if math.isnan(self.gene_effects):
            way = (self.novelty_ratio - LIKE_RATIO) / (OTHER_RATIO - LIKE_RATIO)
        else:  # a file may differ from the reference as much as its batches do from each other
            like = max(LIKE_EFFECTS, self.batch_effects)
            way = (self.gene_effects - like) / (OTHER_EFFECTS - LIKE_EFFECTS)
        return min(1.0, max(0.0, way))

    @property
    def distance(self) -> tuple[float, float]:
        """What orders studies by their distance to a file; infinite if it is not known."""
        return (math.inf, math.inf) if math.isnan(self.novelty_ratio) else (self.way, self.novelty_ratio)

    @property
    def factor(self) -> float:
        """By how much novelty scores are divided: in another study all cells look novel, and not for their type.

        In another tissue they do look novel for their type, so nothing is divided.
        """
        return min(max(self.novelty_ratio, 1.0), MAX_FACTOR) if self.kind == OTHER else 1.0

    @property
    def encoder_weight(self) -> float:
        """By how much the logits of the encoder are multiplied beside a linear branch, which carries over better."""
        is_other = self.has_both and self.kind not in (LIKE, FEW)
        return 1.0 - self.way * (1.0 - OTHER_ENCODER) if is_other else 1.0

    @property
    def temperature(self) -> float:
        """By how much logits are divided: probabilities that hold in one study are too sure in others.

        With both branches, the smaller weight of the encoder has made them less sure already.
        """
        is_like = self.has_both or self.kind in (LIKE, FEW)
        return 1.0 if is_like else 1.0 + self.way * (OTHER_TEMPERATURE - 1.0)

    def expected_accuracy(self, mean_confidence: float) -> tuple[float, float]:
        """Return the least and the highest accuracy to expect in a file of another study; NaN in another tissue.

        `mean_confidence` is that of its cells, with the smaller weight of the encoder or the temperature.
        """
        if self.kind != OTHER:
            return math.nan, math.nan
        return max(0.0, mean_confidence - LOWER), min(1.0, mean_confidence + HIGHER)

    @property
    def numbers(self) -> str:
        """Both numbers, for the log."""
        if self.kind == FEW:
            return f"{self.num_cells} cells"
        numbers = f"novelty {self.novelty_ratio:.1f} x the reference's"
        return numbers + ("" if math.isnan(self.gene_effects) else f", gene effects {self.gene_effects:.2f}")

    @property
    def text(self) -> str:
        """Both numbers and what they mean, for the log."""
        advice = f": {ADVICE[self.kind]}" if self.kind in ADVICE else ""
        return f"{self.kind}{advice} ({self.numbers})"

    def record(self) -> dict[str, Any]:
        """Return everything as plain values."""
        names = ("kind", "factor", "encoder_weight", "temperature")
        return asdict(self) | {name: getattr(self, name) for name in names}


def make_shift(
    scores: np.ndarray, held_out: np.ndarray, effects: float, *, has_both: bool = False, batch_effects: float = 0.0
) -> Shift:
    """Return the shift of a file.

    Parameters
    ----------
    scores
        Novelty scores of some of its cells, those without genes of the model left out.
    held_out
        Novelty scores of held-out cells of the reference.
    effects
        Spread of the gene effects; NaN if it is not known.
    has_both
        Whether the model has a linear branch and an encoder.
    batch_effects
        Spread of the gene effects between batches of the reference; 0 if they are not known.
    """
    ratio = math.nan
    if len(scores) < MIN_CELLS:
        effects = math.nan
    else:
        usual = max(float(np.quantile(held_out, QUARTILE)), TINY)
        ratio = float(np.quantile(scores, QUARTILE)) / usual
    return Shift(ratio, effects, len(scores), has_both, batch_effects)


def most_alike(scores: np.ndarray) -> np.ndarray:
    """Return which cells are in the half with the lower novelty scores, boolean N."""
    return scores <= np.median(scores)


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Divide the logits behind probabilities, float32 N x C, by a temperature; labels and their order stay."""
    if temperature == 1:
        return proba
    powers = proba.astype(np.float64) ** (1 / temperature)
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def expected_text(lowest: float, highest: float, kind: str) -> str:
    """Return the accuracy to expect of the labels of a file, and why, for the log."""
    if kind == FAR:
        return f"no accuracy can be expected: these are cells of {FAR}"
    if math.isnan(lowest):
        return "the accuracy to expect is not known"
    if kind == OTHER:
        text = f"expected accuracy {lowest:.2f} to {highest:.2f}, as these are cells of {OTHER}"
        return f"{text}: labels of other studies also differ in what they mean"
    if lowest < highest:
        return f"expected accuracy {lowest:.2f} to {highest:.2f}, as that of batches of the reference by the others"
    return f"expected accuracy {lowest:.2f}, as that of held-out cells of the reference"
