"""The content of a bundle.json, checked: it may come from anywhere."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from scperformer.base.messages import name_problem
from scperformer.labels.tree import LabelTree
from scperformer.model.saved_model import BRANCHES, ENCODER_FACTS, SCORES

INFO = "bundle.json"
# Entries that are fields of SavedModel, and their types.
CONTENT = {"name": str, "labels": list, "ontology_term_ids": list, "config": dict, "metrics": dict, "provenance": dict}
PROVENANCE = {"reference": str, "label_key": str, "num_cells": int, "seed": int}  # annotations record these
ORIGIN = ("tool", "file", "sha256", "tested")  # what an imported model records about its origin
# Entries that models with labels need, and encoders without; entries that are groups of entries.
WITH_LABELS = {"config": ("target_sum",), "metrics": ("scales",), "provenance": tuple(PROVENANCE)}
ENCODER = {"config": ("target_sum", "tokens", "model", "attention"), "provenance": ("corpus", "seed")}
GROUPS = {
    "config": ("tokens", "model", "attention", "head", "network"),
    "metrics": ("scales", "encoder", "out_of_fold"),
    "provenance": ("batches", "imported", "kept_cells"),
}


def require_sound_content(info: Mapping[str, Any]) -> None:
    """Refuse missing entries, other types and names that cannot be names; the text of a ValueError says which."""
    if problem := next(_problems(info), None):
        raise ValueError(f"'{INFO}' {problem}")


def _problems(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a bundle.json in words; each check relies on the checks before it."""
    kinds = CONTENT | {"files": dict}
    yield from (f"without {name}" for name, kind in kinds.items() if not _is(info.get(name), kind))
    labels, terms, config, metrics, made = (info[name] for name in CONTENT if name != "name")
    for group, names in (WITH_LABELS if labels else ENCODER).items():
        if missing := [name for name in names if name not in info[group]]:
            yield f"without {', '.join(missing)} in {group}"
    for group, names in GROUPS.items():
        yield from (f"with {name} that is no group" for name in names if not _is(info[group].get(name, {}), dict))
    for name, kind in PROVENANCE.items():
        value = made.get(name, kind())
        if not _is(value, kind) or (kind is int and not 0 <= value < 2**63):
            yield f"with a {name} that is not of type {kind.__name__}, or out of range"

    origin = made.get("imported", {})
    encoder = metrics.get("encoder", dict.fromkeys(ENCODER_FACTS, "x"))
    if set(encoder) != set(ENCODER_FACTS):
        yield f"with an encoder that is not described by {', '.join(ENCODER_FACTS)}"
    if "imported" in made and not {*ORIGIN} <= origin.keys():
        yield f"with an origin that is not described by {', '.join(ORIGIN)}"
    batches = made.get("batches", {"names": []}).get("names")
    texts: dict[str, Any] = {
        "the name": [info["name"]],
        "a label": labels,
        "an ontology term": terms,
        "a batch": batches if _is(batches, list) else [None],
        "a description of the encoder": encoder.values(),
        "an origin": [*origin, *origin.values()],
    }
    texts |= {f"a {name}": [made[name]] for name in ("tissue", "ontology", "species", "licence") if name in made}
    for what, names in texts.items():
        yield from (f"with {what} that {why}" for why in map(name_problem, names) if why)
    if len(set(labels)) < len(labels):
        yield "with a label twice"
    if len(terms) != len(labels):
        yield f"with {len(terms)} ontology terms for {len(labels)} labels"

    total = config["target_sum"]
    if not (_is_number(total) and total > 0) and not (total is None and "network" in config):
        yield "with a target_sum that is not a number above 0"
    fold = metrics.get("out_of_fold", {})
    scales = metrics.get("scales", {})
    parts = fold.get("branches", {})
    scores = fold.get("batches", {})
    if not set(scales) <= set(BRANCHES) or not _is(parts, dict) or not _is(scores, dict):
        yield "with numbers of other branches, or of no batches"
    accuracies = scores.get("accuracy", [])
    if not all(_is(part, dict) for part in parts.values()) or not _is(accuracies, list):
        yield "with scores that are no group"
    numbers = [config.get("min_genes", 0), made.get("expected_accuracy")]
    numbers += [fold.get("accuracy", "") if fold else 0, scores.get("batch_effect", 0), *accuracies]
    numbers += [part.get(name, 0) for part in (fold, *parts.values()) for name in SCORES]
    if not all(map(_is_number, scales.values())) or not all(number is None or _is_number(number) for number in numbers):
        yield "with scales or scores that are not numbers"


def read_tree(info: Mapping[str, Any]) -> LabelTree | None:
    """Return the label tree, or None without one; the text of a ValueError says how it is damaged."""
    if "tree" not in info:
        return None
    try:
        parents, terms = (dict(info["tree"][name]) for name in ("parents", "terms"))
        texts = [text for group in (parents, terms) for pair in group.items() for text in pair]
        if problem := next(filter(None, map(name_problem, texts)), None):
            raise ValueError(f"a node that {problem}")
        return LabelTree(info["labels"], parents, terms)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"'{INFO}' with a label tree with {error}") from error


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return (_is(value, int) and abs(value) < 2**63) or (_is(value, float) and math.isfinite(value))
