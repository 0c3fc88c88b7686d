"""Checks of a model folder's content that need neither torch nor memory: types, names, ranges and finite numbers.

A folder may come from anywhere, and its checksums may fit all the same. Whether its weights are those of the network
that its configuration describes is checked by `load_model`, before it makes the network.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from scperformer.config import HeadConfig, ModelConfig, TokensConfig, checked
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


GROUPS: dict[str, type] = {"tokens": TokensConfig, "model": ModelConfig, "head": HeadConfig}
MOST_FEATURES = 4096  # of an attention mechanism, unless its weights are there in such numbers
NO_SIZES = ("redraw_interval", "max_length")  # whole numbers among its options that take no memory


def require_sizes_of_weights(info: Mapping[str, Any], genes: list[str], weights: Mapping[str, np.ndarray]) -> None:
    num_values = sum(array.size for array in weights.values())
    if least_values(info["config"], len(genes), len(info["labels"])) > num_values:
        raise ValueError(f"a configuration of more than the {num_values:,} weights that are there")
    _require_small(info["config"].get("attention", {}), weights)


def least_values(config: Mapping[str, Any], num_genes: int, num_labels: int) -> int:
    """How many weights a network of this configuration has at least; groups that are not there count nothing.

    Raises
    ------
    ValueError
        A group is none, or has options that do not exist, are of another type or out of range.
    """
    groups: dict[str, Any] = {}
    for name, schema in GROUPS.items():
        if name in config:
            if not isinstance(config[name], dict):
                raise ValueError(f"the options of '{name}' are none")
            groups[name] = checked(schema, config[name], f"{name}.")
    model = groups.get("model")
    if model is None:
        return 0
    total = (num_genes + 1) * num_labels * len(model.wide_powers) if model.wide else 0
    if not model.deep:
        return total
    inner, hidden = model.num_heads * model.head_dim, model.dim * model.feedforward_factor
    total += model.depth * model.dim * (3 * inner + 2 * hidden)
    if model.positions != "none":
        total += (num_genes + 1) * model.dim
    if (tokens := groups.get("tokens")) is not None:
        total += model.dim * (model.dim if tokens.name == "continuous" else tokens.num_bins)
    if (head := groups.get("head")) is not None and num_labels:
        widths = [num_genes if head.name == "conv" else model.dim, *head.hidden, num_labels]
        total += sum(before * after for before, after in pairwise(widths))
    return total


def _require_small(attention: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Sizes of attention are those of its weights, or small."""
    if not isinstance(attention, dict) or not isinstance(attention.get("name", ""), str):
        raise ValueError("the options of 'attention' are none")
    there = [size for name, array in weights.items() if "attention" in name for size in array.shape]
    most = max([MOST_FEATURES, *there])
    for name, value in attention.items():
        if isinstance(value, int) and value > most and name not in NO_SIZES:
            raise ValueError(f"attention.{name[:MOST_NAMED]} above {most:,}")
