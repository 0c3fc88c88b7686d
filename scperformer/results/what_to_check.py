"""Whether the labels of samples can be trusted, and what to check: each cause once, whatever number of samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.annotation.expectation import MANY_UNKNOWN
from scperformer.annotation.record import Record, TissueRecord
from scperformer.annotation.which_tissue import close_tissues
from scperformer.base.messages import listed
from scperformer.labels.tree import NO_CALL
from scperformer.results.evaluate import Evaluation
from scperformer.trust.shift import FAR, LIKE, MAX_UNKNOWN, OTHER, unsure_text

# A sample beyond one of these limits is among the things to check. They are judgements, not limits of the method.
LOW_OVERLAP = 0.7
LOW_AGREEMENT = 0.6
LOW_EXPECTED = 0.8
NUM_LOST = 3  # labels that lose cells to unknown, named of each sample
NOT_NAMED = 0.1  # of the unknown cells
NUM_GENES = 3  # of a cluster to check; uns and the log have more
MIN_FAMILY = 20  # cells of a sample below a parent, whose shares are compared between conditions
# A label follows a condition if its share with one value is higher by MIN_LEAD than with another one, or is MIN_SHARE
# and MIN_FOLD times the other.
MIN_LEAD = 0.4
MIN_SHARE, MIN_FOLD = 0.2, 10
POOR = 0.6  # expected accuracy below which labels are of no use

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
    lost: dict[str, tuple[int, int]]  # labels that lose many cells to unknown: unknown and all cells
    not_named: dict[str, int]  # types that common types know but do not name: unknown cells
    doublet: int | None = None  # likely doublets
    low_quality: int | None = None


def trust_groups(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the samples of each grade and distance to the reference, and what this means for their labels."""
    found: dict[tuple[str, str | None], list[Summary]] = {}
    for each in summaries:
        kind = each.kind if each.kind in VERDICTS else None
        lowest, highest = each.record.expected_accuracy
        of_accuracy = "bad" if highest < POOR else "fair" if lowest < LOW_EXPECTED else "good"  # also if it is NaN
        grade = max(VERDICTS[kind][0], of_accuracy, key=["good", "fair", "bad"].index)  # the lower one
        found.setdefault((grade, kind), []).append(each)
    groups = []
    for (grade, kind), alike in found.items():
        ends = np.array([each.record.expected_accuracy for each in alike])
        lowest, highest = float(ends[:, 0].min()), float(ends[:, 1].max())
        is_known = not math.isnan(lowest)
        group = {
            "grade": grade,
            "word": WORDS[grade, is_known],
            "title": VERDICTS[kind][1],
            "advice": VERDICTS[kind][2],
            "num_samples": len(alike),
            "num_cells": sum(each.num_cells for each in alike),
            "num_unknown": sum(each.num_unknown for each in alike),
            "expected": expected_text(lowest, highest) if is_known else "",
            "meaning": _meaning(lowest, highest, kind) if is_known else "",  # of the expected accuracy
            "samples": listed([each.name for each in alike]),
        }
        groups.append(group)
    return groups


def expected_text(lowest: float, highest: float) -> str:
    """Return an expected accuracy as text, as in "80% to 90%"."""
    return " to ".join(dict.fromkeys([f"{lowest:.0%}", f"{highest:.0%}"]))


def _meaning(lowest: float, highest: float, kind: str | None) -> str:
    """Return what an expected accuracy says about 100 cells."""
    fewest, most = f"{100 * lowest:.0f}", f"{100 * highest:.0f}"
    if kind in (PROFILES, UNLIKE) and fewest != most:
        return (
            f"Of 100 cells, about {fewest} have the right type, and {most} a type of the right group (such as T cells)."
        )
    return f"Of 100 cells, about {' to '.join(dict.fromkeys([fewest, most]))} have the right label."


def cluster_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return how many clusters are to be checked, or why none is, with the samples where they differ."""
    found: dict[str, list[str]] = {}
    for each in summaries:
        if (check := each.record.check) is not None and check.text:
            found.setdefault(f"{check.text[0].upper()}{check.text[1:]}", []).append(each.name)
    return [f"{text}{f' ({listed(names)})' if len(found) > 1 else ''}." for text, names in found.items()]


def things_to_check(summaries: Sequence[Summary], evaluation: Evaluation | None) -> list[str]:
    """Return sentences about what to check before using the labels, each with the samples that it concerns."""
    found: dict[str, list[str]] = {}
    for each in summaries:
        for text, value in _warnings(each):
            found.setdefault(text, []).append(f"{each.name} ({value})" if value else each.name)
    foreign = evaluation.metrics["truth_labels_not_in_model"] if evaluation else []
    if foreign:
        found["The model does not have these true labels, so their cells count as errors"] = foreign
    return [f"{text}: {listed(names)}." for text, names in found.items()]


def labels_of_conditions(
    calls: pd.Series, conditions: pd.DataFrame, of_cell: npt.NDArray[np.object_], parents: Mapping[str, str]
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
    below = {node: calls.isin([call for call, path in paths.items() if node in path]) for node in {*parents, *paths}}
    below[""] = calls.isin(paths)
    found: dict[str, str] = {}
    for name, values in conditions.items():
        for parent, children in families.items():
            is_of = below[parent].to_numpy()
            cells = pd.DataFrame({child: below[child][is_of].to_numpy() for child in sorted(children)})
            by = cells.groupby([values.to_numpy()[is_of], of_cell[is_of]])
            by_value = by.mean()[by.size() >= MIN_FAMILY].groupby(level=0)
            lowest, highest = by_value.min(), by_value.max()  # of the samples with a value
            if len(lowest) < 2:
                continue
            high, low = lowest.idxmax(), highest.idxmin()
            share, other = lowest.max(), highest.min()
            follows = (share - other >= MIN_LEAD) | ((share >= MIN_SHARE) & (share >= MIN_FOLD * other))
            if follows.any():
                child = str(share[follows].idxmax())
                of = f"the cells called {parent} or a type of it" if parent else "the cells"
                text = f"{child} follows {name}: {share[child]:.0%} of {of} with {high[child]}, {other[child]:.0%} "
                text += f"with {low[child]}. A changed state can look like another type: compare markers first."
                found.setdefault(child, text)
    return list(found.values())


def _warnings(sample: Summary) -> Iterator[tuple[str, str]]:
    """Yield what is to be checked in a sample, and the value of the sample; "" without one."""
    record, coverage = sample.record, sample.record.coverage
    if num_repeated := record.repeats.num_cells:
        text = "Some cells are cells of the reference, and their confidence is too high"
        yield text, f"{num_repeated / record.repeats.num_seen:.0%}"
    if coverage.expected_accuracy < LOW_EXPECTED:
        text = "Low accuracy on reference cells that were reduced to the genes and the depth of the sample"
        yield text, f"{coverage.expected_accuracy:.0%}"
    overlap = record.genes.informative_share
    if overlap < LOW_OVERLAP and not coverage.adapted:
        text = "Many informative genes of the model are missing and count as not expressed; present"
        yield text, f"{overlap:.0%}"
    if record.droplets is not None:  # shares of barcodes, most of which are empty droplets, mean nothing
        yield "Unfiltered matrix: most barcodes are empty droplets", ""
        return
    model = record.model
    if model.lacks is not None and len(model.lacks):
        text = f"The model was imported from {(model.imported or {})['tool']} without {', '.join(model.lacks)}"
        yield f"{text}: a cell of another type gets one of its labels all the same", ""
    if record.check is not None:
        for row in record.check.clusters.itertuples():
            too_high, too_low = (", ".join(genes.split(", ")[:NUM_GENES]) for genes in (row.too_high, row.too_low))
            value = f"{row.num_cells} cells; too much {too_high}{'; too little ' * bool(too_low)}{too_low}"
            how = "are unknown, as they look" if record.check.are_unknown else "look"
            yield f"Cells labelled {row.label} {how} like {row.looks_like} ({row.term})", value
        yield from ((text, "") for text in record.check.exchanges)
    if record.fine_types is not None:
        yield from ((text, "") for text in record.fine_types.sentences)
    num_foreign = int((record.other_species or {}).get("num_cells", 0))
    if num_foreign:
        yield "Cells of another species, or of several, are unknown", f"{num_foreign:,}"
    unknown = (sample.num_unknown - num_foreign) / max(1, sample.num_cells - num_foreign)
    if sample.lost and sample.kind != FAR and unknown <= MAX_UNKNOWN:
        parts = [f"{num:,} of {size:,} {label}" for label, (num, size) in sample.lost.items()]
        lost = ", ".join(parts[:NUM_LOST]) + (f" and {len(parts) - NUM_LOST} more" if parts[NUM_LOST:] else "")
        yield "More than a fifth of a label is unknown", lost
    yield from _of_model(sample, unknown) if record.tissue is None else _of_tissue(sample, record.tissue, unknown)


def _of_tissue(sample: Summary, tissue: TissueRecord, unknown: float) -> Iterator[tuple[str, str]]:
    """Yield what is to be checked in a sample that was annotated by the profiles of a tissue."""
    if close := close_tissues(tissue):
        yield "Another tissue fits, too; compare with tissue=NAME", close
    if unknown - sum(sample.not_named.values()) / max(1, sample.num_cells) >= MANY_UNKNOWN:
        text = "Many cells resemble no type of the profiles: malignant cells, or types that the profiles lack"
        yield text, f"{unknown:.0%}"
    if tissue.instead:
        yield f"{tissue.instead[0].upper()}{tissue.instead[1:]}", ""
    elif sample.kind == UNLIKE and unknown < MANY_UNKNOWN:
        text = "The expected accuracy is low or not known; is it the right tissue? Name another one by tissue=NAME"
        yield text, sample.expected or ""
    for label, num in sample.not_named.items():
        if num >= NOT_NAMED * sample.num_unknown:
            text = f"Unknown cells are most like {label}, a type that is named only in its tissue"
            yield text, f"{num:,} of {sample.num_unknown:,}"


def _of_model(sample: Summary, unknown: float) -> Iterator[tuple[str, str]]:
    """Yield what is to be checked in a sample that was annotated by a model with cells of its reference."""
    model, batches, kind = sample.record.model, sample.record.batches, sample.kind
    kinds = () if batches is None or batches.kind is None else zip(batches.name, batches.kind, strict=True)
    if far := [name for name, of_batch in kinds if of_batch == FAR]:
        yield "Batches of another tissue, whose labels are not to be used", listed(far)
    if unknown > MAX_UNKNOWN or kind == FAR:
        text = f"Most cells look like none of the {len(model.labels)} labels. Is it the right tissue?"
        text += f" The model was trained on {model.tissue}." if model.tissue else ""
        yield f"{text} Unknown", f"{unknown:.0%}"
    if kind not in (OTHER, FAR) and unsure_text(sample.mean, sample.mean_held_out):
        text = "The mean confidence is far below the out-of-fold confidence of the reference"
        yield text, f"{sample.mean:.2f}"
    if sample.agreement is not None and sample.agreement < LOW_AGREEMENT and kind != FAR:
        yield "Logistic regression gives many cells another label; agreement", f"{sample.agreement:.0%}"
