"""What a model folder must not hold: other types, names that break lines, weights that are no numbers, false sizes.

A folder may come from anywhere and its checksums may fit: all that is used later is looked at here, before memory is
taken for it.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from scperformer.config import HeadConfig, ModelConfig, TokensConfig, checked
from scperformer.text import unfit

GROUPS: dict[str, type] = {"tokens": TokensConfig, "model": ModelConfig, "head": HeadConfig}
PROVENANCE = {"reference": str, "label_key": str, "num_cells": int, "seed": int}  # what predictions record of it
MOST_NAMED = 100  # characters of a name in a message
MOST_FEATURES = 4096  # of an attention mechanism, unless its weights are there in such numbers
NO_SIZES = ("redraw_interval", "max_length")  # whole numbers among its options that take no memory


def require_sound_info(info: Mapping[str, Any]) -> None:
    """Refuse the content of a bundle.json of wrong types, and names that cannot be names.

    Raises
    ------
    ValueError
        Says what is wrong.
    """
    _require_names([info["name"]], "the name")
    _require_names(info["labels"], "a label")
    if len(set(info["labels"])) < len(info["labels"]):
        raise ValueError("a label twice")
    terms = info["ontology_term_ids"]
    _require_names(terms, "an ontology term")
    if len(terms) != len(info["labels"]):
        raise ValueError(f"{len(terms)} ontology terms for {len(info['labels'])} labels")
    total = info["config"].get("target_sum")
    if not _is_finite(total) or total <= 0:
        raise ValueError("target_sum is no number above 0")
    scales = info["metrics"].get("scales", {})
    known = isinstance(scales, dict) and set(scales) <= {"wide", "deep"}
    if not known or not all(_is_finite(scale) for scale in scales.values()):
        raise ValueError("scales are no numbers")
    for name, kind in PROVENANCE.items():
        value = info["provenance"].get(name, kind())
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{name} is not of type {kind.__name__}")
        if isinstance(value, int) and not 0 <= value < 2**63:
            raise ValueError(f"{name} is out of range")


def require_sound_weights(
    info: Mapping[str, Any], genes: list[str], means: np.ndarray, weights: Mapping[str, np.ndarray]
) -> None:
    """Refuse weights that are not finite numbers or of which the configuration wants more than there are.

    Raises
    ------
    ValueError
        Says what is wrong.
    """
    if len(set(genes)) < len(genes):
        raise ValueError("a gene twice")
    if not np.isfinite(means).all():
        raise ValueError("a mean of a gene that is no number")
    for name, array in weights.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"NaN or infinite weights in {name[:MOST_NAMED]}")
    num_genes, num_labels = len(genes), len(info["labels"])
    for name, shape in {"baseline.weight": (num_genes, num_labels), "baseline.bias": (num_labels,)}.items():
        if name in weights and weights[name].shape != shape:
            raise ValueError(f"{name} does not fit {num_genes} genes and {num_labels} labels")
    num_values = sum(array.size for array in weights.values())
    if least_values(info["config"], num_genes, num_labels) > num_values:
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


def _require_names(names: list[Any], what: str) -> None:
    for name in names:
        if why := unfit(name):
            raise ValueError(f"{what} that {why}")


def _require_small(attention: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Sizes of attention are those of its weights, or small."""
    if not isinstance(attention, dict) or not isinstance(attention.get("name", ""), str):
        raise ValueError("the options of 'attention' are none")
    there = [size for name, array in weights.items() if "attention" in name for size in array.shape]
    most = max([MOST_FEATURES, *there])
    for name, value in attention.items():
        if isinstance(value, int) and value > most and name not in NO_SIZES:
            raise ValueError(f"attention.{name[:MOST_NAMED]} above {most:,}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
