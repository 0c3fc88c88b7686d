"""How far the cells of a file are from the reference of a model, as a whole: another kit, another state, or tissue.

Between studies everything moves a little: the chemistry, the laboratory and the state of the cells change the
expression of many genes in all cells. Two numbers say how much, from the half of the file's cells that looks most like
the reference, so that types which the reference lacks have no part in them. The novelty ratio compares the lower
quartile of their novelty scores with that of held-out cells of the reference. The gene effects are the spread of the
factors by which the mean expression of genes differs from that of the same mixture of the reference's labels, as in
RCTD (Cable et al. 2022, Nat. Biotechnol. 40:517). benchmarks/studies.py measures both; the limits here come from its
pairs.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

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
PSEUDO_EXPRESSION = 0.02  # counts per 10,000, added to means whose quotient is taken
PSEUDO_CELLS = 20.0  # the same, shared by the cells: means of few cells are uncertain
LOWER = 0.1  # the accuracy in another study may be so much lower or higher than the mean confidence
HIGHER = 0.07
TINY = 1e-12  # in place of 0, where a quotient is taken

LIKE = "like the reference"
OTHER = "another protocol or state"
FAR = "another tissue"
FEW = "too few cells to say"
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
        return OTHER if self._way > 0 else LIKE

    @property
    def _way(self) -> float:
        """How far a file is on the way from the reference's own study, 0, to another one, 1."""
        if math.isnan(self.gene_effects):
            way = (self.novelty_ratio - LIKE_RATIO) / (OTHER_RATIO - LIKE_RATIO)
        else:  # a file may differ from the reference as much as its batches do from each other
            like = max(LIKE_EFFECTS, self.batch_effects)
            way = (self.gene_effects - like) / (OTHER_EFFECTS - LIKE_EFFECTS)
        return min(1.0, max(0.0, way))

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
        return 1.0 - self._way * (1.0 - OTHER_ENCODER) if is_other else 1.0

    @property
    def temperature(self) -> float:
        """By how much logits are divided: probabilities that hold in one study are too sure in others.

        With both branches, the smaller weight of the encoder has made them less sure already.
        """
        is_like = self.has_both or self.kind in (LIKE, FEW)
        return 1.0 if is_like else 1.0 + self._way * (OTHER_TEMPERATURE - 1.0)

    def expected_accuracy(self, mean_confidence: float) -> tuple[float, float]:
        """Return the least and the highest accuracy to expect in a file of another study; NaN in another tissue.

        `mean_confidence` is that of its cells, with the smaller weight of the encoder or the temperature.
        """
        if self.kind != OTHER:
            return math.nan, math.nan
        return max(0.0, mean_confidence - LOWER), min(1.0, mean_confidence + HIGHER)

    @property
    def text(self) -> str:
        """Both numbers and what they mean, for the log."""
        if self.kind == FEW:
            return "too few cells to say how far they are from the reference"
        numbers = f"novelty {self.novelty_ratio:.1f} x the reference's"
        if not math.isnan(self.gene_effects):
            numbers += f", gene effects {self.gene_effects:.2f}"
        advice = f": {ADVICE[self.kind]}" if self.kind in ADVICE else ""
        return f"{self.kind}{advice} ({numbers})"

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


def gene_effects(x: csr_matrix, reference: csr_matrix, labels: np.ndarray) -> float:
    """Return the spread of the factors by which the mean expression of a file differs from the reference's.

    Each cell of the file counts as the label whose mean it resembles most. What is compared with the mean of the file
    is the mean of the reference with the same shares of labels. The spread is the covariance of two halves of the cells
    and not the variance of all, which is larger the fewer the cells and their counts.

    Parameters
    ----------
    x
        Cells of the file that look most like the reference, CSR N x G, ln(1 + cp10k).
    reference
        Cells of the reference, in the same condition, M x G.
    labels
        Index of the label of each of these, M; each of 0 to C-1 occurs.
    """
    num_labels = int(labels.max()) + 1
    centres = np.stack([np.asarray(reference[labels == label].mean(axis=0)).ravel() for label in range(num_labels)])
    centre = centres.mean(axis=0)
    directions = centres - centre
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), TINY)
    nearest = (x @ directions.T - centre @ directions.T).argmax(axis=1)
    means = np.stack([_mean_counts(reference[labels == label]) for label in range(num_labels)])
    logs = []
    weights = np.zeros(x.shape[1])
    for half in (slice(0, None, 2), slice(1, None, 2)):
        some = x[half]
        shares = np.bincount(nearest[half], minlength=num_labels) / some.shape[0]
        expected = shares @ means
        pseudo = PSEUDO_EXPRESSION + PSEUDO_CELLS / some.shape[0]
        logs.append(np.log((_mean_counts(some) + pseudo) / (expected + pseudo)))
        weights += expected / max(float(expected.sum()), TINY) / 2
    first, second = (log - np.sum(weights * log) for log in logs)
    return float(np.sqrt(max(0.0, np.sum(weights * first * second))))


def tempered(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Divide the logits behind probabilities, float32 N x C, by a temperature; labels and their order stay."""
    if temperature == 1:
        return proba
    powers = proba.astype(np.float64) ** (1 / temperature)
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def _mean_counts(x: csr_matrix) -> np.ndarray:
    """Return the mean counts per 10,000 of each gene, float64 G, from ln(1 + cp10k)."""
    counts = csr_matrix((np.expm1(x.data.astype(np.float64)), x.indices, x.indptr), shape=x.shape)
    return np.asarray(counts.mean(axis=0)).ravel()


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
