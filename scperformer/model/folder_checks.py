"""Checks of a model folder's content that need neither torch nor memory: types, names, ranges and finite numbers.

A folder may come from anywhere, and its checksums may fit all the same. Whether its weights are those of the network
that its configuration describes is checked by `load_model`, before it makes the network.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from scperformer.model.bundle import ANNOTATOR, BRANCHES, ENCODER
from scperformer.text import unfit

MOST_NAMED = 100  # characters of a name in a message
CONTENT = {  # entries of bundle.json beside format_version
    "name": str,
    "labels": list,
    "ontology_term_ids": list,
    "config": dict,
    "metrics": dict,
    "provenance": dict,
    "files": dict,
}
PROVENANCE = {"reference": str, "label_key": str, "num_cells": int, "seed": int}  # predictions record these
NEEDED: dict[str, dict[str, tuple[str, ...]]] = {  # in these entries, for each kind of model
    ANNOTATOR: {"config": ("target_sum",), "metrics": ("scales",), "provenance": tuple(PROVENANCE)},
    ENCODER: {"config": ("target_sum", "tokens", "model", "attention"), "provenance": ("corpus", "seed")},
}


def require_sound_info(info: Mapping[str, Any]) -> None:
    """Refuse the content of a bundle.json with missing entries, wrong types or names that cannot be names.

    Raises
    ------
    ValueError
        Says what is wrong, as the end of a sentence that begins with "bundle.json".
    """
    for name, kind in CONTENT.items():
        if not isinstance(info.get(name), kind):
            raise ValueError(f"without {name}")
    if info.get("kind", ANNOTATOR) not in NEEDED:
        raise ValueError("of an unknown kind")
    for group, names in NEEDED[info.get("kind", ANNOTATOR)].items():
        if missing := [name for name in names if name not in info[group]]:
            raise ValueError(f"without {', '.join(missing)} in {group}")

    labels, terms = info["labels"], info["ontology_term_ids"]
    for what, names in {"the name": [info["name"]], "a label": labels, "an ontology term": terms}.items():
        if why := next(filter(None, map(unfit, names)), None):
            raise ValueError(f"with {what} that {why}")
    if len(set(labels)) < len(labels):
        raise ValueError("with a label twice")
    if len(terms) != len(labels):
        raise ValueError(f"with {len(terms)} ontology terms for {len(labels)} labels")

    if not _is_finite(info["config"]["target_sum"]) or info["config"]["target_sum"] <= 0:
        raise ValueError("with a target_sum that is not a number above 0")
    for group in ("tokens", "model", "attention", "head"):
        if not isinstance(info["config"].get(group, {}), dict):
            raise ValueError(f"with a {group} that is not a group of options")
    scales = info["metrics"].get("scales", {})
    if not isinstance(scales, dict) or set(scales) - set(BRANCHES) or not all(map(_is_finite, scales.values())):
        raise ValueError("with scales that are not numbers, or of other branches")
    for name, expected in PROVENANCE.items():
        value = info["provenance"].get(name, expected())
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ValueError(f"with a {name} that is not of type {expected.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**63:
            raise ValueError(f"with a {name} out of range")


def require_sound_weights(
    genes: list[str], means: np.ndarray, num_labels: int, weights: Mapping[str, np.ndarray]
) -> None:
    """Refuse repeated genes, numbers that are not finite, and logistic regression of other genes or labels.

    Raises
    ------
    ValueError
        Says what is wrong.
    """
    if len(set(genes)) < len(genes):
        raise ValueError("a gene twice")
    for name, array in {"the means of genes": means, **weights}.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"NaN or infinite numbers in {name[:MOST_NAMED]}")
    for name, shape in {"baseline.weight": (len(genes), num_labels), "baseline.bias": (num_labels,)}.items():
        if name in weights and weights[name].shape != shape:
            raise ValueError(f"{name} does not fit {len(genes)} genes and {num_labels} labels")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
