"""Whether the labels of samples can be trusted, and what to check: each cause once, whatever number of samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from natsort import natsorted

from scperformer.base.messages import in_percent, listed
from scperformer.results.cluster_labels import Clusters
from scperformer.results.evaluate import Evaluation
from scperformer.model.shift import FAR, LIKE, OTHER
from scperformer.model.file_verdict import MAX_UNKNOWN, foreign_text, unsure_text

# A sample beyond one of these limits is among the things to check. They are judgements, not limits of the method.
LOW_OVERLAP = 0.7
HIGH_UNKNOWN = 0.2
LOW_AGREEMENT = 0.6
LOW_EXPECTED = 0.8


def trust_groups(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples by how far they are from the reference, and what this means for their labels."""
    meaning = {
        LIKE: ("good", "Like the reference", "Labels can be used; look at the unknown cells."),
        OTHER: ("fair", "Another protocol or state", "Labels are plausible and confidence is lowered: check markers."),
        FAR: ("bad", "Another tissue", "Do not use these labels."),
    }
    unsaid = ("fair", "Not known", "Nothing says how far these samples are from the reference: check markers.")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for summary in summaries:
        groups.setdefault(meaning.get(str(summary["kind"]), unsaid), []).append(summary)
    order = [key for key in (*meaning.values(), unsaid) if key in groups]
    rows = []
    for grade, title, advice in order:
        alike = groups[grade, title, advice]
        rows.append(
            {
                "grade": grade,
                "title": title,
                "advice": advice,
                "num_samples": len(alike),
                "num_cells": sum(summary["num_cells"] for summary in alike),
                "num_unknown": sum(summary["num_unknown"] for summary in alike),
                "expected": _range_of_expected(alike),
                "samples": listed([summary["name"] for summary in alike]),
            }
        )
    return rows


def _range_of_expected(summaries: Sequence[dict[str, Any]]) -> str:
    """Return the lowest and the highest accuracy to expect in some samples, as a text; a dash if none is known."""
    ends = [end for summary in summaries if summary["expected"] for end in summary["expected"].split(" to ")]
    ends = natsorted(set(ends))
    return "–" if not ends else ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


@dataclass(kw_only=True)
class Warned:
    """Something to check in a sample: the sentence about it alone, and how samples with the same cause are joined."""

    sample: str
    cause: str
    sentence: str
    value: str = ""  # of this sample, such as a share


def things_to_check(summaries: Sequence[dict[str, Any]], evaluation: Evaluation | None) -> list[str]:
    """Return sentences about what to check before using the labels: one for each cause, whatever number of samples."""
    warned = [warning for summary in summaries for warning in _sample_warnings(summary)]
    by_cause: dict[str, list[Warned]] = {}
    for warning in warned:
        by_cause.setdefault(warning.cause, []).append(warning)
    sentences = []
    for cause, alike in by_cause.items():
        if len(alike) == 1:
            sentences.append(alike[0].sentence)
            continue
        values = natsorted({warning.value for warning in alike if warning.value})
        ends = "" if not values else f" ({values[0]})" if len(values) == 1 else f" ({values[0]} … {values[-1]})"
        sentences.append(f"{len(alike)} samples {cause}{ends}: {listed([warning.sample for warning in alike])}.")
    if foreign := evaluation.metrics["truth_labels_not_in_model"] if evaluation else []:
        text = "The model does not have these true labels, so their cells count as errors"
        sentences.append(f"{text}: {', '.join(foreign)}.")
    return sentences


def clusters_to_check(clusters: Clusters, unknown: npt.NDArray[np.bool_]) -> list[str]:
    """Return a sentence about the clusters that are mostly unknown; `unknown` says which cells of the map are."""
    sizes = np.bincount(clusters.codes, minlength=len(clusters.names))
    num_unknown = np.bincount(clusters.codes, weights=unknown, minlength=len(clusters.names))
    found = np.flatnonzero(num_unknown > sizes / 2)
    if not len(found):
        return []
    names = listed([clusters.names[code] for code in found])
    are = f"Cluster {names} is" if len(found) == 1 else f"Clusters {names} are"
    text = f"{are} mostly unknown ({sizes[found].sum():,} cells)"
    return [f"{text}: look at the markers, it may be a cell type that the model was not trained on."]


def _sample_warnings(summary: dict[str, Any]) -> list[Warned]:
    """Return what to check in a sample."""
    name = summary["name"]
    facts = summary["facts"]
    condition = summary["condition"]
    warned: list[Warned] = []

    def warn(cause: str, sentence: str, value: str = "") -> None:
        warned.append(Warned(sample=name, cause=cause, sentence=sentence, value=value))

    is_unfiltered = "droplets" in facts
    if is_unfiltered:
        for warning in map(str, facts["warnings"]):
            warn("are unfiltered: most of their barcodes are empty droplets", f"{name}: {warning}.")
    repeats = facts.get("repeats", {"num_cells": 0})
    if repeats["num_cells"]:
        share = in_percent(repeats["num_cells"] / repeats["num_seen"])
        sentence = f"{share} of the cells of {name} are cells of the reference: their confidence is too high."
        warn("contain cells of the reference, whose confidence is too high; of their cells", sentence, share)
    shift = facts.get("shift", {})
    if shift.get("kind") == OTHER:
        text = f"{name} is of {OTHER}: its labels are plausible, its confidence is lowered"
        sentence = f"{text}, and its expected accuracy is {summary['expected']}."
        warn(f"are of {OTHER}: their labels are plausible, their confidence is lowered", sentence)
    expected = condition["expected_accuracy"]
    if expected < LOW_EXPECTED:
        text = f"The expected accuracy of {name} is only {expected:.0%}: {1 - expected:.0%} of the labels are wrong on "
        sentence = f"{text}cells of the reference that are reduced to the genes and the depth of this file."
        cause = "have a low expected accuracy, by cells of the reference with only their genes and depth"
        warn(cause, sentence, f"{expected:.0%}")
    overlap = facts["genes"].get("informative_share", facts["genes"]["share_of_model"])
    if overlap < LOW_OVERLAP and not condition["adapted"]:
        text = f"{name} has only {overlap:.0%} of the model’s informative expression"
        sentence = f"{text}. Missing genes count as not expressed, so its labels are less reliable."
        warn("lack much of the model’s informative expression; they have", sentence, f"{overlap:.0%}")
    if is_unfiltered:  # shares of barcodes, most of which are empty droplets, mean nothing
        return warned
    unknown = summary["num_unknown"] / summary["num_cells"]
    if lacks := list(facts["model"].get("lacks", [])):
        tool = facts["model"]["imported"]["tool"]
        text = f"imported from {tool} without {', '.join(lacks)}"
        rest = "a cell of a type that it does not know gets one of its labels all the same"
        warn(f"are annotated by a model that was {text}: {rest}", f"The model of {name} was {text}: {rest}.")
    if unknown > MAX_UNKNOWN or shift.get("kind") == FAR:
        model = facts["model"]
        sentence = f"{name}: {foreign_text(unknown, len(model['labels']), model.get('tissue') or None)}"
        cause = "look like none of the labels: is it the right tissue? Unknown cells"
        warn(cause, sentence, f"{unknown:.0%}")
    elif unknown > HIGH_UNKNOWN:
        text = f"{unknown:.0%} of the cells of {name} are flagged as unknown"
        sentence = f"{text}. The sample may contain cell types that the model was not trained on."
        warn("have many unknown cells, perhaps of types that the model was not trained on", sentence, f"{unknown:.0%}")
    unsure = unsure_text(summary["mean"], summary["mean_held_out"])
    if unsure and shift.get("kind") not in (OTHER, FAR):  # else a lower confidence is expected
        cause = "have confidences far below those of held-out cells of the reference; means"
        warn(cause, f"{name}: {unsure}", f"{summary['mean']:.2f}")
    agreement = summary["agreement"]
    if agreement is not None and agreement < LOW_AGREEMENT and shift.get("kind") != FAR:
        text = f"Logistic regression gives only {agreement:.0%} of the cells of {name} the same label"
        sentence = f"{text}. The sample may differ a lot from the cells that the model was trained on."
        warn("get other labels by logistic regression for many cells; the same label for", sentence, f"{agreement:.0%}")
    return warned
