"""Columns of obs about calls in a label tree: the call, its node on each level, and ontology ids.

Shape letters: N cells, C labels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scperformer.labels.ontology import UNKNOWN_TERM
from scperformer.labels.tree import LabelTree

NO_CALL = "unknown"  # the call of a cell that is unknown, or whose label and parents are all below the confidence


def final_call(call: pd.Series, unknown: np.ndarray) -> pd.Categorical:
    """Return the calls of N cells, a categorical series, with `NO_CALL` where they are unknown (boolean, N).

    Only calls that occur are categories: plots of scanpy refuse others.
    """
    names = list(dict.fromkeys([*call.cat.categories, NO_CALL]))  # a label may have this name
    codes = np.where(unknown, names.index(NO_CALL), call.cat.codes.to_numpy())
    return pd.Categorical.from_codes(codes, categories=names).remove_unused_categories()


def term_column(best: np.ndarray, terms: Sequence[str]) -> pd.Categorical:
    """Return the ontology id of the label of each cell, given by its index (N)."""
    categories = sorted(set(terms))
    codes = np.array([categories.index(term) for term in terms])
    return pd.Categorical.from_codes(codes[best], categories=categories)


def tree_columns(
    tree: LabelTree, terms: Sequence[str], called: np.ndarray, confidence: np.ndarray, min_confidence: float
) -> dict[str, Any]:
    """Return the columns about calls in a label tree: the call, its probability, its node on each level and its id.

    Below the called node, and below a label on a higher level, a level repeats it.

    Parameters
    ----------
    terms
        Ontology id of each label, C.
    called, confidence
        The index of the called node in `tree.nodes` (-1: none), and its probability, N, as `LabelTree.call` returns
        them for `min_confidence`.
    """
    names = list(tree.nodes)
    if min_confidence > 0:  # otherwise every call is safe
        names = list(dict.fromkeys([*names, NO_CALL]))  # a label may have this name
        called = np.where(called < 0, names.index(NO_CALL), called)
    columns = {"call": pd.Categorical.from_codes(called, categories=names), "call_confidence": confidence}
    paths = [tree.path(name) for name in names]
    for level in range(tree.num_levels):
        columns[f"level{level + 1}"] = _renamed(called, [path[min(level, len(path) - 1)] for path in paths])
    term_of = _terms_of_nodes(tree, terms)
    ids = [term_of.get(name, UNKNOWN_TERM) for name in names]
    columns["ontology_term_id"] = _renamed(called, ids, sorted(set(ids)))
    return columns


def tree_record(tree: LabelTree, terms: Sequence[str]) -> dict[str, Any]:
    """Return a label tree as arrays: its nodes, the parent of each ("" at the top), their ids, and its levels."""
    term_of = _terms_of_nodes(tree, terms)
    return {
        "nodes": np.array(tree.nodes, dtype=object),
        "parents": np.array([tree.parents.get(node, "") for node in tree.nodes], dtype=object),
        "ontology_term_ids": np.array([term_of.get(node, UNKNOWN_TERM) for node in tree.nodes], dtype=object),
        "num_levels": tree.num_levels,
    }


def _terms_of_nodes(tree: LabelTree, terms: Sequence[str]) -> dict[str, str]:
    """Return the ontology id of each node that has one."""
    return tree.terms | dict(zip(tree.labels, terms, strict=True))


def _renamed(codes: np.ndarray, names: list[str], categories: list[str] | None = None) -> pd.Categorical:
    """Return the name of each code, where several codes can have the same name; by default in order of first use."""
    categories = list(dict.fromkeys(names)) if categories is None else categories
    places = np.array([categories.index(name) for name in names])
    return pd.Categorical.from_codes(places[codes], categories=categories)
