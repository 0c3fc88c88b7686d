"""The content of a bundle.json, checked: it may come from anywhere."""

import math
from collections.abc import Mapping
from typing import Any

from scperformer.base.messages import name_problem
from scperformer.labels.tree import LabelTree
from scperformer.model.saved_model import ANNOTATOR, BRANCHES, ENCODER, ENCODER_FACTS, SCORES

INFO = "bundle.json"
# Entries that are fields of SavedModel, and their types.
CONTENT = {"name": str, "labels": list, "ontology_term_ids": list, "config": dict, "metrics": dict, "provenance": dict}
PROVENANCE = {"reference": str, "label_key": str, "num_cells": int, "seed": int}  # annotations record these
MAX_STUDIES = 99  # of a reference
ORIGIN = ("tool", "file", "sha256", "tested")  # that an imported model records about where it is from
NEEDED: dict[str, dict[str, tuple[str, ...]]] = {  # entries of each group, by the kind of model
    ANNOTATOR: {"config": ("target_sum",), "metrics": ("scales",), "provenance": tuple(PROVENANCE)},
    ENCODER: {"config": ("target_sum", "tokens", "model", "attention"), "provenance": ("corpus", "seed")},
}


def require_sound_content(info: Mapping[str, Any]) -> None:
    """Refuse missing entries, other types and names that cannot be names; the text of a ValueError says which."""
    _require_entries(info)
    _require_names(info)
    _require_values(info)
    _require_studies(info)
    read_tree(info)


def read_tree(info: Mapping[str, Any]) -> LabelTree | None:
    """Return the label tree, or None without one; the text of a ValueError says how it is damaged."""
    if "tree" not in info:
        return None
    tree: dict[str, Any] = info["tree"] if isinstance(info["tree"], dict) else {}
    parents = tree.get("parents")
    terms = tree.get("terms")
    if not isinstance(parents, dict) or not isinstance(terms, dict):
        raise ValueError(f"'{INFO}' with a label tree without parents and terms")
    for name in (text for group in (parents, terms) for pair in group.items() for text in pair):
        if why := name_problem(name):
            raise ValueError(f"'{INFO}' with a node of the label tree that {why}")
    try:
        return LabelTree(info["labels"], parents, terms)
    except ValueError as error:
        raise ValueError(f"'{INFO}' with a label tree with {error}") from error


def _require_entries(info: Mapping[str, Any]) -> None:
    for name, kind in {**CONTENT, "files": dict}.items():
        if not isinstance(info.get(name), kind):
            raise ValueError(f"'{INFO}' without {name}")
    if info.get("kind", ANNOTATOR) not in NEEDED:
        raise ValueError(f"'{INFO}' of an unknown kind")
    for group, names in NEEDED[info.get("kind", ANNOTATOR)].items():
        if missing := [name for name in names if name not in info[group]]:
            raise ValueError(f"'{INFO}' without {', '.join(missing)} in {group}")


def _require_names(info: Mapping[str, Any]) -> None:
    provenance = info["provenance"]
    encoder = info["metrics"].get("encoder", dict.fromkeys(ENCODER_FACTS, "x"))
    if not isinstance(encoder, dict) or set(encoder) != set(ENCODER_FACTS):
        raise ValueError(f"'{INFO}' with an encoder that is not described by {', '.join(ENCODER_FACTS)}")
    batches = provenance.get("batches", {"names": []})
    if not isinstance(batches, dict) or not isinstance(batches.get("names"), list):
        raise ValueError(f"'{INFO}' with batches without names")
    texts = {
        "the name": [info["name"]],
        "a label": info["labels"],
        "an ontology term": info["ontology_term_ids"],
        "a batch": batches["names"],
        "a tissue": [provenance["tissue"]] if "tissue" in provenance else [],
        "a description of the encoder": list(encoder.values()),
        "a release of the ontology": [provenance["ontology"]] if "ontology" in provenance else [],
        "a species or licence": [provenance[name] for name in ("species", "licence") if name in provenance],
        "an origin": _origin(provenance),
    }
    for what, names in texts.items():
        if why := next(filter(None, map(name_problem, names)), None):
            raise ValueError(f"'{INFO}' with {what} that {why}")


def _origin(provenance: Mapping[str, Any]) -> list[Any]:
    """Return the texts about the origin of an imported model."""
    origin = provenance.get("imported", {})
    if not isinstance(origin, dict) or ("imported" in provenance and not {*ORIGIN} <= origin.keys()):
        raise ValueError(f"'{INFO}' with an origin that is not described by {', '.join(ORIGIN)}")
    return [*origin.keys(), *origin.values()]


def _require_studies(info: Mapping[str, Any]) -> None:
    """Refuse studies without a name or without numbers of labels."""
    studies = info.get("studies", [])
    if not isinstance(studies, list) or len(studies) > MAX_STUDIES or len(studies) == 1:
        raise ValueError(f"'{INFO}' with studies that are not 2 to {MAX_STUDIES}")
    for study in studies:
        meaning = study.get("meaning") if isinstance(study, dict) else None
        if not isinstance(meaning, list) or not all(isinstance(row, list) for row in meaning):
            raise ValueError(f"'{INFO}' with a study without the meaning of its labels")
        if not all(isinstance(place, int) and not isinstance(place, bool) for row in meaning for place in row):
            raise ValueError(f"'{INFO}' with a study whose labels are not numbered")
        if why := name_problem(study.get("name")):
            raise ValueError(f"'{INFO}' with a study whose name {why}")


def _require_values(info: Mapping[str, Any]) -> None:
    labels = info["labels"]
    terms = info["ontology_term_ids"]
    total = info["config"]["target_sum"]
    scales = info["metrics"].get("scales", {})
    fold = info["metrics"].get("out_of_fold", {})
    expected = info["provenance"].get("expected_accuracy")
    groups = [info["config"].get(group, {}) for group in ("tokens", "model", "attention", "head", "network")]
    is_fold = isinstance(fold, dict) and (not fold or _is_finite(fold.get("accuracy")))
    are_scales = isinstance(scales, dict) and set(scales) <= set(BRANCHES) and all(map(_is_finite, scales.values()))
    sound = {
        "a label twice": len(set(labels)) == len(labels),
        f"{len(terms)} ontology terms for {len(labels)} labels": len(terms) == len(labels),
        "a target_sum that is not a number above 0": (_is_finite(total) and total > 0)
        or (total is None and "network" in info["config"]),
        "a min_genes that is not a number": _is_finite(info["config"].get("min_genes", 0)),
        "options that are not a group of options": all(isinstance(group, dict) for group in groups),
        "an expected accuracy that is not a number": is_fold and (expected is None or _is_finite(expected)),
        "kept cells that are not described": isinstance(info["provenance"].get("kept_cells", {}), dict),
        "scales that are not numbers, or of other branches": are_scales,
        "scores of branches that are not numbers": is_fold and _are_scores(fold),
        "scores of batches that are not numbers": is_fold and _are_batch_scores(fold.get("batches", {})),
    }
    for problem in (text for text, is_sound in sound.items() if not is_sound):
        raise ValueError(f"'{INFO}' with {problem}")
    for name, kind in PROVENANCE.items():
        value = info["provenance"].get(name, kind())
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"'{INFO}' with a {name} that is not of type {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**63:
            raise ValueError(f"'{INFO}' with a {name} out of range")


def _are_scores(fold: Mapping[str, Any]) -> bool:
    """Whether all scores of both branches, and of each of them, are numbers."""
    branches = fold.get("branches", {})
    parts = [fold, *branches.values()] if isinstance(branches, dict) else [None]
    return all(
        isinstance(part, dict) and all(_is_finite(part[name]) for name in SCORES if name in part) for part in parts
    )


def _are_batch_scores(scores: Any) -> bool:
    """Whether the accuracies of batches and their gene effects are numbers."""
    if not isinstance(scores, dict) or not isinstance(scores.get("accuracy", []), list):
        return False
    accuracies = [accuracy for accuracy in scores.get("accuracy", []) if accuracy is not None]
    return all(map(_is_finite, [scores.get("gene_effects", 0), *accuracies]))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
