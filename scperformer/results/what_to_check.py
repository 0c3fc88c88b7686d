"""Whether the labels of samples can be trusted, and what to check: each cause once, whatever number of samples."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from scperformer.adaptation.record import NOTE, Record
from scperformer.base.messages import listed
from scperformer.labels.tree import NO_CALL
from scperformer.results.evaluate import Evaluation
from scperformer.trust.shift import FAR, LIKE, OTHER

LOW_EXPECTED = 0.8  # accuracy below which labels are a rough guide
SHOWN_ABOVE = {"shift", "expected"}  # remarks about what the first screen shows
MIN_FAMILY = 20  # cells of a sample below a parent, whose shares are compared between conditions
# A label follows a condition if its share with one value is higher by MIN_LEAD than with another one, or is MIN_SHARE
# and MIN_FOLD times the other.
MIN_LEAD = 0.4
MIN_SHARE, MIN_FOLD = 0.2, 10
POOR_ACCURACY = 0.6  # expected accuracy below which labels are of no use

# In place of a kind of distribution shift, of cells that were called by profiles.
PROFILES, UNLIKE, UNDETERMINED = "like the profiles", "unlike the profiles", "tissue not determined"

# Grade, title and advice for each kind of distribution shift. The expected accuracy may lower it.
VERDICTS = {
    LIKE: ("good", "like the reference", "Labels can be used; look at the unknown cells."),
    OTHER: ("fair", "batch effect", "Labels are plausible, confidence is lowered: check markers."),
    PROFILES: ("good", "like the profiles of the tissue", "Check markers of rare labels."),
    UNLIKE: ("fair", "partly unlike the profiles", "Check the tissue, and markers."),
    UNDETERMINED: (
        "fair",
        "tissue not determined",
        "Cells of types that occur in every tissue are named, others by their kind at best. If you know the tissue, "
        "name it by tissue=NAME.",
    ),
    FAR: ("bad", "another tissue", "The model knows other types of cells."),
    None: ("fair", "no distance to the reference", "It could not be estimated: check markers."),
}
# What readers are told by a grade, with an expected accuracy and without.
WORDS = {
    ("good", True): "Good",
    ("fair", True): "A rough guide",
    ("bad", True): "Poor: do not use these labels",
    ("good", False): "Good, accuracy not known",
    ("fair", False): "Accuracy not known: check the labels",
    ("bad", False): "Do not use these labels",
}


@dataclass(kw_only=True)
class Summary:
    """The numbers of a sample; what is not known is None or NaN."""

    name: str
    num_cells: int
    num_unknown: int
    record: Record
    kind: str | None  # of its distribution shift, or of predictions by profiles
    expected: str | None  # accuracy, as in "80% to 90%"
    mean: float  # confidence
    median: float
    mean_held_out: float  # confidence of out-of-fold cells of the reference
    agreement: float | None  # share of cells to which logistic regression gives the same label
    doublet: int | None = None  # likely doublets
    low_quality: int | None = None


@dataclass(kw_only=True)
class TrustGroup:
    """Samples of one grade and distance to the reference, and what this means for their labels."""

    grade: str  # good, fair or bad
    word: str
    title: str
    advice: str
    num_samples: int
    num_cells: int
    num_unknown: int
    expected: str  # accuracy; "" if it is not known
    meaning: str  # of the expected accuracy
    samples: str


def trust_groups(summaries: Sequence[Summary]) -> list[TrustGroup]:
    """Return the samples of each grade and distance to the reference, and what this means for their labels."""
    by_grade: dict[tuple[str, str | None], list[Summary]] = {}
    for each in summaries:
        kind = each.kind if each.kind in VERDICTS else None
        lowest, highest = each.record.expected_accuracy
        # also if it is NaN
        of_accuracy = (
            "bad" if highest < POOR_ACCURACY else "fair" if lowest < LOW_EXPECTED else "good"
        )
        # the lower one
        grade = max(VERDICTS[kind][0], of_accuracy, key=["good", "fair", "bad"].index)
        by_grade.setdefault((grade, kind), []).append(each)
    groups = []
    for (grade, kind), alike in by_grade.items():
        ends = np.array([each.record.expected_accuracy for each in alike])
        lowest, highest = float(ends[:, 0].min()), float(ends[:, 1].max())
        is_known = not math.isnan(lowest)
        group = TrustGroup(
            grade=grade,
            word=WORDS[grade, is_known],
            title=VERDICTS[kind][1],
            advice=VERDICTS[kind][2],
            num_samples=len(alike),
            num_cells=sum(each.num_cells for each in alike),
            num_unknown=sum(each.num_unknown for each in alike),
            expected=expected_text(lowest, highest) if is_known else "",
            meaning=_meaning(lowest, highest, kind) if is_known else "",
            samples=listed([each.name for each in alike]),
        )
        groups.append(group)
    return groups


def expected_text(lowest: float, highest: float) -> str:
    """Return an expected accuracy as text, as in "80% to 90%"."""
    return " to ".join(dict.fromkeys([f"{lowest:.0%}", f"{highest:.0%}"]))


def _meaning(lowest: float, highest: float, kind: str | None) -> str:
    """Return what an expected accuracy says about 100 cells."""
    fewest, most = f"{100 * lowest:.0f}", f"{100 * highest:.0f}"
    if kind in (PROFILES, UNLIKE) and fewest != most:
        of_group = f"{most} a type of the right group (such as T cells)"
        return f"Of 100 cells, about {fewest} have the right type, and {of_group}."
    return f"Of 100 cells, about {' to '.join(dict.fromkeys([fewest, most]))} have the right label."


def cluster_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return how many clusters are to be checked, or why none is, with the samples where they differ."""
    found: dict[str, list[str]] = {}
    for each in summaries:
        if (check := each.record.check) is not None and check.text:
            found.setdefault(f"{check.text[0].upper()}{check.text[1:]}", []).append(each.name)
    return [
        f"{text}{f' ({listed(names)})' if len(found) > 1 else ''}." for text, names in found.items()
    ]


def things_to_check(summaries: Sequence[Summary], evaluation: Evaluation | None) -> list[str]:
    """Return sentences about what to check before using the labels, each with the samples that it concerns."""
    found: dict[str, list[str]] = {}
    for each in summaries:
        for remark in each.record.remarks:
            if remark.severity != NOTE and remark.code not in SHOWN_ABOVE:
                found.setdefault(remark.text, []).append(
                    f"{each.name} ({remark.value})" if remark.value else each.name
                )
    foreign = evaluation.metrics["truth_labels_not_in_model"] if evaluation else []
    if foreign:
        found["The model does not have these true labels, so their cells count as errors"] = foreign
    return [f"{text}: {listed(names)}." for text, names in found.items()]


def labels_of_conditions(
    calls: pd.Series, conditions: pd.DataFrame, of_cell: np.ndarray, parents: Mapping[str, str]
) -> list[str]:
    """Return a sentence for each call that follows a condition of the samples.

    Such a call makes up much more of the cells below its parent in the label tree with one value of a condition than
    with another one, in every sample. A treatment that changes the state of cells does this, as interferon does with
    monocytes. N cells have a call, their `conditions` (a column for each) and a sample.
    """
    paths = {call: [call] for call in calls.unique() if call != NO_CALL}
    for path in paths.values():
        while parents.get(path[-1]):
            path.append(parents[path[-1]])
    families: dict[str, set[str]] = {}
    for path in paths.values():
        for child, parent in pairwise([*path, ""]):
            families.setdefault(parent, set()).add(child)
    below = {
        node: calls.isin([call for call, path in paths.items() if node in path])
        for node in {*parents, *paths}
    }
    below[""] = calls.isin(paths)
    found: dict[str, str] = {}
    for name, values in conditions.items():
        for parent, children in families.items():
            is_of = below[parent].to_numpy()
            cells = pd.DataFrame(
                {child: below[child][is_of].to_numpy() for child in sorted(children)}
            )
            by = cells.groupby([values.to_numpy()[is_of], of_cell[is_of]])
            by_value = by.mean()[by.size() >= MIN_FAMILY].groupby(level=0)
            lowest, highest = by_value.min(), by_value.max()  # of the samples with a value
            if len(lowest) < 2:
                continue
            high, low = lowest.idxmax(), highest.idxmin()
            share, other = lowest.max(), highest.min()
            follows = (share - other >= MIN_LEAD) | (
                (share >= MIN_SHARE) & (share >= MIN_FOLD * other)
            )
            if follows.any():
                child = str(share[follows].idxmax())
                of = f"the cells called {parent} or a type of it" if parent else "the cells"
                text = f"{child} follows {name}: {share[child]:.0%} of {of} with {high[child]}, {other[child]:.0%} "
                text += f"with {low[child]}. A changed state can look like another type: compare markers first."
                found.setdefault(child, text)
    return list(found.values())
