"""Whether the labels of samples can be trusted, and what to check: each cause once, whatever number of samples."""

from collections.abc import Sequence
from typing import Any

from natsort import natsorted

from scperformer.annotation.columns import CLUSTER_ENTRIES, MANY_UNKNOWN
from scperformer.annotation.which_tissue import close_tissues
from scperformer.base.messages import listed
from scperformer.results.evaluate import Evaluation
from scperformer.trust.shift import FAR, LIKE, MAX_UNKNOWN, OTHER, unsure_text

# A sample beyond one of these limits is among the things to check. They are judgements, not limits of the method.
LOW_OVERLAP = 0.7
LOW_AGREEMENT = 0.6
LOW_EXPECTED = 0.8
NUM_LOST = 3  # labels that lose cells to unknown, named of each sample
NOT_NAMED = 0.1  # of the unknown cells
NUM_GENES = 3  # of a cluster to check; uns and the log have more

# In place of a kind of distribution shift, of cells that were called by profiles.
PROFILES, UNLIKE, UNDETERMINED = "like the profiles", "unlike the profiles", "tissue not determined"

# Grade, title and advice for each kind of distribution shift.
VERDICTS = {
    LIKE: ("good", "Like the reference", "Labels can be used; look at the unknown cells."),
    OTHER: ("fair", "Batch effect", "Labels are plausible, confidence is lowered: check markers."),
    PROFILES: ("good", "Like the profiles of the tissue", "This reference has no cells: check markers of rare labels."),
    UNLIKE: (
        "fair",
        "Partly unlike the profiles",
        "Labels are uncertain: check the tissue, and markers.",
    ),
    UNDETERMINED: (
        "fair",
        "Tissue not determined",
        "Cells of types that occur in every tissue are named; the others are unknown. If you know the tissue, name it "
        "by tissue=NAME.",
    ),
    FAR: ("bad", "Another tissue", "Do not use these labels."),
    None: ("fair", "Not known", "The distance to the reference could not be estimated: check markers."),
}


def trust_groups(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples by their distance to the reference, and what this means for their labels."""
    groups = []
    for kind, (grade, title, advice) in VERDICTS.items():
        alike = [each for each in summaries if (each["kind"] if each["kind"] in VERDICTS else None) == kind]
        if not alike:
            continue
        ends = natsorted({end for each in alike if each["expected"] for end in each["expected"].split(" to ")})
        group = {
            "grade": grade,
            "title": title,
            "advice": advice,
            "num_samples": len(alike),
            "num_cells": sum(each["num_cells"] for each in alike),
            "num_unknown": sum(each["num_unknown"] for each in alike),
            "expected": " to ".join(dict.fromkeys([ends[0], ends[-1]])) if ends else "",
            "samples": listed([each["name"] for each in alike]),
        }
        groups.append(group)
    return groups


def cluster_notes(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """Return how many clusters are to be checked, or why none is, with the samples where they differ."""
    found: dict[str, list[str]] = {}
    for each in summaries:
        if text := str(each["facts"].get("check", {}).get("text", "")):
            found.setdefault(f"{text[0].upper()}{text[1:]}", []).append(each["name"])
    return [f"{text}{f' ({listed(names)})' if len(found) > 1 else ''}." for text, names in found.items()]


def things_to_check(summaries: Sequence[dict[str, Any]], evaluation: Evaluation | None) -> list[str]:
    """Return sentences about what to check before using the labels, each with the samples that it concerns."""
    found: dict[str, list[str]] = {}

    def warn(text: str, sample: dict[str, Any], value: str = "") -> None:
        found.setdefault(text, []).append(f"{sample['name']} ({value})" if value else sample["name"])

    for each in summaries:
        facts = each["facts"]
        model = facts["model"]
        coverage = facts.get("coverage", {})
        kind = each["kind"]
        if num_repeated := facts["repeats"]["num_cells"]:
            text = "Some cells are cells of the reference, and their confidence is too high"
            warn(text, each, f"{num_repeated / facts['repeats']['num_seen']:.0%}")
        if coverage.get("expected_accuracy", 1.0) < LOW_EXPECTED:
            text = "Low accuracy on reference cells that were reduced to the genes and the depth of the sample"
            warn(text, each, f"{coverage['expected_accuracy']:.0%}")
        overlap = facts["genes"].get("informative_share", facts["genes"]["share_of_model"])
        if overlap < LOW_OVERLAP and not coverage.get("adapted"):
            text = "Many informative genes of the model are missing and count as not expressed; present"
            warn(text, each, f"{overlap:.0%}")
        if "droplets" in facts:  # shares of barcodes, most of which are empty droplets, mean nothing
            warn("Unfiltered matrix: most barcodes are empty droplets", each)
            continue
        if len(lacks := list(model.get("lacks", []))):
            text = f"The model was imported from {model['imported']['tool']} without {', '.join(lacks)}"
            warn(f"{text}: a cell of another type gets one of its labels all the same", each)
        clusters = (map(str, facts.get("check", {}).get(name, [])) for name in CLUSTER_ENTRIES)
        for label, looks_like, num_cells, _, *genes in zip(*clusters, strict=True):
            too_high, too_low = (", ".join(names.split(", ")[:NUM_GENES]) for names in genes)
            text = f"Cells called {label} look like {looks_like}"
            warn(text, each, f"{num_cells} cells; too much {too_high}; too little {too_low}")
        if num_foreign := int(facts.get("other_species", {}).get("num_cells", 0)):
            warn("Cells of another species, or of several, are unknown", each, f"{num_foreign:,}")
        unknown = (each["num_unknown"] - num_foreign) / max(1, each["num_cells"] - num_foreign)
        if each["lost"] and kind != FAR and unknown <= MAX_UNKNOWN:
            texts = [f"{num:,} of {size:,} {label}" for label, (num, size) in each["lost"].items()]
            lost = ", ".join(texts[:NUM_LOST]) + (f" and {len(texts) - NUM_LOST} more" if texts[NUM_LOST:] else "")
            warn("More than a fifth of a label is unknown", each, lost)
        if tissue := facts.get("tissue"):
            if close := close_tissues(tissue):
                warn("Another tissue fits, too; compare with tissue=NAME", each, close)
            if unknown - sum(each["not_named"].values()) / max(1, each["num_cells"]) >= MANY_UNKNOWN:
                warn(
                    "Many cells resemble no type of the profiles: malignant cells, or types that the profiles lack",
                    each,
                    f"{unknown:.0%}",
                )
            if kind == UNLIKE and unknown < MANY_UNKNOWN:
                text = "The expected accuracy is low; is it the right tissue? Name another one by tissue=NAME"
                warn(text, each, each["expected"])
            for label, num in each["not_named"].items():
                if num >= NOT_NAMED * each["num_unknown"]:
                    text = f"Unknown cells are most like {label}, a type that is named only in its tissue"
                    warn(text, each, f"{num:,} of {each['num_unknown']:,}")
            continue
        batches = facts.get("batches", {})
        far = [
            name
            for name, of_batch in zip(batches.get("name", []), batches.get("kind", []), strict=False)
            if of_batch == FAR
        ]
        if far:
            warn("Batches of another tissue, whose labels are not to be used", each, listed(far))
        if unknown > MAX_UNKNOWN or kind == FAR:
            text = f"Most cells look like none of the {len(model['labels'])} labels. Is it the right tissue?"
            text += f" The model was trained on {model['tissue']}." if model.get("tissue") else ""
            warn(f"{text} Unknown", each, f"{unknown:.0%}")
        if kind not in (OTHER, FAR) and unsure_text(each["mean"], each["mean_held_out"]):
            text = "The mean confidence is far below the out-of-fold confidence of the reference"
            warn(text, each, f"{each['mean']:.2f}")
        if each["agreement"] is not None and each["agreement"] < LOW_AGREEMENT and kind != FAR:
            warn("Logistic regression gives many cells another label; agreement", each, f"{each['agreement']:.0%}")
    foreign = evaluation.metrics["truth_labels_not_in_model"] if evaluation else []
    if foreign:
        found["The model does not have these true labels, so their cells count as errors"] = foreign
    return [f"{text}: {listed(names)}." for text, names in found.items()]
